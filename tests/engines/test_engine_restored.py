"""The store and Temporal do not agree: one of them is back at an earlier moment, or has lost everything."""

import sqlite3
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from adjourn.engines.temporal import Temporal
from adjourn.handle import AgentInit
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import call
from engines.engine_kit import World, rest, until, working
from engines.temporal_server import Server

pytestmark = pytest.mark.slow

GATE = [call("gate", {"n": 1})]


def copy(source: Path, target: Path) -> None:
    """A copy of a store in use, as SQLite makes one."""
    with closing(sqlite3.connect(source)) as db, closing(sqlite3.connect(target)) as other:
        db.backup(other)


@asynccontextmanager
async def serving(server: Server, queue: str, path: Path, *replies: Any) -> AsyncGenerator[World]:
    """An application on this file, with its worker. All that ran before has ended."""
    engine = Temporal(server.address, queue=queue)
    made = World(engine, SQLiteStore(path, lease_seconds=1.0), list(replies), ())
    async with working(made.ai, engine):
        yield made
    await made.ai.aclose()


async def left_by_its_turn(w: World, path: Path, moment: str, decided: bool) -> tuple[str, str]:
    """A turn that runs `slow` and pauses; where that is `decided`, it pauses once more. The file is copied at this moment.
    Returns the ids of the session and of the turn.
    """
    session = w.agent.connect()
    first = session.send("go")
    await until(lambda: w.log == [("slow", 0)])
    if moment == "in a body":
        copy(path, path.with_suffix(".backup"))
    w.go.set()
    output = await rest(first)
    if moment == "at a pause":
        copy(path, path.with_suffix(".backup"))
    if decided:
        output = await rest(output.interrupts[0].restart())
        assert output.finish_reason == "interrupted"
    return session.id, first.snapshot_id


@pytest.mark.parametrize("moment, decided", [("in a body", False), ("in a body", True), ("at a pause", True)], ids=str)
async def test_a_store_that_was_put_back_is_what_counts_and_its_turn_goes_on_from_there(
    temporal: Server, tmp_path: Path, moment: str, decided: bool
) -> None:
    path, queue = tmp_path / "s.db", f"restored-{uuid.uuid4().hex[:12]}"
    async with serving(temporal, queue, path, [call("slow", {"n": 0})], GATE, GATE) as w:
        session_id, turn_id = await left_by_its_turn(w, path, moment, decided)
    path.with_suffix(".backup").replace(path)
    for left in ("-wal", "-shm"):
        path.with_name(path.name + left).unlink(missing_ok=True)
    async with serving(temporal, queue, path, *([GATE] if moment == "in a body" else []), "done") as w:
        w.go.set()
        await until(lambda: waits(w, session_id))
        session = await w.agent.connect(AgentInit(session_id=session_id)).load()
        output: Any = None
        reasons: list[str] = []
        while session.interrupts:
            reasons.append(session.interrupts[0].reason)
            output = await rest(session.interrupts[0].restart())
        assert output.text == "done"
        # What ran after the copy was made is not known of any more: the people who put it back know that.
        again = ["outcome_unknown"] if moment == "in a body" else []
        assert reasons == [*again, "tool"]
        assert w.log == [*[("slow", 0) for _ in again], ("gate", 1)]
        await (await w.handle(turn_id)).result()


async def waits(w: World, session_id: str) -> bool:
    return bool((await w.ai.inbox.list(session_id=session_id)).items)
