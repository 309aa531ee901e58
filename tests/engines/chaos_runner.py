"""Many sessions on several workers, while everything breaks now and then.

    python chaos_runner.py conduct FOLDER SESSIONS SECONDS SEED [cut]    (within scripts/with_postgres.py --private)
    python chaos_runner.py worker ADDRESS QUEUE FOLDER SKEW
    python chaos_runner.py api ADDRESS QUEUE FOLDER ME SESSIONS

Three workers with clocks of their own, two processes that begin sessions and both decide on whatever waits. Half of the
sessions pause twice, the others run a tool that may have an effect twice and one that must not. For SECONDS, workers are
killed or frozen, the Temporal server and PostgreSQL are stopped and started. However quick the machine is, some sessions wait
for a decision until each of these has happened. Prints one JSON object that says what came of it.

With `cut`, which wants a network namespace of its own (see chaos_network.py), one worker is on a machine whose link to all
others is taken down for longer than its lease, the first time in the middle of a tool's body.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import psycopg

from adjourn import Adjourn, Interrupt, ToolRunContext
from adjourn.clock import SystemClock
from adjourn.engines.temporal import Temporal, Timing, WorkerOptions, run_worker
from adjourn.errors import AdjournError
from adjourn.handle import AgentInit
from adjourn.model import FunctionModel, ModelReply, ModelRequest
from adjourn.parts import Message, Part, ToolRequest
from adjourn.stores.postgres import PostgresStore
from engines.chaos_network import FAR, NEAR, Island
from engines.temporal_server import Server

DSN = os.environ.get("ADJOURN_TEST_POSTGRES", "")
WITH_POSTGRES = Path(__file__).parents[2] / "scripts" / "with_postgres.py"
TIMING = Timing(task=2.0, heartbeat=2.0, backoff=0.1)
LEASE = 3.0
TROUBLED = "every-trouble-has-happened"
IN_BODY = "a-body-runs-on-the-island"
ON_ISLAND = "ADJOURN_CHAOS_ISLAND" in os.environ
BROKEN = (AdjournError, OSError, TimeoutError)


class SkewedClock(SystemClock):
    """A machine whose clock is wrong."""

    def __init__(self, skew: float) -> None:
        self._skew = skew

    def now(self) -> float:
        return super().now() + self._skew


def name_of(number: int) -> str:
    return f"chaos{number:04}"


def build(folder: Path, skew: float, engine: Temporal) -> Adjourn:
    effects = folder / "effects"

    def model(request: ModelRequest) -> ModelReply:
        number = int(request.messages[0].text)
        rounds = sum(m.role == "tool" for m in request.messages)
        names = [["gate"], ["gate"]] if number % 2 else [["work", "sure"]]
        if rounds == len(names):
            return ModelReply(Message("model", [Part(text="done")]))
        calls = [ToolRequest(n, f"r{i}", {"session": number, "n": rounds}) for i, n in enumerate(names[rounds])]
        return ModelReply(Message("model", [Part(tool_request=c) for c in calls]))

    ai = Adjourn(model=FunctionModel(model, "chaos"), clock=SkewedClock(skew), engine=engine)

    def effect(name: str, session: int, n: int) -> None:
        with effects.open("a") as file:
            file.write(f"{name_of(session)} {name} {n}\n")
            file.flush()
            os.fsync(file.fileno())

    async def take_time() -> None:
        if ON_ISLAND:  # the link goes down while this runs
            (folder / IN_BODY).touch()
        await asyncio.sleep(0.5 if ON_ISLAND else 0.05)

    @ai.tool()
    async def work(session: int, n: int) -> str:
        await take_time()
        effect("work", session, n)
        return "worked"

    @ai.tool(idempotent=True)
    async def sure(session: int, n: int) -> str:
        effect("sure", session, n)
        return "sure"

    @ai.tool()
    async def gate(session: int, n: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"n": n})
        await take_time()
        effect("gate", session, n)
        return "opened"

    ai.define_agent("chaos", store=PostgresStore(DSN, schema="chaos", lease_seconds=LEASE, connections=4))
    return ai


async def work(address: str, queue: str, folder: Path, skew: float) -> None:
    engine = Temporal(address, queue=queue, timing=TIMING)
    await run_worker(build(folder, skew, engine), engine, options=WorkerOptions(grace=2.0, sweep=1.0, activities=30))


async def api(address: str, queue: str, folder: Path, me: int, sessions: int) -> None:
    ai = build(folder, 0.0, Temporal(address, queue=queue, timing=TIMING))
    agent = ai.agents["chaos"]
    mine = [n for n in range(sessions) if n % 2 == me % 2]
    rest = set(mine)
    last = {name_of(n) for n in range(sessions * 3 // 4, sessions)}
    for number in mine:
        await patiently(lambda number=number: begin(agent, number))
    while rest:
        try:
            for item in (await ai.inbox.list(limit=200)).items:
                if item.session_id not in last or (folder / TROUBLED).exists():
                    await decide(ai, item, folder, me)
            for number in sorted(rest):
                view = await agent.get_snapshot(session_id=name_of(number))
                if view is None or view.status in ("pending", "expired"):
                    continue
                if view.messages and view.messages[-1].text == "done":
                    rest.discard(number)
                elif view.status == "failed":
                    session = await agent.connect(AgentInit(session_id=name_of(number))).load()
                    session.retry()
        except BROKEN:
            pass
        await asyncio.sleep(0.2)
    os._exit(0)  # turns that others run are of no more interest


async def begin(agent: Any, number: int) -> None:
    if await agent.get_snapshot(session_id=name_of(number)) is None:
        turn = agent.connect(AgentInit(session_id=name_of(number))).send(str(number), detach=True)
        await turn.stored()
        if await agent.get_snapshot(session_id=name_of(number)) is None:
            raise TimeoutError("not begun")


async def decide(ai: Adjourn, item: Any, folder: Path, me: int) -> None:
    line = f"{item.session_id} {item.tool} {item.input['n']}\n"
    try:
        if item.reason == "outcome_unknown" and line in read(folder):
            await ai.inbox.respond(item.id, "it was done", by=f"api{me}")
        else:
            await ai.inbox.restart(item.id, by=f"api{me}")
    except BROKEN:
        pass  # the other one was faster, or something is broken just now


def read(folder: Path) -> str:
    effects = folder / "effects"
    return effects.read_text() if effects.exists() else ""


async def patiently(attempt: Any) -> None:
    while True:
        try:
            await asyncio.wait_for(attempt(), 20)
            return
        except BROKEN:
            await asyncio.sleep(0.2)


# -- the conductor ---------------------------------------------------------------------------------------------------


class Conductor:
    def __init__(self, folder: Path, sessions: int, seed: int, island: Island | None) -> None:
        self._folder = folder
        self._sessions = sessions
        self._dice = random.Random(seed)
        self._island = island
        self._server = Server(folder, ip="127.0.0.1" if island is None else "0.0.0.0")
        self._workers: list[subprocess.Popen[bytes]] = []
        self.troubles: Counter[str] = Counter()

    def _process(self, *arguments: str, island: Island | None = None) -> subprocess.Popen[bytes]:
        address, env = self._server.address, dict(os.environ)
        if island is not None:
            address = address.replace("127.0.0.1", NEAR)
            env |= {"ADJOURN_CHAOS_ISLAND": "yes", "ADJOURN_TEST_POSTGRES": f"postgresql://adjourn@{NEAR}/postgres"}
        command = [sys.executable, __file__, arguments[0], address, "chaos", str(self._folder), *arguments[1:]]
        with (self._folder / f"{arguments[0]}.log").open("ab") as log:
            return subprocess.Popen(island.there(command) if island else command, env=env, stdout=log, stderr=log)

    def _worker(self, at: int) -> subprocess.Popen[bytes]:
        skew = str(self._dice.choice((-0.5, 0.0, 0.5)))
        return self._process("worker", skew, island=self._island if at == 0 else None)

    async def run(self, seconds: float) -> dict[str, Any]:
        await self._server.start()
        if self._island is not None:
            await self._open_postgres()
        self._workers = [self._worker(at) for at in range(3)]
        apis = [self._process("api", str(me), str(self._sessions)) for me in range(2)]
        begun = time.monotonic()
        try:
            first = [] if self._island is None else [self._cut_off]
            for trouble in first:
                await self._trouble(trouble)
            await asyncio.sleep(3)
            every = [self._kill, self._freeze, self._stop_temporal, self._stop_postgres]
            self._dice.shuffle(every)
            for trouble in every:
                await self._trouble(trouble)
            (self._folder / TROUBLED).touch()
            while time.monotonic() - begun < seconds and any(a.poll() is None for a in apis):
                await self._trouble(self._dice.choice((self._kill, self._freeze, *first)))
            patience = 300 + 4 * self._sessions
            codes = [await asyncio.wait_for(asyncio.to_thread(a.wait), patience) for a in apis]
            return {"codes": codes, "took": time.monotonic() - begun, **await self._report()}
        finally:
            for process in (*self._workers, *apis):
                if process.poll() is None:
                    process.kill()
                process.wait()
            self._server.stop()
            if self._island is not None:
                self._island.sink()

    async def _trouble(self, trouble: Callable[[], Awaitable[None]]) -> None:
        self.troubles[trouble.__name__.strip("_")] += 1
        await trouble()
        await asyncio.sleep(self._dice.uniform(0.5, 2.0))

    async def _kill(self) -> None:
        at = self._dice.randrange(3)
        self._workers[at].kill()
        await asyncio.to_thread(self._workers[at].wait)
        self._workers[at] = self._worker(at)

    async def _freeze(self) -> None:
        """It comes back, and does not know that it was gone."""
        at = self._dice.randrange(3)
        self._workers[at].send_signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE + 1)
        self._workers[at].send_signal(signal.SIGCONT)

    async def _cut_off(self) -> None:
        """It goes on, reaches nobody, and does not know that others take over."""
        assert self._island is not None
        if not (self._folder / TROUBLED).exists():
            await asyncio.wait_for(self._a_body_on_the_island(), 120)
        self._island.cut()
        await asyncio.sleep(2 * LEASE + 1)
        self._island.mend()

    async def _a_body_on_the_island(self) -> None:
        (self._folder / IN_BODY).unlink(missing_ok=True)
        while not (self._folder / IN_BODY).exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)

    async def _open_postgres(self) -> None:
        """Lets the island in. There is nobody else in this network."""
        with (Path(os.environ["ADJOURN_TEST_POSTGRES_DIR"]) / "data" / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {FAR}/32 trust\n")
        with psycopg.connect(DSN, autocommit=True) as connection:
            connection.execute("alter system set listen_addresses = '*'")
        await self._stop_postgres()

    async def _stop_temporal(self) -> None:
        self._server.stop(signal.SIGKILL)
        await asyncio.sleep(1)
        await self._server.start()

    async def _stop_postgres(self) -> None:
        for arguments in (["--ctl", "stop", "--mode", "immediate"], ["--ctl", "start"]):
            await asyncio.to_thread(subprocess.run, [sys.executable, str(WITH_POSTGRES), *arguments], check=True)

    async def _report(self) -> dict[str, Any]:
        ai = build(self._folder, 0.0, Temporal(self._server.address, queue="chaos", timing=TIMING))
        agent = ai.agents["chaos"]
        texts: Counter[str] = Counter()
        unknown: set[str] = set()
        winners: Counter[int] = Counter()
        late = 0
        for number in range(self._sessions):
            view = await agent.get_snapshot(session_id=name_of(number))
            assert view is not None
            texts[view.messages[-1].text] += 1
            page = await ai.inbox.list(session_id=name_of(number), status=None, limit=100)
            for item in page.items:
                if item.reason == "outcome_unknown":
                    unknown.add(f"{item.session_id} {item.tool} {item.input['n']}")
                verbs = Counter(d.verb for d in await ai.inbox.history(item.id))
                winners[verbs["respond"] + verbs["restart"] + verbs["decline"] - verbs["reopen"]] += 1
                late += verbs["late_result"]
        await ai.aclose()
        found = {"texts": texts, "unknown": sorted(unknown), "winners": winners, "troubles": self.troubles}
        return {**found, "late": late}


def main() -> None:
    role, *given = sys.argv[1:]
    if role == "worker":
        asyncio.run(work(given[0], given[1], Path(given[2]), float(given[3])))
    elif role == "api":
        asyncio.run(api(given[0], given[1], Path(given[2]), int(given[3]), int(given[4])))
    else:
        folder = Path(given[0])
        conductor = Conductor(folder, int(given[1]), int(given[3]), Island() if given[4:] == ["cut"] else None)
        report = asyncio.run(conductor.run(float(given[2])))
        print(json.dumps({**report, "effects": Counter(read(folder).splitlines())}))


if __name__ == "__main__":
    main()
