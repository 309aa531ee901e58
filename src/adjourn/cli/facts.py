"""What `--json` prints. Every field is always there; fields may be added, and none changes its meaning.

The names are those of the HTTP API, which has some of these fields and no other ones by those names. Times are RFC 3339.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from adjourn.cli.words import moment
from adjourn.display import summary
from adjourn.errors import AdjournError, TurnError
from adjourn.handle import AgentInterrupt, AgentOutput
from adjourn.parts import ErrorInfo, Usage, wire
from adjourn.records import Decision, InterruptRecord, SessionRecord
from adjourn.resume import seen


def when(at: float | None) -> str | None:
    """The time as RFC 3339, in UTC."""
    return None if at is None else moment(at).isoformat().replace("+00:00", "Z")


def interrupt_facts(row: InterruptRecord) -> dict[str, Any]:
    inner = seen(row)
    return {
        "id": row.id,
        "sessionId": row.session_id,
        "snapshotId": row.snapshot_id,
        "turnId": row.turn_id,
        "callId": row.call_id,
        "agent": row.agent,
        "tool": row.tool,
        "status": row.status,
        "summary": summary(inner.tool, inner.input),
        "createdAt": when(row.created),
        "expiresAt": when(row.expires_at),
        "owner": row.owner,
        "reason": row.reason,
        "allow": [*row.allow, "decline"],
        "input": row.input,
        "inputDigest": row.input_digest,
        "payload": row.payload,
        "responseSchema": row.response,
        "onExpiry": row.on_expiry,
        "path": list(row.path),
        "reopened": row.reopened,
        "toolVersion": row.version,
        "version": row.version_tag,
    }


def session_facts(row: SessionRecord, open_interrupts: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "agent": row.agent,
        "owner": row.owner,
        "createdAt": when(row.created),
        "updatedAt": when(row.updated),
        "snapshotId": row.head,
        "running": row.pending or row.waiting > 0,
        "leaseUntil": when(row.lease_until or None),
        "decisionsWaiting": row.waiting,
        "messagesQueued": len(row.queue),
        "openInterrupts": open_interrupts,
    }


def decision_facts(row: Decision) -> dict[str, Any]:
    edited = row.input is not UNSET
    return {
        "id": row.id,
        "interruptId": row.interrupt_id,
        "sessionId": row.session_id,
        "verb": row.verb,
        "at": when(row.at),
        "by": row.by,
        "address": row.address,
        "inputDigest": row.input_digest,
        "reason": row.reason,
        "output": row.output,
        "metadata": row.metadata,
        "inputReplaced": edited,
        "input": row.input if edited else None,
        "key": row.key,
        "applied": row.applied,
    }


def pause_facts(interrupt: AgentInterrupt) -> dict[str, Any]:
    """A pause of a turn that runs here."""
    return {
        "id": interrupt.id,
        "tool": interrupt.name,
        "input": interrupt.input,
        "payload": interrupt.payload,
        "reason": interrupt.reason,
        "allow": [*interrupt.allow, "decline"],
        "responseSchema": interrupt.paused.pause.response,
    }


def turn_facts(outcome: "AgentOutput | BaseException") -> dict[str, Any]:
    """How a turn ended that ran here. A failed one has an `error`, and whatever was kept."""
    output: Any = outcome.response if isinstance(outcome, TurnError) else outcome
    error = _error(outcome) if isinstance(outcome, BaseException) else None
    if not isinstance(output, AgentOutput):
        return _turn(("failed", None, None, ""), (), error, None, Usage())
    reason = "failed" if error is not None else output.finish_reason
    error = error or output.error
    ended = (reason, output.session_id, output.snapshot_id, output.text)
    return _turn(ended, [pause_facts(i) for i in output.interrupts], error, output.limit, output.usage)


def _error(error: BaseException) -> ErrorInfo:
    status = error.status if isinstance(error, AdjournError) else "INTERNAL"
    return ErrorInfo(status, str(error), type(error).__name__)


def _turn(
    ended: tuple[str, str | None, str | None, str],
    interrupts: Sequence[Any],
    error: ErrorInfo | None,
    limit: str | None,
    usage: Usage,
) -> dict[str, Any]:
    reason, session_id, snapshot_id, text = ended
    return {
        "finishReason": reason,
        "sessionId": session_id,
        "snapshotId": snapshot_id,
        "text": text,
        "interrupts": list(interrupts),
        "error": {"status": error.status, "message": error.message, "kind": error.kind} if error is not None else None,
        "limit": limit,
        "usage": wire(usage),
    }
