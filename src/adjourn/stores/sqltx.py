"""The rows of any SQL store, within one transaction: which statement answers what.

The statements are each store's own (`sql/<store>_queries.sql`); their names, and what they are given, are the same. Filters
are answered from the index that narrows most, and the others are checked on the rows that it finds.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

from adjourn.events import Event
from adjourn.records import (
    COUNTED,
    Batch,
    Change,
    Decision,
    InterruptQuery,
    InterruptRecord,
    SessionQuery,
    SessionRecord,
    Snapshot,
    Wanted,
)
from adjourn.stores.rows import (
    DECISION,
    INTERRUPT,
    SESSION,
    SNAPSHOT,
    Row,
    active,
    pack_events,
    row_mentions,
    sieve,
    unpack_events,
)

_FIRST = (float("-inf"), "")
_STATUSES = ("open", "resolved", "expired", "cancelled")
_PAGES = 24
"""How many pages are merged into one, where a filter names several values. With more, all rows are filtered instead."""
_CHUNK = 1000
FORGOTTEN = 5000
"""Entries of the feed that are deleted at once: others wait meanwhile."""


class _Pages(NamedTuple):
    """Statements, each with what it is given after the position and the limit: together they find what is asked for."""

    name: str
    values: list[tuple[Any, ...]]


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
        pages = self._session_pages(query)
        rows = self._merged([self._rows(pages.name, query, values, 3) for values in pages.values], 3)
        return [SESSION.record(row) for row in islice(rows, query.limit)]

    def _session_pages(self, q: SessionQuery) -> _Pages:
        agents, owners = _either(q.agent, q.agents), _either(q.owner, q.owners)
        if agents == () or owners == ():
            return _Pages("sessions_by_created", [])
        common = (q.updated_before, self._list(agents), *self._owners(owners), q.outer)
        if q.due is not None:
            return _Pages("sessions_due", [(*common, q.due)])
        if _narrows(agents):
            free = (q.updated_before, None, *self._owners(owners), q.outer)
            return _Pages("sessions_by_agent", [(*free, agent) for agent in agents])
        if _narrows(owners):
            free = (q.updated_before, self._list(agents), None, False, q.outer)
            return _Pages("sessions_by_owner", [(*free, owner) for owner in owners])
        return _Pages("sessions_by_created", [common])

    # -- snapshots and events

    def snapshot(self, snapshot_id: str) -> Snapshot | None:
        rows = self.all("snapshot", (snapshot_id,))
        return SNAPSHOT.record(rows[0]) if rows else None

    def put_snapshot(self, snapshot: Snapshot) -> None:
        self.run("put_snapshot", (*SNAPSHOT.row(snapshot), snapshot.folded))

    def snapshots(self, session_id: str, after: str | None = None) -> list[Snapshot]:
        return [SNAPSHOT.record(row) for row in self.all("snapshots", (session_id, after))]

    def children(self, snapshot_id: str) -> list[Snapshot]:
        return [SNAPSHOT.record(row) for row in self.all("children", (snapshot_id,))]

    def chain(self, snapshot_id: str) -> list[Snapshot]:
        rows = self.all("chain", (snapshot_id,))
        rows.reverse()  # it climbs from the leaf
        return [SNAPSHOT.record(row) for row in rows]

    def add_events(
        self, snapshot_id: str, batch: int, events: Sequence[Event], at: float | None = None, epoch: int = 0
    ) -> None:
        self.run("add_events", (snapshot_id, batch, pack_events(events), at, epoch))

    def batches(self, snapshot_id: str, first: int = 0) -> list[Batch]:
        rows = self.all("batches", (snapshot_id, first))
        return [Batch(at, epoch, unpack_events(body)) for at, epoch, body in rows]

    def events(self, snapshot_ids: Sequence[str]) -> list[Event]:
        return [event for i in snapshot_ids for row in self.all("batches", (i, 0)) for event in unpack_events(row[2])]

    # -- interrupts and decisions

    def interrupt(self, interrupt_id: str) -> InterruptRecord | None:
        rows = self.all("interrupt", (interrupt_id,))
        return INTERRUPT.record(rows[0]) if rows else None

    def put_interrupt(self, record: InterruptRecord) -> None:
        self.run("put_interrupt", INTERRUPT.row(record))

    def interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        pages = self._interrupt_pages(query)
        rows = self._merged([self._mentioning(pages.name, query, values) for values in pages.values], 6)
        return [INTERRUPT.record(row) for row in islice(rows, query.limit)]

    def count(self, query: InterruptQuery | SessionQuery) -> int:
        if isinstance(query, SessionQuery):
            pages = self._session_pages(query)
        else:
            pages = self._interrupt_pages(query)
            if query.text:
                found = [self._mentioning(pages.name, query, v, first=_FIRST) for v in pages.values]
                return sum(1 for rows in found for _ in islice(rows, COUNTED))
        many = 0
        for values in pages.values:
            many += self.all(f"count_{pages.name}", (*_FIRST, COUNTED, *values))[0][0]
        return min(many, COUNTED)

    def _interrupt_pages(self, q: InterruptQuery) -> _Pages:
        tools, agents = _either(q.tool, q.tools), _either(q.agent, q.agents)
        owners = _either(q.owner, q.owners)
        if () in (tools, agents, owners):
            return _Pages("interrupts_by_status", [])
        search = sieve(q.text) if q.text else None

        def filters(*narrowed: str) -> tuple[Any, ...]:
            left = ["tool" in narrowed, "agent" in narrowed, "owner" in narrowed]
            given = [None if done else values for done, values in zip(left, (tools, agents, owners), strict=True)]
            return (self._list(given[0]), self._list(given[1]), *self._owners(given[2]), search)

        if q.session_id is not None:
            return _Pages("interrupts_by_session", [(q.status, *filters(), q.session_id, q.expired_by)])
        if q.expired_by is not None:
            return _Pages("interrupts_overdue", [(q.status, *filters(), q.expired_by)])
        # The indexes begin with the status, so that the open ones cost the same however many are settled. Where all are
        # wanted, a page is the oldest of four pages.
        statuses = (q.status,) if q.status is not None else _STATUSES
        for name, values in (("owner", owners), ("tool", tools), ("agent", agents)):
            if _narrows(values):
                free = filters(name)
                return _Pages(f"interrupts_by_{name}", [(s, *free, value) for value in values for s in statuses])
        return _Pages("interrupts_by_status", [(s, *filters()) for s in statuses])

    def _rows(
        self, name: str, query: InterruptQuery | SessionQuery, values: Sequence[Any], at: int, first: Any = None
    ) -> Iterator[Row]:
        """All rows of one statement, a page at a time."""
        after, limit = first or query.after or _FIRST, query.limit
        while True:
            rows = self.all(name, (*after, limit, *values))
            yield from rows
            if len(rows) < limit:
                return
            after, limit = (rows[-1][at], rows[-1][0]), _CHUNK

    def _mentioning(self, name: str, query: InterruptQuery, values: Sequence[Any], first: Any = None) -> Iterator[Row]:
        rows = self._rows(name, query, values, 6, first)
        if not query.text:
            return rows
        wanted = Wanted(query.text)
        return (row for row in rows if row_mentions(row, wanted))

    def _merged(self, pages: Sequence[Iterator[Row]], at: int) -> Iterator[Row]:
        return pages[0] if len(pages) == 1 else heapq.merge(*pages, key=lambda row: (row[at], row[0]))

    def _list(self, values: Sequence[str] | None) -> Any:
        """Several values as one that a statement is given."""
        raise NotImplementedError

    def _owners(self, owners: Sequence[str | None] | None) -> tuple[Any, bool]:
        if owners is None:
            return None, False
        return self._list([owner for owner in owners if owner is not None]), None in owners

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

    # -- the feed and marks

    def add_change(self, change: Change) -> None:
        c = change
        self.run("add_change", (c.kind, c.interrupt_id, c.session_id, c.at, c.decision_id))

    def mark(self, name: str) -> str | None:
        rows = self.all("mark", (name,))
        return rows[0][0] if rows else None

    def put_mark(self, name: str, value: str | None) -> None:
        if value is None:
            self.run("drop_mark", (name,))
        else:
            self.run("put_mark", (name, value))


def _either(one: Any, several: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """What both filters leave: None for everything, () for nothing."""
    if several is None:
        return None if one is None else (one,)
    if one is None:
        return tuple(dict.fromkeys(several))
    return (one,) if one in several else ()


def _narrows(values: Sequence[Any] | None) -> TypeGuard[Sequence[str]]:
    """Whether each value can be looked up by itself."""
    return values is not None and None not in values and len(values) <= _PAGES
