"""Decisions and expiry where nobody drives the session: how they are accepted, refused, and found by whoever goes on."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from adjourn.errors import (
    AlreadyResolved,
    ResumeError,
    StaleInterrupt,
    VerbNotAllowed,
)
from adjourn.events import (
    Decided,
    Expired,
    Limits,
)
from adjourn.ledger import unsettle
from adjourn.loading import end_of, line_of, turn_at
from adjourn.parts import canonical
from adjourn.promise import brief
from adjourn.records import (
    Decision,
    InterruptQuery,
    InterruptRecord,
    SessionRecord,
    unknown_interrupt,
)
from adjourn.settling import (
    as_decision,
    overdue,
    settle,
    too_late,
)
from adjourn.store import Tx
from adjourn.turn import record


@brief
def decide(
    tx: Tx,
    interrupt_id: str,
    event: Decided,
    now: float,
    address: str | None,
    key: str | None = None,
    expect: str | None = None,
    decision_id: str | None = None,
) -> tuple[Decision | None, ResumeError | None]:
    """Accepts a decision for whoever drives the session next: (decision, None), or (None, why it was refused).

    A refusal is returned, not raised: an overdue interrupt is settled as expired by the same transaction. The decision
    that was made under this `key` before is given again; a new one has `decision_id`, where it is given. `expect` is the
    `version_tag` that was looked at.
    """
    row = tx.interrupt(interrupt_id)
    if row is None:
        return None, unknown_interrupt(interrupt_id)
    session = tx.session(row.session_id)  # two deciders queue up here, so what is read from now on is the newest
    row = tx.interrupt(interrupt_id) or row
    decision = replace(as_decision(event, row, now, address, applied=False), key=key)
    decision = replace(decision, id=decision_id or decision.id)
    before = None
    if key is not None:
        before = next((d for d in tx.decisions(interrupt_id=row.id) if d.key == key), None)
    if before is not None:
        if _same(before, decision):
            return before, None
        return None, AlreadyResolved(
            f"another decision on interrupt {row.id} was made under the key {key!r} ({before.verb}); a new decision needs a "
            "new key",
            before,
        )
    if overdue(row, now):
        _wait_for_driver(tx, session, row, as_decision(Expired(row.id), row, now, None, applied=False), now)
        return None, too_late(row, ())
    if row.status == "open" and expect is not None and expect != row.version_tag:
        return None, StaleInterrupt(
            f"interrupt {row.id} of tool {row.tool!r} is not what was looked at any more (it was settled and waits again); "
            "nothing was changed. Look at it again, then decide"
        )
    refused = _wait_for_driver(tx, session, row, decision, now)
    return (None, refused) if refused is not None else (decision, None)


def _same(one: Decision, other: Decision) -> bool:
    """Whether they decide the same, whenever and wherever they were made."""

    def said(d: Decision) -> Decision:
        return replace(d, id="", at=0.0, address=None, input_digest="", applied=False, due=None)

    return canonical(said(one)) == canonical(said(other))


def _wait_for_driver(
    tx: Tx, session: SessionRecord | None, row: InterruptRecord, decision: Decision, now: float
) -> ResumeError | None:
    """Settles it for whoever drives next. The session must have been read, and so locked, before the row."""
    refused = settle(tx, row, decision, now)
    if refused is None and session is not None:
        tx.put_session(replace(session, waiting=session.waiting + 1, updated=now))
    return refused


def expire_due(tx: Tx, now: float, limit: int = 1000) -> list[Decision]:
    """Settles what is overdue, as expired."""
    out: list[Decision] = []
    for row in tx.interrupts(InterruptQuery(status="open", expired_by=now, limit=limit)):
        session = tx.session(row.session_id)
        row = tx.interrupt(row.id) or row
        decision = as_decision(Expired(row.id), row, now, None, applied=False)
        if _wait_for_driver(tx, session, row, decision, now) is None:
            out.append(decision)
    return out


class Waiting(Struct, frozen=True):
    """A driver has something to do at this snapshot; at the beginning of its session, where that has none yet."""

    at: str | None


def where_to_go_on(tx: Tx, session_id: str, now: float) -> Waiting | None:
    """Where a driver has something to do: a turn was left in its middle, decided on, or is over and messages wait to be sent."""
    session = tx.session(session_id)
    if session is None or (session.pending and session.lease_until > now):
        return None
    if session.pending:
        return Waiting(session.head)
    for decision in tx.decisions(session_id=session_id, unapplied=True) if session.waiting else ():
        row = tx.interrupt(decision.interrupt_id)
        if row is not None:
            return Waiting(end_of(tx, session_id, row.snapshot_id))
    for queued in session.queue if session.lease_until <= now else ():
        at = line_of(tx, session, queued)
        snapshot = tx.snapshot(at) if at is not None else None
        if snapshot is None or snapshot.finish_reason != "interrupted":
            return Waiting(at)
    return None


def decision_of(value: Any) -> Decision:
    """The accepted decision out of what `decide` gave."""
    decision, refused = value
    if refused is not None:
        raise refused
    return decision


@brief
def put_back(tx: Tx, decision: Decision, why: str, now: float) -> None:
    """An accepted decision that nobody can go on with, in a session that nobody drives: its pause waits once more."""
    session = tx.session(decision.session_id)
    waiting = tx.decisions(session_id=decision.session_id, unapplied=True)
    if session is None or session.pending or not any(d.id == decision.id for d in waiting):
        return  # somebody was quicker
    unsettle(tx, decision, why, now)
    tx.put_session(replace(session, waiting=max(session.waiting - 1, 0)))


@brief
def check_bounds(tx: Tx, row: InterruptRecord, event: Decided, limits: Limits) -> None:
    """Raises VerbNotAllowed for a decision that the turn's limits leave no room for."""
    try:
        record(turn_at(tx, end_of(tx, row.session_id, row.snapshot_id), limits), event)
    except VerbNotAllowed:
        raise
    except ResumeError:
        return  # who decided before is told by the decision itself
