"""Many sessions that are followed at once: who waits is woken by his own session, and one look serves all."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adjourn import AgentInit, Store
from adjourn.clock import SYSTEM
from adjourn.server.live import session_frames
from adjourn.server.live_sessions import Journals
from adjourn.timeline import Recorded
from server.webhook_kit import Office
from sessions.session_kit import KINDS, Place, make_place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"))
    yield made
    made.close()


class Counting:
    """A store that counts what is read."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.lease_seconds = inner.lease_seconds
        self.reads = 0

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Any:
        self.reads += read
        return self.inner.submit(work, read=read)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self.inner.subscribe(callback)

    def close(self) -> None:
        """The place closes what is inside."""


class Follower:
    """Follows a session and notes what came."""

    def __init__(self, journals: Journals, session_id: str) -> None:
        self.came: list[Recorded] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow(journals, session_id))

    async def _follow(self, journals: Journals, session_id: str) -> None:
        async for recorded in journals.follow(session_id, None):
            self.came.append(recorded)
            self._news.set()

    async def until(self, kind: str) -> None:
        async with asyncio.timeout(20):
            while not any(type(e).__name__ == kind for r in self.came for e in r.events):
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_each_follower_is_told_of_its_own_session(place: Place) -> None:
    office = Office(place.open(), SYSTEM)
    there = Office(place.open(), SYSTEM)
    journals = Journals(office.store)
    sessions = [office.agent.connect(AgentInit(owner="ann")) for _ in range(5)]
    paused = [(await s.send("pay").output).interrupts[0].id for s in sessions]
    followers = [Follower(journals, s.id) for s in sessions]
    for f in followers:
        await f.until("ToolInterrupted")
    for interrupt, f in zip(paused, followers, strict=True):
        await there.decide(interrupt)  # in another process
        await f.until("TurnEnded")
    for session, f in zip(sessions, followers, strict=True):
        ids = [r.id for r in f.came]
        assert len(set(ids)) == len(ids)
        assert {r.snapshot_id for r in f.came} == {s.id for s in await office.ai.sessions.snapshots(session.id)}
        await f.end()


async def test_who_follows_a_quiet_session_reads_nothing_while_others_are_busy(place: Place) -> None:
    office = Office(place.open(), SYSTEM)
    counting = Counting(office.store)
    journals = Journals(counting)
    quiet = [office.agent.connect() for _ in range(10)]
    for s in quiet:
        await s.send("pay").output
    busy = office.agent.connect()
    await busy.send("pay").output
    followers = [Follower(journals, s.id) for s in [*quiet, busy]]
    for f in followers:
        await f.until("ToolInterrupted")
    before = counting.reads
    for _ in range(5):
        interrupt = busy.interrupts[0].id
        await office.decide(interrupt)
        busy = office.agent.connect(AgentInit(session_id=busy.id))
        await busy.send("pay").output
    await followers[-1].until("TurnEnded")
    # Each of the quiet ones looked once more at most (when the first look at its record came); nobody looked every time.
    assert counting.reads - before < 5 * len(quiet)
    assert [len(f.came) for f in followers[:-1]] == [len(followers[0].came)] * len(quiet)
    for f in followers:
        await f.end()


async def test_a_session_that_is_deleted_ends_its_stream(place: Place) -> None:
    office = Office(place.open(), SYSTEM)
    session = office.agent.connect()
    await session.send("pay").output
    frames = session_frames(Journals(office.store), session.id, None, 20.0, told=True)
    assert await anext(frames) == b"retry: 2000\n\n"
    first = await anext(frames)
    assert b"event: batch" in first
    rest = asyncio.create_task(_all(frames))
    await office.ai.sessions.delete(session.id, force=True)
    async with asyncio.timeout(20):
        assert (await rest)[-1] == b"event: deleted\ndata: {}\n\n"


async def _all(frames: Any) -> list[bytes]:
    return [f async for f in frames]


async def test_nobody_watches_where_nobody_follows(place: Place) -> None:
    office = Office(place.open(), SYSTEM)
    journals = Journals(office.store)
    session = office.agent.connect()
    await session.send("pay").output
    for _ in range(2):  # and it begins again with the next one
        follower = Follower(journals, session.id)
        await follower.until("ToolInterrupted")
        await follower.end()
    tasks = [t for t in asyncio.all_tasks() if "Journals" in repr(t)]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not [t for t in asyncio.all_tasks() if "Journals" in repr(t)]
