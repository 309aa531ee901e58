"""The rules every way of running turns must obey, as a test suite: `check_engine(serve, store)`.

Each rule is a function of one `Stage`, named for what it says; `RULES` has them all, for a test runner that wants to report
them one by one. They say nothing about where a turn runs: the loop in this process obeys them, and so does an engine.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from adjourn.agent import Agent, AgentInit, AgentSession
from adjourn.app import Adjourn
from adjourn.errors import AlreadyResolved, LimitReached, ModelError, ToolFailed
from adjourn.events import Limits
from adjourn.handle import AgentOutput, AgentTurn
from adjourn.model import FunctionModel, ModelRequest, as_reply
from adjourn.parts import Artifact, Message, Part, ToolRequest
from adjourn.store import Store
from adjourn.tool import Interrupt, ToolRunContext

__all__ = ["RULES", "Stage", "check_engine"]

Deliver: TypeAlias = Callable[[], Awaitable[Any]]
Serve: TypeAlias = Callable[[Adjourn], AbstractAsyncContextManager[Deliver]]

_SECONDS = 60.0


def _expect(holds: object, rule: str) -> None:
    if not holds:
        raise AssertionError(rule)


def _same(found: object, wanted: object, rule: str) -> None:
    if found != wanted:
        raise AssertionError(f"{rule}: {str(found)[:500]} is not {str(wanted)[:500]}")


def _call(name: str, **input: Any) -> Part:
    return Part(tool_request=ToolRequest(name, None, input))


class Play:
    """One application that runs: its agent, what its tools did, and what its model was sent."""

    def __init__(self, ai: Adjourn, agent: Agent, model: "_Script", log: list[Any], deliver: Deliver) -> None:
        self.ai = ai
        self.agent = agent
        self.log = log
        self.deliver = deliver
        self._model = model

    @property
    def sent(self) -> list[Sequence[Message]]:
        """The messages of each request that reached the model."""
        return self._model.sent

    def connect(self, session_id: str | None = None) -> AgentSession:
        return self.agent.connect(AgentInit(session_id=session_id))

    async def send(self, text: str = "go") -> AgentOutput:
        """A new session's first turn, to its rest."""
        return await resting(self.connect().send(text))

    def last_outputs(self) -> list[Any]:
        """The tool results of the newest round that the model was sent."""
        last = self.sent[-1][-1]
        return [p.tool_response.output for p in last.content if p.tool_response is not None]


async def resting(turn: AgentTurn) -> AgentOutput:
    """What a leg came to. One that does not rest within a minute counts as hanging."""
    return await asyncio.wait_for(turn.wait(), _SECONDS)


class _Script:
    def __init__(self, replies: Sequence[Any]) -> None:
        self.sent: list[Sequence[Message]] = []
        self._replies = list(replies)

    def __call__(self, request: ModelRequest) -> Any:
        self.sent.append(request.messages)
        _expect(len(self.sent) <= len(self._replies), "the model is called no more often than the turn needs")
        _sendable(request.messages)
        reply = self._replies[len(self.sent) - 1]
        if isinstance(reply, Exception):
            raise reply
        return as_reply(reply)


def _sendable(messages: Sequence[Message]) -> None:
    waiting: list[Any] = []
    for message in messages:
        answered = [p.tool_response.ref for p in message.content if p.tool_response is not None]
        _same(answered, waiting, "what a model is sent has one response a request, in request order")
        waiting = [p.tool_request.ref for p in message.content if p.tool_request is not None]
    _same(waiting, [], "no model is sent an open round")


class Stage:
    """Where a rule is played. `serve` makes the turns of an application run; `store` gives a new, empty store."""

    def __init__(self, serve: Serve, store: Callable[[], Store]) -> None:
        self._serve = serve
        self.store = store

    @asynccontextmanager
    async def play(self, *replies: Any, **options: Any) -> AsyncGenerator[Play]:
        """An application whose model gives these replies, and whose tools do what their names say."""
        model, log = _Script(replies), list[Any]()
        ai = Adjourn(model=FunctionModel(model, "script"))
        _define(ai, log)
        agent = ai.define_agent("player", store=self.store(), **options)
        async with self._serve(ai) as deliver:
            yield Play(ai, agent, model, log, deliver)
        await ai.aclose()


def _define(ai: Adjourn, log: list[Any]) -> None:
    @ai.tool()
    async def plain(n: int) -> Any:
        log.append(("plain", n))
        return {"n": n}

    @ai.tool()
    async def nothing() -> None:
        log.append("nothing")

    @ai.tool()
    async def gate(n: int, ctx: ToolRunContext) -> Any:
        if not ctx.is_resumed():
            raise Interrupt({"n": n})
        log.append(("gate", n, ctx.resumed_metadata))
        return {"opened": n}

    @ai.tool()
    async def again(n: int, ctx: ToolRunContext) -> Any:
        log.append(("again", len(ctx.restarts)))
        raise Interrupt({"round": len(ctx.restarts)})

    @ai.tool()
    async def breaks(n: int) -> Any:
        log.append(("breaks", n))
        if log.count(("breaks", n)) == 1:
            raise ValueError("broken")
        return "mended"

    @ai.tool(on_error="model")
    async def errs(n: int) -> Any:
        raise ValueError("told to the model")

    @ai.tool(retries=2, backoff=0.0)
    async def flaky(n: int, ctx: ToolRunContext) -> Any:
        log.append(("flaky", ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "at last"

    @ai.tool()
    async def hangs(n: int) -> Any:
        log.append("hangs")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("stopped")

    @ai.tool(sequential=True)
    async def alone(n: int) -> Any:
        log.append(("enter", n))
        await asyncio.sleep(0)
        log.append(("leave", n))
        return n

    @ai.tool()
    async def brief(n: int, ctx: ToolRunContext) -> Any:
        raise Interrupt({"n": n}, expires_in=0.2)

    @ai.tool()
    async def notes(n: int, ctx: ToolRunContext) -> Any:
        ctx.session.update_state({"n": n})
        ctx.session.add_artifact(Artifact("note", [Part(text=f"note {n}")]))
        return "noted"

    @ai.tool(approval=True)
    async def guarded(n: int) -> Any:
        log.append(("guarded", n))
        return "allowed"

    ai.define_interrupt("ask", "Asks a person.")


# -- turns -----------------------------------------------------------------------------------------------------------


async def a_turn_ends_with_what_the_model_says(stage: Stage) -> None:
    async with stage.play("hello", "again") as play:
        session = play.connect()
        output = await resting(session.send("hi"))
        _same((output.finish_reason, output.text), ("stop", "hello"), "a turn ends with the model's text")
        output = await resting(session.send("and?"))
        _same([m.role for m in output.messages], ["user", "model"] * 2, "the next turn goes on from there")
        cold = await play.connect(session.id).load()
        _same(len(cold.messages), 4, "a cold process reads the same session")


async def results_reach_the_model_in_request_order(stage: Stage) -> None:
    calls = [_call("plain", n=1), _call("nothing"), _call("plain", n=2)]
    async with stage.play(calls, "done") as play:
        output = await play.send()
        _same(output.text, "done", "the model is called again with the results")
        _same(play.last_outputs(), [{"n": 1}, None, {"n": 2}], "results are in request order, None among them")
        _same(len(play.log), 3, "each body runs once")


async def bad_requests_go_back_to_the_model(stage: Stage) -> None:
    async with stage.play([_call("plain", n="x"), _call("missing")], [_call("errs", n=1)], "sorry") as play:
        output = await play.send()
        _same((output.text, play.log), ("sorry", []), "what does not fit never reaches a body")
        kinds = [str(o.get("error", "")) for o in play.last_outputs()]
        _expect("told to the model" in kinds[0], "on_error='model' gives the error to the model")


async def attempts_of_a_tool_are_counted(stage: Stage) -> None:
    async with stage.play([_call("flaky", n=1)], "done") as play:
        await play.send()
        _same(play.log, [("flaky", 1), ("flaky", 2), ("flaky", 3)], "retries= gives more attempts")


async def a_sequential_tool_runs_alone(stage: Stage) -> None:
    async with stage.play([_call("alone", n=1), _call("plain", n=2), _call("alone", n=3)], "done") as play:
        await play.send()
        at = [play.log.index(("enter", n)) for n in (1, 3)]
        _expect(all(play.log[i + 1][0] == "leave" for i in at), "nothing runs beside a sequential tool")
        _same(play.last_outputs(), [1, {"n": 2}, 3], "all of them run")


async def state_and_artifacts_are_kept(stage: Stage) -> None:
    async with stage.play([_call("notes", n=7)], [_call("gate", n=1)], "done") as play:
        output = await play.send()
        _same(output.state, {"n": 7}, "the output has the state that a tool set")
        cold = await play.connect(output.session_id).load()
        _same((cold.state, [a.name for a in cold.artifacts]), ({"n": 7}, ["note"]), "so has a cold process")
        output = await resting(cold.interrupts[0].restart())
        _same((output.state, len(output.artifacts)), ({"n": 7}, 1), "and they outlive the next leg")


# -- pauses and decisions --------------------------------------------------------------------------------------------


async def a_pause_is_stored_before_it_is_told(stage: Stage) -> None:
    async with stage.play([_call("gate", n=1)], "done") as play:
        turn = play.connect().send("go")
        output = await resting(turn)
        _same(output.finish_reason, "interrupted", "a tool that interrupts pauses the turn")
        page = await play.ai.inbox.list()
        _same([i.id for i in page.items], [output.interrupts[0].id], "the inbox has the pause that was told")
        _same([i.payload for i in turn.interrupts], [{"n": 1}], "the turn that paused has it too")
        _same(play.log, [], "the body did not go on")


async def a_restart_runs_what_was_shown(stage: Stage) -> None:
    async with stage.play([_call("gate", n=1)], "done") as play:
        output = await play.send()
        output = await resting(output.interrupts[0].restart({"by": "me"}))
        _same((output.finish_reason, output.text), ("stop", "done"), "the turn goes on to its end")
        _same(play.log, [("gate", 1, {"by": "me"})], "the body runs once, and reads the metadata")
        _same(play.last_outputs(), [{"opened": 1}], "the model gets its result")


async def a_replaced_input_is_what_runs(stage: Stage) -> None:
    async with stage.play([_call("gate", n=1)], "done") as play:
        output = await play.send()
        await resting(output.interrupts[0].restart(replace_input={"n": 5}))
        _same(play.log, [("gate", 5, {})], "the edited input runs")


async def falsy_responses_are_answers(stage: Stage) -> None:
    for value in (None, False, 0, "", []):
        async with stage.play([_call("ask")], "done") as play:
            output = await play.send()
            output = await resting(output.interrupts[0].respond(value))
            _same((output.text, play.last_outputs()), ("done", [value]), "what is given is the tool's result")


async def a_refusal_tells_the_model(stage: Stage) -> None:
    async with stage.play([_call("guarded", n=1)], "fine") as play:
        output = await play.send()
        _same(output.interrupts[0].reason, "approval", "approval= pauses before the body")
        output = await resting(output.interrupts[0].decline("too much"))
        _same((output.text, play.log), ("fine", []), "a declined call does not run")
        _same(play.last_outputs(), [{"declined": True, "reason": "too much"}], "the model is told why")


async def a_part_of_the_pauses_can_be_answered(stage: Stage) -> None:
    calls = [_call("gate", n=1), _call("plain", n=2), _call("gate", n=3)]
    async with stage.play(calls, "done") as play:
        output = await play.send()
        _same(play.log, [("plain", 2)], "a sibling of a pause runs")
        first, second = output.interrupts
        output = await resting(second.restart())
        _same(output.finish_reason, "interrupted", "the rest stays paused")
        _same(play.log[1:], [("gate", 3, {})], "a restarted call runs although its sibling waits")
        _same([i.id for i in output.interrupts], [first.id], "what was not answered still waits")
        output = await resting(output.interrupts[0].respond("no"))
        _same(play.last_outputs(), ["no", {"n": 2}, {"opened": 3}], "all results go to the model together")
        _same(len(play.log), 2, "nothing that had finished ran again")


async def one_decision_wins(stage: Stage) -> None:
    async with stage.play([_call("gate", n=1)], "done") as play:
        interrupt = (await play.send()).interrupts[0]

        async def decide(me: int) -> str:
            try:
                accepted = await play.ai.inbox.respond(interrupt.id, me, by=f"p{me}")
            except AlreadyResolved as e:
                return f"lost to {e.decision.by if e.decision is not None else None}"
            if accepted.turn is not None:
                await resting(accepted.turn)
            return f"won {accepted.by}"

        said = await asyncio.gather(*[decide(me) for me in range(5)])
        winners = [s.removeprefix("won ") for s in said if s.startswith("won")]
        _same(len(winners), 1, "one of several decisions is accepted")
        _same(said.count(f"lost to {winners[0]}"), 4, "the others are told who was")
        _same(play.last_outputs(), [int(winners[0][1:])], "and its output is the result")
        _same([d.by for d in await play.ai.inbox.history(interrupt.id)], winners, "the audit has that one")


async def a_decision_from_elsewhere_is_delivered(stage: Stage) -> None:
    async with stage.play([_call("gate", n=1)], "done") as play:
        output = await play.send()
        desk = Adjourn(stores=[play.agent.store] if play.agent.store is not None else [])
        accepted = await desk.inbox.restart(output.interrupts[0].id, by="desk", run=False)
        _expect(accepted.turn is None, "a process without the agent does not run the turn")
        await play.deliver()
        await _until(play, output.session_id, lambda s: s.last_text == "done")
        _same(play.log, [("gate", 1, {})], "the body ran once")


async def _until(play: Play, session_id: str, holds: Callable[[Any], bool]) -> Any:
    async def look() -> Any:
        while True:
            view = await play.agent.get_snapshot(session_id=session_id)
            if view is not None and view.status != "pending":
                session = play.connect(session_id)
                if holds(session):
                    return session
            await asyncio.sleep(0.02)

    return await asyncio.wait_for(look(), _SECONDS)


async def what_nobody_decides_expires(stage: Stage) -> None:
    async with stage.play([_call("brief", n=1)], "done") as play:
        output = await play.send()
        await asyncio.sleep(0.25)
        await play.deliver()
        await _until(play, output.session_id, lambda s: s.last_text == "done")
        _same([o.get("expired") for o in play.last_outputs()], [True], "expiry is no refusal")
        row = await play.ai.inbox.get(output.interrupts[0].id)
        _same(row.status, "expired", "and the inbox says so")


async def handlers_decide_within_limits(stage: Stage) -> None:
    def handler(paused: Any) -> Any:
        return paused.restart({"n": len(paused.payload)})

    async with stage.play([_call("gate", n=1)], "done", on_interrupt={"gate": handler}) as play:
        _same((await play.send()).text, "done", "a handler's restart goes on at once")
    async with stage.play([_call("again", n=1)], "done", on_interrupt=handler, limits=Limits(restarts=2)) as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except LimitReached as e:
            _same(e.limit, "restarts", "a loop of restarts is bounded")
        else:
            raise AssertionError("a loop of restarts is bounded")
        _same(play.log, [("again", 0), ("again", 1), ("again", 2)], "and it ends where the bound is")


async def a_fork_is_answered_on_its_own(stage: Stage) -> None:
    async with stage.play([_call("gate", n=1)], "one", "two") as play:
        session = play.connect()
        paused = await resting(session.send("go"))
        branch = await session.fork()
        _expect(branch.interrupts[0].id != paused.interrupts[0].id, "a branch has interrupts of its own")
        output = await resting(branch.interrupts[0].respond("b"))
        _same(output.text, "one", "the branch goes on")
        output = await resting(paused.interrupts[0].respond("a"))
        _same((output.text, play.last_outputs()), ("two", ["a"]), "and so does what it came from")


async def a_pause_within_an_agent_surfaces(stage: Stage) -> None:
    async with stage.play([_call("inner", task="t")], [_call("gate", n=1)], "inner done", "outer done") as play:
        play.ai.add_tool(play.ai.define_agent("inner", tools=["gate"]).as_tool())
        output = await play.send()
        _same(output.interrupts[0].path, ("inner",), "the pause shows the way to it")
        output = await resting(output.interrupts[0].restart())
        _same(output.text, "outer done", "the answer finds its way back in")
        _same(play.log, [("gate", 1, {})], "the body inside ran once")


# -- ends ------------------------------------------------------------------------------------------------------------


async def a_failed_turn_can_be_retried(stage: Stage) -> None:
    async with stage.play([_call("plain", n=1), _call("breaks", n=2)], "done") as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except ToolFailed as e:
            _expect("broken" in str(e), "the failure says what the tool raised")
        else:
            raise AssertionError("a tool that raises fails the turn")
        output = await resting(session.retry())
        _same((output.text, play.log.count(("plain", 1))), ("done", 1), "what had finished is not run again")


async def a_model_failure_keeps_everything(stage: Stage) -> None:
    async with stage.play([_call("plain", n=1)], ModelError("down", provider="script"), "done") as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except ModelError as e:
            _expect("down" in str(e), "the failure says what the model said")
        else:
            raise AssertionError("a model that fails fails the turn")
        output = await resting(session.retry())
        _same((output.text, play.log), ("done", [("plain", 1)]), "the tool is not run again")


async def limits_stop_a_turn(stage: Stage) -> None:
    replies = [[_call("plain", n=n)] for n in range(4)]
    async with stage.play(*replies, "done", limits=Limits(model_calls=3)) as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except LimitReached as e:
            _same(e.limit, "model_calls", "the bound has a name")
            _same(len(e.response.messages), 7, "and all that was said is kept")
        else:
            raise AssertionError("a bound stops the turn")
        output = await resting(session.retry(Limits(model_calls=3)))
        _same(output.text, "done", "a new allowance goes on")


async def an_abort_ends_the_turn(stage: Stage) -> None:
    async with stage.play([_call("hangs", n=1)], "done") as play:
        session = play.connect()
        turn = session.send("go")
        await _holds(lambda: "hangs" in play.log)
        turn.abort("enough")
        output = await resting(turn)
        _same(output.finish_reason, "aborted", "an abort is an outcome")
        await _holds(lambda: "stopped" in play.log)
        output = await resting(session.send("go on"))
        _same(output.text, "done", "the session takes the next message")
        closed = [p.tool_response.output for m in play.sent[-1] for p in m.content if p.tool_response is not None]
        _expect(closed[0]["cancelled"], "the open call was closed as cancelled")


async def a_paused_turn_can_be_aborted(stage: Stage) -> None:
    async with stage.play([_call("gate", n=1)], "done") as play:
        session = play.connect()
        paused = await resting(session.send("go"))
        await session.abort("enough")
        row = await play.ai.inbox.get(paused.interrupts[0].id)
        _same(row.status, "cancelled", "its pauses are cancelled")
        _same((await resting(session.send("go on"))).text, "done", "the session takes the next message")


async def _holds(condition: Callable[[], bool]) -> None:
    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), _SECONDS)


async def a_background_turn_runs_without_its_caller(stage: Stage) -> None:
    async with stage.play([_call("plain", n=1)], "done") as play:
        turn = play.connect().send("go", detach=True)
        await asyncio.wait_for(turn.stored(), _SECONDS)
        view = await asyncio.wait_for(play.agent.wait(turn.snapshot_id), _SECONDS)
        _same((view.status, view.messages[-1].text), ("completed", "done"), "it is found in the store")


async def a_watcher_hears_of_results_and_pauses(stage: Stage) -> None:
    async with stage.play([_call("plain", n=1)], [_call("gate", n=2)], "done") as play:
        turn = play.connect().send("go")
        await resting(turn)
        chunks = [c async for c in turn.stream]
        _same([c.interrupt.payload for c in chunks if c.interrupt is not None], [{"n": 2}], "the pause is in the stream")
        _expect(chunks[-1].turn_end is not None, "the end of the leg comes last")


async def the_callers_context_reaches_the_tools(stage: Stage) -> None:
    async with stage.play([_call("whose")], "done") as play:

        async def whose(ctx: ToolRunContext) -> Any:
            return ctx.context

        play.ai.tool(whose)
        await resting(play.connect().send("go", context={"user": "u1"}))
        _same(play.last_outputs(), [{"user": "u1"}], "ctx.context is the caller's")


RULES: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    a_turn_ends_with_what_the_model_says,
    results_reach_the_model_in_request_order,
    bad_requests_go_back_to_the_model,
    attempts_of_a_tool_are_counted,
    a_sequential_tool_runs_alone,
    state_and_artifacts_are_kept,
    a_pause_is_stored_before_it_is_told,
    a_restart_runs_what_was_shown,
    a_replaced_input_is_what_runs,
    falsy_responses_are_answers,
    a_refusal_tells_the_model,
    a_part_of_the_pauses_can_be_answered,
    one_decision_wins,
    a_decision_from_elsewhere_is_delivered,
    what_nobody_decides_expires,
    handlers_decide_within_limits,
    a_fork_is_answered_on_its_own,
    a_pause_within_an_agent_surfaces,
    a_failed_turn_can_be_retried,
    a_model_failure_keeps_everything,
    limits_stop_a_turn,
    an_abort_ends_the_turn,
    a_paused_turn_can_be_aborted,
    a_background_turn_runs_without_its_caller,
    a_watcher_hears_of_results_and_pauses,
    the_callers_context_reaches_the_tools,
)


async def check_engine(serve: Serve, store: Callable[[], Store]) -> None:
    """Holds a way of running turns against every rule. Raises AssertionError, with a sentence that says what is wrong.

    `serve(ai)` is an async context manager within which the turns of that application run: it sets `ai.engine` and runs a
    worker, say. It gives an async function that makes sure that decisions made elsewhere are taken up. `store` gives a new,
    empty store each time; it is closed with the application.
    """
    for rule in RULES:
        await rule(Stage(serve, store))
