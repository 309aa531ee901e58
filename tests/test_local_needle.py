"""`local/needle` with the real model: calls, corrections, pauses, a cold process, replay."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from adjourn import (
    Adjourn,
    GenerateResponse,
    Interrupt,
    Message,
    ToolDefinition,
    ToolRunContext,
    respond_to_interrupt,
)
from adjourn.parts import decode
from adjourn.plugins.local import Local, Needle
from adjourn.plugins.local.dialect import Line, engine_tool
from adjourn.plugins.local.engine import Setup, converse
from local_kit import load_or_skip, real_model, restarted_elsewhere

CONFIG = None  # for the process that saw nothing


@pytest.fixture(scope="session")
def needle_is_here() -> None:
    load_or_skip(Needle())


class Shop:
    """An application with tools that keep what they did in `orders`."""

    def __init__(self) -> None:
        self.ai = Adjourn(plugins=[Local()], model="local/needle")
        self.orders: list[tuple[str, int]] = []

        @self.ai.tool()
        async def order_stock(
            code: str, quantity: Annotated[int, Field(le=300, description="units to order")], ctx: ToolRunContext
        ) -> dict[str, Any]:
            """Order units of a product from the supplier."""
            if quantity > 100 and not ctx.is_resumed():
                raise Interrupt({"code": code, "quantity": quantity})
            self.orders.append((code, quantity))
            return {"saved": True}

    async def say(self, prompt: str) -> GenerateResponse[Any]:
        return await self.ai.generate(prompt, tools=["order_stock"])


@pytest.mark.usefixtures("needle_is_here")
class TestTheRealModel:
    # They take seconds on an idle machine and minutes on a busy one.
    pytestmark = real_model("needle", 900)

    async def test_it_calls_a_tool_and_the_closing_text_tells_the_result(self) -> None:
        shop = Shop()
        handle = shop.ai.generate_stream("Order 47 units of BW-7.", tools=["order_stock"])
        texts = [chunk.text async for chunk in handle.stream if chunk.text]
        response = await handle.response
        assert shop.orders == [("BW-7", 47)]
        assert response.finish_reason == "stop"
        assert "order_stock(code: BW-7, quantity: 47): saved" in response.text
        assert "".join(texts) == response.text
        assert response.message is not None
        written = response.message.content[0].metadata == {"needle": {"written_by": "local/smollm2"}}
        assert len(texts) > 3 if written else len(texts) == 1  # its sentence is told as it is written
        call = next(m for m in response.messages if m.role == "model")
        kept = (call.metadata or {})["needle"]
        assert 0 < kept["confidence"] <= 1
        assert kept["reasoning"]

    async def test_it_mends_an_argument_that_was_refused(self) -> None:
        shop = Shop()
        response = await shop.say("Order 500 units of TP-9.")
        assert [p.input for p in response.interrupts] == [{"code": "TP-9", "quantity": 300}]
        refused = response.messages[2].content[0]
        assert refused.tool_response is not None
        assert "less than or equal to 300, not 500" in refused.tool_response.output["error"]

    @pytest.mark.slow
    async def test_a_pause_is_answered_with_a_result_and_the_tool_does_not_run(self) -> None:
        shop = Shop()
        paused = await shop.say("Order 120 units of RP-6.")
        assert paused.finish_reason == "interrupted"
        answer = respond_to_interrupt({"ordered": 120, "by": "telephone"}, interrupt=paused.interrupts[0])
        response = await shop.ai.generate(resume_respond=answer)
        assert shop.orders == []
        assert "ordered: 120, by: telephone" in response.text

    @pytest.mark.slow
    async def test_a_pause_is_restarted_in_a_process_that_never_saw_the_conversation(self, tmp_path: Path) -> None:
        paused = await Shop().say("Order 120 units of RP-6.")
        told = await restarted_elsewhere("test_local_needle", paused, tmp_path)
        assert told["orders"] == [["RP-6", 120]]
        assert told["finish_reason"] == "stop"
        assert "order_stock(code: RP-6, quantity: 120): saved" in told["text"]
        # It heard the same as this process would have, and says the same.
        here = await Shop().ai.generate(
            messages=decode(json.dumps(told["before_last"]), list[Message]), tools=[order()]
        )
        assert here.text == told["text"]
        assert here.message is not None
        assert "diverged" not in (here.message.metadata or {})["needle"]

    @pytest.mark.slow
    async def test_a_conversation_fed_again_gets_the_same_replies(self) -> None:
        tools = json.dumps([engine_tool(ToolDefinition("act", "Order units of a product.", SCHEMA))])
        setup = Setup("", tools, 64)
        texts = ["Order 500 units of TP-9.", '[{"error": "quantity must be at most 300"}]', '[{"saved": true}]']
        live = [await converse(setup, [Line(t) for t in texts[:n]]) for n in (1, 2, 3)]
        await converse(setup, [Line("Something else.")])
        again = await converse(setup, [Line(t) for t in texts])
        for key in ("type", "function_calls", "suppressed_calls", "reasoning", "confidence"):
            assert again[key] == live[-1][key]
        assert live[0]["function_calls"][0]["arguments"]["quantity"] == 500

    async def test_it_reads_an_output_from_a_text(self) -> None:
        text = "Invoice 2026-17 over 1,250.50 euros from Acme Ltd."
        response = await Shop().ai.generate(text, output=Invoice)
        assert response.output == Invoice(number="2026-17", total=1250.5, currency="EUR")

    async def test_it_says_so_where_no_tool_fits(self) -> None:
        response = await Shop().say("What is the capital of France?")
        assert response.text.startswith("The model called no tool.")

    @pytest.mark.slow
    async def test_two_conversations_at_once_do_not_mix(self) -> None:
        shops = [Shop(), Shop()]
        await asyncio.gather(shops[0].say("Order 47 units of BW-7."), shops[1].say("Order 12 units of RP-6."))
        assert [s.orders for s in shops] == [[("BW-7", 47)], [("RP-6", 12)]]


class Invoice(BaseModel):
    """The data of an invoice."""

    number: str
    total: float = Field(ge=0)
    currency: Literal["EUR", "USD"]


SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string"}, "quantity": {"type": "integer"}},
    "required": ["code", "quantity"],
}


def order() -> Any:
    return Shop().ai.tools["order_stock"]
