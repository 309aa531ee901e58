"""What goes wrong, as a person and as a program reads it: one line of text or one JSON object, and an exit code."""

import re
from typing import Any

from adjourn.errors import (
    AdjournError,
    AlreadyResolved,
    DefinitionError,
    ForeignInterrupt,
    InvalidRequest,
    NothingPaused,
    SessionError,
    SessionNotFound,
    StaleInterrupt,
    StoreError,
    TurnError,
    UnknownInterrupt,
    UnknownModel,
    UnknownTool,
)
from adjourn.parts import wire

OK = 0
BUG = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
REFUSED = 5
STORE = 6
TURN_FAILED = 7
PROBLEMS = 8
PAUSED = 9
NOT_DRAINED = 10
INTERRUPTED = 130
BROKEN_PIPE = 141

_CODES: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((UnknownInterrupt, SessionNotFound, UnknownModel, UnknownTool), NOT_FOUND),
    ((AlreadyResolved, StaleInterrupt, ForeignInterrupt, NothingPaused, SessionError), CONFLICT),
    ((InvalidRequest,), REFUSED),
    ((StoreError,), STORE),
    ((TurnError,), TURN_FAILED),
    ((DefinitionError,), USAGE),
)


class Misuse(Exception):
    """What was typed cannot be done as it stands. `kind` names the mistake in JSON; `code` is the exit code."""

    def __init__(self, message: str, *, kind: str = "usage", code: int = USAGE, details: Any = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.details = details


class Left(Exception):
    """The person went away from a question; nothing was decided."""


def code_of(error: BaseException) -> int:
    """The exit code."""
    if isinstance(error, Misuse):
        return error.code
    if isinstance(error, (KeyboardInterrupt, Left)):
        return INTERRUPTED
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), BUG)


def is_ours(error: BaseException) -> bool:
    """Whether the error explains itself, so that a traceback would only be in the way."""
    return isinstance(error, (Misuse, AdjournError))


def facts_of(error: BaseException) -> dict[str, Any]:
    """The error as JSON: `code` is stable, `message` is for people."""
    name = error.kind if isinstance(error, Misuse) else _snake(type(error).__name__)
    details: Any = error.details if isinstance(error, Misuse) else _details(error)
    return {"error": {"code": name, "message": str(error), "exit": code_of(error), "details": details}}


def _details(error: BaseException) -> Any:
    if isinstance(error, AlreadyResolved) and error.decision is not None:
        return {"decision": wire(error.decision)}
    problems = getattr(error, "problems", None)
    return {"problems": problems} if problems else None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
