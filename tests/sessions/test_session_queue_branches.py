"""Messages that wait, in a session with branches: each is sent where it was said, and nowhere else."""

import asyncio
from typing import Any

import pytest

from adjourn import AdjournError, AgentInit, SessionConflict
from adjourn.testing import call
from sessions.session_kit import Mortal, World
from sessions.test_session_queue import QUEUE, said


async def waiting(world: World, *replies: Any) -> tuple[Any, Any, Any, Any]:
    """A session that is paused in its second turn, with a message that waits, and the snapshot of its first turn."""
    process = world.process("Hello.", call("pay", {"amount": 1}), *replies, **QUEUE)
    session = process.connect()
    first = await session.send("hi").output
    await session.send("go").output
    return process, session, first.snapshot_id, session.send("second")


async def test_whoever_looks_at_an_earlier_snapshot_sends_nothing(world: World) -> None:
    process, session, earlier, turn = await waiting(world, "Paid.", "Heard.")
    async with process.agent.connect(AgentInit(snapshot_id=earlier)) as old:
        assert (said(old), old.busy) == (["hi"], False)
    assert (await session.interrupts[0].restart().output).text == "Paid."
    assert (await turn.output).text == "Heard."
    assert said(session) == ["hi", "go", "second"]


async def test_a_branch_that_is_not_paused_neither_waits_nor_takes_a_message_of_the_main_line_along(
    world: World,
) -> None:
    _, session, earlier, turn = await waiting(world, "In the branch.", "Paid.", "Heard.")
    branch = await session.fork(earlier)
    assert (await branch.send("aside").output).text == "In the branch."
    assert (said(branch), turn.poll()) == (["hi", "aside"], None)
    await session.load()
    assert (await session.interrupts[0].restart().output).text == "Paid."
    assert (await turn.output).text == "Heard."
    assert (said(session), said(branch)) == (["hi", "go", "second"], ["hi", "aside"])


async def test_a_decision_in_a_branch_of_a_pause_sends_nothing_that_waits_for_the_pause_itself(world: World) -> None:
    _, session, _, turn = await waiting(world, "Declined.", "Paid.", "Heard.")
    branch = await session.fork()
    assert (await branch.interrupts[0].decline("no").output).text == "Declined."
    assert (said(branch), turn.poll()) == (["hi", "go"], None)
    await session.load()
    assert (await session.interrupts[0].restart().output).text == "Paid."
    assert (await turn.output).text == "Heard."
    assert (said(session), said(branch)) == (["hi", "go", "second"], ["hi", "go"])


async def test_a_message_that_waits_in_a_branch_is_sent_in_the_branch(world: World) -> None:
    _, session, _, turn = await waiting(world, "Declined.", "Branch heard.", "Paid.", "Heard.")
    branch = await session.fork()
    aside = branch.send("aside")
    assert (await branch.interrupts[0].decline("no").output).text == "Declined."
    assert (await aside.output).text == "Branch heard."
    await session.load()
    await session.interrupts[0].restart().output
    assert (await turn.output).text == "Heard."
    assert (said(session), said(branch)) == (["hi", "go", "second"], ["hi", "go", "aside"])


async def test_a_process_that_takes_up_a_decision_sends_what_waits_there_although_a_branch_is_newer(
    world: World,
) -> None:
    _, session, earlier, turn = await waiting(world, "In the branch.")
    branch = await session.fork(earlier)
    await branch.send("aside").output
    other = world.process("Paid.", "Heard.", **QUEUE)
    pause = (await other.ai.inbox.list()).items[0]
    await other.ai.inbox.restart(pause.id, run=False)
    for taken_up in await other.ai.recover():
        await taken_up
    assert (await turn.output).text == "Heard."
    assert (said(await session.load()), said(branch)) == (["hi", "go", "second"], ["hi", "aside"])


async def test_what_waits_in_an_older_branch_is_found_where_its_driver_died_before_it_was_sent(world: World) -> None:
    _, session, earlier, _ = await waiting(world, "In the branch.")
    await session.close()
    dying = world.process("Paid.", store=Mortal(world.place.open(), 3), **QUEUE)  # decided, started, ended; not sent
    accepted = await dying.ai.inbox.restart((await dying.ai.inbox.list()).items[0].id)
    assert accepted.turn is not None
    assert (await accepted.turn.output).text == "Paid."
    other = world.process("In the branch.", **QUEUE)
    world.clock.time += 60
    branch = await other.agent.connect(AgentInit(snapshot_id=earlier)).fork()
    assert (await branch.send("aside").output).text == "In the branch."
    fresh = world.process("Heard.", **QUEUE)
    (turn,) = await fresh.ai.recover()
    output = await turn.output
    assert [m.text for m in output.messages if m.role == "user"] == ["hi", "go", "second"]
    assert said(branch) == ["hi", "aside"]


async def test_a_message_behind_a_first_turn_that_never_came_to_be_stored_is_found(world: World) -> None:
    dying = world.process("never", store=Mortal(world.place.open(), 1), **QUEUE)
    session = dying.connect("s1")
    first, _ = session.send("go"), session.send("second")
    with pytest.raises(AdjournError):
        await first.output
    fresh = world.process("Heard.", **QUEUE)
    assert await fresh.ai.recover() == []  # its first turn has a while to begin
    world.clock.time += 60
    (turn,) = await fresh.ai.recover()
    assert (await turn.output).text == "Heard."
    assert said(await fresh.connect("s1").load()) == ["second"]


async def test_a_message_cannot_wait_at_a_pause_that_the_session_has_gone_on_from(world: World) -> None:
    process, session, _, turn = await waiting(world, "Paid.", "Heard.")
    paused = session.snapshot_id
    await session.interrupts[0].restart().output
    await turn.output
    async with process.agent.connect(AgentInit(snapshot_id=paused)) as old:
        with pytest.raises(SessionConflict, match="no message can wait there"):
            await old.send("late").output
    assert said(await session.load()) == ["hi", "go", "second"]


async def test_many_messages_that_wait_keep_their_order(world: World) -> None:
    process, session, _, turn = await waiting(world, *["ok"] * 202)
    turns = [turn, *[session.send(str(i)) for i in range(200)]]
    await session.interrupts[0].restart().output
    await asyncio.gather(*[t.output for t in turns])
    assert said(session) == ["hi", "go", "second", *[str(i) for i in range(200)]]
    assert process.model.calls == 204
