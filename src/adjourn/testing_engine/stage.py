"""Where the rules of an engine are played: an application, its tools, and what its model was sent."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from adjourn.agent import Agent, AgentInit, AgentSession
from adjourn.app import Adjourn
from adjourn.handle import AgentOutput, AgentTurn
from adjourn.model import FunctionModel, ModelRequest, as_reply
from adjourn.parts import Artifact, Message, Part, ToolRequest
from adjourn.store import Store
from adjourn.tool import Interrupt, ToolRunContext

Deliver: TypeAlias = Callable[[], Awaitable[Any]]
Serve: TypeAlias = Callable[[Adjourn], AbstractAsyncContextManager[Deliver]]

SECONDS = 60.0
"""How long anything may take before it counts as hanging."""


def expect(true: object, rule: str) -> None:
    if not true:
        raise AssertionError(rule)


def same(found: Any, wanted: Any, rule: str) -> None:
    if found != wanted:
        raise AssertionError(f"{rule}: {str(found)[:500]} is not {str(wanted)[:500]}")


def request(name: str, **input: Any) -> Part:
    return Part(tool_request=ToolRequest(name, None, input))


class Play:
    """One application that runs: its agent, what its tools did, and what its model was sent."""

    def __init__(self, ai: Adjourn, agent: Agent, model: "Script", log: list[Any], deliver: Deliver) -> None:
        self.ai = ai
        self.agent = agent
        self.log = log
        self.deliver = deliver
        self._model = model

    @property
    def sent(self) -> list[Sequence[Message]]:
        """The messages of each request that reached the model."""
        return self._model.sent

    def connect(self, session_id: str | None = None) -> AgentSession:
        return self.agent.connect(AgentInit(session_id=session_id))

    async def send(self, text: str = "go") -> AgentOutput:
        """A new session's first turn, to its rest."""
        return await resting(self.connect().send(text))

    def last_outputs(self) -> list[Any]:
        """The tool results of the newest round that the model was sent."""
        last = self.sent[-1][-1]
        return [p.tool_response.output for p in last.content if p.tool_response is not None]


async def resting(turn: AgentTurn) -> AgentOutput:
    """What a leg came to. One that does not rest within a minute counts as hanging."""
    return await asyncio.wait_for(turn.wait(), SECONDS)


class Script:
    def __init__(self, replies: Sequence[Any]) -> None:
        self.sent: list[Sequence[Message]] = []
        self._replies = list(replies)

    def __call__(self, request: ModelRequest) -> Any:
        self.sent.append(request.messages)
        expect(len(self.sent) <= len(self._replies), "the model is called no more often than the turn needs")
        sendable(request.messages)
        reply = self._replies[len(self.sent) - 1]
        if isinstance(reply, Exception):
            raise reply
        return as_reply(reply)


def sendable(messages: Sequence[Message]) -> None:
    waiting: list[Any] = []
    for message in messages:
        answered = [p.tool_response.ref for p in message.content if p.tool_response is not None]
        same(answered, waiting, "what a model is sent has one response a request, in request order")
        waiting = [p.tool_request.ref for p in message.content if p.tool_request is not None]
    same(waiting, [], "no model is sent an open round")


class Stage:
    """Where a rule is played. `serve` makes the turns of an application run; `store` gives a new, empty store."""

    def __init__(self, serve: Serve, store: Callable[[], Store]) -> None:
        self._serve = serve
        self.store = store

    @asynccontextmanager
    async def play(self, *replies: Any, **options: Any) -> AsyncGenerator[Play]:
        """An application whose model gives these replies, and whose tools do what their names say."""
        model, log = Script(replies), list[Any]()
        ai = Adjourn(model=FunctionModel(model, "script"))
        define(ai, log)
        agent = ai.define_agent("player", store=self.store(), **options)
        async with self._serve(ai) as deliver:
            yield Play(ai, agent, model, log, deliver)
        await ai.aclose()


def define(ai: Adjourn, log: list[Any]) -> None:
    @ai.tool()
    async def plain(n: int) -> Any:
        log.append(("plain", n))
        return {"n": n}

    @ai.tool()
    async def nothing() -> None:
        log.append("nothing")

    @ai.tool()
    async def gate(n: int, ctx: ToolRunContext) -> Any:
        if not ctx.is_resumed():
            raise Interrupt({"n": n})
        log.append(("gate", n, ctx.resumed_metadata))
        return {"opened": n}

    @ai.tool()
    async def again(n: int, ctx: ToolRunContext) -> Any:
        log.append(("again", len(ctx.restarts)))
        raise Interrupt({"round": len(ctx.restarts)})

    @ai.tool()
    async def breaks(n: int) -> Any:
        log.append(("breaks", n))
        if log.count(("breaks", n)) == 1:
            raise ValueError("broken")
        return "mended"

    @ai.tool(on_error="model")
    async def errs(n: int) -> Any:
        raise ValueError("told to the model")

    @ai.tool(retries=2, backoff=0.0)
    async def flaky(n: int, ctx: ToolRunContext) -> Any:
        log.append(("flaky", ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "at last"

    @ai.tool()
    async def hangs(n: int) -> Any:
        log.append("hangs")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("stopped")

    inside: list[int] = []

    async def stay(n: int) -> int:
        inside.append(n)
        most = 1
        for _ in range(25):  # long enough for a neighbour to come in
            most = max(most, len(inside))
            await asyncio.sleep(0.01)
        log.append((n, most))
        inside.remove(n)
        return n

    ai.tool(name="beside")(stay)
    ai.tool(name="alone", sequential=True)(stay)

    @ai.tool()
    async def brief(n: int, ctx: ToolRunContext) -> Any:
        raise Interrupt({"n": n}, expires_in=0.2)

    @ai.tool()
    async def notes(n: int, ctx: ToolRunContext) -> Any:
        ctx.session.update_state({"n": n})
        ctx.session.add_artifact(Artifact("note", [Part(text=f"note {n}")]))
        return "noted"

    @ai.tool(approval=True)
    async def guarded(n: int) -> Any:
        log.append(("guarded", n))
        return "allowed"

    ai.define_interrupt("ask", "Asks a person.")


async def until(play: Play, session_id: str, last_text: str) -> None:
    """Returns when the session rests with these last words, whoever brought it there."""

    async def look() -> None:
        while True:
            view = await play.agent.get_snapshot(session_id=session_id)
            if view is not None and view.status == "completed" and view.messages[-1].text == last_text:
                return
            await asyncio.sleep(0.02)

    await asyncio.wait_for(look(), SECONDS)


async def holds(condition: Callable[[], bool]) -> None:
    async def look() -> None:
        while not condition():  # noqa: ASYNC110 - what the tools of a rule do rings no bell
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), SECONDS)
