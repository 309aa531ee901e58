"""The part of the desk that is about sessions and agents. See `desk.py`."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from adjourn.agent import Agent, SnapshotView
from adjourn.app import Adjourn
from adjourn.arguments import check_limit, is_text
from adjourn.errors import InvalidRequest, NothingPaused, SessionConflict, SessionError, SessionNotFound, TurnError
from adjourn.events import Limits
from adjourn.handle import AgentInit, AgentOutput, AgentTurn, SessionState
from adjourn.lease import transact
from adjourn.loading import load
from adjourn.parts import FinishReason
from adjourn.records import INNER, unknown_session, unknown_snapshot
from adjourn.server.principal import Principal
from adjourn.server.problems import AgentUnknown
from adjourn.server.untold import is_told, untold, untold_entries, untold_line
from adjourn.session import AgentSession
from adjourn.store import SessionQuery, SessionRecord, Snapshot, Store


class Say(msgspec.Struct, frozen=True):
    """One message to an agent: to a new session, a stored one (or one of its snapshots), or one that the caller keeps.

    `begun` is the id that a new session gets; None for one that nobody knows before.
    """

    message: Any
    session_id: str | None = None
    snapshot_id: str | None = None
    state: SessionState | None = None
    owner: str | None = None
    detach: bool = False
    begun: str | None = None


class Run(NamedTuple):
    """A turn that was begun, and the session it is of."""

    session_id: str
    turn: AgentTurn
    told: bool
    """Whether whoever began it is told what an exception said."""


class Sessions(msgspec.Struct, frozen=True):
    """Some sessions, oldest first; `next_cursor` gets what follows, and is None at the end."""

    items: Sequence[SessionRecord]
    next_cursor: str | None = None


class SessionDesk:
    """Sessions and agents, for whoever asks."""

    def __init__(self, ai: Adjourn, tells_everybody: bool = False) -> None:
        self.ai = ai
        self.tells_everybody = tells_everybody

    def tells(self, principal: Principal) -> bool:
        """Whether this principal is told what exceptions of tools and models said."""
        return self.tells_everybody or is_told(principal)

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def sessions(
        self,
        principal: Principal,
        *,
        agent: str | None = None,
        owner: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Sessions:
        """Sessions this principal sees, oldest first."""
        check_limit(limit, 1000)
        if principal.interrupts is not None or not all(is_text(f) for f in (agent, owner) if f is not None):
            return Sessions([])
        agents, owners = names_of(principal.agents), owners_of(principal)
        query = SessionQuery(agent, owner, None, None, _position(cursor), limit + 1, agents, owners, outer=True)
        found: list[SessionRecord] = []
        for store in self.ai.stores():
            found += await transact(store, lambda tx: tx.sessions(query), read=True)
        items = sorted(found, key=lambda s: (s.created, s.id))[:limit]
        return Sessions(items, _cursor(items[-1]) if len(found) > limit else None)

    async def ends(self, rows: Sequence[SessionRecord]) -> dict[str, FinishReason | None]:
        """How each of these sessions came to rest last, by its id."""
        heads = {row.head: row.id for row in rows if row.head is not None}
        out: dict[str, FinishReason | None] = {}
        for store in self.ai.stores() if heads else ():
            found = await transact(store, lambda tx: [tx.snapshot(head) for head in heads], read=True)
            out |= {heads[s.id]: s.finish_reason for s in found if s is not None}
        return out

    async def session(self, principal: Principal, session_id: str) -> SessionRecord:
        """One session. Raises SessionNotFound, also for what this principal may not see."""
        _, record = await self._session(principal, session_id)
        return record

    async def _session(self, principal: Principal, session_id: str) -> tuple[Store, SessionRecord]:
        named = plain_id(session_id)
        for store in self.ai.stores() if not named.startswith(INNER) else ():
            record = await transact(store, lambda tx: tx.session(named), read=True)
            if record is not None and principal.sees(record):
                return store, record
        raise unknown_session(session_id)

    async def view(self, principal: Principal, session_id: str, snapshot_id: str | None = None) -> SnapshotView | None:
        """A session as it stands, or as it stood at one of its snapshots; None where it has none yet."""
        store, record = await self._session(principal, session_id)
        if snapshot_id is None and record.head is None:
            return None
        await self._snapshot_of(store, record, snapshot_id)
        work = partial(load, session_id=None if snapshot_id else record.id, snapshot_id=snapshot_id)
        loaded = await transact(store, work, read=True)
        if loaded is None or not loaded.chain:
            return None
        agent = self.ai.agents.get(record.agent)
        limits = agent.limits if agent is not None else Limits()
        return self.shown(principal, SnapshotView(loaded, limits, self.ai.clock.now()))

    def shown(self, principal: Principal, view: SnapshotView) -> SnapshotView:
        """The view as this principal may have it."""
        if view.error is not None and not self.tells(principal):
            view.error = untold(view.error)
        return view

    async def snapshots(self, principal: Principal, session_id: str) -> Sequence[Snapshot]:
        """The resting points of a session, oldest first."""
        record = await self.session(principal, session_id)
        found = await self.ai.sessions.snapshots(record.id)
        if self.tells(principal):
            return found
        return [s if s.error is None else msgspec.structs.replace(s, error=untold(s.error)) for s in found]

    async def _snapshot_of(self, store: Store, record: SessionRecord, snapshot_id: str | None) -> None:
        if snapshot_id is not None:
            snapshot = await transact(store, lambda tx: tx.snapshot(plain_id(snapshot_id)), read=True)
            if snapshot is None or snapshot.session_id != record.id:
                raise SessionNotFound(f"session {record.id!r} has no snapshot {snapshot_id!r}")

    async def timeline(self, principal: Principal, session_id: str) -> Sequence[Any]:
        """What happened in a session, in order: `timeline.Entry` values."""
        record = await self.session(principal, session_id)
        entries = await self.ai.sessions.timeline(record.id)
        return entries if self.tells(principal) else untold_entries(entries)

    async def export(self, principal: Principal, session_ids: Sequence[str] | None = None) -> AsyncIterator[bytes]:
        """Sessions as lines of JSON, without the line breaks: the named ones, or all that this principal sees."""
        if session_ids is not None:
            for session_id in session_ids:
                await self.session(principal, session_id)
        lines = self._exported(principal, session_ids)
        return lines if self.tells(principal) else _untold(lines)

    async def _exported(self, principal: Principal, session_ids: Sequence[str] | None) -> AsyncIterator[bytes]:
        for session_id in session_ids or ():
            async for line in self._one(session_id):
                yield line
        cursor: str | None = None
        while session_ids is None:
            page = await self.sessions(principal, cursor=cursor, limit=100)
            for record in page.items:
                async for line in self._one(record.id):
                    yield line
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _one(self, session_id: str) -> AsyncIterator[bytes]:
        try:
            async for line in self.ai.sessions.export([session_id]):
                yield line
        except SessionNotFound:
            return  # it was deleted since it was listed

    async def delete(self, principal: Principal, session_id: str, *, force: bool = False) -> None:
        """Deletes a session. Raises SessionPaused where it waits and there is no `force`. The audit stays."""
        principal.require("admin", "delete a session")
        record = await self.session(principal, session_id)
        await self.ai.sessions.delete(record.id, force=force)

    async def fork(self, principal: Principal, session_id: str, snapshot_id: str | None = None) -> AgentSession:
        """A branch of a session from one of its snapshots: go on with it by its `snapshot_id`."""
        principal.require("decide", "fork a session")
        store, record = await self._session(principal, session_id)
        await self._snapshot_of(store, record, snapshot_id)
        agent = self.agent(principal, record.agent)
        return await agent.connect(AgentInit(session_id=record.id)).fork(snapshot_id)

    async def retry(self, principal: Principal, session_id: str, limits: Limits | None = None) -> Run:
        """Goes on with a turn that failed or was aborted."""
        principal.require("decide", "retry a turn")
        _, record = await self._session(principal, session_id)
        agent = self.agent(principal, record.agent)
        view = await self.view(principal, record.id)
        if view is None or view.status not in ("failed", "aborted", "expired"):
            raise NothingPaused("the last turn of this session did not fail, so there is nothing to retry")
        if view.error is not None and view.error.kind == "LimitReached" and limits is None:
            raise SessionError("the turn reached a limit; retry it with new `limits`, or it would only reach it again")
        turn = agent.connect(AgentInit(session_id=record.id)).retry(limits, context=context_of(principal))
        return Run(record.id, turn, self.tells(principal))

    async def abort(self, principal: Principal, session_id: str, reason: str = "") -> bool:
        """Ends the running or paused turn of a session; whether there was one."""
        principal.require("decide", "abort a turn")
        _, record = await self._session(principal, session_id)
        agent, why = self.agent(principal, record.agent), reason or f"aborted by {principal.name}"
        if record.pending and record.head is not None:
            return await agent.abort(record.head, why) == "pending"
        view = await self.view(principal, record.id)
        if view is None or view.finish_reason != "interrupted":
            return False
        await agent.connect(AgentInit(session_id=record.id)).abort(why)
        return True

    # -- agents ------------------------------------------------------------------------------------------------------

    def agents(self, principal: Principal) -> Sequence[Agent]:
        """The agents this principal may use, by name."""
        known = self.ai.agents
        return [known[n] for n in sorted(known) if principal.sees_agent(n) and principal.interrupts is None]

    def agent(self, principal: Principal, name: str) -> Agent:
        """One of them. Raises AgentUnknown."""
        agent = self.ai.agents.get(name)
        if agent is None or not principal.sees_agent(name) or principal.interrupts is not None:
            raise AgentUnknown(f"there is no agent {name!r} here")
        return agent

    async def send(self, principal: Principal, agent_name: str, say: Say) -> Run:
        """Says something to an agent; the turn runs whether or not anybody reads it.

        A new session belongs to whoever began it (an admin may name another `owner`). Ids of sessions are given here, so a
        session that is named has to be there.
        """
        principal.require("decide", "talk to an agent")
        agent = self.agent(principal, agent_name)
        session_id = say.session_id
        if agent.store is None and (session_id or say.snapshot_id or say.detach):
            raise SessionError(
                f"agent {agent.name!r} keeps no sessions: send the `state` of the last reply instead of an id"
            )
        if agent.store is not None and say.state is not None:
            raise SessionError(f"agent {agent.name!r} keeps its sessions itself: send the sessionId instead of a state")
        if say.snapshot_id is not None:
            session_id = await self.of_snapshot(principal, agent, say.snapshot_id, session_id)
        elif session_id is not None:
            await self.of_agent(principal, agent, session_id)
        owner = None if session_id is not None or agent.store is None else principal.name
        if say.owner is not None and say.owner != principal.name:
            principal.require("admin", "begin a session for somebody else")
            self._check_begun_for(principal, say.owner)
            owner = say.owner if owner is not None else None
        init = AgentInit(session_id or say.begun, say.snapshot_id, say.state, owner)
        session = agent.connect(init)
        turn = session.send(say.message, detach=say.detach, context=context_of(principal))
        return Run(session.id, turn, self.tells(principal))

    def _check_begun_for(self, principal: Principal, owner: str) -> None:
        """Raises Forbidden where rules of the desk are against beginning a session that somebody else will own."""

    async def of_agent(self, principal: Principal, agent: Agent, session_id: str) -> None:
        record = await self.session(principal, session_id)
        if record.agent != agent.name:
            raise SessionNotFound(f"agent {agent.name!r} has no session {session_id!r}")

    async def of_snapshot(self, principal: Principal, agent: Agent, snapshot_id: str, session_id: str | None) -> str:
        if agent.store is None:
            raise SessionNotFound(f"agent {agent.name!r} has no store, so there is no snapshot {snapshot_id!r}")
        snapshot = await transact(agent.store, lambda tx: tx.snapshot(plain_id(snapshot_id)), read=True)
        if snapshot is None or session_id not in (None, snapshot.session_id):
            raise unknown_snapshot(snapshot_id)
        try:
            await self.of_agent(principal, agent, snapshot.session_id)
        except SessionNotFound:  # it would name the session of somebody else
            raise unknown_snapshot(snapshot_id) from None
        return snapshot.session_id


async def outcome(turn: AgentTurn, seconds: float) -> AgentOutput | None:
    """What a turn came to, failures included; None where it still runs after so many seconds.

    Raises what refused it: then it did nothing.
    """
    try:
        await asyncio.wait_for(turn.settled(), seconds)
    except TimeoutError:
        return None
    try:
        return await turn.wait()
    except TurnError as e:
        if isinstance(e.response, AgentOutput):
            return e.response
        raise
    except asyncio.CancelledError:
        if not turn.done or (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise SessionConflict("the turn was stopped here; whoever holds its session goes on with it") from None


def context_of(principal: Principal) -> dict[str, str]:
    return {"principal": principal.name, "role": principal.role}


def names_of(scope: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if scope is None else tuple(sorted(scope))


def owners_of(principal: Principal) -> tuple[str | None, ...] | None:
    scope = principal.owner_scope
    return None if scope is None else tuple(name or None for name in sorted(scope))


def plain_id(given: str) -> str:
    # What no store could hold is not there; asking one for it would be an error of its own.
    return given if is_text(given) else "?"


def _cursor(record: SessionRecord) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([record.created, record.id])).decode()


def _position(cursor: str | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[float, str])
    except (ValueError, msgspec.DecodeError):
        raise InvalidRequest("the cursor is not one that a page gave; begin without one") from None


async def _untold(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for line in lines:
        yield untold_line(line)
