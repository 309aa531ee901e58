"""A decision on a pause inside a nested agent is checked, before it counts, against the tool that paused there."""

from typing import Any

import pytest

from adjourn import Adjourn, AgentInit, Interrupt, InvalidInput, ToolChanged, ToolGone, ToolRunContext
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, outputs_of


def boss(process: Process, deep: int, *, later: bool = False, tool: Any = None, without: str = "") -> Any:
    """An agent over `deep` others, the innermost of which has one tool that pauses. `later`: after that pause."""
    ai: Adjourn = process.ai

    def model(asks: Any, says: str) -> ScriptedModel:
        return ScriptedModel([says] if later else [asks, says])

    agent = ai.define_agent(
        "n1", model=model(call("refund", {"amount": 5}), "Refunded."), tools=[tool or refund_of(process)]
    )
    for name in [*(f"n{level}" for level in range(2, deep + 1)), "boss"]:
        tools = [] if without == name else [agent.as_tool()]
        store: Any = {"store": process.store} if name == "boss" else {}
        agent = ai.define_agent(name, model=model(call(agent.name, {"task": "go"}), "Done."), tools=tools, **store)
    return agent


def refund_of(process: Process) -> Any:
    async def refund(amount: int, ctx: ToolRunContext) -> str:
        """Gives money back."""
        if not ctx.is_resumed():
            raise Interrupt({"ask": amount})
        process.log.append(("refunded", amount))
        return f"refunded {amount}"

    return process.ai.tool(refund)


def process_of(world: World) -> Process:
    return Process(world.place.open(), world.log, clock=world.clock)


async def still_open(process: Process, interrupt_id: str) -> bool:
    row = await process.ai.inbox.get(interrupt_id)
    return (row.status, row.reopened) == ("open", 0) and not await process.ai.inbox.history(interrupt_id)


@pytest.mark.parametrize("deep", [1, 2, 3])
async def test_a_replaced_input_that_does_not_fit_the_inner_tool_is_refused_and_the_pause_stays(
    world: World, deep: int
) -> None:
    process = process_of(world)
    session = boss(process, deep).connect()
    await session.send("go").output
    [pause] = session.interrupts
    wrong = {"amount": "much"}
    with pytest.raises(InvalidInput, match=r"tool 'refund' of agent 'n1'.*pause is kept.*restart again"):
        await pause.restart(replace_input=wrong)
    with pytest.raises(InvalidInput) as caught:
        await process.ai.inbox.restart(pause.id, replace_input=wrong)
    assert caught.value.problems[0]["path"] == "$.amount"
    assert await still_open(process, pause.id)
    accepted = await process.ai.inbox.restart(pause.id, replace_input={"amount": 3})
    assert accepted.turn is not None
    assert (await accepted.turn.output).text == "Done."
    assert world.done("refunded") == [3]


@pytest.mark.parametrize("deep", [1, 2])
async def test_an_inner_tool_that_was_renamed_since_the_pause_is_named_and_the_pause_takes_a_response(
    world: World, deep: int
) -> None:
    first = boss(process_of(world), deep).connect()
    await first.send("go").output
    [asked] = first.interrupts

    def pay_back(amount: int) -> str:
        raise AssertionError("not asked for")

    process = process_of(world)
    boss(process, deep, later=True, tool=process.ai.tool(pay_back))
    with pytest.raises(ToolGone, match=r"tool 'refund' of agent 'n1' is not defined here.*pause is kept"):
        await process.ai.inbox.restart(asked.id)
    assert await still_open(process, asked.id)
    accepted = await process.ai.inbox.respond(asked.id, "by hand")
    assert accepted.turn is not None
    assert (await accepted.turn.output).finish_reason == "stop"


@pytest.mark.parametrize("deep", [1, 2])
async def test_an_inner_tool_whose_input_changed_since_the_pause_is_not_restarted(world: World, deep: int) -> None:
    first = boss(process_of(world), deep).connect()
    await first.send("go").output
    [asked] = first.interrupts

    def refund(amount: int, currency: str = "EUR") -> str:
        raise AssertionError("not asked for")

    process = process_of(world)
    agent = boss(process, deep, later=True, tool=process.ai.tool(refund))
    with pytest.raises(ToolChanged, match=r"input schema of tool 'refund' of agent 'n1' changed.*pause is kept"):
        await process.ai.inbox.restart(asked.id)
    session = await agent.connect(AgentInit(session_id=first.id)).load()
    with pytest.raises(ToolChanged):
        await session.interrupts[0].restart()
    assert await still_open(process, asked.id)


@pytest.mark.parametrize("without, said", [("boss", "tool 'n2'"), ("n2", "tool 'n1' of agent 'n2'")])
async def test_an_agent_that_is_no_tool_any_more_is_named(world: World, without: str, said: str) -> None:
    first = boss(process_of(world), 2).connect()
    await first.send("go").output
    [asked] = first.interrupts
    process = process_of(world)
    boss(process, 2, later=True, without=without)
    with pytest.raises(ToolGone, match=f"{said} is not defined here"):
        await process.ai.inbox.restart(asked.id)
    assert await still_open(process, asked.id)


async def test_a_tool_that_only_bears_the_name_of_an_agent_is_not_run_in_its_place(world: World) -> None:
    first = boss(process_of(world), 1).connect()
    await first.send("go").output
    [asked] = first.interrupts
    process = process_of(world)

    def n1(task: str) -> str:
        raise AssertionError("not asked for")

    process.ai.define_agent("boss", model=ScriptedModel([]), tools=[process.ai.tool(n1)], store=process.store)
    with pytest.raises(ToolChanged, match="'n1' is no agent any more"):
        await process.ai.inbox.restart(asked.id)
    assert await still_open(process, asked.id)


async def test_where_the_agent_is_not_defined_a_replaced_input_inside_cannot_be_checked_and_is_refused(
    world: World,
) -> None:
    first = boss(process_of(world), 1).connect()
    await first.send("go").output
    [asked] = first.interrupts
    process = process_of(world)
    with pytest.raises(ToolGone, match=r"replaced input cannot be checked.*pause is kept"):
        await process.ai.inbox.restart(asked.id, replace_input={"amount": 3})
    assert await still_open(process, asked.id)


async def test_a_pause_inside_keeps_the_version_of_the_tool_that_paused(world: World) -> None:
    process = process_of(world)
    tool = refund_of(process)
    session = boss(process, 2, tool=tool).connect()
    await session.send("go").output
    row = await process.ai.inbox.get(session.interrupts[0].id)
    assert row.version == tool.version
    accepted = await process.ai.inbox.restart(row.id)
    assert accepted.turn is not None
    output = await accepted.turn.output
    assert outputs_of(output.messages) == ["Done."]
