"""What things cost, counted and not timed: index searches, steps of SQLite's machine, pages of PostgreSQL, bytes."""

import os
import re
import sqlite3
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn.decisions import decide, expire_due
from adjourn.events import Limits, Responded, UserSaid
from adjourn.ledger import Leg, Write, save
from adjourn.loading import load
from adjourn.parts import Message, Part
from adjourn.store import InterruptQuery, SessionQuery, Tx
from adjourn.stores.rows import queries
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_rows import SQLiteTx
from adjourn.testing_store.samples import plain_snapshot, session_sample
from adjourn.turn import begin, record
from stores.store_kit import Driver, Place, do

MANY = 100_000
WHOLE_TABLE = {"decisions", "decisions_unapplied"}  # asked for by tests and tools only
# A session has few interrupts, few are overdue, and one interrupt has few decisions.
SORTED = {"interrupts_by_session", "interrupts_overdue", "decisions_by_interrupt"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@contextmanager
def opened(path: Path) -> Generator[sqlite3.Connection]:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        yield db
    finally:
        db.close()


@pytest.mark.parametrize("name", [n for n in queries("sqlite") if n not in WHOLE_TABLE])
def test_every_sqlite_statement_finds_its_rows_by_an_index(name: str, path: Path) -> None:
    SQLiteStore(path).close()
    statement = queries("sqlite")[name]
    with opened(path) as db:
        values = [None] * (max([int(n) for n in re.findall(r"\?(\d+)", statement)], default=0))
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    for line in plan:
        if line.startswith("SCAN"):
            # The feed is read from one of its ends, as its own order has it; a filter's values come as a list; what was
            # found is counted.
            assert re.fullmatch(
                r"SCAN (up|CONSTANT ROW|changes|json_each VIRTUAL TABLE INDEX 1:|\(subquery-\d+\))", line
            ), plan
        assert "TEMP B-TREE" not in line or name in SORTED, plan


# -- 100,000 paused sessions: one paused by the ledger, copied by the database itself


def copies(path: Path, many: int, *, expiring: bool = False) -> None:
    """A store with that many paused sessions of one turn each."""
    store = SQLiteStore(path)
    driver = Driver(store, "s")
    driver.pause(expires_at=9e9 if expiring else None)
    store.close()
    with opened(path) as db:
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for table, columns in (
            ("sessions", "id || k, agent, owner, created + k, updated + k, lease_until, active, body"),
            ("snapshots", "id || k, session_id || k, parent_id, turn_id, folded, created + k, updated + k, body"),
            ("interrupts", "id || k, session_id || k, status, agent, tool, owner, created + k, expires_at, body"),
            ("changes", "kind, interrupt_id || k, session_id || k, at + k, decision_id"),
        ):
            names = ", ".join(row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "n")
            db.execute(
                f"WITH RECURSIVE c (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM c WHERE k < {many - 1}) "
                f"INSERT INTO {table} ({names}) SELECT {columns} FROM c, (SELECT * FROM {table} LIMIT 1)"
            )
        db.execute(
            "INSERT INTO events SELECT (s.n << 20), e.body, e.at, e.epoch "
            "FROM snapshots s, (SELECT * FROM events LIMIT 1) e WHERE s.n > 1"
        )
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")


def a_turn_begins(tx: Tx) -> None:
    """A new session's first commit."""
    leg = Leg(f"new_{uuid.uuid4().hex}", f"n_{uuid.uuid4().hex}", "t", "agent", "h", 5000.0)
    said = UserSaid(Message("user", [Part(text="hello")]))
    save(tx, Write(leg, record(begin((), Limits()), said), [said], None, 5000.0, 15.0))


def a_decision(tx: Tx) -> None:
    row = tx.interrupts(InterruptQuery(status="open", limit=1))[0]
    decision, refused = decide(tx, row.id, Responded(row.id, True), 2000.0, None)
    assert decision is not None, refused


def _open(**filters: Any) -> InterruptQuery:
    return InterruptQuery(status="open", limit=20, **filters)


WORKS: dict[str, Callable[[Tx], Any]] = {
    "a page of the inbox": lambda tx: tx.interrupts(InterruptQuery(status="open", limit=20)),
    "a page of a tool": lambda tx: tx.interrupts(InterruptQuery(status="open", tool="look", limit=20)),
    "a page of an agent": lambda tx: tx.interrupts(InterruptQuery(agent="agent", status="open", limit=20)),
    "a page of a tool that has none": lambda tx: tx.interrupts(InterruptQuery(status="open", tool="none", limit=20)),
    "a page of somebody who has none": lambda tx: tx.interrupts(InterruptQuery(status="open", owner="none", limit=20)),
    "a page of what was settled": lambda tx: tx.interrupts(InterruptQuery(status="resolved", limit=20)),
    "a page of sessions": lambda tx: tx.sessions(SessionQuery(limit=20)),
    "sessions that wait for a driver": lambda tx: tx.sessions(SessionQuery(due=9e9)),
    "what is overdue": lambda tx: expire_due(tx, 5000.0),
    "decisions not taken up": lambda tx: tx.decisions(unapplied=True),
    "a session that is not there": lambda tx: tx.session("nobody"),
    "a page of any of three tools": lambda tx: tx.interrupts(_open(tools=("look", "none", "other"))),
    "a page of two people who have none": lambda tx: tx.interrupts(_open(owners=("none", "other"), tools=("look",))),
    "a page of what nobody owns": lambda tx: tx.interrupts(_open(owners=(None, "none"), agents=("agent",))),
    "a page that mentions what all do": lambda tx: tx.interrupts(_open(text="WORDS")),
    "how many a tool has that has none": lambda tx: tx.count(_open(tool="none")),
    "how many somebody has who has none": lambda tx: tx.count(_open(owners=("none", "other"))),
    "how many sessions an agent has that has none": lambda tx: tx.count(SessionQuery(agents=("none",))),
    "the beginning of the feed": lambda tx: tx.changes(None, 20),
    "the end of the feed": lambda tx: (tx.position(), tx.changes(tx.position(), 20)),
    "what follows a snapshot": lambda tx: [tx.children(s.id) for s in tx.snapshots("s50")],
    "a session since its snapshot": lambda tx: [tx.snapshots("s50", s.id) for s in tx.snapshots("s50")],
    "a mark": lambda tx: (tx.mark("none"), tx.put_mark("m", "1"), tx.mark("m")),
    "opening a session": lambda tx: load(tx, "s50", None),
    "beginning a session": a_turn_begins,
    "a decision": a_decision,
}


# What has to look at every open interrupt, and then at little of each: the most steps for one, and the most rows of 1 KB
# pages that may be read for it (a filter is in the index, a text is in the row).
SCANS: dict[str, Callable[[Tx], Any]] = {
    "how many wait": lambda tx: tx.count(_open()),
    "how many wait that nobody owns": lambda tx: tx.count(_open(owners=(None,), tools=("look", "none"))),
    "how many sessions there are": lambda tx: tx.count(SessionQuery()),
    "a page of what nobody owns of a tool that has none": lambda tx: tx.interrupts(
        _open(owners=(None,), tools=("none",))
    ),
    "a page that mentions what none does": lambda tx: tx.interrupts(_open(text="nowhere")),
    "how many mention what none does": lambda tx: tx.count(_open(text="nowhere")),
}
STEPS_A_ROW = 40


def steps(path: Path, works: Mapping[str, Callable[[Tx], Any]] = WORKS) -> dict[str, int]:
    """How many steps of its machine SQLite takes for each."""
    out: dict[str, int] = {}
    with opened(path) as db:
        taken = [0]

        def step() -> None:
            taken[0] += 1

        for name, work in works.items():
            db.execute("BEGIN IMMEDIATE")
            db.set_progress_handler(step, 1)
            taken[0] = 0
            tx = SQLiteTx(db)
            work(tx)
            tx.finish()
            out[name] = taken[0]
            db.set_progress_handler(None, 0)
            db.execute("ROLLBACK")
    return out


@pytest.mark.parametrize("expiring", [False, True])
def test_what_is_done_in_sqlite_takes_the_same_steps_with_many_sessions_as_with_few(
    expiring: bool, tmp_path: Path
) -> None:
    found: list[dict[str, int]] = []
    for many in (100, 5000):
        copies(tmp_path / f"{many}.db", many, expiring=expiring)
        found.append(steps(tmp_path / f"{many}.db"))
    few, many = found
    assert {name: many[name] for name in many if many[name] > few[name] * 1.1} == {}, few


def _looked_through(path: Path, many: int) -> None:
    for name, taken in steps(path, SCANS).items():
        assert taken <= many * STEPS_A_ROW + 1000, (name, taken / many)


def test_counts_and_searches_in_sqlite_take_a_few_steps_for_each_that_waits(path: Path) -> None:
    copies(path, 2000)
    _looked_through(path, 2000)


def test_filters_are_answered_from_the_index_alone(path: Path) -> None:
    SQLiteStore(path).close()
    with opened(path) as db:
        statement = queries("sqlite")["count_interrupts_by_status"]
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * 9)]
        without_text = re.sub(r" AND \(\?9 IS NULL OR CAST.*, \?9\)\)", "", statement)
        covered = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {without_text}", [None] * 8)]
    assert any("interrupts_status" in line for line in plan), plan
    assert any("COVERING INDEX interrupts_status" in line for line in covered), covered


def test_who_searches_keeps_nobody_from_writing(path: Path) -> None:
    copies(path, 500)
    store = SQLiteStore(path)
    searched, release = threading.Event(), threading.Event()

    def search(tx: Tx) -> int:
        found = tx.count(_open(text="words"))
        searched.set()
        release.wait(60)
        return found + len(tx.interrupts(_open(text="nowhere")))

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(lambda: do(store, search, read=True))
        assert searched.wait(60)
        do(store, a_decision)  # while the search still reads
        release.set()
        assert looking.result(60) == 500
    store.close()


@pytest.mark.slow
def test_100_000_paused_sessions_in_sqlite_cost_what_100_do(tmp_path: Path) -> None:
    found: list[dict[str, int]] = []
    for many in (100, MANY):
        copies(tmp_path / f"{many}.db", many, expiring=True)
        found.append(steps(tmp_path / f"{many}.db"))
        _looked_through(tmp_path / f"{many}.db", many)
    few, many = found
    assert {name: many[name] for name in many if many[name] > few[name] * 1.1} == {}, few


# -- PostgreSQL


class _Counting:
    """A connection that executes each statement under EXPLAIN (ANALYZE), and adds up what it touched."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.pages = 0
        self.filtered = 0
        self.scans: list[str] = []

    def execute(self, statement: bytes, values: Any = (), *, binary: bool = False) -> Any:
        self._db.execute("SAVEPOINT counting")
        explained = self._db.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, values).fetchone()[0]
        self._db.execute("ROLLBACK TO counting")
        self._add(explained[0]["Plan"])
        self.pages += explained[0]["Plan"]["Shared Hit Blocks"] + explained[0]["Plan"]["Shared Read Blocks"]
        return self._db.execute(statement, values, binary=binary)

    def _add(self, plan: dict[str, Any]) -> None:
        if (
            "Scan" in plan["Node Type"] and "Relation Name" in plan
        ):  # not the server's own list of locks, which others fill
            self.filtered += plan.get("Rows Removed by Filter", 0)
        if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] != "format":  # it has one row
            self.scans.append(plan["Relation Name"])
        for inner in plan.get("Plans", ()):
            self._add(inner)


def postgres_copies(place: Place, many: int) -> None:
    driver = Driver(place.open(), "s")
    driver.pause(expires_at=9e9)
    import psycopg

    with psycopg.connect(place.dsn, autocommit=True) as db:
        for table, columns in (
            ("sessions", "id || k, agent, owner, created + k, updated + k, lease_until, active, body"),
            ("snapshots", "id || k, session_id || k, parent_id, turn_id, folded, created + k, updated + k, body"),
            ("events", "snapshot_id || k, batch, body, at, epoch"),
            ("changes", "xid, kind, interrupt_id || k, session_id || k, at + k, decision_id"),
            ("interrupts", "id || k, session_id || k, status, agent, tool, owner, created + k, expires_at, body"),
        ):
            rows = db.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
                "AND column_name <> 'n' ORDER BY ordinal_position",
                [place.name, table],
            ).fetchall()
            names = ", ".join(row[0] for row in rows)
            whole = f'"{place.name}".{table}'
            statement = (
                f"INSERT INTO {whole} ({names}) SELECT {columns} FROM generate_series(1, {many - 1}) k, "
                f"(SELECT * FROM {whole} LIMIT 1) one"
            )
            db.execute(statement.encode())
            db.execute(f"VACUUM ANALYZE {whole}".encode())


def pages(place: Place, works: Mapping[str, Callable[[Tx], Any]] = WORKS) -> dict[str, tuple[int, int, list[str]]]:
    """Pages touched, rows looked at in vain, and tables read whole, for each."""
    from adjourn.stores.postgres_rows import PostgresTx
    from adjourn.stores.postgres_server import Server

    server = Server(place.dsn, place.name, 5.0)
    out: dict[str, tuple[int, int, list[str]]] = {}
    db = server.connect()
    db.execute(
        b"SET application_name = 'counting'"
    )  # it is slow, and no process of the store that is to be ended for that
    db.execute(
        b"SET enable_seqscan = off"
    )  # a small table is rightly read whole; here it is asked whether an index would do
    for name, work in works.items():
        # The least of a few times: a reading of the feed looks again where a neighbour on the server ends meanwhile.
        counts: list[tuple[int, int, list[str]]] = []
        for _ in range(3):
            db.execute(b"BEGIN")
            counting = _Counting(db)
            work(PostgresTx(counting, server.statements, read=False))
            counts.append((counting.pages, counting.filtered, counting.scans))
            db.execute(b"ROLLBACK")
            if not 50 < counting.pages < 1000:  # so few are no surprise, and so many were meant to be
                break
        out[name] = min(counts)
    db.close()
    return out


def _same_pages(place: Place, large: int) -> None:
    found: list[dict[str, tuple[int, int, list[str]]]] = []
    for many in (100, large):
        place.move()
        postgres_copies(place, many)
        found.append(pages(place))
    few, much = found
    for name, (touched, filtered, scans) in much.items():
        # The trees are a level or two higher, which is a page each a row that is looked for by itself.
        assert touched <= few[name][0] * 2 + 40, (name, few[name][0], touched)
        assert (filtered, scans) == (0, []), (name, filtered, scans)
    for name, (touched, _, _) in pages(place, SCANS).items():
        assert touched <= large * 2 + 1000, (name, touched)  # a row is on one page, an index entry on a tenth of one


@pytest.fixture
def postgres(postgres_dsn: str, tmp_path: Path) -> Iterator[Place]:
    place = Place("postgres", tmp_path, postgres_dsn)
    yield place
    place.close()


@pytest.mark.slow
@pytest.mark.postgres
def test_what_is_done_in_postgres_touches_the_same_pages_with_many_sessions_as_with_few(postgres: Place) -> None:
    _same_pages(postgres, 3000)


@pytest.mark.slow
@pytest.mark.postgres
def test_100_000_paused_sessions_in_postgres_cost_what_100_do(postgres: Place) -> None:
    _same_pages(postgres, MANY)


# -- bytes


def written() -> int:
    """Bytes this process has handed to the system to write."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])


def test_a_turn_costs_the_same_bytes_however_long_the_session_is(path: Path) -> None:
    store = SQLiteStore(path)
    driver = Driver(store)
    costs: list[int] = []
    for _ in range(3):
        before = written() if os.path.exists("/proc/self/io") else 0
        for _ in range(100):
            driver.whole_turn()
        costs.append((written() if os.path.exists("/proc/self/io") else 0) - before)
    store.close()
    assert path.stat().st_size < 300 * 3_000  # at most 3 MB in 1,000 turns
    assert max(costs) <= 100 * 40_000
    assert costs[2] <= costs[0] * 1.3


def test_a_session_of_1000_turns_is_opened_in_a_few_steps_a_turn(path: Path) -> None:
    store = SQLiteStore(path)

    def put(tx: Tx) -> None:
        parent = None
        for i in range(1000):
            said = (Message("user", [Part(text="words " * 30)]), Message("model", [Part(text="words " * 30)]))
            tx.put_snapshot(replace(plain_snapshot(f"n{i}", "s", parent, messages=said), status="completed"))
            parent = f"n{i}"
        tx.put_session(session_sample("s", head=parent, waiting=0))

    do(store, put)
    store.close()
    with opened(path) as db:
        taken = [0]

        def step() -> None:
            taken[0] += 1

        db.set_progress_handler(step, 1)
        loaded = load(SQLiteTx(db), "s", None)
    assert loaded is not None
    assert len(loaded.chain) == 1000
    assert taken[0] < 60 * 1000
