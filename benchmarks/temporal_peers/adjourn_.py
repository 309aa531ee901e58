"""Adjourn: sessions in SQLite with full durability, turns on Temporal."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from adjourn import Adjourn, Interrupt, Message, ModelReply, ModelRequest, Part, ToolRunContext
from adjourn.engines.temporal import Temporal, run_worker
from adjourn.parts import ToolRequest
from adjourn.stores.sqlite import SQLiteStore


class RUNNER:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.ai = Adjourn()
        self.ran = 0

        async def instant(request: ModelRequest) -> ModelReply:
            if request.messages[-1].role == "tool":
                return ModelReply(Message("model", [Part(text="done")]))
            return ModelReply(Message("model", [Part(tool_request=ToolRequest("weather", "r1", {"place": "Kyoto"}))]))

        self.ai.default_model = self.ai.define_model("instant", instant)

        @self.ai.tool()
        async def weather(place: str, ctx: ToolRunContext) -> str:
            """The weather at a place, once somebody agrees."""
            if not ctx.is_resumed():
                raise Interrupt({"ask": f"look at {place}?"})
            self.ran += 1
            return f"sunny in {place}"

        self.agent = self.ai.define_agent("careful", store=SQLiteStore(Path(self._folder.name) / "sessions.db"))

    async def start(self, address: str, queue: str) -> None:
        self.engine = self.ai.engine = Temporal(address, queue=queue)
        self._worker = asyncio.create_task(run_worker(self.ai, self.engine))

    async def pause(self, key: str) -> Any:
        turn = self.agent.connect().send("What is the weather in Kyoto?")
        return turn.snapshot_id, (await turn.output).interrupts[0]

    async def decide(self, paused: Any) -> None:
        ran = self.ran
        output = await paused[1].restart().output
        assert output.text == "done"
        assert self.ran > ran

    async def history(self, paused: Any) -> tuple[int, int]:
        handle = (await self.engine.client()).get_workflow_handle(paused[0])
        await handle.result()
        events = (await handle.fetch_history()).events
        return len(events), sum(e.ByteSize() for e in events)

    async def stop(self) -> None:
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)
        await self.ai.aclose()
