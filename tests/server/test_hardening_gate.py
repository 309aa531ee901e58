"""What stands before every route: bounds on size, depth, time and rate, the headers, and what a log may say."""

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest

from adjourn.display import visible
from adjourn.server import Auth
from adjourn.server.hardening import CSP, RedactSecrets, is_too_deep, redacted
from adjourn.server.limits import KEPT, Buckets, network_of
from server.server_kit import Office, People, app_of, at, bearer, token, words

PROBLEM = "application/problem+json"


def code_of(reply: httpx.Response) -> tuple[int, str]:
    assert reply.headers["content-type"] == PROBLEM, (reply.status_code, reply.text)
    return reply.status_code, reply.json()["code"]


# -- every error is a problem ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method, path, options, expected",
    [
        ("GET", "/api/nowhere", {}, (404, "not-found")),
        ("GET", "/nowhere/else", {}, (404, "not-found")),
        ("PUT", "/api/interrupts", {}, (405, "method-not-allowed")),
        ("TRACE", "/api/interrupts", {}, (405, "method-not-allowed")),
        ("POST", "/api/agents/clerk/send", {"content": b"{"}, (400, "malformed")),
        ("POST", "/api/agents/clerk/send", {"content": b"\xff\xfe"}, (400, "malformed")),
        ("POST", "/api/agents/clerk/send", {"content": b""}, (422, "invalid-request")),
        ("POST", "/api/agents/clerk/send", {"json": {"message": 5}}, (422, "invalid-request")),
        ("POST", "/api/agents/clerk/send", {"json": []}, (422, "invalid-request")),
        ("GET", "/api/interrupts?limit=0", {}, (422, "invalid-request")),
        ("GET", "/api/interrupts?limit=many", {}, (422, "invalid-request")),
        ("GET", "/api/interrupts?status=nonsense", {}, (422, "invalid-request")),
        ("GET", "/api/interrupts?cursor=nonsense", {}, (422, "invalid-request")),
        ("GET", "/api/interrupts/%00", {}, (404, "interrupt-unknown")),
        ("GET", "/api/interrupts/%ff", {}, (404, "interrupt-unknown")),
        ("GET", "/api/sessions/inner:x", {}, (404, "session-unknown")),
        ("GET", "/api/agents/nobody", {}, (404, "agent-unknown")),
        ("POST", "/api/agents/nobody/send", {"json": {"message": "x"}}, (404, "agent-unknown")),
        ("GET", "/api/sessions/..%2f..%2fetc", {}, (404, "not-found")),
    ],
    ids=[
        "no route", "no route either", "method", "odd method", "cut JSON", "no UTF-8", "no body", "wrong type", "no object",
        "limit", "limit no number", "status", "cursor", "nul", "no text", "inner", "agent", "agent to send to", "dots",
    ],
)  # fmt: skip
async def test_every_error_is_a_problem_that_says_what_to_do(
    people: People, method: str, path: str, options: dict[str, Any], expected: tuple[int, str]
) -> None:
    reply = await people["root"](method, path, headers={"content-type": "application/json"}, **options)
    assert code_of(reply) == expected, reply.text
    assert reply.json()["advice"]


@pytest.mark.parametrize(
    "body, said",
    [
        (b'{"message": hush}', "invalid character at byte 12"),
        (b"{'message': 1}", "object keys must be strings at byte 1"),
        (b'{"message": 1} hush', "trailing characters at byte 16"),
        (b'{"message": "hush",}', "trailing comma in object at byte 19"),
        (b'{"message": "hush', "it ends before it is complete, or has half of a surrogate pair"),
        (b'{"message": "hush\xff"}', "a string in it is not UTF-8"),
        (b"message=hush", "invalid character at byte 0"),
    ],
    ids=["no value", "quotes", "more behind it", "comma", "cut", "no UTF-8", "a form"],
)
@pytest.mark.parametrize("path", ["/api/agents/clerk/send", "/api/interrupts/bulk", "/api/session"])
async def test_a_body_that_is_no_json_is_told_what_is_wrong_and_where_and_not_what_it_said(
    people: People, path: str, body: bytes, said: str
) -> None:
    reply = await people["root"]("POST", path, headers={"content-type": "application/json"}, content=body)
    assert code_of(reply) == (400, "malformed")
    assert reply.json()["detail"] == f"The body is no valid JSON: {said}."
    assert reply.json()["errors"] == [{"path": "(body)", "message": said}]
    assert "application/json" in reply.json()["advice"]
    assert "hush" not in reply.text


@pytest.mark.parametrize("name", ["tool", "agent", "owner", "session", "text"])
async def test_a_filter_that_no_store_could_hold_finds_nothing(people: People, name: str) -> None:
    await people["ann"].pause()
    for path in ("/api/interrupts", "/api/sessions"):
        if path == "/api/interrupts" or name in ("agent", "owner"):
            found = await people["ann"].get(f"{path}?{name}=%00")
            assert found["items"] == []


async def test_an_error_of_ours_shows_an_incident_and_no_trace(
    people: People, office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(office.ai.inbox, "list", broken)
    reply = await people["root"]("GET", "/api/interrupts")
    assert code_of(reply) == (500, "internal")
    assert "hunter2" not in reply.text
    assert "Traceback" not in reply.text
    incident = reply.json()["incident"]
    assert any(incident in r.getMessage() and r.exc_info for r in caplog.records)


async def test_a_store_that_does_not_answer_is_said_so(
    people: People, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import Future

    from adjourn.errors import StoreUnavailable

    def away(*_: Any, **__: Any) -> Any:
        future: Future[Any] = Future()
        future.set_exception(StoreUnavailable("the disk is full"))
        return future

    monkeypatch.setattr(office.store, "submit", away)
    reply = await people["root"]("GET", "/api/interrupts")
    assert code_of(reply) == (503, "store-unavailable")
    assert reply.headers["retry-after"]
    ready = await people[None]("GET", "/ready")
    assert (ready.status_code, ready.json()) == (503, {"status": "unavailable"})
    assert (await people[None]("GET", "/health")).status_code == 200


# -- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/health", "/api/interrupts", "/nowhere", "/docs", "/login", "/openapi.json", "/docs/style.css", "/metrics"],
)
@pytest.mark.parametrize("name", ["root", None], ids=["root", "stranger"])
async def test_every_reply_has_the_headers(people: People, path: str, name: str | None) -> None:
    headers = (await people[name]("GET", path)).headers
    assert headers["content-security-policy"] == CSP
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "cache-control" in headers
    assert "server" not in headers
    assert "x-powered-by" not in headers


def test_the_policy_allows_no_script_in_a_page_and_nothing_from_elsewhere() -> None:
    assert "unsafe" not in CSP
    assert "http" not in CSP
    assert "*" not in CSP
    assert "default-src 'none'" in CSP
    assert "frame-ancestors 'none'" in CSP


async def test_over_https_browsers_are_told_to_keep_to_it_where_that_is_set(office: Office) -> None:
    async with at(app_of(office, public_url="https://inbox.example", hsts_seconds=600)) as people:
        headers = (await people[None]("GET", "/health")).headers
        assert headers["strict-transport-security"] == "max-age=600"


async def test_the_documentation_needs_no_script_and_loads_nothing_from_elsewhere(people: People) -> None:
    page = (await people[None]("GET", "/docs")).text
    assert "<script" not in page
    assert " style=" not in page
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == [
        "/static/icon.svg",
        "/docs/style.css",
        "/openapi.json",
    ]
    described = await people[None].get("/openapi.json")
    for item in described["paths"].values():
        for operation in item.values():
            assert f'id="{operation["operationId"]}"' in page


# -- sizes and depths ------------------------------------------------------------------------------------------------


async def test_a_body_that_is_too_large_is_refused(office: Office) -> None:
    async with at(app_of(office, body_bytes=1000)) as people:
        fits = await people["ann"]("POST", "/api/agents/clerk/send", {"message": "x" * 900})
        assert fits.status_code == 200
        assert code_of(await people["ann"]("POST", "/api/agents/clerk/send", {"message": "x" * 1000})) == (
            413,
            "body-too-large",
        )

        async def endless() -> Any:  # says no length
            for _ in range(100):
                yield b" " * 100

        reply = await people["ann"]("POST", "/api/agents/clerk/send", content=endless())
        assert code_of(reply) == (413, "body-too-large")
        for claimed in ("99999999999999", "-1", "1e3", "x"):
            head = {**bearer("ann"), "content-length": claimed}
            refused = await people.client.post("/api/agents/clerk/send", content=b"{}", headers=head)
            assert refused.status_code == 413, claimed


async def test_json_that_is_nested_too_deeply_is_refused(people: People) -> None:
    one = await people["ann"].pause()
    for deep in (b'{"output":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"a":' * 3000 + b"1" + b"}" * 3000):
        reply = await people["ann"]("POST", f"/api/interrupts/{one}/respond", content=deep)
        assert code_of(reply) == (400, "body-too-deep")
    many: list[Any] = [[] for _ in range(500)]
    flat = {"output": ["[" * 5000, *many]}
    assert (await people["ann"]("POST", f"/api/interrupts/{one}/respond", flat)).status_code == 202


@pytest.mark.parametrize(
    "body, expected",
    [
        (b"[[[]]]", False),
        (b"[[[[]]]]", True),
        (b'{"a":{"b":{"c":{}}}}', True),
        (b"[[],[],[],[],[]]", False),
        (b'["[[[[[["]', False),
        (rb'["\"[[[[[["]', False),
        (rb'["\\",[[[[', True),
        (b'"[[[[[[', False),  # no JSON: the parser refuses it, and finds nothing nested in it
        (b"]]]][[[", False),
    ],
    ids=["3", "4", "objects", "beside", "in text", "escaped quote", "escaped backslash", "open text", "closed first"],
)
def test_depth_is_counted_as_json_has_it(body: bytes, expected: bool) -> None:
    assert is_too_deep(body, 3) is expected


# -- rates -----------------------------------------------------------------------------------------------------------


async def test_one_person_asking_too_often_waits_and_others_do_not(office: Office) -> None:
    async with at(app_of(office, requests_per_minute=5)) as people:
        found = [(await people["ann"]("GET", "/api/me")).status_code for _ in range(7)]
        assert found == [200] * 5 + [429] * 2
        late = await people["ann"]("GET", "/api/me")
        assert code_of(late) == (429, "too-many-requests")
        assert 1 <= int(late.headers["retry-after"]) <= 60
        assert (await people["ben"]("GET", "/api/me")).status_code == 200


async def test_one_address_asking_too_often_waits(office: Office) -> None:
    app = app_of(office, requests_per_minute_per_address=5)
    async with at(app, client=("192.0.2.1", 1)) as people:
        found = [(await people[None]("GET", "/health")).status_code for _ in range(7)]
        assert found == [200] * 5 + [429] * 2
    async with at(app, client=("192.0.2.2", 1)) as people:
        assert (await people[None]("GET", "/health")).status_code == 200


def test_a_bucket_fills_up_with_time_and_forgets_the_oldest() -> None:
    now = [0.0]
    buckets = Buckets(60, lambda: now[0])
    assert [buckets.take("a") for _ in range(60)] == [0.0] * 60
    assert buckets.take("a") == pytest.approx(1.0)
    assert buckets.wait("b") == 0.0
    now[0] = 2.0
    assert [buckets.take("a") > 0 for _ in range(3)] == [False, False, True]
    for n in range(KEPT + 10):
        buckets.take(str(n))
    assert buckets.wait("a") == 0.0
    assert Buckets(0).take("a") == 0.0


# -- hosts and times -------------------------------------------------------------------------------------------------


async def test_only_hosts_that_are_allowed_are_answered(office: Office) -> None:
    hosts = {
        "inbox.example": True,
        "INBOX.example:8443": True,
        "a.teams.example": True,
        "evil.example": False,
        "inbox.example.evil.example": False,
        "teams.example": False,
        "": False,
    }
    async with at(app_of(office, allowed_hosts=("inbox.example", "*.teams.example"))) as people:
        for host, good in hosts.items():
            reply = await people[None]("GET", "/health", headers={"host": host})
            assert (reply.status_code == 200) is good, host
            if not good:
                assert code_of(reply) == (400, "wrong-host")


async def test_a_request_that_takes_too_long_is_ended_with_a_problem(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def hangs(*_: Any, **__: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with at(app_of(office, request_seconds=0.05)) as people:
        monkeypatch.setattr(office.ai.inbox, "list", hangs)
        assert code_of(await people["ann"]("GET", "/api/interrupts")) == (504, "timeout")
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_stream_that_has_begun_may_take_longer(office: Office) -> None:
    async with at(app_of(office, request_seconds=0.1, sse_ping_seconds=0.02)) as people:

        async def release() -> None:
            await office.waiting.wait()
            asyncio.get_running_loop().call_later(0.4, office.gate.set)

        task = asyncio.ensure_future(release())
        head = {"accept": "text/event-stream"}
        reply = await people["ann"]("POST", "/api/agents/clerk/send", {"message": "wait"}, headers=head)
        await task
    assert '"finishReason":"stop"' in reply.text


@pytest.mark.parametrize(
    "address, counted",
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("local", "local"),
    ],
)
def test_an_address_is_counted_with_all_that_one_client_has(address: str, counted: str) -> None:
    assert network_of(address) == counted


async def test_who_has_a_whole_network_gets_no_more_tries_than_others(office: Office) -> None:
    app = app_of(office, logins_per_minute=2, requests_per_minute_per_address=6)
    found: list[int] = []
    for last in range(8):
        async with at(app, client=(f"2001:db8::{last + 1:x}", 1), lifespan=False) as people:
            found.append((await people[None]("POST", "/api/session", {"token": "wrong"})).status_code)
    assert found == [401, 401, 429, 429, 429, 429, 429, 429]
    async with at(app, client=("2001:db8:0:1::1", 1), lifespan=False) as people:
        assert (await people[None]("POST", "/api/session", {"token": "wrong"})).status_code == 401


# -- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target, expected",
    [
        ("/login?token=adj_secret&next=/x", "/login?token=…&next=/x"),
        ("/x?a=1&Access_Token=adj_secret", "/x?a=1&Access_Token=…"),
        ("/x?api_key=adj_secret;code=adj_secret", "/x?api_key=…;code=…"),
        ("/link/adj_secret.abc/restart", "/link/…/restart"),
        ("/prefix/signin/adj_secret", "/prefix/signin/…"),
        ("/api/links/adj_secret?x=1", "/api/links/…?x=1"),
        ("/api/interrupts?text=tokens", "/api/interrupts?text=tokens"),
        ("/x\n2026 forged line", None),
    ],
)
def test_a_log_has_no_secret_in_it(target: str, expected: str | None) -> None:
    found = redacted(target)
    assert "adj_secret" not in found
    assert expected is None or found == expected
    assert found == visible(found)


async def test_the_access_log_says_who_asked_for_what_and_no_secret(
    people: People, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "adjourn.access")
    await people["ann"]("GET", f"/api/interrupts?text=x&token={words('ann')}")
    await people[None]("GET", f"/signin/{words('ann')}")
    lines = [r.getMessage() for r in caplog.records if r.name == "adjourn.access"]
    assert re.match(r'127\.0\.0\.1 ann "GET /api/interrupts\?text=x&token=…" 200 ', lines[0]), lines
    assert words("ann") not in "".join(r.getMessage() for r in caplog.records)


def test_uvicorns_own_log_has_its_secrets_taken_out() -> None:
    record = logging.LogRecord(
        "uvicorn.access", 20, "", 0, '%s - "%s %s HTTP/%s" %d', ("::1", "GET", "/x?token=adj_secret", "1.1", 200), None
    )
    assert RedactSecrets().filter(record)
    assert record.getMessage() == '::1 - "GET /x?token=… HTTP/1.1" 200'


async def test_no_secret_is_in_any_reply_or_representation(office: Office) -> None:
    auth = Auth(tokens=(token("root", "admin"),))
    async with at(app_of(office, auth=auth)) as people:
        one = await people["root"].pause()
        paths = [
            "/api/me",
            "/api/interrupts",
            f"/api/interrupts/{one}/history",
            "/metrics",
            "/openapi.json",
            "/api/export",
        ]
        texts = [repr(auth), repr(auth.__dict__)] + [(await people["root"]("GET", p)).text for p in paths]
        assert not any(words("root") in t for t in texts)
