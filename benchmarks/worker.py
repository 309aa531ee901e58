"""One candidate in a process of its own: `python -m benchmarks.worker genkit_ generate`.

It reads one JSON object a line from stdin, does what it says, and writes one JSON object a line to what was its stdout
(the candidate's own prints go to stderr). Standard library only, apart from the candidate.
"""

import asyncio
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any


def memory() -> int:
    """Resident bytes of this process now. Linux only; elsewhere 0."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


async def timed(n: int, work: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    """Seconds of wall and process CPU of `n` operations, each by itself."""
    gc.collect()
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(n):
        cpu, wall = time.process_time(), time.perf_counter()
        await work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"wall": walls, "cpu": cpus}


def check_runs(candidate: Any, before: int, n: int) -> None:
    """A benchmark of something that did not happen would be worthless."""
    if candidate.ran - before != n:
        raise AssertionError(f"the tool ran {candidate.ran - before} times, not {n}")


async def measure_tool_turn(candidate: Any, n: int) -> dict[str, Any]:
    before = candidate.ran
    found = await timed(n, candidate.tool_turn)
    check_runs(candidate, before, n)
    return found


async def measure_pause(candidate: Any, n: int) -> dict[str, Any]:
    async def work() -> None:
        await candidate.resume(await candidate.pause())

    before = candidate.ran
    found = await timed(n, work)
    check_runs(candidate, before, n)
    return found


async def measure_stream(candidate: Any, n: int, chunks: int, yields: bool) -> dict[str, Any]:
    async def work() -> None:
        came, _ = await candidate.stream(chunks, yields, 0.0)
        if came != chunks:
            raise AssertionError(f"{came} of {chunks} chunks came")

    found = await timed(n, work)
    return {k: [s / chunks for s in v] for k, v in found.items()}


async def measure_slow_consumer(candidate: Any, chunks: int, pace: float) -> dict[str, Any]:
    """How long the model took to say everything while somebody slow was listening, and how long the reader took."""
    start = time.perf_counter()
    came, finished = await candidate.stream(chunks, True, pace)
    if came != chunks:
        raise AssertionError(f"{came} of {chunks} chunks came")
    return {"model": finished - start, "reader": time.perf_counter() - start}


async def measure_in_flight(candidate: Any, n: int) -> dict[str, Any]:
    """`n` sessions, one task each: all pause, wait behind a barrier until the last has, and are all resumed."""
    gc.collect()
    runs, before = candidate.ran, memory()
    arrived = 0
    everybody, go = asyncio.Event(), asyncio.Event()

    async def session() -> None:
        nonlocal arrived
        paused = await candidate.pause()
        arrived += 1
        if arrived == n:
            everybody.set()
        await go.wait()
        await candidate.resume(paused)

    cpu, wall = time.process_time(), time.perf_counter()
    tasks = [asyncio.create_task(session()) for _ in range(n)]
    done, _ = await asyncio.wait(
        [*tasks, waiting := asyncio.ensure_future(everybody.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    if waiting not in done:
        await next(iter(done))  # it raised
    halfway_cpu, halfway = time.process_time(), time.perf_counter()
    gc.collect()
    held = memory()
    resumed_cpu, resumed = time.process_time(), time.perf_counter()
    go.set()
    await asyncio.gather(*tasks)
    end_cpu, end = time.process_time(), time.perf_counter()
    check_runs(candidate, runs, n)
    return {
        "wall": (halfway - wall + end - resumed) / n,
        "cpu": (halfway_cpu - cpu + end_cpu - resumed_cpu) / n,
        "bytes": (held - before) / n,
    }


MEASURES: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "tool_turn": measure_tool_turn,
    "pause": measure_pause,
    "stream": measure_stream,
    "slow_consumer": measure_slow_consumer,
    "in_flight": measure_in_flight,
    # The durable ones (pause + restart on SQLite, growth with the length of the session) come here, each with its
    # method in Candidate: they need a fresh store a round, whose path the coordinator sends.
}


METHODS = ("tool_turn", "pause", "resume", "stream")


async def serve(module: str, name: str, reply: Callable[[Any], None]) -> None:
    candidate = importlib.import_module(f"benchmarks.peers.{module}").CANDIDATES[name]()
    reply({"label": candidate.label, "methods": [m for m in METHODS if getattr(candidate, m, None)]})
    loop = asyncio.get_running_loop()
    # The coordinator lets one worker run at a time, so that reading in a thread costs nobody anything.
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        measure = MEASURES[order.pop("measure")]
        try:
            reply(await measure(candidate, **order))
        except Exception as e:
            reply({"error": f"{type(e).__name__}: {e}"})


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(value: Any) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        asyncio.run(serve(sys.argv[1], sys.argv[2], reply))
    except Exception as e:
        reply({"error": f"{type(e).__name__}: {e}"})
        raise


if __name__ == "__main__":
    main()
