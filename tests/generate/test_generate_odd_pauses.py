"""Pauses that are raised in odd places."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

from adjourn import (
    Adjourn,
    Interrupt,
    ToolFailed,
    respond_to_interrupt,
)
from adjourn.testing import ScriptedModel, call
from generate.failures_kit import output_of

# -- pauses from odd places -------------------------------------------------------------------------------------------


async def pause() -> None:
    raise Interrupt({"why": "odd place"})


async def nothing() -> None:
    return None


async def in_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(nothing())
        group.create_task(pause())


async def in_nested_task_groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(in_task_group())


async def in_gather() -> None:
    await asyncio.gather(nothing(), pause())


async def in_thread() -> None:
    def work() -> None:
        raise Interrupt({"why": "odd place"})

    await asyncio.to_thread(work)


async def in_executor() -> None:
    def work() -> None:
        raise Interrupt({"why": "odd place"})

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, work)


async def in_except_exception() -> None:
    try:
        await pause()
    except Exception as e:
        raise AssertionError("a pause was swallowed") from e


async def in_retry_decorator() -> None:
    for _ in range(3):
        try:
            return await pause()
        except Exception:
            await asyncio.sleep(0)
    return None


async def in_own_task() -> None:
    await asyncio.create_task(pause())


async def in_timeout() -> None:
    async with asyncio.timeout(60):
        await pause()


ODD = [
    in_task_group,
    in_nested_task_groups,
    in_gather,
    in_thread,
    in_executor,
    in_except_exception,
    in_retry_decorator,
    in_own_task,
    in_timeout,
]


@pytest.mark.parametrize("place", ODD)
@pytest.mark.parametrize("beside", [False, True])
async def test_an_interrupt_surfaces_as_a_pause_wherever_in_the_tool_it_is_raised(
    place: Callable[[], Any], beside: bool
) -> None:
    requests = [call("t"), *([call("other")] if beside else [])]
    model = ScriptedModel([requests, "done"])
    ai = Adjourn(model=model)
    cleaned: list[str] = []

    @ai.tool()
    async def t() -> str:
        try:
            await place()
        finally:
            cleaned.append("finally")
        return "unreachable"

    @ai.tool()
    async def other() -> str:
        return "fine"

    paused = await ai.generate("go", tools=[t, other])
    assert paused.finish_reason == "interrupted"
    assert [p.payload for p in paused.interrupts] == [{"why": "odd place"}]
    assert cleaned == ["finally"]
    response = await ai.generate(
        resume_respond=respond_to_interrupt("fixed", interrupt=paused.interrupts[0]), tools=[t, other]
    )
    assert response.text == "done"


async def test_an_interrupt_in_a_thread_of_a_sync_tool_surfaces_as_a_pause() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))

    def work() -> None:
        raise Interrupt("from a pool")

    @ai.tool()
    def t() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()

    paused = await ai.generate("go", tools=[t])
    assert [p.payload for p in paused.interrupts] == ["from a pool"]


async def test_an_error_beside_a_pause_in_a_group_wins_and_names_the_pause() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))

    async def fail() -> None:
        raise ValueError("the real trouble")

    @ai.tool()
    async def t() -> None:
        errors = await asyncio.gather(fail(), pause(), return_exceptions=True)
        raise BaseExceptionGroup("both", [e for e in errors if e is not None])

    with pytest.raises(ToolFailed) as caught:
        await ai.generate("go", tools=[t])
    cause: Any = caught.value.__cause__
    assert issubclass(type(cause), BaseExceptionGroup)
    assert cause.subgroup(ValueError) is not None
    assert cause.subgroup(Interrupt) is None
    everything = str(caught.value) + str(cause) + "".join(getattr(cause, "__notes__", []))
    assert "odd place" in everything
    assert caught.value.response.interrupts == []


async def test_the_error_beside_a_pause_of_a_tool_whose_errors_go_to_the_model_is_told() -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)

    @ai.tool(on_error="model")
    async def t() -> None:
        raise BaseExceptionGroup("both", [ValueError("the real trouble"), Interrupt("p")])

    assert (await ai.generate("go", tools=[t])).text == "done"


async def test_two_pauses_in_one_group_are_one_pause_of_the_call() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")]))

    @ai.tool()
    async def t() -> None:
        raise BaseExceptionGroup("both", [Interrupt("first"), Interrupt("second")])

    paused = await ai.generate("go", tools=[t])
    assert [p.payload for p in paused.interrupts] == ["first"]


async def test_a_pause_of_a_nested_generate_is_an_ordinary_response_to_the_tool_that_called_it() -> None:
    inner_model = ScriptedModel([call("inner")])
    ai = Adjourn(model=ScriptedModel([call("outer"), "done"]))

    @ai.tool()
    async def inner() -> str:
        raise Interrupt("inner pause")

    @ai.tool()
    async def outer() -> str:
        response = await ai.generate("nested", model=inner_model, tools=[inner])
        return f"{response.finish_reason}: {response.interrupts[0].payload}"

    response = await ai.generate("go", tools=[outer])
    assert response.finish_reason == "stop"
    assert output_of(response.messages[-2]) == "interrupted: inner pause"
