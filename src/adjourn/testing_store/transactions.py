"""Rules about transactions: whole or not at all, one after the other, durable before they are announced."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from adjourn.store import InterruptQuery, SessionQuery, Store, Tx
from adjourn.testing_store.expect import SECONDS, do, expect, same
from adjourn.testing_store.samples import (
    decision_sample,
    events_sample,
    interrupt_sample,
    plain_snapshot,
    session_sample,
)


def gives_what_the_work_returns(store: Store) -> None:
    same(do(store, lambda tx: (1, None)), (1, None), "a future holds what the work returned")
    same(do(store, lambda tx: None, read=True), None, "a read that returns None gives None")
    expect(store.lease_seconds > 0, "a store says how long a lease is: lease_seconds is above 0")


def sees_its_own_writes(store: Store) -> None:
    def work(tx: Tx) -> None:
        tx.put_session(session_sample())
        tx.put_session(session_sample(epoch=4))
        found = tx.session("s1")
        expect(found is not None and found.epoch == 4, "a work sees the session that it put")
        expect(tx.sessions(SessionQuery()), "a work finds the session that it put")
        tx.put_snapshot(plain_snapshot("n1"))
        tx.add_events("n1", 0, events_sample())
        same([s.id for s in tx.chain("n1")], ["n1"], "a work sees the snapshot that it put")
        same(tx.events(["n1"]), events_sample(), "a work sees the events that it added")
        tx.put_interrupt(interrupt_sample())
        expect(tx.interrupts(InterruptQuery(status="open")), "a work finds the interrupt that it put")
        tx.put_decision(decision_sample())
        expect(tx.decisions(interrupt_id="i1"), "a work finds the decision that it put")

    do(store, work)


def what_raises_leaves_no_trace(store: Store) -> None:
    do(store, lambda tx: (tx.put_session(session_sample(epoch=1)), tx.put_interrupt(interrupt_sample())))

    class Refused(Exception):
        pass

    def work(tx: Tx) -> None:
        tx.put_session(session_sample(epoch=2))
        tx.put_session(session_sample("s2"))
        tx.put_snapshot(plain_snapshot("n9"))
        tx.add_events("n9", 0, events_sample())
        tx.put_interrupt(interrupt_sample(status="resolved"))
        tx.put_decision(decision_sample())
        tx.drop_session("s1")
        raise Refused("no")

    beside = [store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f"d{i}", "i9"))) for i in range(5)]
    failed = store.submit(work)
    beside += [store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f"d{i}", "i9"))) for i in range(5, 10)]
    same(type(failed.exception(SECONDS)), Refused, "what a work raised is what its promise raises")
    for promise in beside:
        same(promise.exception(SECONDS), None, "a work that raises does not disturb the ones beside it")

    def found(tx: Tx) -> list[Any]:
        open_ones = [i.id for i in tx.interrupts(InterruptQuery(status="open"))]
        return [
            tx.session("s1"),
            tx.session("s2"),
            tx.snapshot("n9"),
            tx.events(["n9"]),
            open_ones,
            tx.decisions(interrupt_id="i1"),
        ]

    wanted = [session_sample(epoch=1), None, None, [], ["i1"], []]
    same(do(store, found, read=True), wanted, "a work that raises leaves no trace")
    same(
        len(do(store, lambda tx: tx.decisions(interrupt_id="i9"), read=True)),
        10,
        "works beside one that raises are kept",
    )


def one_of_many_wins(store: Store) -> None:
    def claim(tx: Tx, name: str, seen: int) -> bool:
        session = tx.session("s1")
        if (session.epoch if session is not None else 0) != seen:
            return False
        tx.put_session(session_sample(epoch=seen + 1, holder=name))
        return True

    for seen in range(6):  # in the first one, the session does not exist yet
        start = threading.Barrier(16)

        def rush(i: int, seen: int = seen, start: threading.Barrier = start) -> bool:
            start.wait(SECONDS)
            return do(store, lambda tx: claim(tx, f"driver {i}", seen))

        with ThreadPoolExecutor(16) as threads:
            won = [i for i, result in enumerate(threads.map(rush, range(16))) if result]
        same(len(won), 1, "of 16 that compare and set at once, one wins")
        session = do(store, lambda tx: tx.session("s1"), read=True)
        holder = session.holder if session is not None else None
        same(holder, f"driver {won[0]}", "the one that was told it won is the one that is stored")


def keeps_all_of_many_at_once(store: Store) -> None:
    def add(tx: Tx) -> int:
        session = tx.session("s1") or session_sample(waiting=0)
        tx.put_session(replace(session, waiting=session.waiting + 1))
        return session.waiting + 1

    promises = [store.submit(add) for _ in range(200)]
    found = [p.result(SECONDS) for p in promises]
    same(sorted(found), list(range(1, 201)), "works on the same session come one after the other")


def reads_what_was_acknowledged(store: Store) -> None:
    for i in range(50):
        do(store, lambda tx, i=i: tx.put_session(session_sample(epoch=i)))
        found = do(store, lambda tx: tx.session("s1"), read=True)
        same(found.epoch if found is not None else None, i, "a read sees what was acknowledged before it")


def nobody_can_cancel_a_change(store: Store) -> None:
    promises = [store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f"d{i}"))) for i in range(20)]
    for promise in promises:
        cancel = getattr(promise, "cancel", None)  # where it is a Future
        expect(cancel is None or not cancel(), "a change that was handed in is made, also where nobody waits for it")
    for promise in promises:
        promise.result(SECONDS)
    same(len(do(store, lambda tx: tx.decisions(), read=True)), 20, "changes that nobody waits for are made")


def calls_back_after_changes(store: Store) -> None:
    heard, broken = threading.Event(), threading.Event()

    def fail() -> None:
        broken.set()
        raise RuntimeError("a subscriber's own trouble")

    quiet: list[int] = []
    stop_quiet = store.subscribe(lambda: quiet.append(1))
    stop_quiet()
    stop_quiet()
    stops = [store.subscribe(heard.set)]
    do(store, lambda tx: tx.put_session(session_sample()))
    expect(heard.wait(10), "a subscriber is called after a change")
    heard.clear()
    stops.append(store.subscribe(fail))
    stops.append(store.subscribe(heard.set))
    future = store.submit(lambda tx: tx.put_session(session_sample(epoch=9)))
    same(future.exception(SECONDS), None, "a subscriber that fails does not fail the change")
    expect(broken.wait(10) and heard.wait(10), "a subscriber that fails does not keep the others from being called")
    for stop in stops:
        stop()
    expect(not quiet, "a subscription that has ended is not called")


def finishes_what_is_queued_when_closed(store: Store) -> None:
    futures = [store.submit(lambda tx, i=i: tx.put_decision(decision_sample(f"d{i}"))) for i in range(100)]
    store.close()
    store.close()
    expect(
        all(f.done() and f.exception() is None for f in futures), "closing a store finishes what was handed in before"
    )
