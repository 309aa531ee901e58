"""A tool that pauses until a person approves it, and runs once after that.

The model is a script, so this runs offline. Run it with: python examples/approve_email.py
"""

from adjourn import Adjourn, Interrupt, ToolRunContext, restart_tool, run_sync
from adjourn.testing import ScriptedModel, call

ai = Adjourn(
    model=ScriptedModel(
        [
            call("send_email", {"to": "ann@example.com", "subject": "Lunch", "body": "Noon?"}),
            "I sent the email to Ann.",
        ]
    )
)
outbox: list[str] = []


@ai.tool()
async def send_email(to: str, subject: str, body: str, ctx: ToolRunContext) -> dict[str, str]:
    """Send an email. Pauses for approval on the first call."""
    if not ctx.is_resumed():
        raise Interrupt({"to": to, "subject": subject, "question": "Send it?"})
    outbox.append(f"{to}: {subject}: {body}")
    return {"status": "sent", "to": to}


async def main() -> None:
    paused = await ai.generate("Ask Ann to lunch.", tools=[send_email])
    pause = paused.interrupts[0]
    print("Paused:", pause.name, pause.payload)
    print("In the outbox:", outbox)

    done = await ai.generate(resume_restart=restart_tool(send_email, pause))
    print("Approved:", done.text)
    print("In the outbox:", outbox)


if __name__ == "__main__":
    run_sync(main())
