"""A person supplies the tool's result, so the tool itself never runs.

The declared `response=` is checked before the answer is taken: a wrong one is refused and the pause stays.
"""

from pydantic import BaseModel

from adjourn import Adjourn, Interrupt, InvalidResponse, respond_to_interrupt, run_sync
from adjourn.testing import ScriptedModel, call


class Rate(BaseModel):
    currency: str
    per_euro: float


ai = Adjourn(model=ScriptedModel([call("exchange_rate", {"currency": "CHF"}), "One euro is 0.95 francs."]))


@ai.tool()
async def exchange_rate(currency: str) -> Rate:
    """Look up how much of a currency one euro is."""
    raise Interrupt({"currency": currency, "problem": "the rate service is down"}, response=Rate)


async def main() -> None:
    paused = await ai.generate("How many francs is a euro?", tools=[exchange_rate])
    pause = paused.interrupts[0]
    print("Paused:", pause.payload)

    try:
        await ai.generate(resume_respond=respond_to_interrupt({"currency": "CHF"}, pause))
    except InvalidResponse as error:
        print("Refused:", error)

    answer = Rate(currency="CHF", per_euro=0.95)
    done = await ai.generate(resume_respond=respond_to_interrupt(answer, pause))
    print("Answered:", done.text)
    response = done.messages[2].content[0].tool_response
    print("The model was told:", response.output if response else None)


if __name__ == "__main__":
    run_sync(main())
