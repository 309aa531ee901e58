"""Legs that nobody waits for, begun by a worker: they are seen like all others."""

from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adjourn import Adjourn
from adjourn.engines.steps import Steps
from adjourn.testing import call
from adjourn.tracing import Tracing
from engines.engine_kit import rest, until, working, world
from engines.temporal_server import Server
from observe.observe_kit import Recorder


async def test_a_leg_that_a_sweep_begins_is_a_turn_step_and_a_span_with_its_steps_within(
    temporal: Server, tmp_path: Path
) -> None:
    exporter, provider, seen = InMemorySpanExporter(), TracerProvider(), Recorder()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done") as w:
        w.ai.observers = (seen, Tracing(provider))
        output = await rest(w.agent.connect().send("go"))
        cold = Adjourn(stores=[w.agent.store] if w.agent.store is not None else [])
        await cold.inbox.restart(output.interrupts[0].id)  # a process without the agent, and without the engine
        await until(lambda: len([f for f in seen.facts("turn") if "outcome" in f]) == 2)
        first, second = seen.facts("turn")
        assert (first["outcome"], second["outcome"]) == ("interrupted", "stop")
        assert (second["resumed"], second["recovered"], second["model_calls"]) == (True, False, 1)
        assert second["session_id"] == first["session_id"]
        assert second["snapshot_id"] != first["snapshot_id"]
    provider.shutdown()
    spans = exporter.get_finished_spans()
    before, after = [s.get_span_context() for s in spans if s.name == "invoke_agent a"]
    [resumed] = [s for s in spans if s.get_span_context() == after]
    assert before is not None
    assert after is not None
    assert [link.context.span_id for link in resumed.links] == [before.span_id]
    assert {s.name for s in spans if s.parent is not None and s.parent.span_id == after.span_id} == {
        "chat scripted",
        "execute_tool gate",
    }


async def test_a_leg_that_expiry_begins_is_a_turn_step(temporal: Server, tmp_path: Path) -> None:
    seen = Recorder()
    async with world(temporal, tmp_path, [call("brief", {"n": 1})], "too late") as w:
        w.ai.observers = (seen,)
        await rest(w.agent.connect().send("go"))
        await until(lambda: [f.get("outcome") for f in seen.facts("turn")] == ["interrupted", "stop"])


async def test_of_several_workers_that_sweep_one_tells_of_the_leg(temporal: Server, tmp_path: Path) -> None:
    seen = Recorder()
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done") as w:
        w.ai.observers = (seen,)
        output = await rest(w.agent.connect().send("go"))
        cold = Adjourn(stores=[w.agent.store] if w.agent.store is not None else [])
        async with working(w.ai, w.engine), working(w.ai, w.engine):
            await cold.inbox.restart(output.interrupts[0].id)
            await until(lambda: "stop" in [f.get("outcome") for f in seen.facts("turn")])
        assert [f["outcome"] for f in seen.facts("turn")] == ["interrupted", "stop"]


async def test_without_observers_nobody_follows_a_leg(temporal: Server, tmp_path: Path) -> None:
    async with world(temporal, tmp_path, [call("gate", {"n": 1})], "done", worker=False) as w:
        steps = Steps(w.ai, w.engine.holder)
        async with working(w.ai, w.engine):
            output = await rest(w.agent.connect().send("go"))
        cold = Adjourn(stores=[w.agent.store] if w.agent.store is not None else [])
        await cold.inbox.restart(output.interrupts[0].id)
        assert w.agent.store is not None
        assert await steps.sweep(w.agent.store, w.engine, w.ai.clock.now()) == 1
        assert steps.seeing == set()
