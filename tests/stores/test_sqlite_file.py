"""What a SQLiteStore does about files that are not as it wants them: say what happened, and keep what was kept."""

import os
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adjourn.errors import StoreError, StoreFormatError, StoreUnavailable
from adjourn.store import Decision, Tx
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_file import File
from adjourn.testing_store.samples import decision_sample, session_sample
from stores.store_kit import Driver, child, do, said_by


def make(path: Path, turns: int = 1) -> str:
    store = SQLiteStore(path)
    driver = Driver(store)
    for _ in range(turns):
        driver.whole_turn()
    store.close()
    return driver.session_id


def test_a_new_file_is_marked_as_ours_with_its_format(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make(path)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (0x41444A4E,)
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_closing_leaves_one_file(tmp_path: Path) -> None:
    make(tmp_path / "a.db")
    assert [p.name for p in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize(
    "content",
    [b"hello, I am a text file\n" * 100, b"x", b"\0" * 5000, b"PK\x03\x04" + bytes(5000)],
    ids=["text", "x", "zeros", "zip"],
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    with pytest.raises(StoreFormatError, match=r"a\.db is no SQLite database.*choose another path"):
        SQLiteStore(path)
    assert path.read_bytes() == content
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("sql", ["CREATE TABLE users (id)", "PRAGMA user_version = 7", "PRAGMA application_id = 99"])
def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "a.db"
    db = sqlite3.connect(path)
    db.execute(sql)
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreFormatError, match="another program"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused_by_its_number_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreFormatError, match=r"format 99.*up to 2.*pip install -U adjourn"):
        SQLiteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_truncated_file_is_called_damaged_and_left_alone(tmp_path: Path, share: float) -> None:
    path = tmp_path / "a.db"
    make(path, 20)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    before = path.read_bytes()
    with pytest.raises(StoreFormatError, match=r"damaged.*\.recover"):
        SQLiteStore(path)
    assert path.read_bytes() == before


def test_a_file_damaged_in_the_middle_gives_a_clear_error_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    session = make(path, 20)
    content = bytearray(path.read_bytes())
    for page in range(30, len(content) // 1024):
        content[page * 1024 : page * 1024 + 100] = os.urandom(100)
    path.write_bytes(content)
    store = SQLiteStore(path)
    with pytest.raises(StoreFormatError, match="damaged"):
        do(store, lambda tx: [tx.snapshots(session), tx.events([s.id for s in tx.snapshots(session)])], read=True)
    with pytest.raises(StoreFormatError, match="damaged"):
        do(store, lambda tx: [tx.snapshots(session), tx.events([s.id for s in tx.snapshots(session)])])
    store.close()


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    make(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"is a folder; give the path of a file in it"):
        SQLiteStore(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no folder .*nowhere"):
        SQLiteStore(tmp_path / "nowhere" / "a.db")


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_in_memory_is_pointed_to_memorystore(path: str) -> None:
    with pytest.raises(StoreUnavailable, match="MemoryStore"):
        SQLiteStore(path)


def test_a_file_that_was_deleted_while_open_stores_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SQLiteStore(path)
    do(store, lambda tx: tx.put_session(session_sample()))
    shutil.move(path, tmp_path / "b.db")
    with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
        do(store, lambda tx: tx.put_session(session_sample(epoch=9)))
    shutil.move(tmp_path / "b.db", path)
    do(store, lambda tx: tx.put_session(session_sample(epoch=10)))
    store.close()


def test_a_file_is_the_same_one_by_a_relative_path_and_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "a.db", tmp_path / "link.db"
    link.symlink_to(path.name)
    monkeypatch.chdir(tmp_path)
    stores = [SQLiteStore(path), SQLiteStore("link.db"), SQLiteStore(f"../{tmp_path.name}/a.db")]
    for n, store in enumerate(stores):
        do(store, lambda tx, n=n: tx.put_session(session_sample(f"s{n}")))
    for store in stores:
        assert do(store, lambda tx: [tx.session(f"s{n}") is not None for n in range(3)], read=True) == [True] * 3
        store.close()


def test_a_file_with_two_names_of_its_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make(path)
    (tmp_path / "b.db").hardlink_to(path)
    for name in ("a.db", "b.db"):
        with pytest.raises(StoreUnavailable, match=r"2 names \(hard links\).*Remove the other names"):
            SQLiteStore(tmp_path / name)
    (tmp_path / "b.db").unlink()
    make(path)


WITHOUT_RIGHTS = """
import os, sys
from adjourn.errors import StoreUnavailable
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_file import File
from adjourn.testing_store.samples import session_sample
if os.geteuid() == 0:
    os.setuid(65534)  # nobody: to root nothing is read-only
try:
    SQLiteStore(sys.argv[1])
except StoreUnavailable as e:
    print(e)
"""


@pytest.mark.parametrize(
    "what, said",
    [("file", "read-only for this user"), ("folder", "read-only for this user"), ("closed", "cannot be opened")],
)
def test_a_file_or_folder_without_the_rights_is_refused_at_opening(
    tmp_path_factory: pytest.TempPathFactory, what: str, said: str
) -> None:
    folder = tmp_path_factory.mktemp("ro")
    for parent in folder.parents:
        if "pytest" in parent.name or "popen" in parent.name:
            parent.chmod(0o755)  # the child may have to be another user
    path = folder / "a.db"
    make(path)
    path.chmod(0o444 if what == "file" else 0o666)
    folder.chmod({"file": 0o777, "folder": 0o555, "closed": 0o000}[what])
    out = said_by(child(WITHOUT_RIGHTS, str(path), cwd="/"))
    folder.chmod(0o755)
    path.chmod(0o644)
    assert said in out
    make(path)


def test_a_database_without_room_says_so_keeps_what_it_had_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")

    def bound(tx: Tx, pages: int) -> None:
        vars(tx)["_db"].execute(f"PRAGMA max_page_count = {pages}")  # as a full disk has it

    do(store, lambda tx: tx.put_decision(decision_sample("d1")))
    do(store, lambda tx: bound(tx, 1))
    with pytest.raises(
        StoreUnavailable, match=r"no space left for .*a\.db: nothing of this change was kept.*Make room"
    ):
        do(store, lambda tx: [tx.put_decision(decision_sample(f"e{i}", reason="x" * 9000)) for i in range(9)])
    do(store, lambda tx: bound(tx, 2**30))
    do(store, lambda tx: tx.put_decision(decision_sample("d2")))
    assert [d.id for d in do(store, lambda tx: tx.decisions(), read=True)] == ["d1", "d2"]
    store.close()


FULL = """
import resource, sys
from adjourn.errors import StoreUnavailable
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_file import File
from adjourn.testing_store.samples import decision_sample
from stores.store_kit import do
store = SQLiteStore(sys.argv[1])
kept = []
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
futures = []
for i in range(400):
    futures.append(store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f"d{i:03}", reason="x" * 2000))))
    if i % 7 == 0:
        futures[-1].exception()
failed = 0
for i, future in enumerate(futures):
    error = future.exception()
    if error is None:
        kept.append(f"d{i:03}")
    else:
        assert type(error) is StoreUnavailable, repr(error)
        failed += 1
        text = str(error)
assert failed and kept, (failed, len(kept))
# Reading still works, and shows exactly what was acknowledged.
assert [d.id for d in do(store, lambda tx: tx.decisions(), read=True)] == kept
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
do(store, lambda tx: tx.put_decision(decision_sample("after")))
kept.append("after")
store.close()
store = SQLiteStore(sys.argv[1])
assert [d.id for d in do(store, lambda tx: tx.decisions(), read=True)] == kept
store.close()
print(text)
"""


def test_a_full_disk_fails_what_it_could_not_keep_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    out = said_by(child(FULL, str(tmp_path / "a.db")))
    assert "nothing of this change was kept; everything acknowledged before is safe" in out
    assert "try again" in out


def test_a_full_disk_at_opening_is_a_clear_error(tmp_path: Path) -> None:
    code = """
import resource, sys
from adjourn.errors import StoreUnavailable
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_file import File
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
try:
    SQLiteStore(sys.argv[1])
except StoreUnavailable as e:
    print(e)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
SQLiteStore(sys.argv[1]).close()
"""
    assert "the disk" in said_by(child(code, str(tmp_path / "a.db")))


@pytest.mark.slow
def test_a_lock_held_for_six_seconds_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SQLiteStore(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    futures = [store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f"d{i}"))) for i in range(10)]
    assert do(store, lambda tx: tx.decisions(), read=True) == []  # readers wait for nobody
    assert time.monotonic() - began < 3
    time.sleep(6)
    assert not any(f.done() for f in futures)
    holder.execute("COMMIT")
    holder.close()
    for future in futures:
        future.result(10)
    assert time.monotonic() - began < 12
    store.close()


def test_a_lock_that_is_never_let_go_is_named_after_the_time_set(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SQLiteStore(path, busy_seconds=0.5)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    futures = [store.submit(lambda tx: tx.put_session(session_sample())) for _ in range(5)]
    for future in futures:
        with pytest.raises(StoreUnavailable, match=r"locked by another process.*untouched.*fuser") as caught:
            future.result(10)
        assert "database is locked" not in str(caught.value)
    holder.execute("COMMIT")
    holder.close()
    assert do(store, lambda tx: tx.session("s1")) is None
    store.close()


def test_a_work_that_fails_in_the_database_does_not_fail_those_after_it(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")

    def bad(tx: Tx) -> None:
        tx.put_session(session_sample(agent=None))

    with pytest.raises(Exception, match="NOT NULL"):
        do(store, bad)
    do(store, lambda tx: tx.put_session(session_sample()))
    assert do(store, lambda tx: tx.session("s1"), read=True) == session_sample()
    store.close()


def test_a_read_cannot_write(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    with pytest.raises(StoreError):
        do(store, lambda tx: tx.put_session(session_sample()), read=True)
    assert do(store, lambda tx: tx.session("s1"), read=True) is None
    store.close()


def test_a_record_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SQLiteStore(path)
    do(store, lambda tx: tx.put_decision(Decision("d1", "i1", "s1", "respond", 1.0)))
    store.close()
    db = sqlite3.connect(path)
    db.execute("""UPDATE decisions SET body = '{"verb": 7}'""")
    db.commit()
    db.close()
    store = SQLiteStore(path)
    with pytest.raises(StoreFormatError, match=r"stored Decision 'd1' cannot be read"):
        do(store, lambda tx: tx.decisions(), read=True)
    store.close()


@pytest.mark.slow
def test_a_file_that_others_open_and_close_meanwhile_is_never_called_damaged(tmp_path: Path) -> None:
    def use(who: int) -> None:
        for i in range(60):
            store = SQLiteStore(tmp_path / "a.db")
            do(store, lambda tx, i=i: tx.put_decision(decision_sample(f"{who}-{i}")))
            store.close()

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(use, who) for who in range(3)]:
            done.result(120)


def test_a_file_that_became_longer_since_it_was_looked_at_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    make(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1024])

    def grown(file: File) -> bytes:
        path.write_bytes(whole)  # behind the look at its length
        return whole[:100]

    monkeypatch.setattr(File, "_head", grown)
    SQLiteStore(path).close()
