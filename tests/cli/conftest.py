import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.cli_kit import HERE, Shop, Terminal


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop in a folder of its own; the current directory is the one with `shop_app` in it."""
    monkeypatch.setenv("SHOP_FOLDER", str(tmp_path))
    for name in [n for n in os.environ if n.startswith("ADJOURN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ADJOURN_USER", "ann")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(HERE)
    path = list(sys.path)
    yield Shop(tmp_path)
    sys.path[:] = path


@pytest.fixture
def terminal(shop: Shop) -> Iterator[Callable[..., Terminal]]:
    """Starts `adjourn` in terminals, which end with the test."""
    opened: list[Terminal] = []

    def start(*arguments: str, size: tuple[int, int] = (80, 40), **env: str) -> Terminal:
        opened.append(shop.terminal(*arguments, size=size, **env))
        return opened[-1]

    yield start
    for one in opened:
        one.kill()


@pytest.fixture
def started(shop: Shop) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that end with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
