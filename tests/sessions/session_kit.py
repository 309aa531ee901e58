"""What the session tests share: places to keep sessions in, and applications as separate processes would have them."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from adjourn import Adjourn, Agent, AgentInit, AgentSession, Interrupt, MemoryStore, Message, Store, ToolRunContext
from adjourn.errors import StoreUnavailable
from adjourn.promise import Promise
from adjourn.store import InMemoryLatestStateStore
from adjourn.testing import FakeClock, ScriptedModel
from adjourn.tool import Tool

KINDS = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


class Place:
    """Where sessions are kept. `open` gives one more store on the same rows, as another process would have it."""

    def __init__(self, kind: str, opener: Callable[[], Store]) -> None:
        self.kind = kind
        self._opener = opener
        self._opened: list[Store] = []
        self._undo: list[Callable[[], None]] = []

    def open(self) -> Store:
        store = self._opener()
        self._opened.append(store)
        return store

    def at_end(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def close(self) -> None:
        for store in self._opened:
            store.close()
        for undo in self._undo:
            undo()


def make_place(kind: str, tmp_path: Path, dsn: Callable[[], str]) -> Place:
    """A fresh, empty place of this kind. Skips, with the reason, where the kind is not there."""
    if kind == "memory":
        memory = MemoryStore()
        return Place(kind, lambda: memory)
    if kind == "latest":
        latest = InMemoryLatestStateStore()
        return Place(kind, lambda: latest)
    if kind == "sqlite":
        sqlite = _store_class("sqlite", "SQLiteStore")
        path = tmp_path / f"{uuid.uuid4().hex}.db"
        return Place(kind, lambda: sqlite(path))
    return _postgres_place(_store_class("postgres", "PostgresStore"), dsn())


def _store_class(module: str, name: str) -> Any:
    found = pytest.importorskip(f"adjourn.stores.{module}", reason=f"adjourn.stores.{module} is not written yet")
    if not hasattr(found, name):
        pytest.skip(f"adjourn.stores.{module} has no {name} yet")
    return getattr(found, name)


def _postgres_place(store_class: Any, dsn: str) -> Place:
    import psycopg

    schema = f"t_{uuid.uuid4().hex}"
    place = Place("postgres", lambda: store_class(dsn, schema=schema, connections=2))

    def drop() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'drop schema if exists "{schema}" cascade'.encode())

    place.at_end(drop)
    return place


class Question(BaseModel):
    text: str


class Verdict(BaseModel):
    ok: bool
    note: str = ""


class Process:
    """One application with the agent "clerk", as one process has it. `log`, what its tools did, outlives it.

    Its tools: `pay` pauses, and pays when it is sent round again; `look` is plain; `stamp` is plain and idempotent; `ask`
    is respond-only with a typed response.
    """

    def __init__(
        self,
        store: Store | None,
        log: list[Any],
        replies: Sequence[Any] = (),
        *,
        clock: Any = None,
        define: "Callable[[Process], Any] | None" = None,
        app: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.log = log
        self.store = store
        self.model = ScriptedModel(list(replies))
        if clock is not None:
            app = {"clock": clock, **(app or {})}
        self.ai = Adjourn(model=self.model, **(app or {}))
        _define_tools(self.ai, log)
        if define is not None:
            define(self)
        self.agent: Agent = self.ai.define_agent("clerk", store=store, **options)

    def connect(self, session_id: str | None = None, **init: Any) -> AgentSession:
        return self.agent.connect(AgentInit(session_id=session_id, **init))


def _define_tools(ai: Adjourn, log: list[Any]) -> None:
    @ai.tool()
    async def pay(amount: int, ctx: ToolRunContext) -> Any:
        """Pays, once somebody said so."""
        if not ctx.is_resumed():
            log.append(("asked", amount))
            raise Interrupt({"amount": amount})
        log.append(("paid", amount))
        return {"paid": amount, "note": ctx.resumed_metadata}

    @ai.tool()
    async def look(key: str) -> Any:
        log.append(("looked", key))
        return {"found": key}

    @ai.tool(idempotent=True)
    async def stamp(key: str, ctx: ToolRunContext) -> Any:
        log.append(("stamped", key, ctx.idempotency_key))
        return {"stamped": key}

    ai.define_interrupt("ask", "Asks a person.", Question, Verdict)


def having(one: Tool[..., Any]) -> Callable[[Process], Any]:
    """What `define=` takes, for a process that has one more tool."""
    return lambda p: p.ai.add_tool(one)


class World:
    """A place, a clock that only moves when it is told to, and the log of all side effects."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.log: list[Any] = []
        self.clock = FakeClock()

    def process(self, *replies: Any, store: Store | None = None, **options: Any) -> Process:
        """A fresh application with a store of its own on the same rows."""
        options.setdefault("clock", self.clock)
        return Process(store or self.place.open(), self.log, replies, **options)

    def done(self, what: str) -> list[Any]:
        """What was done of this kind, in order: ("paid", 5) gives 5."""
        return [entry[1] for entry in self.log if entry[0] == what]

    def pass_lease(self) -> None:
        self.clock.time += 16.0


async def paused(world: World, *replies: Any, owner: str | None = None, **options: Any) -> tuple[Process, Any]:
    process = world.process(*replies, **options)
    session = process.agent.connect(AgentInit(owner=owner))
    await session.send("go").output
    assert session.interrupts
    return process, session


def desk(world: World) -> Adjourn:
    """A process that has the store and knows the agent by name only: it can look and decide, and runs nothing."""
    ai = Adjourn(clock=world.clock)
    ai.define_agent("desk", store=world.place.open(), tools=[])
    return ai


class Mortal:
    """A store as a process sees it that dies at its nth commit (0 is the first): before it, or right after it.

    From then on nothing that the process asks of the store is done.
    """

    def __init__(self, inner: Store, dies_at: int, after: bool = False) -> None:
        self.inner = inner
        self.lease_seconds = inner.lease_seconds
        self.dead = False
        self.commits = 0
        self._dies_at = dies_at
        self._after = after

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Promise[Any]:
        if self.dead:
            return _refused()
        if read:
            return self.inner.submit(work, read=True)
        position, self.commits = self.commits, self.commits + 1
        if position < self._dies_at:
            return self.inner.submit(work)
        self.dead = True
        if self._after:
            self.inner.submit(work).result()
        return _refused()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self.inner.subscribe(callback)

    def close(self) -> None:
        """The place closes what is inside."""


def _refused() -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(StoreUnavailable("the process died"))
    return future


def assert_sendable(messages: Sequence[Message]) -> None:
    """Each tool request has exactly one response, in request order, in the message after it."""
    waiting: list[Any] = []
    for message in messages:
        responses = [(p.tool_response.name, p.tool_response.ref) for p in message.content if p.tool_response]
        assert responses == waiting, messages
        waiting = [(p.tool_request.name, p.tool_request.ref) for p in message.content if p.tool_request]
    assert waiting == []


def outputs_of(messages: Sequence[Message]) -> list[Any]:
    """All tool outputs, in order."""
    return [p.tool_response.output for m in messages if m.role == "tool" for p in m.content if p.tool_response]


def shown(session: Any) -> list[tuple[Any, ...]]:
    """The open interrupts as comparable values."""
    return [(i.id, i.name, i.input, i.payload, i.reason, i.allow) for i in session.interrupts]


def same(a: Any, b: Any) -> bool:
    """Whether two messages or lists of them are one and the same on the wire."""
    return bool(msgspec.to_builtins(a) == msgspec.to_builtins(b))


async def texts(session: AgentSession) -> list[tuple[str, str]]:
    return [(m.role, m.text) for m in session.messages if m.text]


async def until(condition: Callable[[], Any]) -> None:
    """Returns when the condition holds, which other tasks bring about."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - they are other processes', as far as this one knows
            await asyncio.sleep(0.001)
