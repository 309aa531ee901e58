"""The rows of any SQL store, within one transaction: which statement answers what.

The statements are each store's own (`sql/<store>_queries.sql`); their names, and what they are given, are the same. Filters
are answered from the index that narrows most, and the others are checked on the rows that it finds.
"""

from collections.abc import Sequence
from typing import Any

from adjourn.events import Event
from adjourn.store import Decision, InterruptQuery, InterruptRecord, SessionQuery, SessionRecord, Snapshot
from adjourn.stores.rows import DECISION, INTERRUPT, SESSION, SNAPSHOT, Row, active, pack_events, unpack_events

_FIRST = (float("-inf"), "")
_STATUSES = ("open", "resolved", "expired", "cancelled")


class SqlTx:
    """What the stores' transactions have in common. A subclass gives `run` and `all`."""

    def run(self, name: str, values: Sequence[Any]) -> None:
        """Executes a statement that gives no rows."""
        raise NotImplementedError

    def all(self, name: str, values: Sequence[Any]) -> list[Row]:
        """Executes a statement and gives its rows."""
        raise NotImplementedError

    # -- sessions

    def session(self, session_id: str) -> SessionRecord | None:
        rows = self.all("session", (session_id,))
        return SESSION.record(rows[0]) if rows else None

    def put_session(self, record: SessionRecord) -> None:
        self.run("put_session", (*SESSION.row(record), active(record)))

    def drop_session(self, session_id: str) -> None:
        for name in ("drop_events", "drop_snapshots", "drop_interrupts", "drop_session"):
            self.run(name, (session_id,))

    def sessions(self, query: SessionQuery) -> list[SessionRecord]:
        q = query
        common = (*(q.after or _FIRST), q.limit, q.updated_before)
        if q.due is not None:
            rows = self.all("sessions_due", (*common, q.agent, q.owner, q.due))
        elif q.agent is not None:
            rows = self.all("sessions_by_agent", (*common, q.agent, q.owner))
        elif q.owner is not None:
            rows = self.all("sessions_by_owner", (*common, q.owner))
        else:
            rows = self.all("sessions_by_created", common)
        return [SESSION.record(row) for row in rows]

    # -- snapshots and events

    def snapshot(self, snapshot_id: str) -> Snapshot | None:
        rows = self.all("snapshot", (snapshot_id,))
        return SNAPSHOT.record(rows[0]) if rows else None

    def put_snapshot(self, snapshot: Snapshot) -> None:
        self.run("put_snapshot", (*SNAPSHOT.row(snapshot), snapshot.folded))

    def snapshots(self, session_id: str) -> list[Snapshot]:
        return [SNAPSHOT.record(row) for row in self.all("snapshots", (session_id,))]

    def chain(self, snapshot_id: str) -> list[Snapshot]:
        rows = self.all("chain", (snapshot_id,))
        rows.reverse()  # it climbs from the leaf
        return [SNAPSHOT.record(row) for row in rows]

    def add_events(self, snapshot_id: str, batch: int, events: Sequence[Event]) -> None:
        self.run("add_events", (snapshot_id, batch, pack_events(events)))

    def events(self, snapshot_ids: Sequence[str]) -> list[Event]:
        out: list[Event] = []
        for snapshot_id in snapshot_ids:
            for row in self.all("events", (snapshot_id,)):
                out += unpack_events(row[0])
        return out

    # -- interrupts and decisions

    def interrupt(self, interrupt_id: str) -> InterruptRecord | None:
        rows = self.all("interrupt", (interrupt_id,))
        return INTERRUPT.record(rows[0]) if rows else None

    def put_interrupt(self, record: InterruptRecord) -> None:
        self.run("put_interrupt", INTERRUPT.row(record))

    def interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        q = query
        head = (*(q.after or _FIRST), q.limit)
        values = (*head, q.status, q.tool, q.agent, q.owner, q.expired_by)
        if q.session_id is not None:
            return self._interrupts("interrupts_by_session", (*values, q.session_id))
        if q.expired_by is not None:
            return self._interrupts("interrupts_overdue", values)
        name, given = "interrupts_by_status", 4
        if q.tool is not None:
            name, given = "interrupts_by_tool", 7
        elif q.owner is not None:
            name, given = "interrupts_by_owner", 7
        elif q.agent is not None:
            name, given = "interrupts_by_agent", 7
        if q.status is not None:
            return self._interrupts(name, values[:given])
        # The indexes begin with the status, so that the open ones cost the same however many are settled. Where all are
        # wanted, a page is the oldest of four pages.
        found: list[InterruptRecord] = []
        for status in _STATUSES:
            found += self._interrupts(name, (*head, status, *values[4:given]))
        found.sort(key=lambda r: (r.created, r.id))
        return found[: q.limit]

    def _interrupts(self, name: str, values: Sequence[Any]) -> list[InterruptRecord]:
        return [INTERRUPT.record(row) for row in self.all(name, values)]

    def put_decision(self, decision: Decision) -> None:
        self.run("put_decision", (*DECISION.row(decision), decision.applied))

    def decisions(
        self, *, interrupt_id: str | None = None, session_id: str | None = None, unapplied: bool = False
    ) -> list[Decision]:
        if interrupt_id is not None:
            found = [DECISION.record(row) for row in self.all("decisions_by_interrupt", (interrupt_id,))]
            return [d for d in found if not (unapplied and d.applied)]
        name = "decisions_unapplied" if unapplied else "decisions"
        if session_id is not None:
            rows = self.all(f"{name}_by_session", (session_id,))
        else:
            rows = self.all(name, ())
        return [DECISION.record(row) for row in rows]
