"""Every recorded exchange of the OpenAI families, replayed through the real SDK: parsed, followed up, and the follow-up
compared with what the provider had accepted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from adjourn.errors import ModelError
from adjourn.model import ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import Message, Part, ToolRequest, ToolResponse
from plugins.openai_wire import Exchange, ask, recorded, reply_json, talking

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """How a file is replayed. `compare`: follow-ups are compared; `skip` are texts that its author's program put in."""

    key: str
    api: str
    compare: bool = True
    error: int | None = None
    skip: str = ""
    thoughts: bool = True


CASES: Mapping[str, Case] = {
    "openai-responses/pydantic-ai__test_openai_responses_thinking_with_tool_calls.yaml": Case("openai", "responses"),
    "openai-responses/llm__test_responses_interleaved_reasoning_between_tool_calls.yaml": Case("openai", "responses"),
    "openai-responses/llm__test_responses_round_trips_encrypted_reasoning.yaml": Case("openai", "responses"),
    "openai-responses/llm__test_responses_tool_use_streaming.yaml": Case("openai", "responses"),
    "openai-responses/pydantic-ai__test_openai_responses_stream.yaml": Case("openai", "responses"),
    "openai-responses/pydantic-ai__test_openai_responses_model_retry.yaml": Case("openai", "responses"),
    "openai-responses/pydantic-ai__test_openai_responses_model_http_error.yaml": Case("openai", "responses", error=400),
    "openai-responses/pydantic-ai__test_openai_responses_history_with_combined_tool_call_id.yaml": Case(
        "openai", "responses"
    ),
    # The recording kept its conversation on the server, so its follow-up has no history to compare with.
    "openai-responses/pydantic-ai__test_openai_conversation_id_tool_call_continuation.yaml": Case(
        "openai", "responses", False
    ),
    "openai-responses/ai__openai-mcp-tool-approval.1.json": Case("openai", "responses"),
    "openai-responses/ai__openai-mcp-tool-approval.1.chunks.txt": Case("openai", "responses"),
    "openai-responses/ai__openai-mcp-tool-approval.2.json": Case("openai", "responses"),
    "openai-responses/ai__openai-mcp-tool-approval.4.json": Case("openai", "responses"),
    "openai-responses/ai__openai-error.1.chunks.txt": Case("openai", "responses", error=429),
    "openai-responses/ai__parallel-tool-call-wrapper.1.chunks.txt": Case("openai", "responses"),
    "openai-chat/pydantic-ai__test_dbos_agent_with_hitl_tool.yaml": Case("openai", "chat"),
    "openai-chat/pydantic-ai__test_temporal_agent_with_model_retry.yaml": Case("openai", "chat"),
    "openai-chat/pydantic-ai__test_complex_agent_run.yaml": Case("openai", "chat"),
    "openai-chat/pydantic-ai__test_run_stream_sync_streams_real_model.yaml": Case("openai", "chat"),
    "openai-chat/pydantic-ai__test_openai_o1_mini_system_role[system].yaml": Case("openai", "chat", error=400),
    "openai-chat/opentelemetry-python-contrib__test_chat_completion_multiple_tools_streaming_with_content.yaml": Case(
        "openai", "chat"
    ),
    "openai-chat/opentelemetry-python-contrib__test_chat_completion_streaming_not_complete.yaml": Case(
        "openai", "chat"
    ),
    "openai-chat/llm__test_tool_use_chain_of_two_calls.yaml": Case("openai", "chat"),
    "openai-chat/llm__test_tools_streaming_variant_a.yaml": Case("openai", "chat"),
    "openai-compatible/pydantic-ai__test_ollama_cloud_tool_output.yaml": Case("ollama", "chat"),
    # Its author sent the reasoning back as "<think>" text; we send it in the field it came in.
    "openai-compatible/pydantic-ai__test_tool_use_failed_error.yaml": Case(
        "groq", "chat", skip="<think>", thoughts=False
    ),
    "openai-compatible/pydantic-ai__test_deepseek_responses[function_tool_stream].yaml": Case("deepseek", "responses"),
    "openai-compatible/pydantic-ai__test_deepseek_deferred_capability_with_thinking.yaml": Case(
        "deepseek", "chat", skip="auto_load_"
    ),
    "openai-compatible/pydantic-ai__test_openrouter_errors_raised.yaml": Case("openrouter", "chat", error=429),
    "openai-compatible/pydantic-ai__test_compatible_api_with_tool_calls_without_id.yaml": Case("gemini", "chat"),
    "openai-compatible/pydantic-ai__test_tool_choice_matrix[auto-mistral].yaml": Case("mistral", "chat"),
    "openai-compatible/ai__anthropic-fallback-tool-call.sse": Case("proxy", "chat"),
    "openai-compatible/ai__deepseek-tool-call.chunks.txt": Case("deepseek", "chat"),
    "openai-compatible/ai__mistral-incremental-tool-call.chunks.txt": Case("mistral", "chat"),
    "openai-compatible/ai__lmstudio-tool-call.1.chunks.txt": Case("lmstudio", "responses"),
    "multi-provider/pydantic-ai__test_cross_provider_capability_replay"
    "[openai-responses-gpt-5.4-google-gemini-3-flash-preview].yaml": Case(
        "openai", "responses", skip="additional_tools"
    ),
}

BY_HAND: Mapping[str, str] = {
    "openai-responses/pydantic-ai__test_openai_responses_thinking_with_modified_history.yaml": (
        "its history is edited between the calls: test_a_reasoning_item_that_lost_its_text"
    ),
    "openai-compatible/pydantic-ai__test_deepseek_responses_rejects_interleaved_function_calls.yaml": (
        "its request is one that we must not send: test_texts_never_stand_between_calls"
    ),
}

NOT_OURS: Mapping[str, str] = {
    "multi-provider/pydantic-ai__test_anthropic_to_google_deferred_capability_history_replay.yaml": "Anthropic and Gemini only",
}

FOLDERS = ("openai-responses", "openai-chat", "openai-compatible", "multi-provider")


def test_every_recording_is_replayed_or_listed_with_a_reason(shared: Path) -> None:
    root = shared / "recordings"
    there = {f"{folder}/{p.name}" for folder in FOLDERS for p in (root / folder).iterdir()}
    assert there == {*CASES, *BY_HAND, *NOT_OURS}


@pytest.mark.parametrize("name", CASES)
async def test_a_recording_replays(shared: Path, name: str) -> None:
    case = CASES[name]
    exchanges = [e for e in recorded(shared / "recordings" / name) if _spoken_here(e)]
    answers = [e.answer for e in exchanges]
    closing = closing_answer(case.api, streamed=False)
    async with talking(case.key, case.api, *answers, closing, model=_model(exchanges)) as (model, server):
        messages = beginning(exchanges[0].request, case)
        for position, exchange in enumerate(exchanges):
            request = ModelRequest(
                messages, _tools(exchange.request), streaming=exchange.answer.content_type != "application/json"
            )
            if case.error is not None:
                with pytest.raises(ModelError) as caught:
                    await ask(model, request)
                assert (caught.value.code, caught.value.provider) == (case.error, case.key)
                continue
            reply, chunks = await ask(model, request)
            _check_reply(reply, chunks, request.streaming)
            if case.compare and exchange.request:
                assert shape(server.requests[-1], case) == shape(exchange.request, case)
            following = exchanges[position + 1].request if position + 1 < len(exchanges) else None
            messages = [*messages, *_follow(reply, following, exchange.request, case)]
        if case.error is None:
            final, _ = await ask(model, ModelRequest(messages))
            assert final.message.text == "Done."
            check_rules(server.requests[-1])


def _spoken_here(exchange: Exchange) -> bool:
    return not exchange.url or exchange.url.endswith(("/responses", "/chat/completions"))


def _model(exchanges: Sequence[Exchange]) -> str:
    request: Any = exchanges[0].request or {"model": "gpt-5"}
    return request["model"]


def _check_reply(reply: ModelReply, chunks: Sequence[Any], streamed: bool) -> None:
    content = reply.message.content
    assert content
    assert reply.finish_reason in ("stop", "other")
    for part in reply.message.tool_requests:
        assert part.tool_request is not None
        assert part.tool_request.name
        assert isinstance(part.tool_request.input, dict)
    if streamed:
        assert "".join(c.text for c in chunks) == reply.message.text
        assert "".join(c.reasoning for c in chunks) == reply.message.reasoning
    else:
        assert chunks == []


# -- from the recorded request to ours -------------------------------------------------------------------------------


def beginning(request: Any, case: Case) -> list[Message]:
    """The messages of a first request: its texts, and calls with their results where it begins with such."""
    if not request:
        return [Message("user", [Part(text="Go on.")])]
    out: list[Message] = []
    if request.get("instructions"):
        out.append(Message("system", [Part(text=request["instructions"])]))
    for item in request.get("messages") or request["input"]:
        if item.get("type") == "function_call":
            asked = ToolRequest(item["name"], item["call_id"], json.loads(item["arguments"]))
            out.append(Message("model", [Part(tool_request=asked)]))
        elif item.get("type") == "function_call_output":
            name = next(r.name for m in out for p in m.content if (r := p.tool_request))
            out.append(Message("tool", [Part(tool_response=ToolResponse(name, item["call_id"], item["output"]))]))
        else:
            out.append(Message(item["role"], [Part(text=item["content"])]))
    return out


def _tools(request: Any) -> list[ToolDefinition]:
    given: list[Any] = request.get("tools", []) if request else []
    tools: list[Any] = [t.get("function", t) for t in given if t.get("type", "function") == "function"]
    return [ToolDefinition(t["name"], t.get("description") or "", t.get("parameters")) for t in tools]


def _follow(reply: ModelReply, following: Any, request: Any, case: Case) -> list[Message]:
    """The reply with its ids as the driver leaves them, then the results (and texts) that the next request had."""
    content: list[Part] = []
    for position, part in enumerate(reply.message.content):
        if part.tool_request is not None and not part.tool_request.ref:
            part = replace(part, tool_request=replace(part.tool_request, ref=f"c_{position}"))
        content.append(part)
    messages = [replace(reply.message, content=content)]
    calls = [r for p in content if (r := p.tool_request) is not None]
    new: list[Any] = []
    if following:
        key = "messages" if "messages" in following else "input"
        new = following[key] if "conversation" in following else following[key][len(request[key]) :]
    new = [i for i in new if not (case.skip and case.skip in json.dumps(i))] if case.skip != "<think>" else new
    outputs = [i.get("output", i.get("content")) for i in new if i.get("role") == "tool" or "output" in i]
    assert not following or len(outputs) == len(calls)
    if calls:
        given = outputs or ["fine"] * len(calls)
        results = [Part(tool_response=ToolResponse(c.name, c.ref, o)) for c, o in zip(calls, given, strict=True)]
        messages.append(Message("tool", results))
    messages += [Message("user", [Part(text=i["content"])]) for i in new if i.get("role") == "user"]
    if not calls and messages[-1].role == "model":
        messages.append(Message("user", [Part(text="And then?")]))
    return messages


# -- comparing -------------------------------------------------------------------------------------------------------


def shape(request: Json, case: Case) -> list[Any]:
    """What counts in a request: who said what, in which order, and which result belongs to which call."""
    names: dict[str, int] = {}

    def number(call_id: str) -> Any:
        return names.setdefault(call_id, len(names))

    out: list[Any] = [("system", request["instructions"])] if request.get("instructions") else []
    for item in request.get("messages") or request["input"]:
        kind, content = item.get("type"), _text(item.get("content"))
        if case.skip and case.skip != "<think>" and case.skip in json.dumps(item):
            continue
        if kind == "reasoning":
            pieces = [p["text"] for p in [*item["summary"], *(item.get("content") or ())]]
            out.append(("reasoning", item["id"], item.get("encrypted_content"), pieces))
        elif kind == "function_call":
            out.append(("call", number(item["call_id"]), item["name"], json.loads(item["arguments"])))
        elif kind == "function_call_output" or item.get("role") == "tool":
            output = item.get("output", content)
            out.append(("result", number(item.get("call_id") or item["tool_call_id"]), output))
        else:
            thought = next((item[k] for k in ("reasoning_content", "reasoning") if item.get(k)), None)
            if thought and case.thoughts:
                out.append(("thought", thought))
            if content and not (case.skip == "<think>" and content.startswith("<think>")):
                out.append((item["role"], content))
            for call in item.get("tool_calls") or ():
                function = call["function"]
                out.append(("call", number(call["id"]), function["name"], json.loads(function["arguments"])))
    return out


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join([str(p["text"]) for p in cast(list[Any], content)])
    return content or ""


def check_rules(request: Json) -> None:
    """Each call has exactly one result after it, in call order, before anybody speaks again."""
    waiting: list[str] = []
    for item in request.get("messages") or request["input"]:
        if item.get("type") == "function_call":
            waiting.append(item["call_id"])
        elif item.get("type") == "function_call_output" or item.get("role") == "tool":
            assert (item.get("call_id") or item["tool_call_id"]) == waiting.pop(0)
        elif item.get("role") == "user":
            assert waiting == []
        waiting += [c["id"] for c in item.get("tool_calls") or ()]
    assert waiting == []


def closing_answer(api: str, *, streamed: bool) -> Any:
    assert not streamed
    if api == "chat":
        return reply_json(
            {"choices": [{"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}]}
        )
    said = {
        "type": "message",
        "id": "msg_end",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Done."}],
    }
    return reply_json({"id": "resp_end", "status": "completed", "output": [said]})


# -- by hand ---------------------------------------------------------------------------------------------------------


async def test_a_reasoning_item_that_lost_its_text(shared: Path) -> None:
    name = next(n for n in BY_HAND if "modified_history" in n)
    first, refused, accepted = recorded(shared / "recordings" / name)
    async with talking("openai", "responses", first.answer, refused.answer, accepted.answer) as (model, server):
        asked = Message("user", [Part(text="What is the meaning of life?")])
        again = Message("user", [Part(text="Anything to add?")])
        reply, _ = await ask(model, ModelRequest([asked]))
        thought, _ = reply.message.content
        edited = Message("model", [thought, Part(text="The meaning of life is 42")])
        with pytest.raises(ModelError, match="'rs_68c42de022") as caught:
            await ask(model, ModelRequest([asked, edited, again]))
        assert (caught.value.code, caught.value.retryable) == (400, False)
        assert [i.get("type") or i["role"] for i in server.requests[1]["input"]] == [
            "user",
            "reasoning",
            "assistant",
            "user",
        ]

        # As another provider's message it goes through: without the item, which is what the recording did, too.
        foreign = replace(edited, content=[replace(p, metadata={"other": {}}) for p in edited.content])
        reply, _ = await ask(model, ModelRequest([asked, foreign, again]))
        assert [i.get("type") or i["role"] for i in server.requests[2]["input"]] == ["user", "assistant", "user"]
        assert reply.usage.reasoning_tokens == 128


async def test_texts_never_stand_between_calls(shared: Path) -> None:
    name = next(n for n in BY_HAND if "rejects_interleaved" in n)
    (refused,) = recorded(shared / "recordings" / name)
    content = [
        Part(text="inspect inputs"),
        Part(tool_request=ToolRequest("read", "call-a", {"path": "a"})),
        Part(text="inspect views"),
        Part(tool_request=ToolRequest("view", "call-b", {"path": "b"})),
    ]
    results = [
        Part(tool_response=ToolResponse("read", "call-a", "contents")),
        Part(tool_response=ToolResponse("view", "call-b", "rendered")),
    ]
    messages = [
        Message("model", content),
        Message("tool", results),
        Message("user", [Part(text="Reply exactly: done")]),
    ]
    async with talking("deepseek", "responses", refused.answer) as (model, server):
        with pytest.raises(ModelError, match="No tool output found for tool call call-a"):
            await ask(model, ModelRequest(messages))
    kinds = [i.get("type") or i["role"] for i in server.requests[0]["input"]]
    assert kinds == ["assistant", "assistant", *["function_call"] * 2, *["function_call_output"] * 2, "user"]
