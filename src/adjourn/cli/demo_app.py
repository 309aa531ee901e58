"""The application of `adjourn demo`: a support agent on a scripted model, which needs no key and no network.

`adjourn chat adjourn.cli.demo_app:make` talks with it. With ADJOURN_DEMO_STORE its sessions are in that file.
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, Field

from adjourn.app import Adjourn
from adjourn.model import Emit, ModelRequest
from adjourn.parts import Chunk, Message, Part
from adjourn.store import MemoryStore, Store
from adjourn.testing import call
from adjourn.tool import Interrupt, ToolRunContext

_NOTHING: Mapping[str, Any] = {}


class Slot(BaseModel):
    """When the courier comes."""

    day: str = Field(description="such as Tuesday")
    before_noon: bool = True


def make(store: Store | None = None, pace: float = 0.03) -> Adjourn:
    """The application, with its sessions in `store`, else where ADJOURN_DEMO_STORE says, else in memory. `pace` is in seconds
    a word.
    """
    store = store or _named()
    ai = Adjourn(model="script")

    @ai.model("script")
    async def script(request: ModelRequest, emit: Emit) -> Any:
        reply = _reply(request)
        for word in re.findall(r"\S+\s*", reply if isinstance(reply, str) else reply[0]):
            emit(Chunk(content=[Part(text=word)]))
            await asyncio.sleep(pace)
        return reply

    @ai.tool()
    async def refund(order: int, euros: int, ctx: ToolRunContext) -> dict[str, Any]:
        """Pays money back. Pauses until somebody has approved it."""
        if not ctx.is_resumed():
            raise Interrupt({"question": f"Pay {euros} euros back for order {order}?"})
        for step in range(4):
            ctx.report_progress(step / 4, "telling the bank")
            await asyncio.sleep(pace * 8)
        return {"refunded": euros, "order": order}

    @ai.tool()
    async def book_courier(order: int) -> Slot:
        """Books a courier. Only a person can: it pauses until one has said when."""
        raise Interrupt(
            {"question": f"When does the courier come for order {order}?"}, response=Slot, allow=("respond",)
        )

    ai.define_agent("support", system="You look after orders.", tools=[refund, book_courier], store=store)
    return ai


def _named() -> Store:
    place = os.environ.get("ADJOURN_DEMO_STORE")
    if not place:
        return MemoryStore()
    from adjourn.cli.place import open_store

    return open_store(place)


def _reply(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if last.role == "tool":
        return _after(last)
    said = last.text.lower()
    order = _number(r"order (\d+)", request.messages) or 17
    if "euro" in said or "money" in said or "refund" in said:
        return ["Let me see to that. ", call("refund", {"order": order, "euros": _number(r"(\d+) euro", [last]) or 40})]
    if "when" in said or "replace" in said or "courier" in said:
        return ["I ask the warehouse. ", call("book_courier", {"order": order})]
    return (
        'I am a script, not a model: I know about money back ("give me 40 euros back for order 17") and about the courier '
        '("when will the replacement be sent?"). Both make a tool pause.'
    )


def _after(message: Message) -> str:
    output: Any = message.tool_responses[-1].output
    told: Mapping[str, Any] = cast(Mapping[str, Any], output) if isinstance(output, Mapping) else _NOTHING
    if "refunded" in told:
        return f"Done: {told['refunded']} euros are on their way back to you."
    if "day" in told:
        return f"The courier comes on {told['day']}, {'before noon' if told.get('before_noon', True) else 'in the afternoon'}."
    if told.get("declined"):
        return f"I am sorry, that was declined: {told.get('reason') or 'no reason was given'}"
    return "I am sorry, that did not work."


def _number(pattern: str, messages: Sequence[Message]) -> int | None:
    for message in reversed(messages):
        found = re.search(pattern, message.text.lower()) if message.role == "user" else None
        if found is not None:
            return int(found[1])
    return None
