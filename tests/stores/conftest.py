from collections.abc import Iterator
from pathlib import Path

import pytest

from adjourn import Store
from stores.store_kit import KINDS, LASTING, Place


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    dsn = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else ""
    place = Place(request.param, tmp_path, dsn)
    yield place
    place.close()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Rows of every kind of store."""
    yield from _place(request, tmp_path)


@pytest.fixture(params=LASTING)
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Rows that outlive the process."""
    yield from _place(request, tmp_path)


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()
