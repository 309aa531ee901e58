"""A leg in its store, as the workers of an engine see it: reading where it stands, and committing what came of a step.

Several workers may be about the same leg at once: calls of one message run beside each other, and a worker that was given
up for dead may still be alive. So nobody commits the state it has in mind. A commit reads the journal in its own
transaction, under the lock of the session, sees whether its step is still the one that is asked for, adds its events to
what is there, and says what the turn has come to. Whoever comes too late changes nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from adjourn.agent import Agent
from adjourn.engine import Trait, open_in, resting, thin, traits_of
from adjourn.errors import ResumeError
from adjourn.events import Event, Json, Limits, ToolStarted
from adjourn.ledger import Leg, Write, save
from adjourn.loading import load as load_session
from adjourn.loading import next_of, stand
from adjourn.parts import Artifact
from adjourn.records import Ran
from adjourn.settling import as_event
from adjourn.state import Call, Finished, Turn
from adjourn.store import Decision, SessionRecord, Snapshot, Tx
from adjourn.turn import record

_KEPT = 256
_WORKERS = 50
_PAGE = 2000
"""How many events travel at once: so many are far below what a payload may hold."""


class Ask(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One step of a leg. `position` is how many events of the turn the engine knows.

    `call` is the call to run, `lost` are calls whose workers are gone.
    """

    session_id: str
    snapshot_id: str
    agent: str
    position: int = 0
    call: str | None = None
    lost: tuple[str, ...] = ()
    context: Json = None
    live: str = ""


class Told(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Where the turn stands after a step: its thin events from number `first` on, and whether it rests with them.

    `gone`: the leg is somebody else's by now, or was deleted. `busy`: the step still runs, on the worker with this queue.
    `more`: these are not all the events there are. `anew`: the store is behind what the engine knew, since somebody put it
    back to an earlier moment; these are its events from the beginning.
    """

    first: int
    events: tuple[Event, ...] = ()
    snapshot_id: str = ""
    rested: bool = False
    gone: bool = False
    busy: str = ""
    limits: Limits = Limits()
    traits: Mapping[str, Trait] = {}
    more: bool = False
    anew: bool = False


class View(msgspec.Struct, frozen=True):
    """Where the newest leg of a turn stands. `held` says that the engine has its lease. `thinned` are all its turn's events."""

    session: SessionRecord
    row: Snapshot
    turn: Turn
    thinned: tuple[Event, ...]
    state: Json
    artifacts: tuple[Artifact, ...]
    held: bool

    @property
    def position(self) -> int:
        return len(self.thinned)

    def call(self, call_id: str | None) -> Call | None:
        return next((c for c in self.turn.calls if c.id == call_id), None)

    def starts(self, call_id: str) -> int:
        """How often this call's body was begun."""
        return sum(isinstance(e, ToolStarted) and e.call == call_id for e in self.thinned)


class Changes(msgspec.Struct, frozen=True):
    """What a step changed of the session beside its events."""

    state: Any = UNSET
    artifacts: tuple[Artifact, ...] = ()
    inner: tuple[str, ...] = ()


Check = Callable[[View], bool]


class Legs:
    """The legs that this worker is about. It remembers turns, so that a step does not read a whole conversation again."""

    def __init__(self, holder: str, worker: str) -> None:
        self.worker = worker
        self._holder = holder
        self._known: OrderedDict[str, tuple[int, View]] = OrderedDict()

    def view(self, tx: Tx, ask: Ask, limits: Limits) -> View | None:
        """Where the turn stands now; None where it is gone."""
        session = tx.session(ask.session_id)
        row = tx.snapshot(ask.snapshot_id)
        if session is None or row is None:
            return None
        while session.head != row.id and (after := next_of(tx, session.id, row.id)) is not None:
            following = tx.snapshot(after)
            if following is None or following.turn_id != row.turn_id:
                break
            row = following
        held = session.head == row.id and session.pending and session.holder == self._holder
        known = self._known.get(row.id)
        if known is not None and known[0] == row.batches:
            state = known[1].state if row.state is UNSET else row.state
            return replace(known[1], session=session, row=row, held=held, state=state, artifacts=_merged(known[1], row))
        return _read(tx, session, row, limits, held)

    def remember(self, view: View) -> None:
        """For the next step of this leg."""
        self._known[view.row.id] = (view.row.batches, view)
        self._known.move_to_end(view.row.id)
        if view.row.parent_id is not None:
            self._known.pop(view.row.parent_id, None)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def told(self, view: View | None, ask: Ask, agent: Agent) -> Told:
        """What the engine gets to know."""
        if view is None:
            return Told(ask.position, gone=True)
        anew = view.position < ask.position
        first = 0 if anew else ask.position
        more = view.position > first + _PAGE
        rests = view.row.status != "pending"
        return Told(
            first,
            view.thinned[first : first + _PAGE],
            view.row.id,
            rests and not more,
            not (rests or view.held),
            "",
            view.turn.limits,
            traits_of(view.turn, agent.find_tool),
            more,
            anew,
        )


def _read(tx: Tx, session: SessionRecord, row: Snapshot, limits: Limits, held: bool) -> View:
    loaded = load_session(tx, session.id, row.id)
    assert loaded is not None
    standing = stand(loaded, limits)
    turn, events = standing.turn, loaded.events
    if turn is None:  # it is over: only its events are of interest
        events = tx.events([s.id for s in loaded.chain if s.turn_id == row.turn_id])
        turn = Turn(limits=limits)
        for event in events:
            turn = record(turn, event)
    return View(session, row, turn, tuple([thin(e) for e in events]), standing.state, standing.artifacts, held)


def _merged(known: View, row: Snapshot) -> tuple[Artifact, ...]:
    named = {a.name: a for a in row.artifacts}
    return (*[a for a in known.artifacts if a.name not in named], *row.artifacts) if row.artifacts else known.artifacts


class Kept(msgspec.Struct, frozen=True):
    """What became of a commit. `done` is false where the step was no longer asked for, and nothing was kept."""

    view: View | None
    done: bool = True


class Hand(msgspec.Struct, frozen=True):
    """Who commits: the worker by its name, what time it is there, and how long it holds the lease then."""

    worker: str
    now: float
    lease_seconds: float


def keep(tx: Tx, view: View | None, add: Sequence[Event], changes: Changes, handled: bool, hand: Hand) -> Kept:
    """Commits the events of a step, and the rest or end that follows from them.

    `handled` says that handlers have yet to be asked about pauses. Raises what `save` raises, and then nothing is kept.
    """
    if view is None or not view.held:
        return Kept(view, False)
    turn = view.turn
    try:
        for event in add:
            turn = record(turn, event)
    except ResumeError:
        return Kept(view, False)
    turn, more, rest = resting(turn, handled)
    events: list[Event] = [*add, *more]
    if not events and rest is None:
        return Kept(view)
    leg, applying = _leg(view), dict[str, Decision]()
    leg = replace(leg, ran=_ran(leg, hand.worker))
    row, all_events = view.row, list(events)
    state = row.state if changes.state is UNSET else changes.state
    named = {a.name: a for a in changes.artifacts if a.name is not None}
    artifacts = (*[a for a in row.artifacts if a.name not in named], *changes.artifacts)
    while True:
        write = Write(
            leg, turn, events, rest, hand.now, hand.lease_seconds, state, artifacts, applying, None, None, changes.inner
        )  # fmt: skip
        saved = save(tx, write)
        leg = saved.leg
        if not saved.news or isinstance(rest, Finished):
            break
        applying = {d.interrupt_id: d for d in saved.news}
        events = [as_event(d) for d in saved.news]
        for event in events:
            turn = record(turn, event)
        turn, more, rest = resting(turn, handled)
        events += more
        all_events += events
    status = "pending" if rest is None else "completed"  # or failed, or aborted: it rests
    after = replace(
        row, batches=leg.batches, status=status, state=state, artifacts=artifacts, engine=leg.engine, ran=leg.ran
    )
    thinned = (*view.thinned, *[thin(e) for e in all_events])
    now_state = view.state if changes.state is UNSET else changes.state
    held = rest is None
    return Kept(View(view.session, after, turn, thinned, now_state, _merged(view, after), held))


def _ran(leg: Leg, worker: str) -> tuple[Ran, ...]:
    """Who ran the leg, this commit included. Of very many changes the newest are kept."""
    if leg.ran and leg.ran[-1].worker == worker:
        return leg.ran
    return (*leg.ran[-_WORKERS:], Ran(leg.batches, worker))


def _leg(view: View) -> Leg:
    row = view.row
    return Leg(
        row.session_id, row.id, row.turn_id, row.agent, view.session.holder or "", row.created, row.parent_id,
        view.session.owner, view.session.epoch, row.batches, row.branch, open=open_in(view.turn), trace=row.trace,
        engine=row.engine or view.session.holder or "", ran=row.ran,
        queued=row.queued,
    )  # fmt: skip


def lease_of(view: View) -> Leg:
    """The leg, for renewing its lease."""
    return _leg(view)
