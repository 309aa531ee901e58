"""What an engine did for a session, on its page and in the API: told to those who look after everybody's work."""

import json
from typing import Any

from msgspec.structs import replace

from adjourn import AgentInit
from adjourn.engine import Deed
from adjourn.records import Ran
from adjourn.timeline import Entry
from server.pages_kit import visitor
from server.server_kit import Office, People

HOLDER, WORKER = "temporal:default:shop", "7@machine"


class Remembering:
    """An engine that ran something, and remembers this of it."""

    holder = HOLDER

    def __init__(self, deeds: list[Deed]) -> None:
        self.deeds = deeds

    async def wake(self, work: Any) -> None:
        raise AssertionError("nothing begins here")

    async def listen(self, watcher: Any) -> Any:
        raise AssertionError("nothing begins here")

    async def recount(self, works: Any) -> list[Deed]:
        return [d for d in self.deeds if d.work in works]

    async def aclose(self) -> None:
        pass


async def ran_by_an_engine(office: Office) -> str:
    """A session of Ann's that a worker of an engine ran; returns its id."""
    session = office.ai.agents["clerk"].connect(AgentInit(owner="ann"))
    await session.send("pay 5").output
    store = office.ai.agents["clerk"].store
    assert store is not None
    [leg] = store.submit(lambda tx: tx.snapshots(session.id)).result()
    store.submit(lambda tx: tx.put_snapshot(replace(leg, engine=HOLDER, ran=(Ran(0, WORKER),)))).result()
    about: dict[str, Any] = {"workflow": leg.turn_id, "run": "r-1", "queue": "shop", "redelivery": True}
    office.ai.engine = Remembering([Deed(leg.turn_id, leg.created + 0.5, "Temporal was given this turn", about)])
    return session.id


async def test_the_page_and_the_api_show_the_same_facts_of_the_engine(people: People, office: Office) -> None:
    session_id = await ran_by_an_engine(office)
    page = await (await visitor(people.client, "root")).get(f"/sessions/{session_id}")
    items = (await people["root"].get(f"/api/sessions/{session_id}/timeline"))["items"]
    entries: list[Entry] = list(await office.ai.sessions.timeline(session_id))
    assert [i["title"] for i in items] == [e.title for e in entries]
    of_engine = [i for i in items if i["kind"] == "engine"]
    assert len(of_engine) == 2
    assert {i["facts"]["workflow"] for i in of_engine} == {entries[0].snapshot_id}
    for item in of_engine:
        assert item["title"] in page.text
    for shown in ("run: r-1", "task queue: shop", f"engine: {HOLDER}", f"worker {WORKER}", "redelivery: True"):
        assert shown in page.text, shown
    office.ai.engine = None


async def test_whose_own_session_it_is_gets_the_timeline_without_the_machines(people: People, office: Office) -> None:
    session_id = await ran_by_an_engine(office)
    said = await people["ann"].get(f"/api/sessions/{session_id}/timeline")
    assert [i["kind"] for i in said["items"]] == ["message", "model", "pause"]
    page = await (await visitor(people.client, "ann")).get(f"/sessions/{session_id}")
    got = await people["ann"]("GET", f"/api/sessions/{session_id}/export")
    for text in (json.dumps(said), page.text, got.text):
        assert WORKER not in text
        assert "redelivery" not in text
    office.ai.engine = None
