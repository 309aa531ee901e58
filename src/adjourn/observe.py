"""A hook round each step of a turn, for tracing, metrics and logs. It costs nothing while nobody listens."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

import msgspec

StepKind = Literal["model", "tool"]

_log = logging.getLogger("adjourn")


class Observed(msgspec.Struct):
    """One step. `facts` are names and numbers (tool, model, attempt, session_id ...), never content.

    `result` is filled in when the step is over: the reply, the outcome or the error.
    """

    kind: StepKind
    name: str
    facts: dict[str, Any]
    result: Any = None


Observer: TypeAlias = Callable[[Observed], AbstractContextManager[Any] | None]


class Watched:
    """Enters what the observers return for a step; the first is outermost.

    An observer that raises is logged: watching a step must neither void it nor make it happen again.
    """

    __slots__ = ("_entered", "_observers", "_step")

    def __init__(self, observers: Sequence[Observer], step: Observed) -> None:
        self._observers = observers
        self._step = step
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> Observed:
        for observer in self._observers:
            try:
                context = observer(self._step)
                if context is not None:
                    context.__enter__()
                    self._entered.append(context)
            except Exception:  # noqa: BLE001 - logged
                _log.exception("an observer failed at the start of %s %r", self._step.kind, self._step.name)
        return self._step

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        for context in reversed(self._entered):
            try:
                context.__exit__(kind, error, trace)
            except Exception:  # noqa: BLE001 - logged
                _log.exception("an observer failed at the end of %s %r", self._step.kind, self._step.name)
