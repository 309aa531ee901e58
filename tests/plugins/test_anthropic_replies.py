"""What is made of Anthropic's replies, streams and errors. All constructed here but where the name says recorded."""

import json
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adjourn import Adjourn, InvalidRequest, MissingExtra, ModelError, UnknownModel, tool
from adjourn.model import ModelRequest, note_of
from adjourn.parts import Message, Part, Usage, encode
from adjourn.plugins import anthropic as package
from adjourn.plugins.anthropic import Anthropic
from adjourn.plugins.anthropic.replies import Assembly, EventLines, usage_of
from adjourn.plugins.anthropic.requests import names_of
from plugins.anthropic_kit import (
    API_KEY,
    Answer,
    Json,
    as_sse,
    ask,
    either,
    events_of,
    message,
    read_recording,
    says,
    serving,
    streamed,
    text,
    tool_use,
    whole,
)

BOTH = pytest.mark.parametrize("streaming", [False, True])
REDACTED = {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "tea"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "eA=="}]}


async def failed(answer: Answer, *, streaming: bool = False, prompt: str = "Go.") -> ModelError:
    async with serving([answer]) as (server, plugin):
        with pytest.raises(ModelError) as caught:
            await ask(plugin, says(prompt, streaming=streaming))
        assert len(server.seen) == 1  # the SDK's own retries are off
    error = caught.value
    assert error.provider == "anthropic"
    assert API_KEY not in str(error)
    assert error.__cause__ is None
    return error


def error_body(kind: str, text: str = "No.") -> Json:
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_body"}


# -- content -----------------------------------------------------------------------------------------------------------


@BOTH
async def test_redacted_thinking_beside_a_client_tool_call_is_kept_and_sent_back(streaming: bool) -> None:
    content = [REDACTED, tool_use("toolu_1", "look", at="sky")]
    async with serving(lambda r: either(message(*content, stop="tool_use"), r)) as (server, plugin):
        reply, chunks = await ask(plugin, says("Go.", streaming=streaming))
        assert reply.message.content[0].reasoning == ""
        assert not any(c.content for c in chunks)
        await ask(plugin, ModelRequest([*says("Go.").messages, reply.message]))
    assert server.bodies[1]["messages"][1]["content"] == content


@BOTH
async def test_citations_and_server_tools_are_kept_in_their_place(streaming: bool) -> None:
    cited = {**text("Tea is hot."), "citations": [{"type": "web_search_result_location", "encrypted_index": "eQ=="}]}
    content = [text("I search."), SEARCH, FOUND, cited]
    async with serving(lambda r: either(message(*content), r)) as (server, plugin):
        reply, _ = await ask(plugin, says("Go.", streaming=streaming))
        assert reply.message.text == "I search.Tea is hot."
        await ask(plugin, ModelRequest([*says("Go.").messages, reply.message, *says("More.").messages]))
    assert server.bodies[1]["messages"][1]["content"] == content


async def test_citations_that_come_as_deltas_are_gathered() -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": text("")}
    deltas = [{"type": "text_delta", "text": "Hot."}, {"type": "citations_delta", "citation": {"cited_text": "x"}}]
    first, _, *_, end, stop = events_of(message())
    events = [first, start, *[{"type": "content_block_delta", "index": 0, "delta": d} for d in deltas], end, stop]
    async with serving([streamed(events)]) as (_, plugin):
        reply, _ = await ask(plugin, says("Go.", streaming=True))
    [part] = reply.message.content
    assert part == Part(text="Hot.", metadata={"anthropic": {"type": "text", "citations": [{"cited_text": "x"}]}})


@BOTH
async def test_a_paused_server_turn_is_gone_on_with_as_one_reply(streaming: bool) -> None:
    def answer(request: Json) -> Answer:
        going_on = request["messages"][-1]["role"] == "assistant"
        reply = message(FOUND, text("Hot.")) if going_on else message(text("I search. "), SEARCH, stop="pause_turn")
        return either(reply, request)

    async with serving(answer) as (server, plugin):
        reply, _ = await ask(plugin, says("Go.", streaming=streaming))
        await ask(plugin, ModelRequest([*says("Go.").messages, reply.message, *says("More.").messages]))
    assert reply.finish_reason == "stop"
    assert reply.message.text == "I search. Hot."
    assert reply.usage == Usage(20, 10)
    assert server.bodies[1]["messages"][1]["content"] == [text("I search. "), SEARCH]
    assert server.bodies[2]["messages"][1]["content"] == [text("I search. "), SEARCH, FOUND, text("Hot.")]


async def test_a_server_turn_that_pauses_for_ever_ends_as_other() -> None:
    async with serving(lambda r: whole(message(text("."), stop="pause_turn"))) as (server, plugin):
        reply, _ = await ask(plugin, says("Go."))
    assert reply.finish_reason == "other"
    assert len(server.seen) == 9


@pytest.mark.parametrize(
    "stop,reason",
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "blocked"),
        ("something_new", "other"),
    ],
)
@BOTH
async def test_stop_reasons(stop: str, reason: str, streaming: bool) -> None:
    async with serving(lambda r: either(message(text("So."), stop=stop), r)) as (_, plugin):
        reply, _ = await ask(plugin, says("Go.", streaming=streaming))
    assert reply.finish_reason == reason


async def test_a_refusal_without_content_is_a_blocked_reply_and_the_next_request_leaves_it_out() -> None:
    body = {**message(stop="refusal"), "stop_details": {"category": "bio"}}
    async with serving([whole(body), whole(message(text("Yes?")))]) as (server, plugin):
        reply, _ = await ask(plugin, says("Go."))
        assert (reply.finish_reason, list(reply.message.content)) == ("blocked", [])
        assert reply.message.metadata == {"anthropic": {"stop_reason": "refusal", "stop_details": {"category": "bio"}}}
        await ask(plugin, ModelRequest([*says("Go.").messages, reply.message, *says("Well?").messages]))
    assert server.bodies[1]["messages"] == [{"role": "user", "content": [text("Go."), text("Well?")]}]


async def test_usage_counts_all_input_and_shares_of_it() -> None:
    usage: dict[str, Any] = {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    reply = message(text("So."), **usage)
    reply["usage"]["output_tokens_details"] = {"thinking_tokens": 3}
    async with serving([whole(reply)]) as (_, plugin):
        got, _ = await ask(plugin, says("Go."))
    assert got.usage == Usage(130, 5, 100, 3)


# -- calls that must not run -------------------------------------------------------------------------------------------


def cut_stream(*pieces: str, stop: str = "max_tokens") -> Answer:
    first, _, *_, end, last = events_of(message(stop=stop))
    start = {"type": "content_block_start", "index": 0, "content_block": tool_use("toolu_1", "note")}
    deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces]
    middle = [{"type": "content_block_delta", "index": 0, "delta": d} for d in deltas]
    return streamed([first, start, *middle, {"type": "content_block_stop", "index": 0}, end, last])


@pytest.mark.parametrize(
    "answer,kept,says_why",
    [
        (cut_stream('{"text": "lo', "ng"), '{"text": "long', "token limit"),
        (cut_stream(), "{}", "token limit"),
        (whole(message(tool_use("toolu_1", "note", text="lo"), stop="max_tokens")), '{"text": "lo"}', "token limit"),
        (whole(message(tool_use("toolu_1", "note", text="lo"), stop="refusal")), '{"text": "lo"}', "stopped by"),
        (cut_stream('{"text": oops}', stop="tool_use"), '{"text": oops}', "not valid JSON"),
        (cut_stream('["a"]', stop="tool_use"), '["a"]', "not a JSON object"),
        (cut_stream('{"n": NaN}', stop="tool_use"), '{"n": NaN}', "cannot carry"),
    ],
)
async def test_arguments_that_are_cut_off_or_no_object_are_kept_as_text_and_marked(
    answer: Answer, kept: str, says_why: str
) -> None:
    async with serving([answer]) as (_, plugin):
        reply, _ = await ask(plugin, says("Go.", streaming=answer.kind.startswith("text/event")))
    [part] = reply.message.tool_requests
    assert part.tool_request is not None
    assert part.tool_request.input == kept
    assert says_why in part.ours["malformed"]
    encode(reply.message)


async def test_a_whole_streamed_call_before_the_limit_may_run() -> None:
    async with serving([cut_stream('{"text": "all"}')]) as (_, plugin):
        reply, _ = await ask(plugin, says("Go.", streaming=True))
    [part] = reply.message.tool_requests
    assert not part.ours
    assert reply.finish_reason == "length"


async def test_a_cut_off_call_never_runs_and_is_corrected() -> None:
    ran: list[str] = []

    @tool
    async def note(text: str) -> str:
        ran.append(text)
        return "noted"

    replies = [
        whole(message(tool_use("toolu_1", "note", text="lo"), stop="max_tokens")),
        whole(message(tool_use("toolu_2", "note", text="short"), stop="tool_use")),
        whole(message(text("Done."))),
    ]
    async with serving(replies) as (server, plugin):
        done = await Adjourn(plugins=[plugin]).generate("Go.", model="anthropic/claude-sonnet-5", tools=[note])
    assert done.text == "Done."
    assert ran == ["short"]
    sent = server.bodies[1]["messages"][-1]["content"][0]
    assert sent["is_error"]
    assert "token limit" in sent["content"]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status,kind,retryable",
    [
        (400, "invalid_request_error", False),
        (401, "authentication_error", False),
        (403, "permission_error", False),
        (404, "not_found_error", False),
        (408, "timeout_error", True),
        (413, "request_too_large", False),
        (429, "rate_limit_error", True),
        (500, "api_error", True),
        (502, "api_error", True),
        (503, "api_error", True),
        (529, "overloaded_error", True),
    ],
)
@BOTH
async def test_statuses(status: int, kind: str, retryable: bool, streaming: bool) -> None:
    error = await failed(whole(error_body(kind, "No, sorry."), status), streaming=streaming)
    assert (error.code, error.retryable, error.request_id) == (status, retryable, "req_test")
    assert f"HTTP {status} {kind}: No, sorry." in str(error)


async def test_a_rate_limit_says_when_to_come_back() -> None:
    body = error_body("rate_limit_error")
    assert (await failed(whole(body, 429, retry_after="7"))).retry_after == 7.0
    assert (await failed(whole(body, 429, retry_after_ms="250"))).retry_after == 0.25
    date = (await failed(whole(body, 429, retry_after=formatdate(time.time() + 60, usegmt=True)))).retry_after
    assert date is not None
    assert 50 < date <= 61
    for wrong in ("soon", "inf", "nan", "-inf"):
        assert (await failed(whole(body, 429, retry_after=wrong))).retry_after is None
    assert not (await failed(whole(body, 429, x_should_retry="false"))).retryable


@pytest.mark.parametrize(
    "kind,code,retryable", [("overloaded_error", 529, True), ("invalid_request_error", 400, False), ("new", None, True)]
)
async def test_an_error_within_the_stream(kind: str, code: int | None, retryable: bool) -> None:
    events = events_of(message(text("Half of it")))[:4]
    error = await failed(streamed([*events, error_body(kind)]), streaming=True)
    assert (error.code, error.retryable, error.request_id) == (code, retryable, "req_body")


async def test_streams_that_break_off() -> None:
    events = events_of(message(text("Half of it")))[:4]
    half = as_sse(events) + b'event: content_block_delta\ndata: {"type": "cont'
    for answer in (streamed(events), streamed(events, broken=True), streamed(half), Answer(silent=True), streamed([])):
        error = await failed(answer, streaming=True)
        assert error.retryable
        assert error.code is None


@BOTH
async def test_a_reply_that_is_no_json_or_no_message(streaming: bool) -> None:
    for raw in (b"<html>busy</html>", b"[]", b'{"type": "message"}', b""):
        body = b"data: %s\n\n" % raw if streaming else raw
        error = await failed(
            Answer([body], kind="text/event-stream" if streaming else "text/html"), streaming=streaming
        )
        assert error.retryable
    events = [{"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "x"}}]
    assert "does not fit" in str(await failed(streamed(events), streaming=True))


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_plain_answer_to_a_wish_to_stream_is_shown_in_one_chunk(kind: str) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    body = json.dumps(message(thought, text("Hello."), tool_use("t1", "look")), indent=1).encode()
    pieces = [b"\n", body[:1], body[1:9], body[9:]]
    async with serving([Answer(pieces, kind=kind), whole(message(thought, text("Hello.")))]) as (server, plugin):
        reply, chunks = await ask(plugin, says("Go.", streaming=True))
    assert server.bodies[0]["stream"] is True
    assert [p.tool_request.name for p in reply.message.content if p.tool_request] == ["look"]
    assert note_of(reply.message.content[0], "anthropic")["signature"] == "c2ln"
    assert [(c.reasoning, c.text) for c in chunks] == [("Hm.", "Hello.")]
    refusal = Answer([json.dumps(error_body("overloaded_error")).encode()], kind=kind)
    assert (await failed(refusal, streaming=True)).code == 529


@BOTH
async def test_an_empty_reply_is_an_error_that_may_pass(streaming: bool) -> None:
    body = message()
    error = await failed(streamed(events_of(body)) if streaming else whole(body), streaming=streaming)
    assert error.retryable
    assert error.request_id == "req_test"
    assert "empty" in str(error)


async def test_a_request_that_times_out() -> None:
    async with serving([Answer(delay=5.0)]) as (_, plugin):
        with pytest.raises(ModelError, match="timed out") as caught:
            await ask(plugin, says("Go.", config={"timeout": 0.3}))
    assert caught.value.retryable


async def test_a_server_that_is_not_there() -> None:
    plugin = Anthropic(api_key=API_KEY, base_url="http://127.0.0.1:1")
    with pytest.raises(ModelError, match="connection") as caught:
        await ask(plugin, says("Go."))
    assert caught.value.retryable
    await plugin.aclose()


async def test_the_text_of_an_error_holds_no_key_and_no_message() -> None:
    prompt = "My secret plan is to bake a very large cake for everybody I know."
    body = error_body("invalid_request_error", f"bad key {API_KEY} and sk-ant-api03-xyz in: {prompt} " + "x" * 2000)
    error = await failed(whole(body, 400), prompt=prompt)
    assert "sk-ant" not in str(error)
    assert prompt not in str(error)
    assert len(str(error)) < 600


async def test_without_a_key_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "ANTHROPIC_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    plugin = Anthropic(base_url="http://127.0.0.1:1")
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY") as caught:
        await ask(plugin, says("Go."))
    assert (caught.value.code, caught.value.retryable) == (401, False)
    await plugin.aclose()


async def test_without_the_sdk_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(MissingExtra, match=r"adjourn\[anthropic\]"):
        await ask(Anthropic(api_key=API_KEY), says("Go."))


@pytest.mark.parametrize("config", [{"temprature": 1}, {"temperature": "hot"}, 5, {"thinking": "maybe"}])
async def test_a_wrong_setting_is_refused_before_anything_is_sent(config: Any) -> None:
    with pytest.raises(InvalidRequest, match="config"):
        await ask(Anthropic(api_key=API_KEY), says("Go.", config=config))


def test_names() -> None:
    plugin = Anthropic()
    assert plugin.model("claude-x").name == "anthropic/claude-x"
    assert "claude-sonnet-5" in plugin.list_models()
    with pytest.raises(UnknownModel):
        plugin.model(" ")
    assert set(package.__all__) == {"Anthropic", "AnthropicConfig", "Claude"}


# -- streams, however they are cut -------------------------------------------------------------------------------------

STREAMS = (
    "anthropic/ai__anthropic-tool-no-args.chunks.txt",
    "anthropic/pydantic-ai__test_anthropic_advisor_tool_stream.yaml",
    "anthropic/pydantic-ai__test_anthropic_native_tool_search_streaming.yaml",
)


def assembled(pieces: list[bytes]) -> tuple[Message, str, str, Usage]:
    lines, answer, shown = EventLines(), Assembly(names_of(())), list[Part | None]()
    for piece in pieces:
        shown += [answer.take(e) for e in lines.feed(piece)]
    shown += [answer.take(e) for e in lines.end()]
    answer.check_complete()
    texts = "".join([p.text or "" for p in shown if p is not None])
    return Message("model", answer.parts()), texts, answer.stop_reason, usage_of(answer.envelope)


@pytest.fixture(scope="module")
def recorded_streams(shared: Path) -> list[bytes]:
    paths = [shared / "recordings" / name for name in STREAMS]
    if not all(p.is_file() for p in paths):
        pytest.skip(f"no recordings at {paths[0].parent}")
    return [b"".join(e.answer.pieces) for p in paths for e in read_recording(p)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_any_split_of_a_recorded_stream_gives_the_same_reply(
    recorded_streams: list[bytes], data: st.DataObject
) -> None:
    raw = data.draw(st.sampled_from(recorded_streams))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=40)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    expected = assembled([raw])
    assert assembled(pieces) == expected
    assert assembled([p.replace(b"\n", b"\r\n") for p in pieces]) == expected
    assert expected[1] == expected[0].text


async def test_recorded_streams_cut_into_single_packets_come_through_the_sdk_the_same(
    recorded_streams: list[bytes],
) -> None:
    for raw in recorded_streams:
        answer = Answer([raw[i : i + 7] for i in range(0, len(raw), 7)], kind="text/event-stream")
        async with serving([answer]) as (_, plugin):
            reply, chunks = await ask(plugin, says("Go.", streaming=True))
        content, texts, _, usage = assembled([raw])
        assert (reply.message, reply.usage) == (content, usage)
        assert "".join([c.text for c in chunks]) == texts


def test_a_line_separator_within_a_text_ends_no_line_and_split_surrogates_join() -> None:
    reply = message(text("a\u2028b"))
    raw = as_sse(events_of(reply)).replace(b"\\u2028", "\u2028".encode())
    assert assembled([raw])[0].text == "a\u2028b"
    halves = as_sse(events_of(message(text("x😀"))))
    assert json.dumps("😀")[1:-1].encode() in halves
    first, second = json.dumps("😀")[1:7], json.dumps("😀")[7:13]
    delta = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}'
    start = as_sse(events_of(message(text("x"))))
    split = b"".join(b"data: " + (delta % half).encode() + b"\n\n" for half in (first, second))
    at = start.index(b"event: content_block_stop")
    assert assembled([start[:at] + split + start[at:]])[0].text == "x😀"


def test_the_sdk_is_imported_with_the_first_request_and_not_before() -> None:
    code = "import sys, adjourn.plugins.anthropic as a; a.Anthropic().model('x'); assert 'anthropic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
