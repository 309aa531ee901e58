"""What a process of the crash matrix does, step by step, and what there is to see when all is over."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from adjourn.decisions import expire_due
from adjourn.errors import ModelError, SessionBusy, SessionConflict, StaleInterrupt, ToolFailed
from adjourn.handle import AgentInit, AgentTurn
from adjourn.lease import transact
from adjourn.session import AgentSession
from adjourn.store import Decision, Tx
from durable.crash_app import notes, put_down, read
from durable.crash_scenarios import SCENARIOS, Verb

SESSION = "crashed"


class Actor:
    """One process: its handle on the session, and what it saw.

    `unknown`: how many runs of unknown outcome it was asked about. `again`: messages that it had to say a second time.
    """

    def __init__(self, agent: Any, scenario: str, effects: Path) -> None:
        self.agent = agent
        self.scenario = SCENARIOS[scenario]
        self.effects = effects
        self.unknown = 0
        self.again: list[str] = []
        self.waiting: list[AgentTurn] = []
        self.session: AgentSession = agent.connect(AgentInit(session_id=SESSION))

    @property
    def inbox(self) -> Any:
        return self.agent._host.inbox

    async def open(self) -> None:
        """Opens the session, as whoever comes later. The dead process holds its lease for a little while."""
        self.session = await patiently(lambda: self.agent.connect(AgentInit(session_id=SESSION)).load())

    async def play(self, steps: Sequence[str]) -> None:
        for step in steps:
            await STEPS[step](self)

    def acknowledged(self, message: str) -> None:
        put_down(notes(self.effects), f"sent {message}")


async def patiently(work: Callable[[], Any]) -> Any:
    for _ in range(400):
        try:
            return await work()
        except (SessionConflict, SessionBusy):
            await asyncio.sleep(0.02)
    raise TimeoutError("the lease of the dead process never ended")


# -- steps -----------------------------------------------------------------------------------------------------------


async def ask(actor: Actor) -> None:
    message = actor.scenario.messages[0]
    await _rested(actor, actor.session.send(message))
    actor.acknowledged(message)


async def queue(actor: Actor) -> None:
    """Says the rest while the session is paused."""
    if not actor.session.messages:
        await actor.open()
    for message in actor.scenario.messages[1:]:
        actor.waiting.append(actor.session.send(message))
        actor.acknowledged(message)


async def follow(actor: Actor) -> None:
    """Waits for the turns of the messages that it queued: in this process, nothing else goes on with the session.

    Once the other process is gone, somebody at the inbox decides what waits.
    """
    actor.effects.with_suffix(".ready").touch()
    gone = actor.effects.with_suffix(".gone")
    while not all(turn.done for turn in actor.waiting):
        await asyncio.sleep(0.02)
        for row in (await actor.inbox.list(session_id=SESSION)).items if gone.exists() else ():
            actor.unknown += row.reason == "outcome_unknown"
            verb, given = _answer(actor, row.tool, row.input, row.reason)
            await getattr(actor.inbox, verb)(row.id, **given, run=False)
    for turn in actor.waiting:
        await turn.output
    await _until(gone.exists)
    await actor.open()


async def fork(actor: Actor) -> None:
    """A branch, which is finished first."""
    main = actor.session
    actor.session = await main.fork()
    await finish(actor)
    actor.session = main


async def sweep(actor: Actor) -> None:
    """What a process that runs no turns does; whoever opens the session goes on with what it settled."""
    await transact(actor.agent.store, partial(expire_due, now=time.time()))
    await actor.open()


async def sweep_and_drive(actor: Actor) -> None:
    await actor.inbox.expire_due()
    await finish(actor)


async def decide_first(actor: Actor) -> None:
    """By the inbox, which goes on with it here; the other one waits for somebody else."""
    accepted = await actor.inbox.restart((await actor.inbox.list()).items[0].id, metadata={"ok": True})
    await accepted.turn.output


async def decide_last(actor: Actor) -> None:
    """By the inbox, where nothing goes on with it."""
    await actor.inbox.restart((await actor.inbox.list()).items[-1].id, metadata={"ok": True}, run=False)


async def finish(actor: Actor) -> None:
    """Goes on until the session has said its last word."""
    if not actor.session.messages:
        await actor.open()
    while True:
        await _until(lambda: not actor.session.busy)
        if actor.session.turn_failed and (actor.scenario.retries or not actor.session.interrupts):
            put_down(notes(actor.effects), "retry")
            await _rested(actor, actor.session.retry())
        elif actor.session.interrupts:
            await _decide(actor)
        else:
            said = _said(actor.session)
            unsaid = [m for m in actor.scenario.messages if m not in said]
            if not unsaid:
                return
            actor.again.append(unsaid[0])
            await _rested(actor, actor.session.send(unsaid[0]))


STEPS: Mapping[str, Callable[[Actor], Awaitable[None]]] = {
    step.__name__: step
    for step in (ask, queue, follow, fork, sweep, sweep_and_drive, decide_first, decide_last, finish)
}


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.002)
    raise TimeoutError("what is waited for does not come")


async def _rested(actor: Actor, turn: AgentTurn) -> None:
    try:
        await turn.output
    except (ToolFailed, ModelError):
        pass  # only what is meant to fail raises OSError, and the next decision or a retry is the scenario's
    except StaleInterrupt:
        assert actor.scenario.on_expiry is not None  # it was too late, and has gone its own way


async def _decide(actor: Actor) -> None:
    """One decision, as a person would make it who can look at the effects."""
    interrupt = actor.session.interrupts[0]
    actor.unknown += interrupt.reason == "outcome_unknown"
    name, given, payload = interrupt.name, interrupt.input, interrupt.payload
    for _ in interrupt.path:
        name, given, payload = payload["tool"], payload["input"], payload["payload"]
    verb, how = _answer(actor, name, given, interrupt.reason)
    await _rested(actor, getattr(interrupt, verb)(**how))


def _answer(actor: Actor, name: str, given: Any, reason: str) -> tuple[str, dict[str, Any]]:
    """The method of an interrupt, or of the inbox, and what it is called with."""
    ran = read(actor.effects).count(f"{name}{given['n']} ")
    if reason == "outcome_unknown":
        return ("respond", {"output": "it was done"}) if ran else ("restart", {})
    verb: Verb = actor.scenario.answers[min(ran, len(actor.scenario.answers) - 1)]
    if verb == "respond":
        return "respond", {"output": "no need"}
    if verb == "decline":
        return "decline", {"reason": "no"}
    replaced = {"replace_input": {"n": 1}} if verb == "replace" else {}
    return "restart", {"metadata": {"ok": True}, **replaced}


# -- what came of it -------------------------------------------------------------------------------------------------


async def run(agent: Any, scenario: str, effects: Path) -> Actor:
    """The scenario from its beginning, by one process."""
    actor = Actor(agent, scenario, effects)
    await actor.play(actor.scenario.steps)
    return actor


async def recover(agent: Any, scenario: str, effects: Path) -> Actor:
    """The end of the scenario, by a process that comes after another one."""
    actor = Actor(agent, scenario, effects)
    await actor.open()
    await finish(actor)
    return actor


def _left(tx: Tx) -> list[Decision]:
    return tx.decisions(session_id=SESSION, unapplied=True)


async def report_on(actor: Actor) -> dict[str, Any]:
    """What there is to see afterwards, in the file of effects and for one who opens the session anew."""
    counts = Counter(line.split()[0] for line in read(actor.effects).splitlines())
    keys: dict[str, set[str]] = {name: set() for name in counts}
    for line in read(actor.effects).splitlines():
        keys[line.split()[0]].add(line.split()[1])
    noted = read(notes(actor.effects)).splitlines()
    again = await actor.agent.connect(AgentInit(session_id=SESSION)).load()
    left = await transact(actor.agent.store, _left, read=True)
    return {
        "text": actor.session.last_text,
        "unknown": actor.unknown,
        "effects": counts,
        "keys": {name: len(of) for name, of in keys.items()},
        "reloaded": again.last_text,
        "outputs": [p.tool_response.output for m in again.messages for p in m.content if p.tool_response],
        "open": len(again.interrupts),
        "unapplied": len(left),
        "said": _said(again),
        "lost": [m for m in actor.again if f"sent {m}" in noted],
        "go_aheads": await _restarts(actor) + noted.count("retry"),
    }


def _said(session: AgentSession) -> list[str]:
    return [m.text for m in session.messages if m.role == "user"]


async def _restarts(actor: Actor) -> int:
    rows = (await actor.inbox.list(status=None, session_id=SESSION)).items
    return sum([d.verb == "restart" for row in rows for d in await actor.inbox.history(row.id)])
