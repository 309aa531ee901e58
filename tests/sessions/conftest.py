from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.session_kit import KINDS, Place, World, make_place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"))
    yield made
    made.close()


@pytest.fixture
def world(place: Place) -> World:
    return World(place)
