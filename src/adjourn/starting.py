"""How a leg starts: what somebody wants becomes events, on the turn where the session stands."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from adjourn.answer import Answer
from adjourn.conversation import Conversation
from adjourn.decisions import put_back
from adjourn.errors import AlreadyResolved, NothingPaused, ResumeError, SessionPaused
from adjourn.events import Declined, Event, Expired, Retried, ToolInterrupted, TurnEnded, UserSaid
from adjourn.handle import AgentInterrupt
from adjourn.lease import transact
from adjourn.leg import Agentlike, Plan, overdue, unknown_outcome
from adjourn.loading import without_expiry
from adjourn.notices import tell_refused_items
from adjourn.parts import ErrorInfo, Message, Part
from adjourn.resume import check_stored, decide
from adjourn.settling import as_event, settled_before
from adjourn.state import Turn
from adjourn.store import Queued, Store, Tx
from adjourn.turn import begin, record


class Starter(Protocol):
    """The session, as far as its legs start from it."""

    agent: Agentlike

    @property
    def standing(self) -> Conversation:
        """Where it stands."""
        ...

    @property
    def interrupts(self) -> list[AgentInterrupt]: ...


def say(said: Message, session: Starter) -> tuple[Turn, list[Event]]:
    """A new turn. Raises SessionPaused."""
    at = session.standing
    if at.paused:
        raise paused_error(session.interrupts)
    event = UserSaid(said)
    return record(begin(at.closed_history(), session.agent.limits), event), [event]


def sending(queue: Sequence[Queued]) -> Plan:
    """The leg that sends the message which has waited longest."""
    said = queue[0].message
    return Plan(partial(say, said), None, True, unqueue=queue[0].id, asks=True, said=said)


def decide_on(items: Sequence[Answer | Part], by: str | None, session: Starter) -> tuple[Turn, list[Event]]:
    """Decisions: all of them, or a ResumeError and none."""
    return deciding(session.agent, session.standing.asked(session.agent.limits), items, by)


def retry(event: Retried, session: Starter) -> tuple[Turn, list[Event]]:
    """From the failed end on."""
    turn = session.standing.turn
    if turn is None or turn.ended is None:
        raise NothingPaused("the last turn of this session did not fail, so there is nothing to retry")
    return with_events([event], session)


def recover(session: Starter) -> tuple[Turn, list[Event]]:
    """From what a dead driver left, or others decided."""
    at = session.standing
    if at.unfinished is None and not at.waiting:
        raise _nothing()
    return with_events(recovering(open_turn(session), at, session.agent), session)


async def put_back_unfit(session: Starter, store: Store) -> ResumeError | None:
    """Decisions that do not fit, as whoever accepted them could not tell: their pauses wait once more. Gives why."""
    at, agent = session.standing, session.agent
    refused: ResumeError | None = None
    turn = at.turn
    if turn is None:
        return None
    stored = at.waiting
    for decision in stored:
        try:
            check_stored(turn, as_event(decision), agent.find_tool)
        except ResumeError as e:
            refused = refused or e
            await transact(store, partial(put_back, decision=decision, why=str(e), now=agent.clock.now()))
            at.waiting = tuple([d for d in at.waiting if d is not decision])
            at.turn = without_expiry(turn, {d.interrupt_id for d in stored if d not in at.waiting})
    return refused


def go_on(change: Callable[[Turn], tuple[Turn, list[Event]]], session: Starter) -> tuple[Turn, list[Event]]:
    """What `change` makes of the turn that is open."""
    return change(open_turn(session))


def expire(now: float, session: Starter) -> tuple[Turn, list[Event]]:
    """What nobody decided in time is settled before anything else."""
    turn = open_turn(session)
    return with_events([Expired(c.pause.id) for c in turn.paused if c.pause is not None and overdue(c, now)], session)


def make_room(session: Starter) -> tuple[Turn, list[Event]]:
    """The open calls declined and the turn over, for a new message."""
    reason = "The user went on with another message instead."
    paused = open_turn(session).paused
    events: list[Event] = [Declined(c.pause.id, reason, "message") for c in paused if c.pause is not None]
    events.append(TurnEnded("aborted", ErrorInfo("CANCELLED", "a new message took its place", "Superseded")))
    return with_events(events, session)


def with_events(events: Sequence[Event], session: Starter) -> tuple[Turn, list[Event]]:
    """The open turn with these in it."""
    turn = open_turn(session)
    for event in events:
        turn = record(turn, event)
    return turn, [*events]


def open_turn(session: Starter) -> Turn:
    """The turn that is open. Raises NothingPaused where none is."""
    if session.standing.turn is None:
        raise _nothing()
    return session.standing.turn


def _nothing() -> NothingPaused:
    return NothingPaused("this session waits for no driver: there is nothing to go on with")


def deciding(agent: Agentlike, turn: Turn, items: Sequence[Answer | Part], by: str | None) -> tuple[Turn, list[Event]]:
    """The turn with these decisions in it. Raises ResumeError where one does not fit, and then none is taken."""
    try:
        turn, events = decide(turn, items, agent.find_tool, agent.clock.now(), by)
    except ResumeError as e:
        refused = e
        if agent.store is not None and isinstance(e, AlreadyResolved) and e.decision is None:
            # The transcript says that it is settled; how (by whom, or because nobody came in time), the store knows.
            refused = agent.store.submit(partial(_settled_before, items=items), read=True).result() or e
        if agent.observers:
            tell_refused_items(agent.observers, items, refused)
        raise refused from None
    return turn, list(events)


def _settled_before(tx: Tx, items: Sequence[Answer | Part]) -> ResumeError | None:
    rows = [tx.interrupt(item.event.interrupt) for item in items if isinstance(item, Answer)]
    refusals = [settled_before(tx, row) for row in rows if row is not None]
    return next((refused for refused in refusals if refused is not None), None)


def paused_error(interrupts: Sequence[AgentInterrupt]) -> SessionPaused:
    """Why a message was not taken."""
    names = ", ".join(f"{i.name} ({i.id})" for i in interrupts)
    return SessionPaused(
        f"the session is paused and waits for a decision on: {names}. Respond, restart or decline first; the message was not "
        "taken. (on_message_while_paused= of the agent can decline or queue instead)",
        interrupts,
    )


def recovering(turn: Turn, at: Conversation, agent: Agentlike) -> list[Event]:
    """What a dead driver left: runs of unknown outcome become pauses, waiting decisions are taken up.

    An engine's leg is not left: the engine knows what runs, and only has to be woken.
    """
    if at.unfinished is not None and agent.engine is not None and at.held_by == agent.engine.holder:
        return []
    events: list[Event] = [
        ToolInterrupted(c.id, unknown_outcome(agent.find_tool(c.request.name)))
        for c in turn.calls
        if c.state == "running"
    ]
    return [*events, *[as_event(d) for d in at.waiting]]
