"""What it costs to be watched, and that it costs nothing not to be: `python -m benchmarks.observe`.

One turn pauses in a tool and is restarted, in a session on a MemoryStore: two legs, two model calls, two runs of a tool.
The observers take turns in each round, so that what else the machine does hits all alike.
"""

import argparse
import asyncio
import gc
import io
import logging
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from adjourn import Adjourn, Agent, Interrupt, MemoryStore, ToolRunContext
from adjourn.observe import Observer
from adjourn.testing import ScriptedModel, call

WATCHING = ("observe.py", "notices.py", "tracing.py", "metrics.py", "logs.py")
_IMPORTED = (
    "import sys, adjourn; print(sum(m.split('.')[0] in ('opentelemetry', 'prometheus_client') for m in sys.modules))"
)


def agent_of(observers: Sequence[Observer]) -> Agent:
    def reply(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("pay", {"amount": 3})

    ai = Adjourn(observers=observers, model=ScriptedModel([reply], repeat_last=True))

    @ai.tool(idempotent=True)
    async def pay(amount: int, ctx: ToolRunContext) -> int:
        if not ctx.is_resumed():
            raise Interrupt({"amount": amount})
        return amount

    return ai.define_agent("clerk", store=MemoryStore())


async def turn(agent: Agent) -> None:
    session = agent.connect()
    await session.send("go").output
    output = await session.interrupts[0].restart().output
    assert output.text == "done"


async def timed(agent: Agent, turns: int) -> float:
    gc.collect()
    begun = time.process_time()  # nothing here waits, and what else the machine does is no part of it
    for _ in range(turns):
        await turn(agent)
    return (time.process_time() - begun) / turns


def calls_into_watching(agent: Agent) -> int:
    """How many functions of the files that watch are called in one turn."""
    count = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        name = frame.f_code.co_filename
        if event == "call" and "adjourn" in name and name.endswith(WATCHING):
            count += 1

    sys.setprofile(profile)
    try:
        asyncio.run(turn(agent))
    finally:
        sys.setprofile(None)
    return count


def bytes_kept(agent: Agent) -> int:
    """Memory that the files which watch hold after a turn."""
    tracemalloc.start()
    asyncio.run(turn(agent))
    found = tracemalloc.take_snapshot().statistics("filename")
    tracemalloc.stop()
    return sum(
        s.size for s in found if "adjourn" in s.traceback[0].filename and s.traceback[0].filename.endswith(WATCHING)
    )


def candidates() -> dict[str, Callable[[], Sequence[Observer]]]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    from adjourn.logs import JSONFormatter, Logs
    from adjourn.metrics import Metrics
    from adjourn.tracing import Tracing

    class Drop(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    def traced() -> Sequence[Observer]:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(Drop()))
        return [Tracing(provider)]

    def logged() -> Sequence[Observer]:
        handler = logging.StreamHandler(io.StringIO())
        handler.setFormatter(JSONFormatter())
        logging.getLogger("adjourn").addHandler(handler)
        logging.getLogger("adjourn").setLevel("INFO")
        return [Logs()]

    return {
        "nobody": lambda: (),
        "an observer that does nothing": lambda: [lambda _: None],
        "`Metrics`": lambda: [Metrics()],
        "`Logs`, JSON at INFO": logged,
        "`Tracing`, no SDK installed": lambda: [Tracing()],
        "`Tracing`, SDK, every span exported": traced,
    }


async def measured(agents: dict[str, Agent], rounds: int, turns: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in agents}
    for agent in agents.values():
        await timed(agent, turns // 4)
    for _ in range(rounds):
        for name, agent in agents.items():
            times[name].append(await timed(agent, turns))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observe", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=200, help="turns in each round (default: %(default)s)")
    args = parser.parse_args()
    imported = subprocess.run(
        [sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True
    ).stdout.strip()
    agents = {name: agent_of(make()) for name, make in candidates().items()}
    found = asyncio.run(measured(agents, args.rounds, args.turns))
    print(f"Modules of OpenTelemetry and prometheus-client that `import adjourn` imports: {imported}\n")
    print("| who watches | CPU µs a turn | more | calls into what watches | bytes it keeps |")
    print("|---|---|---|---|---|")
    base = found["nobody"]
    for name, seconds in found.items():
        more = f"{(seconds - base) * 1e6:+.0f}" if name != "nobody" else ""
        calls, kept = calls_into_watching(agents[name]), bytes_kept(agents[name])
        print(f"| {name} | {seconds * 1e6:.0f} | {more} | {calls} | {kept:,} |")


if __name__ == "__main__":
    main()
