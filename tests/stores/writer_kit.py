"""Works, a disk and a writer of a SQLite store, for tests of who commits."""

import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adjourn.promise import Promise, brief
from adjourn.store import Tx
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_file import File
from adjourn.stores.sqlite_writer import Writer
from adjourn.stores.subscribers import Subscribers
from adjourn.testing_store.samples import decision_sample

SECONDS = 30


@brief
def put(tx: Tx, name: str, seen: list[Any] | None = None) -> str:
    tx.put_decision(decision_sample(name))
    if seen is not None:
        seen.append(threading.get_ident())
    return name


def lasting(tx: Tx, name: str, seen: list[Any]) -> str:
    """The same, as a work that nobody called brief."""
    return put(tx, name, seen)


def names(store: SQLiteStore) -> list[str]:
    return store.submit(lambda tx: [d.id for d in tx.decisions()], read=True).result(SECONDS)


class Disk(sqlite3.Connection):
    """A connection whose commits take as long as they are told, or end with what a signal's handler raises."""

    seconds = 0.0
    stop: BaseException | None = None

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        out = super().execute(sql, *values)
        if sql == "COMMIT":
            time.sleep(self.seconds)
            if self.stop is not None:
                stop, self.stop = self.stop, None
                raise stop
        return out


@contextmanager
def writing(path: Path) -> Generator[tuple[Writer, Disk]]:
    SQLiteStore(path).close()
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, factory=Disk)
    writer = Writer(File(path, 1.0), db, Subscribers())
    yield writer, db
    writer.close()


def submit(writer: Writer, work: Callable[[Tx], Any]) -> Promise[Any]:
    job = writer.put(work)
    writer.go(job)
    return job.promise
