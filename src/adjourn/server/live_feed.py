"""The inbox's feed, read once in a process for everybody who follows it: the hub, and each client's way through it.

What was read lately is kept once, not once for each client. A client that is slower than that reads from the store until
it has caught up, so nothing is kept for anybody, and no client can make the server grow.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from adjourn.app import Adjourn
from adjourn.display import summary
from adjourn.errors import InvalidRequest, StoreError, UnknownPosition
from adjourn.feed import Follower
from adjourn.lease import transact
from adjourn.resume import seen
from adjourn.server.live_sessions import Journals
from adjourn.server.principal import Principal
from adjourn.server.webhook_delivery import news_of
from adjourn.server.webhook_spec import News
from adjourn.store import Change, Store

_log = logging.getLogger("adjourn.server.live")
_PAGE = 100
_EACH = 0.0002
"""For each client, so many seconds are between two batches: with a thousand, five batches a second."""


class Bounds(msgspec.Struct, frozen=True):
    """How many events the watcher keeps for everybody, and how many clients there may be at once."""

    events: int = 4096
    clients: int = 5000
    session_clients: int = 500


class Happened(msgspec.Struct, frozen=True):
    """One event, as it goes out, and what decides who gets it."""

    position: str
    news: News
    frame: bytes

    def concerns(self, principal: Principal) -> bool:
        row = self.news.interrupt
        return principal.sees(row) if row is not None else principal.sees_everything


def happened(news: News) -> Happened:
    """The event of a change. `verb` says how it was settled: respond, restart, decline, expire or cancel."""
    change, row, made = news.change, news.interrupt, news.decision
    data: dict[str, Any] = {"interruptId": change.interrupt_id, "sessionId": change.session_id, "at": change.at}
    if row is not None:
        data |= {"agent": row.agent, "tool": row.tool, "owner": row.owner, "status": row.status}
        if change.kind != "settled":
            inner = seen(row)
            data["summary"] = summary(inner.tool, inner.input)
    if made is not None:
        data |= {"verb": made.verb, "by": made.by}
    frame = b"id: %s\nevent: %s\ndata: %s\n\n" % (
        change.position.encode(),
        change.kind.encode(),
        msgspec.json.encode(data),
    )
    return Happened(change.position, news, frame)


class Batch:
    """Some events that were read at once. What a principal gets of them is put together once for all its clients."""

    __slots__ = ("_rendered", "end", "events")

    def __init__(self, events: Sequence[Happened]) -> None:
        self.events = events
        self.end = events[-1].position
        self._rendered: dict[Principal, bytes] = {}

    def frames(self, principal: Principal) -> bytes:
        found = self._rendered.get(principal)
        if found is None:
            found = self._rendered[principal] = b"".join(e.frame for e in self.events if e.concerns(principal))
        return found

    def forget(self) -> None:
        self._rendered.clear()


class Hub:
    """The one watcher of the inbox's feed in this process, and the last events that it read, for all clients."""

    def __init__(self, ai: Adjourn, bounds: Bounds | None = None) -> None:
        self.ai = ai
        self.bounds = bounds or Bounds()
        self.clients = 0
        self.session_clients = 0
        self.end = ""
        """Where in the feed the watcher has come to."""
        self.first = 0
        """The number of the oldest batch that is kept."""
        self.reads = 0
        """How often the feed was read to its end."""
        self._batches: deque[Batch] = deque()
        self._kept = 0
        self._places: dict[str, int] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._begun = asyncio.Event()
        self._journals: dict[int, Journals] = {}

    @property
    def count(self) -> int:
        """The number that the next batch will have."""
        return self.first + len(self._batches)

    def batch(self, number: int) -> Batch:
        return self._batches[number - self.first]

    def journals(self, store: Store) -> Journals:
        """The watcher of the sessions of this store."""
        return self._journals.setdefault(id(store), Journals(store))

    def place_of(self, position: str) -> int | None:
        """The number of the batch that has the event of this position; None where it is not kept."""
        return self._places.get(position)

    async def run(self) -> None:
        """Watches, until it is cancelled."""
        while True:
            try:
                await self._watch()
            except StoreError as e:
                _log.warning("live events wait: a store does not answer (%s)", e)
            except Exception:  # noqa: BLE001 - a row that cannot be read must not end it for everybody
                _log.exception("the watcher of the inbox failed; it begins again where it was")
            await asyncio.sleep(1.0)

    async def begun(self) -> None:
        """Returns when it knows where the feed ends."""
        await self._begun.wait()

    async def _watch(self) -> None:
        if not self._begun.is_set():
            self.end = await self.ai.inbox.latest_position()
            self._begun.set()
        if not self.ai.stores():
            await asyncio.Event().wait()  # nothing will ever happen
        async with aclosing(Follower().follow(self.ai.stores(), self._read)) as batches:
            async for batch in batches:
                await self._take(batch)

    async def _read(self) -> Sequence[Batch]:
        try:
            news = await read_news(self.ai, self.end, 500)
        except UnknownPosition:
            await self._begin_anew()
            return ()
        if not news:
            self.reads += 1
            return ()
        return [Batch([happened(n) for n in news])]

    async def _begin_anew(self) -> None:
        """From where the feed ends now. No client is at a batch that is kept any more, so each looks where it stands."""
        _log.warning("the inbox's feed is not the one that was followed (was a backup restored?): everybody looks anew")
        self.end = await self.ai.inbox.latest_position()
        self.first, self._kept = self.count + 1, 0
        self._batches.clear()
        self._places.clear()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _take(self, batch: Batch) -> None:
        for old in list(self._batches)[-3:]:
            old.forget()  # whoever has not taken it yet puts it together again
        self._batches.append(batch)
        self._kept += len(batch.events)
        self._places.update({e.position: self.count - 1 for e in batch.events})
        self.end = batch.end
        while self._kept > self.bounds.events and len(self._batches) > 1:
            gone = self._batches.popleft()
            self.first += 1
            self._kept -= len(gone.events)
            for event in gone.events:
                self._places.pop(event.position, None)
        waiting, self._waiting = list(self._waiting), set()
        for start in range(0, len(waiting), 50):
            for waiter in waiting[start : start + 50]:
                if not waiter.done():
                    waiter.set_result(None)
            await asyncio.sleep(0)  # a decision that comes in meanwhile does not wait for all of them
        await asyncio.sleep(min(len(waiting) * _EACH, 1.0))

    async def news(self, seconds: float) -> bool:
        """Waits for the next batch. False where that took too long."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)


async def read_news(ai: Adjourn, after: str | None, limit: int) -> Sequence[News]:
    """The changes after this position, each with its rows as they are now."""
    changes = await ai.inbox.changes(after, limit)
    found: dict[str, News] = {}
    for store in ai.stores() if changes else ():
        missing = [c for c in changes if c.position not in found]
        for news in await transact(store, partial(_rows, changes=missing), read=True):
            if news.interrupt is not None or news.decision is not None:
                found[news.change.position] = news
    return [found.get(c.position) or News(c, None, None) for c in changes]


def _rows(tx: Any, changes: Sequence[Change]) -> list[News]:
    return [news_of(tx, c) for c in changes]


class Reader:
    """One client's way through the feed: through what the hub keeps, or, where that does not reach back, the store."""

    def __init__(self, hub: Hub, principal: Principal, after: str | None) -> None:
        self._hub = hub
        self._principal = principal
        self.position = after if after is not None else hub.end
        self._next: int | None = hub.count if after is None else None
        self._catching_up: CatchingUp | None = None
        self._reads = hub.reads

    async def next(self, seconds: float) -> bytes | None:
        """Some frames (b"" where it came on and nothing of it concerns this principal); None after so many seconds."""
        hub = self._hub
        if self._next is not None and self._next < hub.first:
            self._next = None  # too slow for what is kept
        if self._next is None:
            try:
                return await self._from_store()
            except InvalidRequest:  # no position of this feed
                return self._anew()
        if self._next >= hub.count and not await hub.news(seconds):
            return None
        if not hub.first <= self._next < hub.count:
            return b""
        batch = hub.batch(self._next)
        self._next += 1
        self.position = batch.end
        return batch.frames(self._principal)

    async def _from_store(self) -> bytes:
        """One page of what this client missed, up to where the hub was when we began."""
        hub = self._hub
        at = self._catching_up
        if at is None:
            place = hub.place_of(self.position)
            if place is not None:
                return self._rest_of(place)
            at = self._catching_up = CatchingUp(self.position, hub.end, hub.count)
        if at.is_there:
            return self._arrived(at.number)
        news = await read_news(hub.ai, at.cursor, _PAGE)
        events = [happened(n) for n in at.take(news)]
        self.position = at.position
        out = b"".join(e.frame for e in events if e.concerns(self._principal))
        if not at.is_there and len(news) < _PAGE:
            self._catching_up = None
            return out + await self._ahead(bool(news))
        return out

    def _rest_of(self, place: int) -> bytes:
        batch = self._hub.batch(place)
        rest = iter(batch.events)
        for event in rest:
            if event.position == self.position:
                break
        self._next, self.position = place + 1, batch.end
        return b"".join(e.frame for e in rest if e.concerns(self._principal))

    def _arrived(self, number: int) -> bytes:
        self._next, self._catching_up = number, None
        return b""

    async def _ahead(self, came_on: bool) -> bytes:
        """The feed has no more, and we did not come by where the hub is: this client knows something newer.

        Once the hub has read the feed to its end since, it knows whatever there is. What is still unknown to it then is no
        position of this feed (the store was made anew), so the client goes on from here.
        """
        hub = self._hub
        if came_on or hub.reads < self._reads + 2:
            await hub.news(0.5)
            return b""
        return self._anew()

    def _anew(self) -> bytes:
        self._catching_up = None
        self._next, self.position = self._hub.count, self._hub.end
        return reset(self.position)


class CatchingUp:
    """From a client's position to the one where the hub was, whose next batch has this `number`.

    A position is one in each store. The client may be behind in one store and not in another, so each is led to its goal,
    and what is beyond that is left to the hub.
    """

    def __init__(self, position: str, goal: str, number: int) -> None:
        self._goal = goal.split(",")
        at = position.split(",") if position else []
        self._at = [*at, *self._goal[len(at) :]]
        self._read = list(self._at)
        self.number = number

    @property
    def position(self) -> str:
        return ",".join(self._at)

    @property
    def cursor(self) -> str:
        """From where to read on."""
        return ",".join(self._read)

    @property
    def is_there(self) -> bool:
        return self._at == self._goal

    def take(self, news: Sequence[News]) -> list[News]:
        """Those that the client is to get, each with its position."""
        out: list[News] = []
        for item in news:
            if self.is_there:
                break
            before, self._read = self._read, item.change.position.split(",")
            for n, (old, new) in enumerate(zip(before, self._read, strict=True)):
                if old != new and self._at[n] != self._goal[n]:
                    self._at[n] = new
                    out.append(replace(item, change=replace(item.change, position=self.position)))
        return out


def reset(position: str) -> bytes:
    """Tells a client to look at everything anew: where it was is not known here."""
    return b"id: %s\nevent: reset\ndata: {}\n\n" % position.encode()
