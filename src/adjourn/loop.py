"""The only driver of a turn: step, effect, event, commit.

It asks the turn machine what comes next, does that (a model call, some tools, a handler), records what happened and goes
on until the turn rests. What has to be durable is handed to a journal; where there is none, nothing is kept for one.

When is what durable? A tool run that is not idempotent: its start before its body runs. A pause and an end: before anyone
is told. A tool's result: while the model is being called, and before anything else. Where the model answers without
waiting, the result and the reply share one commit.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from adjourn.answer import Abort, Answer, PausedCall
from adjourn.clock import SYSTEM, Clock
from adjourn.errors import AdjournError, ModelError, NotJSON
from adjourn.events import (
    CallRejected,
    Declined,
    Event,
    Json,
    ModelReplied,
    OutputRejected,
    Pause,
    Responded,
    Restarted,
    ToolInterrupted,
    ToolRaised,
    ToolReturned,
    ToolStarted,
    TurnEnded,
)
from adjourn.model import Model, ModelReply, ModelRequest, ToolDefinition
from adjourn.observe import Observed, Observer, observed
from adjourn.parts import OURS, Chunk, ErrorInfo, Message, Part, digest, new_id, to_json
from adjourn.resume import decide
from adjourn.schema import Misfit, TypeShape
from adjourn.state import Call, CallModel, Finished, Paused, RunTools, Turn
from adjourn.tool import AbortSignal, Interrupt, InterruptTool, Tool, ToolOutput, ToolRunContext, run_body
from adjourn.transcript import check_sendable, written
from adjourn.turn import next_step, record

Handler: TypeAlias = Callable[[PausedCall], Any]
Handlers: TypeAlias = "Handler | Mapping[str, Handler] | None"
Prepare: TypeAlias = Callable[[ModelRequest], Any]
Sink: TypeAlias = Callable[["Chunk | Progress | PausedCall"], None]


class Journal(Protocol):
    """Where events become durable."""

    async def commit(self, turn: Turn, events: Sequence[Event], rest: "Paused | Finished | None") -> Sequence[Event]:
        """Keeps these events; `turn` is the state after them. `rest` is set where the turn comes to rest with them.

        Returns decisions that were made elsewhere meanwhile; with any, a pause is no rest and the turn goes on.
        Cancelling the caller must not undo a commit.
        """
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running tool reported; `fraction` is from 0 to 1 or None."""

    call_id: str
    tool: str
    fraction: float | None
    text: str


@dataclass(slots=True)
class Setting:
    """What a turn is run with. Nothing in it belongs to one turn alone but `key`, `sink`, `signal` and `journal`."""

    model: Model
    tools: Mapping[str, Tool[..., Any]] = field(default_factory=dict[str, Tool[..., Any]])
    definitions: Sequence[ToolDefinition] = ()
    system: Message | None = None
    config: Any = None
    output: TypeShape | None = None
    prepare: Prepare | None = None
    handlers: Mapping[str, Handler] | None = None
    context: Any = None
    session: Any = None
    signal: AbortSignal | None = None
    sink: Sink | None = None
    journal: Journal | None = None
    clock: Clock = SYSTEM
    observers: Sequence[Observer] = ()
    key: str = ""


_NO_SIGNAL = AbortSignal()


class Driver:
    """Runs one leg of a turn: from where it stands to where it rests.

    After `run`, `turn` is the state reached; `cause` is the exception behind a failure; `value` is the parsed `output=`.
    """

    def __init__(self, turn: Turn, setting: Setting) -> None:
        self.turn = turn
        self.setting = setting
        self.cause: BaseException | None = None
        self.value: Any = None
        self.request: ModelRequest | None = None
        self.ran_tools = False
        self._index = 0
        self._unsaved: list[Event] = []
        self._announced = {c.pause.id for c in turn.paused if c.pause is not None}
        self._saving: asyncio.Task[Any] | None = None
        self._firm = False  # whether a commit has been made in this leg, so that it is ours
        self._decided = False
        self._mark = 0.0

    async def run(self) -> Paused | Finished:
        """Goes on until the turn is paused or finished. An abort by the signal is an end; a cancelled task is raised on."""
        signal = self.setting.signal
        task = asyncio.current_task()
        if signal is None or task is None:
            return await self._run()
        forget = signal.on_abort(task.cancel)
        try:
            return await self._run()
        except asyncio.CancelledError:
            if not signal.aborted or task.uncancel() > 0:
                raise
            return Finished(self.turn.ended or TurnEnded("aborted"))
        finally:
            forget()

    async def _run(self) -> Paused | Finished:
        self._mark = self.setting.clock.monotonic()
        try:
            while True:
                step = next_step(self.turn)
                if isinstance(step, CallModel):
                    await self._call_model(step)
                elif isinstance(step, RunTools):
                    await self._run_tools(step.calls)
                elif isinstance(step, Finished):
                    return await self._finish(step)
                elif isinstance(step, Paused):
                    if self.setting.handlers is None or not await self._handled(step):
                        if await self._rests(step):
                            return step
                else:
                    raise AssertionError("nothing to do, and nothing is running")
        except asyncio.CancelledError:
            await asyncio.shield(self._aborted())
            raise

    # -- recording ---------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Records an event, to be kept with the next commit."""
        self.turn = record(self.turn, event)
        if self.setting.journal is not None:
            self._unsaved.append(event)

    def taken(self, turn: Turn, events: Sequence[Event], *, decided: bool = True) -> None:
        """The state after events that were checked already (decisions, a retry), to be kept with the next commit.

        Decisions are kept before a model is called: one that comes too late must cause nothing.
        """
        self.turn = turn
        self._decided = decided
        if self.setting.journal is not None:
            self._unsaved.extend(events)

    async def flush(self, rest: Paused | Finished | None = None) -> Sequence[Event]:
        """Returns when everything recorded is durable, with the decisions that came from elsewhere."""
        if self.setting.journal is None:
            return ()
        while (saving := self._saving) is not None:
            try:
                await asyncio.shield(saving)  # whoever cancels us must not cancel a commit
            finally:
                if saving.done():
                    self._saving = None
        return await self._save(rest) if self._unsaved or rest is not None else ()

    async def _save(self, rest: Paused | Finished | None = None) -> Sequence[Event]:
        events, self._unsaved = self._unsaved, []
        if self.setting.journal is None or not (events or rest is not None):
            return ()
        self._firm = True
        return await self.setting.journal.commit(self.turn, events, rest)

    def _flush_soon(self) -> None:
        # The task starts when the model call first waits. Until then events gather, and share its commit.
        if self.setting.journal is not None and self._unsaved and self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save())

    def took(self) -> float:
        now = self.setting.clock.monotonic()
        took, self._mark = now - self._mark, now
        return took

    async def _finish(self, step: Finished) -> Finished:
        if self.turn.ended is None:
            self.put(step.end)
        await self.flush(step)
        return step

    async def _rests(self, step: Paused) -> bool:
        news = await self.flush(step)
        for event in news:
            self.put(event)
        if not news:
            self._announce(step.calls)
        return not news

    async def _aborted(self) -> None:
        if self.turn.ended is None:
            signal = self.setting.signal
            reason = signal.reason if signal is not None and signal.aborted else "the task was cancelled"
            self.put(TurnEnded("aborted", ErrorInfo("CANCELLED", reason, "Aborted")))
        await self.flush(Finished(self.turn.ended or TurnEnded("aborted")))

    def _announce(self, calls: Sequence[Call]) -> None:
        """Tells the watcher of each new pause, once."""
        sink = self.setting.sink
        if sink is not None:
            for call in calls:
                if call.pause is not None and call.pause.id not in self._announced:
                    self._announced.add(call.pause.id)
                    sink(paused_call(call))

    # -- the model ---------------------------------------------------------------------------------------------------

    async def _call_model(self, step: CallModel) -> None:
        setting = self.setting
        messages = step.messages if setting.system is None else (setting.system, *step.messages)
        shape = setting.output
        request = ModelRequest(
            messages, setting.definitions, setting.config, shape.schema if shape else None, setting.sink is not None
        )
        if setting.prepare is not None:
            request = setting.prepare(request)
            if inspect.isawaitable(request):
                request = await request
            check_sendable(request.messages)
        self.request = request
        if self._decided and not self._firm:
            await self.flush()
        self._flush_soon()
        try:
            with observed(setting.observers, seen := Observed("model", setting.model.name, {"key": setting.key})):
                reply = await setting.model(request, self._emit)
                seen.result = reply
        except (AdjournError, Exception) as e:
            self._model_failed(e)
            return
        self._replied(reply)

    def _emit(self, chunk: Chunk) -> None:
        sink = self.setting.sink
        if sink is None:
            return
        content = chunk.content
        if any(p.tool_request is not None for p in content):
            # Half-made requests are no news: what runs and what pauses is told by the driver, once.
            content = [p for p in content if p.tool_request is None]
            if not content:
                return
        if chunk.index != self._index or content is not chunk.content:
            chunk = Chunk(chunk.role, self._index, content, chunk.metadata)
        sink(chunk)

    def _model_failed(self, error: Exception) -> None:
        name = self.setting.model.name
        if not isinstance(error, AdjournError):
            cause, error = error, ModelError(f"model {name!r} failed: {type(error).__name__}: {error}", provider=name)
            error.__cause__ = cause
        self.cause = error
        status = error.status if isinstance(error, AdjournError) else "INTERNAL"
        self.put(TurnEnded("failed", ErrorInfo(status, str(error), type(error).__name__)))

    def _replied(self, reply: ModelReply) -> None:
        message = reply.message
        self._index += 1
        ids = tuple([new_id("c_") for p in message.content if p.tool_request is not None])
        self.put(ModelReplied(message, ids, reply.finish_reason, reply.usage, self.took()))
        if self.setting.output is not None and not ids and reply.finish_reason in ("stop", "length", "other"):
            try:
                self.value = self.setting.output.parse(message.text)
            except Misfit as e:
                self.put(OutputRejected(f"Your reply does not fit the required output: {e}. Reply again, with nothing but the corrected JSON."))

    # -- tools -------------------------------------------------------------------------------------------------------

    async def _run_tools(self, calls: Sequence[Call]) -> None:
        runs: list[_Run] = []
        now = self.setting.clock.now() if any(c.due for c in calls) else 0.0
        due = [c for c in calls if c.due is None or c.due <= now]
        if not due:
            await self.flush()
            await self.setting.clock.sleep(min(c.due or now for c in calls) - now)
            return
        for call in due:
            run = _Run(self, call, self.setting.tools.get(call.request.name))
            if run.alone and runs:
                break
            if await run.prepare():
                runs.append(run)
            if run.alone:
                break
        journaled = [r for r in runs if r.tool is not None and not r.tool.options.idempotent]
        if runs and self.setting.journal is not None and (journaled or not self._firm):
            for run in journaled:
                self.put(ToolStarted(run.call.id))
            await self.flush()  # nothing runs before the leg is known to be ours
        if len(runs) == 1:
            await self._ran(await runs[0].body(), last=True)
        elif runs:
            await self._run_together(runs)
        self._tell_results()

    async def _run_together(self, runs: Sequence["_Run"]) -> None:
        tasks = [asyncio.ensure_future(r.body()) for r in runs]
        try:
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await self._ran(task.result(), last=not pending)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)  # their `finally` blocks run; one that will not end is left behind
            raise

    async def _ran(self, outcome: "_Outcome", last: bool) -> None:
        self.ran_tools = True
        if outcome.cause is not None and self.cause is None:
            self.cause = outcome.cause
        self.put(outcome.event)
        if not last:
            await self.flush()
            if isinstance(outcome.event, ToolInterrupted) and self.setting.handlers is None:
                self._announce([c for c in self.turn.paused if c.id == outcome.event.call])

    def _tell_results(self) -> None:
        sink = self.setting.sink
        if self.turn.open is None and self.turn.added and self.turn.added[-1].role == "tool":
            if sink is not None:
                sink(Chunk("tool", self._index, self.turn.added[-1].content))
            self._index += 1

    def progress(self, call: Call, fraction: float | None, text: str) -> None:
        """Tells the watcher what a tool reported."""
        if self.setting.sink is not None:
            self.setting.sink(Progress(call.id, call.request.name, fraction, text))

    # -- handlers ----------------------------------------------------------------------------------------------------

    async def _handled(self, step: Paused) -> bool:
        """Asks the handlers; says whether any of them decided."""
        handlers = self.setting.handlers or {}
        decided = False
        for call in step.calls:
            handler = handlers.get(call.request.name) or handlers.get("*")
            if handler is None:
                continue
            await self.flush()  # the pause is durable before anyone decides on it
            answer = handler(paused_call(call))
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, Abort):
                self.put(TurnEnded("failed", ErrorInfo("ABORTED", answer.reason, "HandlerAborted")))
                return True
            if answer is not None:
                self._decide(answer, handler)
                decided = True
        if decided:
            self._tell_results()
        return decided

    def _decide(self, answer: Any, handler: Handler) -> None:
        if not isinstance(answer, Answer):
            name = getattr(handler, "__name__", repr(handler))
            raise TypeError(
                f"handler {name} returned {answer!r}; return interrupt.respond(...), .restart(...), .decline(...), "
                "Abort(...) or None"
            )
        by = f"handler:{getattr(handler, '__name__', type(handler).__name__)}"
        now = self.setting.clock.now()
        _, events = decide(self.turn, [answer], self.setting.tools.get, now)
        for event in events:
            self.put(_signed(event, by))


def _signed(event: Any, by: str) -> Event:
    if isinstance(event, Responded):
        return Responded(event.interrupt, event.output, event.metadata, by)
    if isinstance(event, Restarted):
        return Restarted(event.interrupt, event.metadata, event.input, by, event.due)
    return Declined(event.interrupt, event.reason, by)


def paused_call(call: Call) -> PausedCall:
    """The handle on a paused call, with the part as the transcript shows it."""
    assert call.pause is not None
    return PausedCall(written(call.part, call), call.pause, call.id)


@dataclass(frozen=True, slots=True)
class _Outcome:
    event: Event
    cause: BaseException | None = None


class _Run:
    """One run of one call: checks first, then the body with its retries."""

    __slots__ = ("args", "call", "context", "driver", "kwargs", "tool")

    def __init__(self, driver: Driver, call: Call, tool: Tool[..., Any] | None) -> None:
        self.driver = driver
        self.call = call
        self.tool = tool
        self.args: Sequence[Any] = ()
        self.kwargs: Mapping[str, Any] = {}
        setting = driver.setting
        self.context = ToolRunContext(
            call.id,
            digest(setting.key, call.id, call.input),
            1,
            call.restarts,
            call.request.input,
            setting.context,
            setting.session,
            setting.signal or _NO_SIGNAL,
            self._progress,
        )

    @property
    def alone(self) -> bool:
        return self.tool is not None and self.tool.options.sequential

    def _progress(self, fraction: float | None, text: str) -> None:
        self.driver.progress(self.call, fraction, text)

    async def prepare(self) -> bool:
        """Whether the body is to run. What keeps it from running is recorded."""
        call, tool, driver = self.call, self.tool, self.driver
        if tool is None:
            known = ", ".join(sorted(driver.setting.tools)) or "none"
            driver.put(CallRejected(call.id, f"there is no tool {call.request.name!r}; the tools are: {known}", "unknown_tool"))
            return False
        malformed = call.part.ours.get("malformed")
        try:
            if malformed:
                raise Misfit([{"path": "$", "message": str(malformed)}])
            self.args, self.kwargs = tool.shape.arguments(call.input, self.context)
        except Misfit as e:
            driver.put(CallRejected(call.id, f"the arguments of tool {tool.name!r} are not valid: {e}. Correct them and call again"))
            return False
        if isinstance(tool, InterruptTool):
            driver.put(ToolInterrupted(call.id, self._pause(Interrupt(call.input, allow=("respond",)), "tool", tool.response)))
            return False
        try:
            if tool.options.approval and not call.restarts and await self._needs_approval(tool):
                pause = self._pause(Interrupt({"approval": tool.name, "input": call.input}), "approval")
                driver.put(ToolInterrupted(call.id, pause))
                return False
        except Exception as e:  # a predicate that fails must not open the gate
            outcome = self._failed(tool, e)
            driver.cause = driver.cause or outcome.cause
            driver.put(outcome.event)
            return False
        return True

    async def _needs_approval(self, tool: Tool[..., Any]) -> bool:
        approval = tool.options.approval
        if not callable(approval):
            return bool(approval)
        needed = approval(tool.shape.validated(self.args, self.kwargs), self.context)
        return bool(await needed if inspect.isawaitable(needed) else needed)

    def _pause(self, interrupt: Interrupt, reason: str, response: Json = None) -> Pause:
        tool = self.tool
        expires = None
        if interrupt.expires_in is not None:
            expires = self.driver.setting.clock.now() + interrupt.expires_in
        return Pause(
            new_id("i_"),
            interrupt.payload,
            interrupt.response if response is None else response,
            interrupt.allow,
            reason,
            expires,
            interrupt.on_expiry,
            tool.version if tool is not None else "",
            interrupt.path,
        )

    async def body(self) -> _Outcome:
        """Runs the tool, again where it may, and says what came of it."""
        tool, driver = self.tool, self.driver
        assert tool is not None
        options = tool.options
        observers = driver.setting.observers
        failures = 0
        while True:
            try:
                if observers:
                    facts = {"key": driver.setting.key, "call_id": self.call.id, "attempt": self.context.attempt}
                    with observed(observers, seen := Observed("tool", tool.name, facts)):
                        value = seen.result = await self._attempt(tool)
                else:
                    value = await self._attempt(tool)
                return self._returned(value)
            except Interrupt as interrupt:
                return _Outcome(ToolInterrupted(self.call.id, self._pause(interrupt, interrupt.reason), driver.took()))
            except asyncio.CancelledError as e:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return self._failed(tool, e)
            except Exception as e:
                failures += 1
                if failures > options.retries or isinstance(e, NotJSON):
                    return self._failed(tool, e)
                delay = options.delay(failures)
                if delay > 0:
                    await driver.setting.clock.sleep(delay)
                self.context.attempt += 1

    async def _attempt(self, tool: Tool[..., Any]) -> Any:
        timeout = tool.options.timeout
        if timeout is None:
            return await run_body(tool, self.args, self.kwargs)
        try:
            async with asyncio.timeout(timeout) as scope:
                return await run_body(tool, self.args, self.kwargs)
        except TimeoutError as e:
            if not scope.expired():
                raise
            note = "" if tool.is_async else " It runs in a thread, which cannot be stopped: it may still take effect."
            raise TimeoutError(f"tool {tool.name!r} took longer than {timeout:g} s.{note}") from e

    def _returned(self, value: Any) -> _Outcome:
        content: Sequence[Part] | None = None
        metadata = None
        if isinstance(value, ToolOutput):
            content, metadata, value = value.content or None, value.metadata or None, value.value
            metadata = to_json(metadata, "tool output metadata") if metadata else None
        return _Outcome(
            ToolReturned(self.call.id, to_json(value, "tool result"), content, metadata, self.driver.took())
        )

    def _failed(self, tool: Tool[..., Any], error: BaseException) -> _Outcome:
        name = type(error).__name__
        text = f"{name}: {error}" if str(error) else name
        took = self.driver.took()
        if tool.options.on_error == "interrupt":
            interrupt = Interrupt({"error": name, "message": str(error), "attempts": self.context.attempt})
            return _Outcome(ToolInterrupted(self.call.id, self._pause(interrupt, "error"), took))
        info = ErrorInfo("INTERNAL", text, name)
        if tool.options.on_error == "model":
            return _Outcome(ToolRaised(self.call.id, info, "model", took))
        info = ErrorInfo("INTERNAL", f"tool {tool.name!r} failed: {text}", "ToolFailed", {"tool": tool.name})
        return _Outcome(ToolRaised(self.call.id, info, "caller", took), error)


def as_handlers(on_interrupt: Handlers, tools: Mapping[str, Any]) -> Mapping[str, Handler] | None:
    """Handlers by tool name. Raises DefinitionError for the name of a tool that is not there: a gate must not vanish by a typo."""
    from adjourn.errors import DefinitionError

    if on_interrupt is None:
        return None
    if callable(on_interrupt):
        return {"*": on_interrupt}
    unknown = [name for name in on_interrupt if name != "*" and name not in tools]
    if unknown:
        raise DefinitionError(f"on_interrupt= names tools that are not here: {', '.join(unknown)}")
    return on_interrupt


async def finish(value: Any) -> Any:
    """The value, awaited if it has to be."""
    return await value if inspect.isawaitable(value) else value


