"""Every role at every route, for one's own and for somebody else's: who gets in, who is told no, and what is not there."""

from typing import Any, NamedTuple

import msgspec
import pytest

from adjourn.server import Server
from server.server_kit import Office, People

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
]
OF_A_SESSION = [
    Case("GET", "/api/sessions/{s}", VIEW, 200),
    Case("GET", "/api/sessions/{s}/timeline", VIEW, 200),
    Case("GET", "/api/sessions/{s}/export", VIEW, 200),
    Case("POST", "/api/sessions/{s}/fork", DECIDE, 201),
    Case("POST", "/api/sessions/{s}/abort", DECIDE, 200),
    Case("POST", "/api/sessions/{s}/retry", DECIDE, 200, say="fail"),
    Case("POST", "/api/agents/clerk/send", DECIDE, 200, {"sessionId": "{s}", "message": "hello"}, say="hello"),
    Case("DELETE", "/api/sessions/{s}?force=true", ADMIN, 204),
]


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
            expected = 401
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
        text = reply.text.replace(interrupt, "{i}").replace(session, "{s}")
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
