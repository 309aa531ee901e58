"""`adjourn export`, `import` and `purge`: sessions as lines of JSON, and making an end of old ones."""

import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer

from adjourn.app import Adjourn
from adjourn.cli.commands import Group, Shell, misused
from adjourn.cli.failures import Left
from adjourn.cli.finding import every, find_session
from adjourn.cli.picks import confirm
from adjourn.cli.place import Place
from adjourn.cli.screen import harmless, safe
from adjourn.cli.typed import lines_of_standard_input
from adjourn.cli.words import many, short, span
from adjourn.errors import SessionError, SessionPaused
from adjourn.lease import transact
from adjourn.parts import new_id
from adjourn.records import INNER, InterruptQuery, SessionQuery, SessionRecord
from adjourn.store import Store, Tx

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of sessions, or beginnings of them.", show_default=False)]


def add_to(group: Group) -> None:
    group.command("export", panel="Sessions")(export)
    group.command("import", panel="Sessions")(import_)
    group.command("purge", panel="Sessions")(purge)


async def export(
    shell: Shell,
    ids: Ids = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file instead of standard output.", show_default=False),
    ] = None,
) -> None:
    """Write sessions, all of them where none is named, as one line of JSON each."""
    ai = shell.place.open()
    chosen = [(await find_session(ai, typed)).id for typed in ids or ()]
    nested: list[bool] = []  # of each line
    with _writing(output, shell.place) as file:
        async for line in ai.sessions.export(chosen or None):
            file.write((harmless(line.decode()) if output is None else line.decode()).encode() + b"\n")
            nested.append(_is_nested(line))
        file.flush()
    if output is not None:
        shell.screen.give({"exported": len(nested), "nested": sum(nested), "file": str(output)})
        shell.screen.say(f"Wrote {_counted(len(nested), sum(nested))} to {safe(output)}.")


class _Named(msgspec.Struct):
    id: str


class _Line(msgspec.Struct):
    """An exported session, as far as it says which one it is."""

    session: _Named


def _is_nested(line: bytes) -> bool:
    """Whether a line is the session of a nested agent. One that is no session at all is for others to refuse."""
    try:
        return msgspec.json.decode(line, type=_Line).session.id.startswith(INNER)
    except msgspec.DecodeError:
        return False


def _counted(count: int, nested: int) -> str:
    with_them = f" and {nested:,} of nested agents with them" if nested else ""
    return many(count - nested, "session") + with_them


@contextmanager
def _writing(output: Path | None, place: Place) -> Generator[IO[bytes]]:
    """Where it goes. A file appears under its name when it is whole, so that a failed export never takes a good one's place."""
    if output is None:
        yield sys.stdout.buffer
        return
    if place.is_store(output):
        raise misused(f"{output} is the store itself; it was left as it is. Give another file")
    whole = output.is_file() or not output.exists()  # else a pipe or a device, which is written to as it is
    target = output.with_name(f"{output.name}.{new_id('part-')}") if whole else output
    try:
        with target.open("wb") as file:
            yield file
        if whole:
            target.replace(output)
    except OSError as e:
        raise misused(f"{output} cannot be written: {e.strerror}") from None
    finally:
        if whole:
            target.unlink(missing_ok=True)


async def import_(
    shell: Shell,
    file: Annotated[str, typer.Argument(help="What `adjourn export` wrote; - for standard input.")] = "-",
) -> None:
    """Store exported sessions. A store that is not there is made."""
    ai = shell.place.open(create=True)
    stores = ai.stores()
    if len(stores) != 1:
        raise misused(f"the application has {many(len(stores), 'store')}; name the one to import into with --store")
    nested: list[bool] = []

    def noted(lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            nested.append(_is_nested(line))
            yield line

    with _reading(file) as lines:
        count = await ai.sessions.import_(noted(lines), stores[0])
    shell.screen.give({"imported": count, "nested": sum(nested)})
    shell.screen.say(f"Stored {_counted(count, sum(nested))}.")


def _reading(file: str) -> Any:
    if file == "-":
        return nullcontext(lines_of_standard_input())
    try:
        return Path(file).open("rb")
    except OSError as e:
        raise misused(f"{file} cannot be read: {e.strerror}") from None


async def purge(
    shell: Shell,
    ids: Ids = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Delete sessions that nothing happened in for so long: 90d, 12h, 30m.", show_default=False),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also sessions that wait: their pauses are cancelled.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete sessions: those named, or those that have been at rest for long. The audit of decisions stays.

    With --older-than, entries of the inbox's feed that are as old go with them, but never its last.
    """
    if bool(ids) == bool(older_than):
        raise misused("say which: ids of sessions, or --older-than")
    ai = shell.place.open()
    since: float | None = None
    if ids:
        chosen = [await find_session(ai, typed) for typed in dict.fromkeys(ids)]
        await _check(ai, chosen, force)
    else:
        since = time.time() - seconds_of(older_than or "")
        chosen = await _old(ai, since)
    gone = [] if dry_run or not chosen else await _delete(shell, ai, chosen, force, yes, since)
    # Nobody was asked where there was nothing to delete, so then only --yes lets the feed be shortened.
    forgotten = 0 if ids or dry_run or not (chosen or yes) else await _forget(ai, seconds_of(older_than or ""))
    named = [row.id for row in chosen] if dry_run else gone
    shell.screen.give({"sessions": named, "deleted": len(gone), "dryRun": dry_run, "feedEntries": forgotten})
    if dry_run:
        for row in chosen:
            shell.screen.say(f"{safe(row.id)}\t{safe(row.agent, 40)}\t{span(time.time() - row.updated)}")
        feed = "" if ids else " Entries of the inbox's feed that are as old would go with them."
        shell.screen.note(f"{many(len(chosen), 'session')} would be deleted.{feed}")
    else:
        feed = f", and {many(forgotten, 'entry', 'entries')} of the inbox's feed" if forgotten else ""
        shell.screen.say(f"Deleted {many(len(gone), 'session')}{feed}.")


def seconds_of(text: str) -> float:
    """The seconds in "90d", "12h", "30m", "45s" or "2w". Raises Misuse."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if found is None:
        raise misused(f"--older-than {text}: give a number and a unit, such as 90d, 12h or 30m")
    return float(found[1]) * _UNITS[found[2]]


async def _check(ai: Adjourn, rows: Sequence[SessionRecord], force: bool) -> None:
    """All can be deleted, or none is."""
    for row in rows:
        waiting = (await ai.inbox.list(session_id=row.id, limit=100)).items
        if waiting and not force:
            names = ", ".join(f"{safe(r.tool, 60)} ({short(r.id)})" for r in waiting[:5])
            raise SessionPaused(
                f"session {row.id!r} waits for decisions on {names}; nothing was deleted. See --force", waiting
            )


async def _old(ai: Adjourn, cutoff: float) -> list[SessionRecord]:
    out: list[SessionRecord] = []

    def page(after: tuple[float, str] | None) -> Callable[[Tx], list[SessionRecord]]:
        return lambda tx: tx.sessions(SessionQuery(updated_before=cutoff, after=after, limit=1000, outer=True))

    for store in ai.stores():
        rows = [r for r in await every(store, page) if not (r.pending or r.waiting or r.queue)]
        out += [r for r in rows if not await _waits(store, r.id)]
    return out


async def _forget(ai: Adjourn, seconds: float) -> int:
    """Drops what is as old in the feed of each store, but never its last entry; says how much."""
    before, gone = time.time() - seconds, 0
    for store in ai.stores():
        while some := await transact(store, lambda tx: tx.drop_changes(before)):
            gone += some
    return gone


async def _waits(store: Store, session_id: str) -> bool:
    def work(tx: Tx) -> bool:
        return bool(tx.interrupts(InterruptQuery(status="open", session_id=session_id, limit=1)))

    return await transact(store, work, read=True)


async def _delete(
    shell: Shell, ai: Adjourn, rows: Iterable[SessionRecord], force: bool, yes: bool, since: float | None
) -> list[str]:
    rows = list(rows)
    if not yes:
        if not shell.screen.interactive:
            raise misused(f"{many(len(rows), 'session')} would be deleted for good; say so with --yes")
        if not await confirm(f"Delete {many(len(rows), 'session')} for good?"):
            raise Left("Nothing was deleted.")
    gone: list[str] = []
    for row in rows:
        try:
            await ai.sessions.delete(row.id, force=force, untouched_since=since)
            gone.append(row.id)
        except SessionError:
            if since is None:
                raise
            # It came alive, or went, while the question stood there.
    return gone
