"""What the catalogue demo shows: progress while it runs, and an account at the end."""

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

from adjourn import Answer, Message, PausedCall
from adjourn.events import Declined, Responded
from adjourn.model import ModelRequest
from adjourn.observe import Observed

# Escape sequences, then what else moves the cursor, rings, or turns the direction of writing.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """One line that is safe to print, whatever a model or a supplier wrote."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\n", " ").replace("\r", " "))


def words(value: Any) -> str:
    """JSON in words: `{"saved": true, "price": 9.5}` is "saved, price: 9.5"."""
    if not isinstance(value, Mapping):
        return str(value)
    items = cast(Mapping[str, Any], value).items()
    return ", ".join(k if v is True else f"{k}: {v}" for k, v in items)


def call_words(name: str, input: Any) -> str:
    return f"{name}({words(input)})"


@dataclass
class Account:
    """Everything that happened, in the order it did. `model_seconds` is what the model took of the time."""

    out: TextIO
    begun: float = field(default_factory=time.monotonic)
    model_calls: int = 0
    model_seconds: float = 0.0
    pauses: list[str] = field(default_factory=list[str])
    corrections: list[str] = field(default_factory=list[str])
    stops: list[str] = field(default_factory=list[str])
    about: str = ""
    lines: list[str] = field(default_factory=list[str])

    def say(self, text: str = "") -> None:
        """One line on the screen, and in the account that is kept."""
        line = clean(text)
        self.lines.append(line)
        print(line, file=self.out, flush=True)

    def event(self, kind: str, text: str) -> None:
        """One thing that happened within a job."""
        self.say(f"      {kind:<9} {text}")

    # -- listening ---------------------------------------------------------------------------------------------------

    def watch(self, step: Observed) -> AbstractContextManager[Any] | None:
        """An observer: shows what the model calls and what the tools return, as it happens."""
        return self._watch_model(step) if step.kind == "model" else None

    @contextmanager
    def _watch_model(self, step: Observed) -> Generator[None]:
        started = time.monotonic()
        yield
        self.model_calls += 1
        self.model_seconds += time.monotonic() - started
        message: Message = step.result.message
        sure = (message.metadata or {}).get("needle", {}).get("confidence")
        for part in message.tool_requests:
            request = part.tool_request
            assert request is not None
            text = call_words(request.name, request.input)
            self.event("model", text if sure is None else f"{text}  (confidence {sure:.2f})")

    def watched(self, by: str, handler: Callable[[PausedCall], Any]) -> Callable[[PausedCall], Any]:
        """The handler, with each pause and what `by` decided on it written down."""

        async def watched(paused: PausedCall) -> Answer | None:
            call, why = call_words(paused.name, paused.input), _why(paused)
            self.event("paused", why)
            answer = handler(paused)
            if answer is not None and not isinstance(answer, Answer):
                answer = await answer
            decision = _decision(answer, by)
            self.event("decided", decision)
            self.pauses.append(f"{self.about}: {call} paused: {why} -> {decision}")
            return answer

        return watched

    def show_results(self, request: ModelRequest) -> ModelRequest:
        """For `prepare=`: shows the results that are about to be told to the model, and changes nothing."""
        last = request.messages[-1]
        for part in last.content if last.role == "tool" else ():
            response = part.tool_response
            if response is not None:
                notes = "".join(f" {p.text}" for p in response.content or ())
                self.event("told", words(response.output) + notes)
        return request

    def note_corrections(self, messages: Sequence[Message]) -> None:
        """Writes down which calls were given back to the model, and what it made of them."""
        asked: list[Any] = []
        mended: Callable[[str], None] | None = None
        for message in messages:
            if message.role == "model":
                asked = [part.tool_request for part in message.tool_requests]
                if mended is not None:
                    calls = ", ".join(call_words(r.name, r.input) for r in asked)
                    mended(calls or "no further call")
                    mended = None
            elif message.role == "tool":
                for request, part in zip(asked, message.content, strict=True):
                    output = part.tool_response.output if part.tool_response is not None else None
                    error = cast(Mapping[str, Any], output).get("error") if isinstance(output, Mapping) else None
                    if error:
                        text = f"{self.about}: {call_words(request.name, request.input)} was told: {error}"
                        mended = lambda calls, text=text: self.corrections.append(f"{text} -> {calls}")  # noqa: E731
        if mended is not None:
            mended("stopped before it answered")

    # -- the end -----------------------------------------------------------------------------------------------------

    def section(self, title: str, lines: Sequence[str]) -> None:
        """A part of the account; "none" where there is nothing to list."""
        self.say()
        self.say(f"{title} ({len(lines)})" if lines else f"{title}: none")
        for number, line in enumerate(lines, 1):
            self.say(f"  {number:>2}. {line}")

    def time(self) -> str:
        """Model calls and time in a sentence."""
        took = time.monotonic() - self.begun
        return f"{self.model_calls} model calls in {self.model_seconds:.1f} s, {took:.1f} s in all"


def _why(paused: PausedCall) -> str:
    payload = paused.payload
    if paused.reason == "approval":
        return f"{call_words(paused.name, paused.input)} needs approval"
    if isinstance(payload, Mapping):
        facts = cast(Mapping[str, Any], payload)
        answer = facts.get("answer")
        return clean(f"{facts.get('why')}" + (f": {answer}" if answer else ""))
    return words(payload)


def _decision(answer: Answer | None, by: str) -> str:
    if answer is None:
        return f"left paused by {by}"
    event = answer.event
    if isinstance(event, Responded):
        return f"answered by {by}: {words(event.output)}"
    if isinstance(event, Declined):
        return f"declined by {by}: {event.reason}"
    if answer.tool_request is not None and answer.tool_request.input != answer.paused.input:
        return f"edited by {by}: {words(answer.tool_request.input)}"
    after = f" after {answer.after:.1f} s" if answer.after else ""
    return f"tried again by {by}{after}" if answer.after else f"approved by {by}"
