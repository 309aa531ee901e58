"""Worker processes die at every commit and on both sides of every tool body; others finish what they began."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adjourn.engines.temporal import Temporal
from adjourn.handle import AgentInit
from durable.crash_app import build, read
from durable.crash_steps import report_on, run
from durable.killing import Death, open_store
from durable.test_crash_matrix import check_one
from engines.engine_kit import rest, until
from engines.temporal_server import Server
from engines.worker_process import LEASE, TIMING

WORKER = Path(__file__).parent / "worker_process.py"
TESTS = Path(__file__).parent.parent


class Workers:
    """Worker processes of one queue. One that is killed is followed by one that lives."""

    def __init__(self, server: Server, store: str, folder: Path, scenario: str) -> None:
        self.queue = f"q-{uuid.uuid4().hex[:12]}"
        self.name = f"t{uuid.uuid4().hex[:12]}"
        self._command = [sys.executable, "-W", "error", str(WORKER), server.address, self.queue, store, self.name]
        self._command += [str(folder), scenario]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.log = folder / f"{self.name}.log"

    def start(self, point: int | str = -1) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        with self.log.open("ab") as log:
            process = subprocess.Popen([*self._command, str(point)], env=env, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    async def start_again_after(self, process: subprocess.Popen[bytes]) -> int:
        """Waits for the death of this one; starts another. Returns how it ended."""
        await asyncio.to_thread(process.wait)
        self.start()
        return process.returncode

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(30)


@contextmanager
def crew(server: Server, store: str, folder: Path, scenario: str) -> Generator[Workers]:
    workers = Workers(server, store, folder, scenario)
    try:
        yield workers
    finally:
        workers.end()


async def crash(server: Server, store: str, folder: Path, scenario: str, point: int | str) -> dict[str, Any]:
    """One session whose worker dies at this point; what came of it."""
    with crew(server, store, folder, scenario) as workers:
        first = workers.start(point)
        effects = folder / f"{workers.name}.effects"
        rows = open_store(store, folder, workers.name, LEASE)
        agent = build(rows, scenario, effects, Death(None))
        agent._host.engine = Temporal(server.address, queue=workers.queue, timing=TIMING)
        following = asyncio.create_task(workers.start_again_after(first))
        try:
            report = await report_on(await asyncio.wait_for(run(agent, scenario, effects), 90))
        except BaseException:
            print(workers.log.read_text())
            raise
        finally:
            following.cancel()
            killed = first.poll() == -signal.SIGKILL
            await agent._host.aclose()
        return {**report, "killed": killed}


@pytest.mark.timeout(120)
async def test_a_worker_that_dies_in_a_body_leaves_a_question_and_nothing_runs_twice(
    temporal: Server, tmp_path: Path
) -> None:
    report = await crash(temporal, "sqlite", tmp_path, "plain", "body")
    check_one(report, "plain")
    assert report["killed"]
    assert report["unknown"] == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_worker_that_gets_sigterm_finishes_the_body_that_runs_and_ends_well(
    temporal: Server, tmp_path: Path
) -> None:
    with crew(temporal, "sqlite", tmp_path, "plain") as workers:
        first = workers.start("slow")
        effects = tmp_path / f"{workers.name}.effects"
        agent = build(open_store("sqlite", tmp_path, workers.name, LEASE), "plain", effects, Death(None))
        agent._host.engine = Temporal(temporal.address, queue=workers.queue, timing=TIMING)
        turn = agent.connect(AgentInit(session_id="drained")).send("go")
        await until(lambda: read(effects))
        first.terminate()
        assert await asyncio.to_thread(first.wait, 30) == 0, workers.log.read_text()
        workers.start()
        output = await rest(turn)
        assert (output.text, output.finish_reason) == ("done", "stop")
        assert len(read(effects).splitlines()) == 1
        await agent._host.aclose()


EVERY = bool(os.environ.get("ADJOURN_EVERY_CRASH"))
SCENARIOS = (
    "plain", "parallel", "restart", "respond", "fork", "expire", "nested", "nested_fork", "waiting", "nested_waiting",
)  # fmt: skip
"""Those of the crash matrix in which everything but the tools is done by a process that lives."""
LONG = ("fork", "expire", "nested", "nested_fork")
"""Each has some twenty kill points, and a death takes seconds, for a lease has to end: ordinarily every fifth is tried, another
one with each store. ADJOURN_EVERY_CRASH=1 tries them all.
"""


async def matrix(server: Server, store: str, folder: Path, scenario: str) -> None:
    point, step = 0, 1
    if scenario in LONG and not EVERY:
        point, step = (1, 5) if store == "sqlite" else (3, 5)
    while True:
        report = await crash(server, store, folder, scenario, point)
        check_one(report, scenario)
        if not report["killed"]:
            break
        point += step
    assert point >= 6, "every commit and body has a kill point"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_nothing_is_lost_or_doubled_wherever_a_worker_dies_on_sqlite(
    scenario: str, temporal: Server, tmp_path: Path
) -> None:
    await matrix(temporal, "sqlite", tmp_path, scenario)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_nothing_is_lost_or_doubled_wherever_a_worker_dies_on_postgres(
    scenario: str, temporal: Server, tmp_path: Path, postgres_dsn: str
) -> None:
    await matrix(temporal, postgres_dsn, tmp_path, scenario)
