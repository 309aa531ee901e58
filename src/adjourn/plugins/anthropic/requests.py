"""A request as the Messages API takes it.

What the API needs to get back as it gave it (signatures, redacted thinking, server tool blocks, citations) stands in the
metadata of the part under "anthropic", as the fields of the API's block that the part itself does not hold. So a block
is the part's own fields laid over that note, in the place of the part. Extras of other providers are left out: their
reasoning means nothing here. Calls and results stay.
"""

import base64
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn.dialect import Names, Subject
from adjourn.model import ModelRequest, ToolDefinition, note_of
from adjourn.parts import Media, Message, Part, ToolResponse, canonical, digest
from adjourn.plugins.anthropic.config import (
    AnthropicConfig,
    enforces_schemas,
    max_tokens_of,
    takes_later_system_messages,
    thinking_of,
)
from adjourn.plugins.anthropic.failures import refused
from adjourn.plugins.anthropic.schemas import output_schema, tool_schema, why_not_enforced

KEY = "anthropic"
"""The metadata key of what only this API reads."""

Block = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def names_of(tools: Sequence[ToolDefinition]) -> Names:
    """The names of tools as the API takes them, and back: letters, digits, _ and -, at most 128."""
    return Names([t.name for t in tools], "Anthropic", _NAME, 128)


def build_body(model: str, request: ModelRequest, config: AnthropicConfig, names: Names) -> dict[str, Any]:
    """The body of the request. Raises ModelError for what the API cannot take, SignatureError for what it cannot express."""
    thinking = thinking_of(config)
    system, turns = _conversation(request.messages, names, takes_later_system_messages(model))
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens_of(config, thinking), "messages": turns}
    output: dict[str, Any] = {} if config.effort is None else {"effort": config.effort}
    if request.output_schema is not None:
        if _enforced(model, request.output_schema, config):
            output["format"] = {"type": "json_schema", "schema": output_schema(request.output_schema)}
        else:
            system.append({"type": "text", "text": _instruction(request.output_schema)})
    if system:
        plain = len(system) == 1 and system[0].keys() == {"type", "text"}
        body["system"] = system[0]["text"] if plain else system
    tools = [*(_tool(t, names, config) for t in request.tools), *config.server_tools]
    if tools:
        body["tools"] = tools
        choice = _tool_choice(config, names)
        if choice is not None:
            body["tool_choice"] = choice
    if thinking is not None and thinking.get("type") == "enabled" and _in_unsigned_round(turns):
        thinking = None  # for this one request; with the next message the model thinks again
    optional = {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "stop_sequences": list(config.stop_sequences) or None,
        "thinking": thinking,
        "output_config": output or None,
        "service_tier": config.service_tier,
        "metadata": None if config.user_id is None else {"user_id": config.user_id},
        "cache_control": _cache_control(config),
    }
    body.update({k: v for k, v in optional.items() if v is not None})
    body["stream"] = request.streaming
    body.update(config.raw)
    return body


def _cache_control(config: AnthropicConfig) -> Block | None:
    if not config.cache:
        return None
    return {"type": "ephemeral"} if config.cache is True else {"type": "ephemeral", "ttl": config.cache}


def _enforced(model: str, schema: Mapping[str, Any], config: AnthropicConfig) -> bool:
    """Whether the API is to enforce the schema. Not by a forced tool call: that shuts out thinking and the other tools."""
    if config.structured == "prompt":
        return False
    problem = why_not_enforced(schema)
    if config.structured == "native" and problem is not None:
        path, what = problem
        raise Subject("output=", "Anthropic").refused(
            path, what, "Leave out structured='native' to ask for it in words"
        )
    return problem is None and (config.structured == "native" or enforces_schemas(model))


def _instruction(schema: Mapping[str, Any]) -> str:
    return (
        "When you are done, reply with nothing but JSON (no code fence, no comment) that fits this JSON schema:\n"
        + canonical(schema).decode()
    )


def _tool(tool: ToolDefinition, names: Names, config: AnthropicConfig) -> Block:
    block: Block = {"name": names.outward(tool.name), "input_schema": tool_schema(tool.name, tool.input_schema)}
    if tool.description:
        block["description"] = tool.description
    return {**block, **config.tool_options.get(tool.name, {})}


def _tool_choice(config: AnthropicConfig, names: Names) -> Block | None:
    given = config.tool_choice
    if given is None and config.parallel_tool_calls is None:
        return None
    if isinstance(given, Mapping):
        choice: Block = dict(given)
    elif given in (None, "auto", "any", "none"):
        choice = {"type": given or "auto"}
    else:
        choice = {"type": "tool", "name": names.outward(given)}
    if config.parallel_tool_calls is not None and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = not config.parallel_tool_calls
    return choice


def _in_unsigned_round(turns: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the round that goes on was begun without thinking, by another model, say. The API refuses to join in late."""
    if len(turns) < 2 or turns[-1]["content"][0]["type"] != "tool_result":
        return False
    return turns[-2]["content"][0]["type"] not in ("thinking", "redacted_thinking")


# -- messages ----------------------------------------------------------------------------------------------------------


class _Calls:
    """The ids of calls: the transcript's own where the API takes them, else one that is the same in every request."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._open: list[tuple[str, str | None, str]] = []

    def ask(self, name: str, ref: str | None) -> str:
        wanted = (
            ref if ref and len(ref) <= 128 and _NAME.fullmatch(ref) else "call_" + digest(ref, len(self._used))[:24]
        )
        while wanted in self._used:  # ids of other providers may begin anew with each reply; here they must not
            wanted = "call_" + digest(wanted, len(self._used))[:24]
        self._used.add(wanted)
        self._open.append((name, ref, wanted))
        return wanted

    def answer(self, response: ToolResponse) -> str:
        for i, (name, ref, wanted) in enumerate(self._open):
            if (name, ref) == (response.name, response.ref):
                del self._open[i]
                return wanted
        raise refused(f"a result of tool {response.name!r} has no call before it")


def _conversation(
    messages: Sequence[Message], names: Names, later_system: bool
) -> tuple[list[Block], list[dict[str, Any]]]:
    """The system blocks, and the turns. Neighbours of one role are one turn, so that results come first in theirs."""
    system: list[Block] = []
    turns: list[dict[str, Any]] = []
    calls = _Calls()
    for message in messages:
        if message.role == "system":
            blocks = _present([_spoken(p) for p in message.content])
            if not turns or not later_system:
                system.extend(blocks)
                continue
            role = "system"
        elif message.role == "model":
            role, blocks = "assistant", _present([_said(p, names, calls) for p in message.content])
        else:
            role, blocks = "user", _present([_spoken(p, calls) for p in message.content])
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    _drop_unanswered_server_tools(turns)
    return system, turns


def _present(blocks: Sequence[Block | None]) -> list[Block]:
    return [b for b in blocks if b is not None]


def _drop_unanswered_server_tools(turns: list[dict[str, Any]]) -> None:
    """A server tool that was begun and whose result never came is refused, except where the model is to go on with it.

    It is where that turn is the last, or where the results of our tools follow it, which the server's tool may wait for.
    """
    begun = [(t, b) for t in turns for b in t["content"] if b["type"] == "server_tool_use"]
    if not begun:
        return
    answered = {b.get("tool_use_id") for t in turns for b in t["content"] if b["type"] != "tool_result"}
    last = len(turns) - 1
    latest = max(i for i, t in enumerate(turns) if t["role"] == "assistant")
    going_on = latest == last or any(b["type"] == "tool_result" for b in turns[latest + 1]["content"])
    for turn, block in begun:
        if block.get("id") not in answered and not (going_on and turn is turns[latest]):
            turn["content"] = [b for b in turn["content"] if b is not block]
    turns[:] = [t for t in turns if t["content"]]


def _note(part: Part) -> Mapping[str, Any]:
    note = note_of(part, KEY)
    return cast(Mapping[str, Any], note) if isinstance(note, Mapping) else {}


def _spoken(part: Part, calls: _Calls | None = None) -> Block | None:
    """A part of a system, user or tool message."""
    note = _note(part)
    if part.text is not None:
        return {**note, "type": "text", "text": part.text} if part.text.strip() else None
    if part.media is not None:
        return {**_media(part.media), **note}
    if part.data is not None:
        return {**note, "type": "text", "text": canonical(part.data).decode()}
    if part.tool_response is not None and calls is not None:
        return _result(part, part.tool_response, note, calls)
    if part.custom is not None and "type" in note:
        return dict(note)
    return None


def _said(part: Part, names: Names, calls: _Calls) -> Block | None:
    """A part of a model's message, by whichever model."""
    note = _note(part)
    if part.tool_request is not None:
        request = part.tool_request
        given = request.input
        if not isinstance(given, Mapping):  # broken arguments, which the result that follows speaks of
            given = {"arguments": given}
        block = {"type": "tool_use", "id": calls.ask(request.name, request.ref), "name": names.outward(request.name)}
        return {**note, **block, "input": given}
    if part.reasoning is not None:
        if note.get("type") == "redacted_thinking":
            return dict(note)
        # Without a signature the API refuses it: another model's, or one that was cut off.
        return {**note, "type": "thinking", "thinking": part.reasoning} if note.get("signature") else None
    if part.media is not None:
        kind = part.media.content_type or "a file"
        return {"type": "text", "text": f"[{kind} that was made here is not shown]"}
    return _spoken(part)


def _result(part: Part, response: ToolResponse, note: Mapping[str, Any], calls: _Calls) -> Block:
    content: Any = _output_text(response.output)
    if response.content:
        lead = [] if response.output is None or not content.strip() else [{"type": "text", "text": content}]
        content = [*lead, *_present([_spoken(p) for p in response.content])]
    block: Block = {"type": "tool_result", "tool_use_id": calls.answer(response), "content": content}
    if _is_error(part, response):
        block["is_error"] = True
    return {**note, **block}


def _output_text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, separators=(",", ":"))


def _is_error(part: Part, response: ToolResponse) -> bool:
    """Whether the call did not do what it was asked for: it failed, was refused, cancelled, or nobody decided."""
    outcome = part.ours.get("outcome")
    if outcome == "expired":  # with a default answer it is a result like any other
        output: Any = response.output
        return isinstance(output, Mapping) and cast(Mapping[str, Any], output).get("expired") is True
    return outcome is not None


# -- pictures and files ------------------------------------------------------------------------------------------------


def _media(media: Media) -> Block:
    url = media.url
    if url.startswith("data:"):
        head, _, data = url[5:].partition(",")
        declared, *options = head.split(";")
        raw = data if "base64" in options else base64.b64encode(urllib.parse.unquote_to_bytes(data)).decode()
        kind = media.content_type or declared or "text/plain"
        return _inline(kind.partition(";")[0].strip().lower(), raw)
    if not url.startswith(("https://", "http://")):
        raise refused(f"a {url.partition(':')[0]}: URL cannot be sent; give https: or data: URLs")
    kind = (media.content_type or "").lower()
    document = kind == "application/pdf" or (not kind and urllib.parse.urlsplit(url).path.lower().endswith(".pdf"))
    if not document and kind and not kind.startswith("image/"):
        raise refused(f"a URL of type {kind} cannot be sent: only pictures and PDF files go by URL")
    return {"type": "document" if document else "image", "source": {"type": "url", "url": url}}


def _inline(kind: str, data: str) -> Block:
    if kind in _PICTURES:
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    if kind == "application/pdf":
        return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}}
    if kind.startswith("text/") or kind == "application/json":
        text = base64.b64decode(data).decode(errors="replace")
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
    raise refused(f"a file of type {kind} cannot be sent: the API takes JPEG, PNG, GIF, WebP, PDF and text")
