"""What `adjourn doctor` can put right. Each is one transaction that looks again before it changes anything."""

from msgspec.structs import replace

from adjourn.parts import new_id
from adjourn.records import Decision, SessionRecord
from adjourn.store import Tx

DOCTOR = "doctor"
"""Who is named in the audit."""


def too_long(row: SessionRecord, now: float, lease_seconds: float) -> bool:
    """Whether a lease ends later than any process could have asked for: a clock was wrong, or a row was edited."""
    return row.lease_until > now + 4 * lease_seconds + 60


def beats(tx: Tx, row: SessionRecord, now: float, lease_seconds: float) -> bool:
    """Whether its driver gave a sign of life of late, by whichever clock: then it is alive, and its clock is ahead."""
    head = tx.snapshot(row.head) if row.head is not None else None
    return head is not None and head.heartbeat > now - 3 * lease_seconds


def end_lease(tx: Tx, session_id: str, now: float, lease_seconds: float) -> bool:
    """Ends a lease that would hold for too long. Whoever held it is refused from then on, so nothing runs twice."""
    row = tx.session(session_id)
    if row is None or not too_long(row, now, lease_seconds) or beats(tx, row, now, lease_seconds):
        return False
    tx.put_session(replace(row, lease_until=0.0, holder=None, epoch=row.epoch + 1))
    return True


def recount(tx: Tx, session_id: str, now: float) -> bool:
    """Counts anew the decisions that wait for a driver."""
    row = tx.session(session_id)
    if row is None or row.lease_until > now:
        return False
    waiting = len(tx.decisions(session_id=session_id, unapplied=True))
    if waiting == row.waiting:
        return False
    tx.put_session(replace(row, waiting=waiting))
    return True


def cancel(tx: Tx, interrupt_id: str, now: float, reason: str) -> bool:
    """Closes a pause that nothing waits for any more, with a row in the audit that says so."""
    row = tx.interrupt(interrupt_id)
    if row is None or row.status != "open":
        return False
    tx.put_interrupt(replace(row, status="cancelled"))
    decision = Decision(
        new_id("d_"), row.id, row.session_id, "cancel", now, reason=reason, by=DOCTOR, address="cli",
        input_digest=row.input_digest, applied=True,
    )  # fmt: skip
    tx.put_decision(decision)
    return True
