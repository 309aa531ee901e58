"""What was typed: itself, from a file (`@file`), or from standard input (`-`); as a text or as JSON."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adjourn.cli.commands import misused
from adjourn.cli.signals import stoppable
from adjourn.forms import read_json

_STOPPED = "Stopped while standard input was read; nothing more was done."


def given_text(typed: str) -> str:
    """A text, from the command line, `@file` or `-`. Raises Misuse."""
    if typed == "-":
        return _from_standard_input()
    if typed.startswith("@"):
        try:
            return Path(typed[1:]).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise misused(f"{typed[1:]} cannot be read: {_why(e)}") from None
    return typed


def given_json(typed: str, what: str, hint: str = "") -> Any:
    """JSON, from the command line, `@file` or `-`. Raises Misuse."""
    text = given_text(typed)
    try:
        return read_json(text)
    except ValueError as e:
        raise misused(f"{what} {e}{hint}") from None


def lines_of_standard_input() -> Iterator[bytes]:
    """As they come. Ctrl-C is heard while the next one is waited for."""
    while True:
        with stoppable(_STOPPED):
            line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line


def _from_standard_input() -> str:
    try:
        with stoppable(_STOPPED):
            return sys.stdin.buffer.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise misused(f"standard input cannot be read: {_why(e)}") from None


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (at byte {error.start})"
    return getattr(error, "strerror", None) or str(error)
