"""What the tests of live events share: a client of server-sent events, and an inbox that things happen in."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from adjourn.server.live_feed import Bounds, Hub, Reader
from adjourn.server.principal import Principal
from server.wire_kit import Serving, bearer


class Event(NamedTuple):
    """One event: its id, its kind and its data."""

    id: str
    kind: str
    data: Any

    @property
    def told(self) -> tuple[str, str]:
        return self.kind, self.data["interruptId"]


class Frames:
    """Server-sent events out of what came, as the standard reads them. `last_id` is what a client would come back with."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.last_id = ""
        self.comments = 0
        self._rest = b""

    def feed(self, part: bytes) -> None:
        *blocks, self._rest = (self._rest + part).split(b"\n\n")
        for block in blocks:
            fields: dict[str, str] = {}
            for line in block.decode().split("\n"):
                name, _, value = line.partition(":")
                if not name:
                    self.comments += 1
                else:
                    fields[name] = value.removeprefix(" ")
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                self.events.append(Event(self.last_id, fields.get("event", "message"), json.loads(fields["data"])))


class Following:
    """A client that follows a stream, until it is cut off."""

    def __init__(self, status: int, headers: httpx.Headers) -> None:
        self.status = status
        self.headers = headers
        self.frames = Frames()
        self.ended = False
        self.broke_off = True
        self._news = asyncio.Condition()

    @property
    def events(self) -> Sequence[Event]:
        return self.frames.events

    async def until(self, fits: Callable[["Following"], bool]) -> Sequence[Event]:
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: fits(self))
        return self.frames.events

    async def until_many(self, many: int) -> Sequence[Event]:
        return await self.until(lambda f: len(f.events) >= many)

    async def until_end(self) -> None:
        await self.until(lambda f: f.ended)

    async def read(self, response: httpx.Response) -> None:
        try:
            async for part in response.aiter_bytes():
                self.frames.feed(part)
                async with self._news:
                    self._news.notify_all()
            self.broke_off = False
        finally:
            self.ended = True
            async with self._news:
                self._news.notify_all()


@asynccontextmanager
async def following(
    server: Serving, path: str = "/api/events", *, who: str | None = "root", last_id: str | None = None
) -> AsyncGenerator[Following]:
    """Follows a stream for as long as this lasts. It has begun when this begins."""
    headers = {} if who is None else dict(bearer(who))
    if last_id is not None:
        headers["Last-Event-ID"] = last_id
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as client,
        client.stream("GET", path, headers=headers) as response,
    ):
        found = Following(response.status_code, response.headers)
        task = asyncio.create_task(found.read(response))
        try:
            if response.status_code == 200:
                await found.until(lambda f: f.frames.last_id != "" or "sessions" in path)
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def hub_of(ai: Any, **bounds: int) -> AsyncGenerator[Hub]:
    """A hub that runs, without a server."""
    hub = Hub(ai, Bounds(**bounds))
    task = asyncio.create_task(hub.run())
    try:
        async with asyncio.timeout(10):
            await hub.begun()
        yield hub
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


ROOT = Principal("root", "admin")


class Client:
    """A client of a hub, that reads when it is told to."""

    def __init__(self, hub: Hub, after: str | None = None, principal: Principal = ROOT) -> None:
        self.reader = Reader(hub, principal, after)
        self.frames = Frames()

    async def read(self, many: int) -> Sequence[Event]:
        """Reads until it has so many events."""
        async with asyncio.timeout(20):
            while len(self.frames.events) < many:
                self.frames.feed(await self.reader.next(5.0) or b"")
        return self.frames.events
