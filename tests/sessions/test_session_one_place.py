"""Several store objects on one file or database, as when each agent of an application opens its own, are one store."""

import os
from pathlib import Path

import msgspec
import pytest

from adjourn import Adjourn, InMemoryLatestStateStore, MemoryStore
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, paused

PAY = call("pay", {"amount": 5})


async def two_agents(world: World, *replies: object) -> Process:
    """One application whose agents `clerk` and `depot` opened a store each, and wait with a pause each."""
    process, _ = await paused(world, [PAY], [PAY], *replies)
    depot = process.ai.define_agent("depot", store=world.place.open())
    await depot.connect().send("go").output
    return process


async def test_nothing_is_listed_twice(world: World) -> None:
    ai = (await two_agents(world)).ai
    assert len(ai.stores()) == 1
    rows = (await ai.inbox.list()).items
    assert sorted(r.agent for r in rows) == ["clerk", "depot"]
    assert await ai.inbox.count() == 2
    assert sorted(c.interrupt_id for c in await ai.inbox.changes()) == sorted(r.id for r in rows)
    assert len(await ai.sessions.list()) == await ai.sessions.count() == 2
    lines = [msgspec.json.decode(line) async for line in ai.sessions.export()]
    assert sorted(line["session"]["agent"] for line in lines) == ["clerk", "depot"]


async def test_a_decision_goes_on_with_either_agent_and_stands_in_the_audit_once(world: World) -> None:
    ai = (await two_agents(world, "paid", "paid")).ai
    for row in (await ai.inbox.list()).items:
        accepted = await ai.inbox.restart(row.id, by="ann")
        assert accepted.turn is not None
        assert (await accepted.turn.output).text == "paid"
        assert [d.by for d in await ai.inbox.history(row.id)] == ["ann"]
    assert await ai.recover() == []


async def test_what_was_decided_elsewhere_is_taken_up_once_with_either_agent(world: World) -> None:
    ai = (await two_agents(world, "paid", "paid")).ai
    for row in (await ai.inbox.list()).items:
        await ai.inbox.restart(row.id, run=False)
    assert [(await turn.output).text for turn in await ai.recover()] == ["paid", "paid"]
    assert world.done("paid") == [5, 5]


async def test_all_of_them_are_closed_with_the_application(world: World) -> None:
    process = await two_agents(world)
    await process.ai.aclose()
    for agent in process.ai.agents.values():
        assert agent.store is not None
        if world.place.kind != "memory":
            with pytest.raises(Exception, match="closed"):
                agent.store.submit(lambda tx: tx.position(), read=True).result()


def test_a_file_is_one_place_whichever_way_its_path_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    paths = [tmp_path / "folder" / "x.db", tmp_path / "link" / "x.db", os.path.relpath(tmp_path / "folder" / "x.db")]
    stores = [SQLiteStore(path) for path in (*paths, tmp_path / "other.db")]
    ai = Adjourn(model=ScriptedModel(["hello"]), stores=stores)
    assert list(ai.stores()) == [stores[0], stores[3]]
    for store in stores:
        store.close()


def test_stores_that_say_nothing_of_their_place_are_places_of_their_own() -> None:
    stores = [MemoryStore(), MemoryStore(), InMemoryLatestStateStore()]
    assert list(Adjourn(stores=[*stores, *stores]).stores()) == stores


@pytest.mark.postgres
def test_a_schema_is_one_place_whoever_connects_to_it(postgres_dsn: str) -> None:
    from psycopg.conninfo import make_conninfo

    from adjourn.stores.postgres_server import Server

    asked = [
        Server(postgres_dsn, "one", 1.0), Server(make_conninfo(postgres_dsn, user="ann", password="x"), "one", 1.0),
        Server(postgres_dsn, "two", 1.0), Server(make_conninfo(postgres_dsn, dbname="other"), "one", 1.0),
    ]  # fmt: skip
    assert asked[0].identity == asked[1].identity
    assert len({s.identity for s in asked}) == 3
