"""The inbox over HTTP: what is shown, what a decision answers, and which error says what."""

import asyncio
from typing import Any

import httpx
import pytest

from adjourn import Adjourn, AgentInit, MemoryStore, Store
from adjourn.server import Server
from adjourn.server.live_feed import happened
from adjourn.server.webhook_spec import News
from adjourn.store import Change
from adjourn.testing import FakeClock, ScriptedModel, call
from server.server_kit import Office, People, app_of, at, bearer, served, until

PROBLEM = "application/problem+json"


def code_of(reply: httpx.Response) -> tuple[int, str]:
    assert reply.headers["content-type"] == PROBLEM, reply.text
    body = reply.json()
    assert body["status"] == reply.status_code
    assert body["type"] == f"urn:adjourn:problem:{body['code']}"
    assert body["detail"]
    return reply.status_code, body["code"]


async def test_what_waits_is_listed_oldest_first_with_filters_and_a_cursor(people: People) -> None:
    ids = [await people["ann"].pause(f"pay {n}") for n in range(5)]
    ids.append(await people["ann"].pause("ship 1", "depot"))
    listed = await people["ann"].get("/api/interrupts", params={"limit": 4, "count": "true"})
    assert [i["id"] for i in listed["items"]] == ids[:4]
    assert listed["count"] == 6
    rest = await people["ann"].get("/api/interrupts", params={"cursor": listed["nextCursor"]})
    assert [i["id"] for i in rest["items"]] == ids[4:]
    assert rest["nextCursor"] is None
    for query in ({"tool": "ship"}, {"agent": "depot"}, {"text": "SHIP"}):
        found = await people["ann"].get("/api/interrupts", params=query)
        assert [i["id"] for i in found["items"]] == ids[5:], query
    assert (await people["ann"].get("/api/interrupts", params={"status": "resolved"}))["items"] == []


async def test_one_interrupt_shows_all_that_is_needed_to_decide(people: People) -> None:
    one = await people["ann"].pause("ask why")
    shown = await people["ann"]("GET", f"/api/interrupts/{one}")
    body = shown.json()
    assert (body["tool"], body["input"], body["status"], body["owner"]) == ("ask", {"text": "why"}, "open", "ann")
    assert body["allow"] == ["respond", "decline"]
    assert body["responseSchema"]["properties"]["ok"]["type"] == "boolean"
    assert shown.headers["etag"] == f'"{body["version"]}"'


async def test_of_a_pause_in_a_nested_agent_the_summary_is_of_the_inner_call(shared_app: Server) -> None:
    store = MemoryStore()
    ai = Adjourn(model=ScriptedModel([call("helper", {"task": "pay"}), call("wire", {"euros": 5})]), clock=FakeClock())

    @ai.tool(approval=True)
    def wire(euros: int) -> None: ...

    helper = ai.define_agent("helper", tools=[wire])
    ai.define_agent("boss", store=store, tools=[helper.as_tool()])
    shared_app.state.desk.ai = ai
    async with at(shared_app) as people:
        await ai.agents["boss"].connect(AgentInit(owner="ann")).send("go").output
        (item,) = (await people["ann"].get("/api/interrupts"))["items"]
    assert (item["tool"], item["input"], item["path"]) == ("helper", {"task": "pay"}, ["helper"])
    assert item["summary"] == "wire(euros=5)"
    row = await ai.inbox.get(item["id"])
    event = happened(News(Change("1", "opened", row.id, row.session_id, row.created), row, None))
    assert b'"summary":"wire(euros=5)"' in event.frame


async def test_a_response_is_answered_when_it_is_stored_and_the_turn_goes_on(people: People, office: Office) -> None:
    one = await people["ann"].pause("ask why")
    reply = await people["ann"]("POST", f"/api/interrupts/{one}/respond", {"output": {"ok": False}})
    assert reply.status_code == 202
    body = reply.json()
    assert body["decision"]["verb"] == "respond"
    assert (body["decision"]["by"], body["decision"]["address"]) == ("ann", "127.0.0.1")
    assert body["decision"]["inputDigest"] == (await people["ann"].get(f"/api/interrupts/{one}"))["inputDigest"]
    assert reply.headers["location"] == f"/api/interrupts/{one}"
    await until(lambda: _said(people, body["sessionId"], "done"))


async def _said(people: People, session: str, text: str) -> bool:
    messages = (await people["root"].get(f"/api/sessions/{session}"))["messages"]
    return any(p.get("text") == text for m in messages for p in m["content"])


async def test_a_restart_runs_the_tool_with_what_was_shown(people: People, office: Office) -> None:
    one = await people["ann"].pause("pay 5")
    assert (await people["ann"]("POST", f"/api/interrupts/{one}/restart")).status_code == 202
    await until(lambda: office.log == [("paid", 5)])


async def test_a_replaced_input_is_checked_and_runs(people: People, office: Office) -> None:
    one = await people["ann"].pause("pay 5")
    wrong = await people["ann"]("POST", f"/api/interrupts/{one}/restart", {"replaceInput": {"amount": "much"}})
    assert code_of(wrong) == (422, "invalid-input")
    assert wrong.json()["errors"][0]["path"].endswith("amount")
    right = await people["ann"]("POST", f"/api/interrupts/{one}/restart", {"replaceInput": {"amount": 4}})
    assert right.status_code == 202
    assert right.json()["decision"]["input"] == {"amount": 4}
    await until(lambda: office.log == [("paid", 4)])


@pytest.mark.parametrize(
    "output", [None, False, 0, "", [], {}], ids=["null", "false", "zero", "text", "list", "object"]
)
async def test_falsy_values_are_answers(people: People, output: Any) -> None:
    one = await people["ann"].pause("pay 5")
    reply = await people["ann"]("POST", f"/api/interrupts/{one}/respond", content=_json(output), headers=JSON)
    assert reply.status_code == 202
    assert reply.json()["decision"]["output"] == output


JSON = {"content-type": "application/json"}


def _json(output: Any) -> bytes:
    return httpx.Request("POST", "http://x", json={"output": output}).content


async def test_a_wrong_response_names_its_fields_and_leaves_the_pause(people: People) -> None:
    one = await people["ann"].pause("ask why")
    reply = await people["ann"]("POST", f"/api/interrupts/{one}/respond", {"output": {"ok": "perhaps"}})
    assert code_of(reply) == (422, "invalid-response")
    assert reply.json()["errors"]
    assert (await people["ann"].get(f"/api/interrupts/{one}"))["status"] == "open"


async def test_a_decision_that_the_tool_does_not_take_is_refused(people: People) -> None:
    one = await people["ann"].pause("ask why")
    assert code_of(await people["ann"]("POST", f"/api/interrupts/{one}/restart")) == (422, "verb-not-allowed")


async def test_a_second_different_decision_gets_the_accepted_one(people: People) -> None:
    one = await people["ann"].pause()
    first = (await people["ann"]("POST", f"/api/interrupts/{one}/decline", {"reason": "no"})).json()
    second = await people["wide"]("POST", f"/api/interrupts/{one}/restart")
    assert code_of(second) == (409, "already-resolved")
    accepted = second.json()["decision"]
    assert (accepted["id"], accepted["verb"], accepted["by"]) == (first["decision"]["id"], "decline", "ann")
    assert accepted["at"] == first["decision"]["at"]


async def test_the_same_decision_under_the_same_key_is_accepted_again(people: People, office: Office) -> None:
    one = await people["ann"].pause()
    key = {"Idempotency-Key": "k-1"}
    first = await people["ann"]("POST", f"/api/interrupts/{one}/restart", headers=key)
    again = await people["ann"]("POST", f"/api/interrupts/{one}/restart", headers=key)
    assert (first.status_code, again.status_code) == (202, 202)
    assert (first.json()["repeated"], again.json()["repeated"]) == (False, True)
    assert first.json()["decision"] == again.json()["decision"]
    other = await people["ann"]("POST", f"/api/interrupts/{one}/decline", headers=key)
    assert code_of(other) == (409, "already-resolved")
    stranger = await people["wide"]("POST", f"/api/interrupts/{one}/restart", headers=key)
    assert code_of(stranger) == (409, "already-resolved")
    await until(lambda: office.log == [("paid", 5)])


async def test_if_match_lets_only_what_was_shown_be_decided(people: People) -> None:
    one = await people["ann"].pause()
    stale = await people["ann"]("POST", f"/api/interrupts/{one}/restart", headers={"If-Match": '"other"'})
    assert code_of(stale) == (412, "version-changed")
    shown = await people["ann"]("GET", f"/api/interrupts/{one}")
    assert stale.json()["version"] == shown.json()["version"]
    nonsense = await people["ann"]("POST", f"/api/interrupts/{one}/restart", headers={"If-Match": "bare"})
    assert nonsense.status_code == 422
    good = await people["ann"]("POST", f"/api/interrupts/{one}/restart", headers={"If-Match": shown.headers["etag"]})
    assert good.status_code == 202


async def test_unknown_and_foreign_interrupts_have_codes_of_their_own(people: People) -> None:
    unknown = await people["ann"]("POST", "/api/interrupts/i_never/decline")
    assert code_of(unknown) == (404, "interrupt-unknown")
    one, other = await people["ann"].say("pay 1"), await people["ann"].say("pay 2")
    body = {"sessionId": one["sessionId"], "decline": [{"interrupt": other["interrupts"][0]["id"]}]}
    assert code_of(await people["ann"]("POST", "/api/agents/clerk/resume", body)) == (409, "interrupt-foreign")


async def test_a_cancelled_interrupt_is_stale(people: People) -> None:
    run = await people["ann"].say("pay 1")
    ended = await people["ann"]("POST", f"/api/sessions/{run['sessionId']}/abort")
    assert ended.json() == {"aborted": True}
    late = await people["ann"]("POST", f"/api/interrupts/{run['interrupts'][0]['id']}/restart")
    assert code_of(late) == (409, "interrupt-stale")


async def test_an_expired_interrupt_says_so() -> None:
    clock = FakeClock()
    office = Office(clock=clock)

    @office.ai.tool()
    async def soon() -> str:
        from adjourn import Interrupt

        raise Interrupt({"soon": True}, expires_in=60)

    from adjourn.testing import ScriptedModel, call

    office.ai.define_agent("hasty", store=office.store, model=ScriptedModel([call("soon"), "so be it"]), tools=[soon])
    async with at(app_of(office)) as people:
        one = await people["ann"].pause("go", "hasty")
        shown = await people["ann"].get(f"/api/interrupts/{one}")
        assert shown["expiresAt"] is not None
        clock.time += 61
        late = await people["ann"]("POST", f"/api/interrupts/{one}/decline")
        assert code_of(late) == (410, "interrupt-expired")
        history = await people["ann"].get(f"/api/interrupts/{one}/history")
        assert [(d["verb"], d["by"]) for d in history["items"]] == [("expire", None)]


async def test_the_audit_has_who_when_from_where_and_what_was_shown(people: People) -> None:
    one = await people["ann"].pause()
    await people["ann"]("POST", f"/api/interrupts/{one}/decline", {"reason": "too much"})
    (row,) = (await people["ann"].get(f"/api/interrupts/{one}/history"))["items"]
    shown = await people["ann"].get(f"/api/interrupts/{one}")
    assert (row["verb"], row["by"], row["address"], row["reason"]) == ("decline", "ann", "127.0.0.1", "too much")
    assert row["inputDigest"] == shown["inputDigest"] != ""


async def test_many_of_one_tool_are_decided_at_once(people: People, office: Office) -> None:
    ids = [await people["ann"].pause(f"ship {n}", "depot") for n in range(3)]
    await people["ann"]("POST", f"/api/interrupts/{ids[1]}/decline")
    body = {"tool": "ship", "verb": "restart", "items": [{"id": i} for i in ids]}
    reply = await people["ann"]("POST", "/api/interrupts/bulk", body)
    assert reply.status_code == 200
    done = reply.json()
    assert (done["accepted"], done["refused"]) == (2, 1)
    assert done["items"][1]["problem"]["code"] == "already-resolved"
    await until(lambda: sorted(office.log) == [("shipped", 0), ("shipped", 2)])


async def test_a_bulk_with_another_tool_in_it_decides_nothing(people: People, office: Office) -> None:
    one, other = await people["ann"].pause("pay 1"), await people["ann"].pause("ship 1")
    body = {"tool": "pay", "verb": "restart", "items": [{"id": one}, {"id": other}]}
    assert code_of(await people["ann"]("POST", "/api/interrupts/bulk", body)) == (422, "invalid-request")
    assert (await people["ann"].get(f"/api/interrupts/{one}"))["status"] == "open"
    twice = {"tool": "pay", "verb": "restart", "items": [{"id": one}, {"id": one}]}
    assert code_of(await people["ann"]("POST", "/api/interrupts/bulk", twice)) == (422, "invalid-request")


async def test_a_misspelt_field_is_an_error(people: People) -> None:
    one = await people["ann"].pause()
    reply = await people["ann"]("POST", f"/api/interrupts/{one}/restart", {"replace_input": {"amount": 1}})
    assert code_of(reply) == (422, "invalid-request")
    assert "replace_input" in reply.text


def test_of_many_at_once_one_decision_wins_over_real_http(store: Store) -> None:
    office = Office(store)

    async def race(url: str) -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            run = await http.post("/api/agents/clerk/send", json={"message": "pay 5"}, headers=bearer("wide"))
            one = run.json()["interrupts"][0]["id"]

            async def decide(n: int) -> int:
                verb, who = ("restart", "wide") if n % 2 else ("decline", "root")
                reply = await http.post(f"/api/interrupts/{one}/{verb}", headers=bearer(who))
                return reply.status_code

            found = await asyncio.gather(*[decide(n) for n in range(24)])
            history = (await http.get(f"/api/interrupts/{one}/history", headers=bearer("root"))).json()
            assert len(history["items"]) == 1
            return found

    with served(app_of(office)) as url:
        found = asyncio.run(race(url))
    assert sorted(set(found)) == [202, 409]
    assert found.count(202) == 1


def test_one_key_sent_many_times_at_once_counts_once_over_real_http(store: Store) -> None:
    office = Office(store)

    async def race(url: str) -> list[tuple[int, Any]]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            run = await http.post("/api/agents/clerk/send", json={"message": "pay 5"}, headers=bearer("wide"))
            one = run.json()["interrupts"][0]["id"]

            async def decide() -> tuple[int, Any]:
                headers = {**bearer("wide"), "Idempotency-Key": "once"}
                reply = await http.post(f"/api/interrupts/{one}/restart", headers=headers)
                return reply.status_code, reply.json()

            return await asyncio.gather(*[decide() for _ in range(24)])

    with served(app_of(office)) as url:
        found = asyncio.run(race(url))
    assert {status for status, _ in found} == {202}
    assert len({body["decision"]["id"] for _, body in found}) == 1
    assert sum(not body["repeated"] for _, body in found) == 1
    assert office.log.count(("paid", 5)) <= 1
