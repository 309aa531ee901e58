"""The rules of what is stored, written once for every store: leases, commits, decisions, loading.

Each function here is one transaction's work on a `Tx`. A leg is begun by claiming its session's lease; from then on every
commit carries the lease's epoch, and is refused when somebody else took over. A decision is accepted by one
compare-and-set on its interrupt, in the same transaction as its audit row. Whoever does not hold the lease can decide all
the same: the decision waits on the session until a driver takes it up.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from adjourn.errors import (
    ResumeError,
    SessionBusy,
    SessionConflict,
    SessionNotFound,
)
from adjourn.events import (
    Decided,
    Declined,
    Event,
    Expired,
    Forked,
    Json,
    Responded,
    Restarted,
    ToolInterrupted,
    ToolRaised,
    TurnEnded,
)
from adjourn.loading import closed, left_behind, next_of, queue_at
from adjourn.parts import Artifact, digest, new_id
from adjourn.promise import brief
from adjourn.records import (
    INNER,
    Decision,
    InterruptQuery,
    InterruptRecord,
    Queued,
    Ran,
    SessionRecord,
    Snapshot,
)
from adjourn.settling import (
    as_decision,
    as_event,
    cancel,
    opened,
    reopen,
    settle,
    settled_before,
)
from adjourn.state import Call, Finished, Paused, Turn
from adjourn.store import Tx
from adjourn.turn import record


class Leg(msgspec.Struct, frozen=True, gc=False):
    """One leg as its driver knows it.

    `epoch` is 0 until the lease is claimed. `branch` allows a second child of `parent_id`. `open` are the interrupts that
    wait in this branch. `force` takes the lease from whoever holds it, to abort. `trace` is the W3C traceparent of the span
    that the leg runs in, `before` that of the leg which this one goes on from; None where nobody traces. `engine`, `ran`
    and `queued` are those of its snapshot.
    """

    session_id: str
    snapshot_id: str
    turn_id: str
    agent: str
    holder: str
    created: float
    parent_id: str | None = None
    owner: str | None = None
    epoch: int = 0
    batches: int = 0
    branch: bool = False
    path: tuple[str, ...] = ()
    open: frozenset[str] = frozenset()
    force: bool = False
    trace: str | None = None
    before: str | None = None
    engine: str = ""
    ran: tuple[Ran, ...] = ()
    queued: str | None = None


class Write(msgspec.Struct, frozen=True, gc=False):
    """One commit of a leg. `applying` are stored decisions that these events take up, by interrupt id.

    `unqueue` takes this queued message off the session, since the turn is about it. `inner` are sessions that were begun.
    """

    leg: Leg
    turn: Turn
    events: Sequence[Event]
    rest: Paused | Finished | None
    now: float
    lease_seconds: float
    state: Json | UnsetType = UNSET
    artifacts: tuple[Artifact, ...] = ()
    applying: Mapping[str, Decision] = {}
    address: str | None = None
    unqueue: str | None = None
    inner: tuple[str, ...] = ()


class Saved(msgspec.Struct, frozen=True, gc=False):
    """The leg after a commit. `news` are decisions made elsewhere meanwhile; with any, the turn did not come to rest.

    `settled` are the interrupts that this commit itself settled, as they were before; `put_back` those whose decision could not
    be followed, so that they wait once more.
    """

    leg: Leg
    news: Sequence[Decision] = ()
    queue: Sequence[Queued] = ()
    settled: tuple[InterruptRecord, ...] = ()
    put_back: frozenset[str] = frozenset()


# -- committing ------------------------------------------------------------------------------------------------------


@brief
def save(tx: Tx, write: Write) -> Saved:
    """Commits a leg's events. Raises SessionConflict, SessionBusy or AlreadyResolved, and then keeps nothing."""
    leg, now = write.leg, write.now
    session = _held(tx, leg, now) if leg.epoch else _claimed_or_settled(tx, write)
    leg = replace(leg, epoch=session.epoch, batches=leg.batches + bool(write.events))
    waiting = session.waiting
    settled: list[InterruptRecord] = []
    taken: set[str] = set()
    pauses = False
    for event in write.events:
        if isinstance(event, (Responded, Restarted, Declined, Expired)):
            waiting -= _take(tx, write, event, settled)
            taken.add(event.interrupt)
        elif isinstance(event, (ToolInterrupted, ToolRaised, Forked)):
            pauses = True
    if pauses and not leg.session_id.startswith(INNER):  # those are shown, and settled, by the session around it
        _open_interrupts(tx, write, leg)
    still_open = frozenset([c.pause.id for c in write.turn.paused if c.pause is not None])
    gone = leg.open - still_open
    if gone:
        _cancel(tx, gone - taken, now)
    leg = replace(leg, open=still_open)
    news: Sequence[Decision] = ()
    put_back = frozenset[str]()
    if waiting > 0 and write.rest is not None:
        news = [d for d in tx.decisions(session_id=leg.session_id, unapplied=True) if d.interrupt_id in still_open]
        fit = [d for d in news if _fits(tx, write.turn, d, now)]
        waiting -= len(news) - len(fit)
        put_back = frozenset([d.interrupt_id for d in news if d not in fit])
        news = fit
    rest = None if news and isinstance(write.rest, Paused) else write.rest
    if isinstance(write.rest, Finished) and waiting > 0:
        waiting -= _drop_waiting(tx, leg, gone)
    tx.put_snapshot(_snapshot(tx, write, leg, rest))
    if write.events:
        tx.add_events(leg.snapshot_id, leg.batches - 1, write.events, now, leg.epoch)
    queue = _unqueued(session, write.unqueue)
    session = replace(session, head=leg.snapshot_id, queue=queue)
    here = [replace(q, at=leg.snapshot_id) for q in queue_at(tx, session, leg.snapshot_id)]
    # With messages that wait, its driver has the time of a lease to send the first. Then whoever comes may.
    driven = rest is None or (bool(here) and isinstance(rest, Finished))
    session = replace(
        session,
        updated=now,
        queue=_moved(queue, here) if here else queue,
        pending=rest is None,
        holder=leg.holder if rest is None else None,
        lease_until=now + write.lease_seconds if driven else 0.0,
        waiting=max(waiting, 0),
        inner=tuple(dict.fromkeys((*session.inner, *write.inner))) if write.inner else session.inner,
    )
    tx.put_session(session)
    return Saved(leg, news, here, tuple(settled), put_back)


def _fits(tx: Tx, turn: Turn, decision: Decision, now: float) -> bool:
    """Whether the turn can go on with it. Who accepted it could not tell where it is past a limit: its pause waits once more."""
    try:
        record(turn, as_event(decision))
    except ResumeError as e:
        unsettle(tx, decision, str(e), now)
        return False
    return True


def unsettle(tx: Tx, decision: Decision, why: str, now: float) -> None:
    """The pause of an accepted decision waits once more. Whoever calls this counts the session's decisions anew."""
    tx.put_decision(replace(decision, applied=True))
    row = tx.interrupt(decision.interrupt_id)
    if row is not None and row.status == "resolved":
        reopen(tx, row, now, why)


def _unqueued(session: SessionRecord, queued: str | None) -> tuple[Queued, ...]:
    if queued is None:
        return session.queue
    left = tuple(q for q in session.queue if q.id != queued)
    if len(left) == len(session.queue):
        raise SessionConflict("this queued message was sent through another handle already; it was not sent again")
    return left


def _moved(queue: Sequence[Queued], here: Sequence[Queued]) -> tuple[Queued, ...]:
    """The queue, with these as they are now: a long one would else be looked for from further behind with each turn."""
    by_id = {q.id: q for q in here}
    return tuple([by_id.get(q.id, q) for q in queue])


def _claimed_or_settled(tx: Tx, write: Write) -> SessionRecord:
    try:
        return claimed(tx, write.leg, write.now)
    except (SessionBusy, SessionConflict):
        # Whoever decided in vain should hear of the decision that counts, not of the turn that took it up.
        for event in write.events:
            if isinstance(event, (Responded, Restarted, Declined)) and event.interrupt not in write.applying:
                row = tx.interrupt(event.interrupt)
                refused = None if row is None else settled_before(tx, row)
                if refused is not None:
                    raise refused from None
        raise


@brief
def claimed(tx: Tx, leg: Leg, now: float) -> SessionRecord:
    """The session with its lease taken for this leg; for looking, too. Raises SessionBusy, SessionConflict, SessionNotFound."""
    session = tx.session(leg.session_id)
    if session is None:
        if leg.parent_id is not None:
            raise SessionNotFound(f"session {leg.session_id!r} was deleted; nothing was run")
        return SessionRecord(leg.session_id, leg.agent, leg.created, now, leg.owner, epoch=1)
    if session.pending and session.lease_until > now and not leg.force:
        raise SessionBusy(f"a turn of session {leg.session_id!r} is running elsewhere; wait for it, or abort it")
    if session.head == leg.snapshot_id:
        if session.pending:
            return replace(session, epoch=session.epoch + 1)  # taking over a leg whose driver is gone
        raise SessionConflict(
            f"a turn of session {leg.session_id!r} that was unfinished when this handle was opened has come to rest since; open "
            "the session again to see where it is"
        )
    if session.pending and not leg.branch:
        raise SessionConflict(
            f"a turn of session {leg.session_id!r} was left unfinished; open the session again to go on with it"
        )
    if session.head != leg.parent_id and not leg.branch and not _is_leaf(tx, leg):
        raise left_behind(leg.session_id, leg.parent_id)
    return replace(session, epoch=session.epoch + 1)


def _is_leaf(tx: Tx, leg: Leg) -> bool:
    return leg.parent_id is not None and next_of(tx, leg.session_id, leg.parent_id) is None


def _held(tx: Tx, leg: Leg, now: float) -> SessionRecord:
    session = tx.session(leg.session_id)
    if session is None:
        raise SessionNotFound(f"session {leg.session_id!r} was deleted while its turn ran")
    # The epoch alone is not enough: a session that was deleted and begun anew under its id counts from one again.
    if session.epoch != leg.epoch or session.head != leg.snapshot_id:
        raise SessionConflict(
            f"another process took over session {leg.session_id!r} (or aborted its turn); this one stops and keeps nothing more"
        )
    return session


def _take(tx: Tx, write: Write, event: Decided, settled: list[InterruptRecord]) -> int:
    stored = write.applying.get(event.interrupt)
    if stored is not None:
        tx.put_decision(replace(stored, applied=True))
        return 1
    row = tx.interrupt(event.interrupt)
    if row is None:
        # Paused and decided within one commit, by a handler: the record comes with this very commit.
        return 0
    refused = settle(tx, row, as_decision(event, row, write.now, write.address, applied=True), write.now)
    if refused is not None:
        raise refused
    settled.append(row)
    return 0


def _open_interrupts(tx: Tx, write: Write, leg: Leg) -> None:
    for place, call in enumerate(write.turn.paused):
        pause = call.pause
        assert pause is not None
        row = tx.interrupt(pause.id)
        if row is None:
            # A microsecond apart, so that the inbox lists the calls of one message in their order.
            opened(tx, _interrupt(leg, call, write.now + place * 1e-6), write.now)
        elif row.status != "open":  # it was sent round again and failed: it waits once more, with what would run now
            shown = digest(call.request.name, call.input, pause.version)
            again = replace(row, snapshot_id=leg.snapshot_id, input=call.input, input_digest=shown)
            reopen(tx, again, write.now, call.error.message if call.error is not None else "")


def _interrupt(leg: Leg, call: Call, now: float) -> InterruptRecord:
    pause = call.pause
    assert pause is not None
    return InterruptRecord(
        pause.id,
        leg.session_id,
        leg.snapshot_id,
        leg.turn_id,
        call.id,
        leg.agent,
        call.request.name,
        now,
        call.request.ref,
        call.input,
        digest(call.request.name, call.input, pause.version),
        pause.payload,
        pause.response,
        pause.allow,
        pause.reason,
        pause.expires_at,
        pause.on_expiry,
        leg.owner,
        pause.version,
        path=(*leg.path, *pause.path),
        trace=leg.trace,
    )


def _cancel(tx: Tx, ids: frozenset[str], now: float) -> None:
    """Closes what the turn no longer waits for, unless a decision settled it."""
    for interrupt_id in ids:
        row = tx.interrupt(interrupt_id)
        if row is not None and row.status == "open":
            cancel(tx, row, now)


def _drop_waiting(tx: Tx, leg: Leg, gone: frozenset[str]) -> int:
    """Decisions that came too late for a turn that has ended: they stay in the audit, and nobody waits for them.

    Those on the pauses of another branch do not: that branch has yet to take them up.
    """
    late = [d for d in tx.decisions(session_id=leg.session_id, unapplied=True) if d.interrupt_id in gone]
    for decision in late:
        tx.put_decision(replace(decision, applied=True))
    return len(late)


def _snapshot(tx: Tx, write: Write, leg: Leg, rest: Paused | Finished | None) -> Snapshot:
    snapshot = Snapshot(
        leg.snapshot_id,
        leg.session_id,
        leg.turn_id,
        leg.agent,
        leg.created,
        write.now,
        leg.parent_id,
        batches=leg.batches,
        state=write.state,
        artifacts=write.artifacts,
        branch=leg.branch,
        heartbeat=write.now,
        trace=leg.trace,
        engine=leg.engine,
        ran=leg.ran,
        queued=leg.queued,
    )
    if rest is None:
        return snapshot
    if isinstance(rest, Paused):
        return replace(snapshot, status="completed", finish_reason="interrupted")
    end: TurnEnded = write.turn.ended or rest.end
    status = end.reason if end.reason in ("failed", "aborted") else "completed"
    return replace(snapshot, status=status, finish_reason=end.reason, error=end.error, messages=closed(write.turn))


@brief
def renew(tx: Tx, leg: Leg, now: float, lease_seconds: float) -> None:
    """Keeps the lease for another while. Raises SessionConflict where it is lost."""
    session = _held(tx, leg, now)
    tx.put_session(replace(session, lease_until=now + lease_seconds))
    snapshot = tx.snapshot(leg.snapshot_id)
    if snapshot is not None:
        tx.put_snapshot(replace(snapshot, heartbeat=now))


@brief
def let_go(tx: Tx, session_id: str, holder: str) -> bool:
    """Gives up the lease that `holder` has on a session whose turn runs, so that another process goes on at once.

    What the turn still does here is refused from now on. False where there is no such lease, or another has it by now.
    """
    session = tx.session(session_id)
    if session is None or not session.pending or session.holder != holder:
        return False
    tx.put_session(replace(session, epoch=session.epoch + 1, holder=None, lease_until=0.0))
    return True


@brief
def enqueue(tx: Tx, leg: Leg, queued: Queued, now: float, patience: float) -> None:
    """Keeps a message until the session's pause is over. `leg` says which session, and makes one that is not stored yet.

    Its first turn, which is under way, has `patience` seconds to come before the message. Raises SessionNotFound for a session
    that was stored: it must not come back under its id.
    """
    session = tx.session(leg.session_id)
    if session is None and leg.parent_id is not None:
        raise SessionNotFound(f"session {leg.session_id!r} was deleted; this message was not kept")
    if session is None:
        session = SessionRecord(leg.session_id, leg.agent, leg.created, now, leg.owner, lease_until=now + patience)
    if queued.at is None:
        queued = replace(queued, at=session.head)
    tx.put_session(replace(session, queue=(*session.queue, queued)))


@brief
def withdraw(tx: Tx, session_id: str, queued: str) -> bool:
    """Takes a message off that was not sent yet; says whether it was there."""
    session = tx.session(session_id)
    left = tuple(q for q in session.queue if q.id != queued) if session is not None else ()
    if session is None or len(left) == len(session.queue):
        return False
    tx.put_session(replace(session, queue=left))
    return True


def late_result(tx: Tx, session_id: str, call_id: str, output: Json, now: float) -> None:
    """Keeps what a body returned after its call was closed, where whoever decides on the call can see it."""
    rows = [r for r in tx.interrupts(InterruptQuery(session_id=session_id, limit=10_000)) if r.call_id == call_id]
    about = rows[-1].id if rows else call_id
    tx.put_decision(Decision(new_id("d_"), about, session_id, "late_result", now, output=output, applied=True))
