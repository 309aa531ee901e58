"""The application of the crash matrix. Its tools write what they do into a file, which a kill cannot undo."""

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adjourn import Adjourn, Interrupt, ToolRunContext
from adjourn.model import FunctionModel, ModelReply, ModelRequest
from adjourn.parts import Message, Part, ToolRequest
from adjourn.store import Store
from durable.crash_scenarios import SCENARIOS, TASKS, Scenario


def read(effects: Path) -> str:
    return effects.read_text() if effects.exists() else ""


def notes(effects: Path) -> Path:
    """What those who say and decide write down beside the effects."""
    return effects.with_suffix(".notes")


def put_down(file: Path, line: str) -> None:
    with file.open("a") as opened:
        opened.write(f"{line}\n")
        opened.flush()
        os.fsync(opened.fileno())


def build(store: Store, scenario: str, effects: Path, death: Callable[[], None]) -> Any:
    """The outermost agent. `death` is called before and after each effect."""
    played = SCENARIOS[scenario]
    ai = Adjourn(model=FunctionModel(_model(played, effects), "crash"))
    tools = _tools(ai, played, effects, death)
    for name in reversed([n for calls in played.script.values() for n in calls if n in TASKS]):
        tools = [ai.define_agent(name, tools=tools).as_tool()]
    waits = "queue" if len(played.messages) > 1 else "refuse"
    return ai.define_agent("crash", store=store, tools=tools, on_message_while_paused=waits)


def _model(played: Scenario, effects: Path) -> Callable[[ModelRequest], Any]:
    async def model(request: ModelRequest) -> ModelReply:
        if played.model_waits:
            await asyncio.sleep(0.01)
        told = next(m.text for m in reversed(request.messages) if m.role == "user")
        now = f"{told}:{request.messages[-1].role}"
        if now in played.model_fails and f"failed {now}\n" not in read(notes(effects)):
            put_down(notes(effects), f"failed {now}")
            raise OSError("no network")
        if request.messages[-1].role == "tool":
            return ModelReply(Message("model", [Part(text="done")]))
        return ModelReply(Message("model", [_request(call) for call in played.script[told]]))

    return model


def _request(call: str) -> Part:
    name, number = re.fullmatch(r"([a-z]+)(\d?)", call).groups()  # pyright: ignore[reportOptionalMemberAccess]
    given = {"n": int(number)} if number else {"task": TASKS[name]}
    return Part(tool_request=ToolRequest(name, f"r_{call}", given))


def _tools(ai: Adjourn, played: Scenario, effects: Path, death: Callable[[], None]) -> list[Any]:
    def effect(name: str, key: str) -> None:
        death()
        put_down(effects, f"{name} {key}")
        death()

    @ai.tool()
    async def work(n: int, ctx: ToolRunContext) -> str:
        effect(f"work{n}", ctx.idempotency_key)
        return "worked"

    @ai.tool(idempotent=True)
    async def sure(n: int, ctx: ToolRunContext) -> str:
        effect(f"sure{n}", ctx.idempotency_key)
        return "sure"

    @ai.tool()
    async def gate(n: int, ctx: ToolRunContext) -> str:
        if not any(ctx.restarts):  # no approval: nobody came yet, or only to send a run of unknown outcome round again
            raise Interrupt({"why": "approve"})
        effect(f"gate{n}", ctx.idempotency_key)
        return "opened"

    @ai.tool()
    async def twice(n: int, ctx: ToolRunContext) -> str:
        approvals = len([*filter(None, ctx.restarts)])
        if approvals < 2:
            raise Interrupt({"approvals": approvals})
        effect(f"twice{n}", ctx.idempotency_key)
        return "opened by two"

    @ai.tool()
    async def flaky(n: int, ctx: ToolRunContext) -> str:
        if not any(ctx.restarts):
            raise Interrupt({"why": "approve"})
        effect(f"flaky{n}", ctx.idempotency_key)
        if n == 0 and read(effects).count("flaky0 ") <= played.tool_fails:
            raise OSError("down after the effect")
        return "worked in the end"

    @ai.tool()
    async def brief(n: int, ctx: ToolRunContext) -> str:
        if not any(ctx.restarts):
            raise Interrupt({"why": "quick"}, expires_in=0.0, on_expiry=played.on_expiry)
        effect(f"brief{n}", ctx.idempotency_key)
        return "somebody came"

    return [work, sure, gate, twice, flaky, brief]
