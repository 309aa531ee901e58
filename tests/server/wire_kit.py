"""What the tests of the wire share: an application whose model follows simple orders, and a real uvicorn around it."""

import asyncio
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from adjourn import Adjourn, Chunk, Interrupt, Message, ModelReply, ModelRequest, Part, Store, ToolRunContext
from adjourn.parts import Artifact
from adjourn.server import Auth, Principal, ServerSettings, create_app
from adjourn.server.serving import uvicorn_options
from adjourn.server.tokens import Token, hashed
from adjourn.testing import call

TOKENS = {
    "ann": "token-of-ann-0123456789-abcdef",
    "ben": "token-of-ben-0123456789-abcdef",
    "root": "token-of-root-0123456789-abcdef",
}
TOKENS["eve"] = "token-of-eve-0123456789-abcdef"
QUICK = ServerSettings(
    requests_per_minute=0, requests_per_minute_per_address=0, drain_seconds=0.2, secret="a secret of these tests, 1234"
)


def auth(**options: Any) -> Auth:
    """ann and ben decide on their own, root on everything, and eve only looks."""
    roles = {"ann": "decide", "ben": "decide", "root": "admin", "eve": "view"}
    tokens: list[Token] = [hashed(TOKENS[name], name, roles[name]) for name in roles]  # pyright: ignore[reportArgumentType]
    return Auth(tokens=tokens, **options)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def principal(name: str, **scopes: Any) -> Principal:
    return Principal(name, "decide", **scopes)


async def obedient(request: ModelRequest, emit: Any) -> ModelReply:
    """A model that does as it is told: "pay 5", "pay 5 pay 6", "look at x", "note x", "fail"; anything else it repeats.

    What it says is streamed word by word.
    """
    last = request.messages[-1]
    if last.role == "tool":
        results = [r.output for r in last.tool_responses]
        return _said(f"done: {results[0] if len(results) == 1 else results}", emit)
    words = last.text.split()
    orders = [call(w, {"amount": int(words[i + 1])}, ref=f"r{i}") for i, w in enumerate(words) if w in ("pay", "slow")]
    orders += [call(w, {"text": words[i + 1]}, ref=f"r{i}") for i, w in enumerate(words) if w == "note"]
    orders += [call("explode", {}, ref="r0")] if words == ["explode"] else []
    if orders:
        return ModelReply(Message("model", orders))
    return _said(f"you said {last.text}", emit)


def _said(text: str, emit: Any) -> ModelReply:
    for word in text.split(" "):
        emit(Chunk(content=[Part(text=word + " ")]))
    return ModelReply(Message("model", [Part(text=text)]))


class Clerk:
    """An application with the agents "clerk" (stored) and "guest" (its clients keep the state). `paid` is what was paid."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.store = store
        self.paid: list[Any] = []
        self.blocked = threading.Event()
        self.ai = Adjourn(model="obedient", **options)
        self.ai.define_model("obedient", obedient)
        self._define()
        self.clerk = self.ai.define_agent("clerk", store=store)
        self.guest = self.ai.define_agent("guest")

    def _define(self) -> None:
        @self.ai.tool()
        async def pay(amount: int, ctx: ToolRunContext) -> Any:
            """Pays, once somebody said so; 13 it asks about twice."""
            asked = len(ctx.restarts)
            if asked < (2 if amount == 13 else 1):
                raise Interrupt({"amount": amount, "asked": asked})
            self.paid.append(amount)
            return {"paid": amount, "note": ctx.resumed_metadata}

        @self.ai.tool()
        async def slow(amount: int) -> str:
            """Takes until it is aborted."""
            self.blocked.set()
            await asyncio.Event().wait()
            return "never"

        @self.ai.tool()
        async def note(text: str, ctx: ToolRunContext) -> str:
            """Keeps a note in the session, and an artifact."""
            session: Any = ctx.session
            before: dict[str, Any] = session.state or {}
            notes: Sequence[Any] = before.get("notes", [])
            session.update_state({"notes": [*notes, text]})
            session.add_artifact(Artifact("notes", [Part(text=text)]))
            return text

        @self.ai.tool()
        async def explode() -> str:
            """Fails."""
            raise RuntimeError("a secret detail")


class Serving:
    """A server that runs. `url` is where."""

    def __init__(self, url: str, app: Any) -> None:
        self.url = url
        self.app = app

    def client(self, name: str | None = "ann", **options: Any) -> httpx.Client:
        headers = bearer(name) if name is not None else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30.0, trust_env=False, **options)


@contextmanager
def serving(
    ai: Adjourn, access: Auth | None = None, settings: ServerSettings = QUICK, **options: Any
) -> Generator[Serving]:
    """A real uvicorn on a free port of the loopback address, in a thread, for as long as this lasts."""
    app = create_app(ai, access or auth(), settings=settings, **options)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", **uvicorn_options(settings))
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert server.up.wait(30), "the server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Serving(f"http://127.0.0.1:{port}", app)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()
