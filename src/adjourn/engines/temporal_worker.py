"""A worker process: takes steps of turns from Temporal until it is told to stop, and then finishes what it has begun."""

import asyncio
import logging
import signal
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from adjourn.app import Adjourn
from adjourn.engine import Engine
from adjourn.engines.steps import Steps
from adjourn.engines.temporal_activities import Activities
from adjourn.engines.temporal_workflow import Timing, TurnWorkflow
from adjourn.errors import DefinitionError, StoreError
from adjourn.parts import new_id

_log = logging.getLogger("adjourn.engine")


class TemporalEngine(Engine, Protocol):
    """The engine, as far as its workers need it."""

    queue: str
    timing: Timing

    async def client(self) -> Client: ...


@dataclass(frozen=True)
class WorkerOptions:
    """`grace`: seconds that running steps have to finish when the worker is told to stop; `sweep`: seconds between looks
    for what was not delivered; `activities` at once; `cached` turns whose workflows stay in memory.

    With `deployment` and `build_id` the worker takes part in Temporal's worker versioning.
    """

    grace: float = 30.0
    sweep: float = 5.0
    activities: int = 100
    cached: int = 500
    deployment: str | None = None
    build_id: str | None = None


def sandbox() -> SandboxedWorkflowRunner:
    """Temporal's sandbox, with the modules that the turn machine consists of passed through: they are pure."""
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules("adjourn", "msgspec")
    )


async def run_worker(
    ai: Adjourn,
    engine: TemporalEngine | None = None,
    *,
    options: WorkerOptions | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Runs turns of this application until SIGTERM or SIGINT comes, or the task is cancelled.

    Where `stop` is given, signals are the caller's, and it runs until that is set. Then it takes no more steps, and gives
    running ones `grace` seconds; what has not ended by then is cancelled, and comes back as a pause where it may have had an
    effect.
    """
    options = options or WorkerOptions()
    engine = ai.engine = _engine_of(ai, engine)
    client = await engine.client()
    told = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before the worker is made, which takes a moment: a signal meanwhile would end the process in its midst.
    undo = [s for s in (signal.SIGTERM, signal.SIGINT) if stop is None and _on_signal(loop, s, told)]
    try:
        await _work(ai, engine, client, options, told)
    finally:
        for number in undo:
            loop.remove_signal_handler(number)


def _engine_of(ai: Adjourn, engine: TemporalEngine | None) -> TemporalEngine:
    if engine is None:
        given: object = ai.engine
        if not hasattr(given, "client"):
            raise DefinitionError(
                "run_worker needs an engine: pass Temporal(...), or define Adjourn(engine=Temporal(...))"
            )
        engine = given  # pyright: ignore[reportAssignmentType]
    assert engine is not None
    return engine


async def _work(
    ai: Adjourn, engine: TemporalEngine, client: Client, options: WorkerOptions, told: asyncio.Event
) -> None:
    steps = Steps(ai, engine.holder, client.identity)
    activities = Activities(steps, engine.timing, f"{engine.queue}:{new_id('w_')}", options.activities)
    worker, own = _worker(client, engine, activities, options), _own_worker(client, engine, activities, options)
    sweeping = asyncio.create_task(_sweep(ai, engine, steps, options.sweep))
    try:
        async with own:  # which waits for long steps until none is left
            try:
                async with worker:
                    await told.wait()
            finally:
                await activities.drained(options.grace)
    finally:
        sweeping.cancel()
        await steps.aclose()


def _on_signal(loop: asyncio.AbstractEventLoop, number: signal.Signals, told: asyncio.Event) -> bool:
    try:
        loop.add_signal_handler(number, told.set)
    except (NotImplementedError, RuntimeError, ValueError):
        return False  # not the main thread, or a system without them: the caller cancels the task
    return True


def _own_worker(client: Client, engine: TemporalEngine, activities: Activities, options: WorkerOptions) -> Worker:
    """Waits for the long steps that run in this very process."""
    beat = timedelta(seconds=min(max(engine.timing.heartbeat / 6, 0.2), 5.0))
    return Worker(
        client,
        task_queue=activities.queue,
        activities=activities.own,
        max_concurrent_activities=10_000,  # which only wait
        activity_task_poller_behavior=PollerBehaviorSimpleMaximum(1),
        graceful_shutdown_timeout=timedelta(seconds=options.grace),
        # A cancellation comes back with a heartbeat, so they are not held back for long.
        max_heartbeat_throttle_interval=beat,
        default_heartbeat_throttle_interval=beat,
    )


def _worker(client: Client, engine: TemporalEngine, activities: Activities, options: WorkerOptions) -> Worker:
    deployment = None
    if options.deployment is not None and options.build_id is not None:
        version = WorkerDeploymentVersion(options.deployment, options.build_id)
        # A turn may be paused for weeks, and must not hold its version alive: it goes on with the current one, whose
        # workflow replays what older ones did.
        deployment = WorkerDeploymentConfig(
            version=version,
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
        )
    return Worker(
        client,
        task_queue=engine.queue,
        workflows=[TurnWorkflow],
        activities=activities.local,
        workflow_runner=sandbox(),
        no_remote_activities=True,
        # A workflow whose step runs keeps its task, so there are as many of these as steps.
        max_concurrent_workflow_tasks=options.activities,
        max_concurrent_local_activities=2 * options.activities,
        max_cached_workflows=max(options.cached, options.activities),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=engine.timing.task),
        graceful_shutdown_timeout=timedelta(seconds=options.grace),
        deployment_config=deployment,
    )


async def _sweep(ai: Adjourn, engine: TemporalEngine, steps: Steps, every: float) -> None:
    """Delivers what was not delivered: decisions of processes that reach no Temporal, and turns whose beginner died."""
    while True:
        for store in ai.stores():
            try:
                await steps.sweep(store, engine, ai.clock.now())
            except StoreError as e:
                _log.warning("the store did not answer; what waits there is looked for again: %s", e)
            except Exception:  # noqa: BLE001 - a worker goes on with what it has
                _log.exception("the sweep failed; it is done again")
        await asyncio.sleep(every)
