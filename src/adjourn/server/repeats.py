"""A request that is sent again under its Idempotency-Key: what it came to the first time, instead of a second time.

A message carries a mark of its key, which is stored with it, in the commit that begins its turn: there is no moment at which
one is there without the other. A session that a message begins has its id from the key, so that two who send it at once
begin one session. Decisions need no mark: they are in the audit.
"""

from collections.abc import Sequence

from litestar.params import HeaderParameter
from msgspec import UNSET
from msgspec.structs import replace

from adjourn.agent import Agent
from adjourn.errors import InvalidRequest, SessionNotFound
from adjourn.generation import sendable
from adjourn.parts import Message, canonical, digest, encode, to_json
from adjourn.server.api_shapes import PauseView, RunView, plain
from adjourn.server.desk import Desk, Run, Say, Verdict
from adjourn.server.links import VERBS
from adjourn.server.principal import Principal
from adjourn.server.problems import KeyReused
from adjourn.store import Decision

_NOTE = "idempotencyKey"


def key_header(description: str) -> HeaderParameter:
    """The header that names a request, so that it can be sent again."""
    return HeaderParameter(name="Idempotency-Key", min_length=1, max_length=200, description=description)


def keyed(desk: Desk, principal: Principal, agent: Agent, say: Say, key: str) -> Say:
    """The same, with the mark of the key, and the id of the session where it begins one."""
    check_kept(agent)
    message = sendable(say.message)
    message = replace(message, metadata={**(message.metadata or {}), _NOTE: digest(principal.name, key)})
    begins = say.session_id is None and say.snapshot_id is None
    begun = "s_" + desk.auth.tag_of("send", principal.name, agent.name, key) if begins else None
    return replace(say, message=message, begun=begun)


def check_kept(agent: Agent) -> None:
    """Raises InvalidRequest for an agent that keeps nothing, not even keys."""
    if agent.store is None:
        raise InvalidRequest(
            f"agent {agent.name!r} keeps no sessions, so it does not know a request again: leave the Idempotency-Key out"
        )


async def sent_before(desk: Desk, principal: Principal, agent: Agent, say: Say) -> str | None:
    """The session that this message is in already; None where it is in none.

    Raises KeyReused where the key stands for another message.
    """
    session_id = say.session_id or say.begun
    if say.snapshot_id is not None:
        session_id = await desk.of_snapshot(principal, agent, say.snapshot_id, session_id)
    assert session_id is not None
    try:
        record = await desk.session(principal, session_id)
    except SessionNotFound:
        return None
    view = await desk.view(principal, record.id)
    said = [*(view.messages if view is not None else ()), *(q.message for q in record.queue)]
    mark = say.message.metadata[_NOTE]
    found = next((m for m in reversed(said) if m.role == "user" and (m.metadata or {}).get(_NOTE) == mark), None)
    if found is None:
        return None
    if encode(found.content) != encode(say.message.content):
        raise KeyReused(
            "this Idempotency-Key was used for another message; nothing was sent. Take a new key for a new one"
        )
    return record.id


async def decided_before(desk: Desk, principal: Principal, verdicts: Sequence[tuple[str, Verdict]]) -> bool:
    """Whether exactly these decisions were made by this principal, and count."""
    for interrupt_id, verdict in verdicts:
        record = await desk.interrupt(principal, interrupt_id)
        made = [d for d in await desk.ai.inbox.history(record.id) if d.verb in VERBS]
        if not made or made[-1].by != principal.name or not _is_of(made[-1], verdict):
            return False
    return bool(verdicts)


def _is_of(made: Decision, v: Verdict) -> bool:
    given = None if v.input is UNSET else to_json(v.input, "replaced input")
    then = None if made.input is UNSET else made.input
    said = (v.verb, to_json(v.output, "response"), to_json(v.metadata, "metadata"), given, v.reason)
    return canonical(list(said)) == canonical([made.verb, made.output, made.metadata, then, made.reason])


async def standing(desk: Desk, principal: Principal, session_id: str) -> Run | RunView:
    """The turn of a session that runs here, or what the session has come to."""
    record = await desk.session(principal, session_id)
    turn = desk.ai.running.get(record.head or "") if record.pending else None
    if turn is not None:
        return Run(record.id, turn, desk.tells(principal))
    view = await desk.view(principal, record.id)
    if view is None or record.pending or record.waiting or record.queue:
        return RunView(record.id, record.head, "running")
    waiting = await desk.interrupts(principal, session_id=record.id, limit=1000)
    last: Message | None = next((m for m in reversed(view.messages) if m.role == "model"), None)
    return RunView(
        record.id,
        view.id,
        view.finish_reason or "other",
        last.text if last is not None else "",
        last,
        [PauseView(r.id, r.tool, r.input, r.payload, r.reason, [*r.allow, "decline"]) for r in waiting.items],
        custom_state=plain(view.state),
        artifacts=view.artifacts,
        error=view.error,
    )
