"""Where a command writes: prose and tables for a person, JSON for a program, never both on one stream.

What a model or a tool wrote gets here as plain text, and goes out through `adjourn.display` and rich's `Text`: no escape
sequence in it takes effect, and no square bracket is read as markup.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, Literal, TextIO

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from adjourn.display import one_line, visible


class Screen:
    """One command's standard streams. `json` keeps prose off standard output; `interactive` says whether to ask."""

    def __init__(self, *, json: bool = False, color: bool = True) -> None:
        self.json = json
        self.is_terminal = _is_terminal(sys.stdout)
        self.interactive = self.is_terminal and _is_terminal(sys.stdin) and not json
        self.color = color and "NO_COLOR" not in os.environ
        self.console = _console(sys.stdout, self.color)
        self.errors = _console(sys.stderr, self.color)

    @property
    def width(self) -> int:
        return self.console.width

    @property
    def narrow(self) -> bool:
        """Whether a table has to become a list."""
        return self.is_terminal and self.width < 60

    # -- for a person

    def say(self, *pieces: "str | Text", style: str = "", end: str = "\n") -> None:
        """Prose on standard output; nothing where JSON was asked for. Texts are shown as they are, nothing takes effect."""
        if not self.json:
            _put(self.console, _joined(pieces, style), end)

    def note(self, *pieces: "str | Text", style: str = "dim") -> None:
        """Prose beside the output, on standard error."""
        if not self.json:
            _put(self.errors, _joined(pieces, style))

    def quote(self, text: str, *, limit: int = 20_000, style: str = "", mark: str = "│ ") -> None:
        """What somebody else wrote: each line behind a mark, so that none can pose as ours."""
        if self.json:
            return
        room = max(self.width - cell_len(mark), 10)
        for line in visible(text, limit=limit).split("\n"):
            whole = Text(line, style)
            for piece in whole.wrap(self.console, room) if line and self.is_terminal else [whole]:
                _put(self.console, Text(mark, "dim") + piece)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence["str | Text"]]) -> None:
        """A table, whose last column takes the room that is left; in a pipe whole lines, with tabs between the cells."""
        if self.json:
            return
        kept = [[_harmless(Text(c) if isinstance(c, str) else c) for c in row] for row in rows]
        if not self.is_terminal:
            for row in kept:
                _put(self.console, Text("\t".join([_flat(c.plain) for c in row])))
            return
        table = Table(box=None, show_header=True, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        for name in columns[:-1]:
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        table.add_column(columns[-1], ratio=1, no_wrap=True, overflow="ellipsis")
        for row in kept:
            table.add_row(*row)
        self.console.print(table)

    def pairs(self, facts: Sequence[tuple[str, "str | Text"]]) -> None:
        """Names and values, one a line, the values in one column."""
        if self.json:
            return
        if not self.is_terminal:
            for name, value in facts:
                _put(self.console, Text(f"{name}\t") + value)
            return
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts:
            table.add_row(name, _harmless(Text(value) if isinstance(value, str) else value))
        self.console.print(table)

    # -- for a program

    def give(self, value: Any) -> None:
        """One JSON value on one line of standard output; nothing where JSON was not asked for."""
        if self.json:
            sys.stdout.write(json_line(value) + "\n")
            sys.stdout.flush()


def json_line(value: Any) -> str:
    """JSON on one line. What `visible` would not show as it is, is escaped: the same JSON, harmless on a terminal."""
    return harmless(msgspec.json.encode(value).decode())


def harmless(text: str) -> str:
    """JSON text, with whatever could take effect on a terminal escaped."""
    if (text.isascii() and text.isprintable()) or visible(text) == text:
        return text
    return "".join([c if visible(c) == c else _escaped(c) for c in text])


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def quiet_pipes() -> None:
    """Whoever read our output has gone: nothing more is written, and Python's last flush does not complain."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):
        pass  # a stream that is no file has no pipe behind it


def replace_closed() -> None:
    """Streams that were closed by whoever started this (`>&-`) lead nowhere, instead of being None."""
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout = sys.stdout or _nowhere("w")
    sys.stderr = sys.stderr or _nowhere("w")


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode, encoding="utf-8")


def _console(stream: IO[str], color: bool) -> Console:
    terminal = _is_terminal(stream)
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        no_color=not color or None,
        force_terminal=terminal,
    )


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def _joined(pieces: Sequence["str | Text"], style: str) -> Text:
    out = Text(style=style)
    for piece in pieces:
        out.append_text(piece if isinstance(piece, Text) else Text(visible(piece)))
    return out


def _put(console: Console, text: Text, end: str = "\n") -> None:
    text = _harmless(text)
    if console.is_terminal:
        console.print(text, end=end)
    else:  # rich would turn tabs into blanks
        console.file.write(text.plain + end)


def _harmless(text: Text) -> Text:
    """The text as it is, or without its styles where it holds what `visible` would not show: whoever made it forgot."""
    plain = visible(text.plain)
    return text if plain == text.plain else Text(plain, text.style)


def _flat(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")


def indented(text: str) -> str:
    """Lines of somebody else's behind ours: those after the first are set in, so that none can pose as one of ours."""
    return visible(text).replace("\n", "\n  ")


def safe(text: Any, limit: int = 200) -> str:
    """What somebody else wrote, on one line."""
    return one_line(text if isinstance(text, str) else str(text), limit)
