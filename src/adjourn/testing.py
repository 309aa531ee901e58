"""For the tests of those who build on Adjourn: a model that says what you tell it, and more."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from adjourn.errors import AdjournError, DefinitionError
from adjourn.events import Event, Limits
from adjourn.model import Emit, ModelReply, ModelRequest, as_reply
from adjourn.parts import Chunk, Message, Part, ToolRequest
from adjourn.state import Turn
from adjourn.testing_engine import check_engine
from adjourn.testing_models import Checked, check_model
from adjourn.testing_store import check_store
from adjourn.tool import ToolRunContext
from adjourn.turn import begin, record

__all__ = [
    "Checked",
    "FakeClock",
    "ScriptExhausted",
    "ScriptedModel",
    "call",
    "check_engine",
    "check_model",
    "check_store",
    "from_stored_form",
    "replay",
    "stored_form",
    "tool_context",
]

Reply = Any
"""A text, `call(...)`, a list of those, a Message, a ModelReply, an exception, or a function of the request to one of them."""


def call(name: str, input: Any = None, ref: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> Part:
    """A tool request, as a scripted reply. A str `input` is taken as the raw text of the arguments, valid or not."""
    return Part(tool_request=ToolRequest(name, ref, {} if input is None else input), metadata=metadata)


class ScriptExhausted(AdjournError):
    """A ScriptedModel was called more often than it has replies."""


class ScriptedModel:
    """A model that gives these replies in order; one that is a function is asked with the request.

    `chunks[i]` are what it streams before reply i (texts, or Chunk); `delay` is in seconds before each reply. `requests`
    has what it was sent. With `repeat_last` the last reply is given for ever. More calls than replies raise
    ScriptExhausted: a test that calls too often should say so.
    """

    def __init__(
        self,
        replies: Sequence[Reply],
        *,
        name: str = "scripted",
        chunks: Sequence[Sequence[str | Chunk]] = (),
        delay: float = 0.0,
        repeat_last: bool = False,
    ) -> None:
        if isinstance(replies, str) or not isinstance(replies, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"ScriptedModel takes a list of replies, not {type(replies).__name__}; one that is asked again and again is "
                "ScriptedModel([reply], repeat_last=True)"
            )
        self.name = name
        self.requests: list[ModelRequest] = []
        self._replies = list(replies)
        self._chunks = list(chunks)
        self._delay = delay
        self._repeat_last = repeat_last

    @property
    def calls(self) -> int:
        """How often it was called."""
        return len(self.requests)

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        position = len(self.requests)
        self.requests.append(request)
        if self._delay:
            await asyncio.sleep(self._delay)
        if position >= len(self._replies):
            if not (self._repeat_last and self._replies):
                raise ScriptExhausted(f"the scripted model has {len(self._replies)} replies and was called once more")
            position = len(self._replies) - 1
        for chunk in self._chunks[position] if position < len(self._chunks) else ():
            emit(chunk if isinstance(chunk, Chunk) else Chunk(content=[Part(text=chunk)]))
        reply = self._replies[position]
        if callable(reply) and not isinstance(reply, type):
            reply = reply(request)
            if asyncio.iscoroutine(reply):
                reply = await reply
        if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
            raise reply
        return as_reply(reply)


def tool_context(
    *,
    resumed: Any = None,
    restarts: Sequence[Any] = (),
    context: Any = None,
    attempt: int = 1,
    original_input: Any = None,
    session: Any = None,
) -> ToolRunContext:
    """A context to call a tool's body with. `resumed=True` is a bare restart, a mapping is its metadata."""
    history: tuple[Any, ...] = tuple(restarts)
    if resumed is not None and resumed is not False:
        latest: Any = {} if resumed is True else resumed
        history = (*history, latest)
    return ToolRunContext("c_test", ("test",), attempt, history, original_input, context, session)


class FakeClock:
    """A clock that only moves when it is told to, or when somebody sleeps on it. `slept` has the delays asked for."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.time = now
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


def replay(events: Sequence[Event], *, history: Sequence[Message] = (), limits: Limits | None = None) -> Turn:
    """The turn that these events make."""
    turn = begin(history, limits or Limits())
    for event in events:
        turn = record(turn, event)
    return turn


def stored_form(events: Sequence[Event]) -> bytes:
    """Events as a store keeps them."""
    return msgspec.json.encode(events)


def from_stored_form(raw: bytes) -> list[Event]:
    """Events as a store gives them back."""
    return msgspec.json.decode(raw, type=list[Event])


ModelFunction = Callable[[ModelRequest], Any]
