"""What a turn costs, and what many turns need: `python -m benchmarks.scale measure` and `… simulate`.

`measure` (within scripts/with_postgres.py) runs turns that pause once, on a real Temporal server and a real PostgreSQL, and
prints what each took: rows, bytes, commits, history events, CPU. `simulate` takes those numbers, and says what a load of
turns a second and a stock of paused sessions need, and where it breaks first. Its assumptions about the servers are the
fields of `Assumed`; docs/scale.md says where they come from.
"""

import argparse
import asyncio
import heapq
import json
import os
import random
import resource
import sys
import tempfile
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))


@dataclass(frozen=True)
class Measured:
    """Of one turn: a message, a tool that pauses, a decision, the tool, the end. Bytes are PostgreSQL's, indexes included."""

    paused_bytes: float = 6_000.0
    ended_bytes: float = 10_700.0
    wal_bytes: float = 18_100.0
    commits: float = 10.0
    reads: float = 25.0
    cpu: float = 0.064
    history_events: int = 13
    history_bytes: int = 4_500


@dataclass(frozen=True)
class Assumed:
    """What the servers do: writing transactions a second of one PostgreSQL primary, and what one of its partitions may
    hold; state changes a second of one shard of Temporal's history; CPU cores and steps at once of one worker."""

    commits_a_second: float = 12_000.0
    partition_bytes: float = 100e9
    transitions_a_shard: float = 5.0
    cores: float = 2.0
    steps: int = 100
    busy: float = 0.6


@dataclass(frozen=True)
class Load:
    """`model` is how long a model call takes, in seconds; `pause` how long a person does; `keep` days that sessions stay."""

    turns: float = 1_000.0
    paused: float = 10_000_000.0
    model: float = 6.0
    tool: float = 0.5
    keep: float = 30.0


# -- measuring -------------------------------------------------------------------------------------------------------


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.lease_seconds = store.lease_seconds
        self.reads = self.writes = 0

    def submit(self, work: Any, *, read: bool = False) -> Any:
        self.reads += read
        self.writes += not read
        return self.store.submit(work, read=read)

    def subscribe(self, callback: Any) -> Any:
        return self.store.subscribe(callback)

    def close(self) -> None:
        self.store.close()


async def measure(address: str, dsn: str, turns: int) -> dict[str, Any]:
    import psycopg

    from adjourn import Adjourn, Interrupt, Message, ModelReply, ModelRequest, Part, ToolRunContext
    from adjourn.engines.temporal import Temporal, WorkerOptions, run_worker
    from adjourn.parts import ToolRequest
    from adjourn.stores.postgres import PostgresStore

    schema = f"scale_{uuid.uuid4().hex[:8]}"
    store = Counting(PostgresStore(dsn, schema=schema))
    engine = Temporal(address, queue=f"scale-{uuid.uuid4().hex[:8]}")
    ai = Adjourn(engine=engine)

    async def instant(request: ModelRequest) -> ModelReply:
        if request.messages[-1].role == "tool":
            return ModelReply(Message("model", [Part(text="done")]))
        return ModelReply(Message("model", [Part(tool_request=ToolRequest("pay", "r1", {"amount": 5}))]))

    ai.default_model = ai.define_model("instant", instant)

    @ai.tool()
    async def pay(amount: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"amount": amount})
        return "paid"

    agent = ai.define_agent("payer", store=store)
    connection: Any = psycopg.connect(dsn, autocommit=True)

    def asked(query: str) -> int:
        return int(connection.execute(query).fetchone()[0])

    def size() -> int:
        return asked(
            "select coalesce(sum(pg_total_relation_size(c.oid)), 0) from pg_class c join pg_namespace n "
            f"on n.oid = c.relnamespace where n.nspname = '{schema}' and c.relkind = 'r'"
        )

    worker = asyncio.create_task(run_worker(ai, engine, options=WorkerOptions(sweep=3600)))
    warm = await agent.connect().send("warm").output
    await warm.interrupts[0].restart().output
    empty, wal = size(), asked("select pg_current_wal_lsn() - '0/0'::pg_lsn")
    writes, reads, used = store.writes, store.reads, resource.getrusage(resource.RUSAGE_SELF)
    legs = [agent.connect().send(f"question {i}") for i in range(turns)]
    outputs = await asyncio.gather(*[t.output for t in legs])
    paused = size()
    await asyncio.gather(*[o.interrupts[0].restart().output for o in outputs])
    after = resource.getrusage(resource.RUSAGE_SELF)
    handle = (await engine.client()).get_workflow_handle(legs[0].snapshot_id)
    await handle.result()
    events = (await handle.fetch_history()).events
    found = Measured(
        (paused - empty) / turns,
        (size() - empty) / turns,
        (asked("select pg_current_wal_lsn() - '0/0'::pg_lsn") - wal) / turns,
        (store.writes - writes) / turns,
        (store.reads - reads) / turns,
        (after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) / turns,
        len(events),
        sum(e.ByteSize() for e in events),
    )
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await ai.aclose()
    connection.execute(f'drop schema "{schema}" cascade')
    connection.close()
    return asdict(found)


def run_measure(turns: int) -> None:
    from engines.temporal_server import Server

    dsn = os.environ.get("ADJOURN_TEST_POSTGRES")
    if not dsn:
        raise SystemExit("run it as: python scripts/with_postgres.py python -m benchmarks.scale measure")

    async def work() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            server = Server(Path(folder))
            await server.start()
            try:
                return await measure(server.address, dsn, turns)
            finally:
                server.stop()

    print(json.dumps(asyncio.run(work()), indent=1))


# -- simulating ------------------------------------------------------------------------------------------------------


def waits(load: Load, cost: Measured, servers: Assumed, workers: int, seconds: float, seed: int) -> tuple[float, float]:
    """The median and the 99th percentile of how long a leg waits for a free place on a worker.

    Legs come at random; each holds a place while its model or tool works. The places of all workers are one queue, as
    Temporal's task queue is.
    """
    dice = random.Random(seed)
    rate = load.turns * 2  # a turn that pauses once has two legs
    scale = min(1.0, 2_000 / (workers * servers.steps))  # a smaller system of the same load behaves alike, or worse
    places = max(1, int(workers * servers.steps * scale))
    free = [0.0] * places
    heapq.heapify(free)
    now, out = 0.0, list[float]()
    cpu = cost.cpu / 2
    while now < seconds:
        now += dice.expovariate(rate * scale)
        begin = max(now, heapq.heappop(free))
        out.append(begin - now)
        heapq.heappush(free, begin + dice.lognormvariate(0, 0.5) * load.model + load.tool + cpu)
    kept = sorted(out[len(out) // 4 :])  # what comes before it is full does not wait
    return kept[len(kept) // 2], kept[int(len(kept) * 0.99)]


def simulate(load: Load, cost: Measured, servers: Assumed) -> list[tuple[str, str]]:
    """What the load needs, as rows of a table."""
    commits = load.turns * cost.commits
    by_cpu = load.turns * cost.cpu / (servers.cores * servers.busy)
    by_steps = load.turns * 2 * (load.model + load.tool) / (servers.steps * servers.busy)
    workers = int(max(by_cpu, by_steps)) + 1
    kept = load.turns * 86_400 * load.keep * cost.ended_bytes
    stock = load.paused * cost.paused_bytes
    transitions = load.turns * cost.history_events
    p50, p99 = waits(load, cost, servers, workers, 120.0, 1)
    short50, short99 = waits(load, cost, servers, max(1, int(workers * servers.busy * 0.95)), 120.0, 1)
    return [
        ("commits a second", f"{commits:,.0f}"),
        ("PostgreSQL primaries, at the commits that one takes", f"{commits / servers.commits_a_second:.1f}"),
        ("write-ahead log a second", f"{load.turns * cost.wal_bytes / 1e6:,.0f} MB"),
        (f"paused sessions: {load.paused:,.0f}", f"{stock / 1e9:,.0f} GB"),
        (f"ended sessions, kept {load.keep:g} days", f"{kept / 1e12:,.1f} TB"),
        ("partitions by session", f"{(stock + kept) / servers.partition_bytes:,.0f}"),
        ("Temporal: state changes a second", f"{transitions:,.0f}"),
        ("Temporal: history shards", f"{_power(transitions / servers.transitions_a_shard):,}"),
        ("Temporal: open workflows", f"{load.paused:,.0f} ({load.paused * cost.history_bytes / 2 / 1e9:,.0f} GB)"),
        ("Temporal: ended workflows, kept a day", f"{load.turns * 86_400 * cost.history_bytes / 1e9:,.0f} GB"),
        ("workers by CPU", f"{by_cpu:,.0f}"),
        ("workers by steps at once", f"{by_steps:,.0f}"),
        (f"a leg waits for a place, with {workers:,} workers", f"{p50:.2f} s, p99 {p99:.2f} s"),
        ("the same with as many as are just too few", f"{short50:.1f} s, p99 {short99:.1f} s, and growing"),
    ]


def _power(least: float) -> int:
    shards = 1
    while shards < least:
        shards *= 2
    return shards


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("what", choices=["measure", "simulate"])
    parser.add_argument("--turns", type=float, default=None, help="of a measurement, or a second")
    parser.add_argument("--paused", type=float, default=Load.paused)
    parser.add_argument("--model", type=float, default=Load.model, help="seconds of a model call")
    options = parser.parse_args()
    if options.what == "measure":
        run_measure(int(options.turns or 100))
        return
    load = Load(options.turns or Load.turns, options.paused, options.model)
    print(f"| {load.turns:,.0f} turns a second, {load.paused:,.0f} paused | |\n|---|---|")
    for name, value in simulate(load, Measured(), Assumed()):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
