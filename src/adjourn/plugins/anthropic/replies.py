"""A reply of the Messages API, whole or streamed, as a message.

A block becomes one part, in its place. What the part has no field for goes into its metadata under "anthropic", as the
API sent it; `requests.py` puts the two together again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from adjourn.dialect import Names
from adjourn.model import ModelReply
from adjourn.parts import OURS, FinishReason, Message, Part, ToolRequest, Usage
from adjourn.plugins.anthropic.failures import broken
from adjourn.plugins.anthropic.requests import KEY

Fields = Mapping[str, Any]

_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "blocked",
}

_CUT = "they were cut off, because the reply reached its token limit. Call again with shorter arguments"
_BLOCKED = "the reply was stopped by the provider before the call was complete"


class EventLines:
    """Server-sent events out of bytes, however those are cut.

    Our own and not the SDK's: we want the JSON as it was sent, unknown fields and block types included, and a line of
    it may hold characters (U+2028) at which text would be split, so lines are found in the bytes.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[Any]:
        """The events that are complete with these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for line in lines if (event := self._line(line.rstrip(b"\r"))) is not None]

    def end(self) -> list[Any]:
        """The event at the very end, where the blank line after it is missing."""
        lines = (self._rest.rstrip(b"\r"), b"")
        self._rest = b""
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> Any:
        if line.startswith(b"data:"):
            self._data.append(line[5:].strip())
        if line or not self._data:
            return None
        raw, self._data = b"\n".join(self._data), []
        return read_json(raw)


def read_json(raw: bytes) -> Any:
    """Raises ModelError for what is no JSON object."""
    try:
        value = json.loads(raw)  # not msgspec: it refuses half of a surrogate pair, whose other half may come next
    except (ValueError, RecursionError):
        raise broken("the reply is not valid JSON") from None
    if not isinstance(value, dict):
        raise broken("the reply is no JSON object")
    return cast(dict[str, Any], value)


class _Block:
    """A block in the making: texts come in pieces, and a tool's input as pieces of JSON."""

    def __init__(self, fields: Fields) -> None:
        self.fields = dict(fields)
        self.pieces: dict[str, list[str]] = {}
        self.json: list[str] = []

    def add(self, delta: Fields) -> None:
        for key, value in delta.items():
            if key == "type":
                continue
            if key == "partial_json":
                self.json.append(str(value))
            elif key == "citation":
                self.fields["citations"] = [*(self.fields.get("citations") or []), value]
            elif isinstance(value, str):
                self.pieces.setdefault(key, []).append(value)
            elif value is not None:  # a kind of delta that came after us
                self.fields[key] = value

    def whole(self) -> dict[str, Any]:
        joined = {k: (self.fields.get(k) or "") + "".join(v) for k, v in self.pieces.items()}
        return {**self.fields, **joined}


class Assembly:
    """One reply, from its events or from its whole body."""

    def __init__(self, names: Names, request_id: str | None = None) -> None:
        self._names = names
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._envelope: dict[str, Any] = {"request_id": request_id}
        self._ended = False

    @property
    def stop_reason(self) -> str:
        return str(self._envelope.get("stop_reason") or "")

    @property
    def envelope(self) -> Fields:
        """What came beside the content: id, model, stop reason, usage."""
        return {**self._envelope, "usage": self._usage}

    def take(self, event: Fields) -> Part | None:
        """Takes an event; what of it can be watched at once. Raises ModelError for one that does not fit."""
        kind = event.get("type")
        try:
            if kind == "message_start":
                self._open(event["message"])
            elif kind == "content_block_start":
                self._blocks[event["index"]] = _Block(event["content_block"])
                return _shown(event["content_block"])
            elif kind == "content_block_delta":
                self._blocks[event["index"]].add(event["delta"])
                return _shown(event["delta"])
            elif kind == "message_delta":
                self._envelope.update({k: v for k, v in event["delta"].items() if v is not None})
                self._count(event.get("usage") or {})
                self._ended = True
            elif kind == "message_stop":
                self._ended = True
        except (KeyError, TypeError, AttributeError, ValueError):
            raise broken(f"the stream has a {kind} event that does not fit") from None
        return None

    def take_whole(self, body: Fields) -> None:
        """Takes a body that was not streamed."""
        content = body.get("content")
        if body.get("type") != "message" or not isinstance(content, list):
            raise broken("the reply is no message")
        self._open(body)
        self._blocks = {i: _Block(block) for i, block in enumerate(cast(list[Fields], content))}
        self._ended = True

    def _open(self, message: Fields) -> None:
        self._envelope.update({k: v for k, v in message.items() if k not in ("content", "usage")})
        self._count(message.get("usage") or {})

    def _count(self, usage: Fields) -> None:
        # Each event has the totals so far, not what is new.
        self._usage.update({k: v for k, v in usage.items() if v is not None})

    def blocks(self) -> list[dict[str, Any]]:
        """The content in the API's own form, to send back as it is."""
        out: list[dict[str, Any]] = []
        for _, block in sorted(self._blocks.items()):
            fields = block.whole()
            if block.json:
                value, problem = _arguments("".join(block.json))
                fields["input"] = {} if problem else value
            out.append(fields)
        return out

    def check_complete(self) -> None:
        """Raises ModelError where the stream broke off."""
        if not self._ended:
            raise broken("the stream broke off before the reply was complete")

    def parts(self) -> list[Part]:
        """The content as parts."""
        blocks = [b for _, b in sorted(self._blocks.items())]
        parts = [self._part(b, last=b is blocks[-1]) for b in blocks]
        return [p for p in parts if p is not None]

    def _part(self, block: _Block, last: bool) -> Part | None:
        fields = block.whole()
        kind = fields.get("type")
        if kind == "text":
            text, note = _tidy(fields.get("text")), _rest(fields, "text")
            return Part(text=text, metadata=note) if text or note else None
        if kind == "thinking":
            return Part(reasoning=_tidy(fields.get("thinking")), metadata=_rest(fields, "thinking"))
        if kind == "redacted_thinking":
            return Part(reasoning="", metadata={KEY: fields})
        if kind == "tool_use":
            return self._call(block, fields, last)
        if block.json:  # the input of a tool that ran at the provider's
            value, problem = _arguments("".join(block.json))
            fields["input"] = {} if problem else value
        return Part(custom={"type": kind}, metadata={KEY: fields})

    def _call(self, block: _Block, fields: dict[str, Any], last: bool) -> Part:
        raw = "".join(block.json)
        length = last and _REASONS.get(self.stop_reason) == "length"
        if raw.strip():
            value, problem = _arguments(raw)
        else:
            value, problem = _checked(fields.get("input") or {})
        if length and (problem or not raw.strip()):
            # Not streamed, cut arguments come mended: that they are valid says nothing. Streamed, an object that ends is whole.
            problem = _CUT
        elif self.stop_reason == "refusal":
            problem = _BLOCKED
        metadata: dict[str, Any] = dict(_rest(fields, "id", "name", "input") or {})
        if problem:
            metadata[OURS] = {"malformed": problem}
            value = raw or _written(fields.get("input"))
        name = self._names.inward(str(fields.get("name")))
        return Part(tool_request=ToolRequest(name, fields.get("id") or None, value), metadata=metadata or None)


def reply_of(parts: Sequence[Part], usage: Usage, stop_reason: str, envelope: Fields) -> ModelReply:
    """The reply of these parts. Raises ModelError for one without any, unless its end explains that."""
    reason = _REASONS.get(stop_reason, "other")
    if not parts and reason in ("stop", "other"):
        raise broken(f"the reply is empty (stop reason {stop_reason or 'missing'})", envelope.get("request_id"))
    details = envelope.get("stop_details")
    metadata = {KEY: {"stop_reason": stop_reason, "stop_details": details}} if details else None
    return ModelReply(Message("model", parts, metadata), reason, usage, raw=envelope)


def usage_of(envelope: Fields) -> Usage:
    """Tokens. The API counts what it read from and wrote to its cache apart from the input; here the input is all of it."""

    def count(key: str, fields: Fields) -> int:
        value = fields.get(key)
        return value if isinstance(value, int) else 0

    usage: Fields = envelope.get("usage") or {}
    cached = count("cache_read_input_tokens", usage)
    total = count("input_tokens", usage) + cached + count("cache_creation_input_tokens", usage)
    details: Fields = usage.get("output_tokens_details") or {}
    return Usage(total, count("output_tokens", usage), cached, count("thinking_tokens", details))


def _shown(fields: Fields) -> Part | None:
    text, thinking = fields.get("text"), fields.get("thinking")
    if fields.get("type") in ("text", "text_delta") and text:
        return Part(text=_tidy(text))
    if fields.get("type") in ("thinking", "thinking_delta") and thinking:
        return Part(reasoning=_tidy(thinking))
    return None


def _rest(fields: Fields, *held: str) -> Fields | None:
    """The note on a part: the fields that it does not hold itself. A direct caller is what every call has, unsaid."""
    rest = {k: v for k, v in fields.items() if k not in held and v is not None and k != "type"}
    if rest.get("caller") == {"type": "direct"}:
        del rest["caller"]
    return {KEY: {"type": fields.get("type"), **rest}} if rest else None


def _tidy(text: Any) -> str:
    """The text with the halves of surrogate pairs joined; half of one alone is no text and cannot be stored."""
    given = str(text or "")
    if given.isascii():
        return given
    return given.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _arguments(raw: str) -> tuple[Any, str]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as e:
        return raw, f"they are not valid JSON: {e}"
    return _checked(value)


def _checked(given: Any) -> tuple[Any, str]:
    if not isinstance(given, dict):
        return given, "they are not a JSON object"
    value = cast(dict[str, Any], given)
    try:
        msgspec.json.encode(value)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, OverflowError, UnicodeEncodeError, RecursionError):
        return value, "they hold a number or a text that JSON cannot carry"
    return value, ""


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)
