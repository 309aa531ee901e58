"""How webhooks are delivered: the position and the lease that the store keeps for each, and the loop that posts."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from adjourn.app import Adjourn
from adjourn.errors import AdjournError, InvalidRequest, StoreError
from adjourn.lease import transact
from adjourn.parts import new_id
from adjourn.server.outgoing import Outgoing, Resolve, Undelivered, resolve
from adjourn.server.webhook_spec import LONGEST_ATTEMPT, News, Webhook, concerns, message, sign
from adjourn.store import Change, Decision, Store, Tx

_log = logging.getLogger("adjourn.server.webhooks")
_LEASE = 2 * LONGEST_ATTEMPT
_POLL = 5.0
_PAGE = 100


class HookState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a hook has come, as the store has it. `position` is that of the last change that is done with.

    `failing_since` begins with the first of the failures that are not over yet; `dropped` counts what was given up.
    """

    position: str
    holder: str | None = None
    until: float = 0.0
    delivered: int = 0
    attempts: int = 0
    failing_since: float | None = None
    retry_at: float = 0.0
    error: str = ""
    dropped: int = 0
    dropped_at: float | None = None


# -- what is kept: each function is one transaction ------------------------------------------------------------------


class NotOurs(AdjournError):
    """Another process delivers this hook now."""

    status = "ABORTED"


def _mark(hook_id: str) -> str:
    return f"webhook:{hook_id}"


def state_of(tx: Tx, hook_id: str) -> HookState | None:
    """How far a hook has come; None for one that was never run."""
    kept = tx.mark(_mark(hook_id))
    return msgspec.json.decode(kept, type=HookState) if kept is not None else None


def claim(tx: Tx, hook_id: str, holder: str, now: float) -> HookState:
    """Takes the lease where it is free; says who has it. A new hook begins with what happens from now on."""
    state = state_of(tx, hook_id) or HookState(tx.position())
    if state.holder not in (None, holder) and state.until > now:
        return state
    return _put(tx, hook_id, replace(state, holder=holder, until=now + _LEASE))


def keep(tx: Tx, hook_id: str, holder: str, now: float, change: Callable[[HookState], HookState]) -> HookState:
    """Changes the state and renews the lease. Raises NotOurs where it was lost."""
    state = state_of(tx, hook_id)
    if state is None or state.holder != holder:
        raise NotOurs("another process delivers this webhook now")
    return _put(tx, hook_id, replace(change(state), until=now + _LEASE))


def release(tx: Tx, hook_id: str, holder: str) -> None:
    """Lets another process go on at once."""
    state = state_of(tx, hook_id)
    if state is not None and state.holder == holder:
        _put(tx, hook_id, replace(state, holder=None, until=0.0))


def _put(tx: Tx, hook_id: str, state: HookState) -> HookState:
    tx.put_mark(_mark(hook_id), msgspec.json.encode(state).decode())
    return state


def news_after(tx: Tx, position: str | None, limit: int = _PAGE) -> list[News]:
    """What the feed has behind this position."""
    return [news_of(tx, change) for change in tx.changes(position, limit)]


def news_of(tx: Tx, change: Change) -> News:
    """A change with the rows that it is about."""
    made: Decision | None = None
    if change.decision_id is not None:
        rows = tx.decisions(interrupt_id=change.interrupt_id)
        made = next((d for d in rows if d.id == change.decision_id), None)
    return News(change, tx.interrupt(change.interrupt_id), made)


# -- delivering ------------------------------------------------------------------------------------------------------


class Deliverer:
    """Delivers the news of one store to one hook, for as long as `run` runs."""

    def __init__(
        self, ai: Adjourn, store: Store, hook: Webhook, public_url: str | None = None, resolve: Resolve = resolve
    ) -> None:
        self._store = store
        self._hook = hook
        self._clock = ai.clock
        self._holder = new_id("p_")
        self._public_url = public_url
        self._out = Outgoing(hook.url, allow=hook.allow, bounds=hook.bounds, resolve=resolve)
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        unsubscribe = self._store.subscribe(lambda: _wake(loop, self._woken))
        try:
            while True:
                try:
                    wait = await self.once()
                except NotOurs:
                    wait = _POLL
                except StoreError as e:
                    _log.warning("webhook %r waits: the store does not answer (%s)", self._hook, e)
                    wait = _POLL
                except Exception:  # noqa: BLE001 - one hook's trouble, or a row that cannot be read, must not end it
                    _log.exception("webhook %r failed in a way nobody thought of; it is tried again", self._hook)
                    wait = _POLL
                await self._sleep(wait)
        finally:
            unsubscribe()
            await self.aclose()

    async def once(self) -> float:
        """Delivers what there is, until there is no more or it fails. Returns how many seconds to wait, at most."""
        state = await self._claim()
        if state.holder != self._holder:
            return max(min(state.until - self._clock.now(), _POLL), 0.05)
        while True:
            early = state.retry_at - self._clock.now()
            if early > 0:
                return min(early, _POLL)  # within the lease, which the next round renews
            news = await self._read(state.position)
            if not news:
                return _POLL
            for item in news:
                if concerns(self._hook, item):
                    made, position = self._made(item), item.change.position
                    if made is None:
                        state = await self._keep(partial(_unmade, position=position, now=self._clock.now()))
                        continue
                    failed = await self._deliver(*made)
                    if failed is not None:
                        state = await self._failed(failed)
                        break
                    state = await self._keep(partial(_delivered, position=position))
            else:
                # What did not concern it is passed over once a page, not once each.
                last = news[-1].change.position
                if state.position != last:
                    state = await self._keep(lambda s, last=last: replace(s, position=last))

    async def _claim(self) -> HookState:
        work = partial(claim, hook_id=self._hook.id, holder=self._holder, now=self._clock.now())
        return await transact(self._store, work)

    async def _keep(self, change: Callable[[HookState], HookState]) -> HookState:
        work = partial(keep, hook_id=self._hook.id, holder=self._holder, now=self._clock.now(), change=change)
        return await transact(self._store, work)

    async def _read(self, position: str) -> list[News]:
        try:
            return await transact(self._store, partial(news_after, position=position), read=True)
        except InvalidRequest:
            _log.error("webhook %r: the store does not know its position %r; it begins anew", self._hook, position)
            end = await transact(self._store, lambda tx: tx.position(), read=True)
            await self._keep(lambda s: replace(s, position=end))
            return []

    def _made(self, news: News) -> tuple[str, bytes] | None:
        """The message; None where none can be made of it, which no later attempt would change."""
        try:
            return message(self._hook, news, self._public_url)
        except Exception:  # noqa: BLE001 - logged, and counted: one row must not hold up all that come after it
            change = news.change
            text = "webhook %r: no message can be made of %r of interrupt %s, so it was dropped"
            _log.exception(text, self._hook, change.kind, change.interrupt_id)
            return None

    async def _deliver(self, message_id: str, body: bytes) -> Undelivered | None:
        # The receiver's clock is a real one, whatever ours is.
        headers = sign(self._hook.secret, message_id, int(time.time()), body)
        headers |= {"content-type": "application/json", "user-agent": "adjourn-webhooks/1"}
        try:
            await self._out.post(body, headers)
        except Undelivered as e:
            return e
        return None

    async def _failed(self, error: Undelivered) -> HookState:
        hook, now = self._hook, self._clock.now()
        state = await self._keep(partial(_missed, hook=hook, error=error, now=now))
        if state.attempts == 1:
            _log.warning("webhook %r does not take what it is sent (%s); it is tried again", hook, error)
        if state.failing_since is None or now - state.failing_since < hook.give_up_after:
            return state
        return await self._give_up(now - hook.give_up_after)

    async def _give_up(self, before: float) -> HookState:
        """Drops what is older: all that time nobody took it."""
        hook, now = self._hook, self._clock.now()

        def drop(tx: Tx) -> tuple[HookState, int]:
            state = state_of(tx, hook.id)
            if state is None or state.holder != self._holder:
                raise NotOurs("another process delivers this webhook now")
            position, dropped = state.position, 0
            while old := [n for n in news_after(tx, position) if n.change.at <= before]:
                position = old[-1].change.position
                dropped += sum(concerns(hook, n) for n in old)
            state = replace(
                state, position=position, dropped=state.dropped + dropped, dropped_at=now, until=now + _LEASE
            )
            return _put(tx, hook.id, state), dropped

        state, dropped = await transact(self._store, drop)
        _log.error(
            "webhook %r took nothing for %.0f s: %d messages were given up (%s)",
            hook, hook.give_up_after, dropped, state.error,
        )  # fmt: skip
        return state

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def aclose(self) -> None:
        """Lets go of the connection and of the lease."""
        await self._out.aclose()
        try:
            await transact(self._store, partial(release, hook_id=self._hook.id, holder=self._holder))
        except StoreError:
            _log.warning("webhook %r: its lease was not given back; it ends by itself", self._hook)


def _delivered(state: HookState, position: str) -> HookState:
    return replace(
        state, position=position, delivered=state.delivered + 1, attempts=0, failing_since=None, retry_at=0.0, error=""
    )


def _unmade(state: HookState, position: str, now: float) -> HookState:
    return replace(state, position=position, dropped=state.dropped + 1, dropped_at=now)


def _missed(state: HookState, hook: Webhook, error: Undelivered, now: float) -> HookState:
    wait = min(hook.backoff * 2.0 ** min(state.attempts, 30), hook.backoff_most)
    wait *= random.uniform(0.5, 1.0)  # many hooks of one dead receiver do not all come back at once
    if error.retry_after is not None:
        wait = min(max(wait, error.retry_after), hook.backoff_most)
    return replace(
        state,
        attempts=state.attempts + 1,
        failing_since=now if state.failing_since is None else state.failing_since,
        retry_at=now + wait,
        error=str(error)[:300],
    )


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(woken.set)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more
