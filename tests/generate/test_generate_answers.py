"""What may be raised, answered, edited and declined."""

import base64
import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel

from adjourn import (
    Adjourn,
    Interrupt,
    InvalidResponse,
    NotJSON,
    VerbNotAllowed,
    decline_interrupt,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.errors import AdjournError
from adjourn.testing import ScriptedModel, call
from generate.answers_kit import FALSY, Gate, outputs_of, same

# -- falsy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", FALSY)
async def test_a_falsy_answer_is_an_answer(value: Any) -> None:
    gate = Gate()
    paused = await gate.pause()
    response = await gate.resume(paused, respond_to_interrupt(value, interrupt=paused.interrupts[0]))
    assert response.text == "done"
    [output] = outputs_of(gate.model.requests[1].messages)
    assert same(output, value)
    assert gate.runs == []


@pytest.mark.parametrize("value", FALSY)
async def test_a_falsy_result_of_a_tool_is_a_result(value: Any) -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t() -> Any:
        return value

    await ai.generate("go", tools=[t])
    [output] = outputs_of(model.requests[1].messages)
    assert same(output, value)


@pytest.mark.parametrize("value", FALSY)
async def test_a_falsy_result_waits_beside_a_pause_and_is_not_computed_again(value: Any) -> None:
    model = ScriptedModel([[call("ask"), call("t")], "done"])
    ai = Adjourn(model=model)
    runs = 0

    @ai.tool()
    async def ask() -> Any:
        raise Interrupt("?")

    @ai.tool()
    async def t() -> Any:
        nonlocal runs
        runs += 1
        return value

    paused = await ai.generate("go", tools=[ask, t])
    messages = msgspec.json.decode(msgspec.json.encode(paused.messages))
    assert "pendingOutput" in messages[-1]["content"][1]["metadata"]
    await ai.generate(resume_respond=paused.interrupts[0].respond(value), tools=[ask, t])
    answers = outputs_of(model.requests[1].messages)
    assert all(same(a, value) for a in answers)
    assert len(answers) == 2
    assert runs == 1


@pytest.mark.parametrize("payload", [None, *FALSY])
async def test_a_falsy_payload_is_a_pause(payload: Any) -> None:
    gate = Gate(payload)
    paused = await gate.pause()
    assert paused.finish_reason == "interrupted"
    assert same(paused.interrupts[0].payload, payload)
    assert "interrupt" in paused.interrupts[0].metadata


async def test_an_interrupt_without_a_payload_is_true_in_the_metadata() -> None:
    gate = Gate(None)
    paused = await gate.pause()
    assert paused.interrupts[0].metadata["interrupt"] is True


@pytest.mark.parametrize("metadata", [0, False, "", [], {}])
async def test_falsy_restart_metadata_makes_the_context_resumed_and_reaches_the_tool_as_it_is(metadata: Any) -> None:
    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], resumed_metadata=metadata))
    assert gate.runs == [(1, "")]
    assert gate.contexts[-1].is_resumed()
    assert same(gate.contexts[-1].resumed_metadata, metadata)


@pytest.mark.parametrize(
    "value",
    [
        {"0123456789abcdef0123456789abcdef": "grant"},
        {"0" * 32: "a", "f" * 32: "b"},
        {"interrupt": True, "resumed": {"x": 1}},
        {"declined": False},
        {"toolResponse": {"name": "gate", "output": 1}},
    ],
)
async def test_a_dict_is_delivered_verbatim_whatever_its_keys_look_like(value: dict[str, Any]) -> None:
    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, respond_to_interrupt(value, interrupt=paused.interrupts[0]))
    assert outputs_of(gate.model.requests[1].messages) == [value]


async def test_a_dict_keyed_by_the_interrupts_own_id_is_delivered_verbatim() -> None:
    gate = Gate()
    paused = await gate.pause()
    value = {paused.interrupts[0].id: "grant"}
    await gate.resume(paused, respond_to_interrupt(value, interrupt=paused.interrupts[0]))
    assert outputs_of(gate.model.requests[1].messages) == [value]


# -- payloads ---------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Order(BaseModel):
    id: int
    due: date


@dataclasses.dataclass
class Point:
    x: int
    tags: set[str]


class Struct(msgspec.Struct):
    name: str


WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = uuid.UUID(int=7)


PAYLOADS: list[tuple[Any, Any]] = [
    ("text", "text"),
    ([1, 2.5, None, True], [1, 2.5, None, True]),
    ({"a": {"b": [{}]}}, {"a": {"b": [{}]}}),
    (Order(id=1, due=date(2026, 1, 2)), {"id": 1, "due": "2026-01-02"}),
    (Point(1, {"b", "a"}), {"x": 1, "tags": ["a", "b"]}),
    (Struct("n"), {"name": "n"}),
    ({"when": WHEN}, {"when": WHEN.isoformat()}),
    ({"sum": Decimal("10.10")}, {"sum": "10.10"}),
    ({"id": KEY}, {"id": str(KEY)}),
    ([Colour.RED], ["red"]),
    ({"ids": {3, 1, 2}}, {"ids": [1, 2, 3]}),
    ({"raw": b"\x00\xff"}, {"raw": base64.b64encode(b"\x00\xff").decode()}),
    ((1, 2), [1, 2]),
]


@pytest.mark.parametrize("payload, stored", PAYLOADS)
async def test_payloads_of_every_promised_type_become_json(payload: Any, stored: Any) -> None:
    gate = Gate(payload)
    paused = await gate.pause()
    assert paused.interrupts[0].payload == stored
    assert (
        msgspec.json.decode(msgspec.json.encode(paused.messages))[-1]["content"][0]["metadata"]["interrupt"] == stored
    )


@pytest.mark.parametrize(
    "payload, path",
    [
        (float("nan"), "$"),
        ({"order": {"total": float("inf")}}, "$.order.total"),
        ({"lines": [1, {"f": print}]}, "$.lines[1].f"),
        ([object()], "$[0]"),
        ({"z": 1j}, "$.z"),
        ({"d": Decimal("NaN")}, "$.d"),
        (Point, "$"),
        ({"a": {1: "x"}}, "$.a"),
    ],
)
def test_what_is_no_json_is_refused_at_the_raise_naming_the_path(payload: Any, path: str) -> None:
    with pytest.raises(NotJSON) as caught:
        raise Interrupt(payload)
    assert caught.value.path == path
    assert path in str(caught.value)


def test_a_payload_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["me"] = loop
    with pytest.raises(NotJSON):
        raise Interrupt(loop)


@pytest.mark.parametrize("value", [float("nan"), object(), {"a": print}])
async def test_an_answer_that_is_no_json_is_refused_and_the_next_valid_one_is_all_that_counts(value: Any) -> None:
    gate = Gate()
    paused = await gate.pause()
    [interrupt] = paused.interrupts
    with pytest.raises(NotJSON):
        await gate.resume(paused, respond_to_interrupt(value, interrupt=interrupt))
    with pytest.raises(NotJSON):
        await gate.resume(paused, restart=restart_tool(interrupt=interrupt, resumed_metadata={"f": value}))
    await gate.resume(paused, restart=restart_tool(interrupt=interrupt, resumed_metadata={"f": 1}))
    assert gate.contexts[-1].restarts == ({"f": 1},)


def test_an_interrupt_is_not_an_exception_that_except_exception_catches() -> None:
    assert issubclass(Interrupt, BaseException)
    assert not issubclass(Interrupt, Exception)


@pytest.mark.parametrize("options", [{"allow": ()}, {"allow": ("retry",)}, {"on_expiry": "approve"}])
def test_wrong_options_of_an_interrupt_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(AdjournError):
        raise Interrupt("x", **options)


# -- response= --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared, wrong, right",
    [
        (bool, "yes", False),
        (int, "7", 0),
        (Literal["yes", "no"], "maybe", "no"),
        (list[str], ["a", 1], []),
        (Order, {"id": 1}, {"id": 1, "due": "2026-01-02"}),
        (Point, {"x": "one", "tags": []}, {"x": 1, "tags": ["a"]}),
        ({"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}, {}, {"ok": False}),
        (str, None, ""),
    ],
)
async def test_an_answer_must_fit_the_declared_response_and_a_wrong_one_leaves_the_pause(
    declared: Any, wrong: Any, right: Any
) -> None:
    gate = Gate("?", response=declared)
    paused = await gate.pause()
    [interrupt] = paused.interrupts
    with pytest.raises(InvalidResponse) as caught:
        await gate.resume(paused, respond_to_interrupt(wrong, interrupt=interrupt))
    assert "gate" in str(caught.value)
    assert caught.value.problems
    assert gate.model.calls == 1
    response = await gate.resume(paused, respond_to_interrupt(right, interrupt=interrupt))
    assert response.text == "done"
    assert outputs_of(response.messages) == [right]


async def test_an_answer_may_be_an_instance_of_the_declared_model() -> None:
    gate = Gate("?", response=Order)
    paused = await gate.pause()
    value = Order(id=3, due=date(2026, 5, 6))
    response = await gate.resume(paused, respond_to_interrupt(value, interrupt=paused.interrupts[0]))
    assert outputs_of(response.messages) == [{"id": 3, "due": "2026-05-06"}]


async def test_a_restart_needs_no_response_of_the_declared_type() -> None:
    gate = Gate("?", response=bool)
    paused = await gate.pause()
    await gate.resume(paused, restart=paused.interrupts[0].restart())
    assert gate.runs == [(1, "")]


# -- allow=, declining, respond-only tools ----------------------------------------------------------------------------


async def test_an_interrupt_that_only_takes_a_response_cannot_be_restarted() -> None:
    gate = Gate("?", allow=("respond",))
    paused = await gate.pause()
    with pytest.raises(VerbNotAllowed):
        await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0]))
    assert gate.runs == []
    assert (await gate.resume(paused, paused.interrupts[0].respond("ok"))).text == "done"


async def test_an_interrupt_that_only_takes_a_restart_cannot_be_responded_to() -> None:
    gate = Gate("?", allow=("restart",))
    paused = await gate.pause()
    with pytest.raises(VerbNotAllowed):
        await gate.resume(paused, respond_to_interrupt("made up", interrupt=paused.interrupts[0]))
    assert (await gate.resume(paused, restart=paused.interrupts[0].restart())).text == "done"


@pytest.mark.parametrize("allow", [("respond",), ("restart",), ("respond", "restart")])
async def test_every_interrupt_can_be_declined_and_the_model_is_told_why(allow: Any) -> None:
    gate = Gate("?", allow=allow)
    paused = await gate.pause()
    answer = decline_interrupt("not on a Friday", interrupt=paused.interrupts[0])
    response = await gate.resume(paused, answer)
    assert response.text == "done"
    assert gate.runs == []
    text = msgspec.json.encode(gate.model.requests[1].messages[-1]).decode()
    assert "not on a Friday" in text
    assert "declined" in text


async def test_declining_fits_an_interrupt_whose_response_has_a_type() -> None:
    gate = Gate("?", response=int)
    paused = await gate.pause()
    assert (await gate.resume(paused, paused.interrupts[0].decline("no"))).text == "done"


class Question(BaseModel):
    text: str


class TestRespondOnlyTools:
    def app(self, *replies: Any) -> tuple[Adjourn, Any, ScriptedModel]:
        model = ScriptedModel(list(replies))
        ai = Adjourn(model=model)
        ask = ai.define_interrupt("ask_user", "Ask the user.", input_schema=Question, output_schema=Literal["a", "b"])
        return ai, ask, model

    async def test_it_pauses_with_its_input_and_takes_a_valid_response(self) -> None:
        ai, ask, model = self.app(call("ask_user", {"text": "a or b?"}), "thanks")
        paused = await ai.generate("go", tools=[ask])
        [interrupt] = paused.interrupts
        assert interrupt.tool_request.input == {"text": "a or b?"}
        assert tuple(interrupt.allow) == ("respond",)
        with pytest.raises(InvalidResponse):
            await ai.generate(resume_respond=interrupt.respond("c"), tools=[ask])
        response = await ai.generate(resume_respond=interrupt.respond("b"), tools=[ask])
        assert response.text == "thanks"
        assert outputs_of(model.requests[1].messages) == ["b"]

    async def test_restarting_it_is_refused_with_an_error_that_says_so(self) -> None:
        ai, ask, model = self.app(call("ask_user", {"text": "?"}), "thanks")
        paused = await ai.generate("go", tools=[ask])
        with pytest.raises(VerbNotAllowed) as caught:
            await ai.generate(
                messages=paused.messages,
                resume_restart=restart_tool(tool=ask, interrupt=paused.interrupts[0]),
                tools=[ask],
            )
        assert "ask_user" in str(caught.value)
        assert "respon" in str(caught.value)
        assert model.calls == 1
        assert (await ai.generate(resume_respond=paused.interrupts[0].respond("a"), tools=[ask])).text == "thanks"

    async def test_bad_input_of_the_model_is_corrected_before_anyone_is_asked(self) -> None:
        ai, ask, model = self.app(call("ask_user", {"txt": "?"}), call("ask_user", {"text": "?"}))
        paused = await ai.generate("go", tools=[ask])
        assert [p.tool_request.input for p in paused.interrupts] == [{"text": "?"}]
        assert "txt" in msgspec.json.encode(model.requests[1].messages[-1]).decode()

    async def test_the_model_is_told_its_name_description_and_schema(self) -> None:
        ai, ask, model = self.app("hello")
        await ai.generate("go", tools=[ask])
        [definition] = model.requests[0].tools
        assert (definition.name, definition.description) == ("ask_user", "Ask the user.")
        assert definition.input_schema is not None
        assert set(definition.input_schema["properties"]) == {"text"}

    async def test_without_schemas_it_takes_no_input_and_any_response(self) -> None:
        model = ScriptedModel([call("confirm"), "ok"])
        ai = Adjourn(model=model)
        confirm = ai.define_interrupt("confirm", "Confirm.")
        paused = await ai.generate("go", tools=[confirm])
        response = await ai.generate(resume_respond=paused.interrupts[0].respond(None), tools=[confirm])
        assert response.text == "ok"
