"""What an exported session must be to be let into a store.

Whoever wrote the file need not be trusted with what is there already, nor with showing people one thing and running
another. So nothing that is stored is overwritten, and each pause that waits must be the one its own journal comes to.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from adjourn.errors import InvalidRequest, SessionConflict
from adjourn.events import Event, Json, Limits, Pause, Restarted, ToolInterrupted
from adjourn.loading import Loaded, load, stand
from adjourn.parts import canonical, digest
from adjourn.records import INNER, Batch, Decision, InterruptQuery, InterruptRecord, SessionRecord, Snapshot
from adjourn.settling import opened
from adjourn.state import Call
from adjourn.store import Tx
from adjourn.turn import record

FORMAT = 2
_ID = re.compile(r"[A-Za-z0-9_:.-]{1,200}")
_LAST_TIME = 253_402_300_800.0  # the year 10000, in Unix seconds: no calendar goes on from there
_RETRIABLE = ("failed", "aborted")


class Stored(msgspec.Struct, frozen=True, rename="camel"):
    """One exported session: one line of JSON. `batches` are by snapshot id; format 1 had all `events` of one in one list."""

    format: int
    session: SessionRecord
    snapshots: Sequence[Snapshot]
    interrupts: Sequence[InterruptRecord]
    decisions: Sequence[Decision]
    batches: dict[str, list[Batch]] = {}
    events: dict[str, list[Event]] | UnsetType = UNSET


def take_in(tx: Tx, stored: Stored, now: float) -> None:
    """Stores it. Raises SessionConflict where its id is taken, InvalidRequest where it must not be let in."""
    session = stored.session
    if tx.session(session.id) is not None:
        raise SessionConflict(f"there is a session {session.id!r} already; it was left as it is")
    stored = _with_batches(stored)
    _check_rows(stored)
    _check_is_new(tx, stored)
    _check_waiting(tx, stored)
    tx.put_session(session)
    for snapshot in stored.snapshots:
        batches = stored.batches.get(snapshot.id, [])
        tx.put_snapshot(replace(snapshot, batches=len(batches)))
        for number, batch in enumerate(batches):
            tx.add_events(snapshot.id, number, batch.events, batch.at, batch.epoch)
    for row in stored.interrupts:
        if row.status == "open":
            opened(tx, row, now)
        else:
            tx.put_interrupt(row)
    for decision in stored.decisions:
        tx.put_decision(decision)


def _with_batches(stored: Stored) -> Stored:
    if stored.events is UNSET:
        return stored
    updated = {s.id: s.updated for s in stored.snapshots}
    first = {i: [Batch(updated.get(i, 0.0), 0, events)] for i, events in stored.events.items() if events}
    return replace(stored, batches={**stored.batches, **first}, events=UNSET)


# -- the rows by themselves ------------------------------------------------------------------------------------------


def _check_rows(stored: Stored) -> None:
    session, snapshots = stored.session, {s.id: s for s in stored.snapshots}
    rows: list[Snapshot | InterruptRecord | Decision] = [*stored.snapshots, *stored.interrupts, *stored.decisions]
    for row in rows:
        if row.session_id != session.id:
            raise InvalidRequest(
                f"{row.id!r} says that it belongs to the session {row.session_id!r}, not {session.id!r}"
            )
    _check_ids(stored)
    _check_times(stored)
    for kind, ids in (
        ("snapshots", [s.id for s in stored.snapshots]),
        ("interrupts", [i.id for i in stored.interrupts]),
        ("decisions", [d.id for d in stored.decisions]),
    ):
        if len(set(ids)) < len(ids):
            raise InvalidRequest(f"two of its {kind} have the same id")
    before: set[str] = set()
    for snapshot in stored.snapshots:
        # Parents stand first. What a folded one folded may be gone.
        if snapshot.parent_id is not None and snapshot.parent_id not in before and not snapshot.folded:
            raise InvalidRequest(f"the parent {snapshot.parent_id!r} of the snapshot {snapshot.id!r} is not before it")
        before.add(snapshot.id)
    if session.head is not None and session.head not in snapshots:
        raise InvalidRequest(f"its newest snapshot {session.head!r} is missing")
    strange = next((i for i in stored.batches if i not in snapshots), None)
    if strange is not None:
        raise InvalidRequest(f"it has events of a snapshot {strange!r}, which is missing")


def _check_ids(stored: Stored) -> None:
    session = stored.session
    ids: list[str | None] = [session.head, *(i for q in session.queue for i in (q.id, q.at))]
    for snapshot in stored.snapshots:
        ids += (snapshot.id, snapshot.turn_id, snapshot.parent_id)
    for row in stored.interrupts:
        ids += (row.id, row.snapshot_id, row.turn_id, row.call_id)
    for decision in stored.decisions:
        ids += (decision.id, decision.interrupt_id)
    ids += [pause.id for pause, _ in _happened(stored) if pause is not None]
    for given in ids:
        if given is not None and not _ID.fullmatch(given):
            raise InvalidRequest(f"{given[:80]!r} is no id: those have 1 to 200 letters, digits and . : _ -")
    for given in (session.id, *session.inner):
        # The name of a nested agent is in the id of its session.
        good = _is_inner(given) if given.startswith(INNER) else _ID.fullmatch(given) and given not in session.inner
        if not good:
            raise InvalidRequest(f"{given[:80]!r} is no id of a session that can stand here")


def _is_inner(given: str) -> bool:
    call, _, agent = given.removeprefix(INNER).partition(".")
    return bool(_ID.fullmatch(call)) and agent.isprintable() and 0 < len(agent) <= 200


def _check_times(stored: Stored) -> None:
    session = stored.session
    times: list[float | None] = [session.created, session.updated, session.lease_until]
    for snapshot in stored.snapshots:
        times += (snapshot.created, snapshot.updated, snapshot.heartbeat)
    for row in stored.interrupts:
        times += (row.created, row.expires_at)
    for decision in stored.decisions:
        times += (decision.at, decision.due)
    times += [b.at for batches in stored.batches.values() for b in batches]
    times += [pause.expires_at if pause is not None else due for pause, due in _happened(stored)]
    for given in times:
        if given is not None and not (math.isfinite(given) and 0 <= given < _LAST_TIME):
            raise InvalidRequest(f"{given!r} is no time: those are Unix seconds from 0 to the end of the year 9999")


def _happened(stored: Stored) -> Iterator[tuple[Pause | None, float | None]]:
    """The pauses, and the times that restarts wait for, of all its events."""
    for event in (e for batches in stored.batches.values() for b in batches for e in b.events):
        if isinstance(event, ToolInterrupted):
            yield event.pause, None
        elif isinstance(event, Restarted):
            yield None, event.due


# -- what is there already -------------------------------------------------------------------------------------------


def _check_is_new(tx: Tx, stored: Stored) -> None:
    for snapshot in stored.snapshots:
        if tx.snapshot(snapshot.id) is not None:
            raise InvalidRequest(f"another session has a snapshot {snapshot.id!r} already")
    for row in stored.interrupts:
        if tx.interrupt(row.id) is not None:
            raise InvalidRequest(f"another session has an interrupt {row.id!r} already")
    given = {d.id: d for d in stored.decisions}
    # The audit of a session outlives it: one that is brought back finds its own rows, and no others.
    for interrupt_id in dict.fromkeys((*(r.id for r in stored.interrupts), *(d.interrupt_id for d in given.values()))):
        row = tx.interrupt(interrupt_id)
        for there in tx.decisions(interrupt_id=interrupt_id):
            here = given.get(there.id)
            if there.session_id != stored.session.id or (here is not None and _audited(here) != _audited(there)):
                raise InvalidRequest(f"the audit has another decision {there.id!r} on the interrupt {interrupt_id!r}")
        if row is not None:
            raise InvalidRequest(f"it has a decision on the interrupt {interrupt_id!r} of another session")
    begun = {c for s in stored.snapshots for b in stored.batches.get(s.id, ()) for e in b.events for c in _calls(e)}
    for inner in stored.session.inner:
        call = inner.removeprefix(INNER).partition(".")[0]
        if call not in begun and tx.session(inner) is not None:
            raise InvalidRequest(f"the session {inner[:80]!r} is not one that it began")


def _audited(decision: Decision) -> bytes:
    return canonical(replace(decision, applied=True))


def _calls(event: Event) -> Sequence[str]:
    return getattr(event, "calls", ())


# -- what is shown is what runs --------------------------------------------------------------------------------------


def _check_waiting(tx: Tx, stored: Stored) -> None:
    rows, inner = {r.id: r for r in stored.interrupts}, stored.session.id.startswith(INNER)
    unapplied = [d for d in stored.decisions if not d.applied]
    for decision in unapplied:
        row = rows.get(decision.interrupt_id)
        if row is None or row.status == "open" or decision.input_digest != row.input_digest:
            raise InvalidRequest(f"the decision {decision.id!r} does not fit an interrupt that it could have settled")
    taken = {d.interrupt_id for d in unapplied}
    waiting = [r for r in stored.interrupts if r.status == "open" or r.id in taken]
    if inner and waiting:
        raise InvalidRequest("the pauses of a nested agent are shown by the session around it")
    at = {s.id: s for s in stored.snapshots}
    wanted = {i for row in waiting for i in _from(stored, row.snapshot_id)}
    turns = {at[i].turn_id for i in wanted}
    replayed = {
        s.id: _replayed(stored, s, at)
        for s in stored.snapshots
        if (inner or s.turn_id in turns or s.id == stored.session.head) and _has_turn(s)
    }
    for row in waiting:
        _check_row(stored.session, row, [i for i in _from(stored, row.snapshot_id) if i in replayed], replayed)
        if row.path:
            _check_inward(tx, row)
    if inner:
        for snapshot_id, paused in replayed.items():
            _check_outward(tx, snapshot_id, paused, at)


def _has_turn(snapshot: Snapshot) -> bool:
    return (snapshot.messages is None or snapshot.status in _RETRIABLE) and not snapshot.folded


def _from(stored: Stored, snapshot_id: str) -> set[str]:
    """The snapshot and all that came from it."""
    found: set[str] = set()
    for snapshot in stored.snapshots:
        if snapshot.id == snapshot_id or snapshot.parent_id in found:
            found.add(snapshot.id)
    return found


def _replayed(stored: Stored, snapshot: Snapshot, at: Mapping[str, Snapshot]) -> Mapping[str, Call]:
    """The calls that are paused at a snapshot, by interrupt."""
    chain = [snapshot]
    while not chain[0].folded and chain[0].parent_id is not None:
        chain.insert(0, at[chain[0].parent_id])
    turn = stand(Loaded(stored.session, chain, ()), Limits()).turn
    assert turn is not None
    events = (e for s in chain if s.turn_id == snapshot.turn_id for b in stored.batches.get(s.id, ()) for e in b.events)
    try:
        for event in events:
            turn = record(turn, event)
    except Exception as e:  # noqa: BLE001 - a journal that nobody wrote can break any rule of a turn
        raise InvalidRequest(f"what happened up to the snapshot {snapshot.id!r} cannot have happened: {e!r}") from None
    return {c.pause.id: c for c in turn.paused if c.pause is not None}


def _check_row(
    session: SessionRecord, row: InterruptRecord, behind: Iterable[str], replayed: Mapping[str, Mapping[str, Call]]
) -> None:
    calls = [c for i in behind if (c := replayed[i].get(row.id)) is not None]
    if not calls:
        raise InvalidRequest(f"the interrupt {row.id!r} waits, but no call of its session does")
    good = True
    own = (row.call_id, row.tool, row.ref, row.agent, row.input, *_asked(row))
    for call in calls:
        assert call.pause is not None
        theirs = (call.id, call.request.name, call.request.ref, session.agent, call.input, *_asked(call.pause))
        good = good and canonical(own) == canonical(theirs)
    if not good or row.input_digest != digest(row.tool, row.input, row.version):
        raise InvalidRequest(f"the interrupt {row.id!r} is not the call that its session waits with")


def _asked(pause: InterruptRecord | Pause) -> tuple[Any, ...]:
    p = pause
    return p.payload, p.response, list(p.allow), p.reason, p.expires_at, p.on_expiry, p.version, list(p.path)


def _levels(payload: Json) -> Iterator[Mapping[str, Any]]:
    """What a pause of nested agents shows, from the outermost inwards."""
    while isinstance(payload, Mapping) and "interrupt" in payload:
        level = cast(Mapping[str, Any], payload)
        yield level
        payload = level.get("payload")


def _check_inward(tx: Tx, row: InterruptRecord) -> None:
    """The sessions of nested agents that came before must wait with what this interrupt shows."""
    call_id = row.call_id
    for name, level in zip(row.path, _levels(row.payload), strict=False):
        session_id, snapshot_id = f"{INNER}{call_id}.{name}", level.get("snapshot")
        if tx.session(session_id) is None:
            return
        there = tx.snapshot(snapshot_id) if isinstance(snapshot_id, str) else None
        loaded = load(tx, session_id, there.id if there is not None and there.session_id == session_id else None)
        turn = stand(loaded, Limits()).turn if loaded is not None else None
        call = next((c for c in (turn.paused if turn else ()) if c.pause and c.pause.id == level["interrupt"]), None)
        if call is None or not _shows(level, call):
            raise InvalidRequest(f"the interrupt {row.id!r} is not what the session {session_id!r} waits with")
        call_id = call.id


def _check_outward(tx: Tx, snapshot_id: str, paused: Mapping[str, Call], at: Mapping[str, Snapshot]) -> None:
    """The interrupts that came before must show what this session of a nested agent waits with."""
    for interrupt_id, call in paused.items():
        for row in tx.interrupts(InterruptQuery(status="open", text=interrupt_id, limit=1000)):
            for level in _levels(row.payload) if row.path else ():
                here = level.get("snapshot") == snapshot_id or level.get("snapshot") not in at
                if level["interrupt"] == interrupt_id and here and not _shows(level, call):
                    raise InvalidRequest(f"it does not wait with what the interrupt {row.id!r} shows")


def _shows(level: Mapping[str, Any], call: Call) -> bool:
    assert call.pause is not None
    shown = (level.get("tool"), level.get("input"), level.get("payload"))
    return canonical(shown) == canonical((call.request.name, call.input, call.pause.payload))
