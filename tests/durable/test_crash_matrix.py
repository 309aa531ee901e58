"""A process is killed at every commit and on both sides of every tool body; a fresh one finishes the session."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)  # a busy machine takes long over so many processes
RUNNER = Path(__file__).parent / "crash_runner.py"
EXPECTED = {
    "plain": ["work0"],
    "parallel": ["work0", "work1", "sure2"],
    "restart": ["gate0"],
    "respond": ["work1"],
    "fork": ["gate0"],
    "expire": ["work1"],
    "nested": ["gate0"],
    "nested_fork": ["gate0"],
    "waiting": ["sure0"],
    "nested_waiting": ["work0"],
}
IDEMPOTENT = ("sure0", "sure2")
CALLS = {
    "plain": 1,
    "parallel": 2,
    "restart": 1,
    "respond": 2,
    "fork": 2,
    "expire": 2,
    "nested": 1,
    "nested_fork": 2,
    "waiting": 0,
    "nested_waiting": 1,
}
"""How many runs at most can have been cut off, and come back as a question."""


def crash(store: str, scenario: str, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "error", str(RUNNER), store, scenario, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=850)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(reports: list[dict[str, Any]], scenario: str) -> None:
    assert reports[-1]["code"] == 0, "the last run is the one that nothing killed"
    assert len(reports) >= 7, "every commit and body has a kill point"
    for report in reports:
        check_one(report, scenario)


def check_one(report: dict[str, Any], scenario: str) -> None:
    """What must be so wherever the process died."""
    assert "failed" not in report, report
    assert report["text"] == report["reloaded"] == "done", report
    assert report["open"] == 0, report
    for name in EXPECTED[scenario]:
        times = report["effects"].get(name, 0)
        if name in IDEMPOTENT:
            assert times >= 1, report
            assert report["keys"][name] == 1, "each attempt of an idempotent tool has the same key"
        elif scenario.endswith("fork"):
            # Both branches were approved, each once; a branch that was lost before it was stored is not made again.
            assert 1 <= times <= 2, report
        else:
            assert times == 1, report
    assert report["unknown"] <= CALLS[scenario], report
    if scenario == "expire":
        # Expired once, whatever happened: nobody was taken to have answered, and the body never ran.
        assert report["outputs"][0] == "nobody came", report
        assert "brief0" not in report["effects"], report
    if scenario.startswith("nested"):
        assert report["outputs"] == ["done"], report


LONG = ("parallel", "respond", "fork", "expire", "nested", "nested_fork", "nested_waiting")
"""Scenes with so many points that they are for the slow run."""


@pytest.mark.parametrize("scenario", [pytest.param(s, marks=[pytest.mark.slow] * (s in LONG)) for s in EXPECTED])
def test_no_side_effect_is_lost_or_doubled_wherever_the_process_dies_on_sqlite(scenario: str, tmp_path: Path) -> None:
    check(crash("sqlite", scenario, tmp_path), scenario)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("scenario", list(EXPECTED))
def test_no_side_effect_is_lost_or_doubled_wherever_the_process_dies_on_postgres(
    scenario: str, tmp_path: Path, postgres_dsn: str
) -> None:
    check(crash(postgres_dsn, scenario, tmp_path), scenario)
