"""`on_interrupt=` handlers decide like a person; `approval=` pauses without a line in the body."""

from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from adjourn import (
    Abort,
    Adjourn,
    HandlerAborted,
    HandlerFailed,
    Interrupt,
    InvalidResponse,
    LimitReached,
    Limits,
    PausedCall,
    ToolFailed,
    ToolRunContext,
    VerbNotAllowed,
    decline_interrupt,
    restart_tool,
)
from adjourn.errors import DefinitionError
from adjourn.testing import FakeClock, ScriptedModel, call
from adjourn.tool import tool


def outputs_of(messages: Any) -> list[Any]:
    return [p.tool_response.output for m in messages if m.role == "tool" for p in m.content if p.tool_response]


class Gates:
    """Two tools that pause until they are restarted."""

    def __init__(self, *replies: Any) -> None:
        self.ran: list[Any] = []
        self.clock = FakeClock()
        self.model = ScriptedModel(list(replies) or [[call("a", {"x": 1}), call("b", {"x": 2})], "done"])
        self.ai = Adjourn(model=self.model, clock=self.clock)

        @self.ai.tool()
        async def a(x: int, ctx: ToolRunContext) -> Any:
            return self.work("a", x, ctx)

        @self.ai.tool()
        async def b(x: int, ctx: ToolRunContext) -> Any:
            return self.work("b", x, ctx)

        self.tools = [a, b]

    def work(self, name: str, x: int, ctx: ToolRunContext) -> Any:
        if not ctx.is_resumed():
            raise Interrupt({"tool": name, "x": x})
        self.ran.append((name, x, ctx.resumed_metadata))
        return [name, x]

    async def run(self, on_interrupt: Any, **options: Any) -> Any:
        return await self.ai.generate("go", tools=self.tools, on_interrupt=on_interrupt, **options)


async def test_a_single_handler_gets_every_interrupt_and_its_answers_are_taken() -> None:
    gates = Gates()
    seen: list[Any] = []

    def handler(interrupt: PausedCall) -> Any:
        seen.append((interrupt.tool_request.name, interrupt.payload))
        return interrupt.restart({"by": "handler"})

    response = await gates.run(handler)
    assert response.text == "done"
    assert seen == [("a", {"tool": "a", "x": 1}), ("b", {"tool": "b", "x": 2})]
    assert sorted(gates.ran) == [("a", 1, {"by": "handler"}), ("b", 2, {"by": "handler"})]


async def test_handlers_are_found_by_tool_name_before_the_star() -> None:
    gates = Gates()

    async def for_a(interrupt: PausedCall) -> Any:
        return interrupt.respond("named")

    def for_all(interrupt: PausedCall) -> Any:
        return interrupt.respond("star")

    response = await gates.run({"*": for_all, "a": for_a})
    assert outputs_of(response.messages) == ["named", "star"]
    assert gates.ran == []


async def test_a_pause_without_a_handler_stays_and_the_handled_one_is_settled() -> None:
    gates = Gates()

    def for_b(interrupt: PausedCall) -> Any:
        return interrupt.restart()

    response = await gates.run({"b": for_b})
    assert [p.tool_request.name for p in response.interrupts] == ["a"]
    assert gates.ran == [("b", 2, {})]
    assert gates.model.calls == 1


async def test_a_handler_that_returns_none_leaves_the_pause() -> None:
    gates = Gates()
    asked = 0

    def undecided(interrupt: PausedCall) -> None:
        nonlocal asked
        asked += 1

    response = await gates.run(undecided)
    assert len(response.interrupts) == 2
    assert asked == 2


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
async def test_a_handler_may_respond_with_a_falsy_value(value: Any) -> None:
    gates = Gates()

    def handler(interrupt: PausedCall) -> Any:
        return interrupt.respond(value)

    response = await gates.run(handler)
    assert outputs_of(response.messages) == [value, value]


async def test_a_handler_that_declines_tells_the_model_why() -> None:
    gates = Gates()

    def handler(interrupt: PausedCall) -> Any:
        return interrupt.decline("policy 7")

    response = await gates.run(handler)
    assert response.text == "done"
    assert "policy 7" in str(outputs_of(gates.model.requests[1].messages))
    assert gates.ran == []


async def test_a_handler_that_aborts_ends_the_turn_with_its_reason_and_the_whole_transcript() -> None:
    gates = Gates()

    def handler(interrupt: PausedCall) -> Any:
        return Abort("the office is closed")

    with pytest.raises(HandlerAborted) as caught:
        await gates.run(handler)
    assert "the office is closed" in str(caught.value)
    response = caught.value.response
    assert [m.role for m in response.messages] == ["user", "model", "tool"]
    assert gates.ran == []
    assert gates.model.calls == 1


async def test_a_handler_may_edit_the_input_and_the_edit_is_validated() -> None:
    gates = Gates(call("a", {"x": 1}), "done")

    def edit(interrupt: PausedCall) -> Any:
        return interrupt.restart(replace_input={"x": 50})

    await gates.run(edit)
    assert gates.ran == [("a", 50, {})]


async def test_a_handler_is_asked_again_when_the_call_pauses_again_and_the_loop_is_bounded() -> None:
    ai = Adjourn(model=ScriptedModel([call("never")]))
    ran = 0

    @ai.tool()
    async def never() -> None:
        nonlocal ran
        ran += 1
        raise Interrupt({"ran": ran})

    def handler(interrupt: PausedCall) -> Any:
        return interrupt.restart()

    with pytest.raises(LimitReached) as caught:
        await ai.generate("go", tools=[never], on_interrupt=handler)
    assert caught.value.limit == "restarts"
    assert ran == 6


async def test_a_handler_that_always_responds_does_not_make_an_endless_loop() -> None:
    model = ScriptedModel([call("ask")], repeat_last=True)
    ai = Adjourn(model=model)

    @ai.tool()
    async def ask() -> None:
        raise Interrupt("?")

    def handler(interrupt: PausedCall) -> Any:
        return interrupt.respond("because")

    with pytest.raises(LimitReached) as caught:
        await ai.generate("go", tools=[ask], on_interrupt=handler, limits=Limits(repeats=3))
    assert caught.value.limit == "repeats"
    assert model.calls == 5


async def test_a_delayed_restart_waits_on_the_apps_clock() -> None:
    gates = Gates(call("a", {"x": 1}), "done")

    def later(interrupt: PausedCall) -> Any:
        return interrupt.restart({"try": 2}, after=60)

    response = await gates.run(later)
    assert response.text == "done"
    assert sum(gates.clock.slept) == 60
    assert gates.ran == [("a", 1, {"try": 2})]


async def test_a_handler_for_a_tool_that_is_not_there_is_refused_before_anything_runs() -> None:
    gates = Gates()

    def handler(interrupt: PausedCall) -> Any:
        return interrupt.restart()

    with pytest.raises(DefinitionError) as caught:
        await gates.run({"send_emial": handler})
    assert "send_emial" in str(caught.value)
    assert gates.model.calls == 0


@pytest.mark.parametrize("junk", ["approved", True, {"approved": True}, 0, False])
async def test_a_handler_that_returns_something_else_is_an_error_and_never_an_approval(junk: Any) -> None:
    gates = Gates()

    def handler(interrupt: PausedCall) -> Any:
        return junk

    with pytest.raises(Exception) as caught:
        await gates.run(handler)
    assert "handler" in str(caught.value)
    assert gates.ran == []


async def test_the_answer_of_a_handler_is_validated_like_anyone_elses() -> None:
    ai = Adjourn(model=ScriptedModel([call("ask")]))

    @ai.tool()
    async def ask() -> None:
        raise Interrupt("how many?", response=int, allow=("respond",))

    def wrong(interrupt: PausedCall) -> Any:
        return interrupt.respond("many")

    def forbidden(interrupt: PausedCall) -> Any:
        return interrupt.restart()

    with pytest.raises(HandlerFailed) as failed:
        await ai.generate("go", tools=[ask], on_interrupt=wrong)
    assert isinstance(failed.value.__cause__, InvalidResponse)
    assert failed.value.response.interrupts[0].name == "ask", "the pause is still there"
    with pytest.raises(HandlerFailed) as failed:
        await ai.generate("go", model=ScriptedModel([call("ask")]), tools=[ask], on_interrupt=forbidden)
    assert isinstance(failed.value.__cause__, VerbNotAllowed)


async def test_handlers_also_decide_on_pauses_that_follow_a_resume() -> None:
    gates = Gates(call("a", {"x": 1}), call("b", {"x": 2}), "done")
    paused = await gates.run(None)

    def handler(interrupt: PausedCall) -> Any:
        return interrupt.restart({"by": "handler"})

    response = await gates.ai.generate(
        resume_restart=paused.interrupts[0].restart({"by": "me"}), tools=gates.tools, on_interrupt=handler
    )
    assert response.text == "done"
    assert gates.ran == [("a", 1, {"by": "me"}), ("b", 2, {"by": "handler"})]


# -- approval= --------------------------------------------------------------------------------------------------------


async def test_a_lambda_says_whether_a_call_waits_and_needs_no_annotations_to_be_checked() -> None:
    @tool(approval=lambda asked, ctx: asked["euros"] > 100 and not ctx.is_resumed())
    def refund(euros: int) -> str:
        return f"{euros} paid back"

    model = ScriptedModel([[call("refund", {"euros": 5}), call("refund", {"euros": 500})]])
    response = await Adjourn(model=model).generate("go", tools=[refund])
    assert [i.input for i in response.interrupts] == [{"euros": 500}]


class Refund(BaseModel):
    order: str
    amount: int


class Shop:
    """One gated tool."""

    def __init__(self, *replies: Any, **options: Any) -> None:
        self.ran: list[Any] = []
        self.model = ScriptedModel(list(replies))
        self.ai = Adjourn(model=self.model)

        @self.ai.tool(**options)
        async def refund(order: str, amount: int) -> str:
            self.ran.append((order, amount))
            return "refunded"

        self.refund = refund

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.ai.generate(*args, tools=[self.refund], **kwargs)


BIG = call("refund", {"order": "A", "amount": 500})
SMALL = call("refund", {"order": "B", "amount": 5})


def is_big(input: Any, ctx: ToolRunContext) -> bool:
    return input["amount"] > 100


async def test_approval_pauses_before_the_body_and_a_restart_approves() -> None:
    shop = Shop(BIG, "done", approval=True)
    paused = await shop.generate("go")
    assert paused.finish_reason == "interrupted"
    assert shop.ran == []
    assert paused.interrupts[0].tool_request.input == {"order": "A", "amount": 500}
    response = await shop.generate(resume_restart=restart_tool(interrupt=paused.interrupts[0]))
    assert response.text == "done"
    assert shop.ran == [("A", 500)]


async def test_a_predicate_decides_which_calls_need_approval() -> None:
    shop = Shop([BIG, SMALL], "done", approval=is_big)
    paused = await shop.generate("go")
    assert shop.ran == [("B", 5)]
    assert [p.tool_request.input["amount"] for p in paused.interrupts] == [500]


@pytest.mark.parametrize("approval", [False, None])
async def test_without_approval_nothing_pauses(approval: Any) -> None:
    shop = Shop(BIG, "done", approval=approval)
    assert (await shop.generate("go")).text == "done"


async def test_a_predicate_may_be_async_and_reads_the_callers_context() -> None:
    async def unless_admin(input: Any, ctx: ToolRunContext) -> bool:
        return ctx.context != "admin"

    shop = Shop(BIG, BIG, "done", approval=unless_admin)
    assert (await shop.generate("go", context="guest")).finish_reason == "interrupted"
    assert (await shop.generate("go", context="admin")).finish_reason == "stop"


async def test_a_predicate_gets_the_model_instance_of_a_tool_that_takes_one() -> None:
    model = ScriptedModel([call("refund", {"order": "A", "amount": "500"}), "done"])
    ai = Adjourn(model=model)
    seen: list[Any] = []

    def check(input: Refund, ctx: ToolRunContext) -> bool:
        seen.append(input)
        return False

    @ai.tool(approval=check)
    async def refund(refund: Refund) -> str:
        return "ok"

    await ai.generate("go", tools=[refund])
    assert seen == [Refund(order="A", amount=500)]


@pytest.mark.parametrize("on_error", ["raise", "model", "interrupt"])
async def test_a_predicate_that_fails_never_opens_the_gate(on_error: Any) -> None:
    def broken(input: Any, ctx: ToolRunContext) -> bool:
        raise KeyError("limit")

    shop = Shop(BIG, "sorry", approval=broken, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(ToolFailed):
            await shop.generate("go")
    else:
        await shop.generate("go")
    assert shop.ran == []


async def test_input_is_validated_before_anyone_is_asked() -> None:
    shop = Shop(call("refund", {"order": "A", "amount": "lots"}), BIG, approval=True)
    paused = await shop.generate("go")
    assert [p.tool_request.input for p in paused.interrupts] == [{"order": "A", "amount": 500}]
    assert "amount" in msgspec.json.encode(shop.model.requests[1].messages[-1]).decode()


async def test_declining_tells_the_model_that_it_was_refused_and_the_body_never_runs() -> None:
    shop = Shop(BIG, "I am sorry.", approval=True)
    paused = await shop.generate("go")
    response = await shop.generate(resume_respond=decline_interrupt("over budget", interrupt=paused.interrupts[0]))
    assert response.text == "I am sorry."
    assert "over budget" in str(outputs_of(shop.model.requests[1].messages))
    assert shop.ran == []


async def test_an_approved_call_runs_with_the_edited_input() -> None:
    shop = Shop(BIG, "done", approval=is_big)
    paused = await shop.generate("go")
    await shop.generate(resume_restart=paused.interrupts[0].restart(replace_input={"order": "A", "amount": 50}))
    assert shop.ran == [("A", 50)]


async def test_an_approval_covers_its_own_call_only() -> None:
    shop = Shop(BIG, BIG, "done", approval=True)
    paused = await shop.generate("go")
    again = await shop.generate(resume_restart=paused.interrupts[0].restart())
    assert again.finish_reason == "interrupted"
    assert shop.ran == [("A", 500)]


async def test_an_approved_tool_may_still_pause_for_reasons_of_its_own() -> None:
    ai = Adjourn(model=ScriptedModel([call("pay"), "done"]))
    stages: list[int] = []

    @ai.tool(approval=True)
    async def pay(ctx: ToolRunContext) -> str:
        stages.append(len(ctx.restarts))
        if len(ctx.restarts) < 2:
            raise Interrupt("second signature")
        return "paid"

    first = await ai.generate("go", tools=[pay])
    second = await ai.generate(resume_restart=first.interrupts[0].restart({"by": "ann"}), tools=[pay])
    assert second.interrupts[0].payload == "second signature"
    third = await ai.generate(resume_restart=second.interrupts[0].restart({"by": "ben"}), tools=[pay])
    assert third.text == "done"
    assert stages == [1, 2]
