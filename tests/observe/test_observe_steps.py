"""What observers are told: each step and notice once, when it is durable, with ids and numbers and no content."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn import (
    Adjourn,
    AgentInit,
    Interrupt,
    LimitReached,
    Limits,
    MemoryStore,
    ModelError,
    ToolRunContext,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.answer import Answer, PausedCall
from adjourn.errors import AlreadyResolved, InvalidResponse, SessionConflict, StaleInterrupt
from adjourn.handle import Resume
from adjourn.model import ModelReply
from adjourn.observe import Observed
from adjourn.parts import Message, Part
from adjourn.resilience import fallback_model, retry_model
from adjourn.store import Store
from adjourn.testing import FakeClock, ScriptedModel, call
from observe.observe_kit import CANARY, EVENTS, USED, Recorder, advance, eventful, pay, pay_app


async def test_a_turn_is_a_step_round_its_models_and_tools() -> None:
    open_now: list[str] = []
    order: list[str] = []

    class Nested:
        def __init__(self, step: Observed) -> None:
            self.step = step

        def __enter__(self) -> None:
            open_now.append(self.step.kind)
            order.append("/".join(open_now))

        def __exit__(self, *_: object) -> None:
            open_now.pop()

    ai, agent = pay_app([lambda s: Nested(s) if s.kind in ("turn", "model", "tool") else None], [pay(), "done"])
    session = agent.connect()
    await session.send("go").output
    await session.interrupts[0].restart().output
    assert order == ["turn", "turn/model", "turn/tool", "turn", "turn/tool", "turn/model"]
    assert ai.agents == {"clerk": agent}


async def test_the_facts_of_a_turn_say_who_where_and_what_it_came_to() -> None:
    seen = Recorder()
    reply = ModelReply(Message("model", [pay()]), "stop", USED)
    _, agent = pay_app([seen], [reply, "done"])
    session = agent.connect(AgentInit(session_id="s1"))
    paused = await session.send("go").output
    await session.interrupts[0].restart().output
    first, second = seen.facts("turn")
    where = {"agent": "clerk", "session_id": "s1", "turn_id": paused.snapshot_id, "snapshot_id": paused.snapshot_id}
    assert first == {
        **where,
        "model": "scripted",
        "resumed": False,
        "recovered": False,
        "outcome": "interrupted",
        "model_calls": 1,
        "input_tokens": 120,
        "output_tokens": 30,
        "pauses": 1,
    }
    assert second["turn_id"] == paused.snapshot_id != second["snapshot_id"]
    assert (second["resumed"], second["outcome"], second["model_calls"], second["input_tokens"]) == (True, "stop", 1, 0)
    assert [s.name for s in seen.of("turn")] == ["clerk", "clerk"]


async def test_what_happens_within_a_turn_has_the_ids_of_the_turn() -> None:
    seen = Recorder()
    ai, agent = pay_app([seen], EVENTS)
    await eventful(ai, agent)
    turns = {(f["session_id"], f["turn_id"]) for f in seen.facts("turn")}
    assert len(turns) == 1
    for step in seen.seen:
        if step.kind in ("model", "tool", "pause", "correction", "retry"):
            assert (step.facts["session_id"], step.facts["turn_id"]) in turns, step
            assert step.facts["agent"] == "clerk"


async def test_each_kind_of_notice_comes_once_with_its_facts() -> None:
    seen = Recorder()
    ai, agent = pay_app([seen], EVENTS)
    await eventful(ai, agent)
    assert [(s.name, s.facts["tool"], s.facts["reason"]) for s in seen.of("pause")] == [("pay", "pay", "tool")]
    assert [(s.name, s.facts.get("tool")) for s in seen.of("correction")] == [
        ("tool_error", "broken"),
        ("arguments", "pay"),
        ("unknown_tool", None),
    ]
    assert seen.facts("correction")[0]["error"] == "ValueError"
    [retry] = seen.of("retry")
    assert (retry.name, retry.facts["of"], retry.facts["attempt"], retry.facts["error"]) == (
        "flaky",
        "tool",
        1,
        "ValueError",
    )
    accepted, refused = seen.facts("decision")
    assert (accepted["verb"], accepted["by_kind"], accepted["outcome"]) == ("restart", "person", "accepted")
    assert (accepted["seconds"], accepted["reason"], accepted["agent"]) == (3600, "tool", "clerk")
    assert (refused["verb"], refused["outcome"], refused["error"]) == ("decline", "refused", "AlreadyResolved")
    assert accepted["interrupt_id"] == refused["interrupt_id"] == seen.facts("pause")[0]["interrupt_id"]
    assert {s.name for s in seen.of("store")} >= {"commit", "decide", "load", "list"}
    assert all(f["seconds"] >= 0 and f["ok"] for f in seen.facts("store"))
    assert seen.of("limit") == seen.of("takeover") == []


async def test_what_a_store_takes_counts_also_where_it_does_its_work_there_and_then() -> None:
    class Slow(MemoryStore):
        def submit(self, work: Any, *, read: bool = False) -> Any:
            time.sleep(0.02)
            return super().submit(work, read=read)

    seen = Recorder()
    ai = Adjourn(model=ScriptedModel(["hello"]), observers=[seen])
    await ai.define_agent("clerk", store=Slow()).connect(AgentInit("s1")).send("hi").output
    assert {s.name for s in seen.of("store")} == {"commit", "load"}
    assert all(f["seconds"] >= 0.02 for f in seen.facts("store"))


async def test_no_fact_is_content() -> None:
    seen = Recorder()
    ai, agent = pay_app([seen], EVENTS)
    await eventful(ai, agent)
    for step in seen.seen:
        assert CANARY not in repr((step.kind, step.name, step.facts, step.links)), step
    assert any(CANARY in repr(s.given) for s in seen.seen), "the canary was not said at all"


async def test_a_pause_is_told_when_it_is_durable() -> None:
    store = MemoryStore()
    stored: list[Any] = []

    def watch(step: Observed) -> None:
        if step.kind == "pause":
            stored.append(store.interrupt_rows[step.facts["interrupt_id"]].status)
        if step.kind == "decision":
            stored.append([d.verb for d in store.decision_rows.values()])

    _, agent = pay_app([watch], [pay(), "done"], store)
    session = agent.connect()
    await session.send("go").output
    await session.interrupts[0].respond("by hand").output
    assert stored == ["open", ["respond"]]


async def test_a_decision_through_the_session_is_told_with_the_time_it_took() -> None:
    seen = Recorder()
    ai, agent = pay_app([seen], [pay(), "done"])
    session = agent.connect()
    await session.send("go").output
    advance(ai, 42)
    await session.interrupts[0].respond("by hand").output
    [fact] = seen.facts("decision")
    assert (fact["verb"], fact["outcome"], fact["by_kind"], fact["seconds"]) == ("respond", "accepted", "unnamed", 42)


async def test_a_decision_that_a_worker_takes_up_is_told_once() -> None:
    seen = Recorder()
    ai, agent = pay_app([seen], [pay(), "done"])
    await agent.connect().send("go").output
    [row] = (await ai.inbox.list()).items
    await ai.inbox.restart(row.id, by="ann", run=False)
    [turn] = await ai.recover()
    assert (await turn.output).finish_reason == "stop"
    assert [f["verb"] for f in seen.facts("decision")] == ["restart"]


async def test_refused_decisions_are_told_wherever_they_are_refused() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen], model=ScriptedModel([call("ask", {}), "done"]))

    @ai.tool()
    async def ask() -> str:
        raise Interrupt(response=int)

    agent = ai.define_agent("a", store=MemoryStore())
    session = agent.connect()
    await session.send("go").output
    [waiting] = session.interrupts
    with pytest.raises(InvalidResponse):
        await session.resume(Resume(respond=[respond_to_interrupt("no number", waiting.paused)])).output
    with pytest.raises(InvalidResponse):
        await ai.inbox.respond(waiting.id, "no number", by="ann")
    with pytest.raises(Exception, match="no interrupt"):
        await ai.inbox.respond("i_nowhere", 1, by="ann")
    other = agent.connect(AgentInit(session_id=session.id))
    await other.load()
    await waiting.respond(1).output
    with pytest.raises((AlreadyResolved, SessionConflict)):
        await other.interrupts[0].respond(2).output
    told = [(s.name, s.facts["outcome"], s.facts.get("error")) for s in seen.of("decision")]
    assert told[:4] == [
        ("ask", "refused", "InvalidResponse"),
        ("ask", "refused", "InvalidResponse"),
        ("", "refused", "UnknownInterrupt"),
        ("ask", "accepted", None),
    ]
    assert [t[1] for t in told[4:]] == ["refused"]


async def test_a_handlers_decision_is_told_as_a_handlers() -> None:
    def yes(paused: PausedCall) -> Answer:
        return paused.restart()

    seen = Recorder()
    _, agent = pay_app([seen], [pay(), "done"], on_interrupt=yes)
    await agent.connect().send("go").output
    assert [s.name for s in seen.of("pause")] == ["pay"]
    assert [(f["by_kind"], f["outcome"]) for f in seen.facts("decision")] == [("handler", "accepted")]
    assert seen.facts("turn")[0]["outcome"] == "stop"


async def test_an_expiry_is_a_decision_of_nobody() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen], model=ScriptedModel([call("ask", {}), "done"]), clock=FakeClock())

    @ai.tool()
    async def ask() -> str:
        raise Interrupt(expires_in=10)

    agent = ai.define_agent("a", store=MemoryStore())
    await agent.connect().send("go").output
    advance(ai, 11)
    await ai.inbox.expire_due()
    assert [(f["verb"], f["by_kind"], f["outcome"]) for f in seen.facts("decision")] == [
        ("expire", "expiry", "accepted")
    ]


async def test_a_stuck_loop_is_told_with_its_bound() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen], model=ScriptedModel([call("ask", {})], repeat_last=True), limits=Limits(repeats=0))

    @ai.tool()
    async def ask() -> str:
        raise Interrupt("again")

    agent = ai.define_agent("a", store=MemoryStore())
    session = agent.connect()
    await session.send("go").output
    with pytest.raises(LimitReached):
        await session.interrupts[0].restart().output
    [limit] = seen.of("limit")
    assert (limit.name, limit.facts["agent"]) == ("repeats", "a")
    assert seen.facts("turn")[-1] | {"outcome": "failed", "limit": "repeats"} == seen.facts("turn")[-1]


async def test_a_model_that_is_tried_again_is_told_and_so_is_the_turn_to_another() -> None:
    seen = Recorder()
    busy = ScriptedModel([ModelError("busy", code=429, retryable=True)] * 2, name="a/one")
    other = ScriptedModel(["fine"], name="b/two")
    clock = FakeClock()
    model = fallback_model(retry_model(busy, attempts=2, clock=clock), other)
    ai = Adjourn(observers=[seen], model=model)
    assert (await ai.generate("go")).text == "fine"
    told = [(s.name, s.facts["attempt"], s.facts["error"]) for s in seen.of("retry")]
    assert told == [("a/one", 1, "http_429"), ("a/one", 1, "http_429")]
    assert seen.facts("retry")[0]["delay"] == clock.slept[0]


async def test_output_that_does_not_fit_is_a_correction() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen], model=ScriptedModel(["no number", "7"]))
    assert (await ai.generate("go", output=int)).output == 7
    assert [s.name for s in seen.of("correction")] == ["output"]


async def test_a_generate_is_a_turn_without_an_agent_and_tells_its_decisions() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen], model=ScriptedModel([call("ask", {}), "done"]))

    @ai.tool()
    async def ask(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        return "yes"

    paused = await ai.generate("go", tools=[ask])
    with pytest.raises(Exception, match="does not fit"):
        await ai.generate(
            resume_restart=restart_tool(interrupt=paused.interrupts[0], replace_input={"x": 1}), tools=[ask]
        )
    done = await ai.generate(resume_restart=restart_tool(interrupt=paused.interrupts[0]), tools=[ask])
    assert done.text == "done"
    assert [(s.name, s.facts["outcome"], s.facts["resumed"]) for s in seen.of("turn")] == [
        ("", "interrupted", False),
        ("", "stop", True),
    ]
    assert [(s.name, s.facts["verb"], s.facts["outcome"]) for s in seen.of("decision")] == [
        ("ask", "restart", "refused"),
        ("ask", "restart", "accepted"),
    ]
    assert [s.name for s in seen.of("pause")] == ["ask"]


async def test_a_session_without_a_store_is_observed_as_well() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen], model=ScriptedModel([call("ask", {}), "done"]))

    @ai.tool()
    async def ask(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        return "yes"

    session = ai.define_agent("a").connect()
    await session.send("go").output
    await session.interrupts[0].restart().output
    assert [f["outcome"] for f in seen.facts("turn")] == ["interrupted", "stop"]
    assert [(s.name, s.facts["verb"], s.facts["outcome"]) for s in seen.of("decision")] == [
        ("ask", "restart", "accepted")
    ]
    assert {f["session_id"] for f in seen.facts("turn")} == {session.id}


async def test_a_nested_agent_is_a_turn_of_its_own_and_its_pause_counts_once() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen])

    @ai.tool()
    async def ask(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        return "yes"

    inner = ai.define_agent("inner", model=ScriptedModel([call("ask", {}), "inside"]), tools=[ask])
    outer_model = ScriptedModel([call("inner", {"task": "do"}), "outside"])
    outer = ai.define_agent("outer", model=outer_model, tools=[inner.as_tool()], store=MemoryStore())
    session = outer.connect()
    await session.send("go").output
    await session.interrupts[0].restart().output
    assert [s.name for s in seen.of("turn")] == ["outer", "inner", "outer", "inner"]
    outside, inside = seen.facts("turn")[:2]
    assert inside["outer_turn_id"] == outside["turn_id"] != inside["turn_id"]
    assert inside["outer_call_id"] == seen.facts("tool")[0]["call_id"]
    assert [(s.name, s.facts["inner_agent"]) for s in seen.of("pause")] == [("inner", "inner")]
    assert [f["verb"] for f in seen.facts("decision")] == ["restart"]


async def test_a_leg_whose_driver_is_gone_is_told_as_taken_over() -> None:
    store: Store = MemoryStore()
    started = asyncio.Event()

    async def hang(_: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    first = Adjourn(model=ScriptedModel([hang]))
    turn = first.define_agent("a", store=store).connect(AgentInit(session_id="s")).send("go", detach=True)
    await started.wait()
    seen = Recorder()
    clock = FakeClock(first.clock.now() + 3600)  # its lease ends long before
    second = Adjourn(observers=[seen], model=ScriptedModel(["done"]), clock=clock)
    second.define_agent("a", store=store)
    [taken] = await second.recover()
    assert (await taken.output).finish_reason == "stop"
    [notice] = seen.of("takeover")
    assert (notice.name, notice.facts["session_id"], notice.facts["own"]) == ("a", "s", False)
    assert seen.facts("turn")[0]["recovered"] is True
    turn.abort()
    with pytest.raises(SessionConflict):
        await turn.output


async def test_a_turn_that_loses_its_lease_comes_to_nothing() -> None:
    seen = Recorder()
    store = MemoryStore()
    ai = Adjourn(observers=[seen], model=ScriptedModel([call("lose", {}), "never kept"]))

    @ai.tool()
    async def lose() -> str:
        row = store.session_rows["s"]
        store.session_rows["s"] = replace(row, epoch=row.epoch + 1)
        return "ran"

    agent = ai.define_agent("a", store=store)
    with pytest.raises(SessionConflict):
        await agent.connect(AgentInit(session_id="s")).send("go").output
    assert seen.facts("turn")[0]["outcome"] == "lost"


async def test_a_turn_whose_task_is_cancelled_was_aborted() -> None:
    seen = Recorder()
    started = asyncio.Event()

    async def hang(_: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    ai = Adjourn(observers=[seen], model=ScriptedModel([hang, hang]))
    task = asyncio.create_task(ai.generate("go"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    started.clear()
    turn = ai.define_agent("a", store=MemoryStore()).connect().send("go")
    await started.wait()
    turn.abort("enough")
    assert (await turn.output).finish_reason == "aborted"
    assert [f["outcome"] for f in seen.facts("turn")] == ["aborted", "aborted"]


async def test_a_decision_by_a_lost_commit_is_not_told_as_accepted() -> None:
    seen = Recorder()
    _, agent = pay_app([seen], [pay(), "done", "done"])
    session = agent.connect()
    await session.send("go").output
    twin = agent.connect(AgentInit(session_id=session.id))
    await twin.load()
    [mine], [theirs] = session.interrupts, twin.interrupts
    results = await asyncio.gather(mine.restart().output, theirs.respond("x").output, return_exceptions=True)
    assert sum(isinstance(r, Exception) for r in results) == 1
    assert sorted(f["outcome"] for f in seen.facts("decision")).count("accepted") == 1


async def test_a_part_as_a_refused_answer_is_told_without_its_content() -> None:
    seen = Recorder()
    _, agent = pay_app([seen], [pay(), "done"])
    session = agent.connect()
    await session.send("go").output
    forged = Part(tool_request=session.interrupts[0].tool_request, metadata={"adjourn": {"interrupt": CANARY}})
    with pytest.raises(Exception, match=CANARY):
        await session.resume(Resume(restart=[forged])).output
    [fact] = seen.facts("decision")
    assert (fact["verb"], fact["outcome"]) == ("restart", "refused")
    assert CANARY not in repr(fact)


async def test_a_decision_that_is_sent_twice_under_one_key_is_told_once() -> None:
    seen = Recorder()
    ai, agent = pay_app([seen], [pay(), "done"])
    await agent.connect().send("go").output
    [row] = (await ai.inbox.list()).items
    first = await ai.inbox.restart(row.id, by="ann", key="k1")
    assert first.turn is not None
    await first.turn.output
    again = await ai.inbox.restart(row.id, by="ann", key="k1")
    assert again.repeated
    assert [f["outcome"] for f in seen.facts("decision")] == ["accepted"]


async def test_a_decision_that_comes_too_late_is_refused_and_the_expiry_is_told_with_it() -> None:
    seen = Recorder()
    ai = Adjourn(observers=[seen], model=ScriptedModel([call("ask", {}), "done"]), clock=FakeClock())

    @ai.tool()
    async def ask() -> str:
        raise Interrupt(expires_in=10)

    await ai.define_agent("a", store=MemoryStore()).connect().send("go").output
    [row] = (await ai.inbox.list()).items
    advance(ai, 11)
    with pytest.raises(StaleInterrupt):
        await ai.inbox.respond(row.id, "late", by="ann")
    told = [(f["verb"], f["outcome"]) for f in seen.facts("decision")]
    assert sorted(told) == [("expire", "accepted"), ("respond", "refused")]
