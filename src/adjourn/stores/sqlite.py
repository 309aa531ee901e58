"""Sessions in one SQLite file, which several processes may share.

All changes go through one writer, in one transaction at a time; it syncs once for all that is queued: one caller waits for
one sync, a thousand wait for a few. A promise is done after the commit, never before. Reads have connections of their own
and wait for nobody: a read runs in the calling thread where that may block, else in one of a few threads beside the event
loop, unless it is brief.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from adjourn.errors import StoreError, StoreUnavailable
from adjourn.promise import Pending, is_brief, running_loop
from adjourn.store import Tx
from adjourn.stores.sqlite_file import File, is_busy, is_storage
from adjourn.stores.sqlite_rows import SQLiteTx
from adjourn.stores.sqlite_writer import Writer
from adjourn.stores.subscribers import Subscribers
from adjourn.stores.threads import Threads, never_free

T = TypeVar("T")

_FORK_SECONDS = 5.0
_READERS = 4


class SQLiteStore:
    """A store in the file at `path`, which is made if there is none; its folder must exist.

    `busy_seconds` is how long another process's lock is waited for. A work may run twice where the first try met a lock.
    After a fork the child opens the file anew.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, lease_seconds: float = 15.0, busy_seconds: float = 30.0
    ) -> None:
        self.lease_seconds = lease_seconds
        self._core = _Core(File(path, busy_seconds))
        self._place = os.path.realpath(self._core.file.path)
        # The core does not know the store: one that nobody holds any more is closed, at the latest when Python ends.
        self._end = weakref.finalize(self, self._core.close)

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._core.file.path

    @property
    def place(self) -> tuple[str, str]:
        """The same for every store in this file, whichever way its path was written."""
        return "sqlite", self._place

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._core.file.path)!r})"

    def submit(self, work: Callable[[Tx], T], *, read: bool = False) -> Pending[T]:
        return self._core.submit_read(work) if read else self._core.submit(work)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._core.subscribe(callback)

    def close(self) -> None:
        """Finishes what is queued, and lets go of the file. Closing twice is no error, and waits as well."""
        self._end()
        self._core.close()


class _Core:
    def __init__(self, file: File) -> None:
        self.file = file
        self._subscribers = Subscribers()
        self._closed = False
        self._lock = threading.Lock()  # one at a time opens, closes or queues
        self._open()
        _cores.add(self)

    def _open(self) -> None:
        self._reads = _Reads(self.file)
        self._writer: Writer | None = Writer(self.file, self.file.open(), self._subscribers)

    # -- what any thread calls

    def submit(self, work: Callable[[Tx], T]) -> Pending[T]:
        with self._lock:
            try:
                writer = self._ready()
            except StoreError as e:
                return _broken(e)
            job = writer.put(work)
        writer.go(job)
        return job.promise

    def submit_read(self, work: Callable[[Tx], T]) -> Pending[T]:
        promise: Pending[T] = Pending()
        with self._lock:
            try:
                self._ready()
            except StoreError as e:
                return _broken(e)
            reads, held_up = self._reads, running_loop() is not None
            if held_up and not is_brief(work):
                reads.submit(work, promise)
                return promise
        reads.run(work, promise, patient=not held_up)
        return promise

    def _ready(self) -> Writer:
        if self._closed:
            raise StoreUnavailable(f"{self.file.path}: this store was closed; open it again")
        if self._writer is None:
            self._open_in_child()
        assert self._writer is not None
        return self._writer

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        end = self._subscribers.add(callback)
        with self._lock:
            if self._writer is not None:
                self._writer.wake()  # it looks for other processes' changes from now on
        return end

    def close(self) -> None:
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._reads.close()
        if self._writer is not None:
            self._writer.close()

    # -- forks

    def before_fork(self) -> None:
        """Waits until no transaction is open: then a child can let go of what it inherits without a trace."""
        self._lock.acquire()
        self._still = self._writer is None or self._writer.gate.acquire(timeout=_FORK_SECONDS)
        self._quiet = self._still and self._reads.pause(_FORK_SECONDS)

    def after_fork_in_parent(self) -> None:
        if self._quiet:
            self._reads.resume()
        if self._still and self._writer is not None:
            self._writer.gate.release()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        # The writer's gate stays shut here, whatever holds on to it: what was queued is the parent's to do.
        inherited = [*([self._writer.db] if self._writer is not None else []), *self._reads.idle]
        self._lock = threading.Lock()
        self._subscribers = Subscribers()
        self._writer = None
        self._reads = _Reads(self.file)
        for db in inherited:
            if self._quiet:
                db.close()
            else:
                never_free(db)

    def _open_in_child(self) -> None:
        if not self._quiet:
            raise StoreUnavailable(
                f"{self.file.path} was in use when this process was forked, and SQLite cannot be carried over. Open the "
                "store after the fork, or fork while nothing is being stored"
            )
        self._open()


class _Reads:
    """Connections for reading, as many as are used at once."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._running = 0
        self._closed = False
        self._pool: Threads | None = None
        self.idle: list[sqlite3.Connection] = []

    def submit(self, work: Callable[[Tx], Any], promise: Pending[Any]) -> None:
        """Runs it beside the caller."""
        if self._pool is None:
            self._pool = Threads(_READERS, "adjourn-sqlite-read")
        self._pool.submit(self.run, work, promise)

    def run(self, work: Callable[[Tx], Any], promise: Pending[Any], *, patient: bool = True) -> None:
        """Runs it here. Who is not patient waits for no lock: then it goes beside the caller."""
        try:
            result = self._file.patiently(lambda: self._read(work)) if patient else self._read(work)
        except BaseException as e:  # noqa: BLE001 (it goes to whoever waits for the promise)
            if not patient and isinstance(e, sqlite3.Error) and is_busy(e):
                self.submit(work, promise)
                return
            promise.fail(self._file.explain(e) if is_storage(e) else e)
        else:
            promise.keep(result)

    def _read(self, work: Callable[[Tx], T]) -> T:
        with self._lock:
            self._running += 1
            db = self.idle.pop() if self.idle else None
        good = False
        try:
            db = db or self._file.open_reader()
            db.execute("BEGIN")
            try:
                result = work(SQLiteTx(db))
                good = True
            except BaseException as e:
                good = not isinstance(e, sqlite3.Error) or is_busy(e)
                raise
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
            return result
        finally:
            with self._lock:
                self._running -= 1
                keep = good and not self._closed and len(self.idle) < _READERS
                if keep and db is not None:
                    self.idle.append(db)
            if not keep and db is not None:
                db.close()

    def pause(self, seconds: float) -> bool:
        """Lets no read begin until `resume`, once those that run are done. False where they take longer."""
        until = time.monotonic() + seconds
        while True:
            self._lock.acquire()
            if self._running == 0:
                return True
            self._lock.release()
            if time.monotonic() > until:
                return False
            time.sleep(0.001)

    def resume(self) -> None:
        self._lock.release()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        with self._lock:
            self._closed = True
            idle, self.idle = self.idle, []
        for db in idle:
            db.close()


def _broken(error: Exception) -> Pending[Any]:
    promise: Pending[Any] = Pending()
    promise.fail(error)
    return promise


_cores: "weakref.WeakSet[_Core]" = weakref.WeakSet()


_forking: "list[_Core]" = []
_one_forks = threading.Lock()
"""From before a fork until after it, so that of two threads that fork at once the other one waits."""


def _before_fork() -> None:
    _one_forks.acquire()
    _forking[:] = _cores
    for core in _forking:
        core.before_fork()


def _after_fork_in_parent() -> None:
    for core in _forking:
        core.after_fork_in_parent()
    _forking.clear()
    _one_forks.release()


def _after_fork_in_child() -> None:
    for core in _forking:
        core.after_fork_in_child()
    _forking.clear()
    _one_forks.release()  # it is a copy of the one that this very thread took


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
