"""Several processes race for the same sessions.

    python -m durable.race_runner drive|decide STORE FOLDER PROCESSES SESSIONS

`drive`: sessions were decided on where nobody could run them; each process takes up whatever it finds until all are done.
`decide`: each process decides on the same interrupt at the same moment. Prints one JSON object.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from adjourn.app import Adjourn
from adjourn.errors import AdjournError, AlreadyResolved
from adjourn.handle import AgentInit
from durable.crash_app import build, read
from durable.killing import Death, forked, open_store

NAME = f"race_{os.getpid()}"
"""Of the store: two races on one server at once are none of each other's business."""


def app_of(agent: Any) -> Adjourn:
    return agent._host


async def prepare(agent: Any, sessions: int) -> list[str]:
    ids: list[str] = []
    for i in range(sessions):
        session = agent.connect(AgentInit(session_id=f"race{i:04}"))
        output = await session.send("go").output
        ids.append(output.interrupts[0].id)
    return ids


async def drive(agent: Any, sessions: int) -> None:
    ai = app_of(agent)
    while True:
        for turn in await ai.recover():
            try:
                await turn.output
            except AdjournError:
                pass  # somebody else was faster
        stored = await ai.sessions.list(limit=sessions)
        if all(not s.pending and not s.waiting for s in stored):
            return
        await asyncio.sleep(0.02)


async def decide_once(agent: Any, interrupt: str, start: float, me: int) -> str:
    ai = app_of(agent)
    await ai.inbox.get(interrupt)
    await asyncio.sleep(max(0.0, start - time.time()))
    try:
        accepted = await ai.inbox.respond(interrupt, {"by": me}, by=f"p{me}", run=False)
    except AlreadyResolved as e:
        return f"lost to {e.decision.by}"
    return f"won {accepted.by}"


def main() -> None:
    mode, where, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    processes, sessions = int(sys.argv[4]), int(sys.argv[5])
    effects = folder / "effects"

    def agent() -> Any:
        # Nobody dies here, so no lease may end while a driver waits for its turn on a busy machine.
        return build(open_store(where, folder, NAME, lease=30.0), "restart", effects, Death(None))

    def make() -> None:
        async def work() -> None:
            one = agent()
            ids = await prepare(one, sessions)
            (folder / "ids").write_text("\n".join(ids))
            if mode == "drive":
                for interrupt in ids:
                    await app_of(one).inbox.restart(interrupt, metadata={"ok": True}, by="maker", run=False)

        asyncio.run(work())

    assert forked(make) == 0
    start = time.time() + 1.0
    interrupt = (folder / "ids").read_text().splitlines()[0]
    pids: list[int] = []
    for me in range(processes):
        pid = os.fork()
        if pid == 0:
            try:
                if mode == "drive":
                    asyncio.run(drive(agent(), sessions))
                else:
                    said = asyncio.run(decide_once(agent(), interrupt, start, me))
                    (folder / f"said{me}").write_text(said)
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

    def look() -> None:
        async def work() -> dict[str, Any]:
            one = agent()
            texts = [one.connect(AgentInit(session_id=f"race{i:04}")).last_text for i in range(sessions)]
            history = await app_of(one).inbox.history(interrupt)
            return {"texts": Counter(texts), "decisions": [[d.verb, d.by] for d in history]}

        (folder / "report").write_text(json.dumps(asyncio.run(work())))

    assert forked(look) == 0
    said = [(folder / f"said{me}").read_text() for me in range(processes)] if mode == "decide" else []
    keys = Counter(line for line in read(effects).splitlines())
    report = json.loads((folder / "report").read_text())
    print(json.dumps({"codes": codes, "said": said, "effects": list(keys.values()), **report}))


if __name__ == "__main__":
    main()
