"""What the stores that work in threads have in common."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Threads:
    """A few threads, started when there is something to do."""

    def __init__(self, many: int, name: str) -> None:
        self._mine: set[int] = set()
        self._pool = ThreadPoolExecutor(many, name, initializer=lambda: self._mine.add(threading.get_ident()))

    def submit(self, work: Callable[..., object], *values: Any) -> None:
        self._pool.submit(work, *values)

    def close(self) -> None:
        """Finishes what was submitted."""
        # A forgotten store is closed by whichever thread Python collects it in, and that can be one of these.
        self._pool.shutdown(wait=threading.get_ident() not in self._mine)


def never_free(*values: object) -> None:
    """Keeps what was inherited by a fork from ever being closed in this process."""
    import ctypes

    for value in values:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
