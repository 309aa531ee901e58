"""Stands where the driver of a leg stands, when an engine runs it: begins the leg, wakes the engine, waits, reads back."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

import adjourn.errors as errors
from adjourn.conversation import Conversation
from adjourn.engine import Engine, Line, Work, end_leg, open_in, place_of, resting, thin, traits_of
from adjourn.errors import AdjournError, DefinitionError, InvalidRequest, SessionNotFound, StoreUnavailable
from adjourn.events import Event, Json, TurnEnded
from adjourn.lease import transact
from adjourn.ledger import Leg
from adjourn.leg import LegJournal
from adjourn.loading import load, stand
from adjourn.loop import Driver, paused_call
from adjourn.notices import Notices
from adjourn.parts import Chunk, ErrorInfo, encode, new_id, to_json
from adjourn.records import INNER
from adjourn.schema import Misfit
from adjourn.setting import Setting
from adjourn.state import Finished, Paused, Turn
from adjourn.store import Tx
from adjourn.stream import Watcher
from adjourn.turn import begin, next_step, record

_log = logging.getLogger("adjourn.engine")

CONTEXT_BYTES = 64 * 1024
"""How large the `context=` of a leg may be, which travels through the engine."""
_PATIENCE = 60.0
"""Seconds for which a store may be away from whoever waits for a turn."""


def driver_of(turn: Turn, setting: Setting, journal: LegJournal | None, at: Conversation) -> "Driver | Remote":
    """What runs this leg: the driver in this process, or the application's engine.

    A nested agent's session has no engine of its own: it runs where the tool call around it runs.
    """
    engine = journal.agent.engine if journal is not None and not journal.leg.session_id.startswith(INNER) else None
    return Driver(turn, setting) if engine is None or journal is None else Remote(turn, setting, engine, journal, at)


class Remote:
    """Stands where the driver of a leg stands, when an engine runs the leg.

    It begins the leg in the store, wakes the engine, waits until the leg rests, and reads what came of it.
    """

    def __init__(self, turn: Turn, setting: Setting, engine: Engine, journal: LegJournal, at: Conversation) -> None:
        self.turn = turn
        self.setting = setting
        self.cause: BaseException | None = None
        self.value: Any = None
        self._engine = engine
        self._agent = journal.agent
        self._at = at
        self._journal = journal
        self._store = journal.store
        journal.leg = replace(journal.leg, holder=engine.holder, engine=engine.holder)
        self._events: list[Event] = []
        self._begun = at.unfinished is not None and at.held_by == engine.holder
        self._watcher = setting.sink if isinstance(setting.sink, Watcher) else None
        self._known = open_in(turn)
        self._told = False
        self._line: Line | None = None
        self._rest: Paused | Finished | None = None

    def taken(self, turn: Turn, events: Sequence[Event], *, before: Turn | None = None, decided: bool = True) -> None:
        """What the leg begins with."""
        self.turn = turn
        self._events = list(events)

    async def begin(self) -> Work:
        """Puts the beginning of the leg into the store; returns what there is to do now."""
        setting, leg = self.setting, self._journal.leg
        context = _context(setting.context)
        place = await transact(self._store, partial(place_of, leg=leg), read=True)
        agent = self._agent
        work = Work(place.id, leg.session_id, leg.snapshot_id, agent.name, agent.limits, context=context)
        if not self._begun:
            first, events = place.events, self._events
            while True:
                self.turn, more, self._rest = resting(self.turn, setting.handlers is not None)
                news = await self._journal.commit(self.turn, [*events, *more], self._rest)
                self._events = [*self._events, *more]
                if not news or isinstance(self._rest, Finished):
                    break
                self._events, events = [*self._events, *news], list(news)
                for event in news:
                    self.turn = record(self.turn, event)
            thinned = tuple([thin(e) for e in self._events])
            traits = traits_of(self.turn, agent.find_tool)
            work = replace(work, first=first, events=thinned, traits=traits, rested=self._rest is not None)
        return work

    async def hand_over(self) -> "tuple[Work, asyncio.Task[Any] | None]":
        """Begins the leg, for workers to run and nobody to wait for. Where somebody observes, the task sees it to its rest."""
        setting, before = self.setting, self.turn
        work = await self.begin()
        if not setting.observers:
            return work, None
        if self._rest is None:
            self._line = await self._engine.listen(None)
            work = replace(work, live=self._line.address)
        ready = asyncio.get_running_loop().create_future()

        async def see() -> Paused | Finished:
            try:
                if setting.trace is not None:  # before a worker takes a step of it
                    await transact(self._store, partial(_traced, leg=self._journal.leg, trace=setting.trace))
            finally:
                ready.set_result(None)
            try:
                if self._rest is None:
                    await self._until_rest(asyncio.Event())
                return await self._read_back()
            finally:
                if self._line is not None:
                    self._line.hang_up()

        seeing = asyncio.create_task(Notices(setting).leg(before, see, lambda: self.turn))
        await ready
        return work, seeing

    async def flush(self) -> None:
        """Returns when the leg is in the store, and the engine has been told."""
        if self._told:
            return
        self._told = True
        work = await self.begin()
        if self._rest is None:
            self._line = await self._engine.listen(self._watcher)
            work = replace(work, live=self._line.address)
        await self._wake(work)

    async def _wake(self, work: Work) -> None:
        try:
            await self._engine.wake(work)
        except Exception as e:  # noqa: BLE001 - the leg is durable, and whoever sweeps wakes the engine again
            _log.warning("the engine was not told of snapshot %s, which is kept: %s", work.snapshot_id, e)

    async def run(self) -> Paused | Finished:
        """Returns when the leg rests. Cancelling whoever waits leaves the turn alone; the abort signal ends it."""
        if not self.setting.observers:
            return await self._run()
        return await Notices(self.setting).leg(self.turn, self._run, lambda: self.turn)

    async def _run(self) -> Paused | Finished:
        await self.flush()
        signal = self.setting.signal
        loop = asyncio.get_running_loop()
        aborted = asyncio.Event()

        def ring() -> None:
            loop.call_soon_threadsafe(aborted.set)

        forget = signal.on_abort(ring) if signal is not None else None
        try:
            if self._rest is None:
                await self._until_rest(aborted)
            return await self._read_back()
        finally:
            if forget is not None:
                forget()
            if self._line is not None:
                self._line.hang_up()

    async def _until_rest(self, aborted: asyncio.Event) -> None:
        line, longest = self._line, self._store.lease_seconds / 3
        assert line is not None
        pause, silent_since = longest / 16, 0.0
        while True:
            line.rang.clear()
            try:
                if self.setting.signal is not None and self.setting.signal.aborted:
                    await self._abort(self.setting.signal.reason, line)
                if await transact(self._store, self._status, read=True) != "pending":
                    return
                silent_since = 0.0
            except StoreUnavailable:
                # The turn goes on without us. We wait for a store that is restarted, but not for ever.
                now = self.setting.clock.monotonic()
                silent_since = silent_since or now
                if now - silent_since > _PATIENCE:
                    raise
            # What rings can be lost, and so can what wakes the engine; looking again costs one read. The store's own
            # notices are not used: each commit of any session would wake everybody who waits.
            await _first(line.rang, aborted, timeout=pause)
            aborted.clear()
            pause = min(pause * 2, longest)

    def _status(self, tx: Tx) -> str:
        row = tx.snapshot(self._journal.leg.snapshot_id)
        if row is None:
            raise SessionNotFound(f"session {self._journal.leg.session_id!r} was deleted while its turn ran")
        return row.status

    async def _abort(self, reason: str, line: Line) -> None:
        now = self.setting.clock.now()
        leg, lease = self._journal.leg, self._store.lease_seconds
        work = partial(end_leg, snapshot_id=leg.snapshot_id, agent=self._agent, reason=reason, now=now, lease=lease)
        ended = await transact(self._store, work)
        if ended is not None:
            line.hang_up(reason)
            await self._wake(ended)

    async def _read_back(self) -> Paused | Finished:
        leg = self._journal.leg

        def read(tx: Tx) -> Any:
            loaded = load(tx, leg.session_id, leg.snapshot_id)
            if loaded is None or not loaded.chain:
                raise SessionNotFound(f"session {leg.session_id!r} was deleted while its turn ran")
            return loaded, tx.events([s.id for s in loaded.chain if s.turn_id == leg.turn_id])

        loaded, events = await transact(self._store, read, read=True)
        standing = stand(loaded, self._agent.limits)
        turn = begin((), self._agent.limits)
        for event in events:
            turn = record(turn, event)
        history = standing.history
        if standing.turn is None:  # what it closed is in there already
            history = history[: len(history) - len(turn.added)]
        self.turn = turn = replace(turn, history=history)
        self._journal.queue, self._journal.put_back = loaded.queue, loaded.put_back
        self._at.state = standing.state
        self._at.artifacts = {a.name or new_id("a_"): a for a in standing.artifacts}
        step = next_step(turn)
        assert isinstance(step, (Paused, Finished)), "a leg that rests is paused or finished"
        self._tell(step)
        if isinstance(step, Finished):
            self._finished(step.end)
        return step

    def _tell(self, step: Paused | Finished) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        if (
            self._line is not None and not self._line.heard
        ):  # nothing came through the line: the journal has it all the same
            index = 0
            for message in self.turn.added:
                if message.role in ("model", "tool") and message.text:
                    watcher(Chunk(message.role, index, [p for p in message.content if p.tool_request is None]))
                    index += 1
        for call in step.calls if isinstance(step, Paused) else ():
            if call.pause is not None and call.pause.id not in self._known:
                watcher(paused_call(call))

    def _finished(self, end: TurnEnded) -> None:
        shape = self.setting.output
        last = self.turn.added[-1] if self.turn.added else None
        if shape is not None and end.error is None and last is not None and last.role == "model":
            try:
                self.value = shape.parse(last.text)
            except Misfit:
                self.value = None
        if end.error is not None:
            self.cause = _as_raised(end.error)


def _traced(tx: Tx, leg: Leg, trace: str) -> None:
    """Keeps the traceparent of a leg that has begun already."""
    tx.session(leg.session_id)  # which locks it, so that no worker's commit is lost
    row = tx.snapshot(leg.snapshot_id)
    if row is not None:
        tx.put_snapshot(replace(row, trace=trace))


def _as_raised(error: ErrorInfo) -> BaseException | None:
    """What the worker saw, as far as its kind tells: a mistake in the program is raised as what it is."""
    kind = getattr(errors, error.kind, None) if error.kind in errors.__all__ else None
    if isinstance(kind, type) and issubclass(kind, (DefinitionError, InvalidRequest)):
        made: Any = kind.__new__(kind)
        Exception.__init__(made, error.message)
        return made if isinstance(made, AdjournError) else None
    return None


def _context(context: Any) -> Json:
    if context is None:
        return None
    value = to_json(context, "context")
    if len(encode(value)) > CONTEXT_BYTES:
        raise InvalidRequest(
            f"context= travels through the engine, so it may have {CONTEXT_BYTES:,} bytes as JSON; nothing was run. Pass an "
            "id, and let the tools look the rest up"
        )
    return value


async def _first(*events: asyncio.Event, timeout: float) -> None:
    tasks = [asyncio.ensure_future(e.wait()) for e in events]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
