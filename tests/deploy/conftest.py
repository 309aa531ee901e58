import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.deploy_kit import Machine, Page


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine on which docs/deploy.md was followed: secrets, one access token for an admin, nothing running yet."""
    # Short: a Unix socket's path may have about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="adjourn-m-"))
    made = Machine(folder)
    try:
        said = made.shell(Page("deploy.md").block("Secrets and the first token"), first="")
        made.token = next(word for word in said.split() if word.startswith("adj_"))
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
