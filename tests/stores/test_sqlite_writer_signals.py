"""A SQLite store whose main thread a signal interrupts: whatever its handler raises, and whenever, everybody is told."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adjourn.errors import StoreUnavailable
from adjourn.lease import settled
from adjourn.promise import Pending, brief
from adjourn.store import Tx
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_writer import Writer
from stores.store_kit import child, line_of
from stores.writer_kit import SECONDS, Disk, names, put, submit, writing


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Writer, Disk]]:
    with writing(tmp_path / "a.db") as both:
        yield both


async def test_an_interrupt_behind_the_commit_leaves_what_was_committed_and_says_so(disk: tuple[Writer, Disk]) -> None:
    writer, db = disk
    job = writer.put(partial(put, name="d1"))
    db.stop = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        writer.go(job)
    assert job.promise.result(SECONDS) == "d1"
    assert submit(writer, partial(put, name="d2")).result(SECONDS) == "d2"


async def test_an_interrupt_before_the_commit_keeps_nothing_and_leaves_the_store_usable(
    disk: tuple[Writer, Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = disk

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    job = writer.put(partial(put, name="d1"))
    with monkeypatch.context() as patched:
        patched.setattr(writer, "_work", stop)
        with pytest.raises(KeyboardInterrupt):
            writer.go(job)
    with pytest.raises(StoreUnavailable, match="nothing of this change was kept"):
        job.promise.result(SECONDS)
    found = submit(writer, lambda tx: [d.id for d in tx.decisions()]).result(SECONDS)
    assert found == []
    assert submit(writer, partial(put, name="d2")).result(SECONDS) == "d2"


def stop(_: Any) -> None:
    raise KeyboardInterrupt


async def shared(writer: Writer) -> "asyncio.Future[list[Any]]":
    """Tasks that wait for three works of one commit, which is to come."""
    jobs = [writer.put(partial(put, name=f"d{i}")) for i in range(3)]
    waiting = [asyncio.create_task(settled(job.promise)) for job in jobs]
    await asyncio.sleep(0)
    return asyncio.gather(*waiting)


async def test_who_shares_a_commit_hears_of_it_though_a_handler_raises_before_anybody_was_told(
    disk: tuple[Writer, Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = disk
    waiting = await shared(writer)
    with monkeypatch.context() as patched:
        patched.setattr(writer, "_weigh", stop)
        with pytest.raises(KeyboardInterrupt):
            writer.turn()
    assert await asyncio.wait_for(waiting, SECONDS) == ["d0", "d1", "d2"]


async def test_who_shares_a_commit_hears_of_it_though_a_handler_raises_as_the_first_is_told(
    disk: tuple[Writer, Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = disk
    waiting = await shared(writer)
    with monkeypatch.context() as patched:
        patched.setattr(Pending, "keep", stop_once(patched))
        with pytest.raises(KeyboardInterrupt):
            writer.turn()
    assert await asyncio.wait_for(waiting, SECONDS) == ["d0", "d1", "d2"]


def stop_once(patched: pytest.MonkeyPatch) -> Callable[[Any, Any], None]:
    def keep(_: Any, __: Any) -> None:
        patched.undo()
        raise KeyboardInterrupt

    return keep


async def test_an_interrupt_within_a_work_that_nobody_waits_for_is_raised_on(disk: tuple[Writer, Disk]) -> None:
    writer, _ = disk

    @brief
    def stopped(tx: Tx) -> None:
        put(tx, "gone")
        raise KeyboardInterrupt

    jobs = [writer.put(partial(put, name="d1")), writer.put(stopped), writer.put(partial(put, name="d2"))]
    with pytest.raises(KeyboardInterrupt):
        writer.go(jobs[0])
    assert [await asyncio.to_thread(jobs[i].promise.result, SECONDS) for i in (0, 2)] == ["d1", "d2"]
    assert isinstance(jobs[1].promise.exception(SECONDS), KeyboardInterrupt)
    found = submit(writer, lambda tx: [d.id for d in tx.decisions()])
    assert await asyncio.to_thread(found.result, SECONDS) == ["d1", "d2"]


SIGNALLED = """
import asyncio, sys
from functools import partial
from adjourn.lease import settled, transact
from adjourn.promise import Pending, brief
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing_store.samples import decision_sample, plain_snapshot

@brief
def put(tx, name):
    tx.put_decision(decision_sample(name))

async def main(store):
    for kept in range(1_000_000):
        await transact(store, partial(put, name=f"d{kept:06}"))
        print(kept + 1, flush=True)

store = SQLiteStore(sys.argv[1])
try:
    asyncio.get_event_loop_policy().new_event_loop().run_until_complete(main(store))
except KeyboardInterrupt:
    print("interrupted", flush=True)
store.submit(lambda tx: put(tx, "last")).result(30)
store.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
@pytest.mark.parametrize("after", [1, 7, 40, 41, 100])
def test_a_process_that_is_interrupted_keeps_what_it_acknowledged_and_can_go_on(tmp_path: Path, after: int) -> None:
    # Without asyncio.run, so that the interrupt is raised wherever the main thread is, in the midst of a commit too.
    process = child(SIGNALLED, str(tmp_path / "a.db"))
    while line_of(process) != str(after):
        pass
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=SECONDS)
    said = out.split()
    assert "interrupted" in said
    acknowledged = max([after, *[int(n) for n in said if n.isdecimal()]])
    store = SQLiteStore(tmp_path / "a.db")
    found = names(store)
    store.close()
    assert found[-1] == "last"
    assert found[:-1] == [f"d{i:06}" for i in range(len(found) - 1)]
    assert acknowledged <= len(found) - 1 <= acknowledged + 1
