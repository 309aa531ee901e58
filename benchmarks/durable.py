"""What durable sessions cost: `python -m benchmarks.durable`.

Pause and restart on a WAL and FULL SQLite file, beside the bare commits and beside LangGraph's SQLite saver (where
`benchmarks/.venv` has it), one process each, round robin. Then what only Adjourn is asked: a turn late in a long session,
opening one, bytes on disk and written, a new session beside many stored ones, a thousand sessions in flight.
"""

import argparse
import asyncio
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
from pathlib import Path
from typing import Any

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

    async def pause_restart(self) -> None:
        for _ in range(COMMITS):
            self.db.execute("BEGIN IMMEDIATE")
            for _row in range(3):
                self.db.execute("INSERT INTO t VALUES (?, ?)", (os.urandom(16).hex(), b"y" * 400))
            self.db.execute("COMMIT")


class Adjourned:
    """An agent's session on SQLiteStore, with every guarantee on."""

    label = "Adjourn, SQLiteStore"

    def __init__(self, folder: Path) -> None:
        from adjourn import Adjourn, Interrupt, ToolRunContext
        from adjourn.stores.sqlite import SQLiteStore
        from benchmarks.peers.adjourn_ import Instant

        self.path = folder / "adjourn.db"
        self.store = SQLiteStore(self.path)
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

        self.plain = ai.define_agent("plain", tools=[weather], store=self.store)
        self.agent = ai.define_agent("careful", tools=[careful], store=self.store)

    async def pause(self) -> Any:
        return (await self.agent.connect().send("how is it?").output).interrupts[0]

    async def pause_restart(self) -> None:
        output = await (await self.pause()).restart().output
        assert output.text == "done", output


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

    async def pause_restart(self) -> None:
        from langgraph.types import Command

        if self.agent is None:
            await self._open()
        config: Any = {"configurable": {"thread_id": str(next(self.threads))}}
        await self.agent.ainvoke({"messages": [("user", "how is it?")]}, config, durability="exit")
        state = await self.agent.ainvoke(Command(resume="yes"), config, durability="exit")
        assert state["messages"][-1].content == "done"


CANDIDATES: dict[str, Callable[[Path], Any]] = {"floor": Floor, "adjourn": Adjourned, "langgraph": LangGraph}


def work(name: str) -> None:
    """The worker: one JSON list of seconds for each number that it reads."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    async def serve() -> None:
        with tempfile.TemporaryDirectory() as folder:
            candidate = CANDIDATES[name](Path(folder))
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                walls: list[float] = []
                for _ in range(int(line)):
                    start = time.perf_counter()
                    await candidate.pause_restart()
                    walls.append(time.perf_counter() - start)
                print(json.dumps(walls), file=replies, flush=True)

    asyncio.run(serve())


def side_by_side(rounds: int) -> None:
    workers: dict[str, subprocess.Popen[str]] = {}
    for name in CANDIDATES:
        python = str(PEER_PYTHON) if name == "langgraph" and PEER_PYTHON.exists() else sys.executable
        command = [python, "-m", "benchmarks.durable", "--worker", name]
        env = {**os.environ, "PYTHONPATH": "src" + os.pathsep + os.environ.get("PYTHONPATH", "")}
        workers[name] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )
    found: dict[str, list[list[float]]] = {name: [] for name in workers}
    names = list(workers)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            worker = workers[name]
            assert worker.stdin is not None
            assert worker.stdout is not None
            try:
                worker.stdin.write("10\n")
                worker.stdin.flush()
                walls = json.loads(worker.stdout.readline() or "[]")
            except (BrokenPipeError, OSError):
                walls = []
            if number and walls:  # the first round warms up
                found[name].append(walls)
    for worker in workers.values():
        if worker.stdin is not None:
            worker.stdin.close()
        worker.wait()
    print("| | median ms | min ms | median of the rounds' ratios to Adjourn |\n| --- | --- | --- | --- |")
    for name, blocks in found.items():
        if not blocks:
            print(f"| {name} | not installed, or it failed | | |")
            continue
        walls = sorted(itertools.chain.from_iterable(blocks))
        pairs = zip(blocks, found["adjourn"], strict=False)
        ratio = statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)
        print(
            f"| {CANDIDATES[name].label} | {statistics.median(walls) * 1e3:.2f} | {walls[0] * 1e3:.2f} | {ratio:.2f} |"
        )  # type: ignore[attr-defined]


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
    with tempfile.TemporaryDirectory() as folder:
        one = Adjourned(Path(folder))
        fresh = await each(50, one.pause)
        for _ in range(stored // 500):
            await asyncio.gather(*[one.pause() for _ in range(500)])
        beside = await each(50, one.pause)
        ratio = statistics.median(beside) / statistics.median(fresh)
        print(f"a new session beside {stored:,} stored ones: {ratio:.2f} times what it costs in an empty store")
        start = time.perf_counter()
        paused = await asyncio.gather(*[one.pause() for _ in range(1000)])
        outputs = await asyncio.gather(*[p.restart().output for p in paused])
        assert all(o.text == "done" for o in outputs)
        print(
            f"1,000 durable sessions in flight: {1000 / (time.perf_counter() - start):,.0f} paused and restarted a second"
        )
        one.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", default="")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--stored", type=int, default=10_000)
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return
    side_by_side(args.rounds)
    asyncio.run(growth())
    asyncio.run(many(args.stored))


if __name__ == "__main__":
    main()
