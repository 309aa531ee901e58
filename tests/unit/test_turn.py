"""The rules of a turn, one by one. What holds for all of them together is in test_turn_properties.py."""

from collections.abc import Mapping
from typing import Any

import pytest

from adjourn.errors import (
    AlreadyResolved,
    InvalidRequest,
    NothingPaused,
    ResumeError,
    StaleInterrupt,
    UnknownInterrupt,
    VerbNotAllowed,
)
from adjourn.events import (
    CallRejected,
    Declined,
    Event,
    Expired,
    Forked,
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
from adjourn.parts import ErrorInfo, Message, Part, ToolRequest, Usage
from adjourn.state import CallModel, Counts, Finished, Paused, RunTools, Turn, Waiting
from adjourn.testing import from_stored_form, replay, stored_form
from adjourn.transcript import check_sendable
from adjourn.turn import begin, next_step, record, repeats_in_round

BOOM = ErrorInfo("INTERNAL", "boom", "RuntimeError")
HI = UserSaid(Message("user", [Part(text="hi")]))


def asks(*names: str, ids: str = "", input: Any = None, ref: str | None = None) -> ModelReplied:
    """A reply that calls these tools; the calls' ids are the letters of `ids`, or of the names."""
    parts = [Part(tool_request=ToolRequest(n, ref, {} if input is None else input)) for n in names]
    return ModelReplied(Message("model", parts), tuple(ids or "".join(names)))


def says(text: str, **more: Any) -> ModelReplied:
    return ModelReplied(Message("model", [Part(text=text)]), **more)


def pauses(call: str, interrupt: str, payload: Any = None, **more: Any) -> ToolInterrupted:
    return ToolInterrupted(call, Pause(interrupt, payload, **more))


def turn_of(*events: Event, limits: Limits | None = None) -> Turn:
    return replay([HI, *events], limits=limits)


def responses(turn: Turn) -> list[Part]:
    """The parts of the tool message that was closed last."""
    message = next(m for m in reversed(turn.added) if m.role == "tool")
    return list(message.content)


def output(turn: Turn, position: int = 0) -> Any:
    response = responses(turn)[position].tool_response
    assert response is not None
    return response.output


def end(turn: Turn) -> TurnEnded:
    step = next_step(turn)
    assert isinstance(step, Finished), step
    return step.end


# -- the plain turn --------------------------------------------------------------------------------------------------


def test_a_new_turn_calls_the_model_with_the_history_and_the_new_message() -> None:
    history = [Message("system", [Part(text="Be brief.")])]
    step = next_step(replay([HI], history=history))
    assert isinstance(step, CallModel)
    assert [m.text for m in step.messages] == ["Be brief.", "hi"]


def test_a_reply_without_tool_requests_ends_the_turn_with_its_finish_reason() -> None:
    turn = turn_of(says("half a", finish_reason="length"))
    assert next_step(turn) == Finished(TurnEnded("length"))
    assert next_step(record(turn, TurnEnded("length"))) == Finished(TurnEnded("length"))


def test_a_round_runs_its_calls_waits_for_those_that_run_and_closes_in_request_order() -> None:
    turn = turn_of(asks("a", "b"))
    step = next_step(turn)
    assert isinstance(step, RunTools)
    assert [c.id for c in step.calls] == ["a", "b"]
    turn = record(record(turn, ToolStarted("a")), ToolStarted("b"))
    assert next_step(turn) == Waiting()
    turn = record(turn, ToolReturned("b", 2, took=0.5))
    assert next_step(turn) == Waiting()
    turn = record(turn, ToolReturned("a", 1, took=0.25))
    assert isinstance(next_step(turn), CallModel)
    assert (output(turn, 0), output(turn, 1)) == (1, 2)
    assert turn.added[-1].metadata is None
    assert turn.counts.seconds == 0.75


def test_requests_without_a_ref_or_with_a_repeated_one_get_refs_that_tell_them_apart() -> None:
    parts = [Part(tool_request=ToolRequest("a", ref, {})) for ref in (None, "r", "r", "")]
    turn = turn_of(ModelReplied(Message("model", [Part(text="so"), *parts]), ("c1", "c2", "c3", "c4")))
    assert [c.request.ref for c in turn.calls] == ["c1", "r", "c3", "c4"]
    assert turn.open is not None
    assert turn.open.content[0].text == "so"
    assert [r.ref for p in turn.open.content if (r := p.tool_request)] == ["c1", "r", "c3", "c4"]


def test_provider_extras_stay_on_the_request_they_came_with() -> None:
    signed = Part(tool_request=ToolRequest("a", None, {}), metadata={"thoughtSignature": "c2ln"})
    turn = turn_of(ModelReplied(Message("model", [signed]), ("c1",)), pauses("c1", "i1", "?"), Responded("i1", 1))
    model = turn.added[-2].content[0]
    assert model.metadata == {"thoughtSignature": "c2ln", "resolvedInterrupt": "?"}


# -- pause and decisions ---------------------------------------------------------------------------------------------


def test_a_pause_does_not_stop_its_siblings_and_keeps_their_results_beside_it() -> None:
    turn = turn_of(asks("a", "b"), pauses("a", "i1", {"why": 1}))
    step = next_step(turn)
    assert isinstance(step, RunTools)
    assert [c.id for c in step.calls] == ["b"]
    turn = record(turn, ToolReturned("b", "B"))
    paused = next_step(turn)
    assert isinstance(paused, Paused)
    assert [c.id for c in paused.calls] == ["a"]
    turn = record(turn, Responded("i1", "A", {"k": 1}))
    assert isinstance(next_step(turn), CallModel)
    assert (output(turn, 0), output(turn, 1)) == ("A", "B")
    assert [p.metadata for p in responses(turn)] == [{"k": 1, "interruptResponse": True}, {"source": "pending"}]
    assert turn.added[-1].metadata == {"resumed": True}
    assert turn.added[-2].content[0].metadata == {"resolvedInterrupt": {"why": 1}}
    assert turn.added[-2].content[1].metadata is None


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}], ids=repr)
def test_a_falsy_response_is_an_answer(value: Any) -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"), Responded("i1", value))
    assert output(turn) == value
    assert type(output(turn)) is type(value)
    assert isinstance(next_step(turn), CallModel)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}], ids=repr)
def test_a_falsy_default_is_what_an_expired_pause_answers_with(value: Any) -> None:
    turn = turn_of(asks("a"), pauses("a", "i1", on_expiry={"respond": value}), Expired("i1"))
    assert output(turn) == value
    assert responses(turn)[0].ours == {"outcome": "expired"}


def test_partial_answers_keep_the_rest_paused_and_call_no_model() -> None:
    turn = turn_of(asks("a", "b", "d"), pauses("a", "i1"), pauses("b", "i2"), pauses("d", "i3"), Responded("i2", 2))
    step = next_step(turn)
    assert isinstance(step, Paused)
    assert [c.id for c in step.calls] == ["a", "d"]
    assert turn.counts.cycles == 1
    turn = record(record(turn, Responded("i3", 3)), Responded("i1", 1))
    assert [output(turn, i) for i in range(3)] == [1, 2, 3]
    assert turn.counts.cycles == 1, "a batch of answers is one cycle"


def test_a_restarted_call_runs_again_with_the_input_that_was_shown_and_may_pause_again() -> None:
    turn = turn_of(asks("a", input={"n": 1}), pauses("a", "i1"), Restarted("i1", {"ok": True}, due=7.0))
    step = next_step(turn)
    assert isinstance(step, RunTools)
    (call,) = step.calls
    assert (call.input, call.restarts, call.due, call.replaced) == ({"n": 1}, ({"ok": True},), 7.0, False)
    turn = record(turn, pauses("a", "i2", "once more"))
    turn = record(turn, Restarted("i2"))
    assert turn.calls[0].restarts == ({"ok": True}, {}), "a bare restart is an empty mapping"
    assert turn.calls[0].due is None
    assert output(record(turn, ToolReturned("a", "done"))) == "done"
    assert turn.counts.cycles == 2


def test_a_replaced_input_runs_and_the_model_is_told_what_ran() -> None:
    turn = turn_of(asks("a", input={"n": 1}), pauses("a", "i1"), Restarted("i1", None, {"n": 2}))
    assert (turn.calls[0].input, turn.calls[0].request.input) == ({"n": 2}, {"n": 1})
    turn = record(turn, ToolReturned("a", "done", [Part(text="seen")], {"k": 1}))
    (part,) = responses(turn)
    assert part.tool_response is not None
    assert part.tool_response.content is not None
    texts = [p.text or "" for p in part.tool_response.content]
    assert texts[0] == "seen"
    assert '{"n":2}' in texts[1]
    assert part.metadata == {"k": 1, "replacedInput": {"n": 1}, "executedInput": {"n": 2}}


def test_a_long_replaced_input_is_shortened_where_the_model_is_told() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"), Restarted("i1", None, {"t": "x" * 2000}), ToolReturned("a"))
    response = responses(turn)[0].tool_response
    assert response is not None
    assert response.content is not None
    assert len(response.content[0].text or "") < 700


@pytest.mark.parametrize("then", [Declined("i2", "no"), Expired("i2"), TurnEnded("aborted"), Responded("i2", 1)])
def test_a_call_that_did_not_run_to_its_end_is_not_said_to_have_run_with_an_edited_input(then: Event) -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"), Restarted("i1", None, {"n": 2}), pauses("a", "i2"), then)
    response = responses(turn)[0].tool_response
    assert response is not None
    assert "This ran" not in "".join(p.text or "" for p in response.content or ())


def test_a_decline_tells_the_model_the_reason_or_that_it_was_declined() -> None:
    assert output(turn_of(asks("a"), pauses("a", "i1"), Declined("i1", "too dear"))) == {
        "declined": True,
        "reason": "too dear",
    }
    silent = turn_of(asks("a"), pauses("a", "i1"), Declined("i1"))
    assert "declined" in output(silent)["reason"]
    assert responses(silent)[0].ours == {"outcome": "declined"}


def test_an_expiry_is_its_own_outcome_neither_approval_nor_refusal() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"), Expired("i1"))
    assert output(turn)["expired"] is True
    assert "declined" not in output(turn)
    assert "not a refusal" in output(turn)["reason"]
    assert isinstance(next_step(turn), CallModel)


def test_an_expiry_that_is_to_fail_ends_the_turn_with_a_sendable_transcript() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1", on_expiry="fail"), Expired("i1"))
    assert end(turn).error == ErrorInfo("DEADLINE_EXCEEDED", "nobody decided on tool 'a' in time", "Expired")
    check_sendable(turn.added)
    again = record(record(turn, end(turn)), Retried())
    assert isinstance(next_step(again), CallModel)


@pytest.mark.parametrize("order", [("i1", "i2"), ("i2", "i1")], ids=["fail-first", "fail-last"])
def test_two_pauses_that_expire_together_fail_the_turn_whichever_is_recorded_first(order: tuple[str, str]) -> None:
    turn = turn_of(asks("a", "b"), pauses("a", "i1", on_expiry="fail"), pauses("b", "i2"), *[Expired(i) for i in order])
    assert end(turn).reason == "failed"


def test_an_expiry_that_is_to_fail_leaves_its_paused_sibling_answerable() -> None:
    turn = turn_of(asks("a", "b"), pauses("a", "i1", on_expiry="fail"), pauses("b", "i2"), Expired("i1"))
    turn = record(turn, end(turn))
    assert [c.id for c in turn.paused] == ["b"]
    turn = record(turn, Responded("i2", 2))
    assert isinstance(next_step(turn), CallModel)
    assert output(turn, 1) == 2


# -- pauses of nested agents -------------------------------------------------------------------------------------------


def nested(interrupt: str, n: int = 0) -> ToolInterrupted:
    """Call a paused because the agent in it did, on its interrupt "x<n>"."""
    return pauses("a", interrupt, {"interrupt": f"x{n}", "payload": n}, path=("inner",))


@pytest.mark.parametrize(
    "decision,inner",
    [
        (Responded("i1", 0), {"verb": "respond", "output": 0}),
        (Restarted("i1", {"n": 1}), {"verb": "restart", "metadata": {"n": 1}}),
        (Restarted("i1", None, None), {"verb": "restart", "metadata": None, "input": None}),
        (Declined("i1", "no"), {"verb": "decline", "reason": "no"}),
        (Expired("i1"), {"verb": "expire"}),
    ],
    ids=["respond", "restart", "restart-edited", "decline", "expire"],
)
def test_a_decision_on_the_pause_of_a_nested_agent_is_carried_into_it_by_another_run(
    decision: Event, inner: Mapping[str, Any]
) -> None:
    turn = turn_of(asks("a", input={"task": 1}), nested("i1"), decision)
    step = next_step(turn)
    assert isinstance(step, RunTools)
    (call,) = step.calls
    assert call.restarts == ({"inner": {**inner, "interrupt": "x0", "outer": "i1"}},)
    assert (call.input, call.replaced) == ({"task": 1}, False)
    with pytest.raises(AlreadyResolved):
        record(turn, decision)
    assert output(record(turn, ToolReturned("a", "done"))) == "done"


def test_a_back_off_before_a_nested_pause_is_restarted_is_kept() -> None:
    assert turn_of(asks("a"), nested("i1"), Restarted("i1", due=9.0)).calls[0].due == 9.0


def test_answers_into_a_nested_agent_do_not_use_up_what_the_outer_tool_itself_may_pause() -> None:
    turn = turn_of(asks("a"), nested("i0", 0), limits=Limits(restarts=1, cycles=None))
    for i in range(3):
        turn = record(record(turn, Responded(f"i{i}", 1)), nested(f"i{i + 1}", i + 1))
    turn = record(record(turn, Responded("i3", 1)), pauses("a", "own", "approve the result?"))
    assert isinstance(next_step(turn), Paused)


# -- refusals --------------------------------------------------------------------------------------------------------


def test_a_decision_where_nothing_is_paused_says_so() -> None:
    for turn in (begin([], Limits()), turn_of(says("bye"))):
        with pytest.raises(NothingPaused, match="does not end in a pause"):
            record(turn, Responded("i1", 1))


def test_an_unknown_interrupt_is_refused_with_the_ones_that_are_open() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"))
    with pytest.raises(UnknownInterrupt, match=r"i9 is not open here; open: i1 \(a\)"):
        record(turn, Declined("i9"))
    with pytest.raises(UnknownInterrupt, match="open: none"):
        record(turn_of(asks("a")), Declined("i9"))


def test_an_interrupt_is_answered_once() -> None:
    turn = turn_of(asks("a", "b"), pauses("a", "i1"), pauses("b", "i2"), Responded("i1", 1))
    with pytest.raises(AlreadyResolved, match="already answered"):
        record(turn, Responded("i1", 2))
    restarted = record(turn, Restarted("i2"))
    with pytest.raises(AlreadyResolved, match="its call is ready"):
        record(restarted, Restarted("i2"))


def test_the_id_of_an_earlier_pause_of_a_call_is_not_taken_for_one_that_never_was() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"), Restarted("i1"), pauses("a", "i2"))
    with pytest.raises((AlreadyResolved, StaleInterrupt)):
        record(turn, Responded("i1", 1))
    assert output(record(turn, Responded("i2", 2))) == 2


def test_a_verb_that_the_pause_does_not_allow_is_refused_and_a_decline_never_is() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1", allow=("respond",)))
    with pytest.raises(VerbNotAllowed, match="does not take a restart; it takes: respond, decline"):
        record(turn, Restarted("i1"))
    assert output(record(turn, Declined("i1", "no")))["declined"] is True
    turn = turn_of(asks("a"), pauses("a", "i1", allow=("restart",)))
    with pytest.raises(VerbNotAllowed, match="does not take a respond"):
        record(turn, Responded("i1", 1))


def test_a_result_for_a_call_that_is_not_running_is_stale() -> None:
    turn = turn_of(asks("a", "b"), ToolReturned("a", 1))
    with pytest.raises(StaleInterrupt, match="call a is settled, not running"):
        record(turn, ToolReturned("a", 2))
    with pytest.raises(StaleInterrupt, match="not open in this turn"):
        record(turn, ToolReturned("z", 2))


# -- failures and retries --------------------------------------------------------------------------------------------


def test_a_tool_that_raised_fails_the_turn_once_its_siblings_are_done_and_a_retry_runs_only_that_call() -> None:
    turn = turn_of(asks("a", "b"), ToolRaised("a", BOOM))
    assert isinstance(next_step(turn), RunTools)
    turn = record(turn, ToolReturned("b", 2))
    assert end(turn) == TurnEnded("failed", BOOM)
    turn = record(record(turn, end(turn)), Retried())
    step = next_step(turn)
    assert isinstance(step, RunTools)
    assert [(c.id, c.error) for c in step.calls] == [("a", None)]


def test_a_restarted_tool_that_raised_is_paused_again_and_the_turn_fails() -> None:
    turn = turn_of(asks("a"), pauses("a", "i1"), Restarted("i1"), ToolRaised("a", BOOM))
    assert end(turn) == TurnEnded("failed", BOOM)
    turn = record(turn, end(turn))
    assert output(record(turn, Responded("i1", "by hand"))) == "by hand"
    step = next_step(record(turn, Retried()))
    assert isinstance(step, RunTools)
    assert step.calls[0].restarts == ({},)


def test_a_retry_never_runs_a_settled_call_again() -> None:
    turn = turn_of(
        asks("a", "b"),
        ToolRaised("b", BOOM),
        pauses("a", "i1"),
        Restarted("i1"),
        ToolRaised("a", BOOM),
        TurnEnded("failed", BOOM),
        Responded("i1", "by hand"),
        TurnEnded("failed", BOOM),
        Retried(),
    )
    step = next_step(turn)
    assert isinstance(step, RunTools)
    assert [c.id for c in step.calls] == ["b"], "a was answered by hand"


def test_an_error_for_the_model_is_its_response_and_is_counted_until_the_tool_succeeds() -> None:
    turn = turn_of(asks("a"), ToolRaised("a", BOOM, "model"))
    assert output(turn) == {"error": "boom"}
    assert responses(turn)[0].ours == {"outcome": "tool"}
    turn = record(record(turn, asks("a", ids="x")), CallRejected("x", "n is missing"))
    assert output(turn) == {"error": "n is missing"}
    assert responses(turn)[0].ours == {"outcome": "arguments"}
    turn = record(record(turn, asks("b", ids="z")), ToolRaised("z", BOOM, "model"))
    assert (turn.counts.argument_errors, turn.counts.tool_errors) == ({"a": 1}, {"a": 1, "b": 1})
    turn = record(record(turn, asks("a", ids="y")), ToolReturned("y", 1))
    assert (turn.counts.argument_errors, turn.counts.tool_errors) == ({}, {"b": 1})


def test_a_failed_model_call_can_be_retried_and_keeps_what_was_settled() -> None:
    failed = TurnEnded("failed", ErrorInfo("UNAVAILABLE", "503", "ModelError"))
    turn = turn_of(asks("a"), ToolReturned("a", 1), failed)
    assert end(turn) == failed
    turn = record(turn, Retried())
    assert isinstance(next_step(turn), CallModel)
    assert output(turn) == 1


def test_only_a_failed_or_aborted_turn_can_be_retried() -> None:
    for turn in (turn_of(), turn_of(says("bye"), TurnEnded("stop"))):
        with pytest.raises(NothingPaused, match="did not fail"):
            record(turn, Retried())


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
    assert output(turn, 1) == {"stopped": True, "reason": "It failed: boom"}
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


# -- events as JSON --------------------------------------------------------------------------------------------------


def test_every_kind_of_event_survives_its_stored_form() -> None:
    message = Message("model", [Part(text="a"), Part(tool_request=ToolRequest("t", "r", {"n": [None]}))])
    events: list[Event] = [
        HI,
        ModelReplied(message, ("c",), "length", Usage(1, 2, 3, 4), 0.5),
        ToolStarted("c"),
        ToolReturned("c", False, [Part(text="x")], {"k": None}, 1.5),
        CallRejected("c", "no", "unknown_tool"),
        ToolRaised("c", ErrorInfo("INTERNAL", "m", "K", {"d": 1}), "model", 2.0),
        pauses(
            "c",
            "i",
            0,
            response={"type": "null"},
            allow=("respond",),
            expires_at=1.5,
            on_expiry={"respond": None},
            version="v",
        ),
        OutputRejected("no"),
        Responded("i", None, {"m": 0}, "ann"),
        Restarted("i", 0, None, "ann", 9.0),
        Restarted("i"),
        Declined("i", "why", "ann"),
        Expired("i"),
        Forked({"i": "j"}),
        TurnEnded("failed", BOOM, "cycles"),
        Retried(Limits(cycles=None)),
    ]
    assert from_stored_form(stored_form(events)) == events


def test_a_restart_with_no_input_given_is_told_apart_from_one_with_the_input_null() -> None:
    bare, null = from_stored_form(stored_form([Restarted("i"), Restarted("i", input=None)]))
    paused = turn_of(asks("a", input={"n": 1}), pauses("a", "i"))
    assert record(paused, bare).calls[0].input == {"n": 1}
    assert record(paused, null).calls[0].input is None
