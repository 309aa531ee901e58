"""A hook round each step of a turn and at each thing worth noticing, for tracing, metrics and logs.

There is one mechanism. An observer is a function that gets an `Observed`. Some are *steps*, which take time: the observer
may return a context manager, which is entered before the step and left after it. The others are *notices*: they have
happened, and are durable where the session is.

    turn        one leg of an agent's turn, or one `generate`; `name` is the agent's, "" for a `generate`
    model       one call of a model; `name` is the model's
    tool        one attempt of a tool's body; `name` is the tool's
    ---
    pause       a call waits for a decision; `name` is the tool's
    decision    somebody decided on a pause, or was refused; `name` is the tool's, "" where it is unknown
    correction  something went back to the model to mend; `name` is "arguments", "unknown_tool", "tool_error" or "output"
    limit       a bound of `Limits` stopped the turn; `name` is the bound's
    retry       a failed attempt is followed by another; `name` is the tool's or the model's
    takeover    a leg goes on whose driver was gone; `name` is the agent's
    store       a store has answered; `name` is the operation's

`facts` are ids, names and numbers, never content; docs/observability.md lists them. Those of a step reach what happens
within it. It costs nothing while nobody listens.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import Any, Literal, TypeAlias

import msgspec

StepKind = Literal["turn", "model", "tool"]
NoticeKind = Literal["pause", "decision", "correction", "limit", "retry", "takeover", "store"]
Kind: TypeAlias = StepKind | NoticeKind

_log = logging.getLogger("adjourn")
_log.addHandler(logging.NullHandler())  # an application that does not log hears nothing from us

IDS = ("agent", "session_id", "turn_id", "snapshot_id", "tool", "call_id", "interrupt_id")
"""The facts that say where something happened: what happens within a step has them as well."""


class Observed(msgspec.Struct):
    """A step, or a notice. What is known only at the end of a step is added to its `facts` then.

    `given` and `result` are what went in and what came out (a request and its reply, a tool's input and output), so they are
    content: whoever passes them on has been asked to. `trace` is for the observer that traces a turn to set: the W3C
    traceparent of its span, kept with the snapshot. `links` are those of the legs that this one goes on from, `parent` is
    that of the turn, where an engine runs the turn's steps in other processes.
    """

    kind: Kind
    name: str
    facts: dict[str, Any]
    given: Any = None
    result: Any = None
    trace: str | None = None
    links: Sequence[str] = ()
    parent: str | None = None


Observer: TypeAlias = Callable[[Observed], AbstractContextManager[Any] | None]


class _Here(msgspec.Struct, frozen=True):
    observers: Sequence[Observer]
    ids: Mapping[str, Any]


_here: ContextVar[_Here | None] = ContextVar("adjourn_step", default=None)


def around() -> Mapping[str, Any]:
    """The ids of the steps that we are in, in this task or thread; empty outside, and where nobody observes."""
    here = _here.get()
    return here.ids if here is not None else {}


class Watched:
    """Enters what the observers return for a step; the first is outermost.

    An observer that raises is logged: watching a step must neither void it nor make it happen again.
    """

    __slots__ = ("_entered", "_observers", "_step", "_token")

    def __init__(self, observers: Sequence[Observer], step: Observed) -> None:
        self._observers = observers
        self._step = step
        self._entered: list[AbstractContextManager[Any]] = []
        self._token: Token[_Here | None] | None = None

    def __enter__(self) -> Observed:
        step, outer = self._step, around()
        if step.kind == "turn":  # a nested one has ids of its own
            step.facts |= {f"outer_{k}": outer[k] for k in ("turn_id", "call_id") if k in outer}
            ids = {k: v for k, v in step.facts.items() if k in IDS}
        else:
            ids = {**outer, **{k: v for k, v in step.facts.items() if k in IDS}}
            step.facts = {**outer, **step.facts}
        self._token = _here.set(_Here(self._observers, ids))
        for observer in self._observers:
            try:
                context = observer(step)
                if context is not None:
                    context.__enter__()
                    self._entered.append(context)
            except Exception:  # noqa: BLE001 - logged
                _log.exception("an observer failed at the start of %s %r", step.kind, step.name)
        return step

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        for context in reversed(self._entered):
            try:
                context.__exit__(kind, error, trace)
            except Exception:  # noqa: BLE001 - logged
                _log.exception("an observer failed at the end of %s %r", self._step.kind, self._step.name)
        if self._token is not None:
            _here.reset(self._token)


def notify(observers: Sequence[Observer], kind: NoticeKind, name: str, facts: Mapping[str, Any]) -> None:
    """Tells the observers of something that happened. Ask first whether there are any: the facts cost something."""
    tell(observers, Observed(kind, name, {**around(), **facts}))


def tell(observers: Sequence[Observer], notice: Observed) -> None:
    """Tells the observers of a notice as it is. One that raises is logged."""
    for observer in observers:
        try:
            context = observer(notice)
            if context is not None:
                with context:
                    pass
        except Exception:  # noqa: BLE001 - logged
            _log.exception("an observer failed at %s %r", notice.kind, notice.name)


def notify_here(kind: NoticeKind, name: str, facts: Mapping[str, Any]) -> None:
    """Tells the observers of the step that we are in; where there are none, nobody."""
    here = _here.get()
    if here is not None:
        notify(here.observers, kind, name, facts)


def by_kind(by: str | None) -> str:
    """Which kind of decider `by` names: "handler", "message", "outer", "person", or "unnamed". Never who."""
    if not by:
        return "unnamed"
    head = by.partition(":")[0]
    return head if head in ("handler", "outer") and head != by else "message" if by == "message" else "person"
