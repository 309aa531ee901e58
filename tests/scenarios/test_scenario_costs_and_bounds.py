"""Faults that others made public, as scenarios: stores that grow or lock, values that change, loops, broken histories."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from adjourn import DefinitionError, Interrupt, LimitReached, Limits, NotJSON, ToolFailed, ToolRunContext, correction
from adjourn.history import keep_recent
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import FakeClock, call
from sessions.session_kit import Process, World, assert_sendable, make_place, outputs_of, shown


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    place = make_place(request.param, tmp_path, lambda: "")
    yield World(place)
    place.close()


def errors_of(session: Any) -> list[Any]:
    return [o for o in outputs_of(session.messages) if isinstance(o, dict) and "error" in o]


# -- what is stored --------------------------------------------------------------------------------------------------


async def test_a_session_twice_as_long_takes_twice_the_bytes(tmp_path: Path) -> None:
    async def size(turns: int) -> int:
        path = tmp_path / f"{turns}.db"
        store = SQLiteStore(path)
        process = Process(store, [], ["words " * 170] * turns, clock=FakeClock())
        session = process.connect()
        for _ in range(turns):
            await session.send("words " * 170).output
        store.close()
        return path.stat().st_size

    sizes = [await size(turns) for turns in (50, 100, 200)]
    assert sizes[2] - sizes[1] <= 2.3 * (sizes[1] - sizes[0])
    assert sizes[2] <= 200 * 2 * 1020 * 3


async def test_looking_again_and_again_at_what_is_paused_stores_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SQLiteStore(path)
    process = Process(store, [], [call("pay", {"amount": 1})], clock=FakeClock())
    session = process.connect()
    await session.send("go").output

    def stored() -> int:
        return sum(p.stat().st_size for p in tmp_path.iterdir())

    before = stored()
    for _ in range(500):
        assert len((await process.ai.inbox.list()).items) == 1
        assert await process.agent.get_snapshot(session_id=session.id) is not None
    assert stored() == before
    store.close()


def test_sixteen_writers_wait_for_a_lock_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    SQLiteStore(path).close()
    kept: list[str] = []
    wrong: list[BaseException] = []

    async def talk(store: SQLiteStore) -> None:
        session = Process(store, [], ["one", "two", "three"]).connect()
        for _ in range(3):
            await session.send("go").output
        kept.append(session.id)

    def write() -> None:
        try:
            store = SQLiteStore(path)
            asyncio.run(talk(store))
            store.close()
        except BaseException as e:
            wrong.append(e)

    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    threads = [threading.Thread(target=write) for _ in range(16)]
    for thread in threads:
        thread.start()
    threads[0].join(1.0)
    assert (kept, wrong) == ([], [])
    holder.execute("COMMIT")
    holder.close()
    for thread in threads:
        thread.join(60)
    assert (len(kept), wrong) == (16, [])

    async def texts() -> list[list[str]]:
        store = SQLiteStore(path)
        agent = Process(store, [])
        sessions = [await agent.connect(i).load() for i in kept]
        store.close()
        return [[m.text for m in s.messages if m.role == "model"] for s in sessions]

    assert asyncio.run(texts()) == [["one", "two", "three"]] * 16


async def test_a_pause_with_five_megabytes_of_state_resumes_at_once_elsewhere(world: World) -> None:
    big = "x" * 5_000_000

    def define(p: Process) -> None:
        @p.ai.tool()
        async def fill(ctx: ToolRunContext) -> str:
            if not ctx.is_resumed():
                ctx.session.update_state({"big": big})
                raise Interrupt({"ask": 1})
            return f"{len(ctx.session.state['big'])} there"

    turn = world.process(call("fill"), define=define).connect().send("go")
    fresh = world.process("ok", define=define)
    resumed: list[Any] = []
    async for chunk in turn.stream:
        if chunk.interrupt is not None:  # announced, so it is in the store
            (row,) = (await fresh.ai.inbox.list()).items
            resumed.append(await fresh.ai.inbox.get(row.id))
    output = await turn.output
    accepted = await fresh.ai.inbox.restart(resumed[0].id)
    assert accepted.turn is not None
    await accepted.turn.output
    again = await world.process(define=define).connect(output.session_id).load()
    assert outputs_of(again.messages) == ["5000000 there"]
    assert again.state == {"big": big}


async def test_at_every_snapshot_each_call_has_its_result_or_is_pending(world: World) -> None:
    replies = [
        [call("pay", {"amount": 1}), call("look", {"key": "a"})], call("pay", {"amount": 2}), "ok",
        call("pay", {"amount": 3}), "again",
    ]  # fmt: skip
    process = world.process(*replies)
    session = process.connect()
    seen = [(await session.send("go").output).snapshot_id]
    seen.append((await session.interrupts[0].restart().output).snapshot_id)
    seen.append((await session.interrupts[0].decline("no").output).snapshot_id)
    seen.append((await session.send("more").output).snapshot_id)
    await session.abort()
    seen.append(session.snapshot_id)
    seen.append((await session.send("more").output).snapshot_id)
    assert len(set(seen)) == 6
    for snapshot_id in seen:
        view = await process.agent.get_snapshot(snapshot_id=snapshot_id)
        assert view is not None
        there = await world.process().connect(snapshot_id=snapshot_id).load()
        pending = {(i.name, i.tool_request.ref) for i in there.interrupts}
        messages = list(view.messages)
        if pending:
            asked = {(r.name, r.ref) for p in messages.pop().content if (r := p.tool_request)}
            assert pending <= asked
        assert_sendable(messages)


# -- values ----------------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    sum: Decimal
    due: date


VALUES: list[tuple[Any, Any]] = [
    (Decimal("10.10"), "10.10"),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
    ({3, 1, 2}, [1, 2, 3]),
    (b"\x00\xff", "AP8="),
    (Colour.RED, "red"),
    (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Line(sum=Decimal("1.50"), due=date(2026, 1, 2)), {"sum": "1.50", "due": "2026-01-02"}),
    (2**70, 2**70),
    (1e308, 1e308),
    ("\0 \u2028 \N{GRINNING FACE}", "\0 \u2028 \N{GRINNING FACE}"),
    ({"": {"a.b": [None, [], {}]}}, {"": {"a.b": [None, [], {}]}}),
]


@pytest.mark.parametrize("given, stored", VALUES, ids=[type(v).__name__ + str(i) for i, (v, _) in enumerate(VALUES)])
async def test_a_value_is_the_same_everywhere_before_and_after_it_was_stored(
    world: World, given: Any, stored: Any
) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def gate(ctx: ToolRunContext) -> Any:
            if not ctx.is_resumed():
                ctx.session.update_state({"value": given})
                raise Interrupt({"value": given})
            world.log.append(("resumed", ctx.resumed_metadata))
            return {"value": given}

    live = world.process([call("gate"), call("pay", {"amount": 1})], define=define).connect()
    await live.send("go").output
    fresh = world.process("ok", define=define)
    session = await fresh.connect(live.id).load()
    expected = {"value": stored}
    (row,) = (await fresh.ai.inbox.list(tool="gate")).items
    assert [live.interrupts[0].payload, session.interrupts[0].payload, row.payload] == [expected] * 3
    assert live.state == session.state == expected
    await session.interrupts[0].restart({"value": given}).output
    await session.interrupts[0].respond({"value": given}).output
    again = await world.process(define=define).connect(live.id).load()
    assert outputs_of(session.messages) == outputs_of(again.messages) == [expected] * 2
    assert world.done("resumed") == [expected]


@pytest.mark.parametrize(
    "bad", [float("nan"), 1j, object(), {1: "x"}], ids=["nan", "complex", "object", "number as a key"]
)
@pytest.mark.parametrize("where", ["payload", "result", "state"])
async def test_what_has_no_json_form_fails_where_it_is_made_and_spoils_nothing_before(
    world: World, bad: Any, where: str
) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def spoil(ctx: ToolRunContext) -> Any:
            if where == "payload":
                raise Interrupt({"bad": bad})
            if where == "state":
                ctx.session.update_state({"bad": bad})
            return {"bad": bad}

    session = world.process(call("look", {"key": "a"}), "fine", call("spoil"), "on", define=define).connect()
    await session.send("one").output
    with pytest.raises(ToolFailed) as caught:
        await session.send("two").output
    assert isinstance(caught.value.__cause__, NotJSON)
    assert caught.value.__cause__.path.startswith("$.bad")
    again = await world.process("on", define=define).connect(session.id).load()
    assert outputs_of(again.messages)[0] == {"found": "a"}
    assert again.interrupts == []
    assert (await again.send("three").output).text == "on"
    assert_sendable(again.messages)


# -- loops and bounds ------------------------------------------------------------------------------------------------


async def test_the_budget_of_a_failing_tool_goes_on_through_other_tools_pauses_and_processes(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool(on_error="model")
        async def fail(n: int) -> str:
            p.log.append(("failed", n))
            raise ValueError(f"no {n}")

    options: dict[str, Any] = {"define": define, "limits": Limits(tool_errors=2)}
    session = world.process(call("fail", {"n": 1}), call("pay", {"amount": 1}), **options).connect()
    await session.send("go").output
    fresh = world.process(call("fail", {"n": 2}), call("look", {"key": "a"}), call("pay", {"amount": 2}), **options)
    session = await fresh.connect(session.id).load()
    await session.interrupts[0].restart().output
    session = await world.process(call("fail", {"n": 3}), "never", **options).connect(session.id).load()
    with pytest.raises(LimitReached) as caught:
        await session.interrupts[0].restart().output
    assert caught.value.limit == "tool_errors"
    assert world.done("failed") == [1, 2, 3]


async def test_a_model_that_makes_the_same_call_for_ever_is_stopped_with_a_reason_that_is_kept(world: World) -> None:
    options: dict[str, Any] = {"limits": Limits(identical_calls=3)}
    process = world.process(*[call("look", {"key": "a"})] * 20, **options)
    session = process.connect()
    with pytest.raises(LimitReached) as caught:
        await session.send("go").output
    assert (caught.value.limit, caught.value.output.limit) == ("identical_calls", "identical_calls")
    assert len(world.done("looked")) <= 4
    again = await world.process("on", **options).connect(session.id).load()
    assert again.last_end is not None
    assert (again.last_end.reason, again.last_end.limit) == ("failed", "identical_calls")
    assert (await again.send("try otherwise").output).text == "on"
    assert_sendable(again.messages)


async def test_the_same_call_after_a_success_is_run_and_told_like_the_first(world: World) -> None:
    session = world.process(call("look", {"key": "a"}), call("look", {"key": "a"}), "ok").connect()
    assert (await session.send("go").output).text == "ok"
    assert outputs_of(session.messages) == [{"found": "a"}] * 2
    assert world.done("looked") == ["a", "a"]


async def test_bad_calls_for_ever_are_stopped_with_a_pause_among_them_and_a_valid_history(world: World) -> None:
    bad = call("look", {"nokey": 1})
    options: dict[str, Any] = {"limits": Limits(argument_errors=3)}
    process = world.process(bad, bad, call("pay", {"amount": 1}), **options)
    session = process.connect()
    await session.send("go").output
    fresh = world.process(*[bad] * 9, **options)
    session = await fresh.connect(session.id).load()
    with pytest.raises(LimitReached) as caught:
        await session.interrupts[0].restart().output
    assert caught.value.limit == "argument_errors"
    assert fresh.model.calls == 2  # the pause neither gave any back nor cost any
    assert world.done("looked") == []
    again = await world.process("on", **options).connect(session.id).load()
    await again.send("more").output
    assert_sendable(again.messages)


# -- gates and histories ---------------------------------------------------------------------------------------------


async def test_a_handler_for_a_tool_that_is_misspelt_is_refused_before_anything_runs(world: World) -> None:
    process = world.process(call("look", {"key": "a"}), "ok", on_interrupt={"pya": correction.ask})
    with pytest.raises(DefinitionError, match="pya"):
        await process.connect().send("go").output
    assert process.model.calls == 0
    assert world.log == []


def test_a_handler_for_a_tool_that_is_misspelt_is_refused_where_an_agent_names_its_tools(world: World) -> None:
    process = world.process()
    with pytest.raises(DefinitionError, match="pya"):
        process.ai.define_agent("cashier", tools=["pay"], on_interrupt={"pya": correction.ask})


def test_a_gate_that_allows_nothing_or_is_no_gate_is_refused_where_it_is_written(world: World) -> None:
    with pytest.raises(DefinitionError, match="allow"):
        Interrupt("?", allow=())
    process = world.process()
    for approval in ("yes", ["pay"], 1):
        with pytest.raises(DefinitionError, match="approval"):
            process.ai.tool(name="x", approval=approval)(lambda: None)  # type: ignore[call-overload]


async def test_state_that_was_set_before_a_pause_is_there_wherever_it_is_read(world: World) -> None:
    seen: list[Any] = []

    def define(p: Process) -> None:
        @p.ai.tool()
        async def step(ctx: ToolRunContext) -> str:
            seen.append(ctx.session.state)
            ctx.session.update_state({"steps": len(seen)})
            if not ctx.is_resumed():
                raise Interrupt("?")
            return "stepped"

    live = world.process(call("step"), define=define).connect()
    await live.send("go").output
    fresh = world.process("ok", define=define)
    session = await fresh.connect(live.id).load()
    view = await fresh.agent.get_snapshot(session_id=live.id)
    assert view is not None
    assert [live.state, session.state, view.state] == [{"steps": 1}] * 3
    output = await session.interrupts[0].restart().output
    assert seen == [None, {"steps": 1}]
    assert output.state == {"steps": 2}


@pytest.mark.parametrize("how", [{"turns": 1}, {"tokens": 1}], ids=str)
async def test_shortening_in_the_middle_of_a_paused_turn_keeps_the_turn_whole(
    world: World, how: dict[str, int]
) -> None:
    options: dict[str, Any] = {"prepare": keep_recent(**how)}
    calls = [call("pay", {"amount": 1}), call("look", {"key": "a"})]
    live = world.process("hello", call("look", {"key": "b"}), calls, **options).connect()
    await live.send("old " * 500).output
    await live.send("new " * 500).output
    fresh = world.process(call("look", {"key": "c"}), "done", **options)
    session = await fresh.connect(live.id).load()
    assert shown(session) == shown(live)
    assert (await session.interrupts[0].restart().output).text == "done"
    for request in fresh.model.requests:
        assert [m.text.split()[0] for m in request.messages if m.role == "user"] == ["new"]
        assert_sendable(request.messages)
    assert outputs_of(fresh.model.requests[0].messages) == [
        {"found": "b"}, {"paid": 1, "note": {}}, {"found": "a"},
    ]  # fmt: skip
    assert [m.text.split()[0] for m in session.messages if m.role == "user"] == ["old", "new"]
