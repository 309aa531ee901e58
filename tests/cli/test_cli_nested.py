"""Pauses inside nested agents on the command line: what is shown is what would run."""

from collections.abc import Callable

import pytest

from cli.cli_kit import Shop, Terminal, make_nested

APP = "shop_app:make_nested"
Open = Callable[..., Terminal]


@pytest.fixture(autouse=True)
def nested(shop: Shop) -> Shop:
    """The shop, with a `boss` whose call of an agent waits for the one of a tool two agents further in."""
    shop.app = make_nested
    shop.say("pay 5", agent="boss")
    return shop


def test_the_inbox_lists_the_call_that_would_run(shop: Shop) -> None:
    assert shop("inbox").out.splitlines()[0].split("\t")[-1] == "pay(amount=5)"
    (item,) = shop("inbox", "--json").json["items"]
    assert (item["summary"], item["path"]) == ("pay(amount=5)", ["bank", "till"])
    assert (item["tool"], item["input"]) == (
        "bank",
        {"task": "pay 5"},
    )  # the outer call's, with the rest in its payload


def test_show_tells_the_innermost_tool_its_input_and_the_way_to_it(shop: Shop) -> None:
    got = shop.run("show", shop.waiting()[0].id, "--app", APP)
    assert got.out.startswith("pay")
    assert "boss > bank > till" in got.out
    assert "Pays money. Pauses until somebody has approved." in got.out
    shown = got.out[got.out.index("Input") : got.out.index("You can")]
    assert "amount  5" in shown
    assert "task" not in shown
    assert "snapshot" not in shown
    assert "the tool runs, with the input above" in got.out


def test_another_input_is_for_the_innermost_tool(shop: Shop) -> None:
    shop.run("restart", shop.waiting()[0].id, "--app", APP, "--input", '{"amount": 4}')
    assert shop.effects() == ["paid 4"]


@pytest.mark.slow
def test_the_innermost_tools_input_is_edited_at_a_terminal(shop: Shop, terminal: Open) -> None:
    editor = shop.folder / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i "s/5/3/" "$1"\n', encoding="utf-8")
    editor.chmod(0o755)
    t = terminal("restart", shop.waiting()[0].id, "--app", APP, "--edit", EDITOR=str(editor))
    t.see("Run pay with the edited input?").type("y")
    assert t.end() == 0
    assert shop.effects() == ["paid 3"]


def test_a_chat_shows_and_edits_the_innermost_call(shop: Shop) -> None:
    got = shop.run("chat", APP, "--agent", "boss", input='pay 7\n/show\n/edit {"amount": 6}\n')
    assert "pay(amount=7)" in got.out
    assert "pay waits" in got.out
    assert shop.effects() == ["paid 6"]


def test_an_export_and_an_import_count_the_sessions_of_nested_agents_apart(shop: Shop) -> None:
    path = str(shop.folder / "out.jsonl")
    assert shop("export", "--output", path).out == f"Wrote 1 session and 2 of nested agents with them to {path}.\n"
    assert len(shop("sessions").out.splitlines()) == 1
    got = shop.run("import", path, "--store", str(shop.folder / "other.db"))
    assert got.out == "Stored 1 session and 2 of nested agents with them.\n"


def test_where_an_agents_sessions_are_all_parts_of_others_the_list_says_so(shop: Shop) -> None:
    assert "parts of the sessions of agents that call it as a tool" in shop("sessions", "--agent", "till").err
    for agent in ("boss", "nobody"):
        assert "parts of" not in shop("sessions", "--agent", agent).err
