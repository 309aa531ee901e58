"""Decisions under a key, decisions on what was looked at, and following the feed of the inbox."""

import asyncio
from typing import Any

import pytest

from adjourn import Adjourn, AlreadyResolved, Interrupt, InvalidRequest, StaleInterrupt, ToolFailed
from adjourn.store import MemoryStore
from adjourn.testing import ScriptedModel, call
from sessions.session_kit import Process, World, desk, paused

# -- keys and what was looked at ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["respond", "restart", "decline"])
async def test_a_decision_sent_again_under_its_key_is_the_same_one_and_runs_once(world: World, verb: str) -> None:
    process, session = await paused(world, call("pay", {"amount": 5}), "Done.")
    interrupt_id = session.interrupts[0].id

    async def send(inbox: Any, **how: Any) -> Any:
        how = {"key": "k-1", "by": "ann"} | how
        if verb == "respond":
            return await inbox.respond(interrupt_id, how.pop("value", {"paid": 0}), **how)
        if verb == "restart":
            return await inbox.restart(interrupt_id, metadata=how.pop("value", {"ok": 1}), **how)
        return await inbox.decline(interrupt_id, how.pop("value", "too much"), **how)

    first = await send(process.ai.inbox)
    assert not first.repeated
    assert first.decision.key == "k-1"
    await first.turn.output
    for inbox in (process.ai.inbox, desk(world).inbox):
        again = await send(inbox)
        assert again.repeated
        assert (again.decision.id, again.turn) == (first.decision.id, None)
    for other in ({"value": "other"}, {"by": "bob"}, {"key": "k-2"}, {"key": None}):
        with pytest.raises(AlreadyResolved) as caught:
            await send(process.ai.inbox, **other)
        assert caught.value.decision.id == first.decision.id
    assert world.done("paid") == ([5] if verb == "restart" else [])
    assert [d.verb for d in await process.ai.inbox.history(interrupt_id)] == [verb]


async def test_a_decision_on_what_was_looked_at_is_refused_when_it_waits_anew(world: World) -> None:
    from adjourn import ToolRunContext

    def define(p: Process) -> None:
        @p.ai.tool()
        async def book(ctx: ToolRunContext) -> str:
            if not ctx.is_resumed():
                raise Interrupt
            raise RuntimeError("full")

    process, session = await paused(world, call("book"), define=define)
    inbox = process.ai.inbox
    shown = await inbox.get(session.interrupts[0].id)
    accepted = await inbox.restart(shown.id, expect=shown.version_tag)
    assert accepted.turn is not None
    with pytest.raises(ToolFailed):
        await accepted.turn.output
    now = await inbox.get(shown.id)
    assert (now.status, now.version_tag == shown.version_tag) == ("open", False)
    for stale in (shown.version_tag, "nonsense", ""):
        with pytest.raises(StaleInterrupt, match="Look at it again"):
            await inbox.decline(shown.id, expect=stale)
    assert await inbox.get(shown.id) == now
    assert [d.verb for d in await inbox.history(shown.id)] == ["restart", "reopen"]
    assert (await inbox.respond(shown.id, "by hand", expect=now.version_tag, run=False)).verb == "respond"
    with pytest.raises(AlreadyResolved):  # who was first matters more than what was looked at
        await inbox.decline(shown.id, expect=now.version_tag)


# -- the feed --------------------------------------------------------------------------------------------------------


async def test_the_feed_tells_of_every_pause_and_decision_in_order_and_from_any_place(world: World) -> None:
    process, session = await paused(world, [call("pay", {"amount": 5}), call("ask", {"text": "?"})], "ok")
    inbox = desk(world).inbox
    pay, ask = (i.id for i in session.interrupts)
    middle = await inbox.latest_position()
    accepted = await process.ai.inbox.restart(pay, by="ann")
    assert accepted.turn is not None
    await accepted.turn.output
    await desk(world).inbox.respond(ask, {"ok": True, "note": ""})
    changes = await inbox.changes()
    assert [c.kind for c in changes] == ["opened", "opened", "settled", "settled"]
    assert {c.interrupt_id for c in changes[:2]} == {pay, ask}
    assert [c.interrupt_id for c in changes[2:]] == [pay, ask]
    assert changes[2].decision_id == accepted.decision.id
    assert await inbox.changes(middle) == changes[2:]
    assert await inbox.changes(changes[0].position, limit=2) == changes[1:3]
    assert await inbox.changes(await inbox.latest_position()) == []
    with pytest.raises(InvalidRequest):
        await inbox.changes("nonsense")
    with pytest.raises(InvalidRequest):
        await inbox.changes(limit=0)


async def test_who_watches_sees_what_was_and_then_what_comes_from_another_process(world: World) -> None:
    _, session = await paused(world, call("pay", {"amount": 5}))
    pay = session.interrupts[0].id
    watching = desk(world).inbox.watch()
    first = await anext(watching)
    assert (first.kind, first.interrupt_id) == ("opened", pay)
    coming = asyncio.ensure_future(anext(watching))
    await desk(world).inbox.decline(pay, "no")
    assert (await coming).kind == "settled"
    await watching.aclose()
    later = desk(world).inbox.watch(first.position)
    assert [(await anext(later)).kind] == ["settled"]
    coming = asyncio.ensure_future(anext(later))
    _, other = await paused(world, call("pay", {"amount": 6}))
    assert (await coming).interrupt_id == other.interrupts[0].id
    await later.aclose()


async def test_fifty_who_watch_each_see_every_change_once(world: World) -> None:
    process = world.process(*[call("pay", {"amount": n}) for n in range(5)])
    inbox = desk(world).inbox

    async def watch() -> list[str]:
        seen: list[str] = []
        async for change in inbox.watch():
            seen.append(change.position)
            if len(seen) == 5:
                break
        return seen

    watchers = [asyncio.ensure_future(watch()) for _ in range(50)]
    for _ in range(5):
        await process.connect().send("go").output
    async with asyncio.timeout(30):
        seen = await asyncio.gather(*watchers)
    assert seen == [[c.position for c in await inbox.changes()]] * 50


async def test_two_stores_are_one_feed() -> None:
    one, two = MemoryStore(), MemoryStore()
    ai = Adjourn(model=ScriptedModel([call("ask", {"n": n}) for n in range(4)]))

    @ai.tool()
    async def ask(n: int) -> None:
        raise Interrupt({"n": n})

    agents = [ai.define_agent("one", store=one), ai.define_agent("two", store=two)]
    beginning = await ai.inbox.latest_position()
    for n in range(4):
        await agents[n % 2].connect().send("go").output
    changes = await ai.inbox.changes()
    ids = [c.interrupt_id for c in changes]
    assert sorted(ids) == sorted(r.id for r in (await ai.inbox.list()).items)
    assert [c.interrupt_id for c in await ai.inbox.changes(beginning)] == ids
    for n, change in enumerate(changes):
        assert [c.interrupt_id for c in await ai.inbox.changes(change.position)] == ids[n + 1 :]
    paged = [*(await ai.inbox.changes(limit=3))]
    assert [*paged, *await ai.inbox.changes(paged[-1].position)] == changes
    watching = ai.inbox.watch(changes[1].position)
    assert [(await anext(watching)).interrupt_id for _ in range(2)] == ids[2:]
    coming = asyncio.ensure_future(anext(watching))
    await ai.inbox.respond(ids[0], "done", run=False)
    assert (await coming).kind == "settled"
    await watching.aclose()
    with pytest.raises(InvalidRequest, match="3 stores"):
        await ai.inbox.changes("1,2,3")
