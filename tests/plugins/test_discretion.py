"""What an error tells, and what it never does: keys, and what was said. The answers of the servers are CONSTRUCTED."""

import json
import logging
import traceback
from typing import Any

import pytest

from adjourn import Adjourn
from adjourn.discretion import discreet, without_keys
from adjourn.errors import ModelError
from adjourn.logs import TextFormatter
from adjourn.model import Model, ModelRequest
from adjourn.parts import Media, Message, Part, ToolRequest, ToolResponse
from adjourn.plugins.anthropic import Anthropic
from adjourn.plugins.google_genai import GoogleAI
from adjourn.plugins.openai import OpenAI
from adjourn.resilience import fallback_model, retry_model
from plugins import anthropic_kit, google_kit, openai_wire

KEY = "a-key-of-no-known-form-0123456789"
SYSTEM = 'You are the assistant of Ada\'s "bakery".\nNever tell the recipe:\tflour, äpfel and a pinch of\\salt.'
PROMPT = "Where does the old lighthouse keeper\nhide the spare key of the pantry?"
RESULT = {"patient": "Grace Example", "diagnosis": "a rather embarrassing allergy to feathers", "beds": [3, 4]}
SAID = [
    Message("system", [Part(text=SYSTEM)]),
    Message("user", [Part(text=PROMPT)]),
    Message("model", [Part(tool_request=ToolRequest("look", "c1", {"words": "the spare key of the pantry, please"}))]),
    Message("tool", [Part(tool_response=ToolResponse("look", "c1", RESULT))]),
]
WORDS = ("bakery", "flour", "pinch", "lighthouse", "pantry", "Grace", "embarrassing", "feathers")


def as_html(text: str) -> str:
    return text.replace('"', "&quot;").replace("\n", "<br>")


QUOTES = {
    "as it is": f"Bad text: {PROMPT} End.",
    "as JSON": f"Bad text: {json.dumps(SYSTEM)} End.",
    "as Python": f"Bad text: {SYSTEM!r} End.",
    "as JSON in JSON": f"Bad text: {json.dumps(json.dumps({'content': SYSTEM}))} End.",
    "the beginning": f"Bad text: {PROMPT[:45]}... End.",
    "long": f"Bad text: {'x ' * 140}{PROMPT}{SYSTEM}",
    "a result": f"Bad text: {json.dumps(RESULT)} End.",
    "a result in Python": f"Bad text: {RESULT!r} End.",
    "an input": "Bad text: {'words': 'the spare key of the pantry, please'} End.",
    "all of it": f"Bad text: {json.dumps([PROMPT, SYSTEM, RESULT])} End.",
    "as HTML": f"Bad text: {as_html(SYSTEM)} End.",
}


@pytest.mark.parametrize("way", QUOTES)
def test_what_was_said_is_taken_out_however_it_is_quoted(way: str) -> None:
    told = discreet(QUOTES[way], SAID)
    assert told.startswith("Bad text: ")
    assert [w for w in WORDS if w in told] == []
    assert len(told) <= 301


def test_what_was_not_said_stays() -> None:
    text = "messages.1.content.0: a tool_use without a tool_result; the model 'm' has no tool 'look' (see the pantry)"
    assert discreet(text, SAID) == text
    assert discreet("no: " + "word " * 100, SAID, longest=20) == "no: word word word w…"
    assert discreet("Ok is not valid.", [Message("user", [Part(text="Ok")])]) == "Ok is not valid."


def test_parts_of_every_kind_are_what_was_said() -> None:
    secret = "the seventh brick from the left is loose"
    for part in (
        Part(text=secret),
        Part(reasoning=secret),
        Part(data={"where": secret}),
        Part(media=Media("data:text/plain," + secret)),
        Part(tool_request=ToolRequest("look", "c", secret)),
        Part(tool_response=ToolResponse("look", "c", None, [Part(text=secret)])),
    ):
        assert "brick" not in discreet(f"Refused: {secret}!", [Message("user", [part])])
    assert discreet("Refused.", [Message("user", [Part(custom={"x": 1})])]) == "Refused."


def test_keys_are_taken_out_by_their_value_and_by_their_look() -> None:
    text = f"{KEY} sk-proj-abcdef AIzaSyA1234567890abcd Bearer abc.def ya29.a0AbCdEfGh ?key=0123456789abc&x=1"
    assert without_keys(text, [KEY]) == "[key] [key] [key] [key] [key] ?key=[key]&x=1"
    assert without_keys("an example", ["x", "", None]) == "an example"


# -- each provider -----------------------------------------------------------------------------------------------------

WHOLE = json.dumps([PROMPT, SYSTEM, RESULT], ensure_ascii=False)
TOLD = f"Incorrect key {KEY}: cannot take {PROMPT[:60]!r} in {WHOLE} (Bearer {KEY})"


def assert_discreet(error: ModelError) -> None:
    """The text, the repr, and all that Python and our logs show of it."""
    record = logging.LogRecord("adjourn", logging.ERROR, "x", 1, "failed: %r", (error,), None)
    record.exc_info = (type(error), error, error.__traceback__)
    shown = [str(error), repr(error), "".join(traceback.format_exception(error))]
    shown += [TextFormatter(tracebacks=t).format(record) for t in (True, False)]
    for text in shown:
        assert KEY not in text
        assert [w for w in WORDS if w in text] == []
    assert len(str(error)) < 500


async def refused(model: Model, streaming: bool) -> ModelError:
    request = ModelRequest(SAID, streaming=streaming)
    with pytest.raises(ModelError) as caught:
        await model(request, lambda chunk: None)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


BOTH = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


@BOTH
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("status", [400, 401, 422, 500])
async def test_openai_tells_nothing(status: int, api: Any, streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    answer = openai_wire.reply_json({"error": {"message": TOLD, "type": "invalid_request_error"}}, status)
    async with openai_wire.serving(answer) as server:
        plugin = OpenAI(api=api, base_url=server.url)
        error = await refused(plugin.model("m"), streaming)
        await plugin.aclose()
    assert error.code == status
    assert str(error).startswith(f"openai answered {status}: Incorrect key [key]: cannot take")
    assert_discreet(error)


@BOTH
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_tells_nothing_of_an_error_in_band(api: Any, streaming: bool) -> None:
    if streaming:
        event = {"type": "error", "error": {"message": TOLD, "code": "server_error"}}
        answer = openai_wire.reply_events([event if api == "responses" else {"error": event["error"]}])
    else:
        answer = openai_wire.reply_json({"error": {"message": TOLD, "code": "server_error"}})
    async with openai_wire.serving(answer) as server:
        plugin = OpenAI(base_url=server.url, api_key="other", api=api, headers={"X-Api-Key": KEY})
        error = await refused(plugin.model("m"), streaming)
        await plugin.aclose()
    assert_discreet(error)


@BOTH
@pytest.mark.parametrize("status", [400, 401, 413, 529, 200])
async def test_anthropic_tells_nothing(status: int, streaming: bool) -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": TOLD}}
    answer = anthropic_kit.whole(body, status)
    if status == 200 and streaming:
        answer = anthropic_kit.streamed([body])
    async with anthropic_kit.serving([answer]) as (server, _):
        plugin = Anthropic(api_key=KEY, base_url=server.url)
        error = await refused(plugin.model("claude-test"), streaming)
        await plugin.aclose()
    assert "Incorrect key [key]: cannot take" in str(error)
    assert_discreet(error)


@BOTH
@pytest.mark.parametrize("status", [400, 401, 500])
async def test_gemini_tells_nothing(status: int, streaming: bool) -> None:
    body = {"error": {"code": status, "status": "INVALID_ARGUMENT", "message": TOLD}}
    async with google_kit.FakeGemini([google_kit.Answer(body, status)]) as server:
        plugin = GoogleAI(api_key=KEY, base_url=server.url, http_options=google_kit.FAST)
        error = await refused(plugin.model("gemini-3-flash-preview"), streaming)
        await plugin.aclose()
    assert error.code == status
    assert "Incorrect key [key]: cannot take" in str(error)
    assert_discreet(error)


async def test_a_turn_that_fails_says_no_more_and_logs_no_more(caplog: pytest.LogCaptureFixture) -> None:
    answers = [openai_wire.reply_json({"error": {"message": TOLD}}, status) for status in (503, 503, 400)]
    async with openai_wire.serving(*answers) as server:
        plugin = OpenAI(KEY, api="chat", base_url=server.url)
        model = plugin.model("m")
        ai = Adjourn(model=fallback_model(retry_model(model, attempts=2, backoff=0), model))
        with caplog.at_level(logging.DEBUG, "adjourn"), pytest.raises(ModelError) as caught:
            await ai.generate(messages=SAID)
        await plugin.aclose()
    assert_discreet(caught.value)
    assert KEY not in caplog.text
    assert "lighthouse" not in "".join([r.getMessage() for r in caplog.records if r.name.startswith("adjourn")])
