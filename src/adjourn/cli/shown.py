"""One paused call on a screen: what it would do, why it waits, and what each decision means."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import UNSET
from rich.cells import cell_len
from rich.text import Text

from adjourn.cli.screen import Screen, safe
from adjourn.cli.words import ago, at, left
from adjourn.display import mixed_scripts, one_line, show_json
from adjourn.handle import AgentInterrupt
from adjourn.parts import canonical
from adjourn.records import Decision, InterruptRecord
from adjourn.resume import Shown, seen, shown_by

WHY = {
    "tool": "the tool itself asks",
    "approval": "this tool runs only when somebody approves",
    "error": "the tool failed, and somebody is to say how to go on",
    "outcome_unknown": "the process ended while the tool ran: it may or may not have taken effect",
    "unanswered": "the model asked for it, and nothing answered",
}
_LIMIT = 20_000


def show_interrupt(
    screen: Screen, row: InterruptRecord, history: Sequence[Decision], now: float, *, tool: Any = None
) -> None:
    """Everything there is to know before deciding. `tool` is the tool itself, where it is defined here.

    Of a pause in a nested agent it is the innermost call, which is what runs.
    """
    if screen.json:
        return
    row = seen(row)
    color = {"open": "yellow", "resolved": "green"}.get(row.status, "red")
    screen.say(Text(safe(row.tool, 80), "bold"), "  ", Text(row.status, color), "  ", Text(safe(row.id), "cyan"))
    if mixed_scripts(row.tool):
        screen.say("This name mixes letters of different alphabets, as forged names do.", style="red")
    if tool is not None and tool.description:
        screen.quote(one_line(tool.description, 400), style="dim", mark="  ")
    facts: list[tuple[str, str | Text]] = [
        ("agent", safe(" > ".join([row.agent, *row.path]), 200)),
        ("session", safe(row.session_id, 200)),
        ("why", WHY.get(row.reason, safe(row.reason, 80))),
        ("since", f"{at(row.created)} ({ago(row.created, now)})"),
    ]
    if row.owner is not None:
        facts.insert(2, ("owner", safe(row.owner, 100)))
    if row.expires_at is not None:
        facts.append(("expires", f"{at(row.expires_at)} ({left(row.expires_at, now)})"))
    screen.pairs(facts)
    show_value(screen, "Input", row.input)
    show_payload(screen, row.tool, row.input, row.payload)
    if row.status == "open":
        _verbs(screen, row)
    if history:
        screen.say()
        screen.say("Decisions", style="bold")
        for decision in history:
            show_decision(screen, decision)


def shown_in(interrupt: AgentInterrupt) -> Shown:
    """What a decision on a pause of a turn that runs here is about."""
    return shown_by(interrupt.name, interrupt.input, interrupt.payload, interrupt.path)


def show_payload(screen: Screen, tool: str, given: Any, payload: Any) -> None:
    """What the call says about itself. What `approval=` says is only what stands above it already."""
    if payload is not None and canonical(payload) != canonical({"approval": tool, "input": given}):
        show_value(screen, "It says", payload)


def show_value(screen: Screen, title: str, value: Any) -> None:
    """A JSON value under a title: an object as one entry a name, anything else as it is."""
    screen.say()
    screen.say(title, style="bold")
    if not isinstance(value, Mapping) or not value:
        screen.quote(value if isinstance(value, str) else show_json(value), limit=_LIMIT)
        return
    entries = cast(Mapping[str, Any], value)
    names = {name: safe(name, 24) for name in entries}
    width = max(cell_len(n) for n in names.values())
    for name, held in entries.items():
        text = held if isinstance(held, str) else show_json(held, limit=_LIMIT)
        label = names[name] + " " * (width - cell_len(names[name]))
        if screen.is_terminal and screen.narrow and len(text) > screen.width - width - 5:
            screen.quote(names[name], style="dim")
            screen.quote(text, limit=_LIMIT, mark="│   ")
        else:
            _entry(screen, label, text)


def _entry(screen: Screen, label: str, text: str) -> None:
    first, *rest = text.split("\n") if screen.is_terminal else [text]
    blank = " " * cell_len(label)
    screen.quote(first, limit=_LIMIT, mark=f"│ {label}  ")
    if rest:
        screen.quote("\n".join(rest), limit=_LIMIT, mark=f"│ {blank}  ")


def _verbs(screen: Screen, row: InterruptRecord) -> None:
    screen.say()
    screen.say("You can", style="bold")
    facts: list[tuple[str, str | Text]] = []
    if "restart" in row.allow:
        facts.append(
            ("restart", "the tool runs, with the input above" if row.reason != "outcome_unknown" else "it runs again")
        )
    if "respond" in row.allow:
        fits = " that fits its schema" if row.response is not None else ""
        facts.append(("respond", f"the tool does not run; you give its result{fits}"))
    facts.append(("decline", "the tool does not run; the model is told that it was refused"))
    screen.pairs(facts)


def show_decision(screen: Screen, decision: Decision) -> None:
    """One line of the audit, and what came with it."""
    who = f" by {safe(decision.by, 80)}" if decision.by else ""
    where = f" from {safe(decision.address, 80)}" if decision.address else ""
    taken = "" if decision.applied else "  (not taken up yet)"
    edited = " with another input" if decision.input is not UNSET else ""
    screen.say(Text(at(decision.at), "dim"), f"  {decision.verb}{edited}{who}{where}{taken}")
    if decision.input is not UNSET:
        screen.quote(show_json(decision.input, limit=4000), mark="  │ ")
    if decision.reason:
        screen.quote(decision.reason, limit=2000, mark="  │ ")
    if decision.verb in ("respond", "late_result"):
        screen.quote(show_json(decision.output, limit=4000), mark="  │ ")
    if decision.metadata is not None:
        screen.quote(show_json(decision.metadata, limit=4000), mark="  │ ")
