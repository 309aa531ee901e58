"""OpenTelemetry as the environment says: what its own variables (OTEL_…) ask for is set up, and nothing where none is set.

An application that sets it up by itself, with a provider or with observers of its own, is left alone.
"""

import logging
import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Literal

from adjourn.app import Adjourn

Signal = Literal["traces", "metrics"]

_log = logging.getLogger("adjourn.telemetry")

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def wanted(signal: Signal, env: Mapping[str, str]) -> list[str]:
    """The exporters that the environment names for this signal. An endpoint alone means OTLP, as its specification has it."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = env.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
    if not named:
        ends = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        named = "otlp" if any(env.get(e, "").strip() for e in ends) else ""
    return [n.strip() for n in named.split(",") if n.strip() not in ("", "none")]


def set_up(ai: Adjourn) -> Callable[[], None]:
    """Gives the application the observers that the environment asks for; returns what sends the rest at the end."""
    names: dict[Signal, list[str]] = {signal: wanted(signal, os.environ) for signal in ("traces", "metrics")}
    if not any(names.values()):
        return _nothing
    try:
        from opentelemetry.sdk.resources import Resource

        from adjourn.tracing import Tracing
    except ImportError as e:
        _log.warning("OTEL_… asks for telemetry, and nothing is sent: %s. pip install 'adjourn[otel]'", e)
        return _nothing
    given = {} if _is_named(os.environ) else {"service.name": "adjourn"}
    resource = Resource.create(given)
    ends: list[Callable[[], Any]] = []
    if names["traces"] and not any(isinstance(o, Tracing) for o in ai.observers):
        ends += _traces(ai, names["traces"], resource)
    if names["metrics"]:
        ends += _metrics(ai, names["metrics"], resource)

    def flush() -> None:
        for end in ends:
            end()

    return flush


def _traces(ai: Adjourn, names: list[str], resource: Any) -> list[Callable[[], Any]]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from adjourn.tracing import Tracing

    exporters = _made("traces", names)
    if not exporters or isinstance(trace.get_tracer_provider(), TracerProvider):
        return []
    provider = TracerProvider(resource=resource)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    ai.observers = (*ai.observers, Tracing(provider))
    return [provider.force_flush]


def _metrics(ai: Adjourn, names: list[str], resource: Any) -> list[Callable[[], Any]]:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    from adjourn.metrics import otel_metrics

    found = _made("metrics", names)
    if not found or isinstance(metrics.get_meter_provider(), MeterProvider):
        return []
    # A name may stand for an exporter, or for a reader that is asked, such as Prometheus'.
    readers = [f if isinstance(f, MetricReader) else PeriodicExportingMetricReader(f) for f in found]
    provider = MeterProvider(metric_readers=readers, resource=resource)
    metrics.set_meter_provider(provider)
    ai.observers = (*ai.observers, otel_metrics(provider))
    return [provider.force_flush]


def _made(signal: Signal, names: list[str]) -> list[Any]:
    """The exporters by these names, as far as they are installed."""
    out: list[Any] = []
    for name in names:
        entry = name
        if name == "otlp":
            own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
            protocol = own or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
            entry = _PROTOCOLS.get(protocol.strip(), protocol)
        found = [e for e in entry_points(group=f"opentelemetry_{signal}_exporter") if e.name == entry]
        if not found:
            _log.warning(
                "there is no exporter %r for %s here, so it gets nothing: install the package that has it",
                entry,
                signal,
            )
            continue
        try:
            out.append(found[0].load()())
        except Exception as e:  # noqa: BLE001 - whatever is wrong with it, turns run without it
            _log.warning("the exporter %r for %s cannot be used: %s: %s", entry, signal, type(e).__name__, e)
    return out


def _is_named(env: Mapping[str, str]) -> bool:
    given = [pair.partition("=")[0].strip() for pair in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")]
    return bool(env.get("OTEL_SERVICE_NAME", "").strip()) or "service.name" in given


def _nothing() -> None:
    """There is nothing to send."""
