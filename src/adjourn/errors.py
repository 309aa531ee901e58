"""Every error Adjourn raises, in one tree.

    AdjournError
    ├── DefinitionError                 the program is wrong: fix the code
    │   ├── SignatureError                  a tool's parameters cannot be described as JSON
    │   ├── DuplicateName                   two tools, agents or models under one name
    │   └── MissingExtra                    an optional dependency is not installed
    ├── InvalidRequest                  what was asked cannot be done; nothing was changed
    │   ├── UnknownModel                    no model of that name
    │   ├── UnknownTool                     no tool of that name
    │   ├── UnknownPosition                 a place in a feed or journal that this store's has not: begin anew
    │   ├── NotJSON                         a value has no JSON form (`.path` says where)
    │   ├── InvalidState                    custom session state does not fit its type, or was tampered with
    │   └── ResumeError                 a decision was refused; the pause is untouched
    │       ├── NothingPaused               there is no pause to decide on
    │       ├── EmptyResume                 a resume without a decision in it
    │       ├── HistoryMismatch             `messages=` is not the paused conversation
    │       ├── UnknownInterrupt            no such interrupt was ever issued
    │       ├── ForeignInterrupt            it belongs to another session
    │       ├── StaleInterrupt              it was once open and no longer is (cancelled, superseded)
    │       ├── AlreadyResolved             somebody decided before (`.decision` is theirs)
    │       ├── VerbNotAllowed              for example restarting a respond-only tool
    │       ├── InvalidResponse             the output does not fit the declared response type
    │       ├── InvalidInput                a replaced input does not fit the tool's schema
    │       ├── ModifiedInput               a restart carried an input that was not shown
    │       ├── ToolGone                    the tool or agent of the pause is not defined here
    │       └── ToolChanged                 its input schema changed since the pause
    ├── TurnError                       the turn ended badly; `.response` has all that was kept
    │   ├── ToolFailed                      a tool raised (`__cause__` is what it raised)
    │   ├── ModelError                      the model call failed
    │   ├── LimitReached                    a bound of `Limits` was hit (`.limit` names it)
    │   ├── HandlerAborted                  an `on_interrupt` handler returned `Abort(reason)`
    │   └── HandlerFailed                   an `on_interrupt` handler raised; the pause is still open
    ├── SessionError
    │   ├── SessionNotFound                 no such session or snapshot
    │   ├── SessionBusy                     a turn is running
    │   ├── SessionPaused                   the session waits for decisions
    │   ├── SessionClosed                   this handle was closed
    │   └── SessionConflict                 somebody else moved the session on
    └── StoreError                      the store could not keep or give something
        ├── StoreFormatError                a foreign, damaged or newer file
        └── StoreUnavailable                full, read-only, locked or unreachable

`Interrupt` is not here: it is no error, and derives from BaseException (see `adjourn.tool`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "AdjournError",
    "AlreadyResolved",
    "DefinitionError",
    "DuplicateName",
    "EmptyResume",
    "ForeignInterrupt",
    "HandlerAborted",
    "HandlerFailed",
    "HistoryMismatch",
    "InvalidInput",
    "InvalidRequest",
    "InvalidResponse",
    "InvalidState",
    "LimitReached",
    "MissingExtra",
    "ModelError",
    "ModifiedInput",
    "NotJSON",
    "NothingPaused",
    "ResumeError",
    "SessionBusy",
    "SessionClosed",
    "SessionConflict",
    "SessionError",
    "SessionNotFound",
    "SessionPaused",
    "SignatureError",
    "StaleInterrupt",
    "StoreError",
    "StoreFormatError",
    "StoreUnavailable",
    "ToolChanged",
    "ToolFailed",
    "ToolGone",
    "TurnError",
    "UnknownInterrupt",
    "UnknownModel",
    "UnknownPosition",
    "UnknownTool",
    "VerbNotAllowed",
]


class AdjournError(Exception):
    """The root. `status` is the canonical status name used on the wire."""

    status: ClassVar[str] = "INTERNAL"


class DefinitionError(AdjournError):
    status = "INVALID_ARGUMENT"


class SignatureError(DefinitionError):
    pass


class DuplicateName(DefinitionError):
    status = "ALREADY_EXISTS"


class MissingExtra(DefinitionError, ImportError):
    """An optional dependency is missing; the text names the pip command."""

    status = "FAILED_PRECONDITION"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency. Install it with: pip install 'adjourn[{extra}]'")
        self.extra = extra


class InvalidRequest(AdjournError):
    status = "INVALID_ARGUMENT"


class UnknownModel(InvalidRequest):
    status = "NOT_FOUND"


class UnknownTool(InvalidRequest):
    status = "NOT_FOUND"


class UnknownPosition(InvalidRequest):
    status = "NOT_FOUND"


class NotJSON(InvalidRequest):
    """A value has no JSON form. `path` is where, as in `$.order.lines[2]`."""

    def __init__(self, path: str, problem: str, what: str = "value") -> None:
        super().__init__(f"the {what} cannot be stored as JSON: {path} {problem}")
        self.path = path
        self.problem = problem


class InvalidState(InvalidRequest):
    pass


class ResumeError(InvalidRequest):
    """A decision was refused before anything ran; the pause is as it was."""


class NothingPaused(ResumeError):
    status = "FAILED_PRECONDITION"


class EmptyResume(ResumeError):
    pass


class HistoryMismatch(ResumeError):
    status = "FAILED_PRECONDITION"


class UnknownInterrupt(ResumeError):
    pass


class ForeignInterrupt(ResumeError):
    status = "PERMISSION_DENIED"


class StaleInterrupt(ResumeError):
    status = "FAILED_PRECONDITION"


class AlreadyResolved(ResumeError):
    """Somebody decided first. `decision` is the accepted one, or None where only the transcript shows it."""

    status = "ABORTED"

    def __init__(self, message: str, decision: Any = None) -> None:
        super().__init__(message)
        self.decision = decision


class VerbNotAllowed(ResumeError):
    pass


class _Invalid(ResumeError):
    """`problems` lists what is wrong, each with the path of the field and a message."""

    def __init__(self, message: str, problems: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems)


class InvalidResponse(_Invalid):
    pass


class InvalidInput(_Invalid):
    pass


class ModifiedInput(ResumeError):
    pass


class ToolGone(ResumeError):
    status = "FAILED_PRECONDITION"


class ToolChanged(ResumeError):
    status = "FAILED_PRECONDITION"


class TurnError(AdjournError):
    """The turn ended badly. `response` is everything that was kept: the `GenerateResponse` or `AgentOutput`."""

    def __init__(self, message: str, *, response: Any = None) -> None:
        super().__init__(message)
        self.response = response

    @property
    def output(self) -> Any:
        """The same as `response`, by the name that agent turns use."""
        return self.response


class ToolFailed(TurnError):
    """A tool raised and its `on_error` is "raise". `tool` is its name; `__cause__` is what it raised."""

    def __init__(self, message: str, *, tool: str = "", response: Any = None) -> None:
        super().__init__(message, response=response)
        self.tool = tool


class ModelError(TurnError):
    """A model call failed.

    `code` is the provider's HTTP status or None; `retryable` says whether the same request may work later;
    `retry_after` is in seconds. The text never holds a key or a whole prompt.
    """

    status = "UNAVAILABLE"

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        code: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        request_id: str | None = None,
        response: Any = None,
    ) -> None:
        super().__init__(message, response=response)
        self.provider = provider
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        self.request_id = request_id


class LimitReached(TurnError):
    """A bound of `Limits` was hit. `limit` is the name of its field, such as "repeats"."""

    status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, limit: str, response: Any = None) -> None:
        super().__init__(message, response=response)
        self.limit = limit


class HandlerAborted(TurnError):
    status = "ABORTED"


class HandlerFailed(TurnError):
    """`__cause__` is what the handler raised. The pause is open, for another decision."""


class SessionError(AdjournError):
    status = "FAILED_PRECONDITION"


class SessionNotFound(SessionError):
    status = "NOT_FOUND"


class SessionBusy(SessionError):
    pass


class SessionPaused(SessionError):
    """The session waits for decisions. `interrupts` are the open ones."""

    def __init__(self, message: str, interrupts: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.interrupts = list(interrupts)


class SessionClosed(SessionError):
    pass


class SessionConflict(SessionError):
    status = "ABORTED"


class StoreError(AdjournError):
    pass


class StoreFormatError(StoreError):
    status = "FAILED_PRECONDITION"


class StoreUnavailable(StoreError):
    status = "UNAVAILABLE"
