"""How a turn ends, and the bounds that end it."""

from collections.abc import Mapping
from typing import Any

import pytest

from adjourn.errors import (
    InvalidRequest,
    NothingPaused,
    ResumeError,
    UnknownInterrupt,
    VerbNotAllowed,
)
from adjourn.events import (
    CallRejected,
    Declined,
    Forked,
    Limits,
    ModelReplied,
    OutputRejected,
    Responded,
    Restarted,
    Retried,
    ToolRaised,
    ToolReturned,
    ToolStarted,
    TurnEnded,
)
from adjourn.parts import ErrorInfo, Message, Part, ToolRequest, Usage
from adjourn.state import CallModel, Counts, Finished, Paused, Turn
from adjourn.transcript import check_sendable
from adjourn.turn import next_step, record, repeats_in_round
from unit.turn_kit import BOOM, asks, end, nested, output, pauses, responses, says, turn_of

# -- ends ------------------------------------------------------------------------------------------------------------


def test_an_abort_closes_every_open_call_as_cancelled_and_says_which_may_have_taken_effect() -> None:
    turn = turn_of(
        asks("a", "b", "d", "e"), ToolReturned("a", 1), ToolStarted("b"), pauses("d", "i1"), TurnEnded("aborted")
    )
    check_sendable(turn.added)
    assert output(turn, 0) == 1
    assert "may still be running" in output(turn, 1)["reason"]
    assert (
        output(turn, 2)
        == output(turn, 3)
        == {
            "cancelled": True,
            "reason": "The turn was cancelled before this was done.",
        }
    )
    assert responses(turn)[2].ours == {"outcome": "cancelled"}
    assert next_step(turn) == Finished(TurnEnded("aborted"))
    with pytest.raises(NothingPaused):
        record(turn, Responded("i1", 1))
    assert isinstance(next_step(record(turn, Retried())), CallModel)


def test_an_abort_between_rounds_adds_nothing_to_the_transcript() -> None:
    assert len(turn_of(TurnEnded("aborted")).added) == 1


def test_a_handler_that_aborts_closes_the_open_calls_as_stopped() -> None:
    turn = turn_of(asks("a", "b"), ToolRaised("b", BOOM), pauses("a", "i1"))
    turn = record(turn, TurnEnded("failed", ErrorInfo("ABORTED", "enough", "HandlerAborted")))
    assert output(turn, 0)["stopped"] is True
    assert output(turn, 1) == {"stopped": True, "reason": "It failed."}
    check_sendable(turn.added)


def test_any_other_failure_leaves_the_pauses_open() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"), TurnEnded("failed", BOOM))
    assert [c.id for c in turn.paused] == ["a"]
    assert output(record(turn, Responded("i1", 1))) == 1


def test_a_reply_that_does_not_fit_is_followed_by_a_correction_and_another_call() -> None:
    turn = turn_of(says("{"), OutputRejected("not JSON"))
    step = next_step(turn)
    assert isinstance(step, CallModel)
    assert step.messages[-1].text == "not JSON"
    assert step.messages[-1].ours == {"correction": "output"}


def test_a_fork_gives_its_open_pauses_ids_of_their_own() -> None:
    turn = turn_of(asks("a", "b", "d"), pauses("a", "i1"), pauses("b", "i2"))
    fork = record(turn, Forked({"i1": "j1"}))
    assert [c.pause.id for c in fork.paused if c.pause] == ["j1", "i2"]
    with pytest.raises(UnknownInterrupt):
        record(fork, Responded("i1", 1))
    assert [c.pause.id for c in turn.paused if c.pause] == ["i1", "i2"]


# -- limits ----------------------------------------------------------------------------------------------------------


def looped(turn: Turn, n: int, result: Any = "same") -> Turn:
    """`n` rounds of the same call."""
    for i in range(n):
        call = f"k{len(turn.added)}.{i}"
        ask = ModelReplied(
            Message("model", [Part(tool_request=ToolRequest("a", None, {}))]), (call,), "stop", Usage(3, 1), 1.0
        )
        turn = record(record(turn, ask), ToolReturned(call, result(i) if callable(result) else result))
    return turn


@pytest.mark.parametrize(
    "limits,rounds,field",
    [
        (Limits(model_calls=3), 3, "model_calls"),
        (Limits(identical_calls=2), 3, "identical_calls"),
        (Limits(total_tokens=8), 2, "total_tokens"),
        (Limits(seconds=2.0), 2, "seconds"),
    ],
    ids=["model_calls", "identical_calls", "total_tokens", "seconds"],
)
def test_a_loop_is_stopped_at_its_bound_and_not_before(limits: Limits, rounds: int, field: str) -> None:
    assert isinstance(next_step(looped(turn_of(limits=limits), rounds - 1)), CallModel)
    over = end(looped(turn_of(limits=limits), rounds))
    assert over.limit == field
    assert over.reason == "failed"
    assert over.error is not None
    assert over.error.status == "RESOURCE_EXHAUSTED"


def test_without_bounds_nothing_is_stopped() -> None:
    free = Limits(
        model_calls=None,
        cycles=None,
        restarts=None,
        repeats=None,
        argument_errors=None,
        tool_errors=None,
        output_errors=None,
        identical_calls=None,
    )
    turn = looped(turn_of(limits=free), 60)
    assert turn.counts.identical == {}, "what is not bounded is not counted at length"
    for i in range(30):
        turn = record(record(turn, asks("a", ids="x")), CallRejected("x", "no"))
        turn = record(record(turn, asks("b", ids="y")), ToolRaised("y", BOOM, "model"))
        turn = record(record(turn, says("{")), OutputRejected("no"))
        turn = record(record(turn, asks("d", ids="z")), pauses("z", f"i{i}"))
        turn = record(record(turn, Restarted(f"i{i}")), pauses("z", f"j{i}"))
        assert isinstance(next_step(turn), Paused)
        turn = record(turn, Responded(f"j{i}"))
    assert isinstance(next_step(turn), CallModel)


def test_calls_that_give_new_results_are_no_stuck_loop() -> None:
    turn = looped(turn_of(limits=Limits(identical_calls=2)), 10, lambda i: i)  # pyright: ignore[reportUnknownLambdaType]
    assert isinstance(next_step(turn), CallModel)


def test_answers_by_hand_count_as_results_of_identical_calls() -> None:
    turn = turn_of(limits=Limits(identical_calls=1, repeats=None))
    for i in range(2):
        turn = record(record(record(turn, asks("a", ids="x")), pauses("x", f"i{i}")), Responded(f"i{i}", "same"))
    assert end(turn).limit == "identical_calls"


@pytest.mark.parametrize("kind", ["argument_errors", "tool_errors", "output_errors"])
@pytest.mark.parametrize("bound", [0, 1, 2])
def test_so_many_errors_are_given_back_and_the_next_one_ends_the_turn(kind: str, bound: int) -> None:
    limits: Mapping[str, Any] = {kind: bound}
    turn = turn_of(limits=Limits(**limits))
    for i in range(bound + 1):
        assert isinstance(next_step(turn), CallModel), f"error {i} of {bound} is given back"
        if kind == "output_errors":
            turn = record(record(turn, says("{")), OutputRejected("no"))
        elif kind == "tool_errors":
            turn = record(record(turn, asks("a", ids="x")), ToolRaised("x", BOOM, "model"))
        else:
            turn = record(record(turn, asks("a", ids="x")), CallRejected("x", "no"))
    assert end(turn).limit == kind


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_the_same_pause_may_repeat_so_often_and_no_more(bound: int) -> None:
    turn = turn_of(limits=Limits(repeats=bound))
    for i in range(bound + 1):
        turn = record(record(turn, asks("a", ids="x")), pauses("x", f"i{i}", {"b": 1, "a": 2}))
        assert isinstance(next_step(turn), Paused), f"pause {i} with {bound} repeats"
        turn = record(turn, Declined(f"i{i}"))
    turn = record(record(turn, asks("a", ids="x")), pauses("x", "i", {"a": 2, "b": 1}))
    assert end(turn).limit == "repeats"


def test_repeats_are_counted_within_a_round_of_restarts_too() -> None:
    turn = turn_of(asks("a"), pauses("a", "i0"), limits=Limits(repeats=1))
    turn = record(record(turn, Restarted("i0")), pauses("a", "i1"))
    assert isinstance(next_step(turn), Paused)
    turn = record(record(turn, Restarted("i1")), pauses("a", "i2"))
    assert end(turn).limit == "repeats"


def test_ten_equal_calls_side_by_side_are_no_stuck_loop() -> None:
    turn = turn_of(asks(*["a"] * 10, ids="0123456789"), *[pauses(c, f"i{c}", "?") for c in "0123456789"])
    step = next_step(turn)
    assert isinstance(step, Paused)
    assert len(step.calls) == 10
    assert list(repeats_in_round(turn.calls).values()) == [1]


def test_a_pause_with_another_input_or_payload_is_no_repeat() -> None:
    turn = turn_of(limits=Limits(repeats=0))
    for i, (given, payload) in enumerate([(1, "p"), (2, "p"), (1, "q"), (1, None), (1, False)]):
        turn = record(record(turn, asks("a", ids="x", input={"n": given})), pauses("x", f"i{i}", payload))
        assert isinstance(next_step(turn), Paused)
        turn = record(turn, Responded(f"i{i}", i))


@pytest.mark.parametrize("bound", [1, 2])
def test_a_call_is_restarted_so_often_and_a_further_pause_ends_the_turn(bound: int) -> None:
    turn = turn_of(asks("a"), pauses("a", "i0", 0), limits=Limits(restarts=bound))
    for i in range(bound):
        assert isinstance(next_step(turn), Paused)
        turn = record(record(turn, Restarted(f"i{i}")), pauses("a", f"i{i + 1}", i + 1))
    assert end(turn).limit == "restarts"


def test_restarts_of_a_call_that_keeps_failing_are_bounded_too() -> None:
    turn = turn_of(asks("a"), pauses("a", "i"), limits=Limits(restarts=2))
    for _ in range(2):
        turn = record(record(turn, Restarted("i")), ToolRaised("a", BOOM))
        turn = record(turn, end(turn))
    with pytest.raises(ResumeError):
        record(turn, Restarted("i"))
    assert output(record(turn, Responded("i", "by hand"))) == "by hand", "the pause is as it was"


@pytest.mark.parametrize("bound", [1, 2])
def test_so_many_rounds_of_decisions_are_taken_and_a_further_pause_ends_the_turn(bound: int) -> None:
    turn = turn_of(limits=Limits(cycles=bound))
    for i in range(bound):
        turn = record(record(turn, asks("a", ids="x")), pauses("x", f"i{i}", i))
        assert isinstance(next_step(turn), Paused)
        turn = record(turn, Responded(f"i{i}", i))
    turn = record(record(turn, asks("a", ids="x")), pauses("x", "i", "more"))
    assert end(turn).limit == "cycles"


def test_a_failed_sibling_does_not_open_a_way_round_the_bound_of_cycles() -> None:
    turn = turn_of(
        asks("d"), pauses("d", "i0"), Responded("i0"), asks("a", "b"), ToolRaised("a", BOOM), limits=Limits(cycles=1)
    )
    turn = record(turn, pauses("b", "i1"))
    turn = record(turn, end(turn))
    try:
        turn = record(turn, Responded("i1", 1))
    except ResumeError:
        pass
    assert turn.counts.cycles <= 1


def test_an_end_by_a_limit_keeps_a_sendable_transcript_and_needs_a_new_allowance_to_go_on() -> None:
    turn = turn_of(asks("a"), pauses("a", "i0"), Restarted("i0"), pauses("a", "i1", 1), limits=Limits(restarts=1))
    turn = record(turn, end(turn))
    check_sendable(turn.added)
    assert output(turn)["stopped"] is True
    with pytest.raises(VerbNotAllowed, match=r"'restarts'.*retry\(limits=Limits"):
        record(turn, Retried())
    turn = record(turn, Retried(Limits(restarts=4)))
    assert turn.counts == Counts()
    assert turn.limits.restarts == 4
    assert isinstance(next_step(turn), CallModel)


def test_answers_into_a_nested_agent_do_not_spend_the_restarts_of_the_outer_call() -> None:
    turn = turn_of(asks("a"), nested("i0", 0), limits=Limits(restarts=1, cycles=None))
    for i in range(4):
        turn = record(record(turn, Restarted(f"i{i}")), nested(f"i{i + 1}", i + 1))
        assert isinstance(next_step(turn), Paused)


@pytest.mark.parametrize("wrong", [-1, True, "5", 1.5], ids=repr)
def test_a_bound_that_is_no_count_is_refused_by_its_name(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"Limits\(cycles="):
        Limits(cycles=wrong)


def test_seconds_may_be_a_fraction_and_any_bound_may_be_none() -> None:
    assert Limits(seconds=0.5).seconds == 0.5
    assert Limits(model_calls=None).model_calls is None
    with pytest.raises(InvalidRequest, match="seconds"):
        Limits(seconds=-0.1)
