"""Gemini's responses, whole or streamed, as one reply.

A plain answer is one response and a streamed one is many; both go through the same assembly. Texts join while nothing
is noted on them. A part with a signature stays a part of its own, also an empty one: it is sent back as it came.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from adjourn.errors import ModelError
from adjourn.model import ModelReply
from adjourn.parts import OURS, FinishReason, Media, Message, Part, ToolRequest, Usage
from adjourn.plugins.google_genai.contents import KEY
from adjourn.plugins.google_genai.dialect import names_of

_BLOCKED = (
    "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "IMAGE_SAFETY", "MODEL_ARMOR",
    "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
)  # fmt: skip
_REASONS: Mapping[str, FinishReason] = {"STOP": "stop", "MAX_TOKENS": "length", **dict.fromkeys(_BLOCKED, "blocked")}
_BESIDE = ("grounding_metadata", "citation_metadata", "safety_ratings", "url_context_metadata", "finish_message")
# Fields of a part that say what it holds; any others are notes on it.
_HELD = ("text", "thought", "thought_signature", "function_call", "inline_data", "file_data")
_LONGEST = 4_000


@dataclass
class _Text:
    thought: bool
    pieces: list[str]
    note: dict[str, Any]


@dataclass
class _Call:
    name: str
    id: str | None
    note: dict[str, Any]
    args: Any = None
    open: bool = False
    unfinished: set[str] = field(default_factory=set[str])
    problem: str | None = None


class ReplyAssembly:
    """Takes the SDK's responses in order; `reply` is what they add up to."""

    def __init__(self, provider: str, model: str, tools: Sequence[str] = ()) -> None:
        self._provider = provider
        self._model = model
        self._names = names_of(tools)
        self._tools = [self._names.outward(t) for t in tools]
        self._parts: list[_Text | _Call | Part] = []
        self._note: dict[str, Any] = {"model": model}
        self._usage: dict[str, int] = {}
        self._finish: str | None = None
        self._blocked: str | None = None
        self._raw: list[Any] = []

    def add(self, response: Any) -> list[Part]:
        """Takes a response. Returns the new texts, reasonings and media in it, for whoever watches."""
        self._raw.append(response)
        for ours, theirs in (("modelVersion", "model_version"), ("responseId", "response_id")):
            value = getattr(response, theirs, None)
            if value:
                self._note[ours] = value
        self._count(getattr(response, "usage_metadata", None))
        feedback = getattr(response, "prompt_feedback", None)
        if feedback is not None:
            self._note["promptFeedback"] = _plain(feedback)
            reason = getattr(feedback, "block_reason", None)
            self._blocked = _name(reason) if reason is not None else self._blocked
        news: list[Part] = []
        for candidate in (response.candidates or ())[:1]:
            for key in _BESIDE:
                value = getattr(candidate, key, None)
                if value:
                    self._note[_camel(key)] = _plain(value)
            if candidate.finish_reason is not None:
                self._finish = _name(candidate.finish_reason)
            for part in (candidate.content.parts if candidate.content else None) or ():
                shown = self._take(part)
                if shown is not None:
                    news.append(shown)
        return news

    def _count(self, usage: Any) -> None:
        for key in ("prompt", "tool_use_prompt", "cached_content", "candidates", "thoughts"):
            value = getattr(usage, key + "_token_count", None)
            if value is not None:  # each says how much it is so far, and some leave out what was said before
                self._usage[key] = value

    def _take(self, part: Any) -> Part | None:
        note: dict[str, Any] = {}
        if part.thought_signature:
            note["thoughtSignature"] = base64.b64encode(part.thought_signature).decode()
        if part.function_call is not None:
            self._take_call(part.function_call, note)
            return None
        if part.text is not None and not _rest(part):
            return self._take_text(part.text, bool(part.thought), note)
        media = part.inline_data or part.file_data
        if media is not None and not part.thought and not _rest(part):
            url = getattr(media, "file_uri", None) or (
                f"data:{media.mime_type or ''};base64,{base64.b64encode(media.data or b'').decode()}"
            )
            made = Part(media=Media(url, media.mime_type), metadata=_noted(note))
            self._parts.append(made)
            return made
        raw = _plain(part)
        raw.pop("thoughtSignature", None)
        if raw or note:  # code that it ran, tools of its own: kept whole, for it alone to read
            self._parts.append(Part(custom={KEY: raw}, metadata=_noted(note)))
        return None

    def _take_text(self, text: str, thought: bool, note: dict[str, Any]) -> Part | None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _Text) and last.thought == thought and not last.note and not note:
            last.pieces.append(text)
        elif text or note:
            self._parts.append(_Text(thought, [text], note))
        if not text:
            return None
        return Part(reasoning=text) if thought else Part(text=text)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _take_call(self, given: Any, note: dict[str, Any]) -> None:
        call = self._continued(given)
        if call is None:
            call = _Call(self._names.inward(given.name or ""), given.id, note)
            for other in self._open_calls():
                other.open = other.open and bool(given.id)  # without ids a new call says that the last one is whole
            self._parts.append(call)
        else:
            call.id = call.id or given.id
            call.note = {**note, **call.note}
        if given.args is not None:
            call.args = given.args
        for piece in given.partial_args or ():
            _put_piece(call, piece)
        call.open = bool(given.will_continue)

    def _open_calls(self) -> list[_Call]:
        return [p for p in self._parts if isinstance(p, _Call) and p.open]

    def _continued(self, given: Any) -> _Call | None:
        """The call that this is more of. What has a name of its own begins one, unless its id says otherwise."""
        waiting = self._open_calls()
        if given.id:
            same = [c for c in waiting if c.id == given.id]
            if same:
                return same[0]
        if given.name or not waiting:
            return None
        return waiting[-1]

    # -- the end ---------------------------------------------------------------------------------------------------

    def reply(self, *, streamed: bool = False) -> ModelReply:
        """The reply. Raises ModelError where the stream broke off, or where there is nothing in it."""
        if self._finish is None and self._blocked is None and streamed:
            raise self._failed("broke off in the middle of its reply")
        reason: FinishReason = "blocked" if self._blocked else _REASONS.get(self._finish or "STOP", "other")
        content = [self._made(p, reason) for p in self._parts]
        if self._finish == "MALFORMED_FUNCTION_CALL" and not any(p.tool_request for p in content):
            content += self._mended()
        if self._finish is not None:
            self._note["finishReason"] = self._finish
        if not content and reason not in ("blocked", "length"):
            raise self._failed(f"gave an empty reply (finish reason {self._finish or self._blocked or 'unknown'})")
        message = Message("model", content, {KEY: self._note})
        raw = self._raw[0] if len(self._raw) == 1 else self._raw
        return ModelReply(message, reason, self._counted(), raw)

    def _failed(self, what: str) -> ModelError:
        request_id: str | None = self._note.get("responseId")
        return ModelError(
            f"{self._provider}/{self._model} {what}", provider=self._provider, retryable=True, request_id=request_id
        )

    def _counted(self) -> Usage:
        found = self._usage
        thoughts = found.get("thoughts", 0)
        return Usage(
            found.get("prompt", 0) + found.get("tool_use_prompt", 0),
            found.get("candidates", 0) + thoughts,  # the API counts them apart
            found.get("cached_content", 0),
            thoughts,
        )

    def _made(self, item: _Text | _Call | Part, reason: FinishReason) -> Part:
        if isinstance(item, Part):
            return item
        if isinstance(item, _Text):
            text = "".join(item.pieces)
            return (
                Part(reasoning=text, metadata=_noted(item.note))
                if item.thought
                else Part(text=text, metadata=_noted(item.note))
            )
        problem = item.problem
        args: Any = item.args
        if problem is None and item.open and reason != "stop":
            cut = "by the token limit" if reason == "length" else f"(finish reason {self._finish})"
            problem = f"the arguments were cut off {cut}"
        if problem is None and not (args is None or isinstance(args, dict)):
            problem = "the arguments are not a JSON object"
        if problem is None:
            return Part(tool_request=ToolRequest(item.name, item.id, args or {}), metadata=_noted(item.note))
        raw = json.dumps(args, ensure_ascii=False) if args is not None else ""
        metadata = {**(_noted(item.note) or {}), OURS: {"malformed": problem}}
        return Part(tool_request=ToolRequest(item.name, item.id, raw), metadata=metadata)

    def _mended(self) -> list[Part]:
        """The call that could not be read, as one to be corrected: Gemini says it in words, in the finish message."""
        said = str(self._note.get("finishMessage") or "")
        found = [(m.start(), name) for name in self._tools if (m := re.search(rf"\b{re.escape(name)}\b", said))]
        if not found:
            return []
        self._note["mended"] = True
        request = ToolRequest(self._names.inward(min(found)[1]), None, said[:_LONGEST])
        return [Part(tool_request=request, metadata={OURS: {"malformed": "the call could not be read"}})]


# -- streamed arguments ------------------------------------------------------------------------------------------------

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
_MOST_ITEMS = 10_000


def _path(text: str) -> list[str | int] | None:
    if not text.startswith("$"):
        return None
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            return None
        name = found[1] or found[3] or found[4]
        steps.append(int(found[2]) if found[2] is not None else re.sub(r"\\(.)", r"\1", name or ""))
        position = found.end()
    return steps


def _put_piece(call: _Call, piece: Any) -> None:
    where = str(piece.json_path or "")
    steps = _path(where)
    if not steps or isinstance(steps[0], int):
        call.problem = "the arguments came in pieces that do not fit together"
        return
    if call.args is None:
        call.args = {}
    value: Any = piece.string_value
    if piece.number_value is not None:
        number: float = piece.number_value
        value = int(number) if float(number).is_integer() and abs(number) < 2**53 else number
    elif piece.bool_value is not None:
        value = piece.bool_value
    joins = where in call.unfinished and isinstance(value, str)
    if not _set(call.args, steps, value, joins):
        call.problem = "the arguments came in pieces that do not fit together"
    if piece.will_continue:
        call.unfinished.add(where)
    else:
        call.unfinished.discard(where)


def _set(target: Any, steps: Sequence[str | int], value: Any, joins: bool) -> bool:
    """Sets the value at the path, making what is missing on the way. Says whether the path fits what is there."""
    for step, after in zip(steps, (*steps[1:], None), strict=True):
        fresh: Any = value if after is None else [] if isinstance(after, int) else {}
        if isinstance(step, int):
            if not isinstance(target, list):
                return False
            items = cast(list[Any], target)
            if step > len(items) or step >= _MOST_ITEMS:
                return False
            if step == len(items):
                items.append(fresh)
            elif after is None:
                items[step] = items[step] + value if joins and isinstance(items[step], str) else value
            target = items[step]
        else:
            if not isinstance(target, dict):
                return False
            fields = cast(dict[str, Any], target)
            if step not in fields:
                fields[step] = fresh
            elif after is None:
                fields[step] = fields[step] + value if joins and isinstance(fields[step], str) else value
            target = fields[step]
    return True


# -- the SDK's values --------------------------------------------------------------------------------------------------


def _noted(note: Mapping[str, Any]) -> dict[str, Any] | None:
    return {KEY: dict(note)} if note else None


def _rest(part: Any) -> bool:
    return any(k not in _HELD and v is not None for k, v in part)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in cast(list[Any], value)]
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if dump is not None else value


def _name(value: Any) -> str:
    return str(getattr(value, "value", value))


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join([r.capitalize() for r in rest])
