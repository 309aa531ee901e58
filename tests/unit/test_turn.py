"""The rules of a turn, one by one. What holds for all of them together is in test_turn_properties.py."""

from collections.abc import Mapping
from typing import Any

import pytest

from adjourn.errors import (
    AlreadyResolved,
    NothingPaused,
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
    Responded,
    Restarted,
    Retried,
    ToolRaised,
    ToolReturned,
    ToolStarted,
    TurnEnded,
)
from adjourn.parts import ErrorInfo, Message, Part, ToolRequest, Usage
from adjourn.state import CallModel, Finished, Paused, RunTools, Waiting
from adjourn.testing import from_stored_form, replay, stored_form
from adjourn.transcript import check_sendable
from adjourn.turn import begin, next_step, record
from unit.turn_kit import BOOM, HI, asks, end, nested, output, pauses, responses, says, turn_of

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
    assert call.restarts == ({"inner": {**inner, "interrupt": "x0", "snapshot": None, "outer": "i1.0"}},)
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
