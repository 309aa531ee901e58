"""The rows of a SQLite store, within one transaction of one connection."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from adjourn.errors import InvalidRequest
from adjourn.events import Event
from adjourn.store import SessionRecord, Snapshot
from adjourn.stores.rows import SESSION, Row, active, pack_events, queries
from adjourn.stores.sqltx import SqlTx

_Q = queries("sqlite")


def _indexed(session: SessionRecord) -> tuple[object, ...]:
    """What an index on sessions holds."""
    return session.agent, session.owner, session.created, active(session)


class SQLiteTx(SqlTx):
    """A `Tx` on an open transaction. `finish` says that the work is done."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._seen: dict[str, SessionRecord] = {}
        self._early: dict[str, list[tuple[int, bytes]]] = {}

    def finish(self) -> None:
        """Called where the work is done. Raises where it left something that cannot be kept."""
        if self._early:
            raise InvalidRequest(f"events of snapshots that were never put: {', '.join(self._early)}")

    def run(self, name: str, values: Sequence[Any]) -> None:
        self._db.execute(_Q[name], values)

    def all(self, name: str, values: Sequence[Any]) -> list[Row]:
        return self._db.execute(_Q[name], values).fetchall()

    def session(self, session_id: str) -> SessionRecord | None:
        record = super().session(session_id)
        if record is not None:
            self._seen[session_id] = record
        return record

    def put_session(self, record: SessionRecord) -> None:
        old = self._seen.pop(record.id, None)
        if old is None or _indexed(old) != _indexed(record):
            super().put_session(record)
        else:
            row = SESSION.row(record)
            self.run("touch_session", (row[0], *row[-3:]))

    def drop_session(self, session_id: str) -> None:
        self._seen.pop(session_id, None)
        for number in self.all("snapshot_numbers", (session_id,)):
            self.run("drop_snapshot_events", number)
        for name in ("drop_snapshots", "drop_interrupts", "drop_session"):
            self.run(name, (session_id,))

    def put_snapshot(self, snapshot: Snapshot) -> None:
        super().put_snapshot(snapshot)
        if self._early:
            for batch, body in self._early.pop(snapshot.id, ()):
                self.run("add_events", (snapshot.id, batch, body))

    def add_events(self, snapshot_id: str, batch: int, events: Sequence[Event]) -> None:
        body = pack_events(events)
        if self._db.execute(_Q["add_events"], (snapshot_id, batch, body)).rowcount == 0:
            # Events are numbered after their snapshot; these came before it, and follow when it does.
            self._early.setdefault(snapshot_id, []).append((batch, body))
