"""What a worker of an engine does: one step of a turn, with the loop's own code, committed where it is still asked for."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from adjourn.agent import Agent
from adjourn.decisions import expire_due, where_to_go_on
from adjourn.engine import Engine, Work, end_leg, place_of
from adjourn.engines.live import Caller
from adjourn.engines.stored import Ask, Changes, Hand, Kept, Legs, Told, View, keep, lease_of
from adjourn.errors import InvalidRequest, ModelError, SessionBusy, SessionConflict, SessionError, StoreError
from adjourn.events import CallRejected, Event, Json, ToolInterrupted, ToolRaised, ToolReturned, ToolStarted, TurnEnded
from adjourn.handle import AgentInit
from adjourn.lease import transact
from adjourn.ledger import Leg, late_result, renew
from adjourn.leg import LegJournal, Plan, unknown_outcome
from adjourn.loop import Driver
from adjourn.notices import tell_expired
from adjourn.parts import Artifact, Chunk, new_id
from adjourn.places import same_place
from adjourn.remote import Remote
from adjourn.session import AgentSession
from adjourn.setting import Setting
from adjourn.starting import recover, sending
from adjourn.state import CallModel, Finished, Paused, RunTools, Turn
from adjourn.store import SessionQuery, SessionRecord, Store, Tx
from adjourn.stream import Watcher
from adjourn.tool import AbortSignal
from adjourn.turn import next_step

_SEEN = 1000
"""So many legs that nobody waits for a worker tells of at once. More at the same time are run as well, and not told of."""


class Superseded(Exception):
    """The step is no longer the one that is asked for, so what came of it was not kept."""


class TryAgain(Exception):
    """Nothing was kept; the same step may work later. `after` is in seconds, or None."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


class Crew(Protocol):
    """The application, as far as a worker needs it."""

    agents: dict[str, Agent]


class WorkerSession(AgentSession):
    """A session that stands in the middle of a leg: what the tools of that leg see as theirs."""

    @classmethod
    def within(cls, agent: Agent, view: View, watcher: Watcher, context: Any, signal: AbortSignal) -> "WorkerSession":
        session = cls(agent, AgentInit(session_id=view.session.id, owner=view.session.owner))
        at, turn = session._at, view.turn
        at.owner, at.snapshot_id, at.turn_id = view.session.owner, view.row.parent_id, view.row.turn_id
        at.history, at.turn, at.state = tuple(turn.history), turn if turn.calls else None, view.state
        at.artifacts = {a.name or new_id("a_"): a for a in view.artifacts}
        at.queue = list(view.session.queue)
        session._loaded = True
        session._belongings.watch(watcher)
        session.context, session.abort_signal = context, signal
        return session

    async def hand_over(self, seeing: "set[asyncio.Task[Any]]") -> Work | None:
        """Begins the leg that this session waits for, without driving it: what there is to do then, or None.

        Where somebody observes, a task among `seeing` tells of the leg until it rests.
        """
        at, agent, store = await self._load(), self.agent, self.agent.store
        engine = agent.engine
        if engine is None or store is None:
            return None
        if at.unfinished is not None or at.waiting:
            plan = Plan(recover)
        elif at.queue and not at.paused:  # whoever was to send it is gone
            plan = sending(at.queue)
        else:
            return None
        turn, events = plan.start(self)
        setting = agent.setting(self, None)
        now = agent.clock.now()
        leg = at.unfinished or at.leg(new_id("n_"), agent.name, agent.holder, now, new_turn=plan.new_turn)
        journal = LegJournal(self, store, leg, at.waiting, plan)
        setting.journal, setting.leg, setting.key = journal, leg, self.id
        remote = Remote(turn, setting, engine, journal, at)
        remote.taken(turn, events)
        if len(seeing) >= _SEEN:
            return await remote.begin()
        work, task = await remote.hand_over()
        if task is not None:
            seeing.add(task)
            task.add_done_callback(partial(_seen, seeing))
        return work


class StepJournal:
    """The journal of one step: what is put into it is added to what the store has by then, if the step is still asked for."""

    def __init__(self, store: Store, legs: Legs, ask: Ask, agent: Agent, view: View, setting: Setting) -> None:
        self.view: View | None = view
        self.driver = Driver(view.turn, setting)
        self.last_try = True
        self._store = store
        self._legs = legs
        self._ask = ask
        self._agent = agent
        self._setting = setting
        self._position = view.position
        self._restarts = {c.id: len(c.restarts) for c in view.turn.calls}
        self._starts: int | None = None

    async def commit(self, turn: Turn, events: Sequence[Event], rest: Paused | Finished | None) -> Sequence[Event]:
        """Keeps the events; `turn` is the step's own, so it is not looked at. Raises Superseded, TryAgain."""
        if not events:  # a step begins at what the store has, and is the engine's: there is no leg to claim
            return ()
        if not self.last_try:
            self._try_again(events)
        kept = await self._patiently(events)
        self.view = kept.view
        if not kept.done or kept.view is None:
            for event in events:  # what ran, ran: whoever decides on the call can see it beside it
                if isinstance(event, ToolReturned) and self._starts is not None:
                    self.late(event.call, event.output)
            raise Superseded
        self._legs.remember(kept.view)
        self._position = kept.view.position
        if isinstance(events[0], ToolStarted):
            self._starts = kept.view.starts(events[0].call)
        return ()

    def _try_again(self, events: Sequence[Event]) -> None:
        cause = self.driver.cause
        for event in events:
            if isinstance(event, TurnEnded) and isinstance(cause, ModelError) and cause.retryable:
                raise TryAgain(str(cause), cause.retry_after)
            if isinstance(event, ToolRaised) and isinstance(cause, (SessionConflict, SessionBusy)):
                # A nested agent whose own leg is still leased to the worker that died.
                raise TryAgain(str(cause))

    async def _patiently(self, events: Sequence[Event]) -> Kept:
        """The store may be away for a moment; what a body did cannot be done again, so it is worth waiting for."""
        changes = Changes(*self._unsaved())
        work = partial(self._keep, events=events, changes=changes)
        failures = 0
        while True:
            try:
                return await transact(self._store, work)
            except StoreError:
                failures += 1
                if self._starts is None and failures > 5:
                    raise
                await asyncio.sleep(min(0.1 * 2**failures, 10.0))

    def _unsaved(self) -> tuple[Any, tuple[Artifact, ...], tuple[str, ...]]:
        session: AgentSession = self._setting.session
        return session.unsaved()

    def _keep(self, tx: Tx, events: Sequence[Event], changes: Changes) -> Kept:
        view = self._legs.view(tx, self._ask, self._agent.limits)
        if view is None or not self._is_asked_for(view, events[0]):
            return Kept(view, False)
        handled = self._setting.handlers is not None
        hand = Hand(self._legs.worker, self._agent.clock.now(), self._store.lease_seconds)
        return keep(tx, view, events, changes, handled, hand)

    def _is_asked_for(self, view: View, event: Event) -> bool:
        if isinstance(event, (ToolStarted, ToolReturned, ToolRaised, ToolInterrupted, CallRejected)):
            call = view.call(event.call)
            if call is None or len(call.restarts) != self._restarts.get(call.id):
                return False
            if self._starts is None:
                return call.state == "ready"
            return call.state == "running" and view.starts(call.id) == self._starts
        return view.position == self._position

    def late(self, call: str, output: Json) -> None:
        now = self._agent.clock.now()
        self._store.submit(partial(late_result, session_id=self._ask.session_id, call_id=call, output=output, now=now))

    def traced(self, trace: str) -> None:
        """The trace of a leg is that of whoever began it."""


class Steps:
    """The steps that a worker of this application can take. Each returns where the turn stands then, whoever got it there."""

    def __init__(self, crew: Crew, holder: str, worker: str = "") -> None:
        self._crew = crew
        self._legs = Legs(holder, worker or holder)
        self.seeing: set[asyncio.Task[Any]] = set()
        """What tells of legs that nobody waits for."""

    async def call_model(self, ask: Ask, last_try: bool) -> Told:
        """Calls the model, where that is what comes next."""
        agent = self._agent(ask)
        view = await self._look(agent, ask)
        if view is None or not view.held or view.position != ask.position:
            return self._told(view, ask, agent)
        step = next_step(view.turn)
        if not isinstance(step, CallModel):
            return self._told(view, ask, agent)
        return await self._take(agent, ask, view, step, last_try)

    async def run_tool(self, ask: Ask, last_try: bool) -> Told:
        """Runs the call, where it is ready to run. One that runs already was begun by a worker that is gone."""
        agent = self._agent(ask)
        view = await self._look(agent, ask)
        call = view.call(ask.call) if view is not None else None
        if view is None or not view.held or call is None:
            return self._told(view, ask, agent)
        if call.state == "running":
            return await self.look(replace(ask, lost=(call.id,)))
        if call.state != "ready":
            return self._told(view, ask, agent)
        return await self._take(agent, ask, view, RunTools([call]), last_try)

    async def handle_pauses(self, ask: Ask) -> Told:
        """Asks the handlers about the pauses, and lets the turn rest where none of them decides."""
        agent = self._agent(ask)
        view = await self._look(agent, ask)
        if view is None or not view.held or view.position != ask.position:
            return self._told(view, ask, agent)
        step = next_step(view.turn)
        if isinstance(step, Paused) and agent.has_handlers:
            told = await self._take(agent, ask, view, step, True)
            if told.first + len(told.events) > ask.position or told.gone:
                return told
        return await self._amend(agent, ask, lambda v: () if v.position == ask.position else None, handled=False)

    async def look(self, ask: Ask) -> Told:
        """Where the turn stands. Runs whose workers are lost become pauses of unknown outcome."""
        agent = self._agent(ask)
        if not ask.lost:
            return self._told(await self._look(agent, ask), ask, agent)
        view = await self._look(agent, ask)
        calls = {c.id: c for c in view.turn.calls} if view is not None else {}
        lost = {i: unknown_outcome(agent.find_tool(calls[i].request.name)) for i in ask.lost if i in calls}

        def settle(view: View) -> Sequence[Event] | None:
            return [ToolInterrupted(c.id, lost[c.id]) for c in view.turn.calls if c.state == "running" and c.id in lost]

        return await self._amend(agent, ask, settle, handled=agent.has_handlers)

    async def expire(self, ask: Ask) -> Told:
        """Settles what nobody decided in time, and begins the leg that goes on from it."""
        agent = self._agent(ask)
        tell_expired(agent.observers, await transact(_store(agent), partial(expire_due, now=agent.clock.now())))
        view = await self._look(agent, ask)
        if view is not None and view.session.waiting and not view.session.pending:
            session = WorkerSession(agent, AgentInit(view.session.id, view.row.id))
            try:
                await session.hand_over(self.seeing)
            except SessionError:
                pass  # somebody else goes on with it
        return await self.look(ask)

    async def abort(self, ask: Ask, reason: str) -> Told:
        """Ends the turn, whether it runs or is paused."""
        agent = self._agent(ask)
        store, now = _store(agent), agent.clock.now()
        view = await self._look(agent, ask)
        if view is not None and view.held:
            work = partial(
                end_leg, snapshot_id=view.row.id, agent=agent, reason=reason, now=now,
                lease=store.lease_seconds,
            )  # fmt: skip
            await transact(store, work)
        elif view is not None and view.turn.paused:
            session = WorkerSession(agent, AgentInit(view.session.id, view.row.id))
            try:
                await session.abort(reason)
            except SessionError:
                pass  # somebody else goes on with it
        return await self.look(ask)

    async def sweep(self, store: Store, engine: Engine, now: float) -> int:
        """Wakes the engine for every session of this store that waits for a driver; says how many those were."""
        await transact(store, partial(expire_due, now=now))
        after: tuple[float, str] | None = None
        woken = 0
        while True:
            query = SessionQuery(due=now, after=after, limit=200, outer=True)
            found = await transact(store, partial(_due, query=query), read=True)
            for session in found:
                agent = self._crew.agents.get(session.agent)
                if agent is None or not same_place(agent.store, store):
                    continue
                work = await self._waiting(agent, store, engine, session, now)
                if work is not None:
                    await engine.wake(work)
                    woken += 1
            if len(found) < query.limit:
                return woken
            after = (found[-1].created, found[-1].id)

    async def _waiting(
        self, agent: Agent, store: Store, engine: Engine, session: SessionRecord, now: float
    ) -> Work | None:
        if session.pending and session.holder == engine.holder:
            return await transact(store, partial(_claim_wake, session_id=session.id, agent=agent, now=now, store=store))
        waiting = await transact(store, partial(where_to_go_on, session_id=session.id, now=now), read=True)
        if waiting is None:
            return None
        try:
            return await WorkerSession(agent, AgentInit(session.id, waiting.at)).hand_over(self.seeing)
        except (SessionError, InvalidRequest):
            return None  # somebody else goes on with it, or there is nothing left to go on with

    async def aclose(self) -> None:
        """Tells of no leg any more. Those that run go on elsewhere."""
        seeing = list(self.seeing)
        for task in seeing:
            task.cancel()
        await asyncio.gather(*seeing, return_exceptions=True)

    # -- one step ----------------------------------------------------------------------------------------------------

    async def _take(
        self, agent: Agent, ask: Ask, view: View, step: CallModel | RunTools | Paused, last_try: bool
    ) -> Told:
        store, signal = _store(agent), AbortSignal()
        async with Caller(ask.live, signal.abort) as caller:
            session = WorkerSession.within(agent, view, caller.watcher, ask.context, signal)
            setting = agent.setting(session, ask.context)
            setting.key, setting.signal, setting.sink = session.id, signal, caller.watcher
            setting.leg = lease_of(view)
            journal = StepJournal(store, self._legs, ask, agent, view, setting)
            setting.journal, journal.last_try = journal, last_try
            doing = asyncio.ensure_future(journal.driver.one_step(step))
            keeping = asyncio.ensure_future(self._keep_lease(agent, view, signal))
            forget = signal.on_abort(lambda: (doing.cancel(), None)[1])
            try:
                await doing
            except Superseded:
                pass
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not signal.aborted or (task is not None and task.cancelling()):
                    doing.cancel()
                    raise
                journal.view = None  # it was ended elsewhere
            finally:
                forget()
                keeping.cancel()
            after = journal.view or await self._look(agent, ask)
            if after is not None and after.row.status != "pending":
                caller.rests()
            own = journal.driver.turn
            if after is not None and own.open is not None and after.turn.open is None and after.turn.added:
                last = after.turn.added[-1]  # it was this call that closed the round of several
                if last.role == "tool":
                    caller.watcher(Chunk("tool", 0, last.content))
        return self._told(after, ask, agent)

    async def _keep_lease(self, agent: Agent, view: View, signal: AbortSignal) -> None:
        store, leg = _store(agent), lease_of(view)
        lease = store.lease_seconds
        if view.session.lease_until - agent.clock.now() > lease / 2:
            await asyncio.sleep(lease / 3)
        while True:
            try:
                await transact(store, partial(renew, leg=leg, now=agent.clock.now(), lease_seconds=lease))
            except SessionError as e:
                signal.abort(f"somebody else goes on with this turn: {e}")
                return
            except StoreError:
                pass  # away for a moment; the next commit will tell
            await asyncio.sleep(lease / 3)

    async def _amend(
        self, agent: Agent, ask: Ask, make: Callable[[View], Sequence[Event] | None], *, handled: bool
    ) -> Told:
        store = _store(agent)

        def work(tx: Tx) -> Kept:
            view = self._legs.view(tx, ask, agent.limits)
            events = make(view) if view is not None else None
            if events is None:
                return Kept(view, False)
            hand = Hand(self._legs.worker, agent.clock.now(), store.lease_seconds)
            return keep(tx, view, events, Changes(), handled, hand)

        kept = await transact(store, work)
        if kept.done and kept.view is not None:
            self._legs.remember(kept.view)
        if kept.view is not None and kept.view.row.status != "pending":
            async with Caller(ask.live, lambda _: None) as caller:
                caller.rests()
        return self._told(kept.view, ask, agent)

    async def _look(self, agent: Agent, ask: Ask) -> View | None:
        view = await transact(_store(agent), partial(self._legs.view, ask=ask, limits=agent.limits), read=True)
        if view is not None and view.held:
            self._legs.remember(view)
        return view

    def _told(self, view: View | None, ask: Ask, agent: Agent) -> Told:
        return self._legs.told(view, ask, agent)

    def _agent(self, ask: Ask) -> Agent:
        agent = self._crew.agents.get(ask.agent)
        if agent is None or agent.store is None:
            raise TryAgain(
                f"agent {ask.agent!r} is not defined in this worker, or has no store; another one may have it"
            )
        return agent


def _seen(seeing: "set[asyncio.Task[Any]]", task: "asyncio.Task[Any]") -> None:
    seeing.discard(task)
    if not task.cancelled():
        task.exception()  # the store went away, or the session: the notice said "lost"


def _store(agent: Agent) -> Store:
    assert agent.store is not None
    return agent.store


def _due(tx: Tx, query: SessionQuery) -> list[SessionRecord]:
    return tx.sessions(query)


def _claim_wake(tx: Tx, session_id: str, agent: Agent, now: float, store: Store) -> Work | None:
    """Of several workers that sweep, one wakes the engine for this leg; its lease begins anew, so that nobody else does."""
    session = tx.session(session_id)
    row = tx.snapshot(session.head) if session is not None and session.head is not None else None
    if session is None or row is None or not session.pending or session.lease_until > now:
        return None
    tx.put_session(replace(session, lease_until=now + store.lease_seconds))
    leg = Leg(
        row.session_id, row.id, row.turn_id, row.agent, "", row.created, row.parent_id, batches=max(row.batches, 1),
        branch=row.branch,
    )  # fmt: skip
    return Work(place_of(tx, leg).id, session_id, row.id, agent.name, agent.limits)
