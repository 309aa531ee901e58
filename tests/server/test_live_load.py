"""A thousand clients follow the inbox while two hundred decisions a second land: nothing is lost, and memory is bounded."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_clients_see_every_decision_once_and_in_order() -> None:
    command = [sys.executable, "-m", "benchmarks.live", "--clients", "1000", "--rate", "200", "--seconds", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1000 decisions, 1000000 events delivered to 1000 clients" in done.stdout
    assert "FAULT" not in done.stdout
