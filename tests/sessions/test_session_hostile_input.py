"""What others hand in, files, ids, names and times, cannot overwrite, hide or break what is there."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from adjourn import AgentInit, Interrupt, InvalidRequest, MemoryStore, ToolFailed
from adjourn.errors import DefinitionError
from adjourn.handle import SessionState
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, paused

PAY = call("pay", {"amount": 5})


async def exported(world: World) -> Any:
    """A session that was decided on once and waits once more, as the value of its line."""
    process, session = await paused(world, [PAY, call("pay", {"amount": 6})])
    await process.ai.inbox.respond(session.interrupts[0].id, "first", run=False)
    (line,) = [line async for line in process.ai.sessions.export([session.id])]
    return msgspec.json.decode(line)


async def into(store: MemoryStore, *values: Any) -> int:
    return await World(None).process(store=store).ai.sessions.import_(map(msgspec.json.encode, values), store)  # type: ignore[arg-type]


def _events(line: Any) -> list[Any]:
    return [e for batches in line["batches"].values() for b in batches for e in b["events"]]


def _open(line: Any) -> Any:
    return next(r for r in line["interrupts"] if r.get("status", "open") == "open")


def _pause(line: Any) -> Any:
    return next(e["pause"] for e in _events(line) if e["type"] == "toolInterrupted")


def _set(find: Callable[[Any], Any], **fields: Any) -> Callable[[Any], None]:
    return lambda line: find(line).update(fields)


CHANGES: dict[str, Callable[[Any], None]] = {
    "another input": _set(_open, input={"amount": 1}),
    "another payload": _set(_open, payload={"amount": 1}),
    "another tool": _set(_open, tool="look"),
    "another ref": _set(_open, ref="r"),
    "another digest": _set(_open, inputDigest="0" * 32),
    "another agent": _set(_open, agent="desk"),
    "another call": _set(_open, callId="c_other"),
    "no such pause": _set(_open, id="i_other"),
    "no such snapshot": _set(_open, snapshotId="n_other"),
    "other answers allowed": _set(_open, allow=["respond"]),
    "another wanted answer": _set(_open, response={"type": "string"}),
    "pretends to be reopened": _set(_open, reopened=1, input={"amount": 1}),
    "an id with a path in it": _set(_open, id="../../x"),
    "an id of a session with a path in it": _set(lambda line: line["session"], id="../x"),
    "an endless id": _set(lambda line: line["session"], id="s" * 201),
    "another session's row": _set(_open, sessionId="s_other"),
    "another session's snapshot": _set(lambda line: line["snapshots"][0], sessionId="s_other"),
    "another session's decision": _set(lambda line: line["decisions"][0], sessionId="s_other"),
    "a decision on nothing": _set(lambda line: line["decisions"][0], interruptId="i_other"),
    "a decision on another input": _set(lambda line: line["decisions"][0], inputDigest="0" * 32),
    "no parent": _set(lambda line: line["snapshots"][0], parentId="n_other"),
    "its own parent": lambda line: line["snapshots"][0].update(parentId=line["snapshots"][0]["id"]),
    "no head": _set(lambda line: line["session"], head="n_other"),
    "a session that is no nested one inside": _set(lambda line: line["session"], inner=["s_other"]),
    "events of no snapshot": lambda line: line["batches"].update({"n_other": []}),
    "the same snapshot twice": lambda line: line["snapshots"].append(line["snapshots"][0]),
    "events in no order": lambda line: line["batches"][line["session"]["head"]].reverse(),
    "made too late": _set(_open, created=1e12),
    "made before time began": _set(_open, created=-1.0),
    "a session of another age": _set(lambda line: line["session"], updated=1e300),
    "a pause that ends never": _set(_pause, expiresAt=1e12),
    "a decision too late": _set(lambda line: line["decisions"][0], at=1e18),
    "commits too late": lambda line: next(iter(line["batches"].values()))[0].update(at=1e300),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_line_that_was_tampered_with_is_refused_and_nothing_of_it_is_stored(world: World, name: str) -> None:
    good = await exported(world)
    bad = copy.deepcopy(good)
    CHANGES[name](bad)
    assert bad != good
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match=r"line 1 was refused, and nothing of it stored: .*0 were stored"):
        await into(store, bad)
    tables: list[Any] = [store.session_rows, store.snapshot_rows, store.interrupt_rows, store.decision_rows, store.feed]
    assert [len(table) for table in tables] == [0] * 5
    assert await into(store, good) == 1


async def test_what_runs_must_be_what_is_shown_also_where_the_journal_was_changed(world: World) -> None:
    line = await exported(world)
    for event in _events(line):
        for part in event.get("message", {}).get("content", ()):
            if "toolRequest" in part:
                part["toolRequest"]["input"] = {"amount": 1_000}
    with pytest.raises(InvalidRequest, match="is not the call that its session waits with"):
        await into(MemoryStore(), line)


async def test_an_import_overwrites_neither_interrupts_nor_snapshots_nor_the_audit_of_another_session(
    world: World,
) -> None:
    line, store = await exported(world), MemoryStore()
    assert await into(store, line) == 1
    before = dict(store.interrupt_rows), dict(store.snapshot_rows), dict(store.decision_rows)
    text = msgspec.json.encode(line).decode().replace(line["session"]["id"], "s_new")
    whole = msgspec.json.decode(text)
    rows: dict[str, Any] = {**whole, "snapshots": [], "batches": {}, "session": {**whole["session"], "head": None}}
    closed: list[Any] = [{**r, "status": "cancelled"} for r in rows["interrupts"]]
    audit: list[Any] = [{**d, "applied": True, "by": "eve"} for d in rows["decisions"]]
    attempts: list[tuple[Any, str]] = [
        (whole, "has a snapshot"),
        ({**rows, "interrupts": closed, "decisions": []}, "has an interrupt"),
        ({**rows, "interrupts": [], "decisions": audit}, "the audit has another decision"),
        ({**rows, "interrupts": [], "decisions": [{**audit[0], "id": "d_new"}]}, "the audit has another decision"),
    ]
    for bad, why in attempts:
        with pytest.raises(InvalidRequest, match=why):
            await into(store, bad)
    other: Any = {**audit[0], "id": "d_new", "interruptId": _open(line)["id"]}
    with pytest.raises(InvalidRequest, match=r"on the interrupt .* of another session"):
        await into(store, {**rows, "interrupts": [], "decisions": [other]})
    assert (dict(store.interrupt_rows), dict(store.snapshot_rows), dict(store.decision_rows)) == before


async def test_lines_before_a_refused_one_stay_and_are_counted(world: World) -> None:
    good = await exported(world)
    bad = copy.deepcopy(good)
    bad["session"]["id"] = "s new"
    with pytest.raises(InvalidRequest, match=r"line 2 was refused, .* 1 were stored before it"):
        await into(MemoryStore(), good, bad)


async def test_a_session_that_was_deleted_can_be_brought_back_beside_its_own_audit(world: World) -> None:
    process, session = await paused(world, [PAY, PAY])
    await process.ai.inbox.respond(session.interrupts[0].id, "first", run=False)
    lines = [line async for line in process.ai.sessions.export([session.id])]
    await process.ai.sessions.delete(session.id, force=True)
    assert process.store is not None
    assert await process.ai.sessions.import_(lines, process.store) == 1
    again = await world.process("done").connect(session.id).load()
    assert (await again.interrupts[0].restart().output).text == "done"


async def test_a_call_that_failed_with_an_edited_input_and_waits_again_is_imported(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def fragile(n: int, ctx: Any = None) -> str:
            if n == 1:
                raise Interrupt({"n": n})
            raise RuntimeError("broken")

    process, session = await paused(world, call("fragile", {"n": 1}), define=define)
    with pytest.raises(ToolFailed):
        await session.interrupts[0].restart(replace_input={"n": 2}).output
    lines = [line async for line in process.ai.sessions.export([session.id])]
    assert await World(world.place).process().ai.sessions.import_(lines, MemoryStore()) == 1


def _nested(process: Process, store: Any) -> Any:
    buyer = process.ai.define_agent("buyer", model=ScriptedModel([PAY, "bought"]), tools=["pay"])
    return process.ai.define_agent("boss", tools=[buyer.as_tool()], store=store)


@pytest.mark.parametrize("first", ["outer", "inner"])
async def test_a_nested_session_is_imported_in_any_order_unless_it_would_run_what_is_not_shown(
    world: World, first: str
) -> None:
    process = world.process(call("buyer", {"task": "buy"}), "done")
    session = _nested(process, process.store).connect()
    await session.send("go").output
    lines = [msgspec.json.decode(line) async for line in process.ai.sessions.export()]
    lines.sort(key=lambda v: v["session"]["id"].startswith("inner:") == (first == "outer"))
    assert len(lines) == 2
    bad = copy.deepcopy(lines)
    inner = next(v for v in bad if v["session"]["id"].startswith("inner:"))
    for event in _events(inner):
        for part in event.get("message", {}).get("content", ()):
            if "toolRequest" in part:
                part["toolRequest"]["input"] = {"amount": 1_000}
    with pytest.raises(InvalidRequest, match="line 2"):
        await into(MemoryStore(), *bad)
    target = MemoryStore()
    other = World(world.place).process("done", store=target)
    boss = _nested(other, target)
    assert await into(target, *lines) == 2
    again = await boss.connect(AgentInit(session_id=session.id)).load()
    assert again.interrupts[0].payload["input"] == {"amount": 5}


async def test_a_line_can_neither_claim_nor_show_the_pauses_of_another_session_s_nested_agent(world: World) -> None:
    process = world.process(call("buyer", {"task": "buy"}), "done")
    await _nested(process, process.store).connect().send("go").output
    lines = [msgspec.json.decode(line) async for line in process.ai.sessions.export()]
    inner = next(v for v in lines if v["session"]["id"].startswith("inner:"))
    line, target = await exported(World(world.place)), MemoryStore()
    shown = {**_open(line), "sessionId": inner["session"]["id"]}
    with pytest.raises(InvalidRequest, match="shown by the session around it"):
        await into(target, {**inner, "interrupts": [shown]})
    assert await into(target, inner) == 1
    line["session"]["inner"] = [inner["session"]["id"]]  # whoever deletes the one deletes the other
    with pytest.raises(InvalidRequest, match="is not one that it began"):
        await into(target, line)


BAD_IDS = [
    "",
    "a b",
    "a/b",
    "../x",
    "a\r\nX: y",
    "a\u202eb",
    "\u00fc",
    "<b>",
    "?q",
    "a" * 201,
    "inner:x",
    "\ud800",
    "a\n",
]


@pytest.mark.parametrize("given", BAD_IDS, ids=ascii)
async def test_an_id_that_would_break_an_address_or_a_log_is_refused(world: World, given: str) -> None:
    process = world.process("ok")
    for init in (AgentInit(given), AgentInit(snapshot_id=given), AgentInit(state=SessionState(given))):
        with pytest.raises(InvalidRequest, match="give 1 to 200 letters"):
            process.agent.connect(init)


async def test_ids_of_letters_digits_and_some_signs_are_taken(world: World) -> None:
    process = world.process("ok")
    assert (await process.connect("A-z_0.9:" + "x" * 192).send("hi").output).text == "ok"


@pytest.mark.parametrize(
    "given", ["", "a\u202eb", "a\nb", "a\x1b[2J", "a\0", "\ud800", "a" * 201, "\u2066x"], ids=ascii
)
async def test_an_owner_that_would_control_a_screen_is_refused(world: World, given: str) -> None:
    with pytest.raises(InvalidRequest, match="printable characters"):
        world.process("ok").agent.connect(AgentInit(owner=given))


async def test_an_owner_can_have_any_name_that_a_person_can_read(world: World) -> None:
    for owner in ("Zo\u00eb M\u00fcller", "\u0645\u06cc\u200c\u0631\u0648\u062f", "ann+x@example.org", "\u65e5\u672c"):
        session = world.process("ok").agent.connect(AgentInit(owner=owner))
        await session.send("hi").output
        assert session.owner == owner


@pytest.mark.parametrize(
    "seconds", [1e12, 1e300, float("inf"), float("nan"), -1, "60", 10**400], ids=lambda v: repr(v)[:8]
)
def test_a_pause_that_nobody_could_live_to_see_expire_is_refused_at_the_raise(seconds: Any) -> None:
    with pytest.raises(DefinitionError, match="give seconds, from 0 to ten years"):
        Interrupt(expires_in=seconds)


def test_a_pause_can_wait_for_years_or_for_ever() -> None:
    assert Interrupt(expires_in=9 * 365 * 86_400).expires_in is not None
    assert Interrupt(expires_in=None).expires_in is None
