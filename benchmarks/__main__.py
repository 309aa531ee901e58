"""`python -m benchmarks`: Adjourn beside its peers, as markdown on stdout. Progress goes to stderr.

The peers are measured where they are installed, in an environment of their own: `python -m benchmarks.peers` makes it.
"""

import argparse
import importlib
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import report, startup
from benchmarks.peers import OURS, PEERS
from benchmarks.peers.__main__ import DEFAULT, python_of
from benchmarks.pool import ROOT, Worker, WorkerFailed, environment
from benchmarks.rounds import Who, compare, fly, say

SECTIONS = ("import", "tool", "pause", "stream", "slow", "flight")
SIZES = (100, 300, 1000)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", type=Path, default=DEFAULT, help="the peers' environment (default: %(default)s)")
    parser.add_argument("--only", default="", help="sections, with commas between: " + ",".join(SECTIONS))
    parser.add_argument("--candidates", default="", help="files of benchmarks/peers, with commas between")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the short measures (default: %(default)s)")
    parser.add_argument(
        "--flights", type=int, default=3, help="rounds of the sessions in flight (default: %(default)s)"
    )
    return parser.parse_args()


def source(module: str) -> dict[str, str | tuple[str, ...]]:
    """START and DISTRIBUTIONS of a file in peers/, read without importing it: it may not be importable here."""
    text = (Path(__file__).parent / "peers" / f"{module}.py").read_text()
    facts: dict[str, str | tuple[str, ...]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" = ")
        if name in ("START", "DISTRIBUTIONS"):
            facts[name] = eval(value, {})
    return facts


class Bench:
    """One run: who takes part, and with which interpreter."""

    def __init__(self, args: argparse.Namespace, caches: Path) -> None:
        self.args = args
        self.env = environment(caches)
        chosen = args.candidates.split(",") if args.candidates else [OURS, *PEERS]
        theirs = python_of(args.peers)
        self.pythons = {OURS: sys.executable} | ({m: str(theirs) for m in PEERS} if theirs.exists() else {})
        if not theirs.exists():
            say(f"no peers: there is no {theirs}; make it with: python -m benchmarks.peers")
        self.modules = [m for m in chosen if m in self.pythons]
        self.workers: dict[Who, Worker] = {}
        self.absent: list[str] = []

    def start(self, module: str, name: str) -> Worker:
        return Worker(self.pythons[module], module, name, self.env)

    def open(self) -> None:
        """Starts everybody's worker."""
        for module in self.modules:
            code = f"from benchmarks.peers.{module} import CANDIDATES; print(*CANDIDATES)"
            try:
                names = startup.run(self.pythons[module], code, self.env)[2].split()
            except RuntimeError as e:
                say(f"left out: {module}: {e}")
                self.absent.append(f"{module.strip('_')} ({e})")
                continue
            for name in names:
                try:
                    worker = self.start(module, name)
                except WorkerFailed as e:
                    say(f"left out: {e}")
                    self.absent.append(str(e))
                    continue
                methods = tuple(m for m in worker.methods)
                self.workers[Who(module, name, worker.label, methods)] = worker

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def imports(bench: Bench) -> str:
    found: list[startup.Startup] = []
    sizes: dict[str, startup.Installed | None] = {}
    for module in bench.modules:
        facts = source(module)
        label = "Adjourn" if module == OURS else str(facts["DISTRIBUTIONS"][0])
        python = bench.pythons[module]
        found.append(startup.Startup(label, python, str(facts["START"])))
        sizes[label] = startup.installed(python, tuple(facts["DISTRIBUTIONS"]))
        if module == OURS and sizes[label] is None:
            sizes[label] = startup.from_source(python, ROOT)
    startup.measure(found, max(5, bench.args.rounds // 2), bench.env)
    versions = ", ".join(f"{k} {v.versions[0]}" for k, v in sizes.items() if v)
    return "### Import\n\n" + report.startup(found, sizes) + f"\nVersions: {versions}.\n"


def slow_consumer(bench: Bench, chunks: int = 200, pace: float = 0.001) -> str:
    found: dict[Who, tuple[float, float, float]] = {}
    failed: dict[Who, str] = {}
    for who, worker in bench.workers.items():
        if "stream" not in who.methods:
            continue
        try:
            free = [worker.ask(measure="slow_consumer", chunks=chunks, pace=0.0) for _ in range(4)][1:]
            paced = [worker.ask(measure="slow_consumer", chunks=chunks, pace=pace) for _ in range(3)]
        except WorkerFailed as e:
            failed[who] = str(e)
            continue
        model, reader = (statistics.median([p[k] for p in paced]) for k in ("model", "reader"))
        found[who] = (statistics.median([f["model"] for f in free]), model, reader)
    head = f"### A slow reader: {chunks} chunks, {pace * 1e3:g} ms of sleep after each\n\n"
    return head + report.slow(found, failed)


def main() -> None:
    args = arguments()
    wanted = args.only.split(",") if args.only else list(SECTIONS)
    unknown = [s for s in wanted if s not in SECTIONS]
    if unknown:
        raise SystemExit(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    caches = Path(tempfile.mkdtemp(prefix="adjourn-bench-"))
    bench = Bench(args, caches)
    begun = time.monotonic()
    print(f"Measured on {startup.describe_machine()}.\n", flush=True)

    def section(name: str) -> bool:
        if name in wanted:
            say(f"[{time.monotonic() - begun:4.0f} s] {name}")
        return name in wanted

    try:
        if section("import"):
            print(imports(bench), flush=True)
        bench.open()
        rounds = args.rounds
        if section("tool"):
            table = compare(bench.workers, "tool_turn", rounds, measure="tool_turn", n=20)
            print("### One tool turn, in memory\n\n" + report.operations(table), flush=True)
        if section("pause"):
            table = compare(bench.workers, "pause", rounds, measure="pause", n=15)
            print("### Pause and restart, in memory\n\n" + report.operations(table), flush=True)
        if section("stream"):
            for yields, how in ((False, "a model that never waits"), (True, "a model that waits once a chunk")):
                order = {"measure": "stream", "n": 2, "chunks": 1000, "yields": yields}
                table = compare(bench.workers, "stream", rounds, **order)
                print(f"### 1,000 streamed chunks, {how}: time a chunk\n\n" + report.operations(table), flush=True)
        if section("slow"):
            print(slow_consumer(bench), flush=True)
        # Here: pause and restart on SQLite, and the turn of a long session, when the stores exist.
        everybody = list(bench.workers)
        bench.close()
        bench.workers.clear()
        if section("flight"):
            found, failed = fly(everybody, bench.start, SIZES, args.flights)
            print("### Sessions paused at once, in memory\n\n" + report.flights(found, failed, SIZES), flush=True)
        for why in bench.absent:
            print(f"Left out: {why}.\n")
    finally:
        bench.close()
        shutil.rmtree(caches, ignore_errors=True)
    say(f"[{time.monotonic() - begun:4.0f} s] done")


if __name__ == "__main__":
    importlib.invalidate_caches()
    main()
