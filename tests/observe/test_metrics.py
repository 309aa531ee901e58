"""The numbers: what counts as what, for Prometheus and for OpenTelemetry, and that labels stay few."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from adjourn import Adjourn, Interrupt, LimitReached, Limits, MemoryStore
from adjourn.errors import StoreUnavailable
from adjourn.metrics import GENERATE, METRICS, OTHER, Metrics, otel_metrics
from adjourn.model import ModelReply
from adjourn.observe import Observed, Watched, tell
from adjourn.parts import Message, Part
from adjourn.promise import Promise
from adjourn.store import Store
from adjourn.testing import FakeClock, ScriptedModel, call
from observe.observe_kit import CANARY, EVENTS, USED, advance, eventful, pay, pay_app

Numbers = dict[str, dict[tuple[str, ...], float]]


def numbers(text: bytes | str) -> Numbers:
    """Samples by name and then by label values in the order of the label names, without `le`."""
    out: Numbers = {}
    for family in text_string_to_metric_families(text.decode() if isinstance(text, bytes) else text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                values = tuple(v for _, v in sorted(sample.labels.items()))
                out.setdefault(sample.name, {})[values] = sample.value
    return out


async def test_an_eventful_turn_in_numbers() -> None:
    metrics = Metrics()
    ai, agent = pay_app([metrics], EVENTS)
    await eventful(ai, agent)
    got = numbers(metrics.render())
    assert got["adjourn_turns_total"] == {("clerk", "interrupted"): 1, ("clerk", "stop"): 1}
    assert got["adjourn_turns_running"] == {("clerk",): 0}
    assert got["adjourn_turn_duration_seconds_count"] == {("clerk",): 2}
    assert got["adjourn_model_duration_seconds_count"] == {("scripted", "ok"): 6}
    assert got["adjourn_tool_duration_seconds_count"] == {
        ("error", "flaky"): 1,
        ("ok", "flaky"): 1,
        ("error", "broken"): 1,
        ("paused", "pay"): 1,
        ("ok", "pay"): 1,
    }
    assert got["adjourn_pauses_total"] == {("tool", "pay"): 1}
    assert got["adjourn_decisions_total"] == {("person", "accepted", "restart"): 1, ("person", "refused", "decline"): 1}
    assert got["adjourn_decision_wait_seconds_sum"] == {("person", "pay"): 3600}
    assert got["adjourn_corrections_total"] == {
        ("tool_error", "broken"): 1,
        ("arguments", "pay"): 1,
        ("unknown_tool", ""): 1,
    }
    assert got["adjourn_retries_total"] == {("ValueError", "flaky", "tool"): 1}
    assert got["adjourn_store_duration_seconds_count"][("commit", "ok")] > 2
    assert "adjourn_limits_reached_total" not in got


async def test_tokens_are_counted_by_model_and_kind() -> None:
    metrics = Metrics()
    model = ScriptedModel([ModelReply(Message("model", [Part(text="a")]), "stop", USED)] * 2, name="prov/m")
    ai = Adjourn(observers=[metrics], model=model)
    await ai.generate("one")
    await ai.generate("two")
    got = numbers(metrics.render())
    tokens = {
        ("input", "prov/m"): 240,
        ("output", "prov/m"): 60,
        ("cached", "prov/m"): 200,
        ("reasoning", "prov/m"): 20,
    }
    assert got["adjourn_tokens_total"] == tokens
    assert got["adjourn_turns_total"] == {(GENERATE, "stop"): 2}


async def test_a_stuck_loop_and_a_failing_model_are_counted() -> None:
    metrics = Metrics()
    ai = Adjourn(observers=[metrics], model=ScriptedModel([call("no", {})], repeat_last=True), limits=Limits())
    with pytest.raises(LimitReached):
        await ai.generate("go", tools=[])
    broken = ScriptedModel([RuntimeError("down")], name="x")
    with pytest.raises(Exception, match="down"):
        await ai.define_agent("a", model=broken).connect().send("go").output
    got = numbers(metrics.render())
    assert got["adjourn_limits_reached_total"] == {(GENERATE, "argument_errors"): 1}
    assert got["adjourn_turns_total"] == {(GENERATE, "failed"): 1, ("a", "failed"): 1}
    assert got["adjourn_model_duration_seconds_count"][("x", "error")] == 1


async def test_what_waits_is_read_from_the_store_at_each_scrape() -> None:
    store = MemoryStore()
    _, gone = pay_app([], [pay()], store)
    await gone.connect().send("go").output  # by a process that has an agent "clerk"
    metrics = Metrics()
    ai = Adjourn(observers=[metrics], model=ScriptedModel([call("ask", {}), "done"]), clock=FakeClock())

    @ai.tool()
    async def ask() -> str:
        raise Interrupt("sure?")

    agent = ai.define_agent("here", store=store)
    metrics.follow(ai)
    session = agent.connect()
    await session.send("go").output
    advance(ai, 90)
    got = numbers(await metrics.scrape())
    assert got["adjourn_pauses_open"] == {("here",): 1, (OTHER,): 1}
    assert got["adjourn_pauses_oldest_age_seconds"] == {(): 90}
    await session.interrupts[0].respond("yes").output
    assert numbers(metrics.render())["adjourn_pauses_open"] == {("here",): 0, (OTHER,): 1}


class Down(MemoryStore):
    """A store that cannot be reached."""

    def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Promise[Any]:
        raise StoreUnavailable("down")


async def test_a_store_that_does_not_answer_costs_its_gauges_and_nothing_else() -> None:
    metrics = Metrics()
    ai = Adjourn(observers=[metrics], model=ScriptedModel(["hi"]), stores=[Down()])
    metrics.follow(ai)
    await ai.generate("go")
    got = numbers(metrics.render())
    assert got["adjourn_turns_total"] == {(GENERATE, "stop"): 1}
    assert numbers(metrics.render())["adjourn_scrape_failures_total"] == {(): 2}
    assert "adjourn_pauses_open" not in got


async def test_a_failing_store_is_seen_in_its_latency() -> None:
    class Breaking(MemoryStore):
        def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Promise[Any]:
            def broken(tx: Any) -> Any:
                raise StoreUnavailable("disk full")

            return super().submit(broken, read=read)

    metrics = Metrics()
    ai = Adjourn(observers=[metrics], model=ScriptedModel(["hi"]))
    with pytest.raises(StoreUnavailable):
        await ai.define_agent("a", store=Breaking()).connect().send("go").output
    assert numbers(metrics.render())["adjourn_store_duration_seconds_count"] == {("commit", "error"): 1}


async def test_no_label_takes_more_values_than_allowed() -> None:
    metrics = Metrics(max_values=5)
    for i in range(40):
        with Watched([metrics], Observed("turn", f"agent{i}", {"agent": f"agent{i}", "outcome": "stop"})):
            pass
        tell([metrics], Observed("pause", f"tool{i}", {"reason": f"reason{i}"}))
        tell([metrics], Observed("retry", f"tool{i}", {"of": "tool", "error": f"Error{i}"}))
    got = numbers(metrics.render())
    assert got["adjourn_turns_total"][(OTHER, "stop")] == 35
    assert got["adjourn_turns_running"][(OTHER,)] == 0
    for name, samples in got.items():
        for place in range(3):
            assert len({values[place] for values in samples if place < len(values)}) <= 6, name
        assert len(samples) < 40, name


async def test_no_id_and_no_content_is_exported() -> None:
    metrics = Metrics()
    ai, agent = pay_app([metrics], EVENTS)
    metrics.follow(ai)
    await eventful(ai, agent)
    [row] = (await ai.inbox.list(status=None)).items
    text = (await metrics.scrape()).decode()
    for secret in (CANARY, "nosuch", row.id, row.session_id, row.turn_id, row.call_id):
        assert secret not in text


def test_the_text_is_what_prometheus_reads_and_every_metric_is_described() -> None:
    metrics = Metrics()
    assert metrics.content_type.startswith("text/plain; version=")
    families = list(text_string_to_metric_families(metrics.render().decode()))
    assert [f.name for f in families] == [m.prometheus for m in METRICS]
    assert [f.type for f in families] == [m.kind for m in METRICS]
    assert all(f.documentation for f in families)


async def test_buckets_are_cumulative_and_end_with_all() -> None:
    metrics = Metrics()
    for seconds in (0.5, 30.0, 30.0, 10_000_000.0):
        tell([metrics], Observed("decision", "t", {"verb": "respond", "by_kind": "person", "outcome": "accepted"}))
        facts = {"verb": "respond", "by_kind": "person", "outcome": "accepted", "seconds": seconds}
        tell([metrics], Observed("decision", "t", facts))
    [family] = [
        f
        for f in text_string_to_metric_families(metrics.render().decode())
        if f.name == "adjourn_decision_wait_seconds"
    ]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert (buckets["1.0"], buckets["60.0"], buckets["2592000.0"], buckets["+Inf"]) == (1, 3, 3, 4)
    assert list(buckets.values()) == sorted(buckets.values())


def test_it_can_join_a_registry_that_is_there_already() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    tell([metrics], Observed("pause", "t", {"reason": "tool"}))
    assert b'adjourn_pauses_total{reason="tool",tool="t"} 1.0' in generate_latest(registry)


def test_counting_from_many_threads_loses_nothing() -> None:
    metrics = Metrics()

    def count() -> None:
        for _ in range(500):
            tell([metrics], Observed("pause", "t", {"reason": "tool"}))
            tell([metrics], Observed("store", "commit", {"seconds": 0.001}))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = numbers(metrics.render())
    assert got["adjourn_pauses_total"] == {("tool", "t"): 4000}
    assert got["adjourn_store_duration_seconds_count"] == {("commit", "ok"): 4000}


# -- OpenTelemetry ---------------------------------------------------------------------------------------------------


def otel_names(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    return {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}


async def test_opentelemetry_gets_the_same_numbers_under_the_same_names() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = Metrics()
    ai, agent = pay_app([metrics, otel_metrics(provider)], EVENTS)
    await eventful(ai, agent)
    found = otel_names(reader)
    wanted = numbers(metrics.render())
    provider.shutdown()
    assert set(found) <= {m.name for m in METRICS}
    for metric in METRICS:
        if metric.kind == "counter" and metric.name in found:
            order = sorted(metric.labels)
            points = {tuple(p.attributes[k] for k in order): p.value for p in found[metric.name].data.data_points}
            assert points == wanted[metric.prometheus + "_total"], metric.name
        elif metric.kind == "histogram" and metric.name in found:
            order = sorted(metric.labels)
            points = {tuple(p.attributes[k] for k in order): p.count for p in found[metric.name].data.data_points}
            assert points == wanted[metric.prometheus + "_count"], metric.name
            assert tuple(found[metric.name].data.data_points[0].explicit_bounds) == metric.buckets
            assert found[metric.name].unit == "s"


async def test_an_exporter_for_prometheus_makes_the_same_names_of_them() -> None:
    reader = PrometheusMetricReader(disable_target_info=True)
    provider = MeterProvider([reader])
    observer, metrics = otel_metrics(provider), Metrics()
    ai, agent = pay_app([observer, metrics], EVENTS)
    await eventful(ai, agent)
    theirs = _exported(reader._collector.collect())  # pyright: ignore[reportPrivateUsage]
    provider.shutdown()
    ours = {name for name in numbers(metrics.render()) if name != "adjourn_scrape_failures_total"}
    assert {n for n in theirs if not n.endswith("_bucket")} == ours


def _exported(families: Iterable[Any]) -> set[str]:
    return {sample.name for family in families for sample in family.samples}


async def test_labels_stay_few_in_opentelemetry_too() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observer = otel_metrics(provider, max_values=3)
    for i in range(20):
        tell([observer], Observed("pause", f"tool{i}", {"reason": "tool"}))
    points = otel_names(reader)["adjourn.pauses"].data.data_points
    provider.shutdown()
    assert sorted(p.attributes["tool"] for p in points) == [OTHER, "tool0", "tool1", "tool2"]
    assert sum(p.value for p in points) == 20


async def test_a_scrape_does_not_hold_up_the_event_loop() -> None:
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(MemoryStore):
        def submit(self, work: Callable[[Any], Any], *, read: bool = False) -> Promise[Any]:
            asyncio.run_coroutine_threadsafe(_set(answered), loop).result(10)  # done only if the loop still runs
            return super().submit(work, read=read)

    metrics = Metrics()
    stores: list[Store] = [Slow()]
    metrics.follow(Adjourn(stores=stores))
    await metrics.scrape()
    assert answered.is_set()


async def _set(event: asyncio.Event) -> None:
    event.set()
