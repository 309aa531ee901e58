"""A session of an agent: one conversation, driven leg by leg."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from adjourn.answer import Answer, PausedCall
from adjourn.arguments import check_text
from adjourn.conversation import Conversation
from adjourn.errors import (
    AdjournError,
    NothingPaused,
    SessionBusy,
    SessionClosed,
    SessionConflict,
    SessionError,
    SessionNotFound,
    StoreError,
)
from adjourn.events import Event, Forked, Limits, Retried, TurnEnded
from adjourn.generation import Prompt, failure, sendable
from adjourn.handle import AgentInit, AgentInterrupt, AgentOutput, AgentTurn, Resume, inside
from adjourn.lease import transact
from adjourn.ledger import claimed
from adjourn.leg import (
    Agentlike,
    Ended,
    LegJournal,
    Plan,
    check_state,
    overdue,
    rest_output,
    stop_leg,
    told,
)
from adjourn.loading import gone_on, left_behind, turn_at, without_expiry
from adjourn.loop import Driver
from adjourn.outbox import Outbox, elsewhere
from adjourn.parts import Artifact, ErrorInfo, Message, new_id, to_json
from adjourn.promise import loop_for
from adjourn.reader import SessionReader
from adjourn.remote import Remote, driver_of
from adjourn.starting import (
    decide_on,
    expire,
    go_on,
    make_room,
    paused_error,
    put_back_unfit,
    recover,
    retry,
    say,
    sending,
    with_events,
)
from adjourn.state import Finished, Paused, Turn
from adjourn.stream import StreamChunk, TurnEnd, Watcher
from adjourn.tool import AbortSignal


class AgentSession(SessionReader):
    """One conversation. Made by `agent.connect`; for one event loop at a time.

    A session that was named by its id is read from the store at its first use (`async with`, or `await session.load()`,
    does it now, and also goes on with what a dead process left unfinished).
    """

    def __init__(self, agent: Agentlike, init: AgentInit) -> None:
        super().__init__(agent, init)
        self._current: AgentTurn | None = None
        self._outbox: Outbox | None = None  # made for the first message that waits: they hold each other
        self._closed = False
        self.context: Any = None
        """The caller's context of the leg that runs, or ran last."""
        self.abort_signal = AbortSignal()
        """The abort signal of the leg that runs."""

    def _wrap(self, paused: PausedCall) -> AgentInterrupt:
        return AgentInterrupt(self, paused)

    # -- custom state and artifacts ----------------------------------------------------------------------------------

    def update_state(self, change: Callable[[Any], Any] | object) -> Any:
        """Sets the custom state to `change`, or to what the function `change` makes of it; returns it.

        It is stored with the next commit of a turn. Raises InvalidState for what does not fit the agent's `state=` type,
        and NotJSON; the old state then stays.
        """
        data = to_json(change(self.state) if callable(change) else change, "session state")
        value = self.agent.typed_state(data)
        self._belongings.set_state(data, self._here())
        return value

    def add_artifact(self, artifact: Artifact) -> None:
        """Adds an artifact; an earlier one of the same name is replaced."""
        self._belongings.add(artifact, self._here())

    def began_inner(self, session_id: str) -> None:
        """A nested agent's session belongs to this one from now on: it is deleted with it."""
        self._belongings.add_inner(session_id)

    def unsaved(self) -> tuple[Any, tuple[Artifact, ...], tuple[str, ...]]:
        """What changed in this leg, for its commits."""
        return self._belongings.unsaved()

    # -- loading -----------------------------------------------------------------------------------------------------

    async def load(self) -> "AgentSession":
        """Reads the session from its store, and goes on with what a dead process left unfinished.

        A handle that has read it before is brought up to date: it stands where its branch has come to.
        """
        if self._loaded and not self.busy and self._at.stored:
            self._read_again(self._at.snapshot_id)
        await self._load()
        if self._at.unfinished is not None or self._at.waiting:
            turn = self._begin(Plan(recover))
            await turn.settled()
            # Where it broke off, somebody else may have been quicker, and has brought it to rest by now.
            if self._closed or (await self._load()).unfinished is not None:
                await turn  # raises why
        self._start_queued()
        return self

    # -- going on ----------------------------------------------------------------------------------------------------

    def send(
        self,
        message: Prompt | Message,
        *,
        detach: bool = False,
        context: Any = None,
        abort_signal: AbortSignal | None = None,
    ) -> AgentTurn:
        """Says something; the turn starts at once. `detach` makes it a background turn, without chunks.

        While a turn runs this raises SessionBusy, while one is paused SessionPaused (from the turn's output, where the
        session was not loaded yet), unless the agent's `on_message_while_paused` says otherwise.
        """
        self._check_open()
        said = sendable(message)
        if detach and self._store is None:
            raise SessionError("a background turn needs a store: give the agent store=")
        plan = Plan(partial(say, said), context, True, detach, asks=True, said=said)
        if self.agent.on_message_while_paused == "queue" and self._must_wait():
            return self._messages().put(said, plan, self._turn(abort_signal))
        if self.busy:
            raise SessionBusy("a turn of this session is running; await its output, or abort it")
        turn, now = self._at.turn, self.agent.clock.now()  # what is overdue is settled before the message
        if self.agent.on_message_while_paused == "refuse" and turn and not all(overdue(c, now) for c in turn.paused):
            stood = self._at.snapshot_id
            if self._was_left():
                raise left_behind(self.id, stood)
            raise paused_error(self.interrupts)
        return self._begin(plan, abort_signal)

    def resume(self, resume: Resume, *, context: Any = None, abort_signal: AbortSignal | None = None) -> AgentTurn:
        """Several decisions at once: all are valid, or none is taken. Returns the next turn."""
        self._from_outside()
        start = partial(decide_on, Resume.items(resume), resume.by)
        plan = Plan(start, self._context(context), detach=resume.detach, address=resume.address)
        return self._begin(plan, abort_signal)

    def decide(self, answer: Answer) -> AgentTurn:
        """One decision; what an interrupt's own methods call."""
        self._from_outside()
        return self._begin(Plan(partial(decide_on, [answer], None), self.context))

    def _context(self, given: Any) -> Any:
        """A turn goes on with the context that it had."""
        return self.context if given is None else given

    def settle(self, start: Callable[[Turn], tuple[Turn, list[Event]]], context: Any = None) -> AgentTurn:
        """Goes on with what the session around this one decided; that holds whatever expired meanwhile."""
        return self._begin(Plan(partial(go_on, start), context, settled=True))

    def take_up(self, at: str | None) -> AgentTurn:
        """Goes on from a snapshot with decisions that were made elsewhere, or with what a dead process left; for drivers.

        None is the beginning of a session that has no snapshot yet.

        Where somebody else was quicker, the turn ends as theirs does.
        """
        return self._begin(Plan(recover, found_at=at))

    def retry(self, limits: Limits | None = None, *, context: Any = None) -> AgentTurn:
        """Goes on from a failed or aborted turn: finished calls stay, what failed runs again.

        After LimitReached it takes new `limits`; without them it is refused.
        """
        self._from_outside()
        return self._begin(Plan(partial(retry, Retried(limits)), self._context(context), asks=True))

    async def abort(self, reason: str = "aborted by the caller") -> None:
        """Ends the running or paused turn. Its pauses are cancelled; the session takes the next message."""
        check_text("reason", reason)
        if self._current is not None and not self._current.done:
            self._current.abort(reason)
            await self._current.settled()
        at = await self._load()
        if at.paused or at.unfinished is not None:
            ended = TurnEnded("aborted", ErrorInfo("CANCELLED", reason, "Aborted"))
            await self._begin(Plan(partial(with_events, [ended]), settled=True, ends=True))

    async def fork(self, snapshot_id: str | None = None) -> "AgentSession":
        """A branch of this session from one of its snapshots (the one it stands at, where none is named).

        Both share what came before. A paused snapshot's interrupts get new ids in the branch, so that answering one
        branch never touches the other.
        """
        if self._store is None:
            raise SessionError(
                "a session without a store has no snapshots to fork; connect with its client_state instead"
            )
        at = snapshot_id or (await self._load()).snapshot_id
        if at is None:
            raise SessionNotFound("this session has no snapshot yet, so there is nothing to fork")
        branch = AgentSession(self.agent, AgentInit(self.id, at))
        standing = await branch._load()
        standing.branch, standing.waiting, standing.unfinished = True, (), None
        if standing.turn is not None and standing.paused:
            ids = {c.pause.id: new_id("i_") for c in standing.turn.paused if c.pause is not None}
            turn = branch._begin(Plan(partial(with_events, [Forked(ids)])))
            await turn.settled()
            if branch.snapshot_id != turn.snapshot_id:  # else it stands there, be it where a failed turn ended
                await turn
        return branch

    async def close(self) -> None:
        """Waits for the turn that runs, and takes no more. What is stored stays, queued messages too."""
        self._from_outside()
        self._closed = True
        if self._outbox is not None:
            await self._outbox.close()
        if self._current is not None and not self._current.done:
            await self._current.settled()

    async def __aenter__(self) -> "AgentSession":
        return await self.load()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- how a leg starts --------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a turn of this handle runs."""
        return self._current is not None and not self._current.done

    @property
    def running(self) -> str | None:
        """For its outbox: the snapshot that the turn which runs will come to rest at."""
        return self._current.snapshot_id if self._current is not None and self.busy else None

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed("this session handle was closed; connect again")

    def _from_outside(self) -> None:
        if inside(self._current):
            raise SessionBusy(
                "a tool asked its own session to wait for the turn that the tool is part of; that would never end"
            )

    # -- legs --------------------------------------------------------------------------------------------------------

    def _begin(self, plan: Plan, abort_signal: AbortSignal | None = None, handle: AgentTurn | None = None) -> AgentTurn:
        self._check_open()
        loop_for("a turn")  # raises before anything is changed
        turn = handle or self._turn(abort_signal)
        plan.before = self._current
        turn.begin(partial(self._leg, turn, plan))
        self._current = turn
        turn.when_done(partial(self._rested, turn))
        return turn

    def _turn(self, abort_signal: AbortSignal | None) -> AgentTurn:
        turn = AgentTurn(Watcher(self._wrap))
        if abort_signal is not None:
            turn.when_done(abort_signal.on_abort(lambda: turn.abort(abort_signal.reason)))
        return turn

    def _rested(self, turn: AgentTurn) -> None:
        if self._current is turn:
            self._current = None

    async def _leg(self, handle: AgentTurn, plan: Plan) -> AgentOutput:
        before, plan.before = plan.before, None  # or every turn would keep the one before it alive
        if before is not None and not before.done:
            await before.settled()
        del before
        try:
            output, error = await self._to_rest(handle, plan)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._start_queued()
            raise
        if output.finish_reason != "interrupted":
            self._start_queued()
        if error is not None:
            raise error
        return output

    async def _to_rest(self, handle: AgentTurn, plan: Plan) -> tuple[AgentOutput, AdjournError | None]:
        waits = plan.said is not None and self.agent.on_message_while_paused == "queue"
        try:
            found = await self._rest(handle, plan, waits)
        except (SessionBusy, SessionConflict, NothingPaused) as e:
            if plan.found_at is not None and self._store is not None:
                return await elsewhere(self, self._store, plan.found_at), None
            if not waits or not (isinstance(e, SessionBusy) or plan.unqueue is not None):
                raise
            found = None
        if found is None:  # the session turned out to be paused, or to run elsewhere
            self._rested(handle)
            return await self._messages().later(plan, handle), None
        driver, step = found
        output = rest_output(self, driver, step)
        if not plan.detach:
            handle.watcher.feed.put(StreamChunk(turn_end=TurnEnd(output.finish_reason, output.snapshot_id)))
        return output, failure(step.end, driver.cause, output) if isinstance(step, Finished) else None

    async def _rest(
        self, handle: AgentTurn, plan: Plan, waits: bool
    ) -> tuple[Driver | Remote | Ended, Paused | Finished] | None:
        """What the plan comes to, and what had to come before it; None for a message that waits where it is paused."""
        at, now = self._at, self.agent.clock.now()
        if plan.asks and self._loaded and at.stored and self._store is not None:
            leg = at.leg(handle.snapshot_id, self.agent.name, self.agent.holder, now, new_turn=True)
            try:  # somebody else may be at it, or have been: that is known before a model is asked
                await transact(self._store, partial(claimed, leg=leg, now=now), read=True)
            except SessionConflict:
                self._read_again(at.snapshot_id)
                raise
        at = await self._load()
        check_state(self.agent, at.state)
        if at.waiting and self._store is not None:
            unfit = await put_back_unfit(self, self._store)
            if unfit is not None and plan.start == recover and not (at.waiting or at.unfinished):
                raise unfit
        if at.queue and plan.start == recover and not (at.unfinished or at.waiting or at.paused):
            plan = sending(at.queue)
        if (at.unfinished is not None or at.waiting) and plan.start != recover and not plan.ends:
            await self._run(AgentTurn(Watcher()), Plan(recover))
        late = plan.start != recover and not plan.settled
        if late and at.turn and any(overdue(c, now) for c in at.turn.paused):
            await self._run(AgentTurn(Watcher()), Plan(partial(expire, now)))
        if plan.new_turn and at.paused and self.agent.on_message_while_paused == "decline":
            await self._run(AgentTurn(Watcher()), Plan(make_room))
        if waits and at.paused:
            return None
        try:
            return await self._run(handle, plan)
        except SessionConflict:
            # Where the turn was aborted from outside, that is how it ended.
            at = await self._load()
            if at.snapshot_id != handle.snapshot_id or at.turn is None or at.turn.ended is None:
                raise
            return Ended(at.turn), Finished(at.turn.ended)

    async def _run(self, handle: AgentTurn, plan: Plan) -> tuple[Driver | Remote, Paused | Finished]:
        """One leg, to its rest. Whatever is raised, the session stands where the store has it."""
        at, agent = self._at, self.agent
        turn, events = plan.start(self)
        setting = agent.setting(self, plan.context)
        setting.signal = self.abort_signal = handle.signal
        self.context = setting.context
        setting.sink = None if plan.detach else handle.watcher
        leg = at.unfinished or at.leg(
            handle.snapshot_id, agent.name, agent.holder, agent.clock.now(), new_turn=plan.new_turn
        )
        leg = leg if plan.unqueue is None else replace(leg, queued=plan.unqueue)
        handle.snapshot_id, setting.leg = leg.snapshot_id, leg
        self._belongings.watch(None if plan.detach else handle.watcher)
        journal = None if self._store is None else LegJournal(self, self._store, leg, at.waiting, plan)
        driver = driver_of(turn, setting, journal, at)
        lost: list[Exception] = []
        if journal is not None:
            setting.journal, setting.key = journal, self.id
            agent.running[leg.snapshot_id] = handle
            if isinstance(driver, Driver):  # an engine's workers keep their lease themselves
                agent.keeper.watch(journal.store, journal.current, partial(stop_leg, asyncio.current_task(), lost))
        driver.taken(turn, events, before=at.turn, decided=not plan.new_turn)
        try:
            if plan.detach:
                await driver.flush()
                handle.now_stored()
            step = await driver.run()
        except BaseException as e:
            self._closed = self._closed or isinstance(e, SessionNotFound)  # deleted: it must not come back under its id
            if journal is not None and journal.leg.epoch:
                self._belongings.clear()
                self._read_again(leg.snapshot_id)  # the store knows what was kept
            elif journal is not None and not at.branch and not isinstance(e, StoreError):
                self._read_again(at.snapshot_id)  # somebody else was quicker
            if lost and isinstance(e, asyncio.CancelledError):
                raise lost[0] from e
            raise
        finally:
            self._belongings.watcher = None
            if journal is not None:
                agent.running.pop(leg.snapshot_id, None)
                agent.keeper.forget(leg.snapshot_id)
        if journal is not None:
            self._belongings.saved()
            at.queue = list(journal.queue)
        else:
            self._belongings.clear()
            at.queue = [q for q in at.queue if q.id != plan.unqueue]
        turn = driver.turn if journal is None else without_expiry(driver.turn, journal.put_back)
        at.rest(turn, leg.snapshot_id if self._store is not None else None, leg.turn_id, setting.trace)
        return driver, step

    # -- messages that wait ------------------------------------------------------------------------------------------

    @property
    def standing(self) -> Conversation:
        """For what starts its legs: where it stands."""
        return self._at

    def _messages(self) -> Outbox:
        if self._outbox is None:
            self._outbox = Outbox(self)
        return self._outbox

    def _must_wait(self) -> bool:
        """Whether a message cannot be sent now."""
        try:
            at = self._here()
            if at.paused and not self.busy and self._was_left():
                at = self._here()
        except SessionConflict:
            return True  # a turn runs elsewhere
        return self.busy or at.paused or bool(at.queue)

    def _was_left(self) -> bool:
        """Whether somebody went on from where this stands. Then it is read anew at the next look. Raises SessionNotFound."""
        stood = self._at.snapshot_id
        left = partial(gone_on, session_id=self.id, snapshot_id=stood)
        if self._store is None or not self._at.stored or not self._store.submit(left, read=True).result():
            return False
        self._read_again(stood)
        return True

    def _start_queued(self) -> None:
        """Sends the message that has waited longest, once nothing runs and nothing is paused."""
        if not self._at.queue or self._at.paused or self._closed or not self._loaded:
            return
        plan = sending(self._at.queue)
        mine = self._outbox.take(self._at.queue[0].id) if self._outbox is not None else None
        handle, plan = mine or (None, plan)
        self._begin(plan, None, handle)

    async def told(self, snapshot_id: str) -> AgentOutput:
        """For its outbox: the output of a turn that another handle brought to this rest. Raises as that turn's would."""
        assert self._store is not None
        one = AgentSession(self.agent, AgentInit(self.id, snapshot_id))
        await one._load()
        find = partial(turn_at, snapshot_id=snapshot_id, limits=self.agent.limits)
        turn = await transact(self._store, find, read=True)
        if not self.busy and self._at.stored:
            self._read_again(self._at.snapshot_id)
        return told(one, turn)
