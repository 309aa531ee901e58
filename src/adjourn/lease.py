"""Keeps the leases of running legs alive, and waits for stores from the event loop."""

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from adjourn.clock import Clock
from adjourn.errors import SessionConflict, SessionNotFound, StoreError
from adjourn.ledger import Leg, renew
from adjourn.observe import Observer, notify
from adjourn.promise import Promise, running_loop
from adjourn.store import Store, Tx

T = TypeVar("T")


class _Bell:
    """Wakes those of one event loop who wait for a store. One commit answers many of them, and rings once."""

    __slots__ = ("_loop", "_ready", "_rung")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._ready: deque[asyncio.Future[None]] = deque()
        self._rung = False

    def wake(self, waiter: "asyncio.Future[None]") -> None:
        """From any thread."""
        if running_loop() is waiter.get_loop():
            _answer(waiter)
            return
        self._ready.append(waiter)
        if not self._rung:
            self._rung = True
            try:
                self._ring()
            except BaseException:  # a signal's handler, that came within: nobody knows whether it was rung
                self._ring()
                raise

    def _ring(self) -> None:
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._ready.clear()  # the loop is closed: nobody waits any more

    def _answer(self) -> None:
        # Before the first look: whoever is put there after the last one rings again.
        self._rung = False
        ready = self._ready
        while ready:
            _answer(ready.popleft())


def _answer(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


_bells: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell]" = weakref.WeakKeyDictionary()


async def settled(promise: Promise[T]) -> T:
    """What the store promised. Cancelling the waiter leaves the store's work alone."""
    if promise.done():
        return promise.result()
    loop = asyncio.get_running_loop()
    bell = _bells.get(loop)
    if bell is None:
        bell = _bells[loop] = _Bell(loop)
    waiter: asyncio.Future[None] = loop.create_future()
    promise.add_done_callback(lambda _: bell.wake(waiter))
    await waiter
    return promise.result()


async def transact(
    store: Store, work: Callable[[Tx], T], *, read: bool = False, observers: Sequence[Observer] = ()
) -> T:
    """Runs `work` on the store, from the event loop. The observers are told how long it took."""
    if not observers:
        return await settled(store.submit(work, read=read))
    name: str = getattr(getattr(work, "func", work), "__name__", "<lambda>")  # of a partial, what it calls
    operation = ("read" if read else "write") if name == "<lambda>" else name.removeprefix("_")
    begun = time.perf_counter()
    return await timed(observers, operation, begun, store.submit(work, read=read))


async def timed(observers: Sequence[Observer], operation: str, begun: float, promise: Promise[T]) -> T:
    """What the store promised, and the observers are told how long that took.

    It had `begun` (on `time.perf_counter`) before the store was asked, which may have done it there and then.
    """
    ok = True
    try:
        return await settled(promise)
    except StoreError:  # anything else that a work raises is a rule's answer, not the store's trouble
        ok = False
        raise
    finally:
        notify(observers, "store", operation, {"seconds": time.perf_counter() - begun, "ok": ok})


class Keeper:
    """Renews the leases of the legs that run on this event loop, a third of the way into each lease.

    A leg whose lease was lost is told so by its `lost` callback, and stops. Each store has a task of its own: one that is
    held up must not let the leases in another one end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._legs: dict[str, tuple[Store, Callable[[], Leg], Callable[[Exception], None]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def watch(self, store: Store, leg: Callable[[], Leg], lost: Callable[[Exception], None]) -> None:
        """From now on, until `forget`."""
        self._legs[leg().snapshot_id] = (store, leg, lost)
        loop, task = asyncio.get_running_loop(), self._tasks.get(id(store))
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._tasks[id(store)] = loop.create_task(self._renew(store))
            task.add_done_callback(partial(self._ended, id(store)))

    def forget(self, snapshot_id: str) -> None:
        self._legs.pop(snapshot_id, None)

    def _ended(self, store: int, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(store) is task:
            del self._tasks[store]

    async def _renew(self, store: Store) -> None:
        while any(of is store for of, _, _ in self._legs.values()):
            await asyncio.sleep(store.lease_seconds / 3)
            for snapshot_id, (of, leg, lost) in list(self._legs.items()):
                if of is not store or snapshot_id not in self._legs or not leg().epoch:
                    continue  # it has not been claimed yet, so there is no lease to lose
                try:
                    work = partial(renew, leg=leg(), now=self._clock.now(), lease_seconds=store.lease_seconds)
                    await transact(store, work)
                except (SessionConflict, SessionNotFound) as e:
                    if self._legs.pop(snapshot_id, None) is not None:
                        lost(e)
                except StoreError:
                    continue  # the store is away for a moment; the next commit will tell
