"""A hook round each step of a turn, for tracing, metrics and logs. It costs nothing while nobody listens."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Literal, TypeAlias

import msgspec

StepKind = Literal["model", "tool"]


class Observed(msgspec.Struct):
    """One step. `facts` are names and numbers (tool, model, attempt, session_id ...), never content.

    `result` is filled in when the step is over: the reply, the outcome or the error.
    """

    kind: StepKind
    name: str
    facts: dict[str, Any]
    result: Any = None


Observer: TypeAlias = Callable[[Observed], AbstractContextManager[Any] | None]


def observed(observers: Sequence[Observer], step: Observed) -> AbstractContextManager[Any]:
    """Enters what the observers return for this step; the first is outermost. An observer's own error is the caller's."""
    if not observers:
        return nullcontext()
    stack = ExitStack()
    for observer in observers:
        context = observer(step)
        if context is not None:
            stack.enter_context(context)
    return stack
