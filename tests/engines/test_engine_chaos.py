"""Three workers and two other processes share many sessions, while workers die and servers are restarted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.chaos_network import why_not, within

RUNNER = Path(__file__).parent / "chaos_runner.py"
WITH_POSTGRES = Path(__file__).parents[2] / "scripts" / "with_postgres.py"
SESSIONS = int(os.environ.get("ADJOURN_CHAOS_SESSIONS", "40"))
SECONDS = int(os.environ.get("ADJOURN_CHAOS_SECONDS", "40"))
SEED = int(os.environ.get("ADJOURN_CHAOS_SEED", "1"))
PATIENCE = 540 + SECONDS + 5 * SESSIONS  # the conductor gives up before this
TROUBLES = {"kill", "freeze", "stop_temporal", "stop_postgres"}


def expected() -> list[str]:
    """Every effect that there has to be."""
    out: list[str] = []
    for number in range(SESSIONS):
        name = f"chaos{number:04}"
        out += [f"{name} gate 0", f"{name} gate 1"] if number % 2 else [f"{name} work 0", f"{name} sure 0"]
    return out


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(PATIENCE + 20)
def test_every_session_finishes_and_every_effect_and_decision_counts_once_whatever_breaks(tmp_path: Path) -> None:
    check(conduct(tmp_path), TROUBLES)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(PATIENCE + 20)
def test_every_effect_and_decision_counts_once_although_a_worker_is_cut_off_in_the_middle_of_a_body(
    tmp_path: Path,
) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(f"NOT TESTED WITH A WORKER CUT OFF: no network namespaces can be made: {reason}")
    report = conduct(tmp_path, "cut")
    check(report, {*TROUBLES, "cut_off"})
    assert report["unknown"], "others went on without the worker that was cut off"


def conduct(folder: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, str(WITH_POSTGRES), "--private", sys.executable, "-W", "error", str(RUNNER), "conduct"]
    command += [str(folder), str(SESSIONS), str(SECONDS), str(SEED), *more]
    if more:
        command = within(command)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(report: dict[str, Any], troubles: set[str]) -> None:
    assert report["codes"] == [0, 0]
    assert report["texts"] == {"done": SESSIONS}
    effects, unknown = report["effects"], set(report["unknown"])
    for effect in expected():
        times = effects.get(effect, 0)
        if effect.split()[1] == "sure" or effect in unknown:
            # What nobody knew the outcome of was decided by somebody who looked; a frozen worker may have come after.
            assert times >= 1, effect
        else:
            assert times == 1, effect
    assert set(report["winners"]) <= {"1"}, "each interrupt has one decision that counts"
    assert set(report["troubles"]) == troubles
