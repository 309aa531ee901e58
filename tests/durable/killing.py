"""Processes that end at a point of their own choice, and the stores that they use."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adjourn.ledger import renew
from adjourn.promise import Promise


class Death:
    """Counts the points of a run, and ends the process at one of them."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0

    def __call__(self) -> None:
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class KillingStore:
    """A store whose every commit has a kill point on each side.

    Renewals of a lease have none: they come as time goes by, and would make other points of the same ones in each run.
    """

    def __init__(self, store: Any, death: Death) -> None:
        self.store = store
        self.death = death
        self.lease_seconds: float = store.lease_seconds

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Promise[Any]:
        if read or getattr(work, "func", None) is renew:
            return self.store.submit(work, read=read)
        self.death()
        future = self.store.submit(work)
        future.exception()  # waits for the commit
        self.death()
        return future

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self.store.subscribe(callback)

    def close(self) -> None:
        self.store.close()


def open_store(where: str, folder: Path, name: str, lease: float) -> Any:
    """`where` is `sqlite`, or a PostgreSQL dsn."""
    if where == "sqlite":
        from adjourn.stores.sqlite import SQLiteStore

        return SQLiteStore(folder / f"{name}.db", lease_seconds=lease)
    from adjourn.stores.postgres import PostgresStore

    return PostgresStore(where, schema=name, lease_seconds=lease)


def begun(work: Callable[[], None]) -> int:
    """Begins `work` in a process of its own; gives its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return pid


def ended(pid: int) -> int:
    """Waits for this process; says how it ended (negative: the signal)."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(work: Callable[[], None]) -> int:
    """Runs `work` in a process of its own; says how that ended."""
    return ended(begun(work))
