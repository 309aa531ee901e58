"""Custom state, artifacts, background turns, custom agents and sessions that the client keeps."""

import asyncio
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from adjourn import (
    Adjourn,
    AgentInit,
    Artifact,
    DefinitionError,
    Interrupt,
    InvalidState,
    MemoryStore,
    NotJSON,
    Part,
    SessionError,
    SessionState,
    ToolFailed,
    ToolRunContext,
    TurnContext,
)
from adjourn.testing import FakeClock, ScriptedModel, call
from sessions.session_kit import Process, World, assert_sendable


class Cart(BaseModel):
    items: list[str] = []
    total: int = 0


def shopping(p: Process) -> None:
    @p.ai.tool()
    async def add(item: str, price: int, ctx: ToolRunContext) -> str:
        cart: Cart = ctx.session.state or Cart()
        cart = ctx.session.update_state(Cart(items=[*cart.items, item], total=cart.total + price))
        assert isinstance(cart, Cart)
        return "added"

    @p.ai.tool()
    async def checkout(ctx: ToolRunContext) -> int:
        if not ctx.is_resumed():

            def fee(cart: Cart) -> Any:
                return {"items": cart.items, "total": cart.total + 1}

            ctx.session.update_state(fee)
            raise Interrupt({"total": ctx.session.state.total})
        return int(ctx.session.state.total)


# -- custom state ----------------------------------------------------------------------------------------------------


async def test_custom_state_is_typed_and_up_to_date_after_the_turn_and_in_a_fresh_process(world: World) -> None:
    options: dict[str, Any] = {"define": shopping, "state": Cart}
    process = world.process(call("add", {"item": "tea", "price": 3}), "ok", call("add", {"item": "milk", "price": 2}),
                            "ok", **options)  # fmt: skip
    session = process.connect()
    output = await session.send("tea").output
    assert output.state == Cart(items=["tea"], total=3)
    await session.send("milk").output
    assert session.state == Cart(items=["tea", "milk"], total=5)
    again = await world.process(**options).connect(session.id).load()
    assert again.state == session.state
    view = await process.agent.get_snapshot(session_id=session.id)
    assert view is not None
    assert view.state == {"items": ["tea", "milk"], "total": 5}


async def test_state_that_was_set_before_the_pause_is_kept_through_it(world: World) -> None:
    options: dict[str, Any] = {"define": shopping, "state": Cart}
    replies = [call("add", {"item": "tea", "price": 3}), call("checkout")]
    session = world.process(*replies, **options).connect()
    await session.send("buy").output
    assert session.state == Cart(items=["tea"], total=4)
    again = await world.process("paid", **options).connect(session.id).load()
    assert again.state == Cart(items=["tea"], total=4)
    assert again.interrupts[0].payload == {"total": 4}
    output = await again.interrupts[0].restart().output
    assert output.state == Cart(items=["tea"], total=4)


async def test_the_first_patch_of_a_turn_replaces_the_whole_and_the_next_are_differences(world: World) -> None:
    replies = [call("add", {"item": "tea", "price": 3}), call("add", {"item": "milk", "price": 2}), "ok"]
    session = world.process(*replies, "more", define=shopping, state=Cart).connect()
    turn = session.send("go")
    patches = [c.custom_patch async for c in turn.stream if c.custom_patch]
    assert patches[0] == [{"op": "replace", "path": "", "value": {"items": ["tea"], "total": 3}}]
    assert {(o["op"], o["path"]) for o in patches[1]} == {("add", "/items/-"), ("replace", "/total")}
    assert len(patches) == 2


async def test_state_that_does_not_fit_is_refused_at_the_update_and_the_old_one_stays(world: World) -> None:
    refused: list[Exception] = []

    def define(p: Process) -> None:
        @p.ai.tool()
        async def spoil(ctx: ToolRunContext) -> str:
            ctx.session.update_state({"items": ["tea"], "total": 1})
            for bad in ({"items": "none"}, {"total": "many"}, {"total": object()}):
                try:
                    ctx.session.update_state(bad)
                except (InvalidState, NotJSON) as e:
                    refused.append(e)
            return "tried"

    session = world.process(call("spoil"), "ok", define=define, state=Cart).connect()
    await session.send("go").output
    assert [type(e) for e in refused] == [InvalidState, InvalidState, NotJSON]
    assert session.state == Cart(items=["tea"], total=1)
    again = await world.process(define=define, state=Cart).connect(session.id).load()
    assert again.state == session.state
    assert len(again.messages) == 4


class Order(BaseModel):
    number: int


async def test_a_stored_state_that_no_longer_fits_is_refused_before_anything_runs_and_can_be_mended(
    world: World,
) -> None:
    first = world.process("Hello.", state=Cart).connect()
    first.update_state({"items": ["tea"], "total": 1})
    await first.send("hi").output
    process = world.process(call("look", {"key": "a"}), "Found.", state=Order)
    session = await process.connect(first.id).load()
    with pytest.raises(InvalidState, match=r"number: Field required.*nothing was run.*update_state"):
        await session.send("look").output
    assert (world.done("looked"), process.model.requests, len(session.messages)) == ([], [], 2)
    session.update_state({"number": 7})
    output = await session.send("look").output
    assert (output.text, output.state, world.done("looked")) == ("Found.", Order(number=7), ["a"])


async def test_a_decision_stays_where_the_stored_state_does_not_fit_whoever_would_go_on(world: World) -> None:
    first = world.process(call("pay", {"amount": 5}), state=Cart).connect()
    first.update_state({"items": ["tea"], "total": 1})
    await first.send("go").output
    decision = await world.process(state=Order).ai.inbox.restart(first.interrupts[0].id, by="ann")
    assert decision.turn is not None
    with pytest.raises(InvalidState, match="nothing was run"):
        await decision.turn.output
    assert world.done("paid") == []
    (turn,) = await world.process("Paid.", state=Cart).ai.recover()
    assert ((await turn.output).text, world.done("paid")) == ("Paid.", [5])


async def test_each_branch_has_its_own_state(world: World) -> None:
    options: dict[str, Any] = {"define": shopping, "state": Cart}
    adds = [call("add", {"item": "tea", "price": 3}), "ok", call("add", {"item": "milk", "price": 2}), "ok",
            call("add", {"item": "rum", "price": 9}), "ok"]  # fmt: skip
    session = world.process(*adds, **options).connect()
    await session.send("1").output
    branch = await session.fork()
    await session.send("2").output
    await branch.send("3").output
    assert session.state.items == ["tea", "milk"]
    assert branch.state.items == ["tea", "rum"]
    for live in (session, branch):
        again = await world.process(**options).connect(snapshot_id=live.snapshot_id).load()
        assert again.state == live.state


async def test_a_lambda_makes_the_new_state_of_the_old(world: World) -> None:
    session = world.process("hello").connect()
    session.update_state({"n": 1})
    assert session.update_state(lambda old: {**old, "n": old["n"] + 1}) == session.state == {"n": 2}


# -- artifacts -------------------------------------------------------------------------------------------------------


def publishing(p: Process) -> None:
    @p.ai.tool()
    async def publish(name: str, text: str, ctx: ToolRunContext) -> str:
        ctx.session.add_artifact(Artifact(name, [Part(text=text)]))
        return "published"


async def test_artifacts_are_streamed_each_and_kept_once_by_name_also_across_processes(world: World) -> None:
    replies = [call("publish", {"name": n, "text": t}) for n, t in (("a", "1"), ("b", "1"), ("a", "2"))]
    process = world.process(*replies, "ok", define=publishing)
    session = process.connect()
    turn = session.send("go")
    streamed = [(c.artifact.name, c.artifact.parts[0].text) async for c in turn.stream if c.artifact]
    assert streamed == [("a", "1"), ("b", "1"), ("a", "2")]
    kept = {a.name: a.parts[0].text for a in (await turn.output).artifacts}
    assert kept == {"a": "2", "b": "1"}
    fresh = world.process(call("publish", {"name": "b", "text": "3"}), "ok", define=publishing)
    again = await fresh.connect(session.id).load()
    assert {a.name: a.parts[0].text for a in again.artifacts} == kept
    await again.send("more").output
    last = await world.process(define=publishing).connect(session.id).load()
    assert {a.name: a.parts[0].text for a in last.artifacts} == {"a": "2", "b": "3"}
    assert len(last.artifacts) == 2


# -- background turns ------------------------------------------------------------------------------------------------


async def test_a_background_turn_is_stored_before_it_is_over_and_streams_nothing(world: World) -> None:
    gate = asyncio.Event()

    async def slow(_: Any) -> str:
        await gate.wait()
        return "done"

    process = world.process(slow)
    session = process.connect()
    turn = session.send("go", detach=True)
    await turn.stored()
    assert turn.poll() is None
    view = await world.process().agent.get_snapshot(snapshot_id=turn.snapshot_id)
    assert view is not None
    assert view.status == "pending"
    assert [m.text for m in view.messages] == ["go"]
    gate.set()
    assert (await turn.wait()).text == "done"
    assert turn.poll() == "stop"
    assert [c async for c in turn.stream] == []
    view = await world.process().agent.get_snapshot(snapshot_id=turn.snapshot_id)
    assert view is not None
    assert (view.status, view.finish_reason) == ("completed", "stop")
    assert [m.text for m in view.messages] == ["go", "done"]


async def test_a_background_turn_that_fails_is_polled_as_failed_and_keeps_its_error(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def boom() -> str:
            raise RuntimeError("no luck")

    process = world.process(call("boom"), define=define)
    turn = process.connect().send("go", detach=True)
    with pytest.raises(ToolFailed):
        await turn.wait()
    assert turn.poll() == "failed"
    view = await process.agent.get_snapshot(snapshot_id=turn.snapshot_id)
    assert view is not None
    assert view.status == "failed"
    assert view.error is not None
    assert "no luck" in view.error.message


async def test_a_background_turn_can_pause_and_its_pause_is_in_the_inbox(world: World) -> None:
    process = world.process(call("pay", {"amount": 1}), "paid")
    session = process.connect()
    turn = session.send("go", detach=True)
    assert (await turn.wait()).finish_reason == "interrupted"
    assert turn.poll() == "interrupted"
    (row,) = (await world.process().ai.inbox.list()).items
    assert row.session_id == session.id


async def test_a_background_turn_is_aborted_by_its_handle(world: World) -> None:
    async def never(_: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    process = world.process(never, "next")
    session = process.connect()
    turn = session.send("go", detach=True)
    await turn.stored()
    turn.abort("enough")
    assert (await turn.wait()).finish_reason == "aborted"
    assert (await session.send("again").output).text == "next"


async def test_a_background_turn_needs_a_store() -> None:
    process = Process(None, [], ["x"])
    with pytest.raises(SessionError, match="store"):
        process.connect().send("go", detach=True)


# -- custom agents ---------------------------------------------------------------------------------------------------


async def test_a_custom_agent_sees_the_conversation_and_keeps_state_like_any_other(world: World) -> None:
    async def echo(turn: TurnContext) -> str:
        turn.session.update_state((turn.session.state or 0) + 1)
        return f"{turn.session.state}: {turn.message.text} of {len(turn.messages)} for {turn.context}"

    process = world.process()
    agent = process.ai.define_custom_agent("echo", echo, store=process.store)
    session = agent.connect(AgentInit())
    assert (await session.send("hi", context="ann").output).text == "1: hi of 1 for ann"
    assert (await session.send("again").output).text == "2: again of 3 for None"
    fresh = world.process()
    again = fresh.ai.define_custom_agent("echo", echo, store=fresh.store).connect(AgentInit(session_id=session.id))
    assert (await again.send("more").output).text == "3: more of 5 for None"


# -- sessions that the client keeps ----------------------------------------------------------------------------------


def kept_by_client(log: list[Any], *replies: Any, **options: Any) -> Process:
    return Process(None, log, replies, clock=FakeClock(), **options)


def through_json(state: Any) -> SessionState:
    return msgspec.json.decode(msgspec.json.encode(state), type=SessionState)


async def test_a_client_managed_session_goes_through_json_with_its_pause_and_its_state() -> None:
    log: list[Any] = []
    process = kept_by_client(log, call("pay", {"amount": 5}))
    session = process.connect()
    session.update_state({"seen": 1})
    output = await session.send("go").output
    assert output.snapshot_id is None
    state = through_json(output.client_state)
    again = kept_by_client(log, "Paid.").agent.connect(AgentInit(state=state))
    assert again.id == session.id
    assert [i.id for i in again.interrupts] == [i.id for i in session.interrupts]
    assert again.interrupts[0].payload == {"amount": 5}
    output = await again.interrupts[0].restart({"by": "ann"}).output
    assert output.text == "Paid."
    assert output.state == {"seen": 1}
    assert ("paid", 5) in log
    assert_sendable(output.messages)
    third = kept_by_client(log, "Bye.").agent.connect(AgentInit(state=through_json(output.client_state)))
    assert (await third.send("thanks").output).text == "Bye."


SECRET = "a-secret-of-at-least-16-bytes"


async def signed_state() -> SessionState:
    process = kept_by_client([], call("pay", {"amount": 5}), app={"secret": SECRET})
    return through_json((await process.connect().send("go").output).client_state)


async def test_signed_state_is_taken_back_as_it_was_given() -> None:
    state = await signed_state()
    assert state.signature
    log: list[Any] = []
    again = kept_by_client(log, "Paid.", app={"secret": SECRET}).agent.connect(AgentInit(state=state))
    assert (await again.interrupts[0].restart().output).text == "Paid."
    assert log == [("paid", 5)]


def _tampered(state: SessionState, how: str) -> SessionState:
    raw = msgspec.to_builtins(state)
    if how == "input":
        raw["messages"][-1]["content"][0]["toolRequest"]["input"]["amount"] = 5000
    elif how == "history":
        raw["messages"] = raw["messages"][:1]
    elif how == "custom":
        raw["custom"] = {"admin": True}
    elif how == "session":
        raw["sessionId"] = "s_other"
    elif how == "unsigned":
        del raw["signature"]
    else:
        raw["signature"] = raw["signature"][:-1] + ("0" if raw["signature"][-1] != "0" else "1")
    return msgspec.convert(raw, SessionState)


@pytest.mark.parametrize("how", ["input", "history", "custom", "session", "unsigned", "signature"])
async def test_altered_or_unsigned_state_is_refused(how: str) -> None:
    state = _tampered(await signed_state(), how)
    with pytest.raises(InvalidState):
        kept_by_client([], app={"secret": SECRET}).agent.connect(AgentInit(state=state))


async def test_a_rotated_secret_still_takes_what_the_old_one_signed_and_signs_anew() -> None:
    state, new = await signed_state(), "a-newer-secret-of-16-bytes"
    rotated = {"secret": [new, SECRET]}
    session = kept_by_client([], "Paid.", app=rotated).agent.connect(AgentInit(state=state))
    output = await session.interrupts[0].restart().output
    assert kept_by_client([], app={"secret": new}).agent.connect(AgentInit(state=output.client_state)).messages
    with pytest.raises(InvalidState):
        kept_by_client([], app={"secret": SECRET}).agent.connect(AgentInit(state=output.client_state))
    with pytest.raises(InvalidState):
        kept_by_client([], app={"secret": new}).agent.connect(AgentInit(state=state))


async def test_state_of_one_agent_is_not_taken_by_another() -> None:
    state = await signed_state()
    process = kept_by_client([], app={"secret": SECRET})
    other = process.ai.define_agent("other")
    with pytest.raises(InvalidState):
        other.connect(AgentInit(state=state))


async def test_a_short_secret_is_refused() -> None:
    with pytest.raises(DefinitionError, match="16 bytes"):
        kept_by_client([], app={"secret": "short"})


async def test_a_client_state_that_is_none_is_refused_with_what_to_give() -> None:
    for given in (Cart(), {"custom": {"total": 1}}):
        with pytest.raises(DefinitionError, match=r"type=SessionState.*update_state"):
            kept_by_client([], state=Cart).agent.connect(AgentInit(state=given))  # pyright: ignore[reportArgumentType]


async def test_client_state_that_does_not_fit_the_state_type_is_refused() -> None:
    process = kept_by_client([], state=Cart)
    with pytest.raises(InvalidState):
        process.agent.connect(AgentInit(state=SessionState(custom={"total": "many"})))


async def test_what_is_set_while_the_last_commit_of_a_turn_is_under_way_is_kept_by_the_next(world: World) -> None:
    store = Meanwhile()
    ai = Adjourn(model=ScriptedModel(["1", "2"]))
    agent = ai.define_agent("clerk", store=store)
    session = agent.connect()
    turn = session.send("a")

    def change() -> None:
        session.update_state({"late": True})
        session.add_artifact(Artifact("late", [Part(text="late")]))

    store.meanwhile = change
    await turn.output
    store.meanwhile = None
    await session.send("b").output
    stored = await agent.connect(AgentInit(session_id=session.id)).load()
    assert (stored.state, [a.name for a in stored.artifacts]) == ({"late": True}, ["late"])


class Meanwhile(MemoryStore):
    """Something happens once a writing transaction was handed over."""

    meanwhile: Any = None

    def submit(self, work: Any, *, read: bool = False) -> Any:
        promise = super().submit(work, read=read)
        if not read and self.meanwhile is not None:
            self.meanwhile()
        return promise
