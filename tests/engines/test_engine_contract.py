"""The loop of this process and the Temporal engine against the same public rules."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adjourn import MemoryStore
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing_engine import RULES, Stage, check_engine
from engines.engine_kit import in_process, on_temporal
from engines.temporal_server import Server

Rule = Callable[[Stage], Awaitable[None]]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
async def test_the_loop_of_this_process_obeys_the_rule(rule: Rule) -> None:
    await rule(Stage(in_process, MemoryStore))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
async def test_temporal_obeys_the_rule(rule: Rule, temporal: Server, tmp_path: Path) -> None:
    stores = iter(range(100))
    await rule(Stage(on_temporal(temporal.address), lambda: SQLiteStore(tmp_path / f"{next(stores)}.db")))


async def test_check_engine_plays_all_rules() -> None:
    await check_engine(in_process, MemoryStore)
