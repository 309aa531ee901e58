"""Tools that do not stop when they are told to: nobody waits for them for ever, and what they return later is kept beside."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from adjourn import AbortSignal, Adjourn, ToolFailed
from adjourn.lease import transact
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, assert_sendable, outputs_of

TOOLS = sys.modules["adjourn.tool"]  # the package has a function of that name
STUBBORN = call("stubborn", {"n": 1})


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOOLS, "_GRACE", 0.02)


class Stubborn:
    """A tool that runs on when it is cancelled, until it is let go."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()

    def into(self, **options: Any) -> Callable[[Process], None]:
        return lambda process: self.define(process.ai, **options)

    def define(self, ai: Adjourn, **options: Any) -> None:
        @ai.tool(**options)
        async def stubborn(n: int) -> Any:
            self.started.set()
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    continue
            self.ended.set()
            return {"late": n}


@asynccontextmanager
async def let_go(tool: Stubborn) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        tool.release.set()
        await tool.ended.wait()
        await asyncio.sleep(0)


async def late_results(process: Process, session_id: str, count: int) -> list[Any]:
    """The results that came late, once there are so many."""
    store = process.store
    assert store is not None
    found: list[Any] = []
    while len(found) < count:
        decisions = await transact(store, lambda tx: tx.decisions(session_id=session_id), read=True)
        found = [d.output for d in decisions if d.verb == "late_result"]
        await asyncio.sleep(0)
    return found


@pytest.mark.parametrize("beside", [False, True])
async def test_an_aborted_turn_does_not_wait_for_a_tool_that_swallows_its_cancellation(
    world: World, beside: bool
) -> None:
    tool = Stubborn()
    asked: Any = [STUBBORN, call("look", {"key": "a"})] if beside else STUBBORN
    process = world.process(asked, "Hello.", define=tool.into())
    session = process.connect()
    async with let_go(tool):
        turn = session.send("go")
        await tool.started.wait()
        turn.abort("changed my mind")
        assert (await turn.output).finish_reason == "aborted"
        first = outputs_of(session.messages)[0]
        assert first["cancelled"] is True
        assert "may still be running" in first["reason"]
        assert (await session.send("hello").output).text == "Hello."
    assert await late_results(process, session.id, 1) == [{"late": 1}]
    assert {"late": 1} not in outputs_of(session.messages)
    assert_sendable(session.messages)
    again = await world.process().connect(session.id).load()
    assert outputs_of(again.messages) == outputs_of(session.messages)


async def test_what_an_idempotent_tool_returns_late_is_not_kept(world: World) -> None:
    tool = Stubborn()
    process = world.process(STUBBORN, define=tool.into(idempotent=True))
    session = process.connect()
    async with let_go(tool):
        turn = session.send("go")
        await tool.started.wait()
        turn.abort()
        assert (await turn.output).finish_reason == "aborted"
        assert "may still be running" in outputs_of(session.messages)[0]["reason"]
    assert await late_results(process, session.id, 0) == []


async def test_a_tool_that_tidies_up_within_its_time_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TOOLS, "_GRACE", 60.0)
    started, tidied = asyncio.Event(), threading.Event()

    def define(process: Process) -> None:
        @process.ai.tool()
        async def stubborn(n: int) -> None:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                for _ in range(10):
                    await asyncio.sleep(0)
                tidied.set()

    session = world.process(STUBBORN, define=define).connect()
    turn = session.send("go")
    await started.wait()
    turn.abort()
    await turn.output
    assert tidied.is_set()


async def test_a_tool_that_answers_its_cancellation_with_a_value_has_come_too_late(world: World) -> None:
    started = asyncio.Event()

    def define(process: Process) -> None:
        @process.ai.tool()
        async def stubborn(n: int) -> str:
            try:
                started.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return "done anyway"

    process = world.process(STUBBORN, define=define)
    session = process.connect()
    turn = session.send("go")
    await started.wait()
    turn.abort()
    assert (await turn.output).finish_reason == "aborted"
    assert outputs_of(session.messages)[0]["cancelled"] is True
    assert await late_results(process, session.id, 1) == ["done anyway"]


async def test_a_timeout_does_not_wait_either_and_says_that_the_tool_may_still_act(world: World) -> None:
    tool = Stubborn()
    process = world.process(STUBBORN, define=tool.into(timeout=0.01))
    session = process.connect()
    async with let_go(tool):
        with pytest.raises(ToolFailed, match=r"took longer than 0\.01 s\. It was cancelled and did not stop"):
            await session.send("go").output
    assert await late_results(process, session.id, 1) == [{"late": 1}]


async def test_bare_generate_does_not_wait_for_it_either() -> None:
    tool = Stubborn()
    ai = Adjourn(model=ScriptedModel([STUBBORN]))
    tool.define(ai)
    signal = AbortSignal()
    async with let_go(tool):
        running = ai.generate_stream("go", tools=["stubborn"], abort_signal=signal)
        await tool.started.wait()
        signal.abort()
        assert (await running.response).finish_reason == "aborted"


async def test_a_cancelled_task_ends_although_its_tool_does_not() -> None:
    tool = Stubborn()
    ai = Adjourn(model=ScriptedModel([STUBBORN]))
    tool.define(ai)
    async with let_go(tool):
        task = asyncio.ensure_future(ai.generate("go", tools=["stubborn"]))
        await tool.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
