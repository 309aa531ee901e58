"""Keeps the leases of running legs alive, and waits for stores from the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from adjourn.clock import Clock
from adjourn.errors import SessionConflict, SessionNotFound, StoreError
from adjourn.ledger import Leg, renew
from adjourn.store import Store, Tx

T = TypeVar("T")


async def settled(future: "Future[T]") -> T:
    """What the store's future holds. Cancelling the waiter leaves the store's work alone."""
    if future.done():
        return future.result()
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: "Future[T]") -> None:
        try:
            loop.call_soon_threadsafe(_set, waiter)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    future.add_done_callback(wake)
    await waiter
    return future.result()


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


async def transact(store: Store, work: Callable[[Tx], T], *, read: bool = False) -> T:
    """Runs `work` on the store, from the event loop."""
    return await settled(store.submit(work, read=read))


class Keeper:
    """Renews the leases of the legs that run on this event loop, a third of the way into each lease.

    A leg whose lease was lost is told so by its `lost` callback, and stops.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._legs: dict[str, tuple[Store, Callable[[], Leg], Callable[[Exception], None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, store: Store, leg: Callable[[], Leg], lost: Callable[[Exception], None]) -> None:
        """From now on, until `forget`."""
        self._legs[leg().snapshot_id] = (store, leg, lost)
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._renew())

    def forget(self, snapshot_id: str) -> None:
        self._legs.pop(snapshot_id, None)

    async def _renew(self) -> None:
        while self._legs:
            await asyncio.sleep(min(s.lease_seconds for s, _, _ in self._legs.values()) / 3)
            for snapshot_id, (store, leg, lost) in list(self._legs.items()):
                if not leg().epoch:
                    continue  # it has not been claimed yet, so there is no lease to lose
                try:
                    work = partial(renew, leg=leg(), now=self._clock.now(), lease_seconds=store.lease_seconds)
                    await transact(store, work)
                except (SessionConflict, SessionNotFound) as e:
                    if self._legs.pop(snapshot_id, None) is not None:
                        lost(e)
                except StoreError:
                    continue  # the store is away for a moment; the next commit will tell
