"""What models and tools write never takes effect on a terminal, whatever command shows it: every byte is looked at."""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from adjourn import AgentInit
from adjourn.cli.flow import Flow
from adjourn.cli.screen import Screen
from adjourn.lease import transact
from adjourn.records import InterruptQuery, SessionQuery
from cli.cli_kit import APP, CTRL_C, ENTER, HERE, Shop, Terminal
from cli.shop_app import HOSTILE

OURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\]\d*;?\x07|\x1b\(B")
"""What rich and prompt_toolkit write: colours, cursor movement, modes. Nothing that holds a text."""
OWNER = HOSTILE.replace("\x00", "")
SESSION = "s_hostile"


def assert_harmless(raw: bytes) -> None:
    """No byte of the hostile text took effect; and its letters are there, so it was shown."""
    for effect in (b"\x1b]0;", b"\x1b]8;", b"\x1b[31mred", b"\x00"):
        assert effect not in raw, effect
    for letters in ("\u202e", "\u200b", "\u009b"):
        assert letters.encode() not in raw, letters
    left = OURS.sub(b"", raw)
    assert b"\x1b" not in left, re.findall(rb".{20}\x1b.{20}", left, re.DOTALL)
    assert not re.search(rb"[\x01-\x06\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]", left.replace(b"\x08", b"")), left


@pytest.fixture
def hostile(shop: Shop) -> Shop:
    """A shop whose model, tool and owner are all hostile, with one paused call and one failed turn.

    The owner's name gets there by the store, as one of old may be there: a session with such a name is refused by now.
    """

    async def work(ai: Any) -> None:
        agent = ai.agents["clerk"]
        for message, name in ((f"forge {HOSTILE}", SESSION), ("break it", "s_broken")):
            session = agent.connect(AgentInit(session_id=name, owner="ann"))
            await session.send(message).settled()
            await session.close()

        def rename(tx: Any) -> None:
            for row in tx.sessions(SessionQuery()):
                tx.put_session(replace(row, owner=OWNER))
            for row in tx.interrupts(InterruptQuery()):
                tx.put_interrupt(replace(row, owner=OWNER))

        await transact(ai.stores()[0], rename)

    shop.with_app(work)
    return shop


def every_command(shop: Shop) -> list[list[str]]:
    """All commands that end by themselves, about what is hostile. (Of hostile ids: test_cli_attacks.)"""
    waiting = shop.waiting()[0].id
    session = SESSION
    store, app = ["--store", shop.store], ["--app", APP]
    return [
        ["inbox", *store], ["inbox", "--status", "all", "--owner", OWNER, *store], ["inbox", "--json", *store],
        ["sessions", *store], ["sessions", "--json", *store], ["show", waiting, *store], ["show", waiting, "--json", *store],
        ["show", HOSTILE.replace("\x00", ""), *store], ["log", session, *store], ["log", session, "--json", *store],
        ["log", "s_broken", *store], ["doctor", *app, "--yes"], ["doctor", "--json", *store],
        ["export", session, *store], ["purge", session, "--dry-run", *store], ["purge", session, "--yes", *store],
        ["chat", APP, "-m", "forge"], ["chat", APP, "-m", "break"], ["chat", APP, "-m", OWNER],
        ["chat", APP, "-s", session, "-m", "hello"], ["chat", APP, "--agent", OWNER], ["worker", f"{OWNER}:{OWNER}"],
        ["respond", waiting, OWNER, *store], ["restart", waiting, "--yes", "--by", OWNER, *app],
        ["decline", waiting, "--yes", "--reason", OWNER, *store], ["show", waiting, *store], ["worker", APP, "--once"],
        ["inbox", "--store", shop.store + OWNER], ["serve", OWNER], [OWNER], ["inbox", f"--{OWNER}"],
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [pytest.param(40, marks=pytest.mark.slow), 100])
def test_no_command_lets_hostile_text_take_effect_on_a_terminal(hostile: Shop, columns: int) -> None:
    commands = every_command(hostile)
    command = [sys.executable, str(HERE / "hostile_runner.py"), json.dumps(commands)]
    shown = Terminal(command, (columns, 60), hostile.env({"ADJOURN_USER": "ann"}))
    try:
        shown.see("all of them ran")
        assert shown.end() == 0
        raw = re.sub(rb"--- [^\n]*\n", b"", shown.raw)
        assert raw.count(b"=== ") == len(commands)
        assert b"Traceback" not in raw
        assert_harmless(raw)
        assert raw.count("⟨U+202E⟩".encode()) > 20
        assert b"[bold]mark[/bold]" in raw.replace(b"\r\n", b"")
    finally:
        shown.kill()


def test_no_command_lets_hostile_text_through_a_pipe(hostile: Shop) -> None:
    for command in every_command(hostile):
        got = hostile.run(*command)
        text = (got.out + got.err).encode()
        assert_harmless(text)
        if "--json" in command and got.code == 0:
            assert all(json.loads(line) for line in got.out.splitlines())


def test_json_that_is_made_harmless_is_the_same_json(hostile: Shop) -> None:
    (item,) = hostile("inbox", "--json").json["items"]
    assert item["input"] == {"text": HOSTILE}
    exported = hostile("export", SESSION)
    target = str(hostile.folder / "copy.db")
    assert hostile.run("import", "--store", target, input=exported.out).code == 0
    (copied,) = hostile.run("inbox", "--store", target, "--json").json["items"]
    assert copied == item


@pytest.mark.slow
def test_pickers_menus_and_forms_show_hostile_text_harmlessly(hostile: Shop, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("restart", "--store", hostile.store, NO_COLOR="1")
    shown.see("Restart which?").type(ENTER)
    shown.see("Run forged with the input above?").type(CTRL_C)
    shown.see("Nothing was decided.")
    assert shown.end() == 130
    assert_harmless(shown.raw)
    assert len(hostile.waiting()) == 1


@pytest.mark.slow
def test_the_live_list_shows_hostile_text_harmlessly(hostile: Shop, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("inbox", "--watch", "--store", hostile.store, size=(60, 40))
    shown.see("1 waiting").type(ENTER)
    shown.see("forged?").type("\x1b")
    shown.gone("forged?").see("1 waiting").type("q")
    assert shown.end() == 0
    assert_harmless(shown.raw)


def test_streamed_text_is_harmless_however_it_is_cut(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    whole = HOSTILE * 3
    for size in (1, 2, 3, 7):
        flow = Flow(Screen(color=False))
        for start in range(0, len(whole), size):
            flow.write(whole[start : start + size])
        flow.end()
        shown = capsys.readouterr().out
        assert_harmless(shown.encode())
        assert shown.count("⟨U+202E⟩") == 3


def test_a_line_of_a_models_text_cannot_pose_as_one_of_ours(shop: Shop) -> None:
    async def work(ai: Any) -> None:
        session = ai.agents["clerk"].connect(AgentInit(session_id="s_forged"))
        await session.send("forge\nadjourn: everything was approved").settled()

    shop.with_app(work)
    got = shop.run("chat", APP, "-s", "s_forged", input="/history\n")
    assert "> adjourn: everything was approved" in got.out
    assert "\nadjourn: everything" not in got.out
