"""From a server's start to its end, alone and mounted: what waits is taken up, what runs is let rest or handed over."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from adjourn import MemoryStore, Store
from adjourn.server import Auth, Server
from adjourn.testing import FakeClock
from server.server_kit import PEOPLE, Office, People, app_of, at, served, until, words

# -- alone -----------------------------------------------------------------------------------------------------------


async def test_what_was_decided_while_no_server_ran_is_taken_up_at_the_start(store: Store) -> None:
    before = Office(store)
    run = await before.ai.agents["clerk"].connect().send("pay 5").output
    await before.ai.inbox.restart(run.interrupts[0].id, run=False)
    after = Office(store)
    async with at(app_of(after)):
        await until(lambda: after.log == [("paid", 5)])
    assert before.log == []


async def test_the_sweep_settles_what_is_overdue_though_nobody_asks() -> None:
    clock = FakeClock()
    office = Office(clock=clock)

    @office.ai.tool()
    async def soon() -> str:
        from adjourn import Interrupt

        raise Interrupt({}, expires_in=60)

    from adjourn.testing import ScriptedModel, call

    agent = office.ai.define_agent("hasty", store=office.store, model=ScriptedModel([call("soon"), "ok"]), tools=[soon])
    async with at(app_of(office, sweep_seconds=0.02)):
        run = await agent.connect().send("go").output
        clock.time += 61

        async def went_on() -> bool:
            view = await agent.get_snapshot(session_id=run.session_id)
            return view is not None and view.finish_reason == "stop"

        await until(went_on)


async def test_a_sweep_that_fails_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office()
    calls: list[int] = []

    async def recover() -> Any:
        calls.append(len(calls))
        if len(calls) == 2:
            raise RuntimeError("a hiccup")
        return []

    monkeypatch.setattr(office.ai, "recover", recover)
    async with at(app_of(office, sweep_seconds=0.01)):
        await until(lambda: len(calls) > 3)
    assert "a sweep of the inbox failed" in caplog.text


async def test_at_the_end_a_turn_is_let_rest() -> None:
    office = Office()
    async with at(app_of(office, drain_seconds=10)) as people:
        run = (await people["ann"]("POST", "/api/agents/clerk/send?wait=0", {"message": "wait"})).json()
        await office.waiting.wait()
        asyncio.get_running_loop().call_later(0.05, office.gate.set)
    view = await office.ai.agents["clerk"].get_snapshot(session_id=run["sessionId"])
    assert view is not None
    assert (view.status, view.finish_reason) == ("completed", "stop")


async def test_a_turn_that_does_not_rest_in_time_is_handed_to_the_next_process(store: Store) -> None:
    office = Office(store)
    async with at(app_of(office, drain_seconds=0.05)) as people:
        run = (await people["ann"]("POST", "/api/agents/clerk/send?wait=0", {"message": "wait"})).json()
        await office.waiting.wait()
    assert office.ai.running == {}
    agent = office.ai.agents["clerk"]
    view = await agent.get_snapshot(session_id=run["sessionId"])
    assert view is not None
    assert view.status in ("pending", "expired")  # not aborted, not failed: it waits for a driver
    after = Office(store)
    async with at(app_of(after)) as people:  # at once: no lease has to run out

        async def waits() -> bool:
            return bool((await people["ann"].get("/api/interrupts"))["items"])

        await until(waits)
        (paused,) = (await people["ann"].get("/api/interrupts"))["items"]
        assert paused["reason"] == "outcome_unknown"  # the tool had begun, and nobody knows how far it came
        assert (
            await people["ann"]("POST", f"/api/interrupts/{paused['id']}/respond", {"output": "x"})
        ).status_code == 202

        async def done() -> bool:
            found = await people["ann"].get(f"/api/sessions/{run['sessionId']}")
            return bool(found["finishReason"] == "stop")

        await until(done)


async def test_parts_run_as_long_as_the_server_and_a_start_that_fails_leaves_none_behind(office: Office) -> None:
    app = app_of(office)
    told: list[str] = []

    @asynccontextmanager
    async def part() -> AsyncGenerator[None]:
        told.append("begins")
        try:
            yield
        finally:
            told.append("ends")

    @asynccontextmanager
    async def broken() -> AsyncGenerator[None]:
        if told.count("begins") == 1:
            raise RuntimeError("cannot begin")
        yield

    app.state.lifetime.parts[:] = [part, broken]
    with pytest.raises(RuntimeError, match="cannot begin"):
        await app.state.lifetime.start()
    assert told == ["begins", "ends"]
    async with at(app):
        assert told == ["begins", "ends", "begins"]
    assert told == ["begins", "ends", "begins", "ends"]


def test_served_by_uvicorn_it_starts_and_ends_with_it() -> None:
    office = Office()
    app = app_of(office)
    with served(app) as url:
        assert httpx.get(url + "/ready", timeout=20).status_code == 200
    assert office.ai.running == {}


async def test_a_websocket_is_refused(office: Office) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app_of(office)({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent[0]["type"] == "websocket.close"


# -- mounted ---------------------------------------------------------------------------------------------------------

Outer = Callable[[Any], Any]


def in_starlette(inner: Server) -> Any:
    return Starlette(routes=[Mount("/tools/inbox", app=inner)])


def in_fastapi(inner: Server) -> Any:
    outer = FastAPI()
    outer.mount("/tools/inbox", inner)
    return outer


def in_django(inner: Server) -> Any:
    """As a project's asgi.py has it: Django takes no ASGI applications inside, so a path decides between the two."""
    settings: Any = import_module("django.conf").settings
    get_asgi_application: Any = import_module("django.core.asgi").get_asgi_application

    if not settings.configured:
        settings.configure(ROOT_URLCONF="server.django_urls", ALLOWED_HOSTS=["*"], SECRET_KEY="x" * 50)
    django: Any = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/tools/inbox"):
            await inner({**scope, "root_path": "/tools/inbox"}, receive, send)
        else:
            await django(scope, receive, send)

    return application


def bare(inner: Server) -> Any:
    """One that strips the prefix from the path and says so, as WSGI has it."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix("/tools/inbox") or "/"
        await inner({**scope, "path": path, "root_path": "/tools/inbox"}, receive, send)

    return application


OUTER = [in_starlette, in_fastapi, in_django, bare]


@asynccontextmanager
async def mounted(office: Office, outer: Outer, **options: Any) -> AsyncGenerator[People]:
    inner = app_of(office, **options)
    async with at(outer(inner), lifespan=False) as people:  # nobody forwards the lifespan
        try:
            yield People(people.client, "/tools/inbox")
        finally:
            await inner.state.lifetime.stop()


@pytest.mark.parametrize("outer", OUTER, ids=["starlette", "fastapi", "django", "stripping"])
async def test_mounted_under_a_prefix_it_works_and_its_links_have_the_prefix(outer: Outer) -> None:
    office = Office()
    async with mounted(office, outer) as people:
        one = await people["ann"].pause("pay 5")
        reply = await people["ann"]("POST", f"/api/interrupts/{one}/restart")
        assert reply.headers["location"] == f"/tools/inbox/api/interrupts/{one}"
        await until(lambda: office.log == [("paid", 5)])
        described = await people[None].get("/openapi.json")
        assert described["servers"] == [{"url": "/tools/inbox"}]
        assert 'href="/tools/inbox/docs/style.css"' in (await people[None]("GET", "/docs")).text
        assert (await people[None]("GET", "/docs/style.css")).status_code == 200
        signed = await people[None]("POST", "/api/session", {"token": words("ann")})
        assert "Path=/tools/inbox" in signed.headers["set-cookie"]
        home = await people[None]("GET", "/", headers={"accept": "text/html"})
        assert home.headers["location"] == "/tools/inbox/inbox"
        people.client.cookies.clear()
        page = await people[None]("GET", "/sessions", headers={"accept": "text/html"})
        assert page.headers["location"].startswith("/tools/inbox/login")
        other = await people["root"].pause()
        link = await people["root"]("POST", f"/api/interrupts/{other}/links", {"by": "cleo"})
        assert link.json()["url"].startswith("http://testserver/tools/inbox/link/")
        missing = await people["ann"]("GET", "/nowhere")
        assert (missing.status_code, missing.json()["code"]) == (404, "not-found")


async def test_mounted_the_first_request_starts_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office()
    calls: list[int] = []

    async def recover() -> Any:
        calls.append(1)
        await asyncio.sleep(0)
        return []

    monkeypatch.setattr(office.ai, "recover", recover)
    async with mounted(office, in_starlette) as people:
        assert calls == []
        found = await asyncio.gather(*[people[None]("GET", "/health") for _ in range(10)])
        assert {r.status_code for r in found} == {200}
        assert calls == [1]


async def test_an_outer_application_can_run_its_lifespan() -> None:
    office = Office()
    inner = app_of(office)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[None]:
        async with inner.lifespan():
            yield

    outer = Starlette(routes=[Mount("/inbox", app=inner)], lifespan=lifespan)
    async with outer.router.lifespan_context(outer):
        assert inner.state.lifetime.started
        async with at(outer, lifespan=False) as people:
            # The prefix is also the name of a page: /inbox/inbox is the page, /inbox leads to it.
            reply = await People(people.client, "/inbox")[None]("GET", "/inbox", headers={"accept": "text/html"})
            assert reply.headers["location"].startswith("/inbox/login")
    assert not inner.state.lifetime.started


async def test_a_prefix_that_nobody_names_is_a_setting() -> None:
    async with at(app_of(Office(), root_path="/tools"), lifespan=False) as people:
        for path in ("/tools/health", "/health"):  # a proxy may strip it or not
            assert (await people[None]("GET", path)).status_code == 200
        assert (await people[None].get("/openapi.json"))["servers"] == [{"url": "/tools"}]


async def test_a_prefix_is_looked_for_at_the_beginning_of_a_path_only() -> None:
    async with at(app_of(Office(), root_path="/desk"), lifespan=False) as people:
        for path in ("/api/links/desk", "/desk/api/links/desk"):
            reply = await people[None]("GET", path)
            assert (reply.status_code, reply.json()["code"]) == (404, "link-invalid"), path


def test_two_servers_of_one_application_count_once() -> None:
    office = Office(MemoryStore())
    app_of(office, auth=Auth(tokens=PEOPLE))
    app_of(office, auth=Auth(tokens=PEOPLE))
    assert len(office.ai.observers) == 1
