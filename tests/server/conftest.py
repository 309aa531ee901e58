from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from adjourn import MemoryStore, Store
from adjourn.server import Server
from adjourn.stores.sqlite import SQLiteStore
from server.server_kit import Office, People, app_of, at


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "sessions.db")
    yield made
    made.close()


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture(scope="session")
def shared_app() -> Server:
    return app_of(Office())


@pytest.fixture
async def people(office: Office, shared_app: Server) -> AsyncIterator[People]:
    """Everybody, at a server of `office`. Making a server takes long, so one serves each test's application in turn."""
    shared_app.state.desk.ai = office.ai
    async with at(shared_app) as found:
        yield found
