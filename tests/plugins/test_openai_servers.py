"""Servers that do not do as they were asked, and what DeepSeek wants to see again."""

import json
from dataclasses import replace
from typing import Any

import pytest

from adjourn import Adjourn, tool
from adjourn.errors import ModelError
from adjourn.model import ModelRequest
from adjourn.parts import Message, Part, ToolRequest, ToolResponse
from adjourn.plugins.openai import OpenAICompatible, chat
from adjourn.schema import TypeShape
from plugins.openai_wire import Json, ask, reply_events, reply_json, talking


def user(*parts: Part) -> Message:
    return Message("user", parts)


CALLED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def plain_reply(api: str) -> Json:
    if api == "chat":
        message = {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm.", "tool_calls": [CALLED]}
        return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}}
    return {
        "status": "completed",
        "usage": {"input_tokens": 3},
        "output": [
            {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
            {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": "{}"},
        ],
    }


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "text/json", "text/plain", "text/event-stream", ""]
)
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_server_that_ignores_the_wish_to_stream_is_shown_in_one_chunk(api: str, kind: str) -> None:
    answer = replace(reply_json(plain_reply(api)), plainly=True, content_type=kind)
    async with talking("ollama", api, answer, reply_json(plain_reply(api))) as (model, server):
        streamed, chunks = await ask(model, ModelRequest([user(Part(text="Hi."))], streaming=True))
        plain, _ = await ask(model, ModelRequest([user(Part(text="Hi."))]))
    assert server.requests[0]["stream"] is True
    assert streamed.message == plain.message
    assert streamed.usage.input_tokens == 3
    assert [(c.reasoning, c.text, [p for p in c.content if p.tool_request]) for c in chunks] == [("Hm.", "Hello.", [])]


@pytest.mark.parametrize("cuts", [(), (1, 1, 2, 3), (40,)])
@pytest.mark.parametrize("space", [b"", b"\r\n \n"])
async def test_a_plain_reply_that_calls_itself_text_comes_in_pieces(space: bytes, cuts: tuple[int, ...]) -> None:
    body = space + json.dumps(plain_reply("chat"), indent=2).encode()
    answer = replace(reply_json({}), body=body, plainly=True, content_type="text/plain; charset=utf-8", cuts=cuts)
    async with talking("ollama", "chat", answer) as (model, _):
        reply, chunks = await ask(model, ModelRequest([user(Part(text="Hi."))], streaming=True))
    assert reply.message.text == "Hello."
    assert [p.tool_request.name for p in reply.message.content if p.tool_request] == ["look"]
    assert len(chunks) == 1


@pytest.mark.parametrize("body", [b"", b"\n\n", b"<html>busy</html>", b": nothing more\n\n"])
async def test_what_is_neither_events_nor_json_is_a_stream_that_broke_off(body: bytes) -> None:
    answer = replace(reply_json({}), body=body, plainly=True, content_type="text/plain")
    async with talking("ollama", "chat", answer) as (model, _):
        with pytest.raises(ModelError, match="broke off") as error:
            await ask(model, ModelRequest([user(Part(text="Hi."))], streaming=True))
    assert error.value.retryable


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_error_in_the_place_of_a_stream_is_an_error(api: str, kind: str) -> None:
    failed = {"error": {"message": "no room", "type": "server_error", "code": 503}}
    answer = replace(reply_json(failed), plainly=True, content_type=kind)
    async with talking("ollama", api, answer) as (model, _):
        with pytest.raises(ModelError, match="no room") as error:
            await ask(model, ModelRequest([user(Part(text="Hi."))], streaming=True))
    assert (error.value.code, error.value.retryable) == (503, True)


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("body", [b"[1]", b"{"])
async def test_a_plain_reply_that_cannot_be_read_is_an_error_to_try_again(body: bytes, kind: str) -> None:
    answer = replace(reply_json({}), body=body, plainly=True, content_type=kind)
    async with talking("ollama", "chat", answer) as (model, _):
        with pytest.raises(ModelError, match="cannot be read") as error:
            await ask(model, ModelRequest([user(Part(text="Hi."))], streaming=True))
    assert error.value.retryable


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_output_that_travels_in_an_object_is_shown_as_what_it_is(api: str) -> None:
    text = '{"value":[1,2]}'
    if api == "chat":
        made: Json = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    else:
        item = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        made = {"status": "completed", "output": [item]}
    shape = TypeShape(list[int]).schema
    async with talking("ollama", api, reply_json(made)) as (model, _):
        request = ModelRequest([user(Part(text="Hi."))], output_schema=shape, streaming=True)
        reply, chunks = await ask(model, request)
    assert reply.message.text == "[1,2]"
    assert "".join([c.text for c in chunks]) == "[1,2]"


async def test_a_thought_sent_under_two_names_is_shown_once() -> None:
    deltas = [{"role": "assistant", "reasoning": t, "reasoning_content": t} for t in ("Let me", " see.")]
    events: list[Json] = [{"choices": [{"index": 0, "delta": d}]} for d in (*deltas, {"content": "Hello."})]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    async with talking("vllm", "chat", reply_events(events)) as (model, _):
        reply, chunks = await ask(model, ModelRequest([user(Part(text="Hi."))], streaming=True))
    assert reply.message.reasoning == "Let me see."
    assert "".join([c.reasoning for c in chunks]) == "Let me see."


async def test_arguments_that_are_no_object_go_back_in_a_form_that_servers_can_read() -> None:
    ran: list[str] = []

    @tool
    def look(city: str = "home") -> str:
        """Look at a city."""
        ran.append(city)
        return city

    given = ['"{\\"city\\": \\"Rome\\"}"', "null", "[1]"]
    calls = [{"id": f"c{i}", "function": {"name": "look", "arguments": a}} for i, a in enumerate(given)]
    first = {"choices": [{"message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    last = {"choices": [{"message": {"role": "assistant", "content": "Seen."}, "finish_reason": "stop"}]}
    async with talking("vllm", "chat", reply_json(first), reply_json(last)) as (model, server):
        reply = await Adjourn(model=model).generate("Look around.", tools=[look])
    assert (reply.text, sorted(ran)) == ("Seen.", ["Rome", "home"])
    asked, *results = server.requests[1]["messages"][1:]
    sent = [json.loads(c["function"]["arguments"]) for c in asked["tool_calls"]]
    assert sent == [{"city": "Rome"}, {}, {"malformed_arguments": "[1]"}]
    assert [r["content"] for r in results[:2]] == ["Rome", "home"]
    assert "not a JSON object" in results[2]["content"]


FOREIGN = [
    user(Part(text="Go.")),
    Message(
        "model", [Part(reasoning="Hm.", metadata={"google": {}}), Part(tool_request=ToolRequest("look", "c1", {}))]
    ),
    Message("tool", [Part(tool_response=ToolResponse("look", "c1", "ok"))]),
    Message(
        "model", [Part(reasoning="My own.", metadata={"deepseek": {"field": "reasoning_content"}}), Part(text="Ok.")]
    ),
    Message("model", [Part(text="Bye.")]),
    user(Part(text="Well?")),
]


@pytest.mark.parametrize(
    "name, url, expected",
    [
        ("deepseek", "http://127.0.0.1:1/v1", ["", "My own.", ""]),
        ("mine", "https://api.deepseek.com/v1", ["", "", ""]),  # what "deepseek" noted is another server's to "mine"
        ("groq", "http://127.0.0.1:1/v1", [None, None, None]),
    ],
)
def test_deepseek_is_sent_reasoning_with_every_reply_and_nobody_else_is(
    name: str, url: str, expected: list[str | None]
) -> None:
    plugin = OpenAICompatible(name, url)
    model: Any = plugin.model("m")
    sent = chat.write_messages(FOREIGN, name, model._dialect)
    replies = [m for m in sent if m["role"] == "assistant"]
    assert [m.get("reasoning_content") for m in replies] == expected
    assert replies[0]["tool_calls"][0]["id"] == "c1"
