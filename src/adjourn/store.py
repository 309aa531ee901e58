"""What is kept of a session, and the port that every store implements.

A session is a chain of snapshots, like commits. Each snapshot is one *leg* of a turn, from a message or a decision to the
next resting point; it keeps the events of that leg and, where the turn ended with it, the messages the turn added. So one
more turn costs the same however long the session is, and forks share what came before.

A store only has to do one thing: run a function over its rows as one transaction (`submit`). What such functions do, and
so every rule about leases, decisions and forks, is written once, in `ledger.py`, for all stores.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from adjourn.events import Event, Json, Verb
from adjourn.parts import Artifact, ErrorInfo, FinishReason, Message

T = TypeVar("T")

_log = logging.getLogger("adjourn.stores")

SnapshotStatus = Literal["pending", "completed", "failed", "aborted"]
InterruptStatus = Literal["open", "resolved", "expired", "cancelled"]


class Queued(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A message that waits for the pause to be over."""

    id: str
    message: Message


class SessionRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One session. `head` is its newest snapshot; `pending` says that the head has not come to rest.

    `epoch` grows with each lease, so that a driver which lost its lease is known. `waiting` counts decisions that no
    driver has taken up yet; `queue` are messages to be sent when the pause is over; `inner` are the sessions of nested agents
    that its calls began. Times are Unix seconds.
    """

    id: str
    agent: str
    created: float
    updated: float
    owner: str | None = None
    head: str | None = None
    pending: bool = False
    epoch: int = 0
    holder: str | None = None
    lease_until: float = 0.0
    waiting: int = 0
    queue: tuple[Queued, ...] = ()
    inner: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One leg of a turn and where it came to rest. `turn_id` is the id of the turn's first leg.

    `batches` is how many batches of events it has. `messages` are what the whole turn added, set where the turn ended.
    `state` and `artifacts` are what changed since the parent. A `folded` one holds all that was before it as well. A `branch`
    was forked off its parent, which goes on without it.
    """

    id: str
    session_id: str
    turn_id: str
    agent: str
    created: float
    updated: float
    parent_id: str | None = None
    status: SnapshotStatus = "pending"
    finish_reason: FinishReason | None = None
    error: ErrorInfo | None = None
    batches: int = 0
    messages: tuple[Message, ...] | None = None
    state: Json | UnsetType = UNSET
    artifacts: tuple[Artifact, ...] = ()
    folded: bool = False
    branch: bool = False
    heartbeat: float = 0.0


class InterruptRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One paused call, with all that is needed to show it and to decide on it in a process that knows nothing else.

    `path` leads through nested agents, outermost first. `input_digest` binds a decision to the input that was shown.
    """

    id: str
    session_id: str
    snapshot_id: str
    turn_id: str
    call_id: str
    agent: str
    tool: str
    created: float
    ref: str | None = None
    input: Json = None
    input_digest: str = ""
    payload: Json = None
    response: Json = None
    allow: tuple[Verb, ...] = ("respond", "restart")
    reason: str = "tool"
    expires_at: float | None = None
    on_expiry: Json = "decline"
    owner: str | None = None
    version: str = ""
    status: InterruptStatus = "open"
    path: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One row of the audit: who settled which interrupt how, when, from where, having been shown which input.

    `verb` is "respond", "restart", "decline", "expire", "cancel", "reopen" or "late_result". `applied` says that it is
    in the turn's journal.
    """

    id: str
    interrupt_id: str
    session_id: str
    verb: str
    at: float
    output: Json = None
    metadata: Json = None
    input: Json | UnsetType = UNSET
    reason: str = ""
    by: str | None = None
    address: str | None = None
    input_digest: str = ""
    applied: bool = False
    due: float | None = None


class SessionQuery(msgspec.Struct, frozen=True):
    """Which sessions, oldest first. `due` asks for those that wait for a driver at that time. `after` is the last id seen."""

    agent: str | None = None
    owner: str | None = None
    updated_before: float | None = None
    due: float | None = None
    after: tuple[float, str] | None = None
    limit: int = 100


class InterruptQuery(msgspec.Struct, frozen=True):
    """Which interrupts, oldest first. `expired_by` asks for open ones that are overdue at that time."""

    status: InterruptStatus | None = None
    tool: str | None = None
    agent: str | None = None
    session_id: str | None = None
    owner: str | None = None
    expired_by: float | None = None
    after: tuple[float, str] | None = None
    limit: int = 100


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

    def snapshots(self, session_id: str) -> list[Snapshot]:
        """All of them, oldest first."""
        ...

    def chain(self, snapshot_id: str) -> list[Snapshot]:
        """From the root (or the last folded one) to this, in order."""
        ...

    def add_events(self, snapshot_id: str, batch: int, events: Sequence[Event]) -> None: ...

    def events(self, snapshot_ids: Sequence[str]) -> list[Event]:
        """The events of these snapshots, in the order given and as they were recorded."""
        ...

    def interrupt(self, interrupt_id: str) -> InterruptRecord | None: ...

    def put_interrupt(self, record: InterruptRecord) -> None: ...

    def interrupts(self, query: InterruptQuery) -> list[InterruptRecord]: ...

    def put_decision(self, decision: Decision) -> None: ...

    def decisions(
        self, *, interrupt_id: str | None = None, session_id: str | None = None, unapplied: bool = False
    ) -> list[Decision]:
        """In the order they were made."""
        ...


class Store(Protocol):
    """Where sessions are kept.

    A work may run more than once (a lock, a lost connection), so it does nothing but read and write rows. Works that are not
    waited for are done in no order. In a writing work only `tx.session()` locks. Events need their snapshot, put by the same
    work or an earlier one. The `id` of a record, and the session it belongs to, never change.

    `submit` runs `work` over the rows as one transaction, in any thread, and its future holds what `work` returned or
    raised; where it raised, nothing was changed. When the future is done, the change is durable. A `read` does not
    change anything and may run beside others. The future must not be cancelled by whoever waits for it.
    """

    lease_seconds: float

    def submit(self, work: Callable[[Tx], T], *, read: bool = False) -> "Future[T]": ...

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
            for batch in range(store.snapshot_rows[snapshot_id].batches):
                self._put(store.event_rows, (snapshot_id, batch), UNSET)
            self._put(store.snapshot_rows, snapshot_id, UNSET)
        for interrupt_id in store.session_interrupts.get(session_id, ()):
            self._put(store.interrupt_rows, interrupt_id, UNSET)
        self._put(store.session_interrupts, session_id, UNSET)
        self._put(store.session_snapshots, session_id, UNSET)
        self._put(store.session_rows, session_id, UNSET)

    def sessions(self, query: SessionQuery) -> list[SessionRecord]:
        def fits(s: SessionRecord) -> bool:
            return (
                (query.agent is None or s.agent == query.agent)
                and (query.owner is None or s.owner == query.owner)
                and (query.updated_before is None or s.updated < query.updated_before)
                and (query.due is None or ((s.pending or s.waiting > 0) and s.lease_until <= query.due))
            )

        return _page(filter(fits, self._store.session_rows.values()), query.after, query.limit)

    def snapshot(self, snapshot_id: str) -> Snapshot | None:
        return self._store.snapshot_rows.get(snapshot_id)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        store = self._store
        if snapshot.id not in store.snapshot_rows:
            ids = store.session_snapshots.get(snapshot.session_id, ())
            self._put(store.session_snapshots, snapshot.session_id, (*ids, snapshot.id))
        self._put(store.snapshot_rows, snapshot.id, snapshot)

    def snapshots(self, session_id: str) -> list[Snapshot]:
        return [self._store.snapshot_rows[i] for i in self._store.session_snapshots.get(session_id, ())]

    def chain(self, snapshot_id: str) -> list[Snapshot]:
        out: list[Snapshot] = []
        at: str | None = snapshot_id
        while at is not None and (snapshot := self._store.snapshot_rows.get(at)) is not None:
            out.append(snapshot)
            at = None if snapshot.folded else snapshot.parent_id
        out.reverse()
        return out

    def add_events(self, snapshot_id: str, batch: int, events: Sequence[Event]) -> None:
        self._put(self._store.event_rows, (snapshot_id, batch), tuple(events))

    def events(self, snapshot_ids: Sequence[str]) -> list[Event]:
        rows = self._store.event_rows
        out: list[Event] = []
        for snapshot_id in snapshot_ids:
            batch = 0
            while (events := rows.get((snapshot_id, batch))) is not None:
                out.extend(events)
                batch += 1
        return out

    def interrupt(self, interrupt_id: str) -> InterruptRecord | None:
        return self._store.interrupt_rows.get(interrupt_id)

    def put_interrupt(self, record: InterruptRecord) -> None:
        store = self._store
        if record.id not in store.interrupt_rows:
            ids = store.session_interrupts.get(record.session_id, ())
            self._put(store.session_interrupts, record.session_id, (*ids, record.id))
        self._put(store.interrupt_rows, record.id, record)

    def interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        rows = self._store.interrupt_rows

        def fits(r: InterruptRecord) -> bool:
            return (
                (query.status is None or r.status == query.status)
                and (query.tool is None or r.tool == query.tool)
                and (query.agent is None or r.agent == query.agent)
                and (query.session_id is None or r.session_id == query.session_id)
                and (query.owner is None or r.owner == query.owner)
                and (
                    query.expired_by is None
                    or (r.status == "open" and r.expires_at is not None and r.expires_at <= query.expired_by)
                )
            )

        found: Iterable[InterruptRecord] = rows.values()
        if query.session_id is not None:
            found = [rows[i] for i in self._store.session_interrupts.get(query.session_id, ())]
        return _page(filter(fits, found), query.after, query.limit)

    def put_decision(self, decision: Decision) -> None:
        store = self._store
        if decision.id not in store.decision_rows:
            for index, key in (
                (store.interrupt_decisions, decision.interrupt_id),
                (store.session_decisions, decision.session_id),
            ):
                self._put(index, key, (*index.get(key, ()), decision.id))
        self._put(store.decision_rows, decision.id, decision)

    def decisions(
        self, *, interrupt_id: str | None = None, session_id: str | None = None, unapplied: bool = False
    ) -> list[Decision]:
        store = self._store
        ids: Iterable[str] = store.decision_rows
        if interrupt_id is not None:
            ids = store.interrupt_decisions.get(interrupt_id, ())
        elif session_id is not None:
            ids = store.session_decisions.get(session_id, ())
        return [d for i in ids if not ((d := store.decision_rows[i]).applied and unapplied)]


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
        self.event_rows: dict[tuple[str, int], tuple[Event, ...]] = {}
        self.interrupt_rows: dict[str, InterruptRecord] = {}
        self.session_interrupts: dict[str, tuple[str, ...]] = {}
        self.decision_rows: dict[str, Decision] = {}
        self.interrupt_decisions: dict[str, tuple[str, ...]] = {}
        self.session_decisions: dict[str, tuple[str, ...]] = {}
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []

    def submit(self, work: Callable[[Tx], T], *, read: bool = False) -> "Future[T]":
        future: Future[T] = Future()
        tx = self._tx(self)
        with self._lock:
            try:
                future.set_result(work(tx))
            except BaseException as e:  # noqa: BLE001 - it belongs to whoever waits for the future
                tx.rollback()
                future.set_exception(e)
        if not read:
            for callback in tuple(self._callbacks):
                try:
                    callback()
                except Exception:  # noqa: BLE001 - a subscriber's trouble is not the writer's
                    _log.exception("a subscriber of a MemoryStore failed")
        return future

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def close(self) -> None:
        """Nothing to let go of."""


class _LatestTx(_MemoryTx):
    def put_snapshot(self, snapshot: Snapshot) -> None:
        before = [s for s in self.chain(snapshot.parent_id or "") if s.id != snapshot.id]
        if snapshot.messages is None or not before or snapshot.status in ("failed", "aborted"):
            super().put_snapshot(snapshot)  # what failed can be retried, so its events stay
            return
        state: Json | UnsetType = UNSET
        messages: list[Message] = []
        artifacts: dict[str, Artifact] = {}
        for s in [*before, snapshot]:
            # A turn that failed and was retried ends twice; its last end has all that it added.
            messages += s.messages if s.messages and (s is snapshot or s.turn_id != snapshot.turn_id) else ()
            state = state if s.state is UNSET else s.state
            artifacts |= {a.name or f"#{len(artifacts)}": a for a in s.artifacts}
        whole = replace(
            snapshot, messages=tuple(messages), state=state, artifacts=tuple(artifacts.values()), folded=True
        )
        super().put_snapshot(whole)
        self._forget([s for s in before if s.turn_id != snapshot.turn_id])

    def _forget(self, snapshots: Sequence[Snapshot]) -> None:
        store = self._store
        gone = {s.id for s in snapshots}
        for s in snapshots:
            for batch in range(s.batches):
                self._put(store.event_rows, (s.id, batch), UNSET)
            self._put(store.snapshot_rows, s.id, UNSET)
            kept = tuple(i for i in store.session_snapshots.get(s.session_id, ()) if i not in gone)
            self._put(store.session_snapshots, s.session_id, kept)


class InMemoryLatestStateStore(MemoryStore):
    """A MemoryStore that keeps only the newest state of each session: earlier turns cannot be forked or retried."""

    _tx = _LatestTx
