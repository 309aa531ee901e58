"""Messages that wait until a session is no longer paused: each has a turn of its own, however and wherever it is sent."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from adjourn.conversation import Conversation
from adjourn.decisions import where_to_go_on
from adjourn.errors import AdjournError, SessionClosed, SessionConflict, SessionNotFound
from adjourn.handle import AgentOutput, AgentTurn
from adjourn.lease import transact
from adjourn.ledger import enqueue, withdraw
from adjourn.leg import Agentlike, Plan
from adjourn.loading import end_of, load_on
from adjourn.parts import ErrorInfo, Message, new_id
from adjourn.promise import loop_for
from adjourn.records import Queued, SessionRecord, Snapshot
from adjourn.store import Store, Tx


class Sender(Protocol):
    """The session, as far as its outbox needs it."""

    id: str
    agent: Agentlike

    @property
    def running(self) -> str | None:
        """The snapshot that the turn of its own which runs will come to rest at."""
        ...

    @property
    def standing(self) -> Conversation:
        """Where it stands."""
        ...

    async def load(self) -> Any:
        """Brings it up to date, takes up what waits for a driver, and sends what can be sent."""
        ...

    async def told(self, snapshot_id: str) -> AgentOutput:
        """The output of a turn that another handle brought to this rest. Raises as that turn's would."""
        ...


class Found(Struct, frozen=True):
    """Where waiting messages are: `taken` are the snapshots of those that were sent; `free`: the session waits for a driver."""

    session: SessionRecord | None
    taken: Mapping[str, Snapshot]
    free: bool = False


class Outbox:
    """The messages that were said through one handle and wait. With a store, they wait in there as well."""

    def __init__(self, session: Sender) -> None:
        self._session = session
        self._waiting: dict[str, tuple[AgentTurn, Plan]] = {}
        self._follower: asyncio.Task[None] | None = None
        self._news: asyncio.Event | None = None  # a follower's, which is of its event loop

    def put(self, said: Message, plan: Plan, turn: AgentTurn) -> AgentTurn:
        """Has it wait, durably where there is a store. `turn` ends as the one ends that it is sent in, whoever sends it.

        Raises SessionNotFound, and SessionConflict for a branch that has not begun: nobody could tell where to send it.
        """
        loop_for("a turn")
        at, agent, running = self._session.standing, self._session.agent, self._session.running
        if at.branch and running is None:
            raise SessionConflict(
                f"the session has gone on from snapshot {at.snapshot_id}, so that no message can wait there; this one was not "
                "kept. fork() that snapshot and say it there, once no turn of the session runs"
            )
        queued = Queued(new_id("q_"), said, running or at.snapshot_id)
        store, now = agent.store, agent.clock.now()
        if store is not None:
            leg = at.leg("", agent.name, agent.holder, now, new_turn=True)
            store.submit(partial(enqueue, leg=leg, queued=queued, now=now, patience=store.lease_seconds)).result()
            turn.now_stored()
        at.queue.append(queued)
        plan.unqueue = queued.id
        self._wait(turn, plan)
        return turn

    async def later(self, plan: Plan, begun: AgentTurn) -> AgentOutput:
        """A turn that has begun waits after all."""
        assert plan.said is not None
        turn = AgentTurn(begun.watcher)
        turn.when_done(begun.signal.on_abort(lambda: turn.abort(begun.signal.reason)))
        if plan.unqueue is None:
            self.put(plan.said, plan, turn)
        else:
            self._wait(turn, plan)  # it is in the queue, or somebody else has sent it
        output = await turn.output
        begun.snapshot_id = turn.snapshot_id
        return output

    def _wait(self, turn: AgentTurn, plan: Plan) -> None:
        store, stood = self._session.agent.store, self._session.standing.snapshot_id
        loop, queued = asyncio.get_running_loop(), str(plan.unqueue)
        self._waiting[queued] = turn, plan

        def aborted() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._aborted, queued)  # for it may come from any thread

        turn.when_done(turn.signal.on_abort(aborted))
        if store is not None and (self._follower is None or self._follower.done()):
            self._follower = loop.create_task(self._follow(store, stood))

    def _aborted(self, queued: str) -> None:
        """Somebody wants it no more: it is not sent from here, and the follower takes it off the store."""
        if queued in self._waiting:
            at = self._session.standing
            at.queue = [q for q in at.queue if q.id != queued]
            if self._session.agent.store is None:
                self._withdrawn(queued)
            if self._news is not None:
                self._news.set()

    def _withdrawn(self, queued: str) -> None:
        turn = self._waiting.pop(queued)[0]
        error = ErrorInfo("CANCELLED", turn.signal.reason, "Aborted")

        async def never_sent() -> AgentOutput:
            return AgentOutput(self._session.id, "aborted", error=error)

        turn.begin(never_sent)

    def take(self, queued: str) -> tuple[AgentTurn, Plan] | None:
        """The turn of this message, which is sent now; None where it was said through another handle."""
        return self._waiting.pop(queued, None)

    async def close(self) -> None:
        """Tells whoever waits for their turns what has become of them."""
        store = self._session.agent.store
        if store is not None and self._waiting:
            with suppress(AdjournError):
                await self._look(store, None)
        kept = "it was not sent" if store is None else "it is kept in the store, and sent when the session goes on"
        self._fail(SessionClosed(f"the session was closed while this message waited for a pause to be over; {kept}"))
        if self._follower is not None:
            self._follower.cancel()

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for turn, _ in waiting.values():
            turn.fail(error)

    async def _follow(self, store: Store, stood: str | None) -> None:
        """Other handles and processes may settle the pause, and send what waits."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._news = news

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(news.set)

        end = store.subscribe(tell)
        try:
            while self._waiting:
                news.clear()
                with suppress(AdjournError):  # a store that is away may come back
                    await self._look(store, stood)
                if self._waiting:
                    with suppress(TimeoutError):  # a notification can be lost, and a dead process sends none
                        await asyncio.wait_for(news.wait(), store.lease_seconds / 3)
        finally:
            end()

    async def _look(self, store: Store, stood: str | None) -> None:
        session, now = self._session, self._session.agent.clock.now()
        for queued in [q for q, (turn, _) in self._waiting.items() if turn.signal.aborted]:
            if (
                await transact(store, partial(withdraw, session_id=session.id, queued=queued))
                and queued in self._waiting
            ):
                self._withdrawn(queued)
        asked = frozenset(self._waiting)
        find = partial(_find, session_id=session.id, queued=asked, stood=stood, now=now, patience=store.lease_seconds)
        found = await transact(store, find, read=True)
        if found.session is None:
            self._fail(
                SessionNotFound(f"session {session.id!r} was deleted, and this message with it: it was not sent")
            )
            return
        here = {q.id for q in found.session.queue} | set(found.taken)
        too_late: list[tuple[str, str]] = []
        for queued in asked & set(self._waiting):
            snapshot, turn = found.taken.get(queued), self._waiting[queued][0]
            if snapshot is not None and snapshot.status == "pending":
                if turn.signal.aborted:
                    too_late.append((snapshot.id, turn.signal.reason))
            elif snapshot is not None:
                del self._waiting[queued]
                turn.begin(partial(session.told, snapshot.id))
            elif queued not in here:
                del self._waiting[queued]
                turn.fail(SessionConflict("this message is in its session's queue no more; it was not sent from here"))
        for snapshot_id, reason in too_late:  # somebody else had sent it by then
            await session.agent.abort(snapshot_id, reason)
        if found.free and self._waiting and session.running is None:
            with suppress(AdjournError):
                await session.load()


def _find(tx: Tx, session_id: str, queued: frozenset[str], stood: str | None, now: float, patience: float) -> Found:
    session = tx.session(session_id)
    if session is None:
        return Found(None, {})
    taken = {s.queued: s for s in tx.snapshots(session_id, stood) if s.queued is not None and s.queued in queued}
    # Whoever is about to go on has a while for it, as with a lease.
    here = end_of(tx, session_id, stood) if stood is not None else session.head
    waits = where_to_go_on(tx, session_id, now) if session.updated <= now - patience else None
    return Found(session, taken, waits is not None and waits.at == here)


async def elsewhere(session: Sender, store: Store, found_at: str) -> AgentOutput:
    """What somebody else makes of a session that waited for a driver at this snapshot. Raises as their turn would."""
    while True:
        look = partial(load_on, session_id=session.id, snapshot_id=found_at)
        loaded = await transact(store, look, read=True)
        if loaded is None or not loaded.chain:
            raise SessionNotFound(f"session {session.id!r} was deleted")
        if loaded.chain[-1].status != "pending":
            return await session.told(loaded.chain[-1].id)
        view = await session.agent.wait(loaded.chain[-1].id)
        if view.status == "expired":
            raise SessionConflict(
                f"a process that went on with session {session.id!r} is gone; what it did is kept. ai.recover(), or opening the "
                "session, goes on from there"
            )
