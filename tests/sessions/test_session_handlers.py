"""Handlers of pauses on agents, and what a model is sent of a long session."""

import io
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from adjourn import Abort, AdjournError, DefinitionError, HandlerAborted, Interrupt, Limits, ToolRunContext, correction
from adjourn.history import keep_recent
from adjourn.inbox import Inbox
from adjourn.testing import call
from sessions.session_kit import Process, World, assert_sendable, desk, outputs_of


async def audit(process: Process, session_id: str) -> list[tuple[str, str | None]]:
    rows = (await process.ai.inbox.list(status=None, session_id=session_id)).items
    return [(d.verb, d.by) for r in rows for d in await process.ai.inbox.history(r.id)]


async def test_a_handler_decides_like_a_person_and_is_named_in_the_audit(world: World) -> None:
    def small(interrupt: Any) -> Any:
        return interrupt.restart({"auto": True}) if interrupt.input["amount"] < 10 else None

    process = world.process([call("pay", {"amount": 5}), call("pay", {"amount": 50})], "ok", on_interrupt=small)
    session = process.connect()
    output = await session.send("go").output
    assert output.finish_reason == "interrupted"
    assert world.done("paid") == [5]
    assert [i.input["amount"] for i in session.interrupts] == [50]
    assert await audit(process, session.id) == [("restart", "handler:small")]
    turn = session.interrupts[0].decline("too much")
    assert (await turn.output).text == "ok"
    assert [o.get("paid") for o in outputs_of(session.messages)] == [5, None]


async def test_pauses_that_a_handler_settles_are_not_announced_and_the_rest_is(world: World) -> None:
    def small(interrupt: Any) -> Any:
        return interrupt.respond("auto") if interrupt.input["amount"] < 10 else None

    process = world.process([call("pay", {"amount": 5}), call("pay", {"amount": 50})], "ok", on_interrupt=small)
    turn = process.connect().send("go")
    told = [c.tool_request.input async for c in turn.stream if c.tool_request]
    assert told == [{"amount": 50}]


async def test_a_pause_that_a_handler_leaves_open_is_not_shown_to_it_again(world: World) -> None:
    seen: list[int] = []

    def small(interrupt: Any) -> Any:
        seen.append(interrupt.input["amount"])
        return interrupt.respond("auto") if interrupt.input["amount"] < 10 else None

    process = world.process([call("pay", {"amount": n}) for n in (50, 5, 60)], "ok", on_interrupt=small)
    output = await process.connect().send("go").output
    assert [i.input["amount"] for i in output.interrupts] == [50, 60]
    assert seen == [50, 5, 60]


async def test_handlers_go_by_tool_name_with_a_star_for_the_rest_and_an_unknown_name_is_refused(world: World) -> None:

    def agree(interrupt: Any) -> Any:
        return interrupt.respond({"ok": True})

    def refuse(interrupt: Any) -> Any:
        return interrupt.decline("no")

    handlers = {"ask": agree, "*": refuse}
    process = world.process([call("pay", {"amount": 5}), call("ask", {"text": "?"})], "ok", on_interrupt=handlers)
    session = process.connect()
    assert (await session.send("go").output).text == "ok"
    assert [o.get("ok", o.get("declined")) for o in outputs_of(session.messages)] == [True, True]
    with pytest.raises(DefinitionError, match="pya"):
        await world.process("x", on_interrupt={"pya": correction.ask}).connect().send("go").output


async def test_a_handler_can_end_the_turn_and_the_session_goes_on(world: World) -> None:
    def stop(_: Any) -> Abort:
        return Abort("not today")

    process = world.process(call("pay", {"amount": 5}), "next", on_interrupt=stop)
    session = process.connect()
    with pytest.raises(HandlerAborted, match="not today"):
        await session.send("go").output
    assert (await process.ai.inbox.list()).items == []
    assert (await session.send("again").output).text == "next"
    assert_sendable(session.messages)


async def test_a_handler_ends_no_turn_for_a_pause_that_a_person_decided_while_it_thought(world: World) -> None:
    async def stop(interrupt: Any) -> Abort:
        await world.process().ai.inbox.respond(interrupt.id, {"paid": 5}, by="ann", run=False)
        return Abort("not today")

    process = world.process(call("pay", {"amount": 5}), "ok", on_interrupt=stop)
    session = process.connect()
    assert (await session.send("go").output).text == "ok"
    assert await audit(process, session.id) == [("respond", "ann")]


class Flaky:
    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self, p: Process) -> None:
        @p.ai.tool(on_error="interrupt")
        async def fetch(ctx: ToolRunContext) -> Any:
            p.log.append(("fetched", ctx.resumed_metadata))
            if self.left:
                self.left -= 1
                raise ConnectionError("503")
            return "data"


async def test_retry_restarts_what_is_transient_with_growing_delays_and_then_leaves_it(world: World) -> None:
    retry = correction.retry(max=2, base=1.0, jitter=False)
    process = world.process(call("fetch"), "ok", define=Flaky(9), on_interrupt=retry)
    session = process.connect()
    output = await session.send("go").output
    assert output.finish_reason == "interrupted"
    assert world.done("fetched") == [None, {"retry": 1}, {"retry": 2}]
    assert world.clock.slept == [1.0, 2.0]
    assert session.interrupts[0].reason == "error"
    assert {by for _, by in await audit(process, session.id)} == {"handler:retry"}


async def test_a_back_off_is_a_due_time_in_the_store_that_a_fresh_process_keeps(world: World) -> None:
    from sessions.session_kit import Mortal

    retry = correction.retry(max=2, base=30.0, jitter=False)
    flaky = Flaky(1)
    store = Mortal(world.place.open(), 3)  # started, paused, decided; then it dies
    dying = world.process(call("fetch"), define=flaky, on_interrupt=retry, store=store)
    began = world.clock.time
    with pytest.raises(AdjournError):
        await dying.connect("s1").send("go").output
    assert world.done("fetched") == [None]
    world.clock.time = began + 16
    fresh = world.process("ok", define=flaky, on_interrupt=retry)
    session = await fresh.connect("s1").load()
    assert session.last_text == "ok"
    assert world.done("fetched") == [None, {"retry": 1}]
    assert world.clock.time >= began + 30


async def test_retry_never_approves(world: World) -> None:
    process = world.process(call("pay", {"amount": 5}), "ok", on_interrupt=correction.retry())
    output = await process.connect().send("go").output
    assert output.finish_reason == "interrupted"
    assert world.done("paid") == []


class Row(BaseModel):
    sku: str
    qty: int


def supplier(p: Process) -> None:
    @p.ai.tool()
    async def fetch_row(raw: dict[str, Any]) -> Any:
        raise Interrupt(raw)


async def test_validate_responds_with_good_data_mends_what_it_can_and_leaves_the_rest(world: World) -> None:
    def fix(raw: Any) -> Any:
        return {**raw, "qty": {"two": 2}.get(raw.get("qty"), "?")}

    rows = [{"sku": "a", "qty": 1}, {"sku": "b", "qty": "two"}, {"sku": "c", "qty": "lots"}]
    process = world.process(
        [call("fetch_row", {"raw": r}) for r in rows], "ok", define=supplier, on_interrupt=correction.validate(Row, fix)
    )
    session = process.connect()
    await session.send("go").output
    assert [i.payload["sku"] for i in session.interrupts] == ["c"]
    await session.interrupts[0].respond({"sku": "c", "qty": 3}).output
    assert outputs_of(session.messages) == [{"sku": s, "qty": q} for s, q in (("a", 1), ("b", 2), ("c", 3))]


async def test_first_asks_one_handler_after_another(world: World) -> None:
    asked: list[str] = []

    def shy(interrupt: Any) -> Any:
        asked.append("shy")

    async def bold(interrupt: Any) -> Any:
        asked.append("bold")
        return interrupt.respond("bold answer")

    process = world.process(call("pay", {"amount": 1}), "ok", on_interrupt=correction.first(shy, bold, shy))
    session = process.connect()
    assert (await session.send("go").output).text == "ok"
    assert asked == ["shy", "bold"]
    assert outputs_of(session.messages) == ["bold answer"]


@pytest.mark.parametrize(
    "typed, expected",
    [("a\n", {"paid": 5, "note": {}}), ('r\n{"x": 1}\n', {"x": 1}), ("d\ntoo dear\n", {"declined": True, "reason": "too dear"})],
)  # fmt: skip
async def test_ask_takes_a_decision_from_the_terminal(world: World, typed: str, expected: Any) -> None:
    out = io.StringIO()
    ask = partial(correction.ask, lines=io.StringIO(typed), out=out)
    process = world.process(call("pay", {"amount": 5}), "ok", on_interrupt=ask)
    session = process.connect()
    assert (await session.send("go").output).text == "ok"
    assert outputs_of(session.messages) == [expected]
    assert "pay waits for you" in out.getvalue()


async def test_a_handler_that_never_gets_anywhere_is_stopped_by_the_limits(world: World) -> None:
    from adjourn import LimitReached

    def stubborn(interrupt: Any) -> Any:
        return interrupt.restart({"again": True})

    def define(p: Process) -> None:
        @p.ai.tool()
        async def never(ctx: ToolRunContext) -> Any:
            p.log.append(("ran", 1))
            raise Interrupt({"n": len(ctx.restarts)})

    process = world.process(call("never"), define=define, on_interrupt=stubborn, limits=Limits(restarts=3))
    session = process.connect()
    with pytest.raises(LimitReached) as caught:
        await session.send("go").output
    assert caught.value.limit == "restarts"
    assert len(world.done("ran")) == 4
    assert session.interrupts == []
    assert_sendable(session.messages)


# -- what a model is sent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"turns": 2}, {"tokens": 60}, {"tokens": 1}, {"turns": 1}], ids=str)
async def test_keep_recent_sends_whole_rounds_only_and_stores_everything(world: World, how: dict[str, int]) -> None:
    replies: list[Any] = []
    for n in range(5):
        replies += [[call("look", {"key": str(n)}), call("pay", {"amount": n})], f"done {n}"]
    options: dict[str, Any] = {"prepare": keep_recent(**how), "system": "Be brief."}
    process = world.process(*replies, **options)
    session = process.connect()
    for n in range(5):
        await session.send(f"turn {n}").output
        await session.interrupts[0].restart().output
    for request in process.model.requests:
        assert_sendable(request.messages)
        assert request.messages[0].role == "system"
        assert request.messages[1].role == "user"
    if "turns" in how:
        users = [m for m in process.model.requests[-1].messages if m.role == "user"]
        assert len(users) == how["turns"]
    assert len([m for m in session.messages if m.role == "user"]) == 5
    again = await world.process(**options).connect(session.id).load()
    assert again.messages == session.messages


def slow(world: World, seconds: float = 60.0) -> Any:
    def patient(interrupt: Any) -> Any:
        world.log.append(("asked a handler", interrupt.input))
        world.clock.time += seconds
        return interrupt.respond("too late")

    return patient


@pytest.mark.parametrize("on_expiry", ["decline", "fail", {"respond": "nobody"}])
async def test_a_handler_that_is_slower_than_the_pause_lasts_meets_its_expiry(world: World, on_expiry: Any) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def wait() -> None:
            raise Interrupt("?", expires_in=30.0, on_expiry=on_expiry)

    process = world.process(call("wait"), "ok", define=define, on_interrupt=slow(world))
    session = process.connect()
    if on_expiry == "fail":
        with pytest.raises(AdjournError, match="nobody decided on tool 'wait' in time"):
            await session.send("go").output
    else:
        assert (await session.send("go").output).text == "ok"
        (told,) = outputs_of(session.messages)
        assert told == "nobody" if isinstance(on_expiry, dict) else told["expired"]
    assert await audit(process, session.id) == [("expire", None)]


async def test_a_handler_in_generate_that_is_slower_than_the_pause_lasts_meets_its_expiry(world: World) -> None:
    def wait() -> None:
        raise Interrupt("?", expires_in=30.0)

    ai = world.process(call("wait"), "ok").ai
    response = await ai.generate("go", tools=[wait], on_interrupt=slow(world))
    assert response.text == "ok"
    assert outputs_of(response.messages)[0]["expired"]


Deciding = Callable[[Inbox, str], Awaitable[Any]]
DECIDING: dict[str, tuple[Deciding, Any]] = {
    "responds": (lambda inbox, i: inbox.respond(i, "by hand", by="ann"), "by hand"),
    "restarts": (lambda inbox, i: inbox.restart(i, metadata="ann", by="ann"), {"paid": 5, "note": "ann"}),
    "declines": (lambda inbox, i: inbox.decline(i, "no", by="ann"), {"declined": True, "reason": "no"}),
}


@pytest.mark.parametrize("then", ["responds", "restarts", "declines", "fails", "leaves it"])
@pytest.mark.parametrize("how", DECIDING)
async def test_a_person_who_decides_while_a_handler_thinks_is_the_one_who_counts(
    world: World, how: str, then: str
) -> None:
    decide, output = DECIDING[how]
    elsewhere = desk(world).inbox

    async def thinks(interrupt: Any) -> Any:
        world.log.append(("thought", interrupt.input))
        if interrupt.input == {"amount": 5}:
            await decide(elsewhere, interrupt.id)
        if interrupt.input == {"amount": 6} or then == "responds":
            return interrupt.respond("by machine")
        if then == "fails":
            raise OSError("no")
        return {"restarts": interrupt.restart, "declines": interrupt.decline}.get(then, lambda: None)()

    both = [call("pay", {"amount": 5}), call("pay", {"amount": 6})]
    process = world.process(both, "ok", on_interrupt=thinks)
    session = process.connect()
    assert (await session.send("go").output).text == "ok"
    assert outputs_of(session.messages) == [output, "by machine"]
    if then != "leaves it":  # then it is asked once more
        assert world.done("thought") == [{"amount": 5}, {"amount": 6}]
    assert {by for _, by in await audit(process, session.id)} == {"ann", "handler:thinks"}
    assert len(await audit(process, session.id)) == 2
    assert await process.ai.recover() == []
    assert [e for e in await process.ai.sessions.timeline(session.id) if e.kind == "crash"] == []


async def test_a_pause_that_a_list_settles_while_a_handler_thinks_has_expired(world: World) -> None:
    def define(p: Process) -> None:
        @p.ai.tool()
        async def wait() -> None:
            raise Interrupt("?", expires_in=30.0)

    async def thinks(interrupt: Any) -> Any:
        world.clock.time += 31.0
        assert (await elsewhere.list()).items == []
        return interrupt.respond("too late")

    elsewhere = desk(world).inbox
    process = world.process(call("wait"), "ok", define=define, on_interrupt=thinks)
    session = process.connect()
    assert (await session.send("go").output).text == "ok"
    assert outputs_of(session.messages)[0]["expired"]
    assert await audit(process, session.id) == [("expire", None)]
