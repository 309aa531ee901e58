"""What a turn leaves behind when it is over: nothing that waits for the collector."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from adjourn import Adjourn, Interrupt, MemoryStore, ToolRunContext, restart_tool
from adjourn.model import FunctionModel, ModelReply, ModelRequest
from adjourn.parts import Message, Part, ToolRequest


def app() -> Adjourn:
    """An application whose model calls the tool that it is told, and then is done."""

    def model(request: ModelRequest) -> ModelReply:
        last = request.messages[-1]
        if last.role == "tool":
            return ModelReply(Message("model", [Part(text="done")]))
        return ModelReply(Message("model", [Part(tool_request=ToolRequest(last.text, "r", {}))]))

    ai = Adjourn(model=FunctionModel(model, "obedient"))

    @ai.tool
    async def look() -> str:
        return "seen"

    @ai.tool
    def look_in_thread() -> str:
        return "seen"

    @ai.tool
    async def gate(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"ask": "may I?"})
        return "opened"

    @ai.tool
    def gate_in_thread(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"ask": "may I?"})
        return "opened"

    @ai.tool(on_error="model")
    async def failing() -> str:
        raise ValueError("no")

    return ai


async def generated(ai: Adjourn, tool: str) -> None:
    response = await ai.generate(tool)
    if response.interrupts:
        again = [restart_tool(interrupt=i) for i in response.interrupts]
        response = await ai.generate(messages=response.messages, resume_restart=again)
    assert response.text == "done"


async def said(ai: Adjourn, tool: str) -> None:
    turn = ai.agents["keeper"].connect().send(tool)
    async for _ in turn.stream:
        pass
    output = await turn.output
    if output.interrupts:
        output = await output.interrupts[0].restart().output
    assert output.text == "done"


def garbage() -> list[str]:
    """What the collector finds now that is Adjourn's, or stands in a function of its own or of a tool."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found, gc.garbage[:] = list(gc.garbage), []
    gc.set_debug(0)
    names = [o.f_code.co_qualname if isinstance(o, FrameType) else type(o).__qualname__ for o in found]
    files = [o.f_code.co_filename if isinstance(o, FrameType) else type(o).__module__ for o in found]
    return [n for n, f in zip(names, files, strict=True) if "adjourn" in f or "test_no_garbage" in f]


@pytest.mark.parametrize("way", [generated, said])
@pytest.mark.parametrize("tool", ["look", "look_in_thread", "gate", "gate_in_thread", "failing"])
def test_a_turn_that_is_over_is_freed_at_once(way: Callable[[Adjourn, str], Awaitable[None]], tool: str) -> None:
    async def turns() -> list[str]:
        ai = app()
        ai.define_agent("keeper", store=MemoryStore())
        await way(ai, tool)  # what is made once and kept
        gc.collect()
        gc.freeze()  # what there is by now is of no interest, and a process with many tests has much of it
        gc.disable()
        try:
            await way(ai, tool)
            tools: list[Any] = [t for t in threading.enumerate() if t.name == "adjourn-tool"]
            for thread in tools:
                await asyncio.to_thread(thread.join)
            return garbage()
        finally:
            gc.enable()
            gc.unfreeze()

    assert asyncio.run(turns()) == []
