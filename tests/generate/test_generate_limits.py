"""Every loop is bounded, and the counts survive pauses and processes."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from adjourn import (
    Adjourn,
    Interrupt,
    LimitReached,
    Limits,
    Message,
    Part,
    ToolRunContext,
    Usage,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.errors import AdjournError, VerbNotAllowed
from adjourn.model import ModelReply, ModelRequest
from adjourn.testing import FakeClock, ScriptedModel, call


def cold(messages: Sequence[Message]) -> list[Message]:
    return msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])


def warm(messages: Sequence[Message]) -> list[Message]:
    return list(messages)


def open_parts(messages: Sequence[Message]) -> list[Part]:
    return [p for p in messages[-1].content if p.tool_request is not None and "interrupt" in (p.metadata or {})]


def assert_sendable(messages: Sequence[Message]) -> None:
    waiting: list[Any] = []
    for message in messages:
        responses = [(p.tool_response.name, p.tool_response.ref) for p in message.content if p.tool_response]
        assert responses == waiting
        waiting = [(p.tool_request.name, p.tool_request.ref) for p in message.content if p.tool_request]
    assert waiting == []


ways = pytest.mark.parametrize("carry", [warm, cold])
Carry = Callable[[Sequence[Message]], list[Message]]


class Loop:
    """A model that never stops calling `step`; with each call a new number, if told so."""

    def __init__(self, *, vary: bool = True, pause: bool = False, clock: FakeClock | None = None) -> None:
        self.asked = 0
        self.ran = 0
        self.vary = vary
        self.clock = clock or FakeClock()
        self.pause = pause

    def app(self) -> tuple[Adjourn, Any]:
        """A new application, as another process would have it."""

        def reply(_: ModelRequest) -> Any:
            self.asked += 1
            return call("step", {"n": self.asked if self.vary else 0})

        ai = Adjourn(model=ScriptedModel([reply], repeat_last=True), clock=self.clock)

        @ai.tool()
        async def step(n: int, ctx: ToolRunContext) -> str:
            self.ran += 1
            self.clock.time += 1
            if self.pause and not ctx.is_resumed():
                raise Interrupt({"n": n})
            return f"result {self.ran}"

        return ai, step

    async def until_the_limit(self, limits: Limits, carry: Carry, *, between: float = 0.0) -> tuple[LimitReached, int]:
        """The error, and how many rounds of decisions were made."""
        rounds = 0

        async def run() -> None:
            nonlocal rounds
            ai, step = self.app()
            response = await ai.generate("go", tools=[step], limits=limits)
            while rounds < 100:
                rounds += 1
                self.clock.time += between
                messages = carry(response.messages)
                ai, step = self.app()
                answers = [restart_tool(interrupt=p) for p in open_parts(messages)]
                response = await ai.generate(messages=messages, resume_restart=answers, tools=[step], limits=limits)

        with pytest.raises(LimitReached) as caught:
            await run()
        assert_sendable(caught.value.response.messages)
        assert caught.value.response.limit == caught.value.limit
        assert caught.value.response.finish_reason == "failed"
        return caught.value, rounds


NONE = Limits(
    model_calls=None,
    cycles=None,
    restarts=None,
    repeats=None,
    argument_errors=None,
    tool_errors=None,
    output_errors=None,
    identical_calls=None,
)


def only(**bounds: Any) -> Limits:
    return msgspec.structs.replace(NONE, **bounds)


def test_the_defaults_are_on() -> None:
    limits = Limits()
    assert (limits.model_calls, limits.cycles, limits.restarts, limits.repeats) == (50, 10, 5, 2)
    assert (limits.argument_errors, limits.tool_errors, limits.output_errors) == (2, 3, 2)
    assert (limits.total_tokens, limits.seconds) == (None, None)


@pytest.mark.parametrize("bounds", [{"cycles": -1}, {"model_calls": "many"}, {"seconds": -0.5}, {"repeats": True}])
def test_a_bound_that_is_no_number_of_zero_or_more_is_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises((AdjournError, ValueError, TypeError)):
        Limits(**bounds)


@pytest.mark.parametrize("bound", [1, 3, 50])
async def test_model_calls_are_bounded_exactly(bound: int) -> None:
    loop = Loop()
    error, _ = await loop.until_the_limit(only(model_calls=bound), warm)
    assert error.limit == "model_calls"
    assert loop.asked == bound
    assert error.response.messages[0].text == "go"
    assert sum(m.role == "model" for m in error.response.messages) == bound


async def test_no_model_is_called_where_none_may_be() -> None:
    model = ScriptedModel(["hi"])
    with pytest.raises(LimitReached):
        await Adjourn(model=model).generate("go", limits=Limits(model_calls=0))
    assert model.calls == 0


async def test_a_turn_that_ends_on_its_last_allowed_call_is_no_failure() -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t() -> None: ...

    assert (await ai.generate("go", tools=[t], limits=Limits(model_calls=2))).text == "done"


@ways
async def test_model_calls_are_counted_through_pauses(carry: Carry) -> None:
    loop = Loop(pause=True)
    error, rounds = await loop.until_the_limit(only(model_calls=4), carry)
    assert error.limit == "model_calls"
    assert loop.asked == 4
    assert rounds == 4


@ways
@pytest.mark.parametrize("bound", [0, 1, 3])
async def test_cycles_bound_the_rounds_of_decisions(carry: Carry, bound: int) -> None:
    loop = Loop(pause=True)
    error, rounds = await loop.until_the_limit(only(cycles=bound), carry)
    assert error.limit == "cycles"
    assert rounds == bound
    assert_sendable(error.response.messages)


@ways
async def test_ten_approvals_at_once_are_one_cycle_also_when_they_are_given_one_by_one(carry: Carry) -> None:
    batch = [call("gate", {"n": i}) for i in range(10)]
    model = ScriptedModel([batch, batch, "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def gate(n: int, ctx: ToolRunContext) -> int:
        if not ctx.is_resumed():
            raise Interrupt({"n": n})
        return n

    limits = only(cycles=2)
    response = await ai.generate("go", tools=[gate], limits=limits)
    messages = carry(response.messages)
    response = await ai.generate(
        messages=messages,
        resume_restart=[restart_tool(interrupt=p) for p in open_parts(messages)],
        tools=[gate],
        limits=limits,
    )
    while response.interrupts:
        messages = carry(response.messages)
        answer = restart_tool(interrupt=open_parts(messages)[0])
        response = await ai.generate(messages=messages, resume_restart=answer, tools=[gate], limits=limits)
    assert response.text == "done"


@ways
@pytest.mark.parametrize("bound", [1, 3])
async def test_restarts_of_one_call_are_bounded(carry: Carry, bound: int) -> None:
    ran = 0

    def app() -> tuple[Adjourn, Any]:
        ai = Adjourn(model=ScriptedModel([call("again", ref="r")]))

        @ai.tool()
        async def again() -> None:
            nonlocal ran
            ran += 1
            raise Interrupt({"ran": ran})

        return ai, again

    restarted = 0

    async def run() -> None:
        nonlocal restarted
        ai, again = app()
        response = await ai.generate("go", tools=[again], limits=only(restarts=bound))
        while restarted < 100:
            restarted += 1
            messages = carry(response.messages)
            ai, again = app()
            response = await ai.generate(
                messages=messages,
                resume_restart=restart_tool(interrupt=open_parts(messages)[0]),
                tools=[again],
                limits=only(restarts=bound),
            )

    with pytest.raises(LimitReached) as caught:
        await run()
    assert caught.value.limit == "restarts"
    assert restarted == bound
    assert ran == bound + 1
    assert_sendable(caught.value.response.messages)


async def test_without_any_restarts_a_pause_can_still_be_answered_but_not_sent_round_again() -> None:
    ai = Adjourn(model=ScriptedModel([call("gate"), "done"]))

    @ai.tool()
    async def gate() -> None:
        raise Interrupt("?")

    paused = await ai.generate("go", tools=[gate], limits=only(restarts=0))
    with pytest.raises(VerbNotAllowed):
        await ai.generate(resume_restart=paused.interrupts[0].restart(), limits=only(restarts=0))
    done = await ai.generate(resume_respond=paused.interrupts[0].respond(1), limits=only(restarts=0))
    assert done.text == "done"


async def test_restarts_are_counted_for_each_call_by_itself() -> None:
    ai = Adjourn(model=ScriptedModel([[call("gate"), call("gate")], "done"]))

    @ai.tool()
    async def gate(ctx: ToolRunContext) -> None:
        if len(ctx.restarts) < 2:
            raise Interrupt({"stage": len(ctx.restarts)})

    limits = Limits(restarts=2)
    response = await ai.generate("go", tools=[gate], limits=limits)
    while response.interrupts:
        response = await ai.generate(resume_restart=response.interrupts[-1].restart(), tools=[gate], limits=limits)
    assert response.text == "done"


@ways
@pytest.mark.parametrize("bound", [0, 1, 3])
async def test_the_same_pause_may_come_back_so_often_and_no_more(carry: Carry, bound: int) -> None:
    loop = Loop(vary=False, pause=True)
    error, rounds = await loop.until_the_limit(only(repeats=bound), carry)
    assert error.limit == "repeats"
    assert loop.asked == bound + 2
    assert rounds == bound + 1


async def test_a_pause_whose_payload_differs_only_in_the_order_of_its_keys_is_the_same_pause() -> None:
    ai = Adjourn(model=ScriptedModel([call("ask")], repeat_last=True))
    asked = 0

    @ai.tool()
    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise Interrupt({"a": 1, "b": 2} if asked % 2 else {"b": 2, "a": 1})

    response = await ai.generate("go", tools=[ask], limits=only(repeats=1))
    response = await ai.generate(
        resume_respond=response.interrupts[0].respond("x"), tools=[ask], limits=only(repeats=1)
    )
    with pytest.raises(LimitReached) as caught:
        await ai.generate(resume_respond=response.interrupts[0].respond("x"), tools=[ask], limits=only(repeats=1))
    assert caught.value.limit == "repeats"


@pytest.mark.parametrize("different", ["payload", "input"])
async def test_pauses_that_differ_in_payload_or_input_are_no_repetition(different: str) -> None:
    asked = 0

    def reply(_: ModelRequest) -> Any:
        nonlocal asked
        asked += 1
        if asked == 6:
            return "done"
        return call("ask", {"n": asked if different == "input" else 0})

    ai = Adjourn(model=ScriptedModel([reply], repeat_last=True))

    @ai.tool()
    async def ask(n: int) -> None:
        raise Interrupt({"p": asked if different == "payload" else 0})

    response = await ai.generate("go", tools=[ask], limits=only(repeats=0))
    while response.interrupts:
        response = await ai.generate(
            resume_respond=response.interrupts[0].respond("x"), tools=[ask], limits=only(repeats=0)
        )
    assert response.text == "done"


async def test_twins_asked_for_side_by_side_are_no_repetition() -> None:
    ai = Adjourn(model=ScriptedModel([[call("ask") for _ in range(5)], "done"]))

    @ai.tool()
    async def ask() -> None:
        raise Interrupt("?")

    response = await ai.generate("go", tools=[ask], limits=only(repeats=0))
    answers = [p.respond("x") for p in response.interrupts]
    assert len(answers) == 5
    assert (await ai.generate(resume_respond=answers, tools=[ask], limits=only(repeats=0))).text == "done"


@ways
async def test_total_tokens_are_bounded_through_pauses(carry: Carry) -> None:
    def app(n: int) -> tuple[Adjourn, Any]:
        reply = ModelReply(Message("model", [call("ask", {"n": n})]), usage=Usage(input_tokens=30, output_tokens=10))
        ai = Adjourn(model=ScriptedModel([reply], repeat_last=True))

        @ai.tool()
        async def ask(n: int) -> None:
            raise Interrupt({"n": n})

        return ai, ask

    limits = only(total_tokens=100)
    used: list[int] = []

    async def run() -> None:
        ai, ask = app(0)
        response = await ai.generate("go", tools=[ask], limits=limits)
        used.append(response.usage.total_tokens)
        for n in range(1, 10):
            messages = carry(response.messages)
            ai, ask = app(n)
            answer = respond_to_interrupt("x", interrupt=open_parts(messages)[0])
            response = await ai.generate(messages=messages, resume_respond=answer, tools=[ask], limits=limits)
            used.append(response.usage.total_tokens)

    with pytest.raises(LimitReached) as caught:
        await run()
    assert caught.value.limit == "total_tokens"
    assert used == [40, 80, 120]


@ways
async def test_seconds_count_running_time_through_pauses_but_not_the_pauses(carry: Carry) -> None:
    loop = Loop(pause=True)  # each run of the tool takes a second
    error, rounds = await loop.until_the_limit(only(seconds=6), carry, between=100_000.0)
    assert error.limit == "seconds"
    assert rounds == 3


async def test_seconds_bound_a_turn_without_pauses() -> None:
    loop = Loop()
    error, _ = await loop.until_the_limit(only(seconds=5), warm)
    assert error.limit == "seconds"
    assert loop.ran == 5


async def test_the_time_a_model_takes_is_running_time() -> None:
    clock = FakeClock()

    def slow(_: ModelRequest) -> Any:
        clock.time += 60
        return call("t")

    ai = Adjourn(model=ScriptedModel([slow], repeat_last=True), clock=clock)

    @ai.tool()
    async def t() -> None: ...

    with pytest.raises(LimitReached) as caught:
        await ai.generate("go", tools=[t], limits=only(seconds=100))
    assert caught.value.limit == "seconds"


async def test_the_same_call_with_the_same_result_does_not_go_on_for_ever() -> None:
    ai = Adjourn(model=ScriptedModel([call("t")], repeat_last=True))
    ran = 0

    @ai.tool()
    async def t() -> str:
        nonlocal ran
        ran += 1
        return "same"

    with pytest.raises(LimitReached):
        await ai.generate("go", tools=[t])
    assert ran <= 50


async def test_a_new_user_message_starts_all_counts_afresh() -> None:
    model = ScriptedModel([call("t", {"n": 1}), "one", call("t", {"n": 2}), "two"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t(n: int) -> int:
        return n

    first = await ai.generate("go", tools=[t], limits=Limits(model_calls=2))
    second = await ai.generate("more", messages=first.messages, tools=[t], limits=Limits(model_calls=2))
    assert second.text == "two"


async def test_a_pause_does_not_reset_the_budget_of_a_loop_around_it() -> None:
    replies = [call("bad"), call("ask"), call("bad"), call("ask"), call("bad"), "done"]
    ai = Adjourn(model=ScriptedModel(replies))

    @ai.tool(on_error="model")
    async def bad() -> None:
        raise ValueError("no")

    @ai.tool()
    async def ask() -> None:
        raise Interrupt("?")

    tools = [bad, ask]
    limits = Limits(tool_errors=2)
    response = await ai.generate("go", tools=tools, limits=limits)
    response = await ai.generate(resume_respond=response.interrupts[0].respond("x"), tools=tools, limits=limits)
    with pytest.raises(LimitReached) as caught:
        await ai.generate(resume_respond=response.interrupts[0].respond("x"), tools=tools, limits=limits)
    assert caught.value.limit == "tool_errors"


async def test_one_can_go_on_from_a_limit_with_a_new_message() -> None:
    model = ScriptedModel([call("t"), call("t"), "enough"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t() -> None: ...

    with pytest.raises(LimitReached) as caught:
        await ai.generate("go", tools=[t], limits=Limits(model_calls=2))
    response = await ai.generate("sum up", messages=cold(caught.value.response.messages), tools=[t])
    assert response.text == "enough"
    assert_sendable(model.requests[-1].messages)


async def test_the_limits_of_the_app_hold_where_a_call_brings_none() -> None:
    model = ScriptedModel([call("t")], repeat_last=True)
    ai = Adjourn(model=model, limits=Limits(model_calls=2))

    @ai.tool()
    async def t() -> None: ...

    with pytest.raises(LimitReached):
        await ai.generate("go", tools=[t])
    assert model.calls == 2
    with pytest.raises(LimitReached):
        await ai.generate("go", tools=[t], limits=Limits(model_calls=3))
    assert model.calls == 5


async def test_all_bounds_can_be_taken_away() -> None:
    loop = Loop(vary=False, pause=True)
    ai, step = loop.app()
    response = await ai.generate("go", tools=[step], limits=NONE)
    for _ in range(60):
        response = await ai.generate(resume_restart=response.interrupts[0].restart(), tools=[step], limits=NONE)
    assert response.finish_reason == "interrupted"


async def test_the_error_names_the_bound_and_says_that_everything_is_kept() -> None:
    loop = Loop()
    error, _ = await loop.until_the_limit(only(model_calls=2), warm)
    assert "2" in str(error)
    assert "kept" in str(error)
