"""The paused calls that wait for a person, and how they are settled: the service behind API, page and command line."""

import base64
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Protocol, get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from adjourn.agent import Agent
from adjourn.arguments import check_filters, check_limit, check_text, check_texts, is_text, several, short
from adjourn.clock import Clock
from adjourn.decisions import check_bounds, decide, decision_of, expire_due, where_to_go_on
from adjourn.errors import InvalidRequest, ResumeError, StoreUnavailable, ToolGone
from adjourn.events import Decided, Declined, Responded, Restarted
from adjourn.feed import Feed
from adjourn.handle import AgentInit, AgentTurn
from adjourn.lease import transact
from adjourn.notices import tell_accepted, tell_expired, tell_refused
from adjourn.observe import Observer
from adjourn.parts import named, new_id, to_json
from adjourn.places import same_place
from adjourn.records import INNER, unknown_interrupt
from adjourn.resume import check_fit
from adjourn.settling import overdue
from adjourn.store import (
    Change,
    Decision,
    InterruptQuery,
    InterruptRecord,
    InterruptStatus,
    SessionQuery,
    Store,
    Tx,
)

_log = logging.getLogger("adjourn.inbox")


class Office(Protocol):
    """The application, as far as the inbox needs it."""

    agents: dict[str, Agent]
    clock: Clock
    observers: Sequence[Observer]

    def stores(self) -> Sequence[Store]: ...


class Page(msgspec.Struct, frozen=True):
    """Some interrupts, oldest first; `next_cursor` gets what follows, and is None at the end."""

    items: Sequence[InterruptRecord]
    next_cursor: str | None = None


class Accepted:
    """A decision that counts. `turn` goes on from it in this process; None where another one, or nobody yet, runs it.

    `repeated` says that it had been accepted before, under the same key.
    """

    __slots__ = ("decision", "repeated", "turn")

    def __init__(self, decision: Decision, turn: AgentTurn | None, repeated: bool = False) -> None:
        self.decision = decision
        self.turn = turn
        self.repeated = repeated

    @property
    def verb(self) -> str:
        return self.decision.verb

    @property
    def by(self) -> str | None:
        return self.decision.by

    def __repr__(self) -> str:
        return f"<Accepted {self.decision.verb} {self.decision.interrupt_id} by={self.decision.by!r}>"


class _How(msgspec.Struct, frozen=True):
    """What goes with a decision. It has its id before it is made, so that one made before is told from it."""

    address: str | None
    run: bool
    key: str | None
    expect: str | None
    decision_id: str


class Inbox:
    """Every method works in a process that knows nothing but the store. `by` says who decides, `address` from where."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._driving: dict[str, AgentTurn] = {}
        self._feed = Feed(office.stores)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def list(
        self,
        *,
        status: InterruptStatus | None = "open",
        tool: str | None = None,
        agent: str | None = None,
        session_id: str | None = None,
        assignee: str | None = None,
        agents: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        owners: Sequence[str | None] | None = None,
        text: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """What waits, oldest first. `status=None` lists every interrupt there ever was.

        `assignee` is the session's owner. `agents`, `tools` and `owners` take any of several, None among the owners being
        nobody. `text` is looked for in tool, agent, owner, id, input and payload, whatever its case.
        """
        check_limit(limit, 1000)
        query = _query(status, tool, agent, session_id, assignee, agents, tools, owners, text)
        query = replace(query, after=_position(cursor), limit=limit + 1)
        await self.expire_due(run=False)
        found: list[InterruptRecord] = []
        for store in self._office.stores():
            found += await transact(store, partial(_list, query=query), read=True, observers=self._office.observers)
        found.sort(key=lambda r: (r.created, r.id))
        items = found[:limit]
        more = len(found) > limit
        return Page(items, _cursor(items[-1]) if more else None)

    async def count(
        self,
        *,
        status: InterruptStatus | None = "open",
        tool: str | None = None,
        agent: str | None = None,
        session_id: str | None = None,
        assignee: str | None = None,
        agents: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        owners: Sequence[str | None] | None = None,
        text: str | None = None,
    ) -> int:
        """How many `list` would give with these filters; each store counts to a million."""
        query = _query(status, tool, agent, session_id, assignee, agents, tools, owners, text)
        await self.expire_due(run=False)
        return sum([await transact(store, lambda tx: tx.count(query), read=True) for store in self._office.stores()])

    async def get(self, interrupt_id: str) -> InterruptRecord:
        """One interrupt. Raises UnknownInterrupt. An overdue one is settled first."""
        store, row = await self._find(interrupt_id)
        if overdue(row, self._office.clock.now()):
            tell_expired(
                self._office.observers, await transact(store, partial(expire_due, now=self._office.clock.now()))
            )
            _, row = await self._find(interrupt_id)
        return row

    async def history(self, interrupt_id: str) -> Sequence[Decision]:
        """Every decision on it, in order: the audit. A call that never paused has its late results under its call id."""
        out: list[Decision] = []
        for store in self._office.stores() if is_text(interrupt_id) else ():
            out += await transact(store, lambda tx: tx.decisions(interrupt_id=interrupt_id), read=True)
        if not out:
            await self._find(interrupt_id)  # raises for an id that never was
        return out

    # -- following ---------------------------------------------------------------------------------------------------

    async def changes(self, after: str | None = None, limit: int = 500) -> Sequence[Change]:
        """What happened after this position in the feed (None: from its beginning): opened, settled, opened again.

        Nothing is ever missed by going on from the last position seen; one from a time that the store does not know of, since
        a backup was restored, raises UnknownPosition. Entries older than what `ai.sessions.purge` leaves
        are gone. An interrupt that was deleted with its session is still named here.
        """
        return await self._feed.changes(after, limit)

    async def latest_position(self) -> str:
        """Where the feed ends now: read it before looking at a list, then `watch` from there, and nothing is missed."""
        return await self._feed.position()

    def watch(self, after: str | None = None) -> AsyncGenerator[Change, None]:
        """`changes`, and then those that come, from whichever process, until the iterator is closed."""
        check_texts(after=after)
        return self._feed.watch(after)

    # -- deciding ----------------------------------------------------------------------------------------------------

    async def respond(
        self,
        interrupt_id: str,
        output: Any,
        *,
        by: str | None = None,
        address: str | None = None,
        run: bool = True,
        key: str | None = None,
        expect: str | None = None,
    ) -> Accepted:
        """Supplies the tool's result; the tool does not run. Raises ResumeError, and then nothing changed.

        With a `key` of the caller's making, the same decision sent again is accepted as the one that it is, and another
        one raises AlreadyResolved. `expect` is the `version_tag` of the record that was looked at: if the interrupt was
        settled and waits once more since, this raises StaleInterrupt. Both hold for every decision.
        """
        event = Responded(interrupt_id, to_json(output, "response"), None, by)
        return await self._decide(event, _How(address, run, key, expect, new_id("d_")))

    async def restart(
        self,
        interrupt_id: str,
        *,
        metadata: Any = None,
        replace_input: Any = UNSET,
        by: str | None = None,
        address: str | None = None,
        run: bool = True,
        key: str | None = None,
        expect: str | None = None,
    ) -> Accepted:
        """Sends the tool round again, with `metadata` as its `ctx.resumed_metadata`."""
        given = UNSET if replace_input is UNSET else to_json(replace_input, "replaced input")
        event = Restarted(interrupt_id, to_json(metadata, "restart metadata"), given, by)
        return await self._decide(event, _How(address, run, key, expect, new_id("d_")))

    async def decline(
        self,
        interrupt_id: str,
        reason: str = "",
        *,
        by: str | None = None,
        address: str | None = None,
        run: bool = True,
        key: str | None = None,
        expect: str | None = None,
    ) -> Accepted:
        """Refuses; the model is told so, and why."""
        check_text("reason", reason)
        return await self._decide(Declined(interrupt_id, reason, by), _How(address, run, key, expect, new_id("d_")))

    async def expire_due(self, *, run: bool = True) -> Sequence[Decision]:
        """Settles what nobody decided in time. With `run`, turns whose agents are defined here go on at once."""
        out: list[Decision] = []
        for store in self._office.stores():
            now = self._office.clock.now()
            if not await transact(store, partial(_is_due, now=now), read=True):
                continue  # looking is cheaper than a writing transaction, and almost always enough
            settled: list[Decision] = []
            while found := await transact(store, partial(expire_due, now=now)):
                settled += found
                tell_expired(self._office.observers, found)
            out += settled
            for session_id in dict.fromkeys(d.session_id for d in settled) if run else ():
                await self.go_on(store, session_id)
        return out

    async def _decide(self, event: Decided, how: _How) -> Accepted:
        check_texts(by=event.by, address=how.address, key=how.key, expect=how.expect)
        row: InterruptRecord | None = None
        try:
            store, row = await self._find(event.interrupt)
            decision = await self._accepted(store, row, event, how)
        except ResumeError as e:
            if self._office.observers:
                tell_refused(self._office.observers, event, e, row, self._office.clock.now())
            raise
        repeated = decision.id != how.decision_id
        if self._office.observers and not repeated:
            tell_accepted(self._office.observers, event, row, decision.at)
        turn = await self.go_on(store, row.session_id) if how.run else None
        return Accepted(decision, turn, repeated)

    async def _accepted(self, store: Store, row: InterruptRecord, event: Decided, how: _How) -> Decision:
        office = self._office
        agent = office.agents.get(row.agent)
        if row.status == "open" and not overdue(row, office.clock.now()):
            if isinstance(event, Restarted) and agent is None and event.input is not UNSET:
                raise ToolGone(
                    f"agent {row.agent!r} is not defined in this process, so the replaced input cannot be checked. The pause "
                    "is kept: decide without replacing the input, or where the agent is defined"
                )
            find = agent.find_tool if agent is not None else None
            if find is not None or not isinstance(event, Restarted):
                check_fit(row.tool, row, event, find or (lambda _: None))
            elif "restart" not in row.allow:
                check_fit(row.tool, row, event, lambda _: None)
            if agent is not None:
                await transact(store, partial(check_bounds, row=row, event=event, limits=agent.limits), read=True)
        work = partial(
            decide,
            interrupt_id=row.id,
            event=event,
            now=office.clock.now(),
            address=how.address,
            key=how.key,
            expect=how.expect,
            decision_id=how.decision_id,
        )
        return decision_of(await transact(store, work, observers=office.observers))

    async def go_on(self, store: Store, session_id: str) -> AgentTurn | None:
        """Drives a session that waits for a driver, where its agent is defined here and nobody else drives it."""
        if session_id.startswith(INNER):
            return None  # the session around it goes on with it
        running = self._driving.get(session_id)
        if running is not None and not running.done:
            return running  # it takes up what was decided meanwhile before it rests
        work = partial(where_to_go_on, session_id=session_id, now=self._office.clock.now())
        waiting = await transact(store, work, read=True)
        session = await transact(store, lambda tx: tx.session(session_id), read=True)
        agent = self._office.agents.get(session.agent) if session is not None else None
        if waiting is None or agent is None or not same_place(agent.store, store):
            return None
        turn = self._driving[session_id] = agent.connect(AgentInit(session_id, waiting.at)).take_up(waiting.at)
        turn.when_done(partial(self._driven, session_id, turn))
        return turn

    def _driven(self, session_id: str, turn: AgentTurn) -> None:
        if self._driving.get(session_id) is turn:
            del self._driving[session_id]

    async def recover(self) -> Sequence[AgentTurn]:
        """Takes up every session that waits for a driver: left by a dead process, or decided where nobody could run it.

        One that cannot be read or taken up is logged (`adjourn.inbox`), and the others go on.
        """
        turns: list[AgentTurn] = []
        for store in self._office.stores():
            tell_expired(
                self._office.observers, await transact(store, partial(expire_due, now=self._office.clock.now()))
            )
            after: tuple[float, str] | None = None
            while True:
                query = SessionQuery(due=self._office.clock.now(), after=after, limit=200, outer=True)
                found = await transact(store, _sessions(query), read=True)
                for session in found:
                    try:
                        turn = await self.go_on(store, session.id)
                    except StoreUnavailable:
                        raise
                    except Exception as e:  # noqa: BLE001 - one that is broken must not keep the others waiting
                        _log.warning("session %s was not taken up, and stays as it is: %s", session.id, named(e))
                        continue
                    if turn is not None:
                        turns.append(turn)
                if len(found) < query.limit:
                    break
                after = (found[-1].created, found[-1].id)
        return turns

    async def _find(self, interrupt_id: str) -> tuple[Store, InterruptRecord]:
        for store in self._office.stores() if is_text(interrupt_id) else ():
            row = await transact(store, lambda tx: tx.interrupt(interrupt_id), read=True)
            if row is not None:
                return store, row
        raise unknown_interrupt(interrupt_id)


def _list(tx: Tx, query: InterruptQuery) -> list[InterruptRecord]:
    return tx.interrupts(query)


def _query(
    status: InterruptStatus | None,
    tool: str | None,
    agent: str | None,
    session_id: str | None,
    assignee: str | None,
    agents: Sequence[str] | None,
    tools: Sequence[str] | None,
    owners: Sequence[str | None] | None,
    text: str | None,
) -> InterruptQuery:
    """The filters of `list` and `count`."""
    if status not in (None, *get_args(InterruptStatus)):
        known = ", ".join(repr(s) for s in get_args(InterruptStatus))
        raise InvalidRequest(f"status={short(status)}: give {known}, or None for all of them")
    check_filters(tool=tool, agent=agent, session_id=session_id, assignee=assignee)
    check_texts(text=text)
    query = InterruptQuery(status, tool, agent, session_id, assignee, text=text or None)
    agents, tools = several("agents", agents), several("tools", tools)
    return replace(query, agents=agents, tools=tools, owners=several("owners", owners))


def _is_due(tx: Tx, now: float) -> bool:
    return bool(tx.interrupts(InterruptQuery(status="open", expired_by=now, limit=1)))


def _sessions(query: SessionQuery) -> Callable[[Any], Any]:
    return lambda tx: tx.sessions(query)


def _cursor(row: InterruptRecord) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([row.created, row.id])).decode()


def _position(cursor: str | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[float, str])
    except (TypeError, ValueError, msgspec.DecodeError):
        raise InvalidRequest("the cursor is not one that a page gave; begin without one") from None
