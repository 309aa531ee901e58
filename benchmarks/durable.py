"""What durable sessions cost: `python -m benchmarks.durable`.

Pause and restart on a WAL and FULL SQLite file, beside LangGraph's SQLite saver (where `benchmarks/.venv` has it), and beside
what it is made of: the bare commits, the same statements without Adjourn, the same turn without a file. One process each, round
robin. Then what only Adjourn is asked: a turn late in a long session,
opening one, bytes on disk and written, a new session beside many stored ones, a thousand sessions in flight.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

PEER_PYTHON = Path(__file__).parent / ".venv" / "bin" / "python"
COMMITS = 4
WORDS = "x" * 200


class Floor:
    """As many commits as Adjourn makes for a pause and a restart, with rows of the same size, and nothing else."""

    label = f"bare SQLite, {COMMITS} commits"

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "floor.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("CREATE TABLE t (id TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID")

    async def once(self) -> None:
        for _ in range(COMMITS):
            self.db.execute("BEGIN IMMEDIATE")
            for _row in range(3):
                self.db.execute("INSERT INTO t VALUES (?, ?)", (os.urandom(16).hex(), b"y" * 400))
            self.db.execute("COMMIT")


class Adjourned:
    """An agent's session on SQLiteStore, with every guarantee on."""

    label = "Adjourn, SQLiteStore"
    lasting = True

    def __init__(self, folder: Path) -> None:
        from adjourn import Adjourn, Interrupt, MemoryStore, ToolRunContext
        from adjourn.stores.sqlite import SQLiteStore
        from benchmarks.peers.adjourn_ import Instant

        self.path = folder / "adjourn.db"
        self.store = store = SQLiteStore(self.path) if self.lasting else MemoryStore()
        ai = Adjourn(model=Instant())

        @ai.tool
        async def weather(place: str) -> str:
            """The weather at a place."""
            return f"sunny in {place} {WORDS}"

        @ai.tool
        async def careful(place: str, ctx: ToolRunContext) -> str:
            """The weather at a place, once somebody agrees."""
            if not ctx.is_resumed():
                raise Interrupt({"ask": f"look at {place}?"})
            return f"sunny in {place}"

        self.plain = ai.define_agent("plain", tools=[weather], store=store)
        self.agent = ai.define_agent("careful", tools=[careful], store=store)

    async def pause(self) -> Any:
        return (await self.agent.connect().send("how is it?").output).interrupts[0]

    async def resume(self, paused: Any) -> None:
        output = await paused.restart().output
        assert output.text == "done", output

    async def once(self) -> None:
        await self.resume(await self.pause())


class InMemory(Adjourned):
    """The same without a file: what the turns themselves take."""

    label = "Adjourn, MemoryStore"
    lasting = False


class _Recorder:
    """A connection that writes down what is asked of it."""

    def __init__(self, db: sqlite3.Connection, taken: list[tuple[Any, ...]]) -> None:
        self._db = db
        self._taken = taken

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        self._taken.append(statement)
        return self._db.execute(*statement)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class Statements:
    """The statements of Adjourn's pauses and restarts, on a file with the same tables, and nothing else."""

    label = "its statements by themselves"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db: sqlite3.Connection | None = None
        self.taken: list[list[tuple[Any, ...]]] = []
        self.done = 0

    async def ready(self, many: int) -> None:
        """Has Adjourn do as many, on a file of its own, for what it asks of SQLite."""
        from adjourn.stores.sqlite_file import File

        recorded: list[tuple[Any, ...]] = []
        opened = File.open
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as folder,
            patch.object(File, "open", lambda file: _Recorder(opened(file), recorded)),
        ):
            one = Adjourned(Path(folder))
            recorded.clear()
            for _ in range(many):
                await one.once()
                self.taken.append(recorded[:])
                recorded.clear()
            one.store.close()
            if self.db is None:
                self.db = self._like(one.path)

    def _like(self, path: Path) -> sqlite3.Connection:
        with closing(sqlite3.connect(path)) as model:
            page = model.execute("PRAGMA page_size").fetchone()[0]
            tables = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
            schema: list[tuple[str]] = model.execute(tables).fetchall()
        db = sqlite3.connect(self.folder / "statements.db", isolation_level=None, cached_statements=512)
        for pragma in (f"page_size={page}", "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
            db.execute(f"PRAGMA {pragma}")
        for (statement,) in schema:
            db.execute(statement)
        return db

    async def once(self) -> None:
        assert self.db is not None
        for statement in self.taken.pop(0):
            self.db.execute(*statement).fetchone()
        self.done += 1
        if self.done % 60 == 0:  # as often as Adjourn does, which has a thread for it
            self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


class LangGraph:
    """`create_agent` with AsyncSqliteSaver and durability="exit", its fastest durable way."""

    label = "langgraph, AsyncSqliteSaver, exit"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.threads = itertools.count()
        self.agent: Any = None

    async def _open(self) -> None:
        import aiosqlite
        from langchain.agents import create_agent
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
        from langgraph.types import interrupt

        from benchmarks.peers.langgraph_ import Instant

        async def careful(place: str) -> str:
            """The weather at a place, once somebody agrees."""
            interrupt({"ask": f"look at {place}?"})
            return f"sunny in {place}"

        saver = AsyncSqliteSaver(await aiosqlite.connect(self.folder / "langgraph.db"))
        self.agent = create_agent(Instant(), [careful], checkpointer=saver)

    async def pause(self) -> Any:
        if self.agent is None:
            await self._open()
        config: Any = {"configurable": {"thread_id": str(next(self.threads))}}
        await self.agent.ainvoke({"messages": [("user", "how is it?")]}, config, durability="exit")
        return config

    async def resume(self, config: Any) -> None:
        from langgraph.types import Command

        state = await self.agent.ainvoke(Command(resume="yes"), config, durability="exit")
        assert state["messages"][-1].content == "done"

    async def once(self) -> None:
        await self.resume(await self.pause())


CANDIDATES: dict[str, Callable[[Path], Any]] = {
    "floor": Floor,
    "statements": Statements,
    "memory": InMemory,
    "adjourn": Adjourned,
    "langgraph": LangGraph,
}


async def one_by_one(candidate: Any, many: int) -> list[float]:
    """Seconds of each pause and restart."""
    if isinstance(candidate, Statements):
        await candidate.ready(many)
    walls: list[float] = []
    for _ in range(many):
        start = time.perf_counter()
        await candidate.once()
        walls.append(time.perf_counter() - start)
    return walls


async def at_once(candidate: Any, many: int) -> list[float]:
    """Seconds until all have paused, and until all are done after that."""
    start = time.perf_counter()
    paused = await asyncio.gather(*[candidate.pause() for _ in range(many)])
    middle = time.perf_counter()
    await asyncio.gather(*[candidate.resume(p) for p in paused])
    return [middle - start, time.perf_counter() - middle]


MEASURES: dict[str, Callable[[Any, int], Awaitable[list[float]]]] = {"one": one_by_one, "all": at_once}


def work(name: str) -> None:
    """The worker: one JSON list of seconds for each measure and number that it reads."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    async def serve() -> None:
        with tempfile.TemporaryDirectory() as folder:
            candidate = CANDIDATES[name](Path(folder))
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                measure, many = line.split()
                print(json.dumps(await MEASURES[measure](candidate, int(many))), file=replies, flush=True)

    asyncio.run(serve())


class Workers:
    """A process for each candidate. One that cannot run, for want of its package say, answers with nothing."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for name in CANDIDATES:
            python = str(PEER_PYTHON) if name == "langgraph" and PEER_PYTHON.exists() else sys.executable
            command = [python, "-m", "benchmarks.durable", "--worker", name]
            env = {**os.environ, "PYTHONPATH": "src" + os.pathsep + os.environ.get("PYTHONPATH", "")}
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
            )

    def ask(self, name: str, measure: str, many: int) -> list[float]:
        process = self._processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{measure} {many}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline() or "[]")
        except OSError:
            return []

    def close(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # what was written to one that could not run is still in its buffer
                process.stdin.close()
            process.wait()


def side_by_side(workers: Workers, rounds: int) -> None:
    found: dict[str, list[list[float]]] = {name: [] for name in CANDIDATES}
    names = list(CANDIDATES)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            walls = workers.ask(name, "one", 10)
            if number and walls:  # the first round warms up
                found[name].append(walls)
    print("| | median ms | min ms | median of the rounds' ratios to Adjourn |\n| --- | --- | --- | --- |")
    for name, blocks in found.items():
        if not blocks:
            print(f"| {name} | not installed, or it failed | | |")
            continue
        walls = sorted(itertools.chain.from_iterable(blocks))
        pairs = zip(blocks, found["adjourn"], strict=False)
        ratio = statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)
        label: str = getattr(CANDIDATES[name], "label", name)
        print(f"| {label} | {statistics.median(walls) * 1e3:.2f} | {walls[0] * 1e3:.2f} | {ratio:.2f} |")


def in_flight(workers: Workers, flights: int, many: int = 1000) -> None:
    print(f"\n| {many:,} sessions in flight | paused and restarted a second, median | best |\n| --- | --- | --- |")
    rates: dict[str, list[float]] = {"adjourn": [], "langgraph": []}
    for _ in range(flights):
        for name, found in rates.items():
            if walls := workers.ask(name, "all", many):
                found.append(many / sum(walls))
    for name, found in rates.items():
        label: str = getattr(CANDIDATES[name], "label", name)
        if found:
            print(f"| {label} | {statistics.median(found):,.0f} | {max(found):,.0f} |")
    if rates["langgraph"]:
        ratio = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
        print(f"\nin flight, median of the rounds' ratios: {ratio:.1f}")


def written() -> int:
    """Bytes that this process handed to the kernel so far. Linux only."""
    lines = Path("/proc/self/io").read_text().split()
    return int(lines[lines.index("wchar:") + 1])


async def each(n: int, make: Callable[[], Awaitable[Any]]) -> list[float]:
    walls: list[float] = []
    for _ in range(n):
        start = time.perf_counter()
        await make()
        walls.append((time.perf_counter() - start) * 1e3)
    return walls


async def growth() -> None:
    from adjourn import AgentInit

    with tempfile.TemporaryDirectory() as folder:
        one = Adjourned(Path(folder))
        session = one.plain.connect(AgentInit(session_id="long"))
        early = await each(60, lambda: session.send(WORDS).output)
        middle = await each(880, lambda: session.send(WORDS).output)
        before = written()
        late = await each(60, lambda: session.send(WORDS).output)
        bytes_written = (written() - before) / 60
        print(f"\na warm session's turn: {statistics.median(early[10:]):.2f} ms at turn 10 to 60, ", end="")
        print(f"{statistics.median(late):.2f} ms at turn 940 to 1,000 (in between {statistics.median(middle):.2f})")
        cold = await each(10, lambda: one.plain.connect(AgentInit(session_id="long")).send(WORDS).output)
        print(f"opening a stored 1,000-turn session and running a turn: {min(cold):.1f} ms at least")
        one.store.close()
        size = one.path.stat().st_size / 1e6
        print(f"written a turn: {bytes_written / 1e3:.1f} KB; on disk after 1,010 turns: {size:.2f} MB")


async def many(stored: int) -> None:
    """Turn about in an all but empty store and in a full one, whose logs both have come round: one that grows is slower."""
    with tempfile.TemporaryDirectory() as folder:
        full = Adjourned(Path(tempfile.mkdtemp(dir=folder)))
        for _ in range(stored // 500):
            await asyncio.gather(*[full.pause() for _ in range(500)])
        ratios: list[float] = []
        for _ in range(5):
            empty = Adjourned(Path(tempfile.mkdtemp(dir=folder)))
            await each(200, empty.pause)
            pairs = [(*await each(1, empty.pause), *await each(1, full.pause)) for _ in range(100)]
            small, large = (statistics.median(walls) for walls in zip(*pairs, strict=True))
            ratios.append(large / small)
            empty.store.close()
        print(
            f"a new session beside {stored:,} stored ones: {statistics.median(ratios):.2f} times what it costs in an ",
            end="",
        )
        print(f"all but empty store ({', '.join(f'{r:.2f}' for r in sorted(ratios))})")
        full.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", default="")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--flights", type=int, default=3)
    parser.add_argument("--stored", type=int, default=10_000)
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return
    workers = Workers()
    side_by_side(workers, args.rounds)
    in_flight(workers, args.flights)
    workers.close()
    asyncio.run(growth())
    asyncio.run(many(args.stored))


if __name__ == "__main__":
    main()
