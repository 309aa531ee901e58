"""What the command line does with ids, times, edits and files that were made to harm, or to be mistaken."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.text import Text

from adjourn.cli.facts import when
from adjourn.cli.screen import Screen, json_line
from adjourn.cli.words import ago, at, clock, left, short, span
from adjourn.lease import transact
from cli.cli_kit import APP, HERE, Shop, Terminal
from cli.test_cli_hostile import assert_harmless

# Without NUL, which no argument can hold; with line breaks, behind which a line could pose as another one.
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b1m\u202eevil\u2066\u200b\r\nFORGED\x08\x85\u2028[bold]mark[/bold]"
FAR = [1e12, 1e18, 1e300, -1e18]


@pytest.fixture
def imported(shop: Shop) -> Shop:
    """A shop in whose store there is a session with hostile ids, as an import of old might have left, and an orphan."""
    shop.say("pay 5")
    (pause,) = shop.waiting()

    def put(tx: Any) -> None:
        tx.put_session(
            replace(tx.session(pause.session_id), id=f"s_{HOSTILE}", agent=HOSTILE, owner=HOSTILE, head=None)
        )
        hostile = {"session_id": f"s_{HOSTILE}", "agent": HOSTILE, "tool": HOSTILE, "owner": HOSTILE}
        tx.put_interrupt(replace(pause, id=f"i_{HOSTILE}", **hostile))

    shop.with_app(lambda ai: transact(ai.stores()[0], put))
    return shop


def commands(shop: Shop) -> list[list[str]]:
    store = ["--store", shop.store]
    return [
        ["inbox", *store], ["show", f"i_{HOSTILE}", *store], ["show", "i_", *store], ["sessions", *store], ["log", "s_", *store],
        ["sessions", "--limit", "1", "--agent", HOSTILE, *store], ["purge", "--older-than", "0s", "--dry-run", *store],
        ["purge", f"s_{HOSTILE}", *store], ["doctor", *store], ["doctor", "--app", APP], ["inbox", "--json", *store],
        ["doctor", "--json", *store], ["show", f"i_{HOSTILE}", "--json", *store], ["sessions", "--json", *store],
        ["respond", f"i_{HOSTILE}", "5", *store], ["decline", f"i_{HOSTILE}", "--yes", *store],
        ["restart", f"i_{HOSTILE}", "--yes", *store], ["chat", APP, "-s", f"s_{HOSTILE}", "-m", "hello"],
    ]  # fmt: skip


def test_hostile_ids_do_not_take_effect_in_a_pipe(imported: Shop) -> None:
    for command in commands(imported):
        got = imported.run(*command)
        assert_harmless((got.out + got.err).encode())
        assert not [x for x in "\u2066\u2028\x85" if x in got.out + got.err], command
        assert not any(line.startswith("FORGED") for line in (got.out + got.err).splitlines()), command


@pytest.mark.slow
def test_hostile_ids_do_not_take_effect_on_a_terminal(imported: Shop) -> None:
    # (without --yes it would ask)
    lines = [["doctor", "--yes", *c[1:]] if c[0] == "doctor" and "--json" not in c else c for c in commands(imported)]
    command = [sys.executable, str(HERE / "hostile_runner.py"), json.dumps(lines)]
    shown = Terminal(command, (100, 60), imported.env({"ADJOURN_USER": "ann"}))
    try:
        shown.see("all of them ran")
        assert shown.end() == 0
        assert b"Traceback" not in shown.raw
        assert_harmless(shown.raw)
        assert "\u2066".encode() not in shown.raw
        assert b"\r\nFORGED" not in shown.raw
    finally:
        shown.kill()


def test_a_short_id_is_safe_to_show_and_an_ordinary_one_is_short() -> None:
    assert short("i_" + "0123456789abcdef" * 2) == "i_01234567"
    for hostile in (f"i_{HOSTILE}", "i_" + "\x1b[31m" * 6 + "ab", "\x1b\n_" + "0" * 32):
        assert not [c for c in short(hostile) if ord(c) < 32 or c in "\u202e\u2066\u200b\x9b\x85\u2028"]


def test_a_screen_lets_nothing_through_that_a_caller_forgot_to_make_safe(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(color=False)
    screen.say(Text(HOSTILE), Text(HOSTILE, "red"))
    screen.note(Text(HOSTILE))
    screen.table(["A"], [[Text(HOSTILE)]])
    screen.pairs([("a", Text(HOSTILE))])
    got = capsys.readouterr()
    assert_harmless((got.out + got.err).encode())


@pytest.mark.parametrize("text", ["x\n/quit", "adjourn: done\nadjourn: it was approved"])
def test_a_failed_turn_cannot_write_a_line_that_poses_as_ours(
    shop: Shop, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from adjourn.cli.commands import Shell, explain
    from adjourn.cli.place import Place

    explain(Shell(Screen(color=False), Place()), RuntimeError(text))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].startswith("  ")


# -- decisions on the other call -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "/decline 8f3a9c21", "/decline 8f3a9c21 too dear", "/approve 12345678", "/approve i_8f3a9c21", "/show 8f3a9c21",
        "/respond 8f3a9c21", "/respond 12345678", "/edit 8f3a9c21", "/approve 12ab",
    ],
)  # fmt: skip
def test_an_id_that_does_not_wait_is_refused_and_nothing_else_is_decided_instead(shop: Shop, line: str) -> None:
    got = shop.run("chat", APP, input=f"pay 5\n{line}\n")
    assert got.code == 3
    assert "waits here; nothing was decided" in got.err
    assert len(shop.waiting()) == 1
    assert shop.effects() == []


@pytest.mark.parametrize(
    "line,said", [("/decline faded away", "faded away"), ("/respond 2000", "2000"), ("/decline bad", "bad")]
)
def test_words_and_numbers_that_are_no_ids_are_reasons_and_responses(shop: Shop, line: str, said: str) -> None:
    got = shop.run("chat", APP, input=f"pay 5\n{line}\n")
    assert got.code == 0
    assert said in got.out.rsplit("Done", 1)[-1]
    assert shop.waiting() == []


def test_an_id_that_several_calls_begin_with_is_refused(shop: Shop) -> None:
    got = shop.run("chat", APP, input="pay 5 and pay 6\n/decline i_\n")
    assert got.code == 3
    assert "which one?" in got.err
    assert len(shop.waiting()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("before,after", [("1", "true"), ("1", "1.0")])
def test_an_edit_from_one_to_true_is_an_edit(
    shop: Shop, terminal: Callable[..., Terminal], before: str, after: str
) -> None:
    shop.say(f"pay {before}")
    editor = shop.folder / "editor.sh"
    editor.write_text(f'#!/bin/sh\nsed -i "s/{before}/{after}/" "$1"\n', encoding="utf-8")
    editor.chmod(0o755)
    t = terminal("restart", shop.waiting()[0].id, "--edit", "--store", shop.store, EDITOR=str(editor))
    t.see("Run pay with the edited input?")


# -- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [*FAR, float("inf"), float("nan")], ids=str)
def test_any_number_is_shown_as_some_time(time: float) -> None:
    assert str(when(time)).endswith("Z")
    assert at(time)[4] == "-"
    assert clock(time)[2] == ":"
    assert all(isinstance(words, str) for words in (span(time), ago(time, 0.0), left(time, 0.0), ago(0.0, time)))


# -- starting and serving --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arguments,said", [((), "Stopped."), (("--json",), '"code":"interrupted"')])
@pytest.mark.parametrize("module", ["adjourn.cli.program", "adjourn.cli"])
def test_stopping_it_while_it_starts_shows_no_traceback(
    tmp_path: Path, module: str, arguments: tuple[str, ...], said: str
) -> None:
    # As if Ctrl-C were pressed at the moment when this module is imported.
    script = f"""
import runpy, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and sys.modules.get("__main__") is not before:
            raise KeyboardInterrupt
before = None if {module!r} != "adjourn.cli" else sys.modules["__main__"]
sys.meta_path.insert(0, Press())
import adjourn
spec = __import__("importlib.util").util.find_spec
path = adjourn.__path__[0] + "/cli/__main__.py"
sys.argv = ["adjourn", "inbox", *{list(arguments)!r}]
runpy.run_path(path, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert said in done.stderr or module == "adjourn.cli"


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_serving_at_a_socket_removes_no_other_file(shop: Shop, workers: tuple[str, ...]) -> None:
    precious = shop.folder / "precious.txt"
    precious.write_text("mine", encoding="utf-8")
    link = shop.folder / "link"
    link.symlink_to(precious)
    for path in (precious, link, shop.folder):
        got = shop.run("serve", APP, "--uds", str(path), *workers)
        assert got.code == 2
        assert "something that is no socket; it was left as it is" in got.err
    assert precious.read_text(encoding="utf-8") == "mine"
    assert link.is_symlink()


def test_a_socket_that_an_earlier_server_left_is_bound_anew(tmp_path: Path) -> None:
    from adjourn.cli.serving import Listening, bind

    path = tmp_path / "s"
    left_over = socket.socket(socket.AF_UNIX)
    left_over.bind(os.fspath(path))
    left_over.close()
    bind(Listening(uds=path)).close()
    assert path.is_socket()


def test_json_lines_escape_by_themselves() -> None:
    value: Any = {HOSTILE: [HOSTILE]}
    assert json.loads(json_line(value)) == value
    assert_harmless(json_line(value).encode())
