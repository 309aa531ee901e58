"""Any filters at once, on every kind of store, against a plain search through all rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from adjourn import InvalidRequest, Store
from adjourn.store import InterruptQuery, InterruptRecord, Tx
from adjourn.stores.rows import sieve
from stores.store_kit import KINDS, Place, do

AGENTS = ["a", "B", "ä"]
TOOLS = ["pay", "look", "Pay_2", "%"]
OWNERS = [None, "ann", "Ann", "日本"]
VALUES: list[Any] = [
    None, 0, "Grüße", 'say "hi"', {"amount": 5}, ["x\\y", "\n"], "k\u212a\u0130i", "null", "ẞß", "\u2028", {"": ""},
]  # fmt: skip
WORDS = [
    "pay", "PAY", "ä", "Ä", "grüss", "grüße", 'y "h', '"amount":5', "x\\y", "\\", "\n", "k", "i", "\u212a", "5", "ann", "i_1",
    "%", "_", "本", "ß", "\u2028", "null", '""', "]", "0", "no such text",
]  # fmt: skip


def _row(**fields: Any) -> dict[str, Any]:
    return fields


rows: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        _row,
        created=st.sampled_from([1.0, 2.0, 3.0]),
        agent=st.sampled_from(AGENTS),
        tool=st.sampled_from(TOOLS),
        owner=st.sampled_from(OWNERS),
        status=st.sampled_from(["open", "resolved", "expired", "cancelled"]),
        session_id=st.sampled_from(["s1", "s2"]),
        input=st.sampled_from(VALUES),
        payload=st.sampled_from(VALUES),
        expires_at=st.sampled_from([None, 5.0, 9.0]),
    ),
    max_size=25,
)


def some(values: list[Any]) -> st.SearchStrategy[tuple[Any, ...] | None]:
    return st.none() | st.lists(st.sampled_from([*values, "nobody"]), max_size=4).map(tuple)


queries = st.builds(
    InterruptQuery,
    status=st.sampled_from([None, "open", "resolved"]),
    tool=st.sampled_from([None, None, *TOOLS]),
    agent=st.sampled_from([None, None, *AGENTS]),
    session_id=st.sampled_from([None, None, "s1"]),
    owner=st.sampled_from([None, None, "ann"]),
    expired_by=st.sampled_from([None, None, 5.0]),
    after=st.sampled_from([None, (1.0, "i_03"), (2.0, "")]),
    limit=st.integers(1, 6),
    agents=some(AGENTS),
    tools=some(TOOLS),
    owners=some(OWNERS),
    text=st.none() | st.sampled_from(WORDS) | st.text(max_size=3),
)


def json_texts(value: Any) -> Iterator[str]:
    """What a value says: its JSON, and each text in it as it is."""
    import msgspec

    if value is None:
        return
    yield msgspec.json.encode(value).decode()
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from (key, *json_texts(inner))
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from json_texts(inner)


def lower(text: str) -> str:
    return "".join(c if c in "\u212a\u0130" else c.lower() for c in text)


def fits(r: InterruptRecord, q: InterruptQuery) -> bool:
    pairs = [
        (r.status, q.status),
        (r.tool, q.tool),
        (r.agent, q.agent),
        (r.session_id, q.session_id),
        (r.owner, q.owner),
    ]
    several = [(r.agent, q.agents), (r.tool, q.tools), (r.owner, q.owners)]
    overdue = r.status == "open" and r.expires_at is not None and r.expires_at <= (q.expired_by or 0)
    return (
        all(wanted is None or value == wanted for value, wanted in pairs)
        and all(wanted is None or value in wanted for value, wanted in several)
        and (q.expired_by is None or overdue)
        and (not q.text or says(r, q.text))
    )


def says(r: InterruptRecord, text: str) -> bool:
    texts = [r.tool, r.agent, r.owner or "", r.id, *json_texts(r.input), *json_texts(r.payload)]
    return any(lower(text) in lower(t) for t in texts)


@pytest.fixture(scope="module", params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all examples: each clears what the one before put."""
    dsn = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else ""
    place = Place(request.param, Path(tmp_path_factory.mktemp("filters")), dsn)
    yield place.open()
    place.close()


@given(rows, st.lists(queries, min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_query_finds_exactly_what_fits_all_of_its_filters(
    kept: Store, rows: list[dict[str, Any]], asked: list[InterruptQuery]
) -> None:
    records = [
        InterruptRecord(f"i_{n:02}", r["session_id"], "n", "t", "c", r["agent"], r["tool"], r["created"])
        for n, r in enumerate(rows)
    ]
    records = [replace(record, **row) for record, row in zip(records, rows, strict=True)]

    def put(tx: Tx) -> None:
        for session in ("s1", "s2"):
            tx.drop_session(session)
        for record in records:
            tx.put_interrupt(record)

    do(kept, put)
    records.sort(key=lambda r: (r.created, r.id))
    for query in asked:
        found = do(kept, lambda tx, q=query: tx.interrupts(q), read=True)
        wanted = [r for r in records if fits(r, query)]
        after = query.after
        page = [r for r in wanted if after is None or (r.created, r.id) > after][: query.limit]
        assert found == page, query
        assert do(kept, lambda tx, q=query: tx.count(q), read=True) == len(wanted), query


@given(st.text(max_size=8), st.text(max_size=30))
def test_what_a_database_looks_for_is_in_every_row_that_mentions_the_text(text: str, around: str) -> None:
    import msgspec

    searched = sieve(text)
    for stored in (around + text + around, (around + text).upper(), text.swapcase()):
        if searched is not None and lower(text) in lower(stored):
            ascii_lower = "".join(c.lower() if c.isascii() else c for c in msgspec.json.encode(stored).decode())
            assert searched in ascii_lower


async def test_a_text_that_no_database_can_hold_is_refused() -> None:
    from adjourn import Adjourn, MemoryStore

    inbox = Adjourn(stores=[MemoryStore()]).inbox
    with pytest.raises(InvalidRequest, match="no text"):
        await inbox.list(text="\ud800")
    with pytest.raises(InvalidRequest, match="no text"):
        await inbox.count(text="a\udfff")
