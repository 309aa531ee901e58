"""What the engine tests share: an application served by a worker on its own task queue."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from adjourn import Adjourn
from adjourn.engines.temporal import Temporal, Timing, WorkerOptions, run_worker

Deliver = Callable[[], Awaitable[Any]]
QUICK = Timing(heartbeat=1.0, backoff=0.05)


@asynccontextmanager
async def in_process(ai: Adjourn) -> AsyncGenerator[Deliver]:
    """The loop of this process: nothing has to run, and what waits is taken up when somebody asks."""

    async def deliver() -> None:
        for turn in await ai.recover():
            await turn.settled()

    yield deliver


async def _nothing() -> None:
    pass


@asynccontextmanager
async def working(ai: Adjourn, engine: Temporal, **options: Any) -> AsyncGenerator[None]:
    """A worker of this application in this process."""
    settings = WorkerOptions(**{"grace": 2.0, "sweep": 0.2, **options})
    worker = asyncio.create_task(run_worker(ai, engine, options=settings))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


def on_temporal(address: str, **engine: Any) -> Callable[[Adjourn], Any]:
    """Serves an application through the server at this address."""

    @asynccontextmanager
    async def serve(ai: Adjourn) -> AsyncGenerator[Deliver]:
        ai.engine = Temporal(address, queue=f"q-{uuid.uuid4().hex[:12]}", **{"timing": QUICK, **engine})
        async with working(ai, ai.engine):
            yield _nothing

    return serve
