"""The 39 agent tests and the 3 generate tests of the language-neutral specs, for every store."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance.conformance_harness import AgentSpec, Bench, GenerateSpec
from sessions.session_kit import KINDS, Place, make_place

_SHARED = Path(os.environ.get("ADJOURN_SHARED") or Path(__file__).resolve().parents[3] / "shared")


def _tests(name: str) -> list[dict[str, Any]]:
    path = _SHARED / "conformance" / name
    return yaml.safe_load(path.read_text())["tests"] if path.is_file() else []


def _named(tests: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(test, id=test["name"].replace(" ", "-")) for test in tests]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"))
    yield made
    made.close()


def test_the_specs_hold_39_and_3_tests(shared: Path) -> None:
    assert shared.resolve() == _SHARED.resolve()
    assert len(_tests("agent.yaml")) == 39
    assert len(_tests("generate.yaml")) == 3


def agent_specs() -> list[Any]:
    """The agent tests, as parameters."""
    return _named(_tests("agent.yaml"))


@pytest.mark.parametrize("spec", agent_specs())
async def test_an_agent_behaves_as_the_spec_says(spec: dict[str, Any], place: Place) -> None:
    await AgentSpec(Bench(place.open()), spec).run()


@pytest.mark.parametrize("spec", _named(_tests("generate.yaml")))
async def test_generate_behaves_as_the_spec_says(spec: dict[str, Any]) -> None:
    await GenerateSpec(Bench(None), spec).run()


BROKEN: list[dict[str, Any]] = [
    {"steps": [], "surprise": 1},
    {"steps": [{"type": "send", "init": {}, "inputs": [], "expectMagic": 1}]},
    {"steps": [{"type": "teleport"}]},
    {"steps": [{"type": "getSnapshotData", "snapshotId": "x", "expectSnapshot": {}, "colour": "red"}]},
]


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_spec_that_is_not_understood_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        await AgentSpec(Bench(None), {"name": "x", "agent": "promptAgent", **broken}).run()
