"""Every store against the public rules, and the rules against stores that break them."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from adjourn import MemoryStore, Store
from adjourn.promise import Promise
from adjourn.store import Change, Decision, InterruptQuery, InterruptRecord, Snapshot, Tx
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing_store import OF_HISTORY, RULES, check_store, knows_its_own_positions
from adjourn.testing_store.samples import decision_sample, interrupt_sample, session_sample, snapshot_sample
from stores.store_kit import Place


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_every_store_obeys_the_rule(rule: Callable[[Store], None], place: Place) -> None:
    if rule in OF_HISTORY and not place.keeps_history:
        pytest.skip("this store keeps only the newest state")
    rule(place.fresh())


def test_every_store_tells_its_own_positions_from_others(place: Place) -> None:
    knows_its_own_positions(place.fresh)


def test_lasting_stores_obey_all_rules_and_remember_after_opening_again(lasting: Place) -> None:
    check_store(lasting.fresh, reopen=lasting.open)


@pytest.mark.parametrize("sample", [session_sample, snapshot_sample, interrupt_sample, decision_sample])
def test_the_samples_of_the_rules_set_every_field_to_something_that_is_not_its_default(
    sample: Callable[[], Any],
) -> None:
    record = sample()
    for field in msgspec.structs.fields(record):
        assert getattr(record, field.name) != field.default or field.name == "status", field.name


class _Forgetful(MemoryStore):
    """Acknowledges everything, and does nothing with one thing that it is given."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self._broken = broken

    def submit(self, work: Callable[[Tx], Any], *, read: bool = False) -> Promise[Any]:
        return super().submit(lambda tx: work(_Broken(tx, self._broken)), read=read)  # pyright: ignore[reportArgumentType]


class _Broken:
    def __init__(self, tx: Any, broken: str) -> None:
        self._tx = tx
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        broken = type(self).__dict__.get(f"_{self._broken}_{name}")
        return broken.__get__(self) if broken is not None else getattr(self._tx, name)

    def _timeless_add_events(self, snapshot_id: str, batch: int, events: Any, *when: Any) -> None:
        self._tx.add_events(snapshot_id, batch, events)

    def _barren_children(self, snapshot_id: str) -> list[Snapshot]:
        return []

    def _skipping_changes(self, after: str | None, limit: int) -> list[Change]:
        return [c for c in self._tx.changes(after, limit) if c.kind != "reopened"]

    def _repeating_changes(self, after: str | None, limit: int) -> list[Change]:
        return self._tx.changes(None, limit)

    def _sealless_changes(self, after: str | None, limit: int) -> list[Change]:
        """By the number alone, as if every position were one of its own."""
        found = self._tx.changes(None, 1000)
        number = int(after.partition("-")[0]) if after and after != "nonsense" else 0
        if after == "nonsense":
            return self._tx.changes(after, limit)
        return [c for c in found if int(c.position.partition("-")[0]) > number][:limit]

    def _short_count(self, query: Any) -> int:
        return len(self._tx.interrupts(query) if isinstance(query, InterruptQuery) else self._tx.sessions(query))

    def _blind_interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        return self._tx.interrupts(replace(query, owners=query.owners and tuple(o for o in query.owners if o)))

    def _exact_interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        rows = self._tx.interrupts(replace(query, text=None))
        return [r for r in rows if query.text is None or query.text in str([r.tool, r.input, r.payload])]

    def _unmarked_put_mark(self, name: str, value: str | None) -> None:
        if self._tx.mark(name) is None:
            self._tx.put_mark(name, value)

    def _hoarding_drop_changes(self, before: float) -> int:
        return 0

    def _deaf_put_decision(self, decision: Decision) -> None:
        pass

    def _unordered_decisions(self, **query: Any) -> list[Decision]:
        return sorted(self._tx.decisions(**query), key=lambda d: d.id)

    def _unsettled_interrupts(self, query: InterruptQuery) -> list[InterruptRecord]:
        return [i for i in self._tx.interrupts(InterruptQuery(limit=1000)) if query.status in (None, i.status)][
            : query.limit
        ]

    def _falsy_put_snapshot(self, snapshot: Snapshot) -> None:
        self._tx.put_snapshot(replace(snapshot, state=snapshot.state or UNSET))

    def _greedy_drop_session(self, session_id: str) -> None:
        self._tx.drop_session(session_id)
        self._tx._store.__dict__.setdefault("dropped", set()).add(session_id)

    def _greedy_decisions(self, **query: Any) -> list[Decision]:
        dropped = self._tx._store.__dict__.get("dropped", ())
        return [d for d in self._tx.decisions(**query) if d.session_id not in dropped]


@pytest.mark.parametrize("broken", [
        "deaf", "unordered", "unsettled", "falsy", "greedy", "timeless", "barren", "skipping", "repeating", "short", "blind",
        "exact", "unmarked", "hoarding", "sealless",
    ],
)  # fmt: skip
def test_a_store_that_breaks_a_rule_is_told_which_in_a_sentence(broken: str) -> None:
    with pytest.raises(AssertionError, match=r"\w+ \w+ \w+"):
        check_store(lambda: _Forgetful(broken))


def test_a_store_that_keeps_what_a_failed_work_did_is_found_out() -> None:
    class NeverUndoes(MemoryStore):
        def submit(self, work: Callable[[Tx], Any], *, read: bool = False) -> Promise[Any]:
            def keep(tx: Tx) -> Any:
                try:
                    return work(tx), None
                except Exception as e:
                    return None, e

            future: Future[Any] = Future()
            result, error = super().submit(keep, read=read).result()
            future.set_exception(error) if error is not None else future.set_result(result)
            return future

    with pytest.raises(AssertionError, match="a work that raises leaves no trace"):
        check_store(NeverUndoes)


def test_a_store_that_forgets_is_found_out(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.db" for i in range(100)]

    def fresh() -> Store:
        return SQLiteStore(paths.pop())

    with pytest.raises(AssertionError, match="a session comes back as it was put"):
        check_store(fresh, reopen=fresh)
