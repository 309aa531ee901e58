"""One way to run turns on Temporal: `python -m benchmarks.temporal_turns WHO ADDRESS COUNT AT_ONCE`, one line of JSON on stdout.

Every turn is the same: the model asks for a tool that does IO, a person has to agree, the tool runs, the model says "done".
The client and the worker are one process; the server is another. Where the library has no pause that can be awaited, a
query every 5 ms stands for whoever looks.
"""

import asyncio
import importlib
import json
import os
import resource
import sys
import time
import uuid
from typing import Any, Protocol

CANDIDATES = {
    "adjourn": "benchmarks.temporal_peers.adjourn_",
    "pydantic-ai": "benchmarks.temporal_peers.pydantic_ai_",
    "openai-agents": "benchmarks.temporal_peers.openai_agents_",
}


class Runner(Protocol):
    """One library. All its methods are called in one event loop."""

    async def start(self, address: str, queue: str) -> None:
        """Connects, and runs a worker."""
        ...

    async def pause(self, key: str) -> Any:
        """Begins a turn; returns when it is paused, with what is needed to go on."""
        ...

    async def decide(self, paused: Any) -> None:
        """Agrees; returns when the turn has ended, and checks that it ended with "done" after one run of the tool."""
        ...

    async def history(self, paused: Any) -> tuple[int, int]:
        """How many events and bytes the server keeps of the turn."""
        ...

    async def stop(self) -> None: ...


async def measure(runner: Runner, address: str, count: int, at_once: int) -> dict[str, Any]:
    await runner.start(address, f"bench-{uuid.uuid4().hex[:8]}")
    for i in range(3):  # imports, caches, the sticky queue
        await runner.decide(await runner.pause(f"warm{i}"))
    pauses: list[float] = []
    decisions: list[float] = []
    last: Any = None
    for i in range(count):
        begun = time.perf_counter()
        last = await runner.pause(f"one{i}")
        paused = time.perf_counter()
        await asyncio.sleep(0.05)  # a person takes longer than the server's last word about the pause
        asked = time.perf_counter()
        await runner.decide(last)
        pauses.append(paused - begun)
        decisions.append(time.perf_counter() - asked)
    events, size = await runner.history(last)
    used, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()

    async def whole(i: int) -> None:
        await runner.decide(await runner.pause(f"many{i}"))

    await asyncio.gather(*[whole(i) for i in range(at_once)])
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    await runner.stop()
    return {
        "events": events,
        "bytes": size,
        "pause": sorted(pauses)[len(pauses) // 2],
        "decision": sorted(decisions)[len(decisions) // 2],
        "rate": at_once / took,
        "cpu": cpu / at_once,
    }


def main() -> None:
    who, address, count, at_once = sys.argv[1:]
    runner: Runner = importlib.import_module(CANDIDATES[who]).RUNNER()
    print(json.dumps(asyncio.run(measure(runner, address, int(count), int(at_once)))), flush=True)
    os._exit(0)  # a library's threads may not end in order, which would hide the result


if __name__ == "__main__":
    main()
