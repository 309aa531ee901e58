"""What `adjourn doctor` looks at. Looking changes nothing: it reads the rows as they are, not through the inbox.

A `Finding` says what is wrong in words, and may carry a repair that is safe: one that loses nothing, repeats no side
effect and is undone by nobody's surprise.
"""

import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from adjourn.app import Adjourn
from adjourn.cli.finding import every, outer
from adjourn.cli.repairs import beats, cancel, end_lease, recount, too_long
from adjourn.cli.words import ago, many, short, span
from adjourn.errors import AdjournError, ToolChanged, ToolGone
from adjourn.events import Limits
from adjourn.lease import transact
from adjourn.loading import load, stand
from adjourn.records import INNER, Decision, InterruptQuery, InterruptRecord, SessionQuery, SessionRecord
from adjourn.resume import as_shown, tools_asked
from adjourn.settling import overdue
from adjourn.store import Store, Tx

Level = Literal["ok", "note", "problem"]
_SKEW = 30.0
"""Seconds by which clocks may differ before it is worth a word; leases are 15 s long."""
_UNTAKEN = 60.0
"""Seconds after which a decision should have been taken up."""
_UNBOUNDED = Limits(*[None] * len(Limits.__struct_fields__))


@dataclass
class Repair:
    """`what` completes "Shall I …?"; `apply` says how many it changed."""

    what: str
    apply: Callable[[], Awaitable[int]]
    runs: bool = False
    """Whether it lets turns go on, so that models are called and tools run."""


@dataclass
class Finding:
    """`check` is a stable name, `ids` are the sessions or interrupts concerned."""

    check: str
    level: Level
    text: str
    ids: list[str] = field(default_factory=list[str])
    hint: str = ""
    repair: Repair | None = None
    repaired: bool = False


class Examination:
    """One look at a store. Rows are read once."""

    def __init__(self, ai: Adjourn, store: Store, *, runs: bool) -> None:
        self.ai = ai
        self.store = store
        self.runs = runs
        self.now = time.time()
        self.sessions: list[SessionRecord] = []
        self.open: list[InterruptRecord] = []

    async def findings(self) -> list[Finding]:
        out = [await self._writable()]
        self.sessions = await every(self.store, _sessions)
        self.open = await every(self.store, _open)
        out += await self._leases() + self._left() + await self._untaken() + self._heads(await self._missing_heads())
        out += self._overdue() + await self._orphans() + self._clocks()
        counted = f"{many(len(outer(self.sessions)), 'session')}, {many(len(self.open), 'open pause')}"
        return [Finding("store.content", "ok", f"{self.store!r}: {counted}"), *out]

    async def _writable(self) -> Finding:
        began = time.perf_counter()
        await transact(self.store, lambda tx: tx.drop_session("s_doctor"))  # of an id that no session has
        ms = (time.perf_counter() - began) * 1000
        return Finding("store.writable", "ok", f"it takes changes (one took {ms:.1f} ms)")

    # -- sessions

    async def _leases(self) -> list[Finding]:
        seconds = self.store.lease_seconds
        held = [s for s in self.sessions if too_long(s, self.now, seconds)]

        def living(tx: Tx) -> set[str]:
            return {s.id for s in held if beats(tx, s, self.now, seconds)}

        alive = await transact(self.store, living, read=True) if held else set[str]()
        out: list[Finding] = []
        if alive:
            text = f"{many(len(alive), 'session')} driven by a process whose clock is ahead of this one"
            out.append(Finding("clock.skew", "problem", text, sorted(alive), "Set the clocks (NTP)"))
        rows = [s for s in held if s.id not in alive]
        if rows:
            longest = max(s.lease_until for s in rows) - self.now
            text = (
                f"{many(len(rows), 'session')} held by a lease that ends only in {span(longest)}, and nobody is there"
            )
            work = [partial(end_lease, session_id=s.id, now=self.now, lease_seconds=seconds) for s in rows]
            out.append(self._fixable("session.stuck_lease", text, rows, "end these leases", work))
        return out

    def _left(self) -> list[Finding]:
        rows = [s for s in outer(self.sessions) if s.pending and s.lease_until <= self.now]
        if not rows:
            return []
        text = f"{many(len(rows), 'turn')} left in the middle by a process that is gone ({_oldest(rows, self.now)})"
        return [self._to_drive("session.left", text, rows)]

    async def _untaken(self) -> list[Finding]:
        miscounted: list[SessionRecord] = []
        waiting: list[SessionRecord] = []
        for row in outer(self.sessions):
            if not row.waiting or row.lease_until > self.now:
                continue
            decisions = await transact(self.store, partial(_unapplied, session_id=row.id), read=True)
            if len(decisions) != row.waiting:
                miscounted.append(row)
            if decisions and self.now - decisions[0].at > _UNTAKEN and not row.pending:
                waiting.append(row)
        out: list[Finding] = []
        if miscounted:
            text = f"{many(len(miscounted), 'session')} with a wrong count of decisions that wait"
            work = [partial(recount, session_id=s.id, now=self.now) for s in miscounted]
            out.append(self._fixable("session.miscounted", text, miscounted, "count them anew", work))
        if waiting:
            text = f"{many(len(waiting), 'session')} decided on, and nobody took the decision up ({_oldest(waiting, self.now)})"
            out.append(self._to_drive("session.untaken", text, waiting))
        return out

    async def _missing_heads(self) -> list[SessionRecord]:
        def work(tx: Tx) -> list[SessionRecord]:
            return [s for s in self.sessions if s.head is not None and tx.snapshot(s.head) is None]

        return await transact(self.store, work, read=True)

    def _heads(self, rows: Sequence[SessionRecord]) -> list[Finding]:
        if not rows:
            return []
        text = f"{many(len(rows), 'session')} whose newest snapshot is gone: rows were removed by hand"
        return [Finding("session.headless", "problem", text, [s.id for s in rows], "Restore a backup, or purge them")]

    def _clocks(self) -> list[Finding]:
        newest = max([s.updated for s in self.sessions] + [r.created for r in self.open], default=0.0)
        if newest - self.now <= _SKEW:
            return []
        text = f"something was stored {span(newest - self.now)} in the future: the clocks of two machines differ"
        return [Finding("clock.skew", "problem", text, [], "Set the clocks (NTP); leases and expiry go by them")]

    # -- pauses

    def _overdue(self) -> list[Finding]:
        rows = [r for r in self.open if overdue(r, self.now)]
        if not rows:
            return []

        async def settle() -> int:
            return len(await self.ai.inbox.expire_due(run=False))

        text = f"{many(len(rows), 'pause')} overdue and not settled as expired yet"
        hint = "Any look at the inbox does the same"
        return [
            Finding("pause.overdue", "note", text, [r.id for r in rows], hint, Repair("settle them as expired", settle))
        ]

    async def _orphans(self) -> list[Finding]:
        known = {s.id: s for s in self.sessions}
        orphans: dict[str, str] = {}
        broken: dict[str, str] = {}
        by_session: dict[str, list[InterruptRecord]] = {}
        for row in self.open:
            if row.session_id not in known:
                orphans[row.id] = "its session is gone"
            else:
                by_session.setdefault(row.session_id, []).append(row)
        for session_id, rows in by_session.items():
            if known[session_id].pending and known[session_id].lease_until > self.now:
                continue  # it moves; what it waits for is its driver's to say
            try:
                held = await transact(self.store, partial(waited_for, session_id=session_id), read=True)
            except AdjournError as e:
                broken[session_id] = str(e)
                continue
            orphans |= {r.id: "its turn does not wait for it any more" for r in rows if r.id not in held}
        out: list[Finding] = []
        if orphans:
            text = f"{many(len(orphans), 'pause')} that nothing waits for ({'; '.join(sorted(set(orphans.values())))})"
            work = [partial(cancel, interrupt_id=i, now=self.now, reason=why) for i, why in orphans.items()]
            rows = [r for r in self.open if r.id in orphans]
            out.append(self._fixable("pause.orphaned", text, rows, "close them as cancelled", work))
        if broken:
            text = f"{many(len(broken), 'session')} cannot be read back: {next(iter(broken.values()))}"
            out.append(Finding("session.unreadable", "problem", text, list(broken), "Restore a backup of the store"))
        return out

    # -- putting right

    def _fixable(
        self, check: str, text: str, rows: Sequence[Any], what: str, work: Sequence[Callable[[Tx], bool]]
    ) -> Finding:
        async def apply() -> int:
            return sum([await transact(self.store, one) for one in work])

        return Finding(check, "problem", text, [r.id for r in rows], "", Repair(what, apply))

    def _to_drive(self, check: str, text: str, rows: Sequence[SessionRecord]) -> Finding:
        ids = [s.id for s in rows]
        if not self.runs:
            return Finding(check, "problem", text, ids, "Run `adjourn worker APP`, or this with --app")
        known = [s for s in rows if s.agent in self.ai.agents]
        if not known:
            return Finding(check, "problem", text, ids, "This application does not define their agents")
        drive = Repair("go on with them here", partial(self._drive, [s.id for s in known]), runs=True)
        return Finding(check, "problem", text, ids, "", drive)

    async def _drive(self, ids: Sequence[str]) -> int:
        done = 0
        for session_id in ids:
            turn = await self.ai.inbox.go_on(self.store, session_id)
            if turn is not None:
                await turn.settled()
            row = await transact(self.store, partial(_session, session_id=session_id), read=True)
            done += row is None or not (row.pending or row.waiting)
        return done


def _session(tx: Tx, session_id: str) -> SessionRecord | None:
    return tx.session(session_id)


def _unapplied(tx: Tx, session_id: str) -> list[Decision]:
    return tx.decisions(session_id=session_id, unapplied=True)


def waited_for(tx: Tx, session_id: str) -> set[str]:
    """The interrupts that some branch of a session rests on. Raises what reading it back raises."""
    snapshots = tx.snapshots(session_id)
    gone_on = {s.parent_id for s in snapshots if not s.branch}
    out: set[str] = set()
    for leaf in snapshots:
        if leaf.id in gone_on or (leaf.status == "completed" and leaf.finish_reason != "interrupted"):
            continue  # (a failed turn keeps the pauses of calls beside the one that failed)
        loaded = load(tx, session_id, leaf.id)
        turn = stand(loaded, _UNBOUNDED).turn if loaded is not None else None
        out |= {c.pause.id for c in turn.paused if c.pause is not None} if turn is not None else set()
    return out


def _sessions(after: tuple[float, str] | None) -> Callable[[Tx], list[SessionRecord]]:
    return lambda tx: tx.sessions(SessionQuery(after=after, limit=1000))


def _open(after: tuple[float, str] | None) -> Callable[[Tx], list[InterruptRecord]]:
    return lambda tx: tx.interrupts(InterruptQuery(status="open", after=after, limit=1000))


def _oldest(rows: Sequence[SessionRecord], now: float) -> str:
    return f"the oldest {ago(min(s.updated for s in rows), now)}"


# -- the application -------------------------------------------------------------------------------------------------


def examine_app(ai: Adjourn, examined: Sequence[Examination]) -> list[Finding]:
    """Models that cannot be found, agents that are not defined, tools that changed under an open pause."""
    out: list[Finding] = []
    for name, agent in sorted(ai.agents.items()):
        try:
            model = agent.model(agent.connect())
            out.append(
                Finding("app.agent", "ok", f"agent {name!r}: model {model.name!r}, {many(len(agent.tools), 'tool')}")
            )
        except AdjournError as e:
            out.append(Finding("app.model", "problem", f"agent {name!r}: {e}"))
    if not ai.agents:
        out.append(Finding("app.agents", "note", "the application defines no agent"))
    for one in examined:
        out += _tools(ai, one.open) + _agents(ai, one.sessions)
    return out


def _agents(ai: Adjourn, sessions: Sequence[SessionRecord]) -> list[Finding]:
    gone: dict[str, list[str]] = {}
    for row in sessions:
        if row.agent not in ai.agents and not row.id.startswith(INNER):
            gone.setdefault(row.agent, []).append(row.id)
    return [
        Finding(
            "app.agent_gone", "note", f"agent {name!r} has {many(len(ids), 'session')} and is not defined here", ids
        )
        for name, ids in sorted(gone.items())
    ]


def _tools(ai: Adjourn, rows: Sequence[InterruptRecord]) -> list[Finding]:
    gone: dict[tuple[str, str], list[str]] = {}
    changed: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        agent = ai.agents.get(row.agent)
        if agent is None:
            continue
        name = (".".join((row.agent, *row.path)), tools_asked(row.tool, row)[-1])
        try:
            as_shown(row.tool, row, agent.find_tool)
        except ToolGone:
            gone.setdefault(name, []).append(row.id)
        except ToolChanged:
            changed.setdefault(name, []).append(row.id)
    told = [
        ("app.tool_gone", "is not defined any more", gone),
        ("app.tool_changed", "has another input schema now", changed),
    ]
    return [
        Finding(
            check, "problem", f"tool {tool!r} of agent {agent!r} {what}; {many(len(ids), 'pause')} cannot be restarted", ids,
            "Bring it back as it was, or respond to them or decline them",
        )
        for check, what, found in told
        for (agent, tool), ids in sorted(found.items())
    ]  # fmt: skip


# -- files -----------------------------------------------------------------------------------------------------------


def check_file(path: Path) -> Finding:
    """Whether a SQLite file is whole."""
    try:
        db = sqlite3.connect(
            f"file:{path.resolve().as_posix().replace('?', '%3f').replace('#', '%23')}?mode=ro", uri=True
        )
        try:
            rows = [r[0] for r in db.execute("PRAGMA quick_check(5)")]
        finally:
            db.close()
    except sqlite3.Error as e:
        return Finding("store.damaged", "problem", f"{path} cannot be checked: {e}")
    if rows == ["ok"]:
        return Finding("store.whole", "ok", f"{path} is whole ({path.stat().st_size / 1e6:,.1f} MB)")
    hint = "Restore a backup, or save what can be read with `sqlite3 FILE .recover`"
    return Finding("store.damaged", "problem", f"{path} is damaged: {rows[0]}", [], hint)


def brief(finding: Finding) -> str:
    """The first few ids."""
    shown = ", ".join(short(i) for i in finding.ids[:4])
    return shown + (f", … ({len(finding.ids):,})" if len(finding.ids) > 4 else "")
