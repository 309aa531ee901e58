"""From what was typed to the one record that it means: whole ids, unambiguous beginnings of ids, or a pick from a list."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from adjourn.app import Adjourn
from adjourn.cli.failures import NOT_FOUND, Misuse
from adjourn.cli.screen import safe
from adjourn.errors import SessionNotFound, UnknownInterrupt
from adjourn.lease import transact
from adjourn.records import INNER, InterruptQuery, InterruptRecord, SessionQuery, SessionRecord, mentions
from adjourn.resume import tool_shown
from adjourn.store import Store, Tx
from adjourn.tool import Tool

T = TypeVar("T", InterruptRecord, SessionRecord)
_PAGE = 1000


async def find_interrupt(ai: Adjourn, typed: str) -> InterruptRecord:
    """The interrupt of this id or beginning of one (with or without its `i_`). An overdue one is settled first."""
    try:
        return await ai.inbox.get(typed)
    except UnknownInterrupt:
        found = await _beginning(ai, typed, "i_", _interrupts)
    if not found:
        raise UnknownInterrupt(f"there is no interrupt {typed!r}")
    return await ai.inbox.get(_only(found, typed, "interrupt"))


def tool_of(ai: Adjourn, row: InterruptRecord) -> Tool[..., Any] | None:
    """The tool that paused, the innermost one; None where it is not defined here."""
    agent = ai.agents.get(row.agent)
    return tool_shown(row.tool, row, agent.find_tool) if agent is not None else None


async def find_session(ai: Adjourn, typed: str) -> SessionRecord:
    """The session of this id or beginning of one (with or without its `s_`)."""
    for store in ai.stores():
        row = await transact(store, lambda tx: tx.session(typed), read=True)
        if row is not None:
            return row
    found = await _beginning(ai, typed, "s_", _sessions)
    if not found:
        raise SessionNotFound(f"there is no session {typed!r}")
    known = _only(found, typed, "session")
    return next(row for row in found if row.id == known)


def _only(found: Sequence[Any], typed: str, what: str) -> str:
    ids = [row.id for row in found]
    if len(ids) > 1:
        some = ", ".join(safe(i) for i in ids[:5]) + (", …" if len(ids) > 5 else "")
        raise Misuse(
            f"{typed!r} is the beginning of more than one {what}: {some}",
            kind="ambiguous",
            code=NOT_FOUND,
            details={"ids": ids[:100]},
        )
    return ids[0]


async def _beginning(
    ai: Adjourn, typed: str, prefix: str, page: Callable[[str, tuple[float, str] | None], Callable[[Tx], list[T]]]
) -> list[T]:
    if not typed:
        return []
    starts = (typed, prefix + typed)
    out: list[T] = []
    for store in ai.stores():
        out += [row for row in await every(store, partial(page, typed)) if row.id.startswith(starts)]
    return out


async def every(store: Store, page: Callable[[tuple[float, str] | None], Callable[[Tx], list[T]]]) -> list[T]:
    """All rows, page by page."""
    out: list[T] = []
    after: tuple[float, str] | None = None
    while True:
        rows = await transact(store, page(after), read=True)
        out += rows
        if len(rows) < _PAGE:
            return out
        after = (rows[-1].created, rows[-1].id)


def _interrupts(typed: str, after: tuple[float, str] | None) -> Callable[[Tx], list[InterruptRecord]]:
    return lambda tx: tx.interrupts(InterruptQuery(text=typed, after=after, limit=_PAGE))


def _sessions(typed: str, after: tuple[float, str] | None) -> Callable[[Tx], list[SessionRecord]]:
    def rows(tx: Tx) -> list[SessionRecord]:
        return tx.sessions(SessionQuery(after=after, limit=_PAGE))

    return rows


def outer(rows: Sequence[SessionRecord]) -> list[SessionRecord]:
    """Without those of nested agents, which belong to the session around them."""
    return [row for row in rows if not row.id.startswith(INNER)]


def matches(row: InterruptRecord, query: Mapping[str, Any]) -> bool:
    """Whether an interrupt is one that `ai.inbox.list(**query)` would give."""
    held = {
        "tool": row.tool,
        "agent": row.agent,
        "session_id": row.session_id,
        "assignee": row.owner,
        "status": row.status,
    }
    text = query.get("text")
    return all(query.get(name) in (None, value) for name, value in held.items()) and (not text or mentions(row, text))
