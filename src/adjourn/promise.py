"""What a store gives for a work that it was handed: the result, later.

A `concurrent.futures.Future` is one, so a store may give those. Ours is lighter: it has no lock, so that a thousand
sessions that each wait for a commit do not spend their time on making locks.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from adjourn.errors import DefinitionError

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("adjourn.stores")


def brief(work: C) -> C:
    """Marks a work (a function of a `Tx`) that touches few rows, whatever it is given.

    It means nothing to who calls it. A store may run such a work where it was submitted, as an event loop would not wait
    for the hop to a thread and back.
    """
    work.__dict__["brief"] = True
    return work


def is_brief(work: Callable[..., Any]) -> bool:
    """Whether it was marked so, or is a `partial` of one that was."""
    return getattr(getattr(work, "func", work), "brief", False)


class Promise(Protocol[T_co]):
    """The result of a work, once there is one. Whoever waits for it cannot cancel it."""

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> T_co:
        """Blocks until it is there; raises what the work raised, TimeoutError after `timeout` seconds."""
        ...

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Blocks likewise, and gives what the work raised instead of raising it."""
        ...

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Calls `fn` with this promise once it is done, in whichever thread that happens; at once where it is."""
        ...


class Pending(Generic[T]):
    """A promise that is kept with `keep` or broken with `fail`, once, by one thread.

    `hurry` is called, in the thread of whoever is about to block until it is done, and may do what was promised there.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_hurry", "_value")

    def __init__(self, hurry: Callable[[], None] | None = None) -> None:
        self._hurry = hurry
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def keep(self, value: T) -> None:
        self._value = value
        self._done = True
        self._call_back()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done = True
        self._call_back()

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> T:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done and self._hurry is not None:
            self._hurry()
        if not self._done:
            done = threading.Event()
            self.add_done_callback(lambda _: done.set())
            if not done.wait(timeout):
                raise TimeoutError(f"no result after {timeout} s")
        return self._error

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        # Put first, looked at second; and whoever is done looks second too. So one of both finds it, and popping is what
        # keeps the other from calling it as well.
        self._callbacks.append(fn)
        if self._done:
            self._call_back()

    def _call_back(self) -> None:
        while True:
            try:
                fn = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                fn(self)
            except Exception:  # noqa: BLE001 - a waiter's trouble is not the store's
                _log.exception("a callback of a store's promise failed")


class Waiters:
    """Those who wait for something, each in an event loop of its own; it may happen in another thread."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self, over: Callable[[], bool]) -> None:
        """Returns at the next `wake`; at once where it is `over`, which is asked after one can be woken."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        if not over():
            await future

    def wake(self) -> None:
        """What they wait for has happened."""
        if not self._futures:
            return
        futures, self._futures = self._futures, []
        here = running_loop()
        for future in futures:
            loop = future.get_loop()
            if loop is here:
                _wake(future)
            else:
                with contextlib.suppress(RuntimeError):  # it was closed
                    loop.call_soon_threadsafe(_wake, future)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def loop_for(what: str) -> asyncio.AbstractEventLoop:
    """The one that runs in this thread. Raises DefinitionError where none does: `what` cannot begin."""
    loop = running_loop()
    if loop is None:
        raise DefinitionError(
            f"{what} begins at once, in the event loop that runs, and none runs here: call it inside an async function, and "
            "run that one, with adjourn.run_sync(main()) for a script. Nothing was begun"
        )
    return loop


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The one that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
