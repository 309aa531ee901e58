"""A process is killed at every commit and on both sides of every tool body; another one finishes the session."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durable.crash_scenarios import APPROVED, IDEMPOTENT, SCENARIOS

pytestmark = pytest.mark.timeout(900)  # a busy machine takes long over so many processes
TESTS = Path(__file__).parent.parent


def crash(store: str, scenario: str, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "error", "-m", "durable.crash_runner", store, scenario, str(folder)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=850, env=env)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert not any("failed" in report for report in reports), done.stderr + done.stdout
    return reports


def check(reports: list[dict[str, Any]], scenario: str) -> None:
    for report in reports:
        check_one(report, scenario)
    undisturbed = reports[-1]
    assert undisturbed["code"] == 0, "the last run is the one that nothing killed"
    assert undisturbed["effects"] == SCENARIOS[scenario].effects, undisturbed
    assert undisturbed["unknown"] == 0, undisturbed
    assert len(reports) > SCENARIOS[scenario].points, "every commit and body has a kill point"
    if SCENARIOS[scenario].one_by_one:
        # A body is open from the commit before it to the commit after it: two points, and two more with an effect.
        calls = sum(call[-1].isdigit() for asked in SCENARIOS[scenario].script.values() for call in asked)
        bodies = calls + undisturbed["go_aheads"]
        open_at = 2 * (bodies + sum(undisturbed["effects"].values()))
        assert sum(report["unknown"] for report in reports) <= open_at, "nobody is asked about what is stored"


def check_one(report: dict[str, Any], scenario: str) -> None:
    """What must be so wherever the process died."""
    expected = SCENARIOS[scenario]
    assert report["text"] == report["reloaded"] == "done", report
    assert report["open"] == 0, report
    assert report["unapplied"] == 0, "every decision was taken up"
    assert report["said"] == [*expected.messages], "each message has one turn"
    assert not report["lost"], report
    assert report["effects"].keys() <= expected.effects.keys(), report
    for name, most in expected.effects.items():
        times = report["effects"].get(name, 0)
        if name.startswith(IDEMPOTENT):
            assert times >= 1, report
            assert report["keys"][name] == 1, "each attempt of an idempotent tool has the same key"
        elif expected.fewer:
            assert times <= most, report
        else:
            assert times == most, report
    assert report["effects"], report
    approved = sum(times for name, times in report["effects"].items() if name.startswith(APPROVED))
    assert approved <= report["go_aheads"], "nothing runs again that nobody sent round again"
    assert report["unknown"] <= expected.unknown, report
    assert expected.first_output in json.dumps(report["outputs"][0]), report
    if "buyer" in expected.script["go"]:
        assert report["outputs"] == ["done"], report


QUICK = ("plain", "restart", "waiting", "queue")
"""The others are for the slow run: together they take a minute."""


@pytest.mark.parametrize("scenario", [pytest.param(s, marks=[pytest.mark.slow] * (s not in QUICK)) for s in SCENARIOS])
def test_no_side_effect_is_lost_or_doubled_wherever_the_process_dies_on_sqlite(scenario: str, tmp_path: Path) -> None:
    check(crash("sqlite", scenario, tmp_path), scenario)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("scenario", [*SCENARIOS])
def test_no_side_effect_is_lost_or_doubled_wherever_the_process_dies_on_postgres(
    scenario: str, tmp_path: Path, postgres_dsn: str
) -> None:
    check(crash(postgres_dsn, scenario, tmp_path), scenario)
