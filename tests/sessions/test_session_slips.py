"""A slip of the caller's is told at once, by the name of the argument, and changes nothing."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjourn import Adjourn, AgentInit, Interrupt, InvalidRequest, MemoryStore
from adjourn.errors import DefinitionError, NotJSON, ResumeError, SessionClosed, SessionNotFound, UnknownInterrupt
from adjourn.handle import Resume, SessionState
from adjourn.parts import Artifact, Part, ToolResponse, ToolResponsePart
from adjourn.testing import call
from adjourn.tool import Tool
from sessions.session_kit import World, paused

PAY = call("pay", {"amount": 5})
NAN = float("nan")


async def exported(ai: Adjourn, ids: Any = None) -> list[str]:
    lines = [line async for line in ai.sessions.export(ids)]
    return [msgspec.json.decode(line)["session"]["id"] for line in lines]


async def test_an_export_names_what_is_there_or_nothing_is_given(world: World) -> None:
    process, session = await paused(world, [PAY])
    with pytest.raises(InvalidRequest, match=rf"session_ids='{session.id}': give a list of texts"):
        await exported(process.ai, session.id)
    with pytest.raises(SessionNotFound, match="there is no session 'misspelt'"):
        await anext(process.ai.sessions.export([session.id, "misspelt"]))
    assert await exported(process.ai, [session.id]) == await exported(process.ai) == [session.id]
    assert await exported(process.ai, []) == []


async def test_the_session_of_a_nested_agent_that_is_gone_is_left_out_of_an_export(world: World) -> None:
    def define(p: Any) -> None:
        inner = p.ai.define_agent("inner", model="inside", tools=["pay"], store=p.store)
        p.ai.add_tool(inner.as_tool())

    process = world.process([call("inner", {"task": "x"})], [PAY], define=define)
    process.ai.define_model("inside", process.model)
    session = process.connect()
    await session.send("go").output
    (inner,) = [i for i in await exported(process.ai) if i != session.id]
    assert await exported(process.ai, [session.id]) == [session.id, inner]
    await process.ai.sessions.delete(inner, force=True)
    assert await exported(process.ai, [session.id]) == [session.id]


@pytest.mark.parametrize("limit", [0, -1, None, 1.5, "5", True])
async def test_a_limit_is_a_number_of_entries(world: World, limit: Any) -> None:
    ai = world.process().ai
    for work, most in ((ai.sessions.list, 10_000), (ai.inbox.list, 1000), (ai.inbox.changes, 10_000)):
        with pytest.raises(InvalidRequest, match=rf"^limit={limit!r}: give 1 to {most}$"):
            await work(limit=limit)


@pytest.mark.parametrize(
    "slip",
    [
        {"status": "opened"}, {"cursor": 5}, {"cursor": "junk"}, {"owners": "ann"}, {"agents": "x"}, {"tools": "pay"},
        {"owners": [5]}, {"agents": 5}, {"tools": {"pay": 1}}, {"tool": 5},
    ],
    ids=str,
)  # fmt: skip
async def test_a_filter_of_the_inbox_that_fits_nothing_is_refused(world: World, slip: dict[str, Any]) -> None:
    inbox = (await paused(world, [PAY]))[0].ai.inbox
    (name,) = slip
    with pytest.raises(InvalidRequest, match=name):
        await inbox.list(**slip)
    if name != "cursor":
        with pytest.raises(InvalidRequest, match=f"{name}="):
            await inbox.count(**slip)


@pytest.mark.parametrize(
    "slip", [{"after": "junk"}, {"owners": "ann"}, {"agents": "x"}, {"owner": 5}, {"agent": "a\0"}], ids=str
)
async def test_a_filter_of_the_sessions_that_fits_nothing_is_refused(world: World, slip: dict[str, Any]) -> None:
    sessions = (await paused(world, [PAY]))[0].ai.sessions
    (name,) = slip
    with pytest.raises(InvalidRequest, match=f"^{name}="):
        await sessions.list(**slip)
    if name != "after":
        with pytest.raises(InvalidRequest, match=f"^{name}="):
            await sessions.count(**slip)


async def test_what_is_followed_from_no_position_is_refused(world: World) -> None:
    process, session = await paused(world, [PAY])
    wrong: Any = 5
    with pytest.raises(InvalidRequest, match=r"^after=5: give a text"):
        await process.ai.inbox.changes(wrong)
    with pytest.raises(InvalidRequest, match=r"^after=5: give a text"):
        await anext(process.ai.inbox.watch(wrong))
    with pytest.raises(InvalidRequest, match=r"^after=5: give a text"):
        await anext(process.ai.sessions.watch(session.id, wrong))


@pytest.mark.parametrize("age", ["90d", None, [1], NAN, -1.0])
async def test_an_age_that_is_none_deletes_nothing(world: World, age: Any) -> None:
    process = world.process("hello")
    await process.connect().send("hi").output
    world.clock.time += 1e9
    with pytest.raises(InvalidRequest, match=r"is an age in seconds, .* nothing was deleted"):
        await process.ai.sessions.purge(age)
    assert await process.ai.sessions.count() == 1


async def test_a_snapshot_or_session_that_nobody_has_is_told(world: World) -> None:
    process, session = await paused(world, [PAY])
    for unknown in ("nope", session.id):
        with pytest.raises(SessionNotFound, match="there is no snapshot"):
            await process.ai.sessions.events(unknown)
    with pytest.raises(SessionNotFound, match="there is no session"):
        await process.ai.sessions.snapshots("nope")
    assert await process.ai.sessions.events(session.snapshot_id or "")


@pytest.mark.parametrize("store", ["x.db", Path("x.db")])
def test_the_path_of_a_store_is_no_store_and_the_error_says_how_to_make_one(store: Any) -> None:
    ai = Adjourn()
    with pytest.raises(DefinitionError, match=r"store='x.db' is a path: give a store, SQLiteStore\('x.db'\)"):
        ai.define_agent("clerk", store=store)
    with pytest.raises(DefinitionError, match="is a path"):
        Adjourn(stores=[store])
    assert ai.agents == {}


@pytest.mark.parametrize("store", [5, {}, object()])
async def test_what_is_no_store_is_refused_where_it_is_given(store: Any) -> None:
    ai = Adjourn()
    with pytest.raises(DefinitionError, match="is no store"):
        ai.define_agent("clerk", store=store)
    with pytest.raises(DefinitionError, match="is no store"):
        ai.define_custom_agent("clerk", lambda _: "x", store=store)
    with pytest.raises(DefinitionError, match="is no store"):
        await ai.sessions.import_([], store)
    with pytest.raises(DefinitionError, match="is no store"):
        Adjourn(stores=[store])
    for stores in (MemoryStore(), "x.db"):
        with pytest.raises(DefinitionError, match="give a list of stores"):
            Adjourn(stores=stores)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bad\udcff", "a\0", "", 5])
def test_a_name_that_cannot_be_stored_is_refused_where_it_is_given(name: Any) -> None:
    with pytest.raises(DefinitionError, match="is no name of an agent"):
        Adjourn().define_agent(name)
    if name:
        with pytest.raises(DefinitionError, match="is no name of a tool"):
            Tool(lambda: None, name=name)


async def test_a_resume_or_retry_with_something_else_is_refused_at_the_call(world: World) -> None:
    _, session = await paused(world, [PAY], "done")
    answer = session.interrupts[0].paused.respond(1)
    for wrong in ([answer], None, answer, {"respond": [answer]}):
        with pytest.raises(ResumeError, match=r"is no resume: give Resume\(respond="):
            session.resume(wrong)
    with pytest.raises(InvalidRequest, match=r"limits=5: give Limits\(...\)"):
        session.retry(limits=5)
    assert (await session.interrupts[0].respond(1).output).text == "done"


@pytest.mark.parametrize("state", [SessionState(custom=NAN), SessionState(artifacts=[Artifact("a", [Part(data=NAN)])])])
def test_a_state_that_json_has_not_is_refused(state: SessionState) -> None:
    agent = Adjourn(model="x/y").define_agent("clerk")
    with pytest.raises(NotJSON, match="is nan, and JSON has no such number"):
        agent.connect(AgentInit(state=state))


async def test_a_default_that_does_not_fit_the_response_is_refused_when_the_interrupt_is_raised() -> None:
    with pytest.raises(DefinitionError, match=r"the default does not fit response=: \$: "):
        Interrupt(response=int, expires_in=1.0, on_expiry={"respond": "str"})
    assert Interrupt(response=int, expires_in=1.0, on_expiry={"respond": 5}).on_expiry == {"respond": 5}
    assert Interrupt(expires_in=1.0, on_expiry={"respond": "str"}).on_expiry == {"respond": "str"}


async def test_an_unknown_id_is_told_with_what_to_do(world: World) -> None:
    process, session = await paused(world, [PAY])
    with pytest.raises(
        UnknownInterrupt,
        match=r"there is no interrupt 'i_no' \(any more\): list what waits, and take the id from there",
    ):
        await process.ai.inbox.get("i_no")
    with pytest.raises(
        SessionNotFound, match=r"there is no session 's_no' \(any more\): list the sessions, and take the id from there"
    ):
        await process.ai.sessions.delete("s_no")
    with pytest.raises(
        SessionNotFound,
        match=r"there is no snapshot 'n_no' \(any more.*\): take the id of a turn, or of a session's snapshots",
    ):
        await process.connect(snapshot_id="n_no").load()
    other = ToolResponsePart(tool_response=ToolResponse("pay", "of another", 1))
    with pytest.raises(UnknownInterrupt, match="answer one of its open"):
        await session.resume(Resume([other])).output


@pytest.mark.parametrize("policy", ["refuse", "queue", "decline"])
async def test_a_handle_that_was_closed_says_so_also_where_its_session_is_paused(world: World, policy: Any) -> None:
    process, session = await paused(world, [PAY], on_message_while_paused=policy)
    await session.close()
    with pytest.raises(SessionClosed, match="connect again"):
        session.send("go on")
    (record,) = await process.ai.sessions.list()
    assert record.queue == ()
