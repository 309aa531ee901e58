"""Tools: functions a model may call, that may pause. How a pause is answered is in `answer.py`."""

import asyncio
import contextvars
import functools
import inspect
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from adjourn.arguments import check_text, is_text, short
from adjourn.conform import problems
from adjourn.errors import DefinitionError
from adjourn.events import Json, Verb
from adjourn.model import ToolDefinition
from adjourn.parts import Metadata, Part, digest, to_json
from adjourn.schema import InputShape, TypeShape

P = ParamSpec("P")
R = TypeVar("R")
OnError = Literal["raise", "model", "interrupt"]
OnExpiry = Literal["decline", "fail"] | Mapping[Literal["respond"], Any]

LONGEST_WAIT = 10 * 366 * 86_400.0
"""The most seconds that a pause can wait for: ten years."""


class Interrupt(BaseException):
    """Raise it in a tool to pause the call until somebody decides.

    `payload` is for whoever decides: any JSON value, model, dataclass, date, Decimal, UUID, Enum, set or bytes.
    `response` is the type (or JSON schema) an answer must have. `allow` are the decisions it takes besides declining.
    After `expires_in` seconds (ten years at most) nobody can decide any more and `on_expiry` holds: "decline" tells the
    model that nobody decided, "fail" ends the turn, `{"respond": value}` gives a default. It derives from BaseException,
    so that a tool's `except Exception` or a retry decorator cannot swallow a pause. Raises NotJSON for a payload that is
    no JSON.
    """

    def __init__(
        self,
        payload: Any = None,
        *,
        response: Any = None,
        allow: Sequence[Verb] = ("respond", "restart"),
        expires_in: float | None = None,
        on_expiry: OnExpiry = "decline",
    ) -> None:
        super().__init__(payload)
        self.payload: Json = to_json(payload, "interrupt payload")
        self.response: Json = _response_schema(response)
        self.allow: tuple[Verb, ...] = _verbs(allow)
        given: Any = expires_in
        if given is not None and not (isinstance(given, (int, float)) and 0 <= given <= LONGEST_WAIT):
            raise DefinitionError(
                f"expires_in={expires_in!r}: give seconds, from 0 to ten years ({LONGEST_WAIT:.0f}), or None for never"
            )
        self.expires_in = expires_in
        self.on_expiry: Json = _expiry(on_expiry, self.response)
        # Set where a nested agent's pause surfaces as its caller's.
        self.path: tuple[str, ...] = ()
        self.reason = "tool"
        self.version: str | None = None


def _verbs(allow: Sequence[Verb]) -> tuple[Verb, ...]:
    verbs = (allow,) if isinstance(allow, str) else tuple(allow)
    wrong = [v for v in verbs if v not in ("respond", "restart")]
    if wrong or not verbs:
        raise DefinitionError(f"allow={allow!r}: give at least one of 'respond' and 'restart'")
    return cast(tuple[Verb, ...], verbs)


def _expiry(on_expiry: OnExpiry, response: Json) -> Json:
    if isinstance(on_expiry, Mapping) and set(on_expiry) == {"respond"}:
        default = to_json(on_expiry["respond"], "default response")
        faults = problems(response, default) if response is not None else ()
        if faults:
            text = "; ".join(f"{p['path']}: {p['message']}" for p in faults)
            raise DefinitionError(f"on_expiry={on_expiry!r}: the default does not fit response=: {text}")
        return {"respond": default}
    if on_expiry not in ("decline", "fail"):
        raise DefinitionError(f"on_expiry={on_expiry!r}: give 'decline', 'fail' or {{'respond': value}}")
    return on_expiry


def _response_schema(response: Any) -> Json:
    if response is None or isinstance(response, Mapping):
        return cast(Json, response)
    return shape_of(response).schema


def shape_of(kind: Any) -> TypeShape:
    """The shape of a type, made once. Raises SignatureError for what cannot be described as JSON."""
    try:
        return _shape_once(kind)
    except TypeError:  # not hashable: Annotated with a list in it, say
        return TypeShape(kind)


@functools.lru_cache(maxsize=256)
def _shape_once(kind: Any) -> TypeShape:
    return TypeShape(kind)


class AbortSignal:
    """Cancels what it was given to. Aborting is final; `reason` is kept for the record."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def aborted(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str:
        return self._reason or ""

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Cancels. A second call changes nothing. Raises InvalidRequest for a reason that is no text."""
        check_text("reason", reason)
        if self._reason is None:
            self._reason = reason
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` at the abort (now, if it was). Returns what takes it back."""
        if self.aborted:
            callback()
            return lambda: None
        self._waiting.append(callback)
        return lambda: self._waiting.remove(callback) if callback in self._waiting else None


@dataclass(slots=True)
class ToolRunContext:
    """What a tool may know about its own run. Take it as a parameter with this annotation, anywhere in the list."""

    call_id: str = ""
    key_of: tuple[Any, ...] = ()
    attempt: int = 1
    restarts: tuple[Any, ...] = ()
    original_input: Any = None
    context: Any = None
    session: Any = None
    abort_signal: AbortSignal = field(default_factory=AbortSignal)
    _progress: Callable[[float | None, str], None] | None = None
    retried: int = 0  # how often the turn was retried because this call had failed
    answers_inside: bool = False  # the last restart is an answer into the nested agent that this call runs
    answered: bool = False  # by a nested agent that took in a decision: a failure after that does not ask anew

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of one approved call, another one for an edited input."""
        return digest(*self.key_of)

    def is_resumed(self) -> bool:
        """Whether somebody sent the call round again after a pause."""
        return bool(self.restarts)

    @property
    def resumed_metadata(self) -> Any:
        """What came with the last restart: `{}` for a bare one, None where the call was not restarted."""
        return self.restarts[-1] if self.restarts else None

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Tells whoever watches how far the tool is; `fraction` from 0 to 1."""
        if self._progress is not None:
            self._progress(fraction, text)


@dataclass(frozen=True)
class ToolOutput:
    """A result with more than a value: `content` are parts with pictures or files, `metadata` stays off the model."""

    value: Any = None
    content: Sequence[Part] = ()
    metadata: Metadata = field(default_factory=dict[str, Any])


class Backoff(msgspec.Struct, frozen=True):
    """Growing delays in seconds: `base` before the second attempt, `factor` times more before each next, at most `cap`.

    With `jitter` a delay is anything from half of that to all of it, so that many callers do not come back together.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 30.0
    jitter: bool = True

    def delay(self, failures: int) -> float:
        """The delay after so many failures (1 or more)."""
        full = min(self.cap, self.base * self.factor ** min(failures - 1, 64))
        return full * random.uniform(0.5, 1.0) if self.jitter else full


Approval = bool | Callable[[Any, ToolRunContext], Any]
"""Whether a call waits for a yes: always, or what a function (plain or async) of the input and the context says."""


@dataclass(frozen=True)
class ToolOptions:
    """How a tool is run. `backoff` is seconds, a Backoff, or a function of the number of failures; `timeout` in seconds."""

    approval: Approval | None = None
    on_error: OnError = "raise"
    retries: int = 0
    backoff: float | Backoff | Callable[[int], float] | None = None
    timeout: float | None = None
    idempotent: bool = False
    sequential: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "model", "interrupt"):
            raise DefinitionError(f"on_error={self.on_error!r}: give 'raise', 'model' or 'interrupt'")
        if self.retries < 0:
            raise DefinitionError(f"retries={self.retries}: give 0 or more")
        if self.timeout is not None and self.timeout <= 0:
            raise DefinitionError(f"timeout={self.timeout}: give seconds, more than 0")
        if self.approval is not None and not isinstance(self.approval, bool) and not callable(self.approval):
            raise DefinitionError("approval= takes True, False or a function of the input and the context")

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures."""
        if self.backoff is None:
            return 0.0
        if isinstance(self.backoff, Backoff):
            return self.backoff.delay(failures)
        if callable(self.backoff):
            return float(self.backoff(failures))
        return Backoff(base=self.backoff, jitter=False).delay(failures)


class Tool(Generic[P, R]):
    """A function with its name, description and schema. Calling it runs the function as it was written."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        options: ToolOptions | None = None,
    ) -> None:
        self.fn = fn
        self.shape = InputShape(fn, ToolRunContext)
        self.name: str = name or self.shape.name
        if not is_text(self.name):
            raise DefinitionError(f"name={short(self.name)} is no name of a tool: give a text that can be stored")
        self.description: str = description if description is not None else self.shape.description
        self.options: ToolOptions = options or ToolOptions()
        self.allow: tuple[Verb, ...] = ("respond", "restart")
        self.response: Json = None
        self.inner: FindTool | None = None
        """The tools of the agent that this is, where it is one."""
        target = inspect.unwrap(fn)
        self.is_async: bool = inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
            getattr(target, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """What a model is told about the input."""
        return self.shape.schema

    @functools.cached_property
    def output_schema(self) -> Mapping[str, Any] | None:
        """The schema of the declared return type, where there is one."""
        return self.shape.output_schema()

    @functools.cached_property
    def definition(self) -> ToolDefinition:
        """What a model is told about it."""
        return ToolDefinition(self.name, self.description, self.input_schema, self.output_schema)

    @functools.cached_property
    def version(self) -> str:
        """Changes when the input schema does; a pause keeps it, so that old approvals do not fit new tools."""
        return digest(self.name, self.input_schema)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


FindTool: TypeAlias = Callable[[str], Tool[..., Any] | None]


class InterruptTool(Tool[..., Any]):
    """A tool without a body: each call pauses until somebody responds. It cannot be restarted."""

    def __init__(self, name: str, description: str, input_schema: Any = None, output_schema: Any = None) -> None:
        fn = _ask(name, input_schema)
        super().__init__(fn, name=name, description=description)
        self.allow = ("respond",)
        self.response = _response_schema(output_schema)


def _ask(name: str, input_schema: Any) -> Callable[..., Any]:
    async def ask(**_: Any) -> Any:
        raise AssertionError("a respond-only tool has no body")

    if input_schema is None:
        parameters: list[inspect.Parameter] = []
    elif isinstance(input_schema, Mapping):
        raise DefinitionError("input_schema= takes a type: a model, a dataclass or a TypedDict")
    else:
        parameters = [inspect.Parameter("input", inspect.Parameter.KEYWORD_ONLY, annotation=input_schema)]
    ask.__name__ = name
    ask.__signature__ = inspect.Signature(parameters)
    ask.__annotations__ = {p.name: p.annotation for p in parameters}
    return ask


class _Options(TypedDict, total=False):
    """The fields of ToolOptions."""

    approval: Approval | None
    on_error: OnError
    retries: int
    backoff: float | Backoff | Callable[[int], float] | None
    timeout: float | None
    idempotent: bool
    sequential: bool


@overload
def tool(
    fn: Callable[P, R], *, name: str | None = None, description: str | None = None, **options: Unpack[_Options]
) -> Tool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[_Options]
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Unpack[_Options],
) -> Any:
    """Makes a tool that is registered nowhere: `tool(fn)`, `@tool` or `@tool(name=..., retries=...)`."""

    def make(fn: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(fn, name=name, description=description, options=ToolOptions(**options))

    return make if fn is None else make(fn)


async def _in_thread(body: Callable[[], Any], late: Callable[[Any], None]) -> Any:
    """Runs it in a thread of its own: a body that never returns must not keep others from starting, nor Python from ending.

    If nobody waits for it any more when it has returned, `late` gets its result.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    work = (loop, future, contextvars.copy_context(), body, late)
    threading.Thread(target=_threaded, args=work, name="adjourn-tool", daemon=True).start()
    try:
        return await future
    finally:
        del future, work  # as in `_stoppable`


def _threaded(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[Any]",
    context: contextvars.Context,
    body: Callable[[], Any],
    late: Callable[[Any], None],
) -> None:
    value, error = None, None
    try:
        value = context.run(body)
    except StopIteration as e:  # a future cannot hold it, and would wait for ever
        error = RuntimeError("the tool raised StopIteration")
        error.__cause__ = e
    except BaseException as e:  # noqa: BLE001 - also an Interrupt; it belongs to whoever waits
        error = e
    try:
        # Only the loop can tell whether somebody still waits: a cancellation may be on its way.
        loop.call_soon_threadsafe(_settle, future, value, error, late)
    except RuntimeError:  # the loop is closed: nobody waits any more
        if error is None:
            late(value)
    finally:
        del future, error


def _settle(
    future: "asyncio.Future[Any]", value: Any, error: BaseException | None, late: Callable[[Any], None]
) -> None:
    if not future.done():
        future.set_result(value) if error is None else future.set_exception(error)
    elif error is None:
        late(value)


RAN_ON = "the tool ran on"
"""The argument of a CancelledError where the body was told to stop and did not."""

_GRACE = 1.0  # seconds that a body has for its `finally` blocks
_left_behind: set[asyncio.Future[Any]] = set()  # the loop itself holds its tasks weakly


async def _stoppable(body: Awaitable[Any], late: Callable[[Any], None]) -> Any:
    """Awaits the body in a task of its own, which is left behind where it has not ended a little after its cancellation."""
    loop = asyncio.get_running_loop()
    # A future of our own: a shielded task would cost one more round of the event loop.
    over: asyncio.Future[None] = loop.create_future()
    task = loop.create_task(_telling(over, body))
    task.add_done_callback(functools.partial(_ended, over, body))
    try:
        await over
    except asyncio.CancelledError:
        task.cancel()
        try:
            await asyncio.wait((task,), timeout=_GRACE)
        finally:
            ran_on = not task.done()
            _left_behind.add(task)
            task.add_done_callback(functools.partial(_ended_late, late))
        if ran_on:
            raise asyncio.CancelledError(RAN_ON) from None
        raise
    else:
        return task.result()
    finally:
        # It holds what was raised, whose traceback holds this frame: together they would wait for the collector.
        del task


async def _telling(over: "asyncio.Future[None]", body: Awaitable[Any]) -> Any:
    try:
        return await body
    finally:
        if not over.done():
            over.set_result(None)


def _ended(over: "asyncio.Future[None]", body: Awaitable[Any], task: "asyncio.Task[Any]") -> None:
    """One that was cancelled before it began tells nobody, and Python would warn of a body that was never awaited."""
    if not over.done():
        over.set_result(None)
    if task.cancelled() and inspect.iscoroutine(body):
        body.close()


def _ended_late(late: Callable[[Any], None], task: asyncio.Future[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled() and task.exception() is None:
        late(task.result())


async def run_body(
    tool: Tool[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], late: Callable[[Any], None]
) -> Any:
    """Runs the function, a sync one in a thread, and takes a lone Interrupt out of exception groups.

    A thread cannot be stopped, and a coroutine need not heed a cancellation. Where the caller is cancelled meanwhile,
    `late` gets what the body returned all the same, and nobody waits for it.
    """
    try:
        if tool.is_async:
            value = await _stoppable(cast(Awaitable[Any], tool.fn(*args, **kwargs)), late)
        else:
            value = await _in_thread(functools.partial(tool.fn, *args, **kwargs), late)
            if inspect.isawaitable(value):
                value = await value
        return value
    except BaseExceptionGroup as group:
        interrupts, rest = group.split(Interrupt)
        if interrupts is None:
            raise
        if rest is None:
            raise _first(interrupts) from None
        first = _first(interrupts)
        note = f"(a pause was raised beside this error and gave way to it; its payload was {first.payload!r})"
        rest.add_note(note)
        raise rest from None


def _first(group: BaseExceptionGroup[Any]) -> Interrupt:
    inner: Any = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner  # pyright: ignore[reportUnknownArgumentType]
