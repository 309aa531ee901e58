"""`adjourn inbox`, `show` and `sessions`: what waits, one of them in full, and the conversations they belong to."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from adjourn.app import Adjourn
from adjourn.cli.commands import Group, Shell, misused
from adjourn.cli.facts import decision_facts, interrupt_facts, session_facts
from adjourn.cli.finding import find_interrupt, find_session, tool_of
from adjourn.cli.live import watch_inbox
from adjourn.cli.picking import pick_interrupt
from adjourn.cli.screen import safe
from adjourn.cli.shown import show_interrupt
from adjourn.cli.words import ago, left, many, short
from adjourn.display import summary
from adjourn.lease import transact
from adjourn.records import InterruptQuery, InterruptRecord, SessionQuery, SessionRecord
from adjourn.resume import seen
from adjourn.store import Tx

STATUSES = ("open", "resolved", "expired", "cancelled", "all")


@dataclass
class Filters:
    """Which interrupts."""

    status: Annotated[str, typer.Option(help=f"One of: {', '.join(STATUSES)}.", metavar="STATUS")] = "open"
    tool: Annotated[str | None, typer.Option(help="Only of this tool.", show_default=False)] = None
    agent: Annotated[str | None, typer.Option(help="Only of this agent.", show_default=False)] = None
    session: Annotated[str | None, typer.Option(help="Only of this session.", show_default=False)] = None
    owner: Annotated[str | None, typer.Option(help="Only of this owner's sessions.", show_default=False)] = None
    text: Annotated[
        str | None, typer.Option(help="Only where this text is in the tool, input, payload, …", show_default=False)
    ] = None

    async def query(self, ai: Adjourn) -> dict[str, Any]:
        """What `ai.inbox.list` takes. Raises Misuse for a status that is none."""
        if self.status not in STATUSES:
            raise misused(f"--status {self.status}: give one of {', '.join(STATUSES)}")
        status: Any = None if self.status == "all" else self.status
        session = (await find_session(ai, self.session)).id if self.session else None
        return {
            "status": status,
            "tool": self.tool,
            "agent": self.agent,
            "session_id": session,
            "assignee": self.owner,
            "text": self.text,
        }


@dataclass
class Paging:
    """Which part of a long list."""

    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)] = 50
    cursor: Annotated[
        str | None, typer.Option(help="Where the page before ended (its nextCursor).", show_default=False)
    ] = None


Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Stay, and show what comes: a live list at a terminal, else one line a change."),
]


def add_to(group: Group) -> None:
    group.command("inbox", panel="Deciding")(inbox)
    group.command("show", panel="Deciding")(show)
    group.command("sessions", panel="Sessions")(sessions)


async def inbox(shell: Shell, filters: Filters, paging: Paging, watch: Watch = False) -> int:
    """What waits for a decision, oldest first."""
    ai = shell.place.open()
    query = await filters.query(ai)
    if watch:
        return await watch_inbox(shell, ai, query)
    page = await ai.inbox.list(**query, cursor=paging.cursor, limit=paging.limit)
    shell.screen.give({"items": [interrupt_facts(row) for row in page.items], "nextCursor": page.next_cursor})
    list_interrupts(shell, [seen(row) for row in page.items], time.time(), status=filters.status)
    if page.next_cursor is not None:
        shell.screen.note(f"There are more: --cursor {safe(page.next_cursor, 2000)}")
    return 0


def list_interrupts(shell: Shell, rows: Sequence[InterruptRecord], now: float, *, status: str = "open") -> None:
    """Interrupts, as `seen`, as a table; as two lines each on a narrow terminal; as lines with tabs in a pipe."""
    screen = shell.screen
    if not rows:
        screen.note("Nothing waits for a decision." if status == "open" else "There are none.")
        return
    if screen.narrow:
        for row in rows:
            screen.say(Text(summary(row.tool, row.input, screen.width - 1)))
            screen.say(Text(f"  {short(row.id)} {ago(row.created, now)} {_state(row, now)}".rstrip(), "dim"))
        return
    whole = not screen.is_terminal
    mixed = status == "all"
    columns = ["ID", "WAITS", "AGENT", "EXPIRES", "OWNER", "WHAT"]
    cells: list[list[str | Text]] = [
        [
            Text(safe(row.id) if whole else short(row.id), "cyan"),
            row.status if mixed and row.status != "open" else ago(row.created, now).removesuffix(" ago"),
            safe(row.agent, 20),
            Text(left(row.expires_at, now), "yellow"),
            safe(row.owner or "", 16),
            summary(row.tool, row.input, 1000 if whole else 300),
        ]
        for row in rows
    ]
    screen.table(*_columns(columns, cells, whole))


def _state(row: InterruptRecord, now: float) -> str:
    if row.status != "open":
        return row.status
    return f"expires {left(row.expires_at, now)}" if row.expires_at is not None else ""


async def show(
    shell: Shell,
    id: Annotated[
        str | None, typer.Argument(help="An id or the beginning of one; asked for where it is left out.")
    ] = None,
) -> None:
    """One paused call in full: what was asked, why it waits, what can be decided, and what was."""
    ai = shell.place.open()
    row = await find_interrupt(ai, id) if id else await pick_interrupt(shell, ai, "Show which?")
    history = await ai.inbox.history(row.id)
    facts = interrupt_facts(row)
    shell.screen.give({**facts, "decisions": [decision_facts(d) for d in history]})
    show_interrupt(shell.screen, row, history, time.time(), tool=tool_of(ai, row))


@dataclass
class SessionFilters:
    """Which sessions."""

    agent: Annotated[str | None, typer.Option(help="Only of this agent.", show_default=False)] = None
    owner: Annotated[str | None, typer.Option(help="Only of this owner.", show_default=False)] = None
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=1000)] = 50
    cursor: Annotated[
        str | None, typer.Option(help="Where the page before ended (its nextCursor).", show_default=False)
    ] = None


async def sessions(shell: Shell, filters: SessionFilters) -> None:
    """The stored conversations, oldest first."""
    ai = shell.place.open()
    after = await find_session(ai, filters.cursor) if filters.cursor else None
    rows = await _page(ai, filters, after)
    more = len(rows) > filters.limit
    rows = rows[: filters.limit]
    await ai.inbox.expire_due(run=False)
    waiting = await _open_pauses(ai, [row.id for row in rows])
    items = [session_facts(row, count) for row, count in zip(rows, waiting, strict=True)]
    shell.screen.give({"items": items, "nextCursor": rows[-1].id if more else None})
    _list_sessions(shell, list(zip(rows, waiting, strict=True)))
    if not rows and filters.agent is not None and await _is_nested(ai, filters.agent):
        shell.screen.note(
            f"Those of {safe(filters.agent, 60)} are parts of the sessions of agents that call it as a tool, and listed and "
            "exported with these."
        )
    if more:
        shell.screen.note(f"There are more: --cursor {safe(rows[-1].id, 2000)}")


async def _open_pauses(ai: Adjourn, ids: Sequence[str]) -> list[int]:
    """How many pauses of each session are open."""

    def work(tx: Tx) -> list[int]:
        return [tx.count(InterruptQuery(status="open", session_id=i)) for i in ids]

    counts = [await transact(store, work, read=True) for store in ai.stores()]
    return [sum(each) for each in zip(*counts, strict=True)] if counts else [0] * len(ids)


async def _page(ai: Adjourn, filters: SessionFilters, after: SessionRecord | None) -> list[SessionRecord]:
    """One more than asked for, where there are as many."""
    return [*await ai.sessions.list(agent=filters.agent, owner=filters.owner, after=after, limit=filters.limit + 1)]


async def _is_nested(ai: Adjourn, agent: str) -> bool:
    """Whether sessions of this agent are there, all of them parts of others."""
    query = SessionQuery(agent=agent, limit=1)
    found = [await transact(store, lambda tx: tx.sessions(query), read=True) for store in ai.stores()]
    return any(found)


def _list_sessions(shell: Shell, rows: list[tuple[SessionRecord, int]]) -> None:
    screen, now = shell.screen, time.time()
    if not rows:
        screen.note("There are no sessions.")
        return
    if screen.is_terminal and screen.width < 76:  # a table would cut off the ids
        for row, waiting in rows:
            screen.say(Text(safe(short(row.id), 40), "cyan"), f" {safe(row.agent, 30)}")
            screen.say(Text(f"  {ago(row.updated, now)} {state_of(row, waiting, now)}", "dim"))
        return
    whole = not screen.is_terminal
    cells: list[list[str | Text]] = [
        [
            Text(safe(row.id if whole else short(row.id), 200), "cyan"),
            safe(row.agent, 24),
            safe(row.owner or "", 16),
            ago(row.created, now),
            ago(row.updated, now),
            state_of(row, waiting, now),
        ]
        for row, waiting in rows
    ]
    screen.table(*_columns(["ID", "AGENT", "OWNER", "BEGAN", "LAST", "STATE"], cells, whole))


def _columns(
    names: Sequence[str], cells: Sequence[Sequence[str | Text]], whole: bool
) -> tuple[Sequence[str], list[list[str | Text]]]:
    """Without the columns that say nothing, so that they take no room from those that do."""
    shown = [i for i in range(len(names)) if whole or any(len(row[i]) for row in cells)]
    return [names[i] for i in shown], [[row[i] for i in shown] for row in cells]


def state_of(row: SessionRecord, waiting: int, now: float) -> str:
    """What a session is doing, in words."""
    if row.pending:
        return "running" if row.lease_until > now else "left by its process"
    if row.waiting:
        return f"{many(row.waiting, 'decision')} to be taken up"
    if waiting:
        return f"waits for {many(waiting, 'decision')}"
    return "at rest" + (f", {many(len(row.queue), 'message')} queued" if row.queue else "")
