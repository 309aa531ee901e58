"""The inbox's feed for many clients: nothing is lost, nothing comes twice, and nothing is kept for anybody."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjourn import Adjourn, MemoryStore
from adjourn.clock import SYSTEM
from adjourn.records import Change
from adjourn.server.live import EventStream, inbox_frames
from adjourn.server.live_feed import CatchingUp
from adjourn.server.principal import Principal
from adjourn.server.webhook_spec import News
from adjourn.stores.sqlite import SQLiteStore
from server.live_kit import ROOT, Client, hub_of
from server.webhook_kit import Office
from sessions.session_kit import KINDS, Place, make_place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"))
    yield made
    made.close()


@pytest.fixture
def office(place: Place) -> Office:
    return Office(place.open(), SYSTEM)


async def test_events_come_in_order_with_ids_of_their_own(office: Office) -> None:
    async with hub_of(office.ai) as hub:
        client = Client(hub)
        first = await office.pause()
        await office.decide(first)
        second = await office.pause()
        events = await client.read(3)
        assert [e.told for e in events] == [("opened", first), ("settled", first), ("opened", second)]
        assert len({e.id for e in events}) == 3
        assert events[1].data["verb"] == "respond"
        assert events[1].data["by"] == "ben"
        assert events[0].data["summary"] == "pay(n=1)"


@pytest.mark.parametrize("kept", [4096, 1], ids=["from what is kept", "from the store"])
async def test_a_client_goes_on_right_behind_any_event(office: Office, kept: int) -> None:
    async with hub_of(office.ai, events=kept) as hub:
        whole = Client(hub)
        for _ in range(4):
            await office.decide(await office.pause())
        events = list(await whole.read(8))
        rests = [Client(hub, event.id) for event in events]
        for place, rest in enumerate(rests):
            assert [(e.id, e.told) for e in await rest.read(7 - place)] == [(e.id, e.told) for e in events[place + 1 :]]
        later = await office.pause()
        for place, rest in enumerate(rests):
            assert [e.told for e in await rest.read(8 - place)][-1] == ("opened", later)
            assert len(rest.frames.events) == 8 - place


async def test_a_client_goes_on_from_before_the_first_event(office: Office) -> None:
    await office.pause()
    async with hub_of(office.ai) as hub:
        client = Client(hub)
        place = client.reader.position
        later = await office.pause()
        assert [e.told for e in await Client(hub, place).read(1)] == [("opened", later)]
        assert [e.told for e in await client.read(1)] == [("opened", later)]


async def test_a_client_goes_on_at_another_process(office: Office, place: Place) -> None:
    async with hub_of(office.ai) as here:
        client = Client(here)
        ids = [await office.pause() for _ in range(3)]
        events = await client.read(3)
        async with hub_of(Office(place.open(), SYSTEM).ai) as there:
            rest = Client(there, events[0].id)
            assert [e.told for e in await rest.read(2)] == [("opened", i) for i in ids[1:]]
            ids.append(await office.pause())
            assert [e.told for e in await rest.read(3)] == [("opened", i) for i in ids[1:]]


async def test_a_client_that_knows_more_than_this_process_waits_for_it(office: Office) -> None:
    async with hub_of(office.ai) as hub:
        stale, hub.end = hub.end, hub.end
        await office.pause()
        await Client(hub, stale).read(1)
        newest = await office.ai.inbox.latest_position()
        client = Client(hub, newest)
        later = await office.pause()
        assert [e.told for e in await client.read(1)] == [("opened", later)]


async def test_a_client_of_a_feed_that_is_gone_is_told_so_and_goes_on(office: Office, place: Place) -> None:
    async with hub_of(office.ai) as hub:
        client = Client(hub, "999999.0" if place.kind == "postgres" else "999999")
        (reset,) = await client.read(1)
        assert (reset.kind, reset.id) == ("reset", hub.end)
        later = await office.pause()
        assert (await client.read(2))[1].told == ("opened", later)


async def test_clients_are_told_to_look_anew_where_a_backup_is_restored_under_the_server() -> None:
    store = MemoryStore()
    office = Office(store, SYSTEM)
    async with hub_of(office.ai) as hub:
        before, after = Client(hub), Client(hub)
        ids = [await office.pause() for _ in range(4)]
        await before.read(4)
        await after.read(4)
        with store._lock:  # pyright: ignore[reportPrivateUsage]
            del store.feed[2:]
        ids = [await office.pause() for _ in range(3)]
        await before.read(5)
        await after.read(5)
        late = await office.pause()
        for client in (before, after):
            while client.frames.events[-1].data.get("interruptId") != late:
                await client.read(len(client.frames.events) + 1)
            reset, *rest = client.frames.events[4:]
            assert reset.kind == "reset"  # whoever reads the list now finds what came before this place
            assert [e.told[1] for e in rest] == [*ids, late][-len(rest) :]
        standing = Client(hub, before.frames.events[1].id)  # a place that the backup had too
        assert [e.told[1] for e in await standing.read(4)] == [*ids, late]


async def test_a_slow_client_loses_nothing(office: Office) -> None:
    async with hub_of(office.ai, events=2) as hub:
        slow, quick = Client(hub), Client(hub)
        ids: list[str] = []
        for n in range(10):
            ids.append(await office.pause())
            await quick.read(n + 1)
        assert hub.first > 0
        assert [e.told[1] for e in await slow.read(10)] == ids


async def test_what_is_kept_is_bounded(office: Office) -> None:
    async with hub_of(office.ai, events=5) as hub:
        client = Client(hub)
        for n in range(20):
            await office.pause()
            await client.read(n + 1)
        kept = [e for number in range(hub.first, hub.count) for e in hub.batch(number).events]
        assert 0 < len(kept) <= 5
        assert hub.place_of(kept[-1].position) == hub.count - 1
        assert hub.place_of(client.frames.events[0].id) is None


async def test_everybody_gets_what_they_may_see(office: Office) -> None:
    async with hub_of(office.ai) as hub:
        people = {
            "ann": Principal("ann", "decide"),
            "eve": Principal("eve", "view"),
            "signer": Principal("x", "decide", owners=None, tools=frozenset(["sign"])),
            "other agent": Principal("x", "decide", owners=None, agents=frozenset(["nobody"])),
            "one": Principal("x", "decide", interrupts=frozenset(["i_none"]), owners=None),
            "root": ROOT,
        }
        clients = {name: Client(hub, None, who) for name, who in people.items()}
        hers, signed = await office.pause("pay", owner="ann"), await office.pause("sign", owner="eve")
        await office.decide(hers)
        await clients["root"].read(3)
        for name in ("ann", "signer", "eve"):
            await clients[name].read(1)
        await office.pause("sign", owner="eve")
        await clients["root"].read(4)
        await clients["eve"].read(2)
        await clients["ann"].read(2)
        told = {name: [e.told for e in c.frames.events] for name, c in clients.items()}
        assert told["ann"] == [("opened", hers), ("settled", hers)]
        assert [t for t in told["eve"] if t[1] == signed] == [("opened", signed)]
        assert len(told["eve"]) == 2
        assert told["signer"][:1] == [("opened", signed)]
        assert (told["other agent"], told["one"]) == ([], [])


async def test_what_was_missed_is_bounded_by_the_same_rules(office: Office) -> None:
    start = await office.ai.inbox.latest_position()
    hers = await office.pause(owner="ann")
    await office.pause(owner="eve")
    async with hub_of(office.ai) as hub:
        client = Client(hub, start, Principal("ann", "decide"))
        assert [e.told for e in await client.read(1)] == [("opened", hers)]
        while client.reader.position != hub.end:
            await client.reader.next(1.0)
        assert len(client.frames.events) == 1


async def test_a_deleted_session_is_news_only_for_those_who_see_everything(office: Office) -> None:
    start = await office.ai.inbox.latest_position()
    session = office.agent.connect()
    interrupt = (await session.send("pay").output).interrupts[0].id
    await office.ai.sessions.delete(session.id, force=True)
    end = await office.ai.inbox.latest_position()
    async with hub_of(office.ai) as hub:
        for who, told in ((ROOT, [("opened", interrupt), ("settled", interrupt)]), (Principal("ann", "decide"), [])):
            client = Client(hub, start, who)
            while client.reader.position != end:
                client.frames.feed(await client.reader.next(1.0) or b"")
            assert [e.told for e in client.frames.events] == told
            assert all(set(e.data) <= {"interruptId", "sessionId", "at", "verb", "by"} for e in client.frames.events)


async def test_two_stores_are_one_feed(tmp_path: Path) -> None:
    stores = [MemoryStore(), SQLiteStore(tmp_path / "other.db")]
    offices = [Office(s, SYSTEM) for s in stores]
    both = Adjourn(stores=stores)
    async with hub_of(both) as hub:
        start, client = hub.end, Client(hub)
        ids: list[str] = []
        for n in range(8):
            ids.append(await offices[n % 2].pause())
            await client.read(n + 1)
        events = list(client.frames.events)
        assert [e.told[1] for e in events] == ids
        for place in (start, *[e.id for e in events]):
            kept = Client(hub, place)
            done = 0 if place == start else [e.id for e in events].index(place) + 1
            assert [e.told[1] for e in await kept.read(8 - done)] == ids[done:]
        async with hub_of(Adjourn(stores=stores), events=1) as fresh:
            for place in (start, *[e.id for e in events[:-1]]):
                done = 0 if place == start else [e.id for e in events].index(place) + 1
                rest = Client(fresh, place)
                # Across stores the order is that of the times; within one it is that of the feed.
                assert {e.told[1] for e in await rest.read(8 - done)} == set(ids[done:])
                assert len(rest.frames.events) == 8 - done
    for s in stores:
        s.close()


async def test_a_client_that_is_behind_in_one_store_and_ahead_in_another_loses_nothing(tmp_path: Path) -> None:
    stores = [MemoryStore(), MemoryStore()]
    one, other = [Office(s, SYSTEM) for s in stores]
    both = Adjourn(stores=stores)
    start = (await both.inbox.latest_position()).split(",")
    async with hub_of(both) as hub:
        seen = Client(hub)
        ids = [await one.pause(), await one.pause(), await other.pause(), await other.pause()]
        await seen.read(4)
        end = hub.end.split(",")
        client = Client(hub, f"{end[0]},{start[1]}")
        assert [e.told[1] for e in await client.read(2)] == ids[2:]
        ids.append(await one.pause())
        assert [e.told[1] for e in await client.read(3)] == ids[2:]


def test_what_is_beyond_the_goal_in_one_store_is_left_to_the_hub() -> None:
    def news(position: str) -> News:
        return News(Change(position, "opened", f"i_{position}", "s", 0.0), None, None)

    way = CatchingUp("5,3", "5,6", 7)
    assert not way.is_there
    got = way.take([news("6,3"), news("6,4"), news("7,4")])
    assert [n.change.position for n in got] == ["5,4"]
    assert (way.position, way.cursor) == ("5,4", "7,4")
    assert [n.change.position for n in way.take([news("7,5"), news("7,6"), news("7,7")])] == ["5,5", "5,6"]
    assert way.is_there
    assert way.number == 7


def test_a_store_that_has_joined_since_has_nothing_to_catch_up_with() -> None:
    way = CatchingUp("5", "5,6", 1)
    assert way.is_there
    assert way.position == "5,6"


@pytest.mark.parametrize("seed", range(5))
async def test_cut_off_anywhere_and_back_nothing_is_missed_and_nothing_comes_twice(office: Office, seed: int) -> None:
    dice = random.Random(seed)
    async with hub_of(office.ai, events=dice.choice([1, 4, 50])) as hub:
        got: list[tuple[str, str]] = []
        done = asyncio.Event()
        place = hub.end

        async def happen() -> list[tuple[str, str]]:
            told: list[tuple[str, str]] = []
            for _ in range(25):
                interrupt = await office.pause()
                told.append(("opened", interrupt))
                if dice.random() < 0.5:
                    await office.decide(interrupt)
                    told.append(("settled", interrupt))
            done.set()
            return told

        async def follow() -> None:
            nonlocal place
            while True:
                client = Client(hub, place)
                for _ in range(dice.randrange(1, 4)):
                    client.frames.feed(await client.reader.next(0.05) or b"")
                # Cut off somewhere within what was sent: only what is whole was seen.
                seen = client.frames.events[: dice.randrange(len(client.frames.events) + 1)]
                got.extend(e.told for e in seen)
                place = seen[-1].id if seen else place
                if done.is_set() and place == await office.ai.inbox.latest_position():
                    return

        async with asyncio.timeout(60):
            told, _ = await asyncio.gather(happen(), follow())
        assert got == told


async def test_a_client_that_takes_nothing_is_hung_up_on(office: Office) -> None:
    counts: list[int] = []
    async with hub_of(office.ai) as hub:
        stream = EventStream(inbox_frames(hub, ROOT, None, 60.0), counts.append, patience=0.05)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) > 1:
                await asyncio.Event().wait()

        async def receive() -> Any:
            await asyncio.Event().wait()

        scope: Any = {"type": "http"}
        async with asyncio.timeout(10):
            await stream(scope, receive, send)
        assert counts == [1, -1]


async def test_a_stream_ends_after_its_time_so_that_access_is_looked_at_again(office: Office) -> None:
    async with hub_of(office.ai) as hub:
        stream = EventStream(inbox_frames(hub, ROOT, None, 0.01), lambda _: None, life=0.05)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        scope: Any = {"type": "http"}
        async with asyncio.timeout(10):
            await stream(scope, receive, send)
        assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
