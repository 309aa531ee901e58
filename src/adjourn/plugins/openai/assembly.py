"""A streamed reply put together again, into the same dict that the server sends when it does not stream.

Servers differ in how they stream calls: an index for each, one index for all, none; an id at the start, in every piece,
an empty one or none; pieces of several calls in turns; a whole call in one piece. `Calls` tells them apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from adjourn.parts import Part, encode
from adjourn.plugins.openai.content import listed, mapping

Json = dict[str, Any]


@dataclass(slots=True)
class _Call:
    id: str | None = None
    index: int | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    extra: Json = field(default_factory=dict[str, Any])

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def complete(self) -> bool:
        """Whether its arguments are a whole JSON value, so that more of them would be another call's."""
        try:
            msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class Calls:
    """The calls of one message, in the order in which they appeared."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        function = mapping(piece.get("function"))
        given = function.get("arguments")
        arguments = given if isinstance(given, str) else "" if given is None else encode(given).decode()
        call_id, name = str(piece.get("id") or ""), str(function.get("name") or "")
        place = piece.get("index")
        index = place if isinstance(place, int) else None
        call = self._called(call_id, index)
        if call is not None and call_id and call.id == call_id and call.complete and arguments == call.arguments:
            arguments = ""  # the whole call, sent once more at its end
        elif call is None or self._is_another(call, call_id, name, arguments):
            call = _Call(index=index)
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.id = call.id or call_id or None
        call.name = call.name or name
        if arguments:
            call.pieces.append(arguments)
        call.extra.update({k: v for k, v in piece.items() if k not in ("id", "index", "type", "function")})

    def _called(self, call_id: str, index: int | None) -> _Call | None:
        """The call that the piece may belong to."""
        if call_id:
            for call in reversed(self._calls):
                if call.id == call_id and (index is None or call.index is None or call.index == index):
                    return call
        if index is not None:
            return self._by_index.get(index)
        return self._calls[-1] if self._calls else None

    @staticmethod
    def _is_another(call: _Call, call_id: str, name: str, arguments: str) -> bool:
        """Whether the piece begins a call of its own instead."""
        if call_id and call.id and call_id != call.id:
            return True
        if not name or not call.name:
            return False
        if name != call.name:
            return True
        return bool(call.pieces) and bool(arguments or not call_id) and call.complete

    def as_list(self) -> list[Json]:
        return [
            {**c.extra, "id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in self._calls
        ]


class ChatAssembly:
    """The message out of the chunks of Chat Completions. `failed` is the error that came in the place of a chunk."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._details: list[Json] = []
        self._extra: Json = {}
        self._calls = Calls()
        self.finish_reason: str | None = None
        self.usage: Any = None
        self.failed: Any = None
        self._error: Any = None
        self._head: Json = {}
        self._thinks_in = ""
        self._closing = False

    @property
    def ended(self) -> bool:
        """Whether the stream came to its end. Some servers give no reason, only the usage, in a chunk of its own."""
        return self.finish_reason is not None or self._closing

    def add(self, event: Mapping[str, Any]) -> Iterator[Part]:
        """Takes the next chunk, and gives what a watcher may see of it."""
        chunk = event
        self.failed = chunk if chunk.get("error") else None
        deltas = [mapping(mapping(c).get("delta")) for c in listed(chunk.get("choices"))]
        self._closing = bool(chunk.get("usage")) and not any(d.get(k) for d in deltas for k in d if k != "role")
        for key in ("id", "model", "created"):
            if chunk.get(key) is not None:
                self._head.setdefault(key, chunk[key])
        self.usage = chunk.get("usage") or mapping(chunk.get("x_groq")).get("usage") or self.usage
        for choice in listed(chunk.get("choices")):
            if mapping(choice).get("index") in (0, None):
                yield from self._add_choice(mapping(choice))

    def _add_choice(self, choice: Mapping[str, Any]) -> Iterator[Part]:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self._error = choice.get("error") or self._error
        for key, value in mapping(choice.get("delta")).items():
            if key in ("role", "index", "function_call") or value is None:
                continue
            if key == "tool_calls":
                for piece in listed(value):
                    self._calls.add(mapping(piece))
            elif key == "reasoning_details":
                for detail in listed(value):
                    self._add_detail(mapping(detail))
            elif key in ("content", "refusal", "reasoning", "reasoning_content"):
                yield from self._add_text(key, value)
            else:
                self._extra[key] = value

    def _add_text(self, key: str, value: Any) -> Iterator[Part]:
        thought, text = read_content(value)
        if key.startswith("reasoning"):
            thought, text = text, ""
            self._texts.setdefault(key, []).append(thought)
            if thought and not self._thinks_in:
                self._thinks_in = key
            if key != self._thinks_in:
                return  # some servers send the same under both names
        else:
            self._texts.setdefault(key, []).append(text)
            if thought:
                self._texts.setdefault("thinking", []).append(thought)
        if thought:
            yield Part(reasoning=thought)
        if text:
            yield Part(text=text)

    def _add_detail(self, detail: Mapping[str, Any]) -> None:
        last = self._details[-1] if self._details else None
        same = last is not None and all(last.get(k) == detail.get(k) for k in ("type", "index"))
        if last is None or not same or (detail.get("id") and last.get("id") and detail["id"] != last["id"]):
            self._details.append(dict(detail))
            return
        for key, value in detail.items():
            if key in ("text", "summary", "data") and isinstance(value, str):
                last[key] = (last.get(key) or "") + value
            elif value is not None:
                last[key] = value

    def reply(self) -> Json | None:
        """The reply as if it had not been streamed; None where the stream ended before it did."""
        if not self.ended:
            return None
        texts = {k: "".join(v) for k, v in self._texts.items()}
        thinking = texts.pop("thinking", None)
        message: Json = {"role": "assistant", "content": None, **self._extra, **texts}
        if thinking is not None:
            message["content"] = [
                {"type": "thinking", "thinking": thinking},
                {"type": "text", "text": texts.get("content", "")},
            ]
        if self._details:
            message["reasoning_details"] = self._details
        if calls := self._calls.as_list():
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason, "error": self._error}
        return {**self._head, "choices": [choice], "usage": self.usage}


def read_content(content: Any) -> tuple[str, str]:
    """Thoughts and text of a content that is a text, or a list of pieces as Mistral's thinking models send it."""
    if isinstance(content, str):
        return "", content
    thoughts: list[str] = []
    texts: list[str] = []
    for item in listed(content):
        piece = mapping(item)
        if piece.get("type") == "thinking":
            thinking = piece.get("thinking")
            if isinstance(thinking, str):
                thoughts.append(thinking)
            thoughts += [str(mapping(t).get("text") or "") for t in listed(thinking)]
        elif isinstance(piece.get("text"), str):
            texts.append(str(piece["text"]))
    return "".join(thoughts), "".join(texts)


class ResponseAssembly:
    """The response out of the events of the Responses API. `failed` is the error that came in the place of an event."""

    def __init__(self) -> None:
        self._items: dict[int, Json] = {}
        self._response: Json | None = None
        self.failed: Any = None

    def add(self, event: Mapping[str, Any]) -> Iterator[Part]:
        """Takes the next event, and gives what a watcher may see of it."""
        kind = str(event.get("type") or "")
        place = event.get("output_index")
        index = place if isinstance(place, int) else len(self._items)
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[index] = dict(mapping(event.get("item")))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._response = dict(mapping(event.get("response")))
        elif kind == "error":
            self.failed = event.get("error") or event
        elif kind.endswith(".delta"):
            yield from self._add_delta(kind, index, str(event.get("delta") or ""))
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index"):
            yield Part(reasoning="\n\n")

    def _add_delta(self, kind: str, index: int, delta: str) -> Iterator[Part]:
        item = self._items.get(index, {})
        if kind == "response.function_call_arguments.delta":
            item["arguments"] = (item.get("arguments") or "") + delta  # until the item is done, and says so itself
        elif kind in ("response.output_text.delta", "response.refusal.delta") and delta:
            yield Part(text=delta)
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta") and delta:
            yield Part(reasoning=delta)

    def reply(self) -> Json | None:
        """The response as if it had not been streamed; None where the stream ended before it did."""
        if self._response is None:
            return None
        output = [self._items[i] for i in sorted(self._items)]
        # Some servers leave the list empty at the end: the items were all told before.
        return {**self._response, "output": listed(self._response.get("output")) or output}
