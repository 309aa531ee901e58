"""One leg of a session: what its agent offers, how it starts, and how its events reach the store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from adjourn.clock import Clock
from adjourn.errors import SessionConflict, SessionError
from adjourn.events import Event, Json, Limits, Pause, ToolReturned
from adjourn.handle import AgentInit, AgentTurn, SessionState
from adjourn.lease import Keeper, transact
from adjourn.ledger import Leg, Write, as_event, late_result, save
from adjourn.parts import Artifact, new_id
from adjourn.setting import Setting
from adjourn.state import Call, Finished, Paused, Turn
from adjourn.store import Decision, Store
from adjourn.tool import Tool

Start = Callable[[], tuple[Turn, list[Event]]]


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

    def find_tool(self, name: str) -> Tool[..., Any] | None: ...

    def setting(self, session: Any, context: Any) -> Setting: ...

    def typed_state(self, value: Any) -> Any:
        """JSON as the agent's state type. Raises InvalidState."""
        ...

    def signed(self, state: SessionState) -> SessionState: ...

    def verified(self, state: SessionState) -> SessionState: ...


class Unsaved(Protocol):
    """The session, as far as its journal needs it."""

    @property
    def agent(self) -> Agentlike: ...

    def unsaved(self) -> tuple[Any, tuple[Artifact, ...]]:
        """Custom state and artifacts that changed in this leg."""
        ...


@dataclass(slots=True)
class Plan:
    """How one leg starts, and what it runs with."""

    start: Start
    context: Any = None
    new_turn: bool = False
    detach: bool = False
    unqueue: bool = False


class LegJournal:
    """The driver's journal: each commit is one transaction of the ledger."""

    def __init__(self, session: Unsaved, store: Store, leg: Leg, waiting: Sequence[Decision], unqueue: bool) -> None:
        self._session = session
        self._store = store
        self._applying: dict[str, Decision] = {d.interrupt_id: d for d in waiting}
        self._unqueue = unqueue
        self.leg = leg

    async def commit(self, turn: Turn, events: Sequence[Event], rest: Paused | Finished | None) -> Sequence[Event]:
        state, artifacts = self._session.unsaved()
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
            None,
            self._unqueue,
        )
        try:
            saved = await transact(self._store, partial(save, write=write))
        except SessionConflict:
            for event in events:  # what ran, ran: whoever took over can see it beside the call
                if isinstance(event, ToolReturned):
                    await transact(self._store, self._late(event.call, event.output))
            raise
        self.leg, self._unqueue = saved.leg, False
        self._applying.update({d.interrupt_id: d for d in saved.news})
        return [as_event(d) for d in saved.news]

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
    return agent.verified(init.state) if init.state is not None else None


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
