"""Pydantic AI: `Agent.run` with a function as model, ApprovalRequired and DeferredToolResults."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.peers import PLACE, QUESTION, WORD, expect

START = "from pydantic_ai import Agent"
DISTRIBUTIONS = ("pydantic-ai-slim",)


class Run:
    """`agent.run`, and the paused run's messages handed back."""

    label = "pydantic-ai"

    def __init__(self) -> None:
        self.chunks = 0
        self.yields = False
        self.finished = 0.0
        self.ran = 0
        model = FunctionModel(self.instant, stream_function=self.streamed)
        self.plain = Agent(model)
        self.careful = Agent(model, output_type=[str, DeferredToolRequests])
        self.silent = Agent(model)

        @self.plain.tool_plain
        async def weather(place: str) -> str:
            """The weather at a place."""
            self.ran += 1
            return f"sunny in {place}"

        @self.careful.tool
        async def careful_weather(ctx: RunContext[None], place: str) -> str:
            """The weather at a place, once somebody agrees."""
            if not ctx.tool_call_approved:
                raise ApprovalRequired(metadata={"ask": f"look at {place}?"})
            self.ran += 1
            return f"sunny in {place}"

    async def instant(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(p, ToolReturnPart) for p in messages[-1].parts):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, {"place": PLACE}, "r1")])

    async def streamed(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for _ in range(self.chunks):
            yield WORD
            if self.yields:
                await asyncio.sleep(0)
        self.finished = time.perf_counter()

    async def tool_turn(self) -> None:
        result = await self.plain.run(QUESTION)
        expect("text", result.output, "done")

    async def pause(self) -> Any:
        result = await self.careful.run(QUESTION)
        expect("approvals", len(result.output.approvals), 1)
        return result

    async def resume(self, paused: Any) -> None:
        answer = DeferredToolResults(approvals={paused.output.approvals[0].tool_call_id: True})
        result = await self.careful.run(message_history=paused.all_messages(), deferred_tool_results=answer)
        expect("text", result.output, "done")

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        self.chunks, self.yields = chunks, yields
        came = 0
        async with self.silent.run_stream(QUESTION) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                came += text == WORD
                if pace:
                    await asyncio.sleep(pace)
        return came, self.finished


CANDIDATES = {"run": Run}
