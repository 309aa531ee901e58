"""Agents as tools of agents: a pause inside surfaces outside, and its answer goes back in, in any process."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from adjourn import Adjourn, MemoryStore, SessionConflict, ToolFailed
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, assert_sendable, desk, outputs_of


class Outer:
    """An outer agent that delegates to "buyer" (directly, or through "manager"), which pays."""

    def __init__(
        self,
        world: World,
        *,
        inner: list[Any],
        outer: list[Any],
        middle: list[Any] | None = None,
        define: "Callable[[Outer], None] | None" = None,
        **options: Any,
    ) -> None:
        self.process = Process(world.place.open(), world.log, clock=world.clock)
        ai: Adjourn = self.process.ai
        self.ai = ai
        if define is not None:
            define(self)
        self.inner, self.outer = ScriptedModel(inner), ScriptedModel(outer)
        self.buyer = ai.define_agent("buyer", model=self.inner, tools=[*ai.tools], description="Buys things.")
        delegate: Any = self.buyer.as_tool()
        if middle is not None:
            self.middle = ScriptedModel(middle)
            manager = ai.define_agent("manager", model=self.middle, tools=[delegate])
            delegate = manager.as_tool()
        self.tool = delegate.name
        options = {"store": self.process.store, **options}
        self.agent = ai.define_agent("boss", model=self.outer, tools=[delegate, "look"], **options)

    def connect(self, session_id: str | None = None) -> Any:
        from adjourn import AgentInit

        return self.agent.connect(AgentInit(session_id=session_id))


PAY = call("pay", {"amount": 5})


def delegated(*more: Any, name: str = "buyer") -> list[Any]:
    return [call(name, {"task": "buy tea"}), *more]


async def test_timelines_tell_the_call_that_a_decision_inside_was_about(world: World) -> None:
    middle = [call("buyer", {"task": "tea, please"}), "Told so."]
    app = Outer(world, inner=[PAY, "Bought."], middle=middle, outer=delegated("All done.", name="manager"))
    session = app.connect()
    await session.send("get tea").output
    accepted = await app.ai.inbox.restart(session.interrupts[0].id, replace_input={"amount": 4}, by="ann")
    assert accepted.turn is not None
    await accepted.turn.output
    store = world.place.open()

    def inside(session_id: str) -> str:
        row = store.submit(lambda tx: tx.session(session_id), read=True).result(60)
        assert row is not None
        return row.inner[0]

    manager = inside(session.id)
    for session_id, by in ((session.id, " by ann"), (manager, "")):
        titles = [e for e in await desk(world).sessions.timeline(session_id) if e.kind in ("pause", "decision")]
        way = "manager > buyer" if by else "buyer"
        assert [e.title for e in titles] == [
            f"pay(amount=5) in {way} waits for a decision",
            f"pay(amount=5) in {way} was sent round again with another input{by}",
        ]
        assert (titles[1].facts["inputBefore"], titles[1].facts["input"]) == ({"amount": 5}, {"amount": 4})
    *_, decision, ran, _, _ = await desk(world).sessions.timeline(inside(manager))
    assert decision.title == "pay(amount=5) was sent round again with another input"
    assert (decision.facts["inputBefore"], decision.facts["input"]) == ({"amount": 5}, {"amount": 4})
    assert ran.title == "pay(amount=4) ran"


async def test_a_delegated_task_runs_in_the_inner_agent_and_its_answer_comes_back(world: World) -> None:
    app = Outer(world, inner=[call("look", {"key": "tea"}), "Bought tea."], outer=delegated("All done."))
    session = app.connect()
    assert (await session.send("get tea").output).text == "All done."
    assert outputs_of(session.messages) == ["Bought tea."]
    assert app.inner.requests[0].messages[-1].text == "buy tea"
    assert world.done("looked") == ["tea"]


async def test_a_pause_inside_surfaces_with_its_path_and_what_it_asks(world: World) -> None:
    app = Outer(world, inner=[PAY, "Bought."], outer=delegated("All done."))
    session = app.connect()
    turn = session.send("get tea")
    chunks = [c.interrupt async for c in turn.stream if c.interrupt]
    assert len(chunks) == 1
    (interrupt,) = session.interrupts
    assert interrupt.path == ("buyer",)
    assert interrupt.payload["agent"] == "buyer"
    assert interrupt.payload["tool"] == "pay"
    assert interrupt.payload["input"] == {"amount": 5}
    assert interrupt.payload["payload"] == {"amount": 5}
    (row,) = (await app.ai.inbox.list()).items
    assert (row.id, row.path, row.session_id) == (interrupt.id, ("buyer",), session.id)


async def test_a_pause_inside_has_its_path_without_a_session_around_it(world: World) -> None:
    app = Outer(world, inner=[PAY, "Bought."], outer=delegated("All done."))
    response = await app.ai.generate("get tea", model=app.outer, tools=[app.buyer.as_tool()])
    assert [i.path for i in response.interrupts] == [("buyer",)]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("verb", ["restart", "respond", "decline"])
async def test_the_answer_goes_back_in_and_the_inner_tool_runs_at_most_once(
    world: World, fresh: bool, verb: str
) -> None:
    app = Outer(world, inner=[PAY, "Bought."], outer=delegated("All done."))
    session = app.connect()
    await session.send("get tea").output
    if fresh:
        app = Outer(world, inner=["Bought."], outer=["All done."])
        session = await app.connect(session.id).load()
    interrupt = session.interrupts[0]
    if verb == "restart":
        output = await interrupt.restart({"by": "ann"}).output
    elif verb == "respond":
        output = await interrupt.respond({"paid": "by hand"}).output
    else:
        output = await interrupt.decline("too dear").output
    assert output.text == "All done."
    assert outputs_of(session.messages) == ["Bought."]
    expected = {
        "restart": {"paid": 5, "note": {"by": "ann"}},
        "respond": {"paid": "by hand"},
        "decline": {"declined": True, "reason": "too dear"},
    }
    assert outputs_of(app.inner.requests[-1].messages) == [expected[verb]]
    assert world.done("paid") == ([5] if verb == "restart" else [])
    assert world.done("asked") == [5]
    assert (await app.ai.inbox.list()).items == []
    assert_sendable(session.messages)


async def test_the_answer_finds_its_way_from_the_inbox_of_a_fresh_process(world: World) -> None:
    app = Outer(world, inner=[PAY], outer=delegated())
    await app.connect().send("get tea").output
    fresh = Outer(world, inner=["Bought."], outer=["All done."])
    (row,) = (await fresh.ai.inbox.list()).items
    accepted = await fresh.ai.inbox.restart(row.id, by="ann")
    assert accepted.turn is not None
    assert (await accepted.turn.output).text == "All done."
    assert world.done("paid") == [5]


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_pause_two_levels_deep_surfaces_at_the_root_and_takes_its_answer_in(world: World, fresh: bool) -> None:
    app = Outer(
        world, inner=[PAY, "Bought."], middle=[call("buyer", {"task": "buy"}), "Managed."],
        outer=delegated("All done.", name="manager"),
    )  # fmt: skip
    session = app.connect()
    await session.send("get tea").output
    assert session.interrupts[0].path == ("manager", "buyer")
    if fresh:
        app = Outer(world, inner=["Bought."], middle=["Managed."], outer=["All done."])
        session = await app.connect(session.id).load()
    assert (await session.interrupts[0].restart({"by": "ann"}).output).text == "All done."
    assert outputs_of(session.messages) == ["Managed."]
    assert world.done("paid") == [5]
    assert world.done("asked") == [5]


async def test_the_second_pause_inside_waits_for_an_answer_of_its_own(world: World) -> None:
    app = Outer(world, inner=[PAY, call("pay", {"amount": 6}), "Bought."], outer=delegated("All done."))
    session = app.connect()
    await session.send("get tea").output
    first = session.interrupts[0]
    output = await first.restart().output
    assert output.finish_reason == "interrupted"
    assert session.interrupts[0].id != first.id
    assert session.interrupts[0].payload["payload"] == {"amount": 6}
    assert world.done("paid") == [5]
    assert (await session.interrupts[0].restart().output).text == "All done."
    assert world.done("paid") == [5, 6]


async def test_two_parallel_pauses_inside_are_answered_one_after_the_other(world: World) -> None:
    app = Outer(world, inner=[[PAY, call("pay", {"amount": 6})], "Bought."], outer=delegated("All done."))
    session = app.connect()
    await session.send("get tea").output
    seen: list[int] = []
    output: Any = None
    while session.interrupts:
        interrupt = session.interrupts[0]
        seen.append(interrupt.payload["input"]["amount"])
        output = await interrupt.respond(f"paid {seen[-1]}").output
    assert sorted(seen) == [5, 6]
    assert output.text == "All done."
    assert outputs_of(app.inner.requests[1].messages) == ["paid 5", "paid 6"]


async def test_a_sibling_of_the_delegation_runs_once_whatever_happens_inside(world: World) -> None:
    outer = [[call("buyer", {"task": "buy"}), call("look", {"key": "sibling"})], "All done."]
    app = Outer(world, inner=[PAY, "Bought."], outer=outer)
    session = app.connect()
    await session.send("get tea").output
    fresh = Outer(world, inner=["Bought."], outer=["All done."])
    session = await fresh.connect(session.id).load()
    assert (await session.interrupts[0].restart().output).text == "All done."
    assert world.done("looked") == ["sibling"]


async def test_an_inner_failure_is_retried_where_it_stands_and_repeats_nothing(world: World) -> None:
    app = Outer(world, inner=[PAY, RuntimeError("model away"), "Bought."], outer=delegated("All done."))
    session = app.connect()
    await session.send("get tea").output
    with pytest.raises(ToolFailed):
        await session.interrupts[0].restart().output
    assert world.done("paid") == [5]
    output = await session.retry().output
    if output.finish_reason == "interrupted":
        output = await session.interrupts[0].restart().output
    assert output.text == "All done."
    assert world.done("paid") == [5]


async def test_the_inner_session_is_not_listed_as_waiting_by_itself(world: World) -> None:
    app = Outer(world, inner=[PAY], outer=delegated())
    await app.connect().send("get tea").output
    assert len((await app.ai.inbox.list()).items) == 1
    assert await app.ai.recover() == []


async def test_a_delegation_is_taken_over_with_all_that_is_inside_though_the_inner_lease_ends_later(
    world: World,
) -> None:
    held, released = asyncio.Event(), asyncio.Event()

    def define(app: Outer) -> None:
        @app.ai.tool()
        async def hold() -> str:
            world.log.append(("held", 1))
            held.set()
            await released.wait()
            return "held"

    def slow(_: Any) -> Any:
        world.clock.time += 5  # so the last commit inside, and its lease, come as much later
        return call("hold")

    dead = Outer(world, inner=[slow, "unheard"], outer=delegated("unheard"), define=define)
    turn = dead.connect("s1").send("get tea")
    await held.wait()
    world.clock.time += 11
    app = Outer(world, inner=["Held."], outer=["All done."], define=define)
    session = await app.connect("s1").load()
    (interrupt,) = session.interrupts
    assert (interrupt.reason, interrupt.path, interrupt.payload["tool"]) == ("outcome_unknown", ("buyer",), "hold")
    assert not session.turn_failed
    released.set()
    with pytest.raises(SessionConflict):
        await turn.output
    assert (await interrupt.respond("as far as I know").output).text == "All done."
    assert world.done("held") == [1]
    assert outputs_of(app.inner.requests[-1].messages) == ["as far as I know"]


@pytest.mark.parametrize("named", [True, False])
async def test_an_exported_session_takes_its_inner_ones_with_it_and_its_pause_is_answered_elsewhere(
    world: World, named: bool
) -> None:
    app = Outer(world, inner=[PAY], middle=delegated(), outer=delegated(name="manager"))
    session = app.connect()
    await session.send("go").output
    chosen = [session.id] if named else None
    lines = [line async for line in app.ai.sessions.export(chosen)]
    assert len(lines) == 3

    elsewhere = MemoryStore()
    later = Outer(world, inner=["Bought."], middle=["Managed."], outer=["Done."], store=elsewhere)
    assert await later.ai.sessions.import_(lines, elsewhere) == 3
    there = await later.connect(session.id).load()
    assert (await there.interrupts[0].restart().output).text == "Done."
    assert world.done("paid") == [5]
    with pytest.raises(SessionConflict, match=r"line 1 was refused.*left as it is.* 0 were stored before it"):
        await later.ai.sessions.import_(lines, elsewhere)
