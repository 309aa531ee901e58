"""The rules every store must obey, as a test suite for stores: `check_store(factory)`.

Each rule is a function of one fresh store, named for what it says; `RULES` has them all, for a test runner that wants to
report them one by one. Nothing here knows a store's insides, so it fits a store of your own as well.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from adjourn.store import SessionQuery, Store, Tx
from adjourn.testing_store import feed, filters, journal, rows, transactions
from adjourn.testing_store.expect import do, same
from adjourn.testing_store.samples import change_sample, events_sample

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
    filters.filters_take_any_of_several,
    filters.sessions_of_any_of_several,
    filters.finds_text_whatever_its_case,
    filters.finds_text_far_behind,
    journal.keeps_the_time_and_epoch_of_each_commit,
    journal.a_commit_without_a_time_has_its_snapshots,
    journal.finds_what_came_after_a_snapshot,
    journal.finds_children,
    transactions.gives_what_the_work_returns,
    transactions.sees_its_own_writes,
    transactions.what_raises_leaves_no_trace,
    transactions.one_of_many_wins,
    transactions.keeps_all_of_many_at_once,
    transactions.reads_what_was_acknowledged,
    transactions.nobody_can_cancel_a_change,
    transactions.calls_back_after_changes,
    feed.keeps_the_feed_in_order,
    feed.a_work_that_raises_adds_nothing_to_the_feed,
    feed.who_follows_the_feed_sees_everything_once,
    feed.forgets_old_changes_but_not_the_last,
    feed.keeps_marks,
    feed.one_of_many_moves_a_mark,
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
    knows_its_own_positions(factory)
    if reopen is not None:
        is_durable(factory, reopen)


@contextmanager
def opened(store: Store) -> Generator[Store]:
    try:
        yield store
    finally:
        store.close()


def knows_its_own_positions(factory: Callable[[], Store]) -> None:
    with opened(factory()) as store:
        elsewhere = feed.positions_elsewhere(store)
    with opened(factory()) as store:
        feed.skips_nothing_behind_a_position_that_it_never_gave(store, elsewhere)


def is_durable(factory: Callable[[], Store], reopen: Callable[[], Store]) -> None:
    def put(tx: Tx) -> None:
        tx.add_events("n1", 0, events_sample(), 3.5, 7)
        tx.add_change(change_sample())
        tx.put_mark("m", "kept")

    with opened(factory()) as store:
        rows.keeps_every_field(store)
        do(store, put)
        end = do(store, lambda tx: tx.position(), read=True)
    for again in range(2):
        with opened(reopen()) as store:
            rows.same_samples(store)
            (batch,) = do(store, lambda tx: tx.batches("n1"), read=True)
            same(list(batch.events), events_sample(), "events are there after closing and opening again")
            same((batch.at, batch.epoch), (3.5, 7), "a commit has its time and epoch after opening again")
            due = do(store, lambda tx: tx.sessions(SessionQuery(due=100.0)), read=True)
            same([s.id for s in due], ["s1"], "sessions that wait for a driver are found after opening again")
            same(do(store, lambda tx: tx.mark("m"), read=True), "kept", "a mark is there after opening again")
            whole, later = do(store, lambda tx: (tx.changes(None, 9), tx.changes(end, 9)), read=True)
            same(
                (len(whole), len(later)), (1 + again, again), "the feed goes on behind its old end after opening again"
            )
            if not again:
                do(store, lambda tx: tx.add_change(change_sample("later")))
