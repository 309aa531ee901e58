"""`Adjourn`: models, tools, agents and the inbox of one application, in one place."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, overload

from adjourn.agent import Agent, AgentOptions, CustomAgent, TurnContext, WhilePaused
from adjourn.archive import Archive
from adjourn.arguments import check_is_store, is_text, short
from adjourn.clock import SYSTEM, Clock
from adjourn.engine import Engine
from adjourn.errors import DefinitionError, DuplicateName, ResumeError, UnknownTool
from adjourn.events import Limits
from adjourn.generation import (
    GenerateResponse,
    Prompt,
    Resumption,
    StreamHandle,
    items_of,
    listed,
    run_generate,
    start,
    tools_by_name,
    with_system,
)
from adjourn.handle import AgentTurn
from adjourn.inbox import Inbox
from adjourn.lease import Keeper
from adjourn.model import FunctionModel, Model, ModelRegistry, Plugin, ToolDefinition
from adjourn.notices import tell_refused_items
from adjourn.observe import Observer
from adjourn.parts import Message, new_id
from adjourn.places import each_once
from adjourn.promise import loop_for
from adjourn.resume import Given
from adjourn.setting import Handlers, Prepare, Setting, as_handlers
from adjourn.store import MemoryStore, Store
from adjourn.stream import Watcher
from adjourn.tool import AbortSignal, Approval, Backoff, InterruptTool, OnError, Tool, ToolOptions, shape_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Tools = Sequence["Tool[..., Any] | Callable[..., Any] | str"]


class Adjourn:
    """One application. `model` is the default for everything in it, a "provider/name" or a model object.

    `limits` bound every turn that brings none of its own; `observers` see each step; `clock` can be faked. `secret` signs
    the state of client-managed sessions; of several, the first signs and all are accepted. `stores` are looked into beside
    those of its agents, for a process that only lists and decides. `engine` runs the turns of stored sessions, instead of
    this process; it can be set later, before a turn begins.
    """

    def __init__(
        self,
        *,
        plugins: Sequence[Plugin] = (),
        model: str | Model | None = None,
        limits: Limits | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        stores: Sequence[Store] = (),
        engine: Engine | None = None,
    ) -> None:
        self.models = ModelRegistry(plugins)
        self.default_model = model
        self.limits = _limits(limits)
        self.observers: Sequence[Observer] = tuple(observers)
        self.clock = clock
        self.tools: dict[str, Tool[..., Any]] = {}
        self.agents: dict[str, Agent] = {}
        self.running: dict[str, AgentTurn] = {}
        self.holder = new_id("p_")
        self.keeper = Keeper(clock)
        self.secrets = _secrets(secret)
        self.inner_store = MemoryStore()
        self.engine = engine
        self._stores = _given_stores(stores)
        self.inbox = Inbox(self)
        self.sessions = Archive(self)

    # -- defining ----------------------------------------------------------------------------------------------------

    @overload
    def tool(self, fn: Callable[P, R]) -> Tool[P, R]: ...

    @overload
    def tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        approval: Approval | None = None,
        on_error: OnError = "raise",
        retries: int = 0,
        backoff: float | Backoff | Callable[[int], float] | None = None,
        timeout: float | None = None,
        idempotent: bool = False,
        sequential: bool = False,
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...

    def tool(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        approval: Approval | None = None,
        on_error: OnError = "raise",
        retries: int = 0,
        backoff: float | Backoff | Callable[[int], float] | None = None,
        timeout: float | None = None,
        idempotent: bool = False,
        sequential: bool = False,
    ) -> Any:
        """Makes the function below it a tool of this application. The name stays callable as the function was written.

        `approval`: True, or a function of the (validated) input and the context, pauses the call before its body runs.
        `on_error`: "raise" fails the turn, "model" tells the model, "interrupt" pauses. `retries` more attempts follow a
        failure, `backoff` seconds apart (doubling; or a Backoff, or a function of the number of failures). `timeout` in
        seconds, for each attempt. `idempotent` tools may be run again after a crash. A `sequential` tool runs alone.
        Raises SignatureError for parameters that cannot be described to a model, DuplicateName for a second of its name.
        """

        options = ToolOptions(approval, on_error, retries, backoff, timeout, idempotent, sequential)

        def make(fn: Callable[..., Any]) -> Tool[..., Any]:
            return self.add_tool(Tool(fn, name=name, description=description, options=options))

        return make if fn is None else make(fn)

    def add_tool(self, tool: Tool[..., Any]) -> Tool[..., Any]:
        """Registers a tool that was made elsewhere. Raises DuplicateName."""
        if tool.name in self.tools:
            raise DuplicateName(f"there is a tool {tool.name!r} already")
        self.tools[tool.name] = tool
        return tool

    def define_interrupt(
        self, name: str, description: str, input_schema: Any = None, output_schema: Any = None
    ) -> InterruptTool:
        """A tool without a body: the model asks, a person responds. `input_schema` and `output_schema` are types."""
        tool = InterruptTool(name, description, input_schema, output_schema)
        self.add_tool(tool)
        return tool

    @overload
    def model(self, name: str) -> Callable[[Callable[..., Any]], Model]: ...

    @overload
    def model(self, name: Callable[..., Any]) -> Model: ...

    def model(self, name: Any) -> Any:
        """Makes the function below it a model of this application, as `define_model` does; bare, with the function's name."""
        if isinstance(name, str):
            return partial(self.define_model, name)
        return self.define_model(getattr(name, "__name__", "model"), name)

    def define_model(self, name: str, fn: Callable[..., Any]) -> Model:
        """Registers a function as a model; it takes a ModelRequest (and `emit`) and returns a ModelReply, Message or text."""
        model = FunctionModel(fn, name)
        self.models.add(model)
        return model

    def list_models(self) -> list[str]:
        """The names of all models that plugins list or that were defined here."""
        return self.models.names()

    def define_agent(
        self,
        name: str,
        *,
        model: str | Model | None = None,
        system: str | None = None,
        tools: Tools | None = None,
        store: Store | None = None,
        state: Any = None,
        output: Any = None,
        config: Any = None,
        limits: Limits | None = None,
        prepare: Prepare | None = None,
        on_interrupt: Handlers = None,
        on_message_while_paused: WhilePaused = "refuse",
        description: str = "",
        context: Any = None,
    ) -> Agent:
        """An agent of this application. Without `tools=` it has every tool of the application, with `[]` none.

        Without `store=` its sessions are the caller's to keep (`output.client_state`). `state` is the type of the custom
        session state, `output` that of its replies. `context` is what tools read as `ctx.context` where nobody gave any (a
        decision of the inbox goes on, or a worker): a value, or a function of the session. Raises DuplicateName, and
        SignatureError for a tool or output that the model's provider cannot express; where the tools or the model come later,
        `connect` does.
        """
        options = AgentOptions(
            model, system, tools, store, state, output, config, limits, prepare, on_interrupt,
            on_message_while_paused, description, context,
        )  # fmt: skip
        return self._add_agent(Agent(self, name, options))

    def define_custom_agent(
        self,
        name: str,
        fn: Callable[[TurnContext], Any],
        *,
        store: Store | None = None,
        state: Any = None,
        limits: Limits | None = None,
        on_message_while_paused: WhilePaused = "refuse",
        description: str = "",
    ) -> Agent:
        """An agent whose turns are a function: it gets a TurnContext and returns a text, parts or a Message."""
        options = AgentOptions(
            tools=(), store=store, state=state, limits=limits, on_message_while_paused=on_message_while_paused,
            description=description,
        )  # fmt: skip
        return self._add_agent(CustomAgent(self, name, fn, options))

    def _add_agent(self, agent: Agent) -> Agent:
        if not is_text(agent.name):
            raise DefinitionError(f"name={short(agent.name)} is no name of an agent: give a text that can be stored")
        if agent.name in self.agents:
            raise DuplicateName(f"there is an agent {agent.name!r} already")
        self.agents[agent.name] = agent
        return agent

    def stores(self) -> Sequence[Store]:
        """The stores it was given and those of its agents, each once: of several objects on one file or database, the first."""
        return each_once(self._held())

    def _held(self) -> Sequence[Store]:
        return [*self._stores, *[a.store for a in self.agents.values() if a.store is not None]]

    async def recover(self) -> Sequence[AgentTurn]:
        """Takes up every stored session that waits for a driver; returns the turns that were started.

        They are sessions a dead process left in a turn (its lease must have ended), and sessions that were decided on
        where nobody could run them. Runs of unknown outcome come back as pauses.
        """
        return await self.inbox.recover()

    async def aclose(self) -> None:
        """Lets go of what plugins and stores hold open. Call it when the application ends."""
        for plugin in self.models.plugins():
            close = getattr(plugin, "aclose", None)
            if close is not None:
                await close()
        if self.engine is not None:
            await self.engine.aclose()
        for store in self._held():
            store.close()

    # -- generating --------------------------------------------------------------------------------------------------

    @overload
    async def generate(
        self, prompt: Prompt | Message | None = None, *, output: type[T], **options: Any
    ) -> GenerateResponse[T]: ...

    @overload
    async def generate(
        self,
        prompt: Prompt | Message | None = None,
        *,
        messages: Sequence[Message] | None = None,
        system: str | None = None,
        model: str | Model | None = None,
        tools: Tools | None = None,
        config: Any = None,
        output: None = None,
        resume_respond: Given = None,
        resume_restart: Given = None,
        on_interrupt: Handlers = None,
        prepare: Prepare | None = None,
        limits: Limits | None = None,
        context: Any = None,
        abort_signal: AbortSignal | None = None,
    ) -> GenerateResponse[Any]: ...

    async def generate(self, prompt: Prompt | Message | None = None, **options: Any) -> GenerateResponse[Any]:
        """Runs one turn: the model and the tools it calls, until it ends or pauses.

        Give a `prompt`, or `messages` that end with the user (or a tool's results), or a resume. `output` is a type the
        reply must have. A paused response has `finish_reason == "interrupted"` and `interrupts`; make answers with
        `respond_to_interrupt`, `restart_tool` and `decline_interrupt` and pass them as `resume_respond` and
        `resume_restart`, with the same tools. `context` reaches the tools as `ctx.context`.

        Raises ToolFailed, ModelError, LimitReached (each with everything kept as `.response`), ResumeError for an answer
        that does not fit (nothing ran), InvalidRequest, and SignatureError for a tool or output that the model's provider
        cannot express (nothing was sent).
        """
        return await _Call(self, prompt, None, **options).run()

    def generate_stream(self, prompt: Prompt | Message | None = None, **options: Any) -> StreamHandle[Any]:
        """Like `generate`, at once in the background: read `.stream`, await `.response`. Takes the same arguments."""
        watcher, loop = Watcher(), loop_for("generate_stream")
        call = _Call(self, prompt, watcher, **options)

        async def run() -> GenerateResponse[Any]:
            try:
                return await call.run()
            finally:
                watcher.feed.close()

        task = loop.create_task(run())
        task.add_done_callback(lambda t: None if t.cancelled() else t.exception())  # whoever only reads the stream
        return StreamHandle(watcher, task)

    def find_model(self, model: str | Model | None) -> Model:
        """The model of this name, the object itself, or the application's own."""
        return self.models.find(self.default_model if model is None else model)

    def definitions(self, tools: Mapping[str, Tool[..., Any]]) -> Sequence[ToolDefinition]:
        """What a model is told about these tools."""
        return [t.definition for t in tools.values()]

    def pick_tools(self, tools: Tools) -> Mapping[str, Tool[..., Any]]:
        """Tools by name, from tools, names and plain functions. Raises UnknownTool, DuplicateName."""
        if isinstance(tools, (str, Tool)) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"tools= takes a list of tools, not {tools!r}: tools=[{_named(tools)}]")
        return tools_by_name([self._pick(t) for t in tools])

    def _pick(self, given: Any) -> Tool[..., Any]:
        if isinstance(given, Tool):
            return given  # pyright: ignore[reportUnknownVariableType]
        if isinstance(given, str):
            found = self.tools.get(given)
            if found is None:
                raise UnknownTool(f"there is no tool {given!r}; known: {', '.join(sorted(self.tools)) or 'none'}")
            return found
        if callable(given):
            return Tool(given)
        raise DefinitionError(f"tools= takes tools, names of tools and functions, not {given!r}")


def _named(tool: Any) -> str:
    return repr(tool) if isinstance(tool, str) else getattr(tool, "name", getattr(tool, "__name__", "..."))


def _limits(limits: Limits | None) -> Limits:
    if limits is not None and not isinstance(limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"limits={limits!r}: give Limits(...)")
    return limits or Limits()


def _given_stores(stores: Any) -> tuple[Store, ...]:
    if isinstance(stores, str) or not isinstance(stores, Iterable):
        raise DefinitionError(f"stores={stores!r}: give a list of stores")
    given = tuple(cast(Iterable[Any], stores))
    for store in given:
        check_is_store(store)
    return given


def _secrets(secret: str | bytes | Sequence[str | bytes] | None) -> Sequence[bytes]:
    if secret is None:
        return ()
    given = [secret] if isinstance(secret, (str, bytes)) else list(secret)
    keys = [s.encode() if isinstance(s, str) else s for s in given]
    if any(len(k) < 16 for k in keys):
        raise DefinitionError("secret=: give at least 16 bytes, as from secrets.token_bytes(32)")
    return keys


class _Call:
    """The arguments of one `generate`, checked and made into a setting."""

    def __init__(
        self,
        app: Adjourn,
        prompt: Prompt | Message | None,
        watcher: Watcher | None,
        *,
        messages: Sequence[Message] | None = None,
        system: str | None = None,
        model: str | Model | None = None,
        tools: Tools | None = None,
        config: Any = None,
        output: Any = None,
        resume_respond: Given = None,
        resume_restart: Given = None,
        on_interrupt: Handlers = None,
        prepare: Prepare | None = None,
        limits: Limits | None = None,
        context: Any = None,
        abort_signal: AbortSignal | None = None,
    ) -> None:
        limits = _limits(limits or app.limits)
        items = items_of(resume_respond, resume_restart)
        self.app = app
        self.resumption: Resumption | None = None
        if items is not None:
            if prompt is not None:
                raise DefinitionError("a resume takes no prompt: answer the pause first, then say more")
            if messages is not None:
                messages = with_system(listed(messages), system)
            self.resumption = Resumption(messages, items, limits)
            if tools is None and self.resumption.round is not None:
                tools = self.resumption.round.tools
        else:
            self.turn = start(prompt, messages, system, limits)
        picked: Mapping[str, Tool[..., Any]] = app.pick_tools(tools) if tools else {}
        self.tools = tuple(picked.values())
        self.setting = Setting(
            app.find_model(model),
            picked,
            app.definitions(picked) if picked else (),
            None,
            config,
            shape_of(output) if output is not None else None,
            prepare,
            None if on_interrupt is None else as_handlers(on_interrupt, {**app.tools, **picked}),
            context,
            None,
            abort_signal,
            watcher,
            None,
            app.clock,
            app.observers,
        )
        setting = self.setting
        app.models.check(setting.model, setting.definitions, config, setting.output.schema if setting.output else None)

    async def run(self) -> GenerateResponse[Any]:
        turn = None
        if self.resumption is not None:
            try:
                turn = self.resumption.claim(self.setting.tools.get, self.app.clock.now(), self.tools)
            except ResumeError as e:
                if self.app.observers:
                    tell_refused_items(self.app.observers, self.resumption.items, e)
                raise
        return await run_generate(self.setting, turn or self.turn, self.resumption, self.tools)


_Call.__init__.__qualname__ = "generate"  # what an unknown argument is refused by


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Runs one coroutine to its end, for scripts. Not for use inside a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()  # it was never to run, so that nobody is told that it was not awaited
    raise DefinitionError(
        "run_sync starts an event loop, and one is running here (an async function, a notebook, a command that imports this "
        'module): await the coroutine instead; a module runs it under `if __name__ == "__main__":`'
    )


Genkit = Adjourn
