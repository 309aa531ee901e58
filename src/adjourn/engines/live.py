"""Live news of a turn that runs on another machine: from the worker straight to whoever watches, best effort.

Whoever watches listens on a socket, and its address, with a secret that belongs to this one leg, travels with the work.
The worker connects and writes one line of JSON a piece of news; the other way comes at most one line: stop. Nothing
depends on it. What a broken line loses is in the journal, which is read when the leg rests.
"""

import asyncio
import secrets
import weakref
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from adjourn.events import Json
from adjourn.parts import Artifact, Chunk
from adjourn.setting import Progress
from adjourn.stream import StreamChunk, Watcher

_LONGEST_LINE = 8 * 1024 * 1024
_UNSENT = 4 * 1024 * 1024
"""How much a slow watcher may leave unread before news are dropped: the turn never waits for it."""


class News(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line. `rests` says that the store has more, `stop` that nobody wants the rest, and why."""

    chunk: Chunk | None = None
    progress: Progress | None = None
    artifact: Artifact | None = None
    patch: Json = None
    rests: bool = False
    stop: str = ""


_decoder = msgspec.json.Decoder(News)


class LiveLine:
    """One leg's line, at the watcher's end."""

    def __init__(self, watcher: Watcher | None, forget: Callable[[], None], address: str = "") -> None:
        self.address = address
        self.rang = asyncio.Event()
        self.heard = False
        self._messages = 0
        self._watcher = watcher
        self._forget = forget
        self._writers: set[asyncio.StreamWriter] = set()

    def hang_up(self, reason: str = "") -> None:
        if reason:
            line = msgspec.json.encode(News(stop=reason)) + b"\n"
            for writer in self._writers:
                writer.write(line)
            return
        self._forget()
        for writer in self._writers:
            writer.close()

    async def read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes what a worker says until it hangs up."""
        self._writers.add(writer)
        self.heard = True
        base = self._messages  # each worker counts the messages of its own step
        try:
            while line := await reader.readline():
                self._take(_decoder.decode(line), base)
        finally:
            self._writers.discard(writer)

    def _take(self, news: News, base: int) -> None:
        if news.rests:
            self.rang.set()
        watcher = self._watcher
        if watcher is None:
            return
        if news.chunk is not None:
            index = base + news.chunk.index
            self._messages = max(self._messages, index + 1)
            watcher(replace(news.chunk, index=index))
        elif news.progress is not None:
            watcher(news.progress)
        elif news.artifact is not None:
            watcher.feed.put(StreamChunk(artifact=news.artifact))
        elif news.patch is not None:
            watcher.feed.put(StreamChunk(custom_patch=news.patch))


class Switchboard:
    """Where the watchers of one process listen: one socket an event loop, opened when it is first wanted."""

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._servers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[asyncio.Server, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._lines: dict[str, LiveLine] = {}

    async def line(self, watcher: Watcher | None) -> LiveLine:
        """A new line. Without a host it only has no address, so that nobody calls."""
        if self._host is None:
            return LiveLine(watcher, lambda: None)
        loop = asyncio.get_running_loop()
        known = self._servers.get(loop)
        if known is None:
            server = await asyncio.start_server(self._answer, self._host, 0, limit=_LONGEST_LINE)
            known = self._servers.setdefault(loop, (server, server.sockets[0].getsockname()[1]))
            if known[0] is not server:  # another leg was faster
                server.close()
        token = secrets.token_hex(16)
        line = LiveLine(watcher, lambda: (self._lines.pop(token, None), None)[1], f"{self._host}:{known[1]}/{token}")
        self._lines[token] = line
        return line

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            token = (await asyncio.wait_for(reader.readline(), 10.0)).decode("ascii", "replace").strip()
            line = self._lines.get(token)
            if line is not None:
                await line.read(reader, writer)
        except (OSError, TimeoutError, ValueError, msgspec.DecodeError):
            pass  # a broken line, or nobody we know
        finally:
            writer.close()

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        known = self._servers.pop(loop, None)
        if known is not None:
            known[0].close()


class Caller:
    """The worker's end of a line. Where there is none, nothing is sent."""

    def __init__(self, address: str, stop: Callable[[str], None]) -> None:
        self.watcher = Watcher()
        self._address = address
        self._stop = stop
        self._rests = False
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Caller":
        place, _, token = self._address.partition("/")
        host, _, port = place.rpartition(":")
        if not token or not port.isdigit():
            return self
        try:
            opening = asyncio.open_connection(host, int(port), limit=_LONGEST_LINE)
            reader, self._writer = await asyncio.wait_for(opening, 2.0)
            self._writer.write(token.encode() + b"\n")
        except (OSError, TimeoutError):
            self._writer = None
            return self
        self._tasks = [asyncio.create_task(self._pump()), asyncio.create_task(self._hear(reader))]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.watcher.feed.close()
        writer = self._writer
        if writer is None:
            return
        pump, hear = self._tasks
        try:
            await asyncio.wait_for(pump, 1.0)
            if self._rests:
                self._send(News(rests=True))
            await asyncio.wait_for(writer.drain(), 1.0)
        except (OSError, TimeoutError):
            pass
        hear.cancel()
        writer.close()

    def rests(self) -> None:
        """Tells whoever waits, when all else was told, that the store has what it waits for."""
        self._rests = True

    async def _pump(self) -> None:
        async for item in self.watcher.feed:
            if item.raw is not None:
                self._send(News(item.raw))
            elif item.progress is not None:
                self._send(News(progress=item.progress))
            elif item.artifact is not None:
                self._send(News(artifact=item.artifact))
            elif item.custom_patch is not None:
                self._send(News(patch=item.custom_patch))

    def _send(self, news: News) -> None:
        writer = self._writer
        if writer is not None and not writer.is_closing() and writer.transport.get_write_buffer_size() < _UNSENT:
            writer.write(msgspec.json.encode(news) + b"\n")

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                news = _decoder.decode(line)
                if news.stop:
                    self._stop(news.stop)
        except (OSError, ValueError, msgspec.DecodeError):
            pass
