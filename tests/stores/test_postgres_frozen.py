"""A process that is frozen, or cut off, in the middle of a transaction on PostgreSQL: others go on, and it keeps nothing."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg")
import psycopg
from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from adjourn import StoreUnavailable
from adjourn.store import Tx
from adjourn.stores.postgres import PostgresStore
from adjourn.testing_store.samples import change_sample, session_sample
from stores.store_kit import Place, child, do, said_by

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
UNBOUNDED = "-c idle_in_transaction_session_timeout=0"


@pytest.fixture
def place(postgres_dsn: str, tmp_path: Path) -> Iterator[Place]:
    place = Place("postgres", tmp_path, postgres_dsn)
    yield place
    place.close()


FROZEN = """
import signal, sys, threading
from msgspec.structs import replace
from adjourn.stores.postgres import PostgresStore
from adjourn.testing_store.samples import change_sample
from stores.store_kit import do

dsn, schema, moment = sys.argv[1:]
store = PostgresStore(dsn, schema=schema, lease_seconds=0.1, wait_seconds=0.1)
seen = []

def freeze(here):
    if here == moment and len(seen) == 1:
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # at once, in this thread too

def work(tx):
    session = tx.session("s1")
    seen.append(session.epoch)
    freeze("after a row came")
    if session.epoch != 1:
        raise RuntimeError("somebody else went on")
    tx.add_change(change_sample("never"))
    tx.put_session(replace(session, epoch=99))
    freeze("after a row was sent")
    tx.put_session(replace(session, epoch=100))

try:
    do(store, work)
except RuntimeError as e:
    print(e, seen)
store.close()
"""


def frozen(place: Place, moment: str, options: str = "") -> "subprocess.Popen[str]":
    """A process that is frozen at this moment of a transaction which has the session locked."""
    store = place.open()
    do(store, lambda tx: tx.put_session(session_sample("s1", epoch=1)))
    process = child(FROZEN, make_conninfo(place.dsn, options=options), place.name, moment)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), process.communicate()
    return process


def go_on(tx: Tx) -> int:
    session = tx.session("s1")
    assert session is not None
    tx.put_session(replace(session, epoch=session.epoch + 1))
    tx.add_change(change_sample("went on"))
    return session.epoch + 1


def comes_back(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGCONT)
    return said_by(process).strip()


def ids(tx: Tx) -> list[str]:
    return [c.interrupt_id for c in tx.changes(None, 9)]


def test_the_server_gives_up_what_a_frozen_process_holds(place: Place) -> None:
    process = frozen(place, "after a row came")
    with psycopg.connect(place.dsn, options="-c lock_timeout=60s") as db:  # it waits, and does nothing about it
        db.execute(f"SELECT FROM {place.name}.sessions WHERE id = 's1' FOR UPDATE".encode())
    assert do(place.open(), go_on) == 2
    assert comes_back(process) == "somebody else went on [1, 2]"


@pytest.mark.parametrize("moment", ["after a row came", "after a row was sent"])
def test_whoever_waits_ends_a_frozen_process_that_the_server_does_not(place: Place, moment: str) -> None:
    process = frozen(place, moment, UNBOUNDED)
    assert do(place.open(lease_seconds=0.1), go_on) == 2
    assert comes_back(process) == "somebody else went on [1, 2]"
    assert do(place.open(), ids, read=True) == ["went on"]


def test_whoever_follows_the_feed_ends_a_frozen_process_that_holds_it_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjourn.stores.postgres._POLL_SECONDS", 0.1)
    process = frozen(place, "after a row was sent", UNBOUNDED)
    store = place.open(lease_seconds=0.1)
    do(store, lambda tx: tx.add_change(change_sample("behind")))
    shown = threading.Event()

    def look(found: Any = None) -> None:
        store.submit(ids, read=True).add_done_callback(lambda p: shown.set() if p.result() else None)

    store.subscribe(look)
    assert shown.wait(60)
    assert do(store, ids, read=True) == ["behind"]
    process.send_signal(signal.SIGCONT)
    said_by(process)


def test_a_lock_that_somebody_else_keeps_is_waited_for_no_longer_than_the_server_is(place: Place) -> None:
    store = place.open(lease_seconds=0.1, wait_seconds=0.1)
    do(store, lambda tx: tx.put_session(session_sample("s1", epoch=1)))
    with psycopg.connect(place.dsn) as db:  # another program, which is left alone
        db.execute(f"SELECT FROM {place.name}.sessions WHERE id = 's1' FOR UPDATE".encode())
        with pytest.raises(StoreUnavailable, match=r"other transactions on the same rows.*pg_stat_activity"):
            do(store, go_on)
        db.execute("SELECT 1")
    assert do(store, go_on) == 2


BOUNDS = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")


def bounds_of(store: PostgresStore) -> list[str]:
    return do(store, lambda tx: [vars(tx)["_db"].execute(f"SHOW {name}").fetchone()[0] for name in BOUNDS])


def test_the_bounds_are_a_lease_and_what_the_dsn_says_stays(place: Place) -> None:
    store = place.open(lease_seconds=7.5)
    assert isinstance(store, PostgresStore)
    assert bounds_of(store) == ["7500ms", "7500ms", "0"]
    options = "-c idle_in_transaction_session_timeout=2min -c lock_timeout=0"
    own = PostgresStore(make_conninfo(place.dsn, options=options), schema=place.name)
    assert bounds_of(own) == ["2min", "0", "0"]
    own.close()


TURN = """
import asyncio, signal, sys, threading
from adjourn import Adjourn, AgentInit, SessionBusy, SessionConflict
from adjourn.stores.postgres import PostgresStore
from adjourn.testing import ScriptedModel, call

dsn, schema, who = sys.argv[1:]

class Freezing(PostgresStore):
    '''Its process is frozen within the transaction that keeps the tool's result.'''

    frozen = False

    def submit(self, work, *, read=False):
        def slow(tx):
            result = work(tx)
            if ran and not read and not self.frozen:
                self.frozen = True
                tx.session("s1")  # all of it has reached the server
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return result
        return super().submit(slow if who == "frozen" else work, read=read)

ran = []
ai = Adjourn(model=ScriptedModel([call("pay"), "Paid."] if who == "frozen" else ["Settled."]))

@ai.tool()
def pay() -> str:
    ran.append(1)
    print("paid", flush=True)
    return "paid"

agent = ai.define_agent("clerk", tools=[pay], store=Freezing(dsn, schema=schema, lease_seconds=0.5))

async def main():
    session = agent.connect(AgentInit(session_id="s1"))
    if who == "frozen":
        try:
            await session.send("pay").output
        except SessionConflict as e:
            print(type(e).__name__, e)
        return
    while True:
        try:
            await session.load()
            break
        except (SessionBusy, SessionConflict):
            await asyncio.sleep(0.01)
            session = agent.connect(AgentInit(session_id="s1"))
    (pause,) = session.interrupts
    print(pause.name, pause.reason)
    print((await pause.respond("paid").output).text)

asyncio.run(main())
agent.store.close()
"""


def test_a_turn_whose_process_is_frozen_goes_on_elsewhere_and_keeps_nothing_when_it_comes_back(place: Place) -> None:
    lost = child(TURN, place.dsn, place.name, "frozen")
    _, status = os.waitpid(lost.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), lost.communicate()
    assert said_by(child(TURN, place.dsn, place.name, "heir")).split("\n") == ["pay outcome_unknown", "Settled.", ""]
    paid, said = comes_back(lost).split("\n")
    assert paid == "paid"
    assert said.startswith("SessionConflict another process took over session 's1'")
