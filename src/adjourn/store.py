"""What is kept of a session, and the port that every store implements.

A session is a chain of snapshots, like commits. Each snapshot is one *leg* of a turn, from a message or a decision to the
next resting point; it keeps the events of that leg and, where the turn ended with it, the messages the turn added. So one
more turn costs the same however long the session is, and forks share what came before.

A store only has to do one thing: run a function over its rows as one transaction (`submit`). What such functions do, and
so every rule about leases, decisions and forks, is written once, in `ledger.py`, for all stores.
"""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from adjourn.errors import SessionConflict
from adjourn.events import Event, Json
from adjourn.parts import Artifact, Message
from adjourn.promise import Pending, Promise
from adjourn.records import (
    COUNTED,
    INNER,
    Batch,
    Change,
    Decision,
    InterruptQuery,
    InterruptRecord,
    InterruptStatus,
    Queued,
    SessionQuery,
    SessionRecord,
    Snapshot,
    mentions,
    placed,
    unknown_position,
)

__all__ = [
    "Batch",
    "Change",
    "Decision",
    "InMemoryLatestStateStore",
    "InterruptQuery",
    "InterruptRecord",
    "InterruptStatus",
    "MemoryStore",
    "Queued",
    "SessionQuery",
    "SessionRecord",
    "Snapshot",
    "Store",
    "Tx",
]

T = TypeVar("T")

_log = logging.getLogger("adjourn.stores")


class Tx(Protocol):
    """The rows of a store, within one transaction. All methods block; none checks any rule."""

    def session(self, session_id: str) -> SessionRecord | None:
        """In a writing transaction, nobody else can change this session until it ends."""
        ...

    def put_session(self, record: SessionRecord) -> None: ...

    def drop_session(self, session_id: str) -> None:
        """Deletes the session with its snapshots, events and interrupts. Decisions stay."""
        ...

    def sessions(self, query: SessionQuery) -> list[SessionRecord]: ...

    def snapshot(self, snapshot_id: str) -> Snapshot | None: ...

    def put_snapshot(self, snapshot: Snapshot) -> None: ...

    def snapshots(self, session_id: str, after: str | None = None) -> list[Snapshot]:
        """All of them, oldest first; or those made after this one (after none, where it is not there)."""
        ...

    def children(self, snapshot_id: str) -> list[Snapshot]:
        """Those of its session that have it as their parent, oldest first. A snapshot's parent never changes."""
        ...

    def chain(self, snapshot_id: str) -> list[Snapshot]:
        """From the root (or the last folded one) to this, in order."""
        ...

    def add_events(
        self, snapshot_id: str, batch: int, events: Sequence[Event], at: float | None = None, epoch: int = 0
    ) -> None:
        """The events of one commit. Without a time they have the one when their snapshot was last `updated`."""
        ...

    def batches(self, snapshot_id: str, first: int = 0) -> list[Batch]:
        """What was added to one snapshot, from this batch on, in order."""
        ...

    def events(self, snapshot_ids: Sequence[str]) -> list[Event]:
        """The events of these snapshots, in the order given and as they were recorded."""
        ...

    def interrupt(self, interrupt_id: str) -> InterruptRecord | None: ...

    def put_interrupt(self, record: InterruptRecord) -> None: ...

    def interrupts(self, query: InterruptQuery) -> list[InterruptRecord]: ...

    def count(self, query: InterruptQuery | SessionQuery) -> int:
        """How many fit, whatever `after` and `limit` say; at most a million are counted."""
        ...

    def put_decision(self, decision: Decision) -> None: ...

    def decisions(
        self, *, interrupt_id: str | None = None, session_id: str | None = None, unapplied: bool = False
    ) -> list[Decision]:
        """In the order they were made."""
        ...

    def add_change(self, change: Change) -> None:
        """Puts it at the end of the feed, with a position of the store's making."""
        ...

    def changes(self, after: str | None, limit: int) -> list[Change]:
        """The feed behind this position (None: from its beginning), in the order it is read for ever.

        Raises UnknownPosition for one that this feed never had, or has no more since a backup was restored; one that
        `drop_changes` forgot is still known.

        What was committed shows at last, and never before a position that was given out already. It need not show at
        once: a store may hold it back while another transaction is open that could come before it.
        """
        ...

    def position(self) -> str:
        """Where the feed ends now: behind it comes what `changes` does not give yet."""
        ...

    def drop_changes(self, before: float) -> int:
        """Forgets some entries of the feed that are older, the oldest first, but never its last; says how many."""
        ...

    def mark(self, name: str) -> str | None:
        """A small value kept under a name. In a writing transaction nobody else can change it until that ends."""
        ...

    def put_mark(self, name: str, value: str | None) -> None:
        """Keeps it; None forgets the name."""
        ...


class Store(Protocol):
    """Where sessions are kept.

    A work may run more than once (a lock, a lost connection), so it does nothing but read and write rows. Works that are not
    waited for are done in no order. In a writing work only `tx.session()` and `tx.mark()` lock. Events need their snapshot,
    put by the same work or an earlier one. The `id` of a record, and the session it belongs to, never change.

    `submit` runs `work` over the rows as one transaction, in any thread, and its promise (a `concurrent.futures.Future`
    will do) holds what `work` returned or raised; where it raised, nothing was changed. When the promise is done, the change
    is durable. A `read` does not change anything and may run beside others.

    Where several objects may keep their rows in one place, each says which that is by an attribute `place`, any value that can
    be compared and hashed: an application takes those of one place for one store, so that nothing is listed twice.
    """

    lease_seconds: float

    def submit(self, work: Callable[[Tx], T], *, read: bool = False) -> Promise[T]: ...

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back, from any thread, after changes that may come from elsewhere. Returns what ends that."""
        ...

    def close(self) -> None: ...


class _MemoryTx:
    """The rows as dicts, with an undo list: what raises leaves no trace."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store
        self._undo: list[Callable[[], None]] = []

    def rollback(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def _put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        old = table.get(key, UNSET)
        self._undo.append(lambda: table.pop(key, None) if old is UNSET else table.__setitem__(key, old))
        if value is UNSET:
            table.pop(key, None)
        else:
            table[key] = value

    def session(self, session_id: str) -> SessionRecord | None:
        return self._store.session_rows.get(session_id)

    def put_session(self, record: SessionRecord) -> None:
        self._put(self._store.session_rows, record.id, record)

    def drop_session(self, session_id: str) -> None:
        store = self._store
        for snapshot_id in store.session_snapshots.get(session_id, ()):
            self._drop_snapshot(store.snapshot_rows[snapshot_id])
        for interrupt_id in store.session_interrupts.get(session_id, ()):
            self._put(store.interrupt_rows, interrupt_id, UNSET)
        self._put(store.session_interrupts, session_id, UNSET)
        self._put(store.session_snapshots, session_id, UNSET)
        self._put(store.session_rows, session_id, UNSET)

    def _drop_snapshot(self, snapshot: Snapshot) -> None:
        store = self._store
        for batch in range(max(snapshot.batches, len(self.batches(snapshot.id)))):
            self._put(store.event_rows, (snapshot.id, batch), UNSET)
        self._put(store.snapshot_rows, snapshot.id, UNSET)
        left = tuple(i for i in store.snapshot_children.get(snapshot.parent_id, ()) if i != snapshot.id)
        self._put(store.snapshot_children, snapshot.parent_id, left or UNSET)

    def sessions(self, query: SessionQuery) -> list[SessionRecord]:
        return _page(self._fitting_sessions(query), query.after, query.limit)

    def _fitting_sessions(self, query: SessionQuery) -> Iterable[SessionRecord]:
        def fits(s: SessionRecord) -> bool:
            return (
                _among(s.agent, query.agent, query.agents)
                and _among(s.owner, query.owner, query.owners)
                and (query.updated_before is None or s.updated < query.updated_before)
                and not (query.outer and s.id.startswith(INNER))
                and (
                    query.due is None
                    or ((s.pending or s.waiting > 0 or len(s.queue) > 0) and s.lease_until <= query.due)
                )
            )

        return filter(fits, self._store.session_rows.values())

    def snapshot(self, snapshot_id: str) -> Snapshot | None:
        return self._store.snapshot_rows.get(snapshot_id)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        store = self._store
        if snapshot.id not in store.snapshot_rows:
            ids = store.session_snapshots.get(snapshot.session_id, ())
            self._put(store.session_snapshots, snapshot.session_id, (*ids, snapshot.id))
            if snapshot.parent_id is not None:
                siblings = store.snapshot_children.get(snapshot.parent_id, ())
                self._put(store.snapshot_children, snapshot.parent_id, (*siblings, snapshot.id))
        self._put(store.snapshot_rows, snapshot.id, snapshot)

    def snapshots(self, session_id: str, after: str | None = None) -> list[Snapshot]:
        ids = self._store.session_snapshots.get(session_id, ())
        if after in ids:
            ids = ids[ids.index(after) + 1 :]
        return [self._store.snapshot_rows[i] for i in ids]

    def children(self, snapshot_id: str) -> list[Snapshot]:
        return [self._store.snapshot_rows[i] for i in self._store.snapshot_children.get(snapshot_id, ())]

    def chain(self, snapshot_id: str) -> list[Snapshot]:
        out: list[Snapshot] = []
        at: str | None = snapshot_id
        while at is not None and (snapshot := self._store.snapshot_rows.get(at)) is not None:
            out.append(snapshot)
            at = None if snapshot.folded else snapshot.parent_id
        out.reverse()
        return out

    def add_events(
        self, snapshot_id: str, batch: int, events: Sequence[Event], at: float | None = None, epoch: int = 0
    ) -> None:
        self._put(self._store.event_rows, (snapshot_id, batch), (at, epoch, tuple(events)))

    def batches(self, snapshot_id: str, first: int = 0) -> list[Batch]:
        rows, snapshot = self._store.event_rows, self._store.snapshot_rows.get(snapshot_id)
        out: list[Batch] = []
        while snapshot is not None and (row := rows.get((snapshot_id, first + len(out)))) is not None:
            at, epoch, events = row
            out.append(Batch(snapshot.updated if at is None else at, epoch, events))
        return out

    def events(self, snapshot_ids: Sequence[str]) -> list[Event]:
        return [event for i in snapshot_ids for batch in self.batches(i) for event in batch.events]

    def interrupt(self, interrupt_id: str) -> InterruptRecord | None:
        return self._store.interrupt_rows.get(interrupt_id)

    def put_interrupt(self, record: InterruptRecord) -> None:
        store = self._store
        if record.id not in store.interrupt_rows:
            ids = store.session_interrupts.get(record.session_id, ())
            self._put(store.session_interrupts, record.session_id, (*ids, record.id))
        self._put(store.interrupt_rows, record.id, record)

    def interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        return _page(self._fitting_interrupts(query), query.after, query.limit)

    def _fitting_interrupts(self, query: InterruptQuery) -> Iterable[InterruptRecord]:
        rows = self._store.interrupt_rows

        def fits(r: InterruptRecord) -> bool:
            return (
                (query.status is None or r.status == query.status)
                and _among(r.tool, query.tool, query.tools)
                and _among(r.agent, query.agent, query.agents)
                and (query.session_id is None or r.session_id == query.session_id)
                and _among(r.owner, query.owner, query.owners)
                and (
                    query.expired_by is None
                    or (r.status == "open" and r.expires_at is not None and r.expires_at <= query.expired_by)
                )
                and (not query.text or mentions(r, query.text))
            )

        found: Iterable[InterruptRecord] = rows.values()
        if query.session_id is not None:
            found = [rows[i] for i in self._store.session_interrupts.get(query.session_id, ())]
        return filter(fits, found)

    def count(self, query: InterruptQuery | SessionQuery) -> int:
        if isinstance(query, InterruptQuery):
            return min(sum(1 for _ in self._fitting_interrupts(query)), COUNTED)
        return min(sum(1 for _ in self._fitting_sessions(query)), COUNTED)

    def put_decision(self, decision: Decision) -> None:
        store = self._store
        row = (decision.interrupt_id, decision.id)
        if row not in store.decision_rows:
            for index, key in (
                (store.interrupt_decisions, decision.interrupt_id),
                (store.session_decisions, decision.session_id),
            ):
                self._put(index, key, (*index.get(key, ()), row))
        self._put(store.decision_rows, row, decision)

    def decisions(
        self, *, interrupt_id: str | None = None, session_id: str | None = None, unapplied: bool = False
    ) -> list[Decision]:
        store = self._store
        ids: Iterable[tuple[str, str]] = store.decision_rows
        if interrupt_id is not None:
            ids = store.interrupt_decisions.get(interrupt_id, ())
        elif session_id is not None:
            ids = store.session_decisions.get(session_id, ())
        return [d for i in ids if not ((d := store.decision_rows[i]).applied and unapplied)]

    def add_change(self, change: Change) -> None:
        feed = self._store.feed
        c = change
        number = _number(self.position()) + 1
        feed.append(placed(number, c.kind, c.interrupt_id, c.session_id, c.at, c.decision_id))
        self._undo.append(lambda: feed.pop() and None)

    def changes(self, after: str | None, limit: int) -> list[Change]:
        feed = self._store.feed
        number = _number(after or "0")
        start = bisect_right(feed, number, key=lambda c: _number(c.position))
        before = feed[start - 1].position if start else None
        if number and (before != after if start else not feed):
            raise unknown_position(after)
        return feed[start : start + limit]

    def position(self) -> str:
        return self._store.feed[-1].position if self._store.feed else "0"

    def drop_changes(self, before: float) -> int:
        feed = self._store.feed
        many = 0
        while many < len(feed) - 1 and feed[many].at < before:
            many += 1
        gone = feed[:many]
        del feed[:many]
        self._undo.append(lambda: feed.__setitem__(slice(0, 0), gone))
        return many

    def mark(self, name: str) -> str | None:
        return self._store.marks.get(name)

    def put_mark(self, name: str, value: str | None) -> None:
        self._put(self._store.marks, name, UNSET if value is None else value)


def _among(value: str | None, one: str | None, several: Collection[str | None] | None) -> bool:
    return (one is None or value == one) and (several is None or value in several)


def _number(position: str) -> int:
    number = position.partition("-")[0]
    if not (number.isascii() and number.isdecimal()):
        raise unknown_position(position)
    return int(number)


def _page(found: Iterable[Any], after: tuple[float, str] | None, limit: int) -> list[Any]:
    rows = sorted(found, key=lambda r: (r.created, r.id))
    return [r for r in rows if after is None or (r.created, r.id) > after][:limit]


class MemoryStore:
    """Everything in this process's memory, with the same rules as a durable store."""

    lease_seconds: float = 15.0
    _tx: Callable[["MemoryStore"], _MemoryTx] = _MemoryTx

    def __init__(self) -> None:
        self.session_rows: dict[str, SessionRecord] = {}
        self.snapshot_rows: dict[str, Snapshot] = {}
        self.session_snapshots: dict[str, tuple[str, ...]] = {}
        self.snapshot_children: dict[str | None, tuple[str, ...]] = {}
        self.event_rows: dict[tuple[str, int], tuple[float | None, int, tuple[Event, ...]]] = {}
        self.interrupt_rows: dict[str, InterruptRecord] = {}
        self.session_interrupts: dict[str, tuple[str, ...]] = {}
        self.decision_rows: dict[tuple[str, str], Decision] = {}
        self.interrupt_decisions: dict[str, tuple[tuple[str, str], ...]] = {}
        self.session_decisions: dict[str, tuple[tuple[str, str], ...]] = {}
        self.feed: list[Change] = []
        self.marks: dict[str, str] = {}
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []

    def submit(self, work: Callable[[Tx], T], *, read: bool = False) -> Promise[T]:
        promise: Pending[T] = Pending()
        tx = self._tx(self)
        with self._lock:
            try:
                promise.keep(work(tx))
            except BaseException as e:  # noqa: BLE001 - it belongs to whoever waits for the promise
                tx.rollback()
                promise.fail(e)
        if not read:
            for callback in tuple(self._callbacks):
                try:
                    callback()
                except Exception:  # noqa: BLE001 - a subscriber's trouble is not the writer's
                    _log.exception("a subscriber of a MemoryStore failed")
        return promise

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def close(self) -> None:
        """Nothing to let go of."""


class _LatestTx(_MemoryTx):
    def put_snapshot(self, snapshot: Snapshot) -> None:
        rows = self._store.snapshot_rows
        new = snapshot.id not in rows and not snapshot.folded
        if new and snapshot.parent_id is not None and snapshot.parent_id not in rows:
            raise SessionConflict(
                f"session {snapshot.session_id!r} went on from another branch meanwhile, and its store keeps only the newest "
                "one: what this would go on from is gone. Nothing was changed; connect again to go on from what is there"
            )
        before = [s for s in self.chain(snapshot.parent_id or "") if s.id != snapshot.id]
        if snapshot.messages is None or not before or snapshot.status in ("failed", "aborted"):
            super().put_snapshot(snapshot)  # what failed can be retried, so its events stay
            return
        state: Json | UnsetType = UNSET
        messages: list[Message] = []
        artifacts: dict[str | tuple[str, int], Artifact] = {}
        for s in [*before, snapshot]:
            # A turn that failed and was retried ends twice; its last end has all that it added.
            messages += s.messages if s.messages and (s is snapshot or s.turn_id != snapshot.turn_id) else ()
            state = state if s.state is UNSET else s.state
            artifacts |= {a.name or (s.id, i): a for i, a in enumerate(s.artifacts)}
        whole = replace(
            snapshot, messages=tuple(messages), state=state, artifacts=tuple(artifacts.values()), folded=True
        )
        super().put_snapshot(whole)
        self._forget([s for s in before if s.turn_id != snapshot.turn_id])

    def _forget(self, snapshots: Sequence[Snapshot]) -> None:
        store = self._store
        gone = {s.id for s in snapshots}
        for s in snapshots:
            self._drop_snapshot(s)
            kept = tuple(i for i in store.session_snapshots.get(s.session_id, ()) if i not in gone)
            self._put(store.session_snapshots, s.session_id, kept)


class InMemoryLatestStateStore(MemoryStore):
    """A MemoryStore that keeps only the newest state of each session: earlier turns cannot be forked or retried.

    Of two branches, only the one that went on last is there.
    """

    _tx = _LatestTx
