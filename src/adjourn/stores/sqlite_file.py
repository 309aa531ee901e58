"""The file of a SQLite store: opening it, recognising it, bringing it to the newest format, and what its errors mean."""

import os
import random
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from adjourn.errors import StoreError, StoreFormatError, StoreUnavailable
from adjourn.stores.rows import migrations, statements

T = TypeVar("T")

APPLICATION_ID = 0x41444A4E
""""ADJN": what marks a SQLite file as ours."""

# A quarter of the usual page: a commit of a turn touches two to six pages with little on each, and every touched page
# is written whole.
_PAGE_SIZE = 1024
_CHECKPOINT_PAGES = 16_000  # the writer makes checkpoints earlier, where they hold up nobody
# In KiB (negative), of each connection. More is slower: beside 10,000 sessions a new one costs 1.03 times what it costs beside
# few with 2 MB, 1.09 with 8 and 1.2 with 32. The system has the file in memory as well.
_EACH = ("temp_store = MEMORY", "cache_size = -2000")

_MIGRATIONS = migrations("sqlite")


class File:
    """One database file. `busy_seconds` is how long another process's lock is waited for."""

    def __init__(self, path: str | os.PathLike[str], busy_seconds: float) -> None:
        name = os.fspath(path)
        if name in {"", ":memory:"}:
            raise StoreUnavailable("a SQLiteStore needs the path of a file; for one in memory use MemoryStore()")
        self.path = Path(name).absolute()
        self._name = os.fspath(self.path)
        self.busy_seconds = busy_seconds

    def open(self) -> sqlite3.Connection:
        """A connection that can write, to a file of the newest format. Makes the file where there is none."""
        self._check_place()
        db = self._connect()
        try:
            self.patiently(lambda: self._recognise(db))
            self.patiently(lambda: self._prepare(db))
            self.patiently(lambda: self._migrate(db))
        except BaseException as e:
            db.close()
            if isinstance(e, sqlite3.Error):
                raise self.explain(e) from e
            raise
        return db

    def open_reader(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        db = self._connect()
        for setting in ("query_only = ON", *_EACH):
            db.execute(f"PRAGMA {setting}")
        return db

    def inode(self) -> tuple[int, int] | None:
        """Which file the path names; None where there is none."""
        try:
            found = os.stat(self._name)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def patiently(self, step: Callable[[], T]) -> T:
        """Runs `step` again while another process has the file locked. Raises StoreUnavailable when that does not end."""
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                return step()
            except sqlite3.Error as e:
                if not is_busy(e):
                    raise
                if time.monotonic() > deadline:
                    raise self.locked() from e
            # Not SQLite's own wait: it polls ten times a second at last, and starves beside a busy neighbour.
            time.sleep(random.uniform(0.0005, 0.008))

    def locked(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} has been locked by another process for {self.busy_seconds:.0f} s, so nothing could be stored; what "
            "was stored before is untouched. Find the process that holds it (`fuser` or `lsof` on the file), end it or "
            "let it finish its transaction, and try again"
        )

    def moved(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.path} was moved, deleted or replaced while it was open. Nothing is stored any more, so that nothing is "
            "lost unseen: put the file back in its place, or close this store and open it again"
        )

    def explain(self, error: BaseException) -> StoreError:
        """What an error of SQLite means to whoever keeps sessions in this file."""
        if isinstance(error, StoreError):
            return error
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
            return self.locked()
        if code == sqlite3.SQLITE_NOTADB:
            return StoreFormatError(f"{self.path} is no SQLite database. It was left as it is; choose another path")
        if code == sqlite3.SQLITE_CORRUPT:
            return self.damaged(str(error))
        kept = "nothing of this change was kept; everything acknowledged before is safe"
        if code == sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"no space left for {self.path}: {kept}. Make room and try again")
        if code == sqlite3.SQLITE_READONLY:
            return StoreUnavailable(
                f"{self.path} or its folder cannot be written ({error}): {kept}. Give this user the right to write both"
            )
        if code == sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(
                f"{self.path} cannot be opened ({error}): {kept}. See that the file and its folder can be read and written"
            )
        if code == sqlite3.SQLITE_IOERR:
            return StoreUnavailable(
                f"the disk refused a read or write of {self.path} ({name}): {kept}. See whether the disk is full, over "
                "quota or failing, and try again"
            )
        return StoreUnavailable(f"SQLite could not do what was asked of {self.path} ({name}: {error}): {kept}")

    def damaged(self, why: str) -> StoreFormatError:
        return StoreFormatError(
            f"{self.path} is damaged ({why}). It was left as it is. Restore a backup, or save what can be read with "
            f"`sqlite3 {self.path.name} .recover`"
        )

    def _connect(self) -> sqlite3.Connection:
        try:
            # timeout=0: waiting is done by `patiently`, which can say afterwards what was waited for.
            db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as e:
            raise self.explain(e) from e
        return db

    def _check_place(self) -> None:
        path = self.path
        try:
            if not path.parent.is_dir():
                raise StoreUnavailable(f"there is no folder {path.parent} to keep {path.name} in; make it first")
            found = path.stat()
        except FileNotFoundError:
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise StoreUnavailable(f"{path} cannot be made: the folder is not writable for this user") from None
            return
        except OSError as e:
            raise StoreUnavailable(
                f"{path} cannot be opened: {e.strerror}. See that this user may enter its folder"
            ) from e
        if stat.S_ISDIR(found.st_mode):
            raise StoreUnavailable(f"{path} is a folder; give the path of a file in it, as in {path / 'sessions.db'}")
        if not stat.S_ISREG(found.st_mode):
            raise StoreUnavailable(f"{path} is no plain file; a store needs one")
        if found.st_nlink > 1:
            raise StoreUnavailable(
                f"{path} has {found.st_nlink} names (hard links), and SQLite keeps what is not yet in the file under the name "
                "that it was opened by: two processes could overwrite each other's changes. Remove the other names, or copy "
                "the file"
            )
        if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
            raise StoreUnavailable(
                f"{path} or its folder is read-only for this user: sessions could not be kept in it. Give the right to read "
                "and write both (SQLite keeps two more files beside it), or choose another path"
            )
        self._check_header()

    def _check_header(self) -> None:
        """Looks before SQLite does: it would call any other file damaged, and note a lost tail only when it gets there."""
        seen: tuple[int, bytes] | None = None
        while True:
            size, head = self.path.stat().st_size, self._head()
            if size == 0 or (whole := self._whole(size, head)) is None:
                return
            if (size, head) == seen:
                raise self.damaged(f"it ends after {size} of {whole} bytes")
            # Another process may have closed it meanwhile, and so made it longer: a second look tells.
            seen = size, head

    def _head(self) -> bytes:
        with self.path.open("rb") as f:
            return f.read(100)

    def _whole(self, size: int, head: bytes) -> int | None:
        """How long the file should be that is cut off; None where it is not. Raises StoreFormatError for another file."""
        if not head.startswith(b"SQLite format 3\0"):
            raise StoreFormatError(f"{self.path} is no SQLite database. It was left as it is; choose another path")
        if len(head) < 100:
            raise self.damaged(f"it ends after {size} bytes")
        log = self.path.with_name(self.path.name + "-wal")
        if log.exists() and log.stat().st_size > 0:
            return None  # the header may be older than what the log still holds
        page = int.from_bytes(head[16:18], "big")
        pages = int.from_bytes(head[28:32], "big")
        page = 65536 if page == 1 else page
        return page * pages if size < page * pages and head[24:28] == head[92:96] else None

    def _recognise(self, db: sqlite3.Connection) -> None:
        """Refuses what is not ours, before anything is changed."""
        application, version = _value(db, "application_id"), _value(db, "user_version")
        if application == APPLICATION_ID:
            if version > len(_MIGRATIONS):
                raise StoreFormatError(
                    f"{self.path} has format {version}, and this Adjourn knows formats up to {len(_MIGRATIONS)}: it was "
                    "written by a newer one. It was left as it is; upgrade with `pip install -U adjourn`"
                )
            return
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 4")]
        if names or application or version:
            holds = f" with tables such as {', '.join(names)}" if names else ""
            raise StoreFormatError(
                f"{self.path} is the SQLite database of another program (application id {application:#x}{holds}). It was "
                "left as it is; choose another path"
            )

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA page_size = {_PAGE_SIZE}")  # heeded only while the file is empty
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnavailable(
                f"{self.path} cannot be used from several connections: its file system has no shared memory (SQLite stayed in "
                f"journal mode {mode!r}; network shares are like that). Choose a path on a local disk, or use PostgresStore"
            )
        for setting in (
            "synchronous = FULL",
            "fullfsync = ON",  # on macOS nothing less reaches the disk; elsewhere it means nothing
            "checkpoint_fullfsync = ON",
            f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
            f"journal_size_limit = {_CHECKPOINT_PAGES * _PAGE_SIZE}",
            *_EACH,
        ):
            db.execute(f"PRAGMA {setting}").fetchall()

    def _migrate(self, db: sqlite3.Connection) -> None:
        if _value(db, "user_version") == len(_MIGRATIONS) and _value(db, "application_id") == APPLICATION_ID:
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            self._recognise(db)  # again, with the lock held: another process may have been here first
            for script in _MIGRATIONS[_value(db, "user_version") :]:
                for statement in statements(script):
                    db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def is_busy(error: sqlite3.Error) -> bool:
    """Whether the same may work in a moment."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def is_storage(error: BaseException) -> bool:
    """Whether the database failed, and not what was asked of it."""
    return isinstance(error, sqlite3.OperationalError) or type(error) in (sqlite3.DatabaseError, sqlite3.InternalError)


def _value(db: sqlite3.Connection, pragma: str) -> int:
    return db.execute(f"PRAGMA {pragma}").fetchone()[0]
