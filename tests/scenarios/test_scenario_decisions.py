"""Faults that others made public, as scenarios: answers that went astray, refused calls that ran, pauses nobody could reach."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjourn import (
    Adjourn,
    AgentInit,
    Interrupt,
    Part,
    Resume,
    ResumeError,
    StaleInterrupt,
    ToolFailed,
    ToolGone,
    ToolResponse,
    ToolRunContext,
)
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, assert_sendable, make_place, outputs_of, shown


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    place = make_place(request.param, tmp_path, lambda: "")
    yield World(place)
    place.close()


def pays(*amounts: int) -> list[Any]:
    return [call("pay", {"amount": n}) for n in amounts]


# -- which answer reaches which call ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("fresh", [False, True])
async def test_answers_in_any_order_each_reach_their_own_call(
    world: World, order: tuple[int, ...], fresh: bool
) -> None:
    session = world.process(pays(7, 7, 8), "ok").connect()
    await session.send("go").output
    ids = [i.id for i in session.interrupts]
    assert len(set(ids)) == 3
    for n in order:
        if fresh:
            session = await world.process("ok").connect(session.id).load()
        interrupt = next(i for i in session.interrupts if i.id == ids[n])
        await interrupt.respond(f"answer {n}").output
    assert outputs_of(session.messages) == ["answer 0", "answer 1", "answer 2"]
    assert world.done("asked") == [7, 7, 8]
    assert world.done("paid") == []


async def test_pauses_that_happen_in_random_order_have_ids_of_their_own_and_take_their_own_answers(
    world: World,
) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def gate(n: int, hops: int) -> str:
            for _ in range(hops):
                await asyncio.sleep(0)
            if n == 1:
                return "free"
            raise Interrupt({"n": n})

    for seed in range(30):
        dice = random.Random(seed)
        calls = [call("gate", {"n": n, "hops": dice.randrange(6)}) for n in range(3)]
        process = world.process(calls, "ok", define=define)
        session = process.connect()
        await session.send("go").output
        again = await world.process("ok", define=define).connect(session.id).load()
        assert shown(again) == shown(session)
        assert [i.payload["n"] for i in again.interrupts] == [0, 2]
        by_id = {i.id: i for i in again.interrupts}
        assert len(by_id) == 2
        waiting = list(by_id.values())
        dice.shuffle(waiting)
        for interrupt in waiting:
            await interrupt.respond(f"for {interrupt.payload['n']}").output
        assert outputs_of(again.messages) == ["for 0", "free", "for 2"]


async def test_two_of_three_answered_together_are_not_asked_again_and_the_turn_waits_for_the_third(
    world: World,
) -> None:
    process = world.process(pays(1, 2, 3), "ok")
    session = process.connect()
    await session.send("go").output
    first, second, third = session.interrupts
    output = await session.resume(Resume(respond=[second.paused.respond("b"), first.paused.respond("a")])).output
    assert output.finish_reason == "interrupted"
    assert [i.id for i in output.interrupts] == [third.id]
    assert [r.id for r in (await process.ai.inbox.list()).items] == [third.id]
    assert process.model.calls == 1
    again = await world.process("ok").connect(session.id).load()
    assert [i.id for i in again.interrupts] == [third.id]
    assert (await again.interrupts[0].respond("c").output).text == "ok"
    assert outputs_of(again.messages) == ["a", "b", "c"]
    assert world.done("asked") == [1, 2, 3]


async def test_answers_without_a_key_are_refused_where_they_would_fit_more_than_one_call(world: World) -> None:
    process = world.process([call("pay", {"amount": 1}, ref="a"), call("pay", {"amount": 2}, ref="b")], "ok")
    session = process.connect()
    await session.send("go").output
    before = shown(session)
    unkeyed = [Part(tool_response=ToolResponse("pay", None, output)) for output in ("first", "second")]
    for respond in (unkeyed, unkeyed[:1]):
        with pytest.raises(ResumeError, match="ref"):
            await session.resume(Resume(respond=respond)).output
    assert shown(session) == before
    assert process.model.calls == 1
    keyed = [Part(tool_response=ToolResponse("pay", ref, f"for {ref}")) for ref in ("b", "a")]
    await session.resume(Resume(respond=keyed)).output
    assert outputs_of(session.messages) == ["for a", "for b"]


async def test_a_tool_that_was_added_while_running_pauses_and_resumes_like_any_other(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def grow() -> str:
            @p.ai.tool()
            async def late(n: int, ctx: ToolRunContext) -> str:
                if not ctx.is_resumed():
                    raise Interrupt({"n": n})
                world.log.append(("late", n))
                return f"late {n}"

            return "grown"

    replies = [call("grow"), [call("late", {"n": 1}), call("late", {"n": 2})], "ok"]
    session = world.process(*replies, define=define).connect()
    await session.send("go").output
    assert [i.payload for i in session.interrupts] == [{"n": 1}, {"n": 2}]
    await session.interrupts[1].restart().output
    assert (await session.interrupts[0].restart().output).text == "ok"
    assert outputs_of(session.messages) == ["grown", "late 1", "late 2"]
    assert world.done("late") == [2, 1]


# -- what was refused ------------------------------------------------------------------------------------------------


def gated(p: Process) -> None:
    @p.ai.tool(approval=True)
    async def remove(path: str) -> str:
        p.log.append(("removed", path))
        return f"removed {path}"


async def test_a_declined_call_never_runs_in_a_later_turn_a_fork_a_retry_or_another_process(world: World) -> None:
    session = world.process(call("remove", {"path": "a"}), "Left.", "More.", define=gated).connect()
    await session.send("go").output
    paused_at = session.snapshot_id
    declined = session.interrupts[0]
    reason = "nein, „zu gefährlich“ \N{THUMBS DOWN SIGN}"
    assert (await declined.decline(reason).output).text == "Left."
    await session.send("and now?").output
    with pytest.raises(ResumeError):
        await declined.restart().output
    fresh = world.process("Still left.", define=gated)
    again = await fresh.connect(session.id).load()
    assert await fresh.ai.recover() == []
    assert outputs_of(again.messages) == [{"declined": True, "reason": reason}]
    with pytest.raises(ResumeError):
        await fresh.ai.inbox.restart(declined.id)
    with pytest.raises(ResumeError):
        await again.retry().output
    after = await again.fork()
    await after.send("go on").output
    before = await again.fork(paused_at)
    assert [i.id == declined.id for i in before.interrupts] == [False]  # the branch asks anew, and nothing was run
    assert outputs_of(after.messages) == outputs_of(again.messages)
    assert world.done("removed") == []


async def test_approved_declined_and_ungated_calls_each_have_their_result_in_call_order(world: World) -> None:
    calls = [call("remove", {"path": "a"}), call("remove", {"path": "b"}), call("look", {"key": "c"})]
    session = world.process(calls, "ok", define=gated).connect()
    await session.send("go").output
    assert world.done("looked") == ["c"]  # what needs no approval does not wait for what does
    assert [i.reason for i in session.interrupts] == ["approval", "approval"]
    approve, refuse = session.interrupts
    answers = [refuse.paused.decline("no")]
    await session.resume(Resume(respond=answers, restart=[approve.paused.restart()])).output
    assert outputs_of(session.messages) == ["removed a", {"declined": True, "reason": "no"}, {"found": "c"}]
    assert world.done("removed") == ["a"]
    assert world.done("looked") == ["c"]
    assert_sendable(session.messages)


# -- whose pause it is, and whether it can be reached ----------------------------------------------------------------


async def test_a_pause_is_listed_in_its_own_session_only(world: World) -> None:
    one, two = world.process(*pays(1)).connect(), world.process("hello").connect()
    await one.send("go").output
    await two.send("hi").output
    fresh = world.process()
    assert shown(await fresh.connect(one.id).load()) == shown(one)
    assert (await fresh.connect(two.id).load()).interrupts == []
    assert [r.id for r in (await fresh.ai.inbox.list(session_id=one.id)).items] == [one.interrupts[0].id]
    assert (await fresh.ai.inbox.list(session_id=two.id)).items == []


async def test_the_owner_is_kept_and_whoever_answered_is_recorded(world: World) -> None:
    process = world.process(*pays(1))
    session = process.connect(owner="ann")
    await session.send("go").output
    fresh = world.process("ok")
    interrupt_id = session.interrupts[0].id
    accepted = await fresh.ai.inbox.restart(interrupt_id, by="bob", address="10.0.0.7")
    assert accepted.turn is not None
    await accepted.turn.output
    again = await world.process("more").connect(session.id, owner="bob").load()
    await again.send("and?").output
    assert (again.owner, (await world.process().connect(session.id).load()).owner) == ("ann", "ann")
    history = await fresh.ai.inbox.history(interrupt_id)
    assert [(d.verb, d.by, d.address) for d in history] == [("restart", "bob", "10.0.0.7")]
    assert (await fresh.ai.inbox.get(interrupt_id)).owner == "ann"


async def test_a_pause_whose_tool_is_gone_is_listed_says_what_is_missing_and_can_be_closed(world: World) -> None:
    session = world.process(call("remove", {"path": "a"}), define=gated).connect()
    await session.send("go").output
    without = world.process("Closed.")
    (row,) = (await without.ai.inbox.list()).items
    assert (row.tool, row.agent, row.session_id, row.input) == ("remove", "clerk", session.id, {"path": "a"})
    with pytest.raises(ToolGone, match=r"'remove' is not defined here.*respond or decline"):
        await without.ai.inbox.restart(row.id)
    assert (await without.ai.inbox.get(row.id)).status == "open"
    accepted = await without.ai.inbox.decline(row.id, "the tool was removed")
    assert accepted.turn is not None
    assert (await accepted.turn.output).text == "Closed."
    assert (await without.ai.inbox.list()).items == []
    assert world.done("removed") == []


async def test_a_pause_whose_agent_is_gone_can_be_closed_and_its_session_goes_on_when_the_agent_is_back(
    world: World,
) -> None:
    session = world.process(call("remove", {"path": "a"}), define=gated).connect()
    await session.send("go").output
    ai = Adjourn(clock=world.clock)
    ai.define_agent("renamed", store=world.place.open(), tools=[])
    (row,) = (await ai.inbox.list()).items
    with pytest.raises(ToolGone, match="'clerk' is not defined"):
        await ai.inbox.restart(row.id, replace_input={"path": "b"})
    assert (await ai.inbox.decline(row.id, "nobody there")).turn is None
    assert (await ai.inbox.list()).items == []
    back = world.process("Closed.", define=gated)
    assert [(await t.output).text for t in await back.ai.recover()] == ["Closed."]
    assert world.done("removed") == []


async def test_a_cancelled_turn_and_a_paused_one_differ_and_the_next_message_is_never_taken_for_an_answer(
    world: World,
) -> None:
    process = world.process(*pays(1), *pays(2), "heard")
    paused, cancelled = process.connect(), process.connect()
    one = await paused.send("go").output
    await cancelled.send("go").output
    gone = cancelled.interrupts[0]
    await cancelled.abort("enough")
    view = await process.agent.get_snapshot(session_id=cancelled.id)
    assert view is not None
    assert (one.finish_reason, view.finish_reason, view.status) == ("interrupted", "aborted", "aborted")
    assert (await cancelled.send("yes").output).text == "heard"
    assert [m.text for m in cancelled.messages if m.role == "user"] == ["go", "yes"]
    with pytest.raises(StaleInterrupt):
        await gone.restart().output
    assert len(paused.interrupts) == 1
    assert world.done("paid") == []


# -- agents in agents ------------------------------------------------------------------------------------------------


def four_agents(world: World, texts: list[Any]) -> tuple[Process, Any]:
    """A boss over a head over a lead over a buyer who pays; each says the next of its own replies."""
    process = Process(world.place.open(), world.log, clock=world.clock)
    below: Any = "pay"
    for name, replies in zip(["buyer", "lead", "head"], texts, strict=False):
        agent = process.ai.define_agent(name, model=ScriptedModel(replies), tools=[below], description=name)
        below = agent.as_tool()

    @process.ai.tool()
    async def outer(ctx: ToolRunContext) -> str:
        world.log.append(("outer", None))
        return "beside"

    boss = process.ai.define_agent("boss", model=ScriptedModel(texts[3]), tools=[below, outer], store=process.store)
    return process, boss


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("verb", ["respond", "restart", "edit", "decline"])
async def test_a_pause_three_agents_deep_is_shown_with_its_path_and_takes_every_decision_at_the_root(
    world: World, verb: str, fresh: bool
) -> None:
    def task(name: str) -> Any:
        return call(name, {"task": "buy tea"})

    texts = [[*pays(5), "b"], [task("buyer"), "l"], [task("lead"), "h"], [[task("head"), call("outer")], "done"]]
    process, boss = four_agents(world, texts)
    session = boss.connect()
    await session.send("go").output
    if fresh:
        process, boss = four_agents(world, [["b"], ["l"], ["h"], ["done"]])
        session = await boss.connect(AgentInit(session_id=session.id)).load()
    (row,) = (await process.ai.inbox.list()).items
    (interrupt,) = session.interrupts
    assert (interrupt.id, interrupt.path) == (row.id, row.path)
    assert interrupt.path == ("head", "lead", "buyer")
    turn = {
        "respond": lambda: interrupt.respond("by hand"),
        "restart": interrupt.restart,
        "edit": lambda: interrupt.restart(replace_input={"amount": 4}),
        "decline": lambda: interrupt.decline("no"),
    }[verb]()
    assert (await turn.output).text == "done"
    assert outputs_of(session.messages) == ["h", "beside"]
    assert world.done("paid") == {"restart": [5], "edit": [4]}.get(verb, [])
    assert world.done("asked") == [5]
    assert len(world.done("outer")) == 1
    assert (await process.ai.inbox.list()).items == []


def boss_and_buyer(world: World, store: Any, inner: list[Any], outer: list[Any]) -> tuple[Process, Any]:
    process = Process(store, world.log, clock=world.clock)

    @process.ai.tool()
    async def sign(what: str, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"sign": what}, expires_in=60)
        world.log.append(("signed", what))
        return "signed"

    buyer = process.ai.define_agent("buyer", model=ScriptedModel(inner), tools=["pay", sign])
    boss = process.ai.define_agent("boss", model=ScriptedModel(outer), tools=[buyer.as_tool()], store=store)
    return process, boss


TASK = call("buyer", {"task": "buy tea"})


@pytest.mark.parametrize("verb", ["restart", "respond", "decline"])
async def test_a_pause_inside_that_was_answered_in_another_branch_is_answered_in_this_one_by_itself(
    world: World, verb: str
) -> None:
    process, boss = boss_and_buyer(world, world.place.open(), [*pays(5), "b", "c"], [TASK, "done", "closed"])
    session = boss.connect()
    await session.send("go").output
    branch = await session.fork()
    assert (await session.interrupts[0].restart().output).text == "done"
    answer: Any = "by hand" if verb != "restart" else {"by": "hand"}
    assert (await getattr(branch.interrupts[0], verb)(answer).output).text == "closed"
    assert (session.interrupts, branch.interrupts) == ([], [])
    assert (await process.ai.inbox.list()).items == []
    assert world.done("paid") == ([5, 5] if verb == "restart" else [5])
    assert_sendable(branch.messages)


async def test_a_pause_inside_that_was_answered_in_another_branch_expires_once_and_for_all(world: World) -> None:
    sign = call("sign", {"what": "tea"})
    process, boss = boss_and_buyer(world, world.place.open(), [sign, "b", "c"], [TASK, "done", "late"])
    session = boss.connect()
    await session.send("go").output
    await session.fork()
    await session.interrupts[0].restart().output
    world.clock.time += 61
    await process.ai.inbox.expire_due(run=False)
    (turn,) = await process.ai.recover()
    await turn.settled()
    assert await process.ai.recover() == []  # or every worker would take it up for ever
    output = await turn.output
    assert (output.text, output.interrupts) == ("late", [])
    assert outputs_of(output.messages) == ["c"]  # the agent inside was told that nobody decided, and went on
    assert world.done("signed") == ["tea"]


@pytest.mark.parametrize("verb", ["restart", "respond"])
async def test_a_pause_inside_whose_session_is_lost_can_be_closed(world: World, verb: str) -> None:
    _, boss = boss_and_buyer(world, None, pays(5), [TASK])
    state = (await boss.connect().send("go").output).client_state
    _, elsewhere = boss_and_buyer(world, None, ["b"], ["closed"])
    session = elsewhere.connect(AgentInit(state=state))
    with pytest.raises(ToolFailed, match="is gone"):
        await (session.interrupts[0].restart() if verb == "restart" else session.interrupts[0].respond(1)).output
    assert (await session.interrupts[0].decline("lost").output).text == "closed"
    assert session.interrupts == []
    assert world.done("paid") == []
    assert_sendable(session.messages)
