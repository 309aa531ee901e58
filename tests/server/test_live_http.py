"""Live events over HTTP, from a real server."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from adjourn.server.live_feed import Bounds
from adjourn.stores.sqlite import SQLiteStore
from server.live_kit import following
from server.wire_kit import QUICK, Clerk, Serving, serving


@pytest.fixture(scope="module")
def clerk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clerk]:
    store = SQLiteStore(tmp_path_factory.mktemp("live") / "sessions.db")
    yield Clerk(store)
    store.close()


@pytest.fixture(scope="module")
def server(clerk: Clerk) -> Iterator[Serving]:
    with serving(clerk.ai, settings=replace(QUICK, sse_ping_seconds=0.2)) as running:
        yield running


async def ask(server: Serving, text: str, who: str = "ann") -> Any:
    """Says something to the clerk; gives the result."""

    def post() -> Any:
        with server.client(who) as client:
            return client.post("/genkit/clerk", json={"data": {"message": text}}).json()["result"]

    return await asyncio.to_thread(post)


async def post(server: Serving, path: str, body: Any, who: str = "ann") -> httpx.Response:
    def send() -> httpx.Response:
        with server.client(who) as client:
            return client.post(path, json=body)

    return await asyncio.to_thread(send)


async def pause(server: Serving, who: str = "ann") -> tuple[str, str]:
    """A new interrupt and its session."""
    result = await ask(server, "pay 5", who)
    metadata = result["message"]["content"][0]["metadata"]
    return metadata["adjourn"]["pause"]["id"], result["sessionId"]


async def test_a_pause_and_a_decision_are_told(server: Serving) -> None:
    async with following(server) as client:
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.headers["cache-control"] == "no-store"
        interrupt, session = await pause(server)
        taken = await post(server, f"/api/interrupts/{interrupt}/decline", {"reason": "no"})
        assert taken.status_code == 202
        opened, settled = await client.until_many(2)
        assert opened.told == ("opened", interrupt)
        assert (opened.data["sessionId"], opened.data["tool"], opened.data["owner"]) == (session, "pay", "ann")
        assert settled.told == ("settled", interrupt)
        assert (settled.data["verb"], settled.data["by"]) == ("decline", "ann")


async def test_a_client_that_was_cut_off_misses_nothing_and_sees_nothing_twice(server: Serving) -> None:
    async with following(server) as client:
        first, _ = await pause(server)
        await client.until_many(1)
        last = client.frames.last_id
    missed = [(await pause(server))[0] for _ in range(3)]
    async with following(server, last_id=last) as client:
        assert [e.told for e in await client.until_many(3)] == [("opened", i) for i in missed]
        now, _ = await pause(server)
        assert [e.told[1] for e in await client.until_many(4)] == [*missed, now]
        assert first not in [e.told[1] for e in client.events]


async def test_a_client_that_was_cut_off_before_anything_happened_misses_nothing(server: Serving) -> None:
    async with following(server) as client:
        last = client.frames.last_id
    missed, _ = await pause(server)
    async with following(server, last_id=last) as client:
        assert [e.told for e in await client.until_many(1)] == [("opened", missed)]


async def test_a_client_goes_on_after_the_server_was_started_anew(clerk: Clerk) -> None:
    with serving(clerk.ai) as server:
        async with following(server) as client:
            await pause(server)
            await client.until_many(1)
            last = client.frames.last_id
        missed, _ = await pause(server)
    with serving(clerk.ai) as server:
        async with following(server, last_id=last) as client:
            assert [e.told for e in await client.until_many(1)] == [("opened", missed)]


async def test_the_place_can_be_given_in_the_address(server: Serving) -> None:
    async with following(server) as client:
        last = client.frames.last_id
    missed, _ = await pause(server)
    async with following(server, f"/api/events?after={last}") as client:
        assert [e.told for e in await client.until_many(1)] == [("opened", missed)]


@pytest.mark.parametrize("last_id", ["nonsense", "1,2,3", "-1", "99999999999999999999999999"])
async def test_a_place_that_is_none_starts_anew_and_says_so(server: Serving, last_id: str) -> None:
    async with following(server, last_id=last_id) as client:
        (reset,) = await client.until_many(1)
        assert reset.kind == "reset"
        interrupt, _ = await pause(server)
        assert (await client.until_many(2))[1].told == ("opened", interrupt)


async def test_others_are_not_told(server: Serving) -> None:
    async with following(server, who="ben") as ben, following(server, who="root") as root:
        hers, _ = await pause(server, "ann")
        his, _ = await pause(server, "ben")
        await root.until_many(2)
        assert [e.told for e in await ben.until_many(1)] == [("opened", his)]
        assert [e.told[1] for e in root.events] == [hers, his]


async def test_a_heartbeat_moves_on_over_what_a_client_may_not_see(server: Serving) -> None:
    async with following(server, who="ben") as ben, following(server, who="root") as root:
        before = ben.frames.last_id
        await pause(server, "ann")
        await root.until_many(1)
        await ben.until(lambda f: f.frames.last_id == root.frames.last_id)
        assert ben.frames.last_id != before
        assert ben.frames.comments > 0
        assert ben.events == []


@pytest.mark.parametrize("path", ["/api/events", "/api/sessions/s_1/events"])
async def test_strangers_are_told_nothing(server: Serving, path: str) -> None:
    async with following(server, path, who=None) as client:
        assert client.status == 401


async def clients_are(server: Serving, many: int) -> None:
    async with asyncio.timeout(10):
        while server.app.state.live.clients != many:  # noqa: ASYNC110 - the server's own thread changes it
            await asyncio.sleep(0.01)


async def test_a_client_that_goes_away_leaves_nothing_behind(server: Serving) -> None:
    await clients_are(server, 0)
    async with following(server), following(server):
        await clients_are(server, 2)
        interrupt, _ = await pause(server)
    await clients_are(server, 0)
    with server.client("ann") as client:
        assert client.get(f"/api/interrupts/{interrupt}").json()["status"] == "open"


async def test_more_clients_than_it_takes_are_told_to_come_back(server: Serving) -> None:
    await clients_are(server, 0)
    hub = server.app.state.live
    usual, hub.bounds = hub.bounds, Bounds(clients=1, session_clients=0)
    try:
        _, session = await pause(server)
        async with following(server), following(server) as second:
            assert (second.status, second.headers["retry-after"]) == (429, "5")
            async with following(server, f"/api/sessions/{session}/events") as third:
                assert third.status == 429
    finally:
        hub.bounds = usual


async def test_the_end_of_the_server_ends_the_streams(clerk: Clerk) -> None:
    with serving(clerk.ai, settings=replace(QUICK, drain_seconds=60.0)) as server:
        context = following(server)
        client = await context.__aenter__()
    assert client.events == []
    await client.until_end()
    assert not client.broke_off
    await context.__aexit__(None, None, None)


# -- one session -----------------------------------------------------------------------------------------------------


def kinds(events: Any) -> list[str]:
    return [e["type"] for event in events if event.kind == "batch" for e in event.data["events"]]


async def test_a_session_is_followed_from_its_beginning(server: Serving) -> None:
    interrupt, session = await pause(server)
    async with following(server, f"/api/sessions/{session}/events", who="ann") as client:
        await client.until(lambda f: "toolInterrupted" in kinds(f.events))
        assert kinds(client.events) == ["userSaid", "modelReplied", "toolStarted", "toolInterrupted"]
        await post(server, f"/api/interrupts/{interrupt}/respond", {"output": 0})
        await client.until(lambda f: "turnEnded" in kinds(f.events))
        assert kinds(client.events)[4:] == ["responded", "modelReplied", "turnEnded"]
        assert len({e.id for e in client.events}) == len(client.events)


async def test_a_session_is_followed_on_from_any_place(server: Serving) -> None:
    interrupt, session = await pause(server)
    await post(server, f"/api/interrupts/{interrupt}/respond", {"output": 0})
    path = f"/api/sessions/{session}/events"
    async with following(server, path) as client:
        await client.until(lambda f: "turnEnded" in kinds(f.events))
        events = list(client.events)
    for place, event in enumerate(events[:-1]):
        async with following(server, path, last_id=event.id) as client:
            assert list(await client.until_many(len(events) - place - 1)) == events[place + 1 :]


async def test_somebody_elses_session_is_unknown(server: Serving) -> None:
    _, session = await pause(server, "ann")
    for who, status in (("ann", 200), ("root", 200), ("ben", 404), ("eve", 404)):
        async with following(server, f"/api/sessions/{session}/events", who=who) as client:
            assert client.status == status
    async with following(server, "/api/sessions/s_none/events") as client:
        assert client.status == 404


async def test_a_place_that_is_none_in_a_session_starts_anew(server: Serving) -> None:
    _, session = await pause(server)
    async with following(server, f"/api/sessions/{session}/events", last_id="nonsense") as client:
        (reset,) = await client.until_many(1)
        assert (reset.kind, client.frames.last_id) == ("reset", "")
        await client.until_end()


async def test_the_end_of_a_session_is_told(server: Serving) -> None:
    _, session = await pause(server)
    async with following(server, f"/api/sessions/{session}/events") as client:
        await client.until_many(1)

        def delete() -> None:
            with server.client("root") as http:
                assert http.delete(f"/api/sessions/{session}?force=true").is_success

        await asyncio.to_thread(delete)
        await client.until_end()
        assert client.events[-1].kind == "deleted"
