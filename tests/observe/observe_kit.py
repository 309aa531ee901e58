"""What the tests of observers share: one that keeps what it saw, and an application in which everything happens."""

from collections.abc import Sequence
from typing import Any

import pytest

from adjourn import Adjourn, Agent, AlreadyResolved, Interrupt, Limits, MemoryStore, Store, ToolRunContext
from adjourn.observe import Observed, Observer
from adjourn.parts import Part, Usage
from adjourn.testing import FakeClock, ScriptedModel, call

CANARY = "kingfisher-4711"
"""A text that is put wherever content can be, and must not be found where content does not belong."""


class Recorder:
    """An observer that keeps what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Observed] = []

    def __call__(self, step: Observed) -> None:
        self.seen.append(step)

    def of(self, kind: str) -> list[Observed]:
        return [s for s in self.seen if s.kind == kind]

    def facts(self, kind: str) -> list[dict[str, Any]]:
        return [s.facts for s in self.of(kind)]

    def kinds(self) -> list[str]:
        return [s.kind for s in self.seen]


def pay_app(
    observers: Sequence[Observer],
    replies: Sequence[Any],
    store: Store | None = None,
    *,
    limits: Limits | None = None,
    on_interrupt: Any = None,
) -> tuple[Adjourn, Agent]:
    """An application whose agent "clerk" has a tool `pay` that pauses once, and a tool `flaky` that fails at first."""
    ai = Adjourn(observers=observers, model=ScriptedModel(list(replies)), clock=FakeClock(), limits=limits)
    failures = iter([True])

    @ai.tool()
    async def pay(amount: int, note: str, ctx: ToolRunContext) -> dict[str, Any]:
        """Pays."""
        if not ctx.is_resumed():
            raise Interrupt({"note": note, "secret": CANARY})
        return {"paid": amount, "note": note}

    @ai.tool(retries=1, on_error="model")
    async def flaky(note: str) -> str:
        """Fails at first."""
        if next(failures, False):
            raise ValueError(f"no {note} {CANARY}")
        return note

    @ai.tool(on_error="model")
    async def broken(note: str) -> str:
        """Fails always."""
        raise ValueError(f"never {note} {CANARY}")

    agent = ai.define_agent("clerk", store=store or MemoryStore(), system=f"system {CANARY}", on_interrupt=on_interrupt)
    return ai, agent


def pay(amount: Any = 3, **more: Any) -> Part:
    return call("pay", {"amount": amount, "note": CANARY, **more})


def advance(ai: Adjourn, seconds: float) -> None:
    clock = ai.clock
    assert isinstance(clock, FakeClock)
    clock.time += seconds


async def eventful(ai: Adjourn, agent: Agent) -> None:
    """A turn with a correction, a retry, a tool's failure, a pause, a refused and an accepted decision, and an end."""
    session = agent.connect()
    out = await session.send(f"please {CANARY}").output
    assert out.finish_reason == "interrupted"
    [waiting] = (await ai.inbox.list()).items
    advance(ai, 3600)
    accepted = await ai.inbox.restart(waiting.id, metadata={"code": CANARY}, by=f"person-{CANARY}", address=CANARY)
    assert accepted.turn is not None
    assert (await accepted.turn.output).finish_reason == "stop"
    with pytest.raises(AlreadyResolved):
        await ai.inbox.decline(waiting.id, f"too late {CANARY}", by="other")


EVENTS: Sequence[Any] = (
    call("flaky", {"note": CANARY}),
    call("broken", {"note": CANARY}),
    call("pay", {"amount": CANARY, "note": CANARY}),
    call("nosuch", {"note": CANARY}),
    pay(),
    f"done {CANARY}",
)
"""The replies of `eventful`."""

USED = Usage(120, 30, 100, 10)
