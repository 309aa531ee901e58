"""Several processes race for the same sessions, whose turns run on Temporal.

    python engine_race_runner.py drive|decide ADDRESS STORE FOLDER PROCESSES SESSIONS

`drive`: sessions were decided on where no worker ran; each process is a worker, until all are done. `decide`: each process
decides on the first interrupt in four threads, all at the same moment, while a worker waits for what comes of it. Prints one
JSON object.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from adjourn.engines.temporal import Temporal, Timing, WorkerOptions, run_worker
from adjourn.errors import AlreadyResolved
from adjourn.handle import AgentInit
from durable.crash_app import build, read
from durable.killing import Death, begun, forked, open_store

THREADS = 4
AT_ONCE = 20
TIMING = Timing(backoff=0.05)


class Race:
    def __init__(self, address: str, where: str, folder: Path, sessions: int) -> None:
        self.folder = folder
        self.name = f"race{uuid.uuid4().hex[:12]}"
        self.ids = [f"race{i:04}" for i in range(sessions)]
        self._address = address
        self._where = where

    def agent(self) -> Any:
        # Nobody dies here, so no lease may end while a worker waits for its turn on a busy machine.
        store = open_store(self._where, self.folder, self.name, lease=60.0)
        agent = build(store, "restart", self.folder / "effects", Death(None))
        agent._host.engine = Temporal(self._address, queue=self.name, timing=TIMING)
        return agent

    async def pause_all(self) -> None:
        """Every session pauses; the ids of the interrupts go into a file."""
        agent, free = self.agent(), asyncio.Semaphore(AT_ONCE)

        async def one(session_id: str) -> str:
            async with free:
                output = await agent.connect(AgentInit(session_id=session_id)).send("go").output
                return output.interrupts[0].id

        worker = asyncio.create_task(run_worker(agent._host, options=WorkerOptions(grace=5.0)))
        found = await asyncio.gather(*[one(i) for i in self.ids])
        (self.folder / "ids").write_text("\n".join(found))
        await ended(worker)

    async def decide_all(self) -> None:
        """Accepted, and told to nobody."""
        agent = self.agent()
        for interrupt in self.interrupts():
            await agent._host.inbox.restart(interrupt, metadata={"ok": True}, by="maker", run=False)
        await agent._host.aclose()

    async def work(self) -> None:
        """A worker, until it is told to stop."""
        await run_worker(self.agent()._host, options=WorkerOptions(grace=5.0))

    async def drive(self) -> None:
        """A worker, until no session has anything to do. Sweeps are how it learns of it."""
        agent = self.agent()
        worker = asyncio.create_task(run_worker(agent._host, options=WorkerOptions(grace=5.0, sweep=0.2)))
        while True:
            stored = await agent._host.sessions.list(limit=len(self.ids))
            if all(not s.pending and not s.waiting for s in stored):
                break
            await asyncio.sleep(0.05)
        await ended(worker)

    def decide(self, start: float, me: int) -> None:
        """Of this process, in all of its threads."""
        said: list[str] = []
        interrupt = self.interrupts()[0]

        async def once(who: str) -> str:
            agent = self.agent()
            await agent._host.inbox.get(interrupt)
            await asyncio.sleep(max(0.0, start - time.time()))
            try:
                accepted = await agent._host.inbox.restart(interrupt, metadata={"ok": True}, by=who)
            except AlreadyResolved as e:
                return f"lost to {e.decision.by}"
            output = await accepted.turn.wait()
            return f"won {accepted.by} {output.text}"

        def work(who: str) -> None:
            said.append(asyncio.run(once(who)))

        threads = [threading.Thread(target=work, args=(f"p{me}t{n}",)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(said) == THREADS
        (self.folder / f"said{me}").write_text("\n".join(said))

    def interrupts(self) -> list[str]:
        return (self.folder / "ids").read_text().splitlines()

    async def look(self) -> None:
        agent = self.agent()
        texts: Counter[str] = Counter()
        verbs: Counter[str] = Counter()
        for session_id, interrupt in zip(self.ids, self.interrupts(), strict=True):
            texts[(await agent.get_snapshot(session_id=session_id)).messages[-1].text] += 1
            verbs[" ".join(d.verb for d in await agent._host.inbox.history(interrupt))] += 1
        (self.folder / "report").write_text(json.dumps({"texts": texts, "verbs": verbs}))


async def ended(worker: "asyncio.Task[None]") -> None:
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(work())


def main() -> None:
    # All of it in processes of their own: a fork would leave in pieces what of Temporal runs in this one.
    mode, address, where, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    processes, sessions = int(sys.argv[5]), int(sys.argv[6])
    race = Race(address, where, folder, sessions)
    assert forked(run(race.pause_all)) == 0
    workers: list[int] = []
    if mode == "drive":
        assert forked(run(race.decide_all)) == 0
        pids = [begun(run(race.drive)) for _ in range(processes)]
    else:
        when = time.time() + 3.0
        pids = [begun(partial(race.decide, when, me)) for me in range(processes)]
        workers = [begun(run(race.work))]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
    assert forked(run(race.look)) == 0
    said = [line for f in sorted(folder.glob("said*")) for line in f.read_text().splitlines()]
    effects = list(Counter(read(folder / "effects").splitlines()).values())
    print(json.dumps({"codes": codes, "said": said, "effects": effects, **json.loads((folder / "report").read_text())}))


if __name__ == "__main__":
    main()
