"""What the webhook tests share: a receiver on the loopback address that does as it is told, and an application that pauses."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from pydantic import BaseModel

from adjourn import Adjourn, AgentInit, Interrupt, Store
from adjourn.parts import new_id
from adjourn.server.webhooks import Bounds, Webhook, verify
from adjourn.testing import FakeClock, ScriptedModel, call

SECRET = "a secret of the webhook tests"


class Received:
    """One request that came: its headers in lower case, and its body."""

    def __init__(self, line: str, headers: dict[str, str], body: bytes) -> None:
        self.line = line
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return verify(SECRET, self.headers, self.body)

    @property
    def told(self) -> tuple[str, str]:
        """The event and the interrupt."""
        return self.json["type"].removeprefix("interrupt."), self.json["data"]["interruptId"]


class Receiver:
    """An HTTP server. `replies` are used up one by one (an int, or the raw bytes to answer with), then `then` for ever."""

    def __init__(self) -> None:
        self.came: list[Received] = []
        self.replies: list[int | bytes] = []
        self.then: int | bytes = 204
        self.port = 0
        self.connections = 0
        self.stalls = False
        self.hold: asyncio.Event | None = None
        """The next request is answered once this is set."""
        self._news = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def until(self, many: int) -> Sequence[Received]:
        """Waits until so many requests came."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: len(self.came) >= many)
        return self.came

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *rest = head.strip().split("\r\n")
        headers = {k.lower(): v for k, _, v in (h.partition(": ") for h in rest)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        async with self._news:
            self.came.append(Received(line, headers, body))
            self._news.notify_all()
        hold, self.hold = self.hold, None
        if hold is not None:
            await hold.wait()
        reply = self.replies.pop(0) if self.replies else self.then
        raw = f"HTTP/1.1 {reply} X\r\ncontent-length: 0\r\n\r\n".encode() if isinstance(reply, int) else reply
        writer.write(raw)
        await writer.drain()
        if self.stalls:
            await asyncio.Event().wait()
        return isinstance(reply, int)


@asynccontextmanager
async def receiving() -> AsyncGenerator[Receiver]:
    receiver = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await receiver.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the test is over

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def hook(url: str, **options: Any) -> Webhook:
    options = {"allow": ("127.0.0.0/8",), "bounds": Bounds(5.0), "backoff": 10.0, **options}
    return Webhook(url=url, secret=SECRET, **options)


class Order(BaseModel):
    n: int


class Office:
    """An application whose agent pauses whenever it is spoken to."""

    def __init__(self, store: Store, clock: Any = None) -> None:
        self.clock = clock or FakeClock()
        self.store = store
        self.ai = Adjourn(model=ScriptedModel([self._reply], repeat_last=True), clock=self.clock)
        self.ai.define_interrupt("pay", "Asks whether to pay.", Order)
        self.ai.define_interrupt("sign", "Asks for a signature.", Order)

        @self.ai.tool()
        async def brief(n: int) -> str:
            """Does not wait long."""
            raise Interrupt(expires_in=60)

        self.agent = self.ai.define_agent("clerk", store=store)

    def _reply(self, request: Any) -> Any:
        last = request.messages[-1]
        return "done" if last.role == "tool" else [call(last.text, {"n": 1}, ref=new_id())]

    async def pause(self, tool: str = "pay", owner: str = "ann") -> str:
        """The id of a new interrupt of this tool."""
        session = self.agent.connect(AgentInit(owner=owner))
        return (await session.send(tool).output).interrupts[0].id

    async def decide(self, interrupt_id: str, by: str = "ben") -> None:
        accepted = await self.ai.inbox.respond(interrupt_id, {"ok": True}, by=by)
        if accepted.turn is not None:
            await accepted.turn.settled()


def body_of(received: Received) -> Any:
    return msgspec.json.decode(received.body)
