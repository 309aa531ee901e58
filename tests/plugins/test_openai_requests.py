"""What a request is made of: texts, pictures, files, tools, structured output, configuration."""

import os
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from adjourn import Adjourn
from adjourn.errors import DefinitionError, InvalidRequest, ModelError, SignatureError, UnknownModel
from adjourn.model import ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import Media, Message, Part, ToolRequest, ToolResponse, Usage
from adjourn.plugins.openai import ChatConfig, Dialect, OpenAI, OpenAICompatible, ResponsesConfig, chat, responses
from adjourn.plugins.openai.schemas import as_object, fit_strictly
from adjourn.schema import InputShape, TypeShape
from adjourn.tool import ToolRunContext
from plugins.openai_wire import Json, ask, plugin_for, reply_json, serving, talking

PICTURE = Part(media=Media("data:image/png;base64,iVBO", "image/png"))
LINK = Part(media=Media("https://example.com/a.jpg"))
PDF = Part(media=Media("data:application/pdf;base64,JVBE"), metadata={"filename": "bill.pdf"})
SOUND = Part(media=Media("data:audio/wav;base64,UklG"))


def chat_body(messages: list[Message], config: Any = None, dialect: Dialect | None = None, **rest: Any) -> Json:
    return chat.build(ModelRequest(messages, config=config, **rest), "m", "k", dialect or Dialect())[0]


def items(messages: list[Message], config: Any = None, model: str = "gpt-5", **rest: Any) -> Json:
    return responses.build(ModelRequest(messages, config=config, **rest), model, "openai")[0]


def user(*parts: Part) -> Message:
    return Message("user", parts)


ROUND = [
    Message("system", [Part(text="Be brief.")]),
    user(Part(text="Look."), PICTURE, LINK, PDF),
    Message("model", [Part(text="I look."), Part(tool_request=ToolRequest("look", "c1", {}))]),
    Message("tool", [Part(tool_response=ToolResponse("look", "c1", {"seen": 1}, [PICTURE, Part(text="(a cat)")]))]),
    Message("system", [Part(text="Be kind.")]),
]


def test_texts_pictures_and_files_for_responses() -> None:
    body = items(ROUND)
    assert body["instructions"] == "Be brief."
    assert body["input"] == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look."},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBO", "detail": "auto"},
                {"type": "input_image", "image_url": "https://example.com/a.jpg", "detail": "auto"},
                {"type": "input_file", "filename": "bill.pdf", "file_data": "data:application/pdf;base64,JVBE"},
            ],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": '{"seen":1}\n(a cat)'},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBO", "detail": "auto"},
            ],
        },
        {"role": "developer", "content": "Be kind."},
    ]


def test_texts_pictures_files_and_sounds_for_chat() -> None:
    messages = chat_body([*ROUND, user(SOUND)])["messages"]
    assert messages[1]["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": "data:application/pdf;base64,JVBE"}},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert messages[2:4] == [
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"seen":1}\n(a cat)'},
    ]
    # A tool message holds no picture: it follows as what the user shows.
    assert messages[4]["role"] == "user"
    assert messages[4]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    assert messages[6]["content"] == [{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}]


def test_a_file_that_is_only_a_link_is_refused_where_there_is_no_place_for_it() -> None:
    with pytest.raises(ModelError, match="only as a data: URL"):
        chat_body([user(Part(media=Media("https://example.com/a.pdf")))])


@pytest.mark.parametrize(
    "output, text", [(None, "null"), (False, "false"), (0, "0"), ("", ""), ([], "[]"), ("hi", "hi")]
)
def test_falsy_results_are_results(output: Any, text: str) -> None:
    called = Message("model", [Part(tool_request=ToolRequest("f", "c1"))])
    answered = Message("tool", [Part(tool_response=ToolResponse("f", "c1", output))])
    assert chat_body([called, answered])["messages"][-1]["content"] == text
    assert items([called, answered])["input"][-1]["output"] == text


def test_calls_without_ids_or_with_long_ones_are_paired_all_the_same() -> None:
    called = Message(
        "model", [Part(tool_request=ToolRequest("f", None)), Part(tool_request=ToolRequest("f", "x" * 100))]
    )
    answered = Message(
        "tool", [Part(tool_response=ToolResponse("f", None)), Part(tool_response=ToolResponse("f", "x" * 100))]
    )
    given = items([called, answered, called, answered])["input"]
    ids = [i["call_id"] for i in given]
    assert ids[:2] == ids[2:4]
    assert len(set(ids)) == 3  # the long one is the same in both rounds
    assert all(len(i) <= 64 for i in ids)
    short = chat_body([called, answered], dialect=Dialect(short_ids=True))["messages"]
    assert [m["tool_call_id"] for m in short[1:]] == [c["id"] for c in short[0]["tool_calls"]]
    assert all(len(m["tool_call_id"]) == 9 for m in short[1:])


# -- what is sent back to whom ---------------------------------------------------------------------------------------

STORED: Json = {
    "store": True,
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "status": None},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "phase": "commentary",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "One."}, {"type": "output_text", "text": "Two."}],
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{ }", "namespace": "n"},
    ],
}


def said(store: bool) -> list[Json]:
    reply = responses.read({**STORED, "store": store}, "openai")
    answered = Message("tool", [Part(tool_response=ToolResponse("f", "c1", "ok"))])
    return items([reply.message, answered])["input"]


def test_what_the_server_stored_goes_back_whole() -> None:
    thought, text, search, call, _ = said(True)
    assert thought == {"type": "reasoning", "id": "rs_1", "summary": []}
    assert (text["id"], text["phase"], [c["text"] for c in text["content"]]) == (
        "msg_1",
        "commentary",
        ["One.", "Two."],
    )
    assert search == STORED["output"][2]
    assert (call["id"], call["arguments"], call["namespace"]) == ("fc_1", "{ }", "n")


def test_what_the_server_did_not_store_goes_back_without_ids_it_could_not_find() -> None:
    text, other, search, call, _ = said(False)  # and reasoning that is not encrypted not at all
    assert [c["text"] for c in text["content"] + other["content"]] == ["One.", "Two."]
    assert "id" not in text
    assert search["id"] == "ws_1"
    assert "id" not in call
    assert call["namespace"] == "n"


def test_refusals_are_blocked_replies_and_go_back_as_refusals() -> None:
    reply = chat.read({"choices": [{"message": {"refusal": "No."}, "finish_reason": "stop"}]}, "k")
    assert (reply.finish_reason, reply.message.text) == ("blocked", "No.")
    assert chat_body([reply.message])["messages"][0]["refusal"] == "No."
    item = {"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "No."}]}
    reply = responses.read({"status": "completed", "output": [item]}, "openai")
    assert (reply.finish_reason, reply.message.text) == ("blocked", "No.")
    assert items([reply.message])["input"][0]["content"] == [{"type": "refusal", "refusal": "No."}]


@pytest.mark.parametrize(
    "said, ours",
    [("stop", "stop"), ("tool_calls", "stop"), ("length", "length"), ("content_filter", "blocked"), ("eos", "other")],
)
def test_finish_reasons(said: str, ours: str) -> None:
    assert chat.read({"choices": [{"message": {"content": "x"}, "finish_reason": said}]}, "k").finish_reason == ours


@pytest.mark.parametrize(
    "why, ours", [("max_output_tokens", "length"), ("content_filter", "blocked"), ("new", "other")]
)
def test_why_a_response_is_incomplete(why: str, ours: str) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "x"}]}
    reply = {"status": "incomplete", "incomplete_details": {"reason": why}, "output": [item]}
    assert responses.read(reply, "openai").finish_reason == ours


def test_usage_of_responses() -> None:
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 7}
    usage |= {"output_tokens_details": {"reasoning_tokens": 5}}
    assert responses.read_usage(usage) == Usage(9, 7, 4, 5)


def test_another_providers_notes_are_never_sent() -> None:
    thought = Part(reasoning="Hm.", metadata={"anthropic": {"signature": "s"}})
    message = Message(
        "model", [thought, Part(tool_request=ToolRequest("f", "c1", {}), metadata={"googleai": {"x": 1}})]
    )
    assert [i["type"] for i in items([message])["input"]] == ["function_call"]
    assert chat_body([message])["messages"][0].keys() == {"role", "content", "tool_calls"}
    assert chat_body([Message("model", [thought])])["messages"] == []


# -- tools and structured output -------------------------------------------------------------------------------------


class Line(BaseModel):
    sku: str = Field(description="As on the box.", min_length=2)
    count: int = Field(1, ge=1)
    kind: Literal["a", "b"] | None = None


class Order(BaseModel):
    lines: list[Line]
    parent: "Order | None" = None


def test_an_output_is_sent_strictly_with_all_that_strict_mode_wants() -> None:
    shape = TypeShape(Order).schema
    fitted = fit_strictly(as_object(shape)[0], fill=True)
    assert fitted is not None
    line = fitted["$defs"]["Line"]
    assert (line["required"], line["additionalProperties"]) == (["sku", "count", "kind"], False)
    assert line["properties"]["sku"] == {"type": "string", "description": "As on the box."}
    assert line["properties"]["count"] == {"type": "integer", "minimum": 1}
    text = items([user(Part(text="x"))], output_schema=shape)["text"]
    assert text["format"]["strict"] is True
    assert text["format"]["schema"]["type"] == "object"


@pytest.mark.parametrize("kind", [dict[str, int], dict, tuple[int, str], Any])
def test_what_strict_mode_cannot_say_is_sent_as_it_is(kind: Any) -> None:
    class Loose(BaseModel):
        value: kind  # pyright: ignore[reportInvalidTypeForm]

    shape = TypeShape(Loose).schema
    assert items([user(Part(text="x"))], output_schema=shape)["text"]["format"]["strict"] is False
    told = r"output=, at 'value': openai cannot express .* in strict mode\. Leave `strict` unset"
    with pytest.raises(SignatureError, match=told):
        items([user(Part(text="x"))], ResponsesConfig(strict=True), output_schema=shape)


def definition(fn: Any) -> ToolDefinition:
    return ToolDefinition(fn.__name__, "", InputShape(fn, ToolRunContext).schema)


def needed(to: str, note: str | None = None) -> None: ...


def defaulted(to: str, limit: int = 10) -> None: ...


def test_a_tool_is_strict_only_where_that_takes_no_default_away() -> None:
    tools = [definition(needed), definition(defaulted), ToolDefinition("bare")]
    sent = items([user(Part(text="x"))], tools=tools)["tools"]
    assert [t["strict"] for t in sent] == [True, False, True]
    assert sent[0]["parameters"]["required"] == ["to", "note"]
    assert sent[1]["parameters"]["required"] == ["to"]
    assert sent[2]["parameters"] == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert all("strict" not in t["function"] for t in chat_body([user(Part(text="x"))], tools=tools)["tools"])


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_an_output_that_is_no_object_travels_in_one(api: str) -> None:
    text = '{"value": ["a", "b"]}'
    said = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    body: Json = {
        "status": "completed",
        "output": [said],
        "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
    }
    if api == "responses":
        del body["choices"]
    async with serving(reply_json(body)) as server:
        plugin = plugin_for("openai", api, server.url)
        response = await Adjourn(plugins=[plugin], model="openai/gpt-5").generate("List.", output=list[str])
        await plugin.aclose()
    assert response.output == ["a", "b"]


@pytest.mark.parametrize("way", ["json_object", "text"])
def test_a_server_without_schemas_is_told_in_words(way: Any) -> None:
    dialect = Dialect(output=way)
    body = chat_body(
        [Message("system", [Part(text="Be brief.")]), user(Part(text="x"))],
        None,
        dialect,
        output_schema=TypeShape(Line).schema,
    )
    assert body["messages"][0]["content"].startswith("Be brief.\n\nReply with nothing but JSON")
    assert body.get("response_format") == ({"type": "json_object"} if way == "json_object" else None)


# -- configuration ---------------------------------------------------------------------------------------------------


def test_the_configuration_of_responses() -> None:
    config = {"reasoning_effort": "low", "verbosity": "low", "tool_choice": "look", "extra": {"user": "u"}}
    body = items([user(Part(text="x"))], {**config, "hosted_tools": [{"type": "web_search"}], "store": True})
    assert body["reasoning"] == {"effort": "low"}
    assert body["text"] == {"verbosity": "low"}
    assert body["tool_choice"] == {"type": "function", "name": "look"}
    assert (body["user"], body["store"], body["tools"]) == ("u", True, [{"type": "web_search"}])
    assert body["include"] == ["reasoning.encrypted_content"]


def test_models_that_do_not_reason_are_not_asked_for_reasoning() -> None:
    for model in ("gpt-4o", "gpt-4.1-mini", "ft:gpt-4o:me", "gpt-5-chat-latest", "gpt-5.2-chat-latest"):
        assert "include" not in items([user(Part(text="x"))], model=model)
    for model in ("gpt-5.5", "o4-mini", "gpt-6-sol"):
        assert "include" in items([user(Part(text="x"))], model=model)


def test_the_configuration_of_chat() -> None:
    body = chat_body(
        [user(Part(text="x"))], ChatConfig(temperature=0.0, seed=1, tool_choice="required", extra={"n": 1})
    )
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 0.0,
        "seed": 1,
        "tool_choice": "required",
        "n": 1,
    }


@pytest.mark.parametrize(
    "config", [{"topP": 0.5, "maxOutputTokens": 9}, {"top_p": 0.5, "max_tokens": 9}], ids=["camel", "snake"]
)
def test_a_dict_is_a_config_in_either_case_and_by_either_name_of_the_limit(config: Any) -> None:
    asked = ModelRequest([user(Part(text="Go."))], config=config)
    responses_body, _ = responses.build(asked, "gpt-5", "openai")
    openai_body, _ = chat.build(asked, "gpt-5", "openai", chat.Dialect())
    other_body, _ = chat.build(asked, "m", "groq", chat.Dialect())
    assert [b["top_p"] for b in (responses_body, openai_body, other_body)] == [0.5] * 3
    assert responses_body["max_output_tokens"] == 9
    assert openai_body["max_completion_tokens" if "maxOutputTokens" in config else "max_tokens"] == 9
    assert other_body["max_tokens"] == 9


async def test_an_unknown_setting_is_refused_by_name() -> None:
    plugin = OpenAICompatible("ollama", "http://127.0.0.1:1/v1", models=["a"])
    with pytest.raises(InvalidRequest, match="temprature"):
        await Adjourn(plugins=[plugin], model="ollama/a").generate("x", config={"temprature": 1})
    assert Adjourn(plugins=[plugin, OpenAI()]).models.names()[:2] == ["ollama/a", "openai/gpt-4.1"]
    with pytest.raises(UnknownModel, match="its models: a"):
        plugin.model("b")
    with pytest.raises(DefinitionError, match="without a slash"):
        OpenAICompatible("a/b", "http://127.0.0.1:1")


async def test_a_client_of_your_own() -> None:
    import openai

    body = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
    async with (
        serving(reply_json(body)) as server,
        openai.AsyncOpenAI(api_key="mine", base_url=server.url, max_retries=0) as client,
    ):
        reply, _ = await ask(OpenAI(api="chat", client=client).model("m"), ModelRequest([user(Part(text="x"))]))
    assert reply.message.text == "Hello."
    assert server.headers[0]["authorization"] == "Bearer mine"


async def test_headers_of_your_own() -> None:
    body = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
    async with talking("router", "chat", reply_json(body), headers={"HTTP-Referer": "me"}) as (model, server):
        await ask(model, ModelRequest([user(Part(text="x"))]))
    assert server.headers[0]["http-referer"] == "me"


@pytest.mark.enable_socket
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.skipif(not os.environ.get("OPENAI_API_KEY"), reason="NOT TESTED LIVE: OPENAI_API_KEY is unset")
async def test_live(streaming: bool) -> None:
    plugin = OpenAI()
    model = plugin.model(os.environ.get("ADJOURN_OPENAI_MODEL", "gpt-5-nano"))
    asked = [user(Part(text="What is the weather in Paris? Use the tool."))]
    reply: ModelReply = (await ask(model, ModelRequest(asked, [definition(needed)], streaming=streaming)))[0]
    results = [
        Part(tool_response=ToolResponse(r.name, r.ref, "done")) for p in reply.message.content if (r := p.tool_request)
    ]
    final = (await ask(model, ModelRequest([*asked, reply.message, Message("tool", results)], streaming=streaming)))[0]
    await plugin.aclose()
    assert final.message.text
