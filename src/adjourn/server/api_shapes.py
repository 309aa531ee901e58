"""What the JSON API says and takes: plain values, camelCase on the wire, times as RFC 3339."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.agent import Agent, SnapshotView
from adjourn.display import summary
from adjourn.events import Limits
from adjourn.handle import AgentInterrupt, AgentOutput, SessionState
from adjourn.inbox import Accepted
from adjourn.parts import Artifact, ErrorInfo, Message, Usage
from adjourn.resume import seen
from adjourn.server.principal import Principal
from adjourn.server.untold import untold
from adjourn.store import Decision, InterruptRecord, SessionRecord, Snapshot
from adjourn.tool import Tool

JSON = Any
"""Any JSON value; null, false, 0 and "" are values like all others."""


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """What goes out. Every field is always there."""


class Asked(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What comes in. A misspelt field is an error, not a silent nothing."""


def when(at: float) -> datetime:
    """A time. One that no calendar has is shown as the last, or the first, that this can show."""
    return datetime.fromtimestamp(max(0.0, min(at, 253_000_000_000.0)), UTC)


def _maybe(at: float | None) -> datetime | None:
    return None if at is None else when(at)


# -- interrupts ------------------------------------------------------------------------------------------------------


class InterruptView(Shape, frozen=True):
    """One paused call. `version` is its ETag; `allow` are the decisions it takes; `responseSchema` is what a response
    must fit (null: anything). Of a pause in a nested agent, `tool` and `input` are the outer call's, `path` leads to the
    inner one, `payload` has it, and `summary` is of it."""

    id: str
    session_id: str
    snapshot_id: str
    agent: str
    tool: str
    status: Literal["open", "resolved", "expired", "cancelled"]
    summary: str
    created_at: datetime
    expires_at: datetime | None
    owner: str | None
    reason: str
    allow: Sequence[str]
    input: JSON
    input_digest: str
    payload: JSON
    response_schema: JSON
    path: Sequence[str]
    version: str


def interrupt_view(r: InterruptRecord) -> InterruptView:
    inner = seen(r)
    return InterruptView(
        r.id, r.session_id, r.snapshot_id, r.agent, r.tool, r.status, summary(inner.tool, inner.input), when(r.created),
        _maybe(r.expires_at), r.owner, r.reason, [*r.allow, "decline"], r.input, r.input_digest, r.payload, r.response,
        r.path, r.version_tag,
    )  # fmt: skip


class InterruptPage(Shape, frozen=True):
    """Some interrupts, oldest first. `nextCursor` gets what follows; null at the end. `count` is there when asked for."""

    items: Sequence[InterruptView]
    next_cursor: str | None
    count: int | None


class DecisionView(Shape, frozen=True):
    """One row of the audit. `inputDigest` is of the input that was shown; `input` is there where it was replaced."""

    id: str
    interrupt_id: str
    verb: str
    at: datetime
    by: str | None
    address: str | None
    input_digest: str
    reason: str
    output: JSON
    metadata: JSON
    input: JSON


def decision_view(d: Decision) -> DecisionView:
    given = None if d.input is UNSET else d.input
    return DecisionView(
        d.id, d.interrupt_id, d.verb, when(d.at), d.by, d.address, d.input_digest, d.reason, d.output, d.metadata, given
    )  # fmt: skip


class History(Shape, frozen=True):
    """Every decision on one interrupt, in order."""

    items: Sequence[DecisionView]


class AcceptedView(Shape, frozen=True):
    """A decision that counts and is stored. `repeated`: it had been sent before, under the same Idempotency-Key.

    `snapshotId` is the turn that goes on here from it; null where another process takes it up.
    """

    decision: DecisionView
    repeated: bool
    session_id: str
    snapshot_id: str | None


def accepted_view(a: Accepted) -> AcceptedView:
    turn = a.turn.snapshot_id if a.turn is not None else None
    return AcceptedView(decision_view(a.decision), a.repeated, a.decision.session_id, turn)


class RespondBody(Asked, frozen=True):
    """The tool's result."""

    output: JSON


class RestartBody(Asked, frozen=True):
    """`metadata` is what the tool reads as `ctx.resumed_metadata`; `replaceInput` is another input than was shown."""

    metadata: JSON = None
    replace_input: JSON | UnsetType = UNSET


class DeclineBody(Asked, frozen=True):
    """Why; the model is told."""

    reason: str = ""


class BulkItem(Asked, frozen=True):
    """One of many. `version` is the one that was shown."""

    id: str
    version: str | None = None


class BulkBody(Asked, frozen=True):
    """The same decision on several interrupts of one tool."""

    items: Sequence[BulkItem]
    verb: Literal["respond", "restart", "decline"]
    tool: str
    output: JSON = None
    metadata: JSON = None
    reason: str = ""


class BulkResult(Shape, frozen=True):
    """What became of one of them: the decision, or the problem that refused it."""

    id: str
    accepted: AcceptedView | None
    problem: JSON


class BulkResults(Shape, frozen=True):
    items: Sequence[BulkResult]
    accepted: int
    refused: int


class LinkBody(Asked, frozen=True):
    """A link that lets `by` decide on one interrupt. `expiresIn` is in seconds."""

    by: str
    verbs: Sequence[Literal["respond", "restart", "decline"]] = ("respond", "restart", "decline")
    expires_in: float | None = None


class LinkView(Shape, frozen=True):
    """The link to send. Whoever has it can decide as `by`, once."""

    url: str
    by: str
    expires_at: datetime


class LinkDecision(Asked, frozen=True):
    """A decision through a link."""

    verb: Literal["respond", "restart", "decline"]
    output: JSON = None
    metadata: JSON = None
    replace_input: JSON | UnsetType = UNSET
    reason: str = ""


# -- agents ----------------------------------------------------------------------------------------------------------


class ToolView(Shape, frozen=True):
    name: str
    description: str
    input_schema: JSON


class AgentView(Shape, frozen=True):
    """An agent. `stored`: it keeps its sessions; else every reply carries the state to send with the next message."""

    name: str
    description: str
    stored: bool
    tools: Sequence[ToolView]


class AgentList(Shape, frozen=True):
    items: Sequence[AgentView]


def _tool_view(tool: Tool[..., Any]) -> ToolView:
    d = tool.definition
    return ToolView(d.name, d.description, d.input_schema)


def agent_view(agent: Agent) -> AgentView:
    return AgentView(
        agent.name, agent.description, agent.store is not None, [_tool_view(t) for t in agent.tools.values()]
    )


class SendBody(Asked, frozen=True):
    """Something to say: a text, or a message with parts. Without `sessionId` (or `snapshotId`) a session is begun.

    `state` goes back to an agent that keeps no sessions. `owner` is for admins who begin a session for somebody.
    """

    message: str | Message
    session_id: str | None = None
    snapshot_id: str | None = None
    state: SessionState | None = None
    owner: str | None = None


class Respond(Asked, frozen=True):
    interrupt: str
    output: JSON


class Restart(Asked, frozen=True):
    interrupt: str
    metadata: JSON = None
    replace_input: JSON | UnsetType = UNSET


class Decline(Asked, frozen=True):
    interrupt: str
    reason: str = ""


class ResumeBody(Asked, frozen=True):
    """Several decisions of one session: all of them count, or none."""

    session_id: str | None = None
    snapshot_id: str | None = None
    state: SessionState | None = None
    respond: Sequence[Respond] = ()
    restart: Sequence[Restart] = ()
    decline: Sequence[Decline] = ()


class PauseView(Shape, frozen=True):
    """A pause of the turn that was run; GET /api/interrupts/{id} says more where the session is stored."""

    id: str
    tool: str
    input: JSON
    payload: JSON
    reason: str
    allow: Sequence[str]


def pause_view(i: AgentInterrupt) -> PauseView:
    return PauseView(i.id, i.name, i.input, i.payload, i.reason, [*i.allow, "decline"])


class RunView(Shape, frozen=True):
    """What a turn came to. `finishReason` is "running" where it was not waited for any longer."""

    session_id: str
    snapshot_id: str | None
    finish_reason: str
    text: str = ""
    message: Message | None = None
    interrupts: Sequence[PauseView] = ()
    output: JSON = None
    custom_state: JSON = None
    artifacts: Sequence[Artifact] = ()
    usage: Usage = Usage()
    error: ErrorInfo | None = None
    limit: str | None = None
    state: SessionState | None = None


def run_view(o: AgentOutput, told: bool) -> RunView:
    """`told`: with what an exception said."""
    error = o.error if told or o.error is None else untold(o.error)
    value, custom = msgspec.to_builtins(plain(o.value)), msgspec.to_builtins(plain(o.state))
    return RunView(
        o.session_id, o.snapshot_id, o.finish_reason, o.text, o.message, [pause_view(i) for i in o.interrupts], value,
        custom, o.artifacts, o.usage, error, o.limit, o.client_state,
    )  # fmt: skip


def plain(value: Any) -> Any:
    """A typed state or output as JSON data."""
    from adjourn.parts import to_json

    return to_json(value, "output")


# -- sessions --------------------------------------------------------------------------------------------------------


class SessionItem(Shape, frozen=True):
    """A session in a list. `running`: a turn of it runs, or waits for a driver."""

    id: str
    agent: str
    owner: str | None
    created_at: datetime
    updated_at: datetime
    snapshot_id: str | None
    running: bool


def session_item(s: SessionRecord) -> SessionItem:
    return SessionItem(s.id, s.agent, s.owner, when(s.created), when(s.updated), s.head, s.pending or s.waiting > 0)


class SessionPage(Shape, frozen=True):
    items: Sequence[SessionItem]
    next_cursor: str | None


class SnapshotItem(Shape, frozen=True):
    """A resting point, which can be forked."""

    id: str
    parent_id: str | None
    turn_id: str
    status: str
    finish_reason: str | None
    created_at: datetime
    updated_at: datetime
    error: ErrorInfo | None


def snapshot_item(s: Snapshot) -> SnapshotItem:
    return SnapshotItem(
        s.id, s.parent_id, s.turn_id, s.status, s.finish_reason, when(s.created), when(s.updated), s.error
    )


class SessionView(Shape, frozen=True):
    """A session as it stands: the conversation, its custom state and artifacts, what it waits for, its resting points."""

    session: SessionItem
    status: str | None
    finish_reason: str | None
    error: ErrorInfo | None
    messages: Sequence[Message]
    custom_state: JSON
    artifacts: Sequence[Artifact]
    interrupts: Sequence[InterruptView]
    snapshots: Sequence[SnapshotItem]


def session_view(
    s: SessionRecord, view: SnapshotView | None, waiting: Sequence[InterruptRecord], snapshots: Sequence[Snapshot]
) -> SessionView:
    v = view
    return SessionView(
        session_item(s),
        v.status if v is not None else None,
        v.finish_reason if v is not None else None,
        v.error if v is not None else None,
        v.messages if v is not None else [],
        v.state if v is not None else None,
        v.artifacts if v is not None else [],
        [interrupt_view(r) for r in waiting],
        [snapshot_item(x) for x in snapshots],
    )


class EntryView(Shape, frozen=True):
    """One thing that happened. `took` is in seconds."""

    at: datetime
    kind: str
    title: str
    snapshot_id: str
    facts: Mapping[str, JSON]
    took: float | None


class Timeline(Shape, frozen=True):
    items: Sequence[EntryView]


class ForkBody(Asked, frozen=True):
    """From which snapshot; the newest, where none is named."""

    snapshot_id: str | None = None


class ForkView(Shape, frozen=True):
    """The branch: send to it by this `snapshotId`. A paused one has interrupts of its own."""

    session_id: str
    snapshot_id: str | None
    interrupts: Sequence[PauseView]


class RetryBody(Asked, frozen=True):
    """New `limits` are needed where one was reached."""

    limits: Limits | None = None


class AbortBody(Asked, frozen=True):
    reason: str = ""


class AbortView(Shape, frozen=True):
    """`aborted`: there was something to end."""

    aborted: bool


# -- who and how -----------------------------------------------------------------------------------------------------


class Me(Shape, frozen=True):
    """Who you are here. A scope of null is everything; `csrfToken` is for scripts that go by the cookie."""

    name: str
    role: str
    via: str
    agents: Sequence[str] | None
    tools: Sequence[str] | None
    owners: Sequence[str] | None
    csrf_token: str | None


def me(p: Principal, csrf_token: str | None) -> Me:
    def listed(scope: frozenset[str] | None) -> Sequence[str] | None:
        return None if scope is None else sorted(scope)

    return Me(p.name, p.role, p.via, listed(p.agents), listed(p.tools), listed(p.owner_scope), csrf_token)


class SignIn(Asked, frozen=True):
    token: str


class Health(Shape, frozen=True):
    status: Literal["ok", "unavailable"]
