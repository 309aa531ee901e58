"""The rows of a SQLite store, within one transaction of one connection."""

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from adjourn.errors import InvalidRequest
from adjourn.events import Event
from adjourn.records import Change, SessionRecord, Snapshot, placed, unknown_position
from adjourn.stores.rows import SESSION, Row, active, encode_events, pack, queries
from adjourn.stores.sqltx import FORGOTTEN, SqlTx

_Q = queries("sqlite")


def _same_place(one: SessionRecord, other: SessionRecord) -> bool:
    """Whether the indexes that all sessions are in hold the same of both."""
    return one.agent == other.agent and one.owner == other.owner and one.created == other.created


class TooMuch(Exception):
    """A work has more to write than it was said it might."""


class SQLiteTx(SqlTx):
    """A `Tx` on an open transaction, for one work after the other. `finish` says that a work is done.

    `most` is how many bytes a value may have; more raises TooMuch.
    """

    def __init__(self, db: sqlite3.Connection, most: int | None = None) -> None:
        self._db = db
        self._most = most
        self._seen: dict[str, SessionRecord] = {}
        self._early: dict[str, list[tuple[int, bytes, float | None, int]]] = {}

    def anew(self) -> "SQLiteTx":
        """For the next work."""
        self._seen.clear()
        self._early.clear()
        return self

    def finish(self) -> None:
        """Called where the work is done. Raises where it left something that cannot be kept."""
        if self._early:
            raise InvalidRequest(f"events of snapshots that were never put: {', '.join(self._early)}")

    def run(self, name: str, values: Sequence[Any]) -> None:
        if self._most is not None:
            for value in values:
                if type(value) is bytes and len(value) > self._most:
                    raise TooMuch
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
        if old is None or not _same_place(old, record):
            super().put_session(record)
            return
        row, is_active = SESSION.row(record), active(record)
        if is_active == active(old):
            self.run("touch_session", (row[0], *row[-3:]))
        else:
            self.run("touch_session_active", (row[0], *row[-3:], is_active))

    def drop_session(self, session_id: str) -> None:
        self._seen.pop(session_id, None)
        for number in self.all("snapshot_numbers", (session_id,)):
            self.run("drop_snapshot_events", number)
        for name in ("drop_snapshots", "drop_interrupts", "drop_session"):
            self.run(name, (session_id,))

    def put_snapshot(self, snapshot: Snapshot) -> None:
        super().put_snapshot(snapshot)
        if self._early:
            for batch, body, at, epoch in self._early.pop(snapshot.id, ()):
                self.run("add_events", (snapshot.id, batch, body, at, epoch))

    def add_events(
        self, snapshot_id: str, batch: int, events: Sequence[Event], at: float | None = None, epoch: int = 0
    ) -> None:
        body = encode_events(events)
        if self._most is not None and len(body) > self._most:
            raise TooMuch
        body = pack(body)
        if self._db.execute(_Q["add_events"], (snapshot_id, batch, body, at, epoch)).rowcount == 0:
            # Events are numbered after their snapshot; these came before it, and follow when it does.
            self._early.setdefault(snapshot_id, []).append((batch, body, at, epoch))

    def changes(self, after: str | None, limit: int) -> list[Change]:
        at = re.fullmatch(r"(0|[1-9]\d{0,17})(-[0-9a-f]{8})?", after or "0", re.ASCII)
        if at is None:
            raise unknown_position(after)
        number = int(at[1])
        rows = self.all("changes", (number, limit + 1))
        found = [placed(*row) for row in rows]
        if number and (not rows or (rows[0][0] == number and found.pop(0).position != after)):
            raise unknown_position(after)
        return found[:limit]

    def position(self) -> str:
        rows = self.all("position", ())
        return placed(*rows[0]).position if rows else "0"

    def drop_changes(self, before: float) -> int:
        self.run("drop_changes", (before, FORGOTTEN))
        return self.all("dropped", ())[0][0]

    def _list(self, values: Sequence[str] | None) -> str | None:
        return None if values is None else msgspec.json.encode(values).decode()
