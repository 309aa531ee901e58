"""Where a session stands: its history, the turn that is open, custom state and artifacts; in memory, from a store or a value."""

from collections.abc import Callable
from typing import Any

from adjourn.errors import InvalidRequest, InvalidState, SessionConflict
from adjourn.events import Limits
from adjourn.handle import SessionState
from adjourn.ledger import Leg
from adjourn.loading import Loaded, closed, stand
from adjourn.parts import Artifact, Message, new_id
from adjourn.state import Turn
from adjourn.store import Decision, Queued
from adjourn.transcript import check_sendable, read, write


class Conversation:
    """The standing of one session, changed by nothing but a finished leg or a load.

    `turn` is the turn that is paused, or can be retried; `history` what was closed before it. `waiting` are decisions that
    a driver has yet to take up; `unfinished` is the leg that a dead driver left, `held_by` the holder of its lease. `branch`
    says that this does not stand at the session's own end. `trace` is the traceparent of the leg that came to rest here.
    """

    def __init__(self, session_id: str, owner: str | None) -> None:
        self.session_id = session_id
        self.owner = owner
        self.snapshot_id: str | None = None
        self.turn_id = ""
        self.history: tuple[Message, ...] = ()
        self.turn: Turn | None = None
        self.state: Any = None
        self.artifacts: dict[str, Artifact] = {}
        self.queue: list[Queued] = []
        self.branch = False
        self.waiting: tuple[Decision, ...] = ()
        self.unfinished: Leg | None = None
        self.held_by: str | None = None
        self.trace: str | None = None

    @property
    def stored(self) -> bool:
        """Whether it rests at a snapshot that others may go on from. A branch that has not begun yet is nobody else's."""
        return self.snapshot_id is not None and not self.branch

    @property
    def paused(self) -> bool:
        return self.turn is not None and bool(self.turn.paused)

    def messages(self) -> list[Message]:
        """The transcript; an open round comes last."""
        return write(self.turn) if self.turn is not None else list(self.history)

    def asked(self, limits: Limits) -> Turn:
        """The turn that decisions are for. A closed conversation too, so that what was answered is told from what is unknown."""
        return self.turn or read(list(self.history), limits)

    def closed_history(self) -> tuple[Message, ...]:
        """What a new turn has before it."""
        return self.history if self.turn is None else (*self.history, *closed(self.turn))

    def adopt(
        self, loaded: Loaded, agent: str, limits: Limits, holder: str, runs_here: Callable[[str], bool], now: float
    ) -> None:
        """Stands where the store says. Raises InvalidRequest for another agent's session, SessionConflict for a running one."""
        session = loaded.session
        if session.agent != agent:
            raise InvalidRequest(
                f"session {session.id!r} belongs to agent {session.agent!r}, not to {agent!r}; nothing was changed. Open it with "
                f"that agent (one that was renamed takes its old sessions under its old name)"
            )
        self.session_id, self.owner, self.queue = session.id, session.owner, list(loaded.queue)
        if not loaded.chain:
            return
        last = loaded.chain[-1]
        standing = stand(loaded, limits)
        self.history, self.turn, self.state = standing.history, standing.turn, standing.state
        self.artifacts = {a.name or new_id("a_"): a for a in standing.artifacts}
        self.snapshot_id, self.turn_id, self.branch = last.id, last.turn_id, not loaded.leaf
        self.trace = last.trace
        at_head = last.id == session.head
        open_ids = (
            {c.pause.id for c in self.turn.paused if c.pause is not None} if self.turn is not None else set[str]()
        )
        self.waiting = tuple([d for d in loaded.waiting if d.interrupt_id in open_ids])
        self.unfinished, self.held_by = None, session.holder
        if last.status == "pending" and at_head:
            mine = session.holder == holder and not runs_here(last.id)
            if session.lease_until > now and not mine:
                raise SessionConflict(
                    f"a turn of session {session.id!r} is running elsewhere, as far as its lease says, which has "
                    f"{session.lease_until - now:.1f} s to go. Wait for it, abort it by its snapshot {last.id!r}, or, if that "
                    "process is dead, open the session after that (ai.recover() takes up all such sessions)"
                )
            leg = self.leg(last.id, agent, holder, last.created, new_turn=False)
            self.snapshot_id = last.parent_id
            self.unfinished = Leg(
                leg.session_id, last.id, last.turn_id, agent, holder, last.created, last.parent_id, leg.owner, 0,
                last.batches, False, (), leg.open, mine, last.trace, last.trace, last.engine, last.ran,
                last.queued,
            )  # fmt: skip

    def take(self, state: SessionState, limits: Limits) -> None:
        """Stands where this value says."""
        self.state = state.custom
        self.artifacts = {a.name or new_id("a_"): a for a in state.artifacts}
        turn = read(list(state.messages), limits) if state.messages else None
        if turn is not None and turn.open is not None:
            self.turn, self.history = turn, tuple(turn.history)
        else:
            self.history = tuple(state.messages)
        try:
            check_sendable(self.history)
        except InvalidRequest as e:
            raise InvalidState(f"the messages of this session state are no whole conversation: {e}") from None

    def leg(self, snapshot_id: str, agent: str, holder: str, now: float, *, new_turn: bool) -> Leg:
        """The next leg from here."""
        # What waits where a branch comes off waits there, not in the branch.
        paused = self.turn.paused if self.turn is not None and not new_turn and not self.branch else ()
        return Leg(
            self.session_id,
            snapshot_id,
            snapshot_id if new_turn or not self.turn_id else self.turn_id,
            agent,
            holder,
            now,
            self.snapshot_id,
            self.owner,
            branch=self.branch,
            open=frozenset([c.pause.id for c in paused if c.pause is not None]),
            before=None if new_turn else self.trace,
        )

    def rest(self, turn: Turn, snapshot_id: str | None, turn_id: str, trace: str | None) -> None:
        """Stands where a leg came to rest."""
        self.snapshot_id, self.turn_id, self.branch, self.trace = snapshot_id, turn_id, False, trace
        self.waiting, self.unfinished = (), None
        over = turn.ended is not None and turn.ended.reason not in ("failed", "aborted")
        self.history = (*turn.history, *turn.added) if over else tuple(turn.history)
        self.turn = None if over else turn
