"""Live events over SSE: what happens in the inbox, and in one session.

Each event has an id. A client that comes back with the last one it got (`Last-Event-ID`, which browsers send by
themselves, or `?after=`) goes on right behind it: first with what the store has, then with what comes. So one that was cut
off misses nothing and sees nothing twice, whichever process it comes back to, and one that goes away changes nothing.

One watcher in a process reads the inbox's feed for all clients (`live_feed.Hub`). A client that takes nothing for a while is
hung up on.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, cast

import msgspec
from litestar import Request, Router, get
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import ASGIApp, ControllerRouterHandler, HTTPResponseBodyEvent, Receive, Scope, Send

from adjourn.app import Adjourn
from adjourn.errors import InvalidRequest, SessionNotFound
from adjourn.lease import transact
from adjourn.records import unknown_session
from adjourn.server.given import AskedBy, AtDesk
from adjourn.server.live_feed import Hub, Reader
from adjourn.server.live_sessions import Journals
from adjourn.server.principal import Principal
from adjourn.server.problems import Refused
from adjourn.server.untold import untold_commit
from adjourn.store import SessionRecord, Store

_log = logging.getLogger("adjourn.server.live")
_PATIENCE = 30.0
"""A client that takes nothing for so many seconds is hung up on."""
_LIFE = 900.0
"""A stream ends after so many seconds, so that whoever may no longer see it does not. Clients come back by themselves."""

_LAST: HTTPResponseBodyEvent = {"type": "http.response.body", "body": b"", "more_body": False}
Id = Annotated[str, PathParameter(description="The id of a session.", max_length=500)]
LastId = Annotated[str | None, HeaderParameter(name="Last-Event-ID", max_length=1000)]
After = Annotated[str | None, QueryParameter(max_length=1000, description="The same as the header Last-Event-ID.")]


async def inbox_frames(hub: Hub, principal: Principal, after: str | None, ping: float) -> AsyncGenerator[bytes, None]:
    """The stream of one client."""
    await hub.begun()
    reader = Reader(hub, principal, after)
    # Its place at once, so that it can be cut off before anything happened.
    yield b"retry: 2000\nid: %s\n\n" % reader.position.encode()
    while True:
        frames = await reader.next(ping)
        if frames is None:
            yield b": ping\nid: %s\n\n" % reader.position.encode()
        elif frames:
            yield frames


async def session_frames(
    journals: Journals, session_id: str, after: str | None, ping: float, told: bool
) -> AsyncGenerator[bytes, None]:
    """A session's journal, each commit as one `batch` event, and then what comes; it ends when the session is deleted.

    `told`: with what exceptions of tools and models said.
    """
    yield b"retry: 2000\n\n"
    watching = journals.follow(session_id, after)
    pending: asyncio.Future[Any] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(watching, None))
            done, _ = await asyncio.wait([pending], timeout=ping)
            if not done:
                yield b": ping\n\n"
                continue
            recorded, pending = pending.result(), None
            if recorded is None:
                yield b"event: deleted\ndata: {}\n\n"
                return
            shown = recorded if told else untold_commit(recorded)
            yield b"id: %s\nevent: batch\ndata: %s\n\n" % (recorded.id.encode(), msgspec.json.encode(shown))
    except SessionNotFound:
        yield b"event: deleted\ndata: {}\n\n"
    except InvalidRequest:  # no id of ours: without one, the client comes back for all of it
        yield b"id:\nevent: reset\ndata: {}\n\n"
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait([pending])
        await watching.aclose()


class EventStream:
    """A reply whose body is events, as an ASGI application. It ends when the client goes away, or takes nothing.

    `counted` is told of it, with 1 when it begins and -1 when it ends.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        counted: Callable[[int], None],
        *,
        patience: float = _PATIENCE,
        life: float = _LIFE,
    ) -> None:
        self._frames = frames
        self._counted = counted
        self._patience = patience
        self._life = life * random.uniform(0.8, 1.2)  # so that not all of them come back at once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._counted(1)
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(_until_gone(receive))
        ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        state: dict[str, Any] = cast(dict[str, Any], scope).setdefault("state", {})
        state["adjourn.end"] = partial(_end, ending)  # see `serving.TimedProtocol`
        try:
            await asyncio.wait([sending, gone, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            state.pop("adjourn.end", None)
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self._frames.aclose()
            self._counted(-1)
        if ending.done() and sending.cancelled():
            await send(_LAST)
            return
        error = None if sending.cancelled() else sending.exception()
        if isinstance(error, TimeoutError):
            _log.info("a client of live events took nothing for %.0f s, and was hung up on", self._patience)
        elif error is not None:
            raise error  # the connection is broken off, and the client comes back

    async def _send_all(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # a proxy in between hands each event on as it comes
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        ends = asyncio.get_running_loop().time() + self._life
        async for frame in self._frames:
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            if asyncio.get_running_loop().time() > ends:
                break
        await send(_LAST)


def _end(ending: "asyncio.Future[None]") -> None:
    if not ending.done():
        ending.set_result(None)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- routes ----------------------------------------------------------------------------------------------------------


def routes() -> Sequence[ControllerRouterHandler]:
    """The handlers. They are in no schema: a stream without end is nothing that tools of OpenAPI can try."""
    return [Router("/api", route_handlers=[inbox_events, session_events], include_in_schema=False)]


@get("/events")
async def inbox_events(
    request: Request[Any, Any, Any], principal: AskedBy, last_id: LastId = None, after: After = None
) -> ASGIApp:
    """What opens, is settled and waits once more in the inbox, as far as this principal may see it."""
    hub: Hub = request.app.state.live
    if hub.clients >= hub.bounds.clients:
        raise Refused("too-many-requests", "too many clients follow the inbox here", retry_after="5")
    ping: float = request.app.state.settings.sse_ping_seconds

    def counted(more: int) -> None:
        hub.clients += more

    return EventStream(inbox_frames(hub, principal, last_id or after, ping), counted)


@get("/sessions/{session_id:str}/events")
async def session_events(
    session_id: Id,
    request: Request[Any, Any, Any],
    principal: AskedBy,
    desk: AtDesk,
    last_id: LastId = None,
    after: After = None,
) -> ASGIApp:
    """What happens in one session, from the beginning of its journal on."""
    session = await desk.session(principal, session_id)
    store = await _store_of(desk.ai, session)
    hub: Hub = request.app.state.live
    if hub.session_clients >= hub.bounds.session_clients:
        raise Refused("too-many-requests", "too many clients follow sessions here", retry_after="5")
    ping: float = request.app.state.settings.sse_ping_seconds

    def counted(more: int) -> None:
        hub.session_clients += more

    frames = session_frames(hub.journals(store), session.id, last_id or after, ping, desk.tells(principal))
    return EventStream(frames, counted)


async def _store_of(ai: Adjourn, session: SessionRecord) -> Store:
    for store in ai.stores():
        if await transact(store, lambda tx: tx.session(session.id), read=True) is not None:
            return store
    raise unknown_session(session.id)


@asynccontextmanager
async def running(app: Any) -> AsyncGenerator[None]:
    """For the server: the watcher runs as long as it does."""
    hub = Hub(app.state.desk.ai)
    app.state.live = hub
    watcher = asyncio.get_running_loop().create_task(hub.run())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])
