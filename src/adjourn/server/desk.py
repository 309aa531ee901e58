"""The desk: what every face of the server asks, so that the rules are the same on the API, the pages and the wire.

Each method takes first who asks. What that principal may not see does not exist: the errors for "not yours" and "never
was" are the same ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.answer import Answer, PausedCall
from adjourn.app import Adjourn
from adjourn.arguments import is_text
from adjourn.errors import ForeignInterrupt, InvalidRequest, StaleInterrupt, UnknownInterrupt
from adjourn.events import Declined, Responded, Restarted
from adjourn.handle import AgentInit, Resume
from adjourn.inbox import Accepted, Page
from adjourn.parts import to_json
from adjourn.records import unknown_interrupt
from adjourn.server.auth import Auth
from adjourn.server.desk_sessions import (
    Run,
    Say,
    SessionDesk,
    Sessions,
    context_of,
    names_of,
    outcome,
    owners_of,
    plain_id,
)
from adjourn.server.links import VERBS, DecisionLinks, Link
from adjourn.server.principal import Forbidden, Principal
from adjourn.server.problems import InterruptExpired, VersionChanged
from adjourn.server.seal import Seal
from adjourn.settling import too_late
from adjourn.store import Decision, InterruptRecord, InterruptStatus

Verb = Literal["respond", "restart", "decline"]
__all__ = ["Desk", "Run", "Say", "Sessions", "Verb", "Verdict", "outcome"]


class Verdict(msgspec.Struct, frozen=True):
    """One decision somebody wants to make: the verb, and what goes with it.

    `expect` is the version that was shown, `key` the Idempotency-Key, `address` where it comes from.
    """

    verb: Verb
    output: Any = None
    metadata: Any = None
    input: Any | UnsetType = UNSET
    reason: str = ""
    key: str | None = None
    expect: str | None = None
    address: str | None = None


class Desk(SessionDesk):
    """What may be asked, by whom. One for a server; `ai` is the application, `auth` has the rules of deciding."""

    def __init__(self, ai: Adjourn, auth: Auth, links: DecisionLinks | None = None) -> None:
        super().__init__(ai, auth.settings.tell_errors)
        self.auth = auth
        self.links = links or DecisionLinks(Seal(()), 86400.0, None)

    # -- interrupts --------------------------------------------------------------------------------------------------

    async def interrupts(
        self,
        principal: Principal,
        *,
        status: InterruptStatus | None = "open",
        tool: str | None = None,
        agent: str | None = None,
        session_id: str | None = None,
        owner: str | None = None,
        text: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """What this principal sees of the inbox, oldest first. `status=None` lists every one there ever was."""
        found = {"tool": tool, "agent": agent, "session_id": session_id, "assignee": owner, "text": text or None}
        if _finds_nothing(principal, found):
            return Page([])
        return await self.ai.inbox.list(status=status, cursor=cursor, limit=limit, **found, **_scopes(principal))

    async def count(
        self,
        principal: Principal,
        *,
        status: InterruptStatus | None = "open",
        tool: str | None = None,
        agent: str | None = None,
        session_id: str | None = None,
        owner: str | None = None,
        text: str | None = None,
    ) -> int:
        """How many of them there are."""
        found = {"tool": tool, "agent": agent, "session_id": session_id, "assignee": owner, "text": text or None}
        if _finds_nothing(principal, found):
            return 0
        return await self.ai.inbox.count(status=status, **found, **_scopes(principal))

    async def interrupt(self, principal: Principal, interrupt_id: str) -> InterruptRecord:
        """One interrupt. Raises UnknownInterrupt, also for what this principal may not see."""
        record = await self.ai.inbox.get(plain_id(interrupt_id))
        if not principal.sees(record):
            raise unknown_interrupt(interrupt_id)
        return record

    async def history(self, principal: Principal, interrupt_id: str) -> Sequence[Decision]:
        """Every decision on an interrupt, in order. Whoever sees everything sees those of deleted sessions, too."""
        if not principal.sees_everything:
            await self.interrupt(principal, interrupt_id)
        return await self.ai.inbox.history(plain_id(interrupt_id))

    # -- deciding ----------------------------------------------------------------------------------------------------

    async def respond(
        self,
        principal: Principal,
        interrupt_id: str,
        output: Any,
        *,
        key: str | None = None,
        expect: str | None = None,
        address: str | None = None,
    ) -> Accepted:
        """Supplies the tool's result. Raises Forbidden or a ResumeError, and then nothing changed."""
        return await self.decide(
            principal, interrupt_id, Verdict("respond", output, None, UNSET, "", key, expect, address)
        )

    async def restart(
        self,
        principal: Principal,
        interrupt_id: str,
        *,
        metadata: Any = None,
        replace_input: Any = UNSET,
        key: str | None = None,
        expect: str | None = None,
        address: str | None = None,
    ) -> Accepted:
        """Sends the tool round again, with what was shown or with `replace_input`."""
        verdict = Verdict("restart", None, metadata, replace_input, "", key, expect, address)
        return await self.decide(principal, interrupt_id, verdict)

    async def decline(
        self,
        principal: Principal,
        interrupt_id: str,
        reason: str = "",
        *,
        key: str | None = None,
        expect: str | None = None,
        address: str | None = None,
    ) -> Accepted:
        """Refuses; the model is told so, and why."""
        return await self.decide(
            principal, interrupt_id, Verdict("decline", None, None, UNSET, reason, key, expect, address)
        )

    async def decide(self, principal: Principal, interrupt_id: str, verdict: Verdict) -> Accepted:
        """One decision of any kind. It is durable when this returns; the turn goes on in the background."""
        principal.require("decide", "decide")
        record = await self.interrupt(principal, interrupt_id)
        await self.auth.check_decision(principal, record, verdict.verb)
        inbox, v = self.ai.inbox, verdict
        common: dict[str, Any] = {"by": principal.name, "address": v.address, "key": v.key, "expect": v.expect}
        try:
            if v.verb == "respond":
                return await inbox.respond(record.id, v.output, **common)
            if v.verb == "restart":
                return await inbox.restart(record.id, metadata=v.metadata, replace_input=v.input, **common)
            return await inbox.decline(record.id, v.reason, **common)
        except StaleInterrupt as e:
            raise await self._why_stale(e, record.id, v.expect) from None

    async def _why_stale(self, error: StaleInterrupt, interrupt_id: str, expect: str | None) -> StaleInterrupt:
        try:
            record = await self.ai.inbox.get(interrupt_id)
        except UnknownInterrupt:
            return error
        if record.status == "expired":
            return InterruptExpired(str(error))
        if record.status == "open" and expect is not None and expect != record.version_tag:
            return VersionChanged(
                f"interrupt {record.id} of tool {record.tool!r} is no longer as it was shown; nothing was decided",
                record.version_tag,
            )
        return error

    def _check_begun_for(self, principal: Principal, owner: str) -> None:
        if self.auth.four_eyes:
            raise Forbidden(
                f"{principal.name!r} cannot begin a session that {owner!r} will own: with four eyes, whoever begins one must not "
                "be able to decide in it. Nothing was begun: leave the owner out"
            )

    # -- links -------------------------------------------------------------------------------------------------------

    async def make_link(
        self,
        principal: Principal,
        interrupt_id: str,
        *,
        by: str,
        verbs: Sequence[str] = VERBS,
        expires_in: float | None = None,
    ) -> str:
        """The token of a link that lets `by` decide on this one. It names another person, so it takes an admin."""
        principal.require("admin", "make a link for somebody else")
        record = await self.interrupt(principal, interrupt_id)
        if self.auth.four_eyes and (record.owner or "") == principal.name:
            raise Forbidden(
                f"{principal.name!r} owns this session, and here somebody else has to decide (four eyes): who owns it makes no "
                "link for it either, since whoever has a link decides with it. No link was made"
            )
        if record.status != "open":
            raise StaleInterrupt(
                f"interrupt {record.id} is {record.status}; there is nothing to decide, so no link was made"
            )
        for verb in verbs:
            token = self.links.token(record, by=by, verbs=verbs, expires_in=expires_in)
            await self.auth.check_decision(self.links.open(token).principal(), record, verb)
        return self.links.token(record, by=by, verbs=verbs, expires_in=expires_in)

    async def open_link(self, token: str) -> tuple[Link, Principal, InterruptRecord]:
        """What a decision link is about, and who opens it: use that principal for what follows.

        Raises LinkInvalid, and LinkSpent once the interrupt is settled. It changes nothing.
        """
        link = self.links.open(token)
        try:
            record = await self.ai.inbox.get(link.interrupt)
        except UnknownInterrupt:
            record = None
        if record is not None:
            link.check(record)
            return link, link.principal(), record
        raise UnknownInterrupt("what this link was about has been deleted; there is nothing to decide any more")

    async def decide_link(self, token: str, verdict: Verdict) -> Accepted:
        """Decides through a link. It counts only for the version the link was made for."""
        link = self.links.open(token)
        verdict = msgspec.structs.replace(verdict, expect=link.version)
        if not await self._was_made(link, verdict.key):
            await self.open_link(token)  # raises LinkSpent, but not for the very decision that spent it
        return await self.decide(link.principal(), link.interrupt, verdict)

    async def _was_made(self, link: Link, key: str | None) -> bool:
        if key is None:
            return False
        made = await self.ai.inbox.history(link.interrupt)
        return any(d.key == key and d.by == link.by for d in made)

    async def resume(
        self, principal: Principal, agent_name: str, where: Say, verdicts: Sequence[tuple[str, Verdict]]
    ) -> Run:
        """Several decisions of one session at once, by interrupt id: all count or none does."""
        principal.require("decide", "decide")
        agent = self.agent(principal, agent_name)
        if where.state is not None:
            init = AgentInit(state=where.state)
        else:
            session_id = where.session_id
            if where.snapshot_id is not None:
                session_id = await self.of_snapshot(principal, agent, where.snapshot_id, session_id)
            if session_id is None:
                raise InvalidRequest("a resume says which session: give sessionId, or the state of a reply")
            await self.of_agent(principal, agent, session_id)
            for interrupt_id, verdict in verdicts:
                record = await self.interrupt(principal, interrupt_id)
                if record.session_id != session_id:
                    raise ForeignInterrupt(f"interrupt {record.id} belongs to another session; nothing was decided")
                await self.auth.check_decision(principal, record, verdict.verb)
            init = AgentInit(session_id, where.snapshot_id)
        session = agent.connect(init)
        await session.load()
        paused = {i.id: i.paused for i in session.interrupts}
        answers: list[Answer] = []
        for interrupt_id, v in verdicts:
            if interrupt_id not in paused:
                raise await self._not_paused(principal, interrupt_id, kept=where.state is not None)
            if where.state is not None:
                await self.check_kept(principal, agent.name, session.id, paused[interrupt_id], v.verb)
            answers.append(Answer(_event(interrupt_id, v, principal.name), paused[interrupt_id]))
        address = next((v.address for _, v in verdicts if v.address), None)
        resume = Resume(answers, (), by=principal.name, address=address, detach=where.detach)
        turn = session.resume(resume, context=context_of(principal))
        return Run(session.id, turn, self.tells(principal))

    async def check_kept(
        self, principal: Principal, agent: str, session_id: str, paused: PausedCall, verb: str
    ) -> None:
        """The rules of deciding, for a session that the caller keeps: it is the caller's own."""
        record = InterruptRecord(
            paused.id, session_id, "", "", paused.call_id, agent, paused.name, self.ai.clock.now(), input=paused.input,
            payload=paused.payload, allow=paused.allow, reason=paused.reason, owner=principal.name,
        )  # fmt: skip
        if principal.tools is not None and paused.name not in principal.tools:
            raise unknown_interrupt(paused.id)
        await self.auth.check_decision(principal, record, verb)

    async def _not_paused(self, principal: Principal, interrupt_id: str, kept: bool) -> Exception:
        if kept:  # what the caller keeps has nothing to do with what is stored here
            return UnknownInterrupt(f"there is no interrupt {interrupt_id!r} in this state")
        record = await self.interrupt(principal, interrupt_id)  # raises for one that never was
        if record.status == "open":
            return StaleInterrupt(
                f"interrupt {record.id} is not open in this branch of its session, so nothing was changed. Decide on it in "
                "the inbox, or send it from the snapshot that asked"
            )
        late = too_late(record, await self.ai.inbox.history(record.id))
        return InterruptExpired(str(late)) if record.status == "expired" else late


def _event(interrupt_id: str, v: Verdict, by: str) -> Responded | Restarted | Declined:
    if v.verb == "respond":
        return Responded(interrupt_id, to_json(v.output, "response"), None, by)
    if v.verb == "restart":
        given = UNSET if v.input is UNSET else to_json(v.input, "replaced input")
        return Restarted(interrupt_id, to_json(v.metadata, "restart metadata"), given, by)
    return Declined(interrupt_id, v.reason, by)


def _finds_nothing(principal: Principal, filters: Mapping[str, str | None]) -> bool:
    # A link shows its own interrupt, by its id.
    return principal.interrupts is not None or not all(is_text(f) for f in filters.values() if f is not None)


def _scopes(principal: Principal) -> dict[str, Any]:
    return {
        "agents": names_of(principal.agents),
        "tools": names_of(principal.tools),
        "owners": owners_of(principal),
    }
