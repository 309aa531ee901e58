"""What a form has no field for: it stays with the row that it belongs to."""

from typing import Any

import pytest
from msgspec import UNSET

from adjourn.forms import fill, form_of, read_form, with_row, without_row


def form(schema: Any) -> Any:
    found = form_of(schema)
    assert found is not None
    return found


KEYED = {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}}
KEPT = [{"x": "a", "id": 1}, {"x": "b", "id": 2}, {"x": "c", "id": 3}]


def test_the_rows_after_one_that_was_taken_out_keep_what_was_theirs() -> None:
    field = form(KEYED)
    data = without_row(fill(field, KEPT), "$[0]")
    assert read_form(field, data, KEPT).value == KEPT[1:]
    data = without_row(with_row(field, data, "$"), "$[0]")
    data["$[1].x"] = ["new"]
    assert read_form(field, data, KEPT).value == [{"x": "c", "id": 3}, {"x": "new"}]
    emptied = without_row(without_row(data, "$[0]"), "$[0]")
    assert read_form(field, with_row(field, emptied, "$"), KEPT).value == [{}]


def test_rows_inside_rows_keep_what_was_theirs() -> None:
    field = form({"type": "array", "items": {"type": "object", "properties": {"in": KEYED}}})
    held = [{"in": KEPT[:1], "id": 8}, {"in": KEPT, "id": 9}]
    data = without_row(without_row(fill(field, held), "$[1].in[1]"), "$[0]")
    assert read_form(field, data, held).value == [{"in": [KEPT[0], KEPT[2]], "id": 9}]


@pytest.mark.parametrize("forged", ["7", "-1", "x", "\u00b2", "99999", ""])
def test_a_row_that_claims_to_be_one_that_never_was_is_a_new_one(forged: str) -> None:
    data = {**fill(form(KEYED), KEPT[:1]), "$[0]^": [forged]}
    assert read_form(form(KEYED), data, KEPT[:1]).value == [{"x": "a"}]


def test_a_property_whose_name_would_look_like_a_mark_is_left_to_json() -> None:
    assert form_of({"type": "object", "properties": {"a^": {"type": "string"}}}) is None


def test_the_rows_of_a_default_are_nobodys_yet() -> None:
    field = form({"type": "array", "items": {"type": "string"}, "default": ["a", "b"]})
    assert fill(field, UNSET) == {"$#": ["2"], "$[0]": ["a"], "$[1]": ["b"]}
