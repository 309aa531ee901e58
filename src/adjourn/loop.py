"""The only driver of a turn: step, effect, event, commit.

It asks the turn machine what comes next, does that (a model call, some tools, a handler), records what happened and goes
on until the turn rests. What has to be durable is handed to a journal; where there is none, nothing is kept for one.

When is what durable? A tool run that is not idempotent: its start before its body runs. A pause and an end: before anyone
is told. A tool's result: while the model is being called, and before anything else. Where the model answers without
waiting, the result and the reply share one commit.
"""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from adjourn.answer import Abort, Answer, PausedCall
from adjourn.errors import DefinitionError, InvalidRequest, ModelError, ResumeError
from adjourn.events import (
    Decided,
    Declined,
    Event,
    Expired,
    ModelReplied,
    OutputRejected,
    Responded,
    Restarted,
    ToolStarted,
    TurnEnded,
)
from adjourn.model import ModelReply, ModelRequest, checked_reply
from adjourn.notices import Notices, model_step, replied
from adjourn.observe import Watched
from adjourn.parts import OURS, Chunk, ErrorInfo, named, new_id, storable, told
from adjourn.resume import decide
from adjourn.schema import Misfit
from adjourn.setting import Handler, Setting
from adjourn.state import Call, CallModel, Finished, Paused, RunTools, Turn
from adjourn.toolrun import Outcome, Run
from adjourn.transcript import check_sendable, written
from adjourn.turn import next_step, record


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
        self._soon: asyncio.Handle | None = None
        self._firm = False  # whether a commit has been made in this leg, so that it is ours
        self._decided = False
        self._untold = False
        self._active: set[str] = set()
        self._left_open: set[str] = set()
        self._mark = 0.0
        self._notices = Notices(setting) if setting.observers else None

    async def run(self) -> Paused | Finished:
        """Goes on until the turn is paused or finished. An abort by the signal is an end; a cancelled task is raised on."""
        if self._notices is None:
            return await self._until_rest()
        return await self._notices.leg(self.turn, self._until_rest, lambda: self.turn)

    async def _until_rest(self) -> Paused | Finished:
        signal = self.setting.signal
        task = asyncio.current_task()
        if signal is None or task is None:
            return await self._run()
        loop = asyncio.get_running_loop()
        cancels: list[asyncio.Handle] = []
        left = False

        def cancel() -> None:
            # Through the loop: the abort may come from another thread, or from inside this very task, where a
            # cancellation would hit whatever the caller awaits next.
            loop.call_soon_threadsafe(soon)

        def soon() -> None:
            if not left:
                cancels.append(loop.call_soon(task.cancel))

        forget = signal.on_abort(cancel)
        try:
            return await self._run()
        except asyncio.CancelledError:
            if not signal.aborted or task.uncancel() > 0:
                raise
            return Finished(self.turn.ended or TurnEnded("aborted"))
        finally:
            forget()
            left = True  # an abort that was noticed before its cancellation was even begun must not hit the caller
            for handle in cancels:
                handle.cancel()

    async def one_step(self, step: CallModel | RunTools | Paused) -> None:
        """Does this step, and returns when what came of it is durable: for engines, which choose each step themselves."""
        self._mark = self.setting.clock.monotonic()
        if isinstance(step, CallModel):
            await self._call_model(step)
        elif isinstance(step, RunTools):
            await self._run_tools(step.calls)
        else:
            await self._handled(step)
        await self.flush()

    async def _run(self) -> Paused | Finished:
        self._mark = self.setting.clock.monotonic()
        signal = self.setting.signal
        try:
            while True:
                if signal is not None and signal.aborted:
                    await self._aborted()
                    return Finished(self.turn.ended or TurnEnded("aborted"))
                step = next_step(self.turn)
                if isinstance(step, CallModel):
                    await self._call_model(step)
                elif isinstance(step, RunTools):
                    await self._run_tools(step.calls)
                elif isinstance(step, Finished):
                    return await self._finish(step)
                elif isinstance(step, Paused):
                    handled = self.setting.handlers is not None and await self._handled(step)
                    if not handled and await self._rests(step):
                        return step
                else:
                    raise AssertionError("nothing to do, and nothing is running")
        except asyncio.CancelledError:
            await asyncio.shield(self._aborted())
            raise

    # -- recording ---------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Records an event, to be kept with the next commit."""
        if self._notices is not None:
            self._notices.note(self.turn, event)
        self.turn = record(self.turn, event)
        if self.setting.journal is not None:
            self._unsaved.append(event)

    def taken(self, turn: Turn, events: Sequence[Event], *, before: Turn | None = None, decided: bool = True) -> None:
        """The state after events that were checked already (decisions, a retry), to be kept with the next commit.

        Decisions are kept before a model is called: one that comes too late must cause nothing. `before` is the state that
        they were made on.
        """
        if self._notices is not None:
            for event in events:
                self._notices.note(before or turn, event)
        self.turn = turn
        self._decided = decided
        self._untold = decided and any(isinstance(e, (Responded, Restarted, Declined, Expired)) for e in events)
        if self.setting.journal is not None:
            self._unsaved.extend(events)

    async def flush(self, rest: Paused | Finished | None = None) -> Sequence[Event]:
        """Returns when everything recorded is durable, with the decisions that came from elsewhere."""
        if self.setting.journal is None:
            return ()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        while (saving := self._saving) is not None:
            try:
                await asyncio.shield(saving)  # whoever cancels us must not cancel a commit
            finally:
                if saving.done():
                    self._saving = None
        return await self._save(rest) if self._unsaved or rest is not None else ()

    async def _own(self) -> None:
        """Returns when all is durable, and the leg is known to be ours: before that nothing runs.

        What runs is known by what was recorded: the key of an idempotent tool and the session of a nested agent come from
        the id of their call. A leg that is taken over may have nothing to keep, and is claimed all the same.
        """
        await self.flush()
        if self.setting.journal is not None and not self._firm:
            self._firm = True
            await self.setting.journal.commit(self.turn, (), None)

    async def _save(self, rest: Paused | Finished | None = None) -> Sequence[Event]:
        events, self._unsaved = self._unsaved, []
        if self.setting.journal is None or not (events or rest is not None):
            return ()
        self._firm = True
        if self._notices is None:
            return await self.setting.journal.commit(self.turn, events, rest)
        notices = self._notices.take()
        news = await self.setting.journal.commit(self.turn, events, rest)
        self._notices.tell(notices)
        return news

    def _flush_soon(self) -> None:
        # It begins when the model call first waits. Until then events gather, and share one commit.
        if self.setting.journal is not None and self._unsaved and self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._start_saving)

    def _start_saving(self) -> None:
        self._soon = None
        if self._saving is None:
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
            for call in self.turn.calls:
                if call.id in self._active and call.state == "ready":
                    self.put(ToolStarted(call.id))  # so that its response says that it may have taken effect
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
            try:
                request = setting.prepare(request)
                if inspect.isawaitable(request):
                    request = await request
                if not isinstance(request, ModelRequest):
                    raise TypeError(f"it returned {request!r}; return the ModelRequest that is to be sent")
                check_sendable(request.messages)
            except Exception as e:  # noqa: BLE001 - the caller's code; the turn keeps what it has
                self._failed(e, f"prepare= failed: {named(e)}")
                return
        self.request = request
        if self._decided and not self._firm:
            await self._own()
        if self._untold:
            self._tell_results()  # a round that answers closed, without a tool that ran
        self._flush_soon()
        try:
            if setting.observers:
                with Watched(setting.observers, model_step(setting, request)) as seen:
                    reply = checked_reply(await setting.model(request, self._emit))
                    replied(seen, reply)
            else:
                reply = checked_reply(await setting.model(request, self._emit))
        except Exception as e:  # noqa: BLE001 - whatever a model raises ends the turn, with everything kept
            self._model_failed(e)
            return
        self._replied(reply)

    def _emit(self, chunk: Chunk) -> None:
        sink = self.setting.sink
        if sink is None:
            return
        content = chunk.content
        for part in content:
            if part.tool_request is not None:
                # Half-made requests are no news: what runs and what pauses is told by the driver, once.
                content = [p for p in content if p.tool_request is None]
                if not content:
                    return
                break
        if chunk.index != self._index or content is not chunk.content:
            chunk = Chunk(chunk.role, self._index, content, chunk.metadata)
        sink(chunk)

    def _model_failed(self, error: Exception) -> None:
        name = self.setting.model.name
        self._failed(error, f"model {name!r} failed: {named(error)}")

    def _failed(self, error: Exception, text: str) -> None:
        if isinstance(error, (DefinitionError, InvalidRequest)):  # a plugin says what is wrong with the program
            self.cause = error
            self.put(TurnEnded("failed", ErrorInfo(error.status, told(error), type(error).__name__)))
            return
        if not isinstance(error, ModelError):
            cause, error = error, ModelError(text, provider=self.setting.model.name)
            error.__cause__ = cause
        self.cause = error
        self.put(TurnEnded("failed", ErrorInfo(error.status, told(error), "ModelError")))

    def _replied(self, reply: ModelReply) -> None:
        message = reply.message
        self._index += 1
        ids = tuple([new_id("c_") for p in message.content if p.tool_request is not None])
        self.put(ModelReplied(message, ids, reply.finish_reason, reply.usage, self.took()))
        if self.setting.output is not None and not ids and reply.finish_reason in ("stop", "length", "other"):
            try:
                self.value = self.setting.output.parse(message.text)
            except Misfit as e:
                why = f"Your reply does not fit the required output: {told(e)}. Reply again, with nothing but the corrected JSON."
                self.put(OutputRejected(why))

    # -- tools -------------------------------------------------------------------------------------------------------

    async def _run_tools(self, calls: Sequence[Call]) -> None:
        runs: list[Run] = []
        now = self.setting.clock.now() if any(c.due for c in calls) else 0.0
        due = [c for c in calls if c.due is None or c.due <= now]
        if not due:
            await self.flush()
            await self.setting.clock.sleep(min(c.due or now for c in calls) - now)
            return
        for call in due:
            run = Run(self.setting, call, self.took)
            if run.alone and runs:
                break
            outcome = await run.prepare()
            if outcome is None:
                runs.append(run)
            else:
                self._note(outcome)
            if run.alone:
                break
        if runs and self.setting.journal is not None:
            for run in runs:
                if run.tool is not None and not run.tool.options.idempotent:
                    self.put(ToolStarted(run.call.id))
            await self._own()
        self._active = {r.call.id for r in runs}
        if len(runs) == 1:
            self._ran(await runs[0].body())
        elif runs:
            await self._run_together(runs)
        self._active = set()
        self._tell_results()

    async def _run_together(self, runs: Sequence[Run]) -> None:
        tasks = [asyncio.ensure_future(r.body()) for r in runs]
        told: set[asyncio.Task[Outcome]] = set()
        try:
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:  # in the order of the requests, which a set does not keep
                    if task in done:
                        told.add(task)
                        self._ran(task.result())
                if pending:  # a result is durable, and a pause is told, while the siblings still run
                    await self.flush()
                    if self.setting.handlers is None:
                        self._announce(self.turn.paused)
        except BaseException:
            finished = [t for t in tasks if t.done() and t not in told and not t.cancelled() and not t.exception()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)  # their `finally` blocks run; one that will not end is left behind
            for task in finished:
                self._note(task.result())  # it had ended by itself: its result counts
            raise

    def _ran(self, outcome: Outcome) -> None:
        self.ran_tools = True
        self._note(outcome)

    def _note(self, outcome: Outcome) -> None:
        if outcome.cause is not None and self.cause is None:
            self.cause = outcome.cause
        self.put(outcome.event)

    def _tell_results(self) -> None:
        sink = self.setting.sink
        if self.turn.open is None and self.turn.added and self.turn.added[-1].role == "tool":
            self._untold = False
            if sink is not None:
                # With what was asked for, which was no news of its own: whoever builds the messages anew needs it.
                asked = [p for p in self.turn.added[-2].content if p.tool_request is not None]
                sink(Chunk("tool", self._index, self.turn.added[-1].content, {OURS: {"requests": asked}}))
            self._index += 1

    # -- handlers ----------------------------------------------------------------------------------------------------

    async def _handled(self, step: Paused) -> bool:
        """Asks the handlers; says whether anything was decided.

        A decision that somebody else made while a handler thought is the one that counts.
        """
        handlers = self.setting.handlers or {}
        decided = False
        for call in step.calls:
            handler = handlers.get(call.request.name) or handlers.get("*")
            pause = call.pause
            if handler is None or pause is None or pause.id in self._left_open or not self._waits(call):
                continue
            await self.flush()  # the pause is durable before anyone decides on it
            asked, events, end, cause = self.turn, list[Event](), None, self.cause
            try:
                answer = handler(paused_call(call))
                if inspect.isawaitable(answer):
                    answer = await answer
                if isinstance(answer, Abort):
                    end = TurnEnded("failed", ErrorInfo("ABORTED", answer.reason, "HandlerAborted"))
                elif answer is None:
                    self._left_open.add(pause.id)  # for somebody else: its handler is not asked twice
                else:
                    events = self._decisions(answer, handler)
            except Exception as e:  # noqa: BLE001 - the caller's code; its pause stays open for somebody else
                text = f"the on_interrupt handler of tool {call.request.name!r} failed: {named(e)}"
                end, cause = TurnEnded("failed", ErrorInfo("INTERNAL", text, "HandlerFailed")), e
            if end is not None:
                if await self._decided_elsewhere(step) and not self._waits(call):
                    decided = True
                    continue
                self.cause = cause
                self.put(end)
                return True
            if not events:
                continue
            for event in events:
                self.put(event)
            decided = True
            try:
                await self.flush()  # nothing follows from it before it counts
            except ResumeError:
                self.turn = asked
                if not await self._decided_elsewhere(step):
                    raise
        if decided:
            self._tell_results()
        return decided

    def _waits(self, call: Call) -> bool:
        return any(c.id == call.id for c in self.turn.paused)

    async def _decided_elsewhere(self, step: Paused) -> bool:
        """Takes up what others decided on these pauses meanwhile; says whether there was anything."""
        news = await self.flush(step)
        for event in news:
            self.put(event)
        await self.flush()
        return bool(news)

    def _decisions(self, answer: Any, handler: Handler) -> list[Event]:
        if not isinstance(answer, Answer):
            name = getattr(handler, "__name__", repr(handler))
            raise TypeError(
                f"handler {name} returned {answer!r}; return interrupt.respond(...), .restart(...), .decline(...), "
                "Abort(...) or None"
            )
        by = storable(f"handler:{getattr(handler, '__name__', type(handler).__name__)}")
        now = self.setting.clock.now()
        _, events = decide(self.turn, [answer], self.setting.tools.get, now)
        return [_signed(event, by) for event in events]


def _signed(event: Decided, by: str) -> Event:
    return event if isinstance(event, Expired) else replace(event, by=by)  # which nobody decided


def paused_call(call: Call) -> PausedCall:
    """The handle on a paused call, with the part as the transcript shows it."""
    assert call.pause is not None
    return PausedCall(written(call.part, call), call.pause, call.id)
