"""Stored sessions as a whole: list, delete, purge, export and import."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from types import NoneType
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from adjourn.arguments import check_filters, check_is_store, check_limit, check_texts, is_text, several, short
from adjourn.clock import Clock
from adjourn.engine import Deed, Engine
from adjourn.errors import (
    InvalidRequest,
    SessionBusy,
    SessionConflict,
    SessionNotFound,
    SessionPaused,
    StoreFormatError,
)
from adjourn.events import Event
from adjourn.feed import Follower
from adjourn.importing import FORMAT, Stored, take_in
from adjourn.lease import transact
from adjourn.records import (
    INNER,
    InterruptQuery,
    SessionQuery,
    SessionRecord,
    Snapshot,
    unknown_session,
    unknown_snapshot,
)
from adjourn.settling import cancel
from adjourn.store import Store, Tx
from adjourn.timeline import Entry, Recorded, Told, tell, timeline, watch, works

T = TypeVar("T")

_log = logging.getLogger("adjourn.engine")

_ENGINE_SECONDS = 3.0
_RECOUNTED = 20
"""So many turns the engine is asked about, the newest."""


class Shelf(Protocol):
    """The application, as far as the archive needs it."""

    clock: Clock

    @property
    def engine(self) -> Engine | None: ...

    def stores(self) -> Sequence[Store]: ...


class Archive:
    """The sessions in the application's stores."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._follower = Follower()

    async def list(
        self,
        *,
        agent: str | None = None,
        owner: str | None = None,
        agents: Sequence[str] | None = None,
        owners: Sequence[str | None] | None = None,
        after: SessionRecord | None = None,
        limit: int = 100,
    ) -> Sequence[SessionRecord]:
        """Sessions, oldest first; `after` is the last one of the page before.

        `agents` and `owners` take any of several, None among the owners being nobody. Those of nested agents are parts of
        others, and not among them.
        """
        check_limit(limit, 10_000)
        if not isinstance(after, (SessionRecord, NoneType)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(f"after={short(after)}: give the last SessionRecord of the page before")
        at = (after.created, after.id) if after is not None else None
        query = replace(_query(agent, owner, agents, owners), after=at, limit=limit)
        found: list[SessionRecord] = []
        for store in self._shelf.stores():
            found += await transact(store, _sessions(query), read=True)
        return sorted(found, key=lambda s: (s.created, s.id))[:limit]

    async def count(
        self,
        *,
        agent: str | None = None,
        owner: str | None = None,
        agents: Sequence[str] | None = None,
        owners: Sequence[str | None] | None = None,
    ) -> int:
        """How many sessions there are with these filters; each store counts to a million."""
        query = _query(agent, owner, agents, owners)
        return sum([await transact(store, lambda tx: tx.count(query), read=True) for store in self._shelf.stores()])

    async def timeline(self, session_id: str) -> Sequence[Entry]:
        """What happened in a session, oldest first, as a person reads it. Raises SessionNotFound.

        Of turns that an engine ran, it has what the engine remembers of them as well, where it answers in a few seconds.
        """
        for store in self._shelf.stores() if is_text(session_id) else ():
            told = await transact(store, partial(tell, session_id=session_id), read=True)
            if told is not None:
                return timeline(told, *await self._recount(told))
        raise unknown_session(session_id)

    async def _recount(self, told: Told) -> tuple[Sequence[Deed], str]:
        """What the engine says of the newest turns that it ran; or why it says nothing. The store has what counts."""
        engine, asked = self._shelf.engine, works(told)
        if not asked:
            return (), ""
        if engine is None:
            return (), "this application has no engine"
        ours = [work for work, legs in asked.items() if any(s.engine == engine.holder for s in legs)]
        if not ours:
            return (), "another engine ran these turns"
        try:
            return await asyncio.wait_for(engine.recount(ours[-_RECOUNTED:]), _ENGINE_SECONDS), ""
        except Exception as e:  # noqa: BLE001 - whatever its client raises where nobody answers
            _log.warning("the engine was not asked about session %s: %s", told.session.id, e)
            return (), f"it did not answer ({type(e).__name__})"

    async def watch(self, session_id: str, after: str | None = None) -> AsyncGenerator[Recorded, None]:
        """The session's journal behind the id `after`, and then what comes, from whichever process.

        It ends when the session is deleted. Raises SessionNotFound, and UnknownPosition for an `after` that is no id, or that
        the session does not know of since a backup was restored.
        """
        check_texts(after=after)
        store = await self._holding(session_id)
        async with aclosing(watch(self._follower, store, session_id, after)) as journal:
            async for recorded in journal:
                yield recorded

    async def snapshots(self, session_id: str) -> Sequence[Snapshot]:
        """All resting points of a session, oldest first. Raises SessionNotFound."""
        store = await self._holding(session_id)
        return await transact(store, lambda tx: tx.snapshots(session_id), read=True)

    async def events(self, snapshot_id: str) -> Sequence[Event]:
        """What happened on the way to a snapshot. Raises SessionNotFound."""
        for store in self._shelf.stores() if is_text(snapshot_id) else ():
            found = await transact(store, partial(_events, snapshot_id=snapshot_id), read=True)
            if found is not None:
                return found
        raise unknown_snapshot(snapshot_id)

    async def delete(self, session_id: str, *, force: bool = False, untouched_since: float | None = None) -> None:
        """Deletes a session; the audit of its decisions stays.

        With `force` its open pauses are cancelled; without, they refuse the deletion (SessionPaused), and so does a decision
        that was accepted and that no process has taken up yet. With `untouched_since` (seconds since 1970) it is refused
        where anything happened since then, whatever `force` says (SessionBusy). The sessions of nested agents go with it;
        one of them alone is deleted by `force` only (InvalidRequest).
        """
        store, now = await self._holding(session_id), self._shelf.clock.now()
        if untouched_since is not None:
            work = partial(_purge, session_id=session_id, before=untouched_since, now=now)
        elif force or not session_id.startswith(INNER):
            work = partial(_delete, session_id=session_id, force=force, now=now)
        else:
            raise InvalidRequest(
                f"session {session_id!r} is a nested agent's, a part of the session around it; nothing was deleted. Delete that "
                "one, and it goes with it; force=True deletes it alone, and what waits inside can then only be declined"
            )
        await self._with_inner(await transact(store, work), now)

    async def _with_inner(self, elsewhere: Sequence[str], now: float) -> None:
        """Deletes sessions of nested agents that are not in the store of the session around them."""
        for inner in elsewhere:
            for store in self._shelf.stores():
                if await transact(store, lambda tx: tx.session(inner), read=True) is not None:  # noqa: B023 (awaited here)
                    work = partial(_delete, session_id=inner, force=True, now=now)
                    await self._with_inner(await transact(store, work), now)

    async def purge(self, older_than: float) -> int:
        """Deletes sessions that nothing happened in for so many seconds and that neither run nor wait; says how many.

        Those stay whose turn a dead process left, or whose accepted decision nobody has taken up: `recover` goes on with them.
        One that cannot be read stays, and is logged. The entries of the inbox's feed that are older go with them. Raises
        InvalidRequest for less than no seconds.
        """
        if not isinstance(older_than, (int, float)) or not older_than >= 0:  # nan, too  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(
                f"older_than= is an age in seconds, and {short(older_than)} is none; nothing was deleted"
            )
        now = self._shelf.clock.now()
        gone = 0
        for store in self._shelf.stores():
            after: tuple[float, str] | None = None
            while True:
                query = SessionQuery(updated_before=now - older_than, after=after, limit=200, outer=True)
                found = await transact(store, _sessions(query), read=True)
                for session in found:
                    try:
                        work = partial(_purge, session_id=session.id, before=now - older_than, now=now)
                        await self._with_inner(await transact(store, work), now)
                        gone += 1
                    except (SessionPaused, SessionBusy, SessionNotFound):
                        continue  # it waits for somebody, or came alive meanwhile
                    except StoreFormatError as e:
                        _log.warning("session %s was not purged, since it cannot be read: %s", session.id, e)
                if len(found) < query.limit:
                    break
                after = (found[-1].created, found[-1].id)
            while await transact(store, partial(_forget, before=now - older_than)):
                pass
        return gone

    async def export(self, session_ids: Iterable[str] | None = None) -> AsyncIterator[bytes]:
        """Each session as one line of JSON, without the line break; all of them, where none is named.

        The sessions of nested agents follow the one around them, as far as they are there. Raises SessionNotFound for an id
        that no store has, before anything is given; one that is deleted from then on is left out.
        """
        stores, given = self._shelf.stores(), several("session_ids", session_ids)
        ids = [s.id for store in stores for s in await _all(store)] if given is None else list(given)
        for session_id in given or ():
            await self._holding(session_id)
        done: set[str] = set()
        ahead = ids[::-1]
        while ahead:
            session_id = ahead.pop()
            if session_id in done:
                continue
            done.add(session_id)
            for store in stores:
                stored = await transact(store, partial(_export, session_id=session_id), read=True)
                if stored is not None:
                    yield msgspec.json.encode(stored)
                    ahead += stored.session.inner[::-1]

    async def import_(self, lines: Iterable[bytes | str] | AsyncIterable[bytes | str], store: Store) -> int:
        """Stores exported sessions: the lines of an open file, or what `export` gives. Says how many.

        Raises SessionConflict for a session that is there already, and InvalidRequest for a line that is none, would
        overwrite what another session has, or shows another pause than its journal comes to. Lines before it stay stored.
        """
        if isinstance(lines, (str, bytes)) or not isinstance(lines, (Iterable, AsyncIterable)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest(
                f"import_ takes lines: an open file (open(path, 'rb')), or what export() gives, and no {type(lines).__name__}; "
                "nothing was stored"
            )
        check_is_store(store)
        count = number = 0
        async for line in _each(lines):
            number += 1
            if not line.strip():
                continue
            try:
                stored = msgspec.json.decode(line, type=Stored)
            except msgspec.DecodeError as e:
                raise InvalidRequest(
                    f"line {number} is no exported session: {e}. {count} were stored before it"
                ) from None
            if not 1 <= stored.format <= FORMAT:
                raise InvalidRequest(
                    f"line {number} has the format {stored.format}; this version reads 1 to {FORMAT}. {count} were stored "
                    "before it"
                )
            try:
                await transact(store, partial(take_in, stored=stored, now=self._shelf.clock.now()))
            except (InvalidRequest, SessionConflict) as e:
                raise type(e)(
                    f"line {number} was refused, and nothing of it stored: {e}. {count} were stored before it"
                ) from None
            count += 1
        return count

    async def _holding(self, session_id: str) -> Store:
        for store in self._shelf.stores() if is_text(session_id) else ():
            if await transact(store, lambda tx: tx.session(session_id), read=True) is not None:
                return store
        raise unknown_session(session_id)


async def _each(lines: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    else:
        for line in lines:
            yield line


def _query(
    agent: str | None, owner: str | None, agents: Sequence[str] | None, owners: Sequence[str | None] | None
) -> SessionQuery:
    """The filters of `list` and `count`."""
    check_filters(agent=agent, owner=owner)
    return SessionQuery(agent, owner, agents=several("agents", agents), owners=several("owners", owners), outer=True)


def _events(tx: Tx, snapshot_id: str) -> list[Event] | None:
    return tx.events([snapshot_id]) if tx.snapshot(snapshot_id) is not None else None


def _forget(tx: Tx, before: float) -> int:
    return tx.drop_changes(before)


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


def _purge(tx: Tx, session_id: str, before: float, now: float) -> list[str]:
    session = tx.session(session_id)
    if session is not None and (session.pending or session.queue or session.updated >= before):
        raise SessionBusy(f"session {session_id!r} goes on")
    return _delete(tx, session_id, False, now)


def _delete(tx: Tx, session_id: str, force: bool, now: float) -> list[str]:
    """Gives the ids of sessions of nested agents that are not in this store."""
    session = tx.session(session_id)
    if session is None:
        raise unknown_session(session_id)
    if session.pending and session.lease_until > now:
        raise SessionBusy(
            f"a turn of session {session_id!r} is running, as far as its lease says, which has "
            f"{session.lease_until - now:.1f} s to go; nothing was deleted. Abort the turn, or, if that process is dead, wait "
            "until then"
        )
    waiting = tx.interrupts(InterruptQuery(status="open", session_id=session_id, limit=100_000))
    if waiting and not force:
        names = ", ".join(f"{r.tool} ({r.id})" for r in waiting[:5])
        raise SessionPaused(
            f"session {session_id!r} waits for decisions on {names}; nothing was deleted. To cancel them: force=True",
            waiting,
        )
    if session.waiting and not force:
        raise SessionPaused(
            f"a decision on session {session_id!r} was accepted, and no process has taken it up yet; nothing was deleted. To "
            "drop it: force=True"
        )
    for row in waiting:
        cancel(tx, row, now, "session deleted")
    elsewhere: list[str] = []
    for inner in session.inner:
        elsewhere += [inner] if tx.session(inner) is None else _delete(tx, inner, True, now)
    tx.drop_session(session_id)
    return elsewhere


def _export(tx: Tx, session_id: str) -> Stored | None:
    session = tx.session(session_id)
    if session is None:
        return None
    snapshots = tx.snapshots(session_id)
    return Stored(
        FORMAT,
        replace(session, holder=None, lease_until=0.0),
        snapshots,
        tx.interrupts(InterruptQuery(session_id=session_id, limit=1_000_000)),
        tx.decisions(session_id=session_id),
        {s.id: tx.batches(s.id) for s in snapshots},
    )
