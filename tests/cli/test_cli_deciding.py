"""`adjourn respond`, `restart` and `decline` without a terminal: what counts, what is refused, and who goes on."""

from pathlib import Path

import pytest

from cli.cli_kit import APP, Shop


def one(shop: Shop) -> str:
    return shop.waiting()[0].id


def test_a_decision_with_only_a_store_is_recorded_and_says_who_goes_on(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = one(shop)
    got = shop("restart", waiting)
    assert got.code == 0
    assert got.out.startswith("Restarted pay")
    assert "next goes on with it" in got.err
    assert shop.effects() == []
    assert shop.waiting() == []


def test_what_was_decided_with_a_store_alone_is_finished_by_a_worker_in_another_process(shop: Shop) -> None:
    session = shop.say("pay 5")
    assert shop.process("restart", one(shop), "--store", shop.store, "--by", "ben").code == 0
    done = shop.process("worker", APP, "--once")
    assert done.code == 0, done
    assert shop.effects() == ["paid 5"]
    kinds = [e["kind"] for e in shop("log", session, "--json").lines]
    assert kinds[-1] == "end"
    assert shop("sessions", "--json").json["items"][0]["running"] is False


def test_with_an_application_the_turn_goes_on_here_and_is_shown(shop: Shop) -> None:
    shop.say("pay 5")
    got = shop.run("restart", one(shop), "--app", APP)
    assert got.code == 0
    assert "Done: {'paid': 5" in got.out
    assert shop.effects() == ["paid 5"]


def test_json_of_a_decision_has_the_decision_and_the_turn(shop: Shop) -> None:
    session = shop.say("pay 5")
    got = shop.run("restart", one(shop), "--app", APP, "--metadata", '{"limit": 9}', "--json").json
    assert set(got) == {"decision", "repeated", "turn"}
    assert (got["decision"]["verb"], got["decision"]["by"], got["decision"]["metadata"]) == (
        "restart",
        "ann",
        {"limit": 9},
    )
    turn = got["turn"]
    fields = {"finishReason", "sessionId", "snapshotId", "text", "interrupts", "error", "limit", "usage"}
    assert set(turn) == fields
    assert (turn["finishReason"], turn["sessionId"]) == ("stop", session)
    assert "'note': {'limit': 9}" in turn["text"]


def test_a_value_may_begin_with_a_dash_after_two_of_them(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = one(shop)
    assert shop.run("respond", "--store", shop.store, waiting, "--", "-5").code == 0
    assert shop("show", waiting, "--json").json["decisions"][0]["output"] == -5


@pytest.mark.parametrize("value", ["null", "false", "0", '""', "[]"])
def test_falsy_values_are_answers(shop: Shop, value: str) -> None:
    shop.say("pay 5")
    waiting = one(shop)
    assert shop("respond", waiting, value).code == 0
    (decision,) = shop("show", waiting, "--json").json["decisions"]
    assert decision["output"] == {"null": None, "false": False, "0": 0, '""': "", "[]": []}[value]


def test_a_value_is_taken_as_text_from_a_file_and_from_standard_input(shop: Shop, tmp_path: Path) -> None:
    for _ in range(3):
        shop.say("pay 5")
    a, b, c = [row.id for row in shop.waiting()]
    (tmp_path / "value.json").write_text('{"paid": 1}', encoding="utf-8")
    assert shop("respond", a, "plain words", "--text").code == 0
    assert shop("respond", b, f"@{tmp_path / 'value.json'}").code == 0
    assert shop("respond", c, "-", input='{"paid": 2}').code == 0
    outputs = [shop("show", known, "--json").json["decisions"][0]["output"] for known in (a, b, c)]
    assert outputs == ["plain words", {"paid": 1}, {"paid": 2}]


def test_a_value_that_is_no_json_is_a_mistake_that_names_the_way_out(shop: Shop) -> None:
    shop.say("pay 5")
    got = shop("respond", one(shop), "yes please")
    assert got.code == 2
    assert "--text" in got.err
    assert len(shop.waiting()) == 1


def test_a_response_that_does_not_fit_is_refused_with_the_path_and_nothing_changes(shop: Shop) -> None:
    shop.say("ask")
    got = shop("respond", one(shop), '{"ok": "perhaps"}', "--json")
    assert got.code == 5
    assert got.error["code"] == "invalid_response"
    assert got.error["details"]["problems"] == [{"path": "$.ok", "message": "must be boolean, not string"}]
    assert len(shop.waiting()) == 1


def test_a_respond_only_call_cannot_be_restarted(shop: Shop) -> None:
    shop.say("ask")
    got = shop("restart", one(shop))
    assert got.code == 5
    assert "give a response" in got.err


def test_the_second_decision_is_told_which_one_counts(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = one(shop)
    assert shop("restart", waiting, "--by", "ben").code == 0
    got = shop("decline", waiting, "--json")
    assert got.code == 4
    assert got.error["code"] == "already_resolved"
    assert (got.error["details"]["decision"]["verb"], got.error["details"]["decision"]["by"]) == ("restart", "ben")
    assert "restart, by ben" in shop("decline", waiting).err


def test_the_same_decision_under_the_same_key_counts_once(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = one(shop)
    first = shop("decline", waiting, "--key", "k", "--json").json
    again = shop("decline", waiting, "--key", "k", "--json").json
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert first["decision"]["id"] == again["decision"]["id"]


def test_a_decision_on_another_version_than_the_one_shown_is_refused(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = one(shop)
    version = shop("show", waiting, "--json").json["version"]
    got = shop("restart", waiting, "--expect", "something else", "--json")
    assert (got.code, got.error["code"]) == (4, "stale_interrupt")
    assert shop("restart", waiting, "--expect", version).code == 0


def test_an_edited_input_is_checked_by_the_tool_and_recorded(shop: Shop) -> None:
    shop.say("pay 5")
    waiting = one(shop)
    wrong = shop.run("restart", waiting, "--app", APP, "--input", '{"amount": "much"}', "--json")
    assert (wrong.code, wrong.error["code"]) == (5, "invalid_input")
    assert shop.run("restart", waiting, "--app", APP, "--input", '{"amount": 3}').code == 0
    assert shop.effects() == ["paid 3"]
    (decision,) = shop("show", waiting, "--json").json["decisions"]
    assert (decision["inputReplaced"], decision["input"]) == (True, {"amount": 3})
    shown = shop("show", waiting).out.partition("Decisions")[2]
    assert "restart with another input by ann" in shown
    assert '"amount": 3' in shown


def test_an_edited_input_cannot_be_checked_without_the_application(shop: Shop) -> None:
    shop.say("pay 5")
    got = shop("restart", one(shop), "--input", '{"amount": 3}')
    assert got.code == 5
    assert "cannot be checked" in got.err
    assert len(shop.waiting()) == 1


def test_a_turn_that_pauses_again_is_a_success_that_says_what_waits(shop: Shop) -> None:
    shop.say("pay 1 and pay 2")
    first, second = shop.waiting()
    got = shop.run("restart", first.id, "--app", APP)
    assert got.code == 0
    assert second.id[:10] in got.err
    assert shop.effects() == ["paid 1"]


def test_a_decision_whose_turn_fails_counts_and_ends_with_its_own_code(shop: Shop) -> None:
    shop.say("ask")
    got = shop.run("respond", one(shop), '{"ok": true}', "--app", "shop_app:make", "--json")
    assert got.code == 0
    shop.say("ask")
    got = shop.run("respond", one(shop), '{"ok": true}', "--app", "cli_failing:make", "--json")
    assert got.code == 7
    assert got.json["turn"]["error"]["kind"] == "ModelError"
    assert got.json["decision"]["verb"] == "respond"
    assert shop.waiting() == []


def test_an_unknown_id_is_not_found(shop: Shop) -> None:
    shop.say("hello")
    for command in (["show"], ["restart"], ["decline"], ["log"]):
        got = shop(*command, "nothing", "--json")
        assert got.code == 3, command
        assert got.error["code"] in ("unknown_interrupt", "session_not_found")


def test_without_a_terminal_an_id_has_to_be_given(shop: Shop) -> None:
    shop.say("pay 5")
    for command in (["show"], ["restart"], ["decline"], ["log"], ["respond"]):
        got = shop(*command)
        assert got.code == 2, command
        assert "which" in got.err
    assert len(shop.waiting()) == 1
