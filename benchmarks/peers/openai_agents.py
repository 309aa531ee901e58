"""OpenAI Agents SDK: `Runner.run`, `needs_approval`, `to_state` and `approve`."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Runner, function_tool, set_trace_processors
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent

from benchmarks.peers import PLACE, QUESTION, WORD, expect

START = "from agents import Agent, Runner"
DISTRIBUTIONS = ("openai-agents",)


class Instant(Model):
    """A model that answers at once."""

    def __init__(self) -> None:
        self.chunks = 0
        self.yields = False
        self.finished = 0.0

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *_: Any, **__: Any
    ):
        if isinstance(input, list) and any(item.get("type") == "function_call_output" for item in input):
            output = assistant_message("done")
        else:
            output = function_call(tools[0].name, {"place": PLACE}, call_id="r1")
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        for i in range(self.chunks):
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=WORD,
                item_id="m1",
                logprobs=[],
                output_index=0,
                sequence_number=i,
                type="response.output_text.delta",
            )
            if self.yields:
                await asyncio.sleep(0)
        self.finished = time.perf_counter()
        response = Response(
            id="r1",
            created_at=0,
            model="instant",
            object="response",
            output=[assistant_message("done")],
            parallel_tool_calls=False,
            tool_choice="none",
            tools=[],
        )
        yield ResponseCompletedEvent(response=response, sequence_number=self.chunks, type="response.completed")


class Run:
    """`Runner.run` without a session."""

    label = "openai-agents"

    def __init__(self) -> None:
        set_trace_processors([])  # spans are made as by default, but sent nowhere
        self.model = Instant()
        self.ran = 0

        @function_tool
        async def weather(place: str) -> str:
            """The weather at a place."""
            self.ran += 1
            return f"sunny in {place}"

        @function_tool(needs_approval=True)
        async def careful_weather(place: str) -> str:
            """The weather at a place, once somebody agrees."""
            self.ran += 1
            return f"sunny in {place}"

        self.plain = Agent(name="plain", model=self.model, tools=[weather])
        self.careful = Agent(name="careful", model=self.model, tools=[careful_weather])
        self.silent = Agent(name="silent", model=self.model)

    async def tool_turn(self) -> None:
        result = await Runner.run(self.plain, QUESTION)
        expect("text", result.final_output, "done")

    async def pause(self) -> Any:
        result = await Runner.run(self.careful, QUESTION)
        expect("interruptions", len(result.interruptions), 1)
        return result

    async def resume(self, paused: Any) -> None:
        state = paused.to_state()
        state.approve(paused.interruptions[0])
        result = await Runner.run(self.careful, state)
        expect("text", result.final_output, "done")

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        self.model.chunks, self.model.yields = chunks, yields
        came = 0
        result = Runner.run_streamed(self.silent, QUESTION)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                came += 1
                if pace:
                    await asyncio.sleep(pace)
        expect("text", result.final_output, "done")
        return came, self.model.finished


CANDIDATES = {"run": Run}
