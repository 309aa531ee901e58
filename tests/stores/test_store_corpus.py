"""What older versions stored can still be read, in every released format."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from adjourn import Store
from adjourn.decisions import decide, decision_of
from adjourn.events import Limits, Responded
from adjourn.loading import load, stand
from adjourn.store import Change, InterruptQuery
from adjourn.stores.rows import migrations, statements
from stores.corpus.make_corpus import dump, tables
from stores.store_kit import Driver, Place, do

CORPUS = Path(__file__).resolve().parent / "corpus"
FORMATS = sorted(int(re.findall(r"\d+", p.name)[0]) for p in CORPUS.glob("format_*.stored"))


def _expected(number: int) -> dict[str, Any]:
    return json.loads((CORPUS / f"format_{number}.json").read_text("utf-8"))


def _still_works(store: Store) -> None:
    """What was paused can be decided, and what was decided, finished or running can be gone on with."""
    for session in ("finished", "paused", "running", "decided", "resumed", "forked"):
        loaded = do(store, lambda tx, s=session: load(tx, s, None), read=True)
        assert loaded is not None
        standing = stand(loaded, Limits())
        assert (standing.turn is None) == (session in ("finished", "resumed")), session
    paused = do(store, lambda tx: load(tx, "paused", None), read=True)
    assert paused is not None
    turn = stand(paused, Limits()).turn
    assert turn is not None
    for call in turn.paused:
        pause = call.pause
        assert pause is not None
        decision_of(do(store, lambda tx, p=pause: decide(tx, p.id, Responded(p.id, True), 3000.0, None)))
    driver = Driver(store, "finished")
    finished = do(store, lambda tx: tx.session("finished"), read=True)
    assert finished is not None
    driver.parent = finished.head
    driver.leg = driver.new_leg()
    driver.whole_turn()


def _has_times(store: Store, number: int) -> None:
    """Each commit has a time; one that was stored before there were any has that of its snapshot. Then the feed goes on."""
    snapshots = do(store, lambda tx: tx.snapshots("resumed"), read=True)
    batches = [b for s in snapshots for b in do(store, lambda tx, s=s: tx.batches(s.id), read=True)]
    assert {b.at for b in batches} == {1000.0}
    assert list(dict.fromkeys(b.epoch for b in batches)) == ([0] if number < 2 else [1, 2])
    assert [c.id for c in do(store, lambda tx: tx.children(snapshots[0].id), read=True)] == [snapshots[1].id]
    kinds = [c.kind for c in do(store, lambda tx: tx.changes(None, 100), read=True)]
    assert sorted(kinds) == ([] if number < 2 else [*["opened"] * 6, *["settled"] * 3])
    end = do(store, lambda tx: tx.position(), read=True)
    do(store, lambda tx: tx.add_change(Change("", "opened", "i_new", "s_new", 5.0)))
    assert [c.interrupt_id for c in do(store, lambda tx: tx.changes(end, 9), read=True)] == ["i_new"]
    do(store, lambda tx: tx.put_mark("m", "1"))
    assert do(store, lambda tx: tx.count(InterruptQuery(status="open", text="WORDS")), read=True) > 0


def test_there_is_a_stored_file_of_every_format() -> None:
    assert list(range(1, len(migrations("sqlite")) + 1)) == FORMATS
    folders = {f"postgres_{n}" for n in range(1, len(migrations("postgres")) + 1)}
    assert {p.name for p in CORPUS.glob("postgres_*")} == folders


@pytest.mark.parametrize("number", FORMATS)
def test_a_sqlite_file_of_this_format_is_read_whole_and_goes_on(number: int, tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    shutil.copy(CORPUS / f"format_{number}.stored", place.path)
    store = place.open()
    assert dump(store, number) == _expected(number)
    _has_times(store, number)
    _still_works(store)
    place.close()


@pytest.mark.postgres
@pytest.mark.parametrize("folder", sorted(CORPUS.glob("postgres_*")), ids=lambda p: p.name)
def test_postgres_tables_of_this_format_are_read_whole_and_go_on(
    folder: Path, postgres_dsn: str, tmp_path: Path
) -> None:
    import psycopg

    number = int(re.findall(r"\d+", folder.name)[0])
    place = Place("postgres", tmp_path, postgres_dsn)
    with psycopg.connect(postgres_dsn) as db:
        db.execute(f"CREATE SCHEMA {place.name}".encode())
        db.execute(f"CREATE TABLE {place.name}.format (version integer NOT NULL)".encode())
        db.execute(f"INSERT INTO {place.name}.format VALUES ({number})".encode())
        for script in migrations("postgres")[:number]:
            for statement in statements(script):
                db.execute(statement.replace("$schema", place.name).encode())
        for table in tables(number):
            with db.cursor().copy(f"COPY {place.name}.{table} FROM STDIN".encode()) as copy:
                copy.write((folder / f"{table}.copy").read_bytes())
            if table not in (
                "sessions",
                "events",
                "marks",
            ):  # COPY leaves the counters behind, as a restored dump does not
                rows = f"{place.name}.{table}"
                db.execute(f"SELECT setval(pg_get_serial_sequence('{rows}', 'n'), 1 + max(n)) FROM {rows}".encode())
    store = place.open()
    assert dump(store, number) == _expected(number)
    _has_times(store, number)
    _still_works(store)
    place.close()
