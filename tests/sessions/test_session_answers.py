"""Decisions on a session: partial, wrong, falsy, batched; siblings kept; messages that come while it is paused."""

import asyncio
from typing import Any

import pytest

from adjourn import (
    AlreadyResolved,
    EmptyResume,
    Interrupt,
    InvalidInput,
    InvalidRequest,
    InvalidResponse,
    Limits,
    ModifiedInput,
    NothingPaused,
    NotJSON,
    Resume,
    ResumeError,
    SessionBusy,
    SessionPaused,
    StaleInterrupt,
    ToolRequest,
    ToolRequestPart,
    ToolResponse,
    ToolResponsePart,
    ToolRunContext,
    UnknownInterrupt,
    VerbNotAllowed,
    decline_interrupt,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.testing import call
from sessions.session_kit import Process, World, assert_sendable, outputs_of, shown

TWO = [call("pay", {"amount": 1}, ref="a"), call("pay", {"amount": 2}, ref="b")]


def respond(name: str, ref: str | None, output: Any) -> Any:
    return ToolResponsePart(tool_response=ToolResponse(name, ref, output))


async def paused(world: World, *replies: Any, **options: Any) -> tuple[Process, Any]:
    process = world.process(*replies, **options)
    session = process.connect()
    await session.send("go").output
    assert session.interrupts
    return process, session


# -- partial answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1])
async def test_one_answer_of_two_is_acted_on_at_once_and_the_model_waits_for_the_other(
    world: World, first: int
) -> None:
    process, session = await paused(world, TWO, "Both done.")
    output = await session.interrupts[first].restart().output
    assert output.finish_reason == "interrupted"
    assert [i.input["amount"] for i in session.interrupts] == [2 - first]
    assert world.done("paid") == [first + 1]
    assert process.model.calls == 1
    output = await session.interrupts[0].restart().output
    assert output.text == "Both done."
    assert world.done("paid") == [first + 1, 2 - first]
    assert [o["paid"] for o in outputs_of(session.messages)] == [1, 2]
    assert_sendable(session.messages)


async def test_two_calls_with_the_same_tool_and_input_and_no_refs_are_told_apart(world: World) -> None:
    same = [call("pay", {"amount": 7}), call("pay", {"amount": 7})]
    _, session = await paused(world, same, "ok")
    second = session.interrupts[1]
    await second.respond("second").output
    assert [i.id for i in session.interrupts] != [second.id]
    await session.interrupts[0].respond("first").output
    assert outputs_of(session.messages) == ["first", "second"]


async def test_siblings_of_a_pause_run_at_once_are_kept_and_never_run_again(world: World) -> None:
    three = [call("look", {"key": "a"}), call("pay", {"amount": 1}), call("look", {"key": "b"})]
    _, session = await paused(world, three, "ok")
    assert sorted(world.done("looked")) == ["a", "b"]
    output = await session.interrupts[0].restart().output
    assert output.text == "ok"
    assert sorted(world.done("looked")) == ["a", "b"]
    assert [next(iter(o)) for o in outputs_of(session.messages)] == ["found", "paid", "found"]


async def test_one_of_six_answers_leaves_five_paused_and_nothing_else_runs(world: World) -> None:
    six = [call("pay", {"amount": n}) for n in range(6)]
    process, session = await paused(world, six, "ok")
    before = shown(session)
    await session.interrupts[3].respond("x").output
    assert shown(session) == before[:3] + before[4:]
    assert world.done("asked") == list(range(6))
    assert process.model.calls == 1


async def test_two_interrupts_answered_before_the_first_leg_is_over_are_both_taken(world: World) -> None:
    process, session = await paused(world, TWO, "ok")
    first, second = session.interrupts
    turns = [first.restart(), second.restart()]
    outputs = [await t.output for t in turns]
    assert [o.finish_reason for o in outputs] == ["interrupted", "stop"]
    assert sorted(world.done("paid")) == [1, 2]
    assert process.model.calls == 2


async def test_a_pause_during_a_restart_is_a_pause_like_any_other(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def staged(ctx: ToolRunContext) -> Any:
            if len(ctx.restarts) < 2:
                raise Interrupt({"stage": len(ctx.restarts)})
            return list(ctx.restarts)

    _, session = await paused(world, call("staged"), "ok", define=define)
    first = session.interrupts[0].id
    await session.interrupts[0].restart({"by": "ann"}).output
    assert session.interrupts[0].payload == {"stage": 1}
    assert session.interrupts[0].id != first
    output = await session.interrupts[0].restart({"by": "bob"}).output
    assert output.text == "ok"
    assert outputs_of(session.messages) == [[{"by": "ann"}, {"by": "bob"}]]


async def test_falsy_metadata_of_a_restart_reaches_the_tool_as_it_is_in_a_fresh_process_too(world: World) -> None:
    said: list[Any] = [False, 0, "", [], None, {}]

    def define(p: Process) -> None:
        @p.ai.tool()
        async def staged(ctx: ToolRunContext) -> Any:
            if len(ctx.restarts) < len(said):
                raise Interrupt({"stage": len(ctx.restarts)})
            return [list(ctx.restarts), ctx.resumed_metadata]

    options: Any = {"define": define, "limits": Limits(restarts=9)}
    process, session = await paused(world, call("staged"), "ok", **options)
    for n, metadata in enumerate(said):
        if n % 2:
            await session.interrupts[0].restart(metadata).output
        else:
            accepted = await process.ai.inbox.restart(session.interrupts[0].id, metadata=metadata)
            assert repr(accepted.decision.metadata) == repr(metadata)
            assert accepted.turn is not None
            await accepted.turn.output
        process = world.process("ok", **options)
        session = await process.connect(session.id).load()
    assert outputs_of(session.messages) == [[[False, 0, "", [], {}, {}], {}]]


# -- batches ---------------------------------------------------------------------------------------------------------


async def test_a_batch_of_answers_settles_all_in_one_leg(world: World) -> None:
    process, session = await paused(world, [*TWO, call("ask", {"text": "ok?"}, ref="c")], "ok")
    a, b, c = session.interrupts
    output = await session.resume(
        Resume(
            respond=[respond_to_interrupt({"ok": True}, interrupt=c.paused), decline_interrupt("no", b.paused)],
            restart=[restart_tool("pay", interrupt=a.paused, resumed_metadata={"by": "ann"})],
        )
    ).output
    assert output.text == "ok"
    assert world.done("paid") == [1]
    assert outputs_of(session.messages) == [
        {"paid": 1, "note": {"by": "ann"}},
        {"declined": True, "reason": "no"},
        {"ok": True},
    ]
    assert process.model.calls == 2


async def test_a_batch_with_one_wrong_answer_changes_nothing_and_runs_nothing(world: World) -> None:
    process, session = await paused(world, [*TWO, call("ask", {"text": "ok?"}, ref="c")], "ok")
    before, at = shown(session), session.snapshot_id
    good = session.interrupts[0].paused.restart()
    wrong = session.interrupts[2].paused.respond({"ok": "perhaps"})
    with pytest.raises(InvalidResponse) as caught:
        await session.resume(Resume(respond=[wrong], restart=[good])).output
    assert caught.value.problems[0]["path"] == "$.ok"
    assert (shown(session), session.snapshot_id, world.done("paid")) == (before, at, [])
    assert len(await process.ai.sessions.snapshots(session.id)) == 1
    await session.resume(Resume(restart=[good])).output
    assert world.done("paid") == [1]


async def test_the_same_interrupt_twice_in_one_batch_is_refused(world: World) -> None:
    _, session = await paused(world, TWO, "ok")
    answer = session.interrupts[0].paused
    with pytest.raises(ResumeError, match="twice"):
        await session.resume(Resume(respond=[answer.respond(1), answer.respond(2)])).output
    assert len(session.interrupts) == 2


async def test_wire_parts_find_their_calls_by_name_and_ref_in_any_order(world: World) -> None:
    _, session = await paused(world, TWO, "ok")
    await session.resume(Resume(respond=[respond("pay", "b", "second"), respond("pay", "a", "first")])).output
    assert outputs_of(session.messages) == ["first", "second"]


# -- refused decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [True, False])
async def test_an_empty_resume_is_refused_and_the_pause_stays(world: World, restart: bool) -> None:
    process, session = await paused(world, TWO, "ok")
    with pytest.raises(EmptyResume):
        await session.resume(Resume(restart=[]) if restart else Resume()).output
    assert len(session.interrupts) == 2
    assert process.model.calls == 1


async def test_a_resume_of_a_session_that_never_paused_is_refused_and_calls_no_model(world: World) -> None:
    process = world.process("hello")
    session = process.connect()
    with pytest.raises(NothingPaused):
        await session.resume(Resume(respond=[respond("pay", "a", 1)])).output
    assert process.model.calls == 0
    assert (await session.send("hi").output).text == "hello"


async def test_forged_unknown_stale_and_resolved_answers_are_different_errors(world: World) -> None:
    _, session = await paused(world, TWO, call("pay", {"amount": 3}, ref="c"), "ok")
    forged = ToolRequestPart(tool_request=ToolRequest("pay", "a", {"amount": 1000}), metadata={"resumed": True})
    with pytest.raises(ModifiedInput, match="modified inputs"):
        await session.resume(Resume(restart=[forged])).output
    with pytest.raises(UnknownInterrupt, match="not found in session history"):
        await session.resume(Resume(respond=[respond("fake", "zz", 1)])).output
    old = session.interrupts[0]
    await old.restart().output
    with pytest.raises(AlreadyResolved):
        await old.restart().output
    await session.interrupts[0].restart().output
    assert [i.input["amount"] for i in session.interrupts] == [3]
    with pytest.raises(StaleInterrupt):
        await session.resume(Resume(respond=[respond("pay", "a", 1)])).output
    with pytest.raises((AlreadyResolved, StaleInterrupt)):
        await old.restart().output
    assert world.done("paid") == [1, 2]


async def test_an_interrupt_of_another_session_is_refused(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}), call("pay", {"amount": 2}), "ok")
    mine, theirs = process.connect(), process.connect()
    await mine.send("go").output
    await theirs.send("go").output
    foreign = theirs.interrupts[0].paused
    with pytest.raises(ResumeError):
        await mine.resume(Resume(restart=[foreign.restart()])).output
    assert world.done("paid") == []
    assert len(mine.interrupts) == len(theirs.interrupts) == 1


async def test_a_replaced_input_on_the_wire_must_name_the_record_and_is_validated(world: World) -> None:
    _, session = await paused(world, TWO, "ok")

    def edited(amount: Any, shown: Any) -> Any:
        request = ToolRequest("pay", "a", {"amount": amount})
        return ToolRequestPart(tool_request=request, metadata={"resumed": True, "replacedInput": shown})

    with pytest.raises(ModifiedInput):
        await session.resume(Resume(restart=[edited(5, {"amount": 99})])).output
    with pytest.raises(InvalidInput):
        await session.resume(Resume(restart=[edited("much", {"amount": 1})])).output
    assert world.done("paid") == []
    await session.resume(Resume(restart=[edited(5, {"amount": 1})])).output
    assert world.done("paid") == [5]


async def test_an_edited_input_runs_and_the_history_shows_both(world: World) -> None:
    process, session = await paused(world, call("pay", {"amount": 1000}, ref="a"), "ok")
    await session.interrupts[0].restart(replace_input={"amount": 10}).output
    assert world.done("paid") == [10]
    part = process.model.requests[1].messages[-1].content[0]
    assert part.metadata is not None
    assert part.metadata["executedInput"] == {"amount": 10}
    assert part.metadata["replacedInput"] == {"amount": 1000}


async def test_a_respond_only_interrupt_cannot_be_restarted_and_stays(world: World) -> None:
    _, session = await paused(world, call("ask", {"text": "ok?"}, ref="q"), "ok")
    assert session.interrupts[0].allow == ("respond",)
    with pytest.raises(VerbNotAllowed):
        await session.interrupts[0].restart()
    wire = ToolRequestPart(tool_request=ToolRequest("ask", "q", {"text": "ok?"}), metadata={"resumed": True})
    with pytest.raises(VerbNotAllowed):
        await session.resume(Resume(restart=[wire])).output
    assert (await session.interrupts[0].respond({"ok": True}).output).text == "ok"


async def test_an_answer_that_is_no_json_is_refused_and_leaves_no_trace(world: World) -> None:
    _, session = await paused(world, TWO, "ok")
    for bad in (float("nan"), object(), {"x": {1: 2}}):
        with pytest.raises(NotJSON):
            session.interrupts[0].respond(bad)
        with pytest.raises(NotJSON):
            session.interrupts[0].restart({"x": bad})
    await session.interrupts[0].respond(1).output
    await session.interrupts[0].respond(2).output
    assert outputs_of(session.messages) == [1, 2]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}], ids=repr)
async def test_falsy_is_an_answer(world: World, value: Any) -> None:
    process, session = await paused(world, call("pay", {"amount": 1}), "ok")
    output = await session.interrupts[0].respond(value).output
    assert output.text == "ok"
    assert outputs_of(session.messages) == [value]
    assert type(outputs_of(process.model.requests[1].messages)[0]) is type(value)
    again = await world.process("more").connect(session.id).load()
    assert outputs_of(again.messages) == [value]


async def test_an_answer_that_looks_like_a_map_of_ids_is_delivered_as_data(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 1}), "ok")
    data = {"0123456789abcdef0123456789abcdef": "grant"}
    await session.interrupts[0].respond(data).output
    assert outputs_of(session.messages) == [data]


# -- messages while paused or busy -----------------------------------------------------------------------------------


async def test_a_message_while_paused_is_refused_by_default_and_nothing_changes(world: World) -> None:
    process, session = await paused(world, TWO, "ok")
    at = session.snapshot_id
    with pytest.raises(SessionPaused) as caught:
        await session.send("hello?").output
    assert [i.id for i in caught.value.interrupts] == [i.id for i in session.interrupts]
    assert (session.snapshot_id, process.model.calls) == (at, 1)
    cold = world.process("x").connect(session.id)
    with pytest.raises(SessionPaused):
        await cold.send("hello?").output
    assert len(cold.interrupts) == 2


async def test_a_message_while_paused_declines_the_open_calls_where_the_agent_says_so(world: World) -> None:
    options: dict[str, Any] = {"on_message_while_paused": "decline"}
    process, session = await paused(world, TWO, "Never mind then.", **options)
    rows = [i.id for i in session.interrupts]
    output = await session.send("forget it").output
    assert output.text == "Never mind then."
    assert world.done("paid") == []
    sent = process.model.requests[1].messages
    assert_sendable(sent)
    assert [o["declined"] for o in outputs_of(sent)] == [True, True]
    assert sent[-1].text == "forget it"
    for row in rows:
        assert (await process.ai.inbox.get(row)).status != "open"
        assert "decline" in [d.verb for d in await process.ai.inbox.history(row)]


async def test_a_queued_message_is_durable_and_is_sent_when_the_pause_is_over(world: World) -> None:
    options: dict[str, Any] = {"on_message_while_paused": "queue"}
    process, session = await paused(world, call("pay", {"amount": 1}), "Paid.", "And hello.", **options)
    queued = session.send("hello")
    assert process.model.calls == 1
    await session.interrupts[0].restart().output
    assert (await queued.output).text == "And hello."
    assert [m.text for m in session.messages if m.role == "user"] == ["go", "hello"]
    again = await world.process(**options).connect(session.id).load()
    assert again.messages == session.messages


async def test_a_queued_message_survives_the_process_that_took_it(world: World) -> None:
    options: dict[str, Any] = {"on_message_while_paused": "queue"}
    _, session = await paused(world, call("pay", {"amount": 1}), **options)
    session.send("hello")
    session.send("and bye")
    fresh = world.process("Paid.", "Hello.", "Bye.", **options)
    again = await fresh.connect(session.id).load()
    await again.interrupts[0].restart().output
    async with asyncio.timeout(20):
        while again.last_text != "Bye.":  # noqa: ASYNC110 - nobody holds the queued turns' handles
            await asyncio.sleep(0.002)
    assert [m.text for m in again.messages if m.role == "user"] == ["go", "hello", "and bye"]
    assert again.last_text == "Bye."
    assert_sendable(again.messages)
    once_more = await world.process(**options).connect(session.id).load()
    assert once_more.messages == again.messages


async def test_a_second_decision_through_the_same_handle_hears_of_the_first(world: World) -> None:
    _, session = await paused(world, TWO, "ok")
    first = session.interrupts[0]
    await first.restart({"by": "ann"}).output
    with pytest.raises(AlreadyResolved) as caught:
        await first.respond("by hand").output
    assert (caught.value.decision.verb, caught.value.decision.metadata) == ("restart", {"by": "ann"})
    assert world.done("paid") == [1]


@pytest.mark.parametrize("late", [False, True], ids=["while it runs", "after its end"])
async def test_a_second_handles_decision_hears_of_the_one_that_counts(world: World, late: bool) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    def define(process: Any) -> None:
        @process.ai.tool(approval=True)
        async def hold(n: int) -> str:
            started.set()
            await gate.wait()
            return "paid"

    _, session = await paused(world, call("hold", {"n": 1}), "done", define=define)
    other = await world.process(define=define).connect(session.id).load()
    turn = session.interrupts[0].restart()
    await started.wait()
    if late:
        gate.set()
        await turn.output
    with pytest.raises(AlreadyResolved) as caught:
        await other.interrupts[0].respond("by hand").output
    assert caught.value.decision.verb == "restart"
    gate.set()
    assert (await turn.output).text == "done"


async def test_a_message_while_a_turn_runs_is_refused_as_busy(world: World) -> None:
    gate = asyncio.Event()

    async def slow(_: Any) -> str:
        await gate.wait()
        return "late"

    process = world.process(slow, "next")
    session = process.connect()
    turn = session.send("one")
    with pytest.raises(SessionBusy):
        session.send("two")
    gate.set()
    assert (await turn.output).text == "late"
    assert (await session.send("two").output).text == "next"


async def test_a_message_while_a_turn_runs_waits_its_turn_where_the_agent_queues(world: World) -> None:
    gate = asyncio.Event()

    async def slow(_: Any) -> str:
        await gate.wait()
        return "late"

    process = world.process(slow, "next", on_message_while_paused="queue")
    session = process.connect()
    one, two = session.send("one"), session.send("two")
    gate.set()
    assert ((await one.output).text, (await two.output).text) == ("late", "next")
    assert [m.text for m in session.messages] == ["one", "late", "two", "next"]


async def test_who_decides_on_a_sessions_own_interrupt_stands_in_the_audit(world: World) -> None:
    process, session = await paused(world, [*TWO, call("pay", {"amount": 3}, ref="c")], "done")
    one, two, three = session.interrupts
    for by in (5, "bad\udcff"):
        with pytest.raises(InvalidRequest, match=r"^by=.*nothing was changed"):
            one.respond("x", by=by)
    await one.respond("x", by="ann").output
    await two.restart({"note": 1}, by="ben").output
    assert (await three.decline("no", by="cleo").output).text == "done"
    rows = [d for i in (one, two, three) for d in await process.ai.inbox.history(i.id)]
    assert [(d.verb, d.by) for d in rows] == [("respond", "ann"), ("restart", "ben"), ("decline", "cleo")]


async def test_a_sessions_own_decision_needs_nobodys_name(world: World) -> None:
    process, session = await paused(world, [call("pay", {"amount": 1})], "done")
    (interrupt,) = session.interrupts
    await interrupt.respond("x").output
    assert [d.by for d in await process.ai.inbox.history(interrupt.id)] == [None]
