"""HEAD is answered as GET is, without the body: at every address that takes GET, and it changes nothing."""

import logging
from typing import Any

import httpx
import pytest
from litestar.routes import HTTPRoute

from adjourn.server import Auth, Server
from server.server_kit import UNLIMITED, Office, People, app_of, at, bearer, served

FILLED = {"interrupt_id": "i", "session_id": "s", "name": "clerk", "token": "none", "code": "none"}


def paths_of(app: Server, ids: dict[str, str]) -> list[str]:
    found: list[str] = []
    for route in app.routes:
        if isinstance(route, HTTPRoute) and "GET" in route.methods:
            path = route.path_format or "/"
            for name, value in ids.items():
                path = path.replace("{" + name + "}", value)
            found.append(path)
    return found


async def test_every_address_that_takes_get_takes_head_and_says_the_same(people: People, shared_app: Server) -> None:
    run = await people["root"].say("pay 5")
    ids = FILLED | {"interrupt_id": run["interrupts"][0]["id"], "session_id": run["sessionId"]}
    paths = [p for p in paths_of(shared_app, ids) if not p.endswith("/events")]
    assert len(paths) > 20
    for path in paths:
        shown, told = await people["root"]("GET", path), await people["root"]("HEAD", path)
        assert told.status_code == shown.status_code, path
        assert told.content == b"", path
        for name in ("content-type", "content-length", "location", "etag", "content-security-policy"):
            if name != "content-length" or path != "/metrics":  # that one grows by every request
                assert told.headers.get(name) == shown.headers.get(name), (path, name)


async def test_what_takes_no_get_takes_no_head(people: People) -> None:
    reply = await people["root"]("HEAD", "/api/agents/clerk/send")
    assert (reply.status_code, reply.headers["allow"], reply.content) == (405, "OPTIONS, POST", b"")
    assert (await people["root"]("PUT", "/api/interrupts")).headers["allow"] == "GET, HEAD, OPTIONS"
    assert (await people["root"]("OPTIONS", "/api/interrupts")).headers["allow"] == "GET, HEAD, OPTIONS"


async def test_head_is_for_those_who_may_get(people: People) -> None:
    interrupt = await people["ann"].pause()
    found = {name: await people[name]("HEAD", f"/api/interrupts/{interrupt}") for name in (None, "ben", "ann")}
    assert {n: r.status_code for n, r in found.items()} == {None: 401, "ben": 404, "ann": 200}


async def test_looking_where_the_printed_link_leads_does_not_spend_it(office: Office) -> None:
    auth = Auth()
    async with at(app_of(office, auth=auth)) as people:
        code = auth.one_time_code()
        looked = await people[None]("HEAD", f"/signin/{code}")
        assert (looked.status_code, "set-cookie" in looked.headers) == (303, False)
        assert "set-cookie" in (await people[None]("GET", f"/signin/{code}")).headers


async def test_the_log_says_that_it_was_head(people: People, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="adjourn.access"):
        await people["ann"]("HEAD", "/api/me")
    assert '"HEAD /api/me" 200' in caplog.text


@pytest.mark.parametrize("http", [None, "h11"], ids=str)
def test_over_real_http_streams_end_at_once_and_the_connection_can_be_used_again(http: str | None) -> None:
    options: dict[str, Any] = {} if http is None else {"http": http}
    with served(app_of(Office()), UNLIMITED, **options) as url, httpx.Client(base_url=url, timeout=20) as client:
        head = bearer("root")
        run = client.post("/api/agents/clerk/send", json={"message": "pay 5"}, headers=head).json()
        for path in ("/api/events", f"/api/sessions/{run['sessionId']}/events", "/api/export", "/health", "/inbox"):
            reply = client.head(path, headers=head)
            assert (reply.status_code, reply.content) == (200, b""), path
        assert client.get("/api/me", headers=head).json()["name"] == "root"
