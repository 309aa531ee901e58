"""A restart that was accepted where nobody knew the tool runs what was shown, or nothing: then its pause is open again."""

from typing import Any

import pytest

from adjourn import Adjourn, AgentInit, Interrupt, SessionPaused, ToolChanged, ToolGone, ToolRunContext, tool
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import World, desk


def refund(world: World, how: str) -> list[Any]:
    """The tools of a version of the program: `how` says which."""

    async def as_it_was(amount: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"ask": amount}, expires_in=60)
        world.log.append(("refunded", amount))
        return "refunded"

    async def another(amount: int, currency: str = "EUR") -> str:
        raise AssertionError(f"this is not what was shown: {amount} {currency}")

    return {
        "same": [tool(name="refund")(as_it_was)],
        "changed": [tool(name="refund", on_error="model")(another)],
        "renamed": [tool(name="pay_back")(as_it_was)],
    }[how]


def boss(world: World, nested: bool, how: str, *replies: Any, without: bool = False) -> Any:
    ai = Adjourn(clock=world.clock)
    store, tools = world.place.open(), refund(world, how)
    if nested:
        first = [call("refund", {"amount": 5})] if replies[1:] else []
        inner = ai.define_agent("till", model=ScriptedModel([*first, "Refunded."]), tools=tools)
        tools = [] if without else [inner.as_tool()]
    return ai.define_agent("boss", model=ScriptedModel(list(replies)), tools=tools, store=store), ai


def asks(nested: bool) -> Any:
    return call("till", {"task": "refund it"}) if nested else call("refund", {"amount": 5})


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("how, error", [("changed", ToolChanged), ("renamed", ToolGone)])
async def test_a_tool_that_is_another_one_when_its_restart_is_taken_up_is_not_run_and_its_pause_is_open_again(
    world: World, nested: bool, how: str, error: type[Exception]
) -> None:
    session = boss(world, nested, "same", asks(nested), "Done.")[0].connect()
    await session.send("go").output
    [asked] = session.interrupts
    assert (await desk(world).inbox.restart(asked.id, by="ann")).turn is None
    _, ai = boss(world, nested, how)  # whose models have nothing to say
    [turn] = await ai.recover()
    with pytest.raises(error, match=r"'refund'.*pause is kept"):
        await turn.output
    row, history = await ai.inbox.get(asked.id), await ai.inbox.history(asked.id)
    assert (row.status, [d.verb for d in history], world.log) == ("open", ["restart", "reopen"], [])
    assert "pause is kept" in history[-1].reason
    with pytest.raises(error):  # and is refused at once where the tool is known
        await ai.inbox.restart(asked.id, by="bob")
    again = await boss(world, nested, "same", "Done.")[1].inbox.restart(asked.id, by="bob")
    assert again.turn is not None
    assert ((await again.turn.output).text, world.done("refunded")) == ("Done.", [5])


@pytest.mark.parametrize("verb", ["restart", "respond", "decline"])
async def test_a_decision_for_a_nested_agent_that_is_no_tool_any_more_is_not_lost_on_the_model(
    world: World, verb: str
) -> None:
    session = boss(world, True, "same", asks(True), "Done.")[0].connect()
    await session.send("go").output
    [asked] = session.interrupts
    inbox = desk(world).inbox
    if verb == "restart":
        await inbox.restart(asked.id)
    elif verb == "decline":
        await inbox.decline(asked.id)
    else:
        await inbox.respond(asked.id, "by hand")
    _, ai = boss(world, True, "same", without=True)  # whose model has nothing to say
    [turn] = await ai.recover()
    with pytest.raises(ToolGone, match="'till' is not defined here"):
        await turn.output
    assert (await ai.inbox.get(asked.id)).status == "open"
    _, ai = boss(world, True, "same", "Done.")
    answered = await ai.inbox.respond(asked.id, "after all")
    assert answered.turn is not None
    assert (await answered.turn.output).text == "Done."


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("where", ["the handle that took it up", "another process", "the inbox"])
async def test_a_pause_whose_restart_could_not_be_followed_expires_no_more_whoever_decides(
    world: World, nested: bool, where: str
) -> None:
    session = boss(world, nested, "same", asks(nested), "Done.")[0].connect()
    await session.send("go").output
    [asked] = session.interrupts
    await desk(world).inbox.restart(asked.id, by="ann")
    agent, ai = boss(world, nested, "changed", "Done.")
    taken_up = await agent.connect(AgentInit(session_id=session.id)).load()
    assert [i.id for i in taken_up.interrupts] == [asked.id]
    world.clock.time += 100
    if where == "the inbox":
        decided = (await ai.inbox.respond(asked.id, "known", by="ben")).turn
    else:
        handle = taken_up if where == "the handle that took it up" else agent.connect(AgentInit(session_id=session.id))
        with pytest.raises(SessionPaused):
            await handle.send("hello").output
        decided = handle.interrupts[0].respond("known", by="ben")
    assert (await decided.output).text == "Done."
    assert [d.verb for d in await ai.inbox.history(asked.id)] == ["restart", "reopen", "respond"]
