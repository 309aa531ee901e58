"""Stored sessions as a whole: list, delete, purge, export and import."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from adjourn.clock import Clock
from adjourn.errors import InvalidRequest, SessionBusy, SessionConflict, SessionNotFound, SessionPaused
from adjourn.events import Event
from adjourn.lease import transact
from adjourn.ledger import INNER
from adjourn.parts import new_id
from adjourn.store import Decision, InterruptQuery, InterruptRecord, SessionQuery, SessionRecord, Snapshot, Store, Tx

FORMAT = 1


class Stored(msgspec.Struct, frozen=True, rename="camel"):
    """One exported session: one line of JSON. `events` are by snapshot id."""

    format: int
    session: SessionRecord
    snapshots: Sequence[Snapshot]
    events: dict[str, list[Event]]
    interrupts: Sequence[InterruptRecord]
    decisions: Sequence[Decision]


class Shelf(Protocol):
    """The application, as far as the archive needs it."""

    clock: Clock

    def stores(self) -> Sequence[Store]: ...


class Archive:
    """The sessions in the application's stores."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def list(
        self,
        *,
        agent: str | None = None,
        owner: str | None = None,
        after: SessionRecord | None = None,
        limit: int = 100,
    ) -> Sequence[SessionRecord]:
        """Sessions, oldest first; `after` is the last one of the page before."""
        query = SessionQuery(agent, owner, None, None, (after.created, after.id) if after is not None else None, limit)
        found: list[SessionRecord] = []
        for store in self._shelf.stores():
            found += await transact(store, _sessions(query), read=True)
        return sorted(found, key=lambda s: (s.created, s.id))[:limit]

    async def snapshots(self, session_id: str) -> Sequence[Snapshot]:
        """All resting points of a session, oldest first. Raises SessionNotFound."""
        store = await self._holding(session_id)
        return await transact(store, lambda tx: tx.snapshots(session_id), read=True)

    async def events(self, snapshot_id: str) -> Sequence[Event]:
        """What happened on the way to a snapshot."""
        out: list[Event] = []
        for store in self._shelf.stores():
            out += await transact(store, lambda tx: tx.events([snapshot_id]), read=True)
        return out

    async def delete(self, session_id: str, *, force: bool = False) -> None:
        """Deletes a session; the audit of its decisions stays.

        With `force` its open pauses are cancelled; without, they refuse the deletion (SessionPaused).
        """
        store = await self._holding(session_id)
        await transact(store, partial(_delete, session_id=session_id, force=force, now=self._shelf.clock.now()))

    async def purge(self, older_than: float) -> int:
        """Deletes sessions that nothing happened in for so many seconds and that neither run nor wait; says how many."""
        now = self._shelf.clock.now()
        gone = 0
        for store in self._shelf.stores():
            after: tuple[float, str] | None = None
            while True:
                query = SessionQuery(updated_before=now - older_than, after=after, limit=200)
                found = await transact(store, _sessions(query), read=True)
                for session in found:
                    if session.id.startswith(INNER):
                        continue  # it goes with the session around it
                    try:
                        await transact(store, partial(_delete, session_id=session.id, force=False, now=now))
                        gone += 1
                    except (SessionPaused, SessionBusy, SessionNotFound):
                        continue  # it waits for somebody, or came alive meanwhile
                if len(found) < query.limit:
                    break
                after = (found[-1].created, found[-1].id)
        return gone

    async def export(self, session_ids: Iterable[str] | None = None) -> AsyncIterator[bytes]:
        """Each session as one line of JSON, without the line break; all of them, where none is named."""
        for store in self._shelf.stores():
            ids = session_ids if session_ids is not None else [s.id for s in await _all(store)]
            for session_id in ids:
                stored = await transact(store, partial(_export, session_id=session_id), read=True)
                if stored is not None:
                    yield msgspec.json.encode(stored)

    async def import_(self, lines: Iterable[bytes | str], store: Store) -> int:
        """Stores exported sessions; says how many.

        Raises InvalidRequest for a line that is none, SessionConflict for an id that is taken.
        """
        count = 0
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                stored = msgspec.json.decode(line, type=Stored)
            except msgspec.DecodeError as e:
                raise InvalidRequest(f"line {number} is no exported session: {e}. {count} were stored") from None
            if stored.format != FORMAT:
                raise InvalidRequest(f"line {number} has the format {stored.format}; this version reads {FORMAT}")
            await transact(store, partial(_import, stored=stored))
            count += 1
        return count

    async def _holding(self, session_id: str) -> Store:
        for store in self._shelf.stores():
            if await transact(store, lambda tx: tx.session(session_id), read=True) is not None:
                return store
        raise SessionNotFound(f"there is no session {session_id!r}")


def _sessions(query: SessionQuery) -> Callable[[Tx], list[SessionRecord]]:
    return lambda tx: tx.sessions(query)


async def _all(store: Store) -> list[SessionRecord]:
    out: list[SessionRecord] = []
    while True:
        after = (out[-1].created, out[-1].id) if out else None
        found = await transact(store, _sessions(SessionQuery(after=after, limit=500)), read=True)
        out += found
        if len(found) < 500:
            return out


def _delete(tx: Tx, session_id: str, force: bool, now: float) -> None:
    session = tx.session(session_id)
    if session is None:
        raise SessionNotFound(f"there is no session {session_id!r}")
    if session.pending and session.lease_until > now:
        raise SessionBusy(f"a turn of session {session_id!r} is running; abort it first")
    waiting = tx.interrupts(InterruptQuery(status="open", session_id=session_id, limit=100_000))
    if waiting and not force:
        names = ", ".join(f"{r.tool} ({r.id})" for r in waiting[:5])
        raise SessionPaused(
            f"session {session_id!r} waits for decisions on {names}; nothing was deleted. To cancel them: force=True",
            waiting,
        )
    for row in waiting:
        tx.put_interrupt(replace(row, status="cancelled"))
        tx.put_decision(
            Decision(new_id("d_"), row.id, session_id, "cancel", now, reason="session deleted", applied=True)
        )
    for inner in session.inner:
        if tx.session(inner) is not None:
            _delete(tx, inner, True, now)
    tx.drop_session(session_id)


def _export(tx: Tx, session_id: str) -> Stored | None:
    session = tx.session(session_id)
    if session is None:
        return None
    snapshots = tx.snapshots(session_id)
    return Stored(
        FORMAT,
        replace(session, holder=None, lease_until=0.0),
        snapshots,
        {s.id: tx.events([s.id]) for s in snapshots},
        tx.interrupts(InterruptQuery(session_id=session_id, limit=1_000_000)),
        tx.decisions(session_id=session_id),
    )


def _import(tx: Tx, stored: Stored) -> None:
    if tx.session(stored.session.id) is not None:
        raise SessionConflict(f"there is a session {stored.session.id!r} already; it was left as it is")
    tx.put_session(stored.session)
    for snapshot in stored.snapshots:
        events = stored.events.get(snapshot.id, [])
        tx.put_snapshot(replace(snapshot, batches=1 if events else 0))
        if events:
            tx.add_events(snapshot.id, 0, events)
    for row in stored.interrupts:
        tx.put_interrupt(row)
    for decision in stored.decisions:
        tx.put_decision(decision)
