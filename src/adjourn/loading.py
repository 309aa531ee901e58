"""What a stored session amounts to: reading it back into history, turn, state and artifacts."""

from collections.abc import Sequence, Set

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from adjourn.errors import InvalidRequest, SessionConflict, SessionNotFound
from adjourn.events import Event, Json, Limits
from adjourn.parts import Artifact, Message, new_id
from adjourn.promise import brief
from adjourn.records import InterruptQuery, unknown_snapshot
from adjourn.state import Turn
from adjourn.store import Decision, Queued, SessionRecord, Snapshot, Tx
from adjourn.turn import begin, close_open_calls, record

_RETRIABLE = ("failed", "aborted")


class Loaded(msgspec.Struct, frozen=True):
    """A session as it is stored, seen from one snapshot. `events` are those of the turn that snapshot belongs to.

    `queue` are the messages that wait there, `put_back` the pauses that wait once more, and so expire no more.
    """

    session: SessionRecord
    chain: Sequence[Snapshot]
    events: Sequence[Event]
    waiting: Sequence[Decision] = ()
    leaf: bool = True
    queue: Sequence[Queued] = ()
    put_back: frozenset[str] = frozenset()


class Standing(msgspec.Struct, frozen=True):
    """What a stored session amounts to: closed history, the turn that is open or can be retried, state and artifacts."""

    history: tuple[Message, ...] = ()
    turn: Turn | None = None
    state: Json = None
    artifacts: tuple[Artifact, ...] = ()


def next_of(tx: Tx, session_id: str, snapshot_id: str) -> str | None:
    """The snapshot that goes on from this one; one that was forked off does not."""
    return next((s.id for s in tx.children(snapshot_id) if s.session_id == session_id and not s.branch), None)


def end_of(tx: Tx, session_id: str, snapshot_id: str) -> str:
    """Where the branch that this snapshot is in has come to."""
    while (following := next_of(tx, session_id, snapshot_id)) is not None:
        snapshot_id = following
    return snapshot_id


def line_of(tx: Tx, session: SessionRecord, queued: Queued) -> str | None:
    """The snapshot behind which this message is to be sent; None in a session that has none yet."""
    at = tx.snapshot(queued.at) if queued.at is not None else None
    return session.head if at is None or at.session_id != session.id else end_of(tx, session.id, at.id)


def queue_at(tx: Tx, session: SessionRecord, snapshot_id: str | None) -> Sequence[Queued]:
    """The messages that wait for the conversation which has come to this snapshot."""
    ends: dict[str | None, str | None] = {}
    for queued in session.queue:
        if queued.at not in ends:
            ends[queued.at] = line_of(tx, session, queued)
    return [q for q in session.queue if ends[q.at] == snapshot_id]


def closed(turn: Turn) -> tuple[Message, ...]:
    """What the turn added, with an open round closed as it would be if nobody went on with it."""
    return close_open_calls(turn, "cancelled", "This was not done: the turn ended before.").added


def load(tx: Tx, session_id: str | None, snapshot_id: str | None) -> Loaded | None:
    """The session seen from this snapshot (its head, where only the session is named); None where there is no such session."""
    if snapshot_id is not None:
        at = tx.snapshot(snapshot_id)
        if at is None:
            raise unknown_snapshot(snapshot_id)
        if session_id is not None and at.session_id != session_id:
            raise InvalidRequest(f"snapshot {snapshot_id!r} does not belong to session {session_id!r}")
        session_id = at.session_id
    assert session_id is not None
    session = tx.session(session_id)
    if session is None:
        return None
    at_id = snapshot_id or session.head
    chain = tx.chain(at_id) if at_id is not None else []
    events: Sequence[Event] = ()
    if chain and (chain[-1].messages is None or chain[-1].status in _RETRIABLE):
        events = tx.events([s.id for s in chain if s.turn_id == chain[-1].turn_id])
    leaf = at_id == session.head or at_id is None or next_of(tx, session_id, at_id) is None
    waiting = tx.decisions(session_id=session_id, unapplied=True) if session.waiting else ()
    queue = queue_at(tx, session, at_id)
    paused = bool(events) and chain[-1].finish_reason == "interrupted"
    rows = tx.interrupts(InterruptQuery(status="open", session_id=session.id, limit=10_000)) if paused else ()
    put_back = frozenset([r.id for r in rows if r.reopened and r.expires_at is None])
    return Loaded(session, chain, events, waiting, leaf, queue, put_back)


def load_on(tx: Tx, session_id: str, snapshot_id: str | None) -> Loaded | None:
    """The session seen from where the branch that this snapshot is in has come to by now."""
    at = tx.snapshot(snapshot_id) if snapshot_id is not None else None
    if at is None or at.session_id != session_id:
        return load(tx, session_id, None)
    leaf = end_of(tx, session_id, at.id)
    session = tx.session(session_id)
    return load(tx, session_id, None if session is None or session.head == leaf else leaf)


def left_behind(session_id: str, snapshot_id: str | None) -> SessionConflict:
    """What to tell whoever would go on from a snapshot that somebody else went on from."""
    return SessionConflict(
        f"session {session_id!r} has gone on from snapshot {snapshot_id} since this handle stood there; nothing was run. It "
        "stands where the session is now: look at that and say it again, or fork() that snapshot"
    )


@brief
def gone_on(tx: Tx, session_id: str, snapshot_id: str | None) -> bool:
    """Whether somebody went on from this snapshot. Raises SessionNotFound."""
    if snapshot_id is None:
        return False
    session = tx.session(session_id)
    if session is None:
        raise SessionNotFound(f"session {session_id!r} was deleted; nothing was run, and this message was not kept")
    return session.head != snapshot_id and next_of(tx, session_id, snapshot_id) is not None


def turn_at(tx: Tx, snapshot_id: str, limits: Limits) -> Turn:
    """The turn that this snapshot belongs to, as it was there, without what was said before it."""
    at = tx.snapshot(snapshot_id)
    ids: list[str] = []
    turn_id = at.turn_id if at is not None else None
    while at is not None and at.turn_id == turn_id:
        ids.append(at.id)
        at = tx.snapshot(at.parent_id) if at.parent_id is not None else None
    turn = begin((), limits)
    for event in tx.events(ids[::-1]):
        turn = record(turn, event)
    return turn


def without_expiry(turn: Turn, interrupts: Set[str]) -> Turn:
    """The turn, in which these pauses do not expire: somebody decided in time, and could not be followed."""
    if not interrupts:
        return turn
    pauses = [(c, c.pause if c.pause is not None and c.pause.id in interrupts else None) for c in turn.calls]
    calls = [c if pause is None else replace(c, pause=replace(pause, expires_at=None)) for c, pause in pauses]
    return replace(turn, calls=tuple(calls))


def stand(loaded: Loaded, limits: Limits) -> Standing:
    """What this stored session amounts to."""
    history: list[Message] = []
    state: Json = None
    artifacts: dict[str, Artifact] = {}
    chain = loaded.chain
    for snapshot in chain:
        if snapshot.state is not UNSET:
            state = snapshot.state
        for artifact in snapshot.artifacts:
            artifacts[artifact.name or new_id("a_")] = artifact
    last = chain[-1] if chain else None
    reopened = last is not None and (last.messages is None or last.status in _RETRIABLE) and not last.folded
    # A turn that failed and was retried ends twice: only its last end counts, with all that the turn added.
    last_ends = {s.turn_id: s for s in chain if s.messages is not None}
    if reopened and last is not None:
        last_ends.pop(last.turn_id, None)
    for snapshot in last_ends.values():
        history += snapshot.messages or ()
    turn = None
    if reopened:
        turn = begin(tuple(history), limits)
        for event in loaded.events:
            turn = record(turn, event)
        turn = without_expiry(turn, loaded.put_back)
    return Standing(tuple(history), turn, state, tuple(artifacts.values()))
