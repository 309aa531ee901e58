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


def rounds(*events: Any, **limits: Any) -> tuple[Turn, Turn]:
    """The whole turn and the thin one, after the same events."""
    whole, slim = begin((), Limits(**limits)), begin((), Limits(**limits))
    for event in msgspec.convert(
        [{"type": "userSaid", "message": {"role": "user", "content": []}}, *events], list[Event]
    ):
        whole, slim = record(whole, event), record(slim, thin(event))
    return whole, slim


def asked(call: str, input: Any = None) -> Any:
    request = {"toolRequest": {"name": "t", "input": input}}
    return {"type": "modelReplied", "message": {"role": "model", "content": [request]}, "calls": [call]}


@pytest.mark.parametrize("outputs", [("a", "a"), ("a", "b")], ids=["same", "other"])
def test_a_thin_turn_tells_results_apart(outputs: tuple[str, str]) -> None:
    events = [
        event
        for n, output in enumerate(outputs)
        for event in (asked(f"c{n}", {"x": 1}), {"type": "toolReturned", "call": f"c{n}", "output": output})
    ]
    whole, slim = rounds(*events, identical_calls=1)
    assert seen(whole) == seen(slim)
    assert isinstance(next_step(slim), Finished) is (outputs[0] == outputs[1])


@pytest.mark.parametrize("payloads", [("a", "a"), ("a", "b")], ids=["same", "other"])
@pytest.mark.parametrize("metadata", [None, {"inner": 1}, {"n": 1}], ids=["bare", "inner", "plain"])
def test_a_thin_turn_tells_pauses_and_restarts_apart(payloads: tuple[str, str], metadata: Any) -> None:
    events = [
        asked("c", {"x": 1}),
        {"type": "toolInterrupted", "call": "c", "pause": {"id": "i0", "payload": payloads[0]}},
        {"type": "restarted", "interrupt": "i0", "metadata": metadata},
        {"type": "toolInterrupted", "call": "c", "pause": {"id": "i1", "payload": payloads[1]}},
    ]
    for bounds in ({"repeats": 0}, {"restarts": 1}):
        whole, slim = rounds(*events, **bounds)
        assert seen(whole) == seen(slim)


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
