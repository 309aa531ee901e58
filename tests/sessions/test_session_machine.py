"""Random lives of sessions, with a model in plain Python beside them.

Each branch of a session is compared, after every step, with what the model says: which calls wait, which outputs the
transcript has, which side effects happened. A crash may leave a step done or undone, and nothing in between.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adjourn import (
    Adjourn,
    AdjournError,
    AgentInit,
    AgentSession,
    Interrupt,
    Limits,
    MemoryStore,
    SessionPaused,
    Store,
    ToolRunContext,
    tool,
)
from adjourn.testing import FakeClock, ScriptedModel, call
from sessions.session_kit import Mortal, assert_sendable, outputs_of

T = TypeVar("T")

UNBOUND = Limits(model_calls=None, cycles=None, restarts=None, repeats=None, identical_calls=None)


@dataclass
class Waiting:
    """One call of the open round: it is paused while `output` is None."""

    tool: str
    number: int
    stages: int = 1
    restarts: int = 0
    output: Any = None


@dataclass
class Branch:
    """The model of one branch: what is closed, and the round that is open."""

    session: Any
    users: int = 0
    outputs: list[Any] = field(default_factory=list[Any])
    round: list[Waiting] = field(default_factory=list[Waiting])

    @property
    def open(self) -> list[int]:
        return [w.number for w in self.round if w.output is None]

    def close_if_settled(self) -> None:
        if self.round and not self.open:
            self.outputs += [w.output for w in self.round]
            self.round = []

    def copy(self, session: Any) -> "Branch":
        return Branch(session, self.users, list(self.outputs), [Waiting(**vars(w)) for w in self.round])


def reply(request: Any) -> Any:
    """The model: a user message "pay 1 1, look 2" asks for these calls; anything else gets a text."""
    last = request.messages[-1]
    if last.role != "user" or not last.text.strip():
        return "done"
    calls: list[Any] = []
    for words in last.text.split(", "):
        tool, number, stages = words.split()
        given = {"n": int(number)} | ({"stages": int(stages)} if tool == "pay" else {})
        calls.append(call(tool, given))
    return calls


LOG: list[int] = []
"""The side effects of the machine that runs; the tools are made once, since a schema costs more than a step."""


@tool
async def pay(n: int, stages: int, ctx: ToolRunContext) -> Any:
    if len(ctx.restarts) < stages:
        raise Interrupt({"n": n, "stage": len(ctx.restarts)})
    LOG.append(n)
    return {"paid": n}


@tool
async def look(n: int) -> Any:
    LOG.append(n)
    return {"found": n}


@tool
async def sign(n: int) -> Any:
    raise Interrupt({"n": n}, expires_in=10_000, allow=("respond",), on_expiry={"respond": {"default": n}})


class App:
    """An application as one process has it."""

    def __init__(self, store: Any, clock: FakeClock) -> None:
        self.ai = Adjourn(model=ScriptedModel([reply], repeat_last=True), clock=clock, limits=UNBOUND)
        self.agent = self.ai.define_agent("clerk", store=store, tools=[pay, look, sign])

    def connect(self, session_id: str | None = None, snapshot_id: str | None = None) -> AgentSession:
        return self.agent.connect(AgentInit(session_id=session_id, snapshot_id=snapshot_id))


CALLS = st.lists(st.tuples(st.sampled_from(["pay", "pay", "look", "sign"]), st.integers(1, 2)), max_size=3)
PICK = st.integers(0, 10)
DEATH = st.tuples(st.integers(0, 4), st.booleans())


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.log = LOG
        LOG.clear()
        self.clock = FakeClock()
        self.folder = Path(tempfile.mkdtemp())
        self.numbers = 0
        self.effects: Counter[int] = Counter()
        self.stores: list[Store] = []
        self.desk = self.process()
        self.branches = [Branch(self.process().connect("s1"))]

    def open_store(self) -> Store:
        if not self.stores:
            self.stores.append(MemoryStore())
        return self.stores[0]

    def process(self, store: Any = None) -> App:
        return App(store or self.open_store(), self.clock)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def output(self, turn: Any) -> Any:
        async def wait() -> Any:
            return await turn

        return self.run(wait())

    def teardown(self) -> None:
        try:
            pending = asyncio.all_tasks(self.loop)
            for task in pending:
                task.cancel()
            self.run(asyncio.sleep(0))
        finally:
            self.loop.close()
            for store in self.stores:
                store.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- the model's moves

    def said(self, branch: Branch, wishes: list[tuple[str, int]]) -> str:
        branch.users += 1
        words: list[str] = []
        for name, stages in wishes:
            self.numbers += 1
            words.append(f"{name} {self.numbers} {stages}")
            output = {"found": self.numbers} if name == "look" else None
            branch.round.append(Waiting(name, self.numbers, stages, output=output))
            if name == "look":
                self.effects[self.numbers] += 1
        branch.close_if_settled()
        return ", ".join(words) or " "

    def decided(self, branch: Branch, number: int, verb: str) -> None:
        (waiting,) = [w for w in branch.round if w.number == number]
        if verb == "restart":
            waiting.restarts += 1
            if waiting.restarts >= waiting.stages:
                waiting.output = {"paid": number}
                self.effects[number] += 1
        elif verb == "respond":
            waiting.output = {"told": number}
        else:
            waiting.output = {"declined": True, "reason": "no"}
        branch.close_if_settled()

    def branch_at(self, pick: int) -> Branch:
        return self.branches[pick % len(self.branches)]

    def target(self, pick: int, which: int, verb: str) -> tuple[Branch, Any, str] | None:
        branch = self.branch_at(pick)
        if not branch.open:
            return None
        interrupt = branch.session.interrupts[which % len(branch.open)]
        return branch, interrupt, "respond" if verb == "restart" and interrupt.name == "sign" else verb

    def begin(self, interrupt: Any, verb: str) -> Any:
        async def begin() -> Any:
            if verb == "restart":
                return interrupt.restart({"ok": 1})
            if verb == "respond":
                return interrupt.respond({"told": interrupt.input["n"]})
            if verb == "known":
                return interrupt.respond({"known": interrupt.input["n"]})
            return interrupt.decline("no")

        return self.run(begin())

    # -- rules

    @rule(pick=PICK, wishes=CALLS)
    def send(self, pick: int, wishes: list[tuple[str, int]]) -> None:
        branch = self.branch_at(pick)
        if branch.open:
            with pytest.raises(SessionPaused):
                branch.session.send("hello")
            return
        text = self.said(branch, wishes)
        self.output(self.start(branch.session, text))

    def start(self, session: Any, text: str) -> Any:
        async def send() -> Any:
            return session.send(text)

        return self.run(send())

    @rule(pick=PICK, which=PICK, verb=st.sampled_from(["restart", "restart", "respond", "decline"]))
    def decide(self, pick: int, which: int, verb: str) -> None:
        found = self.target(pick, which, verb)
        if found is not None:
            branch, interrupt, verb = found
            self.decided(branch, interrupt.input["n"], verb)
            self.output(self.begin(interrupt, verb))

    @precondition(lambda self: len(self.branches) == 1)
    @rule(which=PICK, verb=st.sampled_from(["restart", "respond", "decline"]), runs=st.booleans())
    def decide_in_the_inbox(self, which: int, verb: str, runs: bool) -> None:
        found = self.target(0, which, verb)
        if found is None:
            return
        branch, interrupt, verb = found
        self.decided(branch, interrupt.input["n"], verb)
        inbox = self.process().ai.inbox
        given: dict[str, Any] = {"run": runs, "by": "desk"}

        async def work() -> None:
            if verb == "restart":
                accepted = await inbox.restart(interrupt.id, metadata={"ok": 1}, **given)
            elif verb == "respond":
                accepted = await inbox.respond(interrupt.id, {"told": interrupt.input["n"]}, **given)
            else:
                accepted = await inbox.decline(interrupt.id, "no", **given)
            if accepted.turn is not None:
                await accepted.turn.settled()
            else:
                for turn in await self.process().ai.recover():
                    await turn.settled()

        self.run(work())
        branch.session = self.run(self.process().connect("s1").load())

    @rule(pick=PICK)
    def reload(self, pick: int) -> None:
        branch = self.branch_at(pick)
        at = branch.session.snapshot_id
        # A branch that has said nothing yet is only a handle: there is nothing of its own to read again.
        if at is not None and [b.session.snapshot_id for b in self.branches].count(at) == 1:
            branch.session = self.run(self.process().connect(snapshot_id=at).load())

    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        branch = self.branch_at(pick)
        self.run(branch.session.abort("enough"))
        for waiting in branch.round:
            if waiting.output is None:
                waiting.output = "cancelled"
        branch.close_if_settled()

    @precondition(lambda self: len(self.branches) < 3)
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        branch = self.branch_at(pick)
        if branch.session.snapshot_id is not None:
            before = {i.id for i in branch.session.interrupts}
            made = self.run(branch.session.fork())
            assert not before & {i.id for i in made.interrupts}
            self.branches.append(branch.copy(made))

    @precondition(lambda self: len(self.branches) == 1)
    @rule()
    def let_the_deadline_pass(self) -> None:
        branch = self.branches[0]
        self.clock.time += 10_001

        async def work() -> Any:
            await self.process().ai.inbox.expire_due(run=False)
            return await self.process().connect("s1").load()

        branch.session = self.run(work())
        for waiting in branch.round:
            if waiting.tool == "sign" and waiting.output is None:
                waiting.output = {"default": waiting.number}
        branch.close_if_settled()

    # -- crashes: the step is done or undone

    @precondition(lambda self: len(self.branches) == 1)
    @rule(death=DEATH, wishes=CALLS)
    def crash_while_sending(self, death: tuple[int, bool], wishes: list[tuple[str, int]]) -> None:
        branch = self.branches[0]
        if branch.open:
            return
        undone = branch.copy(None)
        text = self.said(branch, wishes)
        store = Mortal(self.open_store(), *death)
        session = self.run(self.process(store).connect("s1").load())
        self.crashed(lambda: self.start(session, text), branch, undone)

    @precondition(lambda self: len(self.branches) == 1)
    @rule(death=DEATH, which=PICK, verb=st.sampled_from(["restart", "restart", "respond", "decline"]))
    def crash_while_deciding(self, death: tuple[int, bool], which: int, verb: str) -> None:
        branch = self.branches[0]
        if not branch.open:
            return
        undone = branch.copy(None)
        store = Mortal(self.open_store(), *death)
        session = self.run(self.process(store).connect("s1").load())
        interrupt = session.interrupts[which % len(branch.open)]
        verb = "respond" if verb == "restart" and interrupt.name == "sign" else verb
        self.decided(branch, interrupt.input["n"], verb)
        self.crashed(lambda: self.begin(interrupt, verb), branch, undone)

    def crashed(self, begin: Any, done: Branch, undone: Branch) -> None:
        before = Counter(self.log)
        try:
            self.output(begin())
        except AdjournError:
            pass
        self.clock.time += 16
        session = self.run(self.recovered())
        happened = Counter(self.log) - before
        for interrupt in [i for i in session.interrupts if i.reason == "outcome_unknown"]:
            number = interrupt.input["n"]
            (again,) = [i for i in session.interrupts if i.id == interrupt.id]
            self.output(self.begin(again, "known" if happened[number] else "restart"))
            happened = Counter(self.log) - before
        assert all(n == 1 for n in happened.values()), f"side effects doubled: {happened}"
        self.effects = Counter(self.log)
        seen = [i.input["n"] for i in session.interrupts]
        assert seen == undone.open or set(seen) <= set(done.open), (seen, done.open, undone.open)
        users = len([m for m in session.messages if m.role == "user"])
        assert users in (done.users, undone.users)
        outputs = outputs_of(session.messages)
        assert outputs[: len(undone.outputs)] == [*undone.outputs][: len(outputs)] or "cancelled" in undone.outputs
        self.adopt(session, users, outputs)

    def adopt(self, session: Any, users: int, outputs: list[Any]) -> None:
        """The model takes over what is there, where a crash left it a choice."""
        branch = Branch(session, users, outputs)
        if session.interrupts:
            for part in session.messages[-1].content:
                request = part.tool_request
                if request is not None:
                    metadata: Any = part.metadata or {}
                    output = metadata.get("pendingOutput")
                    restarts = len(part.ours.get("restarts", ()))
                    stages = request.input.get("stages", 1)
                    branch.round.append(Waiting(request.name, request.input["n"], stages, restarts, output))
        self.branches = [branch]

    async def recovered(self) -> Any:
        process = self.process()
        for turn in await process.ai.recover():
            await turn.settled()
        return await process.connect("s1").load()

    # -- what always holds

    @invariant()
    def every_branch_is_as_the_model_says(self) -> None:
        for branch in self.branches:
            session = branch.session
            assert [i.input["n"] for i in session.interrupts] == branch.open
            assert [comparable(o) for o in outputs_of(session.messages)] == [comparable(o) for o in branch.outputs]
            closed = session.messages[:-1] if branch.open else session.messages
            assert_sendable(closed)
            assert len([m for m in session.messages if m.role == "user"]) == branch.users

    @invariant()
    def every_side_effect_happened_as_often_as_it_was_decided(self) -> None:
        assert Counter(self.log) == self.effects

    @invariant()
    def the_inbox_lists_what_waits_and_nothing_else(self) -> None:
        listed = self.run(self.desk.ai.inbox.list(limit=1000)).items
        assert {r.id for r in listed} == {i.id for b in self.branches for i in b.session.interrupts}


def comparable(output: Any) -> str:
    """How a call was cancelled is told in words, which are none of the model's business."""
    return "cancelled" if "cancelled" in output else repr(output)


class SQLiteSessions(Sessions):
    def open_store(self) -> Store:
        from adjourn.stores.sqlite import SQLiteStore

        if not self.stores:
            self.stores.append(SQLiteStore(self.folder / "sessions.db"))
        return self.stores[0]


_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]

TestSessionsInMemory = Sessions.TestCase
TestSessionsInMemory.settings = settings(
    max_examples=50, stateful_step_count=20, deadline=None, suppress_health_check=_QUIET, phases=_PHASES
)
TestSessionsInSQLite = SQLiteSessions.TestCase
TestSessionsInSQLite.settings = settings(
    max_examples=6, stateful_step_count=12, deadline=None, suppress_health_check=_QUIET, phases=_PHASES
)
