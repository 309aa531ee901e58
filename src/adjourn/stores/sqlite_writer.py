"""The one who changes a SQLite file: runs what is queued, in one transaction at a time, and syncs once for all of it.

There is one transaction at a time, and two who may run it. The writer's own thread can wait: for another process's lock,
for a slow disk. But to be woken there and back costs more than a commit does where the disk is quick. So there an event
loop runs brief works itself: all that was submitted in one turn of the loop share one commit in the next. It never waits
for a lock, it leaves the rest to the thread after a few milliseconds, and a slow sync sends the next commits to the thread.
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from adjourn.errors import StoreError
from adjourn.promise import Pending, is_brief, running_loop
from adjourn.store import Tx
from adjourn.stores.sqlite_file import File, is_busy, is_storage
from adjourn.stores.sqlite_rows import SQLiteTx, TooMuch
from adjourn.stores.subscribers import Subscribers

_log = logging.getLogger("adjourn.stores")

_BATCH = 256
"""Works in one commit. More would make other processes wait, and gain nothing."""
_THREAD_SECONDS = 0.05
_LOOP_SECONDS = 0.005
_LOOP_BYTES = 50_000
"""In one value. What is longer is packed and written where nobody is held up by it."""
_QUICK_SECONDS = 0.003
"""How long a transaction may hold up an event loop, taking the last ones together."""
_AWAY_SECONDS = 1.0
"""For how long commits stay out of event loops where it took longer. Then a few try again."""
_CHECKPOINT_CHANGES = 1000
"""Changed rows, after which what they left in the log goes into the file. A row touches two to six pages."""
_POLL_SECONDS = 0.2


class Job(NamedTuple):
    """A work, and what is promised of it."""

    work: Callable[[Tx], Any]
    promise: Pending[Any]
    brief: bool


class _Settled(NamedTuple):
    promise: Pending[Any]
    result: Any
    error: BaseException | None


class _Way(NamedTuple):
    """How one of the two who commit does it."""

    take: Callable[[], Job | None]
    begin: Callable[[], bool]
    tx: SQLiteTx
    seconds: float
    """How long it takes one work after the other into a transaction."""


class Writer:
    """Runs the works that it is handed on this connection, in their order."""

    def __init__(self, file: File, db: sqlite3.Connection, listeners: Subscribers) -> None:
        self.db = db
        self.gate = threading.RLock()
        """Held by whoever is in a transaction."""
        self._file = file
        self._inode = file.inode()
        self._listeners = listeners
        self._jobs: deque[Job] = deque()
        self._untold: deque[_Settled] = deque()
        self._changed = False  # and its listeners are to be told
        self._bell: SimpleQueue[bool] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None  # whose turn is to come
        self._last: weakref.ref[asyncio.Task[Any]] | None = None
        self._held_seconds = 0.0  # the event loops, by a transaction: an average of the last ones
        self._slow_until = 0.0
        self._in_loop = _Way(self._brief, self._begin_now, SQLiteTx(db, _LOOP_BYTES), _LOOP_SECONDS)
        self._in_thread = _Way(self._any, self._begin, SQLiteTx(db), _THREAD_SECONDS)
        self._in_file = db.total_changes
        self._version = self._data_version()
        self._polled = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="adjourn-sqlite", daemon=True)
        self._thread.start()

    # -- what any thread calls

    def put(self, work: Callable[[Tx], Any]) -> Job:
        """Queues it; `go` is to follow. There must be no more after `close`."""
        job = Job(work, Pending(self._hurry), is_brief(work))
        self._jobs.append(job)
        return job

    def go(self, job: Job) -> None:
        """Sees that what was queued is run, here and now where nobody else is at it. Calls back, so hold no lock."""
        loop = running_loop() if job.brief and time.monotonic() > self._slow_until else None
        if loop is None:
            self.wake()
        elif self._alone():
            self.turn()
        elif self._loop is not loop:
            loop.call_soon(_Turn(self))
            self._loop = loop

    def _alone(self) -> bool:
        """Whether the last task that wanted something is this one, or over: then nothing would be gained by waiting for more."""
        task = asyncio.current_task()
        last = self._last() if self._last is not None else None
        if task is None:
            return False
        if last is not task:
            self._last = weakref.ref(task)
        return last is None or last is task or last.done()

    def wake(self) -> None:
        """Has the thread look at what is queued."""
        self._bell.put(True)

    def close(self) -> None:
        """Finishes what is queued, then lets go of the file."""
        self._bell.put(False)
        # Python may collect a forgotten store in any thread, the writer's too, and in the midst of a work; it then ends by
        # itself.
        if self._thread is not threading.current_thread() and not self._within():
            self._thread.join()

    def _within(self) -> bool:
        """Whether this thread is in a transaction."""
        return self.gate._is_owned()  # type: ignore[attr-defined] # as threading.Condition asks it

    # -- in an event loop

    def turn(self) -> None:
        """Runs what is queued now, as far as that is brief; the thread gets the rest."""
        self._loop = None
        if self._within():
            self.wake()  # a work that asks for another: it is not waited for here
            return
        # A signal's handler may raise behind any call: then the gate is ours, and we do not know it.
        got, due, stopped = False, False, None
        try:
            try:
                got = self.gate.acquire(blocking=False)
                if got and self._jobs:
                    begun = time.monotonic()
                    stopped = self._batch(self._in_loop)
                    self._weigh(time.monotonic() - begun)
                    due = self._checkpoint_due
            finally:
                if got or self._within():
                    self.gate.release()
            self._tell()
        finally:
            if self._jobs or self._untold or due or not got:
                self.wake()  # where the thread has the gate, it may have looked already, and be about to sleep
        if stopped is not None:
            raise stopped

    def missed(self) -> None:
        """A turn will not come."""
        self._loop = None
        self.wake()

    def _weigh(self, seconds: float) -> None:
        """Keeps commits out of event loops for a while, where they take too long there."""
        self._held_seconds += (seconds - self._held_seconds) / 16
        if self._held_seconds > _QUICK_SECONDS:
            self._held_seconds /= 2
            self._slow_until = time.monotonic() + _AWAY_SECONDS

    def _brief(self) -> Job | None:
        """The next one, where it is brief."""
        return self._jobs[0] if self._jobs and self._jobs[0].brief else None

    def _hurry(self) -> None:
        """Somebody blocks until a work is done, and so perhaps the very one who is to do it, or to say so."""
        if self._within():
            raise RuntimeError("a work waits for another one of the same store, which cannot begin before it ends")
        self._tell()
        if threading.current_thread() is self._thread:  # in a callback
            self._drain()
        elif self._loop is not None and self._loop is running_loop():
            self.turn()
        else:
            self.wake()

    # -- in the thread

    def _run(self) -> None:
        going = True
        while going:
            going = self._rung()
            if self._listeners and time.monotonic() - self._polled > _POLL_SECONDS:
                self._poll()
            self._drain()
            if self._checkpoint_due:
                self._checkpoint()
        while True:
            self._drain()
            with self.gate:
                if not self._jobs:  # an event loop may have put one back, that another process's lock was in the way of
                    self.db.close()
                    return

    def _drain(self) -> None:
        while self._jobs or self._untold or self._changed:
            with self.gate:
                self._batch(self._in_thread)
            try:
                self._tell()
            except BaseException:  # noqa: BLE001 (whatever a callback raises, others wait for this thread)
                _log.exception("a callback of a store's promise failed")

    def _rung(self) -> bool:
        """Waits until there may be something to do. False for the last time."""
        try:
            return self._bell.get(timeout=_POLL_SECONDS if self._listeners else None)
        except Empty:
            return True

    def _any(self) -> Job | None:
        """The next one."""
        return self._jobs[0] if self._jobs else None

    @property
    def _checkpoint_due(self) -> bool:
        return self.db.total_changes - self._in_file > _CHECKPOINT_CHANGES

    def _checkpoint(self) -> None:
        """Brings into the file what is in the log beside it, which else grows."""
        with self.gate:
            self._in_file = self.db.total_changes
            try:
                self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as e:
                _log.debug("%s stays in its log for now: %s", self._file.path, e)  # it is as safe there

    def _poll(self) -> None:
        """Looks for other processes' changes."""
        self._polled = time.monotonic()
        try:
            with self.gate:
                version = self._data_version()
        except sqlite3.Error:
            return  # busy for a moment; a lasting problem shows at the next commit
        if version != self._version:
            self._version = version
            self._changed = True

    def _data_version(self) -> int:
        """Changes when another connection has committed."""
        return self.db.execute("PRAGMA data_version").fetchone()[0]

    # -- a transaction, in either. The gate is held.

    def _batch(self, way: _Way) -> BaseException | None:
        """One transaction: the first work that there is, and those behind it that come in time.

        What came of each is to be told. Gives what a signal's handler raised meanwhile.
        """
        db, jobs = self.db, self._jobs
        settled: list[_Settled] = []
        at: Job | None = None
        kept = synced = False
        stopped: BaseException | None = None
        before = db.total_changes
        try:
            until = time.monotonic() + way.seconds
            while (
                len(settled) < _BATCH and (not settled or time.monotonic() < until) and (at := way.take()) is not None
            ):
                if not db.in_transaction and not way.begin():
                    break
                jobs.popleft()
                result, error = self._work(way.tx, at.work, kept)
                if isinstance(error, TooMuch):
                    jobs.appendleft(at._replace(brief=False))
                    break
                settled.append(_Settled(at.promise, result, error))
                at = None
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    stopped = error
                    break
                kept = kept or error is None
            if kept:
                synced = True
                db.execute("COMMIT")
        except BaseException as e:  # noqa: BLE001 (everybody in this transaction is told)
            stopped = None if isinstance(e, Exception) else e
            # Handlers run in the midst of anything, and so behind a commit as well.
            if isinstance(e, sqlite3.Error) or not synced or db.in_transaction:
                if jobs and jobs[0] is at and not isinstance(e, (sqlite3.Error, StoreError)):
                    at = None  # it is still queued
                settled, kept = self._lost(e, settled, at), False
        self._untold.extend(settled)
        self._changed = self._changed or (kept and db.total_changes != before)
        return stopped

    def _tell(self) -> None:
        """Keeps or breaks the promises. The gate is open again: who is called back may want something."""
        untold = self._untold
        while untold:
            # First told, then taken away: to tell twice does no harm, and another thread may be at it.
            try:
                one = untold[0]
            except IndexError:
                break
            if one.error is None:
                one.promise.keep(one.result)
            else:
                one.promise.fail(one.error)
            with contextlib.suppress(ValueError):
                untold.remove(one)
        if self._changed:
            self._changed = False
            self._listeners.call(self._file.path)

    def _begin_now(self) -> bool:
        self._check_place()
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as e:
            if not is_busy(e):
                raise
            return False
        return True

    def _begin(self) -> bool:
        self._check_place()
        self._file.patiently(lambda: self.db.execute("BEGIN IMMEDIATE"))
        return True

    def _check_place(self) -> None:
        if self._file.inode() != self._inode:
            raise self._file.moved()

    def _work(self, tx: SQLiteTx, work: Callable[[Tx], Any], beside: bool) -> tuple[Any, BaseException | None]:
        """Runs one work. Raises only where the database failed, and with it all works of this transaction."""
        db = self.db
        # The first one needs no savepoint: where it raises, there is nothing else to keep.
        if beside:
            db.execute("SAVEPOINT work")
        try:
            result = work(tx.anew())
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

    def _lost(self, error: BaseException, settled: Sequence[_Settled], at: Job | None) -> list[_Settled]:
        """The transaction failed: nothing of it was kept, and so says what everybody in it is told."""
        try:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        except sqlite3.Error as e:
            _log.warning("rolling back %s failed: %s", self._file.path, e)
        meant = self._file.explain(error)
        out = [s for s in settled if s.error is not None]
        waiting = [s.promise for s in settled if s.error is None]
        if at is not None:
            waiting.append(at.promise)
            if self._jobs and self._jobs[0] is at:
                self._jobs.popleft()
        if isinstance(error, StoreError):  # those who are queued waited just as long for the lock that did not come
            while self._jobs:
                waiting.append(self._jobs.popleft().promise)
        for promise in waiting:
            copy = type(meant)(*meant.args)  # its own for each: a traceback grows where it is raised
            copy.__cause__ = error.__cause__ if error is meant else error
            out.append(_Settled(promise, None, copy))
        return out


class _Turn:
    """The writer's turn in an event loop. Where the loop is closed before it comes, the thread is woken instead."""

    __slots__ = ("_writer",)

    def __init__(self, writer: Writer) -> None:
        self._writer: Writer | None = writer

    def __call__(self) -> None:
        if self._writer is not None:
            self._writer.turn()
        self._writer = None

    def __del__(self) -> None:
        if self._writer is not None:
            self._writer.missed()
