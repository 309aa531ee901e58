"""Every recorded exchange with Gemini, through the real SDK: read, answered, and sent on as the provider accepted it.

The recordings were made by others, with ids and names of theirs; `comparable` says what is not compared. They are
from pydantic-ai (MIT) and vercel/ai (Apache-2.0), see the INDEX.md beside them.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn.model import ModelReply, ModelRequest
from adjourn.parts import Chunk, Message, Part, ToolResponse, Usage, decode, encode
from plugins.google_kit import (
    KEY,
    FakeGemini,
    comparable,
    exchanges,
    fcall,
    gemini,
    ignore,
    messages_of,
    minted,
    plain,
    request_of,
    signature_of,
)

EXCHANGES = (
    "gemini/pydantic-ai__test_google_deferred_capability_announcement_live.yaml",
    "gemini/pydantic-ai__test_google_instructions_only_with_tool_calls.yaml",
    "gemini/pydantic-ai__test_google_model_iter_stream.yaml",
    "gemini/pydantic-ai__test_google_model_retry.yaml",
    "gemini/pydantic-ai__test_google_streaming_tool_call_thought_signature.yaml",
    "gemini/pydantic-ai__test_google_tool_config_any_with_tool_without_args.yaml",
    "gemini/pydantic-ai__test_native_output_with_function_tools_stream.yaml",
    "gemini/pydantic-ai__test_thinking_with_tool_calls_from_other_model.yaml",
    # Their Anthropic and OpenAI halves are other plugins'; here they are the foreign history.
    "multi-provider/pydantic-ai__test_anthropic_to_google_deferred_capability_history_replay.yaml",
    (
        "multi-provider/pydantic-ai__test_cross_provider_capability_replay"
        "[openai-responses-gpt-5.4-google-gemini-3-flash-preview].yaml"
    ),
)
RESPONSES = {
    "gemini/ai__google-tool-call-gemini3.chunks.txt": [("weather", {"location": "San Francisco"})],
    "gemini/ai__google-stream-tool-call-arguments.chunks.txt": [
        ("getWeather", {"location": "Boston"}),
        ("getWeather", {"location": "San Francisco"}),
    ],
    "gemini/ai__google-stream-tool-call-array-arguments-missing-terminal-function-call.chunks.txt": [
        (
            "writeItems",
            {
                "operations": [
                    {"action": "add", "description": "Fresh red apple", "itemid": "apple_001", "price": 0.5},
                    {"action": "add", "description": "Ripe yellow banana", "itemid": "banana_001", "price": 0.3},
                ]
            },
        )
    ],
}
NOT_APPLICABLE: dict[str, str] = {}
"""Recordings that no test here can use, each with the reason."""


def test_every_recording_of_the_family_is_used_or_excused(shared: Path) -> None:
    found = {
        f"{folder}/{p.name}"
        for folder in ("gemini", "multi-provider")
        for p in (shared / "recordings" / folder).iterdir()
    }
    named = [*EXCHANGES, *RESPONSES, *NOT_APPLICABLE]
    assert found == set(named)
    assert len(named) == len(set(named))


def rounds(path: Path) -> list[tuple[str, list[Any]]]:
    """Runs of exchanges with one model, each going on from the one before."""
    out: list[tuple[str, list[Any]]] = []
    for exchange in exchanges(path):
        if not out or out[-1][0] != exchange.model:
            out.append((exchange.model, []))
        out[-1][1].append(exchange)
    return out


@pytest.mark.parametrize("name", EXCHANGES)
async def test_what_is_sent_is_what_the_provider_accepted(shared: Path, name: str) -> None:
    for model_name, recorded in rounds(shared / "recordings" / name):
        async with FakeGemini([e.answer for e in recorded]) as server:
            plugin = gemini(server)
            model = plugin.model(model_name)
            messages: list[Message] = []
            reply: ModelReply | None = None
            sent = 0
            for i, exchange in enumerate(recorded):
                request = request_of(exchange.request, exchange.streamed)
                contents: list[Any] = exchange.request["contents"]
                if reply is None:
                    messages = list(request.messages)
                else:
                    assert contents[sent]["role"] == "model"
                    said = minted(reply, i)
                    refs = [r.ref or "" for p in said.content if (r := p.tool_request)]
                    messages += [said, *messages_of(contents[sent + 1 :], refs)]
                messages = decode(encode(messages), list[Message])  # as a store gives them back
                reply = await model(replace(request, messages=messages), ignore)
                sent = len(contents)
                assert comparable(server.seen[i].body) == comparable(exchange.request)
                assert server.seen[i].path.startswith(f"/v1beta/models/{model_name}:")
                assert server.seen[i].headers["x-goog-api-key"] == KEY
            assert reply is not None
            assert reply.finish_reason == "stop"
            assert reply.usage.input_tokens > 0
            await plugin.aclose()


@pytest.mark.parametrize("name", RESPONSES)
async def test_streamed_calls_are_read_whole_and_go_back_with_their_signature(shared: Path, name: str) -> None:
    path = shared / "recordings" / name
    given = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    signed = [p for r in given for p in r["candidates"][0]["content"]["parts"] if "thoughtSignature" in p]
    (recorded,) = exchanges(path)
    async with FakeGemini([recorded.answer, plain({"text": "done"})]) as server:
        plugin = gemini(server)
        model = plugin.model(recorded.model)
        messages = [Message("user", [Part(text="go")])]
        chunks: list[Chunk] = []
        reply = await model(ModelRequest(messages, streaming=True), chunks.append)
        requests = [p.tool_request for p in reply.message.content]
        assert [(r.name, r.input) for r in requests if r] == RESPONSES[name]
        assert all(r is not None for r in requests)  # the empty text at the end is no part
        assert not chunks
        said = decode(encode(minted(reply, 0)), Message)
        results = [Part(tool_response=ToolResponse(r.name, r.ref, "ok")) for p in said.content if (r := p.tool_request)]
        await model(ModelRequest([*messages, said, Message("tool", results)]), ignore)
        parts = server.seen[1].body["contents"][1]["parts"]
        assert signature_of(parts[0]) == signature_of(signed[0])
        assert [p for p in parts[1:] if "thoughtSignature" in p] == []
        assert [p["functionCall"]["args"] for p in parts] == [args for _, args in RESPONSES[name]]
        await plugin.aclose()


async def test_a_recorded_answer_has_its_usage_reasons_and_notes(shared: Path) -> None:
    path = shared / "recordings/gemini/pydantic-ai__test_native_output_with_function_tools_stream.yaml"
    first, second = exchanges(path)
    async with FakeGemini([first.answer, second.answer]) as server:
        plugin = gemini(server)
        model = plugin.model(first.model)
        reply = await model(request_of(first.request, True), ignore)
        assert reply.usage == Usage(29, 12 + 69, 0, 69)
        (call,) = reply.message.content
        assert call.tool_request is not None
        assert call.tool_request.ref == "96c1su3s"
        note = (reply.message.metadata or {})["google"]
        assert note["modelVersion"] == "gemini-3-flash-preview"
        assert note["finishReason"] == "STOP"
        chunks: list[Chunk] = []
        closing = await model(request_of(second.request, True), chunks.append)
        assert json.loads(closing.message.text) == {"city": "Mexico City", "country": "Mexico"}
        assert "".join([c.text for c in chunks]) == closing.message.text
        # The signature came on an empty text, and there it stays.
        assert [bool(p.metadata) for p in closing.message.content] == [False, True]
        assert closing.message.content[1].text == ""
        await plugin.aclose()


async def test_a_signature_is_kept_whatever_its_alphabet() -> None:
    raw = bytes(range(256))
    standard = base64.b64encode(raw).decode()
    for text in (standard, standard.replace("+", "-").replace("/", "_"), standard.rstrip("=")):
        async with FakeGemini([plain(fcall("f", signature=text))]) as server:
            plugin = gemini(server)
            reply = await plugin.model("gemini-3-flash-preview")(
                ModelRequest([Message("user", [Part(text="x")])]), ignore
            )
            assert (reply.message.content[0].metadata or {})["google"] == {"thoughtSignature": standard}
            await plugin.aclose()
