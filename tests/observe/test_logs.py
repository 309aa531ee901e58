"""Log records: the ids they carry, what they must not hold, and that nothing is printed unless it is asked for."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from adjourn import Adjourn, AgentInit, Interrupt, MemoryStore, ToolRunContext
from adjourn.logs import Ids, JSONFormatter, Logs, TextFormatter, configure
from adjourn.testing import ScriptedModel, call
from adjourn.tracing import Tracing
from observe.observe_kit import CANARY, EVENTS, eventful, pay_app

log = logging.getLogger("shop.tools")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_a_users_own_lines_in_a_tool_carry_the_ids_of_turn_call_interrupt_and_trace() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    provider = TracerProvider()
    ai = Adjourn(observers=[Tracing(provider), Logs(steps=False)], model=ScriptedModel([call("work", {}), "done"]))

    @ai.tool()
    def work(ctx: ToolRunContext) -> str:  # in a thread
        log.info("working", extra={"order": 17})
        if not ctx.is_resumed():
            raise Interrupt("sure?")
        return "ok"

    session = ai.define_agent("clerk", store=MemoryStore()).connect(AgentInit(session_id="s1"))
    paused = await session.send("go").output
    log.info("between")
    interrupt = session.interrupts[0]
    resumed = await interrupt.restart().output
    provider.shutdown()
    first, between, second = lines(stream)
    assert (
        first
        | {
            "level": "INFO",
            "logger": "shop.tools",
            "message": "working",
            "order": 17,
            "agent": "clerk",
            "session_id": "s1",
            "turn_id": paused.snapshot_id,
            "snapshot_id": paused.snapshot_id,
            "tool": "work",
        }
        == first
    )
    assert "interrupt_id" not in first
    assert (second["interrupt_id"], second["snapshot_id"]) == (interrupt.id, resumed.snapshot_id)
    assert second["turn_id"] == paused.snapshot_id
    assert len(first["trace_id"]) == 32
    assert len(first["span_id"]) == 16
    assert first["trace_id"] != second["trace_id"]
    assert set(between) == {"time", "level", "logger", "message"}
    assert first["time"].endswith("Z")


async def test_each_step_and_notice_is_a_record_at_its_level() -> None:
    stream = io.StringIO()
    configure(stream=stream, level="DEBUG")
    ai, agent = pay_app([Logs()], EVENTS)
    await eventful(ai, agent)
    found = [(r["level"], r["logger"], r["message"]) for r in lines(stream) if r["logger"].startswith("adjourn.")]
    for wanted in (
        ("INFO", "adjourn.turn", "turn clerk interrupted"),
        ("INFO", "adjourn.turn", "turn clerk stop"),
        ("DEBUG", "adjourn.model", "model scripted ok"),
        ("DEBUG", "adjourn.tool", "tool pay paused"),
        ("WARNING", "adjourn.tool", "tool broken error"),
        ("INFO", "adjourn.pause", "pause pay"),
        ("INFO", "adjourn.decision", "decision pay accepted"),
        ("WARNING", "adjourn.decision", "decision pay refused"),
        ("INFO", "adjourn.correction", "correction arguments"),
        ("WARNING", "adjourn.retry", "retry flaky"),
        ("DEBUG", "adjourn.store", "store commit"),
    ):
        assert wanted in found, wanted
    assert len([f for f in found if f[1] == "adjourn.pause"]) == 1


async def test_a_notice_has_the_ids_of_what_it_is_about() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    ai, agent = pay_app([Logs()], EVENTS)
    await eventful(ai, agent)
    pause = next(r for r in lines(stream) if r["logger"] == "adjourn.pause")
    decision = next(r for r in lines(stream) if r["logger"] == "adjourn.decision")
    for name in ("session_id", "turn_id", "snapshot_id", "interrupt_id", "call_id", "tool", "agent"):
        assert pause[name] == decision[name], name
    assert (decision["verb"], decision["by_kind"], decision["seconds"]) == ("restart", "person", 3600)
    assert decision["event"] == "decision"


@pytest.mark.parametrize("json_lines", [True, False], ids=["json", "text"])
async def test_no_content_is_logged(json_lines: bool) -> None:
    stream = io.StringIO()
    configure(stream=stream, level="DEBUG", json=json_lines)
    ai, agent = pay_app([Logs(), _failing], EVENTS)
    await eventful(ai, agent)
    text = stream.getvalue()
    assert text.count("an observer failed") > 5
    assert CANARY not in text
    assert "RuntimeError" in text
    assert "test_logs.py" in text


def _failing(step: Any) -> None:
    raise RuntimeError(f"about {step.given} {CANARY}")


def test_a_traceback_is_written_when_it_is_asked_for() -> None:
    stream = io.StringIO()
    for json_lines in (True, False):
        configure(stream=stream, json=json_lines, tracebacks=True)
        try:
            raise ValueError(CANARY)
        except ValueError:
            log.exception("it failed")
    first, rest = stream.getvalue().split("\n", 1)
    assert CANARY in json.loads(first)["exception"]
    assert f"ValueError: {CANARY}" in rest


def record(message: str = "hello", **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "x", "levelname": "INFO", "levelno": 20, "msg": message, **extra})
    Ids().filter(made)
    return made


def test_a_line_is_one_line_of_json_whatever_is_in_it() -> None:
    loop: list[Any] = []
    loop.append(loop)
    odd = {"nan": float("nan"), "thing": object(), "half": "\ud800", "nested": {1: {"a": {2}}}, "loop": loop, "b": b"x"}
    for name, value in odd.items():
        text = JSONFormatter().format(record("line\nbreak \u2028 \x1b[31m", **{name: value}))
        assert "\n" not in text, name
        assert name in json.loads(text), name
    assert json.loads(JSONFormatter().format(record(odd=7)))["odd"] == 7


def test_what_a_record_says_itself_is_not_overwritten_by_the_ids_around() -> None:
    given = record(session_id="mine", adjourn={"session_id": "theirs", "message": "other", "level": "odd"})
    shown = json.loads(JSONFormatter().format(given))
    assert (shown["session_id"], shown["message"], shown["level"]) == ("mine", "hello", "INFO")


def test_an_id_in_a_text_line_cannot_begin_another_line() -> None:
    text = TextFormatter().format(record(session_id="s1\nERROR forged \x1b[2J"))
    assert "\n" not in text
    assert "\x1b" not in text
    assert "session=s1 ERROR forged" in text


def test_a_format_of_ones_own_can_use_the_ids() -> None:
    made = record(session_id="s1")
    assert logging.Formatter("%(session_id)s %(trace_id)s|%(message)s").format(made) == "s1 |hello"


def test_configuring_twice_writes_each_line_once_and_leaves_other_handlers() -> None:
    mine = logging.NullHandler()
    logging.getLogger().addHandler(mine)
    first, second = io.StringIO(), io.StringIO()
    configure(stream=first)
    handler = configure(stream=second, level="WARNING")
    log.info("too little")
    log.warning("enough")
    assert first.getvalue() == ""
    assert [r["message"] for r in lines(second)] == ["enough"]
    assert {mine, handler} <= set(logging.getLogger().handlers)


QUIET = """
import logging, adjourn
from adjourn.observe import Observed, tell
def bad(step): raise RuntimeError("bad")
tell([bad], Observed("pause", "x", {}))
logging.getLogger("adjourn.stores").error("something")
"""


def test_nothing_is_printed_by_a_program_that_configures_no_logging() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


LAZY = """
import sys, adjourn, adjourn.observe, adjourn.logs, adjourn.metrics
print([m for m in ("opentelemetry", "prometheus_client") if m in sys.modules])
"""


def test_neither_tracer_nor_prometheus_is_imported_before_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


WITHOUT = """
import sys
for gone in ("opentelemetry", "prometheus_client"):
    sys.modules[gone] = None
from adjourn import MissingExtra
from adjourn.metrics import Metrics, otel_metrics
def tracing():
    import adjourn.tracing
for make in (Metrics, otel_metrics, tracing):
    try:
        make()
    except MissingExtra as e:
        print(e.extra, "pip install" in str(e))
"""


def test_without_the_extras_the_error_names_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["server True", "otel True", "otel True"]
