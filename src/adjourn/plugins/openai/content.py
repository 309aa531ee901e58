"""What the two APIs have in common: names of tools, calls and their ids, arguments, results as text, media, notes."""

import mimetypes
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from adjourn.dialect import Names
from adjourn.errors import ModelError
from adjourn.model import ModelReply, ToolDefinition, note_of
from adjourn.parts import OURS, Media, Message, Metadata, Part, ToolRequest, ToolResponse, digest, encode

_NINE = re.compile(r"[A-Za-z0-9]{9}")
LONGEST_ID = 64
_NAME = re.compile(r"[a-zA-Z0-9_-]+")


def names_of(tools: Sequence[ToolDefinition]) -> Names:
    """The names of tools as the APIs take them, and back: letters, digits, _ and -, at most 64."""
    return Names([t.name for t in tools], "OpenAI's API", _NAME, 64)


outward = names_of(()).outward
"""The name of a tool as the APIs take it, the same in every request."""


def renamed(reply: ModelReply, names: Names) -> ModelReply:
    """The reply with our names for the tools that it calls."""
    content = [_renamed(p, names) for p in reply.message.content]
    if all(a is b for a, b in zip(content, reply.message.content, strict=True)):
        return reply
    return replace(reply, message=replace(reply.message, content=content))


def _renamed(part: Part, names: Names) -> Part:
    request = part.tool_request
    name = names.inward(request.name) if request is not None else ""
    if request is None or name == request.name:
        return part
    return replace(part, tool_request=replace(request, name=name))


def read_call(name: str, ref: str | None, arguments: Any, note: Mapping[str, Any], key: str, cut: bool) -> Part:
    """The part for a call. `cut` says that the reply ended within it.

    Arguments that are no JSON stay the text they are, marked so that they are never run.
    """
    raw = arguments if isinstance(arguments, str) else "" if arguments is None else encode(arguments).decode()
    problem, value = "", raw
    if not raw.strip():
        value: Any = {}
        if cut:
            problem, value = "they were cut off by the token limit before they began", raw
    else:
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError) as e:
            problem = "they were cut off by the token limit" if cut else f"they are not valid JSON: {e}"
        else:
            value = _unpacked(value)
            if not isinstance(value, dict):
                problem, value = "they are not a JSON object", raw
    if not problem and encode(value).decode() != raw:
        note = {**note, "arguments": raw}  # sent back as they were: a prompt cache compares letters
    metadata: dict[str, Any] = {key: dict(note)} if note else {}
    if problem:
        metadata[OURS] = {"malformed": problem}
    return Part(tool_request=ToolRequest(name, ref or None, value), metadata=metadata or None)


def _unpacked(value: Any) -> Any:
    """Arguments that some servers encode twice, and the null with which some say that there are none."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return {} if value is None else value


def arguments_of(part: Part, key: str, *, valid: bool) -> str:
    """The arguments as text. With `valid` broken ones are wrapped, for servers that parse what they are sent."""
    request = part.tool_request
    assert request is not None
    if part.ours.get("malformed") and isinstance(request.input, str):
        return encode({"malformed_arguments": request.input}).decode() if valid else request.input
    own: Metadata = note_of(part, key) or {}
    raw = own.get("arguments")
    if isinstance(raw, str):
        try:
            if msgspec.json.decode(raw) == request.input:
                return raw
        except msgspec.DecodeError:
            pass
    return encode({} if request.input is None else request.input).decode()


class CallIds:
    """The ids by which calls and results find each other.

    The driver gives every call one. Messages made by hand may lack them; those are paired by their order.
    """

    def __init__(self, short: bool = False) -> None:
        self._short = short
        self._round = 0
        self._asked: list[str] = []
        self._answered = 0

    def next_round(self) -> None:
        self._round += 1
        self._asked, self._answered = [], 0

    def of_request(self, request: ToolRequest) -> str:
        call_id = self._fit(request.ref or f"call_{self._round}_{len(self._asked)}")
        self._asked.append(call_id)
        return call_id

    def of_response(self, response: ToolResponse) -> str:
        position, self._answered = self._answered, self._answered + 1
        if response.ref:
            return self._fit(response.ref)
        return self._asked[position] if position < len(self._asked) else self._fit(f"call_{self._round}_{position}")

    def _fit(self, ref: str) -> str:
        if self._short:
            return ref if _NINE.fullmatch(ref) else digest(ref)[:9]
        return ref if len(ref) <= LONGEST_ID else "call_" + digest(ref)


def result_text(response: ToolResponse) -> str:
    """The result as the model reads it: a text as it is, anything else as JSON; texts beside it below."""
    output = response.output
    lines = [p.text for p in response.content or () if p.text is not None]
    has_media = any(p.media is not None for p in response.content or ())
    if not (output is None and (lines or has_media)):
        lines.insert(0, output if isinstance(output, str) else encode(output).decode())
    return "\n".join(lines)


def media_of(response: ToolResponse) -> list[Part]:
    """The pictures and files of a result."""
    return [p for p in response.content or () if p.media is not None]


def text_of(part: Part) -> str | None:
    """The text that stands for a part in a prompt; None where it has none."""
    if part.text is not None:
        return part.text
    return encode(part.data).decode() if part.data is not None else None


def system_text(message: Message) -> str:
    return "\n\n".join([t for p in message.content if (t := text_of(p))])


def kind_of(media: Media) -> str:
    """The content type, guessed from the URL where it was not given."""
    if media.content_type:
        return media.content_type
    if media.url.startswith("data:"):
        return media.url[5:].split(",", 1)[0].split(";", 1)[0] or "text/plain"
    return mimetypes.guess_type(media.url.split("?", 1)[0])[0] or "application/octet-stream"


def data_url(media: Media, provider: str) -> str:
    if media.url.startswith("data:"):
        return media.url
    raise ModelError(f"{provider} takes {kind_of(media)} only as a data: URL, not as a link", provider=provider)


def file_name(part: Part, kind: str) -> str:
    """The name under `filename` in the metadata, or one with the right ending."""
    named = (part.metadata or {}).get("filename")
    return named if isinstance(named, str) else "file" + (mimetypes.guess_extension(kind) or "")


def own(part: Part, key: str) -> Mapping[str, Any]:
    """This provider's note on the part; empty where it made none, so that another's is as good as absent."""
    note = note_of(part, key)
    return cast(Mapping[str, Any], note) if isinstance(note, Mapping) else {}


def integer(value: Any) -> int:
    return value if isinstance(value, int) else 0


def mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def listed(value: Any) -> Sequence[Any]:
    return cast(Sequence[Any], value) if isinstance(value, list) else ()


def unwrapped(text: str, wrapped: bool, name: str) -> str:
    """The text of a structured reply without the object it was wrapped in; any other text as it is."""
    if not wrapped:
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return encode(value[name]).decode() if isinstance(value, dict) and set(cast(Any, value)) == {name} else text
