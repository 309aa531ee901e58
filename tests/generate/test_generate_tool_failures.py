"""What becomes of a tool that raises, times out, or pauses from an odd place."""

import asyncio
import threading
from typing import Any

import pytest

from adjourn import (
    Adjourn,
    Backoff,
    Interrupt,
    LimitReached,
    Limits,
    NotJSON,
    ToolFailed,
    ToolRunContext,
    restart_tool,
)
from adjourn.errors import DefinitionError
from adjourn.testing import FakeClock, ScriptedModel, call
from generate.failures_kit import output_of

# -- on_error --------------------------------------------------------------------------------------------------------


async def test_by_default_an_error_fails_the_turn_and_everything_is_kept() -> None:
    model = ScriptedModel([["Let me see.", call("t")]])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t() -> str:
        raise LookupError("no such row")

    with pytest.raises(ToolFailed) as caught:
        await ai.generate("go", tools=[t])
    error = caught.value
    assert isinstance(error.__cause__, LookupError)
    assert error.tool == "t"
    assert "no such row" in str(error)
    assert error.response.finish_reason == "failed"
    assert [m.text for m in error.response.messages] == ["go", "Let me see."]


async def test_on_error_model_gives_the_error_to_the_model_as_the_tools_response() -> None:
    model = ScriptedModel([call("t"), "I see."])
    ai = Adjourn(model=model)

    @ai.tool(on_error="model")
    async def t() -> str:
        raise LookupError("no such row")

    response = await ai.generate("go", tools=[t])
    assert response.text == "I see."
    assert "no such row" in str(output_of(model.requests[1].messages[-1]))


async def test_on_error_interrupt_turns_the_exception_into_a_pause_that_describes_it() -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)
    runs = 0

    @ai.tool(on_error="interrupt")
    async def t(ctx: ToolRunContext) -> str:
        nonlocal runs
        runs += 1
        if not ctx.is_resumed():
            raise LookupError("no such row")
        return "found"

    paused = await ai.generate("go", tools=[t])
    assert paused.finish_reason == "interrupted"
    text = str(paused.interrupts[0].payload)
    assert "LookupError" in text
    assert "no such row" in text
    response = await ai.generate(resume_restart=restart_tool(interrupt=paused.interrupts[0]), tools=[t])
    assert response.text == "done"
    assert runs == 2
    assert output_of(model.requests[1].messages[-1]) == "found"


@pytest.mark.parametrize("bound", [0, 1, 3])
async def test_errors_that_go_to_the_model_are_bounded(bound: int) -> None:
    model = ScriptedModel([call("t")], repeat_last=True)
    ai = Adjourn(model=model)

    @ai.tool(on_error="model")
    async def t() -> str:
        raise LookupError("no")

    with pytest.raises(LimitReached) as caught:
        await ai.generate("go", tools=[t], limits=Limits(tool_errors=bound))
    assert caught.value.limit == "tool_errors"
    assert model.calls == bound + 1


async def test_drifting_arguments_do_not_get_round_the_bound_of_tool_errors() -> None:
    asked = 0

    def drift(_: Any) -> Any:
        nonlocal asked
        asked += 1
        return call("t", {"n": asked})

    ai = Adjourn(model=ScriptedModel([drift], repeat_last=True))

    @ai.tool(on_error="model")
    async def t(n: int) -> str:
        raise LookupError("no")

    with pytest.raises(LimitReached) as caught:
        await ai.generate("go", tools=[t])
    assert caught.value.limit == "tool_errors"
    assert asked == 4


# -- retries, back-off, timeout ---------------------------------------------------------------------------------------


class Flaky:
    """A tool that fails so many times; `attempts` is what its context said."""

    def __init__(self, failures: int, **options: Any) -> None:
        self.clock = FakeClock()
        self.attempts: list[int] = []
        self.keys: set[str] = set()
        self.ai = Adjourn(model=ScriptedModel([call("flaky"), "done"]), clock=self.clock)

        @self.ai.tool(**options)
        async def flaky(ctx: ToolRunContext) -> str:
            self.attempts.append(ctx.attempt)
            self.keys.add(ctx.idempotency_key)
            if len(self.attempts) <= failures:
                raise ConnectionError("reset")
            return "ok"

        self.tool = flaky

    async def run(self) -> Any:
        return await self.ai.generate("go", tools=[self.tool])


def half_a_second_each(failures: int) -> float:
    return failures * 0.5


@pytest.mark.parametrize(
    "backoff, slept",
    [
        (None, []),
        (1.0, [1, 2, 4]),
        (Backoff(base=2, factor=3, cap=10, jitter=False), [2, 6, 10]),
        (half_a_second_each, [0.5, 1.0, 1.5]),
    ],
)
async def test_retries_follow_each_other_with_the_backoff_between(backoff: Any, slept: list[float]) -> None:
    flaky = Flaky(3, retries=3, backoff=backoff)
    response = await flaky.run()
    assert response.text == "done"
    assert flaky.attempts == [1, 2, 3, 4]
    assert [s for s in flaky.clock.slept if s] == slept
    assert len(flaky.keys) == 1


async def test_jitter_keeps_each_delay_below_its_full_length() -> None:
    flaky = Flaky(5, retries=5, backoff=Backoff(base=1, factor=2, cap=8))
    await flaky.run()
    assert len(flaky.clock.slept) == 5
    assert all(0 < s <= full for s, full in zip(flaky.clock.slept, [1, 2, 4, 8, 8], strict=True))


async def test_retries_that_are_used_up_fail_with_the_last_error() -> None:
    flaky = Flaky(3, retries=2)
    with pytest.raises(ToolFailed) as caught:
        await flaky.run()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert flaky.attempts == [1, 2, 3]


async def test_only_what_is_left_after_the_retries_goes_to_the_model() -> None:
    flaky = Flaky(3, retries=2, on_error="model")
    response = await flaky.run()
    assert response.text == "done"
    assert flaky.attempts == [1, 2, 3]


def _no_delay(failures: int) -> Any:
    raise KeyError(failures)


def _no_number(failures: int) -> Any:
    return "soon"


@pytest.mark.parametrize("backoff", [_no_number, _no_delay])
async def test_a_backoff_that_fails_is_the_tools_failure(backoff: Any) -> None:
    flaky = Flaky(3, retries=2, backoff=backoff, on_error="model")
    response = await flaky.run()
    assert response.text == "done"
    assert flaky.attempts == [1]


async def test_a_pause_is_not_a_failure_and_is_not_retried() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]), clock=FakeClock())
    runs = 0

    @ai.tool(retries=5, backoff=1.0)
    async def t() -> str:
        nonlocal runs
        runs += 1
        raise Interrupt("sure?")

    paused = await ai.generate("go", tools=[t])
    assert paused.finish_reason == "interrupted"
    assert runs == 1


async def test_a_retry_may_end_in_a_pause() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))

    @ai.tool(retries=1)
    async def t(ctx: ToolRunContext) -> str:
        if ctx.attempt == 1:
            raise ConnectionError
        raise Interrupt({"attempt": ctx.attempt})

    paused = await ai.generate("go", tools=[t])
    assert [p.payload for p in paused.interrupts] == [{"attempt": 2}]


async def test_a_timeout_cancels_the_attempt_and_is_a_failure() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))
    cleaned: list[str] = []

    @ai.tool(timeout=0.01)
    async def t() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("yes")
        return "never"

    with pytest.raises(ToolFailed) as caught:
        await ai.generate("go", tools=[t])
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert cleaned == ["yes"]


async def test_the_timeout_holds_for_each_attempt() -> None:
    ai = Adjourn(model=ScriptedModel([call("t"), "done"]))

    @ai.tool(timeout=0.01, retries=1)
    async def t(ctx: ToolRunContext) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "second"

    assert (await ai.generate("go", tools=[t])).text == "done"


async def test_a_timeout_error_of_the_tools_own_is_an_error_like_any_other() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))

    @ai.tool(timeout=60)
    async def t() -> str:
        raise TimeoutError("the supplier did not answer")

    with pytest.raises(ToolFailed) as caught:
        await ai.generate("go", tools=[t])
    assert str(caught.value.__cause__) == "the supplier did not answer"


async def test_a_sync_tool_past_its_timeout_is_given_up_with_a_note_that_it_may_still_run() -> None:
    model = ScriptedModel([call("t"), "ok"])
    ai = Adjourn(model=model)
    release = threading.Event()

    @ai.tool(timeout=0.01, on_error="model")
    def t() -> str:
        release.wait(10)
        return "late"

    try:
        response = await ai.generate("go", tools=[t])
    finally:
        release.set()
    assert response.text == "ok"
    assert "may still" in str(output_of(model.requests[1].messages[-1]))
    assert "late" not in str(response.messages)


@pytest.mark.parametrize(
    "options", [{"on_error": "ignore"}, {"retries": -1}, {"timeout": 0}, {"approval": "yes"}, {"no_such_option": 1}]
)
def test_wrong_tool_options_are_refused_where_they_are_written(options: dict[str, Any]) -> None:
    ai = Adjourn()

    async def t() -> None: ...

    with pytest.raises((DefinitionError, TypeError)):
        ai.tool(**options)(t)
    assert ai.tools == {}


# -- sync tools -------------------------------------------------------------------------------------------------------


async def test_a_sync_tool_runs_in_a_thread_and_two_of_them_at_once() -> None:
    ai = Adjourn(model=ScriptedModel([[call("t"), call("t")], "done"]))
    meet = threading.Barrier(2, timeout=10)
    threads: set[int] = set()

    @ai.tool()
    def t() -> str:
        threads.add(threading.get_ident())
        meet.wait()
        return "ok"

    assert (await ai.generate("go", tools=[t])).text == "done"
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_a_sync_tool_pauses_and_restarts_like_any_other() -> None:
    ai = Adjourn(model=ScriptedModel([call("t", {"x": 1}), "done"]))
    runs: list[Any] = []

    @ai.tool()
    def t(x: int, ctx: ToolRunContext) -> int:
        if not ctx.is_resumed():
            raise Interrupt({"x": x})
        runs.append(ctx.resumed_metadata)
        return x

    paused = await ai.generate("go", tools=[t])
    assert paused.interrupts[0].payload == {"x": 1}
    response = await ai.generate(resume_restart=paused.interrupts[0].restart({"by": "me"}), tools=[t])
    assert response.text == "done"
    assert runs == [{"by": "me"}]


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {"a": [1, object()]}, {1: 2}])
async def test_a_result_that_is_no_json_fails_the_turn_naming_the_path(value: Any) -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))

    @ai.tool()
    async def t() -> Any:
        return value

    with pytest.raises(ToolFailed) as caught:
        await ai.generate("go", tools=[t])
    assert isinstance(caught.value.__cause__, NotJSON)
    assert caught.value.__cause__.path.startswith("$")


async def test_a_result_that_is_no_json_is_not_retried_because_the_work_was_done() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))
    runs = 0

    @ai.tool(retries=3)
    async def t() -> Any:
        nonlocal runs
        runs += 1
        return object()

    with pytest.raises(ToolFailed):
        await ai.generate("go", tools=[t])
    assert runs == 1


async def test_a_cancelled_error_that_the_tool_itself_made_is_a_failure_of_the_tool() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))

    @ai.tool()
    async def t() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    with pytest.raises(ToolFailed):
        await ai.generate("go", tools=[t])
