"""What a turn is run with, and where its events go."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from adjourn.answer import PausedCall
from adjourn.clock import SYSTEM, Clock
from adjourn.errors import DefinitionError
from adjourn.events import Event, Json
from adjourn.ledger import Leg
from adjourn.model import Model, ModelRequest, ToolDefinition
from adjourn.observe import Observer
from adjourn.parts import Chunk, Message
from adjourn.schema import TypeShape
from adjourn.state import Finished, Paused, Turn
from adjourn.tool import AbortSignal, Tool

Handler: TypeAlias = Callable[[PausedCall], Any]
Handlers: TypeAlias = "Handler | Mapping[str, Handler] | None"
Prepare: TypeAlias = Callable[[ModelRequest], Any]
Sink: TypeAlias = Callable[["Chunk | Progress | PausedCall"], None]


class Journal(Protocol):
    """Where events become durable."""

    async def commit(self, turn: Turn, events: Sequence[Event], rest: "Paused | Finished | None") -> Sequence[Event]:
        """Keeps these events; `turn` is the state after them. `rest` is set where the turn comes to rest with them.

        Returns decisions that were made elsewhere meanwhile; with any, a pause is no rest and the turn goes on.
        Cancelling the caller must not undo a commit.
        """
        ...

    def late(self, call: str, output: Json) -> None:
        """A body that could not be stopped ended after its call was closed: kept beside the call, never in the transcript."""
        ...

    def traced(self, trace: str) -> None:
        """The leg runs in this span (a W3C traceparent), which is kept with it for those that go on from it."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running tool reported; `fraction` is from 0 to 1 or None."""

    call_id: str
    tool: str
    fraction: float | None
    text: str


@dataclass(slots=True)
class Setting:
    """What a turn is run with. Nothing in it belongs to one turn alone but `key`, `sink`, `signal`, `journal` and `leg`.

    `before` is the traceparent of what a `generate` goes on from, `trace` that of the span it runs in.
    """

    model: Model
    tools: Mapping[str, Tool[..., Any]] = field(default_factory=dict[str, Tool[..., Any]])
    definitions: Sequence[ToolDefinition] = ()
    system: Message | None = None
    config: Any = None
    output: TypeShape | None = None
    prepare: Prepare | None = None
    handlers: Mapping[str, Handler] | None = None
    context: Any = None
    session: Any = None
    signal: AbortSignal | None = None
    sink: Sink | None = None
    journal: Journal | None = None
    clock: Clock = SYSTEM
    observers: Sequence[Observer] = ()
    key: str = ""
    leg: Leg | None = None
    before: str | None = None
    trace: str | None = None


def as_handlers(on_interrupt: Handlers, tools: Mapping[str, Any]) -> Mapping[str, Handler] | None:
    """Handlers by tool name. Raises DefinitionError for a tool that is not there: a gate must not vanish by a typo."""
    if on_interrupt is None:
        return None
    if callable(on_interrupt):
        return {"*": on_interrupt}
    if not isinstance(on_interrupt, Mapping) or not all(callable(h) for h in on_interrupt.values()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"on_interrupt={on_interrupt!r}: give a function, or functions by tool name")
    unknown = [name for name in on_interrupt if name != "*" and name not in tools]
    if unknown:
        raise DefinitionError(f"on_interrupt= names tools that are not here: {', '.join(unknown)}")
    return on_interrupt


async def finish(value: Any) -> Any:
    """The value, awaited if it has to be."""
    return await value if inspect.isawaitable(value) else value
