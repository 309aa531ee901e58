"""Streamed replies: however the network and the server cut them, the reply is the same."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjourn.model import ModelRequest
from adjourn.parts import Message, Part, ToolRequest
from adjourn.plugins.openai import chat, responses
from adjourn.plugins.openai.assembly import Calls, ChatAssembly, ResponseAssembly
from adjourn.plugins.openai.chat import read_message, read_usage
from plugins.openai_wire import Json, ask, recorded, reply_events, talking


def piece(
    arguments: str | None = None, *, name: str | None = None, id: str | None = None, index: int | None = None
) -> Json:
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    return {**{k: v for k, v in (("id", id), ("index", index)) if v is not None}, "function": function}


def calls_of(*pieces: Json) -> list[tuple[str | None, str, str]]:
    calls = Calls()
    for one in pieces:
        calls.add(one)
    return [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls.as_list()]


A, B = '{"x":1}', '{"x":2}'

SHAPES: dict[str, tuple[Sequence[Json], list[tuple[str | None, str, str]]]] = {
    "an index each": (
        [
            piece("", name="f", id="a", index=0),
            piece(A, index=0),
            piece("", name="f", id="b", index=1),
            piece(B, index=1),
        ],
        [("a", "f", A), ("b", "f", B)],
    ),
    "interleaved indexes": (
        [
            piece("", name="f", id="a", index=0),
            piece("", name="g", id="b", index=1),
            piece('{"x"', index=0),
            piece('{"x"', index=1),
            piece(":2}", index=1),
            piece(":1}", index=0),
        ],
        [("a", "f", A), ("b", "g", B)],
    ),
    "one index for all, new ids": (
        [piece(A, name="f", id="a", index=0), piece("", name="f", id="b", index=0), piece(B, index=0)],
        [("a", "f", A), ("b", "f", B)],
    ),
    "one index for all, no ids": (
        [piece(A, name="f", index=0), piece(B, name="f", index=0)],
        [(None, "f", A), (None, "f", B)],
    ),
    "no index, ids": (
        [piece("", name="f", id="a"), piece(A), piece("", name="g", id="b"), piece(B)],
        [("a", "f", A), ("b", "g", B)],
    ),
    "no index, no ids, whole calls": ([piece(A, name="f"), piece(B, name="f")], [(None, "f", A), (None, "f", B)]),
    "no index, no ids, in pieces": (
        [piece("", name="f"), piece('{"x"'), piece(":1}"), piece("", name="f"), piece(B)],
        [(None, "f", A), (None, "f", B)],
    ),
    "ids interleaved without index": (
        [piece('{"x"', name="f", id="a"), piece('{"x"', name="g", id="b"), piece(":1}", id="a"), piece(":2}", id="b")],
        [("a", "f", A), ("b", "g", B)],
    ),
    "empty ids": (
        [piece(A, name="f", id="", index=0), piece(B, name="f", id="", index=1)],
        [(None, "f", A), (None, "f", B)],
    ),
    "id and name in every piece": (
        [piece('{"x"', name="f", id="a", index=0), piece(":1}", name="f", id="a", index=0)],
        [("a", "f", A)],
    ),
    "an id that comes later": ([piece("", name="f", index=0), piece(A, id="a", index=0)], [("a", "f", A)]),
    "the whole call once more at its end": (
        [piece("", name="f", id="a", index=0), piece(A, index=0), piece(A, name="f", id="a", index=0)],
        [("a", "f", A)],
    ),
    "one id for all": (
        [piece(A, name="f", id="0", index=0), piece(B, name="f", id="0", index=1)],
        [("0", "f", A), ("0", "f", B)],
    ),
    "an index that begins at one": ([piece("", name="f", id="a", index=1), piece(A, index=1)], [("a", "f", A)]),
    "no arguments at all": (
        [piece(name="f", id="a", index=0), piece(name="g", id="b", index=1)],
        [("a", "f", ""), ("b", "g", "")],
    ),
    "arguments as an object": ([{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}], [("a", "f", A)]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_calls_come_apart_in_every_real_shape(name: str) -> None:
    pieces, expected = SHAPES[name]
    assert calls_of(*pieces) == expected


def cut(text: str, places: Sequence[int]) -> list[str]:
    marks = [0, *sorted({p % (len(text) + 1) for p in places}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(marks)]


PLACES = st.lists(st.integers(0, 500), max_size=12)


@given(PLACES, PLACES, st.booleans(), st.booleans(), st.data())
def test_any_cut_of_the_arguments_gives_the_same_calls(
    first: list[int], second: list[int], ids: bool, mixed: bool, data: st.DataObject
) -> None:
    texts = ['{"to":"jané","n":[1,2,{"a":"}"}]}', '{"path":".env"}']
    rows = [[piece(p, index=i) for p in cut(t, c)] for i, (t, c) in enumerate(zip(texts, (first, second), strict=True))]
    for i, row in enumerate(rows):
        row.insert(0, piece("", name="fg"[i], id="ab"[i] if ids else None, index=i))
    pieces = [*rows[0], *rows[1]]
    if mixed:
        order = data.draw(st.permutations([0] * len(rows[0]) + [1] * len(rows[1])))
        iterators = [iter(r) for r in rows]
        pieces = [next(iterators[i]) for i in order]
    made = sorted([(c[1], c[2]) for c in calls_of(*pieces)])
    assert made == [("f", texts[0]), ("g", texts[1])]


def chat_reply(chunks: Sequence[Json]) -> Any:
    assembly = ChatAssembly()
    for chunk in chunks:
        list(assembly.add(chunk))
    assert assembly.ended
    return chat.read(assembly.reply() or {}, "k")


@given(PLACES, PLACES, PLACES)
def test_any_cut_of_a_chat_reply_gives_the_same_message(a: list[int], b: list[int], c: list[int]) -> None:
    deltas: list[Json] = [{"reasoning_content": p} for p in cut("Thinking… hard.", a)]
    deltas += [{"content": p} for p in cut("I shall send it.", b)]
    deltas += [{"tool_calls": [piece("", name="send", id="c1", index=0)]}]
    deltas += [{"tool_calls": [piece(p, index=0)]} for p in cut('{"to": "jane"}', c)]
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    reply = chat_reply([*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}])
    thought, text, call = reply.message.content
    assert thought == Part(reasoning="Thinking… hard.", metadata={"k": {"field": "reasoning_content"}})
    assert text == Part(text="I shall send it.")
    assert call.tool_request == ToolRequest("send", "c1", {"to": "jane"})


@given(PLACES)
def test_any_cut_of_the_arguments_gives_the_same_response(places: list[int]) -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "send", "arguments": ""}
    text = '{"to": "jane"}'
    events: list[Json] = [{"type": "response.output_item.added", "output_index": 0, "item": item}]
    events += [
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": p} for p in cut(text, places)
    ]
    # A server that tells no finished item: the pieces are all there is.
    events.append({"type": "response.completed", "response": {"status": "completed", "output": []}})
    assembly = ResponseAssembly()
    for event in events:
        list(assembly.add(event))
    reply = responses.read(assembly.reply() or {}, "k")
    assert reply.message.content[0].tool_request == ToolRequest("send", "c1", {"to": "jane"})


def test_arguments_after_the_finish_reason_still_count() -> None:
    chunks: list[Json] = [
        {"choices": [{"delta": {"tool_calls": [piece("", name="f", id="a", index=0)]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [{"delta": {"tool_calls": [piece(A, index=0)]}}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    ]
    reply = chat_reply(chunks)
    assert reply.message.content[0].tool_request == ToolRequest("f", "a", {"x": 1})
    assert (reply.finish_reason, reply.usage.input_tokens) == ("stop", 5)


STREAMS = (
    ("openai-responses/llm__test_responses_tool_use_streaming.yaml", "responses"),
    ("openai-chat/pydantic-ai__test_run_stream_sync_streams_real_model.yaml", "chat"),
)


@pytest.mark.parametrize("name, api", STREAMS)
async def test_any_network_pieces_give_the_same_reply(shared: Path, name: str, api: str) -> None:
    answer = recorded(shared / "recordings" / name)[0].answer
    request = ModelRequest([Message("user", [Part(text="Go.")])], streaming=True)
    length = len(answer.body)
    sizes = [(1,) * 60, (7,) * 400, (1024,) * 20, (length - 1, 1), tuple(range(1, 150))]
    answers = [answer, *[replace(answer, cuts=c) for c in sizes]]
    async with talking("openai", api, *answers) as (model, _):
        replies = [await ask(model, request) for _ in answers]
    first, chunks = replies[0]
    assert first.message.tool_requests
    assert all(r.message == first.message and r.usage == first.usage and c == chunks for r, c in replies)


@settings(max_examples=15)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=30))
async def test_random_network_pieces_give_the_same_reply(sizes: list[int]) -> None:
    chunks: list[Any] = [{"choices": [{"delta": {"content": t}}]} for t in ("Grüß", " Gott", ", 🎲!")]
    chunks.append({"choices": [{"delta": {"tool_calls": [piece('{"ü":"é"}', name="f", id="a", index=0)]}}]})
    chunks.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}})
    async with talking("k", "chat", reply_events(chunks, cuts=tuple(sizes))) as (model, _):
        reply, seen = await ask(model, ModelRequest([Message("user", [Part(text="Go.")])], streaming=True))
    assert [c.text for c in seen] == ["Grüß", " Gott", ", 🎲!"]
    assert reply.message.content == [Part(text="Grüß Gott, 🎲!"), Part(tool_request=ToolRequest("f", "a", {"ü": "é"}))]


# -- arguments that are broken or cut off ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, cut_off, marked",
    [
        ("", False, False),
        ("  ", False, False),
        ("{}", True, False),
        ("", True, True),
        ('{"a":', True, True),
        ("{a}", False, True),
        ('{"a":NaN}', False, True),
        ("null", False, False),
        ('"{}"', False, False),
        ("[1]", False, True),
        ('"Rome"', False, True),
        ("7", True, True),
    ],
)
def test_broken_arguments_stay_text_and_are_marked(raw: str, cut_off: bool, marked: bool) -> None:
    message = {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": raw}}]}
    (part,) = read_message(message, "k", cut_off)
    assert part.tool_request is not None
    assert bool(part.ours.get("malformed")) == marked
    assert part.tool_request.input == (raw if marked else {})
    if cut_off and raw in ("", '{"a":'):
        assert "cut off by the token limit" in part.ours["malformed"]


async def test_a_call_cut_off_by_the_token_limit_never_runs() -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": "", "status": "incomplete"}
    reply = responses.read(
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [item]}, "openai"
    )
    assert reply.finish_reason == "length"
    assert reply.message.content[0].ours["malformed"]


def test_reasoning_details_of_a_router_are_joined_and_sent_back() -> None:
    deltas: list[Json] = [
        {"reasoning": "Let", "reasoning_details": [{"type": "reasoning.text", "text": "Let", "index": 0}]},
        {"reasoning": " me", "reasoning_details": [{"type": "reasoning.text", "text": " me", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "ZW5j", "index": 1}]},
        {"tool_calls": [piece("{}", name="f", id="a", index=0)]},
    ]
    chunks: list[Json] = [{"choices": [{"delta": d}]} for d in deltas]
    reply = chat_reply([*chunks, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}])
    joined = [
        {"type": "reasoning.text", "text": "Let me", "index": 0, "signature": "c2ln"},
        {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1},
    ]
    (sent,) = chat.write_messages([reply.message], "k", chat.Dialect())
    assert (sent["reasoning"], sent["reasoning_details"]) == ("Let me", joined)


def test_usage_counts_thoughts_that_are_only_in_the_total() -> None:
    usage = read_usage({"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109})
    assert (usage.output_tokens, usage.reasoning_tokens, usage.total_tokens) == (74, 62, 109)
