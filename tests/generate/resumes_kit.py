"""What the tests of one subject share."""

import asyncio
from typing import Any

import msgspec

from adjourn import (
    Adjourn,
    Interrupt,
    Message,
    ToolRunContext,
)
from adjourn.testing import ScriptedModel, call


def outputs_of(messages: Any) -> list[Any]:
    return [p.tool_response.output for m in messages if m.role == "tool" for p in m.content if p.tool_response]


def cold(messages: Any) -> list[Message]:
    return msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])


class App:
    """A gate that pauses on its first call and then works (or fails so many times)."""

    def __init__(self, *replies: Any, fail: int = 0) -> None:
        self.ran: list[int] = []
        self.model = ScriptedModel(list(replies))
        self.ai = Adjourn(model=self.model)
        self.hold: asyncio.Event | None = None
        self.entered = asyncio.Event()

        @self.ai.tool()
        async def gate(x: int, ctx: ToolRunContext) -> Any:
            if not ctx.is_resumed():
                raise Interrupt({"x": x})
            self.ran.append(x)
            self.entered.set()
            if self.hold is not None:
                await self.hold.wait()
            if len(self.ran) <= fail:
                raise ConnectionError("down")
            return {"ran": x}

        self.tools = [gate]

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.ai.generate(*args, tools=self.tools, **kwargs)


ONE = call("gate", {"x": 1}, ref="r1")
TWO = call("gate", {"x": 2}, ref="r2")
