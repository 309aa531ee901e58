"""The Temporal server itself: stopped and started again, with short histories, and with workers of several versions."""

import signal
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from adjourn.errors import LimitReached
from adjourn.events import Limits
from adjourn.testing import call
from engines.engine_kit import World, rest, server_of_its_own, until, working, world

pytestmark = pytest.mark.slow


async def test_a_long_turn_goes_on_as_new_and_counts_on(tmp_path: Path) -> None:
    replies: list[Any] = [call("big", {"size": n}) for n in range(30)]
    replies[15] = call("gate", {"n": 15})
    async with (
        server_of_its_own(tmp_path, "limit.historyCount.suggestContinueAsNew=12") as server,
        world(server, tmp_path, *replies, "done") as w,
    ):
        session = w.agent.connect()
        first = session.send("go")
        output = await rest(first)
        w.agent.limits = Limits(model_calls=25)
        with pytest.raises(LimitReached) as caught:
            await rest(output.interrupts[0].restart())
        assert caught.value.limit == "model_calls"
        output = await rest(session.retry(Limits()))
        assert output.text == "done"
        assert len(output.messages) == 62
        client = await w.engine.client()

        async def went_on() -> bool:
            runs = client.list_workflows(f"WorkflowId = '{first.snapshot_id}'")
            return any([r.status == WorkflowExecutionStatus.CONTINUED_AS_NEW async for r in runs])

        await until(went_on)


async def test_a_server_that_is_stopped_and_started_again_loses_nothing(tmp_path: Path) -> None:
    async with (
        server_of_its_own(tmp_path) as server,
        world(server, tmp_path, [call("gate", {"n": 1})], [call("slow", {"n": 2})], "done") as w,
    ):
        output = await rest(w.agent.connect().send("go"))
        turn = output.interrupts[0].restart()
        await until(lambda: ("slow", 2) in w.log)
        server.stop(signal.SIGKILL)
        w.go.set()
        await server.start()
        output = await rest(turn)
        # The body ended while the server was away; its result was committed all the same, or is asked for.
        while output.finish_reason == "interrupted":
            assert output.interrupts[0].reason == "outcome_unknown"
            output = await rest(output.interrupts[0].respond("slowly"))
        assert output.text == "done"
        assert w.log.count(("slow", 2)) == 1
        assert w.log.count(("gate", 1)) == 1


async def test_a_turn_that_was_paused_under_one_version_goes_on_under_the_next(tmp_path: Path) -> None:
    async with (
        server_of_its_own(tmp_path) as server,
        world(server, tmp_path, [call("gate", {"n": 1})], "done", worker=False) as w,
    ):
        async with working(w.ai, w.engine, deployment="adjourn", build_id="v1"):
            await until(lambda: _current(w, "v1"))
            output = await rest(w.agent.connect().send("go"))
        async with working(w.ai, w.engine, deployment="adjourn", build_id="v2"):
            await until(lambda: _current(w, "v2"))
            assert (await rest(output.interrupts[0].restart())).text == "done"
        assert w.log == [("gate", 1)]


async def _current(w: World, build_id: str) -> bool:
    """Makes this version the one that turns run on; false until the server has heard of it."""
    client = await w.engine.client()
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace="default", deployment_name="adjourn", build_id=build_id, ignore_missing_task_queues=True
    )
    try:
        await client.workflow_service.set_worker_deployment_current_version(request)
    except RPCError:
        return False
    return True


async def test_a_server_that_lost_everything_is_told_of_what_runs_and_of_what_is_decided(tmp_path: Path) -> None:
    async with (
        server_of_its_own(tmp_path) as server,
        world(server, tmp_path, [call("gate", {"n": 1})], [call("slow", {"n": 2})], "ran", "opened") as w,
    ):
        paused = await rest(w.agent.connect().send("pause"))
        running = w.agent.connect().send("run")
        await until(lambda: ("slow", 2) in w.log)
        server.stop(signal.SIGKILL)
        server.forget()
        await server.start()
        w.go.set()
        output = await rest(running)
        if output.finish_reason == "interrupted":  # its result came when nobody asked for it yet
            assert output.interrupts[0].reason == "outcome_unknown"
            output = await rest(output.interrupts[0].respond("slowly"))
        assert output.text == "ran"
        assert (await rest(paused.interrupts[0].restart())).text == "opened"
        assert w.log == [("slow", 2), ("gate", 1)]
