"""`python -m benchmarks.paused [COUNT]`: many paused turns on Temporal: the worker's memory, and how fast a decision is then.

The worker is a process of its own. Its memory is looked at when a tenth, a half and all of the turns are paused, and so is
the time from a decision to the end of its turn (30 decisions each, median and worst), and what a decision costs the worker in
CPU, which a busy machine changes less than the time. Within `scripts/with_postgres.py` the sessions are in PostgreSQL, else in a
SQLite file. On stderr it says how far it is.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from adjourn import Adjourn, Interrupt, Message, ModelReply, ModelRequest, Part, ToolRunContext
from adjourn.engines.temporal import Temporal, WorkerOptions, run_worker
from adjourn.parts import ToolRequest
from adjourn.stores.postgres import PostgresStore
from adjourn.stores.sqlite import SQLiteStore

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

DSN = os.environ.get("ADJOURN_TEST_POSTGRES", "")
AT_ONCE = 25
DECISIONS = 30


def build(address: str, store: str) -> tuple[Adjourn, Any]:
    ai = Adjourn(engine=Temporal(address, queue="paused"))

    async def instant(request: ModelRequest) -> ModelReply:
        if request.messages[-1].role == "tool":
            return ModelReply(Message("model", [Part(text="done")]))
        return ModelReply(Message("model", [Part(tool_request=ToolRequest("ask", "r1", {"n": 1}))]))

    ai.default_model = ai.define_model("instant", instant)

    @ai.tool()
    async def ask(n: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"n": n})
        return "yes"

    rows = PostgresStore(DSN, schema="paused", connections=AT_ONCE) if DSN else SQLiteStore(store)
    return ai, ai.define_agent("asker", store=rows)


def memory(pid: int) -> float:
    """Resident megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def cpu(pid: int) -> float:
    """Seconds of CPU until now, in user and in kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def play(address: str, store: str, count: int, worker: int) -> None:
    ai, agent = build(address, store)
    paused: list[Any] = []
    free = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with free:
            output = await agent.connect().send("go").output
            paused.append(output.interrupts[0])
            if len(paused) % 500 == 0:
                print(
                    f"{len(paused):,} paused after {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True
                )

    started = time.perf_counter()
    print("| paused | worker's memory | decision to end, median | worst | the worker's CPU a decision |")
    print("|---|---|---|---|---|", flush=True)
    for part in (count // 10, count // 2, count):
        await asyncio.gather(*[one() for _ in range(part - len(paused))])
        took: list[float] = []
        spent = cpu(worker)
        for _ in range(DECISIONS):
            interrupt = paused.pop(0)  # the oldest: its workflow has long left the worker's memory
            begun = time.perf_counter()
            assert (await interrupt.restart().output).text == "done"
            took.append(time.perf_counter() - begun)
        took.sort()
        spent = (cpu(worker) - spent) / DECISIONS
        print(
            f"| {part:,} | {memory(worker):.0f} MB | {took[len(took) // 2] * 1000:.0f} ms | {took[-1] * 1000:.0f} ms "
            f"| {spent * 1000:.0f} ms |",
            flush=True,
        )
    await ai.aclose()


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        ai, _ = build(sys.argv[2], sys.argv[3])
        asyncio.run(run_worker(ai, options=WorkerOptions(cached=100, activities=AT_ONCE)))
        return
    from engines.temporal_server import Server

    with tempfile.TemporaryDirectory() as folder:
        server, store = Server(Path(folder)), str(Path(folder) / "sessions.db")
        asyncio.run(server.start())
        command = [sys.executable, "-m", "benchmarks.paused", "worker", server.address, store]
        worker = subprocess.Popen(command, cwd=ROOT)
        try:
            asyncio.run(play(server.address, store, int((sys.argv[1:] or ["1000"])[0]), worker.pid))
        finally:
            worker.terminate()
            worker.wait(60)
            server.stop()


if __name__ == "__main__":
    main()
