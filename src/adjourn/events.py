"""What a turn is bounded by, what pauses it and what happens to it: the values that the turn machine takes in.

The events of a turn, in order, are its journal. They are JSON with a `type`, so they can be stored and replayed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.errors import InvalidRequest
from adjourn.parts import ErrorInfo, FinishReason, Message, Metadata, Part, Usage

Verb = Literal["respond", "restart"]
Json: TypeAlias = Any


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """The bounds of one turn, counted through pauses, saves and processes. None takes a bound away.

    `model_calls` in the turn; `cycles` of decisions; `restarts` of one call; `repeats` of the same pause (same tool,
    input and payload) after its first time; `argument_errors` and `tool_errors` of one tool that are given back to the
    model, since that tool last succeeded; `output_errors` of `output=`; `identical_calls` with the same tool, input and
    result; `total_tokens`; `seconds` of running time (pauses do not count).
    """

    model_calls: int | None = 50
    cycles: int | None = 10
    restarts: int | None = 5
    repeats: int | None = 2
    argument_errors: int | None = 2
    tool_errors: int | None = 3
    output_errors: int | None = 2
    identical_calls: int | None = 10
    total_tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            bound: Any = getattr(self, name)
            good = int if name != "seconds" else (int, float)
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, good) or not bound >= 0):
                raise InvalidRequest(f"Limits({name}={bound!r}): give a number of 0 or more, or None for no bound")


class Pause(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """An interrupt as data. `response` is the JSON schema an answer must fit; `expires_at` is in Unix seconds.

    `reason` is "tool" (it raised Interrupt), "approval", "error", "outcome_unknown" or "unanswered"; `version` is the
    tool's at that time. `path` names the nested agents that it came through, outermost first; `response`, `allow`, `reason`
    and `version` are then those of the innermost tool's pause, and the payload says which tool that is.
    """

    id: str
    payload: Json = None
    response: Json = None
    allow: tuple[Verb, ...] = ("respond", "restart")
    reason: str = "tool"
    expires_at: float | None = None
    on_expiry: Json = "decline"
    version: str = ""
    path: tuple[str, ...] = ()


# -- what happens to a turn ------------------------------------------------------------------------------------------


class _Event(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type", repr_omit_defaults=True, gc=False
):
    pass


class UserSaid(_Event, frozen=True, tag="userSaid"):
    message: Message


class ModelReplied(_Event, frozen=True, tag="modelReplied"):
    """`calls` are our ids for its tool requests, in order. `took` is running time in seconds, as in every event."""

    message: Message
    calls: tuple[str, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    took: float = 0.0


class ToolStarted(_Event, frozen=True, tag="toolStarted"):
    call: str


class ToolReturned(_Event, frozen=True, tag="toolReturned"):
    call: str
    output: Json = None
    content: Sequence[Part] | None = None
    metadata: Metadata | None = None
    took: float = 0.0


class CallRejected(_Event, frozen=True, tag="callRejected"):
    """The model's request cannot run: `kind` is "arguments" or "unknown_tool". It goes back to the model."""

    call: str
    message: str
    kind: str = "arguments"


class ToolRaised(_Event, frozen=True, tag="toolRaised"):
    """`to` says who is told: the model (a correction) or the caller (the turn fails).

    A call that was restarted waits once more; but not where it was `answered`: a nested agent took in what was decided, and
    failed after that.
    """

    call: str
    error: ErrorInfo
    to: Literal["model", "caller"] = "caller"
    took: float = 0.0
    answered: bool = False


class ToolInterrupted(_Event, frozen=True, tag="toolInterrupted"):
    call: str
    pause: Pause
    took: float = 0.0


class OutputRejected(_Event, frozen=True, tag="outputRejected"):
    """The reply does not fit `output=`; `message` tells the model why."""

    message: str


class Responded(_Event, frozen=True, tag="responded"):
    interrupt: str
    output: Json = None
    metadata: Metadata | None = None
    by: str | None = None


class Restarted(_Event, frozen=True, tag="restarted"):
    """`input` replaces what the model asked for; UNSET keeps it. It does not run before `due` (Unix seconds)."""

    interrupt: str
    metadata: Json = None
    input: Json | UnsetType = UNSET
    by: str | None = None
    due: float | None = None


class Declined(_Event, frozen=True, tag="declined"):
    interrupt: str
    reason: str = ""
    by: str | None = None


class Expired(_Event, frozen=True, tag="expired"):
    """Nobody decided in time; the pause's own `on_expiry` says what follows. `by` is set where a session around said so."""

    interrupt: str
    by: str | None = None


class Forked(_Event, frozen=True, tag="forked"):
    """This is a branch of its own: its open pauses have these new ids, by their old ones."""

    ids: Mapping[str, str]


class TurnEnded(_Event, frozen=True, tag="turnEnded"):
    reason: FinishReason
    error: ErrorInfo | None = None
    limit: str | None = None


class Retried(_Event, frozen=True, tag="retried"):
    """Go on after a failure. New `limits` start all counts afresh. `by` is set where a session around said so."""

    limits: Limits | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        given: Any = self.limits
        if given is not None and not isinstance(given, Limits):
            raise InvalidRequest(f"limits={given!r}: give Limits(...)")


Event: TypeAlias = (
    UserSaid
    | ModelReplied
    | ToolStarted
    | ToolReturned
    | CallRejected
    | ToolRaised
    | ToolInterrupted
    | OutputRejected
    | Responded
    | Restarted
    | Declined
    | Expired
    | Forked
    | TurnEnded
    | Retried
)
Decided: TypeAlias = Responded | Restarted | Declined | Expired
