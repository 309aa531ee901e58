"""Processes that want the same thing at the same moment: one gets it, and nothing happens twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent


def race(mode: str, store: str, folder: Path, processes: int, sessions: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-m", "durable.race_runner", mode, store, str(folder)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run(
        [*command, str(processes), str(sessions)], capture_output=True, text=True, check=False, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_driven(report: dict[str, Any], sessions: int) -> None:
    assert set(report["codes"]) == {0}
    assert report["texts"] == {"done": sessions}
    assert report["effects"] == [1] * sessions, "every side effect once"


def check_decided(report: dict[str, Any], processes: int) -> None:
    assert set(report["codes"]) == {0}
    winners = [s for s in report["said"] if s.startswith("won")]
    assert len(winners) == 1
    winner = winners[0].removeprefix("won ")
    assert sorted(report["said"]) == sorted([*winners, *[f"lost to {winner}"] * (processes - 1)])
    assert report["decisions"] == [["respond", winner]]


def test_four_processes_finish_forty_sessions_and_each_side_effect_happens_once(tmp_path: Path) -> None:
    check_driven(race("drive", "sqlite", tmp_path, 4, 40), 40)


@pytest.mark.slow
def test_of_eight_processes_that_decide_at_once_one_wins_and_all_others_are_told_who(tmp_path: Path) -> None:
    check_decided(race("decide", "sqlite", tmp_path, 8, 1), 8)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_processes_finish_two_hundred_sessions_on_sqlite(tmp_path: Path) -> None:
    check_driven(race("drive", "sqlite", tmp_path, 8, 200), 200)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_eight_processes_finish_two_hundred_sessions_on_postgres(tmp_path: Path, postgres_dsn: str) -> None:
    check_driven(race("drive", postgres_dsn, tmp_path, 8, 200), 200)


@pytest.mark.postgres
def test_of_eight_processes_that_decide_at_once_on_postgres_one_wins(tmp_path: Path, postgres_dsn: str) -> None:
    check_decided(race("decide", postgres_dsn, tmp_path, 8, 1), 8)
