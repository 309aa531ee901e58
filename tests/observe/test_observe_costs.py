"""Nobody watches: then nothing is imported, called or kept for it."""

import asyncio
import sys
from types import FrameType
from typing import Any

from adjourn import Adjourn, Agent, Interrupt, MemoryStore, ToolRunContext
from adjourn.observe import Observer
from adjourn.testing import ScriptedModel, call

WATCHING = ("observe.py", "notices.py", "tracing.py", "metrics.py", "logs.py")


def _agent(*observers: Observer) -> Agent:
    ai = Adjourn(observers=observers, model=ScriptedModel([call("ask", {}), call("nosuch", {}), "done"]))

    @ai.tool()
    async def ask(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        return "yes"

    return ai.define_agent("a", store=MemoryStore())


async def _turn(agent: Agent) -> None:
    session = agent.connect()
    await session.send("go").output
    assert (await session.interrupts[0].restart().output).text == "done"


def _called(agent: Agent) -> list[str]:
    """The functions of the files that watch which one turn calls."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/adjourn/" in code.co_filename and code.co_filename.endswith(WATCHING):
            found.append(code.co_qualname)

    sys.setprofile(profile)
    try:
        asyncio.run(_turn(agent))
    finally:
        sys.setprofile(None)
    return found


def test_a_turn_that_nobody_watches_calls_nothing_of_what_watches() -> None:
    assert _called(_agent()) == []


def test_the_count_would_see_it() -> None:
    assert "Watched.__enter__" in _called(_agent(lambda _: None))


def test_what_nobody_traces_keeps_nothing_for_it() -> None:
    agent = _agent()
    store = agent.store
    assert isinstance(store, MemoryStore)
    asyncio.run(_turn(agent))
    assert [s.trace for s in store.snapshot_rows.values()] == [None, None]
    assert [r.trace for r in store.interrupt_rows.values()] == [None]
