"""Rules about turns: what runs, in which order, and how a turn ends."""

import asyncio
from typing import Any

from adjourn.errors import LimitReached, ModelError, ToolFailed
from adjourn.events import Limits
from adjourn.testing_engine.stage import SECONDS, Stage, expect, holds, request, resting, same
from adjourn.tool import ToolRunContext


async def a_turn_ends_with_what_the_model_says(stage: Stage) -> None:
    async with stage.play("hello", "again") as play:
        session = play.connect()
        output = await resting(session.send("hi"))
        same((output.finish_reason, output.text), ("stop", "hello"), "a turn ends with the model's text")
        output = await resting(session.send("and?"))
        same([m.role for m in output.messages], ["user", "model"] * 2, "the next turn goes on from there")
        cold = await play.connect(session.id).load()
        same(len(cold.messages), 4, "a cold process reads the same session")


async def results_reach_the_model_in_request_order(stage: Stage) -> None:
    calls = [request("plain", n=1), request("nothing"), request("plain", n=2)]
    async with stage.play(calls, "done") as play:
        output = await play.send()
        same(output.text, "done", "the model is called again with the results")
        same(play.last_outputs(), [{"n": 1}, None, {"n": 2}], "results are in request order, None among them")
        same(len(play.log), 3, "each body runs once")


async def bad_requests_go_back_to_the_model(stage: Stage) -> None:
    async with stage.play([request("plain", n="x"), request("missing")], [request("errs", n=1)], "sorry") as play:
        output = await play.send()
        same((output.text, play.log), ("sorry", []), "what does not fit never reaches a body")
        kinds = [str(o.get("error", "")) for o in play.last_outputs()]
        expect("told to the model" in kinds[0], "on_error='model' gives the error to the model")


async def attempts_of_a_tool_are_counted(stage: Stage) -> None:
    async with stage.play([request("flaky", n=1)], "done") as play:
        await play.send()
        same(play.log, [("flaky", 1), ("flaky", 2), ("flaky", 3)], "retries= gives more attempts")


async def a_sequential_tool_runs_alone(stage: Stage) -> None:
    calls = [request(name, n=n) for n, name in enumerate(("beside", "alone", "beside", "beside", "alone"))]
    async with stage.play(calls, "done") as play:
        await play.send()
        same([n for n, _ in play.log if n in (1, 4)], [1, 4], "all of them run, in their order")
        same([found for n, found in play.log if n in (1, 4)], [1, 1], "nothing runs beside a sequential tool")
        same(play.last_outputs(), [0, 1, 2, 3, 4], "results are in request order")


async def state_and_artifacts_are_kept(stage: Stage) -> None:
    async with stage.play([request("notes", n=7)], [request("gate", n=1)], "done") as play:
        output = await play.send()
        same(output.state, {"n": 7}, "the output has the state that a tool set")
        cold = await play.connect(output.session_id).load()
        same((cold.state, [a.name for a in cold.artifacts]), ({"n": 7}, ["note"]), "so has a cold process")
        output = await resting(cold.interrupts[0].restart())
        same((output.state, len(output.artifacts)), ({"n": 7}, 1), "and they outlive the next leg")


async def a_failed_turn_can_be_retried(stage: Stage) -> None:
    async with stage.play([request("plain", n=1), request("breaks", n=2)], "done") as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except ToolFailed as e:
            expect("broken" in str(e), "the failure says what the tool raised")
        else:
            raise AssertionError("a tool that raises fails the turn")
        output = await resting(session.retry())
        same((output.text, play.log.count(("plain", 1))), ("done", 1), "what had finished is not run again")


async def a_model_failure_keeps_everything(stage: Stage) -> None:
    async with stage.play([request("plain", n=1)], ModelError("down", provider="script"), "done") as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except ModelError as e:
            expect("down" in str(e), "the failure says what the model said")
        else:
            raise AssertionError("a model that fails fails the turn")
        output = await resting(session.retry())
        same((output.text, play.log), ("done", [("plain", 1)]), "the tool is not run again")


async def limits_stop_a_turn(stage: Stage) -> None:
    replies = [[request("plain", n=n)] for n in range(4)]
    async with stage.play(*replies, "done", limits=Limits(model_calls=3)) as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except LimitReached as e:
            same(e.limit, "model_calls", "the bound has a name")
            same(len(e.response.messages), 7, "and all that was said is kept")
        else:
            raise AssertionError("a bound stops the turn")
        output = await resting(session.retry(Limits(model_calls=3)))
        same(output.text, "done", "a new allowance goes on")


async def an_abort_ends_the_turn(stage: Stage) -> None:
    async with stage.play([request("hangs", n=1)], "done") as play:
        session = play.connect()
        turn = session.send("go")
        await holds(lambda: "hangs" in play.log)
        turn.abort("enough")
        output = await resting(turn)
        same(output.finish_reason, "aborted", "an abort is an outcome")
        await holds(lambda: "stopped" in play.log)
        output = await resting(session.send("go on"))
        same(output.text, "done", "the session takes the next message")
        closed = [p.tool_response.output for m in play.sent[-1] for p in m.content if p.tool_response is not None]
        expect(closed[0]["cancelled"], "the open call was closed as cancelled")


async def a_paused_turn_can_be_aborted(stage: Stage) -> None:
    async with stage.play([request("gate", n=1)], "done") as play:
        session = play.connect()
        paused = await resting(session.send("go"))
        await session.abort("enough")
        row = await play.ai.inbox.get(paused.interrupts[0].id)
        same(row.status, "cancelled", "its pauses are cancelled")
        same((await resting(session.send("go on"))).text, "done", "the session takes the next message")


async def a_background_turn_runs_without_its_caller(stage: Stage) -> None:
    async with stage.play([request("plain", n=1)], "done") as play:
        turn = play.connect().send("go", detach=True)
        await asyncio.wait_for(turn.stored(), SECONDS)
        view = await asyncio.wait_for(play.agent.wait(turn.snapshot_id), SECONDS)
        same((view.status, view.messages[-1].text), ("completed", "done"), "it is found in the store")


async def a_watcher_hears_of_results_and_pauses(stage: Stage) -> None:
    async with stage.play([request("plain", n=1)], [request("gate", n=2)], "done") as play:
        turn = play.connect().send("go")
        await resting(turn)
        chunks = [c async for c in turn.stream]
        same([c.interrupt.payload for c in chunks if c.interrupt is not None], [{"n": 2}], "the pause is in the stream")
        expect(chunks[-1].turn_end is not None, "the end of the leg comes last")


async def the_callers_context_reaches_the_tools(stage: Stage) -> None:
    async with stage.play([request("whose")], "done") as play:

        async def whose(ctx: ToolRunContext) -> Any:
            return ctx.context

        play.ai.tool(whose)
        await resting(play.connect().send("go", context={"user": "u1"}))
        same(play.last_outputs(), [{"user": "u1"}], "ctx.context is the caller's")
