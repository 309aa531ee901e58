"""What fails inside a nested agent: each decision counts once and for what it says, and nothing runs again by itself."""

from typing import Any

import pytest
from pydantic import BaseModel

from adjourn import Adjourn, AgentInit, AlreadyResolved, Interrupt, ModelError, ToolFailed, ToolRunContext, tool
from adjourn.errors import AdjournError
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Mortal, World, outputs_of


class Bank:
    """A tool that pays once somebody agrees, and fails after it has while the bank is down."""

    def __init__(self, world: World, **interrupt: Any) -> None:
        self.down = True
        self.keys: list[str] = []

        @tool
        async def pay(n: int, ctx: ToolRunContext) -> str:
            """Pays."""
            if not ctx.is_resumed():
                raise Interrupt({"pay": n}, **interrupt)
            world.log.append(("paid", n))
            self.keys.append(ctx.idempotency_key)
            if self.down:
                raise OSError("the bank is down")
            return f"paid {n}"

        self.tool: Any = pay


def boss(world: World, tool: Any, deep: int, *, inner: Any = (), store: Any = None, **options: Any) -> Any:
    """An agent over `deep` others, the innermost of which has the tool. All models say what follows from here on."""
    ai = Adjourn(clock=world.clock)
    model = ScriptedModel(list(inner) or [call("pay", {"n": 5}), "Paid.", "Paid."])
    agent = ai.define_agent("n1", model=model, tools=[tool], **options)
    for name in [*(f"n{level}" for level in range(2, deep + 1)), "boss"]:
        replies = [call(agent.name, {"task": "go"}), "Done.", "Done."]
        kept: Any = {"store": store or world.place.open()} if name == "boss" else {}
        agent = ai.define_agent(name, model=ScriptedModel(replies), tools=[agent.as_tool()], **kept)
    return agent, ai


async def failed_once(world: World, bank: Bank, deep: int) -> tuple[Any, Any, str]:
    agent, ai = boss(world, bank.tool, deep)
    session = agent.connect()
    await session.send("go").output
    [asked] = session.interrupts
    first = await ai.inbox.restart(asked.id, by="ann")
    with pytest.raises(ToolFailed, match="bank is down"):
        await first.turn.output
    assert (await ai.inbox.get(asked.id)).status == "open"
    bank.down = False
    return session, ai, asked.id


@pytest.mark.parametrize("deep", [1, 2])
async def test_a_decline_after_a_failed_restart_runs_nothing_and_the_inner_model_is_told(
    world: World, deep: int
) -> None:
    bank = Bank(world)
    session, ai, asked = await failed_once(world, bank, deep)
    declined = await ai.inbox.decline(asked, "no, stop it", by="ben")
    assert (await declined.turn.output).finish_reason == "stop"
    assert world.done("paid") == [5]
    assert [d.verb for d in await ai.inbox.history(asked)] == ["restart", "reopen", "decline"]
    row = next(s for s in await ai.sessions.list() if s.id == session.id)
    told = str([await ai.sessions.timeline(inner) for inner in row.inner])
    assert deep > 1 or "no, stop it" in told


@pytest.mark.parametrize("deep", [1, 2])
async def test_a_response_after_a_failed_restart_is_the_result_and_nothing_runs(world: World, deep: int) -> None:
    bank = Bank(world)
    _, ai, asked = await failed_once(world, bank, deep)
    answered = await ai.inbox.respond(asked, "paid by hand")
    assert (await answered.turn.output).text == "Done."
    assert world.done("paid") == [5]


@pytest.mark.parametrize("deep", [1, 2])
async def test_another_input_after_a_failed_restart_is_what_runs(world: World, deep: int) -> None:
    bank = Bank(world)
    _, ai, asked = await failed_once(world, bank, deep)
    again = await ai.inbox.restart(asked, replace_input={"n": 1})
    assert (await again.turn.output).text == "Done."
    assert world.done("paid") == [5, 1]


@pytest.mark.parametrize("deep", [1, 2])
@pytest.mark.parametrize("how", ["restart", "retry"])
async def test_a_second_restart_and_a_retry_run_it_once_more_with_the_same_key(
    world: World, deep: int, how: str
) -> None:
    bank = Bank(world)
    session, ai, asked = await failed_once(world, bank, deep)
    if how == "restart":
        turn: Any = (await ai.inbox.restart(asked)).turn
    else:
        turn = (await session.agent.connect(AgentInit(session_id=session.id)).load()).retry()
    assert (await turn.output).text == "Done."
    assert world.done("paid") == [5, 5]
    assert len(set(bank.keys)) == 1


async def test_a_decision_after_a_failed_one_in_a_branch_goes_on_in_that_branch(world: World) -> None:
    bank = Bank(world)
    agent, ai = boss(world, bank.tool, 1)
    session = agent.connect()
    await session.send("go").output
    branch = await session.fork()
    bank.down = False
    assert (await session.interrupts[0].restart().output).text == "Done."
    bank.down = True
    [asked] = branch.interrupts
    with pytest.raises(ToolFailed):
        await (await ai.inbox.restart(asked.id)).turn.output
    declined = await ai.inbox.decline(asked.id, "no")
    assert declined.turn is not None
    assert (await declined.turn.output).finish_reason == "stop"
    assert world.done("paid") == [5, 5]


async def test_an_answered_pause_is_not_asked_again_because_the_inner_model_failed_after_it(world: World) -> None:
    bank = Bank(world)
    bank.down = False
    agent, ai = boss(world, bank.tool, 1, inner=[call("pay", {"n": 5}), OSError("no network"), "Paid."])
    session = agent.connect()
    await session.send("go").output
    [asked] = session.interrupts
    with pytest.raises(ToolFailed, match="no network"):
        await (await ai.inbox.restart(asked.id)).turn.output
    row = await ai.inbox.get(asked.id)
    assert (row.status, row.reopened) == ("resolved", 0)
    with pytest.raises(AlreadyResolved):
        await ai.inbox.decline(asked.id)
    again = await agent.connect(AgentInit(session_id=session.id)).load()
    assert (await again.retry().output).text == "Done."
    assert world.done("paid") == [5]


async def test_a_pause_that_fails_its_turn_by_expiring_inside_does_so_once(world: World) -> None:
    agent, ai = boss(world, Bank(world, expires_in=60, on_expiry="fail").tool, 1)
    session = agent.connect()
    await session.send("go").output
    [asked] = session.interrupts
    world.clock.time += 61
    for _ in range(3):
        await ai.inbox.expire_due(run=False)
        for turn in await ai.recover():
            await turn.settled()
    history = await ai.inbox.history(asked.id)
    assert [d.verb for d in history] == ["expire"]
    again = await agent.connect(AgentInit(session_id=session.id)).load()
    assert (again.turn_failed, again.interrupts, world.log) == (True, [], [])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("deep", [1, 2])
async def test_a_tool_that_failed_inside_is_not_run_again_by_whoever_takes_over_from_a_dead_process(
    world: World, deep: int, after: bool
) -> None:
    @tool
    def pay(n: int) -> str:
        world.log.append(("paid", n))
        raise TimeoutError("the bank did not answer in time")

    for dies_at in range(3 + 3 * deep):
        world.log.clear()
        agent, _ = boss(world, pay, deep, store=Mortal(world.place.open(), dies_at, after))
        session = agent.connect(AgentInit(session_id=f"s{deep}-{after}-{dies_at}"))
        with pytest.raises(AdjournError):
            await session.send("go").output
        ran = len(world.log)
        world.pass_lease()
        _, ai = boss(world, pay, deep, inner=["Paid."])
        for turn in await ai.recover():
            await turn.settled()
        unknown = [i for i in (await ai.inbox.list(session_id=session.id)).items if i.reason == "outcome_unknown"]
        assert len(world.log) == 1 or (ran == len(world.log) == 0) or unknown, (dies_at, world.log)


class Receipt(BaseModel):
    n: int


async def test_a_nested_agents_typed_output_is_the_same_after_a_crash_as_without_one(world: World) -> None:
    @tool
    def look() -> str:
        return "looked"

    found: set[str] = set()
    for dies_at in (2, 3, 4, 99):
        inner = ['{"n": 5}', '{"n": 5}']
        agent, _ = boss(world, look, 1, inner=inner, output=Receipt, store=Mortal(world.place.open(), dies_at))
        session = agent.connect(AgentInit(session_id=f"s{dies_at}"))
        try:
            await session.send("go").output
        except AdjournError:
            world.pass_lease()
        agent, ai = boss(world, look, 1, inner=inner, output=Receipt)
        for turn in await ai.recover():
            await turn.settled()
        again = await agent.connect(AgentInit(session_id=session.id)).load()
        found |= {repr(o) for o in outputs_of(again.messages)}
    assert found == {repr({"n": 5})}


async def test_the_session_inside_belongs_to_the_owner_of_the_one_around_it(world: World) -> None:
    owners: list[str | None] = []

    @tool
    def pay(n: int, ctx: ToolRunContext) -> str:
        owners.append(ctx.session.owner)
        return "paid"

    agent, _ = boss(world, pay, 2)
    assert (await agent.connect(AgentInit(owner="ann")).send("go").output).text == "Done."
    assert owners == ["ann"]


async def test_the_failure_of_an_inner_model_is_told_as_it_was_by_whoever_takes_over(world: World) -> None:
    @tool
    def look() -> str:
        return "looked"

    said: set[str] = set()
    for dies_at in range(1, 5):
        failing = [OSError("no network")]
        agent, _ = boss(world, look, 1, inner=failing, store=Mortal(world.place.open(), dies_at))
        session = agent.connect(AgentInit(session_id=f"s{dies_at}"))
        with pytest.raises(AdjournError):
            await session.send("go").output
        world.pass_lease()
        _, ai = boss(world, look, 1, inner=failing)
        for turn in await ai.recover():
            with pytest.raises(ToolFailed) as caught:
                await turn.output
            assert isinstance(caught.value.__cause__, ModelError)
            said.add(str(caught.value).rpartition(": ")[2])
    assert said == {"no network"}
