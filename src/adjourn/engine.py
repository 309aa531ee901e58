"""The seam for engines: systems outside this process that make turns survive machines.

A leg that an engine runs is begun as every other one is: a message or decisions are checked and committed through the
ledger, by whichever process they come to. Only then the engine is told (`wake`). Its workers take the steps of the turn,
each one committed to the same store, and whoever began the leg waits until its snapshot rests. So the store has the truth,
the rules stay in the turn machine and the ledger, and an engine is no more than whoever sees to it that somebody goes on.

What an engine keeps of a turn is thin: ids, names, counts and fingerprints, never what was said. The turn machine decides
on a thin turn what it would decide on the whole one, since its rules compare contents and never read them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from adjourn.events import (
    CallRejected,
    Declined,
    Event,
    Json,
    Limits,
    ModelReplied,
    OutputRejected,
    Pause,
    Responded,
    Restarted,
    ToolInterrupted,
    ToolRaised,
    ToolReturned,
    ToolStarted,
    TurnEnded,
    UserSaid,
)
from adjourn.ledger import Leg, Write, save
from adjourn.loading import load, stand
from adjourn.parts import ErrorInfo, Message, Part, digest
from adjourn.state import Finished, Paused, Turn
from adjourn.store import Tx
from adjourn.stream import Watcher
from adjourn.tool import Tool
from adjourn.turn import next_step, record


class Trait(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine has to know of a tool to run one of its calls."""

    idempotent: bool = False
    alone: bool = False


class Work(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What there is to do: a leg that has begun, or has been ended.

    `id` is the turn's, or, in a branch, that of the snapshot with which the branch begins. `events` are the thin events of the
    turn from number `first` on, as far as whoever wakes the engine knows them. `rested` says that the leg rests already.
    `live` is where a watcher listens.
    """

    id: str
    session_id: str
    snapshot_id: str
    agent: str
    limits: Limits = Limits()
    first: int = -1
    events: tuple[Event, ...] = ()
    traits: Mapping[str, Trait] = {}
    rested: bool = False
    context: Json = None
    live: str = ""


class Deed(msgspec.Struct, frozen=True):
    """One thing that an engine did for a turn, as it remembers it. `work` is the id of the `Work`; `facts` are ids, names and
    numbers, never what was said.
    """

    work: str
    at: float
    title: str
    facts: dict[str, Json] = {}


class Line(Protocol):
    """Where the live news of one leg arrive, as far as they do.

    `rang` is set when there is reason to look at the store; `heard` once a worker called.
    """

    address: str
    rang: asyncio.Event
    heard: bool

    def hang_up(self, reason: str = "") -> None:
        """No more is wanted. With a reason, whatever runs for the leg is told to stop, for that reason."""
        ...


class Engine(Protocol):
    """What moves turns on. `holder` is who holds the lease of a leg that the engine runs, whichever worker that is."""

    holder: str

    async def wake(self, work: Work) -> None:
        """Says that there is something to do. Durable when it returns; harmless when it is said again."""
        ...

    async def listen(self, watcher: Watcher | None) -> Line:
        """A line for one leg; its chunks go to the watcher."""
        ...

    async def recount(self, works: Sequence[str]) -> Sequence[Deed]:
        """What it did for the work with these ids, oldest first, as far as it remembers. Raises what its client raises."""
        ...

    async def aclose(self) -> None: ...


# -- thin turns ------------------------------------------------------------------------------------------------------


def thin(event: Event) -> Event:
    """The event with all contents replaced by their fingerprints: the turn machine treats it just as the whole one."""
    make = _THIN.get(type(event))
    return event if make is None else make(event)


def _model_replied(event: ModelReplied) -> Event:
    requests = [p.tool_request for p in event.message.content if p.tool_request is not None]
    parts = [Part(tool_request=replace(r, input=digest(r.input))) for r in requests]
    return replace(event, message=Message(event.message.role, parts))


def _tool_returned(event: ToolReturned) -> Event:
    return replace(event, output=digest(event.output), content=None, metadata=None)


def _tool_raised(event: ToolRaised) -> Event:
    return replace(event, error=_error(event.error))


def _tool_interrupted(event: ToolInterrupted) -> Event:
    pause = event.pause
    default = {"respond": None} if isinstance(pause.on_expiry, Mapping) else pause.on_expiry
    thin_pause = Pause(
        pause.id, digest(pause.payload), None, pause.allow, pause.reason, pause.expires_at, default, "", pause.path
    )
    return replace(event, pause=thin_pause)


def _restarted(event: Restarted) -> Event:
    given = UNSET if event.input is UNSET else digest(event.input)
    return Restarted(event.interrupt, None, given, None, event.due)


def _turn_ended(event: TurnEnded) -> Event:
    return event if event.error is None else replace(event, error=_error(event.error))


def _error(error: ErrorInfo) -> ErrorInfo:
    return ErrorInfo(error.status, "", error.kind)


_THIN: Mapping[type, Callable[[Any], Event]] = {
    UserSaid: lambda e: UserSaid(Message(e.message.role, ())),
    ModelReplied: _model_replied,
    ToolReturned: _tool_returned,
    CallRejected: lambda e: replace(e, message=""),
    ToolRaised: _tool_raised,
    ToolInterrupted: _tool_interrupted,
    OutputRejected: lambda e: OutputRejected(""),
    Responded: lambda e: Responded(e.interrupt, digest(e.output)),
    Restarted: _restarted,
    Declined: lambda e: Declined(e.interrupt),
    TurnEnded: _turn_ended,
}


def traits_of(turn: Turn, find_tool: Callable[[str], Tool[..., Any] | None]) -> dict[str, Trait]:
    """The traits of the tools whose calls may run next, by call id."""
    out: dict[str, Trait] = {}
    for call in turn.calls:
        tool = find_tool(call.request.name)
        if tool is not None and (tool.options.idempotent or tool.options.sequential):
            out[call.id] = Trait(tool.options.idempotent, tool.options.sequential)
    return out


# -- what both whoever begins a leg and a worker do ------------------------------------------------------------------


def resting(turn: Turn, handled: bool) -> tuple[Turn, list[Event], Paused | Finished | None]:
    """The turn, with the event that ends it where it is at its end; and whether it rests there.

    `handled` says that handlers have yet to be asked about pauses, so that a pause is no rest.
    """
    step = next_step(turn)
    if isinstance(step, Finished):
        if turn.ended is not None:
            return turn, [], step
        return record(turn, step.end), [step.end], step
    return turn, [], step if isinstance(step, Paused) and not handled else None


class Place(msgspec.Struct, frozen=True):
    """Where a leg stands among those of its turn: how many events the turn has, and the id that the engine knows it by."""

    events: int
    id: str


def place_of(tx: Tx, leg: Leg) -> Place:
    """Where a leg that is about to be committed stands."""
    at = leg.snapshot_id if leg.batches else leg.parent_id
    chain = [s for s in (tx.chain(at) if at is not None else []) if s.turn_id == leg.turn_id]
    branch = leg.snapshot_id if leg.branch else next((s.id for s in reversed(chain) if s.branch), leg.turn_id)
    return Place(len(tx.events([s.id for s in chain])) if chain else 0, branch)


class Limited(Protocol):
    """The agent, as far as the end of its turns needs it."""

    limits: Limits

    def find_tool(self, name: str) -> Tool[..., Any] | None: ...


def end_leg(tx: Tx, snapshot_id: str, agent: Limited, reason: str, now: float, lease: float) -> Work | None:
    """Ends the leg's turn in the store, whoever runs it. None where it rests already, or is gone."""
    row = tx.snapshot(snapshot_id)
    if row is None or tx.session(row.session_id) is None:  # which locks it, so that what follows sees the newest state
        return None
    loaded = load(tx, row.session_id, snapshot_id)
    if loaded is None or loaded.chain[-1].status != "pending" or loaded.session.head != snapshot_id:
        return None
    row = loaded.chain[-1]
    turn = stand(loaded, agent.limits).turn
    if turn is None:
        return None
    end = TurnEnded("aborted", ErrorInfo("CANCELLED", reason, "Aborted"))
    leg = Leg(
        row.session_id, row.id, row.turn_id, row.agent, loaded.session.holder or "", row.created, row.parent_id,
        loaded.session.owner, 0, row.batches, row.branch, open=open_in(turn), force=True, trace=row.trace,
        engine=row.engine, ran=row.ran, queued=row.queued,
    )  # fmt: skip
    place = place_of(tx, leg)
    # Of an idempotent tool it is not written down when it starts: whoever runs the leg may have started it.
    events: list[Event] = [
        ToolStarted(c.id) for c in turn.calls if c.state == "ready" and _idempotent(agent.find_tool(c.request.name))
    ]
    events.append(end)
    for event in events if turn.ended is None else ():
        turn = record(turn, event)
    save(tx, Write(leg, turn, events, Finished(end), now, lease, row.state, row.artifacts))
    thinned = tuple([thin(e) for e in events])
    return Work(place.id, row.session_id, row.id, row.agent, agent.limits, place.events, thinned, rested=True)


def _idempotent(tool: Tool[..., Any] | None) -> bool:
    return tool is not None and tool.options.idempotent


def open_in(turn: Turn) -> frozenset[str]:
    """The interrupts that wait in this turn."""
    return frozenset([c.pause.id for c in turn.paused if c.pause is not None])
