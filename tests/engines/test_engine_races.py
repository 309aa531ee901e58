"""Processes that want the same thing at the same moment, with turns on Temporal: one gets it, and nothing happens twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.temporal_server import Server

RUNNER = Path(__file__).parent / "engine_race_runner.py"
TESTS = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def race(mode: str, server: Server, store: str, folder: Path, processes: int, sessions: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", str(RUNNER), mode, server.address, store, str(folder)]
    done = subprocess.run(
        [*command, str(processes), str(sessions)], capture_output=True, text=True, check=False, timeout=580,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(report["codes"]) == {0}, done.stderr
    return report


def check_driven(report: dict[str, Any], sessions: int) -> None:
    assert report["texts"] == {"done": sessions}
    assert report["verbs"] == {"restart": sessions}
    assert report["effects"] == [1] * sessions, "every side effect once"


def check_decided(report: dict[str, Any], deciders: int) -> None:
    (winner,) = [s for s in report["said"] if s.startswith("won")]
    _, who, text = winner.split()
    assert text == "done"
    assert sorted(report["said"]) == sorted([winner, *[f"lost to {who}"] * (deciders - 1)])
    assert report["verbs"] == {"restart": 1}
    assert report["effects"] == [1]


def test_eight_workers_finish_two_hundred_sessions_on_sqlite(temporal: Server, tmp_path: Path) -> None:
    check_driven(race("drive", temporal, "sqlite", tmp_path, 8, 200), 200)


def test_of_thirty_two_threads_in_eight_processes_that_decide_at_once_one_wins_on_sqlite(
    temporal: Server, tmp_path: Path
) -> None:
    check_decided(race("decide", temporal, "sqlite", tmp_path, 8, 1), 32)


@pytest.mark.postgres
def test_eight_workers_finish_two_hundred_sessions_on_postgres(
    temporal: Server, tmp_path: Path, postgres_dsn: str
) -> None:
    check_driven(race("drive", temporal, postgres_dsn, tmp_path, 8, 200), 200)


@pytest.mark.postgres
def test_of_thirty_two_threads_in_eight_processes_that_decide_at_once_one_wins_on_postgres(
    temporal: Server, tmp_path: Path, postgres_dsn: str
) -> None:
    check_decided(race("decide", temporal, postgres_dsn, tmp_path, 8, 1), 32)
