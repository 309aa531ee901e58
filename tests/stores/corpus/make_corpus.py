"""Writes the stored files of the newest format: ``python tests/stores/corpus/make_corpus.py``.

Run in ``scripts/with_postgres.py``, once, when a format is released; what it wrote for older formats is never written again.
SQLite: ``format_N.stored``. PostgreSQL, whose formats are numbered by themselves: one text file a table, as COPY gives it, in
``postgres_N/``. What they hold is in ``format_N.json``, as it was put.
"""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

import msgspec  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from adjourn import Store  # noqa: E402
from adjourn.decisions import decide  # noqa: E402
from adjourn.events import Forked, Responded, Restarted, ToolReturned, ToolStarted  # noqa: E402
from adjourn.store import InterruptQuery, SessionQuery, Tx  # noqa: E402
from adjourn.stores.postgres import PostgresStore, psycopg  # noqa: E402
from adjourn.stores.rows import migrations  # noqa: E402
from adjourn.stores.sqlite import SQLiteStore  # noqa: E402
from adjourn.testing_store.samples import (  # noqa: E402
    decision_sample,
    events_sample,
    interrupt_sample,
    session_sample,
    snapshot_sample,
)
from stores.store_kit import Driver, do  # noqa: E402

TABLES = ("sessions", "snapshots", "events", "interrupts", "decisions")
SINCE_2 = ("changes", "marks")


def tables(number: int) -> tuple[str, ...]:
    """The tables of rows that a format has."""
    return TABLES if number < 2 else (*TABLES, *SINCE_2)


def fill(store: Store) -> None:
    """Sessions in every state that is stored differently."""

    def odd(tx: Tx) -> None:
        tx.put_session(session_sample("odd"))
        tx.put_snapshot(snapshot_sample("odd_n", "odd"))
        tx.add_events("odd_n", 0, events_sample("ü 🌍 \0"))
        tx.add_events("odd_n", 1, events_sample("long " * 500), 3.5, 2)
        tx.put_interrupt(interrupt_sample("odd_i", "odd"))
        tx.put_decision(decision_sample("odd_d", "odd_i", "odd"))

    do(store, odd)
    finished = Driver(store, "finished")
    for _ in range(3):
        finished.whole_turn()
    paused = Driver(store, "paused")
    paused.whole_turn()
    paused.pause(2, expires_at=5000.0)
    Driver(store, "running").ask()
    decided = Driver(store, "decided")
    (pause,) = decided.pause()
    do(store, lambda tx: decide(tx, pause, Responded(pause, False, by="her"), 2000.0, "here"))
    resumed = Driver(store, "resumed")
    (pause,) = resumed.pause()
    resumed.next_leg()
    call = resumed.turn.calls[0].id
    resumed.commit(Restarted(pause, {"ok": True}, {"query": "other"}, "her"), ToolStarted(call))
    resumed.commit(ToolReturned(call, None), state={"n": 1})
    resumed.end()
    forked = Driver(store, "forked")
    (pause,) = forked.pause()
    forked.next_leg(branch=True)
    forked.interrupts = []
    forked.commit(Forked({pause: "i_of_the_fork"}))
    do(store, lambda tx: tx.put_mark("mark of ü", "where it stands"))


def dump(store: Store, number: int) -> dict[str, Any]:
    """All that a store of this format holds, as JSON values."""

    def work(tx: Tx) -> dict[str, Any]:
        sessions = tx.sessions(SessionQuery(limit=10_000))
        snapshots = [s for session in sessions for s in tx.snapshots(session.id)]
        whole = {
            "sessions": sessions,
            "snapshots": snapshots,
            "events": {s.id: tx.events([s.id]) for s in snapshots},
            "interrupts": tx.interrupts(InterruptQuery(limit=10_000)),
            "decisions": tx.decisions(),
        }
        if number < 2:
            return whole
        return whole | {
            "batches": {s.id: tx.batches(s.id) for s in snapshots},
            "changes": [replace(c, position="") for c in tx.changes(None, 10_000)],
            "marks": {name: tx.mark(name) for name in ("mark of ü", "no mark")},
        }

    return msgspec.json.decode(msgspec.json.encode(do(store, work, read=True)))


def main() -> None:
    file, tables_of = len(migrations("sqlite")), len(migrations("postgres"))
    path, folder = HERE / f"format_{file}.stored", HERE / f"postgres_{tables_of}"
    if not path.exists():
        store = SQLiteStore(path)
        fill(store)
        _describe(file, dump(store, file))
        store.close()
    if not folder.exists():
        whole = HERE / f"format_{tables_of}.json"
        if not whole.exists():
            with TemporaryDirectory() as elsewhere:
                store = SQLiteStore(Path(elsewhere) / "one.db")
                fill(store)
                _describe(tables_of, dump(store, tables_of))
                store.close()
        folder.mkdir()
        write_tables(folder, json.loads(whole.read_text("utf-8")), tables_of)


def _describe(number: int, whole: dict[str, Any]) -> None:
    (HERE / f"format_{number}.json").write_text(json.dumps(whole, indent=1, sort_keys=True), "utf-8")


def write_tables(folder: Path, whole: dict[str, Any], number: int) -> None:
    dsn = os.environ["ADJOURN_TEST_POSTGRES"]
    server = PostgresStore(dsn, schema="corpus")
    copy_rows(store_to=server, whole=whole)
    with psycopg.connect(dsn) as db:
        for table in tables(number):
            with db.cursor().copy(f"COPY corpus.{table} TO STDOUT".encode()) as copy:
                (folder / f"{table}.copy").write_bytes(b"".join(bytes(block) for block in copy))
        db.execute("DROP SCHEMA corpus CASCADE")
    server.close()


def copy_rows(store_to: Store, whole: dict[str, Any]) -> None:
    """The same rows in another store."""
    from adjourn.store import Batch, Change, Decision, InterruptRecord, SessionRecord, Snapshot

    def work(tx: Tx) -> None:
        for row in whole["sessions"]:
            tx.put_session(msgspec.convert(row, SessionRecord))
        for row in whole["snapshots"]:
            tx.put_snapshot(msgspec.convert(row, Snapshot))
        for snapshot_id, batches in whole["batches"].items():
            for n, batch in enumerate(msgspec.convert(batches, list[Batch])):
                tx.add_events(snapshot_id, n, batch.events, batch.at, batch.epoch)
        for change in whole["changes"]:
            tx.add_change(msgspec.convert(change, Change))
        for name, value in whole["marks"].items():
            tx.put_mark(name, value)
        for row in whole["interrupts"]:
            tx.put_interrupt(msgspec.convert(row, InterruptRecord))
        for row in whole["decisions"]:
            tx.put_decision(msgspec.convert(row, Decision))

    do(store_to, work)


if __name__ == "__main__":
    main()
