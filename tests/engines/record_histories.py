"""Records the histories that later releases must be able to replay: `python tests/engines/record_histories.py VERSION`.

Run it once for each release; what is there is never recorded again.
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from adjourn.errors import AdjournError
from adjourn.testing import call
from engines.engine_kit import HASTY, World, rest, until, world
from engines.temporal_server import Server

HISTORIES = Path(__file__).parent / "histories"
GATES = [call("gate", {"n": 1}), call("big", {"size": 3}), call("gate", {"n": 2})]


async def plain(w: World) -> Any:
    turn = w.agent.connect().send("go")
    await rest(turn)
    return turn


async def paused_and_restarted(w: World) -> Any:
    turn = w.agent.connect().send("go")
    output = await rest(turn)
    await rest(output.interrupts[0].restart({"why": "because"}))
    return turn


async def answered_in_parts(w: World) -> Any:
    turn = w.agent.connect().send("go")
    output = await rest(turn)
    output = await rest(output.interrupts[1].respond("no"))
    await rest(output.interrupts[0].decline("never"))
    return turn


async def expired(w: World) -> Any:
    session = w.agent.connect()
    turn = session.send("go")
    await rest(turn)

    async def over() -> bool:
        view = await w.agent.get_snapshot(session_id=session.id)
        return view is not None and view.messages[-1].text == "done"

    await until(over)
    return turn


async def aborted(w: World) -> Any:
    session = w.agent.connect()
    turn = session.send("go")
    await rest(turn)
    await session.abort("enough")
    return turn


async def failed_and_retried(w: World) -> Any:
    session = w.agent.connect()
    turn = session.send("go")
    try:
        await rest(turn)
    except AdjournError:
        await rest(session.retry())
    return turn


async def long(w: World) -> Any:
    turn = w.agent.connect().send("go")
    await until(lambda: w.log)
    handle = await w.handle(turn)

    async def handed_over() -> bool:
        return bool((await handle.describe()).raw_description.pending_activities)

    await until(handed_over)
    w.go.set()
    await rest(turn)
    return turn


SCENARIOS: Mapping[str, tuple[Callable[[World], Awaitable[Any]], list[Any], dict[str, Any]]] = {
    "plain": (plain, ["done"], {}),
    "parallel": (plain, [[call("big", {"size": n}) for n in range(3)], "done"], {}),
    "paused_and_restarted": (paused_and_restarted, [call("gate", {"n": 1}), "done"], {}),
    "answered_in_parts": (answered_in_parts, [GATES, "done"], {}),
    "expired": (expired, [call("brief", {"n": 1}), "done"], {}),
    "aborted": (aborted, [call("gate", {"n": 1})], {}),
    "failed_and_retried": (failed_and_retried, [ValueError("broken"), "done"], {}),
    "long": (long, [call("slow", {"n": 1}), "done"], {"timing": HASTY}),
    "many_steps": (paused_and_restarted, [*[call("big", {"size": n}) for n in range(8)], GATES[0], "done"], {}),
}


async def record(version: str) -> None:
    folder = HISTORIES / version
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        server = Server(Path(temporary), "limit.historyCount.suggestContinueAsNew=12")
        await server.start()
        try:
            for name, (play, replies, options) in SCENARIOS.items():
                at = Path(temporary) / name
                at.mkdir()
                async with world(server, at, *replies, **options) as w:
                    turn = await play(w)
                    await w.history(turn)
                    client = await w.engine.client()
                    runs = [r async for r in client.list_workflows(f"WorkflowId = '{turn.snapshot_id}'")]
                    for number, run in enumerate(sorted(runs, key=lambda r: r.start_time)):
                        history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
                        text = _without_machine(json.dumps(json.loads(history.to_json()), indent=1))
                        (folder / f"{name}{number or ''}.json").write_text(text + "\n")
        finally:
            server.stop()


def _without_machine(text: str) -> str:
    """Who ran it is nobody's business, and of no use to a replay: process ids with the name of their host."""
    return re.sub(r"\d+@[\w.-]+", "worker", text)


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
