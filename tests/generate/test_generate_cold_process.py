"""The messages are all the state there is: JSON, another process, another app, wire parts; provider extras come along."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from adjourn import (
    Adjourn,
    Answer,
    Interrupt,
    InvalidRequest,
    InvalidResponse,
    Media,
    Message,
    Part,
    ToolOutput,
    ToolRequest,
    ToolRequestPart,
    ToolResponse,
    ToolResponsePart,
    ToolRunContext,
    decline_interrupt,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.testing import ScriptedModel, call


def cold(messages: Sequence[Message]) -> list[Message]:
    return msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])


def wire(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def outputs_of(messages: Sequence[Message]) -> list[Any]:
    return [p.tool_response.output for m in messages if m.role == "tool" for p in m.content if p.tool_response]


class Process:
    """An application as one process has it; `log` outlives it."""

    def __init__(self, log: list[Any], *replies: Any) -> None:
        self.log = log
        self.model = ScriptedModel(list(replies))
        self.ai = Adjourn(model=self.model)

        @self.ai.tool()
        async def gate(x: int, ctx: ToolRunContext) -> Any:
            self.log.append(("gate", x, ctx.restarts, ctx.original_input, ctx.idempotency_key, ctx.call_id))
            if not ctx.is_resumed():
                raise Interrupt({"x": x}, response=None)
            return {"ran": x}

        @self.ai.tool()
        async def zero() -> int:
            self.log.append(("zero",))
            return 0

        @self.ai.tool()
        async def ask() -> Any:
            raise Interrupt("how many?", response=int, allow=("respond",))

        self.tools = [gate, zero, ask]

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.ai.generate(*args, tools=self.tools, **kwargs)


GATE = call("gate", {"x": 1}, ref="r1")


async def pause(*replies: Any) -> tuple[list[Any], list[Message]]:
    log: list[Any] = []
    response = await Process(log, *replies).generate("go")
    assert response.finish_reason == "interrupted"
    return log, cold(response.messages)


async def test_the_paused_message_has_the_genkit_wire_shape() -> None:
    _, messages = await pause([GATE, call("zero", {}, ref="r2")])
    data = wire(messages)
    assert [m["role"] for m in data] == ["user", "model"]
    first, second = data[1]["content"]
    assert first["toolRequest"] == {"name": "gate", "ref": "r1", "input": {"x": 1}}
    assert first["metadata"]["interrupt"] == {"x": 1}
    assert second["toolRequest"] == {"name": "zero", "ref": "r2", "input": {}}
    assert second["metadata"]["pendingOutput"] == 0


async def test_a_restart_in_another_process_runs_the_tool_once_and_its_sibling_not_again() -> None:
    log, messages = await pause([GATE, call("zero", {}, ref="r2")])
    other = Process(log, "done")
    part = messages[-1].content[0]
    response = await other.generate(
        messages=messages, resume_restart=restart_tool(interrupt=part, resumed_metadata={"ok": 1})
    )
    assert response.text == "done"
    assert [entry[0] for entry in log] == ["gate", "zero", "gate"]
    assert log[-1][2] == ({"ok": 1},)
    assert outputs_of(response.messages) == [{"ran": 1}, 0]


async def test_the_idempotency_key_and_call_id_are_the_same_in_another_process() -> None:
    log, messages = await pause(GATE)
    await Process(log, "done").generate(
        messages=messages, resume_restart=restart_tool(interrupt=messages[-1].content[0])
    )
    before, after = log
    assert before[4:] == after[4:]


async def test_the_restarts_so_far_travel_with_the_messages() -> None:
    ran: list[Any] = []

    def app(*replies: Any) -> tuple[Adjourn, Any]:
        ai = Adjourn(model=ScriptedModel(list(replies)))

        @ai.tool()
        async def staged(ctx: ToolRunContext) -> str:
            ran.append(ctx.restarts)
            if len(ctx.restarts) < 3:
                raise Interrupt({"stage": len(ctx.restarts)})
            return "ok"

        return ai, staged

    ai, staged = app(call("staged"))
    response = await ai.generate("go", tools=[staged])
    for i in range(3):
        messages = cold(response.messages)
        ai, staged = app("done")
        answer = restart_tool(interrupt=messages[-1].content[0], resumed_metadata={"i": i})
        response = await ai.generate(messages=messages, resume_restart=answer, tools=[staged])
    assert response.text == "done"
    assert ran[-1] == ({"i": 0}, {"i": 1}, {"i": 2})


async def test_an_edited_input_survives_a_second_pause_and_another_process() -> None:
    ran: list[Any] = []

    def app(*replies: Any) -> tuple[Adjourn, Any]:
        ai = Adjourn(model=ScriptedModel(list(replies)))

        @ai.tool()
        async def gate(x: int, ctx: ToolRunContext) -> str:
            ran.append((x, ctx.original_input))
            if len(ctx.restarts) < 2:
                raise Interrupt({"x": x})
            return "ok"

        return ai, gate

    ai, gate = app(call("gate", {"x": 1}))
    response = await ai.generate("go", tools=[gate])
    messages = cold(response.messages)
    ai, gate = app("done")
    answer = restart_tool(interrupt=messages[-1].content[0], replace_input={"x": 9})
    response = await ai.generate(messages=messages, resume_restart=answer, tools=[gate])
    messages = cold(response.messages)
    ai, gate = app("done")
    answer = restart_tool(interrupt=messages[-1].content[0])
    response = await ai.generate(messages=messages, resume_restart=answer, tools=[gate])
    assert response.text == "done"
    assert ran == [(1, {"x": 1}), (9, {"x": 1}), (9, {"x": 1})]


# -- wire parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["by hand", None, False, 0, "", [], {}, {"0" * 32: "grant"}])
async def test_a_wire_response_as_the_article_prints_it_settles_the_call(output: Any) -> None:
    log, messages = await pause(GATE)
    other = Process(log, "done")
    part = ToolResponsePart(tool_response=ToolResponse(name="gate", ref="r1", output=output))
    response = await other.generate(messages=messages, resume_respond=[part])
    assert response.text == "done"
    assert outputs_of(other.model.requests[0].messages) == [output]
    assert len(log) == 1


@pytest.mark.parametrize("resumed", [None, True, {"by": "eve"}, False, 0, "", []])
async def test_a_wire_restart_is_a_restart_bare_or_with_its_metadata(resumed: Any) -> None:
    log, messages = await pause(GATE)
    metadata = None if resumed is None else {"resumed": resumed}
    part = ToolRequestPart(tool_request=ToolRequest(name="gate", ref="r1", input={"x": 1}), metadata=metadata)
    response = await Process(log, "done").generate(
        messages=messages, resume_restart=cold([Message("user", [part])])[0].content[0]
    )
    assert response.text == "done"
    read: Any = {} if resumed is None or resumed is True else resumed
    assert repr(log[-1][2]) == repr((read,))


async def test_an_answer_can_be_made_into_its_wire_part_and_sent() -> None:
    builders: list[Callable[[Part], Answer]] = [
        lambda p: respond_to_interrupt({"a": 1}, interrupt=p),
        lambda p: restart_tool(interrupt=p, resumed_metadata={"by": "me"}),
        lambda p: restart_tool(interrupt=p, resumed_metadata=False),
        lambda p: restart_tool(interrupt=p, replace_input={"x": 4}),
        lambda p: decline_interrupt("no!", interrupt=p),
    ]
    for build in builders:
        log, messages = await pause(GATE)
        part = msgspec.json.decode(msgspec.json.encode(build(messages[-1].content[0]).part), type=Part)
        kind = "resume_respond" if part.tool_response is not None else "resume_restart"
        response = await Process(log, "done").generate(messages=messages, **{kind: part})
        assert response.text == "done"


async def test_a_wire_answer_is_matched_by_ref_when_two_calls_have_one_name() -> None:
    requests = [call("gate", {"x": 1}), call("gate", {"x": 1})]
    log, messages = await pause(requests)
    refs = [p.tool_request.ref for p in messages[-1].content if p.tool_request]
    assert len(set(refs)) == 2
    parts = [ToolResponsePart(tool_response=ToolResponse("gate", r, f"for {i}")) for i, r in enumerate(refs)]
    other = Process(log, "done")
    response = await other.generate(messages=messages, resume_respond=list(reversed(parts)))
    assert outputs_of(response.messages) == ["for 0", "for 1"]


async def test_partial_answers_travel_too() -> None:
    log, messages = await pause([call("gate", {"x": i}) for i in range(3)])
    for i in (1, 2, 0):
        part = next(p for p in messages[-1].content if (p.metadata or {}).get("interrupt") == {"x": i})
        other = Process(log, "done")
        response = await other.generate(messages=messages, resume_restart=restart_tool(interrupt=part))
        messages = cold(response.messages)
    assert response.text == "done"
    assert outputs_of(response.messages) == [{"ran": 0}, {"ran": 1}, {"ran": 2}]
    assert len(log) == 6


async def test_what_an_interrupt_declares_is_checked_in_another_process() -> None:
    log, messages = await pause(call("ask", {}, ref="r1"))
    other = Process(log, "done")
    part = messages[-1].content[0]
    with pytest.raises(InvalidResponse):
        await other.generate(messages=messages, resume_respond=respond_to_interrupt("many", interrupt=part))
    with pytest.raises(InvalidResponse):
        await other.generate(
            messages=messages, resume_respond=ToolResponsePart(tool_response=ToolResponse("ask", "r1", "many"))
        )
    with pytest.raises(InvalidRequest):
        await other.generate(messages=messages, resume_restart=restart_tool(interrupt=part))
    response = await other.generate(messages=messages, resume_respond=respond_to_interrupt(0, interrupt=part))
    assert response.text == "done"


async def test_a_paused_message_of_another_genkit_runtime_can_be_resumed() -> None:
    raw: list[Any] = [
        {"role": "user", "content": [{"text": "go"}]},
        {
            "role": "model",
            "content": [
                {
                    "toolRequest": {"ref": "r1", "name": "gate", "input": {"x": 1}},
                    "metadata": {"interrupt": {"why": "approve"}},
                },
                {"toolRequest": {"ref": "r2", "name": "zero", "input": {}}, "metadata": {"pendingOutput": 0}},
            ],
        },
    ]
    messages = msgspec.convert(raw, list[Message])
    log: list[Any] = []
    other = Process(log, "done")
    part = ToolRequestPart(tool_request=ToolRequest("gate", "r1", {"x": 1}), metadata={"resumed": {"ok": 1}})
    response = await other.generate(messages=messages, resume_restart=part)
    assert response.text == "done"
    assert [entry[0] for entry in log] == ["gate"]
    assert outputs_of(response.messages) == [{"ran": 1}, 0]


@pytest.mark.parametrize("ref", [None, "r1"])
async def test_a_paused_message_of_another_runtime_can_be_answered_through_its_own_part(ref: str | None) -> None:
    request = {"name": "gate", "input": {"x": 1}} | ({"ref": ref} if ref else {})
    raw: list[Any] = [
        {"role": "user", "content": [{"text": "go"}]},
        {
            "role": "model",
            "content": [
                {"text": "one moment"},
                {"toolRequest": request, "metadata": {"interrupt": True}},
            ],
        },
    ]
    messages = msgspec.convert(raw, list[Message])
    response = await Process([], "done").generate(
        messages=messages, resume_respond=respond_to_interrupt("ok", interrupt=messages[-1].content[1])
    )
    assert response.text == "done"
    assert outputs_of(response.messages) == ["ok"]


async def test_a_picture_that_a_finished_sibling_returned_waits_beside_the_pause() -> None:
    def app(*replies: Any) -> tuple[Adjourn, ScriptedModel, list[Any]]:
        model = ScriptedModel(list(replies))
        ai = Adjourn(model=model)

        @ai.tool()
        async def draw() -> ToolOutput:
            picture = Part(media=Media("data:image/png;base64,AA==", "image/png"))
            return ToolOutput({"w": 1}, content=[picture], metadata={"cost": 3})

        @ai.tool()
        async def ask() -> None:
            raise Interrupt("?")

        return ai, model, [draw, ask]

    ai, _, tools = app([call("draw"), call("ask")])
    paused = await ai.generate("go", tools=tools)
    messages = cold(paused.messages)
    ai, model, tools = app("done")
    answer = respond_to_interrupt("x", interrupt=messages[-1].content[1])
    await ai.generate(messages=messages, resume_respond=answer, tools=tools)
    part = model.requests[0].messages[-1].content[0]
    assert part.tool_response is not None
    assert part.tool_response.output == {"w": 1}
    assert part.tool_response.content is not None
    assert part.tool_response.content[0].media == Media("data:image/png;base64,AA==", "image/png")
    assert (part.metadata or {})["cost"] == 3


# -- provider extras --------------------------------------------------------------------------------------------------

EXTRAS = Message(
    "model",
    [
        Part(reasoning="", metadata={"signature": "c2lnLWVtcHR5"}),
        Part(reasoning="I should check.", metadata={"encryptedContent": "éß\u0000\n+/=="}),
        Part(custom={"redactedThinking": {"data": "AAEC"}}),
        Part(text="One moment."),
        call("gate", {"x": 1}, ref="r1", metadata={"thoughtSignature": "Ab+/==", "nested": {"deep": [1, None, ""]}}),
        call("gate", {"x": 2}, ref="r2"),
        call("zero", {}, ref="r3", metadata={"vendor": {"interrupt-like": False}}),
        Part(text="", metadata={"thoughtSignature": "trailing"}),
    ],
    metadata={"responseId": "resp_1", "items": [{"id": "rs_1"}]},
)
OURS = {"adjourn", "interrupt", "resolvedInterrupt", "pendingOutput", "pendingContent"}


def bare(part: Part) -> Any:
    """A part without what Adjourn and the Genkit protocol add."""
    metadata = {k: v for k, v in (part.metadata or {}).items() if k not in OURS}
    return wire(msgspec.structs.replace(part, metadata=metadata or None))


async def test_provider_extras_survive_a_turn_without_a_pause_exactly() -> None:
    message = Message("model", [p for p in EXTRAS.content if p.tool_request is None or p.tool_request.name == "zero"])
    process = Process([], message, "done")
    await process.generate("go")
    assert wire(process.model.requests[1].messages[1].content) == wire(message.content)


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("verb", ["respond", "restart"])
async def test_provider_extras_stay_on_their_parts_through_pause_json_and_resume(json: bool, verb: str) -> None:
    log: list[Any] = []
    process = Process(log, EXTRAS)
    paused = await process.generate("go")
    messages = cold(paused.messages) if json else list(paused.messages)
    assert [bare(p) for p in messages[-1].content] == wire(EXTRAS.content)
    # One is answered first, so that the extras go through a partly answered round too.
    first, second = [p for p in messages[-1].content if "interrupt" in (p.metadata or {})]
    process = Process(log, "done")
    partly = await process.generate(messages=messages, resume_respond=respond_to_interrupt("x", interrupt=first))
    assert partly.finish_reason == "interrupted"
    messages = cold(partly.messages) if json else list(partly.messages)
    [second] = [p for p in messages[-1].content if "interrupt" in (p.metadata or {})]
    if verb == "respond":
        response = await process.generate(messages=messages, resume_respond=respond_to_interrupt("y", interrupt=second))
    else:
        response = await process.generate(messages=messages, resume_restart=restart_tool(interrupt=second))
    assert response.text == "done"
    sent = process.model.requests[0].messages[1]
    assert [bare(p) for p in sent.content] == wire(EXTRAS.content)
    assert wire({k: v for k, v in (sent.metadata or {}).items() if k != "adjourn"}) == wire(EXTRAS.metadata)
    stored = cold(response.messages)[1]
    assert [bare(p) for p in stored.content] == wire(EXTRAS.content)


async def test_what_provider_extras_a_response_carried_is_never_put_on_another_part() -> None:
    log: list[Any] = []
    process = Process(log, EXTRAS, "done")
    paused = await process.generate("go")
    response = await process.generate(resume_respond=[p.respond("x") for p in paused.interrupts])
    tool_message = next(m for m in response.messages if m.role == "tool")
    text = msgspec.json.encode(tool_message).decode()
    assert "thoughtSignature" not in text
    assert "Ab+/==" not in text


async def test_what_was_added_for_the_pause_is_gone_from_what_the_model_sees() -> None:
    process = Process([], EXTRAS, "done")
    paused = await process.generate("go")
    await process.generate(resume_respond=[p.respond("x") for p in paused.interrupts])
    for message in process.model.requests[1].messages:
        for part in message.content:
            assert not {"interrupt", "pendingOutput"} & set(part.metadata or {})


async def test_extras_of_an_empty_closing_text_are_kept() -> None:
    last = Message("model", [Part(text="", metadata={"thoughtSignature": "last"})])
    process = Process([], last, "next")
    first = await process.generate("go")
    await process.generate("more", messages=cold(first.messages))
    assert wire(process.model.requests[1].messages[1]) == wire(last)
