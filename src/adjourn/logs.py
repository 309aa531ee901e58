"""Structured logs on the standard library's logging: what happens as log records, and ids on every record of a turn.

    logs.configure()                       # JSON lines on stderr, from this program and all its libraries
    ai = Adjourn(observers=[Logs()])

`Logs` is the observer: it writes a record for each step and notice (loggers `adjourn.turn`, `adjourn.pause` and so on),
and where it listens the records of a tool's own body carry its ids, too. Records hold ids, names and numbers, never what
was said, asked or answered. Without `configure` nothing is printed: the library's loggers have no handler that prints.
"""

import json as _stdlib_json
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from adjourn.display import one_line
from adjourn.observe import IDS, Kind, Observed, around
from adjourn.tool import Interrupt

__all__ = ["Ids", "JSONFormatter", "Logs", "TextFormatter", "configure"]

_FIELDS = (*IDS, "trace_id", "span_id")
_STANDARD = frozenset([*logging.makeLogRecord({}).__dict__, "message", "asctime", "adjourn", *_FIELDS])
_LEVELS: Mapping[Kind, int] = {
    "turn": logging.INFO,
    "model": logging.DEBUG,
    "tool": logging.DEBUG,
    "pause": logging.INFO,
    "decision": logging.INFO,
    "correction": logging.INFO,
    "limit": logging.WARNING,
    "retry": logging.WARNING,
    "takeover": logging.WARNING,
    "store": logging.DEBUG,
}


class Logs:
    """An observer that writes a record for each step, once it is over, and for each notice.

    A turn that failed or broke off, a refused decision, a limit, a retry and a takeover are warnings; pauses, decisions,
    corrections and ends of turns are INFO; models, tools and the store are DEBUG. With `steps=False` it writes nothing,
    and only what others write within a turn gets its ids.
    """

    def __init__(self, *, steps: bool = True) -> None:
        self._steps = steps

    def __call__(self, step: Observed) -> AbstractContextManager[Any] | None:
        if not self._steps:
            return None
        if step.kind in ("turn", "model", "tool"):
            return _Logged(step)
        worse = step.facts.get("outcome") == "refused" or not step.facts.get("ok", True)
        _write(step, logging.WARNING if worse else _LEVELS[step.kind], step.facts.get("outcome", ""), {})
        return None


class _Logged:
    __slots__ = ("_begun", "_step")

    def __init__(self, step: Observed) -> None:
        self._step = step
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        step, took = self._step, time.perf_counter() - self._begun
        outcome = step.facts.get("outcome") or ("ok" if kind is None else _ending(kind))
        level = logging.WARNING if outcome in ("failed", "lost", "error") else _LEVELS[step.kind]
        more: dict[str, Any] = {"seconds": round(took, 6)}
        if kind is not None and not issubclass(kind, Interrupt):
            more["error"] = kind.__name__
        _write(step, level, outcome, more)


def _ending(kind: type[BaseException]) -> str:
    if issubclass(kind, Interrupt):
        return "paused"
    return "error" if issubclass(kind, Exception) else "cancelled"


def _write(step: Observed, level: int, outcome: str, more: Mapping[str, Any]) -> None:
    logger = logging.getLogger(f"adjourn.{step.kind}")
    if not logger.isEnabledFor(level):
        return
    about = {"event": step.kind, "of": step.name, **step.facts, **more}
    if outcome:
        about["outcome"] = outcome
    text = " ".join([w for w in (step.kind, one_line(step.name), outcome) if w])
    logger.log(level, "%s", text, extra={"adjourn": about})


# -- ids -------------------------------------------------------------------------------------------------------------


class Ids(logging.Filter):
    """Puts the ids of the surrounding turn on each record that a handler gets: `session_id`, `turn_id`, `snapshot_id`,
    `interrupt_id`, `call_id`, `agent`, `tool`, and of OpenTelemetry's span `trace_id` and `span_id`. "" for none.

    It belongs on a handler, in the thread or task that logs; `configure` puts it there.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        ids = around()
        own: Mapping[str, Any] = getattr(
            record, "adjourn", {}
        )  # a notice may be about another turn than the one around
        for name in IDS:
            if not hasattr(record, name):
                setattr(record, name, own.get(name) or ids.get(name) or "")
        if not hasattr(record, "trace_id"):
            record.trace_id, record.span_id = _span()
        return True


def _span() -> tuple[str, str]:
    # Asked only where somebody else has imported it: logs alone need no OpenTelemetry.
    module: Any = sys.modules.get("opentelemetry.trace")
    if module is None:
        return "", ""
    context = module.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else ("", "")


# -- formats ---------------------------------------------------------------------------------------------------------


class JSONFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, the ids that there are, and what `extra=` brought.

    Of an exception it has the type and where it was raised. Its text may hold what a tool was working on, so it is left
    out; `tracebacks=True` writes the whole traceback.
    """

    def __init__(self, *, tracebacks: bool = False) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            value = getattr(record, name, "")
            if value:
                fields[name] = value
        about: Mapping[str, Any] = getattr(record, "adjourn", {})
        fields |= {k: v for k, v in about.items() if k not in fields}
        fields |= {k: v for k, v in record.__dict__.items() if k not in _STANDARD and k not in fields}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = self._exception(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return _line(fields)

    def _exception(self, info: Any) -> Any:
        if self._tracebacks:
            return self.formatException(info)
        return {"type": _name(info[0]), "raised_at": _places(info[2])}


class TextFormatter(logging.Formatter):
    """One line for people: time, level, logger, message, and the ids that there are. Exceptions as in `JSONFormatter`."""

    def __init__(self, *, tracebacks: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        # logging keeps the text of an exception on the record, for all handlers: theirs is not ours, and ours not theirs.
        kept, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = kept

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        ids = [(n.removesuffix("_id"), str(getattr(record, n, ""))) for n in _FIELDS]
        shown = " ".join([f"{name}={one_line(value)}" for name, value in ids if value])
        return super().formatMessage(record) + (f" [{shown}]" if shown else "")

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        if self._tracebacks:
            return super().formatException(ei)
        return f"{_name(ei[0])} raised at {' < '.join(reversed(_places(ei[2])))}"


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _places(traceback: Any) -> list[str]:
    """Where an exception came through, outermost first: files, lines and functions, no values."""
    out: list[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        out.append(f"{code.co_filename}:{traceback.tb_lineno} in {code.co_qualname}")
        traceback = traceback.tb_next
    return out[-20:]


def _line(fields: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(fields, enc_hook=repr).decode()
    except Exception:  # noqa: BLE001 - half a surrogate, a loop, a key that is no text: a record is not lost for that
        plain = {str(k): v if isinstance(v, (bool, int)) else str(v) for k, v in fields.items()}
        return _stdlib_json.dumps(plain)


def configure(
    *, json: bool = True, level: int | str = "INFO", stream: TextIO | None = None, tracebacks: bool = False
) -> logging.Handler:
    """Sends what the whole program logs, from `level` up, to `stream` (stderr), with ids; returns the handler.

    Call it once, where the program starts. Called again, it takes the place of the first call; handlers of yours stay.
    """
    handler = _Handler(stream)
    handler.addFilter(Ids())
    handler.setFormatter(JSONFormatter(tracebacks=tracebacks) if json else TextFormatter(tracebacks=tracebacks))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    return handler


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second `configure` knows it."""
