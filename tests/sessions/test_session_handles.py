"""Handles of one session, side by side: what one of them does while another goes on, in this process or in others."""

import asyncio
import threading
from typing import Any

import pytest

from adjourn import (
    AgentInit,
    AgentSession,
    AlreadyResolved,
    Interrupt,
    Resume,
    SessionBusy,
    SessionConflict,
    SessionPaused,
    ToolFailed,
    ToolRunContext,
    restart_tool,
    tool,
)
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, desk, having, outputs_of, paused, shown


async def decided_elsewhere(world: World, session: Any, *replies: Any) -> None:
    accepted = await world.process(*replies).ai.inbox.restart(session.interrupts[0].id, by="ann")
    assert accepted.turn is not None
    await accepted.turn.output


async def test_a_handle_whose_pause_somebody_else_settled_says_so_once_and_then_goes_on(world: World) -> None:
    process, session = await paused(world, call("pay", {"amount": 1}), "later")
    await decided_elsewhere(world, session, "Paid.")
    with pytest.raises(SessionConflict, match=r"gone on.*nothing was run.*say it again"):
        session.send("next")
    assert session.interrupts == []
    assert [m.text for m in session.messages][-1] == "Paid."
    assert (await session.send("next").output).text == "later"
    assert (process.model.calls, world.done("paid")) == (2, [1])


async def test_load_brings_a_handle_up_to_date_and_keeps_what_was_set_for_the_next_turn(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 1}), "later")
    session.update_state({"seen": 1})
    await decided_elsewhere(world, session, "Paid.")
    assert await session.load() is session
    assert (session.interrupts, session.last_text, session.state) == ([], "Paid.", {"seen": 1})
    assert (await session.send("next").output).state == {"seen": 1}


async def test_load_takes_up_a_decision_that_was_accepted_where_nobody_could_go_on_with_it(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 1}), "Paid.")
    await world.process().ai.inbox.restart(session.interrupts[0].id, run=False)
    await session.load()
    assert (session.last_text, world.done("paid")) == ("Paid.", [1])


async def test_an_old_handle_that_says_something_asks_no_model(world: World) -> None:
    process = world.process("one", "three")
    session = process.connect()
    await session.send("1").output
    other = await world.process("two").connect(session.id).load()
    await other.send("2").output
    with pytest.raises(SessionConflict, match="nothing was run"):
        await session.send("3").output
    assert process.model.calls == 1
    assert (await session.send("3").output).text == "three"
    assert [m.text for m in session.messages] == ["1", "one", "2", "two", "3", "three"]


async def test_an_old_handle_that_retries_asks_no_model(world: World) -> None:
    process = world.process(OSError("down"), "late")
    session = process.connect()
    with pytest.raises(Exception, match="down"):
        await session.send("1").output
    other = await world.process("well").connect(session.id).load()
    await other.retry().output
    with pytest.raises(SessionConflict):
        await session.retry().output
    assert (process.model.calls, session.last_text) == (1, "well")


async def test_a_branch_that_is_refused_while_the_main_line_runs_stays_a_branch(world: World) -> None:
    branches: list[Any] = []

    @tool(name="hold")
    async def hold(ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({})
        with pytest.raises(SessionBusy):
            await branches[0].interrupts[0].decline("while the main line runs").output
        return "held"

    replies = [[call("hold"), call("pay", {"amount": 2})], "main", "branch"]
    process, session = await paused(world, *replies, define=having(hold))
    branches.append(await session.fork())
    before = shown(branches[0])
    await session.interrupts[0].restart().output
    assert shown(branches[0]) == before
    for interrupt in branches[0].interrupts:
        await interrupt.decline("in the branch").output
    assert [i.name for i in session.interrupts] == ["pay"]  # whom that did not touch
    rows = {r.id: r.status for r in (await process.ai.inbox.list(status=None)).items}
    assert [rows[i[0]] for i in before] == ["resolved", "resolved"]
    assert rows[session.interrupts[0].id] == "open"


async def test_a_branch_that_went_on_elsewhere_is_where_its_handle_stands_after_the_conflict(world: World) -> None:
    process = world.process("one", "main", "branch", "later")
    session = process.connect()
    await session.send("1").output
    branch = await session.fork()
    await session.send("main?").output
    await branch.send("branch?").output
    other = await world.process("further").connect(snapshot_id=branch.snapshot_id).load()
    await other.send("further?").output
    await session.send("main again").output
    with pytest.raises(SessionConflict):
        await branch.send("stale").output
    assert [m.text for m in branch.messages if m.role == "user"] == ["1", "branch?", "further?"]


async def test_a_turn_that_is_aborted_from_another_process_ends_aborted_for_whoever_waits_for_it(world: World) -> None:
    begun: list[Any] = []
    other = world.process()

    @tool(name="slow")
    async def slow() -> str:
        begun.append(await other.agent.abort(begun[0], "enough"))
        return "late"

    process = world.process(call("slow"), "not heard", "after", define=having(slow))
    session = process.connect()
    turn = session.send("go")
    begun.append(turn.snapshot_id)
    output = await turn.output
    assert (output.finish_reason, output.error and output.error.message, turn.poll()) == (
        "aborted",
        "enough",
        "aborted",
    )
    assert output.snapshot_id == turn.snapshot_id == session.snapshot_id
    assert (await session.send("go on").output).text == "after"


@pytest.mark.parametrize("nested", [False, True])
async def test_an_abort_from_elsewhere_says_that_an_idempotent_tool_or_a_nested_agent_may_have_taken_effect(
    world: World, nested: bool
) -> None:
    begun: list[Any] = []

    @tool(name="post", idempotent=True)
    async def post() -> str:
        await begun[1].abort(begun[0])
        return "late"

    def define(p: Process) -> None:
        p.ai.add_tool(post)
        p.ai.add_tool(p.ai.define_agent("poster", model=ScriptedModel([call("post")]), tools=[post]).as_tool())

    asked = call("poster", {"task": "post it"}) if nested else call("post")
    session = world.process(asked, "not heard", define=define).connect()
    turn = session.send("go")
    begun += [turn.snapshot_id, world.process(define=define).agent]
    assert (await turn.output).finish_reason == "aborted"
    assert "may still be running or have taken effect" in str(outputs_of(session.messages))


async def test_a_fork_of_a_turn_that_failed_is_a_branch_that_stands_there(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool(approval=True)
        def flaky() -> str:
            if not world.log:
                world.log.append("down")
                raise OSError("once")
            return "well"

    process, session = await paused(world, call("flaky"), "Done.", define=define)
    with pytest.raises(ToolFailed):
        await session.interrupts[0].restart().output
    branch = await session.fork()
    assert [i.name for i in branch.interrupts] == ["flaky"]
    assert branch.interrupts[0].id != session.interrupts[0].id
    assert (await branch.interrupts[0].restart().output).text == "Done."
    open_ids = [r.id for r in (await process.ai.inbox.list()).items]
    assert open_ids == [i.id for i in session.interrupts]


async def test_two_handles_that_decide_one_pause_hear_who_was_first_and_both_go_on(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 1}), "x", "later")
    await decided_elsewhere(world, session, "Paid.")
    with pytest.raises(AlreadyResolved) as caught:
        await session.interrupts[0].restart().output
    assert caught.value.decision is not None
    assert caught.value.decision.by == "ann"
    assert session.interrupts == []
    assert session.last_text == "Paid."


async def test_a_pause_that_is_still_open_is_told_as_one(world: World) -> None:
    process, session = await paused(world, call("pay", {"amount": 1}))
    again = process.agent.connect(AgentInit(session_id=session.id))
    for handle in (session, await again.load()):
        with pytest.raises(SessionPaused, match="pay"):
            handle.send("next")


async def test_a_turn_that_runs_in_one_event_loop_is_waited_for_and_read_in_another(world: World) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @tool(name="slow")
    async def slow() -> str:
        begun.set()
        await asyncio.to_thread(go_on.wait)
        return "done"

    process = world.process(call("pay", {"amount": 1}), call("slow"), "Paid.", define=having(slow))

    async def from_elsewhere(turn: Any) -> tuple[str, list[Any]]:
        first = asyncio.create_task(anext(aiter(turn.stream)))
        waiting = asyncio.create_task(turn.output)
        await asyncio.sleep(0)
        go_on.set()
        await first
        return (await waiting).text, [chunk async for chunk in turn.stream]

    session = process.connect()
    await session.send("go").output
    accepted = await process.ai.inbox.restart(session.interrupts[0].id)
    await asyncio.to_thread(begun.wait)
    text, chunks = await asyncio.to_thread(lambda: asyncio.run(from_elsewhere(accepted.turn)))
    assert text == "Paid."
    assert chunks[-1].turn_end.finish_reason == "stop"


# -- the context of a turn ---------------------------------------------------------------------------------------------


def telling(seen: list[Any], **options: Any) -> Any:
    @tool(name="tell")
    async def tell(ctx: ToolRunContext) -> str:
        seen.append(ctx.context)
        if len(ctx.restarts) < 2:
            raise Interrupt({})
        return "told"

    return {"define": having(tell), **options}


async def test_a_decision_on_a_live_handle_goes_on_with_the_context_of_its_turn(world: World) -> None:
    seen: list[Any] = []
    process = world.process(call("tell"), "Done.", call("tell"), **telling(seen))
    session = process.connect()
    paused = await session.send("go", context={"db": 1}).output
    again = await paused.interrupts[0].restart().output
    await session.resume(Resume(restart=[restart_tool("tell", again.interrupts[0])]), context={"db": 2}).output
    await session.send("next").output
    assert seen == [{"db": 1}, {"db": 1}, {"db": 2}, None]


async def test_a_retry_goes_on_with_the_context_of_its_turn(world: World) -> None:
    seen: list[Any] = []

    @tool(name="flaky")
    async def flaky(ctx: ToolRunContext) -> str:
        seen.append(ctx.context)
        if len(seen) == 1:
            raise OSError("once")
        return "well"

    session = world.process(call("flaky"), "Done.", define=having(flaky)).connect()
    with pytest.raises(ToolFailed):
        await session.send("go", context="mine").output
    await session.retry().output
    assert seen == ["mine", "mine"]


def of_the_owner(session: AgentSession) -> Any:
    return {"db": 7, "owner": session.owner}


@pytest.mark.parametrize("context", [{"db": 7}, of_the_owner])
async def test_whoever_goes_on_with_a_decision_of_the_inbox_has_the_agents_own_context(
    world: World, context: Any
) -> None:
    seen: list[Any] = []
    session = world.process(call("tell"), **telling(seen)).agent.connect(AgentInit(owner="ann"))
    await session.send("go", context="the caller's").output
    await desk(world).inbox.restart(session.interrupts[0].id)
    [turn] = await world.process(**telling(seen, context=context)).ai.recover()
    await turn.output
    assert seen == ["the caller's", context(session) if callable(context) else context]
