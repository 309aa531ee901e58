"""Values as pages show them: bounded, with nothing hidden, and differences that miss nothing."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adjourn.parts import canonical
from adjourn.server.pages_values import changes, shown
from adjourn.server.pages_view import span, when

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def nodes(value: Any) -> int:
    return 1 + sum(nodes(item) for _, item in value.items)


@given(json_values)
def test_every_value_can_be_shown(value: Any) -> None:
    seen = shown(value)
    assert seen.kind in ("table", "list", "text", "atom")
    assert nodes(seen) <= 700


def test_however_large_a_value_is_what_is_shown_of_it_is_bounded() -> None:
    wide = {f"k{n}": ["x" * 10_000] * 1000 for n in range(1000)}
    seen = shown(wide)
    assert nodes(seen) < 1500
    assert "more: see it as JSON" in seen.items[-1][1].text
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert nodes(shown(deep)) < 20


def test_falsy_values_are_told_apart() -> None:
    falsy: list[Any] = [None, False, 0, "", [], {}]
    assert [shown(v).text for v in falsy] == ["none", "no", "0", "", "empty", "empty"]


@given(json_values, json_values)
def test_there_is_a_difference_exactly_where_two_values_differ(a: Any, b: Any) -> None:
    assert bool(changes(a, b)) == (canonical(a) != canonical(b))


def test_differences_name_the_place_and_the_words() -> None:
    found = changes(
        {"a": "one two", "l": [1, 2], "gone": 0, "n": None}, {"a": "one 2", "l": [1], "new": "", "n": False}
    )
    assert [(c.path, c.what) for c in found] == [
        ("a", "changed"),
        ("l[2]", "removed"),
        ("gone", "removed"),
        ("n", "changed"),
        ("new", "added"),
    ]
    assert (found[0].old, found[0].new) == ([(False, "one "), (True, "two")], [(False, "one "), (True, "2")])
    assert (found[2].old, found[2].new) == ([(True, "0")], None)
    assert (found[4].old, found[4].new) == (None, [(True, "(empty text)")])


def test_differences_of_hostile_text_hide_nothing() -> None:
    (change,) = changes("abc", "a\u202ebc")
    assert "⟨U+202E⟩" in "".join(text for _, text in change.new or ())


def test_lengths_of_time_are_in_their_largest_unit() -> None:
    lengths = (0.2, 1, 59, 60, 3599, 3600, 86399, 86400, 900000)
    assert [span(s) for s in lengths] == [
        "a moment", "1 second", "59 seconds", "1 minute", "59 minutes", "1 hour", "23 hours", "1 day", "10 days",
    ]  # fmt: skip
    assert "overdue" in when(10, 20, "until")
    assert "expires in 10 seconds" in when(20, 10, "until")
    assert "just now" in when(20, 10)
    assert "UTC" in when(1e300, 0)
