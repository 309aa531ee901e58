"""What goes wrong with Gemini, as ModelError. All of it is constructed from documented shapes: nobody recorded these."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from adjourn.errors import MissingExtra, ModelError, UnknownModel
from adjourn.model import ModelRegistry, ModelReply, ModelRequest
from adjourn.parts import Chunk, Message, Part
from adjourn.plugins.google_genai import GoogleAI, VertexAI
from plugins.google_kit import KEY, Answer, FakeGemini, gemini, ignore, plain, response, sse, stream, vertex

PROMPT = "a long and private question about somebody"
ASK = ModelRequest([Message("user", [Part(text=PROMPT)])])
ASK_STREAMED = ModelRequest(ASK.messages, streaming=True)


@pytest.fixture
async def server() -> AsyncIterator[FakeGemini]:
    async with FakeGemini([]) as server:
        yield server


async def failure(server: FakeGemini, request: ModelRequest, *answers: Answer, **more: Any) -> ModelError:
    server.answers += answers
    plugin = gemini(server, **more)
    with pytest.raises(ModelError) as caught:
        await plugin.model("gemini-3-flash-preview")(request, ignore)
    await plugin.aclose()
    error = caught.value
    assert error.provider == "googleai"
    assert error.__cause__ is None
    for secret in (KEY, PROMPT):
        assert secret not in str(error)
    return error


def refusal(code: int, status: str, message: str = "no", *details: Any) -> Answer:
    return Answer({"error": {"code": code, "status": status, "message": message, "details": list(details)}}, code)


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}


@pytest.mark.parametrize("request_", [ASK, ASK_STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "code,status,retryable",
    [
        (400, "INVALID_ARGUMENT", False),
        (401, "UNAUTHENTICATED", False),
        (403, "PERMISSION_DENIED", False),
        (404, "NOT_FOUND", False),
        (408, "DEADLINE_EXCEEDED", True),
        (429, "RESOURCE_EXHAUSTED", True),
        (500, "INTERNAL", True),
        (503, "UNAVAILABLE", True),
        (504, "DEADLINE_EXCEEDED", True),
        (529, "OVERLOADED", True),
    ],
)
async def test_an_answer_that_is_an_error_has_its_code_and_says_whether_to_try_again(
    server: FakeGemini, request_: ModelRequest, code: int, status: str, retryable: bool
) -> None:
    error = await failure(server, request_, refusal(code, status, f"no: {PROMPT} {KEY} AIzaSyA1234567890abcd"))
    assert error.code == code
    assert error.retryable == retryable
    assert status in str(error)
    assert "AIza" not in str(error)
    assert error.retry_after is None
    assert len(server.seen) == 1  # nothing is tried again behind our back


async def test_429_has_the_delay_that_retry_info_names(server: FakeGemini) -> None:
    more = {"@type": "type.googleapis.com/google.rpc.RequestInfo", "requestId": "req-7"}
    error = await failure(server, ASK, refusal(429, "RESOURCE_EXHAUSTED", "quota", RETRY_INFO, more))
    assert error.retry_after == 34.5
    assert error.request_id == "req-7"


async def test_503_has_the_delay_of_its_header(server: FakeGemini) -> None:
    answer = refusal(503, "UNAVAILABLE", "overloaded")
    answer.headers = {"retry-after": "12", "x-goog-request-id": "g-1"}
    error = await failure(server, ASK, answer)
    assert error.retry_after == 12
    assert error.request_id == "g-1"


async def test_a_date_as_retry_after_is_a_delay_from_now(server: FakeGemini) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    answer = refusal(503, "UNAVAILABLE", "overloaded")
    answer.headers = {"retry-after": later}
    error = await failure(server, ASK, answer)
    assert error.retry_after is not None
    assert 500 < error.retry_after <= 600


async def test_a_missing_signature_is_a_400_that_does_not_go_away(server: FakeGemini) -> None:
    said = "Function call `default_api:f` in the 2. content block is missing a `thought_signature`."
    error = await failure(server, ASK, refusal(400, "INVALID_ARGUMENT", said))
    assert not error.retryable
    assert "thought_signature" in str(error)


async def test_an_error_that_is_no_json_is_told_briefly(server: FakeGemini) -> None:
    page = b"<html>" + b"Bad gateway " * 200 + b"</html>"
    error = await failure(server, ASK, Answer(page, 502, "text/html"))
    assert error.retryable
    assert len(str(error)) < 400


async def test_an_error_in_a_stream_is_the_same_error(server: FakeGemini) -> None:
    body = sse([response({"text": "so"})]) + b'data: {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", '
    body += b'"message": "slow down", "details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "3s"}]}}\r\n\r\n'
    error = await failure(server, ASK_STREAMED, Answer(body, kind="text/event-stream"))
    assert (error.code, error.retryable, error.retry_after) == (429, True, 3)


async def test_a_stream_that_breaks_off_is_an_error_to_try_again(server: FakeGemini) -> None:
    cut = sse([response({"text": "so it"}), response({"text": " goes"}, finish="STOP")])
    for body, broken in ((cut[:150], True), (cut, True), (cut[: cut.index(b"\r\n\r\n") + 4], False)):
        error = await failure(server, ASK_STREAMED, Answer(body, kind="text/event-stream", cut=broken))
        assert error.retryable
        assert error.code is None
        assert "so it" not in str(error)


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_plain_answer_to_a_wish_to_stream_is_shown_in_one_chunk(server: FakeGemini, kind: str) -> None:
    server.answers.append(Answer(response({"text": "Hello."}, finish="STOP"), kind=kind))
    plugin = gemini(server)
    shown: list[Chunk] = []
    reply = await plugin.model("gemini-3-flash-preview")(ASK_STREAMED, shown.append)
    await plugin.aclose()
    assert reply.message.text == "Hello."
    assert [c.text for c in shown] == ["Hello."]


async def test_json_that_is_none_is_an_error_without_the_text(server: FakeGemini) -> None:
    error = await failure(server, ASK, Answer(b'{"candidates": [{"content": "secr'))
    assert error.retryable
    assert "secr" not in str(error)
    error = await failure(server, ASK, plain({"functionCall": {"name": "f", "args": "{broken"}}))
    assert error.retryable
    assert "broken" not in str(error)


@pytest.mark.parametrize(
    "answer", [plain(), plain({"text": ""}), plain(finish="OTHER"), Answer({"candidates": []}), Answer({})]
)
async def test_an_empty_reply_is_an_error_to_try_again(server: FakeGemini, answer: Answer) -> None:
    assert "empty" in str(await failure(server, ASK, answer))


async def test_a_server_that_does_not_answer_in_time(server: FakeGemini) -> None:
    error = await failure(server, ASK, Answer({}, delay=0.5), timeout=0.1)
    assert error.retryable
    assert "in time" in str(error)


async def test_a_server_that_is_not_there() -> None:
    async with FakeGemini([]) as server:
        pass
    error = await failure(server, ASK)
    assert error.retryable
    assert "cannot be reached" in str(error)


async def reply_to(server: FakeGemini, answer: Answer, streaming: bool = False) -> ModelReply:
    server.answers.append(answer)
    plugin = gemini(server)
    try:
        return await plugin.model("gemini-3-flash-preview")(ASK_STREAMED if streaming else ASK, ignore)
    finally:
        await plugin.aclose()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "reason,ours",
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "blocked"),
        ("RECITATION", "blocked"),
        ("PROHIBITED_CONTENT", "blocked"),
        ("SPII", "blocked"),
        ("LANGUAGE", "blocked"),
        ("OTHER", "other"),
    ],
)
async def test_finish_reasons(server: FakeGemini, reason: str, ours: str, streaming: bool) -> None:
    made = response({"text": "well"}, finish=reason)
    reply = await reply_to(server, stream(made) if streaming else Answer(made), streaming)
    assert reply.finish_reason == ours
    assert reply.message.text == "well"


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_blocked_prompt_is_a_reply_that_says_so(server: FakeGemini, streaming: bool) -> None:
    made = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 4}}
    reply = await reply_to(server, stream(made) if streaming else Answer(made), streaming)
    assert reply.finish_reason == "blocked"
    assert list(reply.message.content) == []
    assert (reply.message.metadata or {})["google"]["promptFeedback"] == {"blockReason": "PROHIBITED_CONTENT"}
    assert reply.usage.input_tokens == 4


async def test_thoughts_that_used_up_the_limit_are_length(server: FakeGemini) -> None:
    assert (await reply_to(server, plain(finish="MAX_TOKENS"))).finish_reason == "length"


async def test_usage_counts_thoughts_as_output_and_tool_prompts_as_input(server: FakeGemini) -> None:
    made = response({"text": "x"}, finish="STOP")
    made["usageMetadata"] = {
        "promptTokenCount": 100,
        "toolUsePromptTokenCount": 7,
        "cachedContentTokenCount": 60,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 20,
    }
    usage = (await reply_to(server, Answer(made))).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (107, 25, 60, 20)


async def test_grounding_is_kept_with_the_message(server: FakeGemini) -> None:
    found = {"webSearchQueries": ["x"], "groundingChunks": [{"web": {"uri": "https://a", "title": "A"}}]}
    reply = await reply_to(server, plain({"text": "x"}, groundingMetadata=found))
    assert (reply.message.metadata or {})["google"]["groundingMetadata"] == found


async def test_without_a_key_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(ModelError, match="GEMINI_API_KEY"):
        await GoogleAI().model("gemini-flash-latest")(ASK, ignore)


async def test_a_missing_sdk_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai.types", None)
    with pytest.raises(MissingExtra, match=r"adjourn\[google\]"):
        await GoogleAI(api_key=KEY).model("gemini-flash-latest")(ASK, ignore)


def test_names_are_listed_and_found() -> None:
    registry = ModelRegistry([GoogleAI(api_key=KEY), VertexAI("p", "l")])
    assert "googleai/gemini-flash-latest" in registry.names()
    assert "vertexai/gemini-2.5-pro" in registry.names()
    assert registry.find("googleai/gemini-9-whatever").name == "googleai/gemini-9-whatever"
    with pytest.raises(UnknownModel):
        registry.find("googleai/a name")
    assert KEY not in repr(GoogleAI(api_key=KEY))


# -- connections -------------------------------------------------------------------------------------------------------


async def test_requests_of_one_loop_share_a_connection(server: FakeGemini) -> None:
    server.answers += [plain({"text": "x"})] * 3
    plugin = gemini(server)
    for _ in range(3):
        await plugin.model("gemini-3-flash-preview")(ASK, ignore)
    assert server.connections == 1
    await plugin.aclose()
    server.answers.append(plain({"text": "x"}))
    await plugin.model("gemini-3-flash-preview")(ASK, ignore)  # closed is not the end
    await plugin.aclose()


async def test_requests_at_once_are_told_apart(server: FakeGemini) -> None:
    server.answers += [plain({"text": "x"})] * 8
    plugin = vertex(server)
    model = plugin.model("gemini-3-flash-preview")
    replies = await asyncio.gather(*[model(ASK, ignore) for _ in range(8)])
    assert {r.message.text for r in replies} == {"x"}
    await plugin.aclose()


LOOPS = """
import asyncio, gc, json, sys
sys.path.insert(0, sys.argv[1])
from plugins.google_kit import FakeGemini, gemini, ignore, plain, stream, response
from adjourn.model import ModelRequest
from adjourn.parts import Message, Part

plugins = []
async def main():
    async with FakeGemini([plain({"text": "x"}), stream(response({"text": "y"}, finish="STOP"))]) as server:
        if not plugins:
            plugins.append(gemini(server))
        plugin = plugins[0]
        plugin._http["base_url"] = server.url
        model = plugin.model("gemini-3-flash-preview")
        asked = [Message("user", [Part(text="go")])]
        await model(ModelRequest(asked), ignore)
        await model(ModelRequest(asked, streaming=True), ignore)
for _ in range(3):
    asyncio.run(main())
    gc.collect()
assert not plugins[0]._clients._kept
"""


def test_nothing_is_left_open_when_loops_end() -> None:
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-W", "error", "-c", LOOPS, tests]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
