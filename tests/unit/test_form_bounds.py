"""A form that was made to be large is refused, and shown no larger than a form may be."""

from typing import Any

import pytest

from adjourn.fields import Field, form_of
from adjourn.forms import (
    MAX_FIELDS_IN_ALL,
    MAX_ROWS_IN_ALL,
    fields_in_all,
    fill,
    read_form,
    rows_in_all,
    with_row,
    within_bounds,
)

CUBE = {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}}
SHEETS = {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}


def form(schema: Any) -> Field:
    found = form_of(schema)
    assert found is not None
    return found


def cube(size: int) -> dict[str, list[str]]:
    """Lists in lists in lists, of which only the numbers of rows are given."""
    out = {"$#": [str(size)]}
    for a in range(size):
        out[f"$[{a}]#"] = [str(size)]
        out |= {f"$[{a}][{b}]#": [str(size)] for b in range(size)}
    return out


def test_a_few_letters_do_not_make_a_million_rows() -> None:
    reading = read_form(form(CUBE), cube(20))
    assert reading.errors == {"$": "has more than 2,000 rows in all its lists; take some out, or give JSON"}


def test_a_form_with_as_many_rows_as_it_may_have_is_read() -> None:
    sent = {"$#": ["10"], **{f"$[{a}]#": ["199"] for a in range(10)}}
    assert rows_in_all(sent) == MAX_ROWS_IN_ALL
    reading = read_form(form(SHEETS), sent)
    assert reading.errors == {}
    assert reading.value == [[""] * 199] * 10
    assert within_bounds(form(SHEETS), sent) is sent
    assert "$" in read_form(form(SHEETS), {**sent, "$#": ["11"]}).errors


def test_what_is_shown_again_has_few_enough_rows_and_all_that_was_typed() -> None:
    sent = cube(20) | {"$[0][0][3]": ["7"], "$[2][1][0]": ["8"]}
    shown = within_bounds(form(CUBE), sent)
    assert rows_in_all(shown) <= MAX_ROWS_IN_ALL
    reading = read_form(form(CUBE), shown)
    assert reading.value is not None
    assert shown["$[0][0][3]"] == ["7"]
    assert shown["$[0][0]#"] == ["4"]
    assert (shown["$#"], shown["$[2]#"], shown["$[2][1]#"]) == (["3"], ["2"], ["1"])


def test_one_value_at_the_end_of_each_of_many_lists_makes_no_more_rows_either() -> None:
    sent: dict[str, list[str]] = {"$#": ["200"]}
    for a in range(200):
        sent |= {f"$[{a}]#": ["200"], f"$[{a}][199]": ["x"]}
    assert rows_in_all(within_bounds(form(SHEETS), sent)) == MAX_ROWS_IN_ALL


@pytest.mark.parametrize("rows,after", [(198, 2000), (199, 2000)])
def test_a_row_is_added_only_where_there_is_room_for_it(rows: int, after: int) -> None:
    sent = {"$#": ["10"], **{f"$[{a}]#": ["199"] for a in range(9)}, "$[9]#": [str(rows)]}
    assert rows_in_all(with_row(form(SHEETS), sent, "$[9]")) == after


def test_a_value_with_too_many_rows_can_be_counted_before_it_is_shown() -> None:
    assert rows_in_all(fill(form(SHEETS), [["x"] * 200] * 11)) == 11 + 11 * 200


ORDERS = {"type": "array", "items": {"type": "object", "properties": {
    **{f"f{i}": {"type": "string"} for i in range(60)}, "notes": {"type": "array", "items": {"type": "string"}}}}}  # fmt: skip


def test_the_fields_of_rows_are_counted_and_not_the_rows_alone() -> None:
    field = form(ORDERS)
    assert fields_in_all(field, {"$#": ["90"]}) == 1 + 90 * 62
    assert read_form(field, {"$#": ["90"]}).errors == {}
    reading = read_form(field, {"$#": ["100"]})
    assert reading.errors == {"$": "has more than 6,000 fields in all its rows; take some out, or give JSON"}


def test_a_form_is_shown_with_no_more_fields_than_it_may_have() -> None:
    field = form(ORDERS)
    sent = {"$#": ["200"], "$[150].f3": ["typed"], "$[0].notes#": ["200"]}
    shown = within_bounds(field, sent)
    assert fields_in_all(field, shown) <= MAX_FIELDS_IN_ALL
    assert shown["$#"] == ["96"]
    assert with_row(field, shown, "$")["$#"] == ["96"]
