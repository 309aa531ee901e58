"""Resumes that do not fit are refused by their own errors, change nothing, and an accepted one counts once."""

from typing import Any

import pytest

from adjourn import (
    Adjourn,
    EmptyResume,
    HistoryMismatch,
    Interrupt,
    InvalidRequest,
    InvalidResponse,
    Message,
    ModifiedInput,
    NothingPaused,
    Part,
    ResumeError,
    StaleInterrupt,
    ToolGone,
    ToolRequest,
    ToolRequestPart,
    ToolResponse,
    ToolResponsePart,
    ToolRunContext,
    UnknownInterrupt,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.errors import DefinitionError
from adjourn.testing import ScriptedModel, call
from generate.resumes_kit import ONE, TWO, App, cold, outputs_of

# -- nothing to resume ------------------------------------------------------------------------------------------------


async def test_messages_that_end_in_no_pause_are_refused_with_the_advice_to_pass_the_responses_messages() -> None:
    app = App(ONE, "done")
    wire = ToolResponsePart(tool_response=ToolResponse("gate", "r1", "x"))
    with pytest.raises(NothingPaused) as caught:
        await app.generate(messages=[Message("user", [Part(text="hi")])], resume_respond=wire)
    assert "response.messages" in str(caught.value)
    assert app.model.calls == 0


async def test_an_answer_that_was_used_up_does_not_resume_a_finished_conversation() -> None:
    app = App(ONE, "done", "again")
    paused = await app.generate("go")
    done = await app.generate(resume_restart=paused.interrupts[0].restart())
    with pytest.raises(ResumeError):
        await app.generate(messages=done.messages, resume_restart=paused.interrupts[0].restart())
    with pytest.raises(ResumeError):
        await app.generate(messages=cold(done.messages), resume_restart=paused.interrupts[0].restart())
    assert app.ran == [1]


async def test_a_wire_part_without_messages_cannot_know_its_conversation() -> None:
    app = App(ONE)
    with pytest.raises(HistoryMismatch) as caught:
        await app.generate(resume_respond=ToolResponsePart(tool_response=ToolResponse("gate", "r1", "x")))
    assert "response.messages" in str(caught.value)


@pytest.mark.parametrize("respond, restart", [([], None), (None, []), ([], [])])
async def test_a_resume_without_a_decision_is_refused_and_the_model_is_not_called(respond: Any, restart: Any) -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    with pytest.raises(EmptyResume):
        await app.generate(messages=paused.messages, resume_respond=respond, resume_restart=restart)
    assert app.model.calls == 1
    assert (await app.generate(resume_respond=paused.interrupts[0].respond("x"))).text == "done"


async def test_paused_messages_without_a_resume_are_refused() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    with pytest.raises(InvalidRequest) as caught:
        await app.generate(messages=paused.messages)
    assert "resume_respond" in str(caught.value)
    assert app.model.calls == 1


async def test_a_new_prompt_after_paused_messages_is_refused_and_the_pause_is_kept() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    with pytest.raises(InvalidRequest):
        await app.generate("never mind", messages=paused.messages)
    assert app.model.calls == 1
    assert (await app.generate(resume_respond=paused.interrupts[0].respond("x"))).text == "done"


async def test_a_prompt_together_with_a_resume_is_refused() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    with pytest.raises((InvalidRequest, DefinitionError)):
        await app.generate("and more", messages=paused.messages, resume_respond=paused.interrupts[0].respond("x"))
    assert (await app.generate(resume_respond=paused.interrupts[0].respond("x"))).text == "done"


async def test_another_history_is_refused_with_the_advice_to_pass_the_responses_messages() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    other = [Message("user", [Part(text="something else")])]
    with pytest.raises(HistoryMismatch) as caught:
        await app.generate(messages=other, resume_respond=paused.interrupts[0].respond("x"))
    assert "response.messages" in str(caught.value)
    longer = [*paused.messages, Message("user", [Part(text="more")])]
    with pytest.raises(ResumeError):
        await app.generate(messages=longer, resume_respond=paused.interrupts[0].respond("x"))
    assert app.model.calls == 1
    assert (await app.generate(resume_respond=paused.interrupts[0].respond("x"))).text == "done"


async def test_answers_of_two_conversations_cannot_be_mixed() -> None:
    app = App(ONE, ONE, "done")
    a, b = await app.generate("a"), await app.generate("b")
    with pytest.raises(ResumeError):
        await app.generate(resume_restart=[a.interrupts[0].restart(), b.interrupts[0].restart()])
    assert app.ran == []


async def test_an_answer_to_one_conversation_with_the_messages_of_another_runs_nothing() -> None:
    app = App(ONE, TWO, "done")
    a, b = await app.generate("a"), await app.generate("b")
    with pytest.raises(HistoryMismatch):
        await app.generate(messages=b.messages, resume_restart=a.interrupts[0].restart())
    assert app.ran == []


# -- unknown, stale, answered -----------------------------------------------------------------------------------------


async def test_an_unknown_wire_answer_is_refused_and_nothing_runs() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    for name, ref in (("gate", "never"), ("other", "r1"), ("other", None)):
        with pytest.raises(UnknownInterrupt):
            await app.generate(
                messages=cold(paused.messages),
                resume_respond=ToolResponsePart(tool_response=ToolResponse(name, ref, "x")),
            )
    assert app.model.calls == 1
    assert app.ran == []


async def test_an_answer_to_an_older_model_message_is_stale_and_never_reaches_the_newer_pause() -> None:
    app = App(ONE, TWO, "done")
    first = await app.generate("go")
    second = await app.generate(
        messages=cold(first.messages), resume_restart=restart_tool(interrupt=first.messages[-1].content[0])
    )
    assert [p.tool_request.ref for p in second.interrupts] == ["r2"]
    old = ToolResponsePart(tool_response=ToolResponse("gate", "r1", "late"))
    with pytest.raises(StaleInterrupt):
        await app.generate(messages=cold(second.messages), resume_respond=old)
    restart_old = ToolRequestPart(tool_request=ToolRequest("gate", "r1", {"x": 1}), metadata={"resumed": True})
    with pytest.raises(StaleInterrupt):
        await app.generate(messages=cold(second.messages), resume_restart=restart_old)
    assert app.ran == [1]
    last = await app.generate(
        messages=cold(second.messages), resume_restart=restart_tool(interrupt=second.messages[-1].content[0])
    )
    assert last.text == "done"
    assert app.ran == [1, 2]


async def test_an_old_handle_does_not_answer_the_newer_pause_of_the_same_conversation() -> None:
    app = App(ONE, TWO, "done")
    first = await app.generate("go")
    second = await app.generate(resume_restart=first.interrupts[0].restart())
    assert second.finish_reason == "interrupted"
    with pytest.raises(ResumeError):
        await app.generate(messages=second.messages, resume_restart=first.interrupts[0].restart())
    assert app.ran == [1]


async def test_a_batch_with_two_decisions_on_one_interrupt_is_refused_as_a_whole() -> None:
    app = App([ONE, TWO], "done")
    paused = await app.generate("go")
    a, b = paused.interrupts
    for twice in ([a.restart(), a.restart()], [b.restart(), a.restart(), a.respond("x")]):
        with pytest.raises(ResumeError):
            await app.generate(messages=paused.messages, resume_restart=twice)
    with pytest.raises(ResumeError):
        await app.generate(resume_respond=a.respond("x"), resume_restart=a.restart())
    assert app.ran == []
    assert (await app.generate(resume_restart=[a.restart(), b.restart()])).text == "done"
    assert sorted(app.ran) == [1, 2]


async def test_a_batch_with_one_invalid_decision_applies_none_of_them() -> None:
    ai = Adjourn(model=ScriptedModel([[call("gate", {"n": 1}), call("ask")], "done"]))
    ran: list[int] = []

    @ai.tool()
    async def gate(n: int, ctx: ToolRunContext) -> int:
        if not ctx.is_resumed():
            raise Interrupt
        ran.append(n)
        return n

    @ai.tool()
    async def ask() -> int:
        raise Interrupt("how many?", response=int)

    paused = await ai.generate("go", tools=[gate, ask])
    a, b = paused.interrupts
    with pytest.raises(InvalidResponse):
        await ai.generate(resume_restart=a.restart(), resume_respond=b.respond("lots"), tools=[gate, ask])
    assert ran == []
    response = await ai.generate(resume_restart=a.restart(), resume_respond=b.respond(3), tools=[gate, ask])
    assert response.text == "done"
    assert ran == [1]
    assert outputs_of(response.messages) == [1, 3]


@pytest.mark.parametrize("junk", ["yes", 7, {"output": 1}, [None], object()])
async def test_what_is_no_decision_is_refused(junk: Any) -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    with pytest.raises((InvalidRequest, TypeError)):
        await app.generate(messages=paused.messages, resume_respond=junk)
    assert app.model.calls == 1


@pytest.mark.parametrize("junk", [None, "i_1", 7, Part(text="hi")])
def test_an_interrupt_argument_that_is_none_is_refused(junk: Any) -> None:
    with pytest.raises((DefinitionError, InvalidRequest)):
        respond_to_interrupt("x", interrupt=junk)
    with pytest.raises((DefinitionError, InvalidRequest)):
        restart_tool(interrupt=junk)


# -- forged and impossible restarts -----------------------------------------------------------------------------------


async def test_a_wire_restart_with_other_input_is_refused_as_modified_and_does_not_run() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    forged = ToolRequestPart(tool_request=ToolRequest("gate", "r1", {"x": 1000}), metadata={"resumed": True})
    with pytest.raises(ModifiedInput) as caught:
        await app.generate(messages=paused.messages, resume_restart=forged)
    assert "modified inputs" in str(caught.value)
    wrong_original = ToolRequestPart(
        tool_request=ToolRequest("gate", "r1", {"x": 1000}), metadata={"replacedInput": {"x": 999}}
    )
    with pytest.raises(ModifiedInput):
        await app.generate(messages=paused.messages, resume_restart=wrong_original)
    assert app.ran == []
    honest = ToolRequestPart(tool_request=ToolRequest("gate", "r1", {"x": 5}), metadata={"replacedInput": {"x": 1}})
    assert (await app.generate(messages=paused.messages, resume_restart=honest)).text == "done"
    assert app.ran == [5]


async def test_a_restart_without_its_tool_is_refused_and_stays_answerable() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    other = Adjourn(model=ScriptedModel(["done elsewhere"]))
    messages = cold(paused.messages)
    with pytest.raises(ToolGone) as caught:
        await other.generate(messages=messages, resume_restart=restart_tool(interrupt=messages[-1].content[0]))
    assert "gate" in str(caught.value)
    response = await other.generate(
        messages=messages, resume_respond=respond_to_interrupt("by hand", interrupt=messages[-1].content[0])
    )
    assert response.text == "done elsewhere"


async def test_a_restart_of_a_tool_whose_schema_changed_is_refused_and_stays_answerable() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    other = Adjourn(model=ScriptedModel(["done elsewhere"]))
    ran: list[Any] = []

    @other.tool()
    async def gate(x: int, force: bool) -> None:
        ran.append((x, force))

    messages = cold(paused.messages)
    with pytest.raises(ResumeError):
        await other.generate(
            messages=messages, resume_restart=restart_tool(interrupt=messages[-1].content[0]), tools=[gate]
        )
    assert ran == []
    answer = respond_to_interrupt("by hand", interrupt=messages[-1].content[0])
    response = await other.generate(messages=messages, resume_respond=answer, tools=[gate])
    assert response.text == "done elsewhere"


async def test_a_paused_call_given_as_its_own_answer_is_refused_with_the_three_answers() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    given: Any = paused.interrupts[0]
    for name in ("resume_respond", "resume_restart"):
        with pytest.raises(ResumeError, match=r"restart_tool\(\.\.\.\)"):
            await app.generate(**{name: given})
    assert (await app.generate(resume_restart=given.restart())).text == "done"
