"""`adjourn inbox --watch`: a live list to decide from at a terminal, one line a change in a pipe."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.utils import get_cwidth

from adjourn.app import Adjourn
from adjourn.cli.commands import Shell, explain
from adjourn.cli.deciding import decide_one
from adjourn.cli.facts import decision_facts, interrupt_facts
from adjourn.cli.failures import Left, Misuse
from adjourn.cli.finding import matches
from adjourn.cli.picks import STYLE, fit
from adjourn.cli.screen import safe
from adjourn.cli.words import ago, clock, left, short
from adjourn.display import summary
from adjourn.errors import AdjournError, UnknownInterrupt
from adjourn.lease import transact
from adjourn.records import Change, InterruptRecord
from adjourn.resume import seen

_ROWS = 500
_TICK = 1.0
"""Seconds between looks, where nothing says that anything changed: ages grow, and what is overdue goes."""


async def watch_inbox(shell: Shell, ai: Adjourn, query: dict[str, Any]) -> int:
    """Until it is left. At a terminal an item is opened with Enter and decided on."""
    if not shell.screen.interactive:
        return await _lines(shell, ai, query)
    at: str | None = None
    while True:
        chosen = await LiveList(ai, query, at).run()
        if chosen is None:
            return 0
        at = chosen.id
        try:
            await decide_one(shell, ai, await ai.inbox.get(chosen.id))
        except Left:
            continue
        except (AdjournError, Misuse) as e:
            explain(shell, e)
        await _back()


async def _back() -> None:
    from adjourn.cli.picks import Option, pick

    with contextlib.suppress(Left):
        await pick("", [Option(None, "Back to the list")])


class LiveList:
    """What waits, as it comes and goes. The chosen item stays chosen whatever happens above it."""

    def __init__(self, ai: Adjourn, query: dict[str, Any], at: str | None = None) -> None:
        self._ai = ai
        self._query = query
        self._rows: Sequence[InterruptRecord] = ()
        self._count = 0
        self._at = at
        self._place = 0
        self._first = 0
        self._problem = ""
        self._news = asyncio.Event()

    async def run(self) -> InterruptRecord | None:
        """The item that was opened; None where the list was left."""
        app = self._application()
        loop = asyncio.get_running_loop()
        wake = lambda: (loop.call_soon_threadsafe(self._news.set), None)[1]  # noqa: E731 - a subscriber returns nothing
        ends = [store.subscribe(wake) for store in self._ai.stores()]
        await self._look()
        keeping = asyncio.create_task(self._keep(app))
        try:
            return await app.run_async()
        except (KeyboardInterrupt, EOFError):
            return None
        finally:
            keeping.cancel()
            for end in ends:
                end()

    async def _keep(self, app: Application[Any]) -> None:
        while True:
            self._news.clear()
            await self._look()
            app.invalidate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _TICK)

    async def _look(self) -> None:
        try:
            page = await self._ai.inbox.list(**self._query, limit=_ROWS)
            self._count = len(page.items) if page.next_cursor is None else await self._ai.inbox.count(**self._query)
        except AdjournError as e:
            self._problem = str(e)  # shown, and tried again: a server that restarts is no reason to leave
            return
        self._problem = ""
        self._rows = page.items
        ids = [row.id for row in self._rows]
        if self._at in ids:
            self._place = ids.index(self._at)
        else:  # it was settled: what came after it is chosen now
            self._place = min(self._place, max(len(ids) - 1, 0))
            self._at = ids[self._place] if ids else None

    def _move(self, to: int) -> None:
        if self._rows:
            self._place = min(max(to, 0), len(self._rows) - 1)
            self._at = self._rows[self._place].id

    def _application(self) -> Application[Any]:
        keys = KeyBindings()

        def moves(step: int, *names: str) -> None:
            def move(_: KeyPressEvent) -> None:
                self._move(self._place + step)

            for name in names:
                keys.add(name)(move)

        moves(-1, "up", "k")
        moves(1, "down", "j")
        moves(-10, "pageup")
        moves(10, "pagedown")
        moves(-_ROWS, "home", "g")
        moves(_ROWS, "end", "G")

        @keys.add("enter")
        @keys.add("c-j")
        def _open(event: KeyPressEvent) -> None:
            if self._rows:
                event.app.exit(result=self._rows[self._place])

        @keys.add("q")
        @keys.add("escape", eager=True)
        @keys.add("c-c")
        @keys.add("c-d")
        @keys.add("<sigint>")
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        window = Window(FormattedTextControl(self._lines, focusable=True, show_cursor=False))
        app: Application[Any] = Application(
            layout=Layout(HSplit([window])), key_bindings=keys, style=STYLE, full_screen=True
        )
        app.ttimeoutlen = app.timeoutlen = 0.05
        self._app = app
        return app

    def _lines(self) -> StyleAndTextTuples:
        size = self._app.output.get_size()
        width, height = size.columns - 1, max(size.rows - 3, 1)
        now = time.time()
        title = f"{self._count:,} waiting" if self._count else "Nothing waits for a decision"
        out: StyleAndTextTuples = [("class:head", fit(title, width) + "\n")]
        if self._problem:
            out.append(("class:error", fit(safe(self._problem), width) + "\n"))
            height -= 1
        self._first = min(max(self._first, self._place - height + 1), self._place)
        for place in range(self._first, min(self._first + height, len(self._rows))):
            out += self._row(self._rows[place], place == self._place, width, now)
        hint = "Enter opens, j and k move, q leaves"
        out.append(("class:hint", fit(hint, width)))
        return out

    def _row(self, row: InterruptRecord, chosen: bool, width: int, now: float) -> StyleAndTextTuples:
        age = ago(row.created, now).removesuffix(" ago").rjust(7)
        until = left(row.expires_at, now)
        tail = f"  {until}" if until and width > 50 else ""
        inner = seen(row)
        text = fit(summary(inner.tool, inner.input, 400), max(width - 11 - get_cwidth(tail), 8))
        out: StyleAndTextTuples = [("class:mark", "> " if chosen else "  "), ("class:detail", f"{age}  ")]
        out += [("class:chosen" if chosen else "", text), ("class:warn", tail), ("", "\n")]
        return out


# -- in a pipe -------------------------------------------------------------------------------------------------------


async def _lines(shell: Shell, ai: Adjourn, query: dict[str, Any]) -> int:
    """What waits now, then each change, one a line."""
    after = await ai.inbox.latest_position()
    cursor: str | None = None
    while True:
        page = await ai.inbox.list(**query, cursor=cursor, limit=1000)
        for row in page.items:
            _line(shell, "waiting", row, None)
        cursor = page.next_cursor
        if cursor is None:
            break
    async for change in _changes(ai, after):
        try:
            row = await ai.inbox.get(change.interrupt_id)
        except UnknownInterrupt:
            continue  # its session was deleted meanwhile
        if matches(row, {**query, "status": None}):
            decision = await _decision(ai, change)
            _line(shell, change.kind, row, decision)
    return 0


async def _changes(ai: Adjourn, after: str) -> AsyncIterator[Change]:
    async for change in ai.inbox.watch(after):
        yield change


async def _decision(ai: Adjourn, change: Change) -> Any:
    if change.decision_id is None:
        return None
    rows: list[Any] = []
    for store in ai.stores():
        rows += await transact(store, lambda tx: tx.decisions(interrupt_id=change.interrupt_id), read=True)
    return next((d for d in rows if d.id == change.decision_id), None)


def _line(shell: Shell, event: str, row: InterruptRecord, decision: Any) -> None:
    facts = decision_facts(decision) if decision is not None else None
    shell.screen.give({"event": event, "interrupt": interrupt_facts(row), "decision": facts})
    if not shell.json:
        what = f"{decision.verb} by {safe(decision.by or '-', 60)}" if decision is not None else row.status
        inner = seen(row)
        known = safe(row.id) if not shell.screen.is_terminal else short(row.id)
        shell.screen.say(f"{clock(time.time())}\t{event}\t{known}\t{what}\t{summary(inner.tool, inner.input, 300)}")
        shell.screen.console.file.flush()
