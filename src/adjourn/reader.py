"""A session as it stands: read from its store at the first look, or from what a client kept."""

from collections.abc import Callable
from functools import partial
from typing import Any

from adjourn.answer import PausedCall
from adjourn.belongings import Belongings
from adjourn.conversation import Conversation
from adjourn.events import TurnEnded
from adjourn.handle import AgentInit, AgentInterrupt, SessionState
from adjourn.lease import transact
from adjourn.leg import Agentlike, checked
from adjourn.loading import Loaded, load, load_on
from adjourn.loop import paused_call
from adjourn.parts import Artifact, Message, Part, new_id
from adjourn.resume import meant


class SessionReader:
    """What there is to see of a session. It stands where it was read, or where a leg of its own came to rest."""

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
        self._belongings = Belongings()

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
        """A pause as one that can be decided on, by whoever can."""
        raise NotImplementedError

    # -- reading -----------------------------------------------------------------------------------------------------

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
        self._belongings.onto(self._at)
        self._loaded = True

    def _read_again(self, snapshot_id: str | None) -> None:
        """From the store, at the next look: where the branch that this snapshot is in has come to by then."""
        self._reader = partial(load_on, session_id=self.id, snapshot_id=snapshot_id)
        self._at = Conversation(self.id, self._at.owner)
        self._loaded = False
