"""A nested agent: an agent's session inside a tool call of another, whose pauses surface and whose answers go in.

A pause that surfaces says at which snapshot of the inner session it was asked. A decision goes on from there. Where the
conversation around was forked meanwhile, and another branch went on from that snapshot first, the inner session branches
off there as well: each branch has an inner one of its own, and what the other does inside never touches it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from msgspec import UNSET, Struct

from adjourn.answer import Answer
from adjourn.errors import AlreadyResolved, LimitReached, SessionConflict, StaleInterrupt, TurnError
from adjourn.events import Decided, Declined, Event, Expired, Forked, Responded, Restarted, Retried
from adjourn.generation import failure
from adjourn.handle import AgentInit, AgentInterrupt, AgentOutput, AgentTurn
from adjourn.lease import transact
from adjourn.leg import Agentlike
from adjourn.loading import next_of
from adjourn.loop import paused_call
from adjourn.parts import new_id
from adjourn.records import INNER
from adjourn.resume import decide
from adjourn.session import AgentSession
from adjourn.state import Turn
from adjourn.store import Tx
from adjourn.tool import LONGEST_WAIT, AbortSignal, Interrupt, ToolRunContext
from adjourn.turn import record

_MAX_DEPTH = 10
_LOOK_SECONDS = 0.1
"""How often it is looked whether a lease inside has ended."""
_depth: ContextVar[int] = ContextVar("adjourn_agent_depth", default=0)


class Place(Struct, frozen=True):
    """Where the session of a nested agent stands for one call: a snapshot, or its own end.

    `interrupt` is what the decision is about, by its id there. `taken`: this very decision was taken there already, by a run
    of the call that was cut off afterwards; `retried`: and so was this very retry. `branches`: the session went on from there
    for another branch of the conversation around, so this one goes on in a branch of its own.
    """

    snapshot_id: str | None = None
    interrupt: str | None = None
    taken: bool = False
    retried: bool = False
    branches: bool = False


async def delegate(agent: Agentlike, task: str, ctx: ToolRunContext, *, forget: bool) -> Any:
    """Runs the agent on the task, or goes on with what it began; returns its answer, or raises its pause as an Interrupt.

    `forget` drops its session at the end, where only this process could know it.
    """
    session_id = f"{INNER}{ctx.call_id}.{agent.name}"
    assert agent.store is not None
    find = partial(_find, session_id=session_id, decision=_decision(ctx), retry=_retry(ctx))
    place = await transact(agent.store, find, read=True)
    owner = ctx.session.owner if ctx.session is not None else None
    session = AgentSession(agent, AgentInit(session_id=session_id, snapshot_id=place.snapshot_id, owner=owner))
    if ctx.session is not None:
        ctx.session.began_inner(session.id)
    depth = _depth.get() + 1
    if depth > _MAX_DEPTH:
        raise LimitReached(
            f"agents called each other {_MAX_DEPTH} deep; {agent.name!r} was not called again", limit="depth"
        )
    _depth.set(depth)  # of this call's own task or leg, and of what it calls
    try:
        return await _inside(session, place, task, ctx, forget)
    finally:
        _depth.set(depth - 1)


def _find(tx: Tx, session_id: str, decision: Mapping[str, Any], retry: str) -> Place:
    """Where the call goes on. A decision says at which snapshot it was asked for; two branches were asked at the same."""
    snapshots, interrupt, by = tx.snapshots(session_id), decision.get("interrupt"), _by_outer(decision)
    asked_at = decision.get("snapshot")
    if not decision or not any(s.id == asked_at for s in snapshots):
        # It goes on at its end: nothing was asked, or by an older version, or the store keeps the newest only.
        events = [e for s in snapshots for e in tx.events([s.id])]
        return Place(None, interrupt, _takes(events, by), _retries(events, retry))
    after = [s.id for s in snapshots if s.parent_id == asked_at]
    at = next((i for i in after if _answers(tx.events([i]), by)), None)
    if at is None:
        return Place(asked_at, interrupt, branches=bool(after))
    events = tx.events([at])
    branched: Mapping[str, str] = next((e.ids for e in events if isinstance(e, Forked)), dict[str, str]())
    while (following := next_of(tx, session_id, at)) is not None:
        at = following
        events += tx.events([at])
    return Place(at, branched.get(str(interrupt), interrupt), _takes(events, by), _retries(events, retry))


def _takes(events: Sequence[Event], by: str) -> bool:
    return any(isinstance(e, Decided) and e.by == by for e in events)


def _answers(events: Sequence[Event], by: str) -> bool:
    """Whether a decision on the same pause outside was taken there; that pause may have been open again since."""
    pause = by.rpartition(".")[0] or by
    return any(
        isinstance(e, Decided) and e.by is not None and (e.by.rpartition(".")[0] or e.by) == pause for e in events
    )


def _retries(events: Sequence[Event], retry: str) -> bool:
    return any(isinstance(e, Retried) and e.by == retry for e in events)


async def _inside(session: AgentSession, place: Place, task: str, ctx: ToolRunContext, forget: bool) -> Any:
    await _opened(session, ctx)
    closed = _closed(session, place, _decision(ctx))
    if closed is not None:
        return closed
    asked = place.interrupt
    try:
        turn, asked = _next_turn(session, place, task, ctx)
        if turn is not None:
            output = await _with(turn, ctx.abort_signal)
            if output.finish_reason == "aborted":
                raise TurnError(f"the turn of agent {session.agent.name!r} was aborted")
            if output.finish_reason != "interrupted":
                store = session.agent.store
                if forget and store is not None:
                    await transact(store, lambda tx: tx.drop_session(session.id))
                return output.text if output.value is None else output.value
    except TurnError:
        ctx.answered = asked is not None and _open(session, asked) is None
        raise
    if session.interrupts:
        raise _surfaced(session.agent.name, session)
    value = session.agent.value_of(session.last_text)
    return session.last_text if value is None else value


async def _opened(session: AgentSession, ctx: ToolRunContext) -> None:
    """Opens it. Where this call was taken over from a dead process, that may still have a lease inside, which is waited for.

    It is not taken by force: we may be the one who is late, and lose the call while we wait.
    """
    store, clock = session.agent.store, session.agent.clock
    assert store is not None
    led = ctx.session is not None and ctx.session.agent.store is not None
    until = clock.now() + (2 * store.lease_seconds if led else 0.0)
    while True:
        try:
            await session.load()
            return
        except SessionConflict:
            if clock.now() >= until:
                raise
            await clock.sleep(_LOOK_SECONDS)


def _next_turn(
    session: AgentSession, place: Place, task: str, ctx: ToolRunContext
) -> tuple[AgentTurn | None, str | None]:
    """The turn that goes on inside, and the id there of the interrupt that was decided on."""
    if session.snapshot_id is None:
        if ctx.is_resumed():
            raise StaleInterrupt(
                f"the session of agent {session.agent.name!r} that this answer is for is gone: another process kept it in its "
                "memory, or it was deleted. What it did so far may have taken effect; it was not done again. Where answers come "
                "in other processes, give that agent (or the one around it) a store"
            )
        return session.send(task, context=ctx.context), None
    decision, asked = _decision(ctx), place.interrupt
    if decision and not place.taken:
        if _open(session, asked) is None:
            raise AlreadyResolved(
                f"interrupt {asked} inside agent {session.agent.name!r} was answered in another branch of this conversation; "
                "this answer was not taken, and nothing was run"
            )
        ids = {i.id: new_id("i_") for i in session.interrupts} if place.branches else {}
        settled = partial(_settled, session.agent, ids, {**decision, "interrupt": asked})
        return session.settle(settled, ctx.context), ids.get(str(asked), asked)
    if session.last_end is None:
        return None, asked
    if session.last_end.reason == "aborted" or (ctx.retried and not place.retried):
        # What was aborted is closed, so that going on repeats nothing. A bound that was hit inside holds no more: whoever
        # retries outside allows more.
        limits = session.agent.limits if session.last_end.limit is not None else None
        return session.settle(partial(_again, Retried(limits, _retry(ctx))), ctx.context), asked
    # This call was cut off before it could say so. Only a retry of the turn around runs anything again.
    raise failure(session.last_end, None, None) or TurnError(f"the turn of agent {session.agent.name!r} failed")


def _again(event: Retried, turn: Turn) -> tuple[Turn, list[Event]]:
    return record(turn, event), [event]


def _decision(ctx: ToolRunContext) -> Mapping[str, Any]:
    return ctx.resumed_metadata["inner"] if ctx.answers_inside else {}


def _retry(ctx: ToolRunContext) -> str:
    return f"outer:{ctx.call_id}:{ctx.retried}"


def _open(session: AgentSession, interrupt: str | None) -> AgentInterrupt | None:
    """The open interrupt of this id."""
    return next((i for i in session.interrupts if i.id == interrupt), None)


def _closed(session: AgentSession, place: Place, decision: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the outer call is answered with where its pause can no longer be reached inside and is only to be closed."""
    verb = decision.get("verb")
    if verb not in ("decline", "expire"):
        return None
    if session.snapshot_id is not None and (place.taken or _open(session, place.interrupt) is not None):
        return None
    note = f"What agent {session.agent.name!r} did before may have taken effect."
    if verb == "expire":
        return {"expired": True, "reason": f"Nobody decided in time. This is not a refusal. {note}"}
    return {"declined": True, "reason": f"{decision.get('reason') or 'The request was declined.'} {note}"}


async def _with(turn: AgentTurn, signal: AbortSignal) -> AgentOutput:
    """The inner turn's output; whoever cancels the outer call cancels the inner turn."""
    turn.when_done(signal.on_abort(lambda: turn.abort(signal.reason)))
    try:
        return await turn.output
    except asyncio.CancelledError:
        turn.abort("the call around it was cancelled")
        await turn.settled()
        raise


def _surfaced(name: str, session: AgentSession) -> Interrupt:
    first = session.interrupts[0]
    pause = first.paused.pause
    left = None if pause.expires_at is None else pause.expires_at - session.agent.clock.now()
    interrupt = Interrupt(
        {
            "agent": name,
            "tool": first.name,
            "input": first.input,
            "payload": first.payload,
            "interrupt": first.id,
            "snapshot": session.snapshot_id,
        },
        response=pause.response,
        allow=pause.allow,
        expires_in=None if left is None else min(max(left, 0.0), LONGEST_WAIT),
    )
    interrupt.path = (name, *pause.path)
    interrupt.reason, interrupt.version = pause.reason, pause.version
    return interrupt


def _settled(
    agent: Agentlike, ids: Mapping[str, str], decision: Mapping[str, Any], turn: Turn
) -> tuple[Turn, list[Event]]:
    """The inner turn with the decision in it. In a branch its pauses get `ids` of their own first, in the same commit."""
    events: list[Event] = []
    interrupt = str(decision.get("interrupt"))
    if ids:
        events.append(Forked(ids))
        turn, interrupt = record(turn, events[-1]), ids[interrupt]
    call = next(c for c in turn.paused if c.pause is not None and c.pause.id == interrupt)
    verb, by = decision.get("verb"), _by_outer(decision)
    if verb == "expire":
        event: Decided = Expired(interrupt, by)
        return record(turn, event), [*events, event]
    if verb == "respond":
        event = Responded(interrupt, decision.get("output"), None, by)
    elif verb == "decline":
        event = Declined(interrupt, decision.get("reason", ""), by)
    else:
        event = Restarted(interrupt, decision.get("metadata"), decision.get("input", UNSET), by)
    # At no time: it was accepted before it expired, however late it comes in.
    turn, taken = decide(turn, [Answer(event, paused_call(call))], agent.find_tool, 0.0)
    return turn, [*events, *taken]


def _by_outer(decision: Mapping[str, Any]) -> str:
    return f"outer:{decision.get('outer')}"
