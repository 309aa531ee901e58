"""The written form of a turn: a list of messages, and back.

A closed turn is just its messages. An open round is the model message at the end whose request parts say in their
metadata how far each call is: `interrupt` (the payload), `pendingOutput` (a finished sibling's result) and, under our own
key, what the wire format has no place for. So a list of messages is all that `generate` needs to go on, in any process,
with the same counts. Messages of other Genkit runtimes have none of ours; an unanswered request in them can be resumed
all the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from adjourn.errors import InvalidRequest
from adjourn.events import Limits, Pause
from adjourn.parts import OURS, Message, Part, ToolResponse, convert, digest, wire
from adjourn.state import Call, Counts, Turn
from adjourn.turn import shown

_WRITTEN = ("interrupt", "pendingOutput", "pendingContent", "resolvedInterrupt", OURS)


def write(turn: Turn) -> list[Message]:
    """The transcript, with the open round (if any) as its last message."""
    messages = [*turn.history, *turn.added]
    if turn.open is not None:
        messages.append(_open_message(turn))
    return messages


def _open_message(turn: Turn) -> Message:
    assert turn.open is not None
    calls = iter(turn.calls)
    content = [written(p, next(calls)) if p.tool_request is not None else p for p in turn.open.content]
    metadata = {**(turn.open.metadata or {}), OURS: {**turn.open.ours, "counts": wire(turn.counts)}}
    return replace(turn.open, content=content, metadata=metadata)


def written(part: Part, call: Call) -> Part:
    """The request part of an open round as the transcript shows it."""
    metadata: dict[str, Any] = dict(part.metadata or {})
    note: dict[str, Any] = {"id": call.id, "state": call.state}
    if call.restarts:
        note["restarts"] = list(call.restarts)
    if call.pauses:
        note["pauses"] = list(call.pauses)
    if call.replaced:
        note["input"] = call.input
    if call.due is not None:
        note["due"] = call.due
    if call.error is not None:
        note["error"] = wire(call.error)
    if call.pause is not None:
        pause = wire(replace(call.pause, payload=None)) if call.pause.payload else wire(call.pause)
        note["pause"] = pause
        metadata["interrupt" if call.state == "paused" else "resolvedInterrupt"] = shown(call.pause.payload)
    if call.response is not None:
        response = call.response.tool_response
        assert response is not None
        metadata["pendingOutput"] = response.output
        if response.content:
            metadata["pendingContent"] = wire(response.content)
        if call.response.metadata:
            note["response"] = dict(call.response.metadata)
    metadata[OURS] = note
    return replace(part, metadata=metadata)


def read(messages: Sequence[Message], limits: Limits) -> Turn:
    """The turn that these messages are the transcript of, from its last user message on."""
    start = len(messages)
    while start and not _starts_turn(messages[start - 1]):
        start -= 1
    start = max(start - 1, 0)
    added = tuple(messages[start:])
    last = added[-1] if added else None
    if last is None or last.role != "model" or not last.tool_requests:
        counts = Counts(model_calls=sum(m.role == "model" for m in added))
        return Turn(messages[:start], limits, added, counts=counts)
    kept = last.ours.get("counts")
    counts = convert(kept, Counts) if kept else Counts(model_calls=sum(m.role == "model" for m in added))
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
    request, metadata, note = part.tool_request, part.metadata or {}, part.ours
    assert request is not None
    # Without our mark: an id that is the same whenever these messages are read.
    call_id: str = note.get("id") or digest(length, position, request.name, request.ref, request.input)
    if not request.ref:
        request = replace(request, ref=call_id)
    bare = replace(part, tool_request=request, metadata=_without(metadata, _WRITTEN))
    payload = metadata.get("interrupt", metadata.get("resolvedInterrupt"))
    try:
        pause = convert(note["pause"], Pause) if "pause" in note else None
    except InvalidRequest as e:
        raise InvalidRequest(f"the paused message was altered: {e}") from None
    if pause is not None and pause.payload is None and payload is not True:
        pause = replace(pause, payload=payload)
    call = Call(
        call_id,
        bare,
        note.get("input", request.input),
        pause=pause,
        restarts=tuple(note.get("restarts", ())),
        pauses=tuple(note.get("pauses", ())),
        replaced="input" in note,
        due=note.get("due"),
    )
    if "pendingOutput" in metadata:
        content = metadata.get("pendingContent")
        response = ToolResponse(
            request.name, request.ref, metadata["pendingOutput"], convert(content, list[Part]) if content else None
        )
        settled = Part(tool_response=response, metadata=note.get("response"))
        return replace(call, state="settled", response=settled)
    if note.get("state") in ("ready", "failed"):
        return replace(call, state="ready")
    if pause is None:  # written elsewhere: any unanswered request can be decided on
        given = None if payload is True else payload
        pause = Pause("i_" + call_id, given, reason="tool" if "interrupt" in metadata else "unanswered")
        call = replace(call, pause=pause, pauses=(digest(request.name, request.input, given),))
    return replace(call, state="paused")


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
        elif message.role == "model":
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
