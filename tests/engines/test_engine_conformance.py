"""The language-neutral behaviour specs, with Temporal in place of the loop of this process."""

from pathlib import Path
from typing import Any

import pytest

from adjourn.stores.sqlite import SQLiteStore
from conformance.conformance_harness import AgentSpec, Bench
from conformance.test_conformance import agent_specs
from engines.engine_kit import on_temporal
from engines.temporal_server import Server


@pytest.mark.slow
@pytest.mark.parametrize("spec", agent_specs())
async def test_an_agent_on_temporal_behaves_as_the_spec_says(
    spec: dict[str, Any], temporal: Server, tmp_path: Path
) -> None:
    bench = Bench(SQLiteStore(tmp_path / "sessions.db"))
    async with on_temporal(temporal.address)(bench.ai):
        await AgentSpec(bench, spec).run()
    await bench.ai.aclose()
