"""What a driver tells the observers of one leg of a turn. It is made only where there are observers.

What an event amounts to is noted when it happens, while the turn still knows its call, and told when it is durable. A
decision in a stored session is told by its journal, which knows when the pause began.
"""

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from adjourn.answer import Answer
from adjourn.events import (
    CallRejected,
    Decided,
    Declined,
    Event,
    Expired,
    OutputRejected,
    Pause,
    Responded,
    Restarted,
    ToolInterrupted,
    ToolRaised,
    TurnEnded,
)
from adjourn.ledger import Leg
from adjourn.model import ModelReply, ModelRequest
from adjourn.observe import Observed, Observer, Watched, around, by_kind, notify, tell
from adjourn.parts import Part
from adjourn.records import INNER
from adjourn.setting import Setting
from adjourn.settling import overdue
from adjourn.state import Call, Finished, Paused, Turn
from adjourn.store import Decision, InterruptRecord

R = TypeVar("R", bound=Paused | Finished)

_VERBS: Mapping[type, str] = {Responded: "respond", Restarted: "restart", Declined: "decline", Expired: "expire"}


class Notices:
    """The observers of one leg, and what they have yet to be told."""

    __slots__ = ("_pending", "_setting")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._pending: list[Observed] = []

    async def leg(self, turn: Turn, run: Callable[[], Awaitable[R]], now: Callable[[], Turn]) -> R:
        """Runs the leg as a step. `now` is the state the turn has reached."""
        setting = self._setting
        with Watched(setting.observers, _turn_step(setting, turn)) as step:
            if step.trace is not None:
                setting.trace = step.trace
                if setting.journal is not None:
                    setting.journal.traced(step.trace)
            try:
                rest = step.result = await run()
            except BaseException as e:
                ended = now().ended
                aborted = isinstance(e, CancelledError) and ended is not None and ended.reason == "aborted"
                step.facts |= _came_to(turn, now(), "aborted" if aborted else "lost")
                raise
            step.facts |= _came_to(turn, now(), rest.end.reason if isinstance(rest, Finished) else "interrupted")
            return rest

    # -- what happened -----------------------------------------------------------------------------------------------

    def note(self, turn: Turn, event: Event) -> None:
        """Notes what the event amounts to; `turn` is one that has its call. Told at once where nothing is kept."""
        notice = self._notice(turn, event)
        if notice is None:
            return
        notice.facts = {**around(), **_where(self._setting), **notice.facts}
        if self._setting.journal is None:
            tell(self._setting.observers, notice)
        else:
            self._pending.append(notice)

    def take(self) -> list[Observed]:
        """What goes with the commit that is about to be made."""
        taken, self._pending = self._pending, []
        return taken

    def tell(self, notices: Sequence[Observed]) -> None:
        """Now it is durable."""
        for notice in notices:
            tell(self._setting.observers, notice)

    def _notice(self, turn: Turn, event: Event) -> Observed | None:
        if isinstance(event, ToolInterrupted):
            return None if self._inner else _pause(_called(turn, event.call), event.call, event.pause)
        if isinstance(event, (CallRejected, ToolRaised, OutputRejected)):
            return _correction(turn, event)
        if isinstance(event, TurnEnded):
            return Observed("limit", event.limit, {"limit": event.limit}) if event.limit is not None else None
        if isinstance(event, (Responded, Restarted, Declined, Expired)) and self._setting.journal is None:
            call = next((c for c in turn.calls if c.pause is not None and c.pause.id == event.interrupt), None)
            facts = decision_facts(event, "accepted", event.interrupt)
            return Observed("decision", call.request.name if call is not None else "", facts)
        return None

    @property
    def _inner(self) -> bool:
        """Whether this is a nested agent's session: its pauses are shown, and settled, by the session around it."""
        leg = self._setting.leg
        return leg is not None and leg.session_id.startswith(INNER)


def _where(setting: Setting) -> dict[str, Any]:
    leg = setting.leg
    return leg_ids(leg) if leg is not None else {}


def _parent(setting: Setting) -> str | None:
    """The traceparent of the turn's span, where the turn is no step of this process: an engine has it run by workers."""
    leg = setting.leg
    return leg.trace if leg is not None and "turn_id" not in around() else None


def leg_ids(leg: Leg) -> dict[str, Any]:
    """Where a leg is."""
    return {
        "agent": leg.agent,
        "session_id": leg.session_id,
        "turn_id": leg.turn_id,
        "snapshot_id": leg.snapshot_id,
    }


def _turn_step(setting: Setting, turn: Turn) -> Observed:
    leg = setting.leg
    if leg is None:
        facts = {"model": setting.model.name, "resumed": turn.counts.model_calls > 0}
        return Observed("turn", "", facts, links=(setting.before,) if setting.before else ())
    resumed = leg.turn_id != leg.snapshot_id or leg.batches > 0
    facts = {**leg_ids(leg), "model": setting.model.name, "resumed": resumed, "recovered": leg.batches > 0}
    return Observed("turn", leg.agent, facts, links=(leg.before,) if leg.before else ())


def _came_to(before: Turn, turn: Turn, outcome: str) -> dict[str, Any]:
    end, counts, old = turn.ended, turn.counts, before.counts
    fresh = counts.model_calls < old.model_calls  # a retry with new limits counts anew
    usage, first = counts.usage, old.usage
    facts: dict[str, Any] = {
        "outcome": outcome,
        "model_calls": counts.model_calls - (0 if fresh else old.model_calls),
        "input_tokens": usage.input_tokens - (0 if fresh else first.input_tokens),
        "output_tokens": usage.output_tokens - (0 if fresh else first.output_tokens),
        "pauses": len(turn.paused) if end is None else 0,
    }
    if end is not None and end.limit is not None:
        facts["limit"] = end.limit
    if end is not None and end.error is not None:
        facts["error"] = end.error.kind or end.error.status
    return facts


def _called(turn: Turn, call_id: str) -> Call | None:
    return next((c for c in turn.calls if c.id == call_id), None)


def _pause(call: Call | None, call_id: str, pause: Pause) -> Observed:
    name = call.request.name if call is not None else ""
    facts = {"tool": name, "call_id": call_id, "interrupt_id": pause.id, "reason": pause.reason}
    if pause.path:
        facts["inner_agent"] = pause.path[0]
    return Observed("pause", name, facts)


def _correction(turn: Turn, event: CallRejected | ToolRaised | OutputRejected) -> Observed | None:
    if isinstance(event, OutputRejected):
        return Observed("correction", "output", {})
    if isinstance(event, ToolRaised) and event.to != "model":
        return None
    kind = event.kind if isinstance(event, CallRejected) else "tool_error"
    facts: dict[str, Any] = {"call_id": event.call}
    call = _called(turn, event.call)
    if call is not None and kind != "unknown_tool":  # the name of a tool that is not there is the model's invention
        facts["tool"] = call.request.name
    if isinstance(event, ToolRaised):
        facts["error"] = event.error.kind or "Error"
    return Observed("correction", kind, facts)


# -- models and tools ------------------------------------------------------------------------------------------------


def model_step(setting: Setting, request: ModelRequest) -> Observed:
    """A model call that is about to be made."""
    provider, _, model = setting.model.name.partition("/")
    facts = {**_where(setting), "provider": provider if model else "", "streaming": request.streaming}
    return Observed("model", setting.model.name, facts, request, parent=_parent(setting))


def replied(step: Observed, reply: ModelReply) -> None:
    """The model has replied."""
    step.result = reply
    usage = reply.usage
    step.facts |= {
        "finish_reason": reply.finish_reason,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def tool_step(setting: Setting, name: str, call: Call, attempt: int) -> Observed:
    """An attempt of a tool's body that is about to be made."""
    facts = {**_where(setting), "tool": name, "call_id": call.id, "attempt": attempt, "restarts": len(call.restarts)}
    if call.pause is not None:
        facts["interrupt_id"] = call.pause.id
    return Observed("tool", name, facts, call.input, parent=_parent(setting))


def tell_retry(setting: Setting, name: str, call: Call, attempt: int, error: Exception, delay: float) -> None:
    """This attempt of a tool failed, and is followed by another after `delay` seconds."""
    facts = {"of": "tool", "tool": name, "call_id": call.id, "attempt": attempt, "error": type(error).__name__}
    notify(setting.observers, "retry", name, {**_where(setting), **facts, "delay": delay})


# -- decisions -------------------------------------------------------------------------------------------------------


def decision_facts(event: Decided, outcome: str, interrupt_id: str) -> dict[str, Any]:
    """What is told of a decision: how, what kind of decider, and whether it counts; never who or what."""
    kind = "expiry" if isinstance(event, Expired) else by_kind(event.by)
    return {"verb": _VERBS[type(event)], "by_kind": kind, "outcome": outcome, "interrupt_id": interrupt_id}


def tell_accepted(observers: Sequence[Observer], event: Decided, row: InterruptRecord, now: float) -> None:
    """This decision on this pause counts."""
    facts = {**decision_facts(event, "accepted", row.id), **_of(row), "seconds": max(now - row.created, 0.0)}
    tell(observers, _linked(Observed("decision", row.tool, {**around(), **facts}), row))


def tell_expired(observers: Sequence[Observer], decisions: Sequence[Decision]) -> None:
    """Nobody decided on these in time."""
    if observers:
        for d in decisions:
            facts = {**decision_facts(Expired(d.interrupt_id), "accepted", d.interrupt_id), "session_id": d.session_id}
            notify(observers, "decision", "", facts)


def tell_refused(
    observers: Sequence[Observer],
    event: Decided,
    error: Exception,
    row: InterruptRecord | None = None,
    now: float | None = None,
) -> None:
    """This decision was not taken. `row` is the pause as it was before; one that was overdue has expired with this."""
    if row is not None and now is not None and overdue(row, now):
        facts = {**decision_facts(Expired(row.id), "accepted", row.id), **_of(row), "seconds": now - row.created}
        tell(observers, Observed("decision", row.tool, {**around(), **facts}))
    facts = {**decision_facts(event, "refused", event.interrupt), "error": type(error).__name__}
    if row is None:
        notify(observers, "decision", "", facts)
    else:
        tell(observers, _linked(Observed("decision", row.tool, {**around(), **facts, **_of(row)}), row))


def tell_refused_items(observers: Sequence[Observer], items: Sequence[Answer | Part], error: Exception) -> None:
    """None of these answers was taken."""
    for item in items:
        if isinstance(item, Answer):
            facts = decision_facts(item.event, "refused", item.event.interrupt)
            name = item.paused.name
        else:
            verb = "respond" if item.tool_response is not None else "restart"
            facts, name = {"verb": verb, "by_kind": "unnamed", "outcome": "refused"}, ""
        notify(observers, "decision", name, {**facts, "error": type(error).__name__})


def _of(row: InterruptRecord) -> dict[str, Any]:
    return {
        "agent": row.agent,
        "session_id": row.session_id,
        "turn_id": row.turn_id,
        "snapshot_id": row.snapshot_id,
        "tool": row.tool,
        "call_id": row.call_id,
        "reason": row.reason,
    }


def _linked(notice: Observed, row: InterruptRecord) -> Observed:
    return replace(notice, links=(row.trace,)) if row.trace is not None else notice
