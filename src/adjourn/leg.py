"""One leg of a session: what its agent offers, how it starts, and how its events reach the store."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from msgspec.structs import replace

from adjourn.clock import Clock
from adjourn.engine import Engine
from adjourn.errors import (
    InvalidRequest,
    InvalidState,
    ResumeError,
    SessionConflict,
    SessionError,
)
from adjourn.events import (
    Decided,
    Event,
    Json,
    Limits,
    Pause,
    ToolReturned,
)
from adjourn.generation import failure
from adjourn.handle import AgentInit, AgentInterrupt, AgentOutput, AgentTurn, SessionState
from adjourn.lease import Keeper, settled, timed, transact
from adjourn.ledger import Leg, Saved, Write, late_result, save
from adjourn.notices import leg_ids, tell_accepted, tell_refused
from adjourn.observe import Observer, notify
from adjourn.parts import Artifact, Message, decode, encode, new_id
from adjourn.promise import Promise
from adjourn.setting import Setting
from adjourn.settling import as_event
from adjourn.state import Call, Finished, Paused, Turn
from adjourn.store import Decision, Queued, Store
from adjourn.tool import Tool
from adjourn.transcript import write
from adjourn.turn import next_step

Start = Callable[[Any], tuple[Turn, list[Event]]]


class Agentlike(Protocol):
    """The agent, as far as its sessions need it. `holder` names this process, `keeper` renews its leases."""

    name: str
    store: Store | None
    limits: Limits
    clock: Clock
    keeper: Keeper
    holder: str
    on_message_while_paused: str
    running: "dict[str, AgentTurn]"

    @property
    def observers(self) -> Sequence[Observer]: ...

    @property
    def engine(self) -> Engine | None:
        """What runs its turns instead of this process; None where nothing does."""
        ...

    def find_tool(self, name: str) -> Tool[..., Any] | None: ...

    def setting(self, session: Any, context: Any) -> Setting: ...

    def typed_state(self, value: Any) -> Any:
        """JSON as the agent's state type. Raises InvalidState."""
        ...

    async def abort(self, snapshot_id: str, reason: str = "aborted") -> Any:
        """Ends a running turn, wherever it runs."""
        ...

    async def wait(self, snapshot_id: str) -> Any:
        """Returns when the turn of this snapshot rests, whichever process runs it."""
        ...

    def value_of(self, text: str) -> Any:
        """A reply as the agent's output type; None where it has none."""
        ...

    def signed(self, state: SessionState) -> SessionState: ...

    def verified(self, state: SessionState) -> SessionState: ...


class Unsaved(Protocol):
    """The session, as far as its journal needs it."""

    @property
    def agent(self) -> Agentlike: ...

    def unsaved(self) -> tuple[Any, tuple[Artifact, ...], tuple[str, ...]]:
        """Custom state and artifacts that changed in this leg, and inner sessions that it began."""
        ...


class Drove(Protocol):
    """What ran the leg, as far as its output shows it."""

    turn: Turn
    value: Any


@dataclass(slots=True)
class Ended:
    """A turn that somebody else brought to its rest."""

    turn: Turn
    value: Any = None
    cause: BaseException | None = None


class Resting(Protocol):
    """The session, as far as its output shows it."""

    id: str
    agent: Agentlike

    @property
    def snapshot_id(self) -> str | None: ...

    @property
    def messages(self) -> list[Message]: ...

    @property
    def interrupts(self) -> list[AgentInterrupt]: ...

    @property
    def state(self) -> Any: ...

    @property
    def artifacts(self) -> list[Artifact]: ...

    @property
    def client_state(self) -> SessionState: ...


@dataclass(slots=True)
class Plan:
    """How one leg starts, and what it runs with. `settled`: it was decided outside, so no expiry comes before it. `ends`: it
    ends the turn, whatever else waits. `asks`: it may
    ask the model before it commits anything. `said` is the message that it is about.
    `found_at` is the snapshot where it was found that a driver has something to do.
    """

    start: Start
    context: Any = None
    new_turn: bool = False
    detach: bool = False
    unqueue: str | None = None
    before: AgentTurn | None = None
    address: str | None = None
    settled: bool = False
    asks: bool = False
    ends: bool = False
    said: Message | None = None
    found_at: str | None = None


class LegJournal:
    """The driver's journal: each commit is one transaction of the ledger."""

    def __init__(self, session: Unsaved, store: Store, leg: Leg, waiting: Sequence[Decision], plan: Plan) -> None:
        self._session = session
        self._store = self.store = store
        self.agent = session.agent
        self._applying: dict[str, Decision] = {d.interrupt_id: d for d in waiting}
        self._unqueue = plan.unqueue
        self._address = plan.address
        self.leg = leg
        self._flying: Promise[Saved] | None = None
        self.queue: Sequence[Queued] = ()
        self.put_back: frozenset[str] = frozenset()

    def current(self) -> Leg:
        """The leg, as of its last commit."""
        return self.leg

    async def commit(self, turn: Turn, events: Sequence[Event], rest: Paused | Finished | None) -> Sequence[Event]:
        if self._flying is not None:
            # Whoever waited for it was cancelled, but the store was not: the lease is ours, and this comes behind it.
            self._adopt(await settled(self._flying))
        state, artifacts, inner = self._session.unsaved()
        now = self._session.agent.clock.now()
        write = Write(
            self.leg,
            turn,
            events,
            rest,
            now,
            self._store.lease_seconds,
            state,
            artifacts,
            self._applying,
            self._address,
            self._unqueue,
            inner,
        )
        observers, begun = self._session.agent.observers, perf_counter()
        self._flying = self._store.submit(partial(save, write=write))
        try:
            saved = await (timed(observers, "commit", begun, self._flying) if observers else settled(self._flying))
        except ResumeError as e:
            self._flying = None  # the driver goes on with what counts
            if observers:
                self._refused(events, e)
            raise
        except SessionConflict as e:
            if observers:
                self._refused(events, e)
            for event in events:  # what ran, ran: whoever took over can see it beside the call
                if isinstance(event, ToolReturned):
                    await transact(self._store, self._late(event.call, event.output))
            raise
        taken_over = not self.leg.epoch and self.leg.batches > 0
        self._adopt(saved)
        if observers:
            self._tell(saved, events, now, taken_over)
        return [as_event(d) for d in saved.news]

    def _adopt(self, saved: Saved) -> None:
        self._flying = None
        self.put_back |= saved.put_back
        self.leg, self.queue, self._unqueue, self._address = saved.leg, saved.queue, None, None
        self._applying.update({d.interrupt_id: d for d in saved.news})

    def traced(self, trace: str) -> None:
        """Kept with the next commit."""
        self.leg = replace(self.leg, trace=trace)

    def _tell(self, saved: Saved, events: Sequence[Event], now: float, taken_over: bool) -> None:
        observers, leg = self._session.agent.observers, saved.leg
        if taken_over:
            notify(observers, "takeover", leg.agent, {**leg_ids(leg), "epoch": leg.epoch, "own": leg.force})
        rows = {r.id: r for r in saved.settled}
        for event in events if rows else ():
            if isinstance(event, Decided) and event.interrupt in rows:
                tell_accepted(observers, event, rows[event.interrupt], now)

    def _refused(self, events: Sequence[Event], error: Exception) -> None:
        for event in events:
            if isinstance(event, Decided) and event.interrupt not in self._applying:
                tell_refused(self._session.agent.observers, event, error)

    def late(self, call: str, output: Json) -> None:
        """Kept in the history of the call."""
        self._store.submit(self._late(call, output))

    def _late(self, call: str, output: Json) -> Callable[[Any], None]:
        now = self._session.agent.clock.now()
        return partial(late_result, session_id=self.leg.session_id, call_id=call, output=output, now=now)


def checked(agent: Agentlike, init: AgentInit) -> SessionState | None:
    """The state to begin with. Raises SessionError for what does not go with the agent's way of keeping sessions."""
    if agent.store is not None:
        if init.state is not None:
            raise SessionError(
                f"Cannot send 'state' to agent {agent.name!r}: it has a store, which keeps the state. Connect with "
                "session_id= or snapshot_id="
            )
        return None
    if init.session_id is not None or init.snapshot_id is not None:
        which = "sessionId" if init.session_id is not None else "snapshotId"
        raise SessionError(
            f"Cannot use '{which}' with agent {agent.name!r}: it has no store, so nothing is kept under an id. Connect "
            "with state=, or give the agent a store"
        )
    if init.state is None:
        return None
    try:
        state = decode(encode(init.state), SessionState)  # a client's: whatever it is, it is read as one
    except (TypeError, ValueError, RecursionError, InvalidRequest) as e:
        raise InvalidState(f"this is no session state: {e}") from None
    return agent.verified(state)


def check_state(agent: Agentlike, state: Json) -> None:
    """Raises InvalidState where what was stored does not fit the agent's type any more: asked before anything is run with it."""
    try:
        agent.typed_state(state)
    except InvalidState as e:
        raise InvalidState(
            f"{e}. It was stored by an agent with another type; nothing was run, and all that is stored stays. Load the session "
            "and set a state that fits (session.update_state({...}), not a function of the old one), or go back to the old type"
        ) from None


def overdue(call: Call, now: float) -> bool:
    """Whether nobody can decide on this paused call any more."""
    expires = call.pause.expires_at if call.pause is not None else None
    return expires is not None and expires <= now


def unknown_outcome(tool: Tool[..., Any] | None) -> Pause:
    """The pause of a call whose run was cut off: nobody knows whether it took effect."""
    payload = {
        "reason": "outcome_unknown",
        "message": "The process ended while this tool was running. It may or may not have taken effect. "
        "Respond with what you know of its result, or restart it.",
    }
    return Pause(new_id("i_"), payload, reason="outcome_unknown", version=tool.version if tool is not None else "")


def stop_leg(task: "asyncio.Task[Any] | None", lost: list[Exception], why: Exception) -> None:
    """The leg's lease is lost: its task ends, with this as the reason."""
    lost.append(why)
    if task is not None:
        task.cancel()


def rest_output(session: Resting, driver: Drove, step: Paused | Finished) -> AgentOutput:
    """What a leg came to."""
    turn, messages = driver.turn, session.messages
    added = messages[len(turn.history) :]
    end = step.end if isinstance(step, Finished) else None
    return AgentOutput(
        session.id,
        end.reason if end is not None else "interrupted",
        session.snapshot_id,
        next((m for m in reversed(added) if m.role == "model"), None),
        messages,
        session.interrupts,
        session.state,
        session.artifacts,
        turn.counts.usage,
        end.error if end is not None else None,
        end.limit if end is not None else None,
        driver.value,
        session.client_state if session.agent.store is None else None,
    )


def told(session: Resting, turn: Turn) -> AgentOutput:
    """The output of a turn that was brought to its rest elsewhere; `session` stands there. Raises as that turn's would."""
    messages = session.messages
    turn = replace(turn, history=tuple(messages[: len(messages) - len(write(turn))]))
    step = next_step(turn)
    assert isinstance(step, (Paused, Finished))
    end = (turn.ended or step.end) if isinstance(step, Finished) else None
    said = next((m.text for m in reversed(messages) if m.role == "model"), "")
    value = session.agent.value_of(said) if end is not None and end.reason == "stop" else None
    output = rest_output(session, Ended(turn, value), step if end is None else Finished(end))
    error = failure(end, None, output) if end is not None else None
    if error is not None:
        raise error
    return output
