"""Sessions in one SQLite file, which several processes may share.

All changes go through one thread. It runs whatever is queued in one transaction, each work in a savepoint of its own, and
syncs once for all of it: one caller waits for one sync, a thousand wait for a few. A promise is done after the commit,
never before. Reads have connections of their own and wait for nobody: a read runs in the calling thread where that may
block, else in one of a few threads beside the event loop.
"""

import asyncio
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from adjourn.errors import StoreError, StoreUnavailable
from adjourn.promise import Pending
from adjourn.store import Tx
from adjourn.stores.sqlite_file import File, is_busy, is_storage
from adjourn.stores.sqlite_rows import SQLiteTx
from adjourn.stores.subscribers import Subscribers
from adjourn.stores.threads import Threads, never_free

T = TypeVar("T")

_log = logging.getLogger("adjourn.stores")

_BATCH = 256
"""Works in one commit. More would make other processes wait, and gain nothing."""
_BATCH_SECONDS = 0.05
_POLL_SECONDS = 0.2
_FORK_SECONDS = 5.0
_READERS = 4


class _Job(NamedTuple):
    work: Callable[[Tx], Any]
    promise: Pending[Any]


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
        # The core does not know the store: one that nobody holds any more is closed, at the latest when Python ends.
        self._end = weakref.finalize(self, self._core.close)

    @property
    def path(self) -> Path:
        """The file, as an absolute path."""
        return self._core.file.path

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._core.file.path)!r})"

    def submit(self, work: Callable[[Tx], T], *, read: bool = False) -> Pending[T]:
        return self._core.submit_read(work) if read else self._core.submit(work)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._core.subscribe(callback)

    def close(self) -> None:
        """Finishes what is queued, and lets go of the file. Closing twice is no error."""
        self._end()


class _Core:
    def __init__(self, file: File) -> None:
        self.file = file
        self._subscribers = Subscribers()
        self._closed = False
        self._lock = threading.Lock()  # one at a time opens, closes or queues
        self._open()
        _cores.add(self)

    def _open(self) -> None:
        self._gate = threading.RLock()  # held by the writer within a transaction, so that a fork can wait for its end
        self._reads = _Reads(self.file)
        self._queue: SimpleQueue[_Job | bool | None] = SimpleQueue()
        self._db: sqlite3.Connection | None = self.file.open()
        self._inode = self.file.inode()
        self._version = self._data_version()
        self._polled = time.monotonic()
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="adjourn-sqlite", daemon=True)
        self._thread.start()

    # -- what any thread calls

    def submit(self, work: Callable[[Tx], T]) -> Pending[T]:
        promise: Pending[T] = Pending()
        with self._lock:
            if self._ready(promise):
                self._queue.put(_Job(work, promise))
        return promise

    def submit_read(self, work: Callable[[Tx], T]) -> Pending[T]:
        promise: Pending[T] = Pending()
        with self._lock:
            if not self._ready(promise):
                return promise
            reads = self._reads
            if _in_event_loop():
                reads.submit(work, promise)
                return promise
        reads.run(work, promise)
        return promise

    def _ready(self, promise: Pending[Any]) -> bool:
        if self._closed:
            promise.fail(StoreUnavailable(f"{self.file.path}: this store was closed; open it again"))
        elif self._db is None:
            try:
                self._open_in_child()
            except StoreError as e:
                promise.fail(e)
                return False
        return not self._closed

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        end = self._subscribers.add(callback)
        with self._lock:
            self._queue.put(True)  # the writer looks for other processes' changes from now on
        return end

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._reads.close()
        # Python may collect a forgotten store in any thread, this one too; it then ends by itself.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # -- the writer

    def _run(self) -> None:
        while True:
            job = self._next()
            if job is None:
                break
            if not isinstance(job, bool):
                self._batch(job)
            if self._subscribers and time.monotonic() - self._polled > _POLL_SECONDS:
                self._poll()
        assert self._db is not None
        self._db.close()

    def _next(self) -> _Job | bool | None:
        try:
            return self._queue.get(timeout=_POLL_SECONDS if self._subscribers else None)
        except Empty:
            return True

    def _more(self, ran: int, until: float) -> _Job | None:
        """The next work for this transaction, if there is one now."""
        while ran < _BATCH and not self._queue.empty() and time.monotonic() < until:
            job = self._queue.get()
            if job is None:
                self._queue.put(None)  # nothing is queued after the end: close() saw to that
                return None
            if not isinstance(job, bool):
                return job
        return None

    def _batch(self, job: _Job) -> None:
        """One transaction: this work and those that are queued behind it."""
        db = self._db
        assert db is not None
        settled: list[tuple[Pending[Any], Any, BaseException | None]] = []
        at: _Job | None = job
        kept = changed = False
        with self._gate:
            try:
                before = db.total_changes
                until = time.monotonic() + _BATCH_SECONDS
                while at is not None:
                    if not db.in_transaction:
                        self._begin(db)
                    result, error = self._work(db, at.work, kept)
                    settled.append((at.promise, result, error))
                    kept = kept or error is None
                    at = self._more(len(settled), until)
                if kept:
                    db.execute("COMMIT")
                    changed = db.total_changes != before
            except BaseException as e:  # noqa: BLE001 (everybody in this transaction is told)
                self._lost(db, e, settled, at)
                return
        for promise, result, error in settled:
            _settle(promise, result, error)
        if changed:
            self._subscribers.call(self.file.path)

    def _begin(self, db: sqlite3.Connection) -> None:
        if self.file.inode() != self._inode:
            raise self.file.moved()
        self.file.patiently(lambda: db.execute("BEGIN IMMEDIATE"))

    def _work(
        self, db: sqlite3.Connection, work: Callable[[Tx], Any], beside: bool
    ) -> tuple[Any, BaseException | None]:
        """Runs one work. Raises only where the database failed, and with it all works of this transaction."""
        # The first one needs no savepoint: where it raises, there is nothing else to keep.
        if beside:
            db.execute("SAVEPOINT work")
        try:
            tx = SQLiteTx(db)
            result = work(tx)
            tx.finish()
        except BaseException as e:
            if is_storage(e) or not db.in_transaction:
                raise
            if beside:
                db.execute("ROLLBACK TO work")
                db.execute("RELEASE work")
            else:
                db.execute("ROLLBACK")
            return None, e
        if beside:
            db.execute("RELEASE work")
        return result, None

    def _lost(self, db: sqlite3.Connection, error: BaseException, settled: list[Any], at: _Job | None) -> None:
        """The transaction failed: nothing of it was kept, and everybody who was in it is told."""
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error as e:
            _log.warning("rolling back %s failed: %s", self.file.path, e)
        meant = self.file.explain(error)
        waiting = [at.promise] if at is not None else []
        for promise, _, own in settled:
            if own is not None:
                promise.fail(own)
            else:
                waiting.append(promise)
        if isinstance(error, StoreError):
            waiting += self._queued()
        for promise in waiting:
            copy = type(meant)(*meant.args)  # its own for each: a traceback grows where it is raised
            copy.__cause__ = error.__cause__ if error is meant else error
            promise.fail(copy)

    def _queued(self) -> list[Pending[Any]]:
        """Those who waited just as long for the lock that did not come."""
        out: list[Pending[Any]] = []
        while (job := self._more(0, float("inf"))) is not None:
            out.append(job.promise)
        return out

    # -- who wants to hear of changes

    def _data_version(self) -> int:
        """Changes when another connection has committed."""
        assert self._db is not None
        return self._db.execute("PRAGMA data_version").fetchone()[0]

    def _poll(self) -> None:
        self._polled = time.monotonic()
        try:
            version = self._data_version()
        except sqlite3.Error:
            return  # busy for a moment; a lasting problem shows at the next commit
        if version != self._version:
            self._version = version
            self._subscribers.call(self.file.path)

    # -- forks

    def before_fork(self) -> None:
        """Waits until no transaction is open: then a child can let go of what it inherits without a trace."""
        self._lock.acquire()
        self._still = self._gate.acquire(timeout=_FORK_SECONDS)
        self._quiet = self._still and self._reads.pause(_FORK_SECONDS)

    def after_fork_in_parent(self) -> None:
        if self._quiet:
            self._reads.resume()
        if self._still:
            self._gate.release()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        inherited = [self._db, *self._reads.idle]
        self._lock = threading.Lock()
        self._subscribers = Subscribers()
        self._thread = None
        self._queue = SimpleQueue()
        self._reads = _Reads(self.file)
        for db in inherited:
            if db is not None and self._quiet:
                db.close()
            elif db is not None:
                never_free(db)
        self._db = None

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

    def run(self, work: Callable[[Tx], Any], promise: Pending[Any]) -> None:
        try:
            result = self._file.patiently(lambda: self._read(work))
        except BaseException as e:  # noqa: BLE001 (it goes to whoever waits for the promise)
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


def _settle(promise: Pending[Any], result: Any, error: BaseException | None) -> None:
    if error is None:
        promise.keep(result)
    else:
        promise.fail(error)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_cores: "weakref.WeakSet[_Core]" = weakref.WeakSet()


_forking: "list[_Core]" = []


def _before_fork() -> None:
    _forking[:] = _cores
    for core in _forking:
        core.before_fork()


def _after_fork_in_parent() -> None:
    for core in _forking:
        core.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for core in _forking:
        core.after_fork_in_child()
    _forking.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
