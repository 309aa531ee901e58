"""What a PostgresStore does when the server, or the way to it, is not as it should be."""

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg")
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from adjourn import Store
from adjourn.errors import InvalidRequest, StoreFormatError, StoreUnavailable
from adjourn.store import Tx
from adjourn.stores.postgres import PostgresStore
from adjourn.testing_store.samples import decision_sample, session_sample
from stores.lossy_proxy import LossyProxy
from stores.store_kit import Place, child, do, said_by

pytestmark = pytest.mark.postgres
SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "with_postgres.py"


@pytest.fixture
def place(postgres_dsn: str, tmp_path: Path) -> Iterator[Place]:
    place = Place("postgres", tmp_path, postgres_dsn)
    yield place
    place.close()


@pytest.fixture
def proxy(postgres_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LossyProxy]:
    server = Path(str(conninfo_to_dict(postgres_dsn)["host"])) / ".s.PGSQL.5432"
    proxy = LossyProxy(tmp_path_factory.mktemp("pg"), server)
    yield proxy
    proxy.close()


def through(proxy: LossyProxy, place: Place, wait_seconds: float = 15.0) -> PostgresStore:
    host = Path(str(proxy._listener.getsockname())).parent  # pyright: ignore[reportPrivateUsage]
    return PostgresStore(
        make_conninfo(place.dsn, host=str(host)), schema=place.name, connections=2, wait_seconds=wait_seconds
    )


# -- opening


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    dsn = f"postgresql://someone:s3cret@/db?host={tmp_path}"
    began = time.monotonic()
    with pytest.raises(
        StoreUnavailable, match=r"dbname=db user=someone.*does not answer.*See that the server runs"
    ) as caught:
        PostgresStore(dsn, wait_seconds=0.3)
    assert time.monotonic() - began < 10
    assert "s3cret" not in str(caught.value)


def test_a_dsn_that_cannot_be_read_is_refused_without_repeating_it() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be read") as caught:
        PostgresStore("host = s3cret password=' =")
    assert "s3cret" not in str(caught.value)


def test_a_database_that_does_not_exist_is_refused_at_once(postgres_dsn: str) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="nowhere"):
        PostgresStore(make_conninfo(postgres_dsn, dbname="nowhere"))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("schema", ["", "a b", 'x"; DROP', "Ä", "a" * 60])
def test_a_schema_with_an_odd_name_is_refused(schema: str) -> None:
    with pytest.raises(InvalidRequest, match="schema="):
        PostgresStore("", schema=schema)


def test_the_tables_of_another_program_are_refused_and_left_alone(place: Place) -> None:
    with psycopg.connect(place.dsn, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {place.name}".encode())
        db.execute(f"CREATE TABLE {place.name}.sessions (id int)".encode())
    with pytest.raises(StoreFormatError, match=r"another program \(sessions\).*choose another schema"):
        place.open()


def test_a_newer_format_is_refused_by_its_number(place: Place) -> None:
    place.open().close()
    with psycopg.connect(place.dsn, autocommit=True) as db:
        db.execute(f"UPDATE {place.name}.format SET version = 99".encode())
    with pytest.raises(StoreFormatError, match=r"format 99.*up to 3.*pip install -U adjourn"):
        place.open()


def test_a_user_who_may_not_store_anything_is_told_what_to_grant(place: Place) -> None:
    role = f"r_{uuid.uuid4().hex}"
    with psycopg.connect(place.dsn, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        with pytest.raises(StoreUnavailable, match="Grant it CREATE"):
            PostgresStore(make_conninfo(place.dsn, user=role), schema=place.name)
    finally:
        with psycopg.connect(place.dsn, autocommit=True) as db:
            db.execute(f"DROP ROLE {role}".encode())


def test_a_standby_is_called_read_only(place: Place) -> None:
    dsn = make_conninfo(place.dsn, options="-c default_transaction_read_only=on")
    with pytest.raises(StoreUnavailable, match=r"read-only.*primary"):
        PostgresStore(dsn, schema=place.name, wait_seconds=0.3)


def test_a_missing_driver_gives_the_pip_command() -> None:
    code = """
import sys
sys.modules["psycopg"] = None
from adjourn.errors import MissingExtra
try:
    from adjourn.stores.postgres import PostgresStore
except MissingExtra as e:
    print(e)
"""
    assert "pip install 'adjourn[postgres]'" in said_by(child(code))


def test_importing_adjourn_does_not_import_the_driver() -> None:
    said_by(child("import sys, adjourn\nassert not [m for m in sys.modules if m.startswith('psycopg')]"))


def test_commits_wait_for_the_disk_whatever_the_servers_default(place: Place) -> None:
    store = PostgresStore(make_conninfo(place.dsn, options="-c synchronous_commit=off"), schema=place.name)
    setting = do(store, lambda tx: vars(tx)["_db"].execute("SHOW synchronous_commit").fetchone()[0])
    assert setting == "on"
    store.close()


# -- working


def kill(place: Place, pid: int) -> None:
    with psycopg.connect(place.dsn, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def test_a_connection_that_is_lost_before_the_commit_is_replaced_and_the_work_runs_again(place: Place) -> None:
    store = place.open()
    runs: list[int] = []

    def work(tx: Tx) -> None:
        session = tx.session("s1") or session_sample(epoch=0)
        runs.append(session.epoch)
        if len(runs) == 1:
            kill(place, vars(tx)["_db"].info.backend_pid)
        tx.session("s1")
        tx.put_session(session_sample(epoch=session.epoch + 1))

    do(store, work)
    assert runs == [0, 0]
    found = do(store, lambda tx: tx.session("s1"), read=True)
    assert found is not None
    assert found.epoch == 1


def test_a_connection_that_is_killed_just_before_the_commit_applies_the_work_once(place: Place) -> None:
    store = place.open()
    runs: list[int] = []

    def work(tx: Tx) -> None:
        session = tx.session("s1") or session_sample(epoch=0)
        runs.append(session.epoch)
        tx.put_session(session_sample(epoch=session.epoch + 1))
        if len(runs) == 1:
            tx.session("s1")
            kill(place, vars(tx)["_db"].info.backend_pid)

    do(store, work)
    assert runs == [0, 0]
    found = do(store, lambda tx: tx.session("s1"), read=True)
    assert found is not None
    assert found.epoch == 1


def _add_one(runs: list[int], tx: Tx) -> int:
    session = tx.session("s1") or session_sample(epoch=0)
    runs.append(session.epoch)
    tx.put_session(session_sample(epoch=session.epoch + 1))
    return session.epoch + 1


def test_a_commit_whose_answer_is_lost_is_neither_repeated_nor_forgotten(place: Place, proxy: LossyProxy) -> None:
    store = through(proxy, place)
    runs: list[int] = []
    for i in range(1, 6):
        proxy.cut_at_commit()
        assert do(store, lambda tx: _add_one(runs, tx)) == i
    assert proxy.cuts == 5
    assert runs == [0, 1, 2, 3, 4]
    store.close()


def test_a_commit_that_cannot_be_asked_about_is_called_unknown(place: Place, proxy: LossyProxy) -> None:
    store = through(proxy, place, wait_seconds=0.5)
    runs: list[int] = []
    assert do(store, lambda tx: _add_one(runs, tx)) == 1
    proxy.cut_at_commit(and_refuse=True)
    with pytest.raises(
        StoreUnavailable, match=r"middle of a commit.*may be, whole, or not at all.*Open the session again"
    ):
        do(store, lambda tx: _add_one(runs, tx))
    proxy.refusing = False
    found = do(store, lambda tx: tx.session("s1"), read=True)
    assert found is not None
    assert found.epoch == 2  # here it was kept; nothing ran twice
    assert runs == [0, 1]
    store.close()


def test_works_that_lock_each_other_are_run_again_until_both_are_done(place: Place) -> None:
    store = place.open()
    do(store, lambda tx: [tx.put_session(session_sample(s, epoch=0)) for s in ("a", "b")])
    both = threading.Barrier(2)
    runs: list[str] = []

    def work(tx: Tx, first: str, second: str) -> None:
        runs.append(first)
        one = tx.session(first)
        if len(runs) <= 2:
            both.wait(20)
        two = tx.session(second)
        assert one is not None
        assert two is not None
        tx.put_session(session_sample(first, epoch=one.epoch + 1))
        tx.put_session(session_sample(second, epoch=two.epoch + 1))

    futures = [store.submit(lambda tx: work(tx, "a", "b")), store.submit(lambda tx: work(tx, "b", "a"))]
    for future in futures:
        future.result(30)
    assert len(runs) >= 3  # on a busy machine they can meet once more
    for session in do(store, lambda tx: [tx.session("a"), tx.session("b")], read=True):
        assert session is not None
        assert session.epoch == 2


def test_a_lock_that_is_never_let_go_does_not_hold_up_other_sessions(place: Place) -> None:
    store = place.open()
    do(store, lambda tx: [tx.put_session(session_sample(s)) for s in ("a", "b")])
    with psycopg.connect(place.dsn) as db:
        db.execute(f"SELECT 1 FROM {place.name}.sessions WHERE id = 'a' FOR UPDATE".encode())
        stuck = store.submit(lambda tx: tx.session("a"))
        do(store, lambda tx: tx.session("b"))
        do(store, lambda tx: tx.session("a"), read=True)
        assert not stuck.done()
    stuck.result(10)


def test_a_connection_notices_that_nobody_is_at_the_other_end_unless_the_dsn_says_how(place: Place) -> None:
    own = PostgresStore(make_conninfo(place.dsn, tcp_user_timeout=12345), schema=place.name)
    with own._core.server.connect() as db:  # pyright: ignore[reportPrivateUsage]
        given = db.info.get_parameters()
    own.close()
    assert {k: given[k] for k in ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")} == {
        "keepalives_idle": "15", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "12345",
    }  # fmt: skip


def test_tables_that_vanish_give_a_clear_error(place: Place) -> None:
    store = place.open()
    with psycopg.connect(place.dsn, autocommit=True) as db:
        db.execute(f"DROP SCHEMA {place.name} CASCADE".encode())
    with pytest.raises(StoreFormatError, match="gone or were changed"):
        do(store, lambda tx: tx.put_session(session_sample()))
    with pytest.raises(StoreFormatError, match="gone or were changed"):
        do(store, lambda tx: tx.session("s1"), read=True)


def test_an_id_with_a_null_byte_is_refused_and_nothing_kept(place: Place) -> None:
    store = place.open()
    with pytest.raises(InvalidRequest, match="nothing of this change was kept"):
        do(store, lambda tx: (tx.put_decision(decision_sample()), tx.put_session(session_sample("a\0b"))))
    assert do(store, lambda tx: tx.decisions(), read=True) == []


def test_more_callers_than_connections_all_get_their_turn(place: Place) -> None:
    store = place.open(connections=2)
    futures = [store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f"d{i}"))) for i in range(100)]
    for future in futures:
        future.result(60)
    assert len(do(store, lambda tx: tx.decisions(), read=True)) == 100


# -- a server of one's own, which is stopped and started

STOPPED = """
import os, subprocess, sys, threading, time
import psycopg
from adjourn.errors import StoreUnavailable
from adjourn.stores.postgres import PostgresStore
from adjourn.testing_store.samples import decision_sample
from stores.store_kit import do

script, mode = sys.argv[1:]
def ctl(*arguments):
    subprocess.run([sys.executable, script, "--ctl", *arguments], check=True)
dsn = os.environ["ADJOURN_TEST_POSTGRES"]
store = PostgresStore(dsn, wait_seconds=60)
hasty = PostgresStore(dsn, wait_seconds=0.5)
heard = threading.Event()
hasty.subscribe(heard.set)
acknowledged, unknown = [], []
stop = threading.Event()
def write(k):
    i = 0
    while not stop.is_set():
        name = f"d{k}.{i}"
        i += 1
        try:
            do(store, lambda tx: tx.put_decision(decision_sample(name)))
        except StoreUnavailable as e:
            assert "in the middle of a commit" in str(e), e
            unknown.append(name)  # nobody can know: the server was started anew meanwhile
        else:
            acknowledged.append(name)
threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
[t.start() for t in threads]
time.sleep(1)
ctl("stop", "--mode", mode)
before = len(acknowledged)
try:
    do(hasty, lambda tx: tx.decisions())
    raise SystemExit("it should not answer")
except StoreUnavailable as e:
    assert "does not answer" in str(e), e
time.sleep(1)
ctl("start")
time.sleep(2)
stop.set()
[t.join() for t in threads]
assert len(acknowledged) > before > 0
found = [d.id for d in do(hasty, lambda tx: tx.decisions(), read=True)]
assert set(acknowledged) <= set(found) <= {*acknowledged, *unknown}, (len(found), len(acknowledged), unknown)
assert len(found) == len(set(found)) and len(unknown) <= 4, unknown
heard.clear()
do(store, lambda tx: tx.put_decision(decision_sample("last")))
assert heard.wait(20)
store.close()
hasty.close()
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_is_stopped_and_started_loses_nothing_that_was_acknowledged(mode: str, place: Place) -> None:
    import os
    import subprocess

    from stores.store_kit import TESTS

    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(SCRIPT), "--private", sys.executable, "-c", STOPPED, str(SCRIPT), mode]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout


def test_the_store_says_where_it_is_but_no_secrets(place: Place) -> None:
    store: Store = PostgresStore(make_conninfo(place.dsn, password="s3cret"), schema=place.name)
    assert place.name in repr(store)
    assert "s3cret" not in repr(store)
    store.close()
