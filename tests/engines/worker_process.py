"""A worker in a process of its own, for tests that kill it.

    python worker_process.py ADDRESS QUEUE STORE NAME FOLDER SCENARIO POINT

It serves the application of the crash runner. STORE is `sqlite`, or a PostgreSQL dsn. At the kill point POINT (before and
after each commit, before and after each effect of a tool) it kills itself; with -1 it never does, and with `body` right after the
first effect. With `slow` its bodies take their time. With SIGTERM it drains and ends.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from adjourn.engines.temporal import Temporal, Timing, WorkerOptions, run_worker
from durable.crash_app import build
from durable.killing import Death, KillingStore, open_store

TIMING = Timing(task=1.0, heartbeat=1.0, backoff=0.05)
LEASE = 1.0


def main() -> None:
    address, queue, where, name, folder, scenario, point = sys.argv[1:]
    death = Death(None if point in ("-1", "body", "slow") else int(point))
    in_body: Any = Death(1) if point == "body" else (lambda: time.sleep(0.7)) if point == "slow" else death
    store = KillingStore(open_store(where, Path(folder), name, LEASE), death)
    death.count = 0  # opening a new store commits, too
    agent = build(store, scenario, Path(folder) / f"{name}.effects", in_body)
    engine = Temporal(address, queue=queue, timing=TIMING)
    # What sweeps commits as well, and must not be what dies: one sweep at the start, as after a crash.
    options = WorkerOptions(grace=5.0, sweep=3600.0 if death.at is not None else 0.3)
    asyncio.run(run_worker(agent._host, engine, options=options))


if __name__ == "__main__":
    main()
