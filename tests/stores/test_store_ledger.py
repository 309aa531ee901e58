"""The rules about leases, decisions and forks, on every kind of store: what a store must make possible."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from adjourn import Store
from adjourn.decisions import decide, decision_of, expire_due
from adjourn.errors import (
    AlreadyResolved,
    SessionBusy,
    SessionConflict,
    SessionNotFound,
    StaleInterrupt,
    UnknownInterrupt,
)
from adjourn.events import (
    Declined,
    Forked,
    Limits,
    Pause,
    Responded,
    Restarted,
    ToolInterrupted,
    ToolReturned,
    ToolStarted,
)
from adjourn.ledger import let_go, renew, save
from adjourn.loading import load, stand
from adjourn.parts import new_id
from adjourn.store import InterruptQuery, SessionQuery
from stores.store_kit import Driver, Place, do


def test_a_driver_whose_session_was_deleted_and_begun_anew_under_its_id_is_refused(store: Store) -> None:
    late = Driver(store, "ticket-42")
    (call,) = late.ask()
    do(store, lambda tx: tx.drop_session("ticket-42"))
    new = Driver(store, "ticket-42")
    new.ask()
    with pytest.raises(SessionConflict, match="took over"):
        late.commit(ToolReturned(call, "late"))
    with pytest.raises(SessionConflict, match="took over"):
        do(store, lambda tx: renew(tx, late.leg, 1001.0, 15.0))
    session = do(store, lambda tx: tx.session("ticket-42"), read=True)
    assert session is not None
    assert session.head == new.leg.snapshot_id
    assert [s.id for s in do(store, lambda tx: tx.snapshots("ticket-42"), read=True)] == [new.leg.snapshot_id]


def test_a_turn_is_stored_leg_by_leg_and_read_back_whole(store: Store) -> None:
    driver = Driver(store)
    (pause,) = driver.pause()
    driver.next_leg()
    call = driver.turn.calls[0].id
    driver.commit(Restarted(pause, {"ok": True}, by="her"))
    driver.commit(ToolStarted(call))
    driver.commit(ToolReturned(call, None))
    driver.end()
    loaded = do(store, lambda tx: load(tx, driver.session_id, None), read=True)
    assert loaded is not None
    standing = stand(loaded, Limits())
    assert standing.turn is None
    assert [m.role for m in standing.history] == ["user", "model", "tool", "model"]
    assert standing.history == driver.turn.added
    session = do(store, lambda tx: tx.session(driver.session_id), read=True)
    assert session is not None
    assert (session.pending, session.waiting, session.head) == (False, 0, driver.leg.snapshot_id)


def test_a_paused_turn_is_rebuilt_from_the_store_alone(place: Place) -> None:
    driver = Driver(place.open())
    pauses = driver.pause(3)
    other = place.open()
    loaded = do(other, lambda tx: load(tx, driver.session_id, None), read=True)
    assert loaded is not None
    turn = stand(loaded, Limits()).turn
    assert turn == driver.turn
    found = do(other, lambda tx: tx.interrupts(InterruptQuery(status="open", session_id=driver.session_id)), read=True)
    assert {i.id for i in found} == set(pauses)


def test_only_the_first_decision_counts(store: Store) -> None:
    (pause,) = Driver(store).pause()
    first = decision_of(do(store, lambda tx: decide(tx, pause, Responded(pause, False, by="her"), 2000.0, "here")))
    assert first.output is False
    _, refused = do(store, lambda tx: decide(tx, pause, Declined(pause, "no", by="him"), 2001.0, None))
    assert isinstance(refused, AlreadyResolved)
    assert refused.decision == first
    decisions = do(store, lambda tx: tx.decisions(interrupt_id=pause), read=True)
    assert decisions == [first]


def test_a_decision_on_nothing_is_refused(store: Store) -> None:
    _, refused = do(store, lambda tx: decide(tx, "i_nothing", Responded("i_nothing", 1), 2000.0, None))
    assert isinstance(refused, UnknownInterrupt)


def test_a_decision_waits_for_a_driver_and_is_taken_up_once(store: Store) -> None:
    driver = Driver(store)
    (pause,) = driver.pause()
    decision = decision_of(do(store, lambda tx: decide(tx, pause, Responded(pause, 0), 2000.0, None)))
    due = do(store, lambda tx: tx.sessions(SessionQuery(due=2000.0)), read=True)
    assert [s.id for s in due] == [driver.session_id]
    loaded = do(store, lambda tx: load(tx, driver.session_id, None), read=True)
    assert loaded is not None
    assert list(loaded.waiting) == [decision]
    driver.next_leg()
    driver.commit(Responded(pause, 0), applying={pause: decision})
    driver.end()
    assert do(store, lambda tx: tx.decisions(session_id=driver.session_id, unapplied=True), read=True) == []
    assert do(store, lambda tx: tx.sessions(SessionQuery(due=9e9)), read=True) == []


def test_an_overdue_interrupt_is_settled_as_expired_by_whoever_comes_first(store: Store) -> None:
    first, second = Driver(store), Driver(store)
    (one,) = first.pause(expires_at=1500.0)
    (two,) = second.pause(expires_at=1600.0)
    assert do(store, lambda tx: expire_due(tx, 1499.0)) == []
    _, refused = do(store, lambda tx: decide(tx, one, Responded(one, 1), 1500.0, None))
    assert isinstance(refused, StaleInterrupt)
    (expired,) = do(store, lambda tx: expire_due(tx, 1600.0))
    assert (expired.interrupt_id, expired.verb) == (two, "expire")
    for pause in (one, two):
        row = do(store, lambda tx, p=pause: tx.interrupt(p), read=True)
        assert row is not None
        assert row.status == "expired"
        assert [d.verb for d in do(store, lambda tx, p=pause: tx.decisions(interrupt_id=p), read=True)] == ["expire"]


def test_two_drivers_of_one_session_do_not_run_at_once(place: Place) -> None:
    driver = Driver(place.open())
    driver.ask()
    other = Driver(place.open(), driver.session_id)
    with pytest.raises(SessionBusy):
        other.ask()


def test_a_lost_lease_is_taken_over_and_its_old_holder_stops(place: Place) -> None:
    store = place.open()
    old = Driver(store)
    (call,) = old.ask()
    do(store, lambda tx: renew(tx, old.leg, 1010.0, 15.0))
    new = Driver(place.open(), old.session_id)
    new.now, new.turn = 1024.0, old.turn
    new.leg = old.leg
    new.leg = replace(old.leg, epoch=0, holder=new_id("h_"))
    with pytest.raises(SessionBusy):
        new.commit(ToolReturned(call, 1))
    new.now = 1025.0
    new.commit(ToolReturned(call, 1))
    with pytest.raises(SessionConflict):
        old.commit(ToolReturned(call, 2))
    with pytest.raises(SessionConflict):
        do(store, lambda tx: renew(tx, old.leg, 1030.0, 15.0))
    events = do(store, lambda tx: tx.events([old.leg.snapshot_id]), read=True)
    assert [e.output for e in events if isinstance(e, ToolReturned)] == [1]


def test_a_leg_that_came_to_rest_since_it_was_looked_at_is_not_run_again(store: Store) -> None:
    driver = Driver(store)
    driver.ask()
    late = replace(driver.leg, epoch=0, force=True)  # as whoever reads it now takes it over
    [call] = driver.turn.calls
    driver.commit(ToolInterrupted(call.id, Pause("i_1")))
    again = replace(driver.write([]), leg=late)
    with pytest.raises(SessionConflict, match="has come to rest since"):
        do(store, lambda tx: save(tx, again))
    session = do(store, lambda tx: tx.session(driver.session_id))
    assert session is not None
    assert (session.epoch, session.pending, session.head) == (driver.leg.epoch, False, driver.leg.snapshot_id)


def test_a_lease_that_was_given_up_can_be_had_at_once(place: Place) -> None:
    store = place.open()
    old = Driver(store)
    (call,) = old.ask()
    assert do(store, lambda tx: let_go(tx, old.session_id, old.leg.holder))
    new = Driver(place.open(), old.session_id)
    new.now, new.turn = old.now, old.turn
    new.leg = replace(old.leg, epoch=0, holder=new_id("h_"))
    new.commit(ToolReturned(call, 1))
    with pytest.raises(SessionConflict):
        old.commit(ToolReturned(call, 2))


def test_a_lease_that_somebody_else_has_by_now_cannot_be_given_up(store: Store) -> None:
    driver = Driver(store)
    (call,) = driver.ask()
    assert not do(store, lambda tx: let_go(tx, driver.session_id, new_id("h_")))
    assert not do(store, lambda tx: let_go(tx, new_id("s_"), driver.leg.holder))
    driver.commit(ToolReturned(call, 1))


def test_a_handle_that_was_overtaken_keeps_nothing(store: Store) -> None:
    first = Driver(store)
    first.whole_turn()
    late = Driver(store, first.session_id)
    late.parent = first.parent
    late.leg = late.new_leg()
    first.whole_turn()
    before = do(store, lambda tx: tx.session(first.session_id), read=True)
    with pytest.raises((SessionConflict, SessionNotFound)):
        late.ask()
    assert do(store, lambda tx: tx.session(first.session_id), read=True) == before
    assert do(store, lambda tx: tx.snapshot(late.leg.snapshot_id), read=True) is None


def test_a_fork_shares_the_past_and_has_pauses_of_its_own(place: Place) -> None:
    if not place.keeps_history:
        pytest.skip("this store keeps only the newest state")
    store = place.open()
    driver = Driver(store)
    driver.whole_turn()
    (pause,) = driver.pause()
    driver.next_leg(branch=True)
    mine = new_id("i_")
    driver.interrupts = []
    driver.leg = replace(driver.leg, open=frozenset())
    driver.commit(Forked({pause: mine}))
    rows = do(store, lambda tx: [tx.interrupt(pause), tx.interrupt(mine)], read=True)
    assert [r.status for r in rows if r is not None] == ["open", "open"]
    decision_of(do(store, lambda tx: decide(tx, mine, Responded(mine, "mine"), 2000.0, None)))
    row = do(store, lambda tx: tx.interrupt(pause), read=True)
    assert row is not None
    assert row.status == "open"
    for at in (driver.leg.snapshot_id, driver.parent):
        chain = do(store, lambda tx, at=at: tx.chain(at or ""), read=True)
        assert chain[0].messages is not None  # the turn before, which both have


def test_state_of_none_is_told_apart_from_no_change(store: Store) -> None:
    driver = Driver(store)
    driver.ask()
    driver.commit(state={"a": 1})
    driver.commit(ToolReturned(driver.turn.calls[0].id, 1), state=None)
    driver.end()
    loaded = do(store, lambda tx: load(tx, driver.session_id, None), read=True)
    assert loaded is not None
    assert loaded.chain[-1].state is UNSET  # the last commit of this leg said nothing about it
    assert stand(loaded, Limits()).state is None


def test_ten_turns_in_two_processes_turns_are_read_back_in_order(place: Place) -> None:
    driver = Driver(place.open())
    for i in range(10):
        driver.text = f"turn {i}"
        driver.whole_turn()
    loaded = do(place.open(), lambda tx: load(tx, driver.session_id, None), read=True)
    assert loaded is not None
    said = [m.text for m in stand(loaded, Limits()).history if m.role == "user"]
    assert said == [f"turn {i}" for i in range(10)]


def test_a_call_that_pauses_again_after_a_restart_is_open_again(store: Store) -> None:
    driver = Driver(store)
    (pause,) = driver.pause()
    driver.next_leg()
    call = driver.turn.calls[0].id
    driver.commit(Restarted(pause, {"try": 2}), ToolStarted(call))
    again = new_id("i_")
    driver.commit(ToolInterrupted(call, Pause(again, "once more")))
    rows = do(store, lambda tx: tx.interrupts(InterruptQuery(session_id=driver.session_id)), read=True)
    assert {r.id: r.status for r in rows} == {pause: "resolved", again: "open"}


def test_deleting_a_session_while_its_turn_runs_stops_the_turn(store: Store) -> None:
    driver = Driver(store)
    (call,) = driver.ask()
    do(store, lambda tx: tx.drop_session(driver.session_id))
    with pytest.raises(SessionNotFound):
        driver.commit(ToolReturned(call, 1))
    assert do(store, lambda tx: tx.snapshots(driver.session_id), read=True) == []
