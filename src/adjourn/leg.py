"""One leg of a session: what its agent offers, how it starts, and how its events reach the store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from adjourn.clock import Clock
from adjourn.events import Event, Limits, Pause
from adjourn.handle import AgentTurn, SessionState
from adjourn.lease import Keeper, transact
from adjourn.ledger import Leg, Write, as_event, save
from adjourn.parts import Artifact, new_id
from adjourn.setting import Setting
from adjourn.state import Finished, Paused, Turn
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
        saved = await transact(self._store, partial(save, write=write))
        self.leg, self._unqueue = saved.leg, False
        self._applying.update({d.interrupt_id: d for d in saved.news})
        return [as_event(d) for d in saved.news]


def unknown_outcome(tool: Tool[..., Any] | None) -> Pause:
    """The pause of a call whose run was cut off: nobody knows whether it took effect."""
    payload = {
        "reason": "outcome_unknown",
        "message": "The process ended while this tool was running. It may or may not have taken effect. "
        "Respond with what you know of its result, or restart it.",
    }
    return Pause(new_id("i_"), payload, reason="outcome_unknown", version=tool.version if tool is not None else "")
