"""Agents over HTTP: to say something, to decide on several pauses at once, and to be told what happens as it happens."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from adjourn import ModelError
from adjourn.testing import ScriptedModel
from server.server_kit import Office, People, app_of, at, until


def code_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["code"]


async def test_agents_are_listed_with_their_tools(people: People) -> None:
    agents = (await people["ann"].get("/api/agents"))["items"]
    assert [(a["name"], a["stored"]) for a in agents] == [("clerk", True), ("depot", True), ("loose", False)]
    pay = next(t for t in agents[0]["tools"] if t["name"] == "pay")
    assert pay["description"] == "Pays, once somebody said so."
    assert pay["inputSchema"]["properties"] == {"amount": {"type": "integer"}}
    assert (await people["ann"].get("/api/agents/clerk")) == agents[0]


async def test_a_turn_is_answered_with_what_it_came_to(people: People) -> None:
    run = await people["ann"].say("hello")
    assert (run["finishReason"], run["text"]) == ("stop", "you said hello")
    again = await people["ann"].say("more", sessionId=run["sessionId"])
    assert again["sessionId"] == run["sessionId"]
    session = await people["ann"].get(f"/api/sessions/{run['sessionId']}")
    assert [m["role"] for m in session["messages"]] == ["user", "model", "user", "model"]
    assert session["session"]["owner"] == "ann"


async def test_a_message_may_have_parts(people: People) -> None:
    message = {"role": "user", "content": [{"text": "hello "}, {"text": "there"}]}
    assert (await people["ann"]("POST", "/api/agents/clerk/send", {"message": message})).json()["text"] == (
        "you said hello there"
    )


async def test_a_paused_turn_has_its_interrupts(people: People) -> None:
    run = await people["ann"].say("pay 5 and ask why")
    assert run["finishReason"] == "interrupted"
    assert [(i["tool"], i["allow"]) for i in run["interrupts"]] == [
        ("pay", ["respond", "restart", "decline"]),
        ("ask", ["respond", "decline"]),
    ]
    busy = await people["ann"]("POST", "/api/agents/clerk/send", {"message": "x", "sessionId": run["sessionId"]})
    assert code_of(busy) == (409, "session-paused")
    assert busy.json()["interrupts"] == [i["id"] for i in run["interrupts"]]


async def test_several_decisions_at_once_all_count(people: People, office: Office) -> None:
    run = await people["ann"].say("pay 5 and ask why and pay 6")
    pay, ask, other = [i["id"] for i in run["interrupts"]]
    body = {
        "sessionId": run["sessionId"],
        "restart": [{"interrupt": pay, "metadata": {"by": "phone"}}],
        "respond": [{"interrupt": ask, "output": {"ok": True}}],
        "decline": [{"interrupt": other, "reason": "once is enough"}],
    }
    reply = await people["ann"]("POST", "/api/agents/clerk/resume", body)
    assert (reply.status_code, reply.json()["text"]) == (200, "done")
    assert office.log == [("paid", 5)]
    for interrupt, verb in ((pay, "restart"), (ask, "respond"), (other, "decline")):
        (row,) = (await people["ann"].get(f"/api/interrupts/{interrupt}/history"))["items"]
        assert (row["verb"], row["by"], row["address"]) == (verb, "ann", "127.0.0.1")


async def test_of_several_decisions_one_that_is_wrong_keeps_all_from_counting(people: People, office: Office) -> None:
    run = await people["ann"].say("pay 5 and ask why")
    pay, ask = [i["id"] for i in run["interrupts"]]
    body = {
        "sessionId": run["sessionId"],
        "restart": [{"interrupt": pay}],
        "respond": [{"interrupt": ask, "output": {"ok": "perhaps"}}],
    }
    assert code_of(await people["ann"]("POST", "/api/agents/clerk/resume", body)) == (422, "invalid-response")
    assert office.log == []
    assert len((await people["ann"].get("/api/interrupts"))["items"]) == 2
    empty = {"sessionId": run["sessionId"]}
    assert code_of(await people["ann"]("POST", "/api/agents/clerk/resume", empty)) == (422, "empty-resume")
    nowhere = {"decline": [{"interrupt": pay}]}
    assert code_of(await people["ann"]("POST", "/api/agents/clerk/resume", nowhere)) == (422, "invalid-request")


async def test_what_was_decided_before_keeps_a_resume_from_counting(people: People) -> None:
    run = await people["ann"].say("pay 5 and pay 6")
    first, second = [i["id"] for i in run["interrupts"]]
    await people["ann"]("POST", f"/api/interrupts/{first}/decline")
    body = {"sessionId": run["sessionId"], "decline": [{"interrupt": first}, {"interrupt": second}]}
    refused = await people["ann"]("POST", "/api/agents/clerk/resume", body)
    assert code_of(refused) == (409, "already-resolved")
    assert refused.json()["decision"]["by"] == "ann"


async def test_who_does_not_wait_is_answered_at_once(people: People, office: Office) -> None:
    reply = await people["ann"]("POST", "/api/agents/clerk/send?wait=0", {"message": "wait"})
    run = reply.json()
    assert (reply.status_code, run["finishReason"]) == (202, "running")
    assert reply.headers["location"] == f"/api/sessions/{run['sessionId']}"
    await asyncio.wait_for(office.waiting.wait(), 10)
    session = await people["ann"].get(f"/api/sessions/{run['sessionId']}")
    assert (session["session"]["running"], session["status"]) == (True, "pending")
    busy = await people["ann"]("POST", "/api/agents/clerk/send", {"message": "x", "sessionId": run["sessionId"]})
    assert code_of(busy)[0] == 409
    office.gate.set()

    async def rests() -> bool:
        found = await people["ann"].get(f"/api/sessions/{run['sessionId']}")
        return bool(found["finishReason"] == "stop")

    await until(rests)


async def test_a_turn_that_takes_longer_than_one_waits_goes_on(people: People, office: Office) -> None:
    reply = await people["ann"]("POST", "/api/agents/clerk/send?wait=0.05", {"message": "wait"})
    assert (reply.status_code, reply.json()["finishReason"]) == (202, "running")
    office.gate.set()

    async def rests() -> bool:
        found = await people["ann"].get(f"/api/sessions/{reply.json()['sessionId']}")
        return bool(found["finishReason"] == "stop")

    await until(rests)


async def test_a_resume_that_is_not_waited_for_is_stored_when_it_is_answered(people: People, office: Office) -> None:
    run = await people["ann"].say("pay 5 and pay 6")
    ids = [i["id"] for i in run["interrupts"]]
    body = {"sessionId": run["sessionId"], "restart": [{"interrupt": i} for i in ids]}
    reply = await people["ann"]("POST", "/api/agents/clerk/resume?wait=0", body)
    assert reply.status_code in (200, 202)
    assert [len((await people["ann"].get(f"/api/interrupts/{i}/history"))["items"]) for i in ids] == [1, 1]
    again = await people["ann"]("POST", "/api/agents/clerk/resume?wait=0", body)
    assert again.status_code == 409
    await until(lambda: sorted(office.log) == [("paid", 5), ("paid", 6)])


async def test_a_message_that_is_queued_behind_a_pause_is_answered_at_once(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjourn.server.api_agents.STORED_WITHIN", 0.05)
    office.ai.define_agent("patient", store=office.store, on_message_while_paused="queue")
    async with at(app_of(office)) as people:
        run = await people["ann"].say("pay 5", "patient")
        body = {"message": "and hello", "sessionId": run["sessionId"]}
        queued = await people["ann"]("POST", "/api/agents/patient/send?wait=0", body)
        assert (queued.status_code, queued.json()["finishReason"]) == (202, "running")
        await people["ann"]("POST", f"/api/interrupts/{run['interrupts'][0]['id']}/decline")

        async def said() -> bool:
            shown = await people["ann"].get(f"/api/sessions/{run['sessionId']}")
            return "you said and hello" in json.dumps(shown["messages"])

        await until(said)


# -- streaming -------------------------------------------------------------------------------------------------------


async def told(people: People, path: str, body: Any) -> list[tuple[str, Any]]:
    reply = await people["ann"]("POST", path, body, headers={"accept": "text/event-stream"})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    events: list[tuple[str, Any]] = []
    for block in reply.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if lines:
            events.append((lines["event"], json.loads(lines["data"])))
    return events


async def test_a_turn_is_told_as_it_happens() -> None:
    office = Office()
    model = ScriptedModel(["one two"], chunks=[["one ", "two"]])
    office.ai.define_agent("talker", store=office.store, model=model, tools=[])
    async with at(app_of(office)) as people:
        events = await told(people, "/api/agents/talker/send", {"message": "go"})
    texts = [e["message"]["content"][0]["text"] for name, e in events if name == "chunk" and "message" in e]
    assert texts == ["one ", "two"]
    assert events[-2] == ("chunk", {"turnEnd": {"finishReason": "stop", "snapshotId": events[-1][1]["snapshotId"]}})
    assert (events[-1][0], events[-1][1]["text"]) == ("result", "one two")


async def test_a_pause_is_told_before_the_result_and_answered_through_another_stream(
    people: People, office: Office
) -> None:
    events = await told(people, "/api/agents/clerk/send", {"message": "pay 5"})
    (paused,) = [e["interrupt"] for _, e in events if "interrupt" in e]
    result = events[-1][1]
    assert (result["finishReason"], result["interrupts"]) == ("interrupted", [paused])
    body = {"sessionId": result["sessionId"], "restart": [{"interrupt": paused["id"]}]}
    rest = await told(people, "/api/agents/clerk/resume", body)
    assert rest[-1][1]["text"] == "done"
    assert office.log == [("paid", 5)]


async def test_what_refuses_a_turn_is_told_as_a_problem(people: People) -> None:
    run = await people["ann"].say("pay 5")
    body = {"message": "x", "sessionId": run["sessionId"]}
    events = await told(people, "/api/agents/clerk/send", body)
    assert (events[-1][0], events[-1][1]["code"]) == ("problem", "session-paused")


async def test_a_stream_without_news_shows_that_it_lives(office: Office) -> None:
    async with at(app_of(office, sse_ping_seconds=0.02)) as people:

        async def release() -> None:
            await office.waiting.wait()
            await asyncio.sleep(0.1)  # longer than the stream is silent
            office.gate.set()

        task = asyncio.ensure_future(release())
        reply = await people["ann"](
            "POST", "/api/agents/clerk/send", {"message": "wait"}, headers={"accept": "text/event-stream"}
        )
        await task
    assert ": still running\n\n" in reply.text
    assert '"finishReason":"stop"' in reply.text


# -- failures --------------------------------------------------------------------------------------------------------


async def test_a_turn_that_fails_is_an_outcome_with_an_error_and_can_be_retried() -> None:
    office = Office()
    model = ScriptedModel([ModelError("the provider is away", retryable=False), "here again"])
    office.ai.define_agent("frail", store=office.store, model=model, tools=[])
    async with at(app_of(office)) as people:
        run = await people["ann"].say("go", "frail")
        assert (run["finishReason"], run["error"]["status"]) == ("failed", "UNAVAILABLE")
        retried = await people["ann"]("POST", f"/api/sessions/{run['sessionId']}/retry")
        assert (retried.status_code, retried.json()["text"]) == (200, "here again")
        again = await people["ann"]("POST", f"/api/sessions/{run['sessionId']}/retry")
        assert code_of(again) == (409, "nothing-paused")


async def test_a_limit_that_was_reached_takes_new_limits_to_go_on() -> None:
    from adjourn import Limits
    from adjourn.testing import call

    office = Office()

    @office.ai.tool()
    async def look() -> str:
        return "seen"

    model = ScriptedModel([call("look"), call("look"), "enough"])
    office.ai.define_agent("curious", store=office.store, model=model, tools=[look], limits=Limits(model_calls=2))
    async with at(app_of(office)) as people:
        run = await people["ann"].say("go", "curious")
        assert (run["finishReason"], run["limit"]) == ("failed", "model_calls")
        bare = await people["ann"]("POST", f"/api/sessions/{run['sessionId']}/retry")
        assert code_of(bare) == (409, "session-refused")
        more = {"limits": {"modelCalls": 5}}
        retried = await people["ann"]("POST", f"/api/sessions/{run['sessionId']}/retry", more)
        assert retried.json()["text"] == "enough"


# -- agents that keep nothing ----------------------------------------------------------------------------------------


async def test_an_agent_that_keeps_nothing_is_sent_the_state_of_its_last_reply(people: People, office: Office) -> None:
    run = await people["ann"].say("pay 5", "loose")
    assert run["finishReason"] == "interrupted"
    body = {"state": run["state"], "restart": [{"interrupt": run["interrupts"][0]["id"]}]}
    rest = await people["ann"]("POST", "/api/agents/loose/resume", body)
    assert (rest.status_code, rest.json()["text"]) == (200, "done")
    assert office.log == [("paid", 5)]
    more = await people["ann"].say("hello", "loose", state=rest.json()["state"])
    assert more["text"] == "you said hello"
    assert len(more["state"]["messages"]) == 6
    by_id = await people["ann"]("POST", "/api/agents/loose/send", {"message": "x", "sessionId": run["sessionId"]})
    assert code_of(by_id) == (409, "session-refused")
    stored = await people["ann"]("POST", "/api/agents/clerk/send", {"message": "x", "state": run["state"]})
    assert code_of(stored) == (409, "session-refused")


async def test_a_state_that_was_altered_is_refused_where_the_application_signs_it() -> None:
    office = Office(secret="s" * 32)
    async with at(app_of(office)) as people:
        state = (await people["ann"].say("pay 5", "loose"))["state"]
        forged = json.loads(json.dumps(state).replace('"amount": 5', '"amount": 500'))
        assert forged != state
        reply = await people["ann"]("POST", "/api/agents/loose/send", {"message": "x", "state": forged})
        assert code_of(reply) == (422, "invalid-state")


class Count(BaseModel):
    n: int = 0


class Answer(BaseModel):
    value: int


async def test_a_typed_state_and_output_are_plain_json_in_the_reply() -> None:
    office = Office()
    model = ScriptedModel(['{"value": 7}'])
    office.ai.define_agent("typed", store=office.store, model=model, tools=[], state=Count, output=Answer)
    async with at(app_of(office)) as people:
        run = await people["ann"].say("go", "typed")
    assert run["output"] == {"value": 7}


async def test_what_a_tool_is_told_of_the_caller(office: Office) -> None:
    seen: list[Any] = []

    from adjourn import ToolRunContext
    from adjourn.testing import call

    @office.ai.tool()
    async def who(ctx: ToolRunContext) -> str:
        seen.append(ctx.context)
        return "ok"

    office.ai.define_agent("nosy", store=office.store, model=ScriptedModel([call("who"), "ok"]), tools=[who])
    async with at(app_of(office)) as people:
        await people["ann"].say("go", "nosy")
    assert seen == [{"principal": "ann", "role": "decide"}]


@pytest.mark.parametrize("where", ["sessionId", "snapshotId"])
async def test_a_session_of_one_agent_is_not_another_agents(people: People, where: str) -> None:
    run = await people["ann"].say("hello")
    body = {"message": "x", where: run[where]}
    assert code_of(await people["ann"]("POST", "/api/agents/depot/send", body)) == (404, "session-unknown")
    assert (await people["ann"]("POST", "/api/agents/clerk/send", body)).status_code == 200
