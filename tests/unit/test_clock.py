import asyncio
import time

from adjourn.clock import SYSTEM, Clock, SystemClock
from adjourn.testing import FakeClock


def test_the_system_clock_tells_the_time_and_never_runs_backwards() -> None:
    assert abs(SYSTEM.now() - time.time()) < 5
    readings = [SYSTEM.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


async def test_the_system_clock_sleeps_about_as_long_as_it_is_told() -> None:
    clock: Clock = SystemClock()
    start = time.monotonic()
    await clock.sleep(0.02)
    assert 0.015 <= time.monotonic() - start < 2


async def test_sleeping_lets_others_run() -> None:
    ran: list[str] = []
    clocks: list[Clock] = [SystemClock(), FakeClock()]
    for clock in clocks:
        other = asyncio.create_task(asyncio.sleep(0, ran.append("other")))
        await clock.sleep(0)
        await other
    assert ran == ["other", "other"]


async def test_a_fake_clock_moves_only_by_being_slept_on_or_told() -> None:
    clock = FakeClock(100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 100.0)
    await clock.sleep(30)
    assert (clock.now(), clock.slept) == (130.0, [30])
    clock.time += 5
    assert clock.monotonic() == 135.0
