"""The rows of a SQLite store, within one transaction of one connection."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from adjourn.errors import InvalidRequest
from adjourn.events import Event
from adjourn.store import Decision, InterruptQuery, InterruptRecord, SessionQuery, SessionRecord, Snapshot
from adjourn.stores.rows import (
    DECISION,
    INTERRUPT,
    SESSION,
    SNAPSHOT,
    active,
    pack_events,
    queries,
    unpack_events,
)

_Q = queries("sqlite")
_FIRST = (float("-inf"), "")
_STATUSES = ("open", "resolved", "expired", "cancelled")


def _indexed(session: SessionRecord) -> tuple[object, ...]:
    """What an index on sessions holds."""
    return session.agent, session.owner, session.created, active(session)


class SQLiteTx:
    """A `Tx` on an open transaction. `finish` says that the work is done."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._read: dict[str, SessionRecord] = {}
        self._early: dict[str, list[tuple[int, bytes]]] = {}

    def finish(self) -> None:
        """Called where the work is done. Raises where it left something that cannot be kept."""
        if self._early:
            raise InvalidRequest(f"events of snapshots that were never put: {', '.join(self._early)}")

    def _one(self, name: str, *values: Any) -> Any:
        return self._db.execute(_Q[name], values).fetchone()

    def _all(self, name: str, values: Sequence[Any]) -> list[Any]:
        return self._db.execute(_Q[name], values).fetchall()

    # -- sessions

    def session(self, session_id: str) -> SessionRecord | None:
        row = self._one("session", session_id)
        if row is None:
            return None
        record = self._read[session_id] = SESSION.record(row)
        return record

    def put_session(self, record: SessionRecord) -> None:
        old = self._read.pop(record.id, None)
        if old is None or _indexed(old) != _indexed(record):
            self._db.execute(_Q["put_session"], (*SESSION.row(record), active(record)))
        else:
            row = SESSION.row(record)
            self._db.execute(_Q["touch_session"], (row[0], *row[-3:]))

    def drop_session(self, session_id: str) -> None:
        self._read.pop(session_id, None)
        for row in self._all("snapshot_numbers", (session_id,)):
            self._db.execute(_Q["drop_events"], row)
        for name in ("drop_snapshots", "drop_interrupts", "drop_session"):
            self._db.execute(_Q[name], (session_id,))

    def sessions(self, query: SessionQuery) -> list[SessionRecord]:
        q = query
        common = (*(q.after or _FIRST), q.limit, q.updated_before)
        if q.due is not None:
            rows = self._all("sessions_due", (*common, q.agent, q.owner, q.due))
        elif q.agent is not None:
            rows = self._all("sessions_by_agent", (*common, q.agent, q.owner))
        elif q.owner is not None:
            rows = self._all("sessions_by_owner", (*common, q.owner))
        else:
            rows = self._all("sessions_by_created", common)
        return [SESSION.record(row) for row in rows]

    # -- snapshots and events

    def snapshot(self, snapshot_id: str) -> Snapshot | None:
        row = self._one("snapshot", snapshot_id)
        return None if row is None else SNAPSHOT.record(row)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        self._db.execute(_Q["put_snapshot"], (*SNAPSHOT.row(snapshot), snapshot.folded))
        if self._early:
            for batch, body in self._early.pop(snapshot.id, ()):
                self._db.execute(_Q["add_events"], (snapshot.id, batch, body))

    def snapshots(self, session_id: str) -> list[Snapshot]:
        return [SNAPSHOT.record(row) for row in self._all("snapshots", (session_id,))]

    def chain(self, snapshot_id: str) -> list[Snapshot]:
        rows = self._all("chain", (snapshot_id,))
        rows.reverse()
        return [SNAPSHOT.record(row) for row in rows]

    def add_events(self, snapshot_id: str, batch: int, events: Sequence[Event]) -> None:
        body = pack_events(events)
        if self._db.execute(_Q["add_events"], (snapshot_id, batch, body)).rowcount == 0:
            # Events are numbered after their snapshot; these came before it, and follow when it does.
            self._early.setdefault(snapshot_id, []).append((batch, body))

    def events(self, snapshot_ids: Sequence[str]) -> list[Event]:
        out: list[Event] = []
        for snapshot_id in snapshot_ids:
            for (body,) in self._all("events", (snapshot_id,)):
                out += unpack_events(body)
        return out

    # -- interrupts and decisions

    def interrupt(self, interrupt_id: str) -> InterruptRecord | None:
        row = self._one("interrupt", interrupt_id)
        return None if row is None else INTERRUPT.record(row)

    def put_interrupt(self, record: InterruptRecord) -> None:
        self._db.execute(_Q["put_interrupt"], INTERRUPT.row(record))

    def interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        q = query
        head = (*(q.after or _FIRST), q.limit)
        values = (*head, q.status, q.tool, q.agent, q.owner, q.session_id, q.expired_by)
        if q.session_id is not None:
            return [INTERRUPT.record(row) for row in self._all("interrupts_by_session", values)]
        if q.expired_by is not None:
            return [INTERRUPT.record(row) for row in self._all("interrupts_overdue", values)]
        name, given = "interrupts_by_status", 4
        if q.tool is not None:
            name, given = "interrupts_by_tool", 7
        elif q.owner is not None:
            name, given = "interrupts_by_owner", 7
        elif q.agent is not None:
            name, given = "interrupts_by_agent", 6
        if q.status is not None:
            return [INTERRUPT.record(row) for row in self._all(name, values[:given])]
        # Every index begins with the status, so that the open ones cost the same however many are settled; where all
        # are wanted, a page is the oldest of four pages.
        found: list[InterruptRecord] = []
        for status in _STATUSES:
            found += [INTERRUPT.record(row) for row in self._all(name, (*head, status, *values[4:given]))]
        found.sort(key=lambda r: (r.created, r.id))
        return found[: q.limit]

    def put_decision(self, decision: Decision) -> None:
        self._db.execute(_Q["put_decision"], (*DECISION.row(decision), decision.applied))

    def decisions(
        self, *, interrupt_id: str | None = None, session_id: str | None = None, unapplied: bool = False
    ) -> list[Decision]:
        if interrupt_id is not None:
            rows = self._all("decisions_by_interrupt", (interrupt_id,))
            found = [DECISION.record(row) for row in rows]
            return [d for d in found if not (unapplied and d.applied)]
        if session_id is not None:
            name = "decisions_unapplied_by_session" if unapplied else "decisions_by_session"
            rows = self._all(name, (session_id,))
        else:
            rows = self._all("decisions_unapplied" if unapplied else "decisions", ())
        return [DECISION.record(row) for row in rows]
