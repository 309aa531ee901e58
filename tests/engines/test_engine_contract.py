"""The loop of this process and the Temporal engine against the same public rules."""

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from adjourn import MemoryStore
from adjourn.stores.postgres import PostgresStore
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing_engine import RULES, Stage, check_engine
from engines.engine_kit import in_process, on_temporal
from engines.temporal_server import Server

Rule = Callable[[Stage], Awaitable[None]]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
async def test_the_loop_of_this_process_obeys_the_rule(rule: Rule) -> None:
    await rule(Stage(in_process, MemoryStore))


TOLD = (
    "a_restart_runs_what_was_shown",
    "a_part_of_the_pauses_can_be_answered",
    "one_decision_wins",
    "what_nobody_decides_expires",
    "a_failed_turn_can_be_retried",
    "an_abort_ends_the_turn",
)
"""The rules of which an ordinary run hears; the others take as long again, several times."""


def _by_weight() -> list[Any]:
    return [
        pytest.param(rule, id=name, marks=() if name in TOLD else pytest.mark.slow)
        for rule in RULES
        if (name := getattr(rule, "__name__", ""))
    ]


@pytest.mark.parametrize("rule", _by_weight())
async def test_temporal_obeys_the_rule(rule: Rule, temporal: Server, tmp_path: Path) -> None:
    stores = iter(range(100))
    await rule(Stage(on_temporal(temporal.address), lambda: SQLiteStore(tmp_path / f"{next(stores)}.db")))


async def test_check_engine_plays_all_rules() -> None:
    await check_engine(in_process, MemoryStore)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(300)
async def test_temporal_obeys_all_rules_with_sessions_in_postgres(temporal: Server, postgres_dsn: str) -> None:
    schemas: list[str] = []

    def store() -> PostgresStore:
        schemas.append(f"t_{uuid.uuid4().hex}")
        return PostgresStore(postgres_dsn, schema=schemas[-1], connections=2)

    try:
        await check_engine(on_temporal(temporal.address), store)
    finally:
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            for schema in schemas:
                connection.execute(f'drop schema if exists "{schema}" cascade'.encode())
