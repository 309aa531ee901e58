"""The shapes of Genkit's wire for agents: what its clients send, and what they read. No IO.

A request is `{"data": AgentInput, "init": AgentInit}`. A stream is `{"message": chunk}` frames and at the end one
`{"result": AgentOutput}` or `{"error": …}`. Genkit's Python client refuses fields that it does not know, so nothing of our
own stands beside its fields; what is ours is inside metadata, which is free.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from adjourn.agent import SnapshotView
from adjourn.errors import (
    AdjournError,
    InvalidInput,
    InvalidRequest,
    LimitReached,
    ResumeError,
    SessionNotFound,
    ToolFailed,
    UnknownModel,
    UnknownTool,
)
from adjourn.handle import AgentOutput, SessionState
from adjourn.parts import OURS, Artifact, ErrorInfo, Message, Part, convert, decode, wire
from adjourn.stream import StreamChunk

Wire = dict[str, Any]
Verb = Literal["respond", "restart", "decline"]

# The first that fits; Genkit calls it the reason, and its Python client makes `error.reason` of it.
_REASONS: Sequence[tuple[type[Exception], str]] = (
    (InvalidInput, "INVALID_INPUT"),
    (ResumeError, "INVALID_RESUME"),
    (ToolFailed, "TOOL_FAILED"),
    (LimitReached, "MAX_TURNS_EXCEEDED"),
    (SessionNotFound, "SNAPSHOT_NOT_FOUND"),
    (UnknownTool, "TOOL_NOT_FOUND"),
    (UnknownModel, "MODEL_NOT_FOUND"),
)


class GenkitResume(msgspec.Struct, frozen=True, rename="camel"):
    """The decisions of one request. `metadata` is a note on all of them."""

    respond: Sequence[Part] | None = None
    restart: Sequence[Part] | None = None
    metadata: Mapping[str, Any] | None = None


class GenkitInput(msgspec.Struct, frozen=True, rename="camel"):
    """Something said, or decisions; `detach` makes it a background turn."""

    message: Message | None = None
    resume: GenkitResume | None = None
    detach: bool | None = None


class GenkitInit(msgspec.Struct, frozen=True, rename="camel"):
    """Where to begin. Whose session a new one is, the server says and not the client."""

    session_id: str | None = None
    snapshot_id: str | None = None
    state: SessionState | None = None


class Lookup(msgspec.Struct, frozen=True, rename="camel"):
    """Which snapshot: by its own id, or a session's newest."""

    snapshot_id: str | None = None
    session_id: str | None = None


class Call(msgspec.Struct, frozen=True):
    """One request for a turn."""

    input: GenkitInput
    init: GenkitInit


def read_call(body: bytes) -> Call:
    """What a client sent to an agent. Raises InvalidRequest, naming the path."""
    envelope = _envelope(body)
    given = _data(envelope)
    if isinstance(given, str):
        given = {"message": given}
    if isinstance(given, Mapping):
        fields = cast(Mapping[str, Any], given)
        said = fields.get("message")
        if isinstance(said, str):
            given = {**fields, "message": {"role": "user", "content": [{"text": said}]}}
    data = convert(given, GenkitInput)
    for part in (*(data.resume.respond or ()), *(data.resume.restart or ())) if data.resume is not None else ():
        _refuse_mixed(part)
    init = convert(envelope.get("init") or {}, GenkitInit)
    if init.state is not None:
        init = msgspec.structs.replace(init, state=_mended(init.state))
    return Call(data, init)


def _refuse_mixed(part: Part) -> None:
    # What is of two kinds means one thing to whoever checks it and another to whoever carries it out.
    if part.tool_request is not None and part.tool_response is not None:
        raise InvalidRequest(
            "a part of a resume is a toolRequest or a toolResponse, and one here is both. Nothing was decided: send two parts"
        )


def read_lookup(body: bytes) -> Lookup:
    """What a client sent to `getSnapshot` or `abort`. Raises InvalidRequest."""
    return convert(_data(_envelope(body)), Lookup)


def _envelope(body: bytes) -> Mapping[str, Any]:
    given: object = decode(body or b"{}", object)
    if not isinstance(given, Mapping):
        raise InvalidRequest('not a request of a Genkit client: give an object, {"data": …, "init": …}')
    return cast(Mapping[str, Any], given)


def _data(envelope: Mapping[str, Any]) -> Any:
    # Handlers of Genkit's own servers take these three as well.
    for key in ("data", "input"):
        if key in envelope:
            return envelope[key]
    return {k: v for k, v in envelope.items() if k != "init"}


def _mended(state: SessionState) -> SessionState:
    """The state without earlier copies of a paused message.

    Genkit's Python client appends the message of every leg to its history. Where a leg ends in the same round (one of
    two was answered, or a restarted tool paused again) that is the same message once more, as it stands now.
    """
    messages: list[Message] = []
    for message in state.messages:
        asked = _asked(message)
        if asked and messages and _asked(messages[-1]) == asked:
            messages.pop()
        messages.append(message)
    return state if len(messages) == len(state.messages) else msgspec.structs.replace(state, messages=messages)


def _asked(message: Message) -> list[tuple[str, str | None]]:
    if message.role != "model":
        return []
    return [(p.tool_request.name, p.tool_request.ref) for p in message.content if p.tool_request is not None]


# -- what clients read -----------------------------------------------------------------------------------------------


class ChunkWriter:
    """Chunks of one leg as Genkit has them; none for what Genkit has no place for (progress of a tool).

    Genkit's Python client builds its history from chunks, and a client-managed session is then sent back as that history.
    So whatever makes a whole conversation is streamed: what the model asked for comes as the last piece of its message,
    before the results, or with the pauses. (Genkit's JavaScript server streams a pause as a message of the tool's, which
    in such a history no model would take.) `resumed` legs begin with results whose requests the client has.
    """

    def __init__(self, resumed: bool = False) -> None:
        self._index = 0
        self._has_requests = resumed

    def __call__(self, chunk: StreamChunk) -> list[Wire]:
        if chunk.turn_end is not None:
            end = chunk.turn_end
            return [{"turnEnd": _given({"snapshotId": end.snapshot_id, "finishReason": end.finish_reason})}]
        if chunk.custom_patch is not None:
            return [{"customPatch": chunk.custom_patch}]
        if chunk.artifact is not None:
            return [{"artifact": _artifact(chunk.artifact)}]
        raw = chunk.raw
        if raw is None:
            return []
        if chunk.interrupt is not None:
            return [_model_chunk("model", self._index, raw.content)]
        if raw.role != "tool":
            self._index, self._has_requests = raw.index, False
            return [_model_chunk(raw.role, raw.index, raw.content)]
        ours: Mapping[str, Any] = (raw.metadata or {}).get(OURS) or {}
        requests: Sequence[Part] = ours.get("requests", ())
        known, self._has_requests, self._index = self._has_requests, False, raw.index + 1
        written = _model_chunk("tool", raw.index, raw.content)
        return [written] if known else [_model_chunk("model", max(raw.index - 1, 0), requests), written]


def _model_chunk(role: str, index: int, content: Sequence[Part]) -> Wire:
    return {"modelChunk": {"role": role, "index": index, "content": _parts(content)}}


def output_on_wire(output: AgentOutput) -> Wire:
    """What a leg came to, as an AgentOutput of Genkit's."""
    return _given(
        {
            "sessionId": output.session_id,
            "snapshotId": output.snapshot_id,
            "state": state_on_wire(output.client_state) if output.client_state is not None else None,
            "message": _message(output.message) if output.message is not None else None,
            "artifacts": [_artifact(a) for a in output.artifacts],
            "finishReason": output.finish_reason,
            "error": _info(output.error) if output.error is not None else None,
        }
    )


def state_on_wire(state: SessionState) -> Wire:
    """A whole session. `signature` is there only where the application signs (its Python client then refuses it)."""
    return _given(
        {
            "sessionId": state.session_id,
            "messages": [_message(m) for m in state.messages],
            "custom": wire(state.custom),
            "artifacts": [_artifact(a) for a in state.artifacts],
            "signature": state.signature,
        }
    )


def snapshot_on_wire(view: SnapshotView) -> Wire:
    """A SessionSnapshot of Genkit's."""
    return _given(
        {
            "snapshotId": view.id,
            "sessionId": view.session_id,
            "parentId": view.parent_id,
            "createdAt": _time(view.row.created),
            "updatedAt": _time(view.row.updated),
            "heartbeatAt": _time(view.row.heartbeat) if view.row.status == "pending" and view.row.heartbeat else None,
            "status": view.status,
            "finishReason": view.finish_reason,
            "error": _info(view.error) if view.error is not None else None,
            "state": _given(
                {
                    "sessionId": view.session_id,
                    "messages": [_message(m) for m in view.messages],
                    "custom": wire(view.state),
                    "artifacts": [_artifact(a) for a in view.artifacts],
                }
            ),
        }
    )


def error_on_wire(error: BaseException) -> Wire:
    """An error as `{status, message, details}`. Of what is none of ours only the kind is told."""
    if not isinstance(error, AdjournError):
        return {"status": "INTERNAL", "message": "internal error", "details": {"kind": type(error).__name__}}
    details: Wire = {"kind": type(error).__name__}
    reason = next((r for kind, r in _REASONS if isinstance(error, kind)), None)
    if reason is not None:
        details["reason"] = reason
    for name in ("limit", "tool", "problems"):
        value: Any = getattr(error, name, None)
        if value:
            details[name] = value
    return {"status": error.status, "message": str(error), "details": details}


def _info(error: ErrorInfo) -> Wire:
    given: object = error.details
    details: Wire = dict(cast(Mapping[str, Any], given)) if isinstance(given, Mapping) else {}
    if error.kind is not None:
        details["kind"] = error.kind
        reason = next((r for kind, r in _REASONS if kind.__name__ == error.kind), None)
        if reason is not None:
            details["reason"] = reason
    return _given({"status": error.status, "message": error.message, "details": details or None})


def _given(value: Wire) -> Wire:
    return {k: v for k, v in value.items() if v is not None}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(message: Message) -> Wire:
    return _given({"role": message.role, "content": _parts(message.content), "metadata": wire(message.metadata)})


def _parts(parts: Sequence[Part]) -> list[Wire]:
    # Genkit's parts are of exactly one kind. One of ours with nothing in it (its data is null) is of none.
    return [wire(p) if _kinds(p) else {**wire(p), "data": None} for p in parts]


def _kinds(part: Part) -> bool:
    fields = (part.text, part.reasoning, part.media, part.data, part.tool_request, part.tool_response, part.custom)
    return any(f is not None for f in fields)


def _artifact(artifact: Artifact) -> Wire:
    return _given({"name": artifact.name, "parts": _parts(artifact.parts), "metadata": wire(artifact.metadata)})


def verb_of(part: Part) -> Verb:
    """What a part of a resume decides: whether it restarts is said by its kind, not by the list it came in."""
    if part.tool_request is not None:
        return "restart"
    return "decline" if _mapping(part.ours).get("declined") else "respond"


def bound(part: Part, interrupt: str) -> Part:
    """The part, which names this interrupt from now on and nothing else."""
    noted = {**_mapping(part.ours), "interrupt": interrupt}
    return msgspec.structs.replace(part, metadata={**(part.metadata or {}), OURS: noted})


def _mapping(value: object) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}
