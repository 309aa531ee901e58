"""Edited inputs, the key of a run, and answers that come too late."""

from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from adjourn import (
    Adjourn,
    Interrupt,
    InvalidInput,
    Message,
    ResumeError,
    ToolRunContext,
    restart_tool,
)
from adjourn.testing import ScriptedModel, call
from generate.answers_kit import Gate

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
