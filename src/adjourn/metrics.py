"""What happens, as numbers: `Metrics` for Prometheus, `otel_metrics` for OpenTelemetry. Both are observers.

    metrics = Metrics()
    ai = Adjourn(observers=[metrics])
    metrics.follow(ai)          # the gauges that are read from the stores
    body = metrics.render()     # for whoever serves /metrics, with metrics.content_type

The names in `METRICS` are stable: dashboards and alerts stand on them. Labels are names that a program gives to its own
parts, and a label takes no more than `max_values` of them; what comes after that is "(other)". No id is ever a label.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any, Literal, Protocol

import msgspec

from adjourn.clock import Clock
from adjourn.errors import MissingExtra
from adjourn.observe import Observed, Observer
from adjourn.store import InterruptQuery, Store, Tx
from adjourn.tool import Interrupt

__all__ = ["METRICS", "Metric", "Metrics", "otel_metrics"]

_log = logging.getLogger("adjourn.metrics")

OTHER = "(other)"
GENERATE = "(generate)"
"""The agent of a `generate`, which has none."""


class Metric(msgspec.Struct, frozen=True, eq=False):
    """One metric. `name` is the one that OpenTelemetry has; `prometheus` is what it becomes there."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """Without the `_total` that a counter's samples end in."""
        return self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")


_RUN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_WAIT = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0, 2592000.0)
_STORE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

TURNS = Metric(
    "adjourn.turns", "counter", "Legs of turns, by how they came to rest (interrupted: paused)", ("agent", "outcome")
)
RUNNING = Metric("adjourn.turns.running", "gauge", "Legs of turns that run in this process", ("agent",))
TURN = Metric("adjourn.turn.duration", "histogram", "Running time of a leg of a turn", ("agent",), "s", _RUN)
MODEL = Metric("adjourn.model.duration", "histogram", "Time of a model call", ("model", "outcome"), "s", _RUN)
TOOL = Metric("adjourn.tool.duration", "histogram", "Time of an attempt of a tool", ("tool", "outcome"), "s", _RUN)
TOKENS = Metric(
    "adjourn.tokens",
    "counter",
    "Tokens; cached is a share of input and reasoning one of output",
    ("model", "kind"),
)
PAUSES = Metric("adjourn.pauses", "counter", "Calls that began to wait for a decision", ("tool", "reason"))
DECISIONS = Metric("adjourn.decisions", "counter", "Decisions on pauses", ("verb", "outcome", "by"))
WAIT = Metric("adjourn.decision.wait", "histogram", "Time from a pause to its decision", ("tool", "by"), "s", _WAIT)
CORRECTIONS = Metric("adjourn.corrections", "counter", "What went back to the model to mend", ("kind", "tool"))
LIMITS = Metric("adjourn.limits.reached", "counter", "Turns that a bound stopped, stuck loops too", ("agent", "limit"))
RETRIES = Metric("adjourn.retries", "counter", "Attempts that failed and were made again", ("of", "name", "error"))
TAKEOVERS = Metric("adjourn.lease.takeovers", "counter", "Legs taken over from a driver that was gone", ("agent",))
STORE = Metric("adjourn.store.duration", "histogram", "Time of a store's answer", ("operation", "outcome"), "s", _STORE)
OPEN = Metric("adjourn.pauses.open", "gauge", "Calls that wait for a decision, from the store", ("agent",))
OLDEST = Metric("adjourn.pauses.oldest.age", "gauge", "Age of the pause that has waited longest", (), "s")
SCRAPES = Metric("adjourn.scrape.failures", "counter", "Stores that could not be asked for the gauges")

METRICS: tuple[Metric, ...] = (
    TURNS, RUNNING, TURN, MODEL, TOOL, TOKENS, PAUSES, DECISIONS, WAIT, CORRECTIONS, LIMITS, RETRIES, TAKEOVERS, STORE,
    OPEN, OLDEST, SCRAPES,
)  # fmt: skip


class Sink(Protocol):
    """Where the numbers go. `values` are those of the metric's labels, in order."""

    def add(self, metric: Metric, amount: float, values: tuple[str, ...]) -> None: ...

    def measure(self, metric: Metric, value: float, values: tuple[str, ...]) -> None: ...


class _Measuring:
    """The observer behind both kinds: what a step or notice amounts to in numbers."""

    def __init__(self, sink: Sink, max_values: int) -> None:
        self._sink = sink
        self._max = max_values
        self._known: dict[str, set[str]] = {}

    def __call__(self, step: Observed) -> AbstractContextManager[Any] | None:
        if step.kind in ("turn", "model", "tool"):
            return _Timed(self, step)
        _NOTICES[step.kind](self, step)
        return None

    def add(self, metric: Metric, *values: Any, amount: float = 1) -> None:
        self._sink.add(metric, amount, self._bounded(metric, values))

    def measure(self, metric: Metric, value: float, *values: Any) -> None:
        self._sink.measure(metric, value, self._bounded(metric, values))

    def _bounded(self, metric: Metric, values: tuple[Any, ...]) -> tuple[str, ...]:
        return tuple([self._one(label, str(value)) for label, value in zip(metric.labels, values, strict=True)])

    def _one(self, label: str, value: str) -> str:
        known = self._known.setdefault(label, set())
        if value in known:
            return value
        if len(known) >= self._max:
            return OTHER
        known.add(value)
        return value

    # -- what happened

    def ended(self, step: Observed, took: float, raised: type[BaseException] | None) -> None:
        facts = step.facts
        if step.kind == "turn":
            agent = step.name or GENERATE
            self.add(TURNS, agent, facts.get("outcome") or "lost")
            self.measure(TURN, took, agent)
        elif step.kind == "tool":
            self.measure(TOOL, took, step.name, _outcome(raised))
        else:
            self.measure(MODEL, took, step.name, _outcome(raised))
            for kind in ("input", "output", "cached", "reasoning"):
                tokens = facts.get(f"{kind}_tokens")
                if tokens:
                    self.add(TOKENS, step.name, kind, amount=tokens)

    def running(self, step: Observed, change: int) -> None:
        if step.kind == "turn":
            self.add(RUNNING, step.name or GENERATE, amount=change)

    def paused(self, step: Observed) -> None:
        self.add(PAUSES, step.name, step.facts.get("reason", ""))

    def decided(self, step: Observed) -> None:
        facts = step.facts
        verb, by = facts["verb"], facts["by_kind"]
        self.add(DECISIONS, verb, facts["outcome"], by)
        seconds = facts.get("seconds")
        if seconds is not None and verb != "expire":  # nobody decided
            self.measure(WAIT, seconds, step.name, by)

    def corrected(self, step: Observed) -> None:
        self.add(CORRECTIONS, step.name, step.facts.get("tool", ""))

    def stopped(self, step: Observed) -> None:
        self.add(LIMITS, step.facts.get("agent") or GENERATE, step.name)

    def retried(self, step: Observed) -> None:
        self.add(RETRIES, step.facts["of"], step.name, step.facts["error"])

    def taken_over(self, step: Observed) -> None:
        self.add(TAKEOVERS, step.name)

    def stored(self, step: Observed) -> None:
        self.measure(STORE, step.facts["seconds"], step.name, "ok" if step.facts.get("ok", True) else "error")


_NOTICES: Mapping[str, Callable[[_Measuring, Observed], None]] = {
    "pause": _Measuring.paused,
    "decision": _Measuring.decided,
    "correction": _Measuring.corrected,
    "limit": _Measuring.stopped,
    "retry": _Measuring.retried,
    "takeover": _Measuring.taken_over,
    "store": _Measuring.stored,
}


class _Timed:
    __slots__ = ("_begun", "_measuring", "_step")

    def __init__(self, measuring: _Measuring, step: Observed) -> None:
        self._measuring = measuring
        self._step = step
        self._begun = 0.0

    def __enter__(self) -> None:
        self._measuring.running(self._step, 1)
        self._begun = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._measuring.running(self._step, -1)
        self._measuring.ended(self._step, time.perf_counter() - self._begun, kind)


def _outcome(raised: type[BaseException] | None) -> str:
    if raised is None:
        return "ok"
    if issubclass(raised, Interrupt):
        return "paused"
    return "error" if issubclass(raised, Exception) else "cancelled"


# -- Prometheus ------------------------------------------------------------------------------------------------------


class Followed(Protocol):
    """The application, as far as its gauges need it."""

    clock: Clock

    @property
    def agents(self) -> Mapping[str, Any]: ...

    def stores(self) -> Sequence[Store]: ...


class _Numbers:
    """The sink that keeps its numbers. prometheus-client only writes them out, so that counting takes one short lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sums: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self.counts: dict[tuple[Metric, tuple[str, ...]], list[int]] = {}

    def add(self, metric: Metric, amount: float, values: tuple[str, ...]) -> None:
        key = (metric, values)
        with self._lock:
            self.sums[key] = self.sums.get(key, 0.0) + amount

    def measure(self, metric: Metric, value: float, values: tuple[str, ...]) -> None:
        key = (metric, values)
        place = bisect_left(metric.buckets, value)
        with self._lock:
            counts = self.counts.get(key)
            if counts is None:
                counts = self.counts[key] = [0] * (len(metric.buckets) + 1)
            counts[place] += 1
            self.sums[key] = self.sums.get(key, 0.0) + value

    def copied(self) -> tuple[dict[Any, float], dict[Any, list[int]]]:
        with self._lock:
            return dict(self.sums), {k: list(v) for k, v in self.counts.items()}


class Metrics:
    """An observer that counts for Prometheus, in a registry of its own (or yours). Needs the `server` extra.

    One process, one Metrics: where several processes serve one application, each is scraped by itself. Only the gauges
    from the store are the same in all.
    """

    def __init__(self, registry: Any = None, *, max_values: int = 100) -> None:
        try:
            import prometheus_client
        except ImportError as e:
            raise MissingExtra("Metrics", "server") from e
        self._numbers = _Numbers()
        self._measuring = _Measuring(self._numbers, max_values)
        self._app: Followed | None = None
        self._registry: Any = registry if registry is not None else prometheus_client.CollectorRegistry()
        self._registry.register(self)
        self.content_type: str = prometheus_client.CONTENT_TYPE_LATEST

    def __call__(self, step: Observed) -> AbstractContextManager[Any] | None:
        return self._measuring(step)

    def follow(self, app: Followed) -> None:
        """From now on each `render` asks the application's stores what waits there."""
        self._app = app

    def render(self) -> bytes:
        """The text that Prometheus scrapes. It asks the stores, so it blocks: in an event loop use `await scrape()`."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    async def scrape(self) -> bytes:
        """The same, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(self.render)

    # What a registry calls: the collector protocol of prometheus-client.

    def describe(self) -> list[Any]:
        return []  # nothing is known of a name before it is collected, so registering asks no store

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        gauges = self._waiting()
        sums, counts = self._numbers.copied()
        sums |= gauges
        for metric in METRICS:
            name, text, labels = metric.prometheus, metric.help, metric.labels
            found = sorted([k for k in sums if k[0] is metric], key=lambda k: k[1])
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(name, text, labels=labels)
                for key in found:
                    histogram.add_metric(key[1], _buckets(metric, counts[key]), sums[key])
                yield histogram
            else:
                make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = make(name, text, labels=labels)
                for key in found:
                    family.add_metric(key[1], sums[key])
                if not labels and not found and metric.kind == "counter":
                    family.add_metric((), 0.0)
                yield family

    def _waiting(self) -> dict[tuple[Metric, tuple[str, ...]], float]:
        """The gauges, from the stores; of a store that does not answer, nothing."""
        app = self._app
        if app is None:
            return {}
        out: dict[tuple[Metric, tuple[str, ...]], float] = {}
        agents, oldest = tuple(app.agents), 0.0
        for store in app.stores():
            try:
                waiting, first = store.submit(lambda tx: _open(tx, agents), read=True).result(timeout=10.0)
            except Exception:  # noqa: BLE001 - whatever a store raises, the other numbers are still good
                _log.exception("a store could not be asked for what waits in it; the other metrics are exported")
                self._numbers.add(SCRAPES, 1, ())
                continue
            for agent, n in waiting.items():
                key = (OPEN, (agent,))
                out[key] = out.get(key, 0.0) + n
            if first is not None:
                oldest = max(oldest, app.clock.now() - first)
        out[(OLDEST, ())] = oldest
        return out


def _open(tx: Tx, agents: Sequence[str]) -> tuple[dict[str, int], float | None]:
    """How many calls of each agent wait, and since when the first does. Agents that are not defined here are one."""
    waiting = {name: tx.count(InterruptQuery(status="open", agent=name)) for name in agents}
    rest = tx.count(InterruptQuery(status="open")) - sum(waiting.values())
    if rest > 0:
        waiting[OTHER] = rest
    first = tx.interrupts(InterruptQuery(status="open", limit=1))
    return waiting, first[0].created if first else None


def _buckets(metric: Metric, counts: Sequence[int]) -> list[tuple[str, float]]:
    total, out = 0, list[tuple[str, float]]()
    for bound, n in zip([*metric.buckets, float("inf")], counts, strict=True):
        total += n
        out.append(("+Inf" if bound == float("inf") else repr(bound), total))
    return out


# -- OpenTelemetry ---------------------------------------------------------------------------------------------------


class _Instruments:
    """The sink that hands everything on to OpenTelemetry."""

    def __init__(self, meter: Any) -> None:
        self._instruments: dict[str, Any] = {}
        for metric in METRICS:
            if metric in (OPEN, OLDEST, SCRAPES):
                continue  # every worker would say the same; whoever serves the inbox says it once
            if metric.kind == "histogram":
                made = meter.create_histogram(
                    metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
                )
            elif metric.kind == "counter":
                made = meter.create_counter(metric.name, metric.unit, metric.help)
            else:
                made = meter.create_up_down_counter(metric.name, "", metric.help)
            self._instruments[metric.name] = made

    def add(self, metric: Metric, amount: float, values: tuple[str, ...]) -> None:
        self._instruments[metric.name].add(amount, dict(zip(metric.labels, values, strict=True)))

    def measure(self, metric: Metric, value: float, values: tuple[str, ...]) -> None:
        self._instruments[metric.name].record(value, dict(zip(metric.labels, values, strict=True)))


def otel_metrics(meter_provider: Any = None, *, max_values: int = 100) -> Observer:
    """An observer that counts through OpenTelemetry's metrics: the global provider, or this one. Needs the `otel` extra.

    For workers, which nobody scrapes. The names are those of `METRICS`; an exporter for Prometheus makes of them the same
    ones as `Metrics` has. The gauges from the store are not among them: they are exported where the inbox is served.
    """
    try:
        from opentelemetry import metrics
    except ImportError as e:
        raise MissingExtra("otel_metrics", "otel") from e

    provider = meter_provider if meter_provider is not None else metrics.get_meter_provider()
    return _Measuring(_Instruments(provider.get_meter("adjourn", version("adjourn"))), max_values)
