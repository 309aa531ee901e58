"""What holds for every turn, whatever happens to it: the machine is walked at random through everything it allows."""

# What is tested here is untyped on purpose.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportUnnecessaryTypeIgnoreComment=false, reportUnknownMemberType=false

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from adjourn.errors import AlreadyResolved, NothingPaused, ResumeError, StaleInterrupt, UnknownInterrupt, VerbNotAllowed
from adjourn.events import (
    CallRejected,
    Declined,
    Event,
    Expired,
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
)
from adjourn.parts import ErrorInfo, Message, Part, ToolRequest, Usage, encode
from adjourn.state import Call, CallModel, Finished, Paused, RunTools, Turn, Waiting
from adjourn.testing import from_stored_form, replay, stored_form
from adjourn.transcript import check_sendable, load, raw, read, write
from adjourn.turn import begin, next_step, record

HISTORY = [
    Message("system", [Part(text="Be brief.")]),
    Message("user", [Part(text="hi")]),
    Message("model", [Part(text="hello")]),
]
FREE = Limits(
    model_calls=None,
    cycles=None,
    restarts=None,
    repeats=None,
    argument_errors=None,
    tool_errors=None,
    output_errors=None,
    identical_calls=None,
)
TIGHT = Limits(
    model_calls=6,
    cycles=3,
    restarts=2,
    repeats=1,
    argument_errors=1,
    tool_errors=1,
    output_errors=1,
    identical_calls=2,
    total_tokens=60,
    seconds=20,
)
PAYLOADS: Sequence[Any] = ({"ask": 1}, None, False, 0, "", [], {}, True, "why", 1.5, [{"deep": [None]}])
VALUES: Sequence[Any] = ("done", None, False, 0, "", [], {}, {"ok": True}, 2.5, [1, "two"])
RESTARTS: Sequence[Any] = (None, {"attempt": 1}, {"by": "me", "n": [0]}, {})
ALLOWED: Sequence[Any] = (("respond", "restart"), ("respond",), ("restart",))
ON_EXPIRY: Sequence[Any] = ("decline", "fail", {"respond": 0}, {"respond": None}, {"respond": {"auto": 1}})
BOOM = ErrorInfo("INTERNAL", "boom", "RuntimeError")


class Walk:
    """A turn on its way. Each byte of the tape is a choice."""

    def __init__(self, tape: bytes, limits: Limits) -> None:
        self._tape = iter(tape)
        self.over = False
        self.ids = 0
        self.events: list[Event] = []
        self.turn = begin(HISTORY, limits)

    def choose(self, options: Sequence[Any]) -> Any:
        byte = next(self._tape, None)
        if byte is None:
            self.over = True
            return options[0]
        return options[byte % len(options)]

    def id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}{self.ids}"

    def steps(self) -> Any:
        """Each event with the turns before and after it."""
        yield self.put(UserSaid(Message("user", [Part(text="go")])))
        while not self.over:
            event = self.event()
            if event is None:
                return
            yield self.put(event)

    def put(self, event: Event) -> tuple[Turn, Event, Turn]:
        before, self.turn = self.turn, record(self.turn, event)
        self.events.append(event)
        return before, event, self.turn

    def run(self) -> "Walk":
        for _ in self.steps():
            pass
        return self

    def event(self) -> Event | None:
        step = next_step(self.turn)
        if isinstance(step, CallModel):
            return self.choose((self.reply, self.reply, self.reply, self.model_failed, self.abort))()
        if isinstance(step, RunTools):
            more = (self.decision,) if self.decidable() else ()
            return self.choose((self.tool, self.tool, self.tool, self.tool, *more, self.tool, self.tool, self.abort))()
        if isinstance(step, Waiting):
            more = (self.decision,) if self.decidable() else ()
            return self.choose((self.tool, self.tool, self.tool, *more, self.tool, self.tool, self.abort))()
        if isinstance(step, Paused):
            return self.choose((*[self.decision] * 8, self.abort, self.handler_abort))()
        return self.after(step)

    def reply(self) -> Event:
        usage = Usage(input_tokens=self.choose((1, 5)), output_tokens=2)
        took = self.choose((0.0, 1.25))
        n = self.choose((1, 0, 2, 3, 1, 2))
        parts = [Part(text="so")] if self.choose((True, False)) or not n else []
        calls: list[str] = []
        for _ in range(n):
            name, ref = self.choose(("a", "b")), self.choose((None, "r1", "r2", "", "r1"))
            signature = self.choose((None, {"thoughtSignature": "c2ln"}))
            parts.append(
                Part(tool_request=ToolRequest(name, ref, self.choose(({"x": 1}, {"x": 2}))), metadata=signature)
            )
            calls.append(self.id("c"))
        return ModelReplied(Message("model", parts), tuple(calls), "stop", usage, took)

    def tool(self) -> Event:
        call: Call = self.choose([c for c in self.turn.calls if c.state in ("ready", "running")])
        return self.choose(
            (
                self.returned,
                self.paused,
                self.paused,
                self.paused,
                self.started,
                self.raised,
                self.raised,
                self.rejected,
            )
        )(call.id)

    def started(self, call: str) -> Event:
        return ToolStarted(call)

    def returned(self, call: str) -> Event:
        content = self.choose((None, None, [Part(text="a picture")]))
        return ToolReturned(
            call, self.choose(VALUES), content, self.choose((None, {"k": [1]})), self.choose((0.0, 0.5))
        )

    def paused(self, call: str) -> Event:
        through = self.choose(((), (), (), ("inner",)))
        pause = Pause(
            self.id("i"),
            {"interrupt": self.choose(("x1", "x2"))} if through else self.choose(PAYLOADS),
            allow=self.choose(ALLOWED),
            on_expiry=self.choose(ON_EXPIRY),
            expires_at=self.choose((None, 1e9)),
            response=self.choose((None, {"type": "string"})),
            path=through,
        )
        return ToolInterrupted(call, pause, self.choose((0.0, 0.5)))

    def raised(self, call: str) -> Event:
        return ToolRaised(call, BOOM, self.choose(("model", "caller")))

    def rejected(self, call: str) -> Event:
        return CallRejected(call, "no", self.choose(("arguments", "unknown_tool")))

    def decidable(self) -> bool:
        """Whether a driver would take a decision now: not one past the bound of cycles."""
        counts, bound = self.turn.counts, self.turn.limits.cycles
        return bool(self.turn.paused) and (bound is None or counts.answered or counts.cycles < bound)

    def decision(self) -> Event:
        call: Call = self.choose(self.turn.paused)
        assert call.pause is not None
        i, by = call.pause.id, self.choose((None, "ann"))
        ways: list[Any] = []
        bound = self.turn.limits.restarts
        if "restart" in call.pause.allow and (bound is None or len(call.restarts) < bound):
            edit = self.choose((UNSET, UNSET, {"x": 9}, None))
            due = self.choose((None, 5.0))
            ways += [lambda: Restarted(i, self.choose(RESTARTS), edit, by, due)] * 3
        if "respond" in call.pause.allow:
            ways += [lambda: Responded(i, self.choose(VALUES), self.choose((None, {"m": 1})), by)] * 2
        ways += [lambda: Declined(i, self.choose(("", "no thanks")), by), lambda: Expired(i)]
        return self.choose(ways)()

    def model_failed(self) -> Event:
        return TurnEnded("failed", ErrorInfo("UNAVAILABLE", "503", "ModelError"))

    def abort(self) -> Event:
        return TurnEnded("aborted")

    def handler_abort(self) -> Event:
        return TurnEnded("failed", ErrorInfo("ABORTED", "enough", "HandlerAborted"))

    def after(self, step: Finished) -> Event | None:
        turn = self.turn
        if turn.ended is None:
            if step.end.reason == "stop" and step.end.limit is None and self.choose((True, False)):
                return OutputRejected("not like this")
            return step.end
        if turn.ended.reason == "stop":
            return None
        if self.decidable() and self.choose((True, True, False)):
            return self.decision()
        if turn.ended.limit is not None:
            return self.choose((None, Retried(turn.limits)))
        return self.choose((None, Retried(), Retried(), Retried(turn.limits)))


# A tape is random bytes. Those that hypothesis makes are short and shrink well; the seeded ones are long and go far.
tapes = st.binary(min_size=20, max_size=220) | st.integers(0, 2**40).map(
    lambda seed: random.Random(seed).randbytes(300)
)
limits = st.sampled_from([FREE, FREE, TIGHT, Limits()])
CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


def many(n: int) -> Any:
    """So many stories in CI; a tenth of it where somebody waits for it."""
    return settings(CALM, max_examples=n if settings().max_examples >= 300 else n // 10)


def messages_are_sendable_where_a_model_is_called(turn: Turn) -> None:
    step = next_step(turn)
    if isinstance(step, CallModel):
        check_sendable(step.messages)


@many(400)
@given(tapes, limits)
def test_a_turn_cut_at_any_event_stored_and_replayed_is_the_same_turn(tape: bytes, limits: Limits) -> None:
    walk = Walk(tape, limits)
    turns = [after for _, _, after in walk.steps()]
    stored = from_stored_form(stored_form(walk.events))
    assert stored == walk.events
    replayed = begin(HISTORY, limits)
    for event, kept in zip(stored, turns, strict=True):
        replayed = record(replayed, event)
        assert replayed == kept
        assert next_step(replayed) == next_step(kept)
    cut = tape[0] % len(stored)
    head = replay(stored[:cut], history=HISTORY, limits=limits)
    for event in from_stored_form(stored_form(stored[cut:])):
        head = record(head, event)
    assert head == turns[-1]


@many(500)
@given(tapes, limits)
def test_whenever_a_model_is_called_each_request_has_exactly_one_response_in_request_order(
    tape: bytes, limits: Limits
) -> None:
    walk = Walk(tape, limits)
    rounds: dict[str, list[str]] = {}
    for _, event, after in walk.steps():
        if isinstance(event, ModelReplied) and event.calls:
            rounds[event.calls[0]] = [r for c in after.calls if (r := c.request.ref)]
            assert len(set(rounds[event.calls[0]])) == len(event.calls), "two calls of one round share a ref"
        messages_are_sendable_where_a_model_is_called(after)
        if after.ended is not None and (after.ended.reason in ("stop", "aborted") or after.ended.limit is not None):
            check_sendable(write(after))
            assert not after.calls
    answered = [r.ref for m in walk.turn.added for p in m.content if (r := p.tool_response) is not None]
    open_refs = [c.request.ref for c in walk.turn.calls]
    assert answered + open_refs == [ref for refs in rounds.values() for ref in refs]


@many(500)
@given(tapes, limits)
def test_a_settled_call_never_changes_and_no_request_is_answered_twice(tape: bytes, limits: Limits) -> None:
    given_answers: dict[str, Part] = {}
    for before, event, after in Walk(tape, limits).steps():
        for call in before.calls:
            if call.state == "settled":
                still = [c for c in after.calls if c.id == call.id]
                assert not still or still[0] == call, f"{event} changed a settled call"
        for call in after.calls:
            assert (call.response is not None) == (call.state == "settled")
            if call.response is not None:
                assert given_answers.setdefault(call.id, call.response) == call.response
        assert after.added[: len(before.added)] == before.added, f"{event} rewrote the transcript"
        assert (after.open is None) == (not after.calls)


# A pause past its bound beside a failed sibling, answered before the turn was tried again.
@example(random.Random(803844296).randbytes(300), TIGHT)
@many(500)
@given(tapes, st.sampled_from([TIGHT, TIGHT, Limits(), msgspec.structs.replace(FREE, total_tokens=20, seconds=2.0)]))
def test_no_count_passes_its_bound_and_an_end_by_a_limit_is_structured(tape: bytes, limits: Limits) -> None:
    for _, event, turn in Walk(tape, limits).steps():
        counts, step = turn.counts, next_step(turn)
        assert limits.model_calls is None or counts.model_calls <= limits.model_calls
        assert limits.cycles is None or counts.cycles <= limits.cycles
        for call in turn.calls:
            own = [
                r for r in call.restarts if not isinstance(r, Mapping) or "inner" not in r
            ]  # not those passed inwards
            assert limits.restarts is None or len(own) <= limits.restarts
        if isinstance(step, CallModel):
            for kind in ("argument_errors", "tool_errors"):
                bound = getattr(limits, kind)
                assert bound is None or all(n <= bound for n in getattr(counts, kind).values())
            assert limits.output_errors is None or counts.output_errors <= limits.output_errors
            assert limits.identical_calls is None or all(n <= limits.identical_calls for n in counts.identical.values())
            assert limits.total_tokens is None or counts.usage.total_tokens < limits.total_tokens
            assert limits.seconds is None or counts.seconds < limits.seconds
            assert limits.repeats is None or all(n <= limits.repeats + 1 for n in counts.pauses.values())
        if isinstance(step, Finished) and step.end.limit is not None:
            assert step.end.limit in Limits.__struct_fields__
            assert step.end.reason == "failed"
            assert step.end.error is not None
            assert (step.end.error.kind, step.end.error.status) == ("LimitReached", "RESOURCE_EXHAUSTED")
        if isinstance(event, TurnEnded) and event.limit is not None:
            assert turn.open is None


def silent(step: Any) -> bytes:
    """A step without what exceptions said: that is in no transcript."""
    return encode(step).replace(b'"message":"boom"', b'"message":""')


def same_pause(one: Turn, other: Turn) -> None:
    for a, b in zip(one.calls, other.calls, strict=True):
        assert (a.id, a.state, a.input, a.replaced, a.due) == (b.id, b.state, b.input, b.replaced, b.due)
        assert (a.pause, a.restarts, a.pauses) == (b.pause, b.restarts, b.pauses)
        # What an exception said is in no transcript: that there was one is.
        assert (a.error and a.error.kind) == (b.error and b.error.kind)
        assert encode([a.part, a.response]) == encode([b.part, b.response])
    assert encode(one.counts) == encode(other.counts)


@many(500)
@given(tapes, limits)
def test_a_turn_read_from_its_written_pause_goes_on_exactly_as_the_original(tape: bytes, limits: Limits) -> None:
    walk = Walk(tape, limits)
    shadow: Turn | None = None
    for _, event, turn in walk.steps():
        if shadow is not None:
            shadow = record(shadow, event)
            assert type(next_step(shadow)) is type(next_step(turn))
            assert silent(next_step(shadow)) == silent(next_step(turn))
            assert encode(write(shadow)) == encode(write(turn))
        if isinstance(next_step(turn), Paused):
            shadow = read(load(raw(write(turn))), turn.limits)
            assert isinstance(next_step(shadow), Paused)
            same_pause(turn, shadow)
            assert encode(shadow.added) == encode(turn.added)
            assert raw(write(shadow)) == raw(write(turn))


@many(300)
@given(tapes, limits)
def test_recording_never_changes_the_turn_or_the_event_it_was_given(tape: bytes, limits: Limits) -> None:
    walk = Walk(tape, limits)
    taken = encode(walk.turn)
    for before, event, after in walk.steps():
        assert encode(before) == taken
        stored = encode(event)
        assert record(before, event) == after, "recording twice from one value gives one result"
        assert encode(event) == stored
        assert encode(before) == taken
        taken = encode(after)


def refused(turn: Turn, event: Event) -> ResumeError:
    taken = encode(turn)
    with pytest.raises(ResumeError) as e:
        record(turn, event)
    assert encode(turn) == taken
    return e.value


@many(400)
@given(tapes, limits)
def test_what_does_not_fit_is_refused_by_the_right_error_and_changes_nothing(tape: bytes, limits: Limits) -> None:
    walk = Walk(tape, limits)
    for _, _, turn in walk.steps():
        for event in (Responded("i_x", 1), Restarted("i_x"), Declined("i_x"), Expired("i_x")):
            assert type(refused(turn, event)) is (UnknownInterrupt if turn.calls else NothingPaused)
        for event in (ToolStarted("c_x"), ToolReturned("c_x"), CallRejected("c_x", ""), ToolRaised("c_x", BOOM)):
            assert type(refused(turn, event)) is StaleInterrupt
        if turn.ended is None or turn.ended.reason == "stop":
            assert type(refused(turn, Retried())) is NothingPaused
        elif turn.ended.limit is not None:
            assert type(refused(turn, Retried())) is VerbNotAllowed
        for call in turn.calls:
            if call.state in ("paused", "failed", "settled"):
                for event in (
                    ToolStarted(call.id),
                    ToolReturned(call.id, 1),
                    CallRejected(call.id, "no"),
                    ToolRaised(call.id, BOOM, "model"),
                    ToolInterrupted(call.id, Pause("i_again")),
                ):
                    assert type(refused(turn, event)) is StaleInterrupt
            if call.pause is None:
                continue
            decisions = (
                Responded(call.pause.id),
                Restarted(call.pause.id),
                Declined(call.pause.id),
                Expired(call.pause.id),
            )
            if call.state != "paused":
                expired = call.response is not None and call.response.ours.get("outcome") == "expired"
                kind = StaleInterrupt if expired else AlreadyResolved  # nobody came in time, or somebody was quicker
                assert {type(refused(turn, event)) for event in decisions} == {kind}
            elif "restart" not in call.pause.allow:
                assert type(refused(turn, decisions[1])) is VerbNotAllowed
            elif "respond" not in call.pause.allow:
                assert type(refused(turn, decisions[0])) is VerbNotAllowed


@example(bytes([0] * 60))
@example(bytes(range(120)))
@many(200)
@given(tapes)
def test_asking_for_the_next_step_is_free_and_always_says_the_same(tape: bytes) -> None:
    for _, _, turn in Walk(tape, TIGHT).steps():
        taken = encode(turn)
        assert encode(next_step(turn)) == encode(next_step(turn))
        assert encode(turn) == taken
