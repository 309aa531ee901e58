"""The rules every store must obey, as a test suite for stores: `check_store(factory)`.

Each rule is a function of one fresh store, named for what it says; `RULES` has them all, for a test runner that wants to
report them one by one. Nothing here knows a store's insides, so it fits a store of your own as well.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from adjourn.store import SessionQuery, Store
from adjourn.testing_store import rows, transactions
from adjourn.testing_store.expect import do, same
from adjourn.testing_store.samples import events_sample

RULES: tuple[Callable[[Store], None], ...] = (
    rows.keeps_every_field,
    rows.knows_nothing_from_none,
    rows.keeps_falsy_values,
    rows.keeps_a_megabyte,
    rows.putting_again_replaces,
    rows.pages_sessions_oldest_first,
    rows.finds_sessions_that_wait_for_a_driver,
    rows.pages_interrupts_oldest_first,
    rows.finds_what_is_overdue,
    rows.keeps_decisions_in_order,
    rows.keeps_events_in_order,
    rows.a_chain_amounts_to_its_history,
    rows.forks_share_what_came_before,
    rows.deletes_a_session_but_not_its_audit,
    transactions.gives_what_the_work_returns,
    transactions.sees_its_own_writes,
    transactions.what_raises_leaves_no_trace,
    transactions.one_of_many_wins,
    transactions.keeps_all_of_many_at_once,
    transactions.reads_what_was_acknowledged,
    transactions.nobody_can_cancel_a_change,
    transactions.calls_back_after_changes,
    transactions.finishes_what_is_queued_when_closed,
)
OF_HISTORY = frozenset({rows.forks_share_what_came_before})


def check_store(
    factory: Callable[[], Store],
    *,
    reopen: Callable[[], Store] | None = None,
    keeps_history: bool = True,
) -> None:
    """Holds a store against every rule. Raises AssertionError, with a sentence that says what is wrong.

    `factory` gives a new, empty store each time. `reopen` opens once more, after it was closed, what `factory` gave last;
    leave it out for a store that forgets. `keeps_history=False` is for one that keeps only the newest state. This is a plain
    function that blocks: it needs no event loop, and must not be called where one has to go on running.
    """
    for rule in RULES:
        if rule in OF_HISTORY and not keeps_history:
            continue
        with opened(factory()) as store:
            rule(store)
    if reopen is not None:
        is_durable(factory, reopen)


@contextmanager
def opened(store: Store) -> Generator[Store]:
    try:
        yield store
    finally:
        store.close()


def is_durable(factory: Callable[[], Store], reopen: Callable[[], Store]) -> None:
    with opened(factory()) as store:
        rows.keeps_every_field(store)
        do(store, lambda tx: tx.add_events("n1", 0, events_sample()))
    for _ in range(2):
        with opened(reopen()) as store:
            rows.same_samples(store)
            same(
                do(store, lambda tx: tx.events(["n1"])),
                events_sample(),
                "events are there after closing and opening again",
            )
            due = do(store, lambda tx: tx.sessions(SessionQuery(due=100.0)), read=True)
            same([s.id for s in due], ["s1"], "sessions that wait for a driver are found after opening again")
