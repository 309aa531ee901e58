"""Sessions as a whole: list, export, import, delete, purge."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn import (
    AgentInit,
    Interrupt,
    InvalidRequest,
    MemoryStore,
    SessionConflict,
    SessionNotFound,
    SessionPaused,
    StaleInterrupt,
    StoreUnavailable,
    UnknownInterrupt,
    archive,
)
from adjourn.errors import AdjournError, SessionBusy
from adjourn.lease import transact
from adjourn.store import SessionQuery, SessionRecord, Tx
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Mortal, Process, World, desk, outputs_of, shown

TWO = [call("pay", {"amount": 1}), call("pay", {"amount": 2})]


async def test_sessions_are_listed_oldest_first_by_agent_and_owner_and_in_pages(world: World) -> None:
    process = world.process(*["ok"] * 5)
    ids: list[str] = []
    for n in range(5):
        session = process.agent.connect(AgentInit(owner="ann" if n % 2 else "bob"))
        await session.send("hi").output
        ids.append(session.id)
        world.clock.time += 1
    archive = world.process().ai.sessions
    assert [s.id for s in await archive.list()] == ids
    assert [s.id for s in await archive.list(owner="ann")] == [ids[1], ids[3]]
    assert await archive.list(agent="other") == []
    first = await archive.list(limit=2)
    rest = await archive.list(after=first[-1], limit=10)
    assert [s.id for s in [*first, *rest]] == ids
    assert [s.finish_reason for s in await archive.snapshots(ids[0])] == ["stop"]
    with pytest.raises(SessionNotFound):
        await archive.snapshots("s_nothing")


async def test_an_exported_session_goes_on_elsewhere_with_the_same_interrupts(world: World) -> None:
    process = world.process("one", TWO)
    session = process.connect()
    await session.send("1").output
    await session.send("2").output
    await process.ai.inbox.respond(session.interrupts[0].id, "first", run=False)
    lines = [line async for line in process.ai.sessions.export()]
    assert len(lines) == 1
    assert b"\n" not in lines[0]

    from adjourn import MemoryStore

    elsewhere = World(world.place)
    target = MemoryStore()
    other = elsewhere.process("done", store=target)
    assert await other.ai.sessions.import_(lines, target) == 1
    again = await other.connect(session.id).load()
    assert again.interrupts[0].id == session.interrupts[1].id
    assert (await again.interrupts[0].restart().output).text == "done"
    assert outputs_of(again.messages)[0] == "first"
    assert elsewhere.done("paid") == [2]
    with pytest.raises(SessionConflict):
        await other.ai.sessions.import_(lines, target)
    assert world.done("paid") == []


async def test_an_import_into_the_same_kind_of_place_keeps_everything(world: World) -> None:
    process = world.process("one", TWO)
    session = process.connect()
    await session.send("1").output
    await session.send("2").output
    before = shown(session), session.messages
    lines = [line async for line in process.ai.sessions.export([session.id])]
    await process.ai.sessions.delete(session.id, force=True)
    fresh = world.process("done")
    assert fresh.store is not None
    assert await fresh.ai.sessions.import_(lines, fresh.store) == 1
    again = await fresh.connect(session.id).load()
    assert (shown(again), again.messages) == before
    await again.interrupts[0].restart().output
    await again.interrupts[0].restart().output
    assert again.last_text == "done"


async def test_sessions_are_counted_and_filtered_by_any_of_several(world: World) -> None:
    process = world.process(*["ok"] * 5)
    for owner in ("ann", "bob", None, "ann", "eve"):
        await process.agent.connect(AgentInit(owner=owner)).send("hi").output
    archive = world.process().ai.sessions
    given: list[tuple[dict[str, Any], int]] = [
        ({}, 5),
        ({"owners": ["ann", "eve"]}, 3),
        ({"owners": [None, "bob"]}, 2),
        ({"owners": []}, 0),
        ({"agents": ["clerk", "other"], "owner": "ann"}, 2),
        ({"agent": "other"}, 0),
    ]
    for filters, many in given:
        assert await archive.count(**filters) == many
        assert len(await archive.list(**filters)) == many


async def test_an_import_keeps_when_each_commit_was_and_puts_open_pauses_into_the_feed(world: World) -> None:
    process = world.process(call("look", {"key": "a"}), TWO)
    session = process.connect()
    await session.send("go").output
    world.clock.time += 100
    await process.ai.inbox.respond(session.interrupts[0].id, "first", run=False)
    before = await process.ai.sessions.timeline(session.id)
    (line,) = [line async for line in process.ai.sessions.export()]
    assert b'"format":2' in line

    from adjourn import MemoryStore

    target = MemoryStore()
    other = World(world.place).process("done", store=target)
    assert await other.ai.sessions.import_([line], target) == 1
    assert await other.ai.sessions.timeline(session.id) == before
    assert [(c.kind, c.interrupt_id) for c in await other.ai.inbox.changes()] == [("opened", session.interrupts[1].id)]


async def test_a_session_exported_in_the_first_format_is_still_read(world: World) -> None:
    line = (Path(__file__).parent / "exported_1.jsonl").read_bytes()
    process = world.process("Paid.")
    assert process.store is not None
    assert await process.ai.sessions.import_([line], process.store) == 1
    session = await process.connect("s_of_format_1").load()
    assert [(i.name, i.input) for i in session.interrupts] == [("pay", {"amount": 5})]
    snapshots = await process.ai.sessions.snapshots(session.id)
    entries = await process.ai.sessions.timeline(session.id)
    assert [e.kind for e in entries] == ["message", "model", "tool", "model", "pause"]
    assert {e.at for e in entries} == {snapshots[0].updated}
    assert (await session.interrupts[0].restart().output).text == "Paid."


async def test_a_line_that_is_no_session_is_refused_by_its_number(world: World) -> None:
    process = world.process("ok")
    await process.connect().send("hi").output
    (line,) = [line async for line in process.ai.sessions.export()]

    from adjourn import MemoryStore

    with pytest.raises(InvalidRequest, match="line 2"):
        await process.ai.sessions.import_([line, b"{}"], MemoryStore())
    with pytest.raises(InvalidRequest, match="format 99"):
        await process.ai.sessions.import_([line.replace(b'"format":2', b'"format":99')], MemoryStore())


async def test_deleting_a_paused_session_needs_force_closes_its_pauses_and_keeps_the_audit(world: World) -> None:
    process = world.process(TWO)
    session = process.connect()
    await session.send("go").output
    one, two = session.interrupts
    await process.ai.inbox.respond(one.id, "first", by="ann", run=False)
    with pytest.raises(SessionPaused, match="force=True"):
        await process.ai.sessions.delete(session.id)
    assert len((await process.ai.inbox.list()).items) == 1
    await process.ai.sessions.delete(session.id, force=True)
    assert await process.ai.sessions.list() == []
    assert (await process.ai.inbox.list(status=None)).items == []
    with pytest.raises((StaleInterrupt, UnknownInterrupt)):
        await process.ai.inbox.respond(two.id, "late")
    verbs = {i.id: [d.verb for d in await process.ai.inbox.history(i.id)] for i in (one, two)}
    assert verbs == {one.id: ["respond"], two.id: ["cancel"]}
    with pytest.raises(AdjournError):
        await two.restart().output
    assert world.done("paid") == []


async def test_purge_deletes_what_is_old_and_neither_runs_nor_waits(world: World) -> None:
    process = world.process("old", TWO, "young")
    old, waiting, young = (process.connect() for _ in range(3))
    await old.send("hi").output
    await waiting.send("pay").output
    world.clock.time += 1000
    await young.send("hi").output
    assert await process.ai.sessions.purge(older_than=500) == 1
    assert {s.id for s in await process.ai.sessions.list()} == {waiting.id, young.id}
    assert len((await process.ai.inbox.list()).items) == 2
    assert await process.ai.sessions.purge(older_than=500) == 0


@pytest.mark.parametrize("age", [-1, float("nan")])
async def test_purge_of_an_age_that_is_none_deletes_nothing(world: World, age: float) -> None:
    process = world.process("hello")
    session = process.connect()
    await session.send("go").output
    world.clock.time += 1000
    with pytest.raises(InvalidRequest, match="nothing was deleted"):
        await process.ai.sessions.purge(older_than=age)
    assert [s.id for s in await process.ai.sessions.list()] == [session.id]


async def test_an_accepted_decision_that_nobody_took_up_yet_is_purged_by_nothing_and_deleted_by_force_only(
    world: World,
) -> None:
    process = world.process(call("pay", {"amount": 5}))
    session = process.connect()
    await session.send("pay").output
    await desk(world).inbox.restart(session.interrupts[0].id, by="ann", run=False)
    world.clock.time += 1000
    assert await desk(world).sessions.purge(older_than=500) == 0
    with pytest.raises(SessionPaused, match=r"accepted.*force=True"):
        await desk(world).sessions.delete(session.id)
    (turn,) = await world.process("Paid.").ai.recover()
    assert (await turn.output).text == "Paid."
    assert world.done("paid") == [5]
    world.clock.time += 1000
    assert await desk(world).sessions.purge(older_than=500) == 1


async def test_a_session_is_deleted_on_condition_that_nothing_happened_in_it_since(world: World) -> None:
    process = world.process("one", "two")
    session = process.connect()
    await session.send("hi").output
    seen = world.clock.time = world.clock.time + 10
    await session.send("hi again").output
    with pytest.raises(SessionBusy, match="goes on"):
        await process.ai.sessions.delete(session.id, force=True, untouched_since=seen)
    assert [s.id for s in await process.ai.sessions.list()] == [session.id]
    await process.ai.sessions.delete(session.id, untouched_since=seen + 1)
    assert await process.ai.sessions.list() == []


async def test_a_turn_that_a_dead_process_left_is_not_purged(world: World) -> None:
    dying = world.process(call("look", {"key": "a"}), store=Mortal(world.place.open(), 1))
    session = dying.connect()
    with pytest.raises(StoreUnavailable):
        await session.send("look").output
    world.clock.time += 1000
    assert await desk(world).sessions.purge(older_than=500) == 0
    (turn,) = await world.process("Found.").ai.recover()
    assert (await turn.output).interrupts or (await turn.output).text


async def test_a_session_that_is_used_while_the_purge_looks_is_not_purged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.process("old", "new")
    session = process.connect()
    await session.send("hi").output
    world.clock.time += 1000
    transact: Any = archive.transact

    async def later(store: Any, work: Any, **how: Any) -> Any:
        if getattr(work, "func", None) is vars(archive)["_purge"]:
            await session.send("hi again").output
        return await transact(store, work, **how)

    monkeypatch.setattr(archive, "transact", later)
    assert await process.ai.sessions.purge(older_than=500) == 0
    assert [s.id for s in await process.ai.sessions.list()] == [session.id]


async def test_purge_forgets_what_is_old_in_the_feed(world: World) -> None:
    process = world.process(TWO, TWO)
    old, new = process.connect(), process.connect()
    await old.send("go").output
    for interrupt in old.interrupts:
        await process.ai.inbox.decline(interrupt.id, run=False)
    stood = await process.ai.inbox.latest_position()
    world.clock.time += 1000
    await new.send("go").output
    await process.ai.sessions.purge(older_than=500)
    left = await process.ai.inbox.changes()
    assert [(c.kind, c.interrupt_id) for c in left] == [("opened", i.id) for i in new.interrupts]
    assert await process.ai.inbox.changes(stood) == left


async def test_purge_deletes_a_nested_agents_session_with_its_outer_one(world: World) -> None:
    from adjourn.testing import ScriptedModel

    process = world.process(call("buyer", {"task": "buy"}), "done")
    buyer = process.ai.define_agent("buyer", model=ScriptedModel(["bought"]), tools=[])
    boss = process.ai.define_agent("boss", tools=[buyer.as_tool()], store=process.store)
    session = boss.connect()
    await session.send("go").output
    world.clock.time += 1000
    await process.ai.sessions.purge(older_than=500)
    assert await process.ai.sessions.list() == []


async def test_sessions_of_nested_agents_are_not_listed_and_go_with_the_one_around_them_wherever_they_are_kept(
    world: World,
) -> None:
    process = world.process(call("expert", {"task": "price"}), "Done.")
    expert = process.ai.define_agent(
        "expert", model=ScriptedModel(["5"]), tools=[], store=MemoryStore() if world.place.kind == "memory" else None
    )
    boss = process.ai.define_agent("boss", tools=[expert.as_tool()], store=process.store, model=process.model)
    session = boss.connect(AgentInit(owner="ann"))
    assert (await session.send("go").output).text == "Done."
    stored = [
        s
        for store in process.ai.stores()
        for s in await transact(store, lambda tx: tx.sessions(SessionQuery()), read=True)
    ]
    [inner] = [s.id for s in stored if s.id != session.id]
    sessions = process.ai.sessions
    assert [s.id for s in await sessions.list()] == [session.id]
    assert (await sessions.count(), await sessions.count(owner="ann"), await sessions.count(agent="expert")) == (
        1,
        1,
        0,
    )
    with pytest.raises(InvalidRequest, match=r"part of the session around it.*nothing was deleted"):
        await sessions.delete(inner)
    assert len(await sessions.timeline(inner)) > 0
    await sessions.delete(session.id)
    for store in process.ai.stores():
        assert await transact(store, lambda tx: tx.sessions(SessionQuery()), read=True) == []


async def test_a_nested_agents_session_that_was_left_alone_is_deleted_by_force(world: World) -> None:
    process = world.process()
    assert process.store is not None
    await transact(process.store, lambda tx: tx.put_session(SessionRecord("inner:c_1.expert", "expert", 1.0, 1.0)))
    await process.ai.sessions.delete("inner:c_1.expert", force=True)
    assert await process.ai.sessions.count() == 0
    with pytest.raises(SessionNotFound):
        await process.ai.sessions.timeline("inner:c_1.expert")


async def test_an_export_is_imported_as_it_comes_and_a_path_is_told_to_be_opened(world: World, tmp_path: Path) -> None:
    process = world.process("Hello.")
    session = process.connect()
    await session.send("hi").output
    store = MemoryStore()
    elsewhere = Process(store, [], ["Bye."], clock=world.clock)
    assert await elsewhere.ai.sessions.import_(process.ai.sessions.export(), store) == 1
    assert [m.text for m in (await elsewhere.connect(session.id).load()).messages] == ["hi", "Hello."]
    wrong: Any
    for wrong in (str(tmp_path / "x.jsonl"), b"{}", tmp_path / "x.jsonl", None):
        with pytest.raises(InvalidRequest, match=r"open file.*nothing was stored"):
            await elsewhere.ai.sessions.import_(wrong, store)


async def test_an_interrupt_payload_that_is_no_json_fails_at_the_raise_and_nothing_is_paused(world: World) -> None:
    from adjourn import ToolFailed
    from sessions.session_kit import Process

    def define(p: Process) -> None:
        @p.ai.tool()
        async def odd() -> str:
            raise Interrupt({"when": {"x": object()}})

    process = world.process(call("odd"), "ok", define=define)
    with pytest.raises(ToolFailed, match=r"\$\.when\.x"):
        await process.connect().send("go").output
    assert (await process.ai.inbox.list()).items == []


async def test_a_deletion_that_a_lease_refuses_says_how_long_it_goes_on_and_deletes_nothing(world: World) -> None:
    process = world.process("hi")
    session = process.connect()
    await session.send("hello").output
    store = process.store
    assert store is not None

    def hold(tx: Tx) -> None:
        record = tx.session(session.id)
        assert record is not None
        tx.put_session(replace(record, pending=True, lease_until=world.clock.time + 7))

    await transact(store, hold)
    with pytest.raises(SessionBusy, match=r"has 7\.0 s to go; nothing was deleted"):
        await process.ai.sessions.delete(session.id, force=True)
    world.clock.time += 8
    await process.ai.sessions.delete(session.id)
    assert await process.ai.sessions.list() == []
