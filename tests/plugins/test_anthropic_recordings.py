"""Every recorded exchange with Anthropic: the reply is read, the follow-up rebuilt and held against what was accepted."""

import json
from pathlib import Path

import msgspec
import pytest

from adjourn.errors import ModelError
from adjourn.model import ModelReply, ModelRequest
from adjourn.parts import Message, decode, encode
from plugins.anthropic_kit import Exchange, ask, normal, read_recording, request_of, says, serving

pytestmark = [
    # The SDK tells which models of the recordings have gone out of use since.
    pytest.mark.filterwarnings("ignore:.*is deprecated and will reach end-of-life:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Using Claude with:UserWarning"),
]

FOLDERS = ("anthropic", "multi-provider", "bedrock")
REPLAYED = [
    "anthropic/ai__anthropic-tool-no-args.chunks.txt",
    "anthropic/pydantic-ai__test_anthropic_advisor_tool_redacted.yaml",
    "anthropic/pydantic-ai__test_anthropic_advisor_tool_stream.yaml",
    "anthropic/pydantic-ai__test_anthropic_explicit_effort_xhigh_unsupported_model_errors.yaml",
    "anthropic/pydantic-ai__test_anthropic_native_tool_search_streaming.yaml",
    "anthropic/pydantic-ai__test_anthropic_tool_with_thinking.yaml",
    "anthropic/pydantic-ai__test_mid_conversation_system_prompt_anchor_keeps_tool_pair_intact.yaml",
    "anthropic/pydantic-ai__test_multiple_parallel_tool_calls.yaml",
    "anthropic/pydantic-ai__test_unpaired_native_tool_call_history_is_accepted.yaml",
    "multi-provider/pydantic-ai__test_anthropic_to_google_deferred_capability_history_replay.yaml",
]
LEFT_OUT = {
    "bedrock/pydantic-ai__test_bedrock_model_retry.yaml": "the Converse API of Bedrock with a model of Amazon's: another "
    "protocol than the Messages API, which this plugin does not speak",
    "multi-provider/pydantic-ai__test_cross_provider_capability_replay"
    "[openai-responses-gpt-5.4-google-gemini-3-flash-preview].yaml": "OpenAI and Gemini; no exchange with Anthropic",
}


def exchanges(shared: Path, name: str) -> list[Exchange]:
    path = shared / "recordings" / name
    if not path.is_file():
        pytest.skip(f"no recording at {path}")
    return [e for e in read_recording(path) if not e.uri or "api.anthropic.com" in e.uri]


def test_every_recording_is_replayed_or_left_out_with_a_reason(shared: Path) -> None:
    found = {f"{folder}/{p.name}" for folder in FOLDERS for p in (shared / "recordings" / folder).iterdir()}
    assert found == {*REPLAYED, *LEFT_OUT}
    assert all(LEFT_OUT.values())


@pytest.mark.parametrize("name", REPLAYED)
async def test_a_recording_is_read_and_its_requests_are_rebuilt_as_they_were_accepted(shared: Path, name: str) -> None:
    recorded = exchanges(shared, name)
    replies: list[ModelReply] = []
    async with serving([e.answer for e in recorded]) as (server, plugin):
        for exchange in recorded:
            body = exchange.request
            request = says("go on", streaming=True) if body is None else request_of(body, replies)
            model = "claude-sonnet-4-5" if body is None else body["model"]
            if exchange.answer.status >= 400:
                with pytest.raises(ModelError) as caught:
                    await ask(plugin, request, model)
                assert caught.value.code == exchange.answer.status
                assert not caught.value.retryable
            else:
                reply, chunks = await ask(plugin, request, model)
                assert reply.message.content
                assert "".join([c.text for c in chunks]) == (reply.message.text if request.streaming else "")
                # Through a store and back, as between two requests.
                replies.append(msgspec.structs.replace(reply, message=decode(encode(reply.message), Message)))
            if body is not None:
                assert normal(server.bodies[-1]) == normal(body)
                assert server.seen[-1].path == "/v1/messages"


@pytest.mark.parametrize("name", [n for n in REPLAYED if "effort" not in n])
async def test_what_was_recorded_goes_back_as_the_api_sent_it(shared: Path, name: str) -> None:
    """The content of each recorded reply, sent back in a next turn, block by block."""
    for exchange in exchanges(shared, name):
        streaming = exchange.answer.kind.startswith("text/event-stream")
        async with serving([exchange.answer, exchange.answer]) as (server, plugin):
            first = says("one", streaming=streaming)
            reply, _ = await ask(plugin, first)
            stored = decode(encode(reply.message), Message)
            if reply.message.tool_requests:  # unanswered, which the server here does not mind
                again = ModelRequest([*first.messages, stored], streaming=streaming)
            else:
                again = ModelRequest([*first.messages, stored, *says("two").messages], streaming=streaming)
            await ask(plugin, again)
            sent = server.bodies[-1]["messages"][1]["content"]
        if not streaming:
            given = json.loads(exchange.answer.pieces[0])["content"]
            for block in given:
                if block.get("caller") == {"type": "direct"}:
                    del block["caller"]  # said of every call; its absence means the same
            assert sent == [{k: v for k, v in b.items() if v is not None} for b in given]
        signatures = [b["signature"] for b in sent if "signature" in b]
        raw = exchange.answer.pieces[0].decode()
        assert all(s in raw for s in signatures)
        assert ('"signature_delta"' in raw) <= bool(signatures)


async def test_a_recorded_call_without_arguments_has_an_empty_input(shared: Path) -> None:
    [exchange] = exchanges(shared, "anthropic/ai__anthropic-tool-no-args.chunks.txt")
    async with serving([exchange.answer]) as (_, plugin):
        reply, _ = await ask(plugin, says("go on", streaming=True))
    [part] = reply.message.tool_requests
    assert part.tool_request is not None
    assert part.tool_request.input == {}
    assert part.tool_request.ref == "toolu_01QE1WLsSVp5hy5Q3GmGTmjP"
    assert reply.finish_reason == "stop"
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (565, 48)


async def test_a_recorded_thinking_block_without_text_keeps_its_signature(shared: Path) -> None:
    [exchange] = exchanges(shared, "anthropic/pydantic-ai__test_anthropic_advisor_tool_stream.yaml")
    async with serving([exchange.answer]) as (_, plugin):
        reply, chunks = await ask(plugin, says("go on", streaming=True))
    first, *rest = reply.message.content
    assert first.reasoning == ""
    assert first.metadata is not None
    assert first.metadata["anthropic"]["signature"].startswith("EpADCok")
    assert [p.custom["type"] for p in rest if p.custom] == ["server_tool_use", "advisor_tool_result"]
    assert not any(c.reasoning for c in chunks)
    assert reply.usage.reasoning_tokens == 47


async def test_recorded_usage_counts_what_came_from_the_cache_as_input(shared: Path) -> None:
    name = "multi-provider/pydantic-ai__test_anthropic_to_google_deferred_capability_history_replay.yaml"
    recorded = exchanges(shared, name)
    async with serving([e.answer for e in recorded]) as (_, plugin):
        usages = [(await ask(plugin, says("x")))[0].usage for _ in recorded]
    assert [(u.input_tokens, u.cached_tokens) for u in usages] == [(819, 0), (1076, 0), (1160, 1069)]
