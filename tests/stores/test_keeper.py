"""Who renews the leases of turns that run."""

import asyncio
from collections.abc import Callable
from typing import Any

from adjourn.clock import SYSTEM
from adjourn.lease import Keeper
from adjourn.ledger import Leg
from adjourn.promise import Pending


class Counting:
    """A store that counts what it is asked for, or never answers."""

    def __init__(self, lease_seconds: float, *, answers: bool = True) -> None:
        self.lease_seconds = lease_seconds
        self.asked = 0
        self.twice = asyncio.Event()
        self._answers = answers

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Pending[Any]:
        promise: Pending[Any] = Pending()
        self.asked += 1
        if self.asked == 2:
            self.twice.set()
        if self._answers:
            promise.keep(None)
        return promise

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return callback

    def close(self) -> None: ...


def watched(keeper: Keeper, store: Any, name: str) -> None:
    leg = Leg(name, name, name, "agent", "holder", 0.0, epoch=1)
    keeper.watch(store, lambda: leg, lambda why: None)


async def test_a_store_that_is_held_up_does_not_let_leases_in_another_one_end() -> None:
    keeper, stuck, well = Keeper(SYSTEM), Counting(0.03, answers=False), Counting(0.03)
    watched(keeper, stuck, "stuck")
    watched(keeper, well, "well")
    await asyncio.wait_for(well.twice.wait(), 20)
    assert stuck.asked == 1


async def test_a_lease_that_is_shorter_than_those_before_it_is_renewed_in_its_own_time() -> None:
    keeper, long, short = Keeper(SYSTEM), Counting(3600.0), Counting(0.03)
    watched(keeper, long, "long")
    await asyncio.sleep(0)
    watched(keeper, short, "short")
    await asyncio.wait_for(short.twice.wait(), 20)
    assert long.asked == 0
