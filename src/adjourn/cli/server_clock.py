"""How far a PostgreSQL server's clock is from ours."""

import asyncio
import time

import psycopg

from adjourn.cli.place import split_schema


async def offset(dsn: str) -> float | None:
    """Seconds that the server's clock is ahead; None where it does not answer."""
    return await asyncio.to_thread(_offset, split_schema(dsn)[0])


def _offset(dsn: str) -> float | None:
    try:
        with psycopg.connect(dsn, connect_timeout=5, autocommit=True) as db:
            before = time.time()
            row = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            after = time.time()
    except psycopg.Error:
        return None  # that it does not answer is told by whoever opens the store
    return None if row is None else float(row[0]) - (before + after) / 2
