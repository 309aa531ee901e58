"""Adjourn itself: `generate`, and the agent session."""

import asyncio
import importlib.util
import time
from typing import Any

from adjourn import Adjourn, Chunk, Interrupt, Message, Part, ToolRequest, ToolRunContext, restart_tool
from adjourn.model import Emit, ModelReply, ModelRequest
from benchmarks.peers import PLACE, QUESTION, expect

START = "import adjourn"
DISTRIBUTION = "adjourn"

DONE = ModelReply(Message("model", [Part(text="done")]))


class Model:
    """Answers at once. `system` texts are not needed: the tool to call stands in the request."""

    name = "instant"

    def __init__(self) -> None:
        self.chunks = 0
        self.finished = 0.0

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        if self.chunks:
            for _ in range(self.chunks):
                emit(Chunk(content=[Part(text="word ")]))
                await asyncio.sleep(0)
            self.finished = time.perf_counter()
            return DONE
        if request.messages[-1].role == "tool":
            return DONE
        call = ToolRequest(request.tools[0].name, "r1", {"place": PLACE})
        return ModelReply(Message("model", [Part(tool_request=call)]))


class Generate:
    """`ai.generate` and `restart_tool`: no session, the messages are all there is."""

    label = "Adjourn generate"

    def __init__(self) -> None:
        self.model = Model()
        self.ran = 0
        self.ai = Adjourn(model=self.model)

        @self.ai.tool
        async def weather(place: str) -> str:
            """The weather at a place."""
            self.ran += 1
            return f"sunny in {place}"

        @self.ai.tool
        async def careful_weather(place: str, ctx: ToolRunContext) -> str:
            """The weather at a place, once somebody agrees."""
            if not ctx.is_resumed():
                raise Interrupt({"ask": f"look at {place}?"})
            self.ran += 1
            return f"sunny in {place}"

        self.weather, self.careful_weather = weather, careful_weather

    async def tool_turn(self) -> None:
        before = self.ran
        response = await self.ai.generate(QUESTION, tools=[self.weather])
        expect("runs", self.ran - before, 1)
        expect("text", response.text, "done")

    async def pause(self) -> Any:
        response = await self.ai.generate(QUESTION, tools=[self.careful_weather])
        expect("finish reason", response.finish_reason, "interrupted")
        return response

    async def resume(self, paused: Any) -> None:
        before = self.ran
        answer = restart_tool(tool=self.careful_weather, interrupt=paused.interrupts[0])
        response = await self.ai.generate(messages=paused.messages, resume_restart=answer, tools=[self.careful_weather])
        expect("runs", self.ran - before, 1)
        expect("text", response.text, "done")

    async def stream(self, chunks: int, pace: float) -> tuple[int, float]:
        self.model.chunks = chunks
        try:
            handle = self.ai.generate_stream(QUESTION)
            came = 0
            async for chunk in handle.stream:
                came += chunk.text == "word "
                if pace:
                    await asyncio.sleep(pace)
            response = await handle.response
        finally:
            self.model.chunks = 0
        expect("text", response.text, "done")
        return came, self.model.finished


CANDIDATES: dict[str, type] = {"generate": Generate}
