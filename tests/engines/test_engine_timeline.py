"""What an engine did for a session is in its timeline: from the store whatever happens, from the engine where it answers."""

import socket
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from adjourn import Adjourn, MemoryStore
from adjourn.engine import Deed
from adjourn.engines.temporal import Temporal
from adjourn.errors import ModelError
from adjourn.records import Ran, Snapshot
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import call
from adjourn.timeline import Entry
from engines.engine_kit import HASTY, World, rest, until, working, world
from engines.temporal_server import Server
from engines.test_engine_temporal import Scrambled, lose


def of_engine(entries: Any) -> list[Entry]:
    return [e for e in entries if e.kind == "engine"]


def titles(entries: Any) -> list[str]:
    return [e.title for e in of_engine(entries)]


async def story(w: World, session_id: str, last: str) -> list[Entry]:
    """The timeline, once the engine has told so much of it."""

    async def told() -> bool:
        return any(last in t for t in titles(await w.ai.sessions.timeline(session_id)))

    await until(told)
    return list(await w.ai.sessions.timeline(session_id))


async def test_a_timeline_tells_workflow_run_worker_and_deliveries(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done") as w:
        session = w.agent.connect()
        first = session.send("go")
        output = await rest(first)
        await rest(output.interrupts[0].restart())
        entries = await story(w, session.id, "is done with this turn")
        identity = (await w.engine.client()).identity
        handle = await w.handle(first)
        run = (await handle.describe()).run_id
        given = next(e for e in of_engine(entries) if "was given this turn" in e.title)
        assert given.facts["workflow"] == first.snapshot_id
        assert (given.facts["run"], given.facts["queue"]) == (run, w.engine.queue)
        assert given.facts["engine"] == w.engine.holder
        assert [e.facts["worker"] for e in entries if e.kind in ("model", "pause", "tool")] == [identity] * 4
        told = next(e for e in of_engine(entries) if "was told what was decided" in e.title)
        pause, decision = (next(e for e in entries if e.kind == kind) for kind in ("pause", "decision"))
        assert pause.at < decision.at <= told.at
        assert told.facts["events"] == 1
        assert told.snapshot_id != given.snapshot_id
        assert [e.at for e in entries] == sorted(e.at for e in entries)
        assert "secret" not in repr(of_engine(entries))


async def test_a_timeline_without_the_engine_has_what_the_store_has(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done") as w:
        session = w.agent.connect()
        output = await rest(session.send("go"))
        await rest(output.interrupts[0].restart())
        identity, holder = (await w.engine.client()).identity, w.engine.holder
        w.ai.engine = Deaf(w.engine)
        entries = await w.ai.sessions.timeline(session.id)
        assert [e.kind for e in entries if e.kind != "engine"] == [
            "message", "model", "pause", "decision", "tool", "model", "end",
        ]  # fmt: skip
        kept = [e.facts for e in of_engine(entries) if "worker" in e.facts]
        assert {(f["engine"], f["worker"]) for f in kept} == {(holder, identity)}
        [missing] = [e for e in of_engine(entries) if "reason" in e.facts]
        assert missing is entries[-1]
        assert missing.facts["reason"] == "it did not answer (ConnectionError)"
        w.ai.engine = None
        assert (
            of_engine(await w.ai.sessions.timeline(session.id))[-1].facts["reason"] == "this application has no engine"
        )
        w.ai.engine = w.engine


class Deaf(Temporal):
    """The same engine, whose server does not answer."""

    def __init__(self, like: Temporal) -> None:
        super().__init__(like.address, namespace=like.namespace, queue=like.queue)

    async def recount(self, works: Any) -> Any:
        raise ConnectionError("nobody there")


async def test_a_server_that_is_away_does_not_hold_up_the_timeline(
    temporal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjourn.archive._ENGINE_SECONDS", 0.05)
    async with world(temporal, tmp_path, "done") as w:
        session = w.agent.connect()
        await rest(session.send("go"))
        with socket.create_server(("127.0.0.1", 0)) as silent:  # it is connected to, and says nothing
            w.ai.engine = Temporal(f"127.0.0.1:{silent.getsockname()[1]}", queue=w.engine.queue)
            entries = await w.ai.sessions.timeline(session.id)
            assert entries[-1].facts["reason"] == "it did not answer (TimeoutError)"
        w.ai.engine = w.engine


async def test_another_worker_that_goes_on_is_told_by_the_store_alone(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("slow", {"n": 1})], "done", worker=False, timing=HASTY) as w:
        session = w.agent.connect()
        turn = session.send("go")
        async with working(w.ai, w.engine, grace=0.1):
            await until(lambda: w.log)
        other = Renamed(w.engine, "another")
        w.ai.engine = other
        async with working(w.ai, other):
            output = await rest(turn)
        assert output.interrupts[0].reason == "outcome_unknown"
        w.ai.engine = Deaf(w.engine)
        entries = await w.ai.sessions.timeline(session.id)
        changed = next(e for e in of_engine(entries) if "workerBefore" in e.facts)
        first = (await w.engine.client()).identity
        assert (changed.facts["worker"], changed.facts["workerBefore"]) == ("another", first)
        assert next(e for e in entries if e.kind == "pause").facts["worker"] == "another"
        w.ai.engine = w.engine


class Renamed(Temporal):
    """The same engine, as another process has it."""

    def __init__(self, like: Temporal, identity: str) -> None:
        super().__init__(like.address, namespace=like.namespace, queue=like.queue, timing=like.timing)
        self._identity = identity

    async def _connect(self) -> Client:
        from adjourn.engines.temporal import data_converter

        return await Client.connect(
            self.address, namespace=self.namespace, identity=self._identity, data_converter=data_converter()
        )


async def test_a_redelivery_and_attempts_are_told(temporal: Server, tmp_path: Path) -> None:
    away = ModelError("busy", provider="x", retryable=True)
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], away, "done") as w:
        session = w.agent.connect()
        output = await rest(session.send("go"))
        wake = w.engine.wake
        w.engine.wake = lose
        turn = output.interrupts[0].restart()

        async def begun() -> bool:
            view = await w.agent.get_snapshot(session_id=session.id)
            return view is not None and view.status == "pending"

        await until(begun)
        w.engine.wake = wake
        await rest(turn)
        entries = await story(w, session.id, "is done with this turn")
        assert any(e.facts.get("redelivery") is True and e.at > output_at(entries) for e in of_engine(entries))
        [tried] = [e for e in of_engine(entries) if "attempts" in e.facts]
        assert (tried.facts["step"], tried.facts["attempts"]) == ("model", 2)


def output_at(entries: list[Entry]) -> float:
    return next(e.at for e in entries if e.kind == "pause")


async def test_runs_of_a_turn_that_is_tried_again_are_both_told(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, ValueError("broken"), "done") as w:
        session = w.agent.connect()
        failed = session.send("go")
        with pytest.raises(ModelError):
            await rest(failed)
        await (await w.handle(failed)).result()  # a retry that comes sooner is taken up by the same run
        await rest(session.retry())

        async def both() -> bool:
            entries = of_engine(await w.ai.sessions.timeline(session.id))
            return len({e.facts["run"] for e in entries if "run" in e.facts}) == 2

        await until(both)


async def test_what_a_codec_hides_is_told_with_the_codec_and_left_out_without(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done", codec=Scrambled()) as w:
        session = w.agent.connect()
        output = await rest(session.send("go"))
        await rest(output.interrupts[0].restart())
        assert "The workflow was told what was decided" in titles(await story(w, session.id, "is done"))
        w.ai.engine = Temporal(w.engine.address, queue=w.engine.queue)
        plain = titles(await story(w, session.id, "is done"))
        assert "The workflow was told that there is something to do" in plain
        w.ai.engine = w.engine


async def test_a_turn_that_the_engine_forgot_is_told_by_the_store(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, "done", worker=False) as w:
        deeds = await w.engine.recount(["n_nobody", "it's no id of ours' OR WorkflowId != ''"])
        assert deeds == []


def test_a_deed_stands_beside_the_leg_that_it_was_about() -> None:
    from adjourn.records import SessionRecord
    from adjourn.timeline import Told, timeline, works

    legs = [
        Snapshot("n_1", "s", "n_1", "a", 1.0, 2.0, engine="e"),
        Snapshot("n_2", "s", "n_1", "a", 5.0, 6.0, parent_id="n_1", engine="e"),
        Snapshot("n_3", "s", "n_1", "a", 7.0, 8.0, parent_id="n_1", engine="e", branch=True),
        Snapshot("n_4", "s", "n_1", "a", 9.0, 9.0, parent_id="n_3", engine="e"),
        Snapshot("n_5", "s", "n_5", "a", 10.0, 10.0, parent_id="n_4"),
    ]
    told = Told(SessionRecord("s", "a", 1.0, 10.0), legs, [[] for _ in legs], [], [])
    assert {work: [s.id for s in found] for work, found in works(told).items()} == {
        "n_1": ["n_1", "n_2"],
        "n_3": ["n_3", "n_4"],
    }
    deeds = [Deed("n_1", 0.5, "early"), Deed("n_1", 5.5, "later"), Deed("n_3", 20.0, "branch")]
    entries = [e for e in timeline(told, deeds) if e.kind == "engine"]
    assert [(e.title, e.snapshot_id) for e in entries] == [("early", "n_1"), ("later", "n_2"), ("branch", "n_4")]


async def test_no_engine_no_engine_facts() -> None:
    from adjourn.testing import ScriptedModel

    store = MemoryStore()
    ai = Adjourn(model=ScriptedModel(["done"]))
    session = ai.define_agent("a", store=store).connect()
    await session.send("go").output
    assert of_engine(await ai.sessions.timeline(session.id)) == []
    assert all(s.engine == "" and s.ran == () for s in await ai.sessions.snapshots(session.id))


async def test_who_ran_a_leg_is_kept_in_the_file(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, "done") as w:
        session = w.agent.connect()
        await rest(session.send("go"))
        identity, holder = (await w.engine.client()).identity, w.engine.holder
        store = SQLiteStore(tmp_path / "s.db")
        [leg] = await Adjourn(stores=[store]).sessions.snapshots(session.id)
        assert (leg.engine, leg.ran) == (holder, (Ran(1, identity),))
        store.close()
