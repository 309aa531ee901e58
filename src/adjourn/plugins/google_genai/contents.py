"""Messages as the contents of a Gemini request.

What Gemini said goes back as it came: the same parts in the same order, each signature on the part that it came on.
What another provider said goes back as bare text, calls and results; its extras mean nothing here.

Gemini 3 refuses a call without a signature. Where the call is not its own there is none, and a documented stand-in
takes its place, on the first call of a message only: a copied or faked signature does harm.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from adjourn.dialect import Names
from adjourn.errors import InvalidRequest
from adjourn.parts import Media, Message, Metadata, Part, ToolRequest, ToolResponse
from adjourn.plugins.google_genai.config import generation

KEY = "google"
"""The metadata key of what Gemini said beside parts and messages."""

SKIP_SIGNATURE: Mapping[str, bytes] = {
    # The Gemini API also takes "context_engineering_is_the_way_to_go"; Vertex AI refuses that one.
    "googleai": b"skip_thought_signature_validator",
    "vertexai": b"skip_thought_signature_validator",
}
"""What stands for the signature that a foreign call lacks, by back end."""

Content = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """Whom a request is for: the back end ("googleai", "vertexai") and the generation of the model."""

    backend: str
    generation: int

    @property
    def signs(self) -> bool:
        """Whether it refuses calls without a signature."""
        return self.generation >= 3

    @property
    def shows_results(self) -> bool:
        """Whether a function response may hold pictures and files."""
        return self.generation >= 3


def system_parts(messages: Sequence[Message]) -> list[Content]:
    """The parts of the system instruction."""
    return [p for m in messages if m.role == "system" for p in map(_said, m.content) if p is not None]


def contents(messages: Sequence[Message], to: Dialect, names: Names) -> list[Content]:
    """The contents of a request, as the SDK's `Content` takes them. Raises InvalidRequest for altered extras."""
    out: list[Content] = []
    answered: list[ToolResponse] = []
    order: list[str | None] = []

    def flush() -> None:
        if answered:
            # All results of a round are one turn, in call order.
            ranked = sorted(answered, key=lambda r: order.index(r.ref) if r.ref in order else len(order))
            out.extend(_results(ranked, to, names))
            answered.clear()

    for message in messages:
        if message.role == "tool":
            answered += [r for p in message.content if (r := p.tool_response) is not None]
            continue
        flush()
        if message.role == "system":
            continue
        if message.role == "model":
            order = [r.ref for p in message.content if (r := p.tool_request) is not None]
            parts = _model_parts(message, to, names)
        else:
            parts = [p for p in map(_said, message.content) if p is not None]
        if parts:
            out.append({"role": message.role, "parts": parts})
    flush()
    # The API wants a user turn, and takes an empty one where the system text says it all.
    return out or [{"role": "user", "parts": [{"text": ""}]}]


def extras(metadata: Metadata | None) -> Mapping[str, Any]:
    """What Gemini noted here."""
    found: Any = (metadata or {}).get(KEY)
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}


# -- what was said -----------------------------------------------------------------------------------------------------


def _said(part: Part) -> Content | None:
    if part.text is not None:
        return {"text": part.text}
    if part.media is not None:
        return media_part(part.media)
    if part.data is not None:
        return {"text": json.dumps(part.data, ensure_ascii=False)}
    return None


def _model_parts(message: Message, to: Dialect, names: Names) -> list[Content]:
    own = bool(extras(message.metadata)) or any(extras(p.metadata) for p in message.content)
    out: list[Content] = []
    first: Content | None = None
    signed = False
    for part in message.content:
        made = _model_part(part, own, names)
        if made is None:
            continue
        signature = extras(part.metadata).get("thoughtSignature")
        if signature is not None:
            made["thought_signature"] = signature_bytes(signature)
        if part.tool_request is not None:
            first = made if first is None else first
            signed = signed or signature is not None
        out.append(made)
    if first is not None and not signed and to.signs and not _answers_for_itself(message):
        first["thought_signature"] = SKIP_SIGNATURE[to.backend]
    return out


def _answers_for_itself(message: Message) -> bool:
    """Whether a Gemini that signs said this: then what it left unsigned needs no signature."""
    note = extras(message.metadata)
    if note.get("mended"):
        return False
    return generation(str(note.get("modelVersion") or note.get("model") or "")) >= 3


def _model_part(part: Part, own: bool, names: Names) -> Content | None:
    request = part.tool_request
    if request is not None:
        call = {"name": names.outward(request.name), "args": _arguments(request)}
        return {"function_call": {**call, "id": request.ref} if request.ref else call}
    if part.reasoning is not None:
        return {"text": part.reasoning, "thought": True} if own else None
    if part.custom is not None:
        raw: Any = part.custom.get(KEY)
        return dict(cast(Mapping[str, Any], raw)) if isinstance(raw, Mapping) else None
    return _said(part)


def _arguments(request: ToolRequest) -> Mapping[str, Any]:
    """The API takes an object. Text that was to be one is left out: the error that answers the call tells about it."""
    given: Any = request.input
    if isinstance(given, Mapping):
        return cast(Mapping[str, Any], given)
    return {} if given is None or isinstance(given, str) else {"input": given}


def signature_bytes(text: Any) -> bytes:
    """The bytes of a signature kept as base64, or as base64url. Raises InvalidRequest for anything else."""
    try:
        plain = str(text).replace("-", "+").replace("_", "/").rstrip("=")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("a thoughtSignature in the messages was altered: it is not base64") from None


# -- results -----------------------------------------------------------------------------------------------------------


def _results(responses: Sequence[ToolResponse], to: Dialect, names: Names) -> list[Content]:
    parts: list[Content] = []
    beside: list[Content] = []
    for response in responses:
        name = names.outward(response.name)
        made: Content = {"name": name, "response": _output(response)}
        if response.ref:
            made["id"] = response.ref
        shown = [media_part(p.media) for p in response.content or () if p.media is not None]
        if shown and to.shows_results:
            made["parts"] = shown
        elif shown:
            beside += [{"text": f"What {name} returned beside its result:"}, *shown]
        parts.append({"function_response": made})
    out = [{"role": "user", "parts": parts}]
    if beside:  # a turn of results holds nothing else
        out.append({"role": "user", "parts": beside})
    return out


def _output(response: ToolResponse) -> dict[str, Any]:
    """The result as an object, which the API wants; texts beside it become a note in it."""
    value: Any = response.output
    out: dict[str, Any] = dict(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else {"output": value}
    texts = [t for p in response.content or () for t in (_beside(p),) if t]
    if texts:
        key = "note"
        while key in out:
            key += "_"
        out[key] = "\n".join(texts)
    return out


def _beside(part: Part) -> str | None:
    return part.text if part.data is None else json.dumps(part.data, ensure_ascii=False)


# -- media -------------------------------------------------------------------------------------------------------------

_DATA_URL = re.compile(r"data:([^,]*?)(;base64)?,", re.IGNORECASE)


def media_part(media: Media) -> Content:
    """Inline data for a `data:` URL, else a file by its URI. Raises InvalidRequest for a broken one."""
    found = _DATA_URL.match(media.url)
    if found is None:
        file: Content = {"file_uri": media.url}
        if media.content_type:
            file["mime_type"] = media.content_type
        return {"file_data": file}
    payload = media.url[found.end() :]
    try:
        data = base64.b64decode(payload, validate=True) if found[2] else unquote_to_bytes(payload)
    except (binascii.Error, ValueError):
        raise InvalidRequest("a media part has a data: URL that is not base64") from None
    kind = media.content_type or found[1] or "text/plain"
    return {"inline_data": {"mime_type": kind, "data": data}}
