"""Following what is stored, from any process: the feed of the inbox, and the wakes that spare everybody the polling."""

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from adjourn.arguments import check_limit, check_texts
from adjourn.errors import InvalidRequest
from adjourn.lease import transact
from adjourn.records import Change
from adjourn.store import Store

T = TypeVar("T")

_SLOW_SECONDS = 15.0
"""How long nobody looks where nothing is heard: a store that can be changed from elsewhere says so by itself."""
_SOON_SECONDS = 0.05
"""When to look again for what a store may still hold back. Each further time it takes twice as long."""
_BURST_SECONDS = 0.02
"""Changes that come this close together wake everybody once."""


class Pulse:
    """Wakes the coroutines of one event loop after changes in a store: one subscription for all of them."""

    def __init__(self, store: Store) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._due = False
        self._told = 0.0
        self.beats = 0
        self.users = 0
        self.end = store.subscribe(self._hear)

    def _hear(self) -> None:
        if self._due:
            return
        self._due = True
        try:
            self._loop.call_soon_threadsafe(self._soon)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _soon(self) -> None:
        left = self._told + _BURST_SECONDS - time.monotonic()
        if left > 0:
            self._loop.call_later(left, self._tell)
        else:
            self._tell()

    def _tell(self) -> None:
        self._due = False
        self._told = time.monotonic()
        self.beats += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def beyond(self, beats: int, seconds: float) -> bool:
        """Waits until there were more beats than that. False where that took too long."""
        if self.beats > beats:
            return True
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)


class Follower:
    """Reads again whenever something may have changed."""

    def __init__(self) -> None:
        self._pulses: dict[tuple[int, int], Pulse] = {}

    async def follow(
        self, stores: Sequence[Store], read: Callable[[], Awaitable[Sequence[T] | None]]
    ) -> AsyncGenerator[T, None]:
        """What `read` gives, for ever; where it gives None, that is the end."""
        loop = id(asyncio.get_running_loop())
        pulses = [self._pulse(store, loop) for store in stores]
        patience = _SOON_SECONDS
        try:
            while True:
                beats = [p.beats for p in pulses]
                found = await read()
                if found is None:
                    return
                for item in found:
                    yield item
                if found:
                    patience = _SOON_SECONDS  # there may be more
                elif await _any_beyond(pulses, beats, patience):
                    patience = _SOON_SECONDS
                else:
                    patience = min(patience * 2, _SLOW_SECONDS)
        finally:
            for store in stores:
                self._leave(store, loop)

    def _pulse(self, store: Store, loop: int) -> Pulse:
        key = id(store), loop
        pulse = self._pulses.get(key)
        if pulse is None:
            pulse = self._pulses[key] = Pulse(store)
        pulse.users += 1
        return pulse

    def _leave(self, store: Store, loop: int) -> None:
        key = id(store), loop
        pulse = self._pulses[key]
        pulse.users -= 1
        if not pulse.users:
            del self._pulses[key]
            pulse.end()


async def _any_beyond(pulses: Sequence[Pulse], beats: Sequence[int], seconds: float) -> bool:
    if len(pulses) == 1:
        return await pulses[0].beyond(beats[0], seconds)
    waits = [asyncio.ensure_future(p.beyond(b, seconds)) for p, b in zip(pulses, beats, strict=True)]
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return any(w.result() for w in done)
    finally:
        for wait in waits:
            wait.cancel()


class Feed:
    """The changes of several stores as one feed. A position in it is one in each store, in the order of the stores."""

    def __init__(self, stores: Callable[[], Sequence[Store]]) -> None:
        self._stores = stores
        self._follower = Follower()
        self._reading: dict[tuple[int, str | None, int], asyncio.Task[Sequence[Change]]] = {}

    async def changes(self, after: str | None, limit: int) -> Sequence[Change]:
        check_texts(after=after)
        check_limit(limit, 10_000)
        stores = self._stores()
        if len(stores) == 1:
            return await transact(stores[0], lambda tx: tx.changes(after, limit), read=True)
        at = _positions(after, len(stores))
        found = [
            [(n, c) for c in await transact(s, partial(_changes, after=at[n], limit=limit), read=True)]
            for n, s in enumerate(stores)
        ]
        out: list[Change] = []
        for n, change in heapq.merge(*found, key=lambda f: f[1].at):
            at[n] = change.position
            out.append(replace(change, position=_joined(at)))
        return out[:limit]

    async def position(self) -> str:
        return _joined([await transact(s, lambda tx: tx.position(), read=True) for s in self._stores()])

    async def watch(self, after: str | None) -> AsyncGenerator[Change, None]:
        async def read() -> Sequence[Change]:
            nonlocal after
            found = await self._read_once(after)
            if found:
                after = found[-1].position
            return found

        async with aclosing(self._follower.follow(self._stores(), read)) as changes:
            async for change in changes:
                yield change

    async def _read_once(self, after: str | None) -> Sequence[Change]:
        """Many who stand at the same place are woken at once; one of them reads for all."""
        key = id(asyncio.get_running_loop()), after, 500
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.ensure_future(self.changes(after, 500))
            task.add_done_callback(partial(self._read, key))
        return await asyncio.shield(task)  # one who goes away does not take it from the others

    def _read(self, key: tuple[int, str | None, int], task: asyncio.Task[Sequence[Change]]) -> None:
        del self._reading[key]
        if not task.cancelled():
            task.exception()  # whoever waited was told; where everybody went away, nobody has to be


def _changes(tx: Any, after: str | None, limit: int) -> list[Change]:
    return tx.changes(after, limit)


def _positions(position: str | None, many: int) -> list[str | None]:
    """Each store's. One that has joined since is read from its beginning."""
    given: list[str | None] = [p or None for p in position.split(",")] if position else []
    if len(given) > many:
        raise InvalidRequest(f"the position {position!r} is one in {len(given)} stores, and there are {many} now")
    return [*given, *[None] * (many - len(given))]


def _joined(positions: Sequence[str | None]) -> str:
    return ",".join(p or "" for p in positions)
