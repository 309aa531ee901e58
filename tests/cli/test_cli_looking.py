"""`adjourn inbox`, `show`, `sessions` and `log` without a terminal: what they print, and for whom."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from adjourn.lease import transact
from cli.cli_kit import APP, Shop, Terminal

Open = Callable[..., Terminal]

INTERRUPT = {
    "id", "sessionId", "snapshotId", "turnId", "callId", "agent", "tool", "status", "summary", "createdAt", "expiresAt",
    "owner", "reason", "allow", "input", "inputDigest", "payload", "responseSchema", "onExpiry", "path", "reopened",
    "toolVersion", "version",
}  # fmt: skip
DECISION = {
    "id", "interruptId", "sessionId", "verb", "at", "by", "address", "inputDigest", "reason", "output", "metadata",
    "inputReplaced", "input", "key", "applied",
}  # fmt: skip
SESSION = {
    "id", "agent", "owner", "createdAt", "updatedAt", "snapshotId", "running", "leaseUntil", "decisionsWaiting",
    "messagesQueued", "openInterrupts",
}  # fmt: skip


def test_the_inbox_lists_what_waits_oldest_first(shop: Shop) -> None:
    shop.say("pay 1", owner="ann")
    shop.say("pay 2")
    got = shop("inbox")
    assert got.code == 0
    assert [line.split("\t")[-1] for line in got.out.splitlines()] == ["pay(amount=1)", "pay(amount=2)"]
    assert got.out.splitlines()[0].split("\t")[0] == shop.waiting()[0].id  # whole, where nobody looks


def test_an_empty_inbox_says_so_beside_the_output(shop: Shop) -> None:
    shop.say("hello")
    got = shop("inbox")
    assert (got.code, got.out) == (0, "")
    assert "Nothing waits" in got.err


def test_json_of_the_inbox_has_every_documented_field_and_nothing_else(shop: Shop) -> None:
    shop.say("pay 1", owner="ann")
    got = shop("inbox", "--json")
    (item,) = got.json["items"]
    assert set(item) == INTERRUPT
    assert got.json["nextCursor"] is None
    assert (item["input"], item["owner"], item["allow"]) == ({"amount": 1}, "ann", ["respond", "restart", "decline"])
    assert got.err == ""


def test_filters_of_the_inbox_narrow_it(shop: Shop) -> None:
    first = shop.say("pay 1", owner="ann")
    shop.say("ask")

    def tools(*filters: str) -> list[str]:
        return [i["tool"] for i in shop("inbox", "--json", *filters).json["items"]]

    assert tools() == ["pay", "ask"]
    assert tools("--tool", "ask") == ["ask"]
    assert tools("--owner", "ann") == ["pay"]
    assert tools("--session", first[:8]) == ["pay"]
    assert tools("--agent", "nobody") == []
    assert tools("--text", "is it RIGHT") == ["ask"]
    assert tools("--status", "resolved") == []
    assert tools("--status", "all") == ["pay", "ask"]


def test_pages_of_the_inbox_follow_each_other(shop: Shop) -> None:
    for n in range(5):
        shop.say(f"pay {n}")
    seen: list[int] = []
    cursor: list[str] = []
    while True:
        page = shop("inbox", "--json", "--limit", "2", *cursor).json
        seen += [i["input"]["amount"] for i in page["items"]]
        if page["nextCursor"] is None:
            break
        cursor = ["--cursor", page["nextCursor"]]
    assert seen == [0, 1, 2, 3, 4]
    assert "--cursor" in shop("inbox", "--limit", "2").err


def test_show_prints_what_is_asked_why_and_what_can_be_done(shop: Shop) -> None:
    shop.say("pay 7", owner="ann")
    known = shop.waiting()[0].id
    text = shop("show", known).out
    for expected in (known, "clerk", "ann", "the tool itself asks", "amount", "7", "restart", "respond", "decline"):
        assert expected in text


def test_show_takes_an_unambiguous_beginning_of_an_id_with_or_without_its_prefix(shop: Shop) -> None:
    shop.say("pay 7")
    known = shop.waiting()[0].id
    assert shop("show", known[:10], "--json").json["id"] == known
    assert shop("show", known[2:10], "--json").json["id"] == known


def test_an_ambiguous_beginning_of_an_id_names_those_it_could_be(shop: Shop) -> None:
    shop.say("pay 1 and pay 2")
    got = shop("show", "i_", "--json")
    assert got.code == 3
    assert got.error["code"] == "ambiguous"
    assert sorted(got.error["details"]["ids"]) == sorted(r.id for r in shop.waiting())


def test_show_has_the_decisions_with_who_and_from_where(shop: Shop) -> None:
    shop.say("pay 7")
    known = shop.waiting()[0].id
    shop("decline", known, "--reason", "too dear", "--by", "ben")
    shown = shop("show", known, "--json").json
    assert set(shown) == INTERRUPT | {"decisions"}
    (decision,) = shown["decisions"]
    assert set(decision) == DECISION
    assert (decision["verb"], decision["by"], decision["reason"], decision["applied"]) == (
        "decline",
        "ben",
        "too dear",
        False,
    )
    assert decision["address"].startswith("cli:")
    text = shop("show", known).out
    assert "decline by ben" in text
    assert "not taken up yet" in text


def test_sessions_are_listed_with_what_they_wait_for(shop: Shop) -> None:
    waits = shop.say("pay 1", owner="ann")
    rests = shop.say("hello")
    items = {i["id"]: i for i in shop("sessions", "--json").json["items"]}
    assert set(items) == {waits, rests}
    assert set(items[waits]) == SESSION
    assert items[waits]["openInterrupts"] == 1
    assert "waits for 1 decision" in shop("sessions").out
    assert [i["id"] for i in shop("sessions", "--json", "--owner", "ann").json["items"]] == [waits]


def test_pages_of_sessions_follow_each_other(shop: Shop) -> None:
    ids = [shop.say("hello") for _ in range(3)]
    first = shop("sessions", "--json", "--limit", "2").json
    rest = shop("sessions", "--json", "--limit", "2", "--cursor", first["nextCursor"]).json
    assert [i["id"] for i in first["items"] + rest["items"]] == ids
    assert rest["nextCursor"] is None


def test_the_log_tells_a_session_in_order(shop: Shop) -> None:
    known = shop.say("pay 7")
    kinds = [e["kind"] for e in shop("log", known, "--json").lines]
    assert kinds == ["message", "model", "pause"]
    entry = shop("log", known, "--json").lines[0]
    assert set(entry) == {"sessionId", "at", "kind", "title", "snapshotId", "took", "facts"}
    assert "pay(amount=7)" in shop("log", known[:8]).out


def test_the_store_is_named_by_the_environment_too(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.say("pay 1")
    monkeypatch.setenv("ADJOURN_STORE", f"sqlite:///{shop.store}")
    assert len(shop.run("inbox", "--json").json["items"]) == 1
    monkeypatch.delenv("ADJOURN_STORE")
    monkeypatch.setenv("ADJOURN_APP", APP)
    assert len(shop.run("inbox", "--json").json["items"]) == 1


def test_an_option_wins_over_the_environment(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.say("pay 1")
    monkeypatch.setenv("ADJOURN_APP", "no_such_module:ai")
    assert len(shop("inbox", "--json").json["items"]) == 1


def test_looking_changes_nothing_in_the_terminal_or_the_store(shop: Shop) -> None:
    known = shop.say("pay 1")
    before = shop("log", known, "--json").out
    for command in (["inbox"], ["sessions"], ["show", shop.waiting()[0].id]):
        assert "\x1b" not in shop(*command).out
    assert shop("log", known, "--json").out == before


def test_the_log_marks_what_failed_and_cuts_the_input_and_not_what_became_of_it(shop: Shop, terminal: Open) -> None:
    session = shop.say("forge 1")
    shop("decline", shop.waiting()[0].id, "--reason", "no")
    other = shop.say("break")
    t = terminal("log", session, "--store", shop.store, size=(80, 30))
    assert t.end() == 0
    lines = t.screen.split("\n")
    assert any("◆ forged(" in line and "…) was declined by ann" in line for line in lines), t.screen
    assert "by ann by ann" not in t.screen
    assert any("‖ forged(" in line and "…) waits for a decision" in line for line in lines), t.screen
    t = terminal("log", other, "--store", shop.store, size=(80, 30))
    assert t.end() == 0
    assert "✗ breaks() failed" in t.screen
    assert "✓" not in t.screen


def test_ids_of_sessions_are_whole_on_a_narrow_terminal(shop: Shop, terminal: Open) -> None:
    session = shop.say("pay 5")
    for columns in (45, 60, 80):
        t = terminal("sessions", "--store", shop.store, size=(columns, 20))
        assert t.end() == 0
        assert session[:10] in t.screen
        assert "waits for 1 decision" in t.screen


def test_what_an_approval_says_is_not_shown_twice(shop: Shop) -> None:
    shop.say("pay 5")
    row = shop.waiting()[0]
    assert "It says" in shop("show", row.id).out
    change = replace(row, payload={"approval": row.tool, "input": row.input}, reason="approval")
    shop.with_app(lambda ai: transact(ai.stores()[0], lambda tx: tx.put_interrupt(change)))
    assert "It says" not in shop("show", row.id).out
