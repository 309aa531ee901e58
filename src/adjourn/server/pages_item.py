"""One item: what is asked, what may be done about it, and what became of it. Reached from the inbox and by decision links."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.display import one_line
from adjourn.errors import AdjournError, SessionNotFound
from adjourn.parts import new_id
from adjourn.resume import seen, tool_shown
from adjourn.server.pages_forms import FormState, answer_form, edit_form
from adjourn.server.pages_steps import Step, conversation, is_moving, state_of, steps
from adjourn.server.pages_values import Change, changes, is_flagged, shown
from adjourn.server.pages_view import Html, Visit, sentence
from adjourn.server.pages_words import actions, asks, on_expiry, outcome, says_more, settling, why
from adjourn.server.principal import Forbidden
from adjourn.store import Decision, InterruptRecord
from adjourn.tool import Tool


class Notice(msgspec.Struct, frozen=True):
    """Something to be told at the top of the page. `kept` is what the person wrote and would otherwise lose."""

    tone: str
    title: str
    text: str = ""
    kept: str = ""


class Look(msgspec.Struct, frozen=True):
    """How the page is shown: what is told, which part is open, and what was typed."""

    notices: Sequence[Notice] = ()
    opened: str = ""
    errors: Mapping[str, str] = {}
    answer: FormState | None = None
    edit: FormState | None = None
    reason: str = ""
    note: str = ""
    note_error: str = ""
    status: int = 200


class About(msgspec.Struct, frozen=True):
    """What is known of a tool here."""

    description: str
    parameters: Sequence[tuple[str, str]]
    schema: Any


class After(msgspec.Struct, frozen=True):
    """What became of an item. `visible`: the person may see the session it belongs to."""

    title: str
    at: float | None = None
    address: str | None = None
    reason: str = ""
    note: str = ""
    diff: Sequence[Change] = ()
    shows_output: bool = False
    output: Any = None
    visible: bool = False
    steps: Sequence[Step] = ()
    state: str = ""
    running: bool = False


class ItemPage:
    """The page of one interrupt. `target` is the address its forms go to, before the verb."""

    def __init__(self, visit: Visit, row: InterruptRecord, target: str) -> None:
        self.visit = visit
        self.row = seen(row)
        self.target = target
        self.tool = _find_tool(visit, row)
        self.about = _about(self.tool)

    def answer(self) -> FormState:
        return answer_form(self.row)

    def edit(self) -> FormState:
        return edit_form(self.row, self.about.schema if self.about else None)

    @property
    def stamps(self) -> dict[str, str]:
        """What a decision carries: the version that was shown, and a key, so that sending it twice decides once."""
        return {"_version": self.row.version_tag, "_key": new_id()}

    async def verbs(self) -> tuple[list[str], str]:
        """The decisions this person may make, and why not where there is none."""
        refusal = ""
        allowed: list[str] = []
        who = self.visit.principal
        if not who.at_least("decide"):
            return [], f"Your role here is {who.role}. Deciding takes the role decide: ask whoever gave you access."
        for verb in (*self.row.allow, "decline"):
            try:
                await self.visit.desk.auth.check_decision(self.visit.principal, self.row, verb)
                allowed.append(verb)
            except Forbidden as e:
                refusal = refusal or sentence(str(e))
        return allowed, refusal

    async def render(self, how: Look = Look()) -> Html:  # noqa: B008 - frozen
        """The page, as it now is."""
        row, visit = self.row, self.visit
        history = await self.history()
        allowed, refusal = await self.verbs()
        before, after = asks(row)
        runs_here = row.agent in visit.desk.ai.agents
        todo = actions(row, runs_here)
        opened = how.opened or visit.asked("open")
        context: dict[str, Any] = {
            "section": "inbox",
            "title": f"{one_line(row.tool, 60)}: {one_line(row.agent, 40)}",
            "row": row,
            "target": self.target,
            "before": before,
            "after_words": after,
            "why": why(row),
            "says_more": says_more(row),
            "tool": self.about,
            "actions": todo,
            "verbs": allowed,
            "allowed": bool(allowed),
            "refusal": refusal,
            "flagged": is_flagged(shown([row.tool, row.input, row.payload])),
            "may_edit": "restart" in allowed,
            "stamps": self.stamps,
            "opened": opened,
            "errors": how.errors,
            "respond": how.answer or self.answer(),
            "edit": how.edit or self.edit(),
            "typed": {"reason": how.reason, "metadata": how.note, "metadata_error": how.note_error},
            "notices": how.notices,
            "history": history,
            "replaced": _replaced,
            "talk": await self._talk(),
            "ids": self._ids(),
            "on_expiry": on_expiry(row),
            "following": await self._following(),
            "after": await self.after(history) if row.status != "open" else None,
        }
        return visit.page("item.html", context, how.status)

    async def after_fragment(self) -> Html:
        """Only what became of it, for a page that is open."""
        context = {"row": self.row, "after": await self.after(await self.history())}
        return self.visit.page("after.html", context)

    async def history(self) -> Sequence[Decision]:
        return await self.visit.desk.history(self.visit.principal, self.row.id)

    async def after(self, history: Sequence[Decision]) -> After:
        """What became of it: the decision, and what has happened since."""
        row, visit = self.row, self.visit
        made = settling(history)
        title = outcome(row, made, visit.principal.name)
        if made is None:
            return After(title)
        edited: Any = made.input
        answered = made.verb == "respond"
        told = After(
            title,
            made.at,
            made.address,
            made.reason,
            on_expiry(row) if made.verb == "expire" else "",
            changes(row.input, edited) if edited is not UNSET else (),
            answered,
            made.output if answered else None,
        )
        try:
            session = await visit.desk.session(visit.principal, row.session_id)
        except SessionNotFound:
            return told  # deleted since, or not this person's to see
        view = await visit.desk.view(visit.principal, row.session_id)
        entries = await visit.desk.timeline(visit.principal, row.session_id)
        own = ("decision", "expired")
        since = [e for e in entries if e.at >= made.at and not (e.kind in own and e.facts.get("interrupt") == row.id)]
        since = [e for e in since if e.kind != "end" or "error" in e.facts]  # a plain end is told by the state
        moving = is_moving(session)
        state = state_of(session, visit.now, view.finish_reason if view is not None else None)
        if moving and row.agent not in visit.desk.ai.agents:
            state = "Waits for a process that has this agent."
        return msgspec.structs.replace(
            told, visible=True, steps=steps(since[:20], visit.url), state=f"{state}.".replace("..", "."), running=moving
        )

    async def _talk(self) -> Sequence[Any]:
        try:
            view = await self.visit.desk.view(self.visit.principal, self.row.session_id, self.row.snapshot_id)
        except SessionNotFound:
            return ()
        return conversation(view.messages)[-60:] if view is not None else ()

    async def _following(self) -> InterruptRecord | None:
        if self.visit.linked:
            return None
        page = await self.visit.desk.interrupts(self.visit.principal, limit=2)
        return next((seen(r) for r in page.items if r.id != self.row.id), None)

    def _ids(self) -> list[tuple[str, str]]:
        row = self.row
        pairs = [
            ("interrupt", row.id),
            ("session", row.session_id),
            ("turn", row.turn_id),
            ("call", row.call_id),
            ("provider's ref", row.ref or ""),
            ("input digest", row.input_digest),
            ("tool version", row.version),
        ]
        return [(name, text) for name, text in pairs if text]

    def review(self, edited: Any | UnsetType, note: Any) -> Html:
        """What a restart would change, before it is sent."""
        runs = self.row.input if edited is UNSET else edited
        says = next((a.says for a in actions(self.row, True) if a.verb == "restart"), "")
        context: dict[str, Any] = {
            "section": "inbox",
            "row": self.row,
            "target": self.target,
            "stamps": self.stamps,
            "diff": changes(self.row.input, runs),
            "input": runs,
            "input_json": json.dumps(runs, ensure_ascii=True),
            "metadata": note,
            "metadata_json": json.dumps(note, ensure_ascii=True),
            "says": says.replace("exactly the input shown", "the input above").replace(
                "the input shown", "the input above"
            ),
        }
        return self.visit.page("review.html", context)


def _replaced(decision: Decision) -> bool:
    return decision.input is not UNSET


def _find_tool(visit: Visit, row: InterruptRecord) -> Tool[..., Any] | None:
    agent = visit.desk.ai.agents.get(row.agent)
    return tool_shown(row.tool, row, agent.find_tool) if agent is not None else None


def _about(tool: Tool[..., Any] | None) -> About | None:
    if tool is None:
        return None
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    parameters = [(name, str(p["description"])) for name, p in properties.items() if p.get("description")]
    return About(tool.description, parameters, tool.input_schema)


def refused(error: AdjournError) -> Notice:
    """The notice of an error that left everything as it was."""
    return Notice("bad", "This was refused. Nothing was changed.", str(error))
