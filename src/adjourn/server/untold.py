"""What an exception of a tool or a model said, and who is told.

Such a text is nobody's choice: a driver's has a host and a user in it, a provider's a piece of a key. Those who look after
everybody's work need it; a customer who talks to an agent does not. So whoever sees everybody's sessions is told, and all
others that it failed, what failed, and which kind of error that is. What we say ourselves (a limit, an abort) everybody is
told, and so is what a tool gives to the model or shows with its pause: that was chosen.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from adjourn import errors
from adjourn.events import Event, ToolRaised, TurnEnded
from adjourn.importing import Stored
from adjourn.parts import ErrorInfo, wire
from adjourn.server.principal import Principal
from adjourn.timeline import Entry, Recorded

_FOREIGN = {"ToolFailed": "a tool", "ModelError": "the model", "HandlerFailed": "a handler of the application"}
_TREE = {n for n, e in vars(errors).items() if inspect.isclass(e) and issubclass(e, errors.AdjournError)}
_OURS = (_TREE | {"Aborted", "Superseded", "Expired"}) - set(_FOREIGN)
_WHERE = "whoever sees everybody's sessions is told what the error said"


def is_told(principal: Principal) -> bool:
    """Whether this principal is told what exceptions said: it sees the work of everybody."""
    return principal.owner_scope is None and principal.interrupts is None


def untold(error: ErrorInfo) -> ErrorInfo:
    """The error without what an exception said; one that is all our own as it is."""
    if error.kind in _OURS:
        return error
    given: object = error.details
    tool = cast(Mapping[str, Any], given).get("tool") if isinstance(given, Mapping) else None
    what = f"tool {tool!r}" if isinstance(tool, str) else _FOREIGN.get(error.kind or "", "something")
    return ErrorInfo(error.status, f"{what} failed; {_WHERE}", error.kind, {"tool": tool} if tool is not None else None)


def untold_entries(entries: Sequence[Entry]) -> Sequence[Entry]:
    """A timeline, likewise; and without what an engine did, which names machines."""
    return [_entry(e) for e in entries if e.kind != "engine"]


def _entry(entry: Entry) -> Entry:
    if "worker" in entry.facts:
        entry = replace(entry, facts={k: v for k, v in entry.facts.items() if k != "worker"})
    given: Any = entry.facts.get("error")
    if entry.kind not in ("tool", "end") or not isinstance(given, Mapping) or "status" not in given:
        return entry
    error = msgspec.convert(given, ErrorInfo)
    told = untold(error)
    if told is error:
        return entry
    title = entry.title.partition(": ")[0] if entry.kind == "end" else entry.title
    return replace(entry, title=title, facts={**entry.facts, "error": wire(told)})


def untold_commit(recorded: Recorded) -> Recorded:
    """One commit of a session's journal, likewise."""
    return replace(recorded, events=[_event(e) for e in recorded.events])


def _event(event: Event) -> Event:
    if isinstance(event, TurnEnded) and event.error is not None:
        return replace(event, error=untold(event.error))
    if isinstance(event, ToolRaised) and event.to == "caller":
        return replace(event, error=untold(event.error))
    return event


def untold_line(line: bytes) -> bytes:
    """An exported session, likewise; it is read back as it is."""
    stored = msgspec.json.decode(line, type=Stored)
    snapshots = [
        replace(s, error=s.error and untold(s.error), ran=()) if s.error is not None or s.ran else s
        for s in stored.snapshots
    ]
    batches = {
        name: [replace(b, events=[_event(e) for e in b.events]) for b in kept] for name, kept in stored.batches.items()
    }
    return msgspec.json.encode(replace(stored, snapshots=snapshots, batches=batches))
