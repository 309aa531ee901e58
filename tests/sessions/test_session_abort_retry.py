"""Abort is no pause, and a failed or aborted turn is a place to go on from."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from adjourn import (
    AbortSignal,
    Interrupt,
    LimitReached,
    Limits,
    ModelError,
    NothingPaused,
    SessionNotFound,
    StaleInterrupt,
    ToolFailed,
    ToolRunContext,
    VerbNotAllowed,
)
from adjourn.testing import call
from sessions.session_kit import Process, World, assert_sendable, outputs_of, shown


class Slow:
    """A tool that starts and never ends by itself."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cleaned = 0

    def __call__(self, process: Process) -> None:
        @process.ai.tool()
        async def slow() -> str:
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cleaned += 1
            return "never"


# -- abort -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["session", "turn", "signal"])
async def test_aborting_a_running_turn_injects_no_result_and_the_next_message_is_taken(world: World, how: str) -> None:
    slow, signal = Slow(), AbortSignal()
    process = world.process([call("slow"), call("look", {"key": "a"})], "next", define=slow)
    session = process.connect()
    turn = session.send("go", abort_signal=signal)
    await slow.started.wait()
    if how == "session":
        await session.abort("enough")
    elif how == "turn":
        turn.abort("enough")
    else:
        signal.abort("enough")
    output = await turn.output
    assert output.finish_reason == "aborted"
    assert turn.poll() == "aborted"
    assert slow.cleaned == 1
    assert_sendable(session.messages)
    cancelled = outputs_of(session.messages)[0]
    assert cancelled["cancelled"] is True
    assert (await session.send("again").output).text == "next"
    assert_sendable(process.model.requests[1].messages)


async def test_aborting_a_paused_turn_cancels_its_pauses_and_a_later_decision_is_stale(world: World) -> None:
    process = world.process([call("pay", {"amount": 1}), call("look", {"key": "a"})], "next")
    session = process.connect()
    await session.send("go").output
    interrupt = session.interrupts[0]
    await session.abort("changed my mind")
    assert session.interrupts == []
    assert (await process.ai.inbox.get(interrupt.id)).status == "cancelled"
    with pytest.raises(StaleInterrupt):
        await process.ai.inbox.restart(interrupt.id)
    with pytest.raises(StaleInterrupt):
        await world.process().ai.inbox.respond(interrupt.id, 1)
    assert (await process.ai.inbox.list()).items == []
    assert (await session.send("again").output).text == "next"
    assert_sendable(session.messages)
    assert world.done("paid") == []
    assert world.done("looked") == ["a"]


async def test_a_decision_through_the_handle_of_an_aborted_pause_is_refused(world: World) -> None:
    session = world.process(call("pay", {"amount": 1}), "next").connect()
    await session.send("go").output
    interrupt = session.interrupts[0]
    await session.abort()
    with pytest.raises(StaleInterrupt):
        await interrupt.restart().output
    assert world.done("paid") == []
    assert (await session.send("again").output).text == "next"


async def test_aborting_from_another_process_by_the_snapshot_stops_the_turn_there(world: World) -> None:
    slow = Slow()
    process = world.process([call("slow")], define=slow)
    session = process.connect()
    turn = session.send("go", detach=True)
    await slow.started.wait()
    other = world.process(define=Slow())
    assert await other.agent.abort(turn.snapshot_id, "from elsewhere") == "pending"
    view = await other.agent.get_snapshot(snapshot_id=turn.snapshot_id)
    assert view is not None
    assert (view.status, view.finish_reason) == ("aborted", "aborted")
    turn.abort("the process hears of it at its next commit or heartbeat")
    await turn.settled()
    again = await world.process("next", define=Slow()).connect(session.id).load()
    assert_sendable(again.messages)
    assert (await again.send("again").output).text == "next"


async def test_the_process_whose_turn_was_aborted_elsewhere_keeps_nothing_more(world: World) -> None:
    gate = asyncio.Event()

    async def late(_: Any) -> str:
        await gate.wait()
        return "late reply"

    process = world.process(late)
    session = process.connect()
    turn = session.send("go", detach=True)
    await turn.stored()
    other = world.process("next")
    assert await other.agent.abort(turn.snapshot_id) == "pending"
    gate.set()
    await turn.settled()
    assert turn.poll() in ("failed", "aborted")
    again = await other.connect(session.id).load()
    assert "late reply" not in [m.text for m in again.messages]
    assert (await again.send("again").output).text == "next"


async def test_abort_of_what_is_over_changes_nothing_and_of_what_is_not_there_says_none(world: World) -> None:
    process = world.process("hello")
    session = process.connect()
    output = await session.send("hi").output
    assert output.snapshot_id is not None
    assert await process.agent.abort(output.snapshot_id) == "completed"
    assert await process.agent.abort("n_nothing") is None
    with pytest.raises(SessionNotFound, match="is a session, and no snapshot: nothing was ended"):
        await process.agent.abort(session.id)
    for wrong in (None, 5, "bad\udcff"):
        with pytest.raises(SessionNotFound, match="there is no snapshot"):
            await process.agent.abort(wrong)  # type: ignore[arg-type]
    view = await process.agent.get_snapshot(snapshot_id=output.snapshot_id)
    assert view is not None
    assert view.status == "completed"


async def test_cancelling_who_waits_for_a_turn_leaves_the_turn_alone(world: World) -> None:
    gate = asyncio.Event()

    async def slow(_: Any) -> str:
        await gate.wait()
        return "late"

    session = world.process(slow).connect()
    turn = session.send("go")
    waiter = asyncio.create_task(turn.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    gate.set()
    assert (await turn.output).text == "late"


class Holding:
    """A store that keeps its nth commit back until it is let go; later ones pass it by."""

    def __init__(self, inner: Any, position: int) -> None:
        self.lease_seconds = inner.lease_seconds
        self.held = asyncio.Event()
        self._inner = inner
        self._position = position
        self._commits = 0
        self._let_go: Any = None

    def submit(self, work: Any, *, read: bool = False) -> Any:
        if not read:
            self._commits += 1
        if read or self._commits - 1 != self._position:
            return self._inner.submit(work, read=read)
        future: Future[Any] = Future()
        self._let_go = lambda: future.set_result(self._inner.submit(work).result())
        self.held.set()
        return future

    def let_go(self) -> None:
        self._let_go()

    def subscribe(self, callback: Any) -> Any:
        return self._inner.subscribe(callback)

    def close(self) -> None:
        pass


async def test_an_abort_while_a_commit_is_under_way_comes_after_it_and_loses_nothing(world: World) -> None:
    slow = Slow()
    store = Holding(world.place.open(), 1)
    process = world.process([call("slow"), call("look", {"key": "a"})], define=slow, store=store)
    session = process.connect()
    turn = session.send("go")
    await store.held.wait()
    turn.abort("enough")
    for _ in range(50):
        await asyncio.sleep(0)
    store.let_go()
    assert (await turn.output).finish_reason == "aborted"
    again = await world.process("next", define=Slow()).connect(session.id).load()
    assert outputs_of(again.messages)[1] == {"found": "a"}
    assert outputs_of(again.messages)[0]["cancelled"] is True
    events = [
        e for s in await process.ai.sessions.snapshots(session.id) for e in await process.ai.sessions.events(s.id)
    ]
    assert [type(e).__name__ for e in events].count("ToolReturned") == 1
    assert (await again.send("again").output).text == "next"
    assert_sendable(again.messages)


# -- retry -----------------------------------------------------------------------------------------------------------


class Flaky:
    """A tool that fails so often, and then works."""

    def __init__(self, failures: int = 1) -> None:
        self.left = failures

    def __call__(self, process: Process) -> None:
        @process.ai.tool()
        async def flaky() -> str:
            process.log.append(("tried", 1))
            if self.left:
                self.left -= 1
                raise RuntimeError("no connection")
            return "worked"


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_failed_tool_is_retried_without_its_siblings_running_again(world: World, fresh: bool) -> None:
    flaky = Flaky()
    process = world.process([call("look", {"key": "a"}), call("flaky")], "ok", define=flaky)
    session = process.connect()
    with pytest.raises(ToolFailed) as caught:
        await session.send("go").output
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.output.finish_reason == "failed"
    assert session.turn_failed
    if fresh:
        session = await world.process("ok", define=flaky).connect(session.id).load()
    output = await session.retry().output
    assert output.text == "ok"
    assert world.done("looked") == ["a"]
    assert len(world.done("tried")) == 2
    assert [outputs_of(session.messages)[0], outputs_of(session.messages)[1]] == [{"found": "a"}, "worked"]
    again = await world.process(define=flaky).connect(session.id).load()
    assert again.messages == session.messages


async def test_after_a_failure_a_new_message_goes_on_and_the_failed_call_is_closed(world: World) -> None:
    process = world.process([call("flaky"), call("look", {"key": "a"})], "ok", define=Flaky(9))
    session = process.connect()
    with pytest.raises(ToolFailed):
        await session.send("go").output
    assert (await session.send("what happened?").output).text == "ok"
    sent = process.model.requests[1].messages
    assert_sendable(sent)
    assert outputs_of(sent)[0] == {"cancelled": True, "reason": "It failed."}
    assert "no connection" not in str(sent)  # what a tool's exception says is for models with on_error="model" only
    assert outputs_of(sent)[1] == {"found": "a"}
    live = session.messages
    again = await world.process("x", define=Flaky()).connect(session.id).load()
    assert again.messages == live


async def test_the_pause_beside_a_failed_sibling_is_answerable_after_retry(world: World) -> None:
    process = world.process([call("pay", {"amount": 1}), call("flaky")], "ok", define=Flaky())
    session = process.connect()
    with pytest.raises(ToolFailed):
        await session.send("go").output
    output = await session.retry().output
    assert output.finish_reason == "interrupted"
    assert world.done("asked") == [1]
    assert (await session.interrupts[0].restart().output).text == "ok"
    assert world.done("paid") == [1]


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_model_error_after_a_resume_is_retried_without_running_the_tool_again(
    world: World, fresh: bool
) -> None:
    process = world.process(call("pay", {"amount": 1}), ModelError("503", retryable=True), "ok")
    session = process.connect()
    await session.send("go").output
    with pytest.raises(ModelError) as caught:
        await session.interrupts[0].restart().output
    assert outputs_of(caught.value.output.messages)[0]["paid"] == 1
    assert world.done("paid") == [1]
    if fresh:
        session = await world.process("ok").connect(session.id).load()
        assert session.turn_failed
    assert (await session.retry().output).text == "ok"
    assert world.done("paid") == [1]
    assert_sendable(session.messages)


async def test_a_failed_restart_leaves_the_pause_answerable(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def book(ctx: ToolRunContext) -> Any:
            if not ctx.is_resumed():
                raise Interrupt({"ask": 1})
            p.log.append(("booked", len(ctx.restarts)))
            if len(ctx.restarts) == 1:
                raise RuntimeError("full")
            return "booked"

    process = world.process(call("book"), "ok", define=define)
    session = process.connect()
    await session.send("go").output
    before = shown(session)
    with pytest.raises(ToolFailed):
        await session.interrupts[0].restart().output
    assert shown(session) == before
    row = await process.ai.inbox.get(before[0][0])
    assert row.status == "open"
    again = await world.process("ok", define=define).connect(session.id).load()
    assert shown(again) == before
    assert (await again.interrupts[0].restart().output).text == "ok"
    assert world.done("booked") == [1, 2]
    verbs = [d.verb for d in await process.ai.inbox.history(before[0][0])]
    assert verbs == ["restart", "reopen", "restart"]


async def test_a_failed_restart_can_be_responded_to_instead(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def book(ctx: ToolRunContext) -> Any:
            if not ctx.is_resumed():
                raise Interrupt
            raise RuntimeError("full")

    session = world.process(call("book"), "ok", define=define).connect()
    await session.send("go").output
    with pytest.raises(ToolFailed):
        await session.interrupts[0].restart().output
    assert (await session.interrupts[0].respond("by phone").output).text == "ok"
    assert outputs_of(session.messages) == ["by phone"]


@pytest.mark.parametrize("fresh", [False, True])
async def test_after_a_limit_retry_takes_a_new_allowance_and_nothing_less(world: World, fresh: bool) -> None:
    looks = [call("look", {"key": str(n)}) for n in range(4)]
    process = world.process(*looks, "ok", limits=Limits(model_calls=3))
    session = process.connect()
    with pytest.raises(LimitReached) as caught:
        await session.send("go").output
    assert caught.value.limit == "model_calls"
    assert caught.value.output.limit == "model_calls"
    assert len(outputs_of(caught.value.output.messages)) == 3
    if fresh:
        session = await world.process(looks[3], "ok", limits=Limits(model_calls=3)).connect(session.id).load()
    with pytest.raises(VerbNotAllowed):
        await session.retry().output
    assert (await session.retry(limits=Limits(model_calls=5)).output).text == "ok"
    assert world.done("looked") == ["0", "1", "2", "3"]
    assert_sendable(session.messages)


@pytest.mark.parametrize("metadata", [None, {"inner": 1}, {"inner": {"verb": "respond"}}], ids=str)
async def test_the_counts_of_a_turn_survive_pauses_and_fresh_processes_whatever_restarts_say(
    world: World, metadata: Any
) -> None:
    limits = Limits(restarts=2, repeats=None)

    def define(p: Process) -> None:
        @p.ai.tool()
        async def never(ctx: ToolRunContext) -> Any:
            raise Interrupt({"n": len(ctx.restarts)})

    process = world.process(call("never"), define=define, limits=limits)
    session = process.connect()
    await session.send("go").output
    await session.interrupts[0].restart(metadata).output
    session = await world.process(define=define, limits=limits).connect(session.id).load()
    with pytest.raises(LimitReached) as caught:
        await session.interrupts[0].restart(metadata).output
    assert caught.value.limit == "restarts"
    assert session.interrupts == []
    assert_sendable(session.messages)
    assert (await process.ai.inbox.list()).items == []


async def test_the_same_pause_coming_back_is_a_stuck_loop_also_across_processes(world: World) -> None:
    def again() -> Any:
        return world.process(call("pay", {"amount": 1}), limits=Limits(repeats=1))

    process = again()
    session = process.connect()
    await session.send("go").output
    session = await again().connect(session.id).load()
    await session.interrupts[0].respond("no").output
    session = await again().connect(session.id).load()
    with pytest.raises(LimitReached) as caught:
        await session.interrupts[0].respond("no").output
    assert caught.value.limit == "repeats"
    assert (await process.ai.inbox.list()).items == []


async def test_retry_of_what_did_not_fail_is_refused(world: World) -> None:
    session = world.process("hello").connect()
    with pytest.raises(NothingPaused):
        await session.retry().output
    await session.send("hi").output
    with pytest.raises(NothingPaused):
        await session.retry().output


async def test_retry_goes_on_from_an_aborted_turn(world: World) -> None:
    slow = Slow()
    process = world.process(call("look", {"key": "a"}), call("slow"), "ok", define=slow)
    session = process.connect()
    turn = session.send("go")
    await slow.started.wait()
    turn.abort()
    await turn.output
    again = await world.process("ok", define=Slow()).connect(session.id).load()
    assert (await again.retry().output).text == "ok"
    assert world.done("looked") == ["a"]
    assert_sendable(again.messages)
