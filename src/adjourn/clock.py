"""Time, as something that can be replaced: tests fake it, engines make it durable."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where delays and deadlines come from."""

    def now(self) -> float:
        """Unix seconds, for what is stored."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for measuring."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real one."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM = SystemClock()
