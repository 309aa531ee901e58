"""Rules about pauses: what is kept, who decides, and what follows."""

import asyncio
from typing import Any

from adjourn.app import Adjourn
from adjourn.errors import AlreadyResolved, LimitReached, SessionBusy
from adjourn.events import Limits
from adjourn.testing_engine.stage import Stage, expect, request, resting, same, until


async def a_pause_is_stored_before_it_is_told(stage: Stage) -> None:
    async with stage.play([request("gate", n=1)], "done") as play:
        turn = play.connect().send("go")
        output = await resting(turn)
        same(output.finish_reason, "interrupted", "a tool that interrupts pauses the turn")
        page = await play.ai.inbox.list()
        same([i.id for i in page.items], [output.interrupts[0].id], "the inbox has the pause that was told")
        same([i.payload for i in turn.interrupts], [{"n": 1}], "the turn that paused has it too")
        same(play.log, [], "the body did not go on")


async def a_restart_runs_what_was_shown(stage: Stage) -> None:
    async with stage.play([request("gate", n=1)], "done") as play:
        output = await play.send()
        output = await resting(output.interrupts[0].restart({"by": "me"}))
        same((output.finish_reason, output.text), ("stop", "done"), "the turn goes on to its end")
        same(play.log, [("gate", 1, {"by": "me"})], "the body runs once, and reads the metadata")
        same(play.last_outputs(), [{"opened": 1}], "the model gets its result")


async def a_replaced_input_is_what_runs(stage: Stage) -> None:
    async with stage.play([request("gate", n=1)], "done") as play:
        output = await play.send()
        await resting(output.interrupts[0].restart(replace_input={"n": 5}))
        same(play.log, [("gate", 5, {})], "the edited input runs")


async def falsy_responses_are_answers(stage: Stage) -> None:
    values: list[Any] = [None, False, 0, "", []]
    for value in values:
        async with stage.play([request("ask")], "done") as play:
            output = await play.send()
            output = await resting(output.interrupts[0].respond(value))
            same((output.text, play.last_outputs()), ("done", [value]), "what is given is the tool's result")


async def a_refusal_tells_the_model(stage: Stage) -> None:
    async with stage.play([request("guarded", n=1)], "fine") as play:
        output = await play.send()
        same(output.interrupts[0].reason, "approval", "approval= pauses before the body")
        output = await resting(output.interrupts[0].decline("too much"))
        same((output.text, play.log), ("fine", []), "a declined call does not run")
        same(play.last_outputs(), [{"declined": True, "reason": "too much"}], "the model is told why")


async def a_part_of_the_pauses_can_be_answered(stage: Stage) -> None:
    calls = [request("gate", n=1), request("plain", n=2), request("gate", n=3)]
    async with stage.play(calls, "done") as play:
        output = await play.send()
        same(play.log, [("plain", 2)], "a sibling of a pause runs")
        first, second = output.interrupts
        output = await resting(second.restart())
        same(output.finish_reason, "interrupted", "the rest stays paused")
        same(play.log[1:], [("gate", 3, {})], "a restarted call runs although its sibling waits")
        same([i.id for i in output.interrupts], [first.id], "what was not answered still waits")
        output = await resting(output.interrupts[0].respond("no"))
        same(play.last_outputs(), ["no", {"n": 2}, {"opened": 3}], "all results go to the model together")
        same(len(play.log), 2, "nothing that had finished ran again")


async def one_decision_wins(stage: Stage) -> None:
    async with stage.play([request("gate", n=1)], "done") as play:
        output = await play.send()
        interrupt, session_id = output.interrupts[0], output.session_id

        async def decide(me: int) -> str:
            try:
                accepted = await play.ai.inbox.respond(interrupt.id, me, by=f"p{me}")
            except AlreadyResolved as e:
                return f"lost to {e.decision.by if e.decision is not None else None}"
            try:
                if accepted.turn is not None:
                    await resting(accepted.turn)
            except SessionBusy:
                pass  # it counts; a worker took it up before we could
            return f"won {accepted.by}"

        said = await asyncio.gather(*[decide(me) for me in range(5)])
        await until(play, session_id, "done")
        winners = [s.removeprefix("won ") for s in said if s.startswith("won")]
        same(len(winners), 1, "one of several decisions is accepted")
        same(said.count(f"lost to {winners[0]}"), 4, "the others are told who was")
        same(play.last_outputs(), [int(winners[0][1:])], "and its output is the result")
        same([d.by for d in await play.ai.inbox.history(interrupt.id)], winners, "the audit has that one")


async def a_decision_from_elsewhere_is_delivered(stage: Stage) -> None:
    async with stage.play([request("gate", n=1)], "done") as play:
        output = await play.send()
        desk = Adjourn(stores=[play.agent.store] if play.agent.store is not None else [])
        accepted = await desk.inbox.restart(output.interrupts[0].id, by="desk", run=False)
        expect(accepted.turn is None, "a process without the agent does not run the turn")
        await play.deliver()
        await until(play, output.session_id, "done")
        same(play.log, [("gate", 1, {})], "the body ran once")


async def what_nobody_decides_expires(stage: Stage) -> None:
    async with stage.play([request("brief", n=1)], "done") as play:
        output = await play.send()
        await asyncio.sleep(0.25)
        await play.deliver()
        await until(play, output.session_id, "done")
        same([o.get("expired") for o in play.last_outputs()], [True], "expiry is no refusal")
        row = await play.ai.inbox.get(output.interrupts[0].id)
        same(row.status, "expired", "and the inbox says so")


async def handlers_decide_within_limits(stage: Stage) -> None:
    def handler(paused: Any) -> Any:
        return paused.restart({"n": len(paused.payload)})

    async with stage.play([request("gate", n=1)], "done", on_interrupt={"gate": handler}) as play:
        same((await play.send()).text, "done", "a handler's restart goes on at once")
    async with stage.play([request("again", n=1)], "done", on_interrupt=handler, limits=Limits(restarts=2)) as play:
        session = play.connect()
        try:
            await resting(session.send("go"))
        except LimitReached as e:
            same(e.limit, "restarts", "a loop of restarts is bounded")
        else:
            raise AssertionError("a loop of restarts is bounded")
        same(play.log, [("again", 0), ("again", 1), ("again", 2)], "and it ends where the bound is")


async def a_fork_is_answered_on_its_own(stage: Stage) -> None:
    async with stage.play([request("gate", n=1)], "one", "two") as play:
        session = play.connect()
        paused = await resting(session.send("go"))
        branch = await session.fork()
        expect(branch.interrupts[0].id != paused.interrupts[0].id, "a branch has interrupts of its own")
        output = await resting(branch.interrupts[0].respond("b"))
        same(output.text, "one", "the branch goes on")
        output = await resting(paused.interrupts[0].respond("a"))
        same((output.text, play.last_outputs()), ("two", ["a"]), "and so does what it came from")


async def a_pause_within_an_agent_surfaces(stage: Stage) -> None:
    async with stage.play([request("inner", task="t")], [request("gate", n=1)], "inner done", "outer done") as play:
        play.ai.add_tool(play.ai.define_agent("inner", tools=["gate"]).as_tool())
        output = await play.send()
        same(output.interrupts[0].path, ("inner",), "the pause shows the way to it")
        output = await resting(output.interrupts[0].restart())
        same(output.text, "outer done", "the answer finds its way back in")
        same(play.log, [("gate", 1, {})], "the body inside ran once")
