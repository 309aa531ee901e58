"""A turn as it runs: text as it comes, tools with their progress, pauses, and how it ended."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from rich.status import Status
from rich.text import Text

from adjourn.app import Adjourn
from adjourn.cli.facts import pause_facts, turn_facts
from adjourn.cli.failures import INTERRUPTED, OK, PAUSED, TURN_FAILED
from adjourn.cli.flow import Flow
from adjourn.cli.screen import Screen, indented, safe
from adjourn.cli.shown import shown_in
from adjourn.cli.words import short, took
from adjourn.display import summary
from adjourn.errors import TurnError
from adjourn.handle import AgentInterrupt, AgentOutput, AgentTurn
from adjourn.observe import Observed
from adjourn.parts import OURS, Chunk, Message, Metadata, Part, encode
from adjourn.records import INNER
from adjourn.stream import StreamChunk
from adjourn.tool import Interrupt

Outcome = AgentOutput | BaseException
_WHOLE = -1
"""The index of a chunk that holds a whole reply, and is ours."""


class _Running:
    """A tool that runs now."""

    def __init__(self, tool: str, name: str) -> None:
        self.tool = tool
        self.name = name
        self.began = time.monotonic()
        self.news = ""


class TurnView:
    """Shows turns on a screen, or as lines of JSON. It hears of tools as an observer of the application."""

    def __init__(self, screen: Screen, ai: Adjourn, *, events: bool = False) -> None:
        self._screen = screen
        self._events = events and screen.json
        self._running: dict[str, _Running] = {}
        self._took: dict[str, list[float]] = {}
        self._turn: AgentTurn | None = None
        self._heard = False
        self._flow = Flow(screen)
        self._thought = Flow(screen, "dim italic")
        self._status: Status | None = None
        ai.observers = (*ai.observers, self._observe)

    # -- what happens

    async def follow(self, turn: AgentTurn) -> Outcome:
        """Shows the turn until it rests. Ctrl-C aborts it, a second time leaves it."""
        presses = 0

        def stop() -> None:
            nonlocal presses
            presses += 1
            if presses > 1:
                raise KeyboardInterrupt
            self._quiet()
            self._screen.say("Stopping …", style="yellow")
            turn.abort("stopped by the user")

        with on_interrupt(stop):
            try:
                self._turn, self._heard = turn, False
                self._busy()
                async for chunk in turn.stream:
                    self._chunk(chunk)
                outcome = await _outcome(turn)
                if isinstance(outcome, AgentOutput) and not self._heard and not outcome.interrupts:
                    self._text(outcome.text)
            finally:
                self._turn = None
                self._quiet()
                self._flow.end()
                self._thought.end()
                self._running.clear()
        self._end(outcome)
        return outcome

    def _chunk(self, chunk: StreamChunk) -> None:
        noted: Metadata = (chunk.raw.metadata or {}).get(OURS) or {} if chunk.raw is not None else {}
        if noted.get("discard"):
            self._break()
            self._line("… that answer broke off; trying again", "dim")
        if chunk.interrupt is not None:
            self._paused(chunk.interrupt)
        elif chunk.progress is not None:
            fraction = chunk.progress.fraction
            share = "" if fraction is None else f"{fraction:.0%} "
            if (running := self._running.get(chunk.progress.call_id)) is not None:
                running.news = share + chunk.progress.text
            self._event(
                {"event": "progress", "tool": chunk.progress.tool, "fraction": fraction, "text": chunk.progress.text}
            )
            self._busy()
        elif chunk.artifact is not None:
            self._break()
            self._line(f"◆ artifact {safe(chunk.artifact.name or 'without a name', 80)}", "cyan")
            self._event({"event": "artifact", "name": chunk.artifact.name})
        elif chunk.raw is not None and chunk.raw.role == "tool":
            self._heard = False
            for part in chunk.raw.content:
                if part.tool_response is not None:
                    self._result(part)
            self._busy()
        elif chunk.raw is not None and chunk.raw.role == "model":
            self._words(chunk)

    def _words(self, chunk: StreamChunk) -> None:
        if chunk.reasoning:
            self._quiet()
            self._thought.write(chunk.reasoning)
            self._event({"event": "reasoning", "text": chunk.reasoning})
        if chunk.text and not (chunk.raw is not None and chunk.raw.index == _WHOLE and self._heard):
            self._heard = True
            self._text(chunk.text)
        if chunk.raw is not None and chunk.raw.index == _WHOLE and chunk.raw.metadata:
            self._heard = False  # a tool follows, and then another reply

    def _text(self, text: str) -> None:
        self._quiet()
        self._thought.end()
        if not text:
            return
        if not self._screen.json:
            self._flow.write(text)
        self._event({"event": "text", "text": text})

    def _result(self, part: Part) -> None:
        response = part.tool_response
        assert response is not None
        outcome = part.ours.get("outcome")
        ran = outcome in (None, "tool") and (part.metadata or {}).get("interruptResponse") is None
        times = self._took.get(response.name) if ran else None  # what somebody answered or refused took none
        seconds = times.pop(0) if times else None
        bad = outcome is not None
        self._event({"event": "tool", "tool": response.name, "output": response.output, "took": seconds})
        self._break()
        mark = Text("✗ " if bad else "✓ ", "red" if bad else "green")
        line = mark + Text(safe(response.name, 60), "bold")
        if response.output is not None:
            line += Text(" → ", "dim") + Text(safe(_brief(response.output), 400))
        self._cut(line, took(seconds) if seconds is not None else "")

    def _paused(self, interrupt: AgentInterrupt) -> None:
        self._event({"event": "pause", **pause_facts(interrupt)})
        self._break()
        shown = shown_in(interrupt)
        self._cut(Text("‖ ", "yellow bold") + Text(summary(shown.tool, shown.input, 400)), short(interrupt.id))

    def _end(self, outcome: Outcome) -> None:
        self._event({"event": "end", **turn_facts(outcome)})
        say = self._screen.say
        if isinstance(outcome, BaseException):
            say("The turn failed: ", indented(str(outcome)), style="red")
        elif outcome.finish_reason == "aborted":
            say("The turn was stopped.", style="yellow")
        elif outcome.finish_reason in ("length", "blocked", "other"):
            say(f"(the model ended with {outcome.finish_reason!r})", style="yellow")

    # -- lines, and the line at the bottom that moves

    def _line(self, text: str, style: str) -> None:
        if not self._screen.json:
            self._screen.say(text, style=style)

    def _cut(self, line: Text, tail: str) -> None:
        if self._screen.json:
            return
        if self._screen.is_terminal:
            room = self._screen.width - (len(tail) + 2 if tail else 0)
            line.truncate(max(room, 12), overflow="ellipsis")
        self._screen.say(line, Text(f"  {tail}" if tail else "", "dim"))

    def _break(self) -> None:
        self._quiet()
        self._thought.end()
        self._flow.end()

    def _event(self, event: dict[str, Any]) -> None:
        if self._events:
            self._screen.give(event)

    def _busy(self) -> None:
        """Shows what runs, where the screen can show what moves and no text is being written."""
        if self._turn is None or not self._screen.is_terminal or self._screen.json or self._flow.began:
            return
        shown = Text(", ".join(self._names()) or "thinking …", "dim")
        shown.truncate(max(self._screen.width - 4, 8), overflow="ellipsis")
        if self._status is None:
            self._status = Status(shown, console=self._screen.console, spinner="dots", spinner_style="cyan")
            self._status.start()
        else:
            self._status.update(shown)

    def _names(self) -> list[str]:
        return [safe(f"{r.name} {r.news}".strip(), 100) for r in self._running.values()]

    def _quiet(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    # -- tools, as the application's observers hear of them

    def _observe(self, seen: Observed) -> AbstractContextManager[Any] | None:
        if self._turn is None:
            return None
        if seen.kind == "tool":
            return self._watch(seen)
        inner = str(seen.facts.get("session_id", "")).startswith(
            INNER
        )  # a nested agent speaks to its caller, not to us
        return self._listen(seen) if seen.kind == "model" and not inner else None

    @contextlib.contextmanager
    def _listen(self, seen: Observed) -> Generator[None]:
        yield
        message: Any = getattr(seen.result, "message", None)
        if isinstance(message, Message) and message.text and self._turn is not None:
            # A model that does not stream says nothing on the way. Its reply goes into the stream here, in its place, and
            # is shown where nothing of it was.
            more = {"tools": True} if message.tool_requests else None
            self._turn.watcher.feed.put(StreamChunk(Chunk("model", _WHOLE, [Part(text=message.text)], more)))

    @contextlib.contextmanager
    def _watch(self, seen: Observed) -> Generator[None]:
        call = str(seen.facts.get("call_id"))
        running = self._running[call] = _Running(seen.name, summary(seen.name, seen.given, 200))
        self._event({"event": "tool_started", "tool": seen.name, "input": seen.given})
        if self._flow.began:
            self._break()
        self._busy()
        try:
            yield
        except Interrupt:
            raise  # it has no result yet, so no time is shown for one
        except BaseException:
            self._timed(running)
            raise
        else:
            self._timed(running)
        finally:
            self._running.pop(call, None)

    def _timed(self, running: _Running) -> None:
        self._took.setdefault(running.tool, []).append(time.monotonic() - running.began)


async def _outcome(turn: AgentTurn) -> Outcome:
    try:
        return await turn.output
    except asyncio.CancelledError:
        raise
    except Exception as e:  # noqa: BLE001 - how the turn ended; it is shown and becomes the exit code
        return e


def exit_code(outcome: Outcome) -> int:
    """What a command that ran this turn ends with."""
    if isinstance(outcome, TurnError):
        return TURN_FAILED
    if isinstance(outcome, BaseException):
        raise outcome
    return {"interrupted": PAUSED, "aborted": INTERRUPTED, "failed": TURN_FAILED}.get(outcome.finish_reason, OK)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return summary("", value, 400)[1:-1]
    return value if isinstance(value, str) else encode(value).decode()


@contextlib.contextmanager
def on_interrupt(callback: Callable[[], None]) -> Generator[None]:
    """Calls back at Ctrl-C, on the event loop, instead of cancelling what runs."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, callback)
    except (NotImplementedError, ValueError, RuntimeError):
        yield  # Windows, or not the main thread: Ctrl-C cancels as usual
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
