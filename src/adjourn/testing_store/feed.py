"""Rules about the feed and marks: what comes in order, nothing skipped, nothing given twice."""

import threading
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from adjourn.errors import UnknownPosition
from adjourn.records import Change
from adjourn.store import Store, Tx
from adjourn.testing_store.expect import SECONDS, do, expect, same
from adjourn.testing_store.samples import change_sample


def _followed(store: Store, after: str | None = None, page: int = 3) -> list[Change]:
    """All of the feed behind a position, page by page, once nothing is held back any more."""
    out: list[Change] = []
    seen: set[str] = set()
    while True:
        found = do(store, lambda tx, at=after: tx.changes(at, page), read=True)
        if not found:
            return out
        expect(not seen & {c.position for c in found}, "a page behind a position has nothing that came before it")
        seen |= {c.position for c in found}
        out += found
        after = found[-1].position


def _ids(changes: list[Change]) -> list[str]:
    return [c.interrupt_id for c in changes]


def keeps_the_feed_in_order(store: Store) -> None:
    same(_followed(store), [], "the feed of an empty store is empty")
    beginning = do(store, lambda tx: tx.position(), read=True)
    rows = [change_sample(f"i{i}", kind=("opened", "settled", "reopened")[i % 3]) for i in range(10)]
    rows[0] = replace(rows[0], decision_id=None)
    for row in rows[:4]:
        do(store, lambda tx, row=row: tx.add_change(row))
    do(store, lambda tx: [tx.add_change(row) for row in rows[4:]])
    found = _followed(store)
    same([replace(c, position="") for c in found], rows, "the feed has every change whole, in the order of the commits")
    same(len({c.position for c in found}), 10, "every change has a position of its own")
    for i, change in enumerate(found):
        same(_ids(_followed(store, change.position)), _ids(rows[i + 1 :]), "behind a position comes what came later")
    same(_ids(_followed(store, beginning)), _ids(rows), "behind the end of the empty feed comes everything")
    end = do(store, lambda tx: tx.position(), read=True)
    same(_followed(store, end), [], "nothing is behind the end of the feed")
    do(store, lambda tx: tx.add_change(change_sample("late")))
    same(_ids(_followed(store, end)), ["late"], "what comes later is behind what was the end")
    same(_ids(do(store, lambda tx: tx.changes(None, 2), read=True)), ["i0", "i1"], "a page has as many as its limit")
    expect(_is_unknown(store, "nonsense"), "a position that is none is refused with UnknownPosition")


def _is_unknown(store: Store, position: str) -> bool:
    return isinstance(store.submit(lambda tx: tx.changes(position, 2), read=True).exception(SECONDS), UnknownPosition)


def skips_nothing_behind_a_position_that_it_never_gave(store: Store, elsewhere: list[str]) -> None:
    """`elsewhere` are the positions of another store's feed, or of this one's before a backup was restored."""
    expect(_is_unknown(store, elsewhere[0]), "an empty feed refuses all positions but its own with UnknownPosition")
    for i in range(6):
        do(store, lambda tx, i=i: tx.add_change(change_sample(f"here{i}")))
    own = _followed(store)
    for position in elsewhere:
        # It may come before all that is there, and then look like one that was forgotten.
        whole = _is_unknown(store, position) or _followed(store, position) == own
        expect(whole, "another feed's position is refused with UnknownPosition, or everything comes behind it")
    for i, change in enumerate(own):
        same(_followed(store, change.position), own[i + 1 :], "the feed's own positions are known")


def positions_elsewhere(store: Store) -> list[str]:
    """Positions of a feed of nine."""
    for i in range(9):
        do(store, lambda tx, i=i: tx.add_change(change_sample(f"elsewhere{i}")))
    return [c.position for c in _followed(store)]


def a_work_that_raises_adds_nothing_to_the_feed(store: Store) -> None:
    class Refused(Exception):
        pass

    def work(tx: Tx) -> None:
        tx.add_change(change_sample("gone"))
        tx.put_mark("m", "gone")
        tx.drop_changes(9e9)
        raise Refused("no")

    for i in range(3):
        do(store, lambda tx, i=i: tx.add_change(change_sample(f"i{i}")))
    expect(isinstance(store.submit(work).exception(SECONDS), Refused), "what a work raised is what its future raises")
    do(store, lambda tx: tx.add_change(change_sample("kept")))
    same(_ids(_followed(store)), ["i0", "i1", "i2", "kept"], "what raises leaves no trace in the feed")
    same(do(store, lambda tx: tx.mark("m"), read=True), None, "what raises leaves no mark")


def who_follows_the_feed_sees_everything_once(store: Store) -> None:
    many, writers = 25, 8
    seen: list[Change] = []
    over = threading.Event()

    def follow() -> None:
        after: str | None = None
        while True:
            last = over.is_set()
            found = do(store, lambda tx, at=after: tx.changes(at, 7), read=True)
            seen.extend(found)
            after = found[-1].position if found else after
            if (last and not found) or len(seen) > 2 * many * 2 * writers:
                return

    def write(writer: int) -> None:
        for i in range(many):
            ids = [f"{writer}.{i}.{part}" for part in range(2)]
            do(store, lambda tx, ids=ids: [tx.add_change(change_sample(i)) for i in ids])

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(write, range(writers)))
    over.set()
    reader.join(SECONDS)
    expect(not reader.is_alive(), "following the feed comes to an end when the writers do")
    wanted = [f"{w}.{i}.{part}" for w in range(writers) for i in range(many) for part in range(2)]
    same(sorted(_ids(seen)), sorted(wanted), "who goes on from the last position misses nothing and sees nothing twice")
    same(_ids(seen), _ids(_followed(store)), "the feed is read in the same order for ever")
    for w in range(writers):
        mine = [c.interrupt_id for c in seen if c.interrupt_id.startswith(f"{w}.")]
        same(mine, [i for i in wanted if i.startswith(f"{w}.")], "what one did after the other comes in that order")


def forgets_old_changes_but_not_the_last(store: Store) -> None:
    for i in range(6):
        do(store, lambda tx, i=i: tx.add_change(change_sample(f"i{i}", at=float(i))))
    at = _followed(store)[1].position

    def forget(before: float) -> int:
        gone = 0
        while more := do(store, lambda tx: tx.drop_changes(before)):
            gone += more
        return gone

    same(forget(0.0), 0, "nothing that is as old as the limit is forgotten")
    same(forget(3.0), 3, "it is said how many were forgotten")
    same(_ids(_followed(store)), ["i3", "i4", "i5"], "the oldest are forgotten")
    same(_ids(_followed(store, at)), ["i3", "i4", "i5"], "a position that was forgotten still leads on")
    same(forget(99.0), 2, "the last one is kept, however old it is")
    end = do(store, lambda tx: tx.position(), read=True)
    do(store, lambda tx: tx.add_change(change_sample("next")))
    same(_ids(_followed(store, end)), ["next"], "what comes after all was forgotten is behind the old end")


def keeps_marks(store: Store) -> None:
    same(do(store, lambda tx: tx.mark("a"), read=True), None, "a mark that was never put is None")
    for name, value in (("a", "1"), ("a", "2"), ("ü 日本", ""), ("b", "x" * 5000)):
        do(store, lambda tx, n=name, v=value: tx.put_mark(n, v))
        same(do(store, lambda tx, n=name: tx.mark(n), read=True), value, "a mark is what was put last")
    do(store, lambda tx: (tx.put_mark("b", None), tx.put_mark("never", None)))
    same(do(store, lambda tx: tx.mark("b"), read=True), None, "a mark that was put to None is gone")
    same(do(store, lambda tx: tx.mark("a"), read=True), "2", "the other marks stay")

    def both(tx: Tx) -> str | None:
        tx.put_mark("c", "first")
        return tx.mark("c")

    same(do(store, both), "first", "a work sees the mark that it put")


def one_of_many_moves_a_mark(store: Store) -> None:
    def claim(tx: Tx, seen: str | None, name: str) -> bool:
        if tx.mark("lease") != seen:
            return False
        tx.put_mark("lease", name)
        return True

    seen: str | None = None
    for turn in range(4):  # in the first one, the mark does not exist yet
        start = threading.Barrier(12)

        def rush(i: int, seen: str | None = seen, turn: int = turn, start: threading.Barrier = start) -> bool:
            start.wait(SECONDS)
            return do(store, lambda tx: claim(tx, seen, f"{turn}.{i}"))

        with ThreadPoolExecutor(12) as threads:
            won = [i for i, result in enumerate(threads.map(rush, range(12))) if result]
        same(len(won), 1, "of 12 that compare a mark and set it at once, one wins")
        seen = f"{turn}.{won[0]}"
        same(do(store, lambda tx: tx.mark("lease"), read=True), seen, "the one that was told it won is the one stored")
