"""`adjourn worker`: takes up what waits for a driver, one process of any number that share a store."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from adjourn.app import Adjourn
from adjourn.cli.chat import AppArgument
from adjourn.cli.commands import Group, Shell
from adjourn.cli.engine import EngineOptions, Logging
from adjourn.cli.facts import turn_facts, when
from adjourn.cli.failures import NOT_DRAINED, Misuse
from adjourn.cli.screen import Screen, safe
from adjourn.cli.telemetry import set_up
from adjourn.cli.words import clock, many, short, took
from adjourn.errors import AdjournError, NothingPaused, SessionBusy, SessionConflict, StoreError, StoreUnavailable
from adjourn.handle import AgentOutput, AgentTurn
from adjourn.lease import transact
from adjourn.ledger import let_go
from adjourn.records import SessionQuery, SessionRecord
from adjourn.store import Store, Tx

_TAKEN = (SessionBusy, SessionConflict, NothingPaused)
"""Another process was first, which is how several workers share."""
_LONGEST_WAIT = 60.0


def add_to(group: Group) -> None:
    group.command("worker", about="app", panel="Running", drains=True)(worker)


@dataclass
class Pace:
    """How much at once, how often, and for how long."""

    concurrency: Annotated[int, typer.Option(help="How many turns at once.", min=1, max=10_000)] = 20
    grace: Annotated[float, typer.Option(help="Seconds that running turns have to come to rest at the end.", min=0)] = (
        30.0
    )
    poll: Annotated[
        float, typer.Option(help="Seconds between looks, where no store says that anything changed.", min=0.1)
    ] = 5.0
    once: Annotated[bool, typer.Option("--once", help="Take up what waits now, and end when it rests.")] = False
    deployment: Annotated[
        str | None,
        typer.Option(
            help="With an engine: this worker's deployment, for several versions at once.",
            rich_help_panel="Engine",
            envvar="ADJOURN_TEMPORAL_DEPLOYMENT",
        ),
    ] = None
    build_id: Annotated[
        str | None,
        typer.Option(
            help="With an engine: this worker's version in its deployment.",
            rich_help_panel="Engine",
            envvar="ADJOURN_TEMPORAL_BUILD_ID",
        ),
    ] = None


async def worker(shell: Shell, app: AppArgument, pace: Pace, logging: Logging, engine: EngineOptions) -> int:
    """Go on with turns that were decided on, or left by a dead process; settle what is overdue. SIGTERM drains."""
    ai = shell.place.load(app)
    if not ai.stores():
        raise Misuse(
            "no agent of this application has a store, so there is nothing for a worker to take up", kind="app"
        )
    logging.apply(ai)
    flush = set_up(ai)
    log = _Log(shell.screen)
    agents = f"agents {', '.join(safe(a, 40) for a in sorted(ai.agents))}; Ctrl-C or SIGTERM ends it"
    if engine.apply(ai):
        return await _on_engine(ai, log, pace, agents)
    if pace.deployment is not None or pace.build_id is not None:
        raise Misuse("--deployment and --build-id go with --engine: without one there are no versions to tell apart")
    work = Worker(ai, log, concurrency=pace.concurrency, poll=pace.poll)
    stop = asyncio.Event()
    with _signals(stop):
        if pace.once:
            await work.round()
            while work.running and not stop.is_set():
                await work.changed()
                await work.round()
        else:
            log.say("ready", agents)
            await work.run(stop)
        return await _drained(work, pace.grace, flush)


async def _on_engine(ai: Adjourn, log: "_Log", pace: Pace, agents: str) -> int:
    """Runs the steps that an engine hands out."""
    from adjourn.engines.temporal_worker import WorkerOptions, run_worker

    if pace.once:
        raise Misuse("--once goes with leases; an engine hands out its work as it comes")
    if (pace.deployment is None) != (pace.build_id is None):
        raise Misuse("--deployment and --build-id go together: the one names what the other is a version of")
    place = getattr(ai.engine, "address", "")
    options = WorkerOptions(
        grace=pace.grace,
        sweep=pace.poll,
        activities=pace.concurrency,
        deployment=pace.deployment,
        build_id=pace.build_id,
    )
    connect: Any = getattr(ai.engine, "client", None)
    stop = asyncio.Event()
    try:
        if connect is not None:
            await connect()
        with _signals(stop):
            log.say("ready", f"Temporal at {safe(place, 100)}, {agents}")
            await run_worker(ai, options=options, stop=stop)
    except RuntimeError as e:  # what its client raises where nobody answers
        raise StoreUnavailable(f"Temporal at {place} cannot be used: {e}") from e
    log.say("stopped", "nothing runs here any more")
    return 0


async def _drained(work: "Worker", grace: float, flush: Callable[[], None]) -> int:
    """Waits for what runs. What does not rest in time is left as a crash leaves it: another worker takes it over."""
    if work.running:
        work.log.say("draining", f"waiting for {many(len(work.running), 'turn')} to rest", turns=len(work.running))
    until = time.monotonic() + grace
    while work.running and (rest := until - time.monotonic()) > 0:
        await work.changed(rest)
    if not work.running:
        work.log.say("stopped", "nothing runs here any more")
        return 0
    work.log.say(
        "left",
        f"{many(len(work.running), 'turn')} did not rest in {grace:g} s and go to another worker",
        turns=len(work.running),
    )
    for store in work.ai.stores():
        for session_id in list(work.running):
            with contextlib.suppress(StoreError):
                await transact(store, partial(let_go, session_id=session_id, holder=work.ai.holder))
    flush()
    sys.stdout.flush()
    sys.stderr.flush()
    # Ending the loop would cancel the turns, and a cancelled turn has ended for good. Leases are for this.
    os._exit(NOT_DRAINED)


def _due(tx: Tx, query: SessionQuery) -> list[SessionRecord]:
    return tx.sessions(query)


class _signals:  # noqa: N801 - used like a function
    """SIGTERM and SIGINT set the event; a second one ends at once."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._handled: list[signal.Signals] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._heard)
                self._handled.append(number)
            except (NotImplementedError, RuntimeError, ValueError):
                pass  # Windows: Ctrl-C cancels the command

    def _heard(self) -> None:
        if self._stop.is_set():
            os._exit(NOT_DRAINED)
        self._stop.set()

    def __exit__(self, *_: object) -> None:
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)


class _Log:
    """One line a thing that happened: text or JSON, without content."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def say(self, event: str, text: str, **facts: Any) -> None:
        self._screen.give({"event": event, "at": when(time.time()), "message": text, **facts})
        self._screen.say(f"{clock(time.time())}  {event.ljust(9)} {text}")
        self._screen.console.file.flush()


class Worker:
    """Keeps at most `concurrency` turns of an application going. Several on one store share through its leases."""

    def __init__(self, ai: Adjourn, log: _Log, *, concurrency: int = 20, poll: float = 5.0) -> None:
        self.ai = ai
        self.log = log
        self.running: dict[str, AgentTurn] = {}
        self._concurrency = concurrency
        self._poll = poll
        self._news = asyncio.Event()
        self._later: dict[str, tuple[int, float]] = {}
        self._following: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is told to stop."""
        loop = asyncio.get_running_loop()
        wake: Callable[[], None] = lambda: (loop.call_soon_threadsafe(self._news.set), None)[1]  # noqa: E731
        ends = [store.subscribe(wake) for store in self.ai.stores()]
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._news.set())
        try:
            while not stop.is_set():
                self._news.clear()
                try:
                    await self.round()
                except StoreError as e:
                    self.log.say("store", safe(e, 500))  # it may come back; nothing is lost meanwhile
                await self.changed(self._poll)
        finally:
            stopping.cancel()
            for end in ends:
                end()

    async def changed(self, seconds: float | None = None) -> None:
        """Waits for news from a store or from a turn that came to rest, at most so long."""
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return
        finally:
            self._news.clear()

    async def round(self) -> None:
        """Settles what is overdue, and takes up as much as there is room for."""
        for decision in await self.ai.inbox.expire_due(run=False):
            self.log.say("expired", short(decision.interrupt_id), interruptId=decision.interrupt_id)
        for store in self.ai.stores():
            await self._take_up(store)

    async def _take_up(self, store: Store) -> None:
        agents = tuple(name for name, agent in self.ai.agents.items() if agent.store is store)
        after: tuple[float, str] | None = None
        while agents and len(self.running) < self._concurrency:
            query = SessionQuery(due=self.ai.clock.now(), after=after, agents=agents, limit=100, outer=True)
            found = await transact(store, partial(_due, query=query), read=True)
            for row in found:
                if len(self.running) >= self._concurrency:
                    return
                await self._go_on(store, row)
            if len(found) < query.limit:
                return
            after = (found[-1].created, found[-1].id)

    async def _go_on(self, store: Store, row: SessionRecord) -> None:
        if row.id in self.running or self._waits(row.id):
            return
        try:
            turn = await self.ai.inbox.go_on(store, row.id)
        except AdjournError as e:
            self._failed(row, e)
            return
        if turn is None:
            self._again_later(row.id)  # nothing to do after all, or another process is at it
            return
        self.running[row.id] = turn
        self.log.say("took up", f"{safe(short(row.id), 80)} ({safe(row.agent, 60)})", sessionId=row.id, agent=row.agent)
        following = asyncio.create_task(self._follow(row, turn))
        self._following.add(following)
        following.add_done_callback(self._following.discard)

    async def _follow(self, row: SessionRecord, turn: AgentTurn) -> None:
        began = time.monotonic()
        outcome: AgentOutput | BaseException
        try:
            outcome = await turn.wait()
        except Exception as e:  # noqa: BLE001 - how the turn ended, which is told
            outcome = e
        finally:
            self.running.pop(row.id, None)
            self._news.set()
        name = safe(short(row.id), 80)
        if isinstance(outcome, _TAKEN):
            self._again_later(row.id)
            self.log.say("shared", f"{name} is with another process", sessionId=row.id)
            return
        facts = turn_facts(outcome)
        if isinstance(outcome, BaseException):
            self._again_later(row.id)  # one that could not even begin still waits, and is not tried at once
        else:
            self._later.pop(row.id, None)
        seconds = time.monotonic() - began
        text = f"{name} {facts['finishReason']} after {took(seconds)}"
        if facts["error"] is not None:
            text += f": {safe(facts['error']['message'], 300)}"
        kept = {"interrupts": [i["id"] for i in facts["interrupts"]], "error": facts["error"]}
        self.log.say("rests", text, sessionId=row.id, finishReason=facts["finishReason"], seconds=seconds, **kept)

    def _failed(self, row: SessionRecord, error: BaseException) -> None:
        self._again_later(row.id)
        self.log.say(
            "failed", f"{safe(short(row.id), 80)}: {type(error).__name__}: {safe(error, 300)}", sessionId=row.id
        )

    def _waits(self, session_id: str) -> bool:
        return self._later.get(session_id, (0, 0.0))[1] > time.monotonic()

    def _again_later(self, session_id: str) -> None:
        tries = self._later.get(session_id, (0, 0.0))[0] + 1
        self._later[session_id] = (tries, time.monotonic() + min(0.25 * 2 ** min(tries, 10), _LONGEST_WAIT))
        if len(self._later) > 10_000:
            self._later = {k: v for k, v in self._later.items() if v[1] > time.monotonic()}
