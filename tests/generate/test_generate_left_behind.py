"""What becomes of a tool's result where its caller is gone when it comes."""

import asyncio
import threading
from typing import Any

import pytest

from adjourn.tool import RAN_ON, run_body, tool


async def test_a_sync_result_that_the_cancellation_overtakes_on_its_way_is_late_and_not_lost() -> None:
    late: asyncio.Queue[Any] = asyncio.Queue()

    @tool
    def charge() -> str:
        return "charged"

    async def call() -> Any:
        return await run_body(charge, (), {}, late.put_nowait)

    threads = set(threading.enumerate())
    task = asyncio.create_task(call())
    await asyncio.sleep(0)  # the thread is started, and the loop does not turn before it has ended
    for thread in set(threading.enumerate()) - threads:
        thread.join(30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(late.get(), 30) == "charged"


async def test_an_async_body_that_ends_as_it_is_cancelled_did_not_run_on_and_its_result_is_late() -> None:
    late: asyncio.Queue[Any] = asyncio.Queue()
    gate = asyncio.Event()

    @tool
    async def charge() -> str:
        await gate.wait()
        return "charged"

    task = asyncio.create_task(run_body(charge, (), {}, late.put_nowait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set()
    asyncio.get_running_loop().call_soon(task.cancel)  # in the round in which the body ends
    with pytest.raises(asyncio.CancelledError) as refused:
        await task
    assert RAN_ON not in refused.value.args
    assert await asyncio.wait_for(late.get(), 30) == "charged"


async def test_a_body_whose_task_is_cancelled_before_it_began_holds_up_nobody() -> None:
    began: list[str] = []

    @tool
    async def charge() -> str:
        began.append("charge")
        return "charged"

    before = asyncio.all_tasks()
    outer = asyncio.create_task(run_body(charge, (), {}, began.append))

    def cancel_inner() -> None:
        for task in asyncio.all_tasks() - before - {outer}:
            task.cancel()

    asyncio.get_running_loop().call_soon(cancel_inner)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(outer, 30)
    assert began == []
