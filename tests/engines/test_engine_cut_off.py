"""A worker that nobody can hear for a while goes on, comes back, and finds that others went on without it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn.engines.steps import Steps
from adjourn.engines.stored import Ask, Legs
from adjourn.engines.temporal import Temporal
from adjourn.handle import AgentInit
from adjourn.lease import transact
from adjourn.ledger import renew
from adjourn.promise import Promise
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import call
from engines.engine_kit import QUICK, World, engine_on, rest, until, working
from engines.temporal_server import Server


class CutStore:
    """A store on the other side of a link: while that is cut, what is asked is on its way, and arrives afterwards in order."""

    def __init__(self, inner: SQLiteStore) -> None:
        self.lease_seconds = inner.lease_seconds
        self.asked: list[Any] = []
        self._under_way: list[Callable[[], None]] = []
        self._inner = inner
        self._cut = False

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Promise[Any]:
        if not self._cut:
            return self._inner.submit(work, read=read)
        answer: Future[Any] = Future()

        def arrive() -> None:
            try:
                result = self._inner.submit(work, read=read).result()
            except Exception as e:
                answer.set_exception(e)
            else:
                answer.set_result(result)

        self.asked.append(getattr(work, "func", work))
        self._under_way.append(arrive)
        return answer

    def cut(self) -> None:
        self._cut = True

    async def mend(self) -> None:
        self._cut = False
        for arrive in self._under_way:
            await asyncio.to_thread(arrive)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._inner.subscribe(callback)

    def close(self) -> None:
        self._inner.close()


@pytest.mark.slow
async def test_what_a_worker_did_while_it_was_cut_off_is_kept_beside_the_question_of_those_who_went_on(
    temporal: Server, tmp_path: Path
) -> None:
    def opened() -> SQLiteStore:
        return SQLiteStore(tmp_path / "s.db", lease_seconds=1.0)

    link: Any = CutStore(opened())
    island = World(engine_on(temporal.address), link, [call("slow", {"n": 1}), "done"], ())
    shore_store = opened()
    shore = World(Temporal(temporal.address, queue=island.engine.queue, timing=QUICK), shore_store, [], ())
    async with working(island.ai, island.engine):
        turn = shore.agent.connect(AgentInit(session_id="s1")).send("go")
        await until(lambda: island.log)
        link.cut()
        await until(lambda: renew in link.asked)  # so it hears that it lost its lease before it hears of its result
        island.go.set()
        await until(lambda: any(getattr(work, "__name__", "") == "_keep" for work in link.asked))
        ask = Ask("s1", turn.snapshot_id, "a")
        look = partial(Legs(shore.engine.holder, "shore").view, ask=ask, limits=shore.agent.limits)
        view = await transact(shore_store, look, read=True)
        assert view is not None
        await Steps(shore.ai, shore.engine.holder).look(replace(ask, lost=(view.turn.calls[0].id,)))
        output = await rest(turn)
        (interrupt,) = output.interrupts
        assert interrupt.reason == "outcome_unknown"
        await link.mend()

        async def late() -> list[Any]:
            return [d.output for d in await shore.ai.inbox.history(interrupt.id) if d.verb == "late_result"]

        await until(late)
        assert await late() == ["slowly"]
        assert (await rest(interrupt.respond("slowly"))).text == "done"
        assert island.log == [("slow", 1)]
    await island.ai.aclose()
    await shore.ai.aclose()
