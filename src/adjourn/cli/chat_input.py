"""Where the lines of a chat come from: a prompt with history and completion, or a pipe."""

import asyncio
import os
import stat
import sys
from collections.abc import Sequence
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyPressEvent

from adjourn.cli.picks import STYLE, sending
from adjourn.cli.screen import Screen
from adjourn.display import visible
from adjourn.parts import Message


class Reader(Protocol):
    async def read(self, paused: bool) -> str | None:
        """The next message or command; None at the end."""
        ...

    def said(self, text: str) -> None:
        """It was sent."""
        ...


def reader_for(screen: Screen, commands: Sequence[str], before: Sequence[Message]) -> Reader:
    """A prompt at a terminal, else standard input line by line."""
    if screen.interactive:
        return _Prompt(screen, commands, [m.text for m in before if m.role == "user" and m.text])
    return _Pipe(screen)


class _Prompt:
    def __init__(self, screen: Screen, commands: Sequence[str], before: Sequence[str]) -> None:
        history = InMemoryHistory()  # what was said is the session's to keep, not a file's of ours
        for text in before:
            history.append_string(visible(text))
        completer: Completer = WordCompleter([f"/{c}" for c in commands], sentence=True)
        keys = sending()
        self._screen = screen
        self._presses = 0

        @keys.add("c-c")
        @keys.add("<sigint>")  # the same, from a terminal that is not read key by key yet, or from another process
        def _clear(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
                self._presses = 0
                return
            self._presses += 1
            event.app.exit(exception=KeyboardInterrupt())

        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=completer,
            complete_while_typing=False,
            key_bindings=keys,
            multiline=True,
            prompt_continuation=_continuation,
            style=STYLE,
        )

    async def read(self, paused: bool) -> str | None:
        message: StyleAndTextTuples = [("class:warn" if paused else "class:prompt", "‖> " if paused else "> ")]
        while True:
            try:
                line = await self._session.prompt_async(message)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._presses > 1:
                    return None
                self._screen.note("Ctrl-C once more, Ctrl-D or /quit leaves.")
                continue
            self._presses = 0
            return line

    def said(self, text: str) -> None:
        """It is on the screen already."""


def _continuation(width: int, line: int, wrapped: int) -> str:
    return "" if wrapped else "." * max(width - 1, 0) + " "


class _Pipe:
    """A line is a message; one that ends in a backslash goes on in the next."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._number = _waitable()
        self._held = b""
        self._ended = False

    async def read(self, paused: bool) -> str | None:
        whole = ""
        while True:
            line = await self._next()
            if not line:
                return whole or None
            text = line.rstrip("\r\n")
            if not text.endswith("\\"):
                return whole + text
            whole += text[:-1] + "\n"

    async def _next(self) -> str:
        if self._number is None:
            return sys.stdin.readline()
        while b"\n" not in self._held and not self._ended:
            await _readable(self._number)
            got = os.read(self._number, 65536)
            self._held += got
            self._ended = not got
        line, end, self._held = self._held.partition(b"\n")
        return (line + end).decode("utf-8", "replace")

    def said(self, text: str) -> None:
        self._screen.say("> ", visible(text), style="dim")


def _waitable() -> int | None:
    """Standard input, where it is something to wait for; None where it is a file, which is there at once."""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and sys.stdin.isatty())
    return number if waits and os.name != "nt" else None


async def _readable(number: int) -> None:
    """Waits on the event loop, so that Ctrl-C is heard, and turns go on, while nothing comes."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(number, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(number)
