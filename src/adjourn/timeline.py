"""A session as a person reads it: what was said, run, paused, decided and lost, in the order of time; and as it goes on."""

import re
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.display import one_line, summary
from adjourn.engine import Deed
from adjourn.errors import SessionNotFound, UnknownPosition
from adjourn.events import (
    CallRejected,
    Declined,
    Event,
    Expired,
    Forked,
    Json,
    ModelReplied,
    OutputRejected,
    Pause,
    Responded,
    Restarted,
    Retried,
    ToolInterrupted,
    ToolRaised,
    ToolReturned,
    ToolStarted,
    TurnEnded,
    UserSaid,
)
from adjourn.feed import Follower
from adjourn.lease import transact
from adjourn.parts import ToolRequest, wire
from adjourn.records import Batch, Decision, InterruptQuery, InterruptRecord, SessionRecord, Snapshot
from adjourn.resume import Shown, shown_by
from adjourn.store import Store, Tx


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of a timeline. `took` is running time in seconds, where that is known.

    `kind` is "message", "model", "tool", "pause", "decision", "expired", "late_result", "fork", "crash", "retry", "end", or
    "engine": what an engine did for the turn. `title` is safe to show; `facts` are as they were stored: ids, input and
    output, tokens, who and why; of an engine, workflow, run, worker, attempts.
    """

    at: float
    kind: str
    title: str
    snapshot_id: str
    facts: dict[str, Json]
    took: float | None = None


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One commit of a session, as it is followed. `id` is its place: what follows it comes after that id."""

    id: str
    snapshot_id: str
    at: float
    epoch: int
    events: Sequence[Event]


class Told(msgspec.Struct, frozen=True):
    """All that is stored of a session and belongs on its timeline."""

    session: SessionRecord
    snapshots: Sequence[Snapshot]
    batches: Sequence[Sequence[Batch]]
    interrupts: Sequence[InterruptRecord]
    decisions: Sequence[Decision]


def tell(tx: Tx, session_id: str) -> Told | None:
    """Reads it; None where there is no such session."""
    session = tx.session(session_id)
    if session is None:
        return None
    snapshots = tx.snapshots(session_id)
    return Told(
        session,
        snapshots,
        [tx.batches(s.id) for s in snapshots],
        tx.interrupts(InterruptQuery(session_id=session_id, limit=1_000_000)),
        tx.decisions(session_id=session_id),
    )


def timeline(told: Told, deeds: Sequence[Deed] = (), missing: str = "") -> Sequence[Entry]:
    """The session's entries, oldest first. `deeds` are what the engine says, `missing` is why it says nothing."""
    teller = _Teller(told)
    for snapshot, batches in zip(told.snapshots, told.batches, strict=True):
        teller.snapshot(snapshot, batches)
    teller.engine(deeds, missing)
    return teller.finish()


def works(told: Told) -> dict[str, list[Snapshot]]:
    """The legs that an engine ran, by the id of the work as it knows it, oldest first: the turn, or the branch of it."""
    by_id = {s.id: s for s in told.snapshots}
    out: dict[str, list[Snapshot]] = {}
    for snapshot in told.snapshots:
        if snapshot.engine:
            out.setdefault(_work(snapshot, by_id), []).append(snapshot)
    return out


def _work(snapshot: Snapshot, by_id: Mapping[str, Snapshot]) -> str:
    at: Snapshot | None = snapshot
    while at is not None and at.turn_id == snapshot.turn_id:
        if at.branch:
            return at.id
        at = by_id.get(at.parent_id) if at.parent_id is not None else None
    return snapshot.turn_id


class _Teller:
    def __init__(self, told: Told) -> None:
        self._entries: list[Entry] = []
        self._calls: dict[str, ToolRequest] = {}
        self._pauses: dict[str, tuple[str, Pause]] = {}  # the call that an interrupt is of, and what it said
        self._edits: dict[str, Mapping[str, Json]] = {}  # what calls run with instead, at the end of each snapshot
        self._starts: dict[str, tuple[float, str]] = {}
        self._interrupts = {row.id: row for row in told.interrupts}
        self._decisions: dict[str, list[Decision]] = {}
        for decision in told.decisions:
            self._decisions.setdefault(decision.interrupt_id, []).append(decision)
        self._at = told.session.created
        self._snapshot_id = ""
        self._worker = ""
        self._works = works(told)
        self._work_of = {leg.id: work for work, legs in self._works.items() for leg in legs}

    def snapshot(self, snapshot: Snapshot, batches: Sequence[Batch]) -> None:
        """One leg. A lease that another driver holds in the middle of it was taken over from one that was gone."""
        self._snapshot_id, self._at = snapshot.id, snapshot.created
        self._edits[snapshot.id] = self._edits.get(snapshot.parent_id or "", {})
        forked = next((e for b in batches for e in b.events if isinstance(e, Forked)), None)
        if snapshot.branch:
            ids = dict(forked.ids) if forked is not None else {}
            self._pauses.update((new, self._pauses[old]) for old, new in ids.items() if old in self._pauses)
            self._add("fork", "A branch begins here", {"from": snapshot.parent_id, "interrupts": ids})
        epoch, self._worker = 0, ""
        changes = {r.batch: r.worker for r in snapshot.ran}
        for number, batch in enumerate(batches):
            self._at = batch.at
            if number in changes:
                self._taken_up(snapshot, changes[number])
            aborts = any(isinstance(e, TurnEnded) and e.reason == "aborted" for e in batch.events)
            if epoch and batch.epoch and batch.epoch != epoch and not aborts:
                self._add("crash", "The process that ran this was gone; another one took over", {"epoch": batch.epoch})
            epoch = batch.epoch
            for event in batch.events:
                self._event(event)

    def _taken_up(self, snapshot: Snapshot, worker: str) -> None:
        """A worker of an engine took steps of this leg from here on. That it is another one need not mean that one was gone."""
        facts: dict[str, Json] = {
            "engine": snapshot.engine,
            "workflow": self._work_of.get(snapshot.id),
            "worker": worker,
        }
        if self._worker:
            self._add(
                "engine",
                f"Worker {one_line(worker, 80)} took its steps from here on",
                facts | {"workerBefore": self._worker},
            )
        else:
            self._add("engine", f"Worker {one_line(worker, 80)} took its steps", facts)
        self._worker = worker

    def engine(self, deeds: Sequence[Deed], missing: str) -> None:
        """What the engine remembers, each beside the leg that it was about."""
        for deed in deeds:
            legs = self._works.get(deed.work, ())
            leg = next((s for s in reversed(legs) if s.created <= deed.at), legs[0] if legs else None)
            self._at, self._snapshot_id, self._worker = deed.at, leg.id if leg is not None else "", ""
            self._add("engine", deed.title, {"engine": leg.engine if leg is not None else "", **deed.facts})
        if missing and self._works:
            self._at, self._worker = max([e.at for e in self._entries], default=self._at), ""
            self._add("engine", "The engine was not asked: what only it knows is missing here", {"reason": missing})

    def _event(self, event: Event) -> None:
        if isinstance(event, UserSaid):
            self._add("message", one_line(event.message.text) or "A message", {"message": wire(event.message)})
        elif isinstance(event, ModelReplied):
            self._replied(event)
        elif isinstance(event, ToolStarted):
            self._starts[event.call] = (self._at, self._snapshot_id)
        elif isinstance(event, (ToolReturned, ToolRaised, CallRejected)):
            self._ran(event)
        elif isinstance(event, ToolInterrupted):
            self._paused(event)
        elif isinstance(event, (Responded, Restarted, Declined, Expired)):
            self._decided(event)
        elif isinstance(event, OutputRejected):
            self._add("model", "The reply does not have the form that was asked for", {"message": event.message})
        elif isinstance(event, Retried):
            self._add("retry", "The turn goes on after it had ended", {"limits": wire(event.limits)})
        elif isinstance(event, TurnEnded):
            self._ended(event)

    def _replied(self, event: ModelReplied) -> None:
        requests = [p.tool_request for p in event.message.content if p.tool_request is not None]
        self._calls.update(zip(event.calls, requests, strict=False))
        calls = [
            {"call": call, "tool": r.name, "input": r.input} for call, r in zip(event.calls, requests, strict=False)
        ]
        asked = ", ".join(r.name for r in requests)
        facts = {
            "message": wire(event.message),
            "finishReason": event.finish_reason,
            "usage": wire(event.usage),
            "calls": calls,
        }
        title = one_line(event.message.text) or (one_line(f"Asks for {asked}") if asked else "An empty reply")
        self._add("model", title, facts, event.took)

    def _ran(self, event: ToolReturned | ToolRaised | CallRejected) -> None:
        self._starts.pop(event.call, None)
        facts = self._call(event.call)
        if isinstance(event, ToolReturned):
            self._add("tool", self._named(event.call, "ran"), facts | {"output": event.output}, event.took)
        elif isinstance(event, ToolRaised):
            self._add("tool", self._named(event.call, "failed"), facts | {"error": wire(event.error)}, event.took)
        else:
            why = {"message": event.message, "reason": event.kind}
            self._add("tool", self._named(event.call, "was not run"), facts | {"error": why})

    def _paused(self, event: ToolInterrupted) -> None:
        pause = event.pause
        self._starts.pop(event.call, None)
        self._pauses[pause.id] = event.call, pause
        facts = self._call(event.call) | {
            "interrupt": pause.id,
            "payload": pause.payload,
            "reason": pause.reason,
            "expiresAt": pause.expires_at,
        }
        self._add("pause", f"{self._about(pause.id)} waits for a decision", facts, event.took)

    def _decided(self, event: Responded | Restarted | Declined | Expired) -> None:
        """The row of the audit has when it was made, which may be long before the turn went on with it."""
        verb = _VERBS[type(event)]
        given = event.input if isinstance(event, Restarted) else UNSET
        rows = self._decisions.get(event.interrupt, [])
        row = next((d for d in rows if d.verb == verb), None)
        if row is not None:
            rows.remove(row)
            self._row(row)
        else:  # inside a nested agent: the audit has it outside
            facts: dict[str, Json] = {"interrupt": event.interrupt, "verb": verb} | wire(event)
            facts |= self._replaced(event.interrupt, given)
            kind = "expired" if verb == "expire" else "decision"
            self._add(kind, f"{self._about(event.interrupt)} {_done(verb, given)}", facts)
        call, pause = self._pauses.get(event.interrupt, ("", None))
        if given is not UNSET and pause is not None and not pause.path:  # else it is another call's, inside an agent
            self._edits[self._snapshot_id] = {**self._edits[self._snapshot_id], call: given}

    def _row(self, d: Decision) -> None:
        kind = {"expire": "expired", "late_result": "late_result", "reopen": "pause"}.get(d.verb, "decision")
        shown = self._shown(d.interrupt_id)
        facts: dict[str, Json] = {"interrupt": d.interrupt_id, "verb": d.verb, "by": d.by, "address": d.address}
        facts |= {"decision": d.id, "tool": shown.tool if shown is not None else None}
        facts |= {k: v for k in ("output", "metadata", "reason", "due") if (v := getattr(d, k)) not in (None, "")}
        if d.verb in ("respond", "late_result"):
            facts["output"] = d.output
        facts |= self._replaced(d.interrupt_id, d.input)
        if not d.applied:
            facts["waiting"] = True  # nobody has gone on with it yet
        at, self._at = self._at, d.at
        by = f" by {one_line(d.by, 80)}" if d.by else ""
        self._add(kind, f"{self._about(d.interrupt_id)} {_done(d.verb, d.input)}{by}", facts)
        self._at = at

    def _ended(self, event: TurnEnded) -> None:
        title = _ENDS.get(event.reason, "The turn is over")
        facts: dict[str, Json] = {"reason": event.reason}
        if event.error is not None:
            facts["error"] = wire(event.error)
            title = one_line(f"{title}: {event.error.message}")
        if event.limit is not None:
            facts["limit"] = event.limit
        self._add("end", title, facts)

    def finish(self) -> Sequence[Entry]:
        for call, (at, snapshot_id) in self._starts.items():
            self._at, self._snapshot_id = at, snapshot_id
            self._add("tool", self._named(call, "was begun"), self._call(call) | {"unfinished": True})
        for rows in self._decisions.values():
            for row in rows:
                interrupt = self._interrupts.get(row.interrupt_id)
                self._snapshot_id = interrupt.snapshot_id if interrupt is not None else self._snapshot_id
                self._row(row)
        return sorted(self._entries, key=lambda e: e.at)  # it is stable: what one commit did stays in its order

    def _add(self, kind: str, title: str, facts: dict[str, Json], took: float | None = None) -> None:
        if self._worker and kind in ("model", "tool", "pause"):
            facts = facts | {"worker": self._worker}
        self._entries.append(Entry(self._at, kind, title, self._snapshot_id, facts, took))

    def _call(self, call: str) -> dict[str, Json]:
        request = self._calls.get(call)
        return {"call": call} | ({"tool": request.name, "input": self._input(call)} if request is not None else {})

    def _named(self, call: str, what: str) -> str:
        request = self._calls.get(call)
        return f"{summary(request.name, self._input(call)) if request is not None else 'A call'} {what}"

    def _input(self, call: str) -> Json:
        """What it runs with: in a branch, what was decided in that branch."""
        return self._edits.get(self._snapshot_id, {}).get(call, self._calls[call].input)

    def _shown(self, interrupt_id: str) -> Shown | None:
        """What a decision on it is about: the innermost call, with the input that it had before, in its branch."""
        call, pause = self._pauses.get(interrupt_id, ("", None))
        row = self._interrupts.get(interrupt_id)
        if pause is not None and call in self._calls:
            return shown_by(self._calls[call].name, self._input(call), pause.payload, pause.path)
        return shown_by(row.tool, row.input, row.payload, row.path) if row is not None else None

    def _about(self, interrupt_id: str) -> str:
        shown = self._shown(interrupt_id)
        if shown is None:
            return "A call"
        _, pause = self._pauses.get(interrupt_id, ("", None))
        asked = pause or self._interrupts[interrupt_id]
        inside = f" in {one_line(' > '.join(asked.path), 80)}" if asked.path else ""
        return f"{summary(shown.tool, shown.input)}{inside}"

    def _replaced(self, interrupt_id: str, given: Json | UnsetType) -> dict[str, Json]:
        shown = self._shown(interrupt_id)
        return {} if given is UNSET else {"input": given, "inputBefore": shown.input if shown is not None else None}


def _done(verb: str, given: Json | UnsetType) -> str:
    """What became of a call. `given` is the input that it was to run with instead."""
    return f"{_DONE.get(verb, verb)}{' with another input' if given is not UNSET else ''}"


_VERBS = {Responded: "respond", Restarted: "restart", Declined: "decline", Expired: "expire"}
_DONE = {
    "respond": "was answered",
    "restart": "was sent round again",
    "decline": "was declined",
    "expire": "expired: nobody decided in time",
    "cancel": "was cancelled",
    "reopen": "waits once more",
    "late_result": "gave a result after it had been closed",
}
_ENDS = {
    "failed": "The turn failed",
    "aborted": "The turn was aborted",
    "blocked": "The reply was blocked",
    "length": "The reply was cut off for its length",
}


# -- following -------------------------------------------------------------------------------------------------------


async def watch(follower: Follower, store: Store, session_id: str, after: str | None) -> AsyncGenerator[Recorded, None]:
    """The session's journal from the id after `after` on, and then what comes, until the session is deleted."""
    if after is not None:
        _place(after)
    if await transact(store, lambda tx: tx.session(session_id), read=True) is None:
        raise SessionNotFound(f"there is no session {session_id!r}")

    async def read() -> Sequence[Recorded] | None:
        nonlocal after
        found = await transact(store, partial(_behind, session_id=session_id, after=after), read=True)
        if found:
            after = found[-1].id
        return found

    async with aclosing(follower.follow([store], read)) as journal:
        async for recorded in journal:
            yield recorded


def recorded(snapshot_id: str, number: int, batch: Batch) -> Recorded:
    """One commit with its id, which no other commit has that stands in its place after a backup was restored."""
    seal = zlib.crc32(f"{batch.epoch} {batch.at!r}".encode())
    return Recorded(f"{snapshot_id}:{number}-{seal:08x}", snapshot_id, batch.at, batch.epoch, batch.events)


def _place(id: str) -> tuple[str, int]:
    """The snapshot, and the number of the commit in it."""
    found = re.fullmatch(r"(.+):(\d{1,9})-[0-9a-f]{8}", id, re.ASCII | re.DOTALL)
    if found is None:
        raise UnknownPosition(f"{id!r} is no place in a session's journal; begin without one")
    return found[1], int(found[2])


def _behind(tx: Tx, session_id: str, after: str | None) -> list[Recorded] | None:
    if tx.session(session_id) is None:
        return None
    if after is None:
        return [r for snapshot in tx.snapshots(session_id) for r in _recorded(tx, snapshot.id, 0)]
    # One driver at a time, so a snapshot gets no more batches once a later one has begun.
    snapshot_id, number = _place(after)
    here, out = tx.snapshot(snapshot_id), list[Recorded]()
    if here is not None and here.session_id == session_id:
        out += _recorded(tx, snapshot_id, number)
        if not out or out.pop(0).id != after:
            raise UnknownPosition(
                f"{after!r} is no place in the journal of session {session_id!r} any more: a backup was restored, and it went "
                "another way. Begin without one"
            )
    for snapshot in tx.snapshots(session_id, snapshot_id):
        out += _recorded(tx, snapshot.id, 0)
    return out


def _recorded(tx: Tx, snapshot_id: str, first: int) -> Iterator[Recorded]:
    for number, batch in enumerate(tx.batches(snapshot_id, first), first):
        yield recorded(snapshot_id, number, batch)
