"""`worker` and `serve` send what OpenTelemetry's own variables ask for, and log with the ids of the turn."""

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from adjourn import MemoryStore
from adjourn.cli import telemetry
from adjourn.cli.engine import Logging
from adjourn.logs import Logs
from cli.cli_kit import APP, SECONDS, Shop, read_until
from cli.shop_app import build

Process = subprocess.Popen[str]


class Collector:
    """Takes what is sent by OTLP over HTTP."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.sent.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def spans(self) -> list[tuple[str, str]]:
        """The service and the name of each span."""
        out: list[tuple[str, str]] = []
        for path, body in list(self.sent):
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    named = {a.key: a.value.string_value for a in resource.resource.attributes}
                    out += [(named["service.name"], s.name) for scope in resource.scope_spans for s in scope.spans]
        return out

    def metrics(self) -> set[str]:
        bodies = [ExportMetricsServiceRequest.FromString(b) for p, b in list(self.sent) if p == "/v1/metrics"]
        return {m.name for b in bodies for r in b.resource_metrics for s in r.scope_metrics for m in s.metrics}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_a_worker_sends_spans_and_metrics_where_the_environment_says(
    shop: Shop, started: list[Process], collector: Collector
) -> None:
    shop.say("pay 5")
    assert shop("restart", shop.waiting()[0].id).code == 0
    worker = shop.start("worker", APP, "--poll", "60", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    started.append(worker)
    read_until(worker, "rests")
    worker.send_signal(signal.SIGTERM)
    read_until(worker, "stopped")
    assert worker.wait(SECONDS) == 0
    names = [name for service, name in collector.spans() if service == "adjourn"]
    assert any(name.startswith("invoke_agent") for name in names)
    assert any(name.startswith("execute_tool") for name in names)
    assert {"adjourn.turns", "adjourn.tool.duration"} <= collector.metrics()
    assert b"pay 5" not in b"".join(body for _, body in collector.sent)


def test_a_worker_logs_what_happens_as_json_with_the_ids_of_the_turn(shop: Shop, started: list[Process]) -> None:
    session = shop.say("pay 5")
    assert shop("restart", shop.waiting()[0].id).code == 0
    worker = shop.start("worker", APP, "--poll", "60", "--log-json", "--log-level", "info")
    started.append(worker)
    line = json.loads(read_until(worker, '"adjourn.turn"').splitlines()[-1])
    assert line["logger"] == "adjourn.turn"
    assert line["turn_id"]
    assert line["session_id"] == session


@pytest.mark.parametrize(
    "env,traces,metrics",
    [
        ({}, [], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ["otlp"], ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, ["otlp"], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"}, ["otlp"], []),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp", "console"], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"}, [], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, [], []),
    ],
    ids=["nothing", "endpoint", "traces only", "none", "two", "disabled", "blank"],
)
def test_what_the_environment_asks_for(env: dict[str, str], traces: list[str], metrics: list[str]) -> None:
    assert (telemetry.wanted("traces", env), telemetry.wanted("metrics", env)) == (traces, metrics)


def test_without_the_variables_nothing_is_imported_and_no_observer_added(shop: Shop) -> None:
    code = (
        "import sys; from adjourn import Adjourn; from adjourn.cli import telemetry; ai = Adjourn();"
        "telemetry.set_up(ai)(); print(ai.observers, any(m.startswith('opentelemetry') for m in sys.modules))"
    )
    env = {k: v for k, v in shop.env({}).items() if not k.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "() False"


def test_a_missing_exporter_and_a_missing_sdk_are_told_and_turns_go_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ai = build(MemoryStore())
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with caplog.at_level(logging.WARNING):
        telemetry.set_up(ai)()
    assert "carrier-pigeon" in caplog.text
    caplog.clear()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with caplog.at_level(logging.WARNING):
        telemetry.set_up(ai)()
    assert "adjourn[otel]" in caplog.text
    assert ai.observers == ()


def test_an_application_that_logs_by_itself_is_not_logged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[Any] = []

    def configure(**given: Any) -> None:
        configured.append(given)

    monkeypatch.setattr("adjourn.cli.engine.configure", configure)
    ai = build(MemoryStore())
    own = Logs(steps=False)
    ai.observers = (own,)
    Logging("info", log_json=True).apply(ai)
    assert ai.observers == (own,)
    ai.observers = ()
    Logging("info", log_json=True).apply(ai)
    assert [type(o) for o in ai.observers] == [Logs]
    assert configured == [{"json": True, "level": "INFO"}] * 2
