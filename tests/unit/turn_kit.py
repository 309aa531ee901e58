"""What the tests of one subject share."""

from typing import Any

from adjourn.events import (
    Event,
    Limits,
    ModelReplied,
    Pause,
    ToolInterrupted,
    TurnEnded,
    UserSaid,
)
from adjourn.parts import ErrorInfo, Message, Part, ToolRequest
from adjourn.state import Finished, Turn
from adjourn.testing import replay
from adjourn.turn import next_step

BOOM = ErrorInfo("INTERNAL", "boom", "RuntimeError")
HI = UserSaid(Message("user", [Part(text="hi")]))


def asks(*names: str, ids: str = "", input: Any = None, ref: str | None = None) -> ModelReplied:
    """A reply that calls these tools; the calls' ids are the letters of `ids`, or of the names."""
    parts = [Part(tool_request=ToolRequest(n, ref, {} if input is None else input)) for n in names]
    return ModelReplied(Message("model", parts), tuple(ids or "".join(names)))


def says(text: str, **more: Any) -> ModelReplied:
    return ModelReplied(Message("model", [Part(text=text)]), **more)


def pauses(call: str, interrupt: str, payload: Any = None, **more: Any) -> ToolInterrupted:
    return ToolInterrupted(call, Pause(interrupt, payload, **more))


def turn_of(*events: Event, limits: Limits | None = None) -> Turn:
    return replay([HI, *events], limits=limits)


def responses(turn: Turn) -> list[Part]:
    """The parts of the tool message that was closed last."""
    message = next(m for m in reversed(turn.added) if m.role == "tool")
    return list(message.content)


def output(turn: Turn, position: int = 0) -> Any:
    response = responses(turn)[position].tool_response
    assert response is not None
    return response.output


def end(turn: Turn) -> TurnEnded:
    step = next_step(turn)
    assert isinstance(step, Finished), step
    return step.end


def nested(interrupt: str, n: int = 0) -> ToolInterrupted:
    """Call a paused because the agent in it did, on its interrupt "x<n>"."""
    return pauses("a", interrupt, {"interrupt": f"x{n}", "payload": n}, path=("inner",))
