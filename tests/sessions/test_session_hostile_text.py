"""Text that cannot be stored: what nobody chose is made storable, what a caller hands in is refused and changes nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn import InvalidRequest, ModelError, ToolFailed
from adjourn.answer import Abort
from adjourn.decisions import decide
from adjourn.errors import HandlerFailed, SessionNotFound, UnknownInterrupt
from adjourn.events import Restarted
from adjourn.handle import Resume
from adjourn.parts import Artifact, Part
from adjourn.store import InterruptQuery, Tx
from adjourn.testing import call
from adjourn.tool import AbortSignal, ToolOutput, ToolRunContext
from sessions.session_kit import Process, World, outputs_of, paused

BAD = b"bad\xff".decode(errors="surrogateescape")
SHOWN = r"bad\udcff"
PAY = call("pay", {"amount": 5})
BOTH = [call("broken", {}), call("look", {"key": "a"})]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it says nothing")


def _broken(error: Exception, on_error: Any) -> Callable[[Process], None]:
    def define(process: Process) -> None:
        @process.ai.tool(on_error=on_error)
        async def broken() -> None:
            raise error

    return define


@pytest.mark.parametrize(
    "error, said", [(OSError(f"cannot read {BAD}"), f"OSError: cannot read {SHOWN}"), (Mute(), "Mute")]
)
async def test_a_tool_whose_error_is_no_text_tells_the_model_and_its_sibling_stays_finished(
    world: World, error: Exception, said: str
) -> None:
    process = world.process(BOTH, "sorry", define=_broken(error, "model"))
    session = process.connect()
    assert (await session.send("go").output).text == "sorry"
    again = await process.connect(session.id).load()
    assert outputs_of(again.messages) == [{"error": said}, {"found": "a"}]
    assert world.done("looked") == ["a"]


async def test_a_tool_whose_error_is_no_text_can_pause_and_its_sibling_stays_finished(world: World) -> None:
    process = world.process(BOTH, "done", define=_broken(OSError(BAD), "interrupt"))
    session = process.connect()
    await session.send("go").output
    again = await process.connect(session.id).load()
    (interrupt,) = again.interrupts
    assert interrupt.payload == {"error": "OSError", "message": SHOWN, "attempts": 1}
    await interrupt.respond("fine").output
    assert outputs_of(again.messages) == ["fine", {"found": "a"}]


async def test_a_tool_whose_error_is_no_text_fails_its_turn_and_its_sibling_stays_finished(world: World) -> None:
    process = world.process(BOTH, "done", define=_broken(OSError(BAD), "raise"))
    session = process.connect()
    with pytest.raises(ToolFailed, match="tool 'broken' failed: OSError: bad") as failed:
        await session.send("go").output
    assert str(failed.value).endswith(SHOWN)
    again = await process.connect(session.id).load()
    with pytest.raises(ToolFailed):
        await again.retry().output
    assert world.done("looked") == ["a"]


async def test_a_model_whose_error_is_no_text_fails_its_turn(world: World) -> None:
    process = world.process(OSError(BAD), Mute(), "well")
    session = process.connect()
    with pytest.raises(ModelError, match=r"OSError: bad\\udcff"):
        await session.send("go").output
    with pytest.raises(ModelError, match=r"failed: Mute$"):
        await session.retry().output
    again = await process.connect(session.id).load()
    assert (await again.retry().output).text == "well"


async def test_a_request_of_prepare_that_fails_with_no_text_fails_its_turn(world: World) -> None:
    def prepare(request: Any) -> Any:
        raise OSError(BAD)

    process = world.process(prepare=prepare)
    with pytest.raises(ModelError, match=r"prepare= failed: OSError: bad\\udcff"):
        await process.connect().send("go").output


@pytest.mark.parametrize("abort", [False, True])
async def test_a_handler_whose_error_is_no_text_leaves_the_pause_open(world: World, abort: bool) -> None:
    def handler(interrupt: Any) -> Any:
        if abort:
            return Abort(BAD)
        raise OSError(BAD)

    process = world.process([PAY], "done", on_interrupt=handler)
    session = process.connect()
    with pytest.raises(HandlerFailed, match=r"reason='bad\\udcff' has half" if abort else r"OSError: bad\\udcff"):
        await session.send("go").output
    (record,) = (await process.ai.inbox.list()).items
    assert record.tool == "pay"


async def test_parts_of_a_tools_result_that_are_no_text_are_the_tools_failure(world: World) -> None:
    def define(process: Process) -> None:
        @process.ai.tool()
        async def broken(ctx: ToolRunContext) -> ToolOutput:
            ctx.report_progress(0.5, BAD)
            return ToolOutput(1, content=[BAD])  # type: ignore[list-item]

    process = world.process([call("broken", {})], define=define)
    turn = process.connect().send("go")
    with pytest.raises(ToolFailed, match="half of a surrogate pair"):
        await turn.output
    assert [c.progress.text for c in [c async for c in turn.stream] if c.progress is not None] == [SHOWN]


async def test_what_a_decision_holds_must_be_text_or_nothing_is_changed(world: World) -> None:
    process, session = await paused(world, [PAY], "done")
    inbox, (interrupt,) = process.ai.inbox, session.interrupts
    given: list[tuple[str, dict[str, Any]]] = [
        ("reason", {"reason": BAD}), ("reason", {"reason": None}), ("reason", {"reason": 5}),
        ("by", {"by": BAD}), ("by", {"by": 42}), ("address", {"address": BAD}), ("address", {"address": 1}),
        ("key", {"key": BAD}), ("key", {"key": 5}), ("expect", {"expect": 5}),
    ]  # fmt: skip
    for name, arguments in given:
        with pytest.raises(InvalidRequest, match=rf"^{name}=.*; nothing was changed$"):
            await inbox.decline(interrupt.id, **arguments)
    for name, arguments in given[3:]:
        with pytest.raises(InvalidRequest, match=rf"^{name}="):
            await inbox.respond(interrupt.id, 1, **arguments)
        with pytest.raises(InvalidRequest, match=rf"^{name}="):
            await inbox.restart(interrupt.id, **arguments)
    wrong: Any = None
    for reason in (BAD, wrong):
        with pytest.raises(InvalidRequest, match=r"^reason="):
            interrupt.decline(reason)
        with pytest.raises(InvalidRequest, match=r"^reason="):
            await session.abort(reason)
        with pytest.raises(InvalidRequest, match=r"^reason="):
            await process.agent.abort(session.snapshot_id or "", reason)
    given = [("by", {"by": 42}), ("address", {"address": BAD})]
    for name, arguments in given:
        with pytest.raises(InvalidRequest, match=rf"^{name}="):
            Resume([interrupt.paused.decline()], **arguments)
    assert [r.id for r in (await inbox.list()).items] == [interrupt.id]
    assert await inbox.recover() == []
    assert (await interrupt.restart().output).text == "done"
    assert len([line async for line in process.ai.sessions.export()]) == 1


async def test_a_session_that_cannot_be_read_does_not_keep_others_from_being_taken_up_or_purged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    store, (_, broken), (_, other) = world.place.open(), await paused(world, [PAY]), await paused(world, [PAY])
    wrong: Any = 42
    for session, by in ((broken, wrong), (other, "ann")):
        event = Restarted(session.interrupts[0].id, by=by)
        work = partial(decide, interrupt_id=event.interrupt, event=event, now=world.clock.now(), address=None)
        store.submit(work).result()
    process = world.process("paid", "paid", store=store)
    turns = await process.ai.recover()
    assert [(await turn.output).text for turn in turns] == ["paid"] * (2 if world.place.kind == "memory" else 1)
    assert (await process.connect(other.id).load()).last_text == "paid"
    _, waits = await paused(world, [PAY])

    def damage(tx: Tx) -> None:
        (row,) = tx.interrupts(InterruptQuery(status="open", session_id=waits.id))
        tx.put_interrupt(replace(row, reason=wrong))

    store.submit(damage).result()
    world.clock.time += 100.0
    await process.ai.sessions.purge(50.0)
    assert waits.id in [s.id for s in await process.ai.sessions.list()]
    assert other.id not in [s.id for s in await process.ai.sessions.list()]
    if world.place.kind != "memory":
        assert f"session {broken.id} was not taken up" in caplog.text
        assert f"session {waits.id} was not purged" in caplog.text


def test_a_signal_is_not_aborted_for_a_reason_that_is_no_text() -> None:
    signal, wrong = AbortSignal(), [None, 5, BAD]
    for reason in wrong:
        with pytest.raises(InvalidRequest, match=r"^reason="):
            signal.abort(reason)  # type: ignore[arg-type]
    assert not signal.aborted


async def test_an_artifact_that_is_no_text_is_refused_and_the_session_goes_on(world: World) -> None:
    process = world.process("hello")
    session = process.connect()
    for artifact in (
        Artifact(BAD),
        Artifact("a", [Part(text=BAD)]),
        Artifact("a", metadata={BAD: 1}),
        Artifact("a", [Part(data=float("nan"))]),
    ):
        with pytest.raises(InvalidRequest, match="the artifact cannot be stored"):
            session.add_artifact(artifact)
    session.add_artifact(Artifact("good", [Part(text="x")]))
    await session.send("go").output
    assert [a.name for a in (await process.connect(session.id).load()).artifacts] == ["good"]


@pytest.mark.parametrize("part", [BAD, Part(text=BAD), Part(data={"a": float("nan")})])
async def test_a_message_that_cannot_be_kept_is_refused_when_it_is_sent(world: World, part: Any) -> None:
    process = world.process("hello")
    session = process.connect()
    with pytest.raises(InvalidRequest, match="the message cannot be stored as JSON"):
        session.send([part])
    assert (await session.send("go").output).text == "hello"


@pytest.mark.parametrize("unknown", [BAD, "a\0b", "", 5, None], ids=ascii)
async def test_an_id_that_cannot_exist_is_as_unknown_as_any_other(world: World, unknown: Any) -> None:
    process, session = await paused(world, [PAY])
    inbox, sessions, agent = process.ai.inbox, process.ai.sessions, process.agent
    asked: list[Callable[..., Any]] = [inbox.get, inbox.history, inbox.decline, partial(inbox.respond, output=1)]
    for work in asked:
        with pytest.raises(UnknownInterrupt, match="there is no interrupt"):
            await work(unknown)
    for work in (sessions.timeline, sessions.snapshots, sessions.delete):
        with pytest.raises(SessionNotFound, match="there is no session"):
            await work(unknown)
    with pytest.raises(SessionNotFound, match="there is no session"):
        await anext(sessions.watch(unknown))
    if unknown is not None:
        assert await agent.get_snapshot(session_id=unknown) is None
        assert await agent.get_snapshot(snapshot_id=unknown) is None
        with pytest.raises(SessionNotFound, match="there is no snapshot"):
            await agent.wait(unknown)
    assert (await process.connect(session.id).load()).interrupts


async def test_what_is_looked_for_must_be_text(world: World) -> None:
    inbox = (await paused(world, [PAY]))[0].ai.inbox
    for name in ("tool", "agent", "session_id", "assignee", "text"):
        for given in (BAD, 5):
            for work in (inbox.list, inbox.count):
                with pytest.raises(InvalidRequest, match=rf"^{name}="):
                    await work(**{name: given})  # type: ignore[arg-type]
