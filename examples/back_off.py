"""A tool pauses again while it is being restarted: a back-off loop whose count travels in the restart's metadata.

The loop is written out first; then the ready-made handler does the same in one line.
"""

import asyncio
from typing import Any

from adjourn import Adjourn, Interrupt, ToolFailed, ToolRunContext, restart_tool, run_sync
from adjourn.correction import retry
from adjourn.testing import ScriptedModel, call

request = call("fetch_price", {"sku": "A-1"})
ai = Adjourn(model=ScriptedModel([request, request, "The price is 12.50."]))
answers_503 = {"left": 99}


@ai.tool()
async def fetch_price(sku: str, ctx: ToolRunContext) -> dict[str, Any]:
    """Ask the supplier for a price."""
    tried: int = ctx.resumed_metadata["retry"] if ctx.is_resumed() else 0
    if answers_503["left"] == 0:
        return {"sku": sku, "price": "12.50"}
    answers_503["left"] -= 1
    if tried >= 3:
        raise RuntimeError("the supplier answered 503 four times")
    raise Interrupt({"status": 503, "will_retry": True, "tried": tried})


async def by_hand() -> None:
    response = await ai.generate("What does A-1 cost?", tools=[fetch_price])
    tried = 0
    while response.interrupts:
        tried += 1
        print(f"Pause {tried}:", response.interrupts[0].payload)
        await asyncio.sleep(0.01 * 2**tried)
        again = restart_tool(fetch_price, response.interrupts[0], resumed_metadata={"retry": tried})
        response = await ai.generate(resume_restart=again)


async def main() -> None:
    try:
        await by_hand()
    except ToolFailed as error:
        print("Gave up:", error.__cause__)

    answers_503["left"] = 2
    handler = retry(max=3, base=0.01)
    response = await ai.generate("What does A-1 cost?", tools=[fetch_price], on_interrupt=handler)
    print("With the handler:", response.text)


if __name__ == "__main__":
    run_sync(main())
