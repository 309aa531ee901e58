"""`adjourn fork` and `adjourn abort`: a second way on from a session, and an end to its turn."""

from typing import Annotated, Any

import typer

from adjourn.agent import Agent, AgentInit
from adjourn.app import Adjourn
from adjourn.cli.commands import Group, Shell, misused
from adjourn.cli.deciding import person
from adjourn.cli.failures import Left, Misuse
from adjourn.cli.finding import find_session
from adjourn.cli.picking import pick_session
from adjourn.cli.picks import confirm
from adjourn.cli.screen import safe
from adjourn.cli.words import many, short
from adjourn.records import SessionRecord

Session = Annotated[str | None, typer.Argument(help="An id or the beginning of one.", show_default=False)]


def add_to(group: Group) -> None:
    group.command("fork", panel="Sessions")(fork)
    group.command("abort", panel="Sessions")(abort)


async def fork(
    shell: Shell,
    session: Session = None,
    snapshot: Annotated[
        str | None,
        typer.Option(help="Branch off at this snapshot (see `log --json`), not at the newest.", show_default=False),
    ] = None,
) -> None:
    """Branch off a session, here or at an earlier snapshot. Both go on; what came before is shared."""
    ai = _with_code(shell)
    row = await _chosen(shell, ai, session, "Fork which session?")
    agent = _agent(ai, row)
    if snapshot is not None and snapshot not in {s.id for s in await ai.sessions.snapshots(row.id)}:
        raise misused(f"session {row.id} has no snapshot {snapshot!r}; `adjourn log {row.id} --json` names them")
    branch = await (await agent.connect(AgentInit(session_id=row.id)).fork(snapshot)).load()
    at = branch.snapshot_id or ""
    ids = [pause.id for pause in branch.interrupts]
    shell.screen.give({"sessionId": row.id, "snapshotId": at, "interrupts": ids})
    shell.screen.say(f"Branched off session {safe(short(row.id), 200)} as snapshot {safe(at, 200)}.")
    for pause in branch.interrupts:
        shell.screen.say(f"It waits for a decision on {safe(pause.name, 60)}: {safe(short(pause.id), 200)}")
    shell.screen.note("A program goes on with it by AgentInit(snapshot_id=…).")


async def abort(
    shell: Shell,
    session: Session = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the session.")] = "",
    by: Annotated[
        str | None,
        typer.Option(help="Who does it; else ADJOURN_USER, else the login name.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End the turn of a session that runs or waits. Its pauses are cancelled; the session takes the next message."""
    ai = _with_code(shell)
    row = await _chosen(shell, ai, session, "Abort the turn of which session?")
    agent = _agent(ai, row)
    waiting = (await ai.inbox.list(session_id=row.id, limit=100)).items
    if not (row.pending or waiting):
        shell.screen.give({"sessionId": row.id, "aborted": False, "cancelled": []})
        shell.screen.say("No turn of it runs or waits, so there is nothing to abort.")
        return
    if not yes and shell.screen.interactive:
        what = f"cancel {many(len(waiting), 'pause')}" if waiting else "stop what runs"
        if not await confirm(f"Abort the turn of session {short(row.id)}, and {what}?"):
            raise Left("Nothing was aborted.")
    why = reason or f"aborted by {person(by)}"
    if row.pending and row.head is not None:
        done = await agent.abort(row.head, why) == "pending"
    else:
        await agent.connect(AgentInit(session_id=row.id)).abort(why)
        done = True
    left = {r.id for r in (await ai.inbox.list(session_id=row.id, limit=100)).items}
    gone = [r.id for r in waiting if r.id not in left]
    shell.screen.give({"sessionId": row.id, "aborted": done, "cancelled": gone})
    shell.screen.say(
        f"Aborted the turn of session {safe(short(row.id), 200)}"
        + (f"; {many(len(gone), 'pause')} cancelled." if gone else ".")
        if done
        else "The turn had come to rest before; nothing was aborted."
    )


def _with_code(shell: Shell) -> Adjourn:
    if not shell.place.runs:
        raise misused("this needs the application, not the store alone: name it with --app module:attribute")
    return shell.place.open()


async def _chosen(shell: Shell, ai: Adjourn, session: str | None, question: str) -> SessionRecord:
    return await find_session(ai, session) if session else await pick_session(shell, ai, question)


def _agent(ai: Adjourn, row: SessionRecord) -> Agent:
    found: Any = ai.agents.get(row.agent)
    if found is None:
        known = ", ".join(sorted(ai.agents)) or "none"
        raise Misuse(
            f"session {row.id} is of agent {row.agent!r}, which this application does not define (it defines: {known})",
            kind="app",
        )
    return found
