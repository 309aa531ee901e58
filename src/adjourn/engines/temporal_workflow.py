"""The workflow of one turn: the turn machine, and who is asked to do what it says.

The workflow holds a thin turn (see `adjourn.engine`) and asks `next_step` what has to happen. Each step is an activity that
does it, commits it to the store and says what the journal has now; the workflow records that and asks again. It learns
the same way of what was decided elsewhere. So it can be replayed, evicted, or started anew from the store alone.

A step begins as a local activity: it runs where the workflow runs, and costs one event of history instead of six. That a
local activity may be begun twice, when its worker dies, is no danger: the store's journal says what was begun. One that
takes longer than a few seconds says so and goes on; an ordinary activity, on that worker's own queue, then waits for it,
with heartbeats.

What it does must be the same at every replay. Change it only behind `workflow.patched`, and keep the histories in
tests/engines/histories replaying.
"""

import asyncio
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
MODEL, TOOL, HANDLE = "adjourn.model", "adjourn.tool", "adjourn.handle"
LOOK, EXPIRE, ABORT, FINISH = "adjourn.look", "adjourn.expire", "adjourn.abort", "adjourn.finish"
WOKEN = "woken"


class Timing(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Bounds of what a worker does, in seconds: `longest` of one step; `task` and `heartbeat`, after which a silent worker is
    given up in a short and in a long step.

    `model_attempts` of a model that fails in a way that may pass; `backoff` is before the second, and doubles.
    """

    longest: float = 24 * 3600.0
    task: float = 10.0
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
        try:
            return await self._run()
        except asyncio.CancelledError:
            # Somebody cancelled the workflow: that is an abort, and has to be one in the store as well.
            await self._begin(ABORT, self._ask(), self._retries())
            raise

    async def _run(self) -> str:
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
            else:  # a sweep has looked: where it saw the turn is newer than what we know of
                self._work = replace(self._work, snapshot_id=work.snapshot_id, live=work.live or self._work.live)
            return
        if work.first + len(work.events) > self._position:
            self._work = work
        self._traits.update(work.traits)
        self._record(work.first, work.events, work.rested)

    def _learn(self, told: Told) -> None:
        self._gone = told.gone
        if told.anew:
            self._turn, self._position, self._rested = begin((), told.limits), 0, False
        end = told.first + len(told.events)
        if end < self._position:
            return
        if told.snapshot_id and told.snapshot_id != self._work.snapshot_id:
            self._work = replace(self._work, snapshot_id=told.snapshot_id)
        self._traits.update(told.traits)
        self._record(told.first, told.events, told.rested)
        self._turn = replace(self._turn, limits=told.limits)
        self._behind = self._behind or told.more

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
        """One step that may be repeated; it is given up when the turn ends meanwhile."""
        await self._finish([self._begin(name, self._ask(lost=lost), self._retries())], [None])

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
        handles: list[workflow.ActivityHandle[Told]] = []
        for call in calls:
            idempotent = self._traits.get(call.id, Trait()).idempotent
            # What may have had an effect is not tried again by anybody but a person.
            policy = self._retries() if idempotent else RetryPolicy(maximum_attempts=1)
            handles.append(self._begin(TOOL, self._ask(call.id), policy, call.request.name))
        await self._finish(handles, [c.id for c in calls])

    def _begin(
        self, name: str, ask: Ask, policy: RetryPolicy, summary: str | None = None
    ) -> "workflow.ActivityHandle[Told]":
        return workflow.start_local_activity(
            name,
            ask,
            result_type=Told,
            summary=summary,
            start_to_close_timeout=timedelta(seconds=self._timing.longest),
            retry_policy=policy,
            # A longer wait is a timer, which needs no worker.
            local_retry_threshold=timedelta(seconds=self._timing.task / 2),
        )

    async def _finish(self, handles: "Sequence[workflow.ActivityHandle[Told]]", calls: Sequence[str | None]) -> None:
        """Learns what came of these steps, the long ones too, and which calls were lost with their worker."""
        lost: list[str] = []
        if not await self._done(handles):
            return
        waiting: list[workflow.ActivityHandle[Told]] = []
        of: list[str | None] = []
        for call, handle in zip(calls, handles, strict=True):
            try:
                told = handle.result()
            except ActivityError as e:
                if is_cancelled_exception(e):
                    raise
                lost += [call] if call is not None else []
                continue
            self._learn(told)
            if told.busy:
                waiting.append(self._wait_for_worker(told.busy, call))
                of.append(call)
        if waiting:
            await self._finish(waiting, of)
        if lost:
            await self._do(LOOK, lost)

    def _wait_for_worker(self, queue: str, call: str | None) -> "workflow.ActivityHandle[Told]":
        heartbeat = timedelta(seconds=self._timing.heartbeat)
        return workflow.start_activity(
            FINISH,
            self._ask(call),
            result_type=Told,
            task_queue=queue,
            schedule_to_start_timeout=heartbeat,
            start_to_close_timeout=timedelta(seconds=self._timing.longest),
            heartbeat_timeout=heartbeat,
            retry_policy=RetryPolicy(maximum_attempts=1),
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
