"""One decision wins, and a failure after an answer loses nothing."""

import asyncio
from typing import Any

import pytest

from adjourn import (
    Adjourn,
    AlreadyResolved,
    Interrupt,
    InvalidRequest,
    ModelError,
    ResumeError,
    ToolFailed,
    ToolRunContext,
    restart_tool,
)
from adjourn.testing import ScriptedModel, call
from generate.resumes_kit import ONE, TWO, App, cold, outputs_of

# -- one decision wins ------------------------------------------------------------------------------------------------


async def test_a_second_resume_is_told_that_the_first_was_accepted_and_the_tool_runs_once() -> None:
    app = App(ONE, "done", "done again")
    paused = await app.generate("go")
    [interrupt] = paused.interrupts
    await app.generate(messages=paused.messages, resume_restart=interrupt.restart({"by": "A"}))
    for again in (interrupt.restart({"by": "B"}), interrupt.restart({"by": "A"})):
        with pytest.raises(AlreadyResolved) as caught:
            await app.generate(messages=paused.messages, resume_restart=again)
        assert "A" in str(caught.value.decision)
    with pytest.raises(AlreadyResolved):
        await app.generate(messages=paused.messages, resume_respond=interrupt.respond("no"))
    assert app.ran == [1]
    assert app.model.calls == 2


async def test_of_many_simultaneous_resumes_one_wins_and_the_tool_runs_once() -> None:
    app = App(ONE, "done")
    app.hold = asyncio.Event()
    paused = await app.generate("go")
    [interrupt] = paused.interrupts
    tries = [
        asyncio.create_task(app.generate(messages=paused.messages, resume_restart=interrupt.restart({"by": i})))
        for i in range(20)
    ]
    await app.entered.wait()
    losers = await asyncio.gather(*(t for t in tries[1:]), return_exceptions=True)
    assert all(isinstance(e, AlreadyResolved) for e in losers)
    app.hold.set()
    assert (await tries[0]).text == "done"
    assert app.ran == [1]
    assert app.model.calls == 2


async def test_a_loser_of_simultaneous_resumes_is_told_the_accepted_decision() -> None:
    app = App(ONE, "done")
    app.hold = asyncio.Event()
    paused = await app.generate("go")
    [interrupt] = paused.interrupts
    winner = asyncio.create_task(app.generate(resume_restart=interrupt.restart({"by": "winner"})))
    await app.entered.wait()
    with pytest.raises(AlreadyResolved) as caught:
        await app.generate(resume_respond=interrupt.respond("no"))
    app.hold.set()
    await winner
    assert "winner" in str(caught.value.decision)


async def test_two_siblings_answered_at_the_same_time_both_count_or_the_loser_is_told() -> None:
    app = App([ONE, TWO], "done")
    paused = await app.generate("go")
    a, b = paused.interrupts
    results: list[Any] = list(
        await asyncio.gather(
            app.generate(resume_restart=a.restart()), app.generate(resume_restart=b.restart()), return_exceptions=True
        )
    )
    if any(isinstance(r, BaseException) for r in results):
        assert [isinstance(r, ResumeError) for r in results].count(True) == 1
        late = b if isinstance(results[1], BaseException) else a
        results.append(await app.generate(resume_restart=late.restart()))
    assert sorted(app.ran) == [1, 2]
    assert any(not isinstance(r, BaseException) and r.text == "done" for r in results)


# -- failures after an answer -----------------------------------------------------------------------------------------


async def test_a_failed_restart_leaves_the_pause_answerable_by_its_own_handle() -> None:
    app = App(ONE, "done", fail=1)
    paused = await app.generate("go")
    [interrupt] = paused.interrupts
    with pytest.raises(ToolFailed) as caught:
        await app.generate(messages=paused.messages, resume_restart=interrupt.restart())
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert [p.id for p in caught.value.response.interrupts] == [interrupt.id]
    response = await app.generate(messages=paused.messages, resume_respond=interrupt.respond({"by": "hand"}))
    assert response.text == "done"
    assert app.ran == [1]
    assert outputs_of(response.messages) == [{"by": "hand"}]


async def test_a_failed_restart_may_be_restarted_again() -> None:
    app = App(ONE, "done", fail=1)
    paused = await app.generate("go")
    with pytest.raises(ToolFailed):
        await app.generate(messages=paused.messages, resume_restart=paused.interrupts[0].restart())
    response = await app.generate(messages=paused.messages, resume_restart=paused.interrupts[0].restart())
    assert response.text == "done"
    assert app.ran == [1, 1]


async def test_a_failed_restart_is_answerable_from_the_errors_own_messages_in_another_process() -> None:
    app = App(ONE, fail=1)
    paused = await app.generate("go")
    with pytest.raises(ToolFailed) as caught:
        await app.generate(resume_restart=paused.interrupts[0].restart())
    messages = cold(caught.value.response.messages)
    other = App("done elsewhere")
    response = await other.generate(messages=messages, resume_restart=restart_tool(interrupt=messages[-1].content[0]))
    assert response.text == "done elsewhere"
    assert other.ran == [1]


async def test_a_restarted_tool_that_succeeded_is_not_run_again_because_its_sibling_failed() -> None:
    ai = Adjourn(model=ScriptedModel([[call("good"), call("bad")], "done"]))
    ran: list[str] = []

    @ai.tool()
    async def good(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt
        ran.append("good")
        return "g"

    @ai.tool()
    async def bad(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt
        ran.append("bad")
        if ran.count("bad") == 1:
            raise ConnectionError
        return "b"

    tools = [good, bad]
    paused = await ai.generate("go", tools=tools)
    a, b = paused.interrupts
    with pytest.raises(ToolFailed) as caught:
        await ai.generate(messages=paused.messages, resume_restart=[a.restart(), b.restart()], tools=tools)
    assert [p.id for p in caught.value.response.interrupts] == [b.id]
    response = await ai.generate(messages=paused.messages, resume_restart=b.restart(), tools=tools)
    assert response.text == "done"
    assert sorted(ran) == ["bad", "bad", "good"]
    assert outputs_of(response.messages) == ["g", "b"]


async def test_a_model_error_after_a_restart_is_retried_by_the_same_answer_without_running_the_tool_again() -> None:
    app = App(ONE, ConnectionError("503"), "done")
    paused = await app.generate("go")
    answer = restart_tool(tool=app.tools[0], interrupt=paused.interrupts[0])
    with pytest.raises(ModelError):
        await app.generate(messages=paused.messages, resume_restart=answer)
    response = await app.generate(messages=paused.messages, resume_restart=answer)
    assert response.text == "done"
    assert app.ran == [1]
    assert outputs_of(response.messages) == [{"ran": 1}]


async def test_a_model_error_after_a_restart_is_retried_from_the_errors_messages_in_another_process() -> None:
    app = App(ONE, ConnectionError("503"))
    paused = await app.generate("go")
    with pytest.raises(ModelError) as caught:
        await app.generate(resume_restart=paused.interrupts[0].restart())
    other = App("done elsewhere")
    response = await other.generate(messages=cold(caught.value.response.messages))
    assert response.text == "done elsewhere"
    assert app.ran == [1]
    assert other.ran == []


async def test_after_a_model_error_that_followed_a_restart_another_decision_is_refused() -> None:
    app = App(ONE, ConnectionError("503"), "done")
    paused = await app.generate("go")
    [interrupt] = paused.interrupts
    with pytest.raises(ModelError):
        await app.generate(resume_restart=interrupt.restart())
    with pytest.raises(AlreadyResolved):
        await app.generate(resume_respond=interrupt.respond("changed my mind"))
    assert (await app.generate(resume_restart=interrupt.restart())).text == "done"
    assert app.ran == [1]


async def test_a_model_error_after_a_response_leaves_the_answer_repeatable() -> None:
    app = App(ONE, ConnectionError("503"), "done")
    paused = await app.generate("go")
    answer = paused.interrupts[0].respond("by hand")
    with pytest.raises(ModelError):
        await app.generate(resume_respond=answer)
    response = await app.generate(messages=paused.messages, resume_respond=answer)
    assert response.text == "done"
    assert outputs_of(response.messages) == ["by hand"]


async def test_an_unknown_model_in_a_resume_leaves_the_pause_as_it_was() -> None:
    app = App(ONE, "done")
    paused = await app.generate("go")
    with pytest.raises(InvalidRequest):
        await app.generate(model="nobody/knows", resume_restart=paused.interrupts[0].restart())
    assert app.ran == []
    assert (await app.generate(resume_restart=paused.interrupts[0].restart())).text == "done"
