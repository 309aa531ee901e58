"""The error tree is what its docstring draws, and errors say what happened."""

import inspect
import re
from pathlib import Path

import pytest

import adjourn
from adjourn import errors


def drawn() -> dict[str, str]:
    """Each error of the docstring's drawing, with its parent."""
    assert errors.__doc__ is not None
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"^ {4}([│├└─ ]*)([A-Z]\w+)", line)
        if found is None:
            continue
        depth, name = len(found[1]) // 4, found[2]
        above = [(d, n) for d, n in above if d < depth]
        parents[name] = above[-1][1] if above else "Exception"
        above.append((depth, name))
    return parents


def defined() -> dict[str, type[BaseException]]:
    return {
        n: c for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, BaseException) and n[0] != "_"
    }


def test_the_drawing_names_every_error_and_no_other() -> None:
    assert set(drawn()) == set(defined()) == set(errors.__all__)


@pytest.mark.parametrize("name,parent", drawn().items())
def test_each_error_stands_where_it_is_drawn(name: str, parent: str) -> None:
    public = [c.__name__ for c in defined()[name].__mro__[1:] if not c.__name__.startswith("_")]
    assert public[0] == parent


def test_every_error_is_public_and_caught_by_the_root() -> None:
    for name, kind in defined().items():
        assert getattr(adjourn, name) is kind
        assert issubclass(kind, errors.AdjournError)


STATUSES = {
    "INTERNAL",
    "INVALID_ARGUMENT",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "ABORTED",
    "UNAVAILABLE",
    "RESOURCE_EXHAUSTED",
}


def test_every_error_has_a_canonical_status() -> None:
    assert {kind.status for kind in defined().values() if issubclass(kind, errors.AdjournError)} <= STATUSES


def test_every_error_has_a_row_in_the_page_of_errors() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    named = {name for cell in re.findall(r"^\| (.+?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    assert set(errors.__all__) - named == {"AdjournError"}  # the root, which is none of its own


def test_unknown_stale_foreign_and_resolved_are_four_errors_none_of_which_is_another() -> None:
    four = [errors.UnknownInterrupt, errors.StaleInterrupt, errors.ForeignInterrupt, errors.AlreadyResolved]
    for one in four:
        assert [other for other in four if issubclass(one, other)] == [one]
        assert issubclass(one, errors.ResumeError)


def test_a_missing_extra_names_the_pip_command_and_is_an_import_error() -> None:
    error = errors.MissingExtra("The OpenAI plugin", "openai")
    assert isinstance(error, ImportError)
    assert "pip install 'adjourn[openai]'" in str(error)
    assert error.extra == "openai"


def test_errors_carry_what_a_program_needs_beside_the_text() -> None:
    assert errors.NotJSON("$.a[0]", "is nan").path == "$.a[0]"
    assert str(errors.NotJSON("$.a", "is nan")) == "the value cannot be stored as JSON: $.a is nan"
    assert errors.AlreadyResolved("late").decision is None
    assert errors.AlreadyResolved("late", "theirs").decision == "theirs"
    faults = [{"path": "$.n", "message": "is required"}]
    assert errors.InvalidInput("no", faults).problems == faults
    assert errors.InvalidResponse("no").problems == []
    assert errors.SessionPaused("waits", ["i1"]).interrupts == ["i1"]
    assert errors.SessionPaused("waits").interrupts == []


def test_what_ends_a_turn_badly_carries_all_that_was_kept_under_both_names() -> None:
    kept = object()
    for error in (
        errors.TurnError("x", response=kept),
        errors.ToolFailed("x", tool="t", response=kept),
        errors.ModelError("x", response=kept),
        errors.LimitReached("x", limit="cycles", response=kept),
        errors.HandlerAborted("x", response=kept),
    ):
        assert error.response is kept
        assert error.output is kept
    assert errors.ToolFailed("x", tool="t").tool == "t"
    assert errors.LimitReached("x", limit="cycles").limit == "cycles"


def test_a_model_error_says_whether_and_when_to_try_again() -> None:
    error = errors.ModelError("503", provider="openai", code=503, retryable=True, retry_after=2.0, request_id="r")
    assert (error.provider, error.code, error.retryable, error.retry_after, error.request_id) == (
        "openai",
        503,
        True,
        2.0,
        "r",
    )
    plain = errors.ModelError("no")
    assert (plain.code, plain.retryable, plain.retry_after) == (None, False, None)
