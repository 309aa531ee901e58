"""The Responses API, used without state: each request carries the whole conversation, as items.

The server keeps nothing (`store` is false) and gives its reasoning encrypted. Such items are sent back byte for byte
and in their place, because the server refuses a call or a text that has lost the reasoning before it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjourn.dialect import Subject, read_settings
from adjourn.model import Emit, ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import FinishReason, Message, Part, ToolResponse, Usage
from adjourn.plugins.openai import errors
from adjourn.plugins.openai.assembly import ResponseAssembly
from adjourn.plugins.openai.connection import Asked, Connection
from adjourn.plugins.openai.content import (
    CallIds,
    arguments_of,
    data_url,
    file_name,
    integer,
    kind_of,
    listed,
    mapping,
    media_of,
    names_of,
    outward,
    own,
    read_call,
    renamed,
    result_text,
    system_text,
    text_of,
    unwrapped,
)
from adjourn.plugins.openai.schemas import WRAPPED, as_object, choose_strict, one_object, parameters

Json = dict[str, Any]

ENCRYPTED = "reasoning.encrypted_content"

_PLAIN = re.compile(r"(ft:)?(gpt-3|gpt-4|chatgpt-4)|gpt-5[.\d]*-chat|gpt-audio")
"""Models that do not reason, and answer 400 where they are asked for encrypted reasoning."""

_INCOMPLETE: Mapping[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "blocked"}


class ResponsesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What `config=` may hold, as a ResponsesConfig or a dict.

    `tool_choice` is "auto", "none", "required" or a tool's name. `strict` asks for (or forbids) strict schemas; unset,
    a schema is sent as strict where that changes nothing. `hosted_tools` are the provider's own, such as
    `{"type": "web_search"}`. With `store` the provider keeps the response. `extra` goes into the request as it is, over
    everything else. Not `previous_response_id`: the conversation is always sent whole.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    verbosity: str | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    service_tier: str | None = None
    truncation: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    include: list[str] = []
    hosted_tools: list[dict[str, Any]] = []
    store: bool = False
    strict: bool | None = None
    extra: dict[str, Any] = {}


class ResponsesModel:
    """One model behind the Responses API."""

    def __init__(self, key: str, model: str, connection: Connection) -> None:
        self.name = f"{key}/{model}"
        self._key = key
        self._model = model
        self._connection = connection

    def check(self, request: ModelRequest) -> None:
        """Raises SignatureError for tools or an output that the API cannot express, InvalidRequest for a wrong config."""
        build(request, self._model, self._key)

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        body, wrapped = build(request, self._model, self._key)
        names = names_of(request.tools)

        def understand(reply: Json) -> ModelReply:
            return renamed(read(reply, self._key, wrapped), names)

        assembly = ResponseAssembly() if request.streaming else None
        asked = Asked("/responses", body, request.messages, assembly, understand, held=wrapped)
        return await self._connection.ask(asked, emit)


# -- the request -----------------------------------------------------------------------------------------------------


def build(request: ModelRequest, model: str, key: str) -> tuple[Json, bool]:
    """The body of the request, and whether the output was wrapped into an object."""
    config = read_settings(request.config, ResponsesConfig, {"max_tokens": "max_output_tokens"})
    instructions, items = write_items(request.messages, key)
    body: Json = {"model": model, "input": items, "store": config.store}
    if instructions:
        body["instructions"] = instructions
    include = [*([] if _PLAIN.match(model) else [ENCRYPTED]), *config.include]
    if include:
        body["include"] = include
    names_of(request.tools)  # raises where two of them would be one
    tools = [*[_tool(t, config.strict, key) for t in request.tools], *config.hosted_tools]
    if tools:
        body["tools"] = tools
    text: Json = {} if config.verbosity is None else {"verbosity": config.verbosity}
    wrapped = False
    if request.output_schema is not None:
        wanted, wrapped = as_object(request.output_schema)
        wanted, strict = choose_strict(wanted, config.strict, Subject("output=", key), fill=True)
        text["format"] = {"type": "json_schema", "name": "output", "schema": wanted, "strict": strict}
    if text:
        body["text"] = text
    reasoning = {"effort": config.reasoning_effort, "summary": config.reasoning_summary}
    if any(reasoning.values()):
        body["reasoning"] = {k: v for k, v in reasoning.items() if v is not None}
    plain = ("temperature", "top_p", "max_output_tokens", "parallel_tool_calls", "max_tool_calls", "service_tier")
    for name in (*plain, "truncation", "prompt_cache_key", "safety_identifier", "metadata"):
        value = getattr(config, name)
        if value is not None:
            body[name] = value
    choice = config.tool_choice
    if choice is not None:
        known = choice in ("auto", "none", "required")
        body["tool_choice"] = choice if known else {"type": "function", "name": outward(choice)}
    return {**body, **config.extra}, wrapped


def _tool(tool: ToolDefinition, wish: bool | None, key: str) -> Json:
    subject = Subject(f"tool {tool.name!r}", key)
    schema, strict = choose_strict(one_object(parameters(tool.input_schema), subject), wish, subject, fill=False)
    # Always said, since this API takes its absence for True, and then rewrites the schema.
    return {
        "type": "function",
        "name": outward(tool.name),
        "description": tool.description,
        "parameters": schema,
        "strict": strict,
    }


def write_items(messages: Sequence[Message], key: str) -> tuple[str, list[Json]]:
    """The instructions (the system texts at the head) and the items."""
    ids = CallIds()
    head: list[str] = []
    items: list[Json] = []
    for message in messages:
        if message.role == "system":
            if items:
                items.append({"role": "developer", "content": system_text(message)})
            else:
                head.append(system_text(message))
        elif message.role == "user":
            items.append({"role": "user", "content": _user_content(message.content, key)})
        elif message.role == "model":
            ids.next_round()
            items += _said(message, key, ids)
        else:
            items += [_result(r, key, ids) for p in message.content if (r := p.tool_response) is not None]
    return "\n\n".join(head), items


def _user_content(parts: Sequence[Part], key: str) -> Any:
    content = [c for p in parts if (c := _user_part(p, key)) is not None]
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "input_text" else content


def _user_part(part: Part, key: str) -> Json | None:
    text = text_of(part)
    if text is not None:
        return {"type": "input_text", "text": text}
    if part.media is not None:
        return _media(part, key)
    raw = (part.custom or {}).get(key)  # the API's own form, for what ours has no word for
    return dict(mapping(raw)) if raw else None


def _media(part: Part, key: str) -> Json:
    media = part.media
    assert media is not None
    kind = kind_of(media)
    if kind.startswith("image/"):
        return {"type": "input_image", "image_url": media.url, "detail": own(part, key).get("detail", "auto")}
    if media.url.startswith(("http://", "https://")):
        return {"type": "input_file", "file_url": media.url}
    return {"type": "input_file", "filename": file_name(part, kind), "file_data": data_url(media, key)}


def _said(message: Message, key: str, ids: CallIds) -> list[Json]:
    """The items of what the model said.

    A text of another provider goes before the calls of its message: between them, some servers lose the results.
    """
    items: list[Json] = []
    first_call: int | None = None
    for part in message.content:
        note = own(part, key)
        item = _item(part, key, note, ids)
        if item is None:
            continue
        if part.tool_request is not None and first_call is None:
            first_call = len(items)
        if not note and part.custom is None and part.tool_request is None and first_call is not None:
            items.insert(first_call, item)
            first_call += 1
            continue
        before = items[-1] if items else {}
        if item.get("role") == "assistant" and item.get("id") and before.get("id") == item["id"]:
            before["content"] += item["content"]  # pieces of one message
        else:
            items.append(item)
    return items


def _item(part: Part, key: str, note: Mapping[str, Any], ids: CallIds) -> Json | None:
    kept = dict(mapping(note.get("item")))
    status_free = {k: v for k, v in kept.items() if k != "status"}
    # The server knows the ids of what it stored, and wants such items whole. What it did not store it cannot find.
    named = status_free if note.get("stored") else {k: v for k, v in status_free.items() if k != "id"}
    text = text_of(part)
    if part.tool_request is not None:
        fixed = {
            "type": "function_call",
            "call_id": ids.of_request(part.tool_request),
            "name": outward(part.tool_request.name),
            "arguments": arguments_of(part, key, valid=False),
        }
        return {**fixed, **named}
    if text is not None:
        kind = "refusal" if note.get("refusal") else "output_text"
        content = {"type": kind, "refusal" if kind == "refusal" else "text": text}
        return {**named, "role": "assistant", "content": [content]}
    if part.reasoning is not None:
        # Without its content or a store that has it, the item is an empty shell that the server looks up in vain.
        usable = kept.get("encrypted_content") or kept.get("content") or note.get("stored")
        return status_free if kept and usable else None
    if part.media is not None:
        return {"role": "assistant", "content": [{"type": "output_text", "text": f"({kind_of(part.media)})"}]}
    raw = mapping((part.custom or {}).get(key))
    return dict(raw) or None


def _result(response: ToolResponse, key: str, ids: CallIds) -> Json:
    media = media_of(response)
    output: Any = result_text(response)
    if media:
        texts = [{"type": "input_text", "text": output}] if output else []
        output = [*texts, *[_media(p, key) for p in media]]
    return {"type": "function_call_output", "call_id": ids.of_response(response), "output": output}


# -- the reply -------------------------------------------------------------------------------------------------------


def read(reply: Mapping[str, Any], key: str, wrapped: bool = False) -> ModelReply:
    """The reply as ours. Raises ModelError for one that failed, or that has nothing in it."""
    status = reply.get("status")
    if reply.get("error") or status in ("failed", "cancelled"):
        raise errors.in_band(reply.get("error") or {"message": f"the response was {status}"}, key)
    why = mapping(reply.get("incomplete_details")).get("reason") if status == "incomplete" else None
    finish: FinishReason = "stop" if status != "incomplete" else _INCOMPLETE.get(str(why), "other")
    stored = bool(reply.get("store"))
    items = [mapping(i) for i in listed(reply.get("output"))]
    parts: list[Part] = []
    for position, item in enumerate(items):
        last = finish == "length" and position == len(items) - 1
        parts += _parts(item, key, stored, last)
    calls = [p for p in parts if p.tool_request is not None]
    if wrapped and not calls:
        parts = [
            p if p.text is None else msgspec.structs.replace(p, text=unwrapped(p.text, True, WRAPPED)) for p in parts
        ]
    if any(own(p, key).get("refusal") for p in parts):
        finish = "blocked"
    if not parts and finish not in ("blocked", "length"):
        raise errors.empty(key)
    return ModelReply(Message("model", parts), finish, read_usage(mapping(reply.get("usage"))), dict(reply))


def _parts(item: Mapping[str, Any], key: str, stored: bool, last: bool) -> list[Part]:
    kind = item.get("type")
    note: Json = {"stored": True} if stored else {}
    if kind == "reasoning":
        pieces = [
            str(mapping(s).get("text") or "") for s in (*listed(item.get("summary")), *listed(item.get("content")))
        ]
        return [Part(reasoning="\n\n".join(pieces), metadata={key: {**note, "item": dict(item)}})]
    if kind == "function_call":
        cut = last or item.get("status") == "incomplete"
        rest = {k: v for k, v in item.items() if k not in ("type", "call_id", "name", "arguments") and v is not None}
        ref = item.get("call_id")
        note = {**note, "item": rest}
        return [
            read_call(str(item.get("name") or ""), str(ref) if ref else None, item.get("arguments"), note, key, cut)
        ]
    if kind == "message":
        rest = {k: v for k, v in item.items() if k not in ("type", "role", "content") and v is not None}
        note = {**note, "item": rest}
        return [p for c in listed(item.get("content")) if (p := _said_part(mapping(c), key, note)) is not None]
    return [Part(custom={key: dict(item)})]  # what a hosted tool did: kept in its place, and sent back


def _said_part(content: Mapping[str, Any], key: str, note: Json) -> Part | None:
    if content.get("type") == "refusal":
        return Part(text=str(content.get("refusal") or ""), metadata={key: {**note, "refusal": True}})
    text = content.get("text")
    if not isinstance(text, str) or not text:
        return None
    cited = content.get("annotations")
    return Part(text=text, metadata={key: {**note, "annotations": cited} if cited else note})


def read_usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(
        integer(usage.get("input_tokens")),
        integer(usage.get("output_tokens")),
        integer(mapping(usage.get("input_tokens_details")).get("cached_tokens")),
        integer(mapping(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )
