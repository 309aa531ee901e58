"""LangGraph through LangChain's `create_agent`: `interrupt` and `Command(resume=)` with the in-memory saver."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from benchmarks.peers import PLACE, QUESTION, WORD, expect

START = "from langchain.agents import create_agent"
DISTRIBUTIONS = ("langgraph", "langchain")


class Instant(BaseChatModel):
    """A model that answers at once."""

    chunks: int = 0
    yields: bool = False
    finished: float = 0.0
    tool: str = ""

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.model_copy(update={"tool": tools[0].name})

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        if isinstance(messages[-1], ToolMessage):
            message = AIMessage("done")
        else:
            message = AIMessage("", tool_calls=[{"name": self.tool, "args": {"place": PLACE}, "id": "r1"}])
        return ChatResult(generations=[ChatGeneration(message=message)])


class Streaming(Instant):
    """The same, with its answer in pieces. Apart, because a model that can stream is always streamed."""

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for _i in range(self.chunks):
            yield ChatGenerationChunk(message=AIMessageChunk(WORD))
            if self.yields:
                await asyncio.sleep(0)
        self.finished = time.perf_counter()


class Create:
    """`create_agent(...).ainvoke`."""

    label = "langgraph, create_agent"

    def __init__(self) -> None:
        model = Instant()
        self.model = Streaming()
        self.ran = 0
        self.threads = itertools.count()

        async def weather(place: str) -> str:
            """The weather at a place."""
            self.ran += 1
            return f"sunny in {place}"

        async def careful_weather(place: str) -> str:
            """The weather at a place, once somebody agrees."""
            expect("answer", interrupt({"ask": f"look at {place}?"}), "yes")
            self.ran += 1
            return f"sunny in {place}"

        self.saver = InMemorySaver()
        self.plain = create_agent(model, [weather])
        self.careful = create_agent(model, [careful_weather], checkpointer=self.saver)
        self.silent = create_agent(self.model, [])

    async def tool_turn(self) -> None:
        state = await self.plain.ainvoke({"messages": [("user", QUESTION)]})
        expect("text", state["messages"][-1].content, "done")

    async def pause(self) -> Any:
        config: Any = {"configurable": {"thread_id": str(next(self.threads))}}
        state = await self.careful.ainvoke({"messages": [("user", QUESTION)]}, config)
        expect("interrupts", len(state["__interrupt__"]), 1)
        return config

    async def resume(self, paused: Any) -> None:
        state = await self.careful.ainvoke(Command(resume="yes"), paused)
        expect("text", state["messages"][-1].content, "done")
        await self.saver.adelete_thread(paused["configurable"]["thread_id"])

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        self.model.chunks, self.model.yields = chunks, yields
        came = 0
        async for chunk, _ in self.silent.astream({"messages": [("user", QUESTION)]}, stream_mode="messages"):
            if chunk.content == WORD:
                came += 1
                if pace:
                    await asyncio.sleep(pace)
        return came, self.model.finished


CANDIDATES = {"create_agent": Create}
