"""Where the lines of a chat come from: a prompt with history and completion, or a pipe."""

import asyncio
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
        self._stream: asyncio.StreamReader | None = None
        self._opened = False

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
        if not self._opened:
            self._opened = True
            self._stream = await _stream()
        if self._stream is None:
            return sys.stdin.readline()
        return (await self._stream.readline()).decode("utf-8", "replace")

    def said(self, text: str) -> None:
        self._screen.say("> ", visible(text), style="dim")


async def _stream() -> asyncio.StreamReader | None:
    """Standard input on the event loop, so that Ctrl-C is heard while nothing comes; None where it is a file."""
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    except (ValueError, OSError, NotImplementedError, AttributeError):
        return None
    return reader
