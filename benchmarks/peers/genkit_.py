"""Genkit: `generate` with `restart_tool`, and the agent API with its in-memory store."""

import asyncio
import time
from typing import Any

from genkit import Genkit, Interrupt, Part, ToolRunContext, restart_tool
from genkit.model import Message, ModelRequest, ModelResponse, ModelResponseChunk

from benchmarks.peers import PLACE, QUESTION, WORD, expect

START = "import genkit"
DISTRIBUTIONS = ("genkit",)


def message(*parts: Part) -> Message:
    return Message(role="model", content=list(parts))


class Generate:
    """`ai.generate`: no session."""

    label = "genkit, generate"
    app: Any = Genkit

    def __init__(self) -> None:
        self.chunks = 0
        self.yields = False
        self.finished = 0.0
        self.ran = 0
        self.ai = self.app(model="instant")
        self.ai.define_model("instant", self.instant)

        @self.ai.tool()
        async def weather(place: str) -> str:
            """The weather at a place."""
            self.ran += 1
            return f"sunny in {place}"

        @self.ai.tool()
        async def careful_weather(place: str, ctx: ToolRunContext) -> str:
            """The weather at a place, once somebody agrees."""
            if not ctx.is_resumed():
                raise Interrupt({"ask": f"look at {place}?"})
            self.ran += 1
            return f"sunny in {place}"

    async def instant(self, request: ModelRequest, ctx: Any) -> ModelResponse:
        if self.chunks:
            for _ in range(self.chunks):
                ctx.send_chunk(ModelResponseChunk(content=[Part.from_text(WORD)]))
                if self.yields:
                    await asyncio.sleep(0)
            self.finished = time.perf_counter()
        elif request.messages[-1].role != "tool":
            call = Part.from_tool_request(name=request.tools[0].name, ref="r1", input=PLACE)
            return ModelResponse(message=message(call), finish_reason="stop")
        return ModelResponse(message=message(Part.from_text("done")), finish_reason="stop")

    async def tool_turn(self) -> None:
        response = await self.ai.generate(prompt=QUESTION, tools=["weather"])
        expect("text", response.text, "done")

    async def pause(self) -> Any:
        response = await self.ai.generate(prompt=QUESTION, tools=["careful_weather"])
        expect("finish reason", response.finish_reason, "interrupted")
        return response

    async def resume(self, paused: Any) -> None:
        answer = restart_tool(interrupt=paused.interrupts[0])
        response = await self.ai.generate(messages=paused.messages, resume_restart=answer, tools=["careful_weather"])
        expect("text", response.text, "done")

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        self.chunks, self.yields = chunks, yields
        try:
            handle = self.ai.generate_stream(prompt=QUESTION)
            came = 0
            async for chunk in handle.stream:
                came += chunk.text == WORD
                if pace:
                    await asyncio.sleep(pace)
            response = await handle.response
        finally:
            self.chunks = 0
        expect("text", response.text, "done")
        return came, self.finished


class Chat(Generate):
    """`agent.chat()`, kept in the in-memory store and loaded for the resume."""

    label = "genkit, agent chat"
    stream = None  # type: ignore[assignment]

    def __init__(self) -> None:
        from genkit.exp import Genkit as App
        from genkit.exp.agent import InMemorySessionStore

        self.app = App
        super().__init__()
        self.plain = self.ai.define_agent(name="plain", tools=["weather"], store=InMemorySessionStore())
        self.careful = self.ai.define_agent(name="careful", tools=["careful_weather"], store=InMemorySessionStore())

    async def tool_turn(self) -> None:
        response = await self.plain.chat().send(QUESTION)
        expect("text", response.text, "done")

    async def pause(self) -> Any:
        response = await self.careful.chat().send(QUESTION)
        expect("finish reason", response.finish_reason, "interrupted")
        return response.snapshot_id, response.interrupts[0]

    async def resume(self, paused: Any) -> None:
        snapshot, interrupt = paused
        chat = await self.careful.load_chat(snapshot_id=snapshot)
        response = await chat.resume(restart=[interrupt.restart(resumed_metadata={"agreed": True})])
        expect("text", response.text, "done")


CANDIDATES = {"generate": Generate, "chat": Chat}
