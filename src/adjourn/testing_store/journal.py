"""Rules about the journal: when each commit was, under which lease, and what followed on what."""

from msgspec import UNSET

from adjourn.events import ToolStarted
from adjourn.records import Batch
from adjourn.store import Store, Tx
from adjourn.testing_store.expect import do, same
from adjourn.testing_store.samples import events_sample, plain_snapshot, session_sample


def keeps_the_time_and_epoch_of_each_commit(store: Store) -> None:
    wanted = [Batch(1000.25 + i, i // 3, (ToolStarted(f"c{i}"),)) for i in range(8)]

    def put(tx: Tx) -> None:
        for n in ("n1", "n2"):
            tx.put_snapshot(plain_snapshot(n, batches=8))
        for i, b in enumerate(wanted):
            tx.add_events("n1", i, b.events, b.at, b.epoch)
            tx.add_events("n2", i, b.events, b.at + 1, b.epoch)

    do(store, put)

    def found(tx: Tx, first: int = 0) -> list[Batch]:
        return [Batch(b.at, b.epoch, tuple(b.events)) for b in tx.batches("n1", first)]

    same(do(store, found, read=True), wanted, "each commit's events come back with its time and epoch, in order")
    same(do(store, lambda tx: found(tx, 5), read=True), wanted[5:], "batches from the fifth on")
    same(do(store, lambda tx: found(tx, 8), read=True), [], "there are no batches behind the last")
    same(do(store, lambda tx: tx.batches("nobody"), read=True), [], "a snapshot that is not there has no batches")


def a_commit_without_a_time_has_its_snapshots(store: Store) -> None:
    def put(tx: Tx) -> None:
        tx.put_snapshot(plain_snapshot("n1", batches=2))
        tx.add_events("n1", 0, events_sample())
        tx.add_events("n1", 1, events_sample(), 0.0, 2)
        tx.put_snapshot(plain_snapshot("n1", batches=2, updated=77.5))

    do(store, put)
    found = [(b.at, b.epoch) for b in do(store, lambda tx: tx.batches("n1"), read=True)]
    same(found, [(77.5, 0), (0.0, 2)], "a commit of unknown time has that of its snapshot, and a time of 0 is a time")


def finds_what_came_after_a_snapshot(store: Store) -> None:
    ids = [f"n{i}" for i in (3, 1, 4, 2, 5, 9, 6)]

    def put(tx: Tx) -> None:
        for i, n in enumerate(ids):
            tx.put_snapshot(plain_snapshot(n, parent=ids[i - 1] if i else None))
            tx.put_snapshot(plain_snapshot(f"other{n}", "s2"))
        tx.put_snapshot(plain_snapshot("n1", parent="n3", updated=9.0))  # putting it again does not move it

    do(store, put)
    for i, n in enumerate(ids):
        found = [s.id for s in do(store, lambda tx, n=n: tx.snapshots("s1", n), read=True)]
        same(found, ids[i + 1 :], "the snapshots made after one, in the order they were made")
    for unknown in ("nobody", "othern1", None):
        found = [s.id for s in do(store, lambda tx, n=unknown: tx.snapshots("s1", n), read=True)]
        same(found, ids, "after a snapshot that the session does not have come all of its own")


def finds_children(store: Store) -> None:
    def put(tx: Tx) -> None:
        for s in ("s1", "s2"):
            tx.put_session(session_sample(s))
        for n, parent in (("a", None), ("b", "a"), ("c", "a"), ("d", "b"), ("e", "a")):
            tx.put_snapshot(plain_snapshot(n, parent=parent, branch=n == "e", state=UNSET))
        tx.put_snapshot(plain_snapshot("c", parent="a", state={"n": 1}, status="completed"))
        for n, parent in (("x", None), ("y", "x")):
            tx.put_snapshot(plain_snapshot(n, "s2", parent=parent))

    do(store, put)

    def found(n: str) -> list[tuple[str, bool, object]]:
        return [(s.id, s.branch, s.state) for s in do(store, lambda tx: tx.children(n), read=True)]

    same(
        found("a"),
        [("b", False, UNSET), ("c", False, {"n": 1}), ("e", True, UNSET)],
        "all children of a snapshot are found, oldest first",
    )
    same(found("b"), [("d", False, UNSET)], "a child is found by its parent")
    same(found("e") + found("nobody"), [], "a snapshot that nothing follows has no children")
    do(store, lambda tx: tx.drop_session("s1"))
    same(found("a"), [], "a deleted session leaves no children")
    same([n for n, *_ in found("x")], ["y"], "deleting one session leaves the children of others")
