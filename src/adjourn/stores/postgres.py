"""Sessions in PostgreSQL, shared by any number of processes and machines. Needs the extra `postgres`.

Each work runs as one transaction in one of a few threads; `tx.session()` locks the session's row until its end. What gives
no rows is sent along with what does, so a commit costs two or three round trips. A connection that is lost before the
commit is replaced and the work runs again. One that is lost *at* the commit leaves open whether it was kept: the server is
then asked by the transaction's number, so nothing is done twice and nothing is called lost that was kept. A server that was
started anew meanwhile cannot say, and the error says so.
"""

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from adjourn.errors import StoreError, StoreUnavailable
from adjourn.parts import new_id
from adjourn.promise import Pending
from adjourn.store import Tx
from adjourn.stores.postgres_rows import LOOKS, LookAgain, PostgresTx
from adjourn.stores.postgres_server import Connection, Connections, Server, conflict, locked_out, passing, psycopg
from adjourn.stores.subscribers import Subscribers
from adjourn.stores.threads import Threads, never_free

T = TypeVar("T")

_log = logging.getLogger("adjourn.stores")

_CONFLICTS = 30
"""How often a work is run again that the server undid in favour of others."""
_NOTIFY_SECONDS = 0.02
_LISTEN_SECONDS = 0.25
_POLL_SECONDS = 5.0


class PostgresStore:
    """A store in the database that `dsn` names, in a schema of its own, which is made if there is none.

    `connections` is how many are used at once. A server that is away is waited for `wait_seconds`. A work may run more than
    once: when it met others on the same rows, or lost its connection. After a fork the child connects anew. A process that is
    frozen within a transaction loses what it has locked after `lease_seconds`, and at least one.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "adjourn",
        connections: int = 8,
        lease_seconds: float = 15.0,
        wait_seconds: float = 15.0,
    ) -> None:
        self.lease_seconds = lease_seconds
        self._core = _Core(Server(dsn, schema, wait_seconds, lease_seconds), connections)
        # The core does not know the store: one that nobody holds any more is closed, at the latest when Python ends.
        self._end = weakref.finalize(self, self._core.close)

    @property
    def place(self) -> tuple[str, ...]:
        """The same for every store in this schema of this database, whoever connects to it."""
        return "postgres", *self._core.server.identity

    def __repr__(self) -> str:
        return f"<PostgresStore in {self._core.server.place}>"

    def submit(self, work: Callable[[Tx], T], *, read: bool = False) -> Pending[T]:
        return self._core.submit(work, read)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._core.subscribe(callback)

    def close(self) -> None:
        """Finishes what is queued, and disconnects. Closing twice is no error."""
        self._end()


class _Core:
    def __init__(self, server: Server, connections: int) -> None:
        self.server = server
        self._size = connections
        self._closed = False
        self._begin_anew()
        server.patiently(server.prepare)
        _cores.add(self)

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._me = new_id()
        self._subscribers = Subscribers()
        self._connections = Connections(self.server)
        self._threads: Threads | None = None
        self._changed = threading.Event()
        self._end = threading.Event()
        self._helpers: dict[str, threading.Thread] = {}

    # -- what any thread calls

    def submit(self, work: Callable[[Tx], T], read: bool) -> Pending[T]:
        promise: Pending[T] = Pending()
        with self._lock:
            if self._closed:
                promise.fail(StoreUnavailable(f"the store in {self.server.place} was closed; open it again"))
                return promise
            if self._threads is None:
                self._threads = Threads(self._size, "adjourn-postgres")
            try:
                self._threads.submit(self._run, work, read, promise)
            except RuntimeError as e:
                promise.fail(StoreUnavailable(f"nothing can be stored any more: {e}"))
        return promise

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        end = self._subscribers.add(callback)
        with self._lock:
            self._help("listen", self._listen)
        return end

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads, helpers = self._threads, list(self._helpers.values())
        if threads is not None:
            threads.close()
        self._end.set()
        self._changed.set()
        for helper in helpers:
            # Python may collect a forgotten store in any thread, one of these too.
            if helper is not threading.current_thread():
                helper.join()
        self._connections.close()

    # -- transactions

    def _run(self, work: Callable[[Tx], Any], read: bool, promise: Pending[Any]) -> None:
        try:
            result = self._transact(work, read)
        except BaseException as e:  # noqa: BLE001 (it goes to whoever waits for the promise)
            promise.fail(e)
            return
        promise.keep(result)
        if not read:
            self._announce()

    def _transact(self, work: Callable[[Tx], T], read: bool) -> T:
        until = time.monotonic() + self.server.wait_seconds
        conflicts = looks = losses = 0
        while True:
            looks += 1
            attempt = _Attempt(self.server, work, read, looks >= LOOKS)
            try:
                return self._with(attempt.run, until)
            except LookAgain:
                continue
            except psycopg.Error as e:
                losses += attempt.lost
                if attempt.committing and attempt.lost:
                    if self._was_committed(attempt.number, e):
                        return attempt.result
                elif conflict(e):
                    conflicts += 1
                    if conflicts > _CONFLICTS:
                        raise self.server.explain(e) from e
                elif locked_out(e):
                    if not self._end_frozen() and time.monotonic() > until:
                        raise self.server.explain(e) from e
                elif attempt.lost and losses == 1:
                    pass  # also where that was long ago, for a process that was frozen: then the rows say what came of it
                elif not (attempt.lost or passing(e)) or time.monotonic() > until:
                    raise self.server.explain(e) from e
            time.sleep(random.uniform(0.0, 0.02) * (conflicts or 1))

    def _with(self, step: Callable[[Connection], T], until: float) -> T:
        """Runs `step` with a connection, which is waited for. Raises StoreError where there is none to be had."""
        while True:
            try:
                db = self._connections.take()
                break
            except psycopg.Error as e:
                if not passing(e) or time.monotonic() > until:
                    raise self.server.explain(e) from e
            time.sleep(random.uniform(0.05, 0.25))
        try:
            return step(db)
        finally:
            self._connections.give_back(db)

    def _end_frozen(self) -> bool:
        try:
            return self._with(self.server.end_frozen, time.monotonic() + 1.0)
        except (psycopg.Error, StoreError) as e:
            _log.info("looking for frozen processes in %s failed: %s", self.server.place, e)
            return False

    def _was_committed(self, number: str | None, error: Exception) -> bool:
        """Asks the server about a transaction whose commit was not answered."""
        query = self.server.statements["outcome"]
        until = time.monotonic() + self.server.wait_seconds
        while time.monotonic() < until:
            try:
                row = self._with(lambda db: db.execute(query, [number]).fetchone(), until)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                row = ("in progress",)
            except (psycopg.Error, StoreError):
                break
            if row is None or row[0] not in {"committed", "aborted", "in progress"}:
                break
            if row[0] != "in progress":
                return row[0] == "committed"
            time.sleep(0.02)
        raise self.server.unknown(error) from error

    # -- who wants to hear of changes

    def _announce(self) -> None:
        self._subscribers.call(self.server.place)
        self._changed.set()
        if "notify" not in self._helpers:
            with self._lock:
                if not self._closed:
                    self._help("notify", self._notify)

    def _help(self, name: str, work: Callable[[], None]) -> None:
        if name not in self._helpers:
            self._helpers[name] = threading.Thread(target=work, name=f"adjourn-postgres-{name}", daemon=True)
            self._helpers[name].start()

    def _channel(self) -> str:
        return f"adjourn_{self.server.schema}"

    def _notify(self) -> None:
        """Tells other processes, a few times a second at most.

        Not within the transactions: PostgreSQL lets only one that notifies commit at a time, sync and all.
        """
        while not self._end.is_set():
            self._changed.wait()
            self._changed.clear()
            try:
                self._with(self._tell, time.monotonic() + 1.0)
            except (psycopg.Error, StoreError) as e:
                _log.info(
                    "notifying through %s failed, others will see the change at their next look: %s", self._channel(), e
                )
            self._end.wait(_NOTIFY_SECONDS)

    def _tell(self, db: Connection) -> None:
        db.execute(self.server.statements["notify"], [self._channel(), self._me])

    def _listen(self) -> None:
        """Hears of other processes' changes, and looks every few seconds in case that a notification was lost."""
        while not self._end.is_set():
            try:
                db = self.server.connect()
            except (psycopg.Error, StoreError) as e:
                _log.info("listening on %s failed, trying again: %s", self._channel(), e)
                self._end.wait(1.0)
                continue
            try:
                db.execute(f'LISTEN "{self._channel()}"'.encode())
                self._subscribers.call(self.server.place)  # something may have happened before
                self._hear(db)
            except psycopg.Error as e:
                _log.info("listening on %s was cut off, connecting again: %s", self._channel(), e)
            finally:
                db.close()

    def _hear(self, db: Connection) -> None:
        looked = time.monotonic()
        while not self._end.is_set():
            heard = any(note.payload != self._me for note in db.notifies(timeout=_LISTEN_SECONDS, stop_after=1))
            if heard or time.monotonic() - looked > _POLL_SECONDS:
                looked = time.monotonic()
                self._subscribers.call(self.server.place)
                if not heard:  # one that is frozen holds up the feed
                    self.server.end_frozen(db)

    # -- forks

    def after_fork_in_child(self) -> None:
        # What was inherited is the parent's. Even to close it would say goodbye to the server in the parent's name.
        never_free(self._connections)
        self._begin_anew()


class _Attempt:
    """One run of a work, and how far it came."""

    def __init__(self, server: Server, work: Callable[[Tx], Any], read: bool, last: bool) -> None:
        self._server = server
        self._work = work
        self._read = read
        self._last = last
        self.number: str | None = None
        self.result: Any = None
        self.committing = False
        self.lost = False

    def run(self, db: Connection) -> Any:
        try:
            self._transaction(db)
        except BaseException:
            self.lost = db.closed
            if not self.lost:
                self._roll_back(db)
            raise
        return self.result

    def _transaction(self, db: Connection) -> None:
        q = self._server.statements
        with db.pipeline() as pipeline:
            db.execute(q["begin_read" if self._read else "begin"])
            number = None
            if not self._read:
                db.execute(q["known"])  # before it has a number
                number = db.execute(q["transaction"])
            self.result = self._work(PostgresTx(db, q, pipeline.sync, read=self._read, last=self._last))
            if number is not None:
                row = number.fetchone()
                self.number = row[0] if row is not None else None
            self.committing = not self._read
            done = db.execute(q["commit"])
        if done.statusmessage != "COMMIT":  # the server answers COMMIT with ROLLBACK where a statement had failed
            raise psycopg.OperationalError(f"COMMIT was answered with {done.statusmessage}")

    def _roll_back(self, db: Connection) -> None:
        try:
            db.rollback()
        except psycopg.Error:
            db.close()  # the pool replaces it, and the server rolls back by itself


_cores: "weakref.WeakSet[_Core]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for core in list(_cores):
        core.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows, where there is no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
