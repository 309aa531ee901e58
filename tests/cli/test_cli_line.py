"""The line itself: wrong ones, the application they name, JSON errors, pipes, colours, completion, missing libraries."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from adjourn.cli.place import open_store, split_schema, sqlite_path
from adjourn.cli.program import run
from cli.cli_kit import APP, HERE, Shop


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(arguments)
    got = capsys.readouterr()
    return code, got.out, got.err


@pytest.mark.parametrize(
    "arguments,expected",
    [
        (("inbox",), "--store"),
        (("nonsense",), "nonsense"),
        (("inbox", "--nonsense"), "--nonsense"),
        (("inbox", "--limit", "0"), "--limit"),
        (("inbox", "--status", "odd", "--store", "{store}"), "resolved"),
        (("inbox", "--store", "mysql://x"), "mysql"),
        (("inbox", "--store", "sqlite://x"), "sqlite:///"),
        (("purge", "--store", "{store}"), "--older-than"),
        (("purge", "--store", "{store}", "--older-than", "soon"), "90d"),
        (("chat",), "APP"),
    ],
)
def test_a_wrong_line_is_explained_in_a_line(
    shop: Shop, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    shop.say("hello")
    code, out, err = told(capsys, *[a.format(store=shop.store) for a in arguments])
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_wrong_lines_are_json_where_json_was_asked_for(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    for line in (("inbox", "--json"), ("inbox", "--nonsense", "--json"), ("chat", "--json")):
        code, out, err = told(capsys, *line)
        error = json.loads(err)["error"]
        assert (code, out, error["code"], error["exit"]) == (2, "", "usage", 2)


@pytest.mark.parametrize(
    "app,expected",
    [
        ("shop_app", "module:attribute"),
        ("shop_app.py", "shop_app:…"),
        ("no_such_module:ai", "there is no module 'no_such_module'"),
        ("shop_app:nothing", "has no attribute 'nothing'"),
        ("shop_app:nothing", "make"),
        ("shop_app:number", "an int"),
        ("shop_app:makes_nothing", "made None"),
        ("shop_app:needs", "needs arguments"),
        ("shop_app:fails", "ValueError: no settings"),
        ("shop_app:fails", "shop_app.py, line"),
        ("shop_app:later", "async"),
        ("shop_app:Verdict", "needs arguments"),
        ("cli_broken:ai", "cli_broken.py, line 3: ZeroDivisionError"),
        ("cli_lacking:ai", "needs 'no_such_library'"),
        ("cli_agent:clerk", "the agent 'clerk'"),
        ("cli_agent:clerk", "cli_agent:ai"),
        ("cli_syntax:ai", "SyntaxError"),
    ],
)
def test_a_wrong_application_is_told_with_what_was_found_there(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, app: str, expected: str
) -> None:
    for name, text in {
        "cli_broken": "a = 1\n\nb = 1 / 0\n",
        "cli_lacking": "import no_such_library\n",
        "cli_agent": "from adjourn import Adjourn\nai = Adjourn()\nclerk = ai.define_agent('clerk', tools=[])\n",
        "cli_syntax": "def f(:\n",
    }.items():
        (shop.folder / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(shop.folder), *sys.path])
    code, out, err = told(capsys, "worker", app)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.parametrize("start", ["run_sync", "asyncio.run"])
def test_a_module_that_runs_a_program_is_told_where_to_put_it(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    name = f"cli_unguarded_{start.replace('.', '_')}"
    text = f"""import asyncio
from adjourn import Adjourn, run_sync
ai = Adjourn()
async def main(): ...
program = main()
try:
    {start}(program)
finally:
    program.close()
"""
    (shop.folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(shop.folder), *sys.path])
    code, _, err = told(capsys, "inbox", "--app", f"{name}:ai")
    assert code == 2
    assert f"importing '{name}' ran a program" in err
    assert f"{name}.py, line 7" in err
    assert 'if __name__ == "__main__":' in err


def test_debug_shows_the_traceback_of_a_users_mistake(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = told(capsys, "worker", "shop_app:fails", "--debug")
    assert "Traceback" in err
    assert 'raise ValueError("no settings")' in err


def test_an_error_that_nobody_foresaw_is_called_a_bug_and_says_how_to_see_more(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("odd")

    shop.say("hello")
    monkeypatch.setattr("adjourn.inbox.Inbox.list", broken)
    code, _, err = told(capsys, "inbox", "--store", shop.store)
    assert code == 1
    assert "RuntimeError: odd" in err
    assert "--debug" in err


def test_a_store_that_is_not_there_is_not_made_by_looking_for_it(shop: Shop) -> None:
    missing = shop.folder / "typo.db"
    got = shop.run("inbox", "--store", str(missing), "--json")
    assert (got.code, got.error["code"]) == (6, "store_not_found")
    assert not missing.exists()


def test_a_file_that_is_no_store_is_left_alone(shop: Shop) -> None:
    other = shop.folder / "notes.txt"
    other.write_text("my notes, which are long enough to be taken for something else entirely\n" * 3, encoding="utf-8")
    before = other.read_bytes()
    got = shop.run("inbox", "--store", str(other))
    assert got.code == 6
    assert other.read_bytes() == before


def test_stores_are_named_as_a_path_or_as_sqlite_urls(shop: Shop) -> None:
    shop.say("hello")
    assert str(sqlite_path("sqlite:///a/b.db")) == "a/b.db"
    assert str(sqlite_path("sqlite:////a/b.db")) == "/a/b.db"
    assert str(sqlite_path("sqlite:///a%20b.db")) == "a b.db"
    assert str(sqlite_path("~/b.db")) == str(Path("~/b.db").expanduser())
    store = open_store(f"sqlite:///{shop.store}")
    store.close()


def test_the_schema_of_a_postgresql_place_is_ours_and_the_rest_is_the_servers() -> None:
    assert split_schema("postgresql:///db?host=/tmp/s&schema=mine") == ("postgresql:///db?host=%2Ftmp%2Fs", "mine")
    assert split_schema("postgresql://u:p@h:5/db?schema=mine") == ("postgresql://u:p@h:5/db", "mine")
    assert split_schema("postgresql://h/db") == ("postgresql://h/db", "adjourn")


def test_a_reader_that_goes_away_is_no_error_to_read_about(shop: Shop) -> None:
    shop.say(" and ".join(f"pay {n}" for n in range(150)))  # more than a pipe holds
    line = f"{sys.executable} -m adjourn.cli inbox --store {shop.store} --json --limit 1000 | head -c 10"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=HERE, env=shop.env({}), timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout == '{"items":['


def test_a_closed_pipe_ends_a_command_as_a_signal_would(shop: Shop) -> None:
    shop.say("pay 1")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "adjourn.cli", "inbox", "--store", shop.store]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=HERE, env=shop.env({}), timeout=60, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def completed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    return ended.value.code, capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_each_shell_can_be_shown(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    code, out = completed(capsys, "--show-completion")
    assert code == 0
    assert "_ADJOURN_COMPLETE" in out


def test_completion_completes_commands(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COMP_WORDS": "adjourn re", "COMP_CWORD": "1", "_ADJOURN_COMPLETE": "complete_bash"}.items():
        monkeypatch.setenv(name, value)
    code, out = completed(capsys)
    assert (code, out.split()) == (0, ["respond", "restart"])


def test_completion_is_installed_where_the_shell_looks(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    monkeypatch.setenv("HOME", str(shop.folder))
    code, _ = completed(capsys, "--install-completion")
    assert code == 0
    assert "adjourn" in (shop.folder / ".bashrc").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        "rich",
        pytest.param("typer", marks=pytest.mark.slow),
        pytest.param("prompt_toolkit", marks=pytest.mark.slow),
    ],
)
def test_the_console_script_names_the_pip_command_where_the_extra_is_missing(shop: Shop, name: str) -> None:
    program = f"""
        import sys
        class Gone:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == {name!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        sys.meta_path.insert(0, Gone())
        from adjourn.cli import main
        sys.exit(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), "inbox"],
        capture_output=True, text=True, cwd=HERE, env=shop.env({}), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"needs {name}" in done.stderr
    assert "pip install 'adjourn[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_names_the_pip_command_where_the_server_is_missing(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = told(capsys, "serve", "shop_app:make")
    assert code == 2
    assert "pip install 'adjourn[server]'" in err


def test_help_and_version_need_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--version")[0] == 0
    code, out, _ = told(capsys, "--help")
    assert code == 0
    for command in (
        "demo", "chat", "serve", "worker", "inbox", "show", "respond", "restart", "decline", "log", "sessions", "export",
        "import", "purge", "doctor",
    ):  # fmt: skip
        assert command in out
        assert told(capsys, command, "--help")[0] == 0


def test_arguments_that_are_no_text_name_nothing(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, "show", "i_\udcff", "--store", shop.store)
    assert code == 2
    assert "UTF-8" in err


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys)
    assert code == 2
    assert "adjourn" in out + err
    assert "inbox" in out + err


@pytest.mark.parametrize(
    "command, variables",
    [
        ("inbox", ["ADJOURN_STORE", "ADJOURN_APP"]),
        ("decline", ["ADJOURN_USER"]),
        ("abort", ["ADJOURN_USER"]),
        ("serve", ["ADJOURN_TOKEN_FILE", "ADJOURN_PUBLIC_URL", "ADJOURN_ROOT_PATH", "ADJOURN_TRUSTED_PROXIES"]),
    ],
)
def test_the_help_names_the_variables_that_stand_for_options(shop: Shop, command: str, variables: list[str]) -> None:
    text = shop.run(command, "--help").out
    assert [v for v in variables if v not in text] == []


def test_an_empty_file_is_no_store_and_stays_empty(shop: Shop) -> None:
    place = shop.folder / "empty.db"
    place.touch()
    got = shop.run("inbox", "--store", str(place))
    assert got.code == 6
    assert "is empty" in got.err
    assert place.stat().st_size == 0


@pytest.mark.parametrize("name", ["shop_app.py:make", "./shop_app.py:make"])
def test_the_name_of_a_file_is_told_what_to_write_instead(shop: Shop, name: str) -> None:
    got = shop.run("chat", name)
    assert got.code == 2
    assert "a module, not a file: shop_app:…" in got.err


def test_standard_input_that_is_no_text_is_a_mistake_that_is_told(shop: Shop) -> None:
    shop.say("pay 5")
    for more in ((), ("--text",)):
        done = subprocess.run(
            [sys.executable, "-m", "adjourn.cli", "respond", shop.waiting()[0].id, "-", *more, "--store", shop.store],
            input=b"\xff\xfe", capture_output=True, cwd=HERE, env=shop.env({}), check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert b"standard input cannot be read: it is not UTF-8 (at byte 0)" in done.stderr
    assert len(shop.waiting()) == 1


@pytest.mark.parametrize(
    "ending, code, said",
    [(">&-", 0, ""), ("> /dev/full", 1, "the output could not be written: No space left on device")],
)
def test_a_closed_or_a_full_output_is_no_bug(shop: Shop, ending: str, code: int, said: str) -> None:
    shop.say("pay 5")
    line = f"exec {sys.executable} -m adjourn.cli inbox --store {shop.store} {ending}"
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, cwd=HERE, env=shop.env({}), check=False
    )
    assert done.returncode == code
    assert said in done.stderr
    assert "mistake of yours" not in done.stderr


def test_a_reader_of_the_help_may_go_away(shop: Shop) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "adjourn.cli", "--help"],
        stdout=write, stderr=subprocess.PIPE, cwd=HERE, env=shop.env({}), check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_what_does_not_fit_is_told_once(shop: Shop) -> None:
    shop.say("pay 5")
    got = shop.run("restart", shop.waiting()[0].id, "--input", '{"amount": "x"}', "--app", APP)
    assert got.code == 5
    assert got.err.count("valid integer") == 1


class Typing:
    """Standard input at which somebody presses Ctrl-C instead of typing."""

    def read(self) -> bytes:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on reading")

    readline = read


@pytest.mark.parametrize("command", ["respond", "import"])
def test_ctrl_c_stops_a_command_that_reads_what_is_typed(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    shop.say("pay 1")
    more = (shop.waiting()[0].id, "-") if command == "respond" else ()
    monkeypatch.setattr("adjourn.cli.typed.sys", SimpleNamespace(stdin=SimpleNamespace(buffer=Typing())))
    assert run([command, *more, "--store", shop.store]) == 130
    assert "Stopped while standard input was read" in capsys.readouterr().err
    assert len(shop.waiting()) == 1
