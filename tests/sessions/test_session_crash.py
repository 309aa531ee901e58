"""A process dies at any commit; a fresh one goes on, and no side effect is lost or silently doubled."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from adjourn import AgentSession, SessionBusy, SessionConflict, ToolRunContext
from adjourn.errors import AdjournError, StoreUnavailable
from adjourn.testing import call
from sessions.session_kit import Mortal, Process, World, assert_sendable, outputs_of

SCENES = {
    "plain": [call("look", {"key": "a"}), "done"],
    "parallel": [[call("look", {"key": "a"}), call("pay", {"amount": 1}), call("look", {"key": "b"})], "done"],
    "restart": [call("pay", {"amount": 1}), "done"],
    "two rounds": [call("pay", {"amount": 1}), call("look", {"key": "a"}), "done"],
    "idempotent": [[call("stamp", {"key": "a"}), call("stamp", {"key": "b"})], "done"],
}


def scripted(replies: list[Any]) -> list[Any]:
    """Replies by how far the conversation is, so that every process gives the next one."""

    def reply(request: Any) -> Any:
        return replies[sum(m.role == "model" for m in request.messages)]

    return [reply] * 50


async def drive(session: AgentSession) -> None:
    """Restarts whatever waits, until nothing does."""
    while session.interrupts:
        await session.interrupts[0].restart().output


async def live(process: Process, session_id: str) -> None:
    session = process.connect(session_id)
    await session.send("go").output
    await drive(session)


async def finish(world: World, scene: str, session_id: str) -> list[Any]:
    """A fresh process finishes the session; says which runs of unknown outcome it had to decide on."""
    world.pass_lease()
    process = world.process(*scripted(SCENES[scene]))
    for turn in await process.ai.recover():
        await turn.settled()
    session = await process.connect(session_id).load()
    if not session.messages or session.messages[-1].role == "user":
        if session.turn_failed:
            await session.retry().output
        else:
            await session.send("go").output
    unknown: list[Any] = []
    while session.interrupts:
        interrupt = session.interrupts[0]
        if interrupt.reason == "outcome_unknown":
            unknown.append((interrupt.name, interrupt.input))
            assert interrupt.payload["reason"] == "outcome_unknown"
            effect = (
                ("paid", interrupt.input["amount"]) if interrupt.name == "pay" else ("looked", interrupt.input["key"])
            )
            if effect in world.log:
                await interrupt.respond({"known": True}).output
            else:
                await interrupt.restart().output
        else:
            await interrupt.restart().output
    if session.turn_failed:
        await session.retry().output
        await drive(session)
    return [session, *unknown]


def cases() -> list[Any]:
    return [pytest.param(s, n, after, id=f"{s}-{n}-{'after' if after else 'before'}") for s in SCENES
            for n in range(7) for after in (False, True)]  # fmt: skip


@pytest.mark.parametrize("scene, dies_at, after", cases())
async def test_a_session_survives_the_death_of_its_process_at_any_commit(
    world: World, scene: str, dies_at: int, after: bool
) -> None:
    if world.place.kind == "postgres" and dies_at > 5:
        pytest.skip("the first commits show what there is to show")
    store = Mortal(world.place.open(), dies_at, after)
    try:
        await live(world.process(*scripted(SCENES[scene]), store=store), "s1")
    except AdjournError:
        assert store.dead
    session, *unknown = await finish(world, scene, "s1")
    assert session.last_text == "done"
    assert_sendable(session.messages)
    effects = Counter(e[:2] for e in world.log if e[0] in ("paid", "looked"))
    wanted = {("paid", 1): "pay", ("looked", "a"): "look", ("looked", "b"): "look"}
    names = str(SCENES[scene])
    for effect, count in effects.items():
        assert count == 1, (effect, unknown)
    for effect, tool in wanted.items():
        if f"name='{tool}'" in names and (tool != "look" or repr(effect[1]) in names):
            assert effects[effect] == 1, effect
    keys: dict[str, set[str]] = {}
    for entry in world.log:
        if entry[0] == "stamped":
            keys.setdefault(entry[1], set()).add(entry[2])
    assert all(len(k) == 1 for k in keys.values()), "a rerun has the same idempotency key"
    assert (await world.process().ai.inbox.list()).items == []
    if scene == "idempotent":
        assert unknown == []


async def crashed_in_the_tool(world: World, tool: str, **input: Any) -> str:
    """A process that dies after the tool's effect and before its result is stored. Returns the session's id."""
    store = Mortal(world.place.open(), 1)
    process = world.process([call(tool, input)], "done", store=store)
    with pytest.raises(AdjournError):
        await process.connect("s1").send("go").output
    assert len(world.log) == 1
    world.pass_lease()
    return "s1"


async def test_a_run_that_was_cut_off_comes_back_as_a_pause_of_unknown_outcome(world: World) -> None:
    await crashed_in_the_tool(world, "look", key="a")
    process = world.process("done")
    session = await process.connect("s1").load()
    (interrupt,) = session.interrupts
    assert (interrupt.reason, interrupt.name, interrupt.input) == ("outcome_unknown", "look", {"key": "a"})
    assert interrupt.payload["reason"] == "outcome_unknown"
    (row,) = (await process.ai.inbox.list()).items
    assert (row.id, row.reason) == (interrupt.id, "outcome_unknown")
    assert world.done("looked") == ["a"]
    assert (await interrupt.respond({"found": "known"}).output).text == "done"
    assert world.done("looked") == ["a"]
    assert outputs_of(session.messages) == [{"found": "known"}]


async def test_a_run_of_unknown_outcome_can_be_restarted_and_declined(world: World) -> None:
    await crashed_in_the_tool(world, "look", key="a")
    session = await world.process("done").connect("s1").load()
    assert (await session.interrupts[0].restart().output).text == "done"
    assert world.done("looked") == ["a", "a"]


async def test_an_idempotent_run_that_was_cut_off_runs_again_by_itself_with_the_same_key(world: World) -> None:
    store = Mortal(world.place.open(), 1)
    process = world.process([call("stamp", {"key": "a"})], "done", store=store)
    with pytest.raises(AdjournError):
        await process.connect("s1").send("go").output
    world.pass_lease()
    session = await world.process(*scripted([[call("stamp", {"key": "a"})], "done"])).connect("s1").load()
    assert session.interrupts == []
    assert session.last_text == "done"
    stamps = [e for e in world.log if e[0] == "stamped"]
    assert len(stamps) == 2
    assert stamps[0] == stamps[1]


async def test_recover_takes_up_what_a_dead_process_left_and_only_when_its_lease_is_over(world: World) -> None:
    store = Mortal(world.place.open(), 1)
    process = world.process(call("look", {"key": "a"}), store=store)
    with pytest.raises(AdjournError):
        await process.connect("s1").send("go").output
    runner = world.process("done")
    assert await runner.ai.recover() == []
    world.pass_lease()
    (turn,) = await runner.ai.recover()
    assert (await turn.output).finish_reason == "interrupted"
    assert await runner.ai.recover() == []
    (row,) = (await runner.ai.inbox.list()).items
    assert row.reason == "outcome_unknown"


async def test_a_restarted_run_that_was_cut_off_asks_again_and_does_not_pay_twice(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}))
    session = process.connect("s1")
    await session.send("go").output
    store = Mortal(world.place.open(), 1)
    dying = world.process("done", store=store)
    again = await dying.connect("s1").load()
    with pytest.raises(AdjournError):
        await again.interrupts[0].restart().output
    assert world.done("paid") == [1]
    world.pass_lease()
    last = await world.process("done").connect("s1").load()
    (interrupt,) = last.interrupts
    assert interrupt.reason == "outcome_unknown"
    assert (await interrupt.respond({"paid": 1}).output).text == "done"
    assert world.done("paid") == [1]


# -- leases ----------------------------------------------------------------------------------------------------------


class Held:
    """A turn that waits in its tool, or its model, until it is let go."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    def __call__(self, process: Process) -> None:
        @process.ai.tool()
        async def hold(ctx: ToolRunContext) -> str:
            self.started.set()
            await self.gate.wait()
            process.log.append(("held", 1))
            return "held"


async def test_two_processes_never_drive_one_turn(world: World) -> None:
    held = Held()
    session = world.process(call("hold"), "done", define=held).connect("s1")
    turn = session.send("go")
    await held.started.wait()
    other = world.process("other", define=Held())
    with pytest.raises((SessionConflict, SessionBusy)):
        await other.connect("s1").send("me too").output
    with pytest.raises((SessionConflict, SessionBusy)):
        await other.connect("s1").load()
    assert await other.ai.recover() == []
    held.gate.set()
    assert (await turn.output).text == "done"
    assert other.model.calls == 0


async def test_a_driver_that_lost_its_lease_is_refused_and_stops(world: World) -> None:
    held = Held()
    turn = world.process(call("hold"), "done", define=held).connect("s1").send("go")
    await held.started.wait()
    world.pass_lease()
    other = world.process("taken over", define=Held())
    taken = await other.connect("s1").load()
    assert taken.interrupts[0].reason == "outcome_unknown"
    held.gate.set()
    with pytest.raises(SessionConflict):
        await turn.output
    assert (await taken.interrupts[0].respond("as far as I know").output).text == "taken over"
    assert outputs_of(taken.messages) == ["as far as I know"]


async def test_the_late_result_of_a_lost_driver_is_kept_beside_the_pause_and_never_enters_the_transcript(
    world: World,
) -> None:
    held = Held()
    turn = world.process(call("hold"), "done", define=held).connect("s1").send("go")
    await held.started.wait()
    world.pass_lease()
    other = world.process("taken over", define=Held())
    taken = await other.connect("s1").load()
    interrupt = taken.interrupts[0]
    held.gate.set()
    with pytest.raises(SessionConflict):
        await turn.output
    history = await other.ai.inbox.history(interrupt.id)
    assert [(d.verb, d.output) for d in history] == [("late_result", "held")]
    assert [i.id for i in taken.interrupts] == [interrupt.id]
    await interrupt.respond("answer").output
    assert outputs_of(taken.messages) == ["answer"]


async def test_an_unfinished_leg_of_a_detached_turn_shows_expired_when_its_heartbeat_is_gone(world: World) -> None:
    held = Held()
    process = world.process(call("hold"), "done", define=held)
    turn = process.connect("s1").send("go", detach=True)
    await held.started.wait()
    other = world.process(define=Held())
    view = await other.agent.get_snapshot(snapshot_id=turn.snapshot_id)
    assert view is not None
    assert view.status == "pending"
    world.pass_lease()
    view = await other.agent.get_snapshot(snapshot_id=turn.snapshot_id)
    assert view is not None
    assert view.status == "expired"
    held.gate.set()
    await turn.settled()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", range(4))
async def test_a_queued_message_is_sent_by_whoever_recovers_wherever_its_process_died(
    world: World, dies_at: int, after: bool
) -> None:
    options: dict[str, Any] = {"on_message_while_paused": "queue"}
    replies = scripted([call("pay", {"amount": 5}), "Paid.", "You are welcome."])
    waiting = world.process(*replies, **options).connect()
    await waiting.send("pay").output
    waiting.send("thanks")  # it is durable when this returns
    dying = world.process(*replies, store=Mortal(world.place.open(), dies_at, after), **options)
    try:
        accepted = await dying.ai.inbox.restart(waiting.interrupts[0].id)
        assert accepted.turn is not None
        await accepted.turn.output
    except AdjournError:
        pass
    async with asyncio.timeout(30):
        while (await world.process().ai.sessions.list())[0].queue:
            world.pass_lease()
            process = world.process(*replies, **options)
            for turn in await process.ai.recover():
                await turn.output
            for row in (await process.ai.inbox.list()).items:  # it died before it was decided, or while the tool ran
                unknown = row.reason == "outcome_unknown"
                inbox = process.ai.inbox
                await (inbox.respond(row.id, "paid", run=False) if unknown else inbox.restart(row.id, run=False))
            await asyncio.sleep(0.002)
        session = world.process(*replies, **options).connect(waiting.id)
        world.pass_lease()
        while (await session.load()).last_text != "You are welcome.":
            await asyncio.sleep(0.002)
            session = world.process(*replies, **options).connect(waiting.id)
            world.pass_lease()
    assert len(world.done("paid")) <= 1
    assert [m.text for m in session.messages if m.role == "user"] == ["pay", "thanks"]
    assert_sendable(session.messages)


async def test_a_result_is_durable_and_a_pause_is_told_while_a_sibling_still_runs(world: World) -> None:
    gate = asyncio.Event()

    def define(process: Process) -> None:
        @process.ai.tool()
        async def linger() -> str:
            await gate.wait()
            return "at last"

    calls = [call("linger"), call("look", {"key": "a"}), call("pay", {"amount": 1})]
    session = world.process(calls, define=define).connect()
    turn = session.send("go")
    async with asyncio.timeout(30):
        async for chunk in turn.stream:
            if chunk.interrupt is not None:
                break
        found: set[str] = set()
        while not {"toolReturned", "toolInterrupted"} <= found:
            await asyncio.sleep(0.002)
            sessions = world.process().ai.sessions
            for snapshot in await sessions.snapshots(session.id):
                found |= {str(type(e).__struct_config__.tag) for e in await sessions.events(snapshot.id)}
        assert len((await world.process().ai.inbox.list()).items) == 1
        gate.set()
        assert (await turn.output).finish_reason == "interrupted"


async def left_unfinished(world: World) -> None:
    """A process that is gone had begun a tool."""
    held = Held()
    world.process(call("hold"), "unheard", define=held).connect("s1").send("go")
    await held.started.wait()
    world.pass_lease()


async def test_a_load_that_the_store_fails_says_so_instead_of_giving_a_session_that_is_nowhere(world: World) -> None:
    await left_unfinished(world)
    unlucky = world.process("done", define=Held(), store=Mortal(world.place.open(), 0))
    with pytest.raises(StoreUnavailable):
        await unlucky.connect("s1").load()
    session = await world.process("done", define=Held()).connect("s1").load()
    assert [i.reason for i in session.interrupts] == ["outcome_unknown"]


async def test_a_load_that_somebody_else_was_quicker_with_stands_where_they_brought_it(world: World) -> None:
    await left_unfinished(world)
    slower = world.process("unheard", define=Held()).connect("s1")
    assert slower.messages  # it has looked, and saw a turn without a driver
    quicker = await world.process("done", define=Held()).connect("s1").load()
    await slower.load()
    assert [i.id for i in slower.interrupts] == [i.id for i in quicker.interrupts]
    assert slower.snapshot_id == quicker.snapshot_id


async def test_a_turn_whose_takeover_has_nothing_to_keep_is_driven_by_one_process_all_the_same(world: World) -> None:
    begun: list[asyncio.Event] = []

    def define(process: Process) -> None:
        started = asyncio.Event()
        begun.append(started)

        @process.ai.tool(idempotent=True)
        async def again() -> None:
            started.set()
            await asyncio.Event().wait()

    world.process(call("again"), define=define).connect("s1").send("go")
    await begun[0].wait()
    world.pass_lease()
    second = asyncio.ensure_future(world.process(define=define).connect("s1").load())
    await begun[1].wait()
    third = world.process(define=define)
    with pytest.raises((SessionConflict, SessionBusy)):
        await third.connect("s1").load()
    assert not begun[2].is_set()
    second.cancel()


async def test_a_model_call_whose_takeover_has_nothing_to_keep_is_made_by_one_process(world: World) -> None:
    held = asyncio.Event()

    async def waits(_: Any) -> str:
        held.set()
        await asyncio.Event().wait()
        return "unheard"

    await world.process(waits).connect("s1").send("go", detach=True).stored()
    await held.wait()
    world.pass_lease()
    held.clear()
    second = asyncio.ensure_future(world.process(waits).connect("s1").load())
    await held.wait()
    third = world.process("done")
    with pytest.raises((SessionConflict, SessionBusy)):
        await third.connect("s1").load()
    assert third.model.calls == 0
    second.cancel()
