"""The workflow of one turn: the turn machine, and who is asked to do what it says.

The workflow holds a thin turn (see `adjourn.engine`) and asks `next_step` what has to happen. Each step is an activity that
does it, commits it to the store and says what the journal has now; the workflow records that and asks again. It learns
the same way of what was decided elsewhere. So it can be replayed, evicted, or started anew from the store alone.

What it does must be the same at every replay. Change it only behind `workflow.patched`, and keep the histories in
tests/engines/histories replaying.
"""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
from msgspec.structs import replace
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from adjourn.engine import Trait, Work
from adjourn.engines.stored import Ask, Told
from adjourn.errors import ResumeError
from adjourn.events import Event, TurnEnded
from adjourn.state import Call, CallModel, Finished, Paused, RunTools, Turn
from adjourn.turn import begin, next_step, record

TURN = "adjourn.turn"
MODEL, TOOL, HANDLE, LOOK, EXPIRE = (
    "adjourn.model",
    "adjourn.tool",
    "adjourn.handle",
    "adjourn.look",
    "adjourn.expire",
)
WOKEN = "woken"

_SHORT = timedelta(minutes=1)


class Timing(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Bounds of what a worker does, in seconds: `longest` of one step, `heartbeat` after which a silent worker is given up.

    `model_attempts` of a model that fails in a way that may pass; `backoff` is before the second, and doubles.
    """

    longest: float = 24 * 3600.0
    heartbeat: float = 30.0
    model_attempts: int = 3
    backoff: float = 1.0


class Carried(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a long turn takes along into its next run."""

    turn: Turn
    position: int
    rested: bool
    traits: dict[str, Trait]


class Start(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    work: Work
    timing: Timing = Timing()
    carried: Carried | None = None


@workflow.defn(name=TURN)
class TurnWorkflow:
    """One turn of an agent, through any number of pauses."""

    @workflow.init
    def __init__(self, start: Start) -> None:
        work, carried = start.work, start.carried
        self._timing = start.timing
        self._work = work
        self._news: list[Work] = []
        self._turn = begin((), work.limits)
        self._position = 0
        self._rested = False
        self._behind = False
        self._gone = False
        self._misses = 0
        self._traits: dict[str, Trait] = {}
        if carried is not None:
            self._turn, self._position, self._rested = carried.turn, carried.position, carried.rested
            self._traits = dict(carried.traits)
        else:
            self._hear(work)

    @workflow.signal(name=WOKEN)
    def woken(self, work: Work) -> None:
        """There is something to do in the store."""
        self._news.append(work)

    @workflow.run
    async def run(self, start: Start) -> str:
        while True:
            self._listen()
            if self._gone:
                return "gone"
            if self._behind:
                self._behind = False
                await self._do(LOOK)
                continue
            if workflow.info().is_continue_as_new_suggested():
                carried = Carried(self._turn, self._position, self._rested, self._traits)
                workflow.continue_as_new(Start(self._work, self._timing, carried))
            step = next_step(self._turn)
            if isinstance(step, CallModel):
                await self._do(MODEL)
            elif isinstance(step, RunTools):
                await self._run_tools(step.calls)
            elif isinstance(step, Paused):
                await (self._wait(step) if self._rested else self._do(HANDLE))
            elif isinstance(step, Finished):
                if self._turn.ended is not None:
                    return self._turn.ended.reason
                await self._do(HANDLE)
            else:
                running = [c.id for c in self._turn.calls if c.state == "running"]
                await self._do(LOOK, lost=running)  # none of our workers runs them any more

    # -- what is known -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        news, self._news = self._news, []
        for work in news:
            self._hear(work)

    def _hear(self, work: Work) -> None:
        if work.first < 0 or work.first > self._position:
            self._behind = True  # it has happened in the store, and nobody told us what
            if work.first >= 0:
                self._work = work
            elif work.live:
                self._work = replace(self._work, live=work.live)
            return
        if work.first + len(work.events) > self._position:
            self._work = work
        self._traits.update(work.traits)
        self._record(work.first, work.events, work.rested)

    def _learn(self, told: Told) -> None:
        self._gone = told.gone
        end = told.first + len(told.events)
        if end < self._position:
            return
        if told.snapshot_id and told.snapshot_id != self._work.snapshot_id:
            self._work = replace(self._work, snapshot_id=told.snapshot_id)
        self._traits.update(told.traits)
        self._record(told.first, told.events, told.rested)
        self._turn = replace(self._turn, limits=told.limits)

    def _record(self, first: int, events: Sequence[Event], rested: bool) -> None:
        end = first + len(events)
        if end < self._position or (end == self._position and not rested):
            return
        try:
            for event in events[self._position - first :]:
                self._turn = record(self._turn, event)
                self._position += 1
        except ResumeError:
            # What we know cannot be what happened. The store has it all.
            self._turn, self._position, self._behind = begin((), self._turn.limits), 0, True
            return
        self._rested = rested
        if len(self._turn.added) > 1:  # no rule looks further back
            self._turn = replace(self._turn, added=self._turn.added[-1:])

    # -- what is done ------------------------------------------------------------------------------------------------

    def _ask(self, call: str | None = None, lost: Sequence[str] = ()) -> Ask:
        work = self._work
        return Ask(
            work.session_id, work.snapshot_id, work.agent, self._position, call, tuple(lost), work.context, work.live
        )

    async def _do(self, name: str, lost: Sequence[str] = ()) -> None:
        """One activity that may be repeated; it is given up when the turn ends meanwhile."""
        short = name in (LOOK, EXPIRE)
        handle = workflow.start_activity(
            name,
            self._ask(lost=lost),
            result_type=Told,
            start_to_close_timeout=_SHORT if short else timedelta(seconds=self._timing.longest),
            heartbeat_timeout=None if short else timedelta(seconds=self._timing.heartbeat),
            retry_policy=self._retries(),
        )
        if await self._done([handle]):
            self._learn(handle.result())

    async def _run_tools(self, ready: Sequence[Call]) -> None:
        now = workflow.time()
        due = [c for c in ready if c.due is None or c.due <= now]
        if not due:
            await self._until(min(c.due or now for c in ready))
            return
        calls: list[Call] = []
        for call in due:
            alone = self._traits.get(call.id, Trait()).alone
            if alone and calls:
                break
            calls.append(call)
            if alone:
                break
        handles = [self._run_tool(call) for call in calls]
        if not await self._done(handles):
            return
        lost: list[str] = []
        for call, handle in zip(calls, handles, strict=True):
            try:
                self._learn(handle.result())
            except ActivityError as e:
                if is_cancelled_exception(e):
                    raise
                lost.append(call.id)
        if lost:
            await self._do(LOOK, lost)

    def _run_tool(self, call: Call) -> "workflow.ActivityHandle[Told]":
        idempotent = self._traits.get(call.id, Trait()).idempotent
        return workflow.start_activity(
            TOOL,
            self._ask(call.id),
            result_type=Told,
            summary=call.request.name,
            start_to_close_timeout=timedelta(seconds=self._timing.longest),
            heartbeat_timeout=timedelta(seconds=self._timing.heartbeat),
            # What may have had an effect is not tried again by anybody but a person.
            retry_policy=self._retries() if idempotent else RetryPolicy(maximum_attempts=1),
        )

    def _retries(self) -> RetryPolicy:
        return RetryPolicy(
            initial_interval=timedelta(seconds=self._timing.backoff), maximum_interval=timedelta(seconds=60)
        )

    async def _done(self, handles: "Sequence[workflow.ActivityHandle[Told]]") -> bool:
        """Whether they are done. Where the turn is ended before that, they are cancelled.

        Other news wait: they go on from what these activities did, so they are understood once that is known.
        """
        await workflow.wait_condition(lambda: self._is_ended() or all(h.done() for h in handles))
        if all(h.done() for h in handles):
            return True
        for handle in handles:
            handle.cancel()
        return False

    def _is_ended(self) -> bool:
        return any(isinstance(e, TurnEnded) for work in self._news for e in work.events)

    async def _wait(self, step: Paused) -> None:
        expiries = [c.pause.expires_at for c in step.calls if c.pause is not None and c.pause.expires_at is not None]
        if not expiries:
            await workflow.wait_condition(lambda: bool(self._news))
            return
        # A worker whose clock is behind ours finds nothing overdue yet, so the next look comes later.
        later = workflow.time() + (0.0 if not self._misses else min(0.5 * 2**self._misses, 60.0))
        if await self._until(max(min(expiries), later)):
            self._misses = 0
            return
        before = self._position
        await self._do(EXPIRE)
        self._misses = 0 if self._position > before else self._misses + 1

    async def _until(self, when: float) -> bool:
        """Whether there is news before that time."""
        delay = max(when - workflow.time(), 0.001)
        try:
            await workflow.wait_condition(lambda: bool(self._news), timeout=timedelta(seconds=delay))
        except TimeoutError:
            return False
        return True
