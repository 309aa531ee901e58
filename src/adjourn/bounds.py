"""When a turn has used up one of its `Limits`."""

from collections.abc import Mapping, Sequence

from adjourn.events import TurnEnded
from adjourn.parts import ErrorInfo
from adjourn.state import Call, Turn


def _limit(name: str, what: str) -> TurnEnded:
    text = f"{what}. The turn was stopped; everything so far is kept"
    return TurnEnded("failed", ErrorInfo("RESOURCE_EXHAUSTED", text, "LimitReached"), name)


def spent(turn: Turn) -> TurnEnded | None:
    """The bound that the next model call would break."""
    limits, counts = turn.limits, turn.counts
    if limits.model_calls is not None and counts.model_calls >= limits.model_calls:
        return _limit("model_calls", f"the model was called {counts.model_calls} times in one turn")
    for field, kind in (("argument_errors", "invalid calls"), ("tool_errors", "failures")):
        bound: int | None = getattr(limits, field)
        spent: Mapping[str, int] = getattr(counts, field)
        if bound is not None and spent:
            tool, n = max(spent.items(), key=lambda item: item[1])
            if n > bound:
                return _limit(field, f"the model got {n} {kind} of tool {tool!r} back and mended none")
    if limits.output_errors is not None and counts.output_errors > limits.output_errors:
        return _limit("output_errors", f"the model gave {counts.output_errors} replies that do not fit the output type")
    # Where a sibling failed, a pause past its bound is answered without the turn resting on it: `stuck` never saw it.
    if limits.repeats is not None and counts.pauses and (n := max(counts.pauses.values())) > limits.repeats + 1:
        return _limit("repeats", f"a call paused {n} times with the same input and payload")
    if limits.identical_calls is not None and counts.identical:
        n = max(counts.identical.values())
        if n > limits.identical_calls:
            return _limit(
                "identical_calls", f"the model made the same call {n} times and got the same result each time"
            )
    if limits.total_tokens is not None and counts.usage.total_tokens >= limits.total_tokens:
        return _limit("total_tokens", f"{counts.usage.total_tokens} tokens were used")
    if limits.seconds is not None and counts.seconds >= limits.seconds:
        return _limit("seconds", f"the turn ran for {counts.seconds:.1f} seconds")
    return None


def stuck(turn: Turn) -> TurnEnded | None:
    """The bound that the pauses of the open round break."""
    limits, counts = turn.limits, turn.counts
    if limits.repeats is not None:
        here = repeats_in_round(turn.calls)
        for call in turn.paused:
            times = counts.pauses.get(call.pauses[-1], 0) + here[call.pauses[-1]]
            if times > limits.repeats + 1:
                return _limit(
                    "repeats", f"tool {call.request.name!r} paused {times} times with the same input and payload"
                )
    if limits.restarts is not None:
        for call in turn.paused:
            nested = call.pause is not None and call.pause.path
            times = call.own_restarts
            if times and times >= limits.restarts and call.error is None and not nested:
                return _limit(
                    "restarts",
                    f"tool {call.request.name!r} was restarted {times} times and paused again",
                )
    if limits.cycles is not None and counts.cycles >= limits.cycles and not counts.answered:
        return _limit("cycles", f"{counts.cycles} rounds of decisions did not end the turn")
    return None


def repeats_in_round(calls: Sequence[Call]) -> dict[str, int]:
    """How often each pause came in this round; twins that were asked for side by side are one."""
    out: dict[str, int] = {}
    for call in calls:
        for mark in set(call.pauses):
            out[mark] = max(out.get(mark, 0), call.pauses.count(mark))
    return out
