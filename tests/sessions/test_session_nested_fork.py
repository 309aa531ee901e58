"""Forks of a conversation that is paused inside a nested agent: each branch has an inner session of its own."""

from typing import Any

import pytest

from adjourn import Adjourn, AgentInit, Interrupt, ToolRunContext
from adjourn.errors import AlreadyResolved
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import World, assert_sendable, outputs_of
from sessions.test_session_nested import PAY, Outer, delegated

SIX = call("pay", {"amount": 6})


def opened(world: World, deep: bool, inner: list[Any], outer: list[Any]) -> Outer:
    """As another process would have it."""
    middle = ["Managed."] * 4 if deep else None
    return Outer(world, inner=inner, middle=middle, outer=outer)


async def paused(world: World, deep: bool = False) -> Any:
    """A session that waits inside, and its application."""
    if deep:
        middle = [call("buyer", {"task": "buy"}), *["Managed."] * 3]
        outer = delegated(*["All done."] * 3, name="manager")
        app = Outer(world, inner=[PAY, *["Bought."] * 3], middle=middle, outer=outer)
    else:
        app = Outer(world, inner=[PAY, *["Bought."] * 3], outer=delegated(*["All done."] * 3))
    session = app.connect()
    assert (await session.send("get tea").output).finish_reason == "interrupted"
    return session, app


@pytest.mark.parametrize("first", ["branch", "trunk"])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("deep", [False, True])
async def test_both_branches_are_answered_in_any_order_each_with_what_it_was_told(
    world: World, deep: bool, fresh: bool, first: str
) -> None:
    session, _ = await paused(world, deep)
    branch = await session.fork()
    ids = (session.interrupts[0].id, branch.interrupts[0].id)
    assert ids[0] != ids[1]
    if fresh:
        app = opened(world, deep, ["Bought."] * 2, ["All done."] * 2)
        at = branch.snapshot_id
        session = app.agent.connect(AgentInit(session_id=session.id, snapshot_id=session.snapshot_id))
        branch = app.agent.connect(AgentInit(session_id=session.id, snapshot_id=at))
    for which, name in (
        [(branch, "branch"), (session, "trunk")] if first == "branch" else [(session, "trunk"), (branch, "branch")]
    ):
        await which.load()
        output = await which.interrupts[0].restart({"by": name}).output
        assert output.text == "All done."
        assert_sendable(which.messages)
    assert world.done("paid") == [5, 5]
    assert world.done("asked") == [5]
    notes = [e[1] for e in world.log if e[0] == "paid"]
    assert len(notes) == 2


@pytest.mark.parametrize("deep", [False, True])
async def test_a_branch_is_declined_while_the_other_goes_through(world: World, deep: bool) -> None:
    session, app = await paused(world, deep)
    branch = await session.fork()
    await session.interrupts[0].restart().output
    await branch.interrupts[0].decline("too dear").output
    told = [outputs_of(r.messages) for r in app.inner.requests[1:]]
    assert told == [[{"paid": 5, "note": {}}], [{"declined": True, "reason": "too dear"}]]
    assert world.done("paid") == [5]


async def test_three_branches_are_all_answered(world: World) -> None:
    session, app = await paused(world)
    branches = [session, await session.fork(), await session.fork()]
    for number, branch in enumerate(branches):
        assert (await branch.interrupts[0].respond({"n": number}).output).text == "All done."
    assert [outputs_of(r.messages) for r in app.inner.requests[1:]] == [[{"n": 0}], [{"n": 1}], [{"n": 2}]]


async def test_a_branch_that_pauses_again_goes_on_in_its_own_inner_session(world: World) -> None:
    app = Outer(
        world, inner=[PAY, SIX, call("pay", {"amount": 7}), "Bought.", "Bought."], outer=delegated(*["Done."] * 2)
    )
    session = app.connect()
    await session.send("get tea").output
    branch = await session.fork()
    await session.interrupts[0].restart().output
    await branch.interrupts[0].restart().output
    assert session.interrupts[0].payload["input"] == {"amount": 6}
    assert branch.interrupts[0].payload["input"] == {"amount": 7}
    assert (await branch.interrupts[0].restart().output).text == "Done."
    assert (await session.interrupts[0].respond("no").output).text == "Done."
    told = [outputs_of(r.messages) for r in app.inner.requests[3:]]
    five: Any = {"paid": 5, "note": {}}
    assert told == [[five, {"paid": 7, "note": {}}], [five, "no"]]
    assert world.done("paid") == [5, 5, 7]


async def test_a_fork_after_a_partial_answer_keeps_that_answer_in_both_branches(world: World) -> None:
    app = Outer(world, inner=[[PAY, SIX], "Bought.", "Bought."], outer=delegated(*["Done."] * 2))
    session = app.connect()
    await session.send("get tea").output
    first = session.interrupts[0].payload["input"]["amount"]
    await session.interrupts[0].respond(f"paid {first}").output
    branch = await session.fork()
    assert (await session.interrupts[0].respond("trunk").output).text == "Done."
    assert (await branch.interrupts[0].respond("branch").output).text == "Done."
    assert [outputs_of(r.messages) for r in app.inner.requests[1:]] == [["paid 5", "trunk"], ["paid 5", "branch"]]


async def test_the_inbox_answers_each_branch_by_its_own_id(world: World) -> None:
    session, _ = await paused(world)
    await session.fork()
    fresh = Outer(world, inner=["Bought."] * 2, outer=["All done."] * 2)
    rows = (await fresh.ai.inbox.list()).items
    assert len(rows) == 2
    for row in rows:
        accepted = await fresh.ai.inbox.restart(row.id, by="ann")
        assert accepted.turn is not None
        assert (await accepted.turn.output).text == "All done."
    assert world.done("paid") == [5, 5]
    with pytest.raises(AlreadyResolved):
        await fresh.ai.inbox.restart(rows[0].id, by="bob")


async def test_each_branch_expires_by_itself(world: World) -> None:
    def define(app: Outer) -> None:
        @app.ai.tool()
        async def wait(n: int) -> str:
            raise Interrupt({"n": n}, expires_in=60.0)

    app = Outer(
        world, inner=[call("wait", {"n": 1}), "Gave up.", "Gave up."], outer=delegated(*["Done."] * 2), define=define
    )
    session = app.connect()
    await session.send("get tea").output
    await session.fork()
    world.clock.time += 61.0
    assert len(await app.ai.inbox.expire_due(run=False)) == 2
    while turns := await app.ai.recover():  # one branch at a time
        assert [(await t.output).text for t in turns] == ["Done."]
    outputs = [outputs_of(r.messages) for r in app.inner.requests[1:]]
    assert [o[0]["expired"] for o in outputs] == [True, True]
    assert len(app.outer.requests) == 3


async def test_a_decision_that_was_accepted_in_time_holds_although_it_comes_in_late(world: World) -> None:
    def define(app: Outer) -> None:
        @app.ai.tool()
        async def wait(n: int) -> str:
            raise Interrupt({"n": n}, expires_in=60.0)

    app = Outer(world, inner=[call("wait", {"n": 1})], outer=delegated(), define=define)
    session = app.connect()
    await session.send("get tea").output
    await app.ai.inbox.respond(session.interrupts[0].id, "in time", by="ann", run=False)
    world.clock.time += 61.0
    fresh = Outer(world, inner=["Bought."], outer=["Done."], define=define)
    (turn,) = await fresh.ai.recover()
    assert (await turn.output).text == "Done."
    assert [outputs_of(r.messages) for r in fresh.inner.requests] == [["in time"]]


async def test_a_nested_pause_that_gives_way_to_a_message_reads_as_declined(world: World) -> None:
    app = Outer(world, inner=[PAY], outer=delegated("Hello."), on_message_while_paused="decline")
    session = app.connect()
    await session.send("get tea").output
    assert (await session.send("Never mind, say hello.").output).text == "Hello."
    (output,) = outputs_of(session.messages)
    assert output["declined"] is True
    assert "went on with another message" in output["reason"]
    assert "may have taken effect" in output["reason"]
    (part,) = [p for m in session.messages if m.role == "tool" for p in m.content]
    assert part.ours["outcome"] == "declined"
    assert (await app.ai.inbox.list()).items == []
    assert_sendable(session.messages)
    reloaded = await Outer(world, inner=[], outer=[]).connect(session.id).load()
    assert outputs_of(reloaded.messages) == [output]


async def test_a_decision_on_one_branch_outlives_the_end_of_the_other(world: World) -> None:
    # Without nesting: it was accepted, and waits for a driver, while the other branch runs to its end.
    before = world.process(PAY)
    session = before.connect()
    await session.send("pay").output
    branch = await session.fork()
    await before.ai.inbox.restart(session.interrupts[0].id, by="ann", run=False)
    await before.ai.inbox.restart(branch.interrupts[0].id, by="ann", run=False)
    after = world.process("Paid.", "Paid.")
    ended: list[str] = []
    while turns := await after.ai.recover():
        ended += [(await t.output).text for t in turns]
    assert ended == ["Paid.", "Paid."]
    assert world.done("paid") == [5, 5]


async def test_what_is_approved_inside_in_several_branches_has_a_key_in_each(world: World) -> None:
    ai, keys = Adjourn(), list[str]()

    @ai.tool()
    async def charge(amount: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"amount": amount})
        keys.append(ctx.idempotency_key)
        return "charged"

    inside = ScriptedModel([call("charge", {"amount": 1}), *["ok"] * 3])
    buyer = ai.define_agent("buyer", model=inside, tools=[charge])
    outside = ScriptedModel([call("buyer", {"task": "buy"}), *["done"] * 3])
    session = ai.define_agent("outer", model=outside, store=world.place.open(), tools=[buyer.as_tool()]).connect()
    await session.send("go").output
    first = await session.fork()
    second = await first.fork()
    for live in (first, session, second):
        assert (await live.interrupts[0].restart({}).output).text == "done"
    assert len(keys) == len(set(keys)) == 3
