"""The inbox from a cold process: looking, deciding, expiring, and going on later."""

import asyncio
import threading
from typing import Any

import pytest

from adjourn import (
    Adjourn,
    AdjournError,
    AgentInit,
    AlreadyResolved,
    Interrupt,
    InvalidInput,
    InvalidRequest,
    InvalidResponse,
    NotJSON,
    StaleInterrupt,
    ToolFailed,
    ToolRunContext,
    UnknownInterrupt,
    VerbNotAllowed,
)
from adjourn.store import MemoryStore
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, assert_sendable, desk, outputs_of, paused


def deadline(**how: Any) -> Any:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def sign(what: str) -> str:
            raise Interrupt({"sign": what}, expires_in=60, **how)

    return define


# -- looking ---------------------------------------------------------------------------------------------------------


async def test_a_cold_process_lists_every_pause_with_all_that_is_needed_to_show_it(world: World) -> None:
    _, session = await paused(
        world, [call("pay", {"amount": 5}, ref="a"), call("ask", {"text": "sure?"}, ref="b")], owner="ann"
    )
    ai = desk(world)
    page = await ai.inbox.list()
    assert page.next_cursor is None
    pay, ask = sorted(page.items, key=lambda r: r.tool, reverse=True)
    assert (pay.id, ask.id) == (session.interrupts[0].id, session.interrupts[1].id)
    assert (pay.session_id, pay.agent, pay.tool, pay.ref) == (session.id, "clerk", "pay", "a")
    assert (pay.input, pay.payload, pay.allow) == ({"amount": 5}, {"amount": 5}, ("respond", "restart"))
    assert (pay.status, pay.owner, pay.created, pay.path) == ("open", "ann", world.clock.now(), ())
    assert pay.input_digest
    assert pay.version
    assert ask.allow == ("respond",)
    assert ask.response["properties"]["ok"]
    assert await ai.inbox.get(pay.id) == pay


async def test_the_list_filters_by_status_tool_agent_session_and_owner(world: World) -> None:
    process, one = await paused(world, [call("pay", {"amount": 5}), call("ask", {"text": "?"})], "done", owner="ann")
    two = world.process(call("pay", {"amount": 6})).agent.connect(AgentInit(owner="bob"))
    await two.send("go").output
    inbox = desk(world).inbox

    async def count(**how: Any) -> int:
        return len((await inbox.list(**how)).items)

    assert await count() == 3
    assert await count(tool="pay") == 2
    assert await count(agent="clerk") == 3
    assert await count(agent="other") == 0
    assert await count(session_id=one.id) == 2
    assert await count(assignee="bob") == 1
    await process.ai.inbox.respond(one.interrupts[0].id, 1, run=False)
    assert await count() == 2
    assert await count(status="resolved") == 1
    assert await count(status=None) == 3


async def test_pages_follow_one_another_without_gaps_or_repeats(world: World) -> None:
    process = world.process(*[[call("pay", {"amount": n}), call("pay", {"amount": -n})] for n in range(5)])
    for _ in range(5):
        await process.connect().send("go").output
        world.clock.time += 1
    inbox, cursor = desk(world).inbox, None
    seen: list[str] = []
    while True:
        page = await inbox.list(cursor=cursor, limit=3)
        seen += [r.id for r in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page.items) == 3
    everything = (await inbox.list()).items
    assert seen == [r.id for r in everything]
    assert len(set(seen)) == 10
    assert [r.created for r in everything] == sorted(r.created for r in everything)
    with pytest.raises(InvalidRequest, match="cursor"):
        await inbox.list(cursor="nonsense")
    with pytest.raises(InvalidRequest, match="limit"):
        await inbox.list(limit=0)


async def test_a_list_takes_any_of_several_and_counts_what_it_would_give(world: World) -> None:
    _, one = await paused(world, [call("pay", {"amount": 5}), call("ask", {"text": "Überall?"})], owner="ann")
    world.clock.time += 1
    await paused(world, call("pay", {"amount": 6}), owner="bob")
    world.clock.time += 1
    await paused(world, call("pay", {"amount": 7}))
    inbox = desk(world).inbox

    async def found(**how: Any) -> int:
        items = (await inbox.list(**how)).items
        assert await inbox.count(**how) == len(items)
        return len(items)

    assert await found() == 4
    assert await found(owners=["ann", "bob"]) == 3
    assert await found(owners=["ann", None]) == 3
    assert await found(owners=[None]) == 1
    assert await found(owners=[]) == 0
    assert await found(owners=["ann"], assignee="bob") == 0
    assert await found(tools=["ask", "other"]) == 1
    assert await found(agents=["clerk", "other"], tools=["pay"]) == 3
    assert await found(agents=["other"]) == 0
    assert await found(text="überALL") == 1
    assert await found(text='"amount":6') == 1
    assert await found(text="PAY") == 3
    assert await found(text="ann", tools=["pay"]) == 1
    assert await found(text="nowhere") == 0
    assert await found(text="") == 4
    await inbox.respond(one.interrupts[0].id, 1, run=False)
    assert (await found(), await found(status=None), await found(status="resolved", owners=["ann"])) == (3, 4, 1)
    page = await inbox.list(text="pay", limit=1)
    assert (await inbox.list(text="pay", limit=1, cursor=page.next_cursor)).items[0].input == {"amount": 7}


# -- deciding --------------------------------------------------------------------------------------------------------


async def test_a_decision_goes_on_at_once_where_the_agent_is_known(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 5}))
    fresh = world.process("Paid.")
    accepted = await fresh.ai.inbox.restart(session.interrupts[0].id, metadata={"ok": 1}, by="ann", address="10.0.0.1")
    assert accepted.turn is not None
    assert (await accepted.turn.output).text == "Paid."
    assert world.done("paid") == [5]
    row = await fresh.ai.inbox.get(session.interrupts[0].id)
    history = await fresh.ai.inbox.history(row.id)
    assert [(d.verb, d.by, d.address, d.metadata) for d in history] == [("restart", "ann", "10.0.0.1", {"ok": 1})]
    assert history[0].input_digest == row.input_digest
    assert history[0].applied
    assert history[0].at == world.clock.now()


@pytest.mark.parametrize("verb", ["respond", "restart", "decline"])
async def test_a_decision_nobody_can_run_now_is_recorded_and_recovered_by_who_runs_next(
    world: World, verb: str
) -> None:
    _, session = await paused(world, call("pay", {"amount": 5}))
    interrupt_id = session.interrupts[0].id
    inbox = desk(world).inbox
    if verb == "respond":
        accepted = await inbox.respond(interrupt_id, "by hand", by="ann")
    elif verb == "restart":
        accepted = await inbox.restart(interrupt_id, metadata={"ok": 1}, by="ann")
    else:
        accepted = await inbox.decline(interrupt_id, "too much", by="ann")
    assert accepted.turn is None
    assert (accepted.verb, accepted.by) == (verb, "ann")
    assert (await inbox.list()).items == []
    assert world.done("paid") == []
    runner = world.process("Done.")
    turns = await runner.ai.recover()
    assert [(await t.output).text for t in turns] == ["Done."]
    assert await runner.ai.recover() == []
    again = await world.process().connect(session.id).load()
    expected = {
        "respond": "by hand",
        "restart": {"paid": 5, "note": {"ok": 1}},
        "decline": {"declined": True, "reason": "too much"},
    }
    assert outputs_of(again.messages) == [expected[verb]]
    assert world.done("paid") == ([5] if verb == "restart" else [])
    assert [d.verb for d in await inbox.history(interrupt_id)] == [verb]


async def test_opening_the_session_goes_on_with_a_recorded_decision_too(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 5}))
    await desk(world).inbox.restart(session.interrupts[0].id)
    again = await world.process("Paid.").connect(session.id).load()
    assert again.last_text == "Paid."
    assert again.interrupts == []
    assert world.done("paid") == [5]


async def test_partial_decisions_from_separate_cold_processes_add_up_to_one_turn(world: World) -> None:
    _, session = await paused(world, [call("pay", {"amount": n}) for n in (1, 2, 3)])
    ids = [i.id for i in session.interrupts]
    for n, interrupt_id in enumerate(ids):
        assert len((await desk(world).inbox.list()).items) == 3 - n
        await desk(world).inbox.respond(interrupt_id, n)
    runner = world.process("All three.")
    turns = await runner.ai.recover()
    assert [(await t.output).text for t in turns] == ["All three."]
    assert outputs_of((await runner.connect(session.id).load()).messages) == [0, 1, 2]
    assert runner.model.calls == 1


async def test_one_decision_from_the_desk_leaves_the_rest_paused_after_recovery(world: World) -> None:
    _, session = await paused(world, [call("pay", {"amount": n}) for n in (1, 2)])
    await desk(world).inbox.restart(session.interrupts[0].id)
    runner = world.process("ok")
    outputs = [await t.output for t in await runner.ai.recover()]
    assert [o.finish_reason for o in outputs] == ["interrupted"]
    assert world.done("paid") == [1]
    assert runner.model.calls == 0
    assert [r.input for r in (await runner.ai.inbox.list()).items] == [{"amount": 2}]


async def test_a_second_decision_is_told_the_first(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 5}))
    first, second = desk(world).inbox, desk(world).inbox
    await first.respond(session.interrupts[0].id, "mine", by="ann")
    with pytest.raises(AlreadyResolved, match="ann") as caught:
        await second.restart(session.interrupts[0].id, by="bob")
    assert (caught.value.decision.verb, caught.value.decision.output) == ("respond", "mine")
    assert [d.by for d in await first.history(session.interrupts[0].id)] == ["ann"]


async def test_a_wrong_decision_is_refused_before_it_is_stored(world: World) -> None:
    process, session = await paused(world, [call("pay", {"amount": 5}), call("ask", {"text": "?"})], "ok")
    pay, ask = (i.id for i in session.interrupts)
    inbox = process.ai.inbox
    with pytest.raises(InvalidResponse):
        await inbox.respond(ask, {"ok": "perhaps"})
    with pytest.raises(VerbNotAllowed):
        await inbox.restart(ask)
    with pytest.raises(InvalidInput):
        await inbox.restart(pay, replace_input={"amount": "much"})
    with pytest.raises(NotJSON):
        await inbox.respond(pay, object())
    with pytest.raises(UnknownInterrupt):
        await inbox.respond("i_nothing", 1)
    for verb in (desk(world).inbox.respond(ask, 3), desk(world).inbox.restart(ask)):
        with pytest.raises(AdjournError):
            await verb
    assert len((await inbox.list()).items) == 2
    assert await inbox.history(pay) == []
    assert await inbox.history(ask) == []


async def test_a_replaced_input_that_cannot_be_checked_here_is_refused_and_one_that_can_runs(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 1000}))
    interrupt_id = session.interrupts[0].id
    with pytest.raises(AdjournError):
        await desk(world).inbox.restart(interrupt_id, replace_input={"amount": 10})
    fresh = world.process("ok")
    accepted = await fresh.ai.inbox.restart(interrupt_id, replace_input={"amount": 10})
    assert accepted.turn is not None
    await accepted.turn.output
    assert world.done("paid") == [10]
    assert (await fresh.ai.inbox.history(interrupt_id))[0].input == {"amount": 10}


async def test_ten_pauses_in_a_row_are_each_listed_and_answerable(world: World) -> None:
    from adjourn import Limits

    replies = [call("pay", {"amount": n}) for n in range(10)]
    limits = Limits(cycles=20)
    process, _ = await paused(world, *replies, "done", limits=limits)
    for n in range(10):
        (row,) = (await process.ai.inbox.list()).items
        assert row.input == {"amount": n}
        accepted = await process.ai.inbox.restart(row.id)
        assert accepted.turn is not None
        await accepted.turn.output
    assert world.done("paid") == list(range(10))
    assert (await process.ai.inbox.list()).items == []


async def test_a_failing_tool_after_a_decision_is_the_turns_failure_and_the_pause_is_open_again(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def book(ctx: ToolRunContext) -> str:
            if not ctx.is_resumed():
                raise Interrupt
            raise RuntimeError("full")

    process, session = await paused(world, call("book"), define=define)
    accepted = await process.ai.inbox.restart(session.interrupts[0].id, by="ann")
    assert accepted.turn is not None
    with pytest.raises(ToolFailed):
        await accepted.turn.output
    row = await process.ai.inbox.get(session.interrupts[0].id)
    assert row.status == "open"
    assert [d.verb for d in await process.ai.inbox.history(row.id)] == ["restart", "reopen"]


# -- one winner ------------------------------------------------------------------------------------------------------


async def test_of_20_decisions_from_20_threads_one_wins_and_the_tool_runs_once(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 5}))
    interrupt_id = session.interrupts[0].id
    store = world.place.open()
    barrier = threading.Barrier(20)
    results: list[Any] = []

    def decide(n: int) -> None:
        async def work() -> Any:
            process = world.process("Paid.", store=store)
            barrier.wait()
            try:
                accepted = await process.ai.inbox.restart(interrupt_id, by=str(n))
            except AlreadyResolved as e:
                return e
            if accepted.turn is not None:
                await accepted.turn.settled()
            return accepted

        results.append(asyncio.run(work()))

    threads = [threading.Thread(target=decide, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [t.join() for t in threads])
    refused = [r for r in results if isinstance(r, AlreadyResolved)]
    (winner,) = [r for r in results if not isinstance(r, AlreadyResolved)]
    assert len(refused) == 19
    assert {r.decision.by for r in refused} == {winner.by}
    assert world.done("paid") == [5]
    again = await world.process("Paid.").connect(session.id).load()
    assert again.last_text == "Paid."


async def test_of_decisions_through_session_handles_of_two_processes_one_wins(world: World) -> None:
    process, one = await paused(world, call("pay", {"amount": 5}), "one")
    two = await world.process("two").connect(one.id).load()
    asked = one.interrupts[0].id
    turns = [one.interrupts[0].restart({"by": 1}), two.interrupts[0].restart({"by": 2})]
    results = await asyncio.gather(*[t.wait() for t in turns], return_exceptions=True)
    lost = [r for r in results if isinstance(r, Exception)]
    assert len(lost) == 1, results
    assert isinstance(lost[0], AdjournError)
    assert world.done("paid") == [5]
    verbs = [d.verb for d in await process.ai.inbox.history(asked)]
    assert verbs == ["restart"]


# -- expiry ----------------------------------------------------------------------------------------------------------


async def test_an_overdue_pause_is_declined_as_expired_and_not_as_a_refusal(world: World) -> None:
    define = deadline()
    _, session = await paused(world, call("sign", {"what": "lease"}), define=define)
    world.clock.time += 61
    fresh = world.process("Nobody came.", define=define)
    settled = await fresh.ai.inbox.expire_due(run=False)  # whoever opens it goes on with it
    assert [(d.verb, d.by) for d in settled] == [("expire", None)]
    again = fresh.connect(session.id)
    async with asyncio.timeout(20):
        await (await again.load()).close()
    (output,) = outputs_of((await world.process(define=define).connect(session.id).load()).messages)
    assert output["expired"] is True
    assert "declined" not in output
    row = await fresh.ai.inbox.get(session.interrupts[0].id if session.interrupts else settled[0].interrupt_id)
    assert row.status == "expired"
    assert await fresh.ai.inbox.expire_due() == []


async def test_a_pause_can_expire_into_a_default_response(world: World) -> None:
    define = deadline(on_expiry={"respond": {"signed": False}})
    _, session = await paused(world, call("sign", {"what": "lease"}), define=define)
    world.clock.time += 61
    await desk(world).inbox.expire_due()
    again = await world.process("ok", define=define).connect(session.id).load()
    assert outputs_of(again.messages) == [{"signed": False}]
    assert again.last_text == "ok"


async def test_a_pause_can_expire_into_a_failure_that_can_be_retried(world: World) -> None:
    define = deadline(on_expiry="fail")
    _, session = await paused(world, call("sign", {"what": "lease"}), define=define)
    world.clock.time += 61
    await desk(world).inbox.expire_due()
    fresh = world.process("ok", define=define)
    again = await fresh.connect(session.id).load()
    view = await fresh.agent.get_snapshot(session_id=session.id)
    assert view is not None
    assert view.status == "failed"
    assert view.error is not None
    assert "in time" in view.error.message
    assert fresh.model.calls == 0
    assert (await again.retry().output).text == "ok"
    assert_sendable(again.messages)


@pytest.mark.parametrize("how", ["inbox", "list", "get", "handle", "cold handle"])
async def test_a_decision_after_the_deadline_is_stale_though_nobody_swept(world: World, how: str) -> None:
    define = deadline()
    process, session = await paused(world, call("sign", {"what": "lease"}), "late", define=define)
    interrupt = session.interrupts[0]
    world.clock.time += 61
    inbox = desk(world).inbox
    if how == "inbox":
        with pytest.raises(StaleInterrupt):
            await inbox.respond(interrupt.id, "signed")
    elif how == "list":
        assert (await inbox.list()).items == []
    elif how == "get":
        assert (await inbox.get(interrupt.id)).status == "expired"
    elif how == "handle":
        with pytest.raises(StaleInterrupt):
            await interrupt.respond("signed").output
    else:
        cold = await world.process("late", define=define).connect(session.id).load()
        for old in cold.interrupts:
            with pytest.raises(StaleInterrupt):
                await old.respond("signed").output
    assert "signed" not in outputs_of(session.messages)
    assert (await inbox.get(interrupt.id)).status == "expired"
    assert [d.verb for d in await inbox.history(interrupt.id)] == ["expire"]
    assert process.model.calls <= 2


async def test_before_the_deadline_nothing_expires(world: World) -> None:
    define = deadline()
    process, session = await paused(world, call("sign", {"what": "lease"}), "ok", define=define)
    world.clock.time += 59
    assert await process.ai.inbox.expire_due() == []
    assert (await session.interrupts[0].respond("signed").output).text == "ok"
    world.clock.time += 60
    assert await process.ai.inbox.expire_due() == []


async def test_one_of_two_pauses_expires_and_the_other_stays_answerable(world: World) -> None:
    define = deadline()
    both = [call("sign", {"what": "lease"}), call("pay", {"amount": 1})]
    _, session = await paused(world, both, define=define)
    world.clock.time += 61
    await desk(world).inbox.expire_due()
    again = await world.process("ok", define=define).connect(session.id).load()
    assert [i.name for i in again.interrupts] == ["pay"]
    assert (await again.interrupts[0].restart().output).text == "ok"
    assert [("expired" in o, "paid" in o) for o in outputs_of(again.messages)] == [(True, False), (False, True)]


async def test_the_pauses_of_one_message_are_listed_in_the_order_of_its_calls() -> None:
    ai = Adjourn(model=ScriptedModel([[call("ask", {"n": n}) for n in range(8)]]))

    @ai.tool()
    async def ask(n: int) -> None:
        raise Interrupt({"n": n})

    await ai.define_agent("asker", store=MemoryStore()).connect().send("go").output
    page = await ai.inbox.list()
    assert [row.input["n"] for row in page.items] == list(range(8))


async def test_a_pause_that_is_reopened_after_an_edited_input_shows_what_would_run_now(world: World) -> None:
    ran: list[int] = []

    def define(p: Process) -> None:
        @p.ai.tool()
        async def book(seats: int, ctx: ToolRunContext) -> str:
            if not ctx.is_resumed():
                raise Interrupt
            ran.append(seats)
            raise RuntimeError("full")

    process, session = await paused(world, call("book", {"seats": 2}), define=define)
    shown = await process.ai.inbox.get(session.interrupts[0].id)
    accepted = await process.ai.inbox.restart(shown.id, replace_input={"seats": 3}, by="ann")
    assert accepted.turn is not None
    with pytest.raises(ToolFailed):
        await accepted.turn.output
    again = await process.ai.inbox.get(shown.id)
    assert (again.status, again.input) == ("open", {"seats": 3})
    assert again.input_digest != shown.input_digest
    with pytest.raises(StaleInterrupt):  # decided by somebody who still looks at the first input
        await process.ai.inbox.restart(shown.id, expect=shown.version_tag, by="ben")
    second = await process.ai.inbox.restart(shown.id, expect=again.version_tag, by="ben")
    assert second.turn is not None
    with pytest.raises(ToolFailed):
        await second.turn.output
    assert ran == [3, 3]
