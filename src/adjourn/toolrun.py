"""One run of one tool call: its checks first, then the body with retries and timeout, and what came of it."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from adjourn.errors import InvalidRequest, NotJSON, ResumeError
from adjourn.events import CallRejected, Event, Json, Pause, ToolInterrupted, ToolRaised, ToolReturned
from adjourn.notices import tell_retry, tool_step
from adjourn.observe import Watched
from adjourn.parts import ErrorInfo, Metadata, Part, as_metadata, convert, named, new_id, storable, to_json, told
from adjourn.resume import check_rerun
from adjourn.schema import Misfit
from adjourn.setting import Progress, Setting
from adjourn.state import Call
from adjourn.tool import RAN_ON, AbortSignal, Interrupt, InterruptTool, Tool, ToolOutput, ToolRunContext, run_body


@dataclass(frozen=True, slots=True)
class Outcome:
    event: Event
    cause: BaseException | None = None


class Run:
    """One run of one call: checks first, then the body with its retries."""

    __slots__ = ("_setting", "_took", "args", "call", "context", "kwargs", "tool")

    def __init__(self, setting: Setting, call: Call, took: Callable[[], float]) -> None:
        self._setting = setting
        self._took = took
        self.call = call
        self.tool = setting.tools.get(call.request.name)
        self.args: Sequence[Any] = ()
        self.kwargs: Mapping[str, Any] = {}
        self.context = ToolRunContext(
            call.id,
            (setting.key, call.id, call.input, *([call.branch] if call.branch else [])),
            1,
            call.restarts,
            call.request.input,
            setting.context,
            setting.session,
            setting.signal or AbortSignal(),
            partial(
                _report, setting, call
            ),  # not a method: a run and its context that hold each other outlive the turn
            call.retried,
            answers_inside=call.answers_inside,
        )

    @property
    def alone(self) -> bool:
        return self.tool is not None and self.tool.options.sequential

    async def prepare(self) -> Outcome | None:
        """Checks the arguments and the gate: what keeps the body from running, or None where it is to run."""
        call, tool = self.call, self.tool
        try:
            check_rerun(call, self._setting.tools.get)
        except ResumeError as e:
            text = f"tool {call.request.name!r} was not run again: {told(e)}"
            info = ErrorInfo(e.status, text, "ToolFailed", {"tool": call.request.name})
            return Outcome(ToolRaised(call.id, info), e)
        if tool is None:
            known = ", ".join(sorted(self._setting.tools)) or "none"
            text = f"there is no tool {call.request.name!r}; the tools are: {known}"
            return Outcome(CallRejected(call.id, text, "unknown_tool"))
        malformed = call.part.ours.get("malformed")
        try:
            if malformed:
                raise Misfit([{"path": "$", "message": str(malformed)}])
            self.args, self.kwargs = tool.shape.arguments(call.input, self.context)
        except Misfit as e:
            text = f"the arguments of tool {tool.name!r} are not valid: {told(e)}. Correct them and call again"
            return Outcome(CallRejected(call.id, text))
        if isinstance(tool, InterruptTool):
            pause = self._pause(Interrupt(call.input, allow=("respond",)), "tool", tool.response)
            return Outcome(ToolInterrupted(call.id, pause))
        try:
            if tool.options.approval and not call.restarts and await self._needs_approval(tool):
                pause = self._pause(Interrupt({"approval": tool.name, "input": call.input}), "approval")
                return Outcome(ToolInterrupted(call.id, pause))
        except Interrupt as interrupt:
            return Outcome(ToolInterrupted(call.id, self._pause(interrupt, interrupt.reason)))
        except Exception as e:  # noqa: BLE001 - whatever a predicate raises must not open the gate
            return self._failed(tool, e)
        return None

    async def _needs_approval(self, tool: Tool[..., Any]) -> bool:
        approval = tool.options.approval
        if not callable(approval):
            return bool(approval)
        needed = approval(tool.shape.validated(self.args, self.kwargs), self.context)
        needed = await needed if inspect.isawaitable(needed) else needed
        self.args, self.kwargs = tool.shape.arguments(self.call.input, self.context)  # the predicate's are its own
        return bool(needed)

    def _pause(self, interrupt: Interrupt, reason: str, response: Json = None) -> Pause:
        tool = self.tool
        expires = None
        if interrupt.expires_in is not None:
            expires = self._setting.clock.now() + interrupt.expires_in
        return Pause(
            new_id("i_"),
            interrupt.payload,
            interrupt.response if response is None else response,
            interrupt.allow,
            reason,
            expires,
            interrupt.on_expiry,
            interrupt.version if interrupt.version is not None else tool.version if tool is not None else "",
            interrupt.path,
        )

    async def body(self) -> Outcome:
        """Runs the tool, again where it may, and says what came of it."""
        tool, setting = self.tool, self._setting
        assert tool is not None
        options = tool.options
        observers = setting.observers
        failures = 0
        while True:
            try:
                if observers:
                    with Watched(observers, tool_step(setting, tool.name, self.call, self.context.attempt)) as seen:
                        value = seen.result = await self._attempt(tool)
                else:
                    value = await self._attempt(tool)
                return self._returned(value)
            except Interrupt as interrupt:
                return Outcome(ToolInterrupted(self.call.id, self._pause(interrupt, interrupt.reason), self._took()))
            except asyncio.CancelledError as e:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return self._failed(tool, e)
            except Exception as e:  # noqa: BLE001 - a tool may raise anything; on_error says who is told
                failures += 1
                if failures > options.retries or isinstance(e, NotJSON):
                    return self._failed(tool, e)
                try:
                    delay = options.delay(failures)
                except Exception as broken:  # noqa: BLE001 - the caller's code, too
                    return self._failed(tool, broken)
                if observers:
                    tell_retry(setting, tool.name, self.call, self.context.attempt, e, delay)
                if delay > 0:
                    await setting.clock.sleep(delay)
                self.context.attempt += 1
                # What the failed attempt did to its arguments must not reach the next.
                self.args, self.kwargs = tool.shape.arguments(self.call.input, self.context)

    def _late(self, value: Any) -> None:
        """The result of a body that ran on after an abort or a timeout; called in its thread."""
        journal = self._setting.journal
        if journal is not None and self.tool is not None and not self.tool.options.idempotent:
            journal.late(self.call.id, to_json(value.value if isinstance(value, ToolOutput) else value, "late result"))

    async def _attempt(self, tool: Tool[..., Any]) -> Any:
        timeout = tool.options.timeout
        if timeout is None:
            return await run_body(tool, self.args, self.kwargs, self._late)
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                return await run_body(tool, self.args, self.kwargs, self._late)
        except TimeoutError as e:
            if not scope.expired():
                raise
            note = "" if tool.is_async else " It runs in a thread, which cannot be stopped: it may still take effect."
            if RAN_ON in getattr(e.__cause__, "args", ()):
                note = " It was cancelled and did not stop: it may still take effect."
            raise TimeoutError(f"tool {tool.name!r} took longer than {timeout:g} s.{note}") from e

    def _returned(self, value: Any) -> Outcome:
        content: Sequence[Part] | None = None
        metadata: Metadata | None = None
        if isinstance(value, ToolOutput):
            metadata = as_metadata(value.metadata, "tool output metadata")
            content, value = _parts(value.content) or None, value.value
        if isinstance(value, Interrupt):
            raise NotJSON("$", "is an Interrupt. To pause, raise it: raise Interrupt(...)", "tool result")
        return Outcome(ToolReturned(self.call.id, to_json(value, "tool result"), content, metadata, self._took()))

    def _failed(self, tool: Tool[..., Any], error: BaseException) -> Outcome:
        name, text = type(error).__name__, named(error)
        took = self._took()
        if tool.options.on_error == "interrupt":
            interrupt = Interrupt({"error": name, "message": told(error), "attempts": self.context.attempt})
            return Outcome(ToolInterrupted(self.call.id, self._pause(interrupt, "error"), took))
        info = ErrorInfo("INTERNAL", text, name)
        if tool.options.on_error == "model":
            return Outcome(ToolRaised(self.call.id, info, "model", took))
        info = ErrorInfo("INTERNAL", f"tool {tool.name!r} failed: {text}", "ToolFailed", {"tool": tool.name})
        return Outcome(ToolRaised(self.call.id, info, "caller", took, self.context.answered), error)


def _report(setting: Setting, call: Call, fraction: float | None, text: str) -> None:
    if setting.sink is not None:
        setting.sink(Progress(call.id, call.request.name, fraction, storable(str(text))))


def _parts(content: Sequence[Any]) -> list[Part]:
    """The content of a ToolOutput, with texts as parts; checked here, so that what is stored can be read back."""
    try:
        parts = [Part(text=item) if isinstance(item, str) else item for item in content]
        return convert(to_json(parts, "content"), list[Part])
    except (TypeError, ValueError, InvalidRequest) as e:
        raise NotJSON("$.content", f"holds something that is no part: {e}", "tool output") from e
