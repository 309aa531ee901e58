"""A turn as a list of messages, and back."""

from typing import Any

import pytest

from adjourn.errors import InvalidRequest
from adjourn.events import (
    Event,
    Limits,
    ModelReplied,
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
from adjourn.parts import OURS, ErrorInfo, Message, Part, ToolRequest, ToolResponse, encode
from adjourn.state import CallModel, Counts, Paused, RunTools, Turn
from adjourn.testing import replay
from adjourn.transcript import check_sendable, load, raw, read, read_call, starts_with, write
from adjourn.turn import next_step, record

BOOM = ErrorInfo("INTERNAL", "boom", "RuntimeError")
SYSTEM = Message("system", [Part(text="Be brief.")])
USER = Message("user", [Part(text="hi")])
BYE = Message("model", [Part(text="bye")])


def request(name: str, ref: str | None = None, input: Any = None, metadata: Any = None) -> Part:
    return Part(tool_request=ToolRequest(name, ref, {} if input is None else input), metadata=metadata)


def response(name: str, ref: str | None = None, output: Any = None) -> Part:
    return Part(tool_response=ToolResponse(name, ref, output))


def paused_turn(*more: Event, payload: Any = None, limits: Limits | None = None, metadata: Any = None) -> Turn:
    """Calls a (paused, "i1") and b (ready), then these events."""
    message = Message("model", [Part(text="so"), request("a", "r1", metadata=metadata), request("b", "r2")])
    events: list[Event] = [
        UserSaid(USER),
        ModelReplied(message, ("ca", "cb")),
        ToolInterrupted("ca", Pause("i1", payload)),
    ]
    return replay([*events, *more], history=[SYSTEM, USER, BYE], limits=limits)


def again(turn: Turn) -> Turn:
    """The turn after a save and a load."""
    return read(load(raw(write(turn))), turn.limits)


def test_a_closed_turn_is_just_its_messages() -> None:
    turn = replay([UserSaid(USER), ModelReplied(BYE)], history=[SYSTEM])
    assert write(turn) == [SYSTEM, USER, BYE]
    back = read([SYSTEM, USER, BYE], Limits())
    assert (back.history, back.added, back.open, back.counts) == ([SYSTEM], (USER, BYE), None, Counts(model_calls=1))


def test_a_turn_begins_at_the_last_message_of_the_user_that_is_no_correction() -> None:
    correction = Message("user", [Part(text="not JSON")], {OURS: {"correction": "output"}})
    back = read([SYSTEM, USER, BYE, USER, BYE, correction], Limits())
    assert back.history == [SYSTEM, USER, BYE]
    assert back.added == (USER, BYE, correction)
    assert back.counts.model_calls == 1


@pytest.mark.parametrize("messages", [[], [SYSTEM], [SYSTEM, BYE]], ids=["none", "system", "no-user"])
def test_messages_without_a_user_are_all_the_turn_s_own(messages: list[Message]) -> None:
    back = read(messages, Limits())
    assert write(back) == messages
    assert back.history == []


def test_an_open_round_says_on_each_request_how_far_it_is() -> None:
    messages = write(paused_turn(ToolReturned("cb", "B"), payload={"why": 1}))
    assert messages[-1].role == "model"
    text, a, b = messages[-1].content
    assert text == Part(text="so")
    assert a.metadata is not None
    assert b.metadata is not None
    assert a.metadata["interrupt"] == {"why": 1}
    assert b.metadata["pendingOutput"] == "B"
    assert a.ours["id"] == "ca"


@pytest.mark.parametrize("payload", [None, True, False, 0, "", [], {}, {"a": None}, "x", 0.0, 1, [True]], ids=repr)
def test_every_payload_reads_back_as_it_was(payload: Any) -> None:
    (call,) = again(paused_turn(ToolReturned("cb", 1), payload=payload)).paused
    assert call.pause is not None
    assert call.pause.payload == payload
    assert type(call.pause.payload) is type(payload)


@pytest.mark.parametrize("payload", [None, True, False, 0, {"why": 1}], ids=repr)
def test_the_payload_of_a_resolved_pause_reads_back_too(payload: Any) -> None:
    turn = paused_turn(Responded("i1", 1), payload=payload)
    back = again(turn)
    assert back.calls[0].pause == turn.calls[0].pause
    assert raw(write(record(back, ToolReturned("cb", 2)))) == raw(write(record(turn, ToolReturned("cb", 2))))


@pytest.mark.parametrize("output", [None, False, 0, "", [], {}], ids=repr)
def test_a_falsy_result_that_waits_beside_a_pause_is_not_lost(output: Any) -> None:
    back = again(paused_turn(ToolReturned("cb", output, [Part(text="pic")], {"k": 1})))
    assert isinstance(next_step(back), Paused)
    part = back.calls[1].response
    assert part is not None
    assert part.tool_response == ToolResponse("b", "r2", output, [Part(text="pic")])
    assert part.metadata == {"k": 1}


def test_a_restarted_call_with_a_replaced_input_and_a_due_time_reads_back() -> None:
    turn = paused_turn(Restarted("i1", {"n": 1}, None, due=9.0), ToolReturned("cb", 1))
    back = again(turn)
    call = back.calls[0]
    assert (call.state, call.input, call.replaced, call.due, call.restarts) == ("ready", None, True, 9.0, ({"n": 1},))
    step = next_step(back)
    assert isinstance(step, RunTools)
    assert [c.id for c in step.calls] == ["ca"]


def test_a_call_that_was_running_when_it_was_saved_comes_back_paused_and_is_not_run_again() -> None:
    turn = paused_turn(ToolStarted("cb"))
    back = again(turn)
    assert back.calls[1].state == "paused"
    assert isinstance(next_step(back), Paused)


def test_a_call_that_failed_is_ready_to_run_when_it_is_read_back() -> None:
    back = again(paused_turn(ToolRaised("cb", BOOM)))
    assert [c.state for c in back.calls] == ["paused", "ready"]


def test_the_error_of_a_restarted_call_reads_back_with_its_pause() -> None:
    turn = paused_turn(Restarted("i1"), ToolRaised("ca", BOOM), ToolReturned("cb", 1), TurnEnded("failed", BOOM))
    assert again(turn).calls[0].error == ErrorInfo(BOOM.status, "", BOOM.kind)  # not what it said


def test_counts_that_were_started_afresh_are_not_counted_from_the_messages_again() -> None:
    turn = paused_turn(ToolReturned("cb", 1), TurnEnded("failed", BOOM), Retried(Limits(model_calls=1)))
    assert turn.counts == Counts()
    assert again(turn).counts == Counts()


def test_provider_extras_of_the_open_message_read_back_byte_for_byte() -> None:
    extras = {"thoughtSignature": "c2ln", "z": [1, {"b": None, "a": "é"}]}
    turn = paused_turn(metadata=extras)
    back = again(turn)
    assert back.calls[0].part.metadata == extras
    assert encode(back.open) == encode(turn.open)


def test_reading_and_writing_twice_changes_nothing_more() -> None:
    turn = paused_turn(ToolReturned("cb", 1), payload=0)
    once = raw(write(again(turn)))
    assert once == raw(write(turn))
    assert raw(write(again(again(turn)))) == once


# -- messages that others wrote --------------------------------------------------------------------------------------


def test_an_unanswered_request_of_another_runtime_is_a_pause_that_can_be_answered() -> None:
    parts = [
        request("a", "r1", metadata={"interrupt": {"q": 1}}),
        request("b"),
        request("d", "r3", metadata={"interrupt": True}),
    ]
    messages = [USER, Message("model", parts)]
    turn = read(messages, Limits())
    assert [(c.pause.payload, c.pause.reason) for c in turn.paused if c.pause] == [
        ({"q": 1}, "tool"),
        (None, "unanswered"),
        (None, "tool"),
    ]
    assert turn.counts == Counts(model_calls=1)
    ids = [c.pause.id for c in turn.paused if c.pause]
    assert ids == [c.pause.id for c in read(load(raw(messages)), Limits()).paused if c.pause], "ids are stable"
    for i in ids:
        turn = record(turn, Responded(i, i))
    step = next_step(turn)
    assert isinstance(step, CallModel)
    check_sendable(step.messages)


def test_two_equal_requests_without_refs_get_ids_of_their_own() -> None:
    turn = read([USER, Message("model", [request("a"), request("a")])], Limits())
    assert len({c.id for c in turn.calls}) == len({c.request.ref for c in turn.calls}) == 2


def test_a_finished_sibling_of_another_runtime_is_settled() -> None:
    parts = [request("a", "r1", metadata={"interrupt": True}), request("b", "r2", metadata={"pendingOutput": None})]
    turn = read([USER, Message("model", parts)], Limits())
    assert [c.state for c in turn.calls] == ["paused", "settled"]


@pytest.mark.parametrize(
    "note",
    [
        {"pause": {"id": 5}},
        {"pause": "x"},
        {"pause": {"id": "i", "allow": ["fly"]}},
        {"restarts": 5},
        {"pauses": 5},
        "x",
        [1],
        {"state": "paused", "pause": {}},
        {"error": 5},
    ],
    ids=repr,
)
def test_a_paused_message_that_was_altered_is_refused_and_not_a_crash(note: Any) -> None:
    with pytest.raises(InvalidRequest):
        read([USER, Message("model", [request("a", "r", metadata={OURS: note})])], Limits())


@pytest.mark.parametrize("ours", [{"counts": 5}, {"counts": {"cycles": "x"}}, "x", [1]], ids=repr)
def test_a_message_whose_counts_were_altered_is_refused_and_not_a_crash(ours: Any) -> None:
    with pytest.raises(InvalidRequest):
        read([USER, Message("model", [request("a", "r")], {OURS: ours})], Limits())


def test_pending_content_that_is_none_is_refused() -> None:
    part = request("a", "r", metadata={"pendingOutput": 1, "pendingContent": [{"text": 5}]})
    with pytest.raises(InvalidRequest):
        read_call(part)


# -- lists of messages -----------------------------------------------------------------------------------------------


def test_a_transcript_starts_with_its_own_beginnings_and_nothing_else() -> None:
    messages = [SYSTEM, USER, BYE]
    for n in range(4):
        assert starts_with(messages, messages[:n])
        assert starts_with(messages, load(raw(messages[:n]))), "equal is enough"
    assert not starts_with(messages, [USER])
    assert not starts_with(messages, [*messages, USER])


def test_what_is_sendable_passes() -> None:
    check_sendable([])
    check_sendable([SYSTEM, USER, BYE])
    asked = Message("model", [request("a", "1"), Part(text="x"), request("a", "2")])
    check_sendable([USER, asked, Message("tool", [response("a", "1"), response("a", "2")]), BYE])


@pytest.mark.parametrize(
    "messages,said",
    [
        ([Message("model", [request("a", "1")])], "at the end have no responses"),
        ([Message("model", [request("a", "1")]), USER], "message 1: tool requests"),
        ([Message("model", [request("a", "1")]), BYE], "message 1: tool requests"),
        ([Message("tool", [response("a", "1")])], "message 0: responses"),
        ([Message("model", [request("a", "1")]), Message("tool", [])], "message 1: responses"),
        ([Message("model", [request("a", "1")]), Message("tool", [response("a", "2")])], "do not match"),
        ([Message("model", [request("a", "1")]), Message("tool", [response("b", "1")])], "do not match"),
        (
            [
                Message("model", [request("a", "1"), request("a", "2")]),
                Message("tool", [response("a", "2"), response("a", "1")]),
            ],
            "do not match",
        ),
        (
            [Message("model", [request("a", "1")]), Message("tool", [response("a", "1"), response("a", "1")])],
            "do not match",
        ),
    ],
    ids=["open", "user-between", "model-between", "no-request", "none", "other-ref", "other-name", "order", "twice"],
)
def test_what_is_not_sendable_is_named_with_its_place(messages: list[Message], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        check_sendable(messages)


def test_messages_read_back_from_their_bytes() -> None:
    messages = [SYSTEM, USER, Message("model", [request("a", "1", {"n": [None]})], {"k": 0})]
    assert load(raw(messages)) == messages
    assert load(raw(messages).decode()) == messages


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", "[", b'[{"role":"x","content":[]}]', b"[" * 100_000], ids=lambda d: repr(d)[:30]
)
def test_bytes_that_are_no_messages_are_refused(data: Any) -> None:
    with pytest.raises(InvalidRequest, match="not a list of messages"):
        load(data)
