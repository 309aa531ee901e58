"""`adjourn doctor`: what it finds, what it repairs, and that it changes nothing by itself."""

import importlib
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn import run_sync
from adjourn.store import Store, Tx
from adjourn.stores.sqlite import SQLiteStore
from cli.cli_kit import APP, Result, Shop


def checks(got: Result, level: str = "problem") -> dict[str, Any]:
    return {f["check"]: f for f in got.json["findings"] if f["level"] == level}


def change(shop: Shop, work: Callable[[Tx], Any]) -> Any:
    store: Store = SQLiteStore(shop.store)
    try:
        return store.submit(work).result()
    finally:
        store.close()


def test_a_sound_store_has_nothing_wrong(shop: Shop) -> None:
    shop.say("pay 5")
    got = shop("doctor")
    assert got.code == 0
    assert "Nothing is wrong." in got.out
    found = shop("doctor", "--json").json
    assert found["ok"] is True
    assert set(found["findings"][0]) == {"check", "level", "message", "hint", "ids", "repair", "repaired"}
    assert {"store.whole", "store.writable", "store.content"} <= set(checks(shop("doctor", "--json"), "ok"))


def test_a_sound_application_has_nothing_wrong(shop: Shop) -> None:
    shop.say("pay 5")
    got = shop.run("doctor", "--app", APP, "--json")
    assert got.code == 0
    assert "clerk" in checks(got, "ok")["app.agent"]["message"]


def test_an_overdue_pause_is_settled_only_when_asked_to(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = shop.waiting()[0]
    change(shop, lambda tx: tx.put_interrupt(replace(waiting, expires_at=time.time() - 5)))
    for _ in range(2):
        assert checks(shop("doctor", "--json"), "note")["pause.overdue"]["ids"] == [waiting.id]
    got = shop("doctor", "--json", "--yes")
    assert checks(got, "note")["pause.overdue"]["repaired"] is True
    assert shop("show", waiting.id, "--json").json["status"] == "expired"


def test_a_pause_whose_session_is_gone_is_closed_with_a_row_in_the_audit(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = shop.waiting()[0]

    def lose(tx: Tx) -> None:
        tx.drop_session(waiting.session_id)
        tx.put_interrupt(waiting)

    change(shop, lose)
    found = shop("doctor", "--json")
    assert found.code == 8
    assert checks(found)["pause.orphaned"]["ids"] == [waiting.id]
    assert shop("doctor", "--yes").code == 0
    shown = shop("show", waiting.id, "--json").json
    assert shown["status"] == "cancelled"
    assert [(d["verb"], d["by"]) for d in shown["decisions"]] == [("cancel", "doctor")]


def test_a_pause_that_its_turn_does_not_wait_for_is_an_orphan(shop: Shop) -> None:
    session = shop.say("pay 5")
    waiting = shop.waiting()[0]
    shop.run("restart", waiting.id, "--app", APP)
    change(shop, lambda tx: tx.put_interrupt(replace(waiting, status="open")))
    found = shop("doctor", "--json")
    assert checks(found)["pause.orphaned"]["ids"] == [waiting.id]
    assert session == waiting.session_id


def test_pauses_of_every_branch_are_no_orphans(shop: Shop) -> None:
    session = shop.say("pay 5")
    shop.run("chat", APP, "--session", session, input="/fork\n")
    assert len(shop.waiting()) == 2
    assert shop("doctor", "--json").code == 0


def test_a_pause_beside_a_call_that_failed_is_no_orphan(shop: Shop) -> None:
    shop.say("do both")
    (waiting,) = shop.waiting()
    assert shop("doctor", "--yes", "--json").code == 0
    assert [row.id for row in shop.waiting()] == [waiting.id]


def hold(tx: Tx, session: str, heartbeat: float) -> None:
    """A lease until tomorrow, and the last sign of life of whoever holds it."""
    row = tx.session(session)
    assert row is not None
    assert row.head is not None
    head = tx.snapshot(row.head)
    assert head is not None
    tx.put_snapshot(replace(head, heartbeat=heartbeat))
    tx.put_session(replace(row, pending=True, holder="p_gone", lease_until=time.time() + 86400))


def test_a_lease_that_ends_too_late_is_ended(shop: Shop) -> None:
    session = shop.say("pay 5")
    change(shop, lambda tx: hold(tx, session, time.time() - 3600))
    found = shop("doctor", "--json")
    assert found.code == 8
    assert checks(found)["session.stuck_lease"]["ids"] == [session]
    got = shop("doctor", "--yes", "--json")
    assert checks(got)["session.stuck_lease"]["repaired"] is True
    assert shop("sessions", "--json").json["items"][0]["leaseUntil"] is None


def test_a_lease_of_a_living_driver_with_a_fast_clock_is_left_alone(shop: Shop) -> None:
    session = shop.say("pay 5")
    change(shop, lambda tx: hold(tx, session, time.time() + 86385))
    got = shop("doctor", "--yes", "--json")
    assert got.code == 8
    assert checks(got)["clock.skew"]["ids"] == [session]
    assert shop("sessions", "--json").json["items"][0]["leaseUntil"] is not None


def test_a_turn_left_by_a_dead_process_is_gone_on_with_by_an_application(shop: Shop) -> None:
    session = shop.leave("hello")
    bare = checks(shop("doctor", "--json", "--yes"))["session.left"]
    assert (bare["repair"], bare["ids"]) == (None, [session])
    assert "worker" in bare["hint"]
    got = shop.run("doctor", "--app", APP, "--yes", "--json")
    assert checks(got)["session.left"]["repaired"] is True
    assert shop("doctor").code == 0


def test_a_decision_that_nobody_took_up_is_found_and_taken_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    session = shop.say("pay 5")
    shop("restart", shop.waiting()[0].id)
    assert shop("doctor", "--json").code == 0  # it was made just now
    monkeypatch.setattr("adjourn.cli.checks._UNTAKEN", -1.0)
    found = shop("doctor", "--json")
    assert checks(found)["session.untaken"]["ids"] == [session]
    assert shop.run("doctor", "--app", APP, "--yes").code == 0
    assert shop.effects() == ["paid 5"]


def test_a_wrong_count_of_waiting_decisions_is_counted_anew(shop: Shop) -> None:
    session = shop.say("pay 5")

    def miscount(tx: Tx) -> None:
        row = tx.session(session)
        assert row is not None
        tx.put_session(replace(row, waiting=3))

    change(shop, miscount)
    assert checks(shop("doctor", "--json"))["session.miscounted"]["ids"] == [session]
    assert shop("doctor", "--yes").code == 0
    assert shop("sessions", "--json").json["items"][0]["decisionsWaiting"] == 0


def test_a_session_without_its_newest_snapshot_is_told_and_left_alone(shop: Shop) -> None:
    session = shop.say("hello")

    def lose(tx: Tx) -> None:
        row = tx.session(session)
        assert row is not None
        tx.put_session(replace(row, head="n_gone"))

    change(shop, lose)
    found = shop("doctor", "--yes", "--json")
    assert found.code == 8
    assert checks(found)["session.headless"]["repair"] is None


def test_clocks_that_differ_are_noticed(shop: Shop) -> None:
    session = shop.say("hello")

    def hurry(tx: Tx) -> None:
        row = tx.session(session)
        assert row is not None
        tx.put_session(replace(row, updated=time.time() + 3600))

    change(shop, hurry)
    assert "clock.skew" in checks(shop("doctor", "--json"))


def test_tools_that_changed_or_are_gone_are_told_for_what_waits(shop: Shop) -> None:
    shop.say("pay 5")
    shop.say("ask")
    pay, _ = shop.waiting()
    change(shop, lambda tx: tx.put_interrupt(replace(pay, version="another")))
    assert checks(shop.run("doctor", "--app", APP, "--json"))["app.tool_changed"]["ids"] == [pay.id]
    found = checks(shop.run("doctor", "--app", "cli_failing:make", "--json"))
    assert "not defined any more" in found["app.tool_gone"]["message"]


def test_a_tool_that_changed_inside_a_nested_agent_is_told_by_its_own_name(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
from adjourn import Adjourn, AgentInit, run_sync
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call

def {function}
    return "refunded"

ai = Adjourn(model=ScriptedModel([call("till", {{"task": "go"}}), call("refund", {{"amount": 5}})]))
till = ai.define_agent("till", tools=[ai.tool(approval=True)({name})])
boss = ai.define_agent("boss", tools=[till.as_tool()], store=SQLiteStore({store!r}))
"""
    monkeypatch.setattr(sys, "path", [str(shop.folder), *sys.path])
    versions = {"before": "refund(amount: int):", "after": "refund(amount: int, to: str):", "gone": "pay(amount: int):"}
    for version, function in versions.items():
        text = program.format(function=function, name=function.partition("(")[0], store=shop.store)
        (shop.folder / f"cli_nested_{version}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, f"cli_nested_{version}", raising=False)
    boss = importlib.import_module("cli_nested_before").boss

    async def paused() -> None:
        await boss.connect().send("go").output

    run_sync(paused())
    [pause] = shop.waiting()
    assert not {"app.tool_changed", "app.tool_gone"} & set(
        checks(shop.run("doctor", "--app", "cli_nested_before:ai", "--json"))
    )
    changed = checks(shop.run("doctor", "--app", "cli_nested_after:ai", "--json"))["app.tool_changed"]
    assert (changed["ids"], "tool 'refund' of agent 'boss.till' has another" in changed["message"]) == (
        [pause.id],
        True,
    )
    gone = checks(shop.run("doctor", "--app", "cli_nested_gone:ai", "--json"))["app.tool_gone"]
    assert (gone["ids"], "tool 'refund' of agent 'boss.till' is not defined" in gone["message"]) == ([pause.id], True)


def test_agents_and_models_that_are_not_there_are_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.say("hello")
    text = (
        "from adjourn import Adjourn\nfrom adjourn.stores.sqlite import SQLiteStore\n"
        "ai = Adjourn(model='openai/gpt-none')\n"
        f"ai.define_agent('other', tools=[], store=SQLiteStore({shop.store!r}))\n"
    )
    (shop.folder / "cli_modelless.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(shop.folder), *sys.path])
    monkeypatch.delitem(sys.modules, "cli_modelless", raising=False)
    got = shop.run("doctor", "--app", "cli_modelless:ai", "--json")
    assert got.code == 8
    assert "openai" in checks(got)["app.model"]["message"]
    assert "'clerk'" in checks(got, "note")["app.agent_gone"]["message"]


def test_a_damaged_or_foreign_file_is_a_finding_and_not_a_traceback(shop: Shop) -> None:
    other = shop.folder / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE notes (text)")
    db.close()
    got = shop.run("doctor", "--store", str(other), "--json")
    assert got.code == 8
    assert "another program" in checks(got)["store.open"]["message"]


def test_what_a_repair_brings_to_light_is_found_in_the_same_run(shop: Shop) -> None:
    session = shop.leave("hello")

    def hold_it(tx: Tx) -> None:
        row = tx.session(session)
        assert row is not None
        tx.put_session(replace(row, pending=True, holder="p_gone", lease_until=time.time() + 86400))

    change(shop, hold_it)
    got = shop("doctor", "--yes", "--json")
    assert got.code == 8, "with the store alone nobody can go on with the turn that the lease had hidden"
    assert checks(got)["session.stuck_lease"]["repaired"] is True
    assert checks(got)["session.left"]["ids"] == [session]
    change(shop, hold_it)
    done = shop.run("doctor", "--yes", "--json", "--app", APP)
    assert done.code == 0
    assert checks(done)["session.left"]["repaired"] is True
    assert shop("sessions", "--json").json["items"][0]["running"] is False
