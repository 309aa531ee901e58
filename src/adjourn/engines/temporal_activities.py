"""The activities of a turn: the steps of `steps.py`, with heartbeats, and with Temporal's own way of trying again."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from adjourn.engines.steps import Steps, TryAgain
from adjourn.engines.stored import Ask, Told
from adjourn.engines.temporal_workflow import EXPIRE, HANDLE, LOOK, MODEL, TOOL, Timing

_ELSEWHERE = timedelta(seconds=5)


class Activities:
    """What one worker offers. `all` are the functions to register."""

    def __init__(self, steps: Steps, timing: Timing) -> None:
        self._steps = steps
        self._timing = timing

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        return [self.call_model, self.run_tool, self.handle_pauses, self.look, self.expire]

    @activity.defn(name=MODEL)
    async def call_model(self, ask: Ask) -> Told:
        last_try = activity.info().attempt >= self._timing.model_attempts
        return await self._beating(self._steps.call_model(ask, last_try))

    @activity.defn(name=TOOL)
    async def run_tool(self, ask: Ask) -> Told:
        policy = activity.info().retry_policy
        once = policy is not None and policy.maximum_attempts == 1
        return await self._beating(self._steps.run_tool(ask, once or activity.info().attempt > _MANY))

    @activity.defn(name=HANDLE)
    async def handle_pauses(self, ask: Ask) -> Told:
        return await self._beating(self._steps.handle_pauses(ask))

    @activity.defn(name=LOOK)
    async def look(self, ask: Ask) -> Told:
        return await _translated(self._steps.look(ask))

    @activity.defn(name=EXPIRE)
    async def expire(self, ask: Ask) -> Told:
        return await _translated(self._steps.expire(ask))

    async def _beating(self, work: Coroutine[Any, Any, Told]) -> Told:
        """Heartbeats while it works: so a dead worker is noticed, and a cancellation reaches this one."""
        doing = asyncio.ensure_future(_translated(work))
        try:
            while not doing.done():
                await asyncio.wait([doing], timeout=self._timing.heartbeat / 4)
                activity.heartbeat()
            return doing.result()
        finally:
            if not doing.done():
                doing.cancel()
                await asyncio.wait([doing], timeout=2.0)  # its `finally` blocks run


_MANY = 20
"""So often an idempotent tool is tried whose nested agent is still leased to somebody."""


async def _translated(work: Coroutine[Any, Any, Told]) -> Told:
    try:
        return await work
    except TryAgain as e:
        after = timedelta(seconds=e.after) if e.after is not None else None
        raise ApplicationError(str(e), type="TryAgain", next_retry_delay=after) from e
