"""From what people hand in, to decisions that fit: answers and wire parts become events, or a ResumeError and nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

from msgspec import UNSET, Struct
from msgspec.structs import replace

from adjourn.answer import Answer
from adjourn.conform import problems
from adjourn.errors import (
    AlreadyResolved,
    EmptyResume,
    InvalidInput,
    InvalidResponse,
    ModifiedInput,
    NothingPaused,
    ResumeError,
    StaleInterrupt,
    ToolChanged,
    ToolGone,
    UnknownInterrupt,
    VerbNotAllowed,
)
from adjourn.events import Decided, Declined, Expired, Json, Responded, Restarted, Verb
from adjourn.parts import OURS, Part, ToolRequest, ToolResponse, canonical, to_json
from adjourn.records import InterruptRecord
from adjourn.schema import Misfit
from adjourn.state import Call, Turn
from adjourn.tool import FindTool, Tool
from adjourn.turn import open_pause, record

Given: TypeAlias = "Answer | Part | Sequence[Answer | Part] | None"
_CLOSED = ("cancelled", "stopped", "expired")


def as_items(respond: Given, restart: Given) -> list[Answer | Part]:
    """All decisions of one resume. Raises EmptyResume where there are none."""
    items = [*_listed(respond), *_listed(restart)]
    if not items:
        raise EmptyResume("the resume holds no decision; give at least one response, restart or decline")
    return items


def _listed(given: Given) -> list[Answer | Part]:
    if given is None:
        return []
    items: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)) else [given]
    for item in items:
        if not isinstance(item, (Answer, Part)):
            raise ResumeError(
                f"{item!r} is no decision: use respond_to_interrupt(...), restart_tool(...) or decline_interrupt(...)"
            )
    return items


def decide(
    turn: Turn, items: Sequence[Answer | Part], find_tool: FindTool, now: float, by: str | None = None
) -> tuple[Turn, list[Decided]]:
    """The turn after all of these decisions, and their events. All are valid or none is taken.

    One that comes after its interrupt's expiry is not taken; the interrupt then expires. `by` decides what says nobody.
    """
    events: list[Decided] = []
    seen: set[str] = set()
    for item in items:
        event = _event(turn, item, now)
        if event.interrupt in seen:
            raise ResumeError(f"interrupt {event.interrupt} is decided twice in one resume; give one decision for each")
        seen.add(event.interrupt)
        _, call = open_pause(turn, event.interrupt)
        if call.pause is not None and call.pause.expires_at is not None and call.pause.expires_at <= now:
            events.append(Expired(event.interrupt))  # too late: what the pause says of its expiry holds, not the answer
            continue
        check(turn, event, find_tool)
        if by is not None and not isinstance(event, Expired) and event.by is None:
            event = replace(event, by=by)
        events.append(event)
    for event in events:
        turn = record(turn, event)
    return turn, events


def check(turn: Turn, event: Decided, find_tool: FindTool) -> None:
    """Raises the ResumeError that says why this decision cannot be taken."""
    _, call = open_pause(turn, event.interrupt)
    assert call.pause is not None
    check_fit(call.request.name, call.pause, event, find_tool)


class Asked(Protocol):
    """What a pause says about its answers; a stored interrupt says the same."""

    @property
    def response(self) -> Any: ...

    @property
    def allow(self) -> tuple[Verb, ...]: ...

    @property
    def version(self) -> str: ...

    @property
    def path(self) -> tuple[str, ...]: ...

    @property
    def payload(self) -> Json: ...


def check_fit(name: str, pause: Asked, event: Decided, find_tool: FindTool) -> None:
    """Raises the ResumeError that says why this decision does not fit what was asked."""
    if isinstance(event, Responded) and "respond" not in pause.allow:
        raise VerbNotAllowed(f"tool {name!r} takes no response here. The pause is kept: restart it, or decline")
    if isinstance(event, Responded) and pause.response is not None:
        faults = problems(pause.response, event.output)
        if faults:
            text = "; ".join(f"{p['path']}: {p['message']}" for p in faults)
            raise InvalidResponse(
                f"the response to tool {name!r} does not fit its declared type: {text}. The pause is kept: correct the "
                "response and send it again",
                faults,
            )
    if not isinstance(event, Restarted):
        return
    if "restart" not in pause.allow:
        raise VerbNotAllowed(f"tool {name!r} cannot be restarted. The pause is kept: give a response, or decline")
    said, tool = as_shown(name, pause, find_tool)
    if event.input is not UNSET:
        try:
            tool.shape.validate(event.input)
        except Misfit as e:
            raise InvalidInput(
                f"the replaced input does not fit {said}: {e}. The pause is kept: correct the input and restart again",
                e.problems,
            ) from None


def check_rerun(call: Call, find_tool: FindTool) -> None:
    """Raises ToolGone or ToolChanged where a call that was sent round again would not run what was shown.

    It was checked when that was decided, but perhaps by a process that does not know the tool, and perhaps before it changed.
    """
    name, pause = call.request.name, call.pause
    if pause is None:
        return
    if pause.path:  # what is inside, the agent there looks at
        _inner(f"tool {name!r}", find_tool(name), pause.path[0])
    else:
        as_shown(name, pause, find_tool)


def check_stored(turn: Turn, event: Decided, find_tool: FindTool) -> None:
    """Raises the ResumeError that says why nobody can go on with a decision that was accepted. What it says was checked then."""
    _, call = open_pause(turn, event.interrupt)
    if isinstance(event, Restarted) and call.pause is not None:
        as_shown(call.request.name, call.pause, find_tool)
    elif call.pause is not None and call.pause.path:
        check_rerun(call, find_tool)
    record(turn, event)


def tools_asked(name: str, pause: Asked) -> list[str]:
    """The tool that paused, last, behind those of the nested agents around it."""
    names, shown = [name], pause.payload
    for _ in pause.path:
        inside = _told(shown)
        names.append(str(inside.get("tool")))
        shown = inside.get("payload")
    return names


def _told(payload: Json) -> Mapping[str, Json]:
    """What the pause of a nested agent tells of the call inside; nothing where it is none."""
    return cast(Mapping[str, Json], payload if isinstance(payload, Mapping) else {})


class Shown(Struct, frozen=True):
    """What a decision is about: the tool that paused, its input, and what it said."""

    tool: str
    input: Json
    payload: Json


def shown_by(tool: str, input: Json, payload: Json, path: Sequence[str]) -> Shown:
    """What a person is shown of a pause. In nested agents that is the innermost call, which the payload tells of."""
    shown = Shown(tool, input, payload)
    for _ in path:
        told = _told(shown.payload)
        if not {"agent", "tool", "input", "interrupt"} <= set(told):
            break
        shown = Shown(str(told["tool"]), told["input"], told.get("payload"))
    return shown


def seen(record: InterruptRecord) -> InterruptRecord:
    """The interrupt as a person must see it: of a call in a nested agent, the inner tool and its input, which is what runs.

    The stored record has the outer call.
    """
    shown = shown_by(record.tool, record.input, record.payload, record.path)
    return replace(record, tool=shown.tool, input=shown.input, payload=shown.payload)


def tool_shown(name: str, pause: Asked, find_tool: FindTool) -> Tool[..., Any] | None:
    """The tool that paused, as it is now; None where it is not defined here."""
    try:
        return _reached(name, pause, find_tool)[1]
    except (ToolGone, ToolChanged):
        return None


def as_shown(name: str, pause: Asked, find_tool: FindTool) -> tuple[str, Tool[..., Any]]:
    """What a restart would run, and how it is named to people. Raises ToolGone or ToolChanged where that is not what was shown.

    In a nested agent it is the tool that paused there.
    """
    said, tool = _reached(name, pause, find_tool)
    if pause.version and pause.version != tool.version:
        raise ToolChanged(
            f"the input schema of {said} changed since the pause, so what was shown may not be what would run. "
            "The pause is kept: respond or decline instead"
        )
    return said, tool


def _reached(name: str, pause: Asked, find_tool: FindTool) -> tuple[str, Tool[..., Any]]:
    """The tool that paused, through the nested agents around it."""
    said, tool = f"tool {name!r}", find_tool(name)
    for agent, named in zip(pause.path, tools_asked(name, pause)[1:], strict=True):
        find = _inner(said, tool, agent)
        said, tool = f"tool {named!r} of agent {agent!r}", find(named)
    return said, _defined(said, tool)


def _inner(said: str, tool: Tool[..., Any] | None, agent: str) -> FindTool:
    """How the tools of the agent behind this tool are found."""
    inner = _defined(said, tool).inner
    if inner is None:
        raise ToolChanged(
            f"{said} is no agent any more, and the pause is of one ({agent!r}), so what was shown is not what would "
            "run. The pause is kept: respond or decline instead"
        )
    return inner


def _defined(said: str, tool: Tool[..., Any] | None) -> Tool[..., Any]:
    if tool is None:
        raise ToolGone(
            f"{said} is not defined here, so it cannot be restarted. The pause is kept: define it (or pass it in "
            "tools=), or respond or decline instead"
        )
    return tool


def _event(turn: Turn, item: Answer | Part, now: float) -> Decided:
    if isinstance(item, Answer) and item.paused.foreign:
        return replace(_event(turn, item.part, now), by=item.event.by)
    if isinstance(item, Answer):
        event = item.event
        try:
            open_pause(turn, event.interrupt)
        except (UnknownInterrupt, NothingPaused):
            outcome = _outcome(turn, item.paused.tool_request)
            if outcome in _CLOSED:
                raise StaleInterrupt(
                    f"interrupt {event.interrupt} of tool {item.paused.name!r} is {outcome}. Nobody can decide on it any more; "
                    "nothing was changed"
                ) from None
            if outcome is not None:
                raise AlreadyResolved(
                    f"interrupt {event.interrupt} of tool {item.paused.name!r} was already answered. That counts; nothing was "
                    "changed"
                ) from None
            raise
        if item.after and isinstance(event, Restarted):
            event = Restarted(event.interrupt, event.metadata, event.input, event.by, now + item.after)
        return event
    call = meant(turn, item)
    if item.tool_response is not None:
        return _respond(call, item, item.tool_response)
    assert item.tool_request is not None
    return _restart(call, item, item.tool_request)


def meant(turn: Turn, part: Part) -> Call:
    """The paused call that a part of a resume decides on. Raises ResumeError where it fits none, or could be of two kinds."""
    response, request = part.tool_response, part.tool_request
    if response is not None and request is not None:
        raise ResumeError(
            "a part of a resume is a tool response or a tool request, and this one is both; it was not taken"
        )
    named = response or request
    if named is None:
        raise ResumeError(
            "a resume takes tool responses (to respond) and tool requests (to restart), and this part is neither"
        )
    return _find(turn, part, named)


def _respond(call: Call, part: Part, response: ToolResponse) -> Responded | Declined:
    interrupt = call.pause
    assert interrupt is not None
    if part.ours.get("declined"):
        given: Any = response.output
        return Declined(interrupt.id, str(cast(Any, given).get("reason", "") if isinstance(given, Mapping) else ""))
    kept = {k: v for k, v in (part.metadata or {}).items() if k not in (OURS, "interruptResponse")}
    return Responded(interrupt.id, to_json(response.output, "response"), to_json(kept, "response metadata") or None)


def _restart(call: Call, part: Part, request: ToolRequest) -> Restarted:
    metadata = part.metadata or {}
    assert call.pause is not None
    resumed = metadata.get("resumed")
    extra = None if resumed is True else to_json(resumed, "restart metadata")
    if canonical(to_json(request.input)) == canonical(call.input):
        return Restarted(call.pause.id, extra)
    if "replacedInput" in metadata and canonical(to_json(metadata["replacedInput"])) == canonical(call.input):
        return Restarted(call.pause.id, extra, to_json(request.input, "replaced input"))
    raise ModifiedInput(
        f"the restart of tool {request.name!r} carries modified inputs: a restart runs what was shown. To change the input, "
        "say so: restart(replace_input=...)"
    )


def _find(turn: Turn, part: Part, named: ToolRequest | ToolResponse) -> Call:
    ours: Any = (part.metadata or {}).get(OURS) or {}
    if not isinstance(ours, Mapping):
        raise ResumeError(f"the answer for tool {named.name!r} was altered: its metadata is not what Adjourn wrote")
    noted = cast(Mapping[str, Any], ours)
    pause: Any = noted.get("pause")
    known: Any = noted.get("interrupt") or (cast(Any, pause).get("id") if isinstance(pause, Mapping) else None)
    if known is not None:
        call = open_pause(turn, str(known))[1]
        if call.request.name != named.name or named.ref not in (None, call.request.ref):
            raise ResumeError(
                f"the answer names tool {named.name!r} (ref {named.ref}) and an interrupt of tool {call.request.name!r}; it was "
                "not taken"
            )
        return call
    for call in _named(turn, named):
        if call.request.name == named.name:
            if call.state == "paused":
                return call
            raise AlreadyResolved(
                f"tool {named.name!r} (ref {named.ref}) was already answered. That counts; nothing was changed"
            )
    if _outcome(turn, named) is not None:
        raise StaleInterrupt(
            f"tool {named.name!r} (ref {named.ref}) is no longer pending: it is not in the last model message"
        )
    if not turn.calls:
        raise NothingPaused(
            f"tool {named.name!r} (ref {named.ref}) was not found in session history as an open pause: the messages end in "
            "no pause. Pass response.messages, or leave messages= out"
        )
    raise UnknownInterrupt(
        f"tool {named.name!r} (ref {named.ref}) was not found in session history: answer one of its open `interrupts`"
    )


def _named(turn: Turn, named: ToolRequest | ToolResponse) -> list[Call]:
    if named.ref is not None:
        return [c for c in turn.calls if c.request.ref == named.ref]
    found = [c for c in turn.calls if c.request.name == named.name and c.state == "paused"]
    if len(found) > 1:
        raise ResumeError(
            f"tool {named.name!r} has {len(found)} open calls and the answer names none by its ref; answer through "
            "response.interrupts"
        )
    return found


def _outcome(turn: Turn, named: ToolRequest | ToolResponse) -> str | None:
    """How a request that is closed was closed ("answered", "cancelled", "expired" ...); None where it is unknown or open."""
    if named.ref is None:
        return None
    for messages in (turn.added, turn.history):
        for message in reversed(messages):
            for part in message.content if message.role == "tool" else ():
                response = part.tool_response
                if response is not None and response.name == named.name and response.ref == named.ref:
                    return str(part.ours.get("outcome") or "answered")
    return None
