"""Questions at a terminal: pick with the arrow keys, type a line or several, say yes or no, edit in an editor.

Leaving a question (Ctrl-C, Ctrl-D, Escape) raises Left, and nothing is decided by that.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from prompt_toolkit import PromptSession, print_formatted_text
from prompt_toolkit.application import Application
from prompt_toolkit.application.current import get_app
from prompt_toolkit.formatted_text import FormattedText, StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from adjourn.cli.failures import Left
from adjourn.display import one_line

T = TypeVar("T")

STYLE = Style.from_dict(
    {
        "question": "bold",
        "mark": "ansicyan bold",
        "chosen": "bold",
        "detail": "ansibrightblack",
        "hint": "ansibrightblack",
        "error": "ansired",
        "prompt": "ansicyan bold",
        "head": "bold",
        "warn": "ansiyellow",
    }
)


@dataclass(frozen=True)
class Option(Generic[T]):
    """One thing to pick. `key` picks it at once."""

    value: T
    label: str
    detail: str = ""
    key: str = ""


def fit(text: str, width: int) -> str:
    """The text cut to so many columns of the terminal."""
    if get_cwidth(text) <= width:
        return text
    out, used = "", 0
    for c in text:
        used += get_cwidth(c)
        if used > max(width - 1, 0):
            break
        out += c
    return out + "…"


class _Picker(Generic[T]):
    def __init__(self, question: str, options: Sequence[Option[T]], at: int) -> None:
        self.question = question
        self.options = options
        self.at = at
        self.first = 0

    def lines(self) -> StyleAndTextTuples:
        size = get_app().output.get_size()
        rows = max(min(len(self.options), size.rows - 4), 1)
        self.first = min(max(self.first, self.at - rows + 1), self.at)
        out: StyleAndTextTuples = [("class:question", fit(self.question, size.columns - 1) + "\n")]
        widest = max(get_cwidth(f"({o.key}) {o.label}" if o.key else o.label) for o in self.options)
        widest = widest if widest < size.columns // 2 else 0
        for place in range(self.first, min(self.first + rows, len(self.options))):
            option = self.options[place]
            chosen = place == self.at
            key = f"({option.key}) " if option.key else ""
            label = fit(f"{key}{option.label}", size.columns - 4)
            out.append(("class:mark", "> " if chosen else "  "))
            out.append(("class:chosen" if chosen else "", label))
            gap = " " * (2 + max(widest - get_cwidth(label), 0))
            room = size.columns - 4 - get_cwidth(label + gap)
            if option.detail and room > 8:
                out.append(("class:detail", gap + fit(option.detail, room)))
            out.append(("", "\n"))
        hidden = len(self.options) - rows
        hint = "arrows and Enter; Esc leaves" + (f"; {hidden} more" if hidden > 0 else "")
        out.append(("class:hint", fit(hint, size.columns - 1)))
        return out


async def pick(question: str, options: Sequence[Option[T]], *, at: int = 0) -> T:
    """One of the options; the screen then shows which. Raises Left."""
    chosen = await _picked(question, options, at)
    label = next((o.label for o in options if o.value is chosen or o.value == chosen), "")
    asked = fit(one_line(question, 120), 60)
    room = shutil.get_terminal_size().columns - get_cwidth(asked) - 4
    line = [("class:prompt", "? "), ("class:question", f"{asked} "), ("", fit(one_line(label, 400), max(room, 12)))]
    print_formatted_text(FormattedText(line), style=STYLE)
    return chosen


async def _picked(question: str, options: Sequence[Option[T]], at: int) -> T:
    picker = _Picker(question, options, at)
    keys = KeyBindings()
    count = len(options)

    def move(to: int) -> None:
        picker.at = to % count

    @keys.add("up")
    @keys.add("k")
    @keys.add("c-p")
    def _up(_: KeyPressEvent) -> None:
        move(picker.at - 1)

    @keys.add("down")
    @keys.add("j")
    @keys.add("c-n")
    @keys.add("tab")
    def _down(_: KeyPressEvent) -> None:
        move(picker.at + 1)

    @keys.add("pageup")
    @keys.add("home")
    def _first(_: KeyPressEvent) -> None:
        move(0)

    @keys.add("pagedown")
    @keys.add("end")
    def _last(_: KeyPressEvent) -> None:
        move(count - 1)

    @keys.add("enter")
    @keys.add("c-j")
    def _take(event: KeyPressEvent) -> None:
        event.app.exit(result=options[picker.at].value)

    @keys.add("escape", eager=True)
    @keys.add("c-c")
    @keys.add("c-d")
    @keys.add("<sigint>")
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=Left("Nothing was decided."))

    for option in options:
        if option.key:
            _shortcut(keys, option)
    app = _application(picker.lines, keys)
    _forget_typed(app.input)
    return await _run(app)


def _forget_typed(given: Input) -> None:
    """What was typed before a question was on the screen is no answer to it: one letter of it could approve something."""
    clear_typeahead(given)
    try:
        import termios
    except ImportError:
        return  # Windows
    with contextlib.suppress(OSError, NotImplementedError, termios.error):
        termios.tcflush(given.fileno(), termios.TCIFLUSH)


def _shortcut(keys: KeyBindings, option: Option[Any]) -> None:
    @keys.add(option.key, eager=True)
    def _take(event: KeyPressEvent) -> None:
        event.app.exit(result=option.value)


def _application(lines: Callable[[], StyleAndTextTuples], keys: KeyBindings) -> Application[Any]:
    window = Window(FormattedTextControl(lines, focusable=True, show_cursor=False), dont_extend_height=True)
    app: Application[Any] = Application(
        layout=Layout(HSplit([window])), key_bindings=keys, style=STYLE, erase_when_done=True
    )
    app.ttimeoutlen = app.timeoutlen = 0.05  # Escape is an answer here, not the start of something longer
    return app


async def _run(app: Application[Any]) -> Any:
    try:
        return await app.run_async()
    except (KeyboardInterrupt, EOFError):
        raise Left("Nothing was decided.") from None


async def confirm(question: str, *, default: bool = False) -> bool:
    """Yes or no."""
    yes, no = Option(True, "Yes", key="y"), Option(False, "No", key="n")
    return await pick(question, [yes, no] if default else [no, yes])


async def ask(
    question: str,
    read: Callable[[str], T],
    *,
    default: str = "",
    hint: str = "",
    multiline: bool = False,
) -> T:
    """What `read` makes of what is typed; where it raises ValueError, its text is shown and the question stays."""
    session: PromptSession[str] = PromptSession(
        style=STYLE, multiline=multiline, key_bindings=sending() if multiline else None
    )
    error = ""
    while True:
        about = error or hint or ("Enter sends, Alt+Enter begins a new line" if multiline else "")
        message: StyleAndTextTuples = []
        for line in _wrapped(one_line(about, 600)):
            message.append(("class:error" if error else "class:hint", f"  {line}\n"))
        message += [("class:prompt", "? "), ("class:question", f"{one_line(question, 120)} ")]
        if "\n" in default:
            message.append(("", "\n"))
        try:
            typed = await session.prompt_async(message, default=default)
        except (KeyboardInterrupt, EOFError):
            raise Left("Nothing was decided.") from None
        try:
            return read(typed)
        except ValueError as e:
            error, default = str(e), typed


def _wrapped(text: str) -> list[str]:
    """In lines that fit behind two blanks. A prompt cuts its upper lines off at the edge, without a sign."""
    room = max(shutil.get_terminal_size().columns - 3, 10)
    out: list[str] = []
    for word in text.split():
        if out and get_cwidth(f"{out[-1]} {word}") <= room:
            out[-1] += f" {word}"
            continue
        piece = ""
        for c in word:
            if get_cwidth(piece + c) > room:
                out.append(piece)
                piece = ""
            piece += c
        out.append(piece)
    return out


def sending() -> KeyBindings:
    """Enter sends; Alt+Enter begins a new line, and so does Enter after a backslash."""
    keys = KeyBindings()

    # Ctrl-J is what Enter becomes where it was typed before the prompt was there.
    @keys.add("enter")
    @keys.add("c-j")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    def _line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


async def edit(text: str, read: Callable[[str], T], what: str) -> T:
    """The text after editing, in $VISUAL or $EDITOR where one is set, else in place. What does not read is edited again."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    while True:
        if editor:
            text = _edited(editor, text)
            try:
                return read(text)
            except ValueError as e:
                again = await confirm(f"{what} {one_line(str(e), 200)}. Edit it again?", default=True)
                if not again:
                    raise Left("Nothing was decided.") from None
        else:
            return await ask(
                f"{what}:", read, default=text, multiline=True, hint="Enter sends, Alt+Enter begins a new line"
            )


def _edited(editor: str, text: str) -> str:
    with tempfile.TemporaryDirectory(prefix="adjourn-") as folder:
        path = Path(folder) / "input.json"
        path.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(path)], check=True)  # noqa: S603 (the user's own editor)
        except (OSError, subprocess.CalledProcessError, ValueError) as e:
            raise Left(f"The editor {editor!r} failed ({e}). Nothing was decided.") from None
        return path.read_text(encoding="utf-8")
