"""Strands Agents: `invoke_async`, and an interrupt from the tool's context."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from strands import Agent, ToolContext, tool
from strands.models.model import Model

from benchmarks.peers import PLACE, QUESTION, WORD, expect

START = "from strands import Agent"
DISTRIBUTIONS = ("strands-agents",)


class Instant(Model):
    """A model that answers at once."""

    def __init__(self) -> None:
        self.chunks = 0
        self.yields = False
        self.finished = 0.0

    def update_config(self, **_: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        raise NotImplementedError
        yield

    async def stream(self, messages: Any, tool_specs: Any = None, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        yield {"messageStart": {"role": "assistant"}}
        stop = "end_turn"
        if self.chunks:
            yield {"contentBlockStart": {"start": {}}}
            for _ in range(self.chunks):
                yield {"contentBlockDelta": {"delta": {"text": WORD}}}
                if self.yields:
                    await asyncio.sleep(0)
            self.finished = time.perf_counter()
        elif any("toolResult" in block for block in messages[-1]["content"]):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        else:
            stop = "tool_use"
            yield {"contentBlockStart": {"start": {"toolUse": {"name": tool_specs[0]["name"], "toolUseId": "r1"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"place": "{PLACE}"}}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": stop}}


class Fresh:
    """An agent a session, which is what a server needs: an agent holds its conversation."""

    label = "strands"

    def __init__(self) -> None:
        self.model = Instant()
        self.ran = 0

        @tool
        async def weather(place: str) -> str:
            """The weather at a place.

            Args:
                place: Its name.
            """
            self.ran += 1
            return f"sunny in {place}"

        @tool(context=True)
        async def careful_weather(place: str, tool_context: ToolContext) -> str:
            """The weather at a place, once somebody agrees.

            Args:
                place: Its name.
            """
            expect("approval", tool_context.interrupt("ask", reason={"ask": f"look at {place}?"}), "yes")
            self.ran += 1
            return f"sunny in {place}"

        self.weather, self.careful_weather = weather, careful_weather

    def agent(self, tools: list[Any]) -> Agent:
        return Agent(model=self.model, tools=tools, callback_handler=None)

    async def tool_turn(self) -> None:
        result = await self.agent([self.weather]).invoke_async(QUESTION)
        expect("text", str(result).strip(), "done")

    async def pause(self) -> Any:
        agent = self.agent([self.careful_weather])
        result = await agent.invoke_async(QUESTION)
        expect("stop reason", result.stop_reason, "interrupt")
        return agent, result.interrupts[0].id

    async def resume(self, paused: Any) -> None:
        agent, interrupt = paused
        result = await agent.invoke_async([{"interruptResponse": {"interruptId": interrupt, "response": "yes"}}])
        expect("text", str(result).strip(), "done")

    async def stream(self, chunks: int, yields: bool, pace: float) -> tuple[int, float]:
        self.model.chunks, self.model.yields = chunks, yields
        try:
            came = 0
            async for event in self.agent([]).stream_async(QUESTION):
                if event.get("data") == WORD:
                    came += 1
                    if pace:
                        await asyncio.sleep(pace)
        finally:
            self.model.chunks = 0
        return came, self.model.finished


class Reused(Fresh):
    """One agent whose conversation is cleared between sessions: cheaper, and only one session at a time."""

    label = "strands, agent reused"
    pause = resume = stream = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.only = self.agent([self.weather])

    async def tool_turn(self) -> None:
        self.only.messages.clear()
        result = await self.only.invoke_async(QUESTION)
        expect("text", str(result).strip(), "done")


CANDIDATES = {"fresh": Fresh, "reused": Reused}
