"""Rules about rows: what is put comes back whole, in order, and is found by what it is looked for."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from adjourn.events import UserSaid
from adjourn.parts import Message, Part
from adjourn.store import Decision, InterruptQuery, SessionQuery, Store, Tx
from adjourn.testing_store.expect import do, expect, same
from adjourn.testing_store.samples import (
    decision_sample,
    events_sample,
    interrupt_sample,
    plain_snapshot,
    said,
    session_sample,
    snapshot_sample,
)


def keeps_every_field(store: Store) -> None:
    def put(tx: Tx) -> None:
        tx.put_session(session_sample())
        tx.put_snapshot(snapshot_sample())
        tx.put_interrupt(interrupt_sample())
        tx.put_decision(decision_sample())

    do(store, put)
    same_samples(store)


def same_samples(store: Store) -> None:
    same(do(store, lambda tx: tx.session("s1"), read=True), session_sample(), "a session comes back as it was put")
    found = do(store, lambda tx: tx.snapshot("n1"), read=True)
    same(found, snapshot_sample(), "a snapshot comes back as it was put")
    found = do(store, lambda tx: tx.interrupt("i1"), read=True)
    same(found, interrupt_sample(), "an interrupt comes back as it was put")
    found = do(store, lambda tx: tx.decisions(), read=True)
    same(found, [decision_sample()], "a decision comes back as it was put")


def knows_nothing_from_none(store: Store) -> None:
    unset, none = plain_snapshot("n1"), plain_snapshot("n2", state=None)
    kept = Decision("d1", "i1", "s1", "restart", 1.0), Decision("d2", "i1", "s1", "restart", 2.0, input=None)

    def put(tx: Tx) -> None:
        for snapshot in (unset, none):
            tx.put_snapshot(snapshot)
        for decision in kept:
            tx.put_decision(decision)

    do(store, put)
    one, two = do(store, lambda tx: (tx.snapshot("n1"), tx.snapshot("n2")), read=True)
    expect(one is not None and one.state is UNSET, "a state that was not set stays UNSET")
    expect(two is not None and two.state is None, "a state that was set to None stays None")
    same(do(store, lambda tx: tx.decisions()), list(kept), "a replaced input of None is not the same as none")
    missing = do(store, lambda tx: (tx.session("x"), tx.snapshot("x"), tx.interrupt("x"), tx.chain("x")), read=True)
    expect(missing == (None, None, None, []), "what was never put is None, and its chain is empty")


def keeps_falsy_values(store: Store) -> None:
    values: list[Any] = [None, False, 0, 0.0, "", [], {}]

    def put(tx: Tx) -> None:
        for i, value in enumerate(values):
            tx.put_snapshot(plain_snapshot(f"n{i}", state=value))
            tx.put_decision(Decision(f"d{i}", f"i{i}", "s1", "respond", 1.0, output=value))

    do(store, put)
    for i, value in enumerate(values):
        snapshot = do(store, lambda tx, i=i: tx.snapshot(f"n{i}"), read=True)
        (decision,) = do(store, lambda tx, i=i: tx.decisions(interrupt_id=f"i{i}"), read=True)
        for found in (snapshot.state if snapshot else UNSET, decision.output):
            expect(found == value and type(found) is type(value), f"{value!r} is kept as it is, and not as {found!r}")


def keeps_a_megabyte(store: Store) -> None:
    big = "1 MB of ü\0" * 100_000
    do(store, lambda tx: (tx.put_snapshot(plain_snapshot("n1", state=big)), tx.add_events("n1", 0, events_sample(big))))
    snapshot, events = do(store, lambda tx: (tx.snapshot("n1"), tx.events(["n1"])), read=True)
    expect(snapshot is not None and snapshot.state == big, "a state of 1 MB comes back whole")
    expect(events == events_sample(big), "events of 1 MB come back whole")


def putting_again_replaces(store: Store) -> None:
    def put(tx: Tx, n: int) -> None:
        tx.put_session(session_sample(epoch=n, waiting=n, pending=n == 1, owner=f"o{n}"))
        tx.put_snapshot(plain_snapshot("n1", batches=n))
        tx.put_interrupt(interrupt_sample(status="open" if n == 1 else "resolved", owner=f"o{n}"))
        tx.put_decision(decision_sample(applied=n > 1))

    for n in (1, 2):
        do(store, lambda tx, n=n: put(tx, n))

    def found(tx: Tx) -> list[int]:
        return [
            len(tx.sessions(SessionQuery())),
            len(tx.sessions(SessionQuery(owner="o1"))),
            len(tx.sessions(SessionQuery(owner="o2"))),
            len(tx.snapshots("s1")),
            len(tx.interrupts(InterruptQuery())),
            len(tx.interrupts(InterruptQuery(status="open"))),
            len(tx.interrupts(InterruptQuery(status="resolved", owner="o2"))),
            len(tx.decisions()),
            len(tx.decisions(unapplied=True)),
        ]

    same(do(store, found, read=True), [1, 0, 1, 1, 1, 0, 1, 1, 0], "what is put again is replaced wherever it is found")


def pages_sessions_oldest_first(store: Store) -> None:
    rows = [
        session_sample(
            f"s{i:02}", created=float(i // 3), updated=float(i), agent=f"a{i % 2}", owner=f"o{i % 3}" if i % 3 else None
        )
        for i in range(20)
    ]
    do(store, lambda tx: [tx.put_session(r) for r in reversed(rows)])
    for name, query, wanted in (
        ("all", SessionQuery(), rows),
        ("of an agent", SessionQuery(agent="a1"), [r for r in rows if r.agent == "a1"]),
        ("of an owner", SessionQuery(owner="o2"), [r for r in rows if r.owner == "o2"]),
        ("of both", SessionQuery(agent="a1", owner="o2"), [r for r in rows if r.agent == "a1" and r.owner == "o2"]),
        ("untouched since", SessionQuery(updated_before=7.0), rows[:7]),
    ):
        same_pages(
            lambda after, q=query: do(store, lambda tx: tx.sessions(replace(q, after=after, limit=3)), read=True),
            wanted,
            f"sessions, {name}",
        )


def same_pages(page: Callable[[tuple[float, str] | None], Sequence[Any]], wanted: Sequence[Any], what: str) -> None:
    found: list[Any] = []
    after = None
    for _ in range(len(wanted) + 2):
        rows = page(after)
        expect(len(rows) <= 3, f"{what}: a page has no more rows than its limit")
        if not rows:
            break
        found += rows
        after = (rows[-1].created, rows[-1].id)
    same([r.id for r in found], [r.id for r in wanted], f"{what}: pages go on after the last row seen, oldest first")
    same(found, list(wanted), f"{what}: a page has whole records")


def finds_sessions_that_wait_for_a_driver(store: Store) -> None:
    quiet: dict[str, Any] = {"pending": False, "waiting": 0, "queue": (), "lease_until": 0.0}
    for row in (
        session_sample("resting", **quiet),
        session_sample("driven", **(quiet | {"pending": True, "lease_until": 100.0})),
        session_sample("lost", **(quiet | {"pending": True, "lease_until": 50.0, "agent": "b"})),
        session_sample("decided", **(quiet | {"waiting": 1})),
        session_sample("said", **(quiet | {"queue": session_sample().queue, "lease_until": 60.0})),
    ):
        do(store, lambda tx, row=row: tx.put_session(row))

    def due(at: float, agent: str | None = None) -> list[str]:
        return sorted(s.id for s in do(store, lambda tx: tx.sessions(SessionQuery(due=at, agent=agent)), read=True))

    same(due(49.0), ["decided"], "due: a decision waits, or a lease has ended")
    same(due(50.0), ["decided", "lost"], "due: a lease ends at its time")
    same(due(50.0, "b"), ["lost"], "due: filtered by agent")
    same(due(60.0), ["decided", "lost", "said"], "due: a message waits to be sent, and whoever took it had its time")
    same(due(100.0), ["decided", "driven", "lost", "said"], "due: every pending session whose lease is over")


def pages_interrupts_oldest_first(store: Store) -> None:
    statuses = ("open", "resolved", "expired", "cancelled")
    rows = [
        interrupt_sample(
            f"i{i:02}", f"s{i % 3}", created=float(i // 3), status=statuses[i % 4], tool=f"t{i % 3}", agent=f"a{i % 2}",
            owner=f"o{i % 2}" if i % 5 else None, expires_at=None,
        )
        for i in range(36)
    ]  # fmt: skip
    do(store, lambda tx: [tx.put_interrupt(r) for r in reversed(rows)])
    for query in (
        InterruptQuery(),
        InterruptQuery(status="open"),
        InterruptQuery(status="expired"),
        InterruptQuery(tool="t1"),
        InterruptQuery(tool="t1", status="open"),
        InterruptQuery(agent="a1"),
        InterruptQuery(agent="a0", status="resolved"),
        InterruptQuery(owner="o1"),
        InterruptQuery(owner="o1", status="cancelled"),
        InterruptQuery(session_id="s2"),
        InterruptQuery(session_id="s2", status="open", tool="t2"),
        InterruptQuery(status="open", tool="t2", agent="a0", owner="o0"),
        InterruptQuery(agent="a1", owner="o1"),
    ):
        given = {
            k: v for k in ("status", "tool", "agent", "owner", "session_id") if (v := getattr(query, k)) is not None
        }
        wanted = [r for r in rows if all(getattr(r, k) == v for k, v in given.items())]
        same_pages(
            lambda after, q=query: do(store, lambda tx: tx.interrupts(replace(q, after=after, limit=3)), read=True),
            wanted,
            f"interrupts with {given}",
        )


def finds_what_is_overdue(store: Store) -> None:
    rows = [
        interrupt_sample("never", created=1.0, expires_at=None),
        interrupt_sample("later", created=2.0, expires_at=200.0),
        interrupt_sample("second", created=4.0, expires_at=50.0),
        interrupt_sample("first", created=3.0, expires_at=100.0, tool="other"),
        interrupt_sample("settled", created=5.0, expires_at=10.0, status="resolved"),
    ]
    do(store, lambda tx: [tx.put_interrupt(r) for r in rows])

    def found(**filters: Any) -> list[str]:
        return [i.id for i in do(store, lambda tx: tx.interrupts(InterruptQuery(**filters)), read=True)]

    same(found(expired_by=100.0), ["first", "second"], "overdue are open ones whose time has come, oldest first")
    same(found(expired_by=100.0, status="open", limit=1), ["first"], "overdue: the limit")
    same(found(expired_by=100.0, status="open", after=(3.0, "first")), ["second"], "overdue: the next page")
    same(found(expired_by=99.0, tool="other"), [], "overdue: filtered by tool")
    same(found(expired_by=99.0, session_id="s1"), ["second"], "overdue: filtered by session")
    same(found(expired_by=100.0, status="resolved"), [], "a settled interrupt is never overdue")


def keeps_decisions_in_order(store: Store) -> None:
    rows = [
        decision_sample(f"d{9 - i}", f"i{i % 2}", f"s{i % 3}", applied=i % 2 == 0, at=float(9 - i)) for i in range(9)
    ]
    for row in rows:
        do(store, lambda tx, row=row: tx.put_decision(row))
    changed = replace(rows[1], applied=True)
    do(store, lambda tx: tx.put_decision(changed))
    rows[1] = changed
    for given in ({}, {"interrupt_id": "i1"}, {"session_id": "s2"}):
        for unapplied in (False, True):
            wanted = [r for r in rows if all(getattr(r, k) == v for k, v in given.items())]
            wanted = [r for r in wanted if not (unapplied and r.applied)]
            kwargs: dict[str, Any] = {**given, "unapplied": unapplied}
            found = do(store, lambda tx, k=kwargs: tx.decisions(**k), read=True)
            same(found, wanted, f"decisions with {kwargs} come in the order they were made, also after a change")


def keeps_events_in_order(store: Store) -> None:
    def put(tx: Tx, n: str, batch: int) -> None:
        tx.put_snapshot(plain_snapshot(n, batches=batch + 1))
        tx.add_events(n, batch, [UserSaid(Message("user", [Part(text=f"{n}.{batch}.{i}")])) for i in range(3)])

    for batch in range(12):
        for n in ("n2", "n1"):
            do(store, lambda tx, n=n, batch=batch: put(tx, n, batch))
    do(store, lambda tx: tx.put_snapshot(plain_snapshot("n3", batches=0)))

    def texts(*ids: str) -> list[str]:
        found = do(store, lambda tx: tx.events(ids), read=True)
        return [e.message.text for e in found if isinstance(e, UserSaid)]

    wanted = [f"n1.{batch}.{i}" for batch in range(12) for i in range(3)]
    same(texts("n1"), wanted, "events come in the order they were recorded, batch by batch")
    same(
        texts("n2", "n3", "n1"), [w.replace("n1", "n2") for w in wanted] + wanted, "events of several come as asked for"
    )
    same(texts("n3", "nobody"), [], "a snapshot without events has none")

    def backwards(tx: Tx) -> None:
        tx.add_events("n4", 0, events_sample())
        tx.put_snapshot(plain_snapshot("n4", batches=1))

    do(store, backwards)
    same(do(store, lambda tx: tx.events(["n4"]), read=True), events_sample(), "events may be put before their snapshot")


def a_chain_amounts_to_its_history(store: Store) -> None:
    parent = None
    for i in range(30):
        snapshot = plain_snapshot(
            f"n{i}", parent=parent, messages=said(str(i)), status="completed", state=i if i % 7 == 0 else UNSET
        )
        do(store, lambda tx, s=snapshot: tx.put_snapshot(s))
        parent = snapshot.id
    chain = do(store, lambda tx: tx.chain("n29"), read=True)
    same(chain[-1].id, "n29", "a chain ends with the snapshot that was asked for")
    expect(chain[0].parent_id is None or chain[0].folded, "a chain begins at the root or at a folded snapshot")
    texts = [m.text for s in chain for m in s.messages or ()]
    same(texts, [str(i) for i in range(30)], "the messages of a chain are the whole history, in order")
    states = [s.state for s in chain if s.state is not UNSET]
    same(states[-1:], [28], "the last state in a chain is the newest one")


def forks_share_what_came_before(store: Store) -> None:
    def put(tx: Tx) -> None:
        for at, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", "b"), ("e", "d"), ("c2", "c")):
            tx.put_snapshot(plain_snapshot(at, parent=parent, messages=said(at)))
        tx.put_snapshot(plain_snapshot("f", parent="e", folded=True))
        tx.put_snapshot(plain_snapshot("g", parent="f"))
        tx.put_snapshot(plain_snapshot("other", "s2"))

    do(store, put)
    for leaf, wanted in (("c2", "a b c c2"), ("e", "a b d e"), ("a", "a"), ("g", "f g"), ("f", "f")):
        found = [s.id for s in do(store, lambda tx, leaf=leaf: tx.chain(leaf), read=True)]
        same(found, wanted.split(), f"the chain of {leaf} goes back to its root, or to a folded snapshot")
    found = [s.id for s in do(store, lambda tx: tx.snapshots("s1"), read=True)]
    same(found, ["a", "b", "c", "d", "e", "c2", "f", "g"], "all snapshots of a session, in the order they were made")


def deletes_a_session_but_not_its_audit(store: Store) -> None:
    def put(tx: Tx) -> None:
        for s in ("s1", "s2"):
            tx.put_session(session_sample(s))
            tx.put_snapshot(plain_snapshot(f"{s}.n", s, batches=1))
            tx.add_events(f"{s}.n", 0, events_sample())
            tx.put_interrupt(interrupt_sample(f"{s}.i", s))
            tx.put_decision(decision_sample(f"{s}.d", f"{s}.i", s))

    do(store, put)
    do(store, lambda tx: tx.drop_session("s1"))
    do(store, lambda tx: tx.drop_session("nobody"))

    def left(tx: Tx, s: str) -> list[bool]:
        return [
            tx.session(s) is not None,
            bool(tx.snapshots(s)),
            tx.snapshot(f"{s}.n") is not None,
            bool(tx.events([f"{s}.n"])),
            tx.interrupt(f"{s}.i") is not None,
            bool(tx.interrupts(InterruptQuery(session_id=s))),
            bool(tx.decisions(session_id=s)),
            bool(tx.decisions(interrupt_id=f"{s}.i")),
        ]

    same(
        do(store, lambda tx: left(tx, "s1"), read=True),
        [False] * 6 + [True] * 2,
        "a deleted session leaves its decisions",
    )
    same(do(store, lambda tx: left(tx, "s2"), read=True), [True] * 8, "deleting one session leaves the others alone")
    do(store, put)
    same(do(store, lambda tx: left(tx, "s1"), read=True), [True] * 8, "a deleted session can be made again")
    same(
        do(store, lambda tx: tx.events(["s1.n"]), read=True), events_sample(), "a session made again has its own events"
    )
