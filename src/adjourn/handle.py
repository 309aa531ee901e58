"""What a caller holds of an agent's session: the turn that is under way, its pauses, and what it came to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from adjourn.answer import Answer, PausedCall
from adjourn.arguments import check_texts, short
from adjourn.errors import ResumeError
from adjourn.events import Json, Verb
from adjourn.parts import Artifact, ErrorInfo, FinishReason, Message, Metadata, Part, ToolRequest, Usage, new_id
from adjourn.promise import Waiters
from adjourn.resume import as_items
from adjourn.stream import StreamChunk, Watcher
from adjourn.tool import AbortSignal


class SessionState(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True):
    """A whole session as a value, for agents without a store: keep it anywhere and connect with it again.

    `signature` is there when the application has a `secret`; a state that was altered is then refused.
    """

    session_id: str | None = None
    messages: Sequence[Message] = ()
    custom: Json = None
    artifacts: Sequence[Artifact] = ()
    signature: str | None = None


class AgentInit(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True):
    """Where to begin: nothing (a new session), a session, one of its snapshots, or the state of a client-managed one.

    `owner` is whose session a new one is.
    """

    session_id: str | None = None
    snapshot_id: str | None = None
    state: SessionState | None = None
    owner: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """Several decisions at once, all or none: answers (`respond_to_interrupt(...)`) or the wire's parts.

    `by` says who decides and `address` from where, for the audit. `detach` makes the turn a background one.
    """

    respond: Sequence[Answer | Part] = ()
    restart: Sequence[Answer | Part] = ()
    by: str | None = None
    address: str | None = None
    detach: bool = False

    def __post_init__(self) -> None:
        check_texts(by=self.by, address=self.address)

    @staticmethod
    def items(resume: Any) -> list[Answer | Part]:
        """All decisions of this resume. Raises ResumeError where it is none, or holds none."""
        if not isinstance(resume, Resume):
            raise ResumeError(
                f"{short(resume)} is no resume: give Resume(respond=[...], restart=[...]), with answers as of "
                "respond_to_interrupt(...)"
            )
        return as_items(resume.respond, resume.restart)


class AgentOutput(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What one leg of a turn came to.

    `state` is the custom state; `value` the parsed `output=`; `client_state` the whole session, for an agent without a
    store. `error` and `limit` are set where the turn failed.
    """

    session_id: str
    finish_reason: FinishReason
    snapshot_id: str | None = None
    message: Message | None = None
    messages: Sequence[Message] = ()
    interrupts: "Sequence[AgentInterrupt]" = ()
    state: Any = None
    artifacts: Sequence[Artifact] = ()
    usage: Usage = Usage()
    error: ErrorInfo | None = None
    limit: str | None = None
    value: Any = None
    client_state: SessionState | None = None

    @property
    def text(self) -> str:
        return self.message.text if self.message is not None else ""


class Deciding(Protocol):
    """The session, as far as an interrupt needs it."""

    def decide(self, answer: Answer) -> "AgentTurn": ...


class AgentInterrupt:
    """A paused call of a session. Each decision returns the next turn, which starts at once; `by` says who decides."""

    __slots__ = ("_session", "paused")

    def __init__(self, session: Deciding, paused: PausedCall) -> None:
        self._session = session
        self.paused = paused

    @property
    def id(self) -> str:
        return self.paused.id

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.paused.name

    @property
    def input(self) -> Json:
        return self.paused.input

    @property
    def payload(self) -> Json:
        """What the tool raised with its Interrupt."""
        return self.paused.payload

    @property
    def reason(self) -> str:
        """Why it waits: "tool", "approval", "error", "outcome_unknown" or "unanswered"."""
        return self.paused.reason

    @property
    def path(self) -> tuple[str, ...]:
        """The nested agents it came through, outermost first."""
        return self.paused.path

    @property
    def allow(self) -> tuple[Verb, ...]:
        return self.paused.allow

    @property
    def tool_request(self) -> ToolRequest:
        return self.paused.tool_request

    @property
    def metadata(self) -> Metadata:
        return self.paused.metadata

    def respond(self, output: Any, *, by: str | None = None) -> "AgentTurn":
        """The tool does not run; `output` is its result."""
        return self._session.decide(self.paused.respond(output).signed(by))

    def restart(self, metadata: Any = None, *, replace_input: Any = UNSET, by: str | None = None) -> "AgentTurn":
        """The tool runs again, and reads `metadata` as `ctx.resumed_metadata`."""
        return self._session.decide(self.paused.restart(metadata, replace_input=replace_input).signed(by))

    def decline(self, reason: str = "", *, by: str | None = None) -> "AgentTurn":
        """The tool does not run and the model is told that this was refused, and why."""
        return self._session.decide(self.paused.decline(reason).signed(by))

    def __repr__(self) -> str:
        return f"<AgentInterrupt {self.id} {self.name}({self.input!r}) payload={self.payload!r}>"


class AgentTurn:
    """One leg of a turn, from a message or a decision to where it rests. It runs whether or not anybody reads it.

    Read `stream`; await `output` (or the turn itself). `snapshot_id` is known at once.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.snapshot_id: str = new_id("n_")
        self.watcher = watcher
        self.signal = AbortSignal()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop it runs on, once it has begun."""
        self._task: asyncio.Task[None] | None = None
        self._outcome: AgentOutput | BaseException | None = None
        self._is_stored = False
        # Futures of our own: a shielded task would cost whoever waits two more rounds of the event loop.
        self._waiting = Waiters()
        self._waiting_stored = Waiters()
        self._callbacks: list[Callable[[], Any]] = []

    def begin(self, work: Callable[[], Coroutine[Any, Any, AgentOutput]]) -> None:
        """Starts it; for the session only."""
        self.loop = asyncio.get_running_loop()
        self._task = self.loop.create_task(self._run(work))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, AgentOutput]]) -> None:
        _inside.set(self)
        try:
            self._outcome = await work()
        except asyncio.CancelledError as e:
            self._outcome = e
            raise
        except BaseException as e:  # noqa: BLE001 - it is raised to whoever asks for the output
            self._outcome = e
        finally:
            self._task = None
            self.now_stored()
            self.watcher.feed.close()
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()
            self._waiting.wake()

    def now_stored(self) -> None:
        """It is in the store; for the session only."""
        self._is_stored = True
        self._waiting_stored.wake()

    async def stored(self) -> None:
        """Returns when the turn is in the store (a background turn), or is over."""
        if not self._is_stored:
            await self._waiting_stored.wait(lambda: self._is_stored)

    def when_done(self, callback: Callable[[], Any]) -> None:
        """Calls back when it rests; for the session only."""
        if self._outcome is not None:
            callback()
        else:
            self._callbacks.append(callback)

    @property
    def stream(self) -> AsyncIterator[StreamChunk]:
        """What happens, as it happens. The turn never waits for a reader."""
        return self.watcher.feed.__aiter__()

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self.stream

    @property
    def interrupt(self) -> AgentInterrupt | None:
        """The first pause of this leg; set before its chunk is delivered."""
        return self.watcher.interrupts[0] if self.watcher.interrupts else None

    @property
    def interrupts(self) -> list[AgentInterrupt]:
        return list(self.watcher.interrupts)

    @property
    def done(self) -> bool:
        """Whether it rests."""
        return self._outcome is not None

    @property
    def output(self) -> Coroutine[Any, Any, AgentOutput]:
        """Await it. Raises ToolFailed, ModelError, LimitReached or a ResumeError; a pause and an abort are outcomes."""
        return self.wait()

    def __await__(self) -> Generator[Any, None, AgentOutput]:
        return self.wait().__await__()

    async def wait(self) -> AgentOutput:
        """The same as awaiting `output`."""
        await self.settled()
        if isinstance(self._outcome, AgentOutput):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome

    async def settled(self) -> None:
        """Returns when it rests, however it ended."""
        if self._outcome is None:
            await self._waiting.wait(lambda: self.done)

    def poll(self) -> FinishReason | None:
        """How it ended, or None while it runs. A failure is "failed" here, not an exception."""
        if self._outcome is None:
            return None
        if isinstance(self._outcome, asyncio.CancelledError):
            return "aborted"
        return self._outcome.finish_reason if isinstance(self._outcome, AgentOutput) else "failed"

    def fail(self, error: Exception) -> None:
        """It will never begin; for the session only."""

        async def never() -> AgentOutput:
            raise error

        self.begin(never)

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Ends it: what runs is cancelled, no result is made up, and the session takes the next message."""
        self.signal.abort(reason)


_inside: "ContextVar[AgentTurn | None]" = ContextVar("adjourn_turn", default=None)


def inside(turn: "AgentTurn | None") -> bool:
    """Whether we are called from within this very turn (by one of its tools), so that waiting for it would never end."""
    return turn is not None and not turn.done and _inside.get() is turn
