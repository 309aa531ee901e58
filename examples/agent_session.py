"""An agent with a session: read the stream of a turn, and answer its pause from inside the loop."""

from adjourn import Adjourn, AgentInit, InMemoryLatestStateStore, Interrupt, ToolRunContext, run_sync
from adjourn.testing import ScriptedModel, call

ai = Adjourn(
    model=ScriptedModel(
        [
            ["Let me do that. ", call("delete_file", {"path": "old.txt"})],
            "The file is gone.",
            "You asked me to delete old.txt.",
        ],
        chunks=[["Let me ", "do that. "], ["The file ", "is gone."]],
    )
)


@ai.tool()
async def delete_file(path: str, ctx: ToolRunContext) -> str:
    """Delete a file. Pauses for approval."""
    if not ctx.is_resumed():
        raise Interrupt({"path": path})
    print(f"[deleting {path}]")
    return "deleted"


agent = ai.define_agent("files", system="You look after files.", store=InMemoryLatestStateStore())


async def main() -> None:
    session = agent.connect(AgentInit())
    turn = session.send("Delete old.txt.")
    async for chunk in turn.stream:
        if chunk.text:
            print("text:", chunk.text)
        if chunk.tool_request and turn.interrupt:
            print("paused:", chunk.tool_request.name, turn.interrupt.payload)
            turn = turn.interrupt.restart()  # the next turn; the old stream ends here
            break
    async for chunk in turn.stream:
        if chunk.tool_response:
            print("result:", chunk.tool_response.output)
        if chunk.text:
            print("text:", chunk.text)
    output = await turn.output
    print(output.finish_reason, "-", output.text)

    output = await session.send("What did I ask?").output
    print(output.finish_reason, "-", output.text)
    print(len(session.messages), "messages")
    await session.close()


if __name__ == "__main__":
    run_sync(main())
