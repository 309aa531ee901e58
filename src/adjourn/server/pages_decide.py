"""What the forms of an item's page send: decisions, and the steps on the way to one. Whatever is refused is shown with all
that was typed.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from litestar.response import Redirect
from msgspec import UNSET

from adjourn.display import one_line
from adjourn.errors import AdjournError, AlreadyResolved, InvalidInput, InvalidResponse, StaleInterrupt
from adjourn.forms import read_json
from adjourn.inbox import Accepted
from adjourn.schema import Misfit
from adjourn.server.desk import Verdict
from adjourn.server.pages_forms import FormState, Typed, filled, read, read_note
from adjourn.server.pages_item import ItemPage, Look, Notice, refused
from adjourn.server.pages_view import Form, Html, Visit, typed_in
from adjourn.server.pages_words import DONE
from adjourn.server.principal import Forbidden
from adjourn.server.problems import InterruptExpired, LinkSpent, VersionChanged, problem_of
from adjourn.store import Decision, InterruptRecord

Decide = Callable[[Verdict], Awaitable[Accepted]]
Again = Callable[[], Awaitable[InterruptRecord]]
VERBS = ("respond", "restart", "decline", "review", "edit")


class Desired(msgspec.Struct, frozen=True):
    """What somebody wants to do: the verdict, and how the page is shown if it is refused."""

    verdict: Verdict
    shown: Look
    kept: str = ""


class Counter:
    """One item and a form that was sent for it. `decide` makes the decision, `again` fetches the item anew."""

    def __init__(self, page: ItemPage, decide: Decide, again: Again) -> None:
        self.page = page
        self._decide = decide
        self._again = again

    async def take(self, verb: str, sent: Form, done: str) -> Html | Redirect:
        """Does what the form asks for. A decision that counts leads to `done`."""
        wanted: Desired | Html
        if verb == "respond":
            wanted = await self._respond(sent)
        elif verb == "decline":
            reason = _first(sent, "reason").replace("\r\n", "\n").strip()
            verdict = Verdict("decline", reason=reason, **self._stamps(sent))
            wanted = Desired(verdict, Look(opened="decline", reason=reason), reason)
        elif verb == "restart":
            wanted = await self._restart(sent)
        else:
            wanted = await self._review(sent, back=verb == "edit")
        if not isinstance(wanted, Desired):
            return wanted
        try:
            await self._decide(wanted.verdict)
        except AdjournError as e:
            return await self._refused(e, wanted)
        return Redirect(done, status_code=303)

    def _stamps(self, sent: Form) -> dict[str, Any]:
        return {
            "key": _first(sent, "_key")[:200] or None,
            "expect": _first(sent, "_version") or None,
            "address": self.page.visit.address,
        }

    async def _respond(self, sent: Form) -> Desired | Html:
        typed = read(self.page.answer(), sent)
        shown = Look(opened="respond", answer=typed.state)
        if typed.again or typed.errors:
            return await self._show_again(shown, typed)
        verdict = Verdict("respond", output=typed.value, **self._stamps(sent))
        return Desired(verdict, shown, _as_typed(typed.state))

    async def _restart(self, sent: Form) -> Desired | Html:
        edited = _first(sent, "_input")
        note = _first(sent, "_metadata_json")
        damaged = Look(
            [Notice("bad", "The form came back damaged. Nothing was changed.", "Change the input again.")],
            "edit",
            status=422,
        )
        try:
            metadata = read_json(note) if note else None
        except ValueError as e:
            return await self.page.render(msgspec.structs.replace(damaged, note_error=f"The note {e}"))
        try:
            changed: Any = read_json(edited) if edited else UNSET
        except ValueError as e:
            return await self.page.render(msgspec.structs.replace(damaged, errors={"$": str(e)}))
        verdict = Verdict("restart", metadata=metadata, input=changed, **self._stamps(sent))
        state = self.page.edit() if changed is UNSET else filled(self.page.edit(), changed)
        opened = "" if changed is UNSET and metadata is None else "edit"
        return Desired(verdict, Look(opened=opened, edit=state, note=_note(metadata)), edited)

    async def _review(self, sent: Form, back: bool) -> Html:
        if back:  # from the review to the form, with what was typed
            wanted = await self._restart(sent)
            return wanted if not isinstance(wanted, Desired) else await self.page.render(wanted.shown)
        typed = read(self.page.edit(), sent)
        shown = Look(opened="edit", edit=typed.state, note=_first(sent, "_metadata"))
        note: Any = None
        if not typed.again:
            try:
                note = read_note(shown.note)
            except ValueError as e:
                shown = msgspec.structs.replace(shown, note_error=f"The note {e}", status=422)
                return await self._show_again(shown, typed)
            typed = self._checked(typed)
        if typed.again or typed.errors:
            return await self._show_again(shown, typed)
        return self.page.review(typed.value if typed.state.mode != "none" else UNSET, note)

    def _checked(self, typed: Typed) -> Typed:
        """With what the tool itself says of its input, where the schema has nothing to object to."""
        if typed.errors or self.page.tool is None or typed.state.mode == "none":
            return typed
        try:
            self.page.tool.shape.validate(typed.value)
        except Misfit as e:
            return msgspec.structs.replace(typed, errors=_by_path(e.problems))
        return typed

    async def _show_again(self, shown: Look, typed: Typed) -> Html:
        status = 422 if typed.errors else shown.status
        return await self.page.render(msgspec.structs.replace(shown, errors=typed.errors, status=status))

    async def _refused(self, error: AdjournError, wanted: Desired) -> Html:
        status = problem_of(error).status
        if isinstance(error, (InvalidResponse, InvalidInput)):
            errors = _by_path(error.problems) or {"$": str(error)}
            return await self.page.render(msgspec.structs.replace(wanted.shown, errors=errors, status=status))
        # It may be another one now, so it is looked up; where it is gone, the error page says so.
        row = await self._again()
        page = ItemPage(self.page.visit, row, self.page.target)
        kept = wanted.kept if row.status != "open" else ""
        notice = _notice(error, wanted.verdict, kept, self.page.visit)
        return await page.render(msgspec.structs.replace(wanted.shown, notices=[notice], status=status))


def _notice(error: AdjournError, verdict: Verdict, kept: str, visit: Visit) -> Notice:
    if isinstance(error, AlreadyResolved):
        made: Any = error.decision
        who = one_line(made.by or "Somebody", 80) if isinstance(made, Decision) else "Somebody"
        did = DONE.get(made.verb, made.verb) if isinstance(made, Decision) else "decided"
        mine = "You" if who == visit.principal.name else who
        title = f"{mine} {did} this before your decision arrived"
        return Notice("warn", title, f"Yours (to {_VERB[verdict.verb]}) changed nothing.", kept)
    if isinstance(error, InterruptExpired):
        return Notice("warn", "This expired before your decision arrived", "Nothing that you sent was done.", kept)
    if isinstance(error, VersionChanged):
        text = "Nothing was done. What you see now is how it is; what you wrote is still in the form. Look again, then decide."
        return Notice("warn", "This changed since you opened it", text)
    if isinstance(error, LinkSpent):
        return Notice("warn", "This link has been used", str(error), kept)
    if isinstance(error, StaleInterrupt):
        return Notice("warn", "This is no longer open", str(error), kept)
    if isinstance(error, Forbidden):
        return Notice("bad", "You may not decide on this", str(error), kept)
    return refused(error)


_VERB = {"respond": "respond", "restart": "approve", "decline": "decline"}


def _by_path(problems: Any) -> dict[str, str]:
    out: dict[str, str] = {}
    for problem in problems:
        out.setdefault(problem["path"], problem["message"])
    return out


def _as_typed(state: FormState) -> str:
    return typed_in(state.data) if state.mode == "form" else state.text


def _note(metadata: Any) -> str:
    if metadata is None:
        return ""
    is_plain = isinstance(metadata, Mapping) and list(metadata) == ["note"] and isinstance(metadata["note"], str)  # pyright: ignore[reportUnknownArgumentType]
    return str(metadata["note"]) if is_plain else msgspec.json.encode(metadata).decode()  # pyright: ignore[reportUnknownArgumentType]


def _first(sent: Form, name: str) -> str:
    return (sent.get(name) or [""])[0]
