"""The activities of a turn: the steps of `steps.py`, begun in a moment, and waited for with heartbeats where they are long."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from adjourn.engines.steps import Steps, TryAgain
from adjourn.engines.stored import Ask, Told
from adjourn.engines.temporal_workflow import ABORT, EXPIRE, FINISH, HANDLE, LOOK, MODEL, TOOL, Timing

_MANY = 20
"""So often an idempotent tool is tried whose nested agent is still leased to somebody."""


class Activities:
    """What one worker offers: `local` to the workflows that it runs, `own` on its own queue. It takes `at_once` steps."""

    def __init__(self, steps: Steps, timing: Timing, queue: str, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._steps = steps
        self._timing = timing
        self.queue = queue
        self._doing: dict[tuple[str, str], asyncio.Task[Told]] = {}

    @property
    def local(self) -> Sequence[Callable[..., Any]]:
        return [self.call_model, self.run_tool, self.handle_pauses, self.look, self.expire, self.abort]

    @property
    def own(self) -> Sequence[Callable[..., Any]]:
        return [self.finish]

    async def drained(self, grace: float) -> None:
        """Returns when no step runs here any more. What has not ended after `grace` seconds is cancelled."""
        if self._doing:
            await asyncio.wait(list(self._doing.values()), timeout=grace)
        for doing in list(self._doing.values()):
            doing.cancel()
        if self._doing:
            await asyncio.wait(list(self._doing.values()), timeout=5.0)

    @activity.defn(name=MODEL)
    async def call_model(self, ask: Ask) -> Told:
        last_try = activity.info().attempt >= self._timing.model_attempts
        return await self._begin(ask, lambda: self._steps.call_model(ask, last_try))

    @activity.defn(name=TOOL)
    async def run_tool(self, ask: Ask) -> Told:
        policy = activity.info().retry_policy
        once = policy is None or policy.maximum_attempts == 1
        last_try = once or activity.info().attempt > _MANY
        return await self._begin(ask, lambda: self._steps.run_tool(ask, last_try))

    @activity.defn(name=HANDLE)
    async def handle_pauses(self, ask: Ask) -> Told:
        return await self._begin(ask, lambda: self._steps.handle_pauses(ask))

    @activity.defn(name=LOOK)
    async def look(self, ask: Ask) -> Told:
        return await _translated(self._steps.look(ask))

    @activity.defn(name=EXPIRE)
    async def expire(self, ask: Ask) -> Told:
        return await _translated(self._steps.expire(ask))

    @activity.defn(name=ABORT)
    async def abort(self, ask: Ask) -> Told:
        return await _translated(self._steps.abort(ask, "its workflow was cancelled"))

    @activity.defn(name=FINISH)
    async def finish(self, ask: Ask) -> Told:
        """Waits for a step that runs here. The heartbeats say that it does, and bring its cancellation."""
        doing = self._doing.get(_key(ask))
        if doing is None:
            return await _translated(self._steps.look(ask))  # it has ended since
        while not doing.done():
            await _patiently(doing, self._timing.heartbeat / 4)
            activity.heartbeat()
        return await doing

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, Told]]) -> Told:
        async with self._free:
            return await _translated(work())

    def _ended(self, key: tuple[str, str], doing: asyncio.Task[Told]) -> None:
        self._doing.pop(key, None)
        if not doing.cancelled():
            doing.exception()  # where nobody waits for it any more, the journal tells what came of it

    async def _begin(self, ask: Ask, work: Callable[[], Coroutine[Any, Any, Told]]) -> Told:
        """Does the step, or says that it is still being done. Begun twice on one worker, it is done once."""
        key = _key(ask)
        doing = self._doing.get(key)
        if doing is None:
            doing = self._doing[key] = asyncio.create_task(self._in_turn(work))
            doing.add_done_callback(lambda done: self._ended(key, done))
        await _patiently(doing, min(self._timing.task * 0.4, 4.0))  # the SDK warns of tasks of 5 s
        if not doing.done():
            return Told(ask.position, busy=self.queue)
        return await doing


def _key(ask: Ask) -> tuple[str, str]:
    return ask.snapshot_id, ask.call or str(ask.position)


async def _patiently(doing: asyncio.Task[Told], seconds: float) -> None:
    """Waits so long for it; where the waiting is cancelled, it is."""
    try:
        await asyncio.wait([doing], timeout=seconds)
    except asyncio.CancelledError:
        doing.cancel()
        await asyncio.wait([doing], timeout=2.0)  # its `finally` blocks run
        raise


async def _translated(work: Coroutine[Any, Any, Told]) -> Told:
    try:
        return await work
    except TryAgain as e:
        after = timedelta(seconds=e.after) if e.after is not None else None
        raise ApplicationError(str(e), type="TryAgain", next_retry_delay=after) from e
