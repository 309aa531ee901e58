"""`adjourn respond`, `restart` and `decline`: one decision, shown before it is made and followed where its turn goes on here."""

import getpass
import os
import socket
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from msgspec import UNSET, UnsetType

from adjourn.app import Adjourn
from adjourn.cli.asking import ask_json, ask_value
from adjourn.cli.commands import Group, Shell, misused
from adjourn.cli.facts import decision_facts, turn_facts
from adjourn.cli.failures import TURN_FAILED, Left
from adjourn.cli.finding import find_interrupt, tool_of
from adjourn.cli.picking import pick_interrupt
from adjourn.cli.picks import Option, ask, confirm, pick
from adjourn.cli.screen import safe
from adjourn.cli.shown import show_interrupt, shown_in
from adjourn.cli.typed import given_json, given_text
from adjourn.cli.view import TurnView, exit_code
from adjourn.cli.words import short
from adjourn.display import show_json
from adjourn.errors import AdjournError
from adjourn.inbox import Accepted
from adjourn.parts import canonical
from adjourn.records import InterruptRecord
from adjourn.resume import seen
from adjourn.settling import too_late


@dataclass
class Manner:
    """Who decides, and how."""

    by: Annotated[
        str | None,
        typer.Option(
            help="Who decides; kept in the audit. Else ADJOURN_USER, else the login name.", show_default=False
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(help="An idempotency key: the same decision under the same key counts once.", show_default=False),
    ] = None
    expect: Annotated[
        str | None,
        typer.Option(
            help="The `version` that was shown; another one is refused.", metavar="VERSION", show_default=False
        ),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether to go ahead.")] = False

    @property
    def person(self) -> str:
        return person(self.by)

    def said(self, row: InterruptRecord) -> dict[str, Any]:
        """What goes with each decision. Only what was shown is decided on."""
        return {"by": self.person, "address": address(), "key": self.key, "expect": self.expect or row.version_tag}


Id = Annotated[str | None, typer.Argument(help="An id or the beginning of one; asked for where it is left out.")]
Value = Annotated[
    str | None,
    typer.Argument(
        help="The tool's result as JSON; @file or - (standard input) to read it from there.", show_default=False
    ),
]
AsText = Annotated[bool, typer.Option("--text", help="VALUE is a plain text, not JSON.")]
Metadata = Annotated[
    str | None, typer.Option(help="JSON that the tool reads as ctx.resumed_metadata; @file or -.", show_default=False)
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Run the tool that paused (of nested agents, the innermost) with this input instead of the one shown: "
        "JSON, @file or -.",
        show_default=False,
    ),
]
Edit = Annotated[bool, typer.Option("--edit", "-e", help="Edit the input before it runs.")]
Reason = Annotated[str | None, typer.Option("--reason", "-r", help="Told to the model.", show_default=False)]


def add_to(group: Group) -> None:
    group.command("respond", panel="Deciding")(respond)
    group.command("restart", panel="Deciding")(restart)
    group.command("decline", panel="Deciding")(decline)


def person(by: str | None) -> str:
    """Who it is, for the record: as it was said, or as the environment or the machine has it."""
    return by or os.environ.get("ADJOURN_USER") or _login()


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "cli"


def address() -> str:
    """From where, for the audit."""
    return f"cli:{socket.gethostname()}"


async def respond(shell: Shell, manner: Manner, id: Id = None, value: Value = None, text: AsText = False) -> int:
    """Give the result of a paused call yourself; its tool does not run."""
    ai = shell.place.open()
    row = await _which(shell, ai, id, "Respond to which?")
    if value is not None:
        output: Any = given_text(value) if text else given_json(value, "VALUE", "; for a plain text add --text")
    elif text or not shell.screen.interactive:
        raise misused("give the VALUE to respond with: JSON, a text with --text, or - for standard input")
    else:
        output = await ask_value(shell.screen, row.response)
    if not await _sure(shell, manner, value is not None, f"Respond with this to {safe(seen(row).tool, 60)}?"):
        raise Left("Nothing was decided.")
    accepted = await ai.inbox.respond(row.id, output, **manner.said(row), run=shell.place.runs)
    return await _report(shell, ai, row, accepted)


async def restart(
    shell: Shell, manner: Manner, id: Id = None, metadata: Metadata = None, input: Input = None, edit: Edit = False
) -> int:
    """Send a paused call round again: an approval. Its tool runs with the input that was shown, or an edited one."""
    ai = shell.place.open()
    row = await _which(shell, ai, id, "Restart which?")
    replaced: Any | UnsetType = UNSET
    if input is not None:
        replaced = given_json(input, "--input")
    elif edit:
        if not shell.screen.interactive:
            raise misused("--edit needs a terminal; give the new input with --input")
        replaced = await _edited(ai, row)
    extra = given_json(metadata, "--metadata") if metadata is not None else None
    what = "with the edited input" if replaced is not UNSET else "with the input above"
    if not await _sure(shell, manner, False, f"Run {safe(seen(row).tool, 60)} {what}?"):
        raise Left("Nothing was decided.")
    accepted = await ai.inbox.restart(
        row.id, metadata=extra, replace_input=replaced, **manner.said(row), run=shell.place.runs
    )
    return await _report(shell, ai, row, accepted)


async def decline(shell: Shell, manner: Manner, id: Id = None, reason: Reason = None) -> int:
    """Refuse a paused call; the model is told so, and why."""
    ai = shell.place.open()
    row = await _which(shell, ai, id, "Decline which?")
    if reason is None and shell.screen.interactive and not manner.yes:
        reason = await ask("Why?", str, hint="told to the model; may be left empty")
    elif not await _sure(shell, manner, False, f"Decline {safe(seen(row).tool, 60)}?"):
        raise Left("Nothing was decided.")
    accepted = await ai.inbox.decline(row.id, reason or "", **manner.said(row), run=shell.place.runs)
    return await _report(shell, ai, row, accepted)


async def decide_one(shell: Shell, ai: Adjourn, row: InterruptRecord) -> None:
    """Shows an interrupt and asks what to do with it. Raises Left where it is left as it is."""
    screen, manner = shell.screen, Manner()
    history = await ai.inbox.history(row.id)
    show_interrupt(screen, row, history, time.time(), tool=tool_of(ai, row))
    screen.say()
    if row.status != "open":
        return
    verb = await pick(f"{safe(seen(row).tool, 60)}?", _verbs(row))
    said: dict[str, Any] = {**manner.said(row), "run": shell.place.runs}
    if verb == "respond":
        accepted = await ai.inbox.respond(row.id, await ask_value(screen, row.response), **said)
    elif verb == "decline":
        reason = await ask("Why?", str, hint="told to the model; may be left empty")
        accepted = await ai.inbox.decline(row.id, reason, **said)
    else:
        replaced = await _edited(ai, row) if verb == "edit" else UNSET
        accepted = await ai.inbox.restart(row.id, replace_input=replaced, **said)
    await _report(shell, ai, row, accepted)


def _verbs(row: InterruptRecord) -> list[Option[str]]:
    out: list[Option[str]] = []
    if "restart" in row.allow:
        out.append(Option("restart", "Approve", "it runs with this input", "a"))
        out.append(Option("edit", "Edit the input", "and run it with that", "e"))
    if "respond" in row.allow:
        out.append(Option("respond", "Respond", "give its result; it does not run", "r"))
    out.append(Option("decline", "Decline", "the model is told so", "d"))
    return out


async def _which(shell: Shell, ai: Adjourn, id: str | None, question: str) -> InterruptRecord:
    """The interrupt; at a terminal it is shown before anything is asked."""
    row = await find_interrupt(ai, id) if id else await pick_interrupt(shell, ai, question)
    if shell.screen.interactive:
        if row.status != "open":
            await _refuse(ai, row)
        show_interrupt(shell.screen, row, (), time.time(), tool=tool_of(ai, row))
        shell.screen.say()
    return row


async def _refuse(ai: Adjourn, row: InterruptRecord) -> None:
    """Says at once that it is settled, before anybody types an answer. Raises what deciding on it would raise."""
    raise too_late(row, await ai.inbox.history(row.id))


async def _sure(shell: Shell, manner: Manner, given: bool, question: str) -> bool:
    if manner.yes or given or not shell.screen.interactive:
        return True
    return await confirm(question, default=True)


def _schema(ai: Adjourn, row: InterruptRecord) -> Any:
    tool = tool_of(ai, row)
    return tool.input_schema if tool is not None else None


async def _edited(ai: Adjourn, row: InterruptRecord) -> Any | UnsetType:
    """Another input for the tool that paused; UNSET where it was left as it is."""
    shown = seen(row).input
    edited = await ask_json(show_json(shown), _schema(ai, row), "The input")
    return UNSET if canonical(edited) == canonical(shown) else edited


async def _report(shell: Shell, ai: Adjourn, row: InterruptRecord, accepted: Accepted) -> int:
    """Says that it counts, and shows how the turn goes on where it goes on here."""
    screen, turn = shell.screen, accepted.turn
    done = {"respond": "Responded to", "restart": "Restarted", "decline": "Declined"}.get(accepted.verb, accepted.verb)
    again = " (this decision had been made before under this key)" if accepted.repeated else ""
    screen.say(
        f"{done} {safe(seen(row).tool, 60)} ({short(row.id)}), by {safe(accepted.by or '', 80)}{again}.", style="green"
    )
    facts: dict[str, Any] = {"decision": decision_facts(accepted.decision), "repeated": accepted.repeated, "turn": None}
    if turn is None:
        screen.note(_who_goes_on(shell, ai, row))
        screen.give(facts)
        return 0
    outcome = await TurnView(screen, ai).follow(turn)
    screen.give({**facts, "turn": turn_facts(outcome)})
    if isinstance(outcome, BaseException):
        if not isinstance(outcome, AdjournError):
            raise outcome
        screen.note("The decision counts all the same; the turn can be retried in `adjourn chat`.")
        return TURN_FAILED
    if outcome.interrupts:
        screen.note(
            "It waits again: " + ", ".join(f"{safe(shown_in(i).tool, 60)} ({short(i.id)})" for i in outcome.interrupts)
        )
        return 0  # what was asked for was done
    return exit_code(outcome)


def _who_goes_on(shell: Shell, ai: Adjourn, row: InterruptRecord) -> str:
    if not shell.place.runs:
        return "It is recorded. Whoever runs this agent next goes on with it: a server, a worker, or this with --app."
    if row.agent not in ai.agents:
        return f"It is recorded. The agent {safe(row.agent, 60)!r} is not defined in this application, so nothing runs here."
    return "It is recorded, and the process that drives this session goes on with it."
