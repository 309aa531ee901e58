"""The feed: what the rules put into it, and that whoever follows it misses nothing, also where transactions overtake."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from adjourn import MemoryStore, Store
from adjourn.decisions import decide, decision_of, expire_due
from adjourn.errors import AlreadyResolved, StaleInterrupt, UnknownPosition
from adjourn.events import Declined, Responded, Restarted, ToolRaised, ToolStarted, TurnEnded
from adjourn.parts import ErrorInfo
from adjourn.store import Change, Tx
from adjourn.testing_store.samples import change_sample
from stores.store_kit import TESTS, Driver, Place, child, do, said_by

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "with_postgres.py"


def feed(store: Store, after: str | None = None) -> list[Change]:
    return do(store, lambda tx: tx.changes(after, 1000), read=True)


def kinds(store: Store) -> list[tuple[str, str]]:
    return [(c.kind, c.interrupt_id) for c in feed(store)]


# -- what the rules put into it


def test_a_pause_and_its_decision_are_each_one_change_with_the_row_of_the_audit(store: Store) -> None:
    driver = Driver(store)
    one, two = driver.pause(2)
    assert kinds(store) == [("opened", one), ("opened", two)]
    decision = decision_of(do(store, lambda tx: decide(tx, two, Responded(two, 0), 2000.0, None)))
    last = feed(store)[-1]
    assert (last.kind, last.interrupt_id, last.session_id) == ("settled", two, driver.session_id)
    assert (last.decision_id, last.at) == (decision.id, 2000.0)
    _, refused = do(store, lambda tx: decide(tx, two, Declined(two), 2001.0, None))
    assert refused is not None
    assert len(feed(store)) == 3  # what was refused is no change


def test_what_is_cancelled_expires_or_waits_once_more_is_in_the_feed(store: Store) -> None:
    aborted, late, again = Driver(store), Driver(store), Driver(store)
    (cancelled,) = aborted.pause()
    (expired,) = late.pause(expires_at=1500.0)
    (reopened,) = again.pause()
    aborted.next_leg()
    aborted.commit(TurnEnded("aborted"))
    do(store, lambda tx: expire_due(tx, 1600.0))
    again.next_leg()
    call = again.turn.calls[0].id
    again.commit(Restarted(reopened, {"ok": True}), ToolStarted(call))
    again.commit(ToolRaised(call, ErrorInfo("INTERNAL", "full")))
    assert kinds(store)[3:] == [
        ("settled", cancelled),
        ("settled", expired),
        ("settled", reopened),
        ("reopened", reopened),
    ]
    for change in feed(store)[3:]:
        rows = do(store, lambda tx, c=change: tx.decisions(interrupt_id=c.interrupt_id), read=True)
        assert change.decision_id in [d.id for d in rows]


def test_a_turn_that_never_pauses_adds_nothing_to_the_feed(store: Store) -> None:
    Driver(store).whole_turn()
    assert feed(store) == []


# -- one decision under its key


def test_the_same_decision_under_the_same_key_is_accepted_once(store: Store) -> None:
    (pause,) = Driver(store).pause()

    def answer(**how: Any) -> Any:
        event = Responded(pause, how.pop("output", {"b": 1, "a": [0]}), by=how.pop("by", "her"))
        return do(store, lambda tx: decide(tx, pause, event, how.pop("now", 2000.0), None, **how))

    first = decision_of(answer(key="k"))
    assert decision_of(answer(key="k", now=2005.0)) == first
    assert decision_of(answer(key="k", output={"a": [0], "b": 1})) == first
    for changed in ({"output": 2}, {"by": "him"}, {"output": None}):
        _, refused = answer(key="k", **changed)
        assert isinstance(refused, AlreadyResolved)
        assert refused.decision == first
    for key in ("other", None):
        _, refused = answer(key=key)
        assert isinstance(refused, AlreadyResolved)
    _, refused = do(store, lambda tx: decide(tx, pause, Declined(pause, by="her"), 2000.0, None, "k"))
    assert isinstance(refused, AlreadyResolved)
    assert do(store, lambda tx: tx.decisions(interrupt_id=pause), read=True) == [first]
    assert [c.kind for c in feed(store)] == ["opened", "settled"]


def test_a_replaced_input_of_none_is_another_decision_than_none(store: Store) -> None:
    (pause,) = Driver(store).pause()

    def restart(given: Any) -> Any:
        return do(store, lambda tx: decide(tx, pause, Restarted(pause, None, given), 2000.0, None, "k"))

    first = decision_of(restart(None))
    assert decision_of(restart(None)) == first
    assert isinstance(restart(UNSET)[1], AlreadyResolved)


def test_a_key_is_remembered_when_the_interrupt_waits_once_more(store: Store) -> None:
    driver = Driver(store)
    (pause,) = driver.pause()
    shown = do(store, lambda tx: tx.interrupt(pause), read=True)
    assert shown is not None

    def restart(key: str, expect: str | None = None) -> Any:
        return do(store, lambda tx: decide(tx, pause, Restarted(pause), 2000.0, None, key, expect))

    first = decision_of(restart("first"))
    driver.next_leg()
    call = driver.turn.calls[0].id
    driver.commit(Restarted(pause), ToolStarted(call), applying={pause: first})
    driver.commit(ToolRaised(call, ErrorInfo("INTERNAL", "full")))
    row = do(store, lambda tx: tx.interrupt(pause), read=True)
    assert row is not None
    assert (row.status, row.reopened) == ("open", 1)
    again = decision_of(restart("first"))
    assert again.id == first.id  # a repeated request does not send the tool round once more
    assert do(store, lambda tx: tx.interrupt(pause), read=True) == row
    _, refused = restart("second", shown.version_tag)
    assert isinstance(refused, StaleInterrupt)
    assert do(store, lambda tx: tx.interrupt(pause), read=True) == row
    assert decision_of(restart("second", row.version_tag)).id != first.id


def test_the_version_tag_changes_with_all_that_is_decided_about(store: Store) -> None:
    (pause,) = Driver(store).pause()
    row = do(store, lambda tx: tx.interrupt(pause), read=True)
    assert row is not None
    tags = {
        row.version_tag,
        replace(row, status="resolved").version_tag,
        replace(row, input_digest="other").version_tag,
        replace(row, reopened=1).version_tag,
        replace(row, id="i_other").version_tag,
    }
    assert len(tags) == 5
    assert replace(row).version_tag == row.version_tag


def test_32_decisions_at_once_under_one_key_are_one_decision(lasting: Place) -> None:
    store = lasting.open()
    (pause,) = Driver(store).pause()
    start = threading.Barrier(32)
    found: list[Any] = []

    def send() -> None:
        start.wait(60)
        found.append(do(store, lambda tx: decide(tx, pause, Responded(pause, 1), 2000.0, None, "k")))

    threads = [threading.Thread(target=send) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({decision_of(f).id for f in found}) == 1
    assert len(do(store, lambda tx: tx.decisions(interrupt_id=pause), read=True)) == 1
    assert [c.kind for c in feed(store)] == ["opened", "settled"]


# -- several processes

WRITES = """
import sys
from adjourn.testing_store.samples import change_sample
from stores.store_kit import do
for i in range(int(sys.argv[2])):
    do(store, lambda tx: tx.add_change(change_sample(f"{sys.argv[1]}.{i}")))
store.close()
"""


@pytest.mark.slow
def test_who_follows_the_feed_sees_what_four_processes_write_once(lasting: Place) -> None:
    store = lasting.open()
    many = 30
    processes = [child(lasting.code + WRITES, str(k), str(many)) for k in range(4)]
    seen: list[str] = []
    after: str | None = None
    while True:
        over = all(p.poll() is not None for p in processes)
        found = do(store, lambda tx, at=after: tx.changes(at, 10), read=True)
        seen += [c.interrupt_id for c in found]
        after = found[-1].position if found else after
        if over and not found:
            break
    for process in processes:
        said_by(process)
    assert sorted(seen) == sorted(f"{k}.{i}" for k in range(4) for i in range(many))


# -- PostgreSQL, where transactions overtake one another


@pytest.fixture
def postgres(postgres_dsn: str, tmp_path: Path) -> Iterator[Place]:
    place = Place("postgres", tmp_path, postgres_dsn)
    yield place
    place.close()


@pytest.mark.postgres
def test_a_change_that_commits_after_one_with_a_higher_number_is_not_skipped(postgres: Place) -> None:
    store = postgres.open()
    do(store, lambda tx: tx.add_change(change_sample("first")))
    begun, release = threading.Event(), threading.Event()

    def slow(tx: Tx) -> None:
        tx.add_change(change_sample("slow"))
        tx.mark("any")  # it has reached the server, and has its number
        begun.set()
        release.wait(60)

    open_one = store.submit(slow)
    assert begun.wait(60)
    do(store, lambda tx: tx.add_change(change_sample("quick")))
    held = feed(store)
    end = do(store, lambda tx: tx.position(), read=True)
    assert [c.interrupt_id for c in held] == ["first"]  # "quick" waits for what may come before it
    assert end == held[-1].position
    release.set()
    open_one.result(60)
    assert [c.interrupt_id for c in feed(store)] == ["first", "slow", "quick"]
    assert [c.interrupt_id for c in feed(store, end)] == ["slow", "quick"]


@pytest.mark.postgres
def test_a_transaction_that_is_given_up_holds_nothing_back_for_ever(postgres: Place) -> None:
    import psycopg

    store = postgres.open()
    with psycopg.connect(postgres.dsn) as other:
        other.execute(f"SELECT FROM {postgres.name}.changes".encode())
        other.execute("SELECT pg_current_xact_id()")
        do(store, lambda tx: tx.add_change(change_sample("behind")))
        assert feed(store) == []
        other.rollback()
    assert [c.interrupt_id for c in feed(store)] == ["behind"]


@pytest.mark.postgres
def test_a_long_transaction_of_somebody_else_on_the_same_server_holds_nothing_up(postgres: Place) -> None:
    import psycopg

    store = postgres.open()
    with psycopg.connect(postgres.dsn) as other:
        other.execute("CREATE TEMPORARY TABLE theirs (n integer)")
        other.execute("INSERT INTO theirs VALUES (1)")
        do(store, lambda tx: tx.add_change(change_sample("seen")))
        (seen,) = feed(store)
        assert seen.interrupt_id == "seen"
        assert do(store, lambda tx: tx.position(), read=True) == seen.position
        other.execute("INSERT INTO theirs VALUES (2)")
        do(store, lambda tx: tx.add_change(change_sample("next")))
        assert [c.interrupt_id for c in feed(store, seen.position)] == ["next"]


def renumber(postgres: Place, change: str) -> None:
    """The feed as another server's numbers would have it."""
    import psycopg

    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        number = f"(({change}) + xid::text::bigint)::text::xid8"
        db.execute(f"UPDATE {postgres.name}.changes SET xid = {number}".encode())


@pytest.mark.postgres
def test_the_feed_of_a_database_that_was_restored_on_a_server_which_counts_from_below_goes_on_behind_what_it_has(
    postgres: Place,
) -> None:
    store = postgres.open()
    for n in range(3):
        do(store, lambda tx, n=n: tx.add_change(change_sample(f"old{n}")))
    store.close()
    renumber(postgres, "1000000000")
    again = postgres.open()
    stood = [c.position for c in feed(again)]  # as the old server gave them
    do(again, lambda tx: tx.add_change(change_sample("new")))
    ids = ["old0", "old1", "old2", "new"]
    assert [c.interrupt_id for c in feed(again)] == ids
    for n, position in enumerate(stood):
        assert [c.interrupt_id for c in feed(again, position)] == ids[n + 1 :]
    again.close()
    renumber(postgres, "1000000000")  # once more, on another one
    third = postgres.open()
    do(third, lambda tx: tx.add_change(change_sample("newer")))
    assert [c.interrupt_id for c in feed(third)] == [*ids, "newer"]


@pytest.mark.postgres
def test_the_feed_keeps_its_order_where_only_some_of_its_numbers_are_above_the_new_servers(postgres: Place) -> None:
    store = postgres.open()
    for n in range(4):
        do(store, lambda tx, n=n: tx.add_change(change_sample(f"old{n}")))
    store.close()
    renumber(postgres, "CASE WHEN n > 2 THEN 1000000000 ELSE 0 END")
    again = postgres.open()
    second = feed(again)[1].position
    assert [c.interrupt_id for c in feed(again, second)] == ["old2", "old3"]
    do(again, lambda tx: tx.add_change(change_sample("new")))
    assert [c.interrupt_id for c in feed(again, second)] == ["old2", "old3", "new"]


@pytest.mark.postgres
def test_a_store_that_is_open_while_its_database_is_restored_goes_on_behind_what_it_has(postgres: Place) -> None:
    import psycopg

    store = postgres.open()
    do(store, lambda tx: tx.add_change(change_sample("old")))
    renumber(postgres, "1000000000")
    with psycopg.connect(postgres.dsn, autocommit=True) as db:  # a restore ends all connections
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'adjourn'"
        assert db.execute(query).rowcount > 0
    do(store, lambda tx: tx.add_change(change_sample("new")))
    assert [c.interrupt_id for c in feed(store)] == ["old", "new"]


# -- a follower that was away while a backup was restored


def rewound(lasting: Place, tmp_path: Path) -> tuple[Store, list[Change]]:
    """A store whose backup, of two entries, was restored after it had four; and those four."""
    store = lasting.open()
    for n in range(2):
        do(store, lambda tx, n=n: tx.add_change(change_sample(f"old{n}")))
    if lasting.kind == "sqlite":
        store.close()
        shutil.copy(lasting.path, tmp_path / "backup")
        store = lasting.open()
    for n in range(2, 4):
        do(store, lambda tx, n=n: tx.add_change(change_sample(f"lost{n}")))
    four = feed(store)
    store.close()
    if lasting.kind == "sqlite":
        shutil.copy(tmp_path / "backup", lasting.path)
    else:
        import psycopg

        with psycopg.connect(lasting.dsn, autocommit=True) as db:  # as a backup of the server's files would have it
            db.execute(f"DELETE FROM {lasting.name}.changes WHERE n > 2".encode())
    return lasting.open(), four


def test_who_comes_back_after_a_backup_was_restored_is_told_and_misses_nothing_silently(
    lasting: Place, tmp_path: Path
) -> None:
    store, four = rewound(lasting, tmp_path)
    assert feed(store) == four[:2]
    for added in range(4):  # also when the feed is as long as it was, and longer
        assert [c.interrupt_id for c in feed(store, four[1].position)] == [f"new{n}" for n in range(added)]
        for lost in four[2:]:
            with pytest.raises(UnknownPosition, match=r"backup was restored.*latest position"):
                feed(store, lost.position)
        do(store, lambda tx, added=added: tx.add_change(change_sample(f"new{added}")))


@pytest.mark.postgres
def test_the_same_numbers_given_anew_are_another_position(postgres: Place) -> None:
    import psycopg

    store, four = rewound(postgres, Path())
    do(store, lambda tx: tx.add_change(change_sample("new2")))
    number, row = four[2].position.partition("-")[0].split(".")
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        table = f"{postgres.name}.changes"
        copied = "kind, interrupt_id, session_id, at, decision_id"
        db.execute(
            f"INSERT INTO {table} (xid, n, {copied}) OVERRIDING SYSTEM VALUE "
            f"SELECT '{number}', {row}, {copied} FROM {table} WHERE interrupt_id = 'new2'".encode()
        )
    assert [c.interrupt_id for c in feed(store)] == ["old0", "old1", "new2", "new2"]
    with pytest.raises(UnknownPosition):
        feed(store, four[2].position)


RESTARTED = """
import os, subprocess, sys
from adjourn.stores.postgres import PostgresStore
from adjourn.testing_store.samples import change_sample
from stores.store_kit import do

script, mode = sys.argv[1:]
dsn = os.environ["ADJOURN_TEST_POSTGRES"]
store = PostgresStore(dsn, wait_seconds=60)
for i in range(5):
    do(store, lambda tx: tx.add_change(change_sample(f"before{i}")))
third = do(store, lambda tx: tx.changes(None, 3), read=True)[-1].position
end = do(store, lambda tx: tx.position(), read=True)
for i in range(50):  # numbers that a server which crashes may give to others
    try:
        do(store, lambda tx: (tx.mark("x"), 1 / 0))
    except ZeroDivisionError:
        pass
assert do(store, lambda tx: tx.position(), read=True) == end
for command in (["stop", "--mode", mode], ["start"]):
    subprocess.run([sys.executable, script, "--ctl", *command], check=True)
do(store, lambda tx: tx.add_change(change_sample("after")))
def behind(position):
    return [c.interrupt_id for c in do(store, lambda tx: tx.changes(position, 99), read=True)]
assert behind(end) == ["after"], behind(end)
assert behind(third) == ["before3", "before4", "after"], behind(third)
assert len(behind(None)) == 6, behind(None)
store.close()
print("fine")
"""


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_who_follows_the_feed_goes_on_where_it_was_after_the_server_was_started_anew(
    mode: str, postgres: Place
) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(SCRIPT), "--private", sys.executable, "-c", RESTARTED, str(SCRIPT), mode]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout


def test_a_memory_store_forgets_what_was_purged_and_goes_on_counting() -> None:
    store = MemoryStore()
    do(store, lambda tx: [tx.add_change(change_sample(f"i{n}", at=float(n))) for n in range(3)])
    positions = [c.position for c in feed(store)]
    do(store, lambda tx: tx.drop_changes(99.0))
    do(store, lambda tx: tx.add_change(change_sample("new")))
    assert [c.interrupt_id for c in feed(store, positions[1])] == ["i2", "new"]
    assert feed(store)[-1].position not in positions
