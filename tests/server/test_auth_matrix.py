"""Every role at every route, for one's own and for somebody else's: who gets in, who is told no, and what is not there."""

import asyncio
import re
from typing import Any, NamedTuple

import msgspec
import pytest

from adjourn.server import Server
from adjourn.server.api_openapi import described
from adjourn.server.live import running
from adjourn.server.live_feed import Hub, Reader
from server.server_kit import PEOPLE, Office, People, app_of, at, token, words

EVERYBODY = (None, "vera", "looker", "ann", "ben", "wide", "root")
SEES_ANNS = {"looker", "ann", "wide", "root"}
"""Who sees the work of ann: herself, and those whose scope says so."""
RANK = {"vera": 0, "looker": 0, "ann": 1, "ben": 1, "wide": 1, "root": 2}
VIEW, DECIDE, ADMIN = 0, 1, 2


class Case(NamedTuple):
    """A route, with what stands in for the parts of its path. `needs` is the least role."""

    method: str
    path: str
    needs: int
    good: int
    body: Any = None
    say: str = "pay 5"


OF_AN_INTERRUPT = [
    Case("GET", "/api/interrupts/{i}", VIEW, 200),
    Case("GET", "/api/interrupts/{i}/history", VIEW, 200),
    Case("POST", "/api/interrupts/{i}/respond", DECIDE, 202, {"output": 1}),
    Case("POST", "/api/interrupts/{i}/restart", DECIDE, 202, {}),
    Case("POST", "/api/interrupts/{i}/decline", DECIDE, 202, {"reason": "no"}),
    Case("POST", "/api/interrupts/bulk", DECIDE, 200, {"tool": "pay", "verb": "decline", "items": [{"id": "{i}"}]}),
    Case("POST", "/api/interrupts/{i}/links", ADMIN, 201, {"by": "cleo"}),
    Case("POST", "/api/agents/clerk/resume", DECIDE, 200, {"sessionId": "{s}", "decline": [{"interrupt": "{i}"}]}),
    Case("GET", "/inbox/{i}", VIEW, 200),
]
OF_A_SESSION = [
    Case("GET", "/api/sessions/{s}", VIEW, 200),
    Case("GET", "/api/sessions/{s}/timeline", VIEW, 200),
    Case("GET", "/api/sessions/{s}/export", VIEW, 200),
    Case("POST", "/api/sessions/{s}/fork", DECIDE, 201),
    Case("POST", "/api/sessions/{s}/abort", DECIDE, 200),
    Case("POST", "/api/sessions/{s}/retry", DECIDE, 200, say="fail"),
    Case("POST", "/api/agents/clerk/send", DECIDE, 200, {"sessionId": "{s}", "message": "hello"}, say="hello"),
    Case("HEAD", "/api/sessions/{s}/events", VIEW, 200),
    Case("GET", "/sessions/{s}", VIEW, 200),
    Case("DELETE", "/api/sessions/{s}?force=true", ADMIN, 204),
]
OF_NOBODY = {
    "ListInterrupts": "test_lists_hold_what_one_may_see_and_nothing_else",
    "ListSessions": "test_lists_hold_what_one_may_see_and_nothing_else",
    "ExportSessions": "test_an_export_holds_what_one_may_see",
    "InboxEvents": "test_live_events_are_of_what_one_may_see",
    "ListAgents": "test_agents_are_there_for_those_whose_scope_has_them",
    "ShowAgent": "test_agents_are_there_for_those_whose_scope_has_them",
    "Metrics": "test_the_metrics_take_somebody_who_sees_everything",
    "Me": "test_everybody_is_told_who_they_are_and_may_sign_in_and_out",
    "SignIn": "test_everybody_is_told_who_they_are_and_may_sign_in_and_out",
    "SignOut": "test_everybody_is_told_who_they_are_and_may_sign_in_and_out",
    "Health": "test_every_role_may_ask_how_the_server_is",
    "Ready": "test_every_role_may_ask_how_the_server_is",
    "ShowLink": "test_a_link_is_good_for_whoever_has_it_whatever_their_role",
    "DecideLink": "test_a_link_is_good_for_whoever_has_it_whatever_their_role",
}
"""What is of no one interrupt or session, and the test that has every role at it."""


def filled(value: Any, interrupt: str, session: str) -> Any:
    if isinstance(value, str):
        return value.replace("{i}", interrupt).replace("{s}", session)
    given = msgspec.json.encode(value).decode()
    return msgspec.json.decode(given.replace("{i}", interrupt).replace("{s}", session))


def named(case: Case) -> str:
    return f"{case.method} {case.path}"


@pytest.mark.parametrize("case", [*OF_AN_INTERRUPT, *OF_A_SESSION], ids=named)
async def test_who_may_what_with_the_work_of_ann(people: People, case: Case) -> None:
    for name in EVERYBODY:
        run = await people["ann"].say(case.say)
        interrupt = run["interrupts"][0]["id"] if run["interrupts"] else ""
        body = filled(case.body, interrupt, run["sessionId"])
        reply = await people[name](case.method, filled(case.path, interrupt, run["sessionId"]), body)
        if name is None:
            expected = 401 if case.path.startswith("/api/") else 303  # a page sends people to sign in
        elif RANK[name] < case.needs:
            expected = 403
        elif name not in SEES_ANNS:
            expected = 404
        else:
            expected = case.good
        assert reply.status_code == expected, (name, reply.status_code, reply.text)
        if expected in (401, 403, 404):
            untouched = await people["root"].get(f"/api/sessions/{run['sessionId']}")
            assert untouched["session"]["snapshotId"] == run["snapshotId"]
            assert len(untouched["interrupts"]) == len(run["interrupts"])


@pytest.mark.parametrize("case", [*OF_AN_INTERRUPT, *OF_A_SESSION], ids=named)
async def test_what_is_not_yours_answers_exactly_as_what_never_was(people: People, case: Case) -> None:
    run = await people["ann"].say(case.say)
    theirs = (run["interrupts"][0]["id"] if run["interrupts"] else "i_" + "0" * 32, run["sessionId"])
    never = ("i_" + "1" * 32, "s_" + "1" * 32)
    seen: list[Any] = []
    for interrupt, session in (theirs, never):
        body = filled(case.body, interrupt, session)
        reply = await people["ben"](case.method, filled(case.path, interrupt, session), body)
        text = re.sub('data-now="[^"]*"', "", reply.text).replace(interrupt, "{i}").replace(session, "{s}")
        headers = {k: v for k, v in reply.headers.items() if k != "content-length"}
        seen.append((reply.status_code, text, headers))
    assert seen[0] == seen[1]
    assert seen[0][0] in (403, 404)


@pytest.mark.parametrize("path", ["/api/interrupts", "/api/sessions"])
async def test_lists_hold_what_one_may_see_and_nothing_else(people: People, path: str) -> None:
    await people["ann"].pause("pay 1")
    await people["ben"].pause("pay 2")
    seen: list[tuple[str, set[str]]] = [
        ("vera", set()),
        ("looker", {"ann", "ben"}),
        ("ann", {"ann"}),
        ("root", {"ann", "ben"}),
    ]
    for name, owners in seen:
        found = await people[name].get(path)
        assert {i["owner"] for i in found["items"]} == owners, name
        for other in ("ann", "ben"):
            asked = await people[name].get(path, params={"owner": other})
            assert {i["owner"] for i in asked["items"]} == owners & {other}
    assert (await people["vera"].get("/api/interrupts", params={"count": "true"}))["count"] == 0


async def test_an_export_holds_what_one_may_see(people: People) -> None:
    mine = (await people["ann"].say("pay 1"))["sessionId"]
    theirs = (await people["ben"].say("pay 2"))["sessionId"]
    text = (await people["ann"]("GET", "/api/export")).text
    assert mine in text
    assert theirs not in text
    whole = (await people["root"]("GET", "/api/export")).text
    assert mine in whole
    assert theirs in whole


async def test_a_session_id_that_never_was_begins_no_session(people: People) -> None:
    # Otherwise one could tell which ids are taken.
    reply = await people["ben"]("POST", "/api/agents/clerk/send", {"message": "hello", "sessionId": "s_mine"})
    assert reply.status_code == 404


async def test_only_an_admin_begins_a_session_for_somebody_else(people: People) -> None:
    body = {"message": "pay 5", "owner": "ann"}
    assert (await people["ben"]("POST", "/api/agents/clerk/send", body)).status_code == 403
    run = (await people["root"]("POST", "/api/agents/clerk/send", body)).json()
    assert (await people["ann"].get(f"/api/sessions/{run['sessionId']}"))["session"]["owner"] == "ann"


def test_every_operation_of_the_description_is_in_this_matrix(shared_app: Server) -> None:
    known = {
        (
            re.sub(r"\{(?:i|s)\}|clerk", "{}", case.path.split("?")[0]),
            "get" if case.method == "HEAD" else case.method.lower(),
        )
        for case in [*OF_AN_INTERRUPT, *OF_A_SESSION]
    }
    for path, item in described(shared_app, "")["paths"].items():
        for method, operation in item.items():
            name = operation["operationId"]
            in_cases = (re.sub(r"\{[^}]*\}", "{}", path), method) in known
            assert in_cases is not (name in OF_NOBODY), (method, path)
            assert in_cases or callable(globals().get(OF_NOBODY[name])), (name, OF_NOBODY[name])


async def test_agents_are_there_for_those_whose_scope_has_them(office: Office) -> None:
    people_of = [*PEOPLE, token("narrow", "decide", agents=("clerk",)), token("none", "view", agents=())]
    async with at(app_of(office, people=people_of)) as people:
        assert (await people[None]("GET", "/api/agents")).status_code == 401
        for name in (*[n for n in EVERYBODY if n], "narrow", "none"):
            seen = {"narrow": {"clerk"}, "none": set[str]()}.get(name, {"clerk", "depot", "loose"})
            assert {a["name"] for a in (await people[name].get("/api/agents"))["items"]} == seen
            for agent in ("clerk", "depot", "loose", "nobody"):
                reply = await people[name]("GET", f"/api/agents/{agent}")
                assert reply.status_code == (200 if agent in seen else 404)
        for path in ("/api/agents/depot/send", "/genkit/depot"):
            reply = await people["narrow"]("POST", path, {"message": "hello"})
            assert reply.status_code == 404, path


async def test_a_first_message_takes_the_role_and_belongs_to_whoever_said_it(people: People) -> None:
    for name in EVERYBODY:
        for agent in ("clerk", "loose"):
            for path in (f"/api/agents/{agent}/send", f"/genkit/{agent}"):
                reply = await people[name]("POST", path, {"message": "hello"})
                expected = 401 if name is None else 403 if RANK[name] < DECIDE else 200
                assert reply.status_code == expected, (name, path, reply.text)
    owners = [s["owner"] for s in (await people["root"].get("/api/sessions"))["items"]]
    assert sorted(owners) == sorted([n for n in EVERYBODY if n and RANK[n] >= DECIDE] * 2)


WIRE = [
    ("/genkit/clerk", DECIDE, {"data": {"message": "more"}, "init": {"sessionId": "{s}"}}),
    ("/genkit/clerk", DECIDE, {"data": {"message": "more"}, "init": {"snapshotId": "{n}"}}),
    ("/genkit/clerk/getSnapshot", VIEW, {"data": {"snapshotId": "{n}"}}),
    ("/genkit/clerk/getSnapshot", VIEW, {"data": {"sessionId": "{s}"}}),
    ("/genkit/clerk/abort", DECIDE, {"data": {"snapshotId": "{n}"}}),
]


@pytest.mark.parametrize("path, needs, body", WIRE, ids=lambda v: v if isinstance(v, str) else "")
async def test_who_may_what_with_the_work_of_ann_on_genkits_wire(
    people: People, path: str, needs: int, body: Any
) -> None:
    never = ("s_" + "1" * 32, "n_" + "1" * 32)
    for name in EVERYBODY:
        run = await people["ann"].say("hello")
        ids = (run["sessionId"], run["snapshotId"])

        async def asked(session: str, snapshot: str, name: str | None = name) -> tuple[int, str]:
            given = msgspec.json.encode(body).decode().replace("{s}", session).replace("{n}", snapshot)
            reply = await people[name]("POST", path, msgspec.json.decode(given))
            return reply.status_code, reply.text.replace(session, "{s}").replace(snapshot, "{n}")

        status, text = await asked(*ids)
        if name is None or RANK[name] < needs:
            assert status == (401 if name is None else 403), (name, text)
        elif name in SEES_ANNS:
            assert status == 200, (name, text)
            assert "{s}" in text or "{n}" in text, (name, text)
        elif "message" not in body["data"] or "snapshotId" in body["init"]:
            assert (status, text) == await asked(*never), name
        else:  # a client may choose the id of a new session, and this one is taken
            assert status == 404, (name, text)
        unchanged = await people["root"].get(f"/api/sessions/{run['sessionId']}")
        may = name is not None and RANK[name] >= needs and name in SEES_ANNS and needs == DECIDE
        assert may or unchanged["session"]["snapshotId"] == run["snapshotId"], name


async def test_live_events_are_of_what_one_may_see(people: People, shared_app: Server) -> None:
    tokens = {t.name: t.principal() for t in PEOPLE}
    async with running(shared_app):
        hub: Hub = shared_app.state.live
        before = await people["root"].pause()  # there is a feed to begin from
        await hub.begun()
        start = await shared_app.state.desk.ai.inbox.latest_position()
        mine, theirs = await people["ann"].pause("pay 1"), await people["ben"].pause("pay 2")
        for name, principal in tokens.items():
            reader, text = Reader(hub, principal, start), b""
            async with asyncio.timeout(20):
                while reader.position != await shared_app.state.desk.ai.inbox.latest_position():
                    text += await reader.next(0.05) or b""
            assert (mine.encode() in text) is (name in SEES_ANNS), name
            assert (theirs.encode() in text) is (name in {"ben", "wide", "looker", "root"}), name
            assert before.encode() not in text
    for name in EVERYBODY:
        assert (await people[name]("HEAD", "/api/events")).status_code == (401 if name is None else 200)


async def test_everybody_is_told_who_they_are_and_may_sign_in_and_out(people: People) -> None:
    assert (await people[None]("GET", "/api/me")).status_code == 401
    assert (await people[None]("DELETE", "/api/session")).status_code == 401
    assert (await people[None]("POST", "/api/session", {"token": words("nobody")})).status_code == 401
    for name in [n for n in EVERYBODY if n]:
        me = await people[name].get("/api/me")
        assert (me["name"], me["role"]) == (name, ("view", "decide", "admin")[RANK[name]])
        assert (await people[None]("POST", "/api/session", {"token": words(name)})).status_code == 204
        mine = await people[None].get("/api/me")
        assert (mine["name"], mine["role"], mine["owners"]) == (name, me["role"], me["owners"])
        assert (await people[None]("DELETE", "/api/session")).status_code == 403  # without the CSRF token
        head = {"x-csrf-token": mine["csrfToken"]}
        assert (await people[None]("DELETE", "/api/session", headers=head)).status_code == 204
        assert (await people[None]("GET", "/api/me")).status_code == 401


async def test_every_role_may_ask_how_the_server_is(people: People) -> None:
    for name in EVERYBODY:
        for path in ("/health", "/ready"):
            assert (await people[name]("GET", path)).json() == {"status": "ok"}


async def test_a_link_is_good_for_whoever_has_it_whatever_their_role(people: People) -> None:
    for name in EVERYBODY:
        interrupt = await people["ann"].pause()
        made = await people["root"]("POST", f"/api/interrupts/{interrupt}/links", {"by": "cleo"})
        path = "/api/links/" + made.json()["url"].rpartition("/")[2]
        assert (await people[name]("GET", path)).json()["id"] == interrupt
        assert (await people[name]("POST", path, {"verb": "decline"})).status_code == 202
        assert (await people["root"].get(f"/api/interrupts/{interrupt}/history"))["items"][0]["by"] == "cleo"


async def test_the_metrics_take_somebody_who_sees_everything(people: People) -> None:
    found = {name: (await people[name]("GET", "/metrics")).status_code for name in EVERYBODY}
    assert found == {None: 401, "vera": 403, "looker": 200, "ann": 403, "ben": 403, "wide": 200, "root": 200}


PUBLIC = {
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/docs/style.css"),
    ("POST", "/api/session"),
    ("GET", "/api/links/{token}"),
    ("POST", "/api/links/{token}"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("GET", "/signin/{code}"),
    ("GET", "/link/{token}"),
    ("POST", "/link/{token}/{verb}"),
    ("GET", "/static/{name}"),
}
"""All that strangers reach. Whoever adds to it should have thought about it."""


def handlers_of(app: Server) -> list[tuple[str, str, Any]]:
    return [
        (method, route.path_format or "/", handler)
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        for method in sorted(handler.http_methods - {"OPTIONS", "HEAD"})
    ]


def test_strangers_reach_these_routes_and_no_others(shared_app: Server) -> None:
    found = {(method, path) for method, path, handler in handlers_of(shared_app) if handler.opt.get("public")}
    assert found == PUBLIC


async def test_every_other_route_asks_who_it_is(people: People, office: Office, shared_app: Server) -> None:
    asked = [(m, p) for m, p, _ in handlers_of(shared_app) if (m, p) not in PUBLIC]
    assert len(asked) > 25
    for method, path in asked:
        for accept in ("application/json", "text/html"):
            reply = await people[None](method, path, headers={"accept": accept})
            if reply.status_code == 303:  # a page sends people to sign in
                assert reply.headers["location"].startswith("/login"), (method, path)
            else:
                assert reply.status_code == 401, (method, path, reply.status_code, reply.text)
            for wrong in ("Bearer wrong", "Basic YTpi", "Bearer", "bearer  "):
                again = await people[None](method, path, headers={"authorization": wrong, "accept": accept})
                assert again.status_code in (303, 401), (method, path, wrong)
    assert office.log == []
