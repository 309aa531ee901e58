"""Sessions that are followed: one look at all of them whenever a store says that something changed.

A store does not say what changed. Were each client to look for itself, a thousand of them would look a thousand times at
every commit of any session. So one watcher looks at the records of all followed sessions in one transaction, and wakes the
clients of those that have moved.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from adjourn.errors import StoreError
from adjourn.feed import Follower, Pulse
from adjourn.lease import transact
from adjourn.store import Store
from adjourn.timeline import Recorded, watch

T = TypeVar("T")
_log = logging.getLogger("adjourn.server.live")
_SLOW = 5.0
"""A look without having heard anything, in seconds."""
_EACH = 0.0002
"""For each session that is followed, so many seconds are between two looks."""


class _Followed:
    """One session: how often it moved, and who waits for that."""

    __slots__ = ("marker", "moves", "users", "waiting")

    def __init__(self) -> None:
        self.marker: Any = None
        self.moves = 0
        self.users = 0
        self.waiting: set[asyncio.Future[None]] = set()


class Journals:
    """The one watcher of the followed sessions of a store in this process. It runs while anybody follows one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._followed: dict[str, _Followed] = {}
        self._task: asyncio.Task[None] | None = None
        self._new = asyncio.Event()

    async def follow(self, session_id: str, after: str | None) -> AsyncGenerator[Recorded, None]:
        """A session's journal behind this id, and then what comes, until it is deleted."""
        followed = self._followed.setdefault(session_id, _Followed())
        followed.users += 1
        self._new.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            async with aclosing(watch(_Moves(followed), self.store, session_id, after)) as journal:
                async for recorded in journal:
                    yield recorded
        finally:
            followed.users -= 1
            if not followed.users:
                del self._followed[session_id]
            if not self._followed:
                self._stop()

    def _stop(self) -> None:
        task, self._task = self._task, None  # whoever comes now starts another
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        pulse = Pulse(self.store)
        try:
            while True:
                beats = pulse.beats
                self._new.clear()
                try:
                    await self._look()
                except StoreError as e:
                    _log.warning("followed sessions wait: the store does not answer (%s)", e)
                await asyncio.sleep(min(len(self._followed) * _EACH, 1.0))
                if not self._new.is_set():  # a new one is looked at at once
                    await pulse.beyond(beats, _SLOW)
        finally:
            pulse.end()

    async def _look(self) -> None:
        ids = list(self._followed)
        markers = await transact(self.store, partial(_markers, ids=ids), read=True)
        for session_id, marker in zip(ids, markers, strict=True):
            followed = self._followed.get(session_id)
            if followed is not None and followed.marker != marker:
                followed.marker = marker
                followed.moves += 1
                for waiter in followed.waiting:
                    if not waiter.done():
                        waiter.set_result(None)


def _markers(tx: Any, ids: Sequence[str]) -> list[Any]:
    """For each session something that differs after each of its commits."""
    return [_marker(tx, i) for i in ids]


def _marker(tx: Any, session_id: str) -> Any:
    session = tx.session(session_id)
    if session is None:
        return "deleted"
    head = tx.snapshot(session.head) if session.head is not None else None
    return session.head, session.updated, head.batches if head is not None else 0


class _Moves(Follower):
    """Reads again whenever this session moved."""

    def __init__(self, followed: _Followed) -> None:
        super().__init__()
        self._followed = followed

    async def follow(
        self, stores: Sequence[Store], read: Callable[[], Awaitable[Sequence[T] | None]]
    ) -> AsyncGenerator[T, None]:
        while True:
            moves = self._followed.moves
            found = await read()
            if found is None:
                return
            for item in found:
                yield item
            if not found:
                await self._beyond(moves)

    async def _beyond(self, moves: int) -> None:
        if self._followed.moves > moves:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followed.waiting.add(waiter)
        try:
            async with asyncio.timeout(4 * _SLOW):
                await waiter
        except TimeoutError:
            pass  # it is looked at all the same, now and then
        finally:
            self._followed.waiting.discard(waiter)
