"""Patterns of schemas that anybody may have written."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adjourn.conform import problems
from adjourn.pattern import matches

THIRTY = "a" * 30


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*a){20}$", "^(a?){30}a{30}$"])
def test_a_pattern_made_to_take_without_end_is_answered_at_once(pattern: str) -> None:
    assert matches(pattern, THIRTY + "!") is False
    assert problems({"pattern": pattern}, THIRTY + "!") == [{"path": "$", "message": f"must match {pattern}"}]


@pytest.mark.parametrize(
    "pattern", ["(?=a)(a+)+$", "(?!b)(a|a)*$", "(?=a)((a+))+$", "(?=a)" + "a?" * 30 + "$", "(?x: a # b\n+)(?=a)"]
)
def test_what_only_the_slow_way_could_tell_and_might_not_is_refused(pattern: str) -> None:
    assert matches(pattern, THIRTY + "!") == "unknown"
    (problem,) = problems({"type": "object", "properties": {"x": {"pattern": pattern}}}, {"x": THIRTY + "!"})
    assert "may have no end" in problem["message"]
    assert problems({"not": {"pattern": pattern}}, THIRTY + "!") != []
    assert problems({"patternProperties": {pattern: True}}, {THIRTY + "!": 1}) != []


@pytest.mark.parametrize(
    "pattern,fits,fits_not",
    [
        ("^(?=.*\\d)(?=.*[a-z]).{8,}$", "abcdefg1", "abcdefgh"),
        ("(?i)^AB(?=c)", "abc", "xbc"),
        ("(?P<q>['\"]).*(?P=q)", "'x'", "'x"),
        (r"(\w)\1", "aa", "ab"),
        (r"^a\/b$", "a/b", "a/c"),
        ("^\\p{Lu}", "\u00c4b", "\u00e4b"),
    ],
)
def test_looking_ahead_and_references_work_as_ever(pattern: str, fits: str, fits_not: str) -> None:
    assert matches(pattern, fits) is True
    assert matches(pattern, fits_not) is False


@pytest.mark.parametrize(
    "pattern", ["[", "(?<x", "(" * 5000, "\ud800[", "a{2,1}"], ids=["open", "group", "deep", "surrogate", "backwards"]
)
def test_what_is_no_pattern_forbids_nothing(pattern: str) -> None:
    assert problems({"pattern": pattern}, "x") == []
    assert problems({"pattern": 7}, "x") == []


@given(st.from_regex(r"\A[ab.|?*+()]{0,12}\Z"), st.text("ab", max_size=8))
@example("a++a", "aa")
@example("a?+a", "a")
@example("[*]+a", "*a")
def test_the_two_ways_agree(pattern: str, text: str) -> None:
    try:
        slow = re.search(pattern, text) is not None
    except re.error:
        return
    assert matches(pattern, text) is slow


def test_a_pattern_of_pages_is_not_looked_at() -> None:
    assert matches("a" * 50_001, "a") == "unknown"


def test_a_lazy_repeat_is_one_place_like_a_greedy_one() -> None:
    assert matches("(?=a)a+?b", "aab") is True
    assert matches("(?=a)" + "a??" * 30 + "$", THIRTY + "!") == "unknown"
