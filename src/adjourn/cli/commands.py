"""How a coroutine becomes a command: the options that all commands share, and one way out for every error.

A parameter annotated with a dataclass is spread into one option a field, so a command with many options takes few values.
"""

import asyncio
import dataclasses
import errno
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from adjourn.cli.failures import BROKEN_PIPE, BUG, Left, Misuse, code_of, facts_of, is_ours
from adjourn.cli.place import Place
from adjourn.cli.screen import Screen, indented, json_line, quiet_pipes, safe
from adjourn.cli.signals import Ending
from adjourn.errors import AlreadyResolved

T = TypeVar("T")
Body = Callable[..., Coroutine[Any, Any, int | None]]

Json = Annotated[bool, typer.Option("--json", help="Print JSON with documented fields, and nothing else.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours (as with NO_COLOR set).")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PLACE",
        help="Where the sessions are: a file, sqlite:///file, or postgresql://…; else ADJOURN_STORE.",
        show_default=False,
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        help="module:attribute of the application, whose stores are used and which goes on here; else ADJOURN_APP.",
        show_default=False,
    ),
]


@dataclasses.dataclass
class Shell:
    """What a command is given: where to write, and which store or application it is about."""

    screen: Screen
    place: Place
    debug: bool = False

    @property
    def json(self) -> bool:
        return self.screen.json


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PLACES: Mapping[str, Mapping[str, Any]] = {"store": {"store": StoreOption, "app": AppOption}, "app": {}, "none": {}}


class Group:
    """The commands of `adjourn`, under one typer application."""

    def __init__(self, app: typer.Typer) -> None:
        self.app = app

    def command(
        self, name: str, *, about: str = "store", panel: str | None = None, drains: bool = False
    ) -> Callable[[Body], Body]:
        """Makes the coroutine below it a command; its first parameter is the Shell.

        `about` is "store" for commands that take --store and --app. `drains` is for those that hear SIGTERM themselves.
        """

        def make(body: Body) -> Body:
            self.app.command(name, rich_help_panel=panel)(_as_function(body, name, _PLACES[about], drains))
            return body

        return make


def _as_function(body: Body, name: str, place: Mapping[str, Any], drains: bool) -> Callable[..., None]:
    hints = get_type_hints(body, include_extras=True)
    given = list(inspect.signature(body).parameters.values())[1:]
    spread = {p.name: hints[p.name] for p in given if dataclasses.is_dataclass(hints[p.name])}
    shared = {**place, "json": Json, "no_color": NoColor, "debug": Debug}
    parameters: list[inspect.Parameter] = []
    for parameter in given:
        if parameter.name in spread:
            parameters += _fields(spread[parameter.name])
        else:
            parameters.append(_parameter(parameter.name, hints[parameter.name], parameter.default))
    for shared_name, annotation in shared.items():
        parameters.append(_parameter(shared_name, annotation, None if shared_name in place else False))

    def run(**values: Any) -> None:
        common = {key: values.pop(key) for key in shared}
        if common["no_color"]:
            os.environ["NO_COLOR"] = "1"
        shell = Shell(
            Screen(json=common["json"]), Place.of(common.get("store"), common.get("app")), bool(common["debug"])
        )
        for key, kind in spread.items():
            values[key] = kind(**{f.name: values.pop(f.name) for f in dataclasses.fields(kind)})
        ending = Ending()
        heard = nullcontext if drains or not shell.screen.is_terminal else ending.heard
        code = guarded(shell, lambda: asyncio.run(_whole(shell, body(shell, **values), heard)))
        ending.die()
        raise typer.Exit(code)

    run.__name__ = name
    run.__doc__ = body.__doc__
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [_parameter(f.name, hints[f.name], f.default) for f in dataclasses.fields(kind)]


async def _whole(
    shell: Shell, work: Coroutine[Any, Any, int | None], heard: Callable[[], AbstractContextManager[None]]
) -> int | None:
    with heard():
        try:
            return await work
        finally:
            await shell.place.close()


def guarded(shell: Shell, work: Callable[[], int | None]) -> int:
    """Runs it; whatever goes wrong is explained on standard error. Returns the exit code."""
    try:
        code = work() or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        quiet_pipes()
        return BROKEN_PIPE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _stopped(shell, KeyboardInterrupt())
    except Left as e:
        return _stopped(shell, e)
    except OSError as e:
        if e.errno not in _FULL:
            return _explained(shell, e)
        full = Misuse(f"the output could not be written: {e.strerror}", kind="output", code=BUG)
        return _explained(shell, full)
    except Exception as e:  # noqa: BLE001 - the outermost handler: it is told to the user
        return _explained(shell, e)


def _explained(shell: Shell, error: BaseException) -> int:
    explain(shell, error)
    return code_of(error)


def _stopped(shell: Shell, why: BaseException) -> int:
    if shell.json:
        _error_line({"error": {"code": "interrupted", "message": "interrupted", "exit": 130, "details": None}})
    else:
        shell.screen.note(str(why) or "Stopped.")
    return code_of(why)


def explain(shell: Shell, error: BaseException) -> None:
    """Says what went wrong, on standard error: a line of text, or an object where JSON was asked for."""
    if shell.debug:
        traceback.print_exception(error)
    if shell.json:
        _error_line(facts_of(error))
        return
    try:
        screen = shell.screen
        text = str(error) or type(error).__name__
        if not is_ours(error):
            text = f"{type(error).__name__}: {text}"
        screen.note("adjourn: ", indented(text), style="red")
        if isinstance(error, AlreadyResolved) and error.decision is not None:
            screen.note(
                f"The accepted decision is {error.decision.verb}, by {safe(error.decision.by or 'somebody unnamed', 80)}."
            )
        for problem in getattr(error, "problems", ()):
            if str(problem["message"]) in text:
                continue  # the error has said it already
            screen.note(f"  {safe(problem['path'])}: {safe(problem['message'], 400)}")
        if code_of(error) == BUG and not is_ours(error) and not shell.debug:
            screen.note("This is not a mistake of yours. The same with --debug shows where it happened.")
    except BrokenPipeError:
        quiet_pipes()


def _error_line(facts: Any) -> None:
    try:
        sys.stderr.write(json_line(facts) + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        quiet_pipes()


def misused(message: str, **details: Any) -> Misuse:
    return Misuse(message, details=details or None)
