"""`adjourn chat` through a pipe: messages and /commands, one a line, as text and as lines of JSON."""

from typing import Any

import pytest

from cli.cli_kit import APP, Result, Shop


def chat(shop: Shop, *lines: str, options: tuple[str, ...] = (), app: str = APP) -> Result:
    return shop.run("chat", app, *options, input="".join(f"{line}\n" for line in lines))


def events(shop: Shop, *lines: str, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return chat(shop, *lines, options=("--json", *options)).lines


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """The kinds of events in order, several of one kind in a row as one."""
    names = [e["event"] for e in found]
    return [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]


def test_each_line_is_a_message_and_the_reply_is_streamed(shop: Shop) -> None:
    got = chat(shop, "hello", "and again")
    assert got.code == 0
    assert got.out.splitlines() == ["> hello", "You said: hello", "> and again", "You said: and again"]
    assert "--session s_" in got.err


def test_what_a_model_says_without_streaming_is_shown_too(shop: Shop) -> None:
    assert "this is unstreamed" in chat(shop, "quiet").out


def test_a_line_that_ends_in_a_backslash_goes_on_in_the_next(shop: Shop) -> None:
    assert "You said: one\ntwo" in chat(shop, "one\\", "two").out


def test_a_conversation_that_is_left_paused_has_its_own_exit_code(shop: Shop) -> None:
    got = chat(shop, "pay 5")
    assert got.code == 9
    assert "‖ pay(amount=5)" in got.out
    assert len(shop.waiting()) == 1


@pytest.mark.parametrize(
    "command,effects,said",
    [
        ("/approve", ["paid 5"], "'note': {}"),
        ('/approve {"limit": 9}', ["paid 5"], "'limit': 9"),
        ('/edit {"amount": 3}', ["paid 3"], "'paid': 3"),
        ('/respond {"paid": 4}', [], "'paid': 4"),
        ("/decline too dear", [], "too dear"),
        ("/restart", ["paid 5"], "'paid': 5"),
    ],
)
def test_a_pause_is_decided_in_place(shop: Shop, command: str, effects: list[str], said: str) -> None:
    got = chat(shop, "pay 5", command)
    assert got.code == 0
    assert shop.effects() == effects
    assert said in got.out.splitlines()[-1]


def test_several_pauses_are_decided_by_their_ids(shop: Shop) -> None:
    session = shop.say("pay 1 and pay 2")
    first, second = shop.waiting()
    got = chat(shop, "/approve", f"/decline {second.id[:8]} no", f"/approve {first.id[2:10]}", options=("-s", session))
    assert "which one?" in got.err
    assert got.code == 0
    assert shop.effects() == ["paid 1"]


def test_a_refused_decision_is_told_and_the_conversation_goes_on(shop: Shop) -> None:
    got = chat(shop, "ask", "/approve", '/respond {"ok": "x"}', '/respond {"ok": true}', "/approve", "bye")
    assert "give a response" in got.err
    assert "must be boolean" in got.err
    assert "nothing waits" in got.err
    assert "You said: bye" in got.out


def test_a_message_while_paused_is_refused_with_what_waits(shop: Shop) -> None:
    got = chat(shop, "pay 5", "hello")
    assert got.code == 4
    assert "waits for a decision" in got.err


def test_an_unknown_command_is_a_mistake_and_two_slashes_are_a_message(shop: Shop) -> None:
    got = chat(shop, "/nonsense", "//etc is a folder", "/hel")
    assert "no command /nonsense" in got.err
    assert "You said: /etc is a folder" in got.out
    assert "/approve" in got.out


def test_events_of_a_conversation_are_lines_of_json(shop: Shop) -> None:
    found = events(shop, "pay 5", "/approve")
    # When a tool starts is told at once, what is streamed when it is read: these two are in no order.
    told = [k for k in kinds(found) if k != "tool_started"]
    assert told == ["text", "pause", "end", "tool", "text", "end"]
    pause = next(e for e in found if e["event"] == "pause")
    assert set(pause) == {"event", "id", "tool", "input", "payload", "reason", "allow", "responseSchema"}
    ends = [e for e in found if e["event"] == "end"]
    assert [e["finishReason"] for e in ends] == ["interrupted", "stop"]
    assert ends[0]["interrupts"][0]["id"] == pause["id"]
    tool = next(e for e in found if e["event"] == "tool")
    assert (tool["tool"], tool["output"]) == ("pay", {"paid": 5, "note": {}})
    text = "".join(e["text"] for e in found[found.index(ends[0]) :] if e["event"] == "text")
    assert text == "Done: {'paid': 5, 'note': {}}"


def test_a_session_is_gone_on_with_by_the_beginning_of_its_id(shop: Shop) -> None:
    session = shop.say("hello")
    got = chat(shop, "/history", "/session", options=("--session", session[:10]))
    assert "You said: hello" in got.out
    assert session in got.out
    assert chat(shop, options=("--session", "nobody")).code == 3


def test_a_decision_made_elsewhere_is_taken_up_when_its_session_is_opened(shop: Shop) -> None:
    session = shop.say("pay 5")
    assert shop("restart", shop.waiting()[0].id).code == 0
    got = chat(shop, options=("--session", session))
    assert "left unfinished" in got.err
    assert shop.effects() == ["paid 5"]


def test_a_fork_branches_off_and_both_can_be_decided(shop: Shop) -> None:
    session = shop.say("pay 5")
    got = chat(shop, "/fork", "/approve", options=("--session", session))
    assert "branch" in got.out
    assert shop.effects() == ["paid 5"]
    (left,) = shop.waiting()
    assert left.session_id == session


def test_a_failed_turn_has_its_exit_code_and_can_be_retried(shop: Shop) -> None:
    got = chat(shop, "break it")
    assert got.code == 7
    assert "the disk is full" in got.out
    again = chat(shop, "break it", "/retry", "/state")
    assert again.out.count("The turn failed") == 2
    assert "nothing to retry" in chat(shop, "hello", "/retry").err


def test_one_message_can_be_said_and_no_more(shop: Shop) -> None:
    got = shop.run("chat", APP, "--message", "hello", "--owner", "ann", input="not read\n")
    assert got.out == "You said: hello\n"
    assert shop("sessions", "--json").json["items"][0]["owner"] == "ann"


def test_an_agent_without_a_store_talks_and_leaves_nothing_to_go_on_with(shop: Shop) -> None:
    got = chat(shop, "pay 5", "/approve", app="shop_app:make_forgetful")
    assert got.code == 0
    assert "Done" in got.out
    assert "--session" not in got.err
    assert chat(shop, app="shop_app:make_forgetful", options=("--session", "x")).code == 3


def test_which_agent_has_to_be_known(shop: Shop) -> None:
    assert "there are: clerk" in chat(shop, options=("--agent", "nobody")).err
    assert chat(shop, "hello", options=("--agent", "clerk")).code == 0


def test_leaving_ends_the_conversation_before_the_input_does(shop: Shop) -> None:
    got = chat(shop, "hello", "/quit", "not said")
    assert "not said" not in got.out
