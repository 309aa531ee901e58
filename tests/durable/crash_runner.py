"""Runs one scenario again and again, each time killed at the next point, and lets a fresh process finish it.

    python crash_runner.py STORE SCENARIO FOLDER

STORE is `sqlite`, or a PostgreSQL dsn. For each kill point (before and after each commit, before and after each tool
body) a forked process runs the scenario until it kills itself with SIGKILL there; then another forked process opens the
store cold and finishes. One line of JSON a point says what came of it.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from adjourn import Adjourn, Interrupt, ToolRunContext
from adjourn.decisions import expire_due
from adjourn.errors import SessionBusy, SessionConflict, StaleInterrupt
from adjourn.handle import AgentInit
from adjourn.lease import transact
from adjourn.model import FunctionModel, ModelReply, ModelRequest
from adjourn.parts import Message, Part, ToolRequest
from adjourn.promise import Promise
from adjourn.session import AgentSession
from adjourn.store import Store

LEASE = 0.2
SESSION = "crashed"
CALLS = {
    "plain": ["work"],
    "parallel": ["work", "work", "sure"],
    "restart": ["gate"],
    "respond": ["gate", "work"],
    "fork": ["gate"],
    "expire": ["brief", "work"],
    "nested": ["buyer"],
    "nested_fork": ["buyer"],
    "waiting": ["sure"],
    "nested_waiting": ["buyer"],
}


class Death:
    """Counts the points of a run, and ends the process at one of them."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0

    def __call__(self) -> None:
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class KillingStore:
    """A store whose every commit has a kill point on each side."""

    def __init__(self, store: Any, death: Death) -> None:
        self.store = store
        self.death = death
        self.lease_seconds: float = store.lease_seconds

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Promise[Any]:
        if read:
            return self.store.submit(work, read=True)
        self.death()
        future = self.store.submit(work)
        future.exception()  # waits for the commit
        self.death()
        return future

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self.store.subscribe(callback)

    def close(self) -> None:
        self.store.close()


def open_store(where: str, folder: Path, name: str, lease: float = LEASE) -> Any:
    if where == "sqlite":
        from adjourn.stores.sqlite import SQLiteStore

        return SQLiteStore(folder / f"{name}.db", lease_seconds=lease)
    from adjourn.stores.postgres import PostgresStore

    return PostgresStore(where, schema=name, lease_seconds=lease)


def build(store: Store, scenario: str, effects: Path, death: Death) -> Any:
    """The application: its tools write what they do into a file, which a kill cannot undo."""

    def calls(names: list[str], task: bool) -> Callable[[ModelRequest], Awaitable[ModelReply]]:
        async def model(request: ModelRequest) -> ModelReply:
            if scenario.endswith("waiting"):  # as a real one does: meanwhile what was said is committed
                await asyncio.sleep(0.01)
            if request.messages[-1].role == "tool":
                return ModelReply(Message("model", [Part(text="done")]))
            given = [{"task": "buy"} if task else {"n": i} for i in range(len(names))]
            made = [
                Part(tool_request=ToolRequest(n, f"r{i}", g)) for i, (n, g) in enumerate(zip(names, given, strict=True))
            ]
            return ModelReply(Message("model", made))

        return model

    nested = scenario.startswith("nested")
    model = calls(CALLS[scenario], nested)
    ai = Adjourn(model=FunctionModel(model, "crash"))

    def effect(name: str, key: str) -> None:
        death()
        with effects.open("a") as file:
            file.write(f"{name} {key}\n")
            file.flush()
            os.fsync(file.fileno())
        death()

    @ai.tool()
    async def work(n: int, ctx: ToolRunContext) -> str:
        effect(f"work{n}", ctx.idempotency_key)
        return "worked"

    @ai.tool(idempotent=True)
    async def sure(n: int, ctx: ToolRunContext) -> str:
        effect(f"sure{n}", ctx.idempotency_key)
        return "sure"

    @ai.tool()
    async def gate(n: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"why": "approve"})
        effect(f"gate{n}", ctx.idempotency_key)
        return "opened"

    @ai.tool()
    async def brief(n: int, ctx: ToolRunContext) -> str:
        if not ctx.is_resumed():
            raise Interrupt({"why": "quick"}, expires_in=0.0, on_expiry={"respond": "nobody came"})
        effect(f"brief{n}", ctx.idempotency_key)
        return "somebody came"

    if nested:
        inner = "work" if scenario == "nested_waiting" else "gate"
        buyer = ai.define_agent("buyer", model=FunctionModel(calls([inner], False), "inner"), tools=[gate, work])
        return ai.define_agent("crash", store=store, tools=[buyer.as_tool()])
    return ai.define_agent("crash", store=store)


async def decide(session: AgentSession, scenario: str, effects: Path) -> None:
    """One decision, as a person would make it who can look at the effects."""
    interrupt = session.interrupts[0]
    if interrupt.reason == "outcome_unknown":
        name, given = interrupt.name, interrupt.input
        if interrupt.path:
            name, given = interrupt.payload["tool"], interrupt.payload["input"]
        done = f"{name}{given['n']} " in read(effects)
        if name == "brief":  # it only ever asks, unless somebody lets it do more
            turn = interrupt.respond("nobody came")
        else:
            turn = interrupt.respond("it was done") if done else interrupt.restart()
    elif scenario == "respond":
        turn = interrupt.respond("no need")
    else:
        turn = interrupt.restart({"ok": True})
    try:
        await turn.output
    except StaleInterrupt:
        assert scenario == "expire"  # it was too late, and has gone its own way


def read(effects: Path) -> str:
    return effects.read_text() if effects.exists() else ""


async def finish(agent: Any, scenario: str, effects: Path, session: AgentSession) -> tuple[str, int]:
    """Goes on until the session has said its last word; also says how many runs of unknown outcome there were."""
    unknown = 0
    if not session.messages:
        await session.send("go").output
    while session.interrupts:
        unknown += session.interrupts[0].reason == "outcome_unknown"
        await decide(session, scenario, effects)
    if session.turn_failed:
        await session.retry().output
    return session.last_text, unknown


async def run(agent: Any, scenario: str, effects: Path) -> tuple[str, int]:
    """The scenario from its beginning; the last word, and how many runs of unknown outcome there were."""
    session = agent.connect(AgentInit(session_id=SESSION))
    await session.send("go").output
    unknown = 0
    if scenario.endswith("fork"):
        branch = await session.fork()
        _, unknown = await finish(agent, scenario, effects, branch)
    if scenario == "expire":
        # The sweep of a process that runs no turns; whoever opens the session goes on with what it settled.
        await transact(agent.store, partial(expire_due, now=time.time()))
        session = await patiently(lambda: at_rest(agent))
    text, more = await finish(agent, scenario, effects, session)
    return text, unknown + more


async def at_rest(agent: Any) -> AgentSession:
    """The session, opened. Raises where somebody else was quicker to go on with it and still does."""
    session: AgentSession = await agent.connect(AgentInit(session_id=SESSION)).load()
    assert session.messages
    return session


async def recover(agent: Any, scenario: str, effects: Path) -> dict[str, Any]:
    session = await patiently(lambda: agent.connect(AgentInit(session_id=SESSION)).load())
    return await report_on(agent, effects, await finish(agent, scenario, effects, session))


async def report_on(agent: Any, effects: Path, came: tuple[str, int]) -> dict[str, Any]:
    """What there is to see afterwards, in the file of effects and for one who opens the session anew."""
    text, unknown = came
    counts = Counter(line.split()[0] for line in read(effects).splitlines())
    keys = {line.split()[0]: set[str]() for line in read(effects).splitlines()}
    for line in read(effects).splitlines():
        keys[line.split()[0]].add(line.split()[1])
    again = await agent.connect(AgentInit(session_id=SESSION)).load()
    return {
        "text": text,
        "unknown": unknown,
        "effects": counts,
        "keys": {name: len(of) for name, of in keys.items()},
        "reloaded": again.last_text,
        "outputs": [p.tool_response.output for m in again.messages for p in m.content if p.tool_response],
        "open": len(again.interrupts),
    }


async def patiently(work: Callable[[], Any]) -> Any:
    """The dead process holds its lease for a little while."""
    for _ in range(400):
        try:
            return await work()
        except (SessionConflict, SessionBusy):
            await asyncio.sleep(0.02)
    raise TimeoutError("the lease of the dead process never ended")


def begun(work: Callable[[], None]) -> int:
    """Begins `work` in a process of its own; gives its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return pid


def forked(work: Callable[[], None]) -> int:
    """Runs `work` in a process of its own; says how that ended (negative: the signal)."""
    return os.waitstatus_to_exitcode(os.waitpid(begun(work), 0)[1])


def main() -> None:
    where, scenario, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    point, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        name = f"{scenario}_{point}"
        effects, report = folder / f"{name}.effects", folder / f"{name}.json"

        def killed(name: str = name, effects: Path = effects, point: int = point) -> None:
            death = Death(point)
            store = KillingStore(open_store(where, folder, name), death)
            death.count = 0  # opening a new store commits, too; what is in it then is nobody's turn
            asyncio.run(run(build(store, scenario, effects, death), scenario, effects))

        def fresh(name: str = name, effects: Path = effects, report: Path = report) -> None:
            store = open_store(where, folder, name)
            agent = build(store, scenario, effects, Death(None))
            report.write_text(json.dumps(asyncio.run(recover(agent, scenario, effects))))
            store.close()

        code = forked(killed)
        again = forked(fresh)
        result = json.loads(report.read_text()) if again == 0 else {"failed": again}
        print(json.dumps({"point": point, "killed": code == -signal.SIGKILL, "code": code, **result}), flush=True)
        point += 1


if __name__ == "__main__":
    main()
