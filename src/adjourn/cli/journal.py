"""`adjourn log`: what happened in a session, in order."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import to_builtins
from rich.cells import cell_len
from rich.text import Text

from adjourn.app import Adjourn
from adjourn.cli.commands import Group, Shell
from adjourn.cli.engine import EngineOptions
from adjourn.cli.facts import when
from adjourn.cli.finding import find_session
from adjourn.cli.listing import state_of
from adjourn.cli.picking import pick_session
from adjourn.cli.screen import Screen, safe
from adjourn.cli.words import at, clock, many, took
from adjourn.errors import SessionNotFound
from adjourn.timeline import Entry

_MARKS = {
    "message": ("▸", "bold"),
    "model": ("●", "cyan"),
    "tool": ("✓", "green"),
    "pause": ("‖", "yellow bold"),
    "decision": ("◆", "magenta"),
    "fork": ("⑂", "cyan"),
    "crash": ("!", "red bold"),
    "retry": ("↻", "cyan"),
    "end": ("■", "dim"),
    "expired": ("⌛", "yellow"),
    "late_result": ("·", "dim"),
    "engine": ("⚙", "dim"),
}
_POLL = 5.0


def add_to(group: Group) -> None:
    group.command("log", panel="Sessions")(log)


async def log(
    shell: Shell,
    engine: EngineOptions,
    session: Annotated[str | None, typer.Argument(help="An id or the beginning of one.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and print what comes.")] = False,
) -> None:
    """What happened in a session: messages, tool runs, pauses, decisions, forks, crashes, ends, and what an engine did."""
    ai = shell.place.open()
    engine.apply(ai)
    row = await find_session(ai, session) if session else await pick_session(shell, ai, "Log of which session?")
    entries = await ai.sessions.timeline(row.id)
    if shell.json:
        for entry in entries:
            shell.screen.give(entry_facts(row.id, entry))
    else:
        waiting = len((await ai.inbox.list(session_id=row.id, limit=1000)).items)
        shell.screen.note(f"{safe(row.id)}, agent {safe(row.agent, 60)}, {state_of(row, waiting, ai.clock.now())}")
        _print(shell.screen, entries, None)
        tokens = sum(_tokens(e) for e in entries)
        shell.screen.note(f"{many(len(entries), 'entry', 'entries')}" + (f", {tokens:,} tokens" if tokens else ""))
    if follow:
        await _follow(shell, ai, row.id, entries)


def entry_facts(session_id: str, entry: Entry) -> dict[str, Any]:
    """One entry as `--json` prints it."""
    return {
        "sessionId": session_id,
        "at": when(entry.at),
        "kind": entry.kind,
        "title": entry.title,
        "snapshotId": entry.snapshot_id,
        "took": entry.took,
        "facts": to_builtins(entry.facts),
    }


async def _follow(shell: Shell, ai: Adjourn, session_id: str, shown: Sequence[Entry]) -> None:
    """Prints what is new whenever a store says that something changed, and looks by itself now and then."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    ends = [s.subscribe(lambda: (loop.call_soon_threadsafe(news.set), None)[1]) for s in ai.stores()]
    seen = {_key(e) for e in shown}
    last = shown[-1].at if shown else None
    try:
        while True:
            news.clear()
            try:
                entries = await ai.sessions.timeline(session_id)
            except SessionNotFound:
                shell.screen.note("The session was deleted.")
                return
            fresh = [e for e in entries if _key(e) not in seen]
            seen.update(_key(e) for e in fresh)
            if shell.json:
                for entry in fresh:
                    shell.screen.give(entry_facts(session_id, entry))
            else:
                _print(shell.screen, fresh, last)
            last = fresh[-1].at if fresh else last
            shell.screen.console.file.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _POLL)
    finally:
        for end in ends:
            end()


def _key(entry: Entry) -> tuple[Any, ...]:
    ids = tuple(sorted((k, str(v)) for k, v in entry.facts.items() if isinstance(v, (str, int))))
    return entry.at, entry.kind, entry.title, entry.snapshot_id, ids


def _print(screen: Screen, entries: Sequence[Entry], before: float | None) -> None:
    day = at(before)[:10] if before is not None else ""
    for entry in entries:
        if not screen.is_terminal:
            parts = [at(entry.at), entry.kind, safe(entry.title, 2000)]
            screen.say("\t".join([*parts, took(entry.took)] if entry.took is not None else parts))
            continue
        if at(entry.at)[:10] != day:
            day = at(entry.at)[:10]
            screen.say(day, style="dim")
        _line(screen, entry)


def _line(screen: Screen, entry: Entry) -> None:
    mark, style = _mark(entry)
    line = Text(f"{clock(entry.at)} ", "dim") + Text(f"{mark} ", style)
    title = safe(entry.title, 400)
    tail = took(entry.took) if entry.took is not None else ""
    tokens = _tokens(entry)
    if tokens and not screen.narrow:
        tail = f"{tokens:,} tok" + (f", {tail}" if tail else "")
    if not screen.narrow:  # there it goes on in the next line: what is cut off would be the point of it
        title = _fitted(
            title,
            max(screen.width - len(line) - (len(tail) + 2 if tail else 0), 16),
            "call" in entry.facts or "verb" in entry.facts,
        )
    line += Text(title)
    screen.say(line, Text(f"  {tail}" if tail else "", "dim"))


def _mark(entry: Entry) -> tuple[str, str]:
    if entry.kind == "tool" and "error" in entry.facts:
        return "✗", "red"
    if entry.kind == "tool" and entry.facts.get("unfinished"):
        return "·", "yellow"
    return _MARKS.get(entry.kind, ("·", ""))


def _fitted(title: str, room: int, about_call: bool) -> str:
    """The title in so many columns. Of a call, the input is cut, and not what became of it."""
    if cell_len(title) <= room:
        return title
    call, closed, what = title.rpartition(") ")
    if about_call and closed and room - cell_len(what) > 12:
        return f"{_cut(call, room - cell_len(what) - 3)}…) {what}"
    return f"{_cut(title, room - 1)}…"


def _cut(text: str, room: int) -> str:
    short = Text(text)
    short.truncate(room)
    return short.plain.rstrip()


def _tokens(entry: Entry) -> int:
    found: Any = entry.facts.get("tokens")
    return found if isinstance(found, int) else 0
