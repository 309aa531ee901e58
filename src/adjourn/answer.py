"""How a pause is answered: respond, restart, decline."""

import threading
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from adjourn.arguments import check_text, check_texts
from adjourn.errors import DefinitionError, VerbNotAllowed
from adjourn.events import Decided, Declined, Json, Pause, Responded, Restarted, Verb
from adjourn.parts import OURS, Metadata, Part, ToolRequest, ToolResponse, as_metadata, fresh, to_json
from adjourn.state import Turn
from adjourn.transcript import read_call


class Answer:
    """A decision that was not yet acted on; give it to `resume_respond=` or `resume_restart=`, or return it from a handler.

    `after` delays a restart by so many seconds of the driver's clock.
    """

    __slots__ = ("after", "event", "paused")

    def __init__(self, event: Decided, paused: "PausedCall", after: float = 0.0) -> None:
        self.event = event
        self.paused = paused
        self.after = after

    @property
    def part(self) -> Part:
        """The wire form."""
        request, event = self.paused.tool_request, self.event
        if isinstance(event, Responded):
            response = ToolResponse(request.name, request.ref, event.output)
            return Part(tool_response=response, metadata={**(event.metadata or {}), "interruptResponse": True})
        note = {"interrupt": event.interrupt}
        if not isinstance(event, Restarted):
            output = {"declined": True, "reason": event.reason if isinstance(event, Declined) else "expired"}
            response = ToolResponse(request.name, request.ref, output)
            return Part(tool_response=response, metadata={OURS: {**note, "declined": True}})
        resumed = True if event.metadata is None else event.metadata
        metadata: dict[str, Any] = {"resumed": resumed, **({} if self.paused.foreign else {OURS: note})}
        if event.input is not UNSET:
            metadata["replacedInput"] = request.input
            request = ToolRequest(request.name, request.ref, event.input)
        return Part(tool_request=request, metadata=metadata)

    @property
    def tool_response(self) -> ToolResponse | None:
        return self.part.tool_response

    @property
    def tool_request(self) -> ToolRequest | None:
        return self.part.tool_request

    @property
    def metadata(self) -> Metadata | None:
        return self.part.metadata

    def signed(self, by: str | None) -> "Answer":
        """This answer, given by `by`; None leaves it as it is."""
        check_texts(by=by)
        return self if by is None else Answer(replace(self.event, by=by), self.paused, self.after)

    def __repr__(self) -> str:
        return f"<Answer {type(self.event).__name__} {self.paused.tool_request.name}>"


class Abort:
    """What an `on_interrupt` handler returns to end the turn."""

    __slots__ = ("reason",)

    def __init__(self, reason: str = "aborted by a handler") -> None:
        check_text("reason", reason)
        self.reason = reason


class Round:
    """The newest state of one paused round of `generate`, shared by all handles on its calls in this process.

    It is what makes an answer count once: a second one for the same call is refused, an answer through an older handle
    meets what its siblings became, and a resume that failed after a tool had run goes on without running it again.
    """

    __slots__ = ("busy", "closed", "decided", "failed", "lock", "tools", "trace", "turn")

    def __init__(self, turn: Turn, tools: Sequence[Any]) -> None:
        self.turn = turn
        self.tools = tools
        self.decided: dict[str, Json] = {}
        self.lock = threading.Lock()
        self.busy = False
        self.failed = False
        self.closed = False
        self.trace: str | None = None  # of what paused, for what goes on from it


class PausedCall:
    """One paused call: what was asked for, why it waits, and ways to answer it.

    `round` is the paused conversation, where this process has it; so an answer knows what it resumes.
    """

    __slots__ = ("call_id", "foreign", "metadata", "pause", "round", "tool_request")

    def __init__(
        self, part: Part, pause: Pause, call_id: str, round: Round | None = None, foreign: bool = False
    ) -> None:
        assert part.tool_request is not None
        # A copy: what somebody does to it must not change what was shown, nor what will run.
        self.tool_request: ToolRequest = replace(part.tool_request, input=fresh(part.tool_request.input))
        self.metadata: Metadata = part.metadata or {}
        self.pause = pause
        self.call_id = call_id
        self.round = round
        # Written by another runtime: its answers go by name and ref, since it has no id of ours.
        self.foreign = foreign

    @property
    def id(self) -> str:
        return self.pause.id

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool_request.name

    @property
    def input(self) -> Json:
        return self.tool_request.input

    @property
    def payload(self) -> Json:
        """What the tool raised with its Interrupt."""
        return self.pause.payload

    @property
    def reason(self) -> str:
        """Why it waits: "tool", "approval", "error", "outcome_unknown" or "unanswered"."""
        return self.pause.reason

    @property
    def path(self) -> tuple[str, ...]:
        """The nested agents it came through, outermost first."""
        return self.pause.path

    @property
    def allow(self) -> tuple[Verb, ...]:
        """The decisions it takes, besides declining."""
        return self.pause.allow

    def respond(self, output: Any, *, metadata: Metadata | None = None) -> Answer:
        """The tool does not run; `output` is its result. Raises NotJSON where that is no JSON."""
        given = as_metadata(metadata, "response metadata")
        return Answer(Responded(self.id, to_json(output, "response"), given), self)

    def restart(self, metadata: Any = None, *, replace_input: Any = UNSET, after: float = 0.0) -> Answer:
        """The tool runs again and reads `metadata` as `ctx.resumed_metadata`.

        `replace_input` changes what it runs with; it is checked against the tool's schema and recorded beside the
        original. `after` is a delay in seconds.
        """
        if "restart" not in self.allow:
            raise VerbNotAllowed(
                f"tool {self.name!r} cannot be restarted. The pause is kept: give a response, or decline"
            )
        given = UNSET if replace_input is UNSET else to_json(replace_input, "replaced input")
        return Answer(Restarted(self.id, to_json(metadata, "restart metadata"), given), self, after)

    def decline(self, reason: str = "") -> Answer:
        """The tool does not run and the model is told that this was refused, and why."""
        check_text("reason", reason)
        return Answer(Declined(self.id, reason), self)

    def __repr__(self) -> str:
        return f"<PausedCall {self.id} {self.name}({self.input!r}) payload={self.payload!r}>"


def as_paused(interrupt: Any) -> PausedCall:
    """`interrupt` as a PausedCall: one already, or the part of a paused message that carries it."""
    inner: Any = getattr(interrupt, "paused", interrupt)  # an agent's interrupt holds the call itself
    if isinstance(inner, PausedCall):
        return inner
    if isinstance(interrupt, Part) and interrupt.tool_request is not None:
        call = read_call(interrupt)
        if call.pause is not None:
            return PausedCall(interrupt, call.pause, call.id, foreign=not interrupt.ours)
    raise DefinitionError(
        f"interrupt={interrupt!r} is not a paused call: give one of response.interrupts (or of turn.interrupts)"
    )


def respond_to_interrupt(output: Any, interrupt: Any, metadata: Metadata | None = None) -> Answer:
    """An answer that supplies the tool's result; the tool does not run. For `resume_respond=`."""
    return as_paused(interrupt).respond(output, metadata=metadata)


def restart_tool(
    tool: Any = None,
    interrupt: Any = None,
    resumed_metadata: Any = None,
    replace_input: Any | UnsetType = UNSET,
) -> Answer:
    """An answer that sends the tool round again. For `resume_restart=`.

    `tool` is optional and only checked against the interrupt. A bare restart gives the tool `resumed_metadata == {}`.
    """
    paused = as_paused(interrupt)
    name = tool if isinstance(tool, str) else getattr(tool, "name", getattr(tool, "__name__", None))
    if name is not None and name != paused.name:
        raise VerbNotAllowed(f"restart_tool(tool={name!r}): the interrupt is of tool {paused.name!r}; nothing was run")
    return paused.restart(resumed_metadata, replace_input=replace_input)


def decline_interrupt(reason: str = "", interrupt: Any = None) -> Answer:
    """An answer that refuses. For `resume_respond=`."""
    return as_paused(interrupt).decline(reason)
