"""The application of the command line's tests, as a user would write one. Its store and its effects lie in SHOP_FOLDER."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from adjourn import Adjourn, Interrupt, MemoryStore, ToolRunContext
from adjourn.model import Emit, Model, ModelRequest
from adjourn.parts import Chunk, Part
from adjourn.store import Store
from adjourn.testing import call

HOSTILE = (
    "\x1b]0;owned\x07\x1b[31mred\x1b[2J\x9b1m [bold]mark[/bold] [link=http://x]y[/link] \u202eevil\u200b\r\x08over\x00"
)


class Question(BaseModel):
    text: str


class Verdict(BaseModel):
    ok: bool = Field(description="whether it is")
    note: str = ""


def folder() -> Path:
    return Path(os.environ["SHOP_FOLDER"])


def effect(text: str) -> None:
    with (folder() / "effects.txt").open("a", encoding="utf-8") as f:
        f.write(text + "\n")


def build(store: Store | None) -> Adjourn:
    """The application on this store."""
    ai = Adjourn(model="script")

    @ai.model("script")
    async def script(request: ModelRequest, emit: Emit) -> Any:
        reply = answer(request)
        text = reply if isinstance(reply, str) else next((p for p in reply if isinstance(p, str)), "")
        for piece in re.findall(r"\S+\s*", text) if "unstreamed" not in text else ():
            emit(Chunk(content=[Part(text=piece)]))
        return reply

    @ai.tool()
    async def pay(amount: int, ctx: ToolRunContext) -> Any:
        """Pays money. Pauses until somebody has approved."""
        if not ctx.is_resumed():
            raise Interrupt({"amount": amount})
        effect(f"paid {amount}")
        return {"paid": amount, "note": ctx.resumed_metadata}

    @ai.tool()
    async def hold() -> str:
        """Runs until a file called go is there."""
        effect("holding")
        while not (folder() / "go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        return "held"

    @ai.tool()
    async def breaks() -> str:
        """Fails."""
        raise OSError(f"the disk is full {HOSTILE}")

    @ai.tool()
    async def forged(text: str, ctx: ToolRunContext) -> Any:
        """Pauses with a hostile payload."""
        ctx.report_progress(0.5, HOSTILE)
        if not ctx.is_resumed():
            raise Interrupt({"says": HOSTILE, HOSTILE: 1})
        return HOSTILE

    ai.define_interrupt("ask", "Asks a person.", Question, Verdict)
    ai.define_agent("clerk", system="You look after a shop.", store=store)
    return ai


def answer(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if last.role == "tool":
        return f"Done: {last.tool_responses[-1].output}"
    said = last.text
    if "both" in said:
        return [call("pay", {"amount": 1}), call("breaks")]
    if found := re.findall(r"pay (\d+)", said):
        return ["Let me pay. ", *[call("pay", {"amount": int(n)}) for n in found]]
    words = {
        "ask": ["I ask. ", call("ask", {"text": "Is it right?"})],
        "hold": [call("hold")],
        "break": [call("breaks")],
        "forge": [HOSTILE, call("forged", {"text": HOSTILE})],
        "quiet": "this is unstreamed",
    }
    return next((reply for word, reply in words.items() if word in said), f"You said: {said}")


def make() -> Adjourn:
    from adjourn.stores.sqlite import SQLiteStore

    return build(SQLiteStore(folder() / "shop.db", lease_seconds=float(os.environ.get("SHOP_LEASE", "15"))))


def make_nested() -> Adjourn:
    """With an agent `boss` that has its `bank` pay, which has its `till` do it."""
    ai = make()

    def asking(agent: str) -> Model:
        async def reply(request: ModelRequest) -> Any:
            last = request.messages[-1]
            return call(agent, {"task": last.text}) if last.role == "user" else "It is done."

        return ai.define_model(f"asks {agent}", reply)

    till = ai.define_agent("till", tools=["pay"])
    bank = ai.define_agent("bank", model=asking("till"), tools=[till.as_tool()])
    ai.define_agent("boss", model=asking("bank"), tools=[bank.as_tool()], store=ai.agents["clerk"].store)
    return ai


def make_postgres() -> Adjourn:
    from adjourn.stores.postgres import PostgresStore

    dsn, schema = os.environ["SHOP_DSN"], os.environ["SHOP_SCHEMA"]
    return build(PostgresStore(dsn, schema=schema, connections=2, lease_seconds=3.0))


def make_forgetful() -> Adjourn:
    """Without a store."""
    return build(None)


def make_in_memory() -> Adjourn:
    return build(MemoryStore())


def makes_nothing() -> None:
    """No application."""


def needs(name: str) -> Adjourn:
    raise AssertionError(name)


def fails() -> Adjourn:
    raise ValueError("no settings")


async def later() -> Adjourn:
    return make()


number = 5
