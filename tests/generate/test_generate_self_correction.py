"""Bad calls and bad replies of the model go back to it, and never reach the body."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from adjourn import Adjourn, Interrupt, LimitReached, Limits, Message, ToolFailed, respond_to_interrupt
from adjourn.model import ModelReply, ModelRequest
from adjourn.testing import ScriptedModel, call


def told(request: ModelRequest) -> str:
    """What the newest message tells the model, as JSON text."""
    return msgspec.json.encode(request.messages[-1]).decode()


def cold(messages: Sequence[Message]) -> list[Message]:
    return msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])


class Line(BaseModel):
    sku: str
    quantity: Annotated[int, Field(ge=1)]


class Shop:
    """One tool, its runs, and a model that first calls it as told, then well, then ends."""

    def __init__(self, *replies: Any, limits: Limits | None = None) -> None:
        self.ran: list[Any] = []
        self.model = ScriptedModel(list(replies))
        self.ai = Adjourn(model=self.model, limits=limits)

        @self.ai.tool()
        async def order(sku: str, quantity: int, lines: list[Line] | None = None) -> str:
            self.ran.append((sku, quantity, lines))
            return "ordered"

        self.order = order


GOOD = call("order", {"sku": "A", "quantity": 1})


@pytest.mark.parametrize(
    "bad, hint",
    [
        ({"sku": "A", "quantity": "many"}, "quantity"),
        ({"sku": "A"}, "quantity"),
        ({"sku": "A", "quantity": 1, "colour": "red"}, "colour"),
        ({"sku": None, "quantity": 1}, "sku"),
        ({"sku": "A", "quantity": 1, "lines": [{"sku": "B", "quantity": 1}, {"sku": "C", "quantity": 0}]}, "quantity"),
        ({}, "sku"),
        ([1, 2], "object"),
        ('{"sku": "A", "quanti', ""),
        ("not json at all", ""),
        ("", ""),
        ('["A", 1]', "object"),
        (7, "object"),
    ],
)
async def test_bad_input_goes_back_as_an_error_to_act_on_and_never_reaches_the_body(bad: Any, hint: str) -> None:
    shop = Shop(call("order", bad, ref="bad"), GOOD, "done")
    response = await shop.ai.generate("order A", tools=[shop.order])
    assert response.text == "done"
    assert shop.ran == [("A", 1, None)]
    assert shop.model.calls == 3
    back = shop.model.requests[1].messages[-1]
    assert back.role == "tool"
    [part] = back.content
    assert part.tool_response is not None
    assert (part.tool_response.name, part.tool_response.ref) == ("order", "bad")
    text = told(shop.model.requests[1])
    assert "error" in text
    assert hint in text


async def test_the_error_names_the_place_of_the_fault_inside_nested_input() -> None:
    bad = {"sku": "A", "quantity": 1, "lines": [{"sku": "B", "quantity": 1}, {"sku": "C", "quantity": 0}]}
    shop = Shop(call("order", bad), "sorry")
    await shop.ai.generate("order", tools=[shop.order])
    assert "lines[1].quantity" in told(shop.model.requests[1])


async def test_extra_fields_inside_a_model_parameter_are_refused() -> None:
    model = ScriptedModel([call("add", {"sku": "A", "quantity": 1, "bogus": 2}), "sorry"])
    ai = Adjourn(model=model)
    ran: list[Line] = []

    @ai.tool()
    async def add(line: Line) -> str:
        ran.append(line)
        return "ok"

    await ai.generate("add", tools=[add])
    assert ran == []
    assert "bogus" in told(model.requests[1])


async def test_an_unknown_tool_goes_back_with_the_names_of_those_that_there_are() -> None:
    shop = Shop(call("ordr", {"sku": "A"}), GOOD, "done")
    response = await shop.ai.generate("order A", tools=[shop.order])
    assert response.text == "done"
    text = told(shop.model.requests[1])
    assert "ordr" in text
    assert "order" in text.replace("ordr", "")
    assert len(shop.ran) == 1


async def test_a_tool_of_the_app_that_was_not_offered_in_this_call_is_unknown() -> None:
    model = ScriptedModel([call("secret"), "sorry"])
    ai = Adjourn(model=model)
    ran: list[str] = []

    @ai.tool()
    async def secret() -> str:
        ran.append("secret")
        return "x"

    @ai.tool()
    async def open_one() -> str:
        return "y"

    await ai.generate("go", tools=[open_one])
    assert ran == []
    assert "secret" in told(model.requests[1])


async def test_arguments_that_arrive_as_json_text_are_read() -> None:
    shop = Shop(call("order", '{"sku": "A", "quantity": 2}'), "done")
    await shop.ai.generate("order", tools=[shop.order])
    assert shop.ran == [("A", 2, None)]


async def test_arguments_cut_off_by_the_token_limit_never_reach_the_tool() -> None:
    cut = ModelReply(Message("model", [call("order", '{"sku": "A", "quantity": 1')]), finish_reason="length")
    shop = Shop(cut, "gave up")
    response = await shop.ai.generate("order", tools=[shop.order])
    assert shop.ran == []
    assert response.finish_reason in ("stop", "length")


async def test_one_bad_call_among_good_ones_does_not_stop_them() -> None:
    shop = Shop([GOOD, call("order", {"sku": "B"}), call("nope")], "done")
    response = await shop.ai.generate("order", tools=[shop.order])
    assert shop.ran == [("A", 1, None)]
    outputs = [p.tool_response.output for p in response.messages[-2].content if p.tool_response]
    assert outputs[0] == "ordered"
    assert "quantity" in str(outputs[1])
    assert "nope" in str(outputs[2])


async def test_a_bad_call_beside_a_pause_is_told_to_the_model_when_the_pause_is_settled() -> None:
    model = ScriptedModel([[call("gate", {"n": "x"}), call("gate", {"n": 1})], "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def gate(n: int) -> int:
        raise Interrupt({"n": n})

    paused = await ai.generate("go", tools=[gate])
    assert [p.payload for p in paused.interrupts] == [{"n": 1}]
    await ai.generate(resume_respond=respond_to_interrupt("ok", interrupt=paused.interrupts[0]), tools=[gate])
    outputs = [p.tool_response.output for p in model.requests[1].messages[-1].content if p.tool_response]
    assert "error" in str(outputs[0])
    assert outputs[1] == "ok"


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
@pytest.mark.parametrize("bad", [call("order", {"sku": 1}), call("nope", {}), call("order", '{"sku')])
async def test_argument_errors_are_bounded(bound: int, bad: Any) -> None:
    model = ScriptedModel([bad], repeat_last=True)
    ai = Adjourn(model=model)

    @ai.tool()
    async def order(sku: str, quantity: int) -> str:
        return "ordered"

    with pytest.raises(LimitReached) as caught:
        await ai.generate("order", tools=[order], limits=Limits(argument_errors=bound))
    assert caught.value.limit == "argument_errors"
    assert model.calls == bound + 1
    assert sum(m.role == "model" for m in caught.value.response.messages) == bound + 1


async def test_the_default_budget_of_argument_errors_is_two() -> None:
    bad = call("order", {})
    shop = Shop(bad, bad, GOOD, "done")
    assert (await shop.ai.generate("x", tools=[shop.order])).text == "done"
    shop = Shop(bad, bad, bad, GOOD, "done")
    with pytest.raises(LimitReached):
        await shop.ai.generate("x", tools=[shop.order])
    assert shop.ran == []


async def test_the_budget_of_one_tool_is_not_reset_by_a_call_of_another_in_between() -> None:
    model = ScriptedModel(
        [
            call("a", {}),
            call("b", {"x": 1}),
            call("a", {}),
            call("b", {"x": 1}),
            call("a", {}),
            call("b", {"x": 1}),
            "no",
        ]
    )
    ai = Adjourn(model=model)

    @ai.tool()
    async def a(x: int) -> int:
        return x

    @ai.tool()
    async def b(x: int) -> int:
        return x

    with pytest.raises(LimitReached) as caught:
        await ai.generate("go", tools=[a, b], limits=Limits(argument_errors=2))
    assert caught.value.limit == "argument_errors"
    assert model.calls == 5


async def test_argument_errors_and_tool_errors_have_budgets_of_their_own() -> None:
    replies = [call("t", {}), call("t", {"x": 1}), call("t", {}), call("t", {"x": 1}), "done"]
    model = ScriptedModel(replies)
    ai = Adjourn(model=model)

    @ai.tool(on_error="model")
    async def t(x: int) -> int:
        raise ValueError("no")

    response = await ai.generate("go", tools=[t], limits=Limits(argument_errors=2, tool_errors=2))
    assert response.text == "done"


async def test_the_budget_survives_a_pause_and_a_json_round_trip() -> None:
    replies = [call("order", {}), call("ask", {}), call("order", {}), call("order", {"sku": "A"})]
    limits = Limits(argument_errors=1)

    def app(replies: Sequence[Any]) -> tuple[Adjourn, list[Any]]:
        ai = Adjourn(model=ScriptedModel(replies), limits=limits)

        @ai.tool()
        async def order(sku: str) -> str:
            return sku

        @ai.tool()
        async def ask() -> str:
            raise Interrupt("?")

        return ai, [order, ask]

    ai, tools = app(replies[:2])
    paused = await ai.generate("go", tools=tools)
    assert paused.finish_reason == "interrupted"
    ai, tools = app(replies[2:])
    messages = cold(paused.messages)
    answer = respond_to_interrupt("yes", interrupt=messages[-1].content[0])
    with pytest.raises(LimitReached) as caught:
        await ai.generate(messages=messages, resume_respond=answer, tools=tools)
    assert caught.value.limit == "argument_errors"


# -- output= ---------------------------------------------------------------------------------------------------------


class Invoice(BaseModel):
    number: str
    total: float


class Point(TypedDict):
    x: int


async def test_an_output_model_parses_and_validates_the_reply() -> None:
    model = ScriptedModel(['{"number": "A-1", "total": 12}'])
    response = await Adjourn(model=model).generate("read", output=Invoice)
    assert response.output == Invoice(number="A-1", total=12.0)
    schema = model.requests[0].output_schema
    assert schema is not None
    assert set(schema["properties"]) == {"number", "total"}


@pytest.mark.parametrize("bad", ['{"number": "A-1"}', "The total is twelve.", '{"number": "A-1", "total": 1', ""])
async def test_a_reply_that_does_not_validate_is_corrected(bad: str) -> None:
    model = ScriptedModel([bad, '{"number": "A-1", "total": 12}'])
    response = await Adjourn(model=model).generate("read", output=Invoice)
    assert response.output == Invoice(number="A-1", total=12.0)
    assert model.calls == 2
    assert model.requests[1].messages[-1].role == "user"
    assert [m.role for m in model.requests[1].messages] == ["user", "model", "user"]


async def test_the_correction_of_an_output_names_the_fault() -> None:
    model = ScriptedModel(['{"number": "A-1"}', '{"number": "A-1", "total": 12}'])
    await Adjourn(model=model).generate("read", output=Invoice)
    assert "total" in told(model.requests[1])


@pytest.mark.parametrize("bound", [0, 1, 2, 4])
async def test_output_errors_are_bounded_and_carry_the_transcript(bound: int) -> None:
    model = ScriptedModel(["nonsense"], repeat_last=True)
    with pytest.raises(LimitReached) as caught:
        await Adjourn(model=model).generate("read", output=Invoice, limits=Limits(output_errors=bound))
    assert caught.value.limit == "output_errors"
    assert model.calls == bound + 1
    assert sum(m.text == "nonsense" for m in caught.value.response.messages) == bound + 1


@pytest.mark.parametrize(
    "kind, text, value",
    [
        (bool, "false", False),
        (int, "0", 0),
        (str, '""', ""),
        (list[int], "[]", []),
        (dict[str, int], "{}", {}),
        (type(None), "null", None),
        (Literal["yes", "no"], '"no"', "no"),
        (Point, '{"x": 0}', {"x": 0}),
    ],
)
async def test_falsy_and_plain_outputs_are_outputs(kind: Any, text: str, value: Any) -> None:
    model = ScriptedModel([text])
    response = await Adjourn(model=model).generate("x", output=kind)
    assert response.output == value
    assert type(response.output) is type(value)
    assert model.calls == 1


async def test_an_output_follows_tool_calls_and_a_pause() -> None:
    model = ScriptedModel([call("ask"), '{"number": "A", "total": 1}'])
    ai = Adjourn(model=model)

    @ai.tool()
    async def ask() -> str:
        raise Interrupt("?")

    paused = await ai.generate("x", tools=[ask], output=Invoice)
    response = await ai.generate(resume_respond=paused.interrupts[0].respond("y"), tools=[ask], output=Invoice)
    assert response.output == Invoice(number="A", total=1)


async def test_output_errors_are_counted_through_a_pause_and_a_json_round_trip() -> None:
    ai = Adjourn(model=ScriptedModel(["bad", call("ask")]))

    def ask() -> str:
        raise Interrupt("?")

    tool = ai.tool(ask)
    limits = Limits(output_errors=1)
    paused = await ai.generate("x", tools=[tool], output=Invoice, limits=limits)
    messages = cold(paused.messages)
    other = Adjourn(model=ScriptedModel(["bad again", '{"number": "A", "total": 1}']))
    with pytest.raises(LimitReached) as caught:
        await other.generate(
            messages=messages,
            resume_respond=respond_to_interrupt("y", interrupt=messages[-1].content[0]),
            tools=[other.tool(ask)],
            output=Invoice,
            limits=limits,
        )
    assert caught.value.limit == "output_errors"


async def test_output_errors_are_counted_again_for_a_new_user_message() -> None:
    model = ScriptedModel(["bad", "1", "bad", "2"])
    ai = Adjourn(model=model)
    limits = Limits(output_errors=1)
    first = await ai.generate("one", output=int, limits=limits)
    second = await ai.generate("two", messages=first.messages, output=int, limits=limits)
    assert (first.output, second.output) == (1, 2)


async def test_a_tool_that_raises_a_validation_error_of_its_own_failed_and_was_not_called_badly() -> None:
    ai = Adjourn(model=ScriptedModel([call("t", {"x": 1}), "done"]))

    @ai.tool()
    async def t(x: int) -> str:
        Invoice.model_validate({"number": x})
        return "unreachable"

    with pytest.raises(ToolFailed):
        await ai.generate("go", tools=[t])
