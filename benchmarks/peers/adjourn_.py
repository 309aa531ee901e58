"""Adjourn itself: `generate`, and the agent session where it exists."""

import asyncio
import time
from typing import Any

import adjourn
from adjourn import Adjourn, Chunk, Interrupt, Message, Part, ToolRequest, ToolRunContext, restart_tool
from adjourn.model import Emit, ModelReply, ModelRequest
from benchmarks.peers import PLACE, QUESTION, WORD, expect

START = "import adjourn"
DISTRIBUTIONS = ("adjourn",)

DONE = ModelReply(Message("model", [Part(text="done")]))


class Instant:
    """A model that answers at once."""

    name = "instant"

    def __init__(self) -> None:
        self.chunks = 0
        self.yields = False
        self.finished = 0.0

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        if self.chunks:
            for _ in range(self.chunks):
                emit(Chunk(content=[Part(text=WORD)]))
                if self.yields:
                    await asyncio.sleep(0)
            self.finished = time.perf_counter()
            return DONE
        if request.messages[-1].role == "tool":
            return DONE
        call = ToolRequest(request.tools[0].name, "r1", {"place": PLACE})
        return ModelReply(Message("model", [Part(tool_request=call)]))


class Generate:
    """`ai.generate` and `restart_tool`: no session, the messages are all there is."""

    label = "Adjourn, generate"

    def __init__(self) -> None:
        self.model = Instant()
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
        response = await self.ai.generate(QUESTION, tools=[self.weather])
        expect("text", response.text, "done")

    async def pause(self) -> Any:
        response = await self.ai.generate(QUESTION, tools=[self.careful_weather])
        expect("finish reason", response.finish_reason, "interrupted")
        return response

    async def resume(self, paused: Any) -> None:
        answer = restart_tool(tool=self.careful_weather, interrupt=paused.interrupts[0])
        response = await self.ai.generate(messages=paused.messages, resume_restart=answer, tools=[self.careful_weather])
        expect("text", response.text, "done")

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        self.model.chunks, self.model.yields = chunks, yields
        try:
            handle = self.ai.generate_stream(QUESTION)
            came = 0
            async for chunk in handle.stream:
                came += chunk.text == WORD
                if pace:
                    await asyncio.sleep(pace)
            response = await handle.response
        finally:
            self.model.chunks = 0
        expect("text", response.text, "done")
        return came, self.model.finished


class Agent:
    """A session of `define_agent`, kept in the in-memory store."""

    label = "Adjourn, agent session"

    def __init__(self) -> None:
        self.inner = Generate()
        self.init: Any = adjourn.AgentInit
        ai, store = self.inner.ai, adjourn.InMemoryLatestStateStore()
        self.agent = ai.define_agent(name="plain", tools=[self.inner.weather], store=store)
        self.careful = ai.define_agent(name="careful", tools=[self.inner.careful_weather], store=store)

    @property
    def ran(self) -> int:
        return self.inner.ran

    async def tool_turn(self) -> None:
        session = self.agent.connect(self.init())
        output = await session.send(QUESTION).output
        await session.close()
        expect("text", output.text, "done")

    async def pause(self) -> Any:
        session = self.careful.connect(self.init())
        turn = session.send(QUESTION)
        output = await turn.output
        expect("finish reason", output.finish_reason, "interrupted")
        return session, turn.interrupt

    async def resume(self, paused: Any) -> None:
        session, interrupt = paused
        output = await interrupt.restart().output
        await session.close()
        expect("text", output.text, "done")

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        model = self.inner.model
        model.chunks, model.yields = chunks, yields
        try:
            session = self.agent.connect(self.init())
            turn = session.send(QUESTION)
            came = 0
            async for chunk in turn.stream:
                came += chunk.text == WORD
                if pace:
                    await asyncio.sleep(pace)
            output = await turn.output
            await session.close()
        finally:
            model.chunks = 0
        expect("text", output.text, "done")
        return came, model.finished


CANDIDATES: dict[str, type] = {"generate": Generate}
if hasattr(adjourn, "AgentInit"):
    CANDIDATES["agent"] = Agent
