"""Fresh processes, old handles and branches."""

from collections.abc import Callable
from typing import Any

import pytest

from adjourn import (
    AdjournError,
    AgentInit,
    AlreadyResolved,
    Interrupt,
    InvalidRequest,
    ResumeError,
    SessionConflict,
    SessionNotFound,
    ToolChanged,
    ToolFailed,
    ToolGone,
    ToolRunContext,
)
from adjourn.errors import StoreUnavailable
from adjourn.promise import Pending
from adjourn.store import Store
from adjourn.testing import call
from sessions.session_kit import Mortal, Process, World, assert_sendable, outputs_of, shown

TWO = [call("pay", {"amount": 1}, ref="a"), call("pay", {"amount": 2}, ref="b")]


async def paused(world: World, *replies: Any, **options: Any) -> tuple[Process, Any]:
    process = world.process(*replies, **options)
    session = process.connect()
    await session.send("go").output
    return process, session


# -- reload ----------------------------------------------------------------------------------------------------------


async def test_a_fresh_process_has_all_interrupts_with_the_same_ids_and_payloads(world: World) -> None:
    _, session = await paused(world, [*TWO, call("ask", {"text": "ok?"}), call("look", {"key": "a"})])
    again = await world.process("ok").connect(session.id).load()
    assert shown(again) == shown(session)
    assert again.messages == session.messages
    for interrupt in again.interrupts[:2]:
        await interrupt.restart().output
    assert (await again.interrupts[0].respond({"ok": True}).output).text == "ok"
    assert world.done("paid") == [1, 2]
    assert world.done("looked") == ["a"]


async def test_a_session_opened_by_its_snapshot_is_the_same_session(world: World) -> None:
    _, session = await paused(world, TWO)
    again = await world.process("ok").connect(snapshot_id=session.snapshot_id).load()
    assert again.id == session.id
    assert shown(again) == shown(session)


async def test_after_a_partial_answer_only_the_rest_is_there_in_a_fresh_process(world: World) -> None:
    _, session = await paused(world, TWO)
    await session.interrupts[0].respond("one").output
    again = await world.process("ok").connect(session.id).load()
    assert shown(again) == shown(session)
    assert (await again.interrupts[0].respond("two").output).text == "ok"
    assert outputs_of(again.messages) == ["one", "two"]


async def test_a_session_that_is_not_there_yet_begins_under_its_given_id(world: World) -> None:
    process = world.process("hello", "again")
    session = process.connect("my-session")
    assert (await session.send("hi").output).session_id == "my-session"
    assert (await world.process("again").connect("my-session").send("hi").output).text == "again"


async def test_an_unknown_snapshot_and_one_of_another_session_are_refused(world: World) -> None:
    process, session = await paused(world, "hello")
    with pytest.raises(SessionNotFound):
        await process.connect(snapshot_id="n_nothing").load()
    with pytest.raises(InvalidRequest, match="does not belong to session"):
        await process.agent.connect(AgentInit(session_id="other", snapshot_id=session.snapshot_id)).load()


async def test_a_session_of_another_agent_is_refused(world: World) -> None:
    process, session = await paused(world, "hello")
    other = process.ai.define_agent("other", store=process.store)
    with pytest.raises(InvalidRequest, match="belongs to agent"):
        await other.connect(AgentInit(session_id=session.id)).load()


async def test_the_owner_stays_the_owner_when_somebody_else_decides(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}), "ok")
    session = process.agent.connect(AgentInit(owner="ann"))
    await session.send("go").output
    accepted = await world.process("ok").ai.inbox.restart(session.interrupts[0].id, by="bob")
    await accepted.turn.output  # type: ignore[union-attr]
    again = await world.process().connect(session.id).load()
    assert again.owner == "ann"
    assert accepted.by == "bob"
    assert (await process.ai.inbox.list(status=None, assignee="ann")).items[0].owner == "ann"


# -- old handles -----------------------------------------------------------------------------------------------------


async def test_an_old_handle_that_answers_after_somebody_else_did_runs_nothing(world: World) -> None:
    process, session = await paused(world, call("pay", {"amount": 1}), "old")
    other = await world.process("new").connect(session.id).load()
    assert (await other.interrupts[0].restart({"by": "new"}).output).text == "new"
    with pytest.raises((AlreadyResolved, SessionConflict)):
        await session.interrupts[0].restart({"by": "old"}).output
    assert world.done("paid") == [1]
    assert process.model.calls == 1


async def test_an_old_handle_that_sends_after_somebody_else_did_gets_a_conflict_and_calls_no_model(
    world: World,
) -> None:
    process, session = await paused(world, "one", "stale")
    other = await world.process("two").connect(session.id).load()
    await other.send("2").output
    with pytest.raises(SessionConflict, match="gone on"):
        await session.send("stale").output
    again = await world.process("three").connect(session.id).load()
    assert [m.text for m in again.messages] == ["go", "one", "2", "two"]
    assert process.model.calls <= 2


async def test_an_old_handle_that_sends_a_message_whose_tool_would_act_runs_no_tool(world: World) -> None:
    _, session = await paused(world, "one", call("look", {"key": "stale"}), "x")
    other = await world.process("two").connect(session.id).load()
    await other.send("2").output
    with pytest.raises(SessionConflict):
        await session.send("stale").output
    assert world.done("looked") == []


async def test_after_a_conflict_the_handle_reads_the_session_again(world: World) -> None:
    _, session = await paused(world, "one", "three", "three")
    other = await world.process("two").connect(session.id).load()
    await other.send("2").output
    with pytest.raises(SessionConflict):
        await session.send("stale").output
    assert [m.text for m in session.messages] == ["go", "one", "2", "two"]
    assert (await session.send("3").output).text == "three"


# -- forks -----------------------------------------------------------------------------------------------------------


async def test_a_fork_of_a_paused_snapshot_has_interrupts_of_its_own(world: World) -> None:
    process, session = await paused(world, TWO, "a", "b")
    branch = await session.fork()
    ids = {i.id for i in session.interrupts}
    assert len(branch.interrupts) == 2
    assert not ids & {i.id for i in branch.interrupts}
    assert [i.payload for i in branch.interrupts] == [i.payload for i in session.interrupts]
    assert len((await process.ai.inbox.list(session_id=session.id)).items) == 4


async def test_answering_one_branch_never_touches_the_other(world: World) -> None:
    process, session = await paused(world, call("pay", {"amount": 1}), "main", "branch")
    branch = await session.fork()
    assert (await session.interrupts[0].respond("main answer").output).text == "main"
    assert len(branch.interrupts) == 1
    assert (await process.ai.inbox.get(branch.interrupts[0].id)).status == "open"
    assert (await branch.interrupts[0].respond("branch answer").output).text == "branch"
    assert outputs_of(session.messages) == ["main answer"]
    assert outputs_of(branch.messages) == ["branch answer"]
    for live in (session, branch):
        stored = await world.process().connect(snapshot_id=live.snapshot_id).load()
        assert stored.messages == live.messages


async def test_an_answer_of_one_branch_is_no_answer_in_the_other(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 1}), "main", "branch")
    branch = await session.fork()
    foreign = session.interrupts[0].paused.restart()
    with pytest.raises(ResumeError):
        await branch.decide(foreign).output
    assert world.done("paid") == []
    assert len(branch.interrupts) == 1


async def test_a_branch_is_decided_in_the_inbox_and_goes_on_where_it_is(world: World) -> None:
    process, session = await paused(world, call("pay", {"amount": 1}), "main", "branch")
    branch = await session.fork()
    accepted = await process.ai.inbox.respond(session.interrupts[0].id, "main answer")
    if accepted.turn is not None:
        await accepted.turn.output
    else:
        for turn in await process.ai.recover():
            await turn.settled()
    accepted = await process.ai.inbox.respond(branch.interrupts[0].id, "branch answer")
    if accepted.turn is not None:
        await accepted.turn.output
    rows = await process.ai.inbox.list(status=None, session_id=session.id)
    assert {r.status for r in rows.items} == {"resolved"}
    leaves = [s for s in await process.ai.sessions.snapshots(session.id) if s.messages is not None]
    ends = [await process.agent.get_snapshot(snapshot_id=s.id) for s in leaves]
    assert sorted(outputs_of(v.messages)[0] for v in ends if v is not None) == ["branch answer", "main answer"]
    assert process.model.calls == 3


async def test_a_fork_of_an_older_snapshot_goes_its_own_way_and_both_reload_as_they_were(world: World) -> None:
    _, session = await paused(world, "one", "two", "other two", "three", "other three")
    first = session.snapshot_id
    await session.send("2").output
    branch = await session.fork(first)
    assert [m.text for m in branch.messages] == ["go", "one"]
    await branch.send("other 2").output
    await session.send("3").output
    await branch.send("other 3").output
    assert [m.text for m in session.messages] == ["go", "one", "2", "two", "3", "three"]
    assert [m.text for m in branch.messages] == ["go", "one", "other 2", "other two", "other 3", "other three"]
    for live in (session, branch):
        stored = await world.process().connect(snapshot_id=live.snapshot_id).load()
        assert stored.messages == live.messages


async def test_a_fork_before_a_pause_asks_again_with_a_new_id(world: World) -> None:
    _, session = await paused(world, "one", call("pay", {"amount": 1}), "ok", call("pay", {"amount": 1}), "ok too")
    first = session.snapshot_id
    await session.send("pay").output
    asked = session.interrupts[0].id
    await session.interrupts[0].restart().output
    branch = await session.fork(first)
    await branch.send("pay").output
    assert branch.interrupts[0].id != asked
    assert world.done("paid") == [1]


async def test_forking_nothing_is_refused(world: World) -> None:
    with pytest.raises(SessionNotFound):
        await world.process().connect().fork()


def charging(process: Process) -> None:
    """A tool that is paid by key, as a payment provider would do it: the first time once, the same key never again."""

    @process.ai.tool()
    async def charge(amount: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"amount": amount})
        process.log.append(("charged", ctx.idempotency_key))
        if ctx.resumed_metadata.get("fails"):
            raise ConnectionError("nobody knows whether it got through")
        return "charged"


async def test_a_call_that_is_approved_in_two_branches_has_a_key_in_each(world: World) -> None:
    _, session = await paused(world, call("charge", {"amount": 1}), *["ok"] * 3, define=charging)
    first = await session.fork()
    second = await first.fork()
    for live in (session, first, second):
        assert (await live.interrupts[0].restart({}).output).text == "ok"
    keys = world.done("charged")
    assert len(keys) == len(set(keys)) == 3


async def test_each_attempt_of_a_branch_has_the_key_of_its_own_approval_in_any_process(world: World) -> None:
    _, session = await paused(world, call("charge", {"amount": 1}), define=charging)
    branch = await session.fork()
    for live in (session, branch):
        with pytest.raises(ToolFailed):
            await live.interrupts[0].restart({"fails": True}).output
        again = await world.process("ok", define=charging).connect(snapshot_id=live.snapshot_id).load()
        assert again.interrupts[0].id == live.interrupts[0].id
        assert (await again.interrupts[0].restart({}).output).text == "ok"
    keys = world.done("charged")
    assert keys[0] == keys[1] != keys[2] == keys[3]


async def test_a_run_of_unknown_outcome_before_a_fork_has_one_key_in_both_branches(world: World) -> None:
    """It was approved once, before the branches parted, and may have taken effect: whoever runs it again repeats it."""
    _, session = await paused(world, call("charge", {"amount": 1}), define=charging)
    store = Mortal(world.place.open(), 1)
    lost = world.process(store=store, define=charging).connect(session.id)
    await lost.load()
    with pytest.raises(AdjournError):
        await lost.interrupts[0].restart({}).output
    world.pass_lease()
    again = await world.process("ok", "ok", define=charging).connect(session.id).load()
    assert again.interrupts[0].reason == "outcome_unknown"
    branch = await again.fork()
    for live in (again, branch):
        assert (await live.interrupts[0].restart({}).output).text == "ok"
    keys = world.done("charged")
    assert len(keys) == 3
    assert len(set(keys)) == 1


# -- tools that changed ----------------------------------------------------------------------------------------------


def renamed(p: Process) -> None:
    del p.ai.tools["pay"]


def with_another_schema(p: Process) -> None:
    del p.ai.tools["pay"]

    @p.ai.tool(name="pay")
    async def pay(amount: int, currency: str) -> str:
        p.log.append(("paid", amount))
        return "paid"


@pytest.mark.parametrize("change, error", [(renamed, ToolGone), (with_another_schema, ToolChanged)])
@pytest.mark.parametrize("where", ["session", "inbox"])
async def test_a_tool_that_changed_since_the_pause_is_not_restarted_and_respond_still_works(
    world: World, change: Any, error: Any, where: str
) -> None:
    _, session = await paused(world, call("pay", {"amount": 1}))
    fresh = world.process("ok", define=change)
    again = await fresh.connect(session.id).load()
    interrupt = again.interrupts[0]
    with pytest.raises(error):
        await (interrupt.restart().output if where == "session" else fresh.ai.inbox.restart(interrupt.id))
    assert shown(again) == shown(session)
    assert (await fresh.ai.inbox.get(interrupt.id)).status == "open"
    if where == "session":
        assert (await interrupt.respond("done by hand").output).text == "ok"
    else:
        accepted = await fresh.ai.inbox.respond(interrupt.id, "done by hand")
        assert accepted.turn is not None
        assert (await accepted.turn.output).text == "ok"
    assert world.done("paid") == []


async def test_a_pause_of_a_tool_that_is_gone_can_still_be_declined(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 1}))
    again = await world.process("ok", define=renamed).connect(session.id).load()
    assert (await again.interrupts[0].decline("gone").output).text == "ok"
    assert_sendable(again.messages)


# -- sessions cost the same however long they are --------------------------------------------------------------------


async def test_a_turn_touches_as_many_rows_at_turn_60_as_at_turn_3(world: World) -> None:
    from adjourn.store import Tx

    process = world.process(*["ok"] * 70)
    counted: list[str] = []
    inner = process.agent.store
    assert inner is not None

    class Counting:
        lease_seconds = inner.lease_seconds

        def submit(self, work: Any, *, read: bool = False) -> Any:
            def counting(tx: Tx) -> Any:
                return work(_CountingTx(tx, counted))

            return inner.submit(counting, read=read)

        def subscribe(self, callback: Any) -> Any:
            return inner.subscribe(callback)

        def close(self) -> None:
            pass

    process.agent.store = Counting()
    session = process.connect()
    costs: list[int] = []
    for n in range(60):
        counted.clear()
        await session.send(str(n)).output
        costs.append(len(counted))
    assert costs[59] == costs[2]


class _CountingTx:
    def __init__(self, tx: Any, counted: list[str]) -> None:
        self._tx = tx
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._tx, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result: Any = method(*args, **kwargs)
            rows: int = len(result) if hasattr(result, "append") else 1
            self._counted += [name] * rows
            return result

        return call


class Unlucky:
    """A store whose next commit fails, and keeps nothing, each time that it is told so."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.lease_seconds = inner.lease_seconds
        self.subscribe = inner.subscribe
        self.close = inner.close
        self.fails = False

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Any:
        if read or not self.fails:
            return self.inner.submit(work, read=read)
        self.fails = False
        failed: Pending[Any] = Pending()
        failed.fail(StoreUnavailable("locked for a while; nothing was kept"))
        return failed


@pytest.mark.parametrize("paused", [False, True])
async def test_a_branch_whose_store_failed_once_stays_in_its_branch(world: World, paused: bool) -> None:
    store = Unlucky(world.place.open())
    first = call("pay", {"amount": 1}) if paused else "one"
    process = world.process(first, "main", "branch", "branch", store=store)
    session = process.connect("s1")
    at = (await session.send("first").output).snapshot_id
    branch = await session.fork(at)
    if paused:
        await session.interrupts[0].respond("in the main branch").output
    else:
        await session.send("in the main branch").output
    stood = [m.text for m in branch.messages]
    store.fails = True
    with pytest.raises(StoreUnavailable):
        await (branch.interrupts[0].respond("in the other") if paused else branch.send("in the other")).output
    assert [m.text for m in branch.messages] == stood
    output = await (branch.interrupts[0].respond("in the other") if paused else branch.send("in the other")).output
    assert output.text == "branch"
    assert "in the main branch" not in str(output.messages)
