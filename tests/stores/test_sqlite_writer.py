"""Who commits, and when: the event loop itself where that is quick and holds up nobody, a thread for everything else."""

import asyncio
import gc
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn.errors import StoreUnavailable
from adjourn.events import UserSaid
from adjourn.lease import transact
from adjourn.parts import Message, Part
from adjourn.promise import Promise, brief
from adjourn.store import Tx
from adjourn.stores.sqlite import SQLiteStore
from adjourn.stores.sqlite_writer import Writer
from adjourn.testing_store.samples import decision_sample, plain_snapshot
from stores.store_kit import child, line_of, said_by
from stores.writer_kit import SECONDS, Disk, lasting, names, put, submit, writing


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "a.db")
    yield store
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Writer, Disk]]:
    with writing(tmp_path / "a.db") as both:
        yield both


def commits(store: SQLiteStore) -> Callable[[], int]:
    """How many there have been, each of which tells the subscribers once."""
    told: list[None] = []
    store.subscribe(lambda: told.append(None))
    return lambda: len(told)


# -- in the loop


async def test_a_task_that_is_alone_has_its_brief_work_committed_when_submit_returns(store: SQLiteStore) -> None:
    seen: list[int] = []
    promise = store.submit(partial(put, name="d1", seen=seen))
    assert promise.done()
    assert seen == [threading.get_ident()]
    assert names(store) == ["d1"]


async def test_tasks_that_run_together_share_one_commit(store: SQLiteStore) -> None:
    many = commits(store)
    first = await transact(store, partial(put, name="first"))
    before = many()
    barrier = asyncio.Barrier(100)

    async def one(i: int) -> str:
        await barrier.wait()
        return await transact(store, partial(put, name=f"d{i:03}"))

    done = await asyncio.gather(*[one(i) for i in range(100)])
    assert done == [f"d{i:03}" for i in range(100)]
    assert sorted(names(store)) == [*done, first]
    assert many() - before <= 10


async def test_a_work_that_is_not_brief_runs_beside_the_loop(store: SQLiteStore) -> None:
    seen: list[int] = []
    await transact(store, partial(lasting, name="d1", seen=seen))
    await transact(store, lambda tx: seen.append(threading.get_ident()))
    assert threading.get_ident() not in seen
    assert len(seen) == 2


async def test_what_is_queued_behind_a_long_work_keeps_its_order(store: SQLiteStore) -> None:
    order: list[int] = []
    hold = threading.Event()

    def long(_: Tx) -> None:
        hold.wait(SECONDS)
        order.append(0)

    @brief
    def short(_: Tx, i: int) -> None:
        order.append(i)

    promises = [store.submit(long), *[store.submit(partial(short, i=i)) for i in range(1, 6)]]
    assert not any(p.done() for p in promises)
    hold.set()
    for promise in promises:
        promise.result(SECONDS)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_whoever_blocks_the_loop_for_a_work_that_waits_for_its_turn_gets_it(store: SQLiteStore) -> None:
    await transact(store, partial(put, name="d0"))

    async def other() -> list[str]:
        mine = store.submit(partial(put, name="d1"))  # not alone: the test's own task is not over
        assert not mine.done()
        return [mine.result(SECONDS)]

    assert await asyncio.create_task(other()) == ["d1"]


async def test_another_thread_that_blocks_for_it_gets_it_even_where_the_loop_stands_still(store: SQLiteStore) -> None:
    await transact(store, partial(put, name="d0"))
    found: list[str] = []

    async def other() -> None:
        mine = store.submit(partial(put, name="d1"))
        waiter = threading.Thread(target=lambda: found.append(mine.result(SECONDS)))
        waiter.start()
        waiter.join(SECONDS)

    await asyncio.create_task(other())
    assert found == ["d1"]


def test_a_work_whose_loop_is_closed_before_its_turn_is_done_all_the_same(store: SQLiteStore) -> None:
    loop = asyncio.new_event_loop()
    left: list[Promise[str]] = []

    async def stays() -> None:
        await transact(store, partial(put, name="d0"))
        loop.stop()
        await asyncio.Event().wait()

    async def leaves() -> None:
        loop.stop()  # this round is the last
        left.append(store.submit(partial(put, name="d1")))

    other = loop.create_task(stays())
    loop.run_forever()
    last = loop.create_task(leaves())
    loop.run_forever()
    assert last.done()
    assert not other.done()
    assert not left[0].done()
    loop.close()
    gc.collect()
    told = threading.Event()  # not `result`, which would see to it by itself
    left[0].add_done_callback(lambda _: told.set())
    assert told.wait(SECONDS)
    assert sorted(names(store)) == ["d0", "d1"]


def test_loops_in_several_threads_lose_and_double_nothing(store: SQLiteStore) -> None:
    async def lives(who: int) -> None:
        await asyncio.gather(*[each(who, i) for i in range(10)])

    async def each(who: int, i: int) -> None:
        for k in range(5):
            await transact(store, partial(put, name=f"{who}-{i}-{k}"))

    threads = [threading.Thread(target=partial(asyncio.run, lives(who))) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(names(store)) == sorted(f"{w}-{i}-{k}" for w in range(4) for i in range(10) for k in range(5))


async def test_a_work_that_raises_keeps_nothing_and_its_neighbours_all(store: SQLiteStore) -> None:
    @brief
    def refused(tx: Tx) -> None:
        put(tx, "gone")
        raise KeyError("no")

    async def one(work: Callable[[Tx], Any]) -> Any:
        return await transact(store, work)

    works: list[Any] = [partial(put, name="d1"), refused, partial(put, name="d2"), refused]
    results = await asyncio.gather(*[one(w) for w in works], return_exceptions=True)
    assert [type(r) for r in results] == [str, KeyError, str, KeyError]
    assert sorted(names(store)) == ["d1", "d2"]


async def test_a_callback_and_a_subscriber_may_use_the_store_and_wait_for_it(store: SQLiteStore) -> None:
    said: list[str] = []

    def again() -> None:
        if "d2" not in names(store):
            said.append(store.submit(partial(put, name="d2")).result(SECONDS))

    end = store.subscribe(again)
    promise = store.submit(partial(put, name="d1"))
    end()
    assert promise.result(SECONDS) == "d1"
    assert said == ["d2"]
    last: SimpleQueue[str] = SimpleQueue()

    async def other() -> None:
        mine = store.submit(partial(put, name="d3"))
        mine.add_done_callback(lambda _: last.put(store.submit(partial(put, name="d4")).result(SECONDS)))
        await asyncio.to_thread(mine.result, SECONDS)

    await asyncio.create_task(other())
    assert await asyncio.to_thread(last.get, timeout=SECONDS) == "d4"
    assert sorted(names(store)) == ["d1", "d2", "d3", "d4"]


# -- what the loop leaves to the thread


HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
db.execute("COMMIT")
db.close()
"""


async def test_the_lock_of_another_process_holds_up_the_commit_and_not_the_loop(store: SQLiteStore) -> None:
    holder = child(HOLD, str(store.path))
    assert line_of(holder) == "locked"
    kept = asyncio.create_task(transact(store, partial(put, name="d1")))
    for _ in range(50):  # the loop goes round meanwhile
        await asyncio.sleep(0.001)
    assert not kept.done()
    await asyncio.to_thread(said_by, holder)  # its input ends, and so does its transaction
    assert await asyncio.wait_for(kept, SECONDS) == "d1"


async def test_a_lock_that_never_ends_is_an_error_that_says_so(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db", busy_seconds=0.05)
    holder = child(HOLD, str(store.path))
    assert line_of(holder) == "locked"
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        await transact(store, partial(put, name="d1"))
    said_by(holder)
    assert await transact(store, partial(put, name="d2")) == "d2"
    store.close()


async def test_a_slow_disk_holds_up_the_loop_a_few_times_and_then_the_thread(disk: tuple[Writer, Disk]) -> None:
    writer, db = disk
    db.seconds = 0.02
    seen: list[int] = []
    for i in range(20):
        promise = submit(writer, partial(put, name=f"d{i}", seen=seen))
        await asyncio.to_thread(promise.result, SECONDS)
    mine = seen.count(threading.get_ident())
    assert 1 <= mine <= 4
    assert seen[-1] != threading.get_ident()


async def test_commits_come_back_to_the_loop_when_the_disk_is_quick_again(disk: tuple[Writer, Disk]) -> None:
    writer, db = disk
    db.seconds = 0.05
    while submit(writer, partial(put, name="slow")).done():
        pass  # until the thread has them
    db.seconds = 0.0
    deadline = time.monotonic() + SECONDS
    while not submit(writer, partial(put, name="quick")).done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_file_that_was_deleted_takes_nothing_more_in_the_loop_either(store: SQLiteStore) -> None:
    await transact(store, partial(put, name="d1"))
    store.path.unlink()
    with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
        await transact(store, partial(put, name="d2"))


async def test_what_is_long_to_write_is_left_to_the_thread_and_its_neighbours_are_not(store: SQLiteStore) -> None:
    seen: list[int] = []

    @brief
    def long(tx: Tx) -> str:
        seen.append(threading.get_ident())
        put(tx, "before")
        tx.put_decision(replace(decision_sample("long"), output="x" * 100_000))
        return "long"

    await transact(store, partial(put, name="d0"))
    works: list[Any] = [partial(put, name="d1"), long, partial(put, name="d2")]
    tasks = [asyncio.create_task(transact(store, work)) for work in works]
    assert await asyncio.gather(*tasks) == ["d1", "long", "d2"]
    assert seen[0] == threading.get_ident()
    assert seen[-1] != threading.get_ident()
    assert names(store) == ["d0", "d1", "before", "long", "d2"]


async def test_a_long_batch_of_events_is_not_packed_in_the_loop(store: SQLiteStore) -> None:
    seen: list[int] = []

    @brief
    def said(tx: Tx) -> None:
        seen.append(threading.get_ident())
        tx.put_snapshot(plain_snapshot("n1", "s1"))
        tx.add_events("n1", 0, [UserSaid(Message("user", [Part(text="words " * 20_000)]))])

    await transact(store, said)
    assert len(seen) == 2
    assert seen[-1] != threading.get_ident()
    assert len(store.submit(lambda tx: tx.events(["n1"]), read=True).result(SECONDS)) == 1


# -- closing


async def test_a_store_that_is_closed_within_a_turn_of_its_own_ends_behind_it(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")

    @brief
    def last(tx: Tx) -> str:
        store.close()
        return put(tx, "d1")

    assert await transact(store, last) == "d1"
    with pytest.raises(StoreUnavailable, match="was closed"):
        await transact(store, partial(put, name="d2"))
    again = SQLiteStore(tmp_path / "a.db")
    assert names(again) == ["d1"]
    again.close()


async def test_a_work_that_is_put_back_while_the_store_is_closed_is_done_before_that(disk: tuple[Writer, Disk]) -> None:
    writer, _ = disk
    closing = threading.Thread(target=writer.close)
    seen: list[int] = []

    @brief
    def long(tx: Tx) -> None:
        if not seen:  # in the loop: the thread is on its way out, and waits for the gate
            closing.start()
            await_frame(writer._thread, "_run")  # pyright: ignore[reportPrivateUsage]
        seen.append(threading.get_ident())
        tx.put_decision(replace(decision_sample("long"), output="x" * 100_000))

    promise = submit(writer, long)
    closing.join(SECONDS)
    assert promise.done()
    assert promise.exception() is None
    assert len(set(seen)) == 2


def await_frame(thread: threading.Thread, function: str) -> None:
    """Returns when the thread is in this function itself, and so waits there."""
    deadline = time.monotonic() + SECONDS
    while sys._current_frames()[thread.ident or 0].f_code.co_name != function:  # pyright: ignore[reportPrivateUsage]
        assert time.monotonic() < deadline
        time.sleep(0.001)


async def test_a_work_that_waits_for_another_one_is_told_that_this_never_ends(store: SQLiteStore) -> None:
    @brief
    def nested(_: Tx) -> str:
        return store.submit(partial(put, name="d1")).result(SECONDS)

    with pytest.raises(RuntimeError, match="cannot begin before it ends"):
        await transact(store, nested)
    with pytest.raises(RuntimeError, match="cannot begin before it ends"):
        await transact(store, lambda tx: [nested(tx)])
    assert await transact(store, partial(put, name="d2")) == "d2"
    assert sorted(names(store)) == ["d1", "d2"]


# -- callbacks


async def test_a_callback_may_wait_for_another_work_of_the_same_commit(disk: tuple[Writer, Disk]) -> None:
    writer, _ = disk
    said: SimpleQueue[str] = SimpleQueue()
    jobs = [writer.put(partial(put, name=f"d{i}")) for i in range(3)]
    jobs[0].promise.add_done_callback(lambda _: said.put(jobs[2].promise.result(SECONDS)))
    writer.go(jobs[0])
    assert said.get(timeout=0) == "d2"
    slow = [writer.put(partial(lasting, name=f"e{i}", seen=[])) for i in range(3)]
    slow[0].promise.add_done_callback(lambda _: said.put(slow[2].promise.result(SECONDS)))
    writer.go(slow[0])
    assert await asyncio.to_thread(said.get, timeout=SECONDS) == "e2"


async def test_a_callback_that_ends_its_thread_does_not_end_the_writers(disk: tuple[Writer, Disk]) -> None:
    writer, _ = disk

    def stop(_: Any) -> None:
        raise SystemExit

    job = writer.put(partial(lasting, name="d1", seen=[]))
    job.promise.add_done_callback(stop)
    writer.go(job)
    last = submit(writer, partial(lasting, name="d2", seen=[]))
    assert await asyncio.to_thread(last.result, SECONDS) == "d2"


def test_a_forgotten_store_finishes_what_waits_for_a_turn(tmp_path: Path) -> None:
    async def leave() -> None:
        store = SQLiteStore(tmp_path / "a.db")
        await transact(store, partial(put, name="d0"))

        async def other() -> None:
            store.submit(partial(put, name="d1"))

        await asyncio.create_task(other())

    asyncio.run(leave())
    gc.collect()
    store = SQLiteStore(tmp_path / "a.db")
    assert sorted(names(store)) == ["d0", "d1"]
    store.close()


def _in_child(store: SQLiteStore, said: Any) -> None:
    store.submit(partial(put, name="d2")).result(SECONDS)
    said.send("kept")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
async def test_what_waits_for_a_turn_while_the_process_forks_is_done_once_by_the_parent(store: SQLiteStore) -> None:
    await transact(store, partial(put, name="d0"))

    async def other() -> None:
        mine = store.submit(partial(put, name="d1"))
        ours, theirs = multiprocessing.Pipe()
        forked = multiprocessing.get_context("fork").Process(target=_in_child, args=(store, theirs))
        forked.start()
        assert await asyncio.to_thread(ours.poll, SECONDS)
        assert ours.recv() == "kept"
        forked.join(SECONDS)
        assert await asyncio.to_thread(mine.result, SECONDS) == "d1"

    await asyncio.create_task(other())
    assert sorted(names(store)) == ["d0", "d1", "d2"]


async def test_a_log_that_grows_is_brought_into_the_file(store: SQLiteStore) -> None:
    log = Path(f"{store.path}-wal")
    for i in range(2500):
        await transact(store, partial(put, name=f"d{i}"))
    deadline = time.monotonic() + SECONDS
    while sizes(store.path)[0] < 500_000:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert sizes(log)[0] < 20_000_000


def sizes(*paths: Path) -> list[int]:
    return [path.stat().st_size for path in paths]


def test_whoever_closes_a_store_second_waits_as_well_until_what_was_queued_is_done(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    inside, go_on, seen = threading.Event(), threading.Event(), list[bool]()

    def work(_: Any) -> None:
        inside.set()
        go_on.wait(SECONDS)

    promise = store.submit(work)
    inside.wait(SECONDS)
    closers = [threading.Thread(target=lambda: (store.close(), seen.append(promise.done()))) for _ in range(2)]
    for closer in closers:
        closer.start()
    closers[1].join(0.1)
    go_on.set()
    for closer in closers:
        closer.join(SECONDS)
    assert seen == [True, True]
