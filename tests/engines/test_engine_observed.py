"""An engine's turns are seen like those of one process: the same notices, each once, and one trace a leg."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adjourn import AgentInit
from adjourn.logs import Logs
from adjourn.stores.sqlite import SQLiteStore
from adjourn.tracing import Tracing
from engines.engine_kit import on_temporal
from engines.temporal_server import Server
from observe.observe_kit import CANARY, EVENTS, Recorder, eventful, pay, pay_app


async def test_each_notice_of_an_eventful_turn_comes_once_and_has_no_content(
    temporal: Server, tmp_path: object
) -> None:
    seen = Recorder()
    store = SQLiteStore(f"{tmp_path}/seen.db")
    ai, agent = pay_app([seen, Logs(steps=False)], EVENTS, store)
    async with on_temporal(temporal.address)(ai):
        await eventful(ai, agent)
    await ai.aclose()
    assert [(s.name, s.facts["outcome"]) for s in seen.of("turn")] == [("clerk", "interrupted"), ("clerk", "stop")]
    assert [s.name for s in seen.of("tool")] == ["flaky", "flaky", "broken", "pay", "pay"]
    assert [s.name for s in seen.of("pause")] == ["pay"]
    assert [s.name for s in seen.of("correction")] == ["tool_error", "arguments", "unknown_tool"]
    assert [s.name for s in seen.of("retry")] == ["flaky"]
    assert [(f["verb"], f["outcome"]) for f in seen.facts("decision")] == [
        ("restart", "accepted"),
        ("decline", "refused"),
    ]
    turns = {(f["session_id"], f["turn_id"]) for f in seen.facts("turn")}
    assert len(turns) == 1
    for step in seen.seen:
        if step.kind in ("model", "tool", "pause", "correction", "retry"):
            assert (step.facts["session_id"], step.facts["turn_id"]) in turns, step
        assert CANARY not in repr((step.name, step.facts, step.links))


async def test_what_the_workers_do_is_within_the_span_of_the_turn(temporal: Server, tmp_path: object) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    store = SQLiteStore(f"{tmp_path}/traced.db")
    ai, agent = pay_app([Tracing(provider)], [pay(), "done"], store)
    async with on_temporal(temporal.address)(ai):
        session = agent.connect(AgentInit(session_id="s"))
        await session.send("go").output
        await session.interrupts[0].restart().output
    await ai.aclose()
    provider.shutdown()
    spans = exporter.get_finished_spans()
    first, second = [s for s in spans if s.name == "invoke_agent clerk"]
    at = first.get_span_context()
    assert at is not None
    assert [link.context.span_id for link in second.links] == [at.span_id]
    within = {s.name for s in spans if s.parent is not None and s.parent.span_id == at.span_id}
    assert within == {"chat scripted", "execute_tool pay"}
