"""`python -m benchmarks.temporal`: turns on Temporal, Adjourn beside its peers on one server, as markdown on stdout.

`--install` makes the environment that the peers are measured in (benchmarks/.venv-temporal). Rounds alternate between the
candidates, so that a noisy moment does not hit one of them alone; the best median of the rounds is shown.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
VENV = Path(__file__).parent / ".venv-temporal"
sys.path.insert(0, str(ROOT / "tests"))

from engines.temporal_server import Server  # noqa: E402 - the tests' server, so that there is one way to start it


def install() -> None:
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(Path(__file__).parent / "temporal_peers.txt")], check=True)


def one(who: str, address: str, count: int, at_once: int) -> dict[str, Any]:
    python = sys.executable if who == "adjourn" else str(VENV / "bin" / "python")
    command = [python, "-m", "benchmarks.temporal_turns", who, address, str(count), str(at_once)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.temporal", description=__doc__)
    parser.add_argument("--install", action="store_true", help="make the peers' environment, and end")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=20, help="turns of a round, one after the other")
    parser.add_argument("--at-once", type=int, default=100, help="turns of a round that run at once")
    options = parser.parse_args()
    if options.install:
        install()
        return
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        asyncio.run(server.start())
        try:
            for _ in range(options.rounds):
                for who in ("adjourn", "pydantic-ai", "openai-agents"):
                    found.setdefault(who, []).append(one(who, server.address, options.turns, options.at_once))
                    print(who, found[who][-1], file=sys.stderr, flush=True)
        finally:
            server.stop()
    print(
        "| | history events | history bytes | until it pauses | decision to end | whole turns a second | CPU a turn |"
    )
    print("|---|---|---|---|---|---|---|")
    for who, rounds in found.items():
        best = {k: min(r[k] for r in rounds) for k in rounds[0]}
        rate = max(r["rate"] for r in rounds)
        print(
            f"| {who} | {best['events']} | {best['bytes']:,} | {best['pause'] * 1000:.0f} ms | "
            f"{best['decision'] * 1000:.0f} ms | {rate:.0f} | {best['cpu'] * 1000:.1f} ms |"
        )


if __name__ == "__main__":
    main()
