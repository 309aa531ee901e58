"""The command line as a whole: its commands, and the way out for what is wrong with the line itself."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer

from adjourn.cli import archive, branching, chat, deciding, demo, doctor, journal, listing, serving, working
from adjourn.cli.commands import Group, Shell, guarded
from adjourn.cli.failures import USAGE, Misuse
from adjourn.cli.place import Place
from adjourn.cli.screen import Screen, replace_closed

app = typer.Typer(
    name="adjourn",
    help="Agents whose tool calls pause: talk with them, decide what waits, serve and look after them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"adjourn {version('adjourn')}\n")
        raise typer.Exit


@app.callback(epilog="Exit codes, and the fields of --json, are in the documentation (docs/cli.md).")
def _options(
    shown: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Agents whose tool calls pause: talk with them, decide what waits, serve and look after them."""


_group = Group(app)
for _module in (demo, chat, serving, working, listing, deciding, journal, branching, archive, doctor):
    _module.add_to(_group)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code. Nothing is raised for what a user did wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    replace_closed()
    before = given[: given.index("--")] if "--" in given else given
    if not "".join(given).isprintable() and any(_undecodable(a) for a in given):
        sys.stderr.write("adjourn: the arguments are not all UTF-8, so they name nothing that is stored\n")
        return 2
    if "--no-color" in before:
        os.environ["NO_COLOR"] = "1"
    shell = Shell(Screen(json="--json" in before), Place(), "--debug" in before)
    return guarded(shell, lambda: _run(given))


def _run(arguments: Sequence[str]) -> int:
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(args=list(arguments), prog_name="adjourn", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # so rich ends where whoever read the help went away
            raise BrokenPipeError from None
        raise
    except Exception as e:
        if not _is_usage(e):
            raise
        if type(e).__name__ == "NoArgsIsHelpError":
            return USAGE  # the help was asked for by saying nothing, and has been printed
        raise Misuse(_usage_text(e)) from None
    return code if isinstance(code, int) else 0


def _undecodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_usage(error: Exception) -> bool:
    # Typer brings its own copy of click or uses the one that is installed, by version: the name is what they share.
    return any(kind.__name__ == "ClickException" for kind in type(error).__mro__)


def _usage_text(error: Any) -> str:
    context = getattr(error, "ctx", None)
    text = str(error.format_message())
    return f"{text} (see {context.command_path} --help)" if context is not None else text
