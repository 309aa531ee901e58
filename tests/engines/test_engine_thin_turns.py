"""An engine keeps a thin turn: whatever happens, the machine says the same of it as of the whole one."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adjourn.engine import thin
from adjourn.events import Event, Limits
from adjourn.state import Finished, Paused, RunTools, Turn
from adjourn.turn import begin, next_step, record
from unit.test_turn_properties import FREE, TIGHT, Walk


def seen(turn: Turn) -> tuple[Any, ...]:
    """What a driver goes by: the step, the calls it is about, and how it ends."""
    step = next_step(turn)
    kind = type(step).__name__
    if isinstance(step, (RunTools, Paused)):
        pauses = [c.pause and (c.pause.id, c.pause.expires_at, c.pause.allow) for c in step.calls]
        return kind, [(c.id, c.request.name, c.due, len(c.restarts)) for c in step.calls], pauses
    if isinstance(step, Finished):
        error = step.end.error
        return kind, step.end.reason, step.end.limit, error and error.kind
    return (kind,)


@given(st.binary(max_size=200), st.sampled_from((FREE, TIGHT)))
@example(bytes(range(60)), TIGHT)
def test_a_thin_turn_takes_the_same_steps_as_the_whole_one(tape: bytes, limits: Limits) -> None:
    walk = Walk(tape, limits)
    slim = begin((), limits)
    for _, event, whole in walk.steps():
        slim = record(slim, thin(event))
        if len(slim.added) > 1:  # the workflow keeps no more
            slim = msgspec.structs.replace(slim, added=slim.added[-1:])
        assert seen(slim) == seen(whole)


@given(st.binary(max_size=200))
def test_a_thin_event_survives_its_way_as_json(tape: bytes) -> None:
    events = [thin(e) for e in Walk(tape, FREE).run().events]
    raw = msgspec.json.encode(events)
    assert msgspec.json.encode(msgspec.json.decode(raw, type=list[Event])) == raw


SECRET = "the-secret-words"


def _holding(value: Any) -> list[Event]:
    raw: list[dict[str, Any]] = [
        {"type": "userSaid", "message": {"role": "user", "content": [{"text": value}]}},
        {
            "type": "modelReplied",
            "message": {
                "role": "model",
                "content": [
                    {"text": value, "metadata": {"m": value}},
                    {"reasoning": value},
                    {"toolRequest": {"name": "t", "input": {"a": value}}, "metadata": {"signature": value}},
                ],
                "metadata": {"m": value},
            },
            "calls": ["c1"],
        },
        {"type": "callRejected", "call": "c1", "message": value},
        {"type": "toolReturned", "call": "c1", "output": value, "content": [{"text": value}], "metadata": {"m": value}},
        {"type": "toolRaised", "call": "c1", "error": {"status": "INTERNAL", "message": value, "details": value}},
        {
            "type": "toolInterrupted",
            "call": "c1",
            "pause": {"id": "i1", "payload": value, "response": {"const": value}, "onExpiry": {"respond": value}},
        },
        {"type": "responded", "interrupt": "i1", "output": value, "metadata": {"m": value}, "by": value},
        {"type": "restarted", "interrupt": "i1", "metadata": {"m": value}, "input": {"a": value}, "by": value},
        {"type": "declined", "interrupt": "i1", "reason": value, "by": value},
        {"type": "outputRejected", "message": value},
        {"type": "turnEnded", "reason": "failed", "error": {"status": "INTERNAL", "message": value}},
    ]
    return msgspec.convert(raw, list[Event])


@pytest.mark.parametrize("event", _holding(SECRET), ids=lambda e: type(e).__name__)
def test_nothing_that_was_said_is_in_a_thin_event(event: Event) -> None:
    assert SECRET.encode() in msgspec.json.encode(event)
    assert SECRET.encode() not in msgspec.json.encode(thin(event))
