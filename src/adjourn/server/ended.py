"""Browser sessions that were signed out before their time, kept in the stores, so that every process of a server knows.

A cookie is good by its signature alone. What is noted here is the few that are not any more, each until it would have ended
by itself. They are spread over some marks of the store, so that each stays small.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from adjourn.lease import transact
from adjourn.store import Store, Tx


class EndedSessions:
    """What `note` has noted is `known` to every process that has one of the stores."""

    def __init__(self, stores: Callable[[], Sequence[Store]] = tuple) -> None:
        self._stores = stores
        self._here: dict[str, int] = {}

    async def note(self, session: str, until: int) -> None:
        """Ends it. Raises StoreError where a store cannot keep that: it is ended in this process alone then."""
        now = int(time.time())
        self._here = {s: u for s, u in self._here.items() if u > now} | {session: until}
        for store in self._stores():
            await transact(store, partial(_note, session=session, until=until, now=now))

    async def known(self, session: str) -> bool:
        """Whether it was ended. Raises StoreError where a store does not answer."""
        if session in self._here:
            return True
        for store in self._stores():
            if session in await transact(store, partial(_noted, session=session), read=True):
                return True
        return False


def _mark(session: str) -> str:
    return f"signed-out:{session[:2]}"


def _noted(tx: Tx, session: str) -> dict[str, int]:
    kept = tx.mark(_mark(session))
    return msgspec.json.decode(kept, type=dict[str, int]) if kept is not None else {}


def _note(tx: Tx, session: str, until: int, now: int) -> None:
    kept = {s: u for s, u in _noted(tx, session).items() if u > now} | {session: until}
    tx.put_mark(_mark(session), msgspec.json.encode(kept).decode())
