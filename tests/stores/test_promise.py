"""What a store gives for a work, and how an event loop is woken by it."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from adjourn.lease import settled
from adjourn.promise import Pending


def test_a_promise_that_was_kept_gives_its_value_and_falsy_ones_too() -> None:
    values: list[Any] = [None, False, 0, "", [], {"a": 1}]
    for value in values:
        promise: Pending[Any] = Pending()
        promise.keep(value)
        assert promise.done()
        assert promise.result() == value
        assert promise.exception() is None


def test_a_broken_promise_raises_what_broke_it_as_often_as_it_is_asked() -> None:
    promise: Pending[int] = Pending()
    promise.fail(KeyError("gone"))
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            promise.result()
    assert isinstance(promise.exception(), KeyError)


def test_waiting_for_a_promise_ends_with_a_timeout_and_leaves_it_as_it_was() -> None:
    promise: Pending[int] = Pending()
    with pytest.raises(TimeoutError):
        promise.result(0.01)
    promise.keep(3)
    assert promise.result(0.01) == 3


def test_a_thread_that_waits_is_woken_when_another_keeps_the_promise() -> None:
    promise: Pending[int] = Pending()
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(promise.result(30)))
    waiter.start()
    promise.keep(7)
    waiter.join(30)
    assert found == [7]


def test_every_callback_is_called_once_also_those_that_come_late() -> None:
    promise: Pending[int] = Pending()
    called: list[str] = []
    promise.add_done_callback(lambda _: called.append("before"))
    promise.keep(1)
    promise.add_done_callback(lambda _: called.append("after"))
    assert called == ["before", "after"]


def test_callbacks_that_race_with_the_end_are_each_called_exactly_once() -> None:
    for _ in range(300):
        promise: Pending[int] = Pending()
        called: list[int] = []
        begin = threading.Barrier(3)

        def add(n: int, promise: Pending[int] = promise, called: list[int] = called, begin: Any = begin) -> None:
            begin.wait()
            promise.add_done_callback(lambda _: called.append(n))

        def keep(promise: Pending[int] = promise, begin: Any = begin) -> None:
            begin.wait()
            promise.keep(1)

        threads = [threading.Thread(target=add, args=(n,)) for n in range(2)] + [threading.Thread(target=keep)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(called) == [0, 1]


def test_a_callback_that_raises_does_not_keep_the_others_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    promise: Pending[int] = Pending()
    called: list[int] = []

    def fails(_: Any) -> None:
        raise ValueError("no")

    promise.add_done_callback(fails)
    promise.add_done_callback(lambda _: called.append(1))
    promise.keep(1)
    assert called == [1]
    assert "callback" in caplog.text


async def test_a_thousand_waiters_are_woken_by_another_thread_none_is_forgotten() -> None:
    promises: list[Pending[int]] = [Pending() for _ in range(1000)]
    waiters = [asyncio.ensure_future(settled(p)) for p in promises]
    await asyncio.sleep(0)

    def keep() -> None:
        for n, promise in enumerate(promises):
            promise.keep(n)

    threads = [threading.Thread(target=keep)]
    for thread in threads:
        thread.start()
    assert await asyncio.wait_for(asyncio.gather(*waiters), 30) == list(range(1000))
    for thread in threads:
        thread.join()


async def test_a_waiter_that_was_cancelled_leaves_the_others_alone() -> None:
    promises: list[Pending[int]] = [Pending() for _ in range(3)]
    waiters = [asyncio.ensure_future(settled(p)) for p in promises]
    await asyncio.sleep(0)
    waiters[1].cancel()
    threading.Thread(target=lambda: [p.keep(1) for p in promises]).start()
    assert await asyncio.wait_for(waiters[0], 30) == 1
    assert await asyncio.wait_for(waiters[2], 30) == 1
    assert waiters[1].cancelled()


def test_each_event_loop_is_woken_by_its_own_bell() -> None:
    async def once() -> int:
        promise: Pending[int] = Pending()
        threading.Timer(0, lambda: promise.keep(5)).start()
        return await asyncio.wait_for(settled(promise), 30)

    for _ in range(3):
        assert asyncio.run(once()) == 5
    gc.collect()


def test_a_promise_kept_after_its_loop_was_closed_troubles_nobody() -> None:
    promise: Pending[int] = Pending()

    async def leave() -> None:
        waiter = asyncio.ensure_future(settled(promise))
        await asyncio.sleep(0)
        waiter.cancel()

    asyncio.run(leave())
    promise.keep(1)
    assert promise.result() == 1


async def test_a_waiter_is_woken_though_a_signal_cut_off_the_first_try_in_another_thread() -> None:
    loop, promise = asyncio.get_running_loop(), Pending[int]()
    real, cut = loop.call_soon_threadsafe, list[str]()

    def once(*args: Any, **options: Any) -> Any:
        if not cut:
            cut.append("off")
            raise KeyboardInterrupt
        return real(*args, **options)

    def keep() -> None:
        with pytest.raises(KeyboardInterrupt):
            promise.keep(7)

    loop.call_soon_threadsafe = once  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(settled(promise))
    await asyncio.sleep(0)
    teller = threading.Thread(target=keep)
    teller.start()
    assert await asyncio.wait_for(waiting, 20) == 7
    teller.join()
    later: Pending[int] = Pending()
    threading.Thread(target=later.keep, args=(8,)).start()
    assert await asyncio.wait_for(settled(later), 20) == 8
