"""The Needle engine itself, and the one thread that enters it.

There is one engine in a process and it must not be entered twice at once, so a thread of its own runs it and everybody
queues. It keeps a conversation and cannot be given one. But equal texts get equal replies from it: so a process that
never saw a conversation feeds it again from the start, and one that just had its beginning goes on from there.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from adjourn.errors import MissingExtra, ModelError
from adjourn.parts import canonical
from adjourn.plugins.local.dialect import Line
from adjourn.plugins.local.worker import Worker

Reply: TypeAlias = Mapping[str, Any]
"""What the engine says: `function_calls`, `suppressed_calls`, `reasoning`, `confidence`, `error`, `error_code`, ...

We add `diverged` where the transcript has other calls than the engine made when it heard the same.
"""

_WHAT = "the model local/needle (for Linux on x86-64 and ARM64, macOS on Apple silicon and Windows on x86-64)"


@dataclass(frozen=True)
class Setup:
    """What a conversation is begun with. `tools` is JSON; `max_tokens` bounds each reply."""

    system: str
    tools: str
    max_tokens: int


async def load() -> None:
    """Loads the engine, where that was not done yet. Raises MissingExtra."""
    await _thread.run(_engine.load)


async def converse(setup: Setup, lines: Sequence[Line]) -> Reply:
    """The engine's reply to the last line, said after the others. Raises ModelError, MissingExtra."""
    return await _thread.run(lambda: _engine.converse(setup, lines))


class _Engine:
    """The engine with the conversation that it is in. Only the thread enters it."""

    def __init__(self) -> None:
        self._make: Callable[..., Any] | None = None
        self._agent: Any = None
        self._setup: Setup | None = None
        self._said: list[tuple[str, Reply]] = []

    def load(self) -> Callable[..., Any]:
        """What makes an agent. The library, the engine and its weights are loaded the first time."""
        if self._make is None:
            # It reads them when it is imported: it reports usage unless told not to, and would fetch what it misses.
            os.environ["NEEDLE_TELEMETRY"] = "0"
            os.environ["DO_NOT_TRACK"] = "1"
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
            try:
                make: Callable[..., Any] = importlib.import_module("needle").Needle
                make(tools=[], auto_date=False)  # the module may come without an engine or weights for this machine
            except Exception as e:
                raise MissingExtra(_WHAT, "local") from e
            self._make = make
        return self._make

    def converse(self, setup: Setup, lines: Sequence[Line]) -> Reply:
        if not lines:
            raise ModelError("local/needle has nothing to answer: the request has no user message", provider="local")
        make = self.load()
        try:
            start = self._resume(make, setup, lines)
            for line in lines[start:]:
                # The library would warn of a long conversation, and name our line as the culprit.
                self._agent._turns = 0
                reply = self._agent.complete(line.text, max_new_tokens=setup.max_tokens)
                self._said.append((line.text, reply))
        except (RuntimeError, ValueError) as e:
            self._agent = None
            raise ModelError(f"local/needle failed: {e}", provider="local") from e
        reply = self._said[-1][1]
        if reply.get("error") and reply.get("error_code") != "truncated":
            self._agent = None
            raise ModelError(f"local/needle failed: {reply['error']}", provider="local")
        given = [
            (line.answer, made) for line, (_, made) in zip(lines, self._said, strict=True) if line.answer is not None
        ]
        return reply if all(_same_calls(answer, made) for answer, made in given) else {**reply, "diverged": True}

    def _resume(self, make: Callable[..., Any], setup: Setup, lines: Sequence[Line]) -> int:
        """How many lines the engine has heard already; whatever else it was in is forgotten."""
        heard = len(self._said)
        if self._agent is None or setup != self._setup:
            self._agent = None
            self._agent = make(tools=setup.tools, system=setup.system, auto_date=False)
            self._setup = setup
        elif 0 < heard < len(lines) and all(
            said[0] == line.text for said, line in zip(self._said, lines, strict=False)
        ):
            return heard
        self._said = []
        self._agent.reset()
        return 0


def _same_calls(recorded: Sequence[Any], reply: Reply) -> bool:
    """Whether the engine made these calls (or withheld them, and somebody took them all the same)."""
    made: Sequence[Mapping[str, Any]] = (
        reply.get("function_calls") or (reply.get("suppressed_calls") if recorded else ()) or ()
    )
    return canonical(recorded) == canonical([{"name": c.get("name"), "arguments": c.get("arguments")} for c in made])


_thread = Worker("adjourn-needle")
_engine = _Engine()
