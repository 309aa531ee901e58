"""A thread for an engine that must not be entered twice at once."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Runs what it is given, in the order it came.

    It is a daemon, so that a program can end while the engine is busy with what nobody waits for any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    async def run(self, job: Callable[[], T]) -> T:
        """The result of the job. One that is cancelled while it still queues is never begun."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # not alive: in a forked child
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:
            job, future = self._jobs.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as e:  # noqa: BLE001 - it belongs to whoever waits; the thread goes on
                    future.set_exception(e)
                else:
                    future.set_result(result)
