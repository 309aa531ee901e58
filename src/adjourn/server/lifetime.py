"""From a server's start to its end: takes up what waits for a driver, sweeps what is overdue, and hands over what runs."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from adjourn.app import Adjourn
from adjourn.errors import StoreError
from adjourn.handle import AgentTurn
from adjourn.lease import transact
from adjourn.ledger import let_go
from adjourn.server.desk import Desk
from adjourn.server.settings import ServerSettings
from adjourn.store import Tx

_log = logging.getLogger("adjourn.server")

Running = Callable[[], AbstractAsyncContextManager[Any]]
"""Something that runs as long as the server does."""


class Lifetime:
    """Started by the ASGI lifespan, or, where an outer application forwards none, by the first request."""

    def __init__(self, desk: Desk, settings: ServerSettings, announce: Callable[[], None]) -> None:
        self._desk = desk
        self._settings = settings
        self._announce = announce
        self._lock = asyncio.Lock()
        self._lock_of: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._held: list[asyncio.Task[None]] = []
        self.parts: list[Running] = []
        """What else runs meanwhile, such as the delivery of webhooks."""

    @property
    def started(self) -> bool:
        """Whether it runs, on this event loop."""
        return self._loop is asyncio.get_running_loop()

    async def start(self) -> None:
        """Does nothing where it has been started already."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._lock_of is not loop:
            self._lock, self._lock_of = asyncio.Lock(), loop
        async with self._lock:
            if self._loop is loop:
                return
            self._announce()
            try:
                for part in self.parts:
                    self._held.append(await _begin(part))
            except BaseException:
                await self._let_go()  # all of them run, or none
                raise
            try:
                await self._desk.ai.recover()
            except StoreError:
                # A store that is away for a moment must not keep the server from coming up: the sweep tries again.
                _log.exception("what waits for a driver was not taken up: a store does not answer")
            self._sweeper = loop.create_task(self._sweep())
            self._loop = loop

    async def stop(self) -> None:
        """Lets turns rest for a while; those that still run are handed to whoever recovers them next."""
        if self._loop is not asyncio.get_running_loop():
            return
        self._loop = None
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.cancel()
            await asyncio.wait([sweeper])
        await self._let_go()
        running = [t for t in self._desk.ai.running.values() if t.loop is asyncio.get_running_loop()]
        if running:
            await asyncio.wait(
                [asyncio.ensure_future(t.settled()) for t in running], timeout=self._settings.drain_seconds
            )
        left = {i: t for i, t in self._desk.ai.running.items() if t.loop is asyncio.get_running_loop()}
        if left:
            await hand_over(self._desk.ai, left)

    async def _let_go(self) -> None:
        held, self._held = self._held, []
        for task in reversed(held):
            task.cancel()
            await asyncio.wait([task])

    async def _sweep(self) -> None:
        # recover() does both: it settles what is overdue, and takes up what a dead process or a decision elsewhere left.
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            try:
                await self._desk.ai.recover()
            except Exception:  # noqa: BLE001 - logged; the next sweep tries again
                _log.exception("a sweep of the inbox failed; the next one tries again")


async def _begin(part: Running) -> "asyncio.Task[None]":
    """A task that holds this part, once it has begun. Raises what it raises at its start.

    In a task of its own, so that it also ends in order where nobody stops the server and the event loop just closes.
    """
    began: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        try:
            async with part():
                began.set_result(None)
                await asyncio.Event().wait()
        except Exception as e:  # noqa: BLE001 - given to whoever began it, or logged
            if began.done():
                _log.exception("a part of the server ended; the rest of it goes on")
                return
            began.set_exception(e)

    task = asyncio.get_running_loop().create_task(hold())
    try:
        await began
    except BaseException:
        task.cancel()
        raise
    return task


async def hand_over(ai: Adjourn, running: dict[str, AgentTurn]) -> Sequence[str]:
    """Gives up the leases of these turns, so that another process can go on with them at once; says which it were.

    What they still do is refused by the store, so nothing is recorded twice, and none of them ends as aborted.
    """
    given: list[str] = []
    for store in ai.stores():
        for snapshot_id in running:
            try:
                if await transact(store, partial(_let_go, snapshot_id=snapshot_id, holder=ai.holder)):
                    given.append(snapshot_id)
            except StoreError:
                _log.exception("the lease of %s could not be given up; it ends by itself", snapshot_id)
    for snapshot_id in given:
        turn = running[snapshot_id]
        turn.abort("the server stops; another process goes on with this turn")
        await asyncio.wait([asyncio.ensure_future(turn.settled())], timeout=2.0)
    return given


def _let_go(tx: Tx, snapshot_id: str, holder: str) -> bool:
    snapshot = tx.snapshot(snapshot_id)
    return snapshot is not None and let_go(tx, snapshot.session_id, holder)
