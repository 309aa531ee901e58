"""Under an Idempotency-Key a message is said once and decisions are made once, however often the request is sent."""

import asyncio
from typing import Any

import pytest

from adjourn import MemoryStore, Store
from server.server_kit import Office, People, app_of, at

KEY = {"idempotency-key": "k-1"}
SEND = "/api/agents/clerk/send"


def said(view: Any) -> list[str]:
    return [p["text"] for m in view["messages"] if m["role"] == "user" for p in m["content"]]


async def sessions(people: People) -> list[str]:
    return [s["id"] for s in (await people["root"].get("/api/sessions"))["items"]]


@pytest.mark.parametrize("text", ["hello", "pay 5", "fail"])
async def test_a_first_message_begins_one_session(people: People, office: Office, text: str) -> None:
    first = await people["ann"]("POST", SEND, {"message": text}, headers=KEY)
    again = await people["ann"]("POST", SEND, {"message": text}, headers=KEY)
    assert (first.status_code, again.status_code) == (200, 200)
    for name in ("sessionId", "snapshotId", "finishReason", "text", "error", "customState"):
        assert again.json()[name] == first.json()[name], name
    assert [i["id"] for i in again.json()["interrupts"]] == [i["id"] for i in first.json()["interrupts"]]
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert await sessions(people) == [first.json()["sessionId"]]
    assert len(office.model.requests) == 1


async def test_a_message_to_a_session_is_said_once(people: People, office: Office) -> None:
    session = (await people["ann"].say("one"))["sessionId"]
    for _ in range(3):
        reply = await people["ann"]("POST", SEND, {"message": "two", "sessionId": session}, headers=KEY)
        assert reply.json()["text"] == "you said two"
    other = {"idempotency-key": "k-2"}
    assert (await people["ann"]("POST", SEND, {"message": "two", "sessionId": session}, headers=other)).is_success
    assert said(await people["ann"].get(f"/api/sessions/{session}")) == ["one", "two", "two"]


async def test_a_message_to_a_snapshot_is_said_once(people: People) -> None:
    run = await people["ann"].say("one")
    for _ in range(2):
        body = {"message": "two", "snapshotId": run["snapshotId"]}
        assert (await people["ann"]("POST", SEND, body, headers=KEY)).json()["text"] == "you said two"
    assert said(await people["ann"].get(f"/api/sessions/{run['sessionId']}")) == ["one", "two"]


async def test_a_key_that_stands_for_another_message_says_so(people: People, office: Office) -> None:
    run = (await people["ann"]("POST", SEND, {"message": "pay 5"}, headers=KEY)).json()
    for more in ({}, {"sessionId": run["sessionId"]}):
        reply = await people["ann"]("POST", SEND, {"message": "pay 6", **more}, headers=KEY)
        assert (reply.status_code, reply.json()["code"]) == (422, "key-reused")
    assert len(office.model.requests) == 1


async def test_keys_are_each_persons_and_each_agents_own(people: People) -> None:
    ids: set[str] = set()
    for name, agent in (("ann", "clerk"), ("ben", "clerk"), ("ann", "depot")):
        reply = await people[name]("POST", f"/api/agents/{agent}/send", {"message": "hello"}, headers=KEY)
        ids.add(reply.json()["sessionId"])
    assert len(ids) == 3


async def test_sent_many_times_at_once_it_counts_once(store: Store) -> None:
    office = Office(store)
    async with at(app_of(office)) as people:
        body = {"message": "pay 5"}
        replies = await asyncio.gather(*[people["ann"]("POST", SEND, body, headers=KEY) for _ in range(8)])
        assert {r.status_code for r in replies} <= {200, 202}, [r.text for r in replies]
        assert len({r.json()["sessionId"] for r in replies}) == 1
        assert len(await sessions(people)) == 1
        assert len((await people["root"].get("/api/interrupts"))["items"]) == 1


async def test_one_that_still_runs_is_waited_for(people: People, office: Office) -> None:
    first = await people["ann"]("POST", SEND + "?wait=0", {"message": "wait"}, headers=KEY)
    assert first.status_code == 202
    again = await people["ann"]("POST", SEND + "?wait=0", {"message": "wait"}, headers=KEY)
    assert (again.status_code, again.json()["finishReason"]) == (202, "running")
    assert again.headers["location"] == first.headers["location"]
    waiting = asyncio.create_task(people["ann"]("POST", SEND, {"message": "wait"}, headers=KEY))
    await office.waiting.wait()
    office.gate.set()
    assert (await waiting).json()["text"] == "done"


async def test_a_stream_that_is_asked_for_again_has_the_result(people: People) -> None:
    head = {**KEY, "accept": "text/event-stream"}
    first = await people["ann"]("POST", SEND, {"message": "hello"}, headers=head)
    again = await people["ann"]("POST", SEND, {"message": "hello"}, headers=head)
    assert "event: chunk" in first.text
    assert again.text.startswith("event: result\ndata: ")
    assert "you said hello" in again.text


async def test_another_process_knows_it_too(store: Store) -> None:
    async with at(app_of(Office(store))) as here, at(app_of(Office(store))) as there:
        first = await here["ann"]("POST", SEND, {"message": "pay 5"}, headers=KEY)
        again = await there["ann"]("POST", SEND, {"message": "pay 5"}, headers=KEY)
        assert again.json()["sessionId"] == first.json()["sessionId"]
        assert again.json()["interrupts"] == first.json()["interrupts"]


async def test_a_message_that_is_queued_behind_a_pause_is_queued_once() -> None:
    office = Office()
    office.ai.define_agent("patient", store=MemoryStore(), on_message_while_paused="queue")
    async with at(app_of(office)) as people:
        run = await people["ann"].say("pay 5", "patient")
        body = {"message": "and then?", "sessionId": run["sessionId"]}
        for _ in range(2):
            reply = await people["ann"]("POST", "/api/agents/patient/send?wait=0", body, headers=KEY)
            assert reply.status_code == 202, reply.text
        record = await app_record(office, run["sessionId"])
        assert len(record.queue) == 1


async def app_record(office: Office, session_id: str) -> Any:
    return next(s for s in await office.ai.sessions.list() if s.id == session_id)


async def test_an_agent_that_keeps_nothing_remembers_no_key(people: People) -> None:
    reply = await people["ann"]("POST", "/api/agents/loose/send", {"message": "hi"}, headers=KEY)
    assert (reply.status_code, "keeps no sessions" in reply.text) == (422, True)


async def test_a_resume_that_is_sent_again_is_the_one_that_it_was(people: People, office: Office) -> None:
    run = await people["ann"].say("pay 5 and pay 6")
    one, two = [i["id"] for i in run["interrupts"]]
    body = {
        "sessionId": run["sessionId"],
        "restart": [{"interrupt": one, "metadata": {"by": "hand"}}],
        "respond": [{"interrupt": two, "output": None}],
    }
    path = "/api/agents/clerk/resume"
    first = await people["ann"]("POST", path, body, headers=KEY)
    again = await people["ann"]("POST", path, body, headers=KEY)
    assert (first.json()["text"], again.json()["text"]) == ("done", "done")
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert office.log == [("paid", 5)]
    assert (await people["ann"]("POST", path, body)).json()["code"] == "already-resolved"
    assert (await people["root"]("POST", path, body, headers=KEY)).json()["code"] == "already-resolved"
    other = {**body, "respond": [{"interrupt": two, "output": False}]}
    assert (await people["ann"]("POST", path, other, headers=KEY)).json()["code"] == "already-resolved"
    assert (await people["ben"]("POST", path, body, headers=KEY)).status_code == 404


async def test_the_mark_of_a_key_says_nothing_of_the_key(people: People) -> None:
    run = (await people["ann"]("POST", SEND, {"message": "hello"}, headers={"idempotency-key": "my-own-words"})).json()
    assert "my-own-words" not in (await people["root"]("GET", f"/api/sessions/{run['sessionId']}")).text
    assert "my-own-words" not in run["sessionId"]
