"""Runs one scenario again and again, each time killed at the next point, and lets another process finish it.

    python -m durable.crash_runner STORE SCENARIO FOLDER

STORE is `sqlite`, or a PostgreSQL dsn. For each kill point (before and after each commit, before and after each tool
body) a forked process runs the scenario until it kills itself with SIGKILL there; then another forked process opens the
store cold and finishes. One line of JSON a point says what came of it.
"""

import asyncio
import importlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adjourn.store import MemoryStore
from durable.crash_app import build
from durable.crash_scenarios import SCENARIOS
from durable.crash_steps import Actor, finish, recover, report_on, run
from durable.killing import Death, KillingStore, begun, ended, forked, open_store

LANES = 4
"""How many points are tried at a time: mostly they wait for the lease of the dead to end."""


class Point:
    """One kill point, with a store of its own."""

    def __init__(self, where: str, scenario: str, folder: Path, number: int) -> None:
        self.number = number
        self._where, self._scenario, self._folder = where, scenario, folder
        self._name = f"{scenario}_{number}"
        self._effects = folder / f"{self._name}.effects"
        self._report = folder / f"{self._name}.json"
        self._steps = SCENARIOS[scenario]

    def result(self) -> dict[str, Any]:
        return json.loads(self._report.read_text())

    def try_out(self) -> None:
        """Has a process die here, and another one finish; what came of it is in the report."""
        if self._steps.before:
            assert forked(self._before) == 0
        beside = begun(self._beside) if self._steps.beside else None
        if beside is not None:
            until(self._effects.with_suffix(".ready"))
        code = forked(self._killed)
        self._effects.with_suffix(".gone").touch()
        again = forked(self._fresh) if beside is None else ended(beside)
        result = json.loads(self._report.read_text()) if again == 0 else {"failed": again}
        self._report.write_text(json.dumps({"point": self.number, "code": code, **result}))

    def _agent(self, death: Death | None = None) -> Any:
        store = open_store(self._where, self._folder, self._name, self._steps.lease)
        if death is not None:
            store = KillingStore(store, death)
            death.count = 0  # opening a new store commits, too; what is in it then is nobody's turn
        return build(store, self._scenario, self._effects, death or Death(None))

    def _before(self) -> None:
        async def work() -> None:
            await Actor(self._agent(), self._scenario, self._effects).play(self._steps.before)

        asyncio.run(work())

    def _killed(self) -> None:
        async def work() -> None:
            await run(self._agent(Death(self.number)), self._scenario, self._effects)

        asyncio.run(work())

    def _beside(self) -> None:
        async def work() -> None:
            actor = Actor(self._agent(), self._scenario, self._effects)
            await actor.play(self._steps.beside)
            await finish(actor)
            await self._put_down(actor)

        asyncio.run(work())

    def _fresh(self) -> None:
        async def work() -> None:
            await self._put_down(await recover(self._agent(), self._scenario, self._effects))

        asyncio.run(work())

    async def _put_down(self, actor: Actor) -> None:
        self._report.write_text(json.dumps(await report_on(actor)))
        actor.agent.store.close()


def forks_share_what_is_imported(where: str, scenario: str, folder: Path) -> None:
    """Most of the time of a process would go into that."""
    importlib.import_module("adjourn.stores.sqlite" if where == "sqlite" else "adjourn.stores.postgres")
    build(MemoryStore(), scenario, folder / "unused", Death(None))


def until(file: Path) -> None:
    for _ in range(1000):
        if file.exists():
            return
        time.sleep(0.02)
    raise TimeoutError(f"{file} never came")


def tried(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The reports on these points, which are tried at the same time."""
    lanes = [begun(point.try_out) for point in points]
    assert [ended(lane) for lane in lanes] == [0] * len(lanes)
    return [point.result() for point in points]


def main() -> None:
    where, scenario, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    forks_share_what_is_imported(where, scenario, folder)
    number, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        for report in tried([Point(where, scenario, folder, number + lane) for lane in range(LANES)]):
            code = report["code"]
            print(json.dumps({**report, "killed": code == -signal.SIGKILL}), flush=True)
            if code != -signal.SIGKILL:
                break
        number += LANES


if __name__ == "__main__":
    main()
