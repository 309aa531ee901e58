"""An application with one tool of each sort, and somebody at its pages."""

import asyncio
import json
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from adjourn import Adjourn, AgentInit, Interrupt, MemoryStore, ToolRunContext
from adjourn.store import Decision, InterruptRecord
from adjourn.testing import FakeClock, ScriptedModel, call
from server.pages_kit import Page, Visitor
from server.server_kit import People


class Line(BaseModel):
    sku: str
    quantity: Annotated[int, Field(ge=1, le=10)] = 1


class Verdict(BaseModel):
    accepted: bool
    size: Literal["small", "large"]
    lines: list[Line]
    note: str | None = None


class Order(BaseModel):
    customer: str


class Crate(BaseModel):
    model_config = ConfigDict(extra="allow")
    sku: str


class Packed(BaseModel):
    crates: list[Crate]


class Desk:
    """An application with one tool of each sort, its server, and a person at its pages."""

    def __init__(self, people: People, ai: Adjourn, clock: FakeClock, log: list[Any], root: Visitor) -> None:
        self.people, self.ai, self.clock, self.log, self.root = people, ai, clock, log, root

    async def pause(self, tool: str, input: Any = None, owner: str = "ann") -> str:
        session = self.ai.agents["clerk"].connect(AgentInit(owner=owner))
        await session.send(json.dumps([tool, input or {}])).output
        return session.interrupts[0].id

    async def open(self, tool: str, input: Any = None, owner: str = "ann") -> Page:
        return await self.root.get(f"/inbox/{await self.pause(tool, input, owner)}")

    async def decisions(self, page: Page) -> list[Decision]:
        return list(await self.ai.inbox.history(await self.id_of(page)))

    async def id_of(self, page: Page) -> str:
        return next(a["data-id"] for t, a in page.tags if t == "body")

    async def row(self, page: Page) -> InterruptRecord:
        return await self.ai.inbox.get(await self.id_of(page))

    async def rested(self, page: Page) -> Page:
        """The page once the turn has come to rest."""
        async with asyncio.timeout(10):
            while "data-running" in page.html:
                await asyncio.sleep(0.01)
                page = await self.root.get(f"/inbox/{await self.id_of(page)}")
        return page


def obey(request: Any) -> Any:
    last = request.messages[-1]
    if last.role == "tool":
        return f"The tool said {msgspec.json.encode(last.tool_responses[0].output).decode()}"
    tool, given = json.loads(last.text)
    return call(tool, given)


def application(clock: FakeClock, log: list[Any]) -> Adjourn:
    ai = Adjourn(model=ScriptedModel([obey], repeat_last=True), clock=clock)

    @ai.tool()
    async def send(to: str, body: str, ctx: ToolRunContext, copies: Annotated[int, Field(ge=1)] = 1) -> Any:
        """Sends a letter.

        It cannot be called back.

        Args:
            to: Who gets it.
        """
        if not ctx.is_resumed():
            raise Interrupt({"stamp": "first class"})
        log.append((to, body, copies, ctx.resumed_metadata))
        return {"sent": to}

    @ai.tool(approval=True)
    async def pay(euros: float) -> str:
        log.append(euros)
        return "paid"

    @ai.tool()
    async def sign(what: str, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"sign": what}, expires_in=600)
        return "signed"

    @ai.tool(on_error="interrupt")
    async def call_up(number: str) -> str:
        raise ConnectionError(f"{number} is engaged")

    @ai.tool()
    async def guess(what: str) -> str:
        raise Interrupt({"guess": what}, response=int)

    ai.define_interrupt("review", "Asks a person to go over an order.", Order, Verdict)

    @ai.tool(approval=True)
    async def pack(crates: list[Crate]) -> str:
        log.append([c.model_dump() for c in crates])
        return "packed"

    ai.define_interrupt("count", "Asks what was packed.", Order, Packed)
    ai.define_interrupt("ask", "Asks a person.", Order)
    ai.define_agent("clerk", store=MemoryStore(), system="Be kind.")
    return ai
