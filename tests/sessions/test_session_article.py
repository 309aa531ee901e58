"""The article's session program, with only its imports changed, on every store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjourn import (
    AgentInit,
    Genkit,
    InMemoryLatestStateStore,
    Interrupt,
    MemoryStore,
    Resume,
    SessionClosed,
    SessionConflict,
    ToolRequest,
    ToolRequestPart,
    ToolResponse,
    ToolResponsePart,
    ToolRunContext,
)
from adjourn.parts import Artifact, Part
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import KINDS, Place, World, assert_sendable, make_place

EMAIL = {"to": "bob@example.com", "subject": "Hi", "body": "Lunch?"}


@pytest.fixture(params=["latest", *KINDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"))
    yield made
    made.close()


class Mailer:
    def __init__(self, place: Place, *replies: Any, chunks: Any = ()) -> None:
        self.sent: list[str] = []
        self.metadata: list[Any] = []
        self.model = ScriptedModel(list(replies), chunks=chunks)
        self.ai = Genkit(model=self.model)

        @self.ai.tool()
        async def send_email(to: str, subject: str, body: str, ctx: ToolRunContext) -> dict[str, Any]:
            """Send an email. Pauses for approval on first call."""
            if not ctx.is_resumed():
                raise Interrupt({"to": to, "needs_approval": True})
            self.metadata.append(ctx.resumed_metadata)
            self.sent.append(to)
            return {"status": "sent", "to": to}

        self.agent = self.ai.define_agent(name="mailer", model=self.model, store=place.open())
        self.session = self.agent.connect(AgentInit())


def asking(place: Place, *replies: Any) -> Mailer:
    return Mailer(place, ["I will ask.", call("send_email", EMAIL, ref="r1")], *(replies or ("Sent.",)))


async def test_the_program_of_the_article_approves_inside_the_stream_loop(place: Place) -> None:
    mailer = Mailer(
        place,
        ["One moment.", call("send_email", EMAIL, ref="r1")],
        "Sent it.",
        chunks=[["One ", "moment."], ["Sent ", "it."]],
    )
    session = mailer.session
    turn = session.send("Email Bob about lunch")
    texts: list[str] = []
    paused, next_turn = 0, None
    async for chunk in turn.stream:
        if chunk.text:
            texts.append(chunk.text)
        if chunk.tool_request:
            paused += 1
            interrupt = turn.interrupt
            assert interrupt is not None
            assert interrupt.name == chunk.tool_request.name == "send_email"
            assert chunk.raw is not None
            assert chunk.raw.content[0].metadata is not None
            assert chunk.raw.content[0].metadata["interrupt"] == {"to": "bob@example.com", "needs_approval": True}
            next_turn = interrupt.restart()
    assert texts == ["One ", "moment."]
    assert paused == 1
    assert next_turn is not None
    more = [c async for c in next_turn.stream]
    assert "".join(c.text for c in more if c.raw and c.raw.role == "model") == "Sent it."
    assert [c.tool_response.output for c in more if c.tool_response] == [{"status": "sent", "to": "bob@example.com"}]
    assert not [c for c in more if c.tool_request]
    output = await next_turn.output
    assert output.text == "Sent it."
    assert output.finish_reason == "stop"
    assert mailer.sent == ["bob@example.com"]
    assert mailer.metadata == [{}]
    await session.close()


async def test_respond_inside_the_stream_loop_supplies_the_result_and_the_tool_does_not_run(place: Place) -> None:
    mailer = asking(place, "You sent it yourself.")
    turn = mailer.session.send("go")
    async for chunk in turn.stream:
        if chunk.tool_request and turn.interrupt:
            output = await turn.interrupt.respond({"status": "sent by hand"}).output
            assert output.text == "You sent it yourself."
    assert mailer.sent == []
    tool = mailer.model.requests[1].messages[-1]
    assert tool.content[0].tool_response == ToolResponse("send_email", "r1", {"status": "sent by hand"})


async def test_history_is_up_to_date_after_the_pause_and_after_the_resumed_turn(place: Place) -> None:
    mailer = asking(place)
    session = mailer.session
    paused = await session.send("go").output
    assert paused.finish_reason == "interrupted"
    assert paused.snapshot_id == session.snapshot_id
    assert [m.role for m in session.messages] == ["user", "model"]
    assert session.messages == list(paused.messages)
    output = await session.interrupts[0].restart().output
    assert [m.role for m in session.messages] == ["user", "model", "tool", "model"]
    assert session.messages == list(output.messages)
    assert session.interrupts == []
    assert_sendable(session.messages)


async def test_the_pause_comes_once_for_each_of_two_pauses_and_is_set_before_its_chunk(place: Place) -> None:
    mailer = Mailer(place, [call("send_email", EMAIL, ref="a"), call("send_email", EMAIL, ref="b")], "Both.")
    turn = mailer.session.send("go")
    seen: list[str | None] = []
    async for chunk in turn.stream:
        if chunk.tool_request:
            seen.append(chunk.tool_request.ref)
            assert chunk.interrupt in turn.interrupts
    assert sorted(map(str, seen)) == ["a", "b"]
    assert len(turn.interrupts) == 2
    assert len((await turn.output).interrupts) == 2


async def test_the_last_chunk_says_why_the_leg_rests(place: Place) -> None:
    mailer = asking(place)
    turn = mailer.session.send("go")
    chunks = [c async for c in turn.stream]
    end = chunks[-1].turn_end
    assert end is not None
    assert (end.finish_reason, end.snapshot_id) == ("interrupted", mailer.session.snapshot_id)
    assert [c.turn_end is not None for c in chunks].count(True) == 1


async def test_the_turn_runs_when_nobody_reads_the_stream_and_can_be_read_afterwards(place: Place) -> None:
    mailer = asking(place)
    turn = mailer.session.send("go")
    await turn.output
    assert [c.tool_request.name for c in [c async for c in turn.stream] if c.tool_request] == ["send_email"]
    assert [c.tool_request.name for c in [c async for c in turn.stream] if c.tool_request] == ["send_email"]


async def test_the_wire_level_respond_of_the_article_resumes_the_session(place: Place) -> None:
    mailer = asking(place)
    session = mailer.session
    await session.send("go").output
    part = ToolResponsePart(
        tool_response=ToolResponse(name="send_email", ref="r1", output={"status": "sent", "to": "bob"})
    )
    output = await session.resume(Resume(respond=[part])).output
    assert output.text == "Sent."
    assert mailer.sent == []


async def test_the_wire_level_restart_runs_the_tool_with_its_metadata(place: Place) -> None:
    mailer = asking(place)
    session = mailer.session
    await session.send("go").output
    part = ToolRequestPart(
        tool_request=ToolRequest(name="send_email", ref="r1", input=EMAIL), metadata={"resumed": {"by": "ann"}}
    )
    await session.resume(Resume(restart=[part])).output
    assert mailer.metadata == [{"by": "ann"}]
    assert mailer.sent == ["bob@example.com"]


async def test_a_session_goes_on_over_several_turns_and_takes_no_more_after_close(place: Place) -> None:
    mailer = asking(place, "Sent.", "You are welcome.")
    session = mailer.session
    await session.send("go").output
    await session.interrupts[0].restart().output
    assert (await session.send("thanks").output).text == "You are welcome."
    await session.close()
    with pytest.raises(SessionClosed):
        session.send("again")


async def test_a_handle_whose_branch_the_latest_state_store_dropped_is_refused_and_never_loses_its_past() -> None:
    store = InMemoryLatestStateStore()
    world = World(Place("latest", lambda: store))
    process = world.process("one", "two", "lost", "three")
    session = process.connect()
    await session.send("a").output
    branch = await session.fork()
    await branch.send("b").output
    with pytest.raises(SessionConflict, match=r"keeps only the newest.*connect again"):
        await session.send("c").output
    again = await process.connect(session.id).load()
    assert [m.text for m in again.messages] == ["a", "one", "b", "two"]
    assert (await again.send("d").output).text == "three"
    assert [m.text for m in (await process.connect(session.id).load()).messages][:4] == ["a", "one", "b", "two"]
    lines = [line async for line in process.ai.sessions.export()]
    other = MemoryStore()
    elsewhere = world.process("four", store=other)
    await elsewhere.ai.sessions.import_(lines, other)
    assert len((await elsewhere.connect(session.id).load()).messages) == 6


async def test_the_latest_state_store_keeps_only_the_newest_state() -> None:
    store = InMemoryLatestStateStore()
    world = World(Place("latest", lambda: store))
    process = world.process("one", "two", call("pay", {"amount": 3}), "three", store=store)
    session = process.connect()
    await session.send("1").output
    first = session.snapshot_id
    await session.send("2").output
    await session.send("3").output
    await session.interrupts[0].restart().output
    assert first not in store.snapshot_rows
    live = session.messages
    again = await world.process("four", store=store).connect(session.id).load()
    assert again.messages == live
    assert [m.text for m in again.messages if m.role == "user"] == ["1", "2", "3"]
    assert (await again.send("4").output).text == "four"
    assert len(store.snapshot_rows) <= 3
    assert world.done("paid") == [3]


async def test_artifacts_without_a_name_are_all_kept_and_those_with_one_once(place: Place) -> None:
    world = World(place)
    process = world.process("one", "two", "three", [call("pay", {"amount": 3})], "four")
    session = process.connect()
    for turn in range(4):
        session.add_artifact(Artifact("#0", [Part(text=f"named {turn}")]))
        session.add_artifact(Artifact(None, [Part(text=f"unnamed {turn}")]))
        await session.send("go").output
    await session.interrupts[0].restart().output
    again = await world.process().connect(session.id).load()
    assert again.artifacts == session.artifacts
    assert [a.parts[0].text for a in again.artifacts] == ["named 3", *[f"unnamed {turn}" for turn in range(4)]]
