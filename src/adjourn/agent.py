"""Agents: a model, instructions and tools, with sessions that pause and resume."""

import asyncio
import hashlib
import hmac
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from adjourn.arguments import check_is_store, check_text, is_text, short
from adjourn.clock import Clock
from adjourn.engine import Engine, end_leg
from adjourn.errors import (
    DefinitionError,
    InvalidRequest,
    InvalidState,
    MissingExtra,
    ModelError,
    SessionNotFound,
    UnknownModel,
)
from adjourn.events import Limits
from adjourn.handle import AgentInit, AgentOutput, AgentTurn, Resume, SessionState
from adjourn.lease import Keeper, transact
from adjourn.loading import Loaded, load, stand
from adjourn.model import Emit, Model, ModelRegistry, ModelReply, ModelRequest, ToolDefinition, as_reply
from adjourn.nested import delegate
from adjourn.observe import Observer
from adjourn.parts import Artifact, Message, Part, canonical, to_json, told, wire
from adjourn.records import INNER, unknown_snapshot
from adjourn.schema import Misfit, TypeShape
from adjourn.session import AgentSession
from adjourn.setting import Handlers, Prepare, Setting, as_handlers
from adjourn.store import InMemoryLatestStateStore, MemoryStore, Snapshot, Store
from adjourn.tool import Tool, ToolOptions, ToolRunContext, shape_of

__all__ = [
    "Agent",
    "AgentInit",
    "AgentOptions",
    "AgentOutput",
    "AgentSession",
    "AgentTurn",
    "CustomAgent",
    "Host",
    "InMemoryLatestStateStore",
    "MemoryStore",
    "Resume",
    "SessionState",
    "SnapshotView",
    "TurnContext",
    "WhilePaused",
]

WhilePaused = Literal["refuse", "decline", "queue"]


class Host(Protocol):
    """The application, as far as an agent needs it."""

    limits: Limits
    clock: Clock
    keeper: Keeper
    holder: str
    observers: Sequence[Observer]
    engine: Engine | None
    running: dict[str, AgentTurn]
    tools: dict[str, Tool[..., Any]]
    secrets: Sequence[bytes]
    inner_store: MemoryStore
    models: ModelRegistry

    def find_model(self, model: "str | Model | None") -> Model: ...

    def pick_tools(self, tools: Sequence[Any]) -> Mapping[str, Tool[..., Any]]: ...

    def definitions(self, tools: Mapping[str, Tool[..., Any]]) -> Sequence[ToolDefinition]: ...


@dataclass(frozen=True)
class AgentOptions:
    """What an agent is made of. `tools=None` means every tool of the application, `()` none."""

    model: str | Model | None = None
    system: str | None = None
    tools: Sequence[Any] | None = None
    store: Store | None = None
    state: Any = None
    output: Any = None
    config: Any = None
    limits: Limits | None = None
    prepare: Prepare | None = None
    on_interrupt: Handlers = None
    on_message_while_paused: WhilePaused = "refuse"
    description: str = ""
    context: Any = None

    def __post_init__(self) -> None:
        if self.on_message_while_paused not in ("refuse", "decline", "queue"):
            raise DefinitionError(
                f"on_message_while_paused={self.on_message_while_paused!r}: give 'refuse', 'decline' or 'queue'"
            )
        for name, kind, wanted in (("system", str, "a text"), ("limits", Limits, "Limits(...)")):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise DefinitionError(f"{name}={given!r}: give {wanted}")
        if self.store is not None:
            check_is_store(self.store)


class SnapshotView:
    """One snapshot, as `agent.get_snapshot` shows it: the row, and the whole session seen from it.

    `status` is "expired" for a running one whose process has stopped answering.
    """

    def __init__(self, loaded: Loaded, limits: Limits, now: float) -> None:
        self.row: Snapshot = loaded.chain[-1]
        self.id = self.row.id
        self.session_id = self.row.session_id
        self.parent_id = self.row.parent_id
        self.finish_reason = self.row.finish_reason
        self.error = self.row.error
        standing = stand(loaded, limits)
        messages = [*standing.history]
        if standing.turn is not None:
            from adjourn.transcript import write

            messages = write(standing.turn) if self.row.messages is None else [*standing.history, *self.row.messages]
        self.messages: list[Message] = messages
        self.state: Any = standing.state
        self.artifacts: Sequence[Artifact] = standing.artifacts
        gone = self.row.status == "pending" and loaded.session.head == self.id and loaded.session.lease_until <= now
        self.status: str = "expired" if gone else self.row.status


class Agent:
    """An agent of an application. `connect` opens a session, new or stored."""

    def __init__(self, host: Host, name: str, options: AgentOptions) -> None:
        self._host = host
        self._options = options
        self.name = name
        self.store = options.store
        self.description = options.description or options.system or f"The agent {name}."
        self.limits = options.limits or host.limits
        self.clock = host.clock
        self.keeper = host.keeper
        self.holder = host.holder
        self.running = host.running
        self.on_message_while_paused: str = options.on_message_while_paused
        self._state: TypeShape | None = shape_of(options.state) if options.state is not None else None
        self._output: TypeShape | None = shape_of(options.output) if options.output is not None else None
        self._tools: Mapping[str, Tool[..., Any]] | None = None
        self._definitions: Sequence[ToolDefinition] = ()
        self._system = Message("system", [Part(text=options.system)]) if options.system else None
        if options.tools is not None:
            self._tools = host.pick_tools(options.tools)
            self._definitions = host.definitions(self._tools)
            as_handlers(options.on_interrupt, self._tools)  # a misspelt name is refused here
        self._check_model()

    @property
    def observers(self) -> Sequence[Observer]:
        """Those of its application."""
        return self._host.observers

    # -- sessions ----------------------------------------------------------------------------------------------------

    def connect(self, init: AgentInit | None = None) -> AgentSession:
        """Opens a session: a new one, a stored one by its id or one of its snapshots, or a client-managed state."""
        if init is not None and not isinstance(init, AgentInit):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"connect({init!r}): give AgentInit(session_id=...), or nothing for a new session")
        init = init or AgentInit()
        if not isinstance(init.state, (SessionState, NoneType)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"AgentInit(state=...) takes a session's client_state and was given {short(init.state)}. One that came as "
                "JSON is read with msgspec.json.decode(raw, type=SessionState); custom state is set by session.update_state(...)"
            )
        if init.state is not None:  # what JSON has not would be gone, and nobody told
            to_json(init.state.custom, "custom state")
            to_json(init.state.artifacts, "artifacts")
        state = init.state.session_id if init.state is not None else None
        for given in (init.session_id, init.snapshot_id, state):
            if given is not None and not _is_id(given):
                raise InvalidRequest(
                    f"{short(given)} is no id that a session can have: give 1 to 200 letters (a to z), digits and . : _ -, "
                    f"not beginning with {INNER!r}"
                )
        if init.owner is not None and not _is_name(init.owner):
            raise InvalidRequest(
                f"{short(init.owner)} is nobody's name: give an owner of 1 to 200 printable characters, not beginning with "
                f"{INNER!r}"
            )
        self._check_model()
        return AgentSession(self, init)

    async def get_snapshot(
        self, *, snapshot_id: str | None = None, session_id: str | None = None
    ) -> SnapshotView | None:
        """One snapshot, or a session's newest; None where there is none. For looking, not for going on."""
        if (snapshot_id is None) == (session_id is None):
            raise DefinitionError("give exactly one of snapshot_id= and session_id=")
        loaded = await self._loaded(session_id, snapshot_id)
        if loaded is None or not loaded.chain:
            return None
        return SnapshotView(loaded, self.limits, self.clock.now())

    async def _loaded(self, session_id: str | None, snapshot_id: str | None) -> Loaded | None:
        if self.store is None:
            raise DefinitionError(f"agent {self.name!r} has no store, so it has no snapshots")
        if not is_text(session_id if snapshot_id is None else snapshot_id):
            return None
        work = partial(load, session_id=session_id, snapshot_id=snapshot_id)
        try:
            return await transact(self.store, work, read=True)
        except SessionNotFound:
            return None

    async def abort(self, snapshot_id: str, reason: str = "aborted") -> str | None:
        """Ends a running turn by its snapshot, from any process. Returns the status before; None where there is no such one.

        A turn that is over stays as it is. Raises SessionNotFound for what is the id of no snapshot at all, such as a session's.
        """
        check_text("reason", reason)
        loaded = await self._loaded(None, snapshot_id)
        if loaded is None or not loaded.chain:
            if not is_text(snapshot_id):
                raise unknown_snapshot(snapshot_id)
            if await self._loaded(snapshot_id, None) is not None:
                raise SessionNotFound(
                    f"{snapshot_id!r} is a session, and no snapshot: nothing was ended. Give the turn's snapshot_id, or open the "
                    "session and use its abort()"
                )
            return None  # as Genkit has it
        row = loaded.chain[-1]
        if row.status != "pending":
            return row.status
        here = self.running.get(snapshot_id)
        if here is not None:
            here.abort(reason)
            if here.loop is asyncio.get_running_loop():
                await here.settled()
            else:
                await self.wait(snapshot_id)  # it runs on another thread's loop
            return "pending"
        await self._abort_elsewhere(snapshot_id, reason)
        return "pending"

    async def wait(self, snapshot_id: str) -> SnapshotView:
        """Returns when the turn of this snapshot rests, whichever process runs it. Raises SessionNotFound.

        A turn whose process is gone counts as resting, with the status "expired".
        """
        if self.store is None:
            raise DefinitionError(f"agent {self.name!r} has no store, so its turns run in one process only")
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        end = self.store.subscribe(lambda: (loop.call_soon_threadsafe(news.set), None)[1])
        try:
            while True:
                news.clear()
                view = await self.get_snapshot(snapshot_id=snapshot_id)
                if view is None:
                    raise unknown_snapshot(snapshot_id)
                if view.status != "pending":
                    return view
                try:
                    # A notification can be lost, and a dead process sends none.
                    await asyncio.wait_for(news.wait(), self.store.lease_seconds / 3)
                except TimeoutError:
                    continue
        finally:
            end()

    async def _abort_elsewhere(self, snapshot_id: str, reason: str) -> None:
        assert self.store is not None
        now, lease, engine = self.clock.now(), self.store.lease_seconds, self.engine
        work = partial(end_leg, snapshot_id=snapshot_id, agent=self, reason=reason, now=now, lease=lease)
        ended = await transact(self.store, work)
        if ended is not None and engine is not None:
            await engine.wake(ended)

    @property
    def engine(self) -> Engine | None:
        """What runs the turns of its stored sessions, where the application has one."""
        return self._host.engine if self.store is not None else None

    @property
    def has_handlers(self) -> bool:
        """Whether `on_interrupt` handlers are asked about its pauses."""
        return self._options.on_interrupt is not None

    # -- what sessions need ------------------------------------------------------------------------------------------

    def find_tool(self, name: str) -> Tool[..., Any] | None:
        return self.tools.get(name)

    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]:
        """Its tools by name."""
        return self._host.tools if self._tools is None else self._tools

    def setting(self, session: AgentSession, context: Any) -> Setting:
        """What one leg is run with."""
        options, host = self._options, self._host
        tools = self.tools
        definitions = self._definitions if self._tools is not None else host.definitions(tools)
        model = self.model(session)
        host.models.check(model, definitions, options.config, self._output.schema if self._output else None)
        return Setting(
            model,
            tools,
            definitions,
            self._system,
            options.config,
            self._output,
            options.prepare,
            as_handlers(options.on_interrupt, tools),
            self._context(session) if context is None else context,
            session,
            None,
            None,
            None,
            self.clock,
            host.observers,
        )

    def _context(self, session: AgentSession) -> Any:
        """What tools are given where nobody gave them anything: a decision of the inbox goes on, or a worker."""
        given = self._options.context
        return given(session) if callable(given) else given

    def model(self, session: AgentSession) -> Model:
        """The model of a leg."""
        return self._host.find_model(self._options.model)

    def _check_model(self) -> None:
        """Raises SignatureError for what its model's provider cannot express, as far as tools and model are known yet."""
        options, host = self._options, self._host
        try:
            model = host.find_model(options.model)
        except (UnknownModel, MissingExtra):
            return  # perhaps defined later; the first turn tells
        if hasattr(model, "check"):
            definitions = self._definitions if self._tools is not None else host.definitions(host.tools)
            host.models.check(model, definitions, options.config, self._output.schema if self._output else None)

    def typed_state(self, value: Any) -> Any:
        """JSON as the `state=` type. Raises InvalidState."""
        if self._state is None or value is None:
            return value
        try:
            return self._state.validate(value)
        except Misfit as e:
            raise InvalidState(f"the state does not fit the state type of agent {self.name!r}: {e}") from None

    def value_of(self, text: str) -> Any:
        """A stored reply as the `output=` type; None where the agent has none, or another one than when it was given."""
        try:
            return self._output.parse(text) if self._output is not None else None
        except Misfit:
            return None

    def signed(self, state: SessionState) -> SessionState:
        """The state with a signature, where the application has a secret."""
        if not self._host.secrets:
            return state
        return replace(state, signature=_signature(self._host.secrets[0], self.name, state))

    def verified(self, state: SessionState) -> SessionState:
        """The state. Raises InvalidState where its signature is missing or does not fit."""
        secrets = self._host.secrets
        given = str(state.signature or "").encode(errors="replace")
        if secrets and not any(hmac.compare_digest(_signature(s, self.name, state).encode(), given) for s in secrets):
            raise InvalidState(
                "the session state was not signed by this application, or was altered since; it was refused. Pass the "
                "client_state exactly as it was given"
            )
        return state

    # -- nesting -----------------------------------------------------------------------------------------------------

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool[..., Any]:
        """This agent as a tool of another: it takes a `task` in words and returns the agent's answer.

        A pause inside surfaces outside with its path, and the answer to it finds its way back in, in any process.
        """

        async def work(task: str, ctx: ToolRunContext) -> Any:
            inner = self if self.store is not None else self._with_store(self._store_of(ctx))
            return await delegate(inner, task, ctx, forget=inner.store is self._host.inner_store)

        # Its work is in the inner session's own journal, so running it again goes on rather than repeats.
        made = Tool(
            work,
            name=name or self.name,
            description=description if description is not None else self.description,
            options=ToolOptions(idempotent=True),
        )
        made.inner = self.find_tool
        return made

    def _with_store(self, store: Store) -> "Agent":
        return Agent(self._host, self.name, _stored(self._options, store))

    def _store_of(self, ctx: ToolRunContext) -> Store:
        outer = ctx.session
        store = outer.agent.store if outer is not None else None
        return store if store is not None else self._host.inner_store


def _stored(options: AgentOptions, store: Store) -> AgentOptions:
    from dataclasses import replace as changed

    return changed(options, store=store)


# They stand in addresses, terminals and logs.
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None and not value.startswith(INNER)


def _is_name(value: Any) -> bool:
    """Whether a person can read it as it is: nothing in it controls, hides or turns round what is beside it."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or value.startswith(INNER):
        return False
    return all(c.isprintable() or c in "\u200c\u200d" for c in value)  # the joiners of Persian or Hindi are spelling


def _signature(secret: bytes, agent: str, state: SessionState) -> str:
    key_id = hashlib.blake2b(secret, digest_size=4).hexdigest()
    body = canonical([agent, wire(replace(state, signature=None))])
    return f"{key_id}:{hmac.new(secret, body, hashlib.sha256).hexdigest()}"


@dataclass(frozen=True)
class TurnContext:
    """What a custom agent's function gets: its session, the conversation, and ways to stream and to notice an abort."""

    session: AgentSession
    messages: Sequence[Message]
    emit: Emit
    context: Any = None

    @property
    def message(self) -> Message:
        """What was said last."""
        return self.messages[-1]

    @property
    def abort_signal(self) -> Any:
        return self.session.abort_signal


class CustomAgent(Agent):
    """An agent whose turns are a function: it takes a TurnContext and returns what the agent says."""

    def __init__(self, host: Host, name: str, fn: Callable[[TurnContext], Any], options: AgentOptions) -> None:
        super().__init__(host, name, options)
        self._fn = fn

    def model(self, session: AgentSession) -> Model:
        return _CustomModel(self.name, self._fn, session)

    def _check_model(self) -> None:
        """Its model is the function, which takes anything."""

    def _with_store(self, store: Store) -> Agent:
        return CustomAgent(self._host, self.name, self._fn, _stored(self._options, store))


class _CustomModel:
    # The function stands where a model stands, so a custom agent needs no loop of its own.
    def __init__(self, name: str, fn: Callable[[TurnContext], Any], session: AgentSession) -> None:
        self._name = name
        self._fn = fn
        self._session = session

    @property
    def name(self) -> str:
        return self._name

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        try:
            value = self._fn(TurnContext(self._session, request.messages, emit, self._session.context))
            if inspect.isawaitable(value):
                value = await value
        except Exception as e:
            raise ModelError(told(e) or type(e).__name__, provider=self._name) from e
        return as_reply("" if value is None else value)
