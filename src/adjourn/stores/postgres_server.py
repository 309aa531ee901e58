"""The server of a PostgreSQL store: connecting, bringing a schema to the newest format, and what its errors mean."""

import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from adjourn.errors import InvalidRequest, MissingExtra, StoreError, StoreFormatError, StoreUnavailable
from adjourn.stores.rows import migrations, queries, statements

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError:
    raise MissingExtra("PostgresStore", "postgres") from None

T = TypeVar("T")
Connection = psycopg.Connection[Any]

_MIGRATIONS = migrations("postgres")
_OLDEST = 130000
"""The first PostgreSQL that can say of a transaction, by its 64-bit number, whether it was committed."""

_WATCHED = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""What tells this end of a connection, in seconds and milliseconds, that nobody is at the other one any more."""

_CONFLICTS = {"40001", "40P01"}  # serialization failure, deadlock: the server undid one so that others could go on
_PASSING = {
    "25006",
    "53300",
    "55006",
    "57P01",
    "57P02",
    "57P03",
}  # read-only, too many clients, (re)starting, in recovery
_COMING = re.compile(r"starting up|shutting down|recovery|too many|not yet accepting|remaining connection slots")


class Server:
    """Where the store's tables are.

    `wait_seconds` is how long a server that does not answer is waited for. A process that says nothing for `frozen_seconds`
    in the middle of a transaction loses its connection, so that what it has locked is free again.
    """

    def __init__(self, dsn: str, schema: str, wait_seconds: float, frozen_seconds: float = 15.0) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", schema):
            raise InvalidRequest(f"schema={schema!r}: give a name of up to 48 small letters, digits and underscores")
        try:
            parts = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            # Not the text of the error: it repeats the DSN, which may hold a password.
            raise StoreUnavailable(
                "the DSN of a PostgresStore cannot be read; give one like postgresql://user@host:5432/database"
            ) from None
        self.schema = schema
        self.wait_seconds = wait_seconds
        self.frozen_seconds = max(frozen_seconds, 1.0)
        self.statements = {name: self._ours(text) for name, text in queries("postgres").items()}
        place = [f"{k}={parts[k]}" for k in ("host", "port", "dbname", "user") if parts.get(k)]
        self.place = f"PostgreSQL ({' '.join(place) or 'at its usual place'}, schema {schema})"
        self.identity = (
            *[str(parts.get(k) or "") for k in ("host", "hostaddr", "port")],
            str(parts.get("dbname") or parts.get("user") or ""),
            schema,
        )
        self._dsn = dsn
        self._options: dict[str, Any] = {"autocommit": True, "cursor_factory": psycopg.RawCursor}
        for name, value in {"connect_timeout": 5, "application_name": "adjourn", **_WATCHED}.items():
            if name not in parts:
                self._options[name] = value

    def _ours(self, statement: str) -> bytes:
        return statement.replace("$schema", f'"{self.schema}"').encode()

    # -- connections

    def connect(self) -> Connection:
        """One connection of its own."""
        db = psycopg.connect(self._dsn, **self._options)
        self._configure(db)
        return db

    def _configure(self, db: Connection) -> None:
        row = db.execute(self.statements["server"]).fetchone()
        assert row is not None
        if row[0] < _OLDEST:
            raise StoreUnavailable(f"{self.place} is older than PostgreSQL 13, which a PostgresStore needs at least")
        if row[1] in {"off", "local"}:
            db.execute(
                self.statements["wait_for_disk"]
            )  # what is acknowledged is on disk, whatever the server's default
        db.execute(self.statements["bounds"], [self._frozen_after])

    @property
    def _frozen_after(self) -> str:
        return str(int(self.frozen_seconds * 1000))

    def make_ready(self, db: Connection) -> None:
        """For works: their feed goes on behind what it has, and no lock is waited for without end."""
        self.go_ahead(db)
        db.execute(self.statements["bound_locks"], [self._frozen_after])

    def end_frozen(self, db: Connection) -> bool:
        """Ends the connections of processes that are frozen within a transaction; says whether there were any."""
        row = db.execute(self.statements["end_frozen"], [self.frozen_seconds]).fetchone()
        return row is not None and row[0] > 0

    def patiently(self, step: Callable[[], T]) -> T:
        """Runs `step` again while the server is away. Raises StoreError when that does not end."""
        until = time.monotonic() + self.wait_seconds
        while True:
            try:
                return step()
            except psycopg.Error as e:
                if not passing(e) or time.monotonic() > until:
                    raise self.explain(e) from e
            time.sleep(random.uniform(0.05, 0.25))

    # -- the format

    def prepare(self) -> None:
        """Brings the schema to the newest format; makes it where there is none."""
        db = self.connect()
        try:
            if self._format(db) != len(_MIGRATIONS):
                self._migrate(db)
            self.go_ahead(db)
            db.execute(self.statements["go_ahead"])  # nothing any more, but by this a standby is found out
        finally:
            db.close()

    def _migrate(self, db: Connection) -> None:
        with db.transaction():
            db.execute(self.statements["lock_format"], [self.schema])
            version = self._format(db)  # again: another process may have been here first
            if version is None:
                for name in ("make_schema", "make_format", "first_format"):
                    db.execute(self.statements[name])
            for script in _MIGRATIONS[version or 0 :]:
                for statement in statements(script):
                    db.execute(self._ours(statement))
            db.execute(self.statements["set_format"], [len(_MIGRATIONS)])

    def go_ahead(self, db: Connection) -> None:
        """Lets the feed of a database that was restored on another server go on behind what it has."""
        row = db.execute(self.statements["behind_others"]).fetchone()
        if row is not None and row[0]:
            with db.transaction():
                db.execute(self.statements["hold_changes"])
                db.execute(self.statements["go_ahead"])

    def _format(self, db: Connection) -> int | None:
        """The schema's format, None where there is nothing yet. Refuses what is not ours."""
        tables = {row[0] for row in db.execute(self.statements["tables"], [self.schema])}
        if not tables:
            return None
        row = None
        if {"format", "sessions", "snapshots"} <= tables:
            try:
                row = db.execute(self.statements["format"]).fetchone()
            except psycopg.errors.UndefinedColumn:
                pass  # somebody else's table of that name
        if row is None:
            raise StoreFormatError(
                f"{self.place} holds the tables of another program ({', '.join(sorted(tables)[:4])}). They were left as they "
                'are; choose another schema with PostgresStore(dsn, schema="…")'
            )
        if row[0] > len(_MIGRATIONS):
            raise StoreFormatError(
                f"{self.place} has format {row[0]}, and this Adjourn knows formats up to {len(_MIGRATIONS)}: it was written by "
                "a newer one. It was left as it is; upgrade with `pip install -U adjourn`"
            )
        return row[0]

    # -- errors

    def explain(self, error: BaseException) -> StoreError | InvalidRequest:
        """What an error of the driver means to whoever keeps sessions here."""
        if isinstance(error, StoreError | InvalidRequest):
            return error
        code = getattr(error, "sqlstate", None) or ""
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        kept = "nothing of this change was kept; everything acknowledged before is safe"
        if isinstance(error, psycopg.DataError):
            return InvalidRequest(f"PostgreSQL cannot hold a name or id of this change ({said}): {kept}")
        if code in {"53100", "53200"}:
            return StoreUnavailable(f"{self.place} has no room left ({said}): {kept}. Make room and try again")
        if code == "42501":
            return StoreUnavailable(
                f"{self.place} does not let this user store anything ({said}): {kept}. Grant it CREATE on the database, or "
                "make the schema for it"
            )
        if code in {"42P01", "3F000", "42703"}:
            return StoreFormatError(
                f"the tables of {self.place} are gone or were changed by another program ({said}): {kept}. Restore a backup, "
                "or open the store again to begin with empty ones"
            )
        if code == "25006":
            return StoreUnavailable(f"{self.place} is read-only, as a standby is: {kept}. Give the DSN of the primary")
        if code in _CONFLICTS or code in {"55P03", "57014"}:
            return StoreUnavailable(
                f"{self.place} could not finish among other transactions on the same rows ({said}): {kept}. Try again; if it "
                "lasts, look for a transaction that holds locks in pg_stat_activity"
            )
        if passing(error) or isinstance(error, psycopg.OperationalError):
            return StoreUnavailable(
                f"{self.place} does not answer ({said}), also after {self.wait_seconds:.0f} s of trying: {kept}. See that the "
                "server runs and can be reached with this DSN, then try again"
            )
        return StoreUnavailable(f"{self.place} could not do what was asked ({code} {said}): {kept}")

    def unknown(self, error: BaseException) -> StoreUnavailable:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return StoreUnavailable(
            f"{self.place} was lost in the middle of a commit ({said}), and could not be asked afterwards whether it was kept: "
            "it may be, whole, or not at all. Everything acknowledged before is safe. Open the session again to see where it is"
        )


class Connections:
    """Connections to a server, kept between uses.

    Not psycopg's own pool: that connects in the background, gives up there after a while, and cannot say why. Here whoever
    wants a connection makes it, waits, and is told.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._free: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        with self._lock:
            if self._free:
                return self._free.pop()
        db = self._server.connect()
        try:
            self._server.make_ready(db)
        except BaseException:
            db.close()
            raise
        return db

    def give_back(self, db: Connection) -> None:
        with self._lock:
            if not db.closed and not self._closed:
                self._free.append(db)
                return
            # Where one was lost, the others were most likely lost with it.
            lost, self._free = self._free, []
        for one in [db, *lost]:
            one.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for db in free:
            db.close()


def passing(error: BaseException) -> bool:
    """Whether the same may work in a moment, because the server or the way to it comes back."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return getattr(error, "sqlstate", None) == "25006"
    code = error.sqlstate
    if code is not None:
        return code in _PASSING or code.startswith("08")
    # Before there is a session there is no code, only text; what the server refuses for good begins with FATAL.
    said = str(error)
    return "FATAL:" not in said or _COMING.search(said) is not None


def conflict(error: BaseException) -> bool:
    """Whether the server undid this in favour of others, so that it has to be done again."""
    if isinstance(error, psycopg.errors.UniqueViolation):
        return error.diag.constraint_name in {"sessions_pkey", "marks_pkey"}
    return getattr(error, "sqlstate", None) in _CONFLICTS


def locked_out(error: BaseException) -> bool:
    """Whether a row was locked by somebody else for longer than this waits at once."""
    return getattr(error, "sqlstate", None) == "55P03"
