"""Several processes on the same rows: opening, racing, hearing of each other, forking, dying."""

import asyncio
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adjourn.decisions import decide
from adjourn.errors import AlreadyResolved, ResumeError
from adjourn.events import Responded
from adjourn.lease import settled
from adjourn.store import Decision, Tx
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing_store.samples import decision_sample, session_sample
from stores.store_kit import Driver, Place, child, do, said_by

RACE = """
import sys, threading
from adjourn.errors import AlreadyResolved
from adjourn.events import Responded
from adjourn.decisions import decide
from stores.store_kit import do
{store}
pause, me = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
outcomes = []
def rush(i):
    decision, refused = do(store, lambda tx: decide(tx, pause, Responded(pause, 0, by=f"{{me}}.{{i}}"), 2000.0, None))
    outcomes.append((decision.by if decision else None, refused.decision.by if refused else None))
threads = [threading.Thread(target=rush, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
store.close()
for won, winner in outcomes:
    print("won" if won else "lost", won or winner)
"""


def test_thirty_two_threads_decide_at_once_and_one_wins(place: Place) -> None:
    store = place.open()
    (pause,) = Driver(store).pause()
    start = threading.Barrier(32)

    def rush(i: int) -> tuple[Decision | None, ResumeError | None]:
        start.wait(30)
        return do(store, lambda tx: decide(tx, pause, Responded(pause, i, by=str(i)), 2000.0, None))

    with ThreadPoolExecutor(32) as threads:
        results = list(threads.map(rush, range(32)))
    won = [d for d, _ in results if d is not None]
    assert len(won) == 1
    refused = [e for _, e in results if e is not None]
    assert all(isinstance(e, AlreadyResolved) and e.decision == won[0] for e in refused)
    assert do(store, lambda tx: tx.decisions(interrupt_id=pause), read=True) == won


@pytest.mark.slow
def test_eight_processes_of_four_threads_decide_at_once_and_one_wins(lasting: Place) -> None:
    store = lasting.open()
    (pause,) = Driver(store).pause()
    racers = [child(RACE.format(store=lasting.code), pause, str(i)) for i in range(8)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    lines = [line.split() for racer in racers for line in said_by(racer).splitlines()]
    assert len(lines) == 32
    (winner,) = [who for outcome, who in lines if outcome == "won"]
    assert {who for outcome, who in lines if outcome == "lost"} == {winner}
    (decision,) = do(store, lambda tx: tx.decisions(interrupt_id=pause), read=True)
    assert decision.by == winner


@pytest.mark.slow
def test_eight_processes_open_a_new_store_at_once_and_each_keeps_what_it_puts(lasting: Place) -> None:
    code = (
        "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        f"{lasting.code}"
        "from adjourn.testing_store.samples import session_sample\n"
        "store.submit(lambda tx: tx.put_session(session_sample(sys.argv[1]))).result()\nstore.close()\n"
    )
    openers = [child(code, f"s{i}") for i in range(8)]
    for opener in openers:
        assert opener.stdout is not None
        opener.stdout.readline()
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("\n")
        opener.stdin.flush()
    for opener in openers:
        said_by(opener)
    store = lasting.open()
    for i in range(8):
        assert do(store, lambda tx, i=i: tx.session(f"s{i}"), read=True) == session_sample(f"s{i}")


def test_a_change_made_by_another_process_is_heard_of(lasting: Place) -> None:
    store = lasting.open()
    code = f"{lasting.code}from adjourn.testing_store.samples import session_sample\nimport sys\n"
    code += "for line in sys.stdin:\n    store.submit(lambda tx: tx.put_session(session_sample())).result()\n"
    code += "    print(flush=True)\nstore.close()\n"
    writer = child(code)
    assert writer.stdin is not None
    assert writer.stdout is not None
    heard = threading.Event()
    stop = store.subscribe(heard.set)
    times: list[float] = []
    for _ in range(3):
        time.sleep(0.7)
        heard.clear()
        writer.stdin.write("\n")
        writer.stdin.flush()
        writer.stdout.readline()
        began = time.monotonic()
        assert heard.wait(20)
        times.append(time.monotonic() - began)
    assert min(times) < 2, times  # well before PostgreSQL's slow poll
    stop()
    writer.stdin.close()
    writer.stdin = None
    said_by(writer)


ENDLESS = """
import sys
{store}
from adjourn.testing_store.samples import decision_sample
i = 0
while True:
    futures = [store.submit(lambda tx, i=i + k: tx.put_decision(decision_sample(f"d{{i}}"))) for k in range(5)]
    for k, future in enumerate(futures):
        future.result()
        print(f"d{{i + k}}", flush=True)
    i += 5
"""


def test_what_was_acknowledged_survives_the_death_of_the_process(lasting: Place) -> None:
    writer = child(ENDLESS.format(store=lasting.code))
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline().strip() for _ in range(300)]
    writer.send_signal(signal.SIGKILL)
    acknowledged += writer.communicate(timeout=30)[0].split()
    store = lasting.open()
    found = {d.id for d in do(store, lambda tx: tx.decisions(), read=True)}
    complete = [d for d in acknowledged if d in found]
    assert len(acknowledged) >= 300
    assert [d for d in acknowledged[:-1] if d not in found] == []  # the last line may have been cut in two
    assert len(complete) >= len(acknowledged) - 1


def test_a_process_that_ends_without_closing_finishes_what_was_queued(lasting: Place) -> None:
    code = f"{lasting.code}from adjourn.testing_store.samples import decision_sample\n"
    code += "for i in range(200):\n    store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f'd{i}')))\n"
    code += "store.submit(lambda tx: tx.decisions(), read=True)\nstore.subscribe(lambda: None)\n"
    began = time.monotonic()
    said_by(child(code))
    assert time.monotonic() - began < 30
    store = lasting.open()
    assert len(do(store, lambda tx: tx.decisions(), read=True)) == 200


def test_an_error_at_the_end_of_a_program_does_not_hang_it(lasting: Place) -> None:
    code = f"{lasting.code}store.submit(lambda tx: None).result()\nraise SystemExit(3)\n"
    process = child(code)
    process.communicate(timeout=30)
    assert process.returncode == 3


def test_a_store_that_nobody_holds_any_more_is_closed(lasting: Place) -> None:
    store = lasting._open({})  # pyright: ignore[reportPrivateUsage]
    do(store, lambda tx: tx.put_session(session_sample()))
    do(store, lambda tx: tx.session("s1"), read=True)
    assert _threads()
    del store
    gc.collect()
    until = time.monotonic() + 10
    while _threads() and time.monotonic() < until:
        time.sleep(0.05)
    assert _threads() == []


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("adjourn")]


FORK = """
import os, sys, threading, time
{store}
from adjourn.testing_store.samples import decision_sample
from stores.store_kit import do
busy = threading.Event()
def write():
    i = 0
    while not busy.is_set():
        do(store, lambda tx: tx.put_decision(decision_sample(f"p{{i}}")))
        do(store, lambda tx: tx.session("s1"), read=True)
        i += 1
    print(f"parent {{i}}")
thread = threading.Thread(target=write)
thread.start()
time.sleep(0.2)
children = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        try:
            before = len(do(store, lambda tx: tx.decisions(), read=True))
            for k in range(20):
                do(store, lambda tx: tx.put_decision(decision_sample(f"c{{n}}.{{k}}")))
            assert len(do(store, lambda tx: tx.decisions(), read=True)) >= before + 20
            store.close()
            os._exit(0)
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
            os._exit(1)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
time.sleep(0.2)
busy.set()
thread.join()
decisions = do(store, lambda tx: tx.decisions(), read=True)
print("children", sum(d.id.startswith("c") for d in decisions))
print("parents", sum(d.id.startswith("p") for d in decisions))
store.close()
"""


def test_a_forked_child_has_a_store_of_its_own_and_disturbs_nobody(lasting: Place) -> None:
    lasting.open()
    lines = dict(line.split() for line in said_by(child(FORK.format(store=lasting.code))).splitlines())
    assert lines["children"] == "60"
    assert lines["parents"] == lines["parent"]


def test_a_child_forked_in_the_middle_of_a_work_is_told_so(tmp_path: Path) -> None:
    code = f"""
import os
from adjourn.errors import StoreUnavailable
from adjourn.stores import sqlite
from adjourn.testing_store.samples import session_sample
sqlite._FORK_SECONDS = 0.2
store = sqlite.SQLiteStore({str(tmp_path / "a.db")!r})
import threading
inside, go_on = threading.Event(), threading.Event()
def work(tx):
    tx.put_session(session_sample())
    inside.set()
    go_on.wait()
future = store.submit(work)
inside.wait()
pid = os.fork()
if pid == 0:
    try:
        store.submit(lambda tx: tx.session("s1")).result(10)
        os._exit(1)
    except StoreUnavailable as e:
        os._exit(0 if "forked" in str(e) else 2)
assert os.waitpid(pid, 0)[1] == 0
go_on.set()
future.result(10)
assert store.submit(lambda tx: tx.session("s1"), read=True).result(10) == session_sample()
store.close()
"""
    said_by(child(code))


def test_threads_that_fork_at_once_leave_the_store_open_to_all(lasting: Place) -> None:
    code = f"""
import os, threading
{lasting.code}
store.submit(lambda tx: None).result(20)
def fork():
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
threads = [threading.Thread(target=fork) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert not any(thread.is_alive() for thread in threads)
store.submit(lambda tx: None).result(20)
store.close()
"""
    said_by(child(code))


DRIVE = """
import sys
{store}
from stores.store_kit import Driver
for _ in range(25):
    driver = Driver(store)
    driver.whole_turn()
    print(driver.session_id)
store.close()
"""


@pytest.mark.slow
def test_eight_processes_write_at_once_and_nobody_meets_a_lock(lasting: Place) -> None:
    lasting.open()
    writers = [child(DRIVE.format(store=lasting.code)) for _ in range(8)]
    sessions = [line for writer in writers for line in said_by(writer, 110).split()]
    assert len(sessions) == 200
    store = lasting.open()
    for session in sessions:
        found = do(store, lambda tx, s=session: tx.session(s), read=True)
        assert found is not None
        assert not found.pending


def test_reading_goes_on_while_another_process_writes(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    do(store, lambda tx: tx.put_decision(decision_sample()))
    place = Place("sqlite", tmp_path)
    place.name = "a"
    writer = child(ENDLESS.format(store=place.code))
    assert writer.stdout is not None
    writer.stdout.readline()
    seen = [len(do(store, lambda tx: tx.decisions(), read=True)) for _ in range(20)]
    writer.kill()
    writer.communicate()
    assert seen == sorted(seen)
    assert os.path.getsize(tmp_path / "a.db") > 0
    store.close()


def test_a_store_that_is_collected_in_one_of_its_own_threads_ends_by_itself(lasting: Place) -> None:
    async def use() -> None:
        store = lasting._open({})  # pyright: ignore[reportPrivateUsage]
        gone = [store]

        def drop(tx: Tx) -> None:
            gone.clear()

        promise = store.submit(drop, read=True)
        del store
        await settled(promise)

    asyncio.run(use())
    gc.collect()
    until = time.monotonic() + 10
    while _threads() and time.monotonic() < until:
        time.sleep(0.05)
    assert _threads() == []
