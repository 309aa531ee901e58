"""Signals: Ctrl-C while the event loop is not listening, and SIGTERM while a terminal is not as it was found."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Generator
from typing import Any

from adjourn.cli.failures import Left


@contextlib.contextmanager
def stoppable(why: str) -> Generator[None]:
    """Around code that blocks: Ctrl-C stops it at once, as Left(why), and SIGTERM ends the process at once.

    asyncio would wait with both until that code is through.
    """
    before = _instead({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL})
    try:
        yield
    except KeyboardInterrupt:
        raise Left(why) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _instead(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Sets them where a handler of Python's is in place now; returns those that were there."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is not threading.main_thread():
        return before
    for number, handler in handlers.items():
        if callable(signal.getsignal(number)):
            before[number] = signal.signal(number, handler)
    return before


class Ending:
    """SIGTERM cancels what runs, so that a prompt, a spinner or a full screen puts the terminal back; `die` then ends the
    process by the signal that came. A second SIGTERM ends it at once.
    """

    def __init__(self) -> None:
        self.came = False

    @contextlib.contextmanager
    def heard(self) -> Generator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end() -> None:
            self.came = True
            loop.remove_signal_handler(signal.SIGTERM)
            task.cancel()

        try:
            loop.add_signal_handler(signal.SIGTERM, end)
        except (NotImplementedError, ValueError, RuntimeError):
            yield  # Windows, or not the main thread: it ends as it always does
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def die(self) -> None:
        """Ends the process as the signal would have, so that whoever sent it sees that."""
        if self.came:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
