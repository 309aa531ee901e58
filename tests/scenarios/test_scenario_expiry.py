"""Faults that others made public, as scenarios: pauses that nobody decided on in time, and what is to go on after them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjourn import Adjourn, Interrupt, StaleInterrupt, StoreUnavailable, TurnError
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Mortal, Process, World, assert_sendable, make_place, outputs_of


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    place = make_place(request.param, tmp_path, lambda: "")
    yield World(place)
    place.close()


def deadline(**how: Any) -> Any:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def sign(what: str) -> str:
            raise Interrupt({"sign": what}, expires_in=60, **how)

    return define


SIGN = call("sign", {"what": "a"})


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("on_expiry", ["decline", "fail", {"respond": "by default"}], ids=str)
async def test_a_turn_that_is_taken_up_after_an_expiry_says_what_it_came_to(
    world: World, on_expiry: Any, swept: bool
) -> None:
    options: dict[str, Any] = {"define": deadline(on_expiry=on_expiry)}
    await world.process(SIGN, **options).connect().send("go").output
    world.clock.time += 61
    fresh = world.process("Late.", **options)
    if swept:
        await fresh.ai.inbox.expire_due(run=False)
    (turn,) = await fresh.ai.recover()
    if on_expiry == "fail":
        with pytest.raises(TurnError, match="nobody decided on tool 'sign' in time"):
            await turn.output
    else:
        assert (await turn.output).text == "Late."
        assert [c.turn_end.finish_reason async for c in turn.stream if c.turn_end] == ["stop"]
    assert await fresh.ai.recover() == []


@pytest.mark.parametrize("on_expiry", ["decline", {"respond": "by default"}], ids=str)
@pytest.mark.parametrize("fresh", [False, True])
async def test_a_message_after_the_only_pause_expired_is_taken_and_the_expiry_told_first(
    world: World, fresh: bool, on_expiry: Any
) -> None:
    options: dict[str, Any] = {"define": deadline(on_expiry=on_expiry)}
    process = world.process(SIGN, "Late.", "Heard.", **options)
    session = process.connect()
    await session.send("go").output
    world.clock.time += 61
    if fresh:
        process = world.process("Late.", "Heard.", **options)
        session = await process.connect(session.id).load()
    assert (await session.send("anybody?").output).text == "Heard."
    assert [m.text for m in session.messages if m.role != "tool"] == ["go", "", "Late.", "anybody?", "Heard."]
    assert_sendable(session.messages)
    assert (await process.ai.inbox.list()).items == []


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("on_expiry", ["decline", {"respond": "by default"}], ids=str)
async def test_a_decision_on_a_pause_that_expired_is_stale_though_another_one_still_waits(
    world: World, on_expiry: Any, stored: bool
) -> None:
    ai = Adjourn(model=ScriptedModel([[SIGN, call("ask")], "Done."]), clock=world.clock)

    @ai.tool()
    async def sign(what: str) -> str:
        raise Interrupt({"sign": what}, expires_in=60, on_expiry=on_expiry)

    @ai.tool()
    async def ask() -> str:
        raise Interrupt

    kept: Any = {"store": world.place.open()} if stored else {}
    session = ai.define_agent("clerk", **kept).connect()
    await session.send("go").output
    late, open_still = session.interrupts
    world.clock.time += 61
    for _ in range(2):  # it expires because of the first, and has expired for the second
        with pytest.raises(StaleInterrupt, match="expired before anybody decided"):
            await late.respond("signed").output
    assert (await open_still.respond("asked").output).text == "Done."


@pytest.mark.parametrize("after", [["Late."], [call("sign", {"what": "b"})]], ids=["ends", "asks again"])
async def test_a_decision_on_a_pause_inside_that_expired_is_stale_whatever_came_after_it(
    world: World, after: Any
) -> None:
    ai = Adjourn(clock=world.clock)

    @ai.tool()
    async def sign(what: str) -> str:
        raise Interrupt({"sign": what}, expires_in=60)

    clerk = ai.define_agent("clerk", model=ScriptedModel([SIGN, *after]), tools=[sign])
    boss = [call("clerk", {"task": "sign"}), "Done."]
    agent = ai.define_agent("boss", model=ScriptedModel(boss), tools=[clerk.as_tool()], store=world.place.open())
    session = agent.connect()
    await session.send("go").output
    world.clock.time += 61
    with pytest.raises(StaleInterrupt, match="expired before anybody decided"):
        await session.interrupts[0].respond("signed").output


@pytest.mark.parametrize("dies_at", range(8))
@pytest.mark.parametrize("after", [False, True])
async def test_a_run_that_was_cut_off_beside_a_pause_that_expired_comes_back_as_unknown_and_the_session_goes_on(
    world: World, dies_at: int, after: bool
) -> None:
    options: dict[str, Any] = {"define": deadline()}
    mortal = Mortal(world.place.open(), dies_at, after)
    session = world.process([call("pay", {"amount": 5}), SIGN], "Done.", store=mortal, **options).connect()
    try:
        await session.send("go").output
        await session.interrupts[0].restart().output
    except StoreUnavailable:
        pass
    world.clock.time += 77  # the lease is over, and so is the time to sign
    fresh = world.process("Done.", **options)
    for turn in await fresh.ai.recover():
        await turn.output
    session = await world.process("Done.", "Heard.", **options).connect(session.id).load()
    stored = [o for o in outputs_of(session.messages) if o.get("paid")]
    unknown = [i for i in session.interrupts if i.reason == "outcome_unknown" and i.name == "pay"]
    if world.done("paid"):
        assert len(stored) + len(unknown) == 1  # what may have been done is told, and never forgotten
    while session.interrupts:
        await session.interrupts[0].decline("enough").output
    if not session.messages:
        return  # it died before anything was kept
    await session.send("and?").output
    assert_sendable(session.messages)
    assert len(world.done("paid")) <= 1
    assert await fresh.ai.recover() == []
