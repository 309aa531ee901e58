"""Pauses that wait once more, and decisions that the turn's limits leave no room for: nothing is wedged, and all stays open."""

from typing import Any

import pytest

from adjourn import Adjourn, AgentInit, AgentOutput, Interrupt, Limits, ToolFailed, ToolRunContext, VerbNotAllowed, tool
from adjourn.inbox import Accepted
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Mortal, World, desk, outputs_of


class Mail:
    """An agent whose tool is approved, and fails while the server is down."""

    def __init__(self, world: World, **interrupt: Any) -> None:
        self.down = True

        @tool(name="mail")
        async def mail(ctx: ToolRunContext) -> str:
            if not ctx.is_resumed():
                raise Interrupt("ok?", **interrupt)
            world.log.append(("mailed", len(ctx.restarts)))
            if self.down:
                raise OSError("the server is down")
            return "sent"

        self._world, self._tool = world, mail

    def app(self, *replies: Any, **options: Any) -> tuple[Any, Adjourn]:
        ai = Adjourn(clock=self._world.clock, model=ScriptedModel(list(replies)))
        store = self._world.place.open()
        return ai.define_agent("clerk", tools=[self._tool], store=store, **options), ai


async def ended(accepted: Accepted) -> AgentOutput:
    assert accepted.turn is not None
    return await accepted.turn.output


async def failed(world: World, mail: Mail, times: int) -> tuple[Any, Adjourn, str]:
    agent, ai = mail.app(call("mail"), "Done.", "Done.")
    session = agent.connect()
    await session.send("go").output
    asked = session.interrupts[0].id
    for _ in range(times):
        with pytest.raises(ToolFailed):
            await ended(await ai.inbox.restart(asked))
    return session, ai, asked


# -- limits ----------------------------------------------------------------------------------------------------------


async def test_a_restart_past_the_limit_is_refused_before_it_counts_and_the_pause_takes_another_decision(
    world: World,
) -> None:
    _, ai, asked = await failed(world, Mail(world), 5)
    with pytest.raises(VerbNotAllowed, match="restarted 5 times already; respond or decline"):
        await ai.inbox.restart(asked)
    assert (await ai.inbox.get(asked)).status == "open"
    assert [d.verb for d in await ai.inbox.history(asked)][-1] == "reopen"
    declined = await ai.inbox.decline(asked, "enough")
    assert declined.turn is not None
    assert (await declined.turn.output).text == "Done."
    assert len(world.done("mailed")) == 5


@pytest.mark.parametrize("way", ["recover", "load", "abort", "decline"])
async def test_a_restart_past_the_limit_that_was_accepted_where_the_limit_is_not_known_wedges_nothing(
    world: World, way: str
) -> None:
    session, ai, asked = await failed(world, Mail(world), 5)
    await desk(world).inbox.restart(asked, by="ann")
    fresh = session.agent.connect(AgentInit(session_id=session.id))
    if way == "recover":
        [turn] = await ai.recover()
        with pytest.raises(VerbNotAllowed, match="5 times already"):
            await turn.output
        assert await ai.recover() == []
    elif way == "load":
        await fresh.load()
        assert [i.id for i in fresh.interrupts] == [asked]
    elif way == "abort":
        await fresh.abort("no more")
        await fresh.load()
        assert (fresh.interrupts, fresh.last_end.reason) == ([], "aborted")
        assert (await fresh.send("next").output).text == "Done."
        return
    else:
        [pause] = fresh.interrupts
        assert (await pause.decline("no").output).text == "Done."
        return
    row, history = await ai.inbox.get(asked), await ai.inbox.history(asked)
    assert (row.status, [d.verb for d in history[-2:]]) == ("open", ["restart", "reopen"])
    assert "respond or decline" in history[-1].reason
    answered = await ai.inbox.respond(asked, "sent by hand")
    assert answered.turn is not None
    assert (await answered.turn.output).text == "Done."
    assert len(world.done("mailed")) == 5


async def test_a_decision_past_a_limit_that_comes_while_the_turn_runs_leaves_its_pause_open(world: World) -> None:
    others = desk(world)

    @tool(name="slow")
    async def slow() -> str:
        for row in (await others.inbox.list()).items:
            await others.inbox.restart(row.id, by="ann")
        return "done"

    ai = Adjourn(clock=world.clock, model=ScriptedModel([[call("mail"), call("slow")], "Done."]))

    @ai.tool(approval=True)
    def mail() -> str:
        raise AssertionError("not to be run")

    store = world.place.open()
    agent = ai.define_agent("clerk", tools=[mail, slow], store=store, limits=Limits(restarts=0))
    session = agent.connect()
    output = await session.send("go").output
    assert [i.name for i in output.interrupts] == ["mail"]
    [row] = (await ai.inbox.list()).items
    assert [d.verb for d in await ai.inbox.history(row.id)] == ["restart", "reopen"]
    assert (await session.interrupts[0].respond("by hand").output).text == "Done."


async def test_an_abort_ends_a_turn_that_a_dead_process_left_and_runs_nothing(world: World) -> None:
    first = world.process(call("look", {"key": "a"}), store=Mortal(world.place.open(), 1)).connect()
    with pytest.raises(Exception, match="died"):
        await first.send("go").output
    world.pass_lease()
    process = world.process("next")
    session = process.connect(first.id)
    await session.abort("enough")
    assert (session.last_end and session.last_end.reason, session.interrupts) == ("aborted", [])
    assert "may still be running" in str(outputs_of(session.messages))
    assert (await session.send("go on").output).text == "next"


# -- expiry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["retry", "restart", "respond"])
async def test_a_pause_that_is_open_again_after_its_restart_failed_does_not_expire(world: World, way: str) -> None:
    mail = Mail(world, expires_in=60)
    session, ai, asked = await failed(world, mail, 1)
    world.clock.time += 3600
    mail.down = False
    assert await ai.inbox.expire_due() == []
    row = await ai.inbox.get(asked)
    assert (row.status, row.expires_at) == ("open", None)
    if way == "retry":
        output = await (await session.agent.connect(AgentInit(session_id=session.id)).load()).retry().output
    elif way == "restart":
        output = await ended(await ai.inbox.restart(asked))
    else:
        output = await ended(await ai.inbox.respond(asked, "by hand"))
    assert output.text == "Done."
    assert outputs_of(output.messages) == [{"retry": "sent", "restart": "sent", "respond": "by hand"}[way]]
