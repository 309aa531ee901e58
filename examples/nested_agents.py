"""One agent calls another as a tool. A pause inside surfaces outside, and its answer finds its way back in."""

from adjourn import Adjourn, InMemoryLatestStateStore, run_sync
from adjourn.testing import ScriptedModel, call

ai = Adjourn()


@ai.tool(approval=True)
async def refund(order: int, euros: int) -> str:
    """Pay money back to a customer. A person approves it first."""
    print(f"[paying {euros} euros back for order {order}]")
    return "refunded"


billing = ai.define_agent(
    "billing",
    description="Handles payments and refunds.",
    model=ScriptedModel([call("refund", {"order": 17, "euros": 40}), "Order 17 is refunded."]),
    tools=[refund],
)
desk = ai.define_agent(
    "desk",
    model=ScriptedModel([call("billing", {"task": "Refund order 17, 40 euros."}), "Your money is on its way."]),
    tools=[billing.as_tool()],
    store=InMemoryLatestStateStore(),
)


async def main() -> None:
    async with desk.connect() as session:
        output = await session.send("My order 17 arrived broken.").output
        pause = output.interrupts[0]
        print(output.finish_reason, "in", pause.name, "through", pause.path, "because of", pause.reason)
        print("asked for:", pause.payload["tool"], pause.payload["input"])

        output = await pause.restart().output
        print(output.finish_reason, "-", output.text)


if __name__ == "__main__":
    run_sync(main())
