"""Sessions over HTTP: listed, shown, forked, aborted, exported and deleted."""

import json
from typing import Any

import httpx
import pytest

from adjourn import MemoryStore, Store
from adjourn.server.desk_sessions import Say, SessionDesk
from adjourn.server.principal import Principal
from server.server_kit import Office, People, app_of, at


def code_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["code"]


async def test_sessions_are_listed_oldest_first_with_filters_and_a_cursor(people: People) -> None:
    ids = [(await people["ann"].say("hello"))["sessionId"] for _ in range(5)]
    ids.append((await people["ann"].say("hello", "depot"))["sessionId"])
    page = await people["ann"].get("/api/sessions", params={"limit": 2})
    found = [s["id"] for s in page["items"]]
    while page["nextCursor"]:
        page = await people["ann"].get("/api/sessions", params={"limit": 2, "cursor": page["nextCursor"]})
        found += [s["id"] for s in page["items"]]
    assert found == ids
    of_depot = await people["ann"].get("/api/sessions", params={"agent": "depot"})
    assert [s["id"] for s in of_depot["items"]] == ids[5:]
    assert (await people["ann"].get("/api/sessions", params={"owner": "ben"}))["items"] == []


async def test_a_session_shows_its_conversation_its_pauses_and_its_resting_points(people: People) -> None:
    run = await people["ann"].say("pay 5")
    shown = await people["ann"].get(f"/api/sessions/{run['sessionId']}")
    assert (shown["status"], shown["finishReason"]) == ("completed", "interrupted")
    assert [m["role"] for m in shown["messages"]] == ["user", "model"]
    assert [i["id"] for i in shown["interrupts"]] == [run["interrupts"][0]["id"]]
    assert [s["id"] for s in shown["snapshots"]] == [run["snapshotId"]]
    then = await people["ann"].get(f"/api/sessions/{run['sessionId']}", params={"snapshot": run["snapshotId"]})
    assert then["messages"] == shown["messages"]
    other = await people["ann"].say("hello")
    wrong = await people["ann"]("GET", f"/api/sessions/{run['sessionId']}?snapshot={other['snapshotId']}")
    assert code_of(wrong) == (404, "session-unknown")


async def test_the_timeline_tells_what_happened(people: People) -> None:
    run = await people["ann"].say("pay 5")
    await people["ann"]("POST", f"/api/interrupts/{run['interrupts'][0]['id']}/decline", {"reason": "no"})
    entries = (await people["ann"].get(f"/api/sessions/{run['sessionId']}/timeline"))["items"]
    kinds = [e["kind"] for e in entries]
    assert kinds[0] == "message"
    assert "pause" in kinds
    assert "decision" in kinds
    assert all(e["title"] and e["at"] for e in entries)


async def test_a_branch_has_interrupts_of_its_own(people: People, office: Office) -> None:
    run = await people["ann"].say("pay 5")
    reply = await people["ann"]("POST", f"/api/sessions/{run['sessionId']}/fork")
    assert reply.status_code == 201
    branch = reply.json()
    assert branch["snapshotId"] != run["snapshotId"]
    (own,) = branch["interrupts"]
    assert own["id"] != run["interrupts"][0]["id"]
    await people["ann"]("POST", f"/api/interrupts/{own['id']}/decline")
    assert (await people["ann"].get(f"/api/interrupts/{run['interrupts'][0]['id']}"))["status"] == "open"


async def test_a_branch_is_gone_on_with_by_its_snapshot(people: People) -> None:
    first = await people["ann"].say("one")
    await people["ann"].say("two", sessionId=first["sessionId"])
    body = {"snapshotId": first["snapshotId"]}
    branch = (await people["ann"]("POST", f"/api/sessions/{first['sessionId']}/fork", body)).json()
    assert branch["interrupts"] == []
    went_on = await people["ann"].say("three", snapshotId=branch["snapshotId"])
    shown = await people["ann"].get(f"/api/sessions/{first['sessionId']}", params={"snapshot": went_on["snapshotId"]})
    said = [p["text"] for m in shown["messages"] if m["role"] == "user" for p in m["content"]]
    assert said == ["one", "three"]


async def test_a_paused_turn_is_aborted_and_one_that_rests_is_not(people: People) -> None:
    run = await people["ann"].say("pay 5")
    path = f"/api/sessions/{run['sessionId']}/abort"
    assert (await people["ann"]("POST", path, {"reason": "changed my mind"})).json() == {"aborted": True}
    assert (await people["ann"]("POST", path)).json() == {"aborted": False}
    shown = await people["ann"].get(f"/api/sessions/{run['sessionId']}")
    assert (shown["status"], shown["error"]["message"]) == ("aborted", "changed my mind")
    assert (await people["ann"].say("hello", sessionId=run["sessionId"]))["text"] == "you said hello"


async def test_a_running_turn_is_aborted(people: People, office: Office) -> None:
    run = (await people["ann"]("POST", "/api/agents/clerk/send?wait=0", {"message": "wait"})).json()
    await office.waiting.wait()
    aborted = await people["ann"]("POST", f"/api/sessions/{run['sessionId']}/abort")
    assert aborted.json() == {"aborted": True}
    assert (await people["ann"].get(f"/api/sessions/{run['sessionId']}"))["status"] == "aborted"


async def test_a_session_that_waits_is_deleted_with_force_only_and_its_audit_stays(people: People) -> None:
    run = await people["ann"].say("pay 5")
    path = f"/api/sessions/{run['sessionId']}"
    one = run["interrupts"][0]["id"]
    refused = await people["root"]("DELETE", path)
    assert code_of(refused) == (409, "session-paused")
    assert refused.json()["interrupts"] == [one]
    assert (await people["root"]("DELETE", path, params={"force": "true"})).status_code == 204
    assert code_of(await people["ann"]("GET", path)) == (404, "session-unknown")
    history = (await people["root"].get(f"/api/interrupts/{one}/history"))["items"]
    assert [d["verb"] for d in history] == ["cancel"]
    assert (await people["ann"]("GET", f"/api/interrupts/{one}/history")).status_code == 404


async def test_an_export_is_read_back_by_another_store(people: People) -> None:
    run = await people["ann"].say("pay 5")
    reply = await people["ann"]("GET", f"/api/sessions/{run['sessionId']}/export")
    assert reply.headers["content-type"].startswith("application/jsonl")
    assert "attachment" in reply.headers["content-disposition"]
    (line,) = reply.text.splitlines()
    other: Store = MemoryStore()
    office = Office(other)
    assert await office.ai.sessions.import_([line], other) == 1
    async with at(app_of(office)) as there:
        shown = await there["ann"].get(f"/api/sessions/{run['sessionId']}")
        assert shown["interrupts"][0]["id"] == run["interrupts"][0]["id"]


async def test_an_export_of_everything_pages_through_it(people: People) -> None:
    for n in range(205):
        await people["ann"].say(f"hello {n}")
    lines = (await people["ann"]("GET", "/api/export")).text.splitlines()
    assert len({json.loads(line)["session"]["id"] for line in lines}) == 205


@pytest.mark.parametrize("all_of_them", [True, False])
async def test_an_export_goes_past_sessions_that_are_deleted_while_it_runs(office: Office, all_of_them: bool) -> None:
    root, desk = Principal("root", "admin"), SessionDesk(office.ai)
    runs = [await desk.send(root, "clerk", Say(f"hello {n}")) for n in range(3)]
    for run in runs:
        await run.turn.settled()
    ids = [run.session_id for run in runs]
    lines = await desk.export(root, None if all_of_them else ids)
    found = [json.loads(await anext(lines))["session"]["id"]]
    await office.ai.sessions.delete(ids[1])
    found += [json.loads(line)["session"]["id"] async for line in lines]
    assert found == [ids[0], ids[2]]


async def test_sessions_inside_others_are_not_listed_by_themselves(office: Office) -> None:
    from adjourn.testing import ScriptedModel, call

    inner = office.ai.define_agent(
        "inner", store=office.store, model=ScriptedModel([call("pay", {"amount": 1}), "ok"]), tools=["pay"]
    )
    outer = ScriptedModel([call("inner", {"task": "pay one"}), "all done"])
    office.ai.define_agent("outer", store=office.store, model=outer, tools=[inner.as_tool()])
    async with at(app_of(office)) as people:
        run: Any = await people["root"].say("go", "outer")
        listed = (await people["root"].get("/api/sessions"))["items"]
        assert [s["id"] for s in listed] == [run["sessionId"]]
        shown = await people["root"].get(f"/api/interrupts/{run['interrupts'][0]['id']}")
        assert shown["path"] == ["inner"]
        assert (await people["root"]("POST", f"/api/interrupts/{shown['id']}/restart")).status_code == 202
