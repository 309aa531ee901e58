"""The turn machine: every rule of a turn, and nothing else.

A turn goes from one user message to its end, through any number of pauses. It is a value; `record(turn, event)` gives
the next value and `next_step(turn)` says what has to happen now. Nothing here does IO, reads a clock or awaits, so
whoever replays the same events has the same turn. These are the rules:

  * A model message with tool requests opens a *round*, one `Call` a request. The round closes when every call is
    settled: the model message and one tool message, with one response a request in request order, join the transcript.
    Until then no model is called. So a transcript is always sendable.
  * A call is ready, running, paused, failed or settled. Only a ready call runs. A settled call never changes again.
  * A paused turn is no mode: it is a round whose calls are all settled or paused. A decision settles its call or makes it
    ready again; both lead back into the same loop. A call that was sent round again may pause again.
  * A tool that raised fails the turn once its siblings are done. `Retried` makes its call ready again. If it had been
    restarted by a decision it is paused again too, so that another decision can be made instead.
  * A pause that came through a nested agent takes its decision inward: the call runs again with it.
  * Every bound of `Limits` is checked where one more would be spent: before a model call, and at a new pause.
  * An end by abort or by a limit closes the open calls with a response that says so. Any other failure leaves them open.

Where a decision does not fit, `record` raises a ResumeError and the old value is as good as before.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from adjourn.bounds import repeats_in_round, spent, stuck
from adjourn.errors import AlreadyResolved, NothingPaused, StaleInterrupt, UnknownInterrupt, VerbNotAllowed
from adjourn.events import (
    CallRejected,
    Declined,
    Event,
    Expired,
    Forked,
    Json,
    Limits,
    ModelReplied,
    OutputRejected,
    Pause,
    Responded,
    Restarted,
    Retried,
    ToolInterrupted,
    ToolRaised,
    ToolReturned,
    ToolStarted,
    TurnEnded,
    UserSaid,
    Verb,
)
from adjourn.parts import OURS, ErrorInfo, Message, Metadata, Part, ToolResponse, digest, fresh
from adjourn.state import Call, CallModel, Counts, Finished, Paused, RunTools, Step, Turn, Waiting


def next_step(turn: Turn) -> Step:
    """What has to happen now. Says the same however often it is asked."""
    if turn.ended is not None:
        return Finished(turn.ended)
    if turn.open is not None:
        return _within_round(turn)
    if turn.fatal is not None:
        return Finished(TurnEnded("failed", turn.fatal))
    if turn.added and turn.added[-1].role == "model":
        return Finished(TurnEnded(turn.finish_reason))
    over = spent(turn)
    if over is not None:
        return Finished(over)
    return CallModel((*turn.history, *turn.added))


def _within_round(turn: Turn) -> Step:
    states = [c.state for c in turn.calls]
    if "ready" in states:
        return RunTools([c for c in turn.calls if c.state == "ready"])
    if "running" in states:
        return Waiting()
    if turn.fatal is not None:
        return Finished(TurnEnded("failed", turn.fatal))
    failed = next((c for c in turn.calls if c.state == "failed"), None)
    if failed is not None:
        return Finished(TurnEnded("failed", failed.error))
    return Finished(over) if (over := stuck(turn)) else Paused(turn.paused)


# -- recording -------------------------------------------------------------------------------------------------------


def begin(history: Sequence[Message], limits: Limits) -> Turn:
    """A turn that has not started. `history` must be closed: it ends in no open round."""
    return Turn(history=history, limits=limits)


def record(turn: Turn, event: Event) -> Turn:
    """The turn after `event`. Raises ResumeError for a decision that does not fit; the turn is a value, so nothing is lost."""
    return _RULES[type(event)](turn, event)


def _user_said(turn: Turn, event: UserSaid) -> Turn:
    return replace(turn, added=(*turn.added, event.message))


def _model_replied(turn: Turn, event: ModelReplied) -> Turn:
    old = turn.counts
    counts = replace(
        old, model_calls=old.model_calls + 1, usage=old.usage + event.usage, seconds=old.seconds + event.took
    )
    turn = replace(turn, counts=counts, finish_reason=event.finish_reason)
    if not event.calls:
        return replace(turn, added=(*turn.added, event.message))
    ids, seen = iter(event.calls), set[str]()
    calls: list[Call] = []
    content: list[Part] = []
    for given in event.message.content:
        part, request = given, given.tool_request
        if request is not None:
            call_id = next(ids)
            if not request.ref or request.ref in seen:  # providers omit it or repeat it; answers need to be told apart
                request = replace(request, ref=call_id)
                part = replace(given, tool_request=request)
            seen.add(request.ref or "")
            calls.append(Call(call_id, part, fresh(request.input)))
        content.append(part)
    return replace(turn, open=replace(event.message, content=content), calls=tuple(calls))


def _position(turn: Turn, call_id: str) -> int:
    for i, call in enumerate(turn.calls):
        if call.id == call_id:
            return i
    raise StaleInterrupt(f"call {call_id} is not open in this turn")


def _put(turn: Turn, position: int, call: Call, counts: Counts | None = None) -> Turn:
    calls = turn.calls
    calls = (call,) if len(calls) == 1 else (*calls[:position], call, *calls[position + 1 :])
    turn = replace(turn, calls=calls, counts=counts or turn.counts)
    return _close(turn) if all(c.state == "settled" for c in calls) else turn


def _running(turn: Turn, call_id: str, took: float = 0.0) -> tuple[Turn, int, Call]:
    position = _position(turn, call_id)
    call = turn.calls[position]
    if call.state not in ("ready", "running"):
        raise StaleInterrupt(f"call {call_id} is {call.state}, not running")
    if took:
        turn = replace(turn, counts=replace(turn.counts, seconds=turn.counts.seconds + took))
    return turn, position, call


def _tool_started(turn: Turn, event: ToolStarted) -> Turn:
    turn, position, call = _running(turn, event.call)
    return _put(turn, position, replace(call, state="running"))


def _tool_returned(turn: Turn, event: ToolReturned) -> Turn:
    turn, position, call = _running(turn, event.call, event.took)
    counts, tool = turn.counts, call.request.name
    if tool in counts.argument_errors or tool in counts.tool_errors:
        counts = replace(
            counts,
            argument_errors={k: v for k, v in counts.argument_errors.items() if k != tool},
            tool_errors={k: v for k, v in counts.tool_errors.items() if k != tool},
        )
    counts = _again(counts, turn.limits, call, event.output)
    content, metadata = _ran_with(call, event.content, event.metadata)
    return _put(turn, position, _answer(call, event.output, content, metadata), counts)


def _again(counts: Counts, limits: Limits, call: Call, result: Json) -> Counts:
    if limits.identical_calls is None:
        return counts
    return replace(counts, identical=_one_more(counts.identical, digest(call.request.name, call.input, result)))


def _answer(call: Call, output: Json, content: Sequence[Part] | None = None, metadata: Metadata | None = None) -> Call:
    """The call, settled with this output."""
    request = call.request
    response = ToolResponse(request.name, request.ref, output, content)
    part = Part(tool_response=response, metadata=metadata or None)
    return replace(call, state="settled", response=part, error=None)


def _ran_with(call: Call, content: Sequence[Part] | None, metadata: Metadata | None) -> Any:
    """Content and metadata of the result of a body that ran; they say so where its input had been edited."""
    if not call.replaced:
        return content, metadata
    # The model must see what really ran, or it repeats its own request.
    note = Part(text=f"(This ran with an edited input: {_short(call.input)}, not with the one requested.)")
    edit = {"replacedInput": call.request.input, "executedInput": call.input}
    return (*(content or ()), note), {**(metadata or {}), **edit}


def _short(value: Json) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 500 else text[:500] + "…"


def _note(outcome: str) -> Metadata:
    return {OURS: {"outcome": outcome}}


def _call_rejected(turn: Turn, event: CallRejected) -> Turn:
    turn, position, call = _running(turn, event.call)
    counts, tool = turn.counts, call.request.name
    if not _erred_beside(turn, call, ("arguments", "unknown_tool")):
        counts = replace(counts, argument_errors=_one_more(counts.argument_errors, tool))
    return _put(turn, position, _answer(call, {"error": event.message}, None, _note(event.kind)), counts)


def _erred_beside(turn: Turn, call: Call, outcomes: Sequence[str]) -> bool:
    """Whether a sibling of the same tool erred in this round: the model has not seen that yet, so it counts once."""
    return any(
        c.request.name == call.request.name and c.response is not None and c.response.ours.get("outcome") in outcomes
        for c in turn.calls
    )


def _one_more(counts: Mapping[str, int], key: str) -> Mapping[str, int]:
    return {**counts, key: counts.get(key, 0) + 1}


def _tool_raised(turn: Turn, event: ToolRaised) -> Turn:
    turn, position, call = _running(turn, event.call, event.took)
    counts = turn.counts
    if event.to == "model":
        if not _erred_beside(turn, call, ("tool",)):
            counts = replace(counts, tool_errors=_one_more(counts.tool_errors, call.request.name))
        content, metadata = _ran_with(call, None, _note("tool"))
        return _put(turn, position, _answer(call, {"error": event.error.message}, content, metadata), counts)
    if call.pause is None or event.answered:
        asked = call.asked if call.pause is None else (*call.asked, call.pause.id)
        return _put(turn, position, replace(call, state="failed", error=event.error, pause=None, asked=asked))
    # Somebody decided to restart it: the pause is open again for another decision, and the turn fails all the same. That
    # decision came in time, so nobody can be too late any more.
    turn = replace(turn, fatal=turn.fatal or event.error)
    pause = replace(call.pause, expires_at=None)
    return _put(turn, position, replace(call, state="paused", error=event.error, pause=pause))


def _tool_interrupted(turn: Turn, event: ToolInterrupted) -> Turn:
    turn, position, call = _running(turn, event.call, event.took)
    mark = digest(call.request.name, call.input, event.pause.payload)
    asked = call.asked if call.pause is None else (*call.asked, call.pause.id)
    call = replace(call, state="paused", pause=event.pause, pauses=(*call.pauses, mark), asked=asked, error=None)
    return _put(turn, position, call, replace(turn.counts, answered=False))


def _output_rejected(turn: Turn, event: OutputRejected) -> Turn:
    note = Message("user", [Part(text=event.message)], {OURS: {"correction": "output"}})
    counts = replace(turn.counts, output_errors=turn.counts.output_errors + 1)
    return replace(turn, added=(*turn.added, note), counts=counts)


def open_pause(turn: Turn, interrupt: str) -> tuple[int, Call]:
    """The paused call of this interrupt and its place in the round. Raises the ResumeError that fits where there is none."""
    for i, call in enumerate(turn.calls):
        if call.pause is not None and call.pause.id == interrupt:
            if call.state == "paused":
                return i, call
            if call.response is not None and call.response.ours.get("outcome") == "expired":
                raise StaleInterrupt(f"interrupt {interrupt} expired before anybody decided; nothing was changed")
            raise AlreadyResolved(
                f"interrupt {interrupt} was already answered; its call is {call.state}. That counts; nothing was changed"
            )
        if interrupt in call.asked:
            raise AlreadyResolved(
                f"interrupt {interrupt} was already answered; its call has paused again since. Nothing was changed: decide on "
                f"what is open now: {_names(turn.paused)}"
            )
    if not turn.calls:
        raise NothingPaused("the conversation does not end in a pause, so there is nothing to resume")
    raise UnknownInterrupt(f"interrupt {interrupt} is not open here; open: {_names(turn.paused)}")


def _names(calls: Sequence[Call]) -> str:
    return ", ".join(f"{c.pause.id} ({c.request.name})" for c in calls if c.pause) or "none"


def _decide(turn: Turn, interrupt: str, verb: Verb | None = None) -> tuple[Turn, int, Call, Pause]:
    position, call = open_pause(turn, interrupt)
    pause = call.pause
    assert pause is not None
    if verb is not None and verb not in pause.allow:
        raise VerbNotAllowed(
            f"interrupt {interrupt} of tool {call.request.name!r} does not take a {verb}; it takes: "
            + ", ".join((*pause.allow, "decline"))
        )
    counts, bound = turn.counts, turn.limits.cycles
    if not counts.answered:
        if bound is not None and counts.cycles >= bound:
            raise VerbNotAllowed(
                f"the turn has had its {bound} rounds of decisions; retry(limits=Limits(...)) allows more"
            )
        counts = replace(counts, cycles=counts.cycles + 1, answered=True)
    # A decision after a failed end is the way on from it.
    fatal = None if turn.ended is not None else turn.fatal
    return replace(turn, counts=counts, fatal=fatal, ended=None), position, call, pause


def _inward(turn: Turn, position: int, call: Call, decision: Metadata) -> Turn:
    """A pause that came through a nested agent: its call runs again, and takes the decision in there."""
    payload: Json = call.pause.payload if call.pause is not None else None
    shown = cast(Metadata, payload if isinstance(payload, Mapping) else {})
    where: Metadata = {k: shown.get(k) for k in ("interrupt", "snapshot")}
    # The same pause may be open again, and be decided once more: that is another decision to whoever takes it in there.
    outer = f"{call.pause.id}.{len(call.restarts)}" if call.pause is not None else None
    inner = {**decision, **where, "outer": outer}
    restarts, inward = (*call.restarts, {"inner": inner}), (*call.inward, len(call.restarts))
    return _put(turn, position, replace(call, state="ready", restarts=restarts, inward=inward, error=None))


def _responded(turn: Turn, event: Responded) -> Turn:
    turn, position, call, pause = _decide(turn, event.interrupt, "respond")
    if pause.path:
        return _inward(turn, position, call, {"verb": "respond", "output": event.output})
    counts = _again(turn.counts, turn.limits, call, event.output)
    metadata = {**(event.metadata or {}), "interruptResponse": True}
    return _put(turn, position, _answer(call, event.output, None, metadata), counts)


def _restarted(turn: Turn, event: Restarted) -> Turn:
    turn, position, call, pause = _decide(turn, event.interrupt, "restart")
    if pause.path:
        given = {} if event.input is UNSET else {"input": event.input}
        call = replace(call, due=event.due)
        return _inward(turn, position, call, {"verb": "restart", "metadata": event.metadata, **given})
    bound = turn.limits.restarts
    if bound is not None and call.own_restarts >= bound:
        raise VerbNotAllowed(
            f"tool {call.request.name!r} was restarted {bound} times already; respond or decline instead"
        )
    metadata: Json = {} if event.metadata is None else event.metadata  # False and 0 are what somebody said
    call = replace(call, state="ready", restarts=(*call.restarts, metadata), due=event.due, error=None)
    if event.input is not UNSET:
        call = replace(call, input=event.input, replaced=True)
    return _put(turn, position, call)


def _declined(turn: Turn, event: Declined) -> Turn:
    turn, position, call, pause = _decide(turn, event.interrupt)
    if pause.path:
        return _inward(turn, position, call, {"verb": "decline", "reason": event.reason})
    output = {"declined": True, "reason": event.reason or "The request was declined. Do not repeat it as it is."}
    return _put(turn, position, _answer(call, output, None, _note("declined")))


def _expired(turn: Turn, event: Expired) -> Turn:
    turn, position, call, pause = _decide(turn, event.interrupt)
    if pause.path:
        return _inward(turn, position, call, {"verb": "expire"})
    if isinstance(pause.on_expiry, Mapping):
        default: Metadata = pause.on_expiry  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return _put(turn, position, _answer(call, default["respond"], None, _note("expired")))
    text = "Nobody decided in time, so this was not done. This is not a refusal."
    call = _answer(call, {"expired": True, "reason": text}, None, _note("expired"))
    if pause.on_expiry == "fail":
        error = ErrorInfo("DEADLINE_EXCEEDED", f"nobody decided on tool {call.request.name!r} in time", "Expired")
        turn = replace(turn, fatal=error)
    return _put(turn, position, call)


_RERUN = ("outcome_unknown", "error")
"""Why a call is paused that ran before: whoever restarts it repeats what was approved then."""


def _forked(turn: Turn, event: Forked) -> Turn:
    ids = event.ids
    return replace(turn, calls=tuple(_branched(c, ids) if c.pause is not None else c for c in turn.calls))


def _branched(call: Call, ids: Mapping[str, str]) -> Call:
    pause = call.pause
    if pause is None or pause.id not in ids:
        return call
    # Approved in both branches it is approved twice: two calls to whoever is given the key. A run whose approval both share
    # keeps its key, so that both together take effect once.
    branch = call.branch if pause.reason in _RERUN else ids[pause.id]
    return replace(call, pause=replace(pause, id=ids[pause.id]), branch=branch)


def _turn_ended(turn: Turn, event: TurnEnded) -> Turn:
    if event.reason == "aborted":
        turn = close_open_calls(turn, "cancelled", "The turn was cancelled before this was done.")
    elif event.limit is not None or (event.error is not None and event.error.kind == "HandlerAborted"):
        turn = close_open_calls(turn, "stopped", "The turn was stopped before this was done.")
    return replace(turn, ended=event)


def close_open_calls(turn: Turn, outcome: str, reason: str) -> Turn:
    """The turn with its round closed: each call that is not settled gets a response that says so."""
    if turn.open is None:
        return turn
    calls = [c if c.state == "settled" else _closed(c, outcome, reason) for c in turn.calls]
    return _close(replace(turn, calls=tuple(calls)))


def _closed(call: Call, outcome: str, reason: str) -> Call:
    refusal = _declined_inside(call)
    if refusal is None:
        return _answer(call, {outcome: True, "reason": _ran(call, reason)}, None, _note(outcome))
    return _answer(call, {"declined": True, "reason": refusal}, None, _note("declined"))


def _declined_inside(call: Call) -> str | None:
    """Why the call was declined, where that was still on its way into a nested agent; None where it was not."""
    if call.state != "ready" or not call.answers_inside:
        return None
    decision = cast(Metadata, cast(Metadata, call.restarts[-1])["inner"])
    if decision.get("verb") != "decline":
        return None
    return f"{decision.get('reason') or 'The request was declined.'} What was done inside before may have taken effect."


def _ran(call: Call, reason: str) -> str:
    if call.state == "running":
        return reason + " It had been started and may still be running or have taken effect."
    # Not what its exception said, which may hold what no model and no customer is to see: on_error="model" tells that.
    return "It failed." if call.error is not None else reason


def _close(turn: Turn) -> Turn:
    assert turn.open is not None
    counts = turn.counts
    here = repeats_in_round(turn.calls) if any(c.pauses for c in turn.calls) else {}
    if here:
        total = {**counts.pauses, **{k: counts.pauses.get(k, 0) + n for k, n in here.items()}}
        counts = replace(counts, pauses=total)
        calls = iter(turn.calls)
        content = [_resolved(next(calls)) if p.tool_request is not None else p for p in turn.open.content]
        model = replace(turn.open, content=content)
        tool = Message("tool", [_kept_response(c) for c in turn.calls], {"resumed": True})
    else:
        model = turn.open
        tool = Message("tool", [_response(c) for c in turn.calls])
    return replace(turn, added=(*turn.added, model, tool), open=None, calls=(), counts=counts)


def _resolved(call: Call) -> Part:
    if call.pause is None:
        return call.part
    return replace(call.part, metadata={**(call.part.metadata or {}), "resolvedInterrupt": shown(call.pause.payload)})


def shown(payload: Json) -> Json:
    """The payload as the metadata has it: `true` stands for an empty one, as the wire format wants."""
    return payload or True


def _response(call: Call) -> Part:
    assert call.response is not None
    return call.response


def _kept_response(call: Call) -> Part:
    part = _response(call)
    if call.pause is not None:
        return part
    return replace(part, metadata={**(part.metadata or {}), "source": "pending"})  # it waited beside a pause


def _retried(turn: Turn, event: Retried) -> Turn:
    if turn.ended is None or turn.ended.reason not in ("failed", "aborted"):
        raise NothingPaused("the turn did not fail, so there is nothing to retry")
    if turn.ended.limit is not None and event.limits is None:
        raise VerbNotAllowed(
            f"the turn was stopped by its limit {turn.ended.limit!r}; to go on, give a new allowance: retry(limits=Limits(...))"
        )
    again = [c.error is not None and c.state in ("failed", "paused") for c in turn.calls]
    calls = tuple(
        [
            replace(c, state="ready", error=None, retried=c.retried + 1) if a else c
            for c, a in zip(turn.calls, again, strict=True)
        ]
    )
    if event.limits is not None:
        turn = replace(turn, limits=event.limits, counts=Counts())
    return replace(turn, ended=None, fatal=None, calls=calls)


_RULES: Mapping[type, Any] = {
    UserSaid: _user_said,
    ModelReplied: _model_replied,
    ToolStarted: _tool_started,
    ToolReturned: _tool_returned,
    CallRejected: _call_rejected,
    ToolRaised: _tool_raised,
    ToolInterrupted: _tool_interrupted,
    OutputRejected: _output_rejected,
    Responded: _responded,
    Restarted: _restarted,
    Declined: _declined,
    Expired: _expired,
    Forked: _forked,
    TurnEnded: _turn_ended,
    Retried: _retried,
}
