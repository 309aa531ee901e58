"""Rules about looking: several filters at once, any of several values, text, and counting what a page would give."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from adjourn.records import INNER, InterruptQuery, InterruptRecord, SessionQuery, SessionRecord, mentions
from adjourn.store import Store
from adjourn.testing_store.expect import do, same
from adjourn.testing_store.rows import same_pages
from adjourn.testing_store.samples import interrupt_sample, session_sample

Fits = Callable[[Any], bool]
_MANY = tuple(f"t{i}" for i in range(200))


def _interrupts() -> list[InterruptRecord]:
    statuses = ("open", "resolved", "open", "cancelled", "expired")
    return [
        interrupt_sample(
            f"i{i:02}", f"s{i % 3}", created=float(i // 4), status=statuses[i % 5], tool=f"t{i % 4}", agent=f"a{i % 3}",
            owner=(None, "o1", "o2")[i % 3 - i % 2], expires_at=float(i) if i % 2 else None, input={"n": i},
        )
        for i in range(60)
    ]  # fmt: skip


_OF_INTERRUPTS: tuple[tuple[InterruptQuery, Fits], ...] = (
    (InterruptQuery(tools=("t1", "t3")), lambda r: r.tool in ("t1", "t3")),
    (InterruptQuery(status="open", tools=("t3", "t1", "t3")), lambda r: r.status == "open" and r.tool in ("t1", "t3")),
    (InterruptQuery(status="open", tools=_MANY), lambda r: r.status == "open"),
    (InterruptQuery(agents=("a0", "a2"), tool="t2"), lambda r: r.agent in ("a0", "a2") and r.tool == "t2"),
    (InterruptQuery(agents=("a0", "a2"), agent="a2"), lambda r: r.agent == "a2"),
    (InterruptQuery(agents=("a0", "a2"), agent="a1"), lambda r: False),
    (InterruptQuery(tools=("t0", "t1"), agents=("a1",)), lambda r: r.tool in ("t0", "t1") and r.agent == "a1"),
    (InterruptQuery(tools=()), lambda r: False),
    (InterruptQuery(owners=("o1", "o2"), status="open"), lambda r: r.owner in ("o1", "o2") and r.status == "open"),
    (InterruptQuery(owners=(None,)), lambda r: r.owner is None),
    (InterruptQuery(owners=(None, "o2"), status="open"), lambda r: r.owner in (None, "o2") and r.status == "open"),
    (InterruptQuery(owners=("o1", "nobody"), tools=("t1", "t2")), lambda r: r.owner == "o1" and r.tool in ("t1", "t2")),
    (InterruptQuery(owners=(None, "o1"), owner="o1", tools=_MANY), lambda r: r.owner == "o1"),
    (InterruptQuery(owners=()), lambda r: False),
    (InterruptQuery(session_id="s1", tools=("t0", "t1")), lambda r: r.session_id == "s1" and r.tool in ("t0", "t1")),
    (InterruptQuery(session_id="s1", owners=(None,)), lambda r: r.session_id == "s1" and r.owner is None),
    (
        InterruptQuery(expired_by=20.0, agents=("a0",), owners=(None, "o1")),
        lambda r: r.status == "open" and (r.expires_at or 99) <= 20 and r.agent == "a0" and r.owner in (None, "o1"),
    ),
)


def filters_take_any_of_several(store: Store) -> None:
    rows = _interrupts()
    do(store, lambda tx: [tx.put_interrupt(r) for r in reversed(rows)])
    for query, fits in _OF_INTERRUPTS:
        wanted = [r for r in rows if fits(r)]
        same_pages(
            lambda after, q=query: do(store, lambda tx: tx.interrupts(replace(q, after=after, limit=3)), read=True),
            wanted,
            f"interrupts, {_given(query)}",
        )
        _counted(store, query, len(wanted))


def sessions_of_any_of_several(store: Store) -> None:
    rows = [
        session_sample(
            f"s{i:02}" if i % 7 else f"{INNER}s{i:02}", created=float(i // 3), updated=float(i), agent=f"a{i % 4}",
            owner=(None, "o1", "o2")[i % 3], pending=i % 5 == 0, waiting=0, queue=(), lease_until=0.0,
        )
        for i in range(40)
    ]  # fmt: skip
    rows.sort(key=lambda s: (s.created, s.id))
    do(store, lambda tx: [tx.put_session(r) for r in reversed(rows)])
    given: tuple[tuple[SessionQuery, Callable[[SessionRecord], bool]], ...] = (
        (SessionQuery(), lambda s: True),
        (SessionQuery(agents=("a3", "a0")), lambda s: s.agent in ("a0", "a3")),
        (SessionQuery(agents=("a3", "a0"), owner="o1"), lambda s: s.agent in ("a0", "a3") and s.owner == "o1"),
        (SessionQuery(agents=(), owner="o1"), lambda s: False),
        (SessionQuery(owners=(None,)), lambda s: s.owner is None),
        (SessionQuery(owners=(None, "o2"), agent="a1"), lambda s: s.owner in (None, "o2") and s.agent == "a1"),
        (SessionQuery(owners=("o1", "o2"), updated_before=20.0), lambda s: s.owner is not None and s.updated < 20),
        (SessionQuery(due=5.0, owners=("o1", None)), lambda s: s.pending and s.owner in (None, "o1")),
        (SessionQuery(outer=True), lambda s: not s.id.startswith(INNER)),
        (
            SessionQuery(outer=True, agents=("a1", "a3")),
            lambda s: s.agent in ("a1", "a3") and not s.id.startswith(INNER),
        ),
        (SessionQuery(outer=True, owner="o1"), lambda s: s.owner == "o1" and not s.id.startswith(INNER)),
        (SessionQuery(outer=True, due=5.0), lambda s: s.pending and not s.id.startswith(INNER)),
        (SessionQuery(due=5.0, agents=("a1", "a2")), lambda s: s.pending and s.agent in ("a1", "a2")),
    )
    for query, fits in given:
        wanted = [s for s in rows if fits(s)]
        same_pages(
            lambda after, q=query: do(store, lambda tx: tx.sessions(replace(q, after=after, limit=3)), read=True),
            wanted,
            f"sessions, {_given(query)}",
        )
        _counted(store, query, len(wanted))


def _counted(store: Store, query: InterruptQuery | SessionQuery, many: int) -> None:
    for changed in (query, replace(query, limit=1), replace(query, after=(5.0, "m"))):
        found = do(store, lambda tx, q=changed: tx.count(q), read=True)
        same(found, many, f"a count is of all that fit, whatever the page ({_given(query)})")


def _given(query: InterruptQuery | SessionQuery) -> str:
    names = (
        "status",
        "tool",
        "agent",
        "session_id",
        "owner",
        "expired_by",
        "due",
        "agents",
        "tools",
        "owners",
        "text",
        "outer",
    )
    given = {name: value for name in names if (value := getattr(query, name, None)) not in (None, False)}
    return str(given)[:120] if given else "all"


def finds_text_whatever_its_case(store: Store) -> None:
    inputs: list[Any] = [
        {"to": "Ann@Example.com", "amount": 5},
        {"to": "bob", "note": 'He said "No", \\ and left\n'},
        {"título": "Überweisung für Grüße 日本"},
        {"path": "C:\\temp", "markup": "<b>100%_</b>"},
        "just a Text",
        5,
        None,
        {"input": "k\u212a \u0130i", "nul": "a\0b"},
    ]
    rows = [
        interrupt_sample(
            f"id-{i}-X", created=float(i), tool=f"Tool_{i % 3}", agent="Agent%", owner="Öwner" if i % 2 else None,
            input=value, payload=["PAY-load", 7] if i % 4 == 0 else None, status="open" if i % 3 else "resolved",
        )
        for i, value in enumerate(inputs * 2)
    ]  # fmt: skip
    do(store, lambda tx: [tx.put_interrupt(r) for r in rows])
    for text in (
        "ann@example", "EXAMPLE.COM", "bob", 'said "no"', "no\\", "\\ and", '"amount":5', "überweisung", "ÜBERWEISUNG", "GRÜSSE",
        "grüße", "日本", "öwner", "tool_1", "TOOL_", "agent%", "%", "_", "id-1", "-x", "pay-LOAD", "just a text", "5", "7", ",7",
        "null", "payload", "inputDigest", "snapshotId", "abc", "i1", "k", "\u212a", "\u0130", "i", "\0", "c:\\t", "\n", "nowhere",
    ):  # fmt: skip
        for query in (InterruptQuery(text=text), InterruptQuery(text=text, status="open", tools=("Tool_1", "Tool_2"))):
            wanted = [
                r
                for r in rows
                if mentions(r, text) and query.status in (None, r.status) and r.tool in (query.tools or (r.tool,))
            ]
            same_pages(
                lambda after, q=query: do(store, lambda tx: tx.interrupts(replace(q, after=after, limit=3)), read=True),
                wanted,
                f"interrupts that mention {text!r}",
            )
            found = do(store, lambda tx, q=query: tx.count(q), read=True)
            same(found, len(wanted), f"a count is of all that mention {text!r}")


def finds_text_far_behind(store: Store) -> None:
    rows = [interrupt_sample(f"i{i:04}", created=float(i), input={"n": i}, payload=None) for i in range(2500)]
    rows[2345] = replace(rows[2345], input={"n": "needle"})
    do(store, lambda tx: [tx.put_interrupt(r) for r in rows])
    for text in ("needle", "éneedle", "NEEDLE"):
        wanted = [] if "é" in text else [rows[2345].id]
        found = do(store, lambda tx, t=text: tx.interrupts(InterruptQuery(status="open", text=t, limit=2)), read=True)
        same([r.id for r in found], wanted, "text is found however far behind the first page it is")
    same(do(store, lambda tx: tx.count(InterruptQuery(text="i1")), read=True), 1000, "what mentions a text is counted")
