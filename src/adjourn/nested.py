"""A nested agent: an agent's session inside a tool call of another, whose pauses surface and whose answers go in."""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from msgspec import UNSET

from adjourn.answer import Answer
from adjourn.errors import AlreadyResolved, LimitReached, StaleInterrupt, TurnError
from adjourn.events import Decided, Declined, Expired, Responded, Restarted
from adjourn.handle import AgentInit, AgentOutput, AgentTurn
from adjourn.lease import transact
from adjourn.ledger import INNER
from adjourn.leg import Agentlike
from adjourn.session import AgentSession
from adjourn.store import Tx
from adjourn.tool import AbortSignal, Interrupt, ToolRunContext

_MAX_DEPTH = 10
_depth: ContextVar[int] = ContextVar("adjourn_agent_depth", default=0)


async def delegate(agent: Agentlike, task: str, ctx: ToolRunContext, *, forget: bool) -> Any:
    """Runs the agent on the task, or goes on with what it began; returns its answer, or raises its pause as an Interrupt.

    `forget` drops its session at the end, where only this process could know it.
    """
    session = AgentSession(agent, AgentInit(session_id=f"{INNER}{ctx.call_id}.{agent.name}"))
    if ctx.session is not None:
        ctx.session.began_inner(session.id)
    depth = _depth.get() + 1
    if depth > _MAX_DEPTH:
        raise LimitReached(
            f"agents called each other {_MAX_DEPTH} deep; {agent.name!r} was not called again", limit="depth"
        )
    _depth.set(depth)  # of this call's own task or leg, and of what it calls
    try:
        return await _inside(session, task, ctx, forget)
    finally:
        _depth.set(depth - 1)


async def _inside(session: AgentSession, task: str, ctx: ToolRunContext, forget: bool) -> Any:
    await session.load()
    closed = await _closed(session, _decision(ctx))
    if closed is not None:
        return closed
    turn = await _next_turn(session, task, ctx)
    if turn is not None:
        output = await _with(turn, ctx.abort_signal)
        if output.finish_reason == "aborted":
            raise TurnError(f"the turn of agent {session.agent.name!r} was aborted")
        if output.finish_reason != "interrupted":
            store = session.agent.store
            if forget and store is not None:
                await transact(store, lambda tx: tx.drop_session(session.id))
            return output.text if output.value is None else output.value
    if session.interrupts:
        raise _surfaced(session.agent.name, session)
    return session.last_text


async def _next_turn(session: AgentSession, task: str, ctx: ToolRunContext) -> AgentTurn | None:
    if session.snapshot_id is None:
        if ctx.is_resumed():
            raise StaleInterrupt(
                f"the session of agent {session.agent.name!r} that this answer is for is gone (another process kept it in "
                "memory, or it was deleted). What it did so far may have taken effect; it was not done again"
            )
        return session.send(task, context=ctx.context)
    decision = _decision(ctx)
    if decision:
        turn = _inner_decision(session, decision)
        if turn is not None:
            return turn
        if not await _taken_before(session, decision):
            raise AlreadyResolved(
                f"interrupt {decision.get('interrupt')} inside agent {session.agent.name!r} was answered in another branch of "
                "this conversation; this answer was not taken, and nothing was run"
            )
    if session.turn_failed:
        # A bound that was hit inside holds no more: whoever retries outside allows more.
        stopped = session.last_end is not None and session.last_end.limit is not None
        return session.retry(session.agent.limits if stopped else None, context=ctx.context)
    return None


def _decision(ctx: ToolRunContext) -> Mapping[str, Any]:
    given: Mapping[str, Any] = ctx.resumed_metadata or {}
    return given.get("inner") or {}


async def _closed(session: AgentSession, decision: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the outer call is answered with where its pause can no longer be reached inside and is only to be closed."""
    verb = decision.get("verb")
    if verb not in ("decline", "expire"):
        return None
    if session.snapshot_id is not None:
        reachable = any(i.id == decision.get("interrupt") for i in session.interrupts)
        if reachable or await _taken_before(session, decision):
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
    interrupt = Interrupt(
        {"agent": name, "tool": first.name, "input": first.input, "payload": first.payload, "interrupt": first.id},
        response=pause.response,
        allow=pause.allow,
        expires_in=None if pause.expires_at is None else pause.expires_at - session.agent.clock.now(),
    )
    interrupt.path = (name, *pause.path)
    interrupt.reason = pause.reason
    return interrupt


def _inner_decision(session: AgentSession, decision: Mapping[str, Any]) -> AgentTurn | None:
    """The turn that takes this decision; None where its interrupt is not open (any more). No other is ever touched."""
    target = next((i.paused for i in session.interrupts if i.id == decision.get("interrupt")), None)
    if target is None:
        return None
    verb, by = decision.get("verb"), _by_outer(decision)
    event: Decided
    if verb == "respond":
        event = Responded(target.id, decision.get("output"), None, by)
    elif verb == "decline":
        event = Declined(target.id, decision.get("reason", ""), by)
    elif verb == "expire":
        return session.expire(target)
    else:
        event = Restarted(target.id, decision.get("metadata"), decision.get("input", UNSET), by)
    return session.decide(Answer(event, target))


def _by_outer(decision: Mapping[str, Any]) -> str:
    return f"outer:{decision.get('outer')}"


async def _taken_before(session: AgentSession, decision: Mapping[str, Any]) -> bool:
    """Whether this very decision was taken already, by a run of the outer call that was cut off afterwards."""
    store = session.agent.store
    assert store is not None

    def look(tx: Tx) -> bool:
        events = tx.events([s.id for s in tx.snapshots(session.id)])
        return any(
            isinstance(e, Expired) or (isinstance(e, (Responded, Restarted, Declined)) and e.by == _by_outer(decision))
            for e in events
            if getattr(e, "interrupt", None) == decision.get("interrupt")
        )

    return await transact(store, look, read=True)
