"""A session's timeline, and following its journal while it goes on."""

import asyncio
import threading
from typing import Any

import pytest

from adjourn import (
    AgentInit,
    Interrupt,
    InvalidRequest,
    LimitReached,
    Limits,
    ModelError,
    SessionNotFound,
    ToolFailed,
    UnknownPosition,
)
from adjourn.records import Batch
from adjourn.testing import call
from adjourn.timeline import Entry, Recorded, recorded
from sessions.session_kit import Mortal, Process, World, desk


def shown(entries: Any) -> list[tuple[str, str]]:
    return [(e.kind, e.title) for e in entries]


async def told(world: World, session_id: str) -> list[Entry]:
    """The timeline as a process sees it that knows nothing but the store."""
    return [*await desk(world).sessions.timeline(session_id)]


# -- the timeline ----------------------------------------------------------------------------------------------------


async def test_a_timeline_tells_a_turn_with_a_pause_from_the_message_to_the_end(world: World) -> None:
    process = world.process([call("look", {"key": "a"}), call("pay", {"amount": 5}, ref="r")], "Paid.")
    session = process.connect()
    await session.send("Pay 5 for a.").output
    world.clock.time += 60
    pay = session.interrupts[0].id
    await desk(world).inbox.restart(pay, metadata={"ok": 1}, by="ann", address="10.0.0.1")
    world.clock.time += 60
    (turn,) = await world.process("Paid.").ai.recover()
    await turn.output
    entries = await told(world, session.id)
    start = entries[0].at
    assert [(e.kind, e.at - start) for e in entries if e.kind != "tool" or e.facts["tool"] != "look"] == [
        ("message", 0),
        ("model", 0),
        ("pause", 0),
        ("decision", 60),
        ("tool", 120),
        ("model", 120),
        ("end", 120),
    ]
    message, model = entries[:2]
    assert (message.title, message.facts["message"]["role"]) == ("Pay 5 for a.", "user")
    assert model.title == "Asks for look, pay"
    assert [c["tool"] for c in model.facts["calls"]] == ["look", "pay"]
    assert set(model.facts["usage"]) <= {"inputTokens", "outputTokens", "cachedTokens", "reasoningTokens"}
    pause = next(e for e in entries if e.kind == "pause")
    assert (pause.facts["interrupt"], pause.facts["input"], pause.facts["payload"]) == (
        pay,
        {"amount": 5},
        {"amount": 5},
    )
    decision = next(e for e in entries if e.kind == "decision")
    assert decision.title == "pay(amount=5) was sent round again by ann"
    assert (decision.facts["verb"], decision.facts["address"], decision.facts["metadata"]) == (
        "restart",
        "10.0.0.1",
        {"ok": 1},
    )
    look, ran = (e for e in entries if e.kind == "tool")
    assert (look.facts["output"], look.facts["input"]) == ({"found": "a"}, {"key": "a"})
    assert (ran.facts["output"], ran.title) == ({"paid": 5, "note": {"ok": 1}}, "pay(amount=5) ran")
    assert look.took is not None
    assert entries[-1].facts == {"reason": "stop"}


async def test_a_decision_that_nobody_took_up_yet_is_told_as_waiting(world: World) -> None:
    session = world.process(call("pay", {"amount": 5})).connect()
    await session.send("go").output
    world.clock.time += 1
    await world.process().ai.inbox.restart(session.interrupts[0].id, replace_input={"amount": 4}, by="ann", run=False)
    *_, last = await told(world, session.id)
    assert (last.kind, last.facts["waiting"]) == ("decision", True)
    assert (last.facts["input"], last.facts["inputBefore"]) == ({"amount": 4}, {"amount": 5})
    assert last.title == "pay(amount=5) was sent round again with another input by ann"


async def test_each_decision_is_told_with_the_input_that_was_shown_then(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool(approval=True)
        async def book(seats: int) -> str:
            if seats > 1:
                raise RuntimeError("full")
            return "booked"

    process = world.process(call("book", {"seats": 3}), "Booked.", define=define)
    session = process.connect()
    await session.send("go").output
    with pytest.raises(ToolFailed):
        await session.interrupts[0].restart(replace_input={"seats": 2}).output
    world.clock.time += 1
    await session.interrupts[0].restart(replace_input={"seats": 1}).output
    assert [e.title for e in await told(world, session.id) if e.kind in ("pause", "decision", "tool")] == [
        "book(seats=3) waits for a decision",
        "book(seats=3) was sent round again with another input",
        "book(seats=2) failed",
        "book(seats=2) waits once more",
        "book(seats=2) was sent round again with another input",
        "book(seats=1) ran",
    ]


async def test_a_restart_that_fails_waits_once_more_and_each_step_is_told(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool(approval=True)
        async def book() -> str:
            raise RuntimeError("full")

    process = world.process(call("book"), define=define)
    session = process.connect()
    await session.send("go").output
    with pytest.raises(ToolFailed):
        await session.interrupts[0].restart().output
    entries = await told(world, session.id)
    assert [e.kind for e in entries] == ["message", "model", "pause", "decision", "tool", "end", "pause"]
    assert entries[4].facts["error"]["message"] == "tool 'book' failed: RuntimeError: full"
    assert entries[5].title == "The turn failed: tool 'book' failed: RuntimeError: full"
    assert (entries[6].title, entries[6].facts["reason"]) == (
        "book() waits once more",
        "tool 'book' failed: RuntimeError: full",
    )


async def test_expiry_is_told_as_expiry_and_never_as_a_decision(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def sign() -> str:
            raise Interrupt(None, expires_in=60)

    session = world.process(call("sign"), define=define).connect()
    await session.send("go").output
    world.clock.time += 61
    await desk(world).inbox.expire_due()
    await (await world.process("Nobody came.", define=define).connect(session.id).load()).close()
    entries = await told(world, session.id)
    assert [e.kind for e in entries] == ["message", "model", "pause", "expired", "model", "end"]
    assert "nobody decided in time" in entries[3].title
    assert entries[3].at - entries[0].at == 61


async def test_an_aborted_a_limited_and_a_failed_turn_say_so_at_their_end(world: World) -> None:
    aborted = world.process(call("pay", {"amount": 1})).connect()
    await aborted.send("go").output
    await aborted.abort("changed my mind")
    limited = world.process(call("look", {"key": "a"}), "ok", limits=Limits(model_calls=1)).connect()
    with pytest.raises(LimitReached):
        await limited.send("go").output
    failed = world.process(ModelError("overloaded"), "ok").connect()
    with pytest.raises(ModelError):
        await failed.send("go").output
    await failed.retry().output
    ends = [
        [e for e in await told(world, s.id) if e.kind in ("end", "retry", "decision")]
        for s in (aborted, limited, failed)
    ]
    assert shown(ends[0])[-1] == ("decision", "pay(amount=1) was cancelled")
    assert ("end", "The turn was aborted: changed my mind") in shown(ends[0])
    assert ends[1][-1].facts["limit"] == "model_calls"
    assert [e.kind for e in ends[2]] == ["end", "retry", "end"]
    assert "overloaded" in ends[2][0].title


async def test_a_fork_is_told_with_where_it_came_from_and_its_new_interrupts(world: World) -> None:
    process = world.process(call("pay", {"amount": 5}), "one", "two")
    session = process.connect()
    await session.send("go").output
    paused_at = session.snapshot_id
    branch = await session.fork()
    await branch.interrupts[0].restart().output
    entries = await told(world, session.id)
    (fork,) = [e for e in entries if e.kind == "fork"]
    assert fork.facts["from"] == paused_at
    assert list(fork.facts["interrupts"]) == [session.interrupts[0].id]
    assert fork.snapshot_id != paused_at


@pytest.mark.parametrize("edited", ["the main line", "the branch"])
async def test_a_run_is_told_with_the_input_it_had_in_its_branch_and_the_pause_with_what_was_asked(
    world: World, edited: str
) -> None:
    process = world.process(call("pay", {"amount": 5}), "less", "all")
    session = process.connect()
    await session.send("go").output
    branch = await session.fork()
    one, other = (session, branch) if edited == "the main line" else (branch, session)
    await one.interrupts[0].restart(replace_input={"amount": 3}).output
    await other.interrupts[0].restart().output
    tools = [e for e in await told(world, session.id) if e.kind in ("pause", "tool")]
    assert [(e.title, e.facts["input"]) for e in tools] == [
        ("pay(amount=5) waits for a decision", {"amount": 5}),
        ("pay(amount=3) ran", {"amount": 3}),
        ("pay(amount=5) ran", {"amount": 5}),
    ]


async def test_a_takeover_is_told_as_a_crash_and_what_was_begun_as_not_finished(world: World) -> None:
    mortal = Mortal(world.place.open(), 1)
    process = world.process(call("look", {"key": "a"}), "done", store=mortal)
    session = process.connect()
    with pytest.raises(Exception, match="died"):
        await session.send("go").output
    begun = await told(world, session.id)
    assert (begun[-1].kind, begun[-1].title) == ("tool", "look(key='a') was begun")
    assert begun[-1].facts["unfinished"]
    world.pass_lease()
    for turn in await world.process("done").ai.recover():
        await turn.settled()
    entries = await told(world, session.id)
    (crash,) = [e for e in entries if e.kind == "crash"]
    assert crash.at - entries[0].at == 16
    assert crash.facts == {"epoch": 2}
    assert [e.kind for e in entries[entries.index(crash) + 1 :]] == ["pause"]  # of unknown outcome


async def test_a_late_result_is_told_where_it_was_given(world: World) -> None:
    begun, release = threading.Event(), threading.Event()

    def define(p: Process) -> None:
        @p.ai.tool()
        def slow() -> str:  # in a thread, which nobody can stop
            begun.set()
            release.wait(60)
            return "after all"

    process = world.process(call("slow"), define=define)
    session = process.connect()
    turn = session.send("go")
    await asyncio.to_thread(begun.wait, 60)
    turn.abort("too slow")
    await turn.settled()
    world.clock.time += 5
    stored = threading.Event()
    assert process.store is not None
    end = process.store.subscribe(stored.set)
    release.set()
    entries = await told(world, session.id)
    while entries[-1].at == entries[0].at:  # the bell may still ring for the abort
        assert await asyncio.to_thread(stored.wait, 60)
        stored.clear()
        entries = await told(world, session.id)
    end()
    late = entries[-1]
    assert (late.facts["output"], late.at - entries[0].at) == ("after all", 5)
    assert "gave a result after it had been closed" in late.title


async def test_titles_show_hostile_text_for_what_it_is_and_facts_keep_it(world: World) -> None:
    hostile = "pay \u202e evil \x1b[2J \u200b"
    process = world.process("\x1b]0;owned\x07 " + "long " * 10_000)
    session = process.connect()
    await session.send(hostile).output
    message, model, _ = await told(world, session.id)
    for entry in (message, model):
        assert not any(c in entry.title for c in "\u202e\x1b\x07\u200b\n")
        assert len(entry.title) < 400
    assert message.facts["message"]["content"][0]["text"] == hostile


async def test_a_session_that_is_not_there_has_no_timeline(world: World) -> None:
    for work in (desk(world).sessions.timeline("s_nothing"), anext(desk(world).sessions.watch("s_nothing"))):
        with pytest.raises(SessionNotFound):
            await work


# -- following -------------------------------------------------------------------------------------------------------


async def journal(world: World, session_id: str) -> list[Recorded]:
    """All that is in the journal by now."""
    sessions = desk(world).sessions
    out: list[Recorded] = []
    for snapshot in await sessions.snapshots(session_id):
        for n, batch in enumerate(await batches(world, snapshot.id)):
            out.append(recorded(snapshot.id, n, batch))
    return out


async def batches(world: World, snapshot_id: str) -> Any:
    return world.place.open().submit(lambda tx: tx.batches(snapshot_id), read=True).result(60)


async def take(watching: Any, many: int) -> list[Recorded]:
    async with asyncio.timeout(30):
        return [await anext(watching) for _ in range(many)]


async def test_a_journal_is_replayed_from_any_place_and_then_goes_on_live(world: World) -> None:
    process = world.process(call("look", {"key": "a"}), call("pay", {"amount": 5}), "Paid.", "Bye.")
    session = process.connect()
    await session.send("go").output
    sessions = desk(world).sessions
    before = await journal(world, session.id)
    watching = sessions.watch(session.id)
    assert await take(watching, len(before)) == before
    coming = asyncio.ensure_future(anext(watching))
    await session.interrupts[0].restart().output
    await session.send("bye").output
    whole = await journal(world, session.id)
    assert whole[: len(before)] == before
    assert [await coming, *await take(watching, len(whole) - len(before) - 1)] == whole[len(before) :]
    await watching.aclose()
    assert len({r.id for r in whole}) == len(whole)
    for n, commit in enumerate(whole[:-1]):
        again = sessions.watch(session.id, commit.id)
        assert await take(again, len(whole) - n - 1) == whole[n + 1 :]
        await again.aclose()


async def test_who_comes_back_to_a_journal_that_went_another_way_since_a_backup_was_restored_is_told(
    world: World,
) -> None:
    process = world.process(call("pay", {"amount": 5}), "Paid.")
    session = process.connect()
    await session.send("go").output
    *_, last = await journal(world, session.id)
    other = Batch(last.at + 1, last.epoch, last.events)
    number = len(await batches(world, last.snapshot_id)) - 1
    for never in (recorded(last.snapshot_id, number, other), recorded(last.snapshot_id, number + 1, other)):
        with pytest.raises(UnknownPosition, match="went another way"):
            await anext(desk(world).sessions.watch(session.id, never.id))


async def test_who_follows_a_session_sees_its_forks_too(world: World) -> None:
    process = world.process("one", "two", "three")
    session = process.connect()
    first = await session.send("1").output
    watching = desk(world).sessions.watch(session.id)
    await take(watching, len(await journal(world, session.id)))
    branch = await session.fork(first.snapshot_id)
    await branch.send("2").output
    await session.send("3").output
    whole = await journal(world, session.id)
    found = await take(watching, len(whole) - 1 - (whole[1].snapshot_id == whole[0].snapshot_id))
    assert [r.id for r in found] == [r.id for r in whole[-len(found) :]]
    await watching.aclose()


async def test_following_ends_when_the_session_is_deleted(world: World) -> None:
    process = world.process("hi")
    session = process.connect()
    await session.send("hello").output
    many = len(await journal(world, session.id))
    watching = desk(world).sessions.watch(session.id)
    await take(watching, many)
    ending = asyncio.ensure_future(anext(watching))
    await process.ai.sessions.delete(session.id)
    with pytest.raises(StopAsyncIteration):
        await ending


@pytest.mark.parametrize("place", ["", ":", "nonsense", "n_1:", ":3", "n_1:-1", "n_1:x", "n_1:²", "n_1:0"])
async def test_a_place_that_is_none_is_refused(place: str) -> None:
    from adjourn import Adjourn, MemoryStore
    from adjourn.testing import ScriptedModel

    ai = Adjourn(model=ScriptedModel(["hi"]))
    session = ai.define_agent("a", tools=[], store=MemoryStore()).connect(AgentInit())
    await session.send("hello").output
    with pytest.raises(InvalidRequest, match="no place"):
        await anext(ai.sessions.watch(session.id, place))


async def test_a_subscription_lasts_as_long_as_somebody_follows() -> None:
    from adjourn import Adjourn, MemoryStore
    from adjourn.testing import ScriptedModel

    class Counting(MemoryStore):
        subscribed = 0

        def subscribe(self, callback: Any) -> Any:
            end = super().subscribe(callback)
            self.subscribed += 1

            def once() -> None:
                self.subscribed -= 1
                end()

            return once

    store = Counting()
    ai = Adjourn(model=ScriptedModel(["hi"] * 3))
    session = ai.define_agent("a", tools=[], store=store).connect()
    await session.send("hello").output
    watching = [ai.sessions.watch(session.id) for _ in range(3)]
    for one in watching:
        await anext(one)
    assert store.subscribed == 1
    for one in watching:
        await one.aclose()
    assert store.subscribed == 0
