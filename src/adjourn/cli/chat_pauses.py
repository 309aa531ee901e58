"""Decisions in a chat: a menu at a terminal, /commands everywhere."""

from typing import Any

from msgspec import UNSET

from adjourn.cli.asking import ask_json, ask_value, checked
from adjourn.cli.chat_commands import Asked
from adjourn.cli.facts import pause_facts
from adjourn.cli.failures import NOT_FOUND, Left, Misuse
from adjourn.cli.picks import Option, ask, pick
from adjourn.cli.screen import Screen, safe
from adjourn.cli.shown import WHY, show_payload, show_value, shown_in
from adjourn.cli.words import short
from adjourn.display import one_line, show_json, summary
from adjourn.errors import NothingPaused
from adjourn.forms import read_json
from adjourn.handle import AgentInterrupt, AgentTurn
from adjourn.parts import canonical
from adjourn.resume import tool_shown
from adjourn.session import AgentSession

_LATER = "later"


def show_pause(screen: Screen, interrupt: AgentInterrupt) -> None:
    """What the decision is about."""
    shown = shown_in(interrupt)
    screen.say()
    screen.say(
        f"{safe(shown.tool, 60)} waits: {WHY.get(interrupt.reason, safe(interrupt.reason, 60))}",
        style="bold yellow",
    )
    if interrupt.path:
        screen.say("through " + " > ".join(safe(p, 40) for p in interrupt.path), style="dim")
    show_value(screen, "Input", shown.input)
    show_payload(screen, shown.tool, shown.input, shown.payload)
    screen.say()


async def decide_here(screen: Screen, session: AgentSession) -> AgentTurn | None:
    """Asks for one decision on what waits; None where it is put off. Leaving a question leads back to the menu."""
    waiting = session.interrupts
    interrupt = waiting[0]
    try:
        if len(waiting) > 1:
            options = [Option(i, summary(shown_in(i).tool, shown_in(i).input, 400), short(i.id)) for i in waiting]
            interrupt = await pick(f"{len(waiting)} calls wait. Which one?", options)
        show_pause(screen, interrupt)
        while True:
            verb = await pick(f"{safe(shown_in(interrupt).tool, 60)}?", _options(interrupt))
            if verb == _LATER:
                return None
            try:
                return await _by_menu(screen, session, interrupt, verb)
            except Left:
                continue
    except Left:
        return None


def _options(interrupt: AgentInterrupt) -> list[Option[str]]:
    out: list[Option[str]] = []
    if "restart" in interrupt.allow:
        out.append(Option("approve", "Approve", "it runs with this input", "a"))
        out.append(Option("edit", "Edit the input", "and run it with that", "e"))
        out.append(Option("note", "Approve with metadata", "which the tool reads", "m"))
    if "respond" in interrupt.allow:
        out.append(Option("respond", "Respond", "give its result; it does not run", "r"))
    out.append(Option("decline", "Decline", "the model is told so", "d"))
    out.append(Option(_LATER, "Later", "go on typing", "l"))
    return out


async def _by_menu(screen: Screen, session: AgentSession, interrupt: AgentInterrupt, verb: str) -> AgentTurn:
    if verb == "approve":
        return interrupt.restart()
    if verb == "note":
        return interrupt.restart(await ask("Metadata, as JSON:", read_json, multiline=True))
    if verb == "edit":
        given = shown_in(interrupt).input
        edited = await ask_json(show_json(given), _schema(session, interrupt), "The input")
        return interrupt.restart(replace_input=UNSET if canonical(edited) == canonical(given) else edited)
    if verb == "respond":
        return interrupt.respond(await ask_value(screen, interrupt.paused.pause.response))
    return interrupt.decline(await ask("Why?", str, hint="told to the model; may be left empty"))


def _schema(session: AgentSession, interrupt: AgentInterrupt) -> Any:
    tool = tool_shown(interrupt.name, interrupt.paused.pause, session.agent.find_tool)
    return tool.input_schema if tool is not None else None


async def answer_here(screen: Screen, session: AgentSession, asked: Asked) -> AgentTurn | None:
    """What /approve, /edit, /respond and /decline begin; /show shows. Raises Misuse and NothingPaused."""
    interrupt, rest = _named(session.interrupts, asked)
    if asked.name == "show":
        for one in [interrupt] if rest is not None else session.interrupts:
            screen.give({"event": "pause", **pause_facts(one)})
            show_pause(screen, one)
        return None
    rest = rest or ""
    if asked.name == "decline":
        return interrupt.decline(rest)
    if asked.name == "approve":
        return interrupt.restart(_json(rest) if rest else None)
    if not rest and not screen.interactive:
        raise Misuse(f"/{asked.name} needs a value here: JSON after it")
    if asked.name == "edit":
        if rest:
            return interrupt.restart(replace_input=_json(rest))
        return await _by_menu(screen, session, interrupt, "edit")
    if rest:
        return interrupt.respond(_json(rest, interrupt.paused.pause.response))
    return await _by_menu(screen, session, interrupt, "respond")


def _json(text: str, schema: Any = None) -> Any:
    try:
        return checked(schema)(text) if schema is not None else read_json(text)
    except ValueError as e:
        raise Misuse(f"that {one_line(str(e), 300)}") from None


def _named(waiting: list[AgentInterrupt], asked: Asked) -> tuple[AgentInterrupt, str | None]:
    """The interrupt that a command is about, and what else was typed (None: nothing, and no id). Its id may be short."""
    if not waiting:
        raise NothingPaused("nothing waits for a decision in this session")
    first, _, rest = asked.rest.partition(" ")
    found = [i for i in waiting if first and i.id.startswith((first, f"i_{first}"))] if _is_id(first) else []
    if len(found) == 1:
        return found[0], rest.strip()
    if not found and _means_id(first, asked.name):
        raise Misuse(
            f"no interrupt {safe(first, 80)} waits here; nothing was decided. Where that is no id, begin with one: "
            f"/{asked.name} {short(waiting[0].id)} …",
            kind="unknown_interrupt",
            code=NOT_FOUND,
        )
    if len(found) > 1 or (len(waiting) > 1 and asked.name != "show"):
        names = ", ".join(f"{short(i.id)} ({safe(shown_in(i).tool, 40)})" for i in found or waiting)
        raise Misuse(f"which one? {names}", kind="ambiguous", code=NOT_FOUND)
    return waiting[0], asked.rest or None


def _is_id(text: str) -> bool:
    return text.startswith("i_") or (len(text) >= 4 and all(c in "0123456789abcdef" for c in text))


def _means_id(text: str, command: str) -> bool:
    """Whether a word that is the id of nothing was meant as one, so that no other call may be decided on instead."""
    if not _is_id(text) or text.startswith("i_"):
        return text.startswith("i_")
    # "faded" is a word; and a response or an input may be a number.
    return len(text) >= 8 or (any(c.isdigit() for c in text) and command not in ("respond", "edit"))
