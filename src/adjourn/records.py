"""The records that are kept of a session, and the questions that are asked about them: plain values."""

import zlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.arguments import short
from adjourn.errors import SessionNotFound, UnknownInterrupt, UnknownPosition
from adjourn.events import Event, Json, Verb
from adjourn.parts import Artifact, ErrorInfo, FinishReason, Message, digest

SnapshotStatus = Literal["pending", "completed", "failed", "aborted"]
InterruptStatus = Literal["open", "resolved", "expired", "cancelled"]
ChangeKind = Literal["opened", "settled", "reopened"]


class Queued(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A message that waits for the pause to be over.

    It was said at the snapshot `at`, and is sent where the conversation has come to that goes on from there: other branches
    never see it. Where that snapshot was never stored, it is sent at the session's head.
    """

    id: str
    message: Message
    at: str | None = None


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


class Ran(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """From commit number `batch` of a leg on, this worker of an engine took its steps."""

    batch: int
    worker: str


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One leg of a turn and where it came to rest. `turn_id` is the id of the turn's first leg.

    `batches` is how many batches of events it has. `messages` are what the whole turn added, set where the turn ended.
    `state` and `artifacts` are what changed since the parent. A `folded` one holds all that was before it as well. A `branch`
    was forked off its parent, which goes on without it. `trace` is the W3C traceparent of the leg, where it was traced.
    `engine` names the engine that ran it, and `ran` which of its workers did; both are empty where no engine did. `queued` is
    the id of the message that it is about, where that had waited.
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
    trace: str | None = None
    engine: str = ""
    ran: tuple[Ran, ...] = ()
    queued: str | None = None


class InterruptRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One paused call, with all that is needed to show it and to decide on it in a process that knows nothing else.

    `path` leads through nested agents, outermost first. `input_digest` binds a decision to the input that was shown.
    `reopened` counts how often it was settled and then had to wait once more.
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
    reopened: int = 0
    trace: str | None = None

    @property
    def version_tag(self) -> str:
        """Another text whenever what is shown of it has changed: to decide on exactly what was looked at."""
        return digest(self.id, self.status, self.input_digest, self.reopened, self.snapshot_id)


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One row of the audit: who settled which interrupt how, when, from where, having been shown which input.

    `verb` is "respond", "restart", "decline", "expire", "cancel", "reopen" or "late_result". `applied` says that it is
    in the turn's journal. `key` is the decider's own name for it: sent again under the same key, it still counts once.
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
    key: str | None = None


class Batch(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The events of one commit: when it was, and the epoch of the lease it was made under (0 where that is not known)."""

    at: float
    epoch: int
    events: Sequence[Event]


class Change(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One entry of the feed: an interrupt began to wait, was settled, or waits once more.

    `position` says where in the feed it stands; it is the store's to give, and means something to that store only.
    `decision_id` is the row of the audit that goes with it.
    """

    position: str
    kind: ChangeKind
    interrupt_id: str
    session_id: str
    at: float
    decision_id: str | None = None


_encode = msgspec.json.Encoder().encode


def placed(number: str | int, *what: Any) -> Change:
    """The entry of a feed that has this number, and is this (its fields from `kind` on).

    Its position is sealed with what it says: where another history goes on in its place, as after a backup was restored,
    the same number has another seal. So no store needs to know that it was restored.
    """
    return Change(f"{number}-{zlib.crc32(_encode(what)):08x}", *what)


def unknown_position(position: str | None) -> UnknownPosition:
    """What to raise for a position that is none of the feed's."""
    return UnknownPosition(
        f"{position!r} is no position in this store's feed: it was given before a backup was restored, or by another store, so "
        "what came behind it cannot be told. Read the list anew, and go on from the latest position"
    )


def unknown_interrupt(interrupt_id: Any) -> UnknownInterrupt:
    """What to raise for the id of an interrupt that is not there. It is the same one for what somebody may not see."""
    return UnknownInterrupt(
        f"there is no interrupt {short(interrupt_id)} (any more): list what waits, and take the id from there"
    )


def unknown_session(session_id: Any) -> SessionNotFound:
    """What to raise for the id of a session that is not there. It is the same one for what somebody may not see."""
    return SessionNotFound(
        f"there is no session {short(session_id)} (any more): list the sessions, and take the id from there"
    )


def unknown_snapshot(snapshot_id: Any) -> SessionNotFound:
    """What to raise for the id of a snapshot that is not there. It is the same one for what somebody may not see."""
    return SessionNotFound(
        f"there is no snapshot {short(snapshot_id)} (any more; some stores keep only the newest): take the id of a turn, or "
        "of a session's snapshots"
    )


INNER = "inner:"
"""What the id of a nested agent's session begins with."""


class SessionQuery(msgspec.Struct, frozen=True):
    """Which sessions, oldest first. `due` asks for those that wait for a driver at that time. `after` is the last id seen.

    Any of `agents`, any of `owners` (None among them: those that nobody owns). A filter that is None takes every one. `outer`
    leaves out those of nested agents (INNER), which are parts of others.
    """

    agent: str | None = None
    owner: str | None = None
    updated_before: float | None = None
    due: float | None = None
    after: tuple[float, str] | None = None
    limit: int = 100
    agents: tuple[str, ...] | None = None
    owners: tuple[str | None, ...] | None = None
    outer: bool = False


class InterruptQuery(msgspec.Struct, frozen=True):
    """Which interrupts, oldest first. `expired_by` asks for open ones that are overdue at that time.

    Any of `agents`, of `tools`, of `owners` (None among them: those of sessions that nobody owns). `text` is looked for as
    `mentions` does. A filter that is None takes every one.
    """

    status: InterruptStatus | None = None
    tool: str | None = None
    agent: str | None = None
    session_id: str | None = None
    owner: str | None = None
    expired_by: float | None = None
    after: tuple[float, str] | None = None
    limit: int = 100
    agents: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    owners: tuple[str | None, ...] | None = None
    text: str | None = None


COUNTED = 1_000_000
"""How far a store counts."""


def mentions(row: InterruptRecord, text: str) -> bool:
    """Whether the text is in the tool, agent, owner, id, input or payload, whatever its case.

    Input and payload are looked at as JSON, so `"amount":5` is found as well as what is between the quotes.
    """
    values = [_encode(value).decode() for value in (row.input, row.payload) if value is not None]
    return Wanted(text).within((row.tool, row.agent, row.owner or "", row.id), values)


class Wanted:
    """A text that is looked for in many rows, as `mentions` does."""

    def __init__(self, text: str) -> None:
        self._text = _lower(text)
        # Between quotes a quote is written as \\": whoever looks for what a value says need not know.
        self._quoted = _lower(_encode(text).decode()[1:-1])
        self._joins = "\0" not in self._text

    def within(self, names: Sequence[str], values: Sequence[str]) -> bool:
        """Whether it is in one of the names, or in one of the values, which are JSON."""
        if not self._joins:
            return any(self._text in _lower(name) for name in names) or self._quoted in _lower("\0".join(values))
        if self._text in _lower("\0".join((*names, *values))):
            return True
        return self._quoted != self._text and self._quoted in _lower("\0".join(values))


_encode = msgspec.json.Encoder().encode
# The two that would become plain ASCII letters: a database that looks for these would not find them.
_APART = str.maketrans({"\u0130": "\ufffe", "\u212a": "\uffff"})


def _lower(text: str) -> str:
    return (text.translate(_APART) if "\u0130" in text or "\u212a" in text else text).lower()
