"""`generate`: one turn without a session. The messages are all the state there is."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from types import NoneType
from typing import Any, Generic, TypeVar, cast, get_args

from msgspec.structs import replace

from adjourn.answer import Answer, PausedCall, Round
from adjourn.errors import (
    AdjournError,
    AlreadyResolved,
    DefinitionError,
    HandlerAborted,
    HandlerFailed,
    HistoryMismatch,
    InvalidRequest,
    LimitReached,
    ModelError,
    NothingPaused,
    ToolFailed,
    TurnError,
)
from adjourn.events import Limits, Retried, TurnEnded, UserSaid
from adjourn.loop import Driver
from adjourn.model import ModelRequest
from adjourn.parts import OURS, FinishReason, Message, Part, Role, Usage, canonical, convert, to_json, wire
from adjourn.resume import Given, as_items, decide
from adjourn.setting import Setting
from adjourn.state import Finished, Paused, Turn
from adjourn.stream import StreamChunk, Watcher
from adjourn.transcript import check_sendable, read, starts_with, write
from adjourn.turn import begin, record

T = TypeVar("T")
Prompt = str | Part | Sequence[str | Part]


class GenerateResponse(Generic[T]):
    """What a turn came to: `output` is the parsed `output=`, `limit` the bound that was hit, `request` the last one sent."""

    def __init__(self, driver: Driver, step: Paused | Finished, round_: Round | None) -> None:
        turn = driver.turn
        self.turn = turn
        self.request: ModelRequest | None = driver.request
        self.output: T = cast(T, driver.value)
        self.messages: list[Message] = write(turn)
        """The whole conversation, to go on from. Where it is paused, the last message carries the interrupts."""
        self.interrupts: list[PausedCall] = []
        self.limit: str | None = None
        self.finish_reason: FinishReason = "interrupted"
        if isinstance(step, Finished):
            self.finish_reason = step.end.reason
            self.limit = step.end.limit
        if turn.open is not None:
            parts = {p.ours.get("id"): p for p in self.messages[-1].content}
            self.interrupts = [
                PausedCall(parts[c.id], c.pause, c.id, round_) for c in turn.paused if c.pause is not None
            ]

    @property
    def message(self) -> Message | None:
        """The last message of the model."""
        return next((m for m in reversed(self.messages) if m.role == "model"), None)

    @property
    def text(self) -> str:
        return self.message.text if self.message is not None else ""

    @property
    def reasoning(self) -> str:
        return self.message.reasoning if self.message is not None else ""

    @property
    def tool_requests(self) -> list[Part]:
        """The parts of the last model message that ask for a tool."""
        return self.message.tool_requests if self.message is not None else []

    @property
    def usage(self) -> Usage:
        """Tokens of the whole turn."""
        return self.turn.counts.usage

    def __repr__(self) -> str:
        return f"<GenerateResponse {self.finish_reason} {self.text[:60]!r} interrupts={len(self.interrupts)}>"


class StreamHandle(Generic[T]):
    """A running `generate`: read `stream`, await `response` (or the handle itself)."""

    def __init__(self, watcher: Watcher, task: "asyncio.Task[GenerateResponse[T]]") -> None:
        self._watcher = watcher
        self._task = task

    @property
    def stream(self) -> AsyncIterator[StreamChunk]:
        return self._watcher.feed.__aiter__()

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self.stream

    @property
    def response(self) -> "asyncio.Future[GenerateResponse[T]]":
        """Awaitable; raises what `generate` would."""
        return asyncio.shield(self._task)

    def __await__(self) -> Generator[Any, None, GenerateResponse[T]]:
        return self.response.__await__()

    @property
    def interrupts(self) -> list[PausedCall]:
        """The pauses so far."""
        return self._watcher.interrupts


def as_message(prompt: Any) -> Message:
    """A user message from a text, a part, or a list of them. Raises InvalidRequest for anything else."""
    items: Any = [prompt] if isinstance(prompt, (str, Part)) else prompt
    if not isinstance(items, (list, tuple)):
        name = type(cast(object, items)).__name__
        raise InvalidRequest(f"a {name} is no prompt: give a text, a Part, a list of these, or a Message of the user")
    return Message("user", [Part(text=i) if isinstance(i, str) else i for i in cast(Sequence[Any], items)])


def sendable(message: Any) -> Message:
    """What somebody wants to say, as a message that can be kept. Raises InvalidRequest for what is none.

    It is the user's: calls and their results are said by the model and by decisions alone, and so are our own marks.
    """
    given = message if isinstance(message, Message) else as_message(message)
    if given.role != "user":
        raise InvalidRequest(f"a message that is sent has the role user, not {given.role!r}")
    said = convert(to_json(given, "message"), Message)
    if any(p.tool_request is not None or p.tool_response is not None for p in said.content):
        raise InvalidRequest(
            "a message of the user holds no tool requests and no tool responses; a pause is answered by a resume"
        )
    if said.metadata and OURS in said.metadata:
        said = replace(said, metadata={k: v for k, v in said.metadata.items() if k != OURS} or None)
    return said


def start(
    prompt: Prompt | Message | None, messages: Sequence[Message] | None, system: str | None, limits: Limits
) -> Turn:
    """A turn to begin or to go on with, from messages that end in no pause."""
    history = with_system(listed(messages or ()), system)
    if prompt is not None:
        if history and history[-1].role == "model" and read(history, limits).open is not None:
            raise InvalidRequest(
                "the messages end in a pause, so a new prompt has no place after them. Answer the pause "
                "(resume_respond=, resume_restart=) or decline it first"
            )
        check_sendable(history)
        return record(begin(history, limits), UserSaid(sendable(prompt)))
    if not any(m.role != "system" for m in history):
        raise InvalidRequest("nothing to answer: give a prompt or messages")
    turn = read(history, limits)
    check_sendable([*turn.history, *turn.added])
    if turn.open is not None and not turn.paused:
        return turn  # a tool failed, and its call runs again; finished siblings stay
    if turn.open is not None:
        raise InvalidRequest(
            "the messages end in a pause. Answer it: give resume_respond= or resume_restart= (made with "
            "respond_to_interrupt, restart_tool or decline_interrupt)"
        )
    if history[-1].role not in ("user", "tool"):
        raise InvalidRequest("the messages end with the model's own reply, so there is nothing to answer: add a prompt")
    return turn


def listed(messages: Any) -> list[Message]:
    """`messages=` as a list. Raises InvalidRequest for what is none, before anything is sent."""
    if not isinstance(messages, (list, tuple)):
        name = type(messages).__name__
        raise InvalidRequest(f"messages= takes a list of Messages, such as response.messages, not a {name}")
    given = list(cast(Sequence[Any], messages))
    for i, message in enumerate(given):
        if not isinstance(message, Message):
            name = type(message).__name__
            raise InvalidRequest(f"messages[{i}] is a {name}; make it as Message('user', [Part(text=...)])")
        if message.role not in _ROLES:
            raise InvalidRequest(f"messages[{i}] has the role {message.role!r}; it can be: {', '.join(_ROLES)}")
        content: Any = message.content
        if not isinstance(content, (list, tuple)) or not all(map(_is_part, cast(Sequence[Any], content))):
            raise InvalidRequest(f"messages[{i}].content is no list of Parts; make a text as Part(text=...)")
    return given


_ROLES: Sequence[str] = get_args(Role)


def _is_part(part: Any) -> bool:
    return isinstance(part, Part) and isinstance(part.text, (str, NoneType))  # pyright: ignore[reportUnnecessaryIsInstance]


def with_system(messages: list[Message], system: str | None) -> list[Message]:
    """The messages behind this system text; an earlier system text at their head gives way."""
    if system is None:
        return messages
    if not isinstance(system, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequest(f"system={system!r}: give a text")
    head = Message("system", [Part(text=system)])
    return [head, *(messages[1:] if messages and messages[0].role == "system" else messages)]


class Resumption:
    """One resume of a paused `generate`: which turn it goes on from, and what to tell later answers afterwards."""

    def __init__(self, messages: Sequence[Message] | None, items: Sequence[Answer | Part], limits: Limits) -> None:
        rounds = {id(r): r for i in items if isinstance(i, Answer) and (r := i.paused.round) is not None}
        if len(rounds) > 1:
            raise HistoryMismatch("these answers belong to different paused conversations; resume one at a time")
        self.round = next(iter(rounds.values()), None)
        self.items = list(items)
        self._messages = messages
        self._limits = limits

    def _from_round(self, round_: Round, messages: Sequence[Message] | None) -> Turn:
        turn = round_.turn
        if messages is not None and not _belongs(messages, turn):
            raise HistoryMismatch(
                "messages= is not the conversation that this interrupt paused (nor its beginning). "
                "Pass response.messages, or leave messages= out"
            )
        if round_.busy:
            decided = [round_.decided.get(i.event.interrupt) for i in self.items if isinstance(i, Answer)]
            winner = next((d for d in decided if d is not None), None)
            raise AlreadyResolved("this pause is being resumed right now; wait for that resume", winner)
        again: list[Answer | Part] = []
        for item in self.items:
            key = item.event.interrupt if isinstance(item, Answer) else None
            if key not in round_.decided:
                again.append(item)
            elif not round_.failed or round_.decided[key] != _content(item):
                way = "Its tool ran: give the same answer to go on from there" if round_.failed else "That counts"
                raise AlreadyResolved(
                    f"interrupt {key} was already answered. {way}; nothing was changed", round_.decided[key]
                )
        self.items = again
        if round_.closed and again:
            raise AlreadyResolved("this pause was already resolved: its conversation has gone on")
        if turn.ended is not None and not again:
            turn = record(turn, Retried())
        return turn

    def claim(self, find_tool: Callable[[str], Any], now: float, tools: Sequence[Any]) -> Turn:
        """The turn with the decisions in it. From here to `settle` no other answer is taken."""
        if self.round is None:
            if self._messages is None:
                raise HistoryMismatch("these answers do not know their conversation: pass messages=response.messages")
            self.round = Round(_paused_turn(self._messages, self._limits), tools)
            self._messages = None  # it is made of them
        round_ = self.round
        with round_.lock:  # checked and taken in one step, for answers from several threads
            before = self._from_round(round_, self._messages)
            turn, events = decide(before, self.items, find_tool, now) if self.items else (before, [])
            round_.busy = True
            self.events = events
            for item, event in zip(self.items, events, strict=True):
                round_.decided[event.interrupt] = _content(item)
        return turn

    def settle(self, driver: Driver, failed: bool) -> Round:
        """Says how the resume went. A failure before any tool ran leaves the pause as it was."""
        round_ = self.round
        assert round_ is not None
        round_.busy = False
        if failed and not driver.ran_tools and not round_.failed:
            for event in self.events:
                round_.decided.pop(event.interrupt, None)
            return round_
        round_.failed = failed
        ids = {c.id for c in round_.turn.calls}
        here = driver.turn.open is not None and {c.id for c in driver.turn.calls} == ids
        for call in driver.turn.paused if here else ():
            if call.pause is not None:
                round_.decided.pop(call.pause.id, None)  # a tool that failed when it was restarted waits again
        round_.turn = driver.turn
        round_.closed = not here and not failed
        return round_


def _content(item: Any) -> Any:
    if isinstance(item, Answer):
        return wire(item.event)
    return wire(item)


def _belongs(messages: Sequence[Message], turn: Turn) -> bool:
    closed = [*turn.history, *turn.added]
    if starts_with(closed, messages):
        return True
    last = messages[-1]
    if last.role != "model" or not last.tool_requests or not starts_with(closed, messages[:-1]):
        return False
    if turn.open is not None and len(messages) == len(closed) + 1:
        shown = turn.open
    elif len(messages) <= len(closed):
        shown = closed[len(messages) - 1]  # it was paused there, and has gone on
    else:
        return False
    return [_asked(p) for p in last.tool_requests] == [_asked(p) for p in shown.tool_requests]


def _asked(part: Part) -> bytes:
    return canonical(part.tool_request)


def _paused_turn(messages: Sequence[Message], limits: Limits) -> Turn:
    turn = read(messages, limits)
    if turn.open is None:
        raise NothingPaused(
            "the messages end in no pause, so there is nothing to resume. Pass response.messages, the messages of the "
            "response that was interrupted"
        )
    return turn


def failure(end: TurnEnded, cause: BaseException | None, response: Any) -> AdjournError | None:
    """The exception that this end is raised as; None for an end that is an outcome."""
    if end.reason != "failed":
        return None
    kind = end.error.kind if end.error is not None else None
    if isinstance(cause, (DefinitionError, InvalidRequest)) and kind == type(cause).__name__:
        return cause
    message = end.error.message if end.error is not None else "the turn failed"
    error: TurnError
    if end.limit is not None:
        error = LimitReached(message, limit=end.limit, response=response)
    elif isinstance(cause, ModelError) and end.error is not None and end.error.kind == "ModelError":
        error = cause  # this turn's own; one that a tool's body raised is that tool's failure
        error.response = response
    elif end.error is not None and end.error.kind == "HandlerAborted":
        error = HandlerAborted(message, response=response)
    elif end.error is not None and end.error.kind == "HandlerFailed":
        error = HandlerFailed(message, response=response)
        error.__cause__ = cause
    elif end.error is not None and end.error.kind == "ModelError":
        error = ModelError(message, response=response)
    else:
        details: Mapping[str, Any] = (end.error.details if end.error is not None else None) or {}
        error = ToolFailed(message, tool=details.get("tool", ""), response=response)
        error.__cause__ = cause
    return error


async def run_generate(
    setting: Setting, turn: Turn, resumption: Resumption | None, tools: Sequence[Any]
) -> GenerateResponse[Any]:
    """Drives the turn to its rest. Raises TurnError, with everything kept as its response."""
    driver = Driver(turn, setting)
    if setting.observers and resumption is not None and resumption.round is not None:
        setting.before = resumption.round.trace
        driver.taken(turn, resumption.events, before=resumption.round.turn)
    failed = True
    try:
        step = await driver.run()
        failed = isinstance(step, Finished) and step.end.reason == "failed"
    finally:
        round_ = resumption.settle(driver, failed) if resumption is not None else None
    turn = driver.turn
    if turn.open is not None and (round_ is None or round_.closed or round_.turn is not turn):
        round_ = Round(turn, tools)
    if round_ is not None:
        round_.trace = setting.trace
    response: GenerateResponse[Any] = GenerateResponse(driver, step, round_)
    if isinstance(step, Finished):
        error = failure(step.end, driver.cause, response)
        if error is not None:
            raise error
    return response


def items_of(respond: Given, restart: Given) -> list[Answer | Part] | None:
    """The decisions given; None where this is no resume. Raises EmptyResume for an empty list."""
    return None if respond is None and restart is None else as_items(respond, restart)


def tools_by_name(tools: Sequence[Any]) -> Mapping[str, Any]:
    """Tools by name. Raises DuplicateName."""
    from adjourn.errors import DuplicateName

    out: dict[str, Any] = {}
    for tool in tools:
        if tool.name in out and out[tool.name] is not tool:
            raise DuplicateName(f"two tools are called {tool.name!r}")
        out[tool.name] = tool
    return out
