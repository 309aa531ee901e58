"""What webhooks deliver: in order, at least once, by one process at a time, and what happens where nobody takes it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjourn.clock import SYSTEM
from adjourn.errors import DefinitionError
from adjourn.server.webhook_delivery import Deliverer, NotOurs
from adjourn.server.webhooks import Webhook, delivering, states
from server.webhook_kit import Office, Receiver, body_of, hook, receiving
from server.wire_kit import Clerk, serving
from sessions.session_kit import KINDS, Place, make_place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"))
    yield made
    made.close()


@pytest.fixture
def office(place: Place) -> Office:
    return Office(place.open())


def deliverer(office: Office, given: Webhook, **options: Any) -> Deliverer:
    return Deliverer(office.ai, office.store, given, **options)


async def begun(office: Office, given: Webhook, **options: Any) -> Deliverer:
    """One that has seen what there was, so that everything from now on is news to it."""
    made = deliverer(office, given, **options)
    await made.once()
    return made


async def state(office: Office, given: Webhook) -> Any:
    return (await states(office.ai, [given]))[given.id][0]


async def test_a_pause_and_its_decision_are_told_in_order(office: Office) -> None:
    async with receiving() as receiver:
        out = await begun(office, hook(receiver.url))
        first, second = await office.pause(), await office.pause()
        await office.decide(second)
        await out.once()
        assert [r.told for r in receiver.came] == [("opened", first), ("opened", second), ("settled", second)]
        assert receiver.connections == 1  # kept open
        await out.aclose()


async def test_a_message_says_what_there_is_to_decide_and_who_did(office: Office) -> None:
    async with receiving() as receiver:
        out = await begun(office, hook(receiver.url), public_url="https://inbox.example/")
        interrupt = await office.pause()
        await office.decide(interrupt, by="ben")
        await out.once()
        opened, settled = [r.json for r in receiver.came]
        assert opened["data"]["interrupt"]["tool"] == "pay"
        assert opened["data"]["interrupt"]["input"] == {"n": 1}
        assert opened["data"]["interrupt"]["owner"] == "ann"
        assert opened["data"]["url"] == f"https://inbox.example/inbox/{interrupt}"
        assert "decision" not in opened["data"]
        assert settled["data"]["decision"]["verb"] == "respond"
        assert settled["data"]["decision"]["by"] == "ben"
        assert settled["data"]["decision"]["output"] == {"ok": True}
        await out.aclose()


async def test_without_content_nothing_of_it_leaves(office: Office) -> None:
    async with receiving() as receiver:
        out = await begun(office, hook(receiver.url, content=False))
        await office.decide(await office.pause())
        await out.once()
        opened, settled = [r.json["data"] for r in receiver.came]
        assert (opened["interrupt"]["input"], opened["interrupt"]["payload"]) == (None, None)
        assert opened["interrupt"]["summary"] == "pay()"
        assert settled["decision"]["output"] is None
        await out.aclose()


async def test_a_new_hook_begins_with_what_happens_from_now_on(office: Office) -> None:
    async with receiving() as receiver:
        await office.pause()
        out = await begun(office, hook(receiver.url))
        later = await office.pause()
        await out.once()
        assert [r.told for r in receiver.came] == [("opened", later)]
        await out.aclose()


@pytest.mark.parametrize(
    "options,told",
    [
        pytest.param({"tools": ["sign"]}, [("opened", "sign"), ("settled", "sign")], id="one tool"),
        pytest.param(
            {"agents": ["clerk"], "events": ["settled"]}, [("settled", "pay"), ("settled", "sign")], id="one event"
        ),
        pytest.param({"agents": ["other"]}, [], id="another agent"),
        pytest.param({"owners": ["eve"]}, [("opened", "sign"), ("settled", "sign")], id="one owner"),
    ],
)
async def test_a_hook_is_told_of_what_it_asked_for(office: Office, options: Any, told: Any) -> None:
    async with receiving() as receiver:
        out = await begun(office, hook(receiver.url, **options))
        for interrupt in [await office.pause("pay"), await office.pause("sign", owner="eve")]:
            await office.decide(interrupt)
        await out.once()
        assert [(r.told[0], r.json["data"]["interrupt"]["tool"]) for r in receiver.came] == told
        # What did not concern it is done with, too.
        end = office.store.submit(lambda tx: tx.position(), read=True).result()
        assert (await state(office, hook(receiver.url, **options))).position == end
        await out.aclose()


async def test_an_expiry_is_no_decision(office: Office) -> None:
    async with receiving() as receiver:
        out = await begun(office, hook(receiver.url))
        session = office.agent.connect()
        await session.send("brief").output
        office.clock.time += 100
        await office.ai.inbox.expire_due(run=False)
        await out.once()
        assert [r.told[0] for r in receiver.came] == ["opened", "expired"]
        await out.aclose()


async def test_an_aborted_turn_cancels_what_it_asked(office: Office) -> None:
    async with receiving() as receiver:
        out = await begun(office, hook(receiver.url))
        session = office.agent.connect()
        await session.send("pay").output
        await session.abort()
        await out.once()
        assert [r.told[0] for r in receiver.came] == ["opened", "cancelled"]
        await out.aclose()


async def test_a_deleted_session_is_told_of_without_its_content(office: Office) -> None:
    async with receiving() as receiver:
        everything, one_tool = hook(receiver.url, name="all"), hook(receiver.url, name="pay", tools=["pay"])
        outs = [await begun(office, given) for given in (everything, one_tool)]
        session = office.agent.connect()
        await session.send("pay").output
        await office.ai.sessions.delete(session.id, force=True)
        for out in outs:
            await out.once()
        assert [r.json["type"] for r in receiver.came] == ["interrupt.opened", "interrupt.cancelled"]
        assert all("interrupt" not in r.json["data"] for r in receiver.came)
        for out in outs:
            await out.aclose()


# -- where nobody takes it -------------------------------------------------------------------------------------------


async def test_what_failed_is_tried_again_and_keeps_its_place(office: Office) -> None:
    async with receiving() as receiver:
        receiver.replies = [500, 204]
        given = hook(receiver.url)
        out = await begun(office, given)
        first, second = await office.pause(), await office.pause()
        wait = await out.once()
        assert 0 < wait <= 10
        assert (await state(office, given)).error == "the receiver said 500"
        assert await out.once() > 0  # it is not yet time
        assert len(receiver.came) == 1
        office.clock.time += 10
        await out.once()
        assert [r.told for r in receiver.came] == [("opened", first), ("opened", first), ("opened", second)]
        ids = [r.headers["webhook-id"] for r in receiver.came]
        assert ids[0] == ids[1] != ids[2]
        assert body_of(receiver.came[0]) == body_of(receiver.came[1])
        kept = await state(office, given)
        assert (kept.attempts, kept.error, kept.delivered, kept.failing_since) == (0, "", 2, None)
        await out.aclose()


async def test_the_pauses_grow_and_outlive_a_restart(office: Office) -> None:
    async with receiving() as receiver:
        receiver.then = 503
        given = hook(receiver.url, backoff=10.0, backoff_most=60.0)
        await (await begun(office, given)).aclose()
        await office.pause()
        waits: list[float] = []
        for _ in range(6):
            out = deliverer(office, given)  # as another process, after a restart
            await out.once()
            kept = await state(office, given)
            waits.append(kept.retry_at - office.clock.now())
            office.clock.time = kept.retry_at
            await out.aclose()
        assert len(receiver.came) == 6
        for wait, most in zip(waits, [10, 20, 40, 60, 60, 60], strict=True):
            assert most / 2 <= wait <= most


async def test_the_receiver_says_when_to_come_back(office: Office) -> None:
    async with receiving() as receiver:
        receiver.then = b"HTTP/1.1 429 X\r\nretry-after: 500\r\ncontent-length: 0\r\n\r\n"
        given = hook(receiver.url)
        out = await begun(office, given)
        await office.pause()
        await out.once()
        assert (await state(office, given)).retry_at == office.clock.now() + 500
        await out.aclose()


async def test_after_a_while_it_is_given_up_and_that_is_recorded(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving() as receiver:
        receiver.then = 500
        given = hook(receiver.url, give_up_after=1000.0, backoff_most=100.0)
        out = await begun(office, given)
        await office.pause()
        await office.pause()
        began = office.clock.now()
        while (await state(office, given)).dropped == 0:
            await out.once()
            office.clock.time += 100
            assert office.clock.now() < began + 2000
        kept = await state(office, given)
        assert kept.dropped == 2
        assert kept.dropped_at >= began + 1000
        assert "2 messages were given up (the receiver said 500)" in caplog.text
        receiver.then = 204
        receiver.came.clear()
        later = await office.pause()
        office.clock.time += 100
        await out.once()
        assert [r.told for r in receiver.came] == [("opened", later)]
        await out.aclose()


async def test_what_is_younger_than_that_is_still_tried(office: Office) -> None:
    async with receiving() as receiver:
        receiver.then = 500
        given = hook(receiver.url, give_up_after=1000.0, backoff_most=100.0)
        out = await begun(office, given)
        await office.pause()
        for _ in range(8):
            await out.once()
            office.clock.time += 100
        young = await office.pause()
        for _ in range(3):
            await out.once()
            office.clock.time += 100
        assert (await state(office, given)).dropped == 1
        receiver.then = 204
        receiver.came.clear()
        await out.once()
        assert [r.told for r in receiver.came] == [("opened", young)]
        await out.aclose()


@pytest.mark.slow
async def test_a_dead_receiver_does_not_hold_up_the_others(place: Place) -> None:
    office = Office(place.open(), SYSTEM)
    async with receiving() as dead, receiving() as alive:
        dead.then, dead.stalls = b"", True
        async with delivering(office.ai, [hook(dead.url), hook(alive.url)]):
            await _both_begun(office, dead, alive)
            first = await office.pause()
            await dead.until(1)
            second = await office.pause()
            await alive.until(2)
            assert [r.told for r in alive.came] == [("opened", first), ("opened", second)]
            assert len(dead.came) == 1


async def _both_begun(office: Office, *receivers: Receiver) -> None:
    hooks = [hook(r.url) for r in receivers]
    async with asyncio.timeout(10):
        while not all((await states(office.ai, hooks)).values()):  # noqa: ASYNC110 - rows of another task
            await asyncio.sleep(0.01)


async def test_a_private_address_is_refused_and_tried_again_later(office: Office) -> None:
    async with receiving() as receiver:
        given = hook(receiver.url, allow=())
        out = await begun(office, given)
        await office.pause()
        await out.once()
        assert receiver.connections == 0
        assert "no address of the open Internet" in (await state(office, given)).error
        await out.aclose()


# -- several processes -----------------------------------------------------------------------------------------------


async def test_one_process_delivers_at_a_time(place: Place) -> None:
    here, there = Office(place.open()), Office(place.open())
    async with receiving() as receiver:
        given = hook(receiver.url)
        mine, other = await begun(here, given), deliverer(there, given)
        interrupt = await here.pause()
        assert await other.once() > 0
        assert receiver.came == []
        await mine.once()
        assert [r.told for r in receiver.came] == [("opened", interrupt)]
        await mine.aclose()
        await other.aclose()


async def test_another_takes_over_where_one_is_gone(place: Place) -> None:
    here, there = Office(place.open()), Office(place.open())
    async with receiving() as receiver:
        given = hook(receiver.url)
        await begun(here, given)  # and is never heard of again
        interrupt = await here.pause()
        other = deliverer(there, given)
        await other.once()
        assert receiver.came == []
        there.clock.time += 31
        await other.once()
        assert [r.told for r in receiver.came] == [("opened", interrupt)]
        await other.aclose()


async def test_one_that_ends_hands_over_at_once(place: Place) -> None:
    here, there = Office(place.open()), Office(place.open())
    async with receiving() as receiver:
        given = hook(receiver.url)
        await (await begun(here, given)).aclose()
        interrupt = await here.pause()
        other = deliverer(there, given)
        await other.once()
        assert [r.told for r in receiver.came] == [("opened", interrupt)]
        await other.aclose()


async def test_one_that_lost_its_lease_stops(place: Place) -> None:
    here, there = Office(place.open()), Office(place.open())
    async with receiving() as receiver:
        given = hook(receiver.url)
        slow, quick = await begun(here, given), deliverer(there, given)
        first, second = await here.pause(), await here.pause()
        receiver.hold = hold = asyncio.Event()
        late = asyncio.create_task(slow.once())
        await receiver.until(1)
        there.clock.time += 31
        await quick.once()
        hold.set()
        with pytest.raises(NotOurs):
            await late
        # What was under way when the lease was lost comes twice, and nothing after it.
        assert [r.told for r in receiver.came] == [("opened", first), ("opened", first), ("opened", second)]
        assert (await state(here, given)).delivered == 2
        await slow.aclose()
        await quick.aclose()


async def test_many_processes_deliver_everything_once_and_in_order(place: Place) -> None:
    offices = [Office(place.open(), SYSTEM) for _ in range(3)]
    async with receiving() as receiver:
        given = hook(receiver.url)
        out = await begun(offices[0], given)
        await out.aclose()
        async with (
            delivering(offices[0].ai, [given]),
            delivering(offices[1].ai, [given]),
            delivering(offices[2].ai, [given]),
        ):
            ids = [await offices[n % 3].pause() for n in range(12)]
            await receiver.until(12)
        assert [r.told for r in receiver.came] == [("opened", i) for i in ids]


def test_two_hooks_of_one_url_need_names(office: Office) -> None:
    async def deliver() -> None:
        async with delivering(office.ai, [hook("https://a.example/"), hook("https://a.example/")]):
            raise AssertionError("it began")

    with pytest.raises(DefinitionError, match="name="):
        asyncio.run(deliver())


async def test_a_server_delivers_while_it_runs(place: Place) -> None:
    clerk = Clerk(place.open())
    async with receiving() as receiver:
        given = hook(receiver.url, content=False)

        def talk() -> Any:
            with serving(clerk.ai, webhooks=[given]) as server, server.client() as client:
                said = client.post("/genkit/clerk", json={"data": {"message": "pay 5"}}).json()
                assert said["result"]["finishReason"] == "interrupted"
                asyncio.run_coroutine_threadsafe(receiver.until(1), loop).result(20)

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(talk)
        assert [r.json["data"]["interrupt"]["agent"] for r in receiver.came] == ["clerk"]
