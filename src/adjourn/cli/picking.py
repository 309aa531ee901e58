"""Which paused call, or which session, where no id was typed: picked at a terminal, an error elsewhere."""

import time

from adjourn.app import Adjourn
from adjourn.cli.commands import Shell, misused
from adjourn.cli.failures import NOT_FOUND, Misuse
from adjourn.cli.picks import Option, pick
from adjourn.cli.screen import safe
from adjourn.cli.words import ago, short
from adjourn.display import summary
from adjourn.records import InterruptRecord, SessionRecord
from adjourn.resume import seen


async def pick_interrupt(shell: Shell, ai: Adjourn, question: str) -> InterruptRecord:
    if not shell.screen.interactive:
        raise misused("which one? Give its id (see `adjourn inbox`)")
    rows = (await ai.inbox.list(limit=1000)).items
    if not rows:
        raise Misuse("nothing waits for a decision", kind="nothing_waits", code=NOT_FOUND)
    now = time.time()
    options = [
        Option(row, summary(inner.tool, inner.input, 400), f"{ago(row.created, now)} {short(row.id)}")
        for row, inner in ((row, seen(row)) for row in rows)
    ]
    return await pick(question, options)


async def pick_session(shell: Shell, ai: Adjourn, question: str) -> SessionRecord:
    if not shell.screen.interactive:
        raise misused("which session? Give its id (see `adjourn sessions`)")
    rows = await ai.sessions.list(limit=1000)
    if not rows:
        raise Misuse("there are no sessions", kind="no_sessions", code=NOT_FOUND)
    now = time.time()
    newest = sorted(rows, key=lambda r: r.updated, reverse=True)
    options = [
        Option(row, safe(short(row.id), 60), f"{safe(row.agent, 30)}, {ago(row.updated, now)}") for row in newest
    ]
    return await pick(question, options)
