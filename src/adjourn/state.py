"""The values that make up a turn, and the steps that can follow from one. The rules are in `turn.py`."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, cast

import msgspec

from adjourn.events import Json, Limits, Pause, TurnEnded
from adjourn.parts import ErrorInfo, FinishReason, Message, Metadata, Part, ToolRequest, Usage


class Call(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """One tool request of the open round. `input` is what runs; the model's own stays in `request`.

    `restarts` are the metadata of its restarts; those at the positions `inward` are answers into a nested agent. `pauses` are
    fingerprints of its pauses, `asked` the ids of earlier ones. `branch` is set where a branch of the session asks anew for what
    was not approved before it. `retried` counts how often it was run again because the turn was.
    """

    id: str
    part: Part
    input: Json = None
    state: Literal["ready", "running", "paused", "failed", "settled"] = "ready"
    pause: Pause | None = None
    restarts: tuple[Json, ...] = ()
    pauses: tuple[str, ...] = ()
    response: Part | None = None
    error: ErrorInfo | None = None
    replaced: bool = False
    due: float | None = None
    asked: tuple[str, ...] = ()
    branch: str = ""
    retried: int = 0
    inward: tuple[int, ...] = ()

    @property
    def own_restarts(self) -> int:
        """How often it was restarted itself: an answer into a nested agent makes it run again, too, but is not one of these."""
        return len(self.restarts) - len(self.inward)

    @property
    def answers_inside(self) -> bool:
        """Whether its last restart is an answer into a nested agent."""
        last: Json = self.restarts[-1] if self.restarts else None
        # A client that keeps its session itself may send whatever it likes.
        decision = cast(Metadata, last).get("inner") if isinstance(last, Mapping) else None
        return len(self.restarts) - 1 in self.inward and isinstance(decision, Mapping)

    @property
    def request(self) -> ToolRequest:
        """The request as the model made it."""
        request = self.part.tool_request
        assert request is not None
        return request


class Counts(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """What was spent of the limits so far; `answered` says that the newest pauses have had their first decision."""

    model_calls: int = 0
    cycles: int = 0
    output_errors: int = 0
    seconds: float = 0.0
    usage: Usage = Usage()
    argument_errors: Mapping[str, int] = {}
    tool_errors: Mapping[str, int] = {}
    pauses: Mapping[str, int] = {}
    identical: Mapping[str, int] = {}
    answered: bool = False


class Turn(msgspec.Struct, frozen=True, gc=False):
    """`history` is what was said before this turn and is shared, never copied; `added` are this turn's closed messages."""

    history: Sequence[Message] = ()
    limits: Limits = Limits()
    added: tuple[Message, ...] = ()
    open: Message | None = None
    calls: tuple[Call, ...] = ()
    counts: Counts = Counts()
    finish_reason: FinishReason = "stop"
    fatal: ErrorInfo | None = None
    ended: TurnEnded | None = None

    @property
    def paused(self) -> list[Call]:
        """The calls that wait for a decision."""
        return [c for c in self.calls if c.state == "paused"]


class CallModel(msgspec.Struct, frozen=True, gc=False):
    messages: Sequence[Message]


class RunTools(msgspec.Struct, frozen=True, gc=False):
    calls: Sequence[Call]


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Nothing to start: some calls are running."""


class Paused(msgspec.Struct, frozen=True, gc=False):
    calls: Sequence[Call]


class Finished(msgspec.Struct, frozen=True, gc=False):
    """What the end will be, or was. `end` has `limit` set where a bound was hit."""

    end: TurnEnded


Step: TypeAlias = CallModel | RunTools | Waiting | Paused | Finished
