"""What Temporal remembers of turns, from the histories of their workflows: for timelines, read when somebody looks.

A history ends with its retention, and its server may be away. Nothing depends on what is read here.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import msgspec
from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from adjourn.display import one_line
from adjourn.engine import Deed, Work
from adjourn.engines.temporal_workflow import WOKEN, Start
from adjourn.events import Json

_AT_ONCE = 8
_RUNS = 20
"""So many runs of one workflow are read, the newest: a turn that goes on for months has no end of them."""
_PLAIN = re.compile(r"[\w:.-]+")
_RPC = timedelta(seconds=5)
_LOCAL = "core_local_activity"
"""How the SDK names the event that a local activity leaves."""

T = TypeVar("T")
_Told: TypeAlias = tuple[str, dict[str, Json]]


class _Local(msgspec.Struct):
    """What the SDK keeps of a local activity, as far as we want it."""

    activity_type: str
    attempt: int = 1


async def recount(client: Client, works: Sequence[str]) -> list[Deed]:
    """What is remembered of the workflows with these ids, oldest first. Raises RPCError, RuntimeError where nobody answers."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(work: str) -> list[Deed]:
        async with free:
            return await _workflow(client, work)

    found = await asyncio.gather(*[one(work) for work in works])
    return sorted([deed for deeds in found for deed in deeds], key=lambda d: d.at)


async def _workflow(client: Client, work: str) -> list[Deed]:
    out: list[Deed] = []
    for run in await _runs(client, work):
        reader = _Reader(client, work, run)
        try:
            history = await client.get_workflow_handle(work, run_id=run).fetch_history(rpc_timeout=_RPC)
        except RPCError as e:
            if e.status is RPCStatusCode.NOT_FOUND:
                continue  # its retention is over
            raise
        for event in history.events:
            await reader.read(event)
        out += reader.deeds
    return out


async def _runs(client: Client, work: str) -> list[str]:
    """The runs of a workflow, oldest first. The list of all may be a moment behind, so the newest is asked for by itself."""
    if not _PLAIN.fullmatch(work):
        return []  # none of ours, and it would be put into a query
    begun: dict[str, float] = {}
    query = f"WorkflowId = '{work}'"
    async for run in client.list_workflows(query, limit=_RUNS, rpc_timeout=_RPC):
        begun[run.run_id] = run.start_time.timestamp()
    try:
        now = await client.get_workflow_handle(work).describe(rpc_timeout=_RPC)
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:
            raise
    else:
        begun[now.run_id] = now.start_time.timestamp()
    return sorted(begun, key=lambda run: begun[run])


class _Reader:
    """One run, event by event."""

    def __init__(self, client: Client, work: str, run: str) -> None:
        self.deeds: list[Deed] = []
        self._client = client
        self._work = work
        self._about: dict[str, Json] = {"workflow": work, "run": run}
        self._worker = ""
        self._delivered: set[tuple[str, int]] = set()
        self._begun: tuple[str, int] | None = None

    async def read(self, event: Any) -> None:
        tell = _TELLERS.get(event.event_type)
        if tell is None:
            return
        told = await tell(self, getattr(event, event.WhichOneof("attributes")))
        if told is not None:
            title, facts = told
            at = event.event_time.seconds + event.event_time.nanos / 1e9
            self.deeds.append(Deed(self._work, at, title, {**self._about, **facts}))

    async def started(self, what: Any) -> _Told:
        facts: dict[str, Json] = {"queue": what.task_queue.name, "by": what.identity}
        if what.continued_execution_run_id:
            facts["runBefore"] = what.continued_execution_run_id
            return "Temporal goes on with this turn in a new run, since its history had become long", facts
        work = await self._decoded(what.input.payloads, Start)
        if work is not None:
            self._begun = (work.work.snapshot_id, work.work.first)
            self._delivered.add(self._begun)
        return "Temporal was given this turn", facts

    async def signaled(self, what: Any) -> _Told | None:
        if what.signal_name != WOKEN:
            return f"The workflow was sent the signal {one_line(what.signal_name, 80)}", {"by": what.identity}
        work = await self._decoded(what.input.payloads, Work)
        if work is None:
            return "The workflow was told that there is something to do", {"by": what.identity}
        key = (work.snapshot_id, work.first)
        again = work.first < 0 or key in self._delivered
        if key == self._begun:
            self._begun = None
            return None  # a wake that starts the workflow says it twice
        self._delivered.add(key)
        facts: dict[str, Json] = {"by": what.identity, "snapshot": work.snapshot_id, "events": len(work.events)}
        if again:
            return "The workflow was told again that there is something to do", {**facts, "redelivery": True}
        return "The workflow was told what was decided", facts

    async def taken(self, what: Any) -> _Told | None:
        before, self._worker = self._worker, what.identity
        if before == self._worker:
            return None
        facts: dict[str, Json] = {"worker": self._worker}
        if before:
            return f"Worker {one_line(self._worker, 80)} goes on with it", {**facts, "workerBefore": before}
        return f"Worker {one_line(self._worker, 80)} takes it up", facts

    async def silent(self, what: Any) -> _Told:
        facts: dict[str, Json] = {"worker": self._worker, "timeout": _timeout(what.timeout_type)}
        return "The worker did not answer in time; any of them may go on", facts

    async def stuck(self, what: Any) -> _Told:
        cause = WorkflowTaskFailedCause.Name(what.cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_")
        return "A worker could not go on with the workflow; it is tried again", {
            "worker": what.identity,
            "cause": cause,
        }

    async def stepped(self, what: Any) -> _Told | None:
        if what.marker_name != _LOCAL:
            return None
        done = await self._decoded(what.details["data"].payloads, _Local) if "data" in what.details else None
        if done is None or done.attempt < 2:
            return None
        step = done.activity_type.removeprefix("adjourn.")
        facts: dict[str, Json] = {"step": step, "attempts": done.attempt, "failed": what.HasField("failure")}
        return f"A step ({one_line(step, 40)}) was tried {done.attempt} times", facts

    async def waits(self, what: Any) -> _Told:
        return "A long step runs on; its worker reports that it lives", {"queue": what.task_queue.name}

    async def lost(self, what: Any) -> _Told:
        facts: dict[str, Json] = {"timeout": _timeout(what.failure.timeout_failure_info.timeout_type)}
        return "The worker of a long step fell silent", facts

    async def timer(self, what: Any) -> _Told:
        seconds = what.start_to_fire_timeout.seconds + what.start_to_fire_timeout.nanos / 1e9
        return "A durable timer was set", {"seconds": round(seconds, 3)}

    async def fired(self, what: Any) -> _Told:
        return "The durable timer fired", {}

    async def asked_to_end(self, what: Any) -> _Told:
        return "The workflow was asked to end", {"by": what.identity}

    async def ended(self, what: Any) -> _Told:
        came_to = await self._decoded(what.result.payloads, str)
        return "Temporal is done with this turn", {"result": came_to}

    async def terminated(self, what: Any) -> _Told:
        return "The workflow was terminated from outside; the store has the turn", {"by": what.identity}

    async def broke(self, what: Any) -> _Told:
        return "The workflow ended without an end of the turn; the store has it", {}

    async def _decoded(self, payloads: Any, kind: type[T]) -> T | None:
        """The value, or None: where it is encrypted with a key that is not here, or made by another version."""
        try:
            found = await self._client.data_converter.decode(list(payloads), [kind])
        except Exception:  # noqa: BLE001 - a codec may raise anything, and what it hides is not needed
            return None
        return found[0] if found and isinstance(found[0], kind) else None


def _timeout(kind: Any) -> str:
    return TimeoutType.Name(kind).removeprefix("TIMEOUT_TYPE_").lower()


_TELLERS: Mapping[int, Callable[[_Reader, Any], Awaitable["_Told | None"]]] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: _Reader.started,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: _Reader.signaled,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: _Reader.taken,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: _Reader.silent,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: _Reader.stuck,
    EventType.EVENT_TYPE_MARKER_RECORDED: _Reader.stepped,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: _Reader.waits,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: _Reader.lost,
    EventType.EVENT_TYPE_TIMER_STARTED: _Reader.timer,
    EventType.EVENT_TYPE_TIMER_FIRED: _Reader.fired,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: _Reader.asked_to_end,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: _Reader.ended,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: _Reader.broke,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: _Reader.broke,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: _Reader.broke,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: _Reader.terminated,
}
