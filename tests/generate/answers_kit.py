"""What the tests of one subject share."""

from typing import Any

from adjourn import (
    Adjourn,
    Interrupt,
    ToolRunContext,
)
from adjourn.testing import FakeClock, ScriptedModel, call

FALSY: list[Any] = [None, False, 0, 0.0, "", [], {}]


def outputs_of(messages: Any) -> list[Any]:
    return [p.tool_response.output for m in messages if m.role == "tool" for p in m.content if p.tool_response]


def same(a: Any, b: Any) -> bool:
    return a == b and type(a) is type(b)


class Gate:
    """A tool that pauses with the given interrupt until it is restarted."""

    def __init__(self, payload: Any = "sure?", *replies: Any, input: Any = None, **interrupt: Any) -> None:
        self.runs: list[Any] = []
        self.contexts: list[ToolRunContext] = []
        self.clock = FakeClock()
        self.model = ScriptedModel([call("gate", input or {"x": 1}, ref="r1"), *(replies or ("done",))])
        self.ai = Adjourn(model=self.model, clock=self.clock)

        @self.ai.tool()
        async def gate(x: int, ctx: ToolRunContext, note: str = "") -> Any:
            self.contexts.append(ctx)
            if not ctx.is_resumed():
                raise Interrupt(payload, **interrupt)
            self.runs.append((x, note))
            return {"ran": x}

        self.gate = gate

    async def pause(self) -> Any:
        return await self.ai.generate("go", tools=[self.gate])

    async def resume(self, paused: Any, respond: Any = None, restart: Any = None) -> Any:
        return await self.ai.generate(
            messages=paused.messages, resume_respond=respond, resume_restart=restart, tools=[self.gate]
        )
