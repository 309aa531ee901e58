"""Three calls of one model message: one finishes, two pause, and they are answered one after the other.

The model is called again when the last one is settled, with all results in the order of its requests.
"""

from adjourn import Adjourn, Interrupt, ToolRunContext, decline_interrupt, restart_tool, run_sync
from adjourn.testing import ScriptedModel, call

model = ScriptedModel(
    [
        [call("pay", {"invoice": 1, "euros": 20}), call("pay", {"invoice": 2, "euros": 900}), call("balance")],
        "I paid one invoice.",
    ]
)
ai = Adjourn(model=model)


@ai.tool()
async def pay(invoice: int, euros: int, ctx: ToolRunContext) -> str:
    """Pay an invoice."""
    if not ctx.is_resumed():
        raise Interrupt({"invoice": invoice, "euros": euros})
    print(f"  paying invoice {invoice}")
    return "paid"


@ai.tool()
async def balance() -> int:
    """What is in the account, in euros."""
    print("  reading the balance")
    return 0


async def main() -> None:
    response = await ai.generate("Pay what is due.", tools=[pay, balance])
    first, second = response.interrupts
    print("Waiting:", [i.payload for i in response.interrupts])

    response = await ai.generate(resume_respond=decline_interrupt("too much", second))
    print("One answered:", response.finish_reason, "- model calls so far:", model.calls)

    response = await ai.generate(resume_restart=restart_tool(pay, first))
    print("Both answered:", response.finish_reason, "- model calls so far:", model.calls)
    for part in response.messages[2].content:
        if part.tool_response is not None:
            print("  result:", part.tool_response.output)


if __name__ == "__main__":
    run_sync(main())
