"""What goes wrong, as ModelError. CONSTRUCTED from the providers' documented shapes: no real recordings of these exist."""

import json
import sys
import traceback
from typing import Any

import pytest

from adjourn import Adjourn
from adjourn.errors import MissingExtra, ModelError
from adjourn.model import ModelRequest
from adjourn.parts import Message, Part
from adjourn.plugins.openai import OpenAI, OpenAICompatible
from plugins.openai_wire import Answer, ask, plugin_for, reply_events, reply_json, serving, talking

APIS = ("responses", "chat")
SECRET = "sk-test-0123456789"
PROMPT = "A secret plan. " * 100


def request(*, streaming: bool = False) -> ModelRequest:
    return ModelRequest([Message("user", [Part(text=PROMPT)])], streaming=streaming)


async def failing(api: str, answer: Answer, *, streaming: bool = False, **options: Any) -> ModelError:
    async with talking("openai", api, answer, **options) as (model, _):
        with pytest.raises(ModelError) as caught:
            await ask(model, request(streaming=streaming))
    error = caught.value
    assert error.provider == "openai"
    assert SECRET not in str(error)
    assert PROMPT not in str(error)
    assert len(str(error)) < 500
    assert error.__cause__ is None, "the SDK's error quotes whole requests"
    return error


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "status, retryable",
    [
        (400, False),
        (401, False),
        (403, False),
        (404, False),
        (408, True),
        (429, True),
        (500, True),
        (503, True),
        (529, True),
    ],
)
async def test_a_status_becomes_an_error_that_says_whether_to_try_again(
    api: str, status: int, retryable: bool, streaming: bool
) -> None:
    body = {"error": {"message": f"No: {SECRET}, {PROMPT}", "type": "some_error", "code": None}}
    error = await failing(api, reply_json(body, status, x_request_id="req_7"), streaming=streaming)
    assert (error.code, error.retryable, error.request_id) == (status, retryable, "req_7")
    assert "[key]" in str(error)


@pytest.mark.parametrize("api", APIS)
async def test_a_short_prompt_is_not_repeated_either(api: str) -> None:
    prompt = "The door code\nis 4711."
    answer = reply_json({"error": {"message": "Bad: The door code is 4711. Or: The door code\nis 4711."}}, 400)
    async with talking("openai", api, answer) as (model, _):
        with pytest.raises(ModelError) as caught:
            await ask(model, ModelRequest([Message("user", [Part(text=prompt)])]))
    assert "4711" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry_after": "20"}, 20.0),
        ({"retry_after_ms": "1500", "retry_after": "2"}, 1.5),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after_ms": "nan", "retry_after": "3"}, 3.0),
        ({"retry_after": "-5"}, 0.0),
    ],
)
async def test_a_429_keeps_the_delay_it_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    error = await failing("chat", reply_json({"error": {"message": "Slow down."}}, 429, **headers))
    assert error.retry_after == seconds


async def test_a_date_as_retry_after_is_a_delay_from_now() -> None:
    past = await failing("chat", reply_json({}, 503, retry_after="Fri, 31 Dec 1999 23:59:59 GMT"))
    assert past.retry_after == 0.0


async def test_a_used_up_quota_is_a_429_that_no_retry_helps() -> None:
    body = {
        "error": {"message": "You exceeded your quota.", "type": "insufficient_quota", "code": "insufficient_quota"}
    }
    assert not (await failing("responses", reply_json(body, 429))).retryable


async def test_the_server_may_say_itself_whether_to_try_again() -> None:
    assert not (await failing("chat", reply_json({}, 503, x_should_retry="false"))).retryable


async def test_a_page_of_html_is_not_quoted() -> None:
    error = await failing("chat", Answer(b"<html>Bad gateway</html>", 502, "text/html"))
    assert "html" not in str(error)
    assert error.retryable


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_no_answer_in_time(api: str, streaming: bool) -> None:
    error = await failing(api, Answer(b"{}", delay=1.0), streaming=streaming, timeout=0.1)
    assert "in time" in str(error)
    assert error.retryable


@pytest.mark.parametrize("api", APIS)
async def test_nobody_there(api: str) -> None:
    async with serving() as server:
        url = server.url
    plugin = plugin_for("ollama", api, url)
    with pytest.raises(ModelError, match="ollama cannot be reached") as caught:
        await ask(plugin.model("m"), request())
    await plugin.aclose()
    assert caught.value.retryable


STARTED = {
    "chat": {"choices": [{"index": 0, "delta": {"content": "Half of"}, "finish_reason": None}]},
    "responses": {"type": "response.output_text.delta", "output_index": 0, "delta": "Half of"},
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("breaks", [True, False])
async def test_a_stream_that_breaks_off(api: str, breaks: bool) -> None:
    error = await failing(api, reply_events([STARTED[api]], done=False, breaks=breaks), streaming=True)
    assert "broke off" in str(error)
    assert error.retryable


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_with_usage_in_each_chunk_still_has_to_end(api: str) -> None:
    chunk = {**STARTED[api], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    assert "broke off" in str(await failing(api, reply_events([chunk], done=False), streaming=True))


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_fails_in_band(api: str) -> None:
    failure = {"error": {"message": "The server had an error.", "type": "server_error", "code": "server_error"}}
    error = await failing(api, reply_events([STARTED[api], failure]), streaming=True)
    assert (error.code, error.retryable) == (500, True)


async def test_an_error_event_of_the_responses_api() -> None:
    event = {"type": "error", "code": "rate_limit_exceeded", "message": "Too fast.", "param": None}
    error = await failing("responses", reply_events([event]), streaming=True)
    assert (error.code, error.retryable) == (429, True)


async def test_a_response_that_failed() -> None:
    failed: Any = {"status": "failed", "output": [], "error": {"code": "server_error", "message": "Sorry."}}
    assert (await failing("responses", reply_json(failed))).retryable


async def test_a_choice_that_failed_behind_a_router() -> None:
    choice = {"message": {"content": ""}, "finish_reason": "error", "error": {"code": 502, "message": "Upstream."}}
    error = await failing("chat", reply_json({"choices": [choice]}))
    assert (error.code, error.retryable) == (502, True)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "answer", [Answer(b'{"choices": ['), Answer(b"[1]"), Answer(b"hello", content_type="text/plain")]
)
async def test_a_reply_that_cannot_be_read(api: str, answer: Answer) -> None:
    error = await failing(api, answer)
    assert "cannot be read" in str(error)
    assert error.retryable


@pytest.mark.parametrize("api", APIS)
async def test_an_event_that_cannot_be_read(api: str) -> None:
    assert "cannot be read" in str(await failing(api, reply_events(["{"]), streaming=True))


EMPTY: dict[str, list[Any]] = {
    "chat": [{}, {"choices": []}, {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}],
    "responses": [{"status": "completed", "output": []}],
}


@pytest.mark.parametrize("api, body", [(api, body) for api in APIS for body in EMPTY[api]])
async def test_an_empty_reply(api: str, body: Any) -> None:
    error = await failing(api, reply_json(body))
    assert "empty reply" in str(error)
    assert error.retryable


async def test_the_sdk_does_not_retry_by_itself() -> None:
    async with talking("openai", "chat", reply_json({}, 500), reply_json({}, 500)) as (model, server):
        with pytest.raises(ModelError):
            await ask(model, request())
    assert len(server.requests) == 1


async def test_a_missing_sdk_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None: ...

    monkeypatch.setattr("adjourn.plugins.openai.connection.importlib.util.find_spec", absent)
    ai = Adjourn(plugins=[OpenAI(), OpenAICompatible("ollama", "http://localhost:1/v1")])
    for name in ("openai/gpt-5", "ollama/llama"):
        with pytest.raises(MissingExtra, match=r"pip install 'adjourn\[openai\]'"):
            await ai.generate("Hello", model=name)


async def test_no_key_is_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        await ask(OpenAI().model("gpt-5"), request())


async def test_another_server_is_never_sent_the_key_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of-openai-only")
    async with talking("ollama", "chat", reply_json({}, 500), reply_json({}, 500)) as (model, server):
        with pytest.raises(ModelError):
            await ask(model, request())
        monkeypatch.setenv("MY_HOST_API_KEY", "mine")
        mine = plugin_for("my-host", "chat", server.url)
        with pytest.raises(ModelError):
            await ask(mine.model("m"), request())
        await mine.aclose()
    assert "of-openai-only" not in json.dumps(server.headers)
    assert [h["authorization"] for h in server.headers] == ["Bearer none", "Bearer mine"]


def test_making_a_plugin_imports_no_sdk() -> None:
    code = "import sys; from adjourn.plugins.openai import OpenAI; OpenAI().model('gpt-5'); assert 'openai' not in sys.modules"
    import subprocess

    subprocess.run([sys.executable, "-c", code], check=True)
