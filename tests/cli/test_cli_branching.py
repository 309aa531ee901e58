"""`adjourn fork` and `adjourn abort`."""

import signal
import sys
from typing import Any

import pytest

from adjourn import AgentInit
from cli.cli_kit import APP, Shop


def run(shop: Shop, *arguments: str) -> Any:
    return shop.run(*arguments, "--app", APP)


def test_a_branch_of_a_paused_session_has_a_pause_of_its_own(shop: Shop) -> None:
    session = shop.say("pay 5")
    first = shop.waiting()[0].id
    got = run(shop, "fork", session[:9], "--json").json
    assert got["sessionId"] == session
    (second,) = got["interrupts"]
    assert {row.id for row in shop.waiting()} == {first, second}
    assert run(shop, "restart", second).code == 0
    assert shop.effects() == ["paid 5"]
    assert [row.id for row in shop.waiting()] == [first]

    async def goes_on(ai: Any) -> str:
        branch = await ai.agents["clerk"].connect(AgentInit(snapshot_id=got["snapshotId"])).load()
        return branch.messages[0].text

    assert shop.with_app(goes_on) == "pay 5"


def test_a_fork_says_in_words_what_waits_in_it(shop: Shop) -> None:
    got = run(shop, "fork", shop.say("pay 5"))
    assert "Branched off session" in got.out
    assert "It waits for a decision on pay" in got.out


def test_a_session_can_be_forked_where_it_was_before(shop: Shop) -> None:
    session = shop.say("hello")
    snapshots = [line["snapshotId"] for line in shop("log", session, "--json").lines]
    shop.say("pay 5", session_id=session)
    got = run(shop, "fork", session, "--snapshot", snapshots[0], "--json").json
    assert got == {"sessionId": session, "snapshotId": snapshots[0], "interrupts": []}
    wrong = run(shop, "fork", session, "--snapshot", "n_elsewhere", "--json")
    assert (wrong.code, wrong.error["code"]) == (2, "usage")


def test_an_aborted_turn_takes_its_pauses_with_it_and_the_session_goes_on(shop: Shop) -> None:
    session = shop.say("pay 5")
    waiting = shop.waiting()[0].id
    got = run(shop, "abort", session, "--reason", "no longer wanted", "--yes", "--json").json
    assert got == {"sessionId": session, "aborted": True, "cancelled": [waiting]}
    assert shop.waiting() == []
    assert "no longer wanted" in shop("log", session, "--json").out
    again = run(shop, "abort", session, "--json")
    assert (again.code, again.json) == (0, {"sessionId": session, "aborted": False, "cancelled": []})
    shop.say("hello", session_id=session)
    assert "at rest" in shop("sessions").out


def test_what_a_dead_process_left_running_is_aborted(shop: Shop) -> None:
    session = shop.leave("pay 5")
    assert run(shop, "abort", session, "--json").json["aborted"] is True
    assert shop("sessions", "--json").json["items"][0]["running"] is False


@pytest.mark.parametrize("command", ["fork", "abort"])
def test_both_need_the_application_and_a_session(shop: Shop, command: str) -> None:
    session = shop.say("hello")
    bare = shop(command, session, "--json")
    assert (bare.code, bare.error["code"]) == (2, "usage")
    assert "--app" in bare.error["message"]
    assert run(shop, command, "s_nowhere").code == 3
    assert run(shop, command).code == 2


@pytest.mark.slow
def test_ctrl_c_while_the_application_is_imported_stops_at_once_and_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.folder / "slow_app.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwent_on = True\n")
    monkeypatch.setattr(sys, "path", [str(shop.folder), *sys.path])
    before = signal.getsignal(signal.SIGINT)
    got = shop.process("sessions", "--app", "slow_app:ai", PYTHONPATH=str(shop.folder))
    assert (got.code, got.out) == (130, "")
    assert got.err == "Stopped while slow_app:ai was imported.\n"
    assert run_here(shop) == 130
    assert signal.getsignal(signal.SIGINT) is before


def run_here(shop: Shop) -> int:
    return shop.run("sessions", "--app", "slow_app:ai").code
