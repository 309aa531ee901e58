"""Abort is another thing than a pause: nothing is injected, the transcript stays sendable, the next message is taken."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from adjourn import AbortSignal, Adjourn, Interrupt, Message, ToolRunContext
from adjourn.model import ModelRequest
from adjourn.testing import FakeClock, ScriptedModel, call


def assert_sendable(messages: Sequence[Message]) -> None:
    waiting: list[Any] = []
    for message in messages:
        responses = [(p.tool_response.name, p.tool_response.ref) for p in message.content if p.tool_response]
        assert responses == waiting
        waiting = [(p.tool_request.name, p.tool_request.ref) for p in message.content if p.tool_request]
    assert waiting == []


class Slow:
    """A tool that starts and never ends by itself, and one that is quick."""

    def __init__(self, *replies: Any) -> None:
        self.started = asyncio.Event()
        self.cleaned: list[str] = []
        self.signals: list[AbortSignal] = []
        self.model = ScriptedModel(list(replies) or [[call("slow"), call("quick")], "next reply"])
        self.ai = Adjourn(model=self.model)
        self.quick_done = asyncio.Event()

        @self.ai.tool()
        async def slow(ctx: ToolRunContext) -> str:
            self.signals.append(ctx.abort_signal)
            await self.quick_done.wait()
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cleaned.append("slow")
            return "never"

        @self.ai.tool()
        async def quick() -> str:
            self.quick_done.set()
            return "quick result"

        self.tools = [slow, quick]

    def start(self, signal: AbortSignal | None = None) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.ai.generate("go", tools=self.tools, abort_signal=signal))


async def no_cancellation_is_left() -> None:
    """A cancellation that was left behind would be raised here, some rounds of the event loop later."""
    for _ in range(5):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_signal_cancels_the_tool_and_the_turn_ends_aborted() -> None:
    slow, signal = Slow(), AbortSignal()
    task = slow.start(signal)
    await slow.started.wait()
    signal.abort("the user left")
    response = await task
    assert response.finish_reason == "aborted"
    assert slow.cleaned == ["slow"]
    assert slow.model.calls == 1
    assert response.interrupts == []


async def test_no_result_is_injected_and_the_open_call_says_that_it_was_cancelled() -> None:
    slow, signal = Slow(), AbortSignal()
    task = slow.start(signal)
    await slow.started.wait()
    signal.abort("the user left")
    response = await task
    assert_sendable(response.messages)
    [open_call, finished] = response.messages[-1].content
    assert open_call.tool_response is not None
    assert "cancel" in msgspec.json.encode(open_call.tool_response.output).decode()
    assert finished.tool_response is not None
    assert finished.tool_response.output == "quick result"


async def test_the_next_message_is_taken_after_an_abort() -> None:
    slow, signal = Slow(), AbortSignal()
    task = slow.start(signal)
    await slow.started.wait()
    signal.abort()
    aborted = await task
    response = await slow.ai.generate("never mind", messages=aborted.messages, tools=slow.tools)
    assert response.text == "next reply"
    assert_sendable(slow.model.requests[1].messages)
    assert slow.model.requests[1].messages[-1].text == "never mind"


async def test_the_tool_sees_the_callers_signal() -> None:
    slow, signal = Slow(), AbortSignal()
    task = slow.start(signal)
    await slow.started.wait()
    assert slow.signals == [signal]
    assert not signal.aborted
    signal.abort("why")
    await task
    assert signal.aborted
    assert signal.reason == "why"


async def test_an_abort_during_the_model_call_ends_the_turn() -> None:
    asked = asyncio.Event()

    async def hang(_: ModelRequest) -> Any:
        asked.set()
        await asyncio.Event().wait()

    ai, signal = Adjourn(model=ScriptedModel([hang, "hello"])), AbortSignal()
    task = asyncio.create_task(ai.generate("go", abort_signal=signal))
    await asked.wait()
    signal.abort()
    response = await task
    assert response.finish_reason == "aborted"
    assert_sendable(response.messages)
    assert (await ai.generate("again", messages=response.messages)).text == "hello"


async def test_a_signal_that_was_aborted_before_lets_nothing_start() -> None:
    model, signal = ScriptedModel(["hello"]), AbortSignal()
    signal.abort("too late")
    response = await Adjourn(model=model).generate("go", abort_signal=signal)
    await no_cancellation_is_left()
    assert response.finish_reason == "aborted"
    assert model.calls == 0


@pytest.mark.parametrize("where", ["model", "tool"])
async def test_an_abort_from_inside_the_turn_ends_it_and_never_cancels_the_caller_afterwards(where: str) -> None:
    signal = AbortSignal()

    def reply(_: ModelRequest) -> Any:
        if where == "model":
            signal.abort("from the model")
        return call("t")

    ai = Adjourn(model=ScriptedModel([reply, "hello", "next"]))

    @ai.tool()
    async def t() -> str:
        if where == "tool":
            signal.abort("from the tool")
        return "ok"

    response = await ai.generate("go", tools=[t], abort_signal=signal)
    await no_cancellation_is_left()
    assert response.finish_reason == "aborted"
    assert_sendable(response.messages)


async def test_an_abort_after_the_end_changes_nothing_and_does_not_cancel_the_caller() -> None:
    signal = AbortSignal()
    ai = Adjourn(model=ScriptedModel(["one", "two"]))
    response = await ai.generate("go", abort_signal=signal)
    signal.abort()
    await asyncio.sleep(0)
    assert response.finish_reason == "stop"
    assert (await ai.generate("go")).text == "two"


async def test_a_second_abort_keeps_the_first_reason() -> None:
    signal = AbortSignal()
    signal.abort("first")
    signal.abort("second")
    assert signal.reason == "first"


async def test_an_abort_while_a_retry_waits_ends_the_turn() -> None:
    waiting = asyncio.Event()

    class HangingClock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

    ai, signal = Adjourn(model=ScriptedModel([call("t")]), clock=HangingClock()), AbortSignal()

    @ai.tool(retries=3, backoff=1.0)
    async def t() -> None:
        raise ConnectionError

    task = asyncio.create_task(ai.generate("go", tools=[t], abort_signal=signal))
    await waiting.wait()
    signal.abort()
    response = await task
    assert response.finish_reason == "aborted"
    assert_sendable(response.messages)


async def test_an_abort_is_not_retried_by_the_tools_own_policy() -> None:
    slow, signal = Slow(call("t"), "next"), AbortSignal()
    runs = 0
    started = asyncio.Event()

    @slow.ai.tool(retries=5, on_error="model")
    async def t() -> None:
        nonlocal runs
        runs += 1
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(slow.ai.generate("go", tools=[t], abort_signal=signal))
    await started.wait()
    signal.abort()
    assert (await task).finish_reason == "aborted"
    assert runs == 1


async def test_the_late_result_of_a_sync_tool_is_discarded_with_a_note_that_it_may_still_run() -> None:
    loop = asyncio.get_running_loop()
    started, release, ended = asyncio.Event(), threading.Event(), threading.Event()
    ai, signal = Adjourn(model=ScriptedModel([call("t")])), AbortSignal()

    @ai.tool()
    def t() -> str:
        loop.call_soon_threadsafe(started.set)
        release.wait(10)
        ended.set()
        return "late result"

    task = asyncio.create_task(ai.generate("go", tools=[t], abort_signal=signal))
    await started.wait()
    signal.abort()
    response = await task
    release.set()
    await asyncio.to_thread(ended.wait, 10)
    assert response.finish_reason == "aborted"
    text = msgspec.json.encode(response.messages[-1]).decode()
    assert "late result" not in text
    assert "cancel" in text
    assert "may still" in text


async def test_an_abort_closes_pauses_of_the_same_round_as_cancelled() -> None:
    slow, signal = Slow([call("gate"), call("slow"), call("quick")]), AbortSignal()

    @slow.ai.tool()
    async def gate() -> None:
        raise Interrupt("sure?")

    task = asyncio.create_task(slow.ai.generate("go", tools=[*slow.tools, gate], abort_signal=signal))
    await slow.started.wait()
    signal.abort()
    response = await task
    assert response.finish_reason == "aborted"
    assert response.interrupts == []
    assert_sendable(response.messages)


async def test_cancelling_the_task_cancels_the_tool_and_is_seen_by_the_caller() -> None:
    slow = Slow()
    task = slow.start()
    await slow.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert slow.cleaned == ["slow"]


async def test_cancelling_the_task_of_a_stream_ends_the_stream() -> None:
    slow, signal = Slow(), AbortSignal()
    handle = slow.ai.generate_stream("go", tools=slow.tools, abort_signal=signal)
    await slow.started.wait()
    signal.abort()
    _ = [chunk async for chunk in handle.stream]
    assert (await handle.response).finish_reason == "aborted"


async def test_a_timeout_around_generate_cancels_it() -> None:
    slow = Slow()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await slow.ai.generate("go", tools=slow.tools)
    assert slow.cleaned == ["slow"]


async def test_a_restart_that_is_aborted_does_not_count_as_done_and_never_runs_by_itself_again() -> None:
    ai, signal = Adjourn(model=ScriptedModel([call("t"), "next"])), AbortSignal()
    started = asyncio.Event()
    ran = 0

    @ai.tool()
    async def t(ctx: ToolRunContext) -> str:
        nonlocal ran
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        ran += 1
        started.set()
        await asyncio.Event().wait()
        return "never"

    paused = await ai.generate("go", tools=[t])
    task = asyncio.create_task(
        ai.generate(resume_restart=paused.interrupts[0].restart(), tools=[t], abort_signal=signal)
    )
    await started.wait()
    signal.abort()
    response = await task
    assert response.finish_reason == "aborted"
    assert_sendable(response.messages)
    assert (await ai.generate("go on", messages=response.messages, tools=[t])).text == "next"
    assert ran == 1
