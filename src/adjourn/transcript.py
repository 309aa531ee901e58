"""The written form of a turn: a list of messages, and back.

A closed turn is just its messages. An open round is the model message at the end whose request parts say in their
metadata how far each call is: `interrupt` (the payload), `pendingOutput` (a finished sibling's result) and, under our own
key, what the wire format has no place for. So a list of messages is all that `generate` needs to go on, in any process,
with the same counts. Messages of other Genkit runtimes have none of ours; an unanswered request in them can be resumed
all the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from adjourn.errors import InvalidRequest
from adjourn.events import Json, Limits, Pause
from adjourn.parts import OURS, ErrorInfo, Message, Metadata, Part, ToolResponse, convert, digest, wire
from adjourn.state import Call, Counts, Turn
from adjourn.turn import shown

T = TypeVar("T")

_WRITTEN = ("interrupt", "pendingOutput", "pendingContent", "resolvedInterrupt", OURS)


def write(turn: Turn) -> list[Message]:
    """The transcript, with the open round (if any) as its last message."""
    messages = [*turn.history, *turn.added]
    if turn.open is not None:
        messages.append(_open_message(turn))
    elif turn.ended is not None and turn.ended.reason in ("failed", "aborted") and turn.added:
        messages[-1] = _with_counts(messages[-1], turn)  # so that going on from here does not start them afresh
    return messages


def _with_counts(message: Message, turn: Turn) -> Message:
    metadata = {**(message.metadata or {}), OURS: {**message.ours, "counts": wire(turn.counts)}}
    return replace(message, metadata=metadata)


def _open_message(turn: Turn) -> Message:
    assert turn.open is not None
    calls = iter(turn.calls)
    content = [written(p, next(calls)) if p.tool_request is not None else p for p in turn.open.content]
    return _with_counts(replace(turn.open, content=content), turn)


class _Note(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What we write on a request part of an open round, beside the wire format's own keys."""

    id: str | None = None
    state: str | None = None
    pause: Pause | None = None
    restarts: tuple[Json, ...] = ()
    pauses: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    input: Json | UnsetType = UNSET
    due: float | None = None
    error: ErrorInfo | None = None
    response: Metadata | None = None
    retried: int = 0
    inward: tuple[int, ...] = ()


def written(part: Part, call: Call) -> Part:
    """The request part of an open round as the transcript shows it."""
    metadata: dict[str, Any] = dict(part.metadata or {})
    pause, response = call.pause, call.response
    if pause is not None:
        metadata["interrupt" if call.state == "paused" else "resolvedInterrupt"] = shown(pause.payload)
        if pause.payload and pause.payload is not True:
            pause = replace(pause, payload=None)  # the wire's own key has it
    kept = None
    if response is not None:
        answer = response.tool_response
        assert answer is not None
        metadata["pendingOutput"] = answer.output
        if answer.content:
            metadata["pendingContent"] = wire(answer.content)
        kept = response.metadata or None
    changed = call.input if call.replaced else UNSET
    # That it failed, and not what its exception said: a transcript goes to clients and models.
    error = replace(call.error, message="") if call.error is not None else None
    again = call.retried
    note = _Note(
        call.id, call.state, pause, call.restarts, call.pauses, call.asked, changed, call.due, error, kept, again,
        call.inward,
    )  # fmt: skip
    metadata[OURS] = wire(note)
    return replace(part, metadata=metadata)


def read(messages: Sequence[Message], limits: Limits) -> Turn:
    """The turn that these messages are the transcript of, from its last user message on."""
    start = len(messages)
    while start and not _starts_turn(messages[start - 1]):
        start -= 1
    start = max(start - 1, 0)
    added = tuple(messages[start:])
    last = added[-1] if added else None
    counts = Counts(model_calls=sum(m.role == "model" for m in added))
    if last is not None and "counts" in _noted(last.metadata):
        counts = _unaltered(_noted(last.metadata)["counts"], Counts)
    if last is None or last.role != "model" or not last.tool_requests:
        return Turn(messages[:start], limits, added, counts=counts)
    calls: list[Call] = []
    content: list[Part] = []
    for position, part in enumerate(last.content):
        if part.tool_request is not None:
            call = read_call(part, position, len(messages))
            calls.append(call)
            content.append(call.part)
        else:
            content.append(part)
    bare = replace(last, content=content, metadata=_without(last.metadata, (OURS,)))
    return Turn(messages[:start], limits, added[:-1], bare, tuple(calls), counts)


def _starts_turn(message: Message) -> bool:
    return message.role == "user" and not message.ours.get("correction")


def _without(metadata: Mapping[str, Any] | None, keys: Sequence[str]) -> Mapping[str, Any] | None:
    return {k: v for k, v in (metadata or {}).items() if k not in keys} or None


def read_call(part: Part, position: int = 0, length: int = 0) -> Call:
    """The call that a request part of a paused message stands for."""
    request, metadata = part.tool_request, part.metadata or {}
    assert request is not None
    note = _unaltered(_noted(metadata), _Note)
    # Without our mark: an id that is the same whenever these messages are read.
    call_id = note.id or digest(length, position, request.name, request.ref, request.input)
    if not request.ref:
        request = replace(request, ref=call_id)
    bare = replace(part, tool_request=request, metadata=_without(metadata, _WRITTEN))
    payload = metadata.get("interrupt", metadata.get("resolvedInterrupt"))
    pause = note.pause
    if pause is not None and pause.payload is None and payload is not True:
        pause = replace(pause, payload=payload)
    call = Call(
        call_id,
        bare,
        request.input if note.input is UNSET else note.input,
        pause=pause,
        restarts=note.restarts,
        pauses=note.pauses,
        error=note.error,
        replaced=note.input is not UNSET,
        due=note.due,
        asked=note.asked,
        retried=note.retried,
        inward=note.inward,
    )
    if "pendingOutput" in metadata:
        content = metadata.get("pendingContent")
        parts = _unaltered(content, list[Part]) if content else None
        response = ToolResponse(request.name, request.ref, metadata["pendingOutput"], parts)
        return replace(call, state="settled", response=Part(tool_response=response, metadata=note.response))
    if note.state in ("ready", "failed"):
        return replace(call, state="ready", error=None)
    if note.state == "running":  # it was saved in the middle of its run, so nobody knows whether it took effect
        call = replace(call, pause=Pause("i_" + call_id, reason="outcome_unknown"))
    if pause is None:  # written elsewhere: any unanswered request can be decided on
        given = None if payload is True else payload
        pause = Pause("i_" + call_id, given, reason="tool" if "interrupt" in metadata else "unanswered")
        call = replace(call, pause=pause, pauses=(digest(request.name, request.input, given),))
    return replace(call, state="paused")


def _noted(metadata: Metadata | None) -> Metadata:
    noted: Any = (metadata or {}).get(OURS) or {}
    if not isinstance(noted, Mapping):
        raise InvalidRequest(f"the paused message was altered: {OURS!r} in its metadata is no object")
    return cast(Metadata, noted)


def _unaltered(value: Any, kind: type[T]) -> T:
    try:
        return convert(value, kind)
    except InvalidRequest as e:
        raise InvalidRequest(f"the paused message was altered: {e}") from None


def starts_with(messages: Sequence[Message], prefix: Sequence[Message]) -> bool:
    """Whether `prefix` is how `messages` begin. Identity is looked at first: mostly they are the same objects."""
    return len(prefix) <= len(messages) and all(a is b or a == b for a, b in zip(messages, prefix, strict=False))


def check_sendable(messages: Sequence[Message]) -> None:
    """Raises InvalidRequest unless each tool request has exactly one response, in request order, in the message after it."""
    waiting: list[tuple[str, str | None]] = []
    for i, message in enumerate(messages):
        if waiting and message.role != "tool":
            raise InvalidRequest(f"message {i}: tool requests {waiting} before it have no responses")
        if message.role == "tool":
            given = [(r.name, r.ref) for p in message.content if (r := p.tool_response) is not None]
            if given != waiting:
                raise InvalidRequest(f"message {i}: responses {given} do not match the requests {waiting}")
            waiting = []
        elif message.role != "model":
            if any(p.tool_request is not None or p.tool_response is not None for p in message.content):
                raise InvalidRequest(f"message {i}: a {message.role} message holds no tool requests or responses")
        else:
            waiting = [(r.name, r.ref) for p in message.content if (r := p.tool_request) is not None]
    if waiting:
        raise InvalidRequest(f"the tool requests {waiting} at the end have no responses")


def raw(messages: Sequence[Message]) -> bytes:
    """The messages as JSON, to keep wherever you like; `load` reads them back."""
    return msgspec.json.encode(messages)


def load(data: bytes | str) -> list[Message]:
    """Messages that `raw` wrote. Raises InvalidRequest for anything else."""
    try:
        return msgspec.json.decode(data, type=list[Message])
    except msgspec.DecodeError as e:
        raise InvalidRequest(f"not a list of messages: {e}") from None
