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
    InvalidInput,
    InvalidResponse,
    Message,
    NotJSON,
    ResumeError,
    ToolRunContext,
    VerbNotAllowed,
    decline_interrupt,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.errors import AdjournError
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
async def test_falsy_restart_metadata_still_makes_the_context_resumed(metadata: Any) -> None:
    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], resumed_metadata=metadata))
    assert gate.runs == [(1, "")]
    assert gate.contexts[-1].is_resumed()


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


# -- replace_input ----------------------------------------------------------------------------------------------------


async def test_an_edited_input_runs_and_the_tool_can_see_the_original() -> None:
    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], replace_input={"x": 9, "note": "n"}))
    assert gate.runs == [(9, "n")]
    assert gate.contexts[-1].original_input == {"x": 1}
    assert gate.contexts[-1].is_resumed()


async def test_the_model_sees_both_the_input_it_gave_and_the_one_that_ran() -> None:
    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], replace_input={"x": 94211}))
    asked, answered = gate.model.requests[1].messages[-2:]
    assert asked.content[0].tool_request is not None
    assert asked.content[0].tool_request.input == {"x": 1}
    [part] = answered.content
    assert part.tool_response is not None
    # In what is sent as the response, not only in metadata, which models do not read.
    sent = msgspec.json.encode([part.tool_response.output, part.tool_response.content]).decode()
    assert "94211" in sent
    assert "edited" in sent


async def test_the_edited_input_is_recorded_beside_the_original_in_the_transcript() -> None:
    gate = Gate()
    paused = await gate.pause()
    response = await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], replace_input={"x": 9}))
    kept = msgspec.json.decode(msgspec.json.encode(response.messages))
    text = msgspec.json.encode(kept[-2]["content"][0]["metadata"]).decode()
    assert '{"x":1}' in text
    assert '{"x":9}' in text


@pytest.mark.parametrize("bad", [{"x": "many"}, {}, {"x": 1, "y": 2}, None, [], "text", 0])
async def test_an_edited_input_that_does_not_fit_the_schema_is_refused_and_nothing_runs(bad: Any) -> None:
    gate = Gate()
    paused = await gate.pause()
    with pytest.raises(InvalidInput) as caught:
        await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], replace_input=bad))
    assert "gate" in str(caught.value)
    assert gate.runs == []
    assert gate.model.calls == 1
    await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], replace_input={"x": 2}))
    assert gate.runs == [(2, "")]


async def test_an_edited_input_may_be_a_model_instance() -> None:
    class Args(BaseModel):
        x: int

    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, restart=restart_tool(interrupt=paused.interrupts[0], replace_input=Args(x=5)))
    assert gate.runs == [(5, "")]


async def test_the_restart_of_another_tool_by_name_is_refused() -> None:
    gate = Gate()
    paused = await gate.pause()

    async def delete_everything() -> None: ...

    other = gate.ai.tool(delete_everything)
    with pytest.raises(ResumeError):
        await gate.resume(paused, restart=restart_tool(tool=other, interrupt=paused.interrupts[0]))
    assert gate.runs == []


@pytest.mark.parametrize("json", [False, True])
async def test_a_body_that_changes_its_input_does_not_change_what_a_restart_runs(json: bool) -> None:
    ai = Adjourn(model=ScriptedModel([call("t", {"lines": [{"n": 1}]}), "done"]))
    seen: list[Any] = []

    @ai.tool()
    async def t(lines: list[dict[str, Any]], ctx: ToolRunContext) -> None:
        seen.append(msgspec.json.decode(msgspec.json.encode(lines)))
        lines[0]["n"] = 1000
        lines.append({"n": 2})
        if not ctx.is_resumed():
            raise Interrupt("sure?")

    paused = await ai.generate("go", tools=[t])
    assert paused.interrupts[0].tool_request.input == {"lines": [{"n": 1}]}
    if json:
        messages = msgspec.json.decode(msgspec.json.encode(paused.messages), type=list[Message])
        answer = restart_tool(interrupt=messages[-1].content[0])
        await ai.generate(messages=messages, resume_restart=answer, tools=[t])
    else:
        await ai.generate(resume_restart=paused.interrupts[0].restart(), tools=[t])
    assert seen == [[{"n": 1}], [{"n": 1}]]


async def test_a_body_that_changes_any_typed_input_does_not_change_what_was_shown() -> None:
    ai = Adjourn(model=ScriptedModel([call("t", {"data": {"deep": [1]}}), "done"]))

    @ai.tool()
    async def t(data: Any) -> None:
        data["deep"].append(2)
        raise Interrupt("sure?")

    paused = await ai.generate("go", tools=[t])
    assert paused.interrupts[0].tool_request.input == {"data": {"deep": [1]}}


async def test_a_payload_is_what_it_was_at_the_raise() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))
    payload = {"n": [1]}

    @ai.tool()
    async def t() -> None:
        try:
            raise Interrupt(payload)
        finally:
            payload["n"].append(2)

    paused = await ai.generate("go", tools=[t])
    assert paused.interrupts[0].payload == {"n": [1]}


# -- idempotency key --------------------------------------------------------------------------------------------------


async def test_the_idempotency_key_is_equal_before_and_after_the_approval_of_one_call() -> None:
    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, restart=paused.interrupts[0].restart())
    before, after = gate.contexts
    assert before.idempotency_key
    assert before.idempotency_key == after.idempotency_key
    assert before.call_id == after.call_id


async def test_the_idempotency_key_is_new_for_an_edited_input() -> None:
    gate = Gate()
    paused = await gate.pause()
    await gate.resume(paused, restart=paused.interrupts[0].restart(replace_input={"x": 2}))
    before, after = gate.contexts
    assert before.idempotency_key != after.idempotency_key


async def test_two_calls_with_the_same_input_have_different_idempotency_keys() -> None:
    ai = Adjourn(model=ScriptedModel([[call("t"), call("t")], call("t"), "done"]))
    keys: list[str] = []

    @ai.tool()
    async def t(ctx: ToolRunContext) -> None:
        keys.append(ctx.idempotency_key)

    await ai.generate("go", tools=[t])
    assert len(set(keys)) == 3


# -- expiry -----------------------------------------------------------------------------------------------------------


async def test_an_approval_that_comes_after_the_expiry_does_not_run_the_tool() -> None:
    gate = Gate("?", expires_in=60)
    paused = await gate.pause()
    gate.clock.time += 61
    try:
        response = await gate.resume(paused, restart=paused.interrupts[0].restart())
    except ResumeError:
        pass
    else:
        assert "expired" in str(response.messages)
    assert gate.runs == []


async def test_an_approval_before_the_expiry_runs_the_tool() -> None:
    gate = Gate("?", expires_in=60)
    paused = await gate.pause()
    gate.clock.time += 59
    await gate.resume(paused, restart=paused.interrupts[0].restart())
    assert gate.runs == [(1, "")]
