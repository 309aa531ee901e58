"""Streamed text at a terminal: wrapped at words as it comes, with nothing in it that takes effect."""

import re

from rich.cells import cell_len
from rich.text import Text

from adjourn.cli.screen import Screen
from adjourn.display import visible

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
_HOLD = 48
"""Characters of a word that are waited for; a longer one, or a language without blanks, is shown as it comes."""


class Flow:
    """Writes pieces of one text. What may still grow (a word, half a line break) is held until more comes."""

    def __init__(self, screen: Screen, style: str = "") -> None:
        self._screen = screen
        self._style = style
        self._held = ""
        self._blank = ""
        self._column = 0
        self.began = False

    def write(self, text: str) -> None:
        held = self._held + text
        cut = max(held.rfind(" "), held.rfind("\n")) + 1
        if len(held) - cut > _HOLD and not held.endswith("\r"):
            cut = len(held)
        ready, self._held = held[:cut], held[cut:]
        if ready:
            self._put(ready)

    def end(self) -> None:
        """No more comes: the rest is shown, and the line ended."""
        rest, self._held = self._held, ""
        if rest:
            self._put(rest)
        if self._column:
            self._out("\n")
        self._column, self._blank, self.began = 0, "", False

    def _put(self, text: str) -> None:
        shown = visible(text)
        if not self._screen.is_terminal:
            self._out(shown)
            self._column = 0 if shown.endswith("\n") else 1
            self.began = True
            return
        width = max(self._screen.width, 10)
        for piece in _PIECES.findall(shown):
            if piece == "\n":
                self._out("\n")
                self._column, self._blank = 0, ""
            elif piece.isspace():
                self._blank += piece.replace("\t", "    ")
            else:
                self._word(piece, width)

    def _word(self, word: str, width: int) -> None:
        size, blank = cell_len(word), cell_len(self._blank)
        if self._column and self._column + blank + size > width:
            self._out("\n")
            self._column, self._blank, blank = 0, "", 0
        self._out(self._blank + word)
        self._column += blank + size
        self._column = self._column if self._column <= width else self._column % width
        self._blank = ""
        self.began = True

    def _out(self, text: str) -> None:
        self._screen.say(Text(text, self._style), end="")
        self._screen.console.file.flush()
