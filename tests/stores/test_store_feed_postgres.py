"""The feed on PostgreSQL, where transactions overtake one another: nothing is skipped, whoever else is at work."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg")

from adjourn.store import Change, Tx
from adjourn.stores.postgres import PostgresStore
from adjourn.testing_store.samples import change_sample
from stores.store_kit import TESTS, Place, child, do, said_by

pytestmark = pytest.mark.postgres

WRITES = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
from adjourn.testing_store.samples import change_sample
from stores.store_kit import do

me, many = sys.argv[1], int(sys.argv[2])

def write(k):
    dice = random.Random(f"{me}.{k}")
    for i in range(many):
        early, late, fails = dice.randrange(4), dice.randrange(12), dice.random() < 0.15
        def work(tx):
            for _ in range(early):
                tx.mark("nothing")  # a way to the server and back
            for part in "ab" if i % 5 == 0 else "a":
                tx.add_change(change_sample(f"{me}.{k}.{i}{part}"))
            for _ in range(late):
                tx.mark("nothing")
            if fails:
                raise LookupError
        try:
            do(store, work)
        except LookupError:
            pass

with ThreadPoolExecutor(4) as pool:
    list(pool.map(write, range(4)))
store.close()
"""


@pytest.fixture
def postgres(postgres_dsn: str, tmp_path: Path) -> Iterator[Place]:
    place = Place("postgres", tmp_path, postgres_dsn)
    yield place
    place.close()


def place_of(position: str) -> tuple[int, ...]:
    return tuple(int(number) for number in position.partition("-")[0].split("."))


def page_of(tx: Tx, after: str | None, limit: int) -> list[Change]:
    return tx.changes(after, limit)


def everything(tx: Tx) -> tuple[list[Change], str]:
    return tx.changes(None, 10_000), tx.position()


class Followers:
    """Each reads on from where it was, in pages of its own size, until it is told that nothing more will come."""

    def __init__(
        self,
        postgres: Place,
        many: int,
        what: Callable[[Change], str] = attrgetter("interrupt_id"),
        pages: Sequence[int] = (1, 3, 50),
    ) -> None:
        self.what, self.pages = what, pages
        self.over = threading.Event()
        self.seen: list[list[str]] = [[] for _ in range(many)]
        self.stores = [postgres.open() for _ in range(many)]
        self.threads = [threading.Thread(target=self._follow, args=(n,)) for n in range(many)]
        for thread in self.threads:
            thread.start()

    def _follow(self, n: int) -> None:
        dice = random.Random(n)
        after: str | None = None
        while True:
            over = self.over.is_set()
            page = partial(page_of, after=after, limit=dice.choice(self.pages))
            found = do(self.stores[n], page, read=dice.random() < 0.8)
            self.seen[n] += [self.what(c) for c in found]
            after = found[-1].position if found else after
            if over and not found:
                return

    def finish(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(100)


def others(postgres: Place, over: threading.Event) -> list[threading.Thread]:
    """Transactions that are not ours: long ones, nested ones, and locks that move ours about."""

    def long(db: Any, dice: random.Random) -> None:
        db.execute("SELECT pg_current_xact_id()")
        for _ in range(dice.randrange(40)):
            db.execute("SELECT 1")

    def nested(db: Any, dice: random.Random) -> None:
        db.execute("SAVEPOINT one")
        long(db, dice)
        db.execute("ROLLBACK TO SAVEPOINT one")

    def strong(db: Any, dice: random.Random) -> None:
        db.execute(f"LOCK TABLE {postgres.name}.changes IN SHARE MODE".encode())

    def go_on(step: Callable[[Any, random.Random], None], seed: int) -> None:
        import psycopg

        dice = random.Random(seed)
        with psycopg.connect(postgres.dsn) as db:
            while not over.is_set():
                step(db, dice)
                db.commit() if dice.random() < 0.7 else db.rollback()

    found = [threading.Thread(target=go_on, args=(s, n)) for n, s in enumerate((long, long, nested, strong))]
    for thread in found:
        thread.start()
    return found


def check_that_nothing_is_skipped(postgres: Place, writers: int, each: int) -> None:
    import psycopg

    store = postgres.open()
    followers, over = Followers(postgres, 3), threading.Event()
    threads = others(postgres, over)
    processes = [
        child(postgres.code.replace("connections=2", "connections=4") + WRITES, str(k), str(each))
        for k in range(writers)
    ]
    early: list[list[str]] = []
    try:
        while any(p.poll() is None for p in processes):
            found, end = do(store, everything, read=True)
            early.append([c.interrupt_id for c in found])
            # It may be less: somebody else's transaction ended meanwhile, and might have been one of ours.
            assert place_of(end) <= place_of(found[-1].position if found else "0.0")
    finally:
        for process in processes:
            said_by(process, 300)
        over.set()
        followers.finish()
        for thread in threads:
            thread.join(60)
    told = [c.interrupt_id for c in do(store, everything, read=True)[0]]
    with psycopg.connect(postgres.dsn) as db:
        kept = db.execute(f"SELECT interrupt_id FROM {postgres.name}.changes".encode()).fetchall()
    assert sorted(told) == sorted(row[0] for row in kept)
    assert len(told) > writers * each
    assert followers.seen == [told] * 3
    assert all(told[: len(ids)] == ids for ids in early)


@pytest.mark.slow
def test_nothing_is_skipped_where_writers_overtake_one_another_beside_other_transactions(postgres: Place) -> None:
    check_that_nothing_is_skipped(postgres, writers=2, each=12)


OURS = """
BEGIN;
LOCK TABLE $schema.changes IN ROW SHARE MODE;
SELECT pg_current_xact_id();
SELECT 1;
INSERT INTO $schema.changes (kind, interrupt_id, session_id, at) VALUES ('opened', 'i', 's', 1);
COMMIT;
"""


def _number(change: Change) -> str:
    return change.position.partition("-")[0]


THEIRS = "BEGIN; SELECT pg_current_xact_id(); SELECT 1; COMMIT;"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_skipped_among_thousands_of_transactions_that_end_while_they_are_looked_at(
    postgres: Place, tmp_path: Path
) -> None:
    """At this rate locks are often let go of while they are read: a reader that did not look again would skip some."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    folder = os.environ.get("ADJOURN_TEST_POSTGRES_BIN")
    if folder is None or not (Path(folder) / "pgbench").exists():
        pytest.skip("pgbench comes with the server that scripts/with_postgres.py starts")
    postgres.open()
    at = {name: str(value) for name, value in conninfo_to_dict(postgres.dsn).items()}
    scripts = [(tmp_path / "ours.sql", OURS, 3), (tmp_path / "theirs.sql", THEIRS, 1)]
    command = [f"{folder}/pgbench", "-n", "-c", "24", "-j", "2", "-T", "40", "-h", at["host"], "-U", at["user"]]
    for path, text, weight in scripts:
        path.write_text(text.replace("$schema", postgres.name))
        command += ["-f", f"{path}@{weight}"]
    env = os.environ | {"PGOPTIONS": "-c synchronous_commit=off"}  # the more of them, the better
    followers = Followers(postgres, 2, _number, pages=[10_000])
    try:
        done = subprocess.run([*command, at["dbname"]], env=env, capture_output=True, text=True, check=False)
    finally:
        followers.finish()
    assert done.returncode == 0, done.stderr
    with psycopg.connect(postgres.dsn) as db:
        query = f"SELECT xid::text || '.' || n FROM {postgres.name}.changes ORDER BY xid, n"
        kept = [row[0] for row in db.execute(query.encode())]
    assert len(kept) > 1000
    for seen in followers.seen:
        assert sorted(set(kept) - set(seen)) == []
        assert seen == kept


STANDBY = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import psycopg
from with_postgres import run, server_user
from adjourn.stores.postgres import PostgresStore
from adjourn.stores.postgres_rows import PostgresTx
from adjourn.stores.postgres_server import Server
from adjourn.testing_store.samples import change_sample
from stores.store_kit import do

dsn, programs, folder = (os.environ["ADJOURN_TEST_POSTGRES" + part] for part in ("", "_BIN", "_DIR"))
programs, folder = Path(programs), Path(folder)
store = PostgresStore(dsn)
do(store, lambda tx: tx.add_change(change_sample("first")))
made = run(programs / "pg_basebackup", "-d", dsn, "-D", str(folder / "standby"), "-R", "--checkpoint=fast", cwd=folder)
assert made.returncode == 0, made.stdout
options = f"-c unix_socket_directories={folder / 'standby'}"
started = run(
    programs / "pg_ctl", "-D", str(folder / "standby"), "-w", "-l", str(folder / "standby.log"), "-o", options, "start",
    cwd=folder,
)
assert started.returncode == 0, started.stdout
elsewhere = f"postgresql:///postgres?host={folder / 'standby'}&user=adjourn"
server = Server(elsewhere, "adjourn", 5.0)

def has_come(db, interrupt_id):
    query = "SELECT count(*) FROM adjourn.changes WHERE interrupt_id = $1"
    while not db.execute(query, [interrupt_id]).fetchone()[0]:
        pass

def there(db):
    with db.transaction():
        db.execute(server.statements["begin_read"].replace(b"BEGIN", b"SET TRANSACTION"))
        tx = PostgresTx(db, server.statements, read=True)
        return [c.interrupt_id for c in tx.changes(None, 99)]

try:
    with server.connect() as db, psycopg.connect(dsn) as slow:
        slow.execute("LOCK TABLE adjourn.changes IN ROW SHARE MODE")
        slow.execute(
            "INSERT INTO adjourn.changes (kind, interrupt_id, session_id, at) VALUES ('opened', 'slow', 's', 1)"
        )
        do(store, lambda tx: tx.add_change(change_sample("quick")))
        has_come(db, "quick")
        assert there(db) == ["first"], there(db)
        slow.commit()
        has_come(db, "slow")
        assert there(db) == ["first", "slow", "quick"], there(db)
finally:
    store.close()
    run(programs / "pg_ctl", "-D", str(folder / "standby"), "-m", "immediate", "stop", cwd=folder)
print("fine")
"""


@pytest.mark.slow
def test_a_standby_shows_no_change_before_what_may_still_come_in_front_of_it(postgres: Place) -> None:
    script = TESTS.parent / "scripts" / "with_postgres.py"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(script), "--private", sys.executable, "-c", STANDBY, str(script.parent)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout


class Blurred(dict[str, bytes]):
    """The statements of a server on which transactions end during the first looks at the end of the feed."""

    looks = 0

    def __getitem__(self, name: str) -> bytes:
        if name == "horizon" and self.looks > 0:
            self.looks -= 1
            return b"SELECT '0', true"
        return super().__getitem__(name)


@pytest.mark.parametrize("read", [True, False])
def test_a_look_during_which_a_transaction_ended_is_taken_again(postgres: Place, read: bool) -> None:
    store = postgres.open()
    assert isinstance(store, PostgresStore)
    server = store._core.server  # pyright: ignore[reportPrivateUsage]
    statements = server.statements = Blurred(server.statements)
    do(store, lambda tx: tx.add_change(change_sample("seen")))
    statements.looks = 3
    assert [c.interrupt_id for c in do(store, lambda tx: tx.changes(None, 9), read=read)] == ["seen"]
    statements.looks = 3
    assert do(store, lambda tx: tx.position(), read=read) != "0.0"
    statements.looks = 1000  # it never becomes clear: then what is certain is given, and nobody waits for ever
    assert do(store, lambda tx: tx.changes(None, 9), read=read) == []
