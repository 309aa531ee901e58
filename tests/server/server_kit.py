"""What the tests of the API share: an application that does as it is told, people with tokens, and a real uvicorn."""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn
from pydantic import BaseModel

from adjourn import Adjourn, Interrupt, MemoryStore, ModelRequest, Store, ToolRunContext
from adjourn.server import Auth, Server, ServerSettings, Token, create_app
from adjourn.server.serving import uvicorn_options
from adjourn.server.tokens import hashed
from adjourn.testing import ScriptedModel, call

SECRET = "a-secret-of-these-tests-0123456789"
UNLIMITED = ServerSettings(
    secret=SECRET,
    requests_per_minute=0,
    requests_per_minute_per_address=0,
    logins_per_minute=0,
    sweep_seconds=3600,
    drain_seconds=0.05,
)


def words(name: str) -> str:
    """The token of somebody, in plain."""
    return f"token-of-{name}-0123456789abcdef"


def token(name: str, role: Any = "decide", **scopes: Any) -> Token:
    return hashed(words(name), name, role, **scopes)


PEOPLE: Sequence[Token] = (
    token("vera", "view"),
    token("ann", "decide"),
    token("ben", "decide"),
    token("wide", "decide", owners=("*",)),
    token("looker", "view", owners=("*",)),
    token("root", "admin"),
)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {words(name)}"}


class Verdict(BaseModel):
    ok: bool
    note: str = ""


class Question(BaseModel):
    text: str


def obey(request: ModelRequest) -> Any:
    """Does what the last message says: `pay 5`, `ask why`, `ship 7`, `pay 5 and pay 6`; else it repeats it."""
    last = request.messages[-1]
    if last.role == "tool":
        return "done"
    if last.text == "fail":
        raise RuntimeError("the model is broken")
    orders: list[Any] = []
    for order in last.text.split(" and "):
        verb, _, what = order.partition(" ")
        if verb in ("pay", "ship") and what.isdigit():
            orders.append(call(verb, {"amount": int(what)}))
        elif verb == "ask":
            orders.append(call("ask", {"text": what}))
        elif verb == "wait":
            orders.append(call("wait", {}))
    return orders or f"you said {last.text}"


class Office:
    """One application: agents `clerk` (stored), `depot` (stored) and `loose` (keeps nothing). `log` is what tools did."""

    def __init__(self, store: Store | None = None, **options: Any) -> None:
        self.store = store or MemoryStore()
        self.log: list[Any] = []
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.model = ScriptedModel([obey], repeat_last=True)
        self.ai = Adjourn(model=self.model, **options)
        self._define()
        self.ai.define_agent("clerk", store=self.store, description="Pays.")
        self.ai.define_agent("depot", store=self.store)
        self.ai.define_agent("loose")

    def _define(self) -> None:
        @self.ai.tool()
        async def pay(amount: int, ctx: ToolRunContext) -> Any:
            """Pays, once somebody said so."""
            if not ctx.is_resumed():
                raise Interrupt({"amount": amount})
            self.log.append(("paid", amount))
            return {"paid": amount}

        @self.ai.tool(approval=True)
        async def ship(amount: int) -> Any:
            self.log.append(("shipped", amount))
            return amount

        @self.ai.tool()
        async def wait() -> str:
            self.waiting.set()
            await self.gate.wait()
            return "waited"

        self.ai.define_interrupt("ask", "Asks a person.", Question, Verdict)


def app_of(office: Office, *, people: Sequence[Token] = PEOPLE, auth: Auth | None = None, **settings: Any) -> Server:
    given = {name: getattr(UNLIMITED, name) for name in ServerSettings.__struct_fields__} | settings
    return create_app(office.ai, auth or Auth(tokens=people), settings=ServerSettings(**given))


class Caller:
    """A person with a token, at a server."""

    def __init__(self, client: httpx.AsyncClient, name: str | None, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._headers = bearer(name) if name is not None else {}

    async def __call__(self, method: str, path: str, json: Any = None, **options: Any) -> httpx.Response:
        headers = {**self._headers, **options.pop("headers", {})}
        if json is not None:
            options["json"] = json
        return await self._client.request(method, self._prefix + path, headers=headers, **options)

    async def get(self, path: str, **options: Any) -> Any:
        reply = await self("GET", path, **options)
        assert reply.status_code == 200, (path, reply.status_code, reply.text)
        return reply.json()

    async def say(self, text: str, agent: str = "clerk", **body: Any) -> Any:
        reply = await self("POST", f"/api/agents/{agent}/send", {"message": text, **body})
        assert reply.status_code == 200, (reply.status_code, reply.text)
        return reply.json()

    async def pause(self, text: str = "pay 5", agent: str = "clerk") -> str:
        """The id of a new interrupt."""
        return str((await self.say(text, agent))["interrupts"][0]["id"])


class People:
    """Everybody, at one server."""

    def __init__(self, client: httpx.AsyncClient, prefix: str = "") -> None:
        self.client = client
        self._prefix = prefix

    def __getitem__(self, name: str | None) -> Caller:
        return Caller(self.client, name, self._prefix)


@asynccontextmanager
async def at(
    app: Any, *, client: tuple[str, int] = ("127.0.0.1", 4711), lifespan: bool = True
) -> AsyncGenerator[People]:
    """People at an application, without a socket."""
    transport = httpx.ASGITransport(app, client=client)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver", timeout=20) as http:
        # Not the whole lifespan: Litestar's must end in the task it began in, and a fixture's end may be in another.
        if lifespan:
            await app.state.lifetime.start()
        try:
            yield People(http)
        finally:
            if lifespan:
                await app.state.lifetime.stop()


@contextmanager
def served(app: Any, settings: ServerSettings = UNLIMITED, **options: Any) -> Generator[str]:
    """The address of the application on a real uvicorn, on a port of the loopback, in a thread of its own."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    given: dict[str, Any] = {"log_level": "critical", **uvicorn_options(settings), "timeout_graceful_shutdown": 2}
    server = uvicorn.Server(uvicorn.Config(app, **(given | options)))
    ready = threading.Event()
    startup = server.startup

    async def started(sockets: Any = None) -> None:
        await startup(sockets)
        ready.set()

    server.startup = started
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        assert ready.wait(20), "the server did not start"
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()
        assert not thread.is_alive(), "the server did not stop"


async def until(condition: Any, seconds: float = 10.0) -> None:
    """Returns when the condition (a function, plain or async) holds."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)
