"""Messages that wait for a pause to be over: their turns end as the turn does that they are sent in, whoever sends them."""

import asyncio
from typing import Any

import pytest

from adjourn import AbortSignal, AgentInit, SessionClosed, SessionNotFound, ToolRunContext, tool
from adjourn.testing import call
from sessions.session_kit import Mortal, Process, World, having, until

QUEUE: dict[str, Any] = {"on_message_while_paused": "queue"}


async def waiting(world: World, *replies: Any) -> tuple[Process, Any, Any]:
    process = world.process(call("pay", {"amount": 1}), *replies, **QUEUE)
    session = process.connect()
    await session.send("go").output
    return process, session, session.send("second")


def said(session: Any) -> list[str]:
    return [m.text for m in session.messages if m.role == "user"]


async def test_a_message_that_another_process_sends_has_its_answer_here(world: World) -> None:
    _, session, turn = await waiting(world)
    accepted = await world.process("Paid.", "Heard.", **QUEUE).ai.inbox.restart(session.interrupts[0].id)
    assert accepted.turn is not None
    assert (await accepted.turn.output).text == "Paid."
    output = await turn.output
    assert (output.text, output.finish_reason, output.session_id) == ("Heard.", "stop", session.id)
    assert [m.text for m in output.messages if m.role == "user"] == ["go", "second"]
    assert (said(session), turn.poll()) == (["go", "second"], "stop")


async def test_an_answer_that_another_process_took_as_another_type_has_no_value_here(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}), **QUEUE, output=dict[str, int])
    session = process.connect()
    await session.send("go").output
    turn = session.send("second")
    other = world.process('{"paid": 1}', '["heard"]', **QUEUE, output=dict[str, int] | list[str])
    await other.ai.inbox.restart(session.interrupts[0].id)
    output = await turn.output
    assert (output.text, output.value, output.finish_reason) == ('["heard"]', None, "stop")


async def test_a_message_whose_turn_fails_elsewhere_fails_here(world: World) -> None:
    _, session, turn = await waiting(world)
    accepted = await world.process("Paid.", OSError("down"), **QUEUE).ai.inbox.restart(session.interrupts[0].id)
    assert accepted.turn is not None
    await accepted.turn.output
    with pytest.raises(Exception, match="failed"):
        await turn.output
    assert turn.poll() == "failed"


async def test_a_message_whose_turn_pauses_elsewhere_is_paused_here_too(world: World) -> None:
    process, session, turn = await waiting(world, "x")
    other = world.process("Paid.", call("pay", {"amount": 2}), "Done.", **QUEUE)
    accepted = await other.ai.inbox.restart(session.interrupts[0].id)
    assert accepted.turn is not None
    await accepted.turn.output
    output = await turn.output
    assert (output.finish_reason, [i.input for i in output.interrupts]) == ("interrupted", [{"amount": 2}])
    assert (await (await session.load()).interrupts[0].decline("no").output).text == "x"
    assert process.model.calls == 2


async def test_two_messages_wait_in_their_order_and_each_has_its_own_answer(world: World) -> None:
    _, session, first = await waiting(world)
    second = session.send("third")
    await world.process("Paid.", "1", "2", **QUEUE).ai.inbox.restart(session.interrupts[0].id)
    assert [(await first.output).text, (await second.output).text] == ["1", "2"]


async def test_a_message_of_a_second_handle_waits_while_a_turn_runs(world: World) -> None:
    turns: list[Any] = []
    handles: list[Any] = []

    @tool(name="slow")
    async def slow(ctx: ToolRunContext) -> str:
        other = world.process("Heard.", **QUEUE)
        opened = other.agent.connect(AgentInit(session_id=ctx.session.id))
        handles.append(opened)
        turns.append(opened.send("not loaded"))
        turns.append(handles[0].send("loaded"))
        return "done"

    process = world.process("Hello.", call("slow"), "Ran.", "1", "2", define=having(slow), **QUEUE)
    session = process.connect()
    await session.send("hi").output
    handles.append(await world.process(**QUEUE).agent.connect(AgentInit(session_id=session.id)).load())
    assert (await session.send("go").output).text == "Ran."
    assert [(await turn.output).text for turn in turns] == ["1", "2"]
    assert said(session) == ["hi", "go", "not loaded", "loaded"]


async def test_a_message_to_a_session_that_a_crash_left_in_question_waits_for_the_answer(world: World) -> None:
    first = world.process(call("look", {"key": "a"}), store=Mortal(world.place.open(), 1), **QUEUE).connect()
    with pytest.raises(Exception, match="died"):
        await first.send("go").output
    world.pass_lease()
    process = world.process("Known.", "Heard.", **QUEUE)
    session = process.connect(first.id)
    turn = session.send("and?")
    await until(lambda: session.interrupts)
    await session.interrupts[0].respond("it was a").output
    assert (await turn.output).text == "Heard."


async def test_a_message_of_a_session_that_is_deleted_says_so(world: World) -> None:
    process, session, turn = await waiting(world)
    await process.ai.sessions.delete(session.id, force=True)
    with pytest.raises(SessionNotFound, match="deleted"):
        await turn.output


@pytest.mark.parametrize("policy", ["refuse", "queue"])
async def test_a_message_to_a_session_that_was_deleted_while_paused_is_refused_and_brings_nothing_back(
    world: World, policy: Any
) -> None:
    process = world.process(call("pay", {"amount": 1}), on_message_while_paused=policy)
    session = process.connect()
    await session.send("go").output
    await process.ai.sessions.delete(session.id, force=True)
    for _ in range(2):
        with pytest.raises(SessionNotFound, match="not kept"):
            await session.send("second").output
    assert await process.ai.sessions.list() == []


async def test_a_message_behind_a_turn_whose_session_is_deleted_meanwhile_brings_nothing_back(world: World) -> None:
    refused: list[type[Exception]] = []

    @tool(name="slow")
    async def slow(ctx: ToolRunContext) -> str:
        world.clock.time += 60  # its lease is over
        await process.ai.sessions.delete(session.id, force=True)
        try:
            session.send("second")
        except Exception as e:
            refused.append(type(e))
        return "done"

    process = world.process("Hello.", call("slow"), "Ran.", define=having(slow), **QUEUE)
    session = process.connect()
    await session.send("hi").output
    with pytest.raises(SessionNotFound):
        await session.send("go").output
    assert (refused, await process.ai.sessions.list()) == ([SessionNotFound], [])


async def test_a_background_message_that_waits_is_stored(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}), **QUEUE)
    session = process.connect()
    await session.send("go").output
    turn = session.send("second", detach=True)
    await asyncio.wait_for(turn.stored(), 30)
    assert turn.poll() is None
    await session.close()


async def test_a_message_that_is_aborted_while_it_waits_is_never_sent(world: World) -> None:
    process, session, turn = await waiting(world, "Paid.", "Third heard.")
    signal = AbortSignal()
    second, third = session.send("by signal", abort_signal=signal), session.send("third")
    turn.abort("changed my mind")
    signal.abort("stop")
    outputs = [await turn.output, await second.output]
    assert [(o.finish_reason, o.error and o.error.message) for o in outputs] == [
        ("aborted", "changed my mind"),
        ("aborted", "stop"),
    ]
    (row,) = await process.ai.sessions.list()
    assert [q.message.text for q in row.queue] == ["third"]
    assert (await session.interrupts[0].restart().output).text == "Paid."
    assert (await third.output).text == "Third heard."
    assert said(session) == ["go", "third"]


async def test_a_message_that_is_aborted_before_it_is_said_is_not_sent(world: World) -> None:
    _, session, _ = await waiting(world, "Paid.")
    signal = AbortSignal()
    signal.abort("never")
    assert (await session.send("third", abort_signal=signal).output).finish_reason == "aborted"
    await session.close()


async def test_an_abort_reaches_a_message_that_another_process_has_begun_to_answer(world: World) -> None:
    began = asyncio.Event()

    async def slow(_: Any) -> str:
        began.set()
        await asyncio.sleep(3600)
        return "never"

    signal = AbortSignal()
    process = world.process(call("pay", {"amount": 1}), **QUEUE)
    session = process.connect()
    await session.send("go").output
    turn = session.send("second", abort_signal=signal)
    other = world.process("Paid.", slow, **QUEUE)
    await other.ai.inbox.restart(session.interrupts[0].id)
    await asyncio.wait_for(began.wait(), 30)
    signal.abort("stop")
    assert (await asyncio.wait_for(turn.output, 30)).finish_reason == "aborted"


async def test_a_message_of_a_session_without_a_store_can_be_aborted_while_it_waits(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}), "Paid.", store=None, **QUEUE)
    session = process.connect()
    await session.send("go").output
    turn = session.send("second")
    turn.abort("changed my mind")
    assert (await turn.output).finish_reason == "aborted"
    assert (await session.interrupts[0].restart().output).text == "Paid."
    assert (said(session), session.busy) == (["go"], False)


async def test_a_message_of_a_handle_whose_pause_was_settled_elsewhere_is_sent_at_once(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}), "Heard.", **QUEUE)
    session = process.connect()
    await session.send("go").output
    other = await world.process(**QUEUE).connect(session.id).load()
    await other.abort("no")
    turn = session.send("second")
    assert session.busy
    assert (await turn.output).text == "Heard."


async def test_a_handle_that_is_closed_tells_what_became_of_its_messages(world: World) -> None:
    _, session, turn = await waiting(world)
    other = world.process("Paid.", "Heard.", **QUEUE)
    accepted = await other.ai.inbox.restart(session.interrupts[0].id)
    assert accepted.turn is not None
    await accepted.turn.output
    await until(lambda: other.agent.running or other.model.calls == 2)
    await other.agent.wait((await other.ai.sessions.snapshots(session.id))[-1].id)
    await session.close()
    assert (await turn.output).text == "Heard."


async def test_a_message_that_still_waits_when_its_handle_is_closed_is_kept(world: World) -> None:
    _, session, turn = await waiting(world)
    await session.close()
    with pytest.raises(SessionClosed, match="kept in the store, and sent when the session goes on"):
        await turn.output
    other = world.process("Paid.", "Heard.", **QUEUE)
    accepted = await other.ai.inbox.restart(session.interrupts[0].id)
    assert accepted.turn is not None
    await accepted.turn.output
    again = world.process(**QUEUE).connect(session.id)
    await until(lambda: other.model.calls == 2 and not other.agent.running)
    assert (await again.load()).last_text == "Heard."


async def test_whoever_decides_hears_the_end_although_another_process_was_quicker_to_take_it_up(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}))
    session = process.connect()
    await session.send("go").output
    deciding = world.process("Paid by the first.")
    worker = world.process("Paid by the worker.")
    accepted = await deciding.ai.inbox.restart(session.interrupts[0].id)
    taken = await worker.ai.recover()
    assert accepted.turn is not None
    outputs = {(await turn.output).text for turn in [accepted.turn, *taken]}
    assert len(outputs) == 1
    assert world.done("paid") == [1]
