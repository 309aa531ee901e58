"""A session of an agent: one conversation, driven leg by leg."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET

from adjourn.answer import Answer, PausedCall
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
from adjourn.events import Event, Forked, Limits, Retried, TurnEnded, UserSaid
from adjourn.generation import Prompt, failure, sendable
from adjourn.handle import AgentInit, AgentInterrupt, AgentOutput, AgentTurn, Resume, SessionState, inside
from adjourn.lease import transact
from adjourn.ledger import enqueue
from adjourn.leg import (
    Aborted,
    Agentlike,
    LegJournal,
    Plan,
    check_state,
    checked,
    deciding,
    declining,
    expiring,
    overdue,
    paused_error,
    recovering,
    rest_output,
    sending,
    stop_leg,
)
from adjourn.loading import Loaded, gone_on, left_behind, load, load_on
from adjourn.loop import Driver, paused_call
from adjourn.parts import Artifact, ErrorInfo, Message, Part, convert, new_id, to_json, wire
from adjourn.patch import difference
from adjourn.promise import loop_for
from adjourn.remote import Remote, driver_of
from adjourn.resume import as_items, meant
from adjourn.state import Finished, Paused, Turn
from adjourn.store import Queued
from adjourn.stream import StreamChunk, TurnEnd, Watcher
from adjourn.tool import AbortSignal
from adjourn.turn import begin, record


class AgentSession:
    """One conversation. Made by `agent.connect`; for one event loop at a time.

    A session that was named by its id is read from the store at its first use (`async with`, or `await session.load()`,
    does it now, and also goes on with what a dead process left unfinished).
    """

    def __init__(self, agent: Agentlike, init: AgentInit) -> None:
        self.agent = agent
        self._reader: Callable[[Any], Loaded | None]
        self._reader = partial(load, session_id=init.session_id, snapshot_id=init.snapshot_id)
        self._store = agent.store
        state = checked(agent, init)
        self.id: str = init.session_id or (state.session_id if state else None) or new_id("s_")
        self._at = Conversation(self.id, init.owner)
        self._loaded = not (init.session_id or init.snapshot_id)
        if state is not None:
            agent.typed_state(state.custom)
            self._at.take(state, agent.limits)
        self._unsaved_state: Any = UNSET
        self._unsaved_artifacts: dict[str, Artifact] = {}
        self._shown_state: Any = UNSET
        self._current: AgentTurn | None = None
        self._watcher: Watcher | None = None
        self._handles: dict[str, tuple[AgentTurn, Plan]] = {}
        self._inner: list[str] = []
        self._closed = False
        self.context: Any = None
        """The caller's context of the leg that runs."""
        self.abort_signal = AbortSignal()
        """The abort signal of the leg that runs."""

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def snapshot_id(self) -> str | None:
        """Where it rests now."""
        return self._here().snapshot_id

    @property
    def owner(self) -> str | None:
        return self._here().owner

    @property
    def messages(self) -> list[Message]:
        """The conversation; where it is paused, the last message carries the interrupts."""
        return self._here().messages()

    @property
    def interrupts(self) -> list[AgentInterrupt]:
        """What waits for a decision."""
        turn = self._here().turn
        return [self._wrap(paused_call(c)) for c in turn.paused] if turn is not None else []

    def meant(self, part: Part) -> AgentInterrupt:
        """The pause that a part of a resume decides on, found as `resume` finds it. Raises ResumeError where there is none."""
        return self._wrap(paused_call(meant(self._here().asked(self.agent.limits), part)))

    @property
    def state(self) -> Any:
        """The custom state, as the agent's `state=` type where it has one."""
        return self.agent.typed_state(self._here().state)

    @property
    def artifacts(self) -> list[Artifact]:
        return list(self._here().artifacts.values())

    @property
    def client_state(self) -> SessionState:
        """The whole session as a value, signed where the application has a secret."""
        at = self._here()
        return self.agent.signed(SessionState(self.id, at.messages(), at.state, list(at.artifacts.values())))

    @property
    def last_text(self) -> str:
        """What the model said last."""
        return next((m.text for m in reversed(self._here().messages()) if m.role == "model"), "")

    @property
    def turn_failed(self) -> bool:
        """Whether the last turn failed or was aborted, so that `retry` goes on with it."""
        return self.last_end is not None

    @property
    def last_end(self) -> TurnEnded | None:
        """How the last turn failed or was aborted; None where it did neither."""
        return turn.ended if (turn := self._here().turn) is not None else None

    def _wrap(self, paused: PausedCall) -> AgentInterrupt:
        return AgentInterrupt(self, paused)

    # -- custom state and artifacts ----------------------------------------------------------------------------------

    def update_state(self, change: Any) -> Any:
        """Sets the custom state to `change`, or to what the function `change` makes of it; returns it.

        It is stored with the next commit of a turn. Raises InvalidState for what does not fit the agent's `state=` type,
        and NotJSON; the old state then stays.
        """
        data = to_json(change(self.state) if callable(change) else change, "session state")
        value = self.agent.typed_state(data)
        if self._watcher is not None:
            whole = [{"op": "replace", "path": "", "value": data}]
            patch = whole if self._shown_state is UNSET else difference(self._shown_state, data)
            if patch:
                self._shown_state = data
                self._watcher.feed.put(StreamChunk(custom_patch=patch))
        self._here().state = self._unsaved_state = data
        return value

    def add_artifact(self, artifact: Artifact) -> None:
        """Adds an artifact; an earlier one of the same name is replaced."""
        artifact = convert(wire(artifact), Artifact)  # refused here, not when it is read back
        key = artifact.name or new_id("a_")
        self._here().artifacts[key] = self._unsaved_artifacts[key] = artifact
        if self._watcher is not None:
            self._watcher.feed.put(StreamChunk(artifact=artifact))

    def began_inner(self, session_id: str) -> None:
        """A nested agent's session belongs to this one from now on: it is deleted with it."""
        self._inner.append(session_id)

    def unsaved(self) -> tuple[Any, tuple[Artifact, ...], tuple[str, ...]]:
        """What changed in this leg, for its commits."""
        return self._unsaved_state, tuple(self._unsaved_artifacts.values()), tuple(self._inner)

    # -- loading -----------------------------------------------------------------------------------------------------

    async def load(self) -> "AgentSession":
        """Reads the session from its store, and goes on with what a dead process left unfinished.

        A handle that has read it before is brought up to date: it stands where its branch has come to.
        """
        if self._loaded and not self._busy and self._at.stored:
            self._read_again(self._at.snapshot_id)
        await self._load()
        if self._at.unfinished is not None or self._at.waiting:
            turn = self._begin(Plan(self._recovery))
            await turn.settled()
            # Where it broke off, somebody else may have been quicker, and has brought it to rest by now.
            if self._closed or (await self._load()).unfinished is not None:
                await turn  # raises why
        self._start_queued()
        return self

    def _here(self) -> Conversation:
        if not self._loaded and self._store is not None:
            self._adopt(self._store.submit(self._reader, read=True).result())
        return self._at

    async def _load(self) -> Conversation:
        if not self._loaded and self._store is not None:
            self._adopt(await transact(self._store, self._reader, read=True, observers=self.agent.observers))
        return self._at

    def _adopt(self, loaded: Loaded | None) -> None:
        if self._loaded:
            return
        if loaded is not None:
            agent = self.agent
            running, now = agent.running.__contains__, agent.clock.now()
            self._at.adopt(loaded, agent.name, agent.limits, agent.holder, running, now)
            self.id = self._at.session_id
        if self._unsaved_state is not UNSET:  # set since, for the next turn
            self._at.state = self._unsaved_state
        self._at.artifacts |= self._unsaved_artifacts
        self._loaded = True

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
        said = sendable(message)
        if detach and self._store is None:
            raise SessionError("a background turn needs a store: give the agent store=")
        plan = Plan(partial(self._message, said), context, True, detach, asks=True)
        if self.agent.on_message_while_paused == "queue" and (self._busy or self._here().paused or self._at.queue):
            return self._enqueue(said, plan)
        if self._busy:
            raise SessionBusy("a turn of this session is running; await its output, or abort it")
        turn, now = self._at.turn, self.agent.clock.now()  # what is overdue is settled before the message
        if self.agent.on_message_while_paused == "refuse" and turn and not all(overdue(c, now) for c in turn.paused):
            if self._store is not None and self._at.stored and self._store.submit(self._gone_on(), read=True).result():
                raise self._left_behind()
            raise paused_error(self.interrupts)
        return self._begin(plan, abort_signal)

    def resume(self, resume: Resume, *, context: Any = None, abort_signal: AbortSignal | None = None) -> AgentTurn:
        """Several decisions at once: all are valid, or none is taken. Returns the next turn."""
        self._from_outside()
        start = partial(self._decisions, as_items(resume.respond, resume.restart), resume.by)
        return self._begin(Plan(start, context, detach=resume.detach, address=resume.address), abort_signal)

    def decide(self, answer: Answer) -> AgentTurn:
        """One decision; what an interrupt's own methods call."""
        self._from_outside()
        return self._begin(Plan(partial(self._decisions, [answer])))

    def settle(self, start: Callable[[Turn], tuple[Turn, list[Event]]], context: Any = None) -> AgentTurn:
        """Goes on with what the session around this one decided; that holds whatever expired meanwhile."""
        return self._begin(Plan(lambda: start(self._open_turn()), context, settled=True))

    def take_up(self) -> AgentTurn:
        """Goes on with decisions that were made elsewhere, or with what a dead process left; for drivers."""
        return self._begin(Plan(self._recovery))

    def retry(self, limits: Limits | None = None, *, context: Any = None) -> AgentTurn:
        """Goes on from a failed or aborted turn: finished calls stay, what failed runs again.

        After LimitReached it takes new `limits`; without them it is refused.
        """
        self._from_outside()
        return self._begin(Plan(partial(self._retrying, limits), context, asks=True))

    async def abort(self, reason: str = "aborted by the caller") -> None:
        """Ends the running or paused turn. Its pauses are cancelled; the session takes the next message."""
        if self._current is not None and not self._current.done:
            self._current.abort(reason)
            await self._current.settled()
        at = await self._load()
        if at.paused:
            ended = TurnEnded("aborted", ErrorInfo("CANCELLED", reason, "Aborted"))
            await self._begin(Plan(partial(self._with_events, [ended]))).settled()

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
            await branch._begin(Plan(partial(branch._with_events, [Forked(ids)]))).output
        return branch

    async def close(self) -> None:
        """Waits for the turn that runs, and takes no more. What is stored stays, queued messages too."""
        self._from_outside()
        self._closed = True
        handles, self._handles = self._handles, {}
        for handle, _ in handles.values():
            kept = (
                "it is kept in the store, and sent when the session goes on"
                if self._store is not None
                else "it was not sent"
            )
            handle.fail(
                SessionClosed(f"the session was closed while this message waited for a pause to be over; {kept}")
            )
        if self._current is not None and not self._current.done:
            await self._current.settled()

    async def __aenter__(self) -> "AgentSession":
        return await self.load()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- how a leg starts --------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._current is not None and not self._current.done

    def _from_outside(self) -> None:
        if inside(self._current):
            raise SessionBusy(
                "a tool asked its own session to wait for the turn that the tool is part of; that would never end"
            )

    def _message(self, said: Message) -> tuple[Turn, list[Event]]:
        if self._at.paused:
            raise paused_error(self.interrupts)
        event = UserSaid(said)
        return record(begin(self._at.closed_history(), self.agent.limits), event), [event]

    def _decisions(self, items: Sequence[Answer | Part], by: str | None = None) -> tuple[Turn, list[Event]]:
        return deciding(self.agent, self._at.asked(self.agent.limits), items, by)

    def _retrying(self, limits: Limits | None) -> tuple[Turn, list[Event]]:
        if self._at.turn is None or self._at.turn.ended is None:
            raise NothingPaused("the last turn of this session did not fail, so there is nothing to retry")
        return self._with_events([Retried(limits)])

    def _recovery(self) -> tuple[Turn, list[Event]]:
        if self._at.unfinished is None and not self._at.waiting:
            raise NothingPaused("this session waits for no driver: there is nothing to go on with")
        return self._with_events(recovering(self._open_turn(), self._at, self.agent))

    def _open_turn(self) -> Turn:
        if self._at.turn is None:
            raise NothingPaused("this session waits for no driver: there is nothing to go on with")
        return self._at.turn

    def _with_events(self, events: list[Event]) -> tuple[Turn, list[Event]]:
        turn = self._open_turn()
        for event in events:
            turn = record(turn, event)
        return turn, events

    # -- legs --------------------------------------------------------------------------------------------------------

    def _begin(self, plan: Plan, abort_signal: AbortSignal | None = None, handle: AgentTurn | None = None) -> AgentTurn:
        if self._closed:
            raise SessionClosed("this session handle was closed; connect again")
        loop_for("a turn")  # raises before anything is changed
        turn = handle or AgentTurn(Watcher(self._wrap))
        plan.before = self._current
        turn.begin(partial(self._leg, turn, plan))
        self._current = turn
        turn.when_done(partial(self._rested, turn))
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
        stood = plan.asks and self._loaded and self._at.stored
        if stood and self._store is not None and await transact(self._store, self._gone_on(), read=True):
            raise self._left_behind()  # before a model is asked
        at = await self._load()
        check_state(self.agent, at.state)
        if at.queue and plan.start == self._recovery and not (at.unfinished or at.waiting or at.paused):
            plan = sending(self._message, at.queue)
        if (at.unfinished is not None or at.waiting) and plan.start != self._recovery:
            await self._run(AgentTurn(Watcher()), Plan(self._recovery))
        now, late = self.agent.clock.now(), plan.start != self._recovery and not plan.settled
        if late and at.turn and any(overdue(c, now) for c in at.turn.paused):
            await self._run(AgentTurn(Watcher()), Plan(lambda: self._with_events(expiring(self._open_turn(), now))))
        if plan.new_turn and at.paused and self.agent.on_message_while_paused == "decline":
            await self._run(AgentTurn(Watcher()), Plan(lambda: self._with_events(declining(self._open_turn()))))
        try:
            driver, step = await self._run(handle, plan)
        except SessionConflict:
            # Where the turn was aborted from outside, that is how it ended.
            at = await self._load()
            if at.snapshot_id != handle.snapshot_id or at.turn is None or at.turn.ended is None:
                raise
            driver, step = Aborted(at.turn), Finished(at.turn.ended)
        output = rest_output(self, driver, step)
        if not plan.detach:
            handle.watcher.feed.put(StreamChunk(turn_end=TurnEnd(output.finish_reason, output.snapshot_id)))
        return output, failure(step.end, driver.cause, output) if isinstance(step, Finished) else None

    async def _run(self, handle: AgentTurn, plan: Plan) -> tuple[Driver | Remote, Paused | Finished]:
        """One leg, to its rest. Whatever is raised, the session stands where the store has it."""
        at, agent = self._at, self.agent
        turn, events = plan.start()
        setting = agent.setting(self, plan.context)
        setting.signal = self.abort_signal = handle.signal
        self.context = plan.context
        setting.sink = None if plan.detach else handle.watcher
        leg = at.unfinished or at.leg(
            handle.snapshot_id, agent.name, agent.holder, agent.clock.now(), new_turn=plan.new_turn
        )
        handle.snapshot_id, setting.leg = leg.snapshot_id, leg
        self._shown_state, self._watcher = UNSET, None if plan.detach else handle.watcher
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
                self._read_again(leg.snapshot_id)  # the store knows what was kept
            elif journal is not None and not at.branch and not isinstance(e, StoreError):
                self._read_again(at.snapshot_id)  # somebody else was quicker
            if lost and isinstance(e, asyncio.CancelledError):
                raise lost[0] from e
            raise
        finally:
            self._watcher = None
            if journal is not None:
                agent.running.pop(leg.snapshot_id, None)
                agent.keeper.forget(leg.snapshot_id)
        self._unsaved_state, self._unsaved_artifacts, self._inner = UNSET, {}, []
        if journal is not None:
            at.queue = list(journal.queue)
        elif plan.unqueue is not None:
            at.queue = [q for q in at.queue if q.id != plan.unqueue]
        at.rest(driver.turn, leg.snapshot_id if self._store is not None else None, leg.turn_id, setting.trace)
        return driver, step

    def _read_again(self, snapshot_id: str | None) -> None:
        """From the store, at the next look: where the branch that this snapshot is in has come to by then."""
        self._reader = partial(load_on, session_id=self.id, snapshot_id=snapshot_id)
        self._at = Conversation(self.id, self._at.owner)
        self._loaded = False

    def _gone_on(self) -> Callable[[Any], bool]:
        return partial(gone_on, session_id=self.id, snapshot_id=self._at.snapshot_id)

    def _left_behind(self) -> SessionConflict:
        """What there is to say where somebody else went on from where this handle stands: it then stands there as well."""
        stood = self._at.snapshot_id
        self._read_again(stood)
        return left_behind(self.id, stood)

    # -- queued messages ---------------------------------------------------------------------------------------------

    def _enqueue(self, said: Message, plan: Plan) -> AgentTurn:
        queued, at, agent = Queued(new_id("q_"), said), self._at, self.agent
        if self._store is not None:  # durable when we return
            leg = at.leg("", agent.name, agent.holder, agent.clock.now(), new_turn=True)
            self._store.submit(partial(enqueue, leg=leg, queued=queued, now=agent.clock.now())).result()
        at.queue.append(queued)
        plan.unqueue = queued.id
        handle = AgentTurn(Watcher(self._wrap))
        self._handles[queued.id] = (handle, plan)
        return handle

    def _start_queued(self) -> None:
        """Sends the message that has waited longest, once nothing runs and nothing is paused."""
        if not self._at.queue or self._at.paused or self._closed or not self._loaded:
            return
        plan = sending(self._message, self._at.queue)
        handle, plan = self._handles.pop(self._at.queue[0].id, (None, plan))
        self._begin(plan, None, handle)
