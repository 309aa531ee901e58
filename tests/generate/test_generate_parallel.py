"""Several tool requests in one model message."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from adjourn import (
    Adjourn,
    AlreadyResolved,
    Interrupt,
    Message,
    ToolFailed,
    ToolRunContext,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.testing import ScriptedModel, call


def cold(messages: Sequence[Message]) -> list[Message]:
    return msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])


def responses_of(message: Message) -> list[tuple[str | None, Any]]:
    return [(p.tool_response.ref, p.tool_response.output) for p in message.content if p.tool_response is not None]


@pytest.mark.parametrize("seed", range(100))
async def test_results_reach_the_model_in_request_order_whatever_finishes_and_is_answered_first(seed: int) -> None:
    dice = random.Random(seed)
    n = dice.randint(2, 6)
    order = dice.sample(range(n), n)
    pausing = set(dice.sample(range(n), dice.randint(1, n)))
    with_refs = dice.random() < 0.5
    same_input = dice.random() < 0.3
    may_go = {i: asyncio.Event() for i in range(n)}
    after = dict(itertools.pairwise(order))
    runs: Counter[int] = Counter()
    places: dict[str, int] = {}

    requests = [call("work", {} if same_input else {"place": i}, ref=f"r{i}" if with_refs else None) for i in range(n)]
    model = ScriptedModel([requests, "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def work(ctx: ToolRunContext, place: int | None = None) -> Any:
        i = places.setdefault(ctx.call_id, len(places))
        runs[i] += 1
        if ctx.is_resumed():
            return ["restarted", i, ctx.resumed_metadata]
        await may_go[i].wait()
        if i in after:
            may_go[after[i]].set()
        if i in pausing:
            raise Interrupt({"place": i})
        return ["ran", i]

    may_go[order[0]].set()
    response = await ai.generate("go", tools=[work])
    assert response.finish_reason == "interrupted"
    assert [p.payload["place"] for p in response.interrupts] == sorted(pausing)
    assert len({p.id for p in response.interrupts}) == len(pausing)
    assert model.calls == 1

    expected: list[Any] = [["ran", i] for i in range(n)]
    restarted: set[int] = set()
    left = dice.sample(sorted(pausing), len(pausing))
    ids = {p.payload["place"]: p.id for p in response.interrupts}
    while left:
        take = left[: dice.randint(1, len(left))]
        left = left[len(take) :]
        responds: list[Any] = []
        restarts: list[Any] = []
        if dice.random() < 0.5:  # another process: only the messages travel
            messages = cold(response.messages)
            parts = {(p.metadata or {})["interrupt"]["place"]: p for p in messages[-1].content if is_open(p)}
        else:
            messages = response.messages
            parts = {p.payload["place"]: p for p in response.interrupts}
        for i in take:
            if dice.random() < 0.5:
                responds.append(respond_to_interrupt({"answer": i}, interrupt=parts[i]))
                expected[i] = {"answer": i}
            else:
                restarts.append(restart_tool(interrupt=parts[i], resumed_metadata={"m": i}))
                expected[i] = ["restarted", i, {"m": i}]
                restarted.add(i)
        response = await ai.generate(
            messages=messages, resume_respond=responds or None, resume_restart=restarts or None, tools=[work]
        )
        if left:
            assert response.finish_reason == "interrupted"
            assert model.calls == 1
            assert [p.payload["place"] for p in response.interrupts] == sorted(left)
            assert all(p.id == ids[p.payload["place"]] for p in response.interrupts)

    assert response.text == "done"
    assert model.calls == 2
    [tool_message] = [m for m in model.requests[1].messages if m.role == "tool"]
    assert [output for _, output in responses_of(tool_message)] == expected
    [asked] = [m for m in model.requests[1].messages if m.role == "model"]
    refs = [p.tool_request.ref for p in asked.content if p.tool_request is not None]
    assert [ref for ref, _ in responses_of(tool_message)] == refs
    assert len(set(refs)) == n
    if with_refs:
        assert refs == [f"r{i}" for i in range(n)]
    assert all(runs[i] == (2 if i in restarted else 1) for i in range(n))


def is_open(part: Any) -> bool:
    return part.tool_request is not None and "interrupt" in (part.metadata or {})


async def test_calls_of_one_message_run_at_the_same_time() -> None:
    a, b = asyncio.Event(), asyncio.Event()
    ai = Adjourn(model=ScriptedModel([[call("left"), call("right")], "both"]))

    @ai.tool()
    async def left() -> str:
        a.set()
        await b.wait()
        return "l"

    @ai.tool()
    async def right() -> str:
        b.set()
        await a.wait()
        return "r"

    response = await ai.generate("go", tools=[left, right])
    assert response.text == "both"


async def test_a_sequential_tool_runs_alone() -> None:
    ai = Adjourn(model=ScriptedModel([[call("one"), call("free"), call("one"), call("free")], "ok"]))
    active = 0
    overlaps: list[int] = []

    @ai.tool(sequential=True)
    async def one() -> str:
        nonlocal active
        active += 1
        overlaps.append(active)
        await asyncio.sleep(0)
        overlaps.append(active)
        active -= 1
        return "one"

    @ai.tool()
    async def free() -> str:
        nonlocal active
        active += 1
        await asyncio.sleep(0)
        active -= 1
        return "free"

    response = await ai.generate("go", tools=[one, free])
    assert overlaps == [1, 1, 1, 1]
    tool_message = response.messages[-2]
    assert [o for _, o in responses_of(tool_message)] == ["one", "free", "one", "free"]


async def test_a_sequential_call_that_pauses_does_not_stop_the_ones_behind_it() -> None:
    ai = Adjourn(model=ScriptedModel([[call("step", {"i": i}) for i in range(3)], "ok"]))
    ran: list[int] = []

    @ai.tool(sequential=True)
    async def step(i: int) -> int:
        ran.append(i)
        if i == 0:
            raise Interrupt({"i": i})
        return i

    response = await ai.generate("go", tools=[step])
    assert ran == [0, 1, 2]
    assert [p.payload for p in response.interrupts] == [{"i": 0}]


async def test_a_pause_does_not_stop_its_siblings_and_their_results_wait_beside_it() -> None:
    model = ScriptedModel([[call("gate", {"x": 1}, ref="r1"), call("zero", {"x": 2}, ref="r2")], "done"])
    ai = Adjourn(model=model)
    ran: list[str] = []

    @ai.tool()
    async def gate(x: int, ctx: ToolRunContext) -> Any:
        if not ctx.is_resumed():
            raise Interrupt({"why": "approve", "x": x})
        ran.append("gate")
        return ctx.resumed_metadata

    @ai.tool()
    async def zero(x: int) -> int:
        ran.append("zero")
        return 0

    paused = await ai.generate("go", tools=[gate, zero])
    assert [m.role for m in paused.messages] == ["user", "model"]
    first, second = paused.messages[-1].content
    assert (first.metadata or {})["interrupt"] == {"why": "approve", "x": 1}
    assert (second.metadata or {})["pendingOutput"] == 0
    assert "interrupt" not in (second.metadata or {})
    assert [p.tool_request.ref for p in paused.interrupts] == ["r1"]

    response = await ai.generate(
        messages=paused.messages,
        resume_restart=restart_tool(interrupt=paused.interrupts[0], resumed_metadata={"ok": 1}),
        tools=[gate, zero],
    )
    assert ran == ["zero", "gate"]
    _, asked, answered, _ = response.messages
    assert responses_of(answered) == [("r1", {"ok": 1}), ("r2", 0)]
    assert (asked.content[0].metadata or {})["resolvedInterrupt"] == {"why": "approve", "x": 1}
    assert "pendingOutput" not in (asked.content[1].metadata or {})
    assert (answered.content[1].metadata or {})["source"] == "pending"


async def test_answering_one_of_six_leaves_five_paused_and_runs_and_calls_nothing_else() -> None:
    model = ScriptedModel([[call("slow", {"i": i}) for i in range(6)], "done"])
    ai = Adjourn(model=model)
    runs: list[int] = []

    @ai.tool()
    async def slow(i: int) -> int:
        runs.append(i)
        raise Interrupt({"i": i})

    response = await ai.generate("go", tools=[slow])
    left = list(range(6))
    for i in (3, 0, 5, 1, 4, 2):
        [mine] = [p for p in response.interrupts if p.payload["i"] == i]
        response = await ai.generate(
            messages=response.messages, resume_respond=respond_to_interrupt(i * 10, interrupt=mine), tools=[slow]
        )
        left.remove(i)
        assert [p.payload["i"] for p in response.interrupts] == left
        assert model.calls == (1 if left else 2)
    assert sorted(runs) == list(range(6))
    assert [o for _, o in responses_of(response.messages[-2])] == [0, 10, 20, 30, 40, 50]


async def test_a_restart_runs_at_once_while_its_siblings_still_wait() -> None:
    model = ScriptedModel([[call("gate", {"i": 0}), call("gate", {"i": 1})], "done"])
    ai = Adjourn(model=model)
    done: list[int] = []

    @ai.tool()
    async def gate(i: int, ctx: ToolRunContext) -> int:
        if not ctx.is_resumed():
            raise Interrupt(i)
        done.append(i)
        return i

    paused = await ai.generate("go", tools=[gate])
    partly = await ai.generate(
        messages=paused.messages, resume_restart=restart_tool(interrupt=paused.interrupts[1]), tools=[gate]
    )
    assert done == [1]
    assert partly.finish_reason == "interrupted"
    assert len(partly.interrupts) == 1
    assert model.calls == 1


@pytest.mark.parametrize("refs", [(None, None), ("same", "same"), ("", ""), ("a", "b")])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_calls_of_the_same_tool_with_the_same_input_are_told_apart(
    refs: tuple[str | None, str | None], order: tuple[int, int]
) -> None:
    model = ScriptedModel([[call("ask", {"q": "?"}, ref=r) for r in refs], "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def ask(q: str) -> str:
        raise Interrupt({"q": q})

    response = await ai.generate("go", tools=[ask])
    ids = [p.id for p in response.interrupts]
    assert len(set(ids)) == 2
    for place in order:
        [mine] = [p for p in response.interrupts if p.id == ids[place]]
        response = await ai.generate(
            messages=response.messages,
            resume_respond=respond_to_interrupt(f"answer {place}", interrupt=mine),
            tools=[ask],
        )
    asked, answered = model.requests[1].messages[-2:]
    assert [o for _, o in responses_of(answered)] == ["answer 0", "answer 1"]
    sent = [p.tool_request.ref for p in asked.content if p.tool_request is not None]
    assert len(set(sent)) == 2
    assert sent == [r for r, _ in responses_of(answered)]


async def test_answers_through_the_first_response_meet_what_became_of_their_siblings() -> None:
    model = ScriptedModel([[call("ask", {"q": "1"}), call("ask", {"q": "2"})], "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def ask(q: str) -> str:
        raise Interrupt({"q": q})

    first = await ai.generate("go", tools=[ask])
    a, b = first.interrupts
    await ai.generate(messages=first.messages, resume_respond=respond_to_interrupt("A", interrupt=a), tools=[ask])
    # The caller still holds the response from before the first answer.
    response = await ai.generate(
        messages=first.messages, resume_respond=respond_to_interrupt("B", interrupt=b), tools=[ask]
    )
    assert response.text == "done"
    assert [o for _, o in responses_of(response.messages[-2])] == ["A", "B"]


async def test_an_answered_sibling_cannot_be_answered_again_while_the_rest_waits() -> None:
    ai = Adjourn(model=ScriptedModel([[call("ask", {"q": "1"}), call("ask", {"q": "2"})], "done"]))

    @ai.tool()
    async def ask(q: str) -> str:
        raise Interrupt({"q": q})

    first = await ai.generate("go", tools=[ask])
    partly = await ai.generate(resume_respond=first.interrupts[0].respond("A"), tools=[ask])
    with pytest.raises(AlreadyResolved):
        await ai.generate(resume_respond=first.interrupts[0].respond("other"), tools=[ask])
    response = await ai.generate(resume_respond=partly.interrupts[0].respond("B"), tools=[ask])
    assert [o for _, o in responses_of(response.messages[-2])] == ["A", "B"]


async def test_responses_and_restarts_of_one_resume_settle_their_own_calls() -> None:
    model = ScriptedModel([[call("gate", {"i": i}) for i in range(4)], "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def gate(i: int, ctx: ToolRunContext) -> str:
        if i == 2:
            return "auto"
        if not ctx.is_resumed():
            raise Interrupt({"i": i})
        return f"ran {i}"

    paused = await ai.generate("go", tools=[gate])
    a, b, d = paused.interrupts
    response = await ai.generate(
        resume_restart=[d.restart(), a.restart()], resume_respond=[b.decline("too dear")], tools=[gate]
    )
    outputs = [o for _, o in responses_of(response.messages[-2])]
    assert outputs[0] == "ran 0"
    assert "too dear" in str(outputs[1])
    assert outputs[2:] == ["auto", "ran 3"]


async def test_a_failing_call_does_not_cancel_its_siblings_and_their_results_are_kept() -> None:
    failed = asyncio.Event()
    ai = Adjourn(model=ScriptedModel([[call("bad"), call("good"), call("gate")], "done"]))
    good_runs: list[str] = []

    @ai.tool()
    async def bad() -> str:
        failed.set()
        raise OSError("disk full")

    @ai.tool()
    async def good() -> str:
        await failed.wait()
        await asyncio.sleep(0)
        good_runs.append("good")
        return "fine"

    @ai.tool()
    async def gate() -> str:
        raise Interrupt("sure?")

    with pytest.raises(ToolFailed) as caught:
        await ai.generate("go", tools=[bad, good, gate])
    assert isinstance(caught.value.__cause__, OSError)
    assert good_runs == ["good"]
    response = caught.value.response
    assert (response.messages[-1].content[1].metadata or {})["pendingOutput"] == "fine"
    assert [p.payload for p in response.interrupts] == ["sure?"]


async def test_a_turn_that_failed_by_a_tool_can_go_on_without_running_the_finished_sibling_again() -> None:
    model = ScriptedModel([[call("flaky"), call("good")], "done"])
    ai = Adjourn(model=model)
    runs: Counter[str] = Counter()

    @ai.tool()
    async def flaky() -> str:
        runs["flaky"] += 1
        if runs["flaky"] == 1:
            raise OSError("busy")
        return "now"

    @ai.tool()
    async def good() -> str:
        runs["good"] += 1
        return "fine"

    with pytest.raises(ToolFailed) as caught:
        await ai.generate("go", tools=[flaky, good])
    response = await ai.generate(messages=caught.value.response.messages, tools=[flaky, good])
    assert response.text == "done"
    assert runs == {"flaky": 2, "good": 1}
    assert [o for _, o in responses_of(response.messages[-2])] == ["now", "fine"]


async def test_a_second_round_of_pauses_has_the_same_fields_as_the_first() -> None:
    model = ScriptedModel([call("gate", {"n": 1}, ref="a"), call("gate", {"n": 2}, ref="b"), "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def gate(n: int, ctx: ToolRunContext) -> int:
        if not ctx.is_resumed():
            raise Interrupt({"n": n})
        return n

    first = await ai.generate("go", tools=[gate])
    second = await ai.generate(resume_restart=first.interrupts[0].restart(), tools=[gate])
    [one], [two] = first.interrupts, second.interrupts
    assert two.id != one.id
    assert (two.tool_request.name, two.tool_request.ref, two.tool_request.input) == ("gate", "b", {"n": 2})
    assert two.payload == two.metadata["interrupt"] == {"n": 2}
    last = await ai.generate(resume_restart=two.restart(), tools=[gate])
    assert last.text == "done"
