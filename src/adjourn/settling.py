"""How one interrupt is opened and settled: its row, the audit and the feed, always together in one transaction."""

from collections.abc import Sequence

from msgspec.structs import replace

from adjourn.errors import AlreadyResolved, ResumeError, StaleInterrupt
from adjourn.events import Decided, Declined, Expired, Responded, Restarted
from adjourn.parts import new_id
from adjourn.records import Change, ChangeKind, Decision, InterruptRecord
from adjourn.store import Tx


def as_decision(event: Decided, row: InterruptRecord, now: float, address: str | None, applied: bool) -> Decision:
    base = Decision(
        new_id("d_"),
        row.id,
        row.session_id,
        "expire",
        now,
        input_digest=row.input_digest,
        address=address,
        applied=applied,
    )
    if isinstance(event, Responded):
        return replace(base, verb="respond", output=event.output, metadata=event.metadata, by=event.by)
    if isinstance(event, Restarted):
        return replace(base, verb="restart", metadata=event.metadata, input=event.input, by=event.by, due=event.due)
    if isinstance(event, Declined):
        return replace(base, verb="decline", reason=event.reason, by=event.by)
    return base


def as_event(decision: Decision) -> Decided:
    """The event that takes a stored decision up."""
    d = decision
    if d.verb == "respond":
        return Responded(d.interrupt_id, d.output, d.metadata, d.by)
    if d.verb == "restart":
        return Restarted(d.interrupt_id, d.metadata, d.input, d.by, d.due)
    if d.verb == "decline":
        return Declined(d.interrupt_id, d.reason, d.by)
    return Expired(d.interrupt_id)


def settle(tx: Tx, row: InterruptRecord, decision: Decision, now: float) -> ResumeError | None:
    """The compare-and-set: settles an open interrupt, or says who did before."""
    refused = settled_before(tx, row)
    if refused is not None:
        return refused
    tx.put_interrupt(replace(row, status="expired" if decision.verb == "expire" else "resolved"))
    decided(tx, decision)
    return None


def settled_before(tx: Tx, row: InterruptRecord) -> ResumeError | None:
    """Who settled this interrupt before, as an error; None while it is open."""
    return None if row.status == "open" else too_late(row, tx.decisions(interrupt_id=row.id))


def too_late(row: InterruptRecord, history: Sequence[Decision]) -> ResumeError:
    """Why nobody can decide on this interrupt any more. `history` are the decisions on it."""
    said = f"interrupt {row.id} of tool {row.tool!r}"
    if row.status == "resolved":
        winner = next((d for d in reversed(history) if d.verb != "late_result"), None)
        who = f" by {winner.by}" if winner is not None and winner.by else ""
        what = winner.verb if winner is not None else "decision"
        return AlreadyResolved(f"{said} was already answered{who} ({what}). That counts; nothing was changed", winner)
    why = "was cancelled: its turn has ended" if row.status == "cancelled" else "expired before anybody decided"
    return StaleInterrupt(f"{said} {why}. Nobody can decide on it any more; nothing was changed")


def decided(tx: Tx, decision: Decision) -> None:
    """The audit row, and the entry of the feed that goes with it."""
    tx.put_decision(decision)
    kind: ChangeKind = "reopened" if decision.verb == "reopen" else "settled"
    tx.add_change(Change("", kind, decision.interrupt_id, decision.session_id, decision.at, decision.id))


def cancel(tx: Tx, row: InterruptRecord, now: float, reason: str = "") -> None:
    """Closes an open interrupt that nobody can decide on any more."""
    tx.put_interrupt(replace(row, status="cancelled"))
    decided(tx, Decision(new_id("d_"), row.id, row.session_id, "cancel", now, reason=reason, applied=True))


def reopen(tx: Tx, row: InterruptRecord, now: float, why: str) -> None:
    """An interrupt that was settled waits once more. Somebody decided in time, so nobody can be too late any more."""
    tx.put_interrupt(replace(row, status="open", reopened=row.reopened + 1, expires_at=None))
    decided(tx, Decision(new_id("d_"), row.id, row.session_id, "reopen", now, reason=why, applied=True))


def opened(tx: Tx, row: InterruptRecord, now: float) -> None:
    """Stores an interrupt that waits from now on."""
    tx.put_interrupt(row)
    tx.add_change(Change("", "opened", row.id, row.session_id, now))


def overdue(row: InterruptRecord, now: float) -> bool:
    """Whether nobody can decide any more."""
    return row.status == "open" and row.expires_at is not None and row.expires_at <= now
