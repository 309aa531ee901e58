"""At a real pseudo-terminal: picking, forms, the live list, the chat, Ctrl-C, colours and widths."""

import re
import signal
from collections.abc import Callable

import pytest

from cli.cli_kit import APP, CTRL_C, CTRL_D, DOWN, ENTER, ESC, UP, Shop, Terminal

Open = Callable[..., Terminal]


def test_a_paused_call_is_picked_with_the_arrows_shown_and_decided(shop: Shop, terminal: Open) -> None:
    shop.say("pay 1")
    shop.say("pay 2")
    t = terminal("restart", "--app", APP)
    t.see("Restart which?").type(DOWN + UP + DOWN + ENTER)
    t.see("amount  2")
    t.see("Run pay with the input above?").type(ENTER)
    t.see("Done: {'paid': 2")
    assert t.end() == 0
    assert shop.effects() == ["paid 2"]


@pytest.mark.slow
def test_a_response_is_asked_for_by_a_form_of_its_schema_and_checked(shop: Shop, terminal: Open) -> None:
    shop.say("ask")
    t = terminal("respond", "--store", shop.store)
    t.see("Respond to which?").type(ENTER)
    t.see("Ok?").type("y")
    t.see("Note:").type("all is well" + ENTER)
    t.see("Respond with this").type(ENTER)
    t.see("Responded to ask")
    assert t.end() == 0
    shown = shop("inbox", "--status", "resolved", "--json").json["items"][0]["id"]
    assert shop("show", shown, "--json").json["decisions"][0]["output"] == {"ok": True, "note": "all is well"}


@pytest.mark.slow
@pytest.mark.parametrize("keys", [CTRL_C, ESC, CTRL_D])
def test_leaving_a_question_decides_nothing(shop: Shop, terminal: Open, keys: str) -> None:
    shop.say("pay 1")
    t = terminal("decline", "--store", shop.store)
    t.see("Decline which?").type(keys)
    assert t.end() == 130
    assert "Nothing was decided." in t.screen
    assert "Traceback" not in t.screen
    assert len(shop.waiting()) == 1


def test_a_chat_streams_pauses_and_goes_on(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP)
    t.asked().type("pay 5" + ENTER)
    t.see("Let me pay.").see("it runs with this input").type("a")
    t.see("Done: {'paid': 5").asked().type("pay 6" + ENTER)
    t.see("pay(amount=6)").see("(d) Decline").type("d")
    t.see("Why?").type("no" + ENTER)
    t.see("'reason': 'no'").asked().type(CTRL_D)  # what is typed before it asks is not taken
    assert t.end() == 0
    assert shop.effects() == ["paid 5"]
    assert "To go on: adjourn chat" in t.screen


@pytest.mark.slow
def test_a_message_of_several_lines_is_typed_with_alt_enter_or_pasted(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP)
    t.asked().type("one" + ESC + ENTER + "two" + ENTER)
    t.see("You said: one\ntwo")
    t.type("\x1b[200~three\nfour\x1b[201~")
    t.see("four").type(ENTER)
    t.see("You said: three\nfour").asked().type("/quit" + ENTER)
    assert t.end() == 0


@pytest.mark.slow
def test_an_input_is_edited_in_place_or_in_the_users_editor(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP)
    t.asked().type("pay 5" + ENTER)
    t.see("(e) Edit").type("e")
    t.see("The input:").type("\x1b[A" + "\x05" + "\x08" + "8" + ENTER)
    t.see("Done: {'paid': 8").asked().type(CTRL_D)
    assert t.end() == 0
    editor = shop.folder / "editor.sh"
    editor.write_text('#!/bin/sh\nsed -i "s/5/9/" "$1"\n', encoding="utf-8")
    editor.chmod(0o755)
    t = terminal("chat", APP, EDITOR=str(editor))
    t.asked().type("pay 5" + ENTER)
    t.see("(e) Edit").type("e")
    t.see("Done: {'paid': 9").asked().type(CTRL_D)
    assert t.end() == 0
    assert shop.effects() == ["paid 8", "paid 9"]


@pytest.mark.slow
def test_ctrl_c_stops_the_turn_that_runs_and_the_chat_goes_on(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP)
    t.asked().type("hold" + ENTER)
    t.see("hold()").type(CTRL_C)
    t.see("The turn was stopped.").asked().type("hello" + ENTER)
    t.see("You said: hello").asked().type(CTRL_C)
    t.see("once more").type(CTRL_C)
    assert t.end() == 0
    assert "Traceback" not in t.screen


def test_interrupts_that_come_as_signals_leave_the_chat_as_the_keys_do(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP)
    t.asked().type("half a line").see("half a line")
    t.process.send_signal(signal.SIGINT)
    t.gone("half a line")
    t.process.send_signal(signal.SIGINT)
    t.see("once more")
    t.asked()
    t.process.send_signal(signal.SIGINT)
    assert t.end() == 0
    assert "Traceback" not in t.screen


@pytest.mark.slow
def test_a_decision_put_off_is_brought_back(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP)
    t.asked().type("pay 5" + ENTER)
    t.see("(l) Later").type("l")
    t.see("It waits.").type("/pauses" + ENTER)
    t.see("(l) Later").type(CTRL_C)
    t.see("It waits.").type("/approve" + ENTER)
    t.see("Done: {'paid': 5").asked().type(CTRL_D)
    assert t.end() == 0


def test_the_live_list_shows_what_comes_and_decides_it(shop: Shop, terminal: Open) -> None:
    shop.say("pay 1")
    t = terminal("inbox", "--watch", "--store", shop.store)
    t.see("1 waiting").see("pay(amount=1)")
    shop.say("pay 2")  # in another process, as far as the list can tell
    t.see("2 waiting").type("j" + ENTER)
    t.see("amount  2").see("(a) Approve").see("Esc leaves").type(
        "a"
    )  # what is typed before the menu is there is no answer
    t.see("Restarted pay").see("Back to the list").type(ENTER)
    t.see("1 waiting").gone("pay(amount=2)")
    shop.decline(shop.waiting()[0].id)
    t.see("Nothing waits").type("q")
    assert t.end() == 0


@pytest.mark.slow
def test_watching_through_a_pipe_prints_a_line_for_each_change(shop: Shop) -> None:
    import json
    import signal

    from cli.cli_kit import SECONDS, read_until

    shop.say("pay 1")
    process = shop.start("inbox", "--watch", "--json", "--store", shop.store)
    try:
        assert json.loads(read_until(process, "waiting"))["interrupt"]["input"] == {"amount": 1}
        shop.say("pay 2")
        assert json.loads(read_until(process, "opened"))["interrupt"]["input"] == {"amount": 2}
        shop.decline(shop.waiting()[0].id)
        settled = json.loads(read_until(process, "settled"))
        assert (settled["interrupt"]["input"], settled["decision"]["verb"]) == ({"amount": 1}, "decline")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
def test_a_log_is_followed_until_ctrl_c(shop: Shop, terminal: Open) -> None:
    session = shop.say("hello")
    t = terminal("log", session, "--follow", "--store", shop.store)
    t.see("2 entries" if "2 entries" in t.screen else "entries")
    shop.say("and more", session_id=session)
    t.see("You said: and more").type(CTRL_C)
    assert t.end() == 130
    assert "Traceback" not in t.screen


@pytest.mark.slow
def test_no_color_takes_the_colours_away_and_a_terminal_has_them(shop: Shop, terminal: Open) -> None:
    shop.say("pay 1")
    with_colors = terminal("show", shop.waiting()[0].id, "--store", shop.store)
    assert with_colors.end() == 0
    assert b"\x1b[33m" in with_colors.raw
    for arguments, env in ((("--no-color",), {}), ((), {"NO_COLOR": "1"})):
        plain = terminal("show", shop.waiting()[0].id, "--store", shop.store, *arguments, **env)
        assert plain.end() == 0
        assert b"\x1b[3" not in plain.raw


@pytest.mark.slow
def test_lines_fit_a_narrow_terminal(shop: Shop, terminal: Open) -> None:
    shop.say("pay 123456789", owner="a rather long name of an owner")
    for command in (["inbox"], ["sessions"], ["show", shop.waiting()[0].id], ["doctor"]):
        t = terminal(*command, "--store", shop.store, size=(40, 60), NO_COLOR="1")
        assert t.end() in (0, 8)
        lines = re.sub(r"\x1b\[[0-9;]*m", "", t.raw.decode()).replace("\r", "").splitlines()
        assert max(len(line) for line in lines) <= 40, (command, lines)


@pytest.mark.slow
def test_what_is_settled_is_told_before_anybody_types_an_answer(shop: Shop, terminal: Open) -> None:
    shop.say("ask")
    waiting = shop.waiting()[0].id
    shop.decline(waiting)
    t = terminal("respond", waiting, "--store", shop.store)
    assert t.end() == 4
    assert "already answered" in t.screen.replace("\n", " ")
    assert "decline, by somebody" in t.screen


@pytest.mark.slow
def test_sigterm_leaves_the_terminal_as_it_was(shop: Shop, terminal: Open) -> None:
    shop.say("pay 1")
    for line, seen in (
        (("chat", APP), "/help lists"),
        (("inbox", "--watch", "--store", shop.store), "Enter opens"),
        (("restart", "--store", shop.store), "Restart which?"),
    ):
        t = terminal(*line)
        before = t.modes()
        t.see(seen).until(lambda t=t, before=before: t.modes() != before)
        t.process.send_signal(signal.SIGTERM)
        assert t.end() == -signal.SIGTERM
        assert t.modes() == before, line
        assert b"Traceback" not in t.raw


def test_sigterm_in_the_middle_of_a_turn_shows_the_cursor_again(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP, "--message", "hold")
    t.see("hold()")
    t.process.send_signal(signal.SIGTERM)
    assert t.end() == -signal.SIGTERM
    assert t.raw.rfind(b"\x1b[?25h") > t.raw.rfind(b"\x1b[?25l")


def test_why_an_answer_does_not_fit_is_whole_on_a_narrow_terminal(shop: Shop, terminal: Open) -> None:
    shop.say("pay 1")
    t = terminal("chat", APP, "--session", shop.waiting()[0].session_id, size=(44, 40))
    t.see("Later").type("m")
    t.see("Metadata, as JSON:").type('{"broken' + ENTER)
    t.see("is not JSON")
    assert "starting at (line 1, column 2)" in " ".join(t.screen.split())


def test_a_failed_turn_says_how_to_go_on(shop: Shop, terminal: Open) -> None:
    t = terminal("chat", APP)
    t.see("/help lists").type("break" + ENTER)
    t.see("/retry tries again")


def test_what_was_typed_before_a_question_was_asked_decides_nothing(shop: Shop, terminal: Open) -> None:
    shop.say("pay 1")
    t = terminal("restart", shop.waiting()[0].id, "--app", APP)
    t.type("y" + ENTER)
    t.see("Run pay with the input above?").see("arrows and Enter").type(ESC)
    assert t.end() == 130
    assert shop.effects() == []
