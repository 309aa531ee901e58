"""Messages and what they are made of: the values that cross every border of the system.

On the wire and in stores they are camelCase JSON in the Genkit shapes, in Python the same names in snake case.
Values are frozen: a changed message is a new one (`msgspec.structs.replace`). There is one `Part` for all kinds, so a
part answers None for every kind it is not, and decoding needs no guessing.
"""

import base64
import enum
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Literal, TypeVar, cast

import msgspec

from adjourn.errors import InvalidRequest, NotJSON

T = TypeVar("T")

Role = Literal["system", "user", "model", "tool"]
FinishReason = Literal["stop", "length", "blocked", "interrupted", "aborted", "failed", "other"]
Metadata = Mapping[str, Any]

OURS = "adjourn"
"""The one metadata key that holds what only Adjourn reads (ids, counts); everything else is Genkit's or the provider's."""


class Media(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """A picture, sound or file. `url` may be a `data:` URL."""

    url: str
    content_type: str | None = None


class ToolRequest(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """The model's wish to run a tool. `ref` is the provider's id of the call; we mint one where it gives none."""

    name: str
    ref: str | None = None
    input: Any = None


class ToolResponse(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """What the model is told about one request. `content` holds media parts beside the JSON `output`."""

    name: str
    ref: str | None = None
    output: Any = None
    content: "Sequence[Part] | None" = None


class Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """One piece of a message: exactly one of the fields before `metadata` is set."""

    text: str | None = None
    reasoning: str | None = None
    media: Media | None = None
    data: Any = None
    tool_request: ToolRequest | None = None
    tool_response: ToolResponse | None = None
    custom: Metadata | None = None
    metadata: Metadata | None = None

    @property
    def ours(self) -> Metadata:
        """What Adjourn noted on this part; empty where it noted nothing (or where somebody else wrote there)."""
        noted: Any = (self.metadata or {}).get(OURS)
        return cast(Metadata, noted) if isinstance(noted, Mapping) else {}


# The field's names for the kinds. One struct serves all, see the module's docstring.
TextPart = ReasoningPart = MediaPart = DataPart = CustomPart = ToolRequestPart = ToolResponsePart = Part


class Message(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """One message of a conversation."""

    role: Role
    content: Sequence[Part]
    metadata: Metadata | None = None

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return _texts(self.content)

    @property
    def reasoning(self) -> str:
        """All reasoning parts, joined."""
        return "".join([p.reasoning for p in self.content if p.reasoning is not None])

    @property
    def tool_requests(self) -> list[Part]:
        """The parts that ask for a tool, in order."""
        return [p for p in self.content if p.tool_request is not None]

    @property
    def tool_responses(self) -> "list[ToolResponse]":
        """The tools' results, in order."""
        return [p.tool_response for p in self.content if p.tool_response is not None]

    @property
    def ours(self) -> Metadata:
        """What Adjourn noted on this message; empty where it noted nothing (or where somebody else wrote there)."""
        noted: Any = (self.metadata or {}).get(OURS)
        return cast(Metadata, noted) if isinstance(noted, Mapping) else {}


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """Tokens. `cached_tokens` and `reasoning_tokens` are shares of input and output, not additions to them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


def _texts(content: Sequence[Part]) -> str:
    if len(content) == 1:  # most of what is streamed
        return content[0].text or ""
    return "".join([p.text for p in content if p.text is not None])


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """A piece of a message as it is being made. `index` grows by one with each new message of the turn."""

    role: Role = "model"
    index: int = 0
    content: Sequence[Part] = ()
    metadata: Metadata | None = None

    @property
    def text(self) -> str:
        return _texts(self.content)

    @property
    def reasoning(self) -> str:
        return "".join([p.reasoning for p in self.content if p.reasoning is not None])


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """Something a session produced beside its messages. A later one of the same name replaces the earlier."""

    name: str | None = None
    parts: Sequence[Part] = ()
    metadata: Metadata | None = None


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """An error as a value: what crosses the wire and is stored. `kind` is the Python class name."""

    status: str
    message: str
    kind: str | None = None
    details: Any = None


_encoder = msgspec.json.Encoder()
_sorted_encoder = msgspec.json.Encoder(order="sorted")


def encode(value: Any) -> bytes:
    """JSON bytes of a message, part, event or plain JSON value."""
    return _encoder.encode(value)


@lru_cache(maxsize=128)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(raw: bytes | str, kind: type[T]) -> T:
    """The value of `kind` that `raw` holds. Raises InvalidRequest, naming the path, where it does not fit."""
    try:
        return _decoder(kind).decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as e:  # the first is msgspec.ValidationError, too
        raise InvalidRequest(f"not a valid {getattr(kind, '__name__', kind)}: {e}") from None


def convert(value: Any, kind: type[T]) -> T:
    """Like `decode`, from plain dicts and lists (camelCase keys)."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as e:
        raise InvalidRequest(f"not a valid {getattr(kind, '__name__', kind)}: {e}") from None


def wire(value: Any) -> Any:
    """Plain dicts and lists with camelCase keys."""
    return msgspec.to_builtins(value)


def canonical(value: Any) -> bytes:
    """JSON bytes with sorted keys: equal values give equal bytes, whatever the order of their keys."""
    return _sorted_encoder.encode(value)


def digest(*values: Any) -> str:
    """A short fingerprint of JSON values, the same in every process."""
    return blake2b(canonical(values), digest_size=16).hexdigest()


_PLAIN = (str, int, bool, type(None))
_MAX_DEPTH = 200


def to_json(value: Any, what: str = "value") -> Any:
    """`value` as plain JSON data; what cannot be is refused with its path.

    Takes JSON values, pydantic models, dataclasses, msgspec structs, datetime, date, time, timedelta, Decimal, UUID,
    Enum, set, frozenset, tuple, paths and bytes (as base64). Raises NotJSON for NaN, infinity, keys that are no
    strings, loops, and everything else.
    """
    return _to_json(value, "$", what, 0)


def as_metadata(value: Any, what: str) -> Metadata | None:
    """`value` as an object of JSON data, or None for an empty one. Raises NotJSON for anything else."""
    plain = to_json(value, what)
    if plain is not None and not isinstance(plain, Mapping):
        raise NotJSON("$", "is no object", what)
    return cast(Metadata, plain) or None


def _to_json(value: Any, path: str, what: str, depth: int) -> Any:
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is str:
        return _text(value, path, what)
    if kind in _PLAIN:
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        raise NotJSON(path, f"is {value}, and JSON has no such number", what)
    if depth > _MAX_DEPTH:
        raise NotJSON(path[:80] + "…", f"is nested more than {_MAX_DEPTH} deep (or contains itself)", what)
    depth += 1
    if kind is dict:
        return _mapping(value, path, what, depth)
    if isinstance(value, enum.Enum):
        return _to_json(value.value, path, what, depth)
    if isinstance(value, Mapping):
        return _mapping(cast(Mapping[Any, Any], value), path, what, depth)
    if isinstance(value, (list, tuple)):
        return [_to_json(v, f"{path}[{i}]", what, depth) for i, v in enumerate(cast(Sequence[Any], value))]
    return _rich(value, path, what, depth)


def _text(value: str, path: str, what: str) -> str:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotJSON(path, "has half of a surrogate pair, which is no text", what) from None
    return value


def _mapping(value: Mapping[Any, Any], path: str, what: str, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        name = key.value if isinstance(key, enum.Enum) else key
        if not isinstance(name, str):
            raise NotJSON(path, f"has the key {key!r}, and JSON keys are strings", what)
        name = _text(name, path, what)
        out[name] = _to_json(item, f"{path}.{name}", what, depth)
    return out


def _rich(value: Any, path: str, what: str, depth: int) -> Any:
    if isinstance(value, str):
        return _text(str(value), path, what)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _to_json(float(value), path, what, depth)
    if isinstance(value, (set, frozenset)):
        items = [_to_json(v, f"{path}{{}}", what, depth) for v in cast(set[Any], value)]
        return sorted(items, key=canonical)  # a set has no order of its own; a digest needs one
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(cast(bytes, value))).decode()
    if isinstance(value, Decimal):
        if value.is_finite():
            return str(value)
        raise NotJSON(path, f"is {value}, and JSON has no such number", what)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (uuid.UUID, PurePath)):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return _to_json(_struct(value, path, what), path, what, depth)
    dump: Callable[..., Any] | None = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return _to_json(dump(by_alias=True), path, what, depth)
    if not isinstance(value, type) and is_dataclass(value):
        given: Any = value
        return _to_json(_fields(given), path, what, depth)
    name = type(value).__qualname__
    raise NotJSON(
        path, f"is of type {name}; give JSON values, models, dataclasses, dates, Decimal, UUID, Enum or bytes", what
    )


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _struct(value: msgspec.Struct, path: str, what: str) -> Any:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError) as e:
        raise NotJSON(path, f"is of type {type(value).__qualname__} and does not encode: {e}", what) from None


def fresh(value: Any) -> Any:
    """A copy of JSON data that shares nothing which can be changed."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _PLAIN or kind is float:
        return value
    if kind is dict or isinstance(value, Mapping):  # the plain kind first: to ask about an abstract one is slow
        return {k: fresh(v) for k, v in cast(Mapping[str, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [fresh(v) for v in cast(Sequence[Any], value)]
    return value


def storable(text: str) -> str:
    """A text that nobody chose, made such that it can be kept: half of a surrogate pair is shown by its escape, `\\udcff`."""
    return text.encode(errors="backslashreplace").decode()


def told(error: BaseException) -> str:
    """What an exception says, as a text that can be kept; empty where it says nothing, or cannot."""
    try:
        return storable(str(error))
    except Exception:  # noqa: BLE001 - its own __str__ fails: its name has to do
        return ""


def named(error: BaseException) -> str:
    """The name of an exception and what it says, as a text that can be kept."""
    name, text = type(error).__name__, told(error)
    return f"{name}: {text}" if text else name


def new_id(prefix: str = "") -> str:
    """An id that nobody can guess: 128 random bits in hex, after `prefix`."""
    return prefix + os.urandom(16).hex()
