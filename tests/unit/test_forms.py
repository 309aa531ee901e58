"""Forms out of schemas: what becomes of each kind, what was typed comes back as a value, and nothing changes by itself."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from datetime import time as clock_time
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from pydantic import BaseModel, Field

from adjourn.conform import problems
from adjourn.forms import (
    check,
    fill,
    form_of,
    read_form,
    read_json,
    read_text,
    row_count,
    with_row,
    without_row,
)
from adjourn.schema import TypeShape


class Colour(Enum):
    red = "red"
    blue = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Line(BaseModel):
    sku: str
    quantity: Annotated[int, Field(ge=1, le=10)] = 1


class Everything(BaseModel):
    ok: bool
    when: date
    lines: list[Line]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    who: int | str
    note: str = ""
    maybe: str | None = None
    colour: Colour = Colour.red
    at: datetime | None = None
    wake: clock_time | None = None
    share: float | None = None
    tags: set[Literal["a", "b", "c"]] = set()
    extra: dict[str, int] | None = None
    shipping: Line | None = None
    grades: list[int | None] = []


@cache
def field_of(kind: Any) -> Any:
    field = form_of(TypeShape(kind).schema)
    assert field is not None
    return field


def child(field: Any, name: str) -> Any:
    return next(c for c in field.children if c.name == name)


# -- from a schema to fields -----------------------------------------------------------------------------------------


def test_every_kind_of_field_is_recognised() -> None:
    field = field_of(Everything)
    kinds = {c.name: c.kind for c in field.children}
    assert kinds == {
        "ok": "boolean", "when": "date", "lines": "list", "pet": "union", "who": "union", "note": "text", "maybe": "string",
        "colour": "choice", "at": "datetime", "wake": "time", "share": "number", "tags": "many", "extra": "json",
        "shipping": "object", "grades": "list",
    }  # fmt: skip
    assert [o.kind for o in child(field, "who").options] == ["integer", "string"]
    assert child(field, "lines").item.kind == "object"
    assert child(field, "grades").item.nullable


def test_titles_come_from_the_schema_or_are_the_name_in_words() -> None:
    yes_no = {"type": "boolean"}
    field = form_of(
        {"type": "object", "properties": {"needsApproval": yes_no, "is_ok": {"title": "All well?", **yes_no}}}
    )
    assert field is not None
    assert [c.title for c in field.children] == ["Needs approval", "All well?"]
    assert child(field_of(Everything), "shipping").title == "Shipping"


def test_bounds_are_told_in_words() -> None:
    line = field_of(Line)
    assert child(line, "quantity").hint == "At least 1, at most 10"
    text = form_of({"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^a"})
    assert text is not None
    assert text.hint == "At least 2 characters, at most 5 characters, must match ^a"
    listed = form_of({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3})
    assert listed is not None
    assert listed.hint == "At least 1, at most 3"


def test_scalars_may_be_the_whole_answer() -> None:
    for kind, expected in ((bool, "boolean"), (int, "integer"), (str, "string"), (Colour, "choice")):
        assert field_of(kind).kind == expected


# -- reading ---------------------------------------------------------------------------------------------------------


def value_of(field: Any, data: Mapping[str, Sequence[str]]) -> Any:
    reading = read_form(field, data)
    assert reading.errors == {}
    return reading.value


def test_an_empty_form_says_what_is_missing_and_nothing_else() -> None:
    reading = read_form(field_of(Everything), {})
    assert reading.errors == {
        "$.ok": "is required",
        "$.when": "is required",
        "$.pet": "choose one of the alternatives",
        "$.who": "choose one of the alternatives",
    }


def test_falsy_answers_are_answers() -> None:
    class Falsy(BaseModel):
        no: bool
        zero: int
        nothing: str
        null: int | None
        rows: list[int]

    reading = read_form(field_of(Falsy), {"$.no": ["false"], "$.zero": ["0"], "$.nothing": [""], "$.null": [""]})
    assert reading.errors == {}
    assert reading.value == {"no": False, "zero": 0, "nothing": "", "null": None, "rows": []}
    assert read_form(field_of(bool), {"$": ["false"]}).value is False
    assert read_form(field_of(str), {"$": [""]}).value == ""


@pytest.mark.parametrize(
    "typed, value", [("12", 12), (" -3 ", -3), ("+4", 4), ("\u22125", -5), ("18446744073709551615", 2**64 - 1)]
)
def test_whole_numbers(typed: str, value: int) -> None:
    assert read_text(field_of(int), typed) == value


@pytest.mark.parametrize("typed", ["1.5", "abc", "1e3", "NaN", "0x10", "99999999999999999999999", "1 000", "\u0661"])
def test_what_is_no_whole_number_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|too large"):
        read_text(field_of(int), typed)


@pytest.mark.parametrize("typed, value", [("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("7", 7), ("-0.25", -0.25)])
def test_numbers(typed: str, value: float) -> None:
    got = read_text(field_of(float), typed)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize("typed", ["inf", "nan", "1e999", "1,5", "--1", "1.2.3"])
def test_what_is_no_number_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"must be a number|too large"):
        read_text(field_of(float), typed)


def test_dates_and_times_have_one_form() -> None:
    assert read_text(field_of(date), "2030-01-31") == "2030-01-31"
    assert read_text(field_of(datetime), "2030-01-31T14:30") == "2030-01-31T14:30:00Z"
    assert read_text(field_of(datetime), "2030-01-31T14:30:00+02:00") == "2030-01-31T14:30:00+02:00"
    assert read_text(field_of(clock_time), "14:30") == "14:30:00"
    for kind, wrong in ((date, "2030-02-30"), (datetime, "soon"), (clock_time, "25:00")):
        with pytest.raises(ValueError, match="must be a"):
            read_text(field_of(kind), wrong)


def test_each_error_is_at_its_field() -> None:
    data = {
        "$.ok": ["perhaps"], "$.when": ["tomorrow"], "$.lines#": ["2"], "$.lines[0].sku": ["a"], "$.lines[0].quantity": ["99"],
        "$.lines[1].sku": ["b"], "$.lines[1].quantity": ["x"], "$.pet@": ["1"], "$.pet@1.good": [""], "$.who@": ["0"],
        "$.who@0": ["me"],
        "$.colour": ['"green"'], "$.share": ["half"], "$.extra": ["{"],
    }  # fmt: skip
    errors = read_form(field_of(Everything), data).errors
    assert set(errors) == {
        "$.ok", "$.when", "$.lines[0].quantity", "$.lines[1].quantity", "$.pet.good", "$.who", "$.colour", "$.share", "$.extra",
    }  # fmt: skip
    assert errors["$.lines[0].quantity"] == "must be at most 10"
    assert errors["$.extra"].startswith("is not JSON: ")


def test_the_chosen_alternative_is_read_and_no_other() -> None:
    reading = read_form(
        field_of(Everything),
        {
            "$.ok": ["true"], "$.when": ["2030-01-01"], "$.who@": ["1"], "$.who@0": ["not a number"], "$.who@1": ["12"],
            "$.pet@": ["0"], "$.pet@0.lives": ["3"], "$.pet@1.good": ["true"],
        },
    )  # fmt: skip
    assert reading.errors == {}
    value: Any = reading.value
    assert value["who"] == "12"
    assert value["pet"] == {"kind": "cat", "lives": 3}


def test_an_optional_group_counts_only_where_it_was_asked_for() -> None:
    data = {"$.shipping.sku": ["x"], "$.shipping.quantity": ["2"]}
    field = field_of(Everything)
    needed = {"$.ok": ["true"], "$.when": ["2030-01-01"], "$.who@": ["0"], "$.who@0": ["1"], "$.pet@": ["0"]}
    assert "shipping" not in value_of(field, needed | data)
    assert value_of(field, needed | data | {"$.shipping?": ["on"]})["shipping"] == {"sku": "x", "quantity": 2}


def test_a_form_cannot_be_made_to_build_endless_rows() -> None:
    assert row_count({"$.lines#": ["999999999"]}, "$.lines") == 0
    assert row_count({"$.lines#": ["5000"]}, "$.lines") == 200
    assert row_count({"$.lines#": ["-1"]}, "$.lines") == 0


# -- JSON ------------------------------------------------------------------------------------------------------------


def test_json_errors_name_the_place() -> None:
    with pytest.raises(ValueError, match=r"line 2, column 3"):
        read_json("{\n  bad: 1}")
    for text in ("NaN", "[Infinity]", "1e999", '"\\ud800"', "[" * 5000 + "]" * 5000, str(10**40)):
        with pytest.raises(ValueError, match=r"JSON|too"):
            read_json(text)
    assert [read_json(t) for t in ("null", "false", "0", '""', "[]")] == [None, False, 0, "", []]


def test_check_gives_the_first_fault_of_each_place() -> None:
    assert check(TypeShape(Line).schema, {"quantity": 0}) == {
        "$.sku": "is required",
        "$.quantity": "must be at least 1",
    }


# -- there and back --------------------------------------------------------------------------------------------------

WHOLE: Mapping[str, Any] = {
    "ok": False, "when": "2030-01-31", "lines": [{"sku": "", "quantity": 1}, {"sku": "b"}], "pet": {"kind": "dog", "good": False},
    "who": "5", "note": "", "maybe": None, "colour": "blue", "at": "2030-01-31T10:00:00.5+05:30", "wake": None, "share": 0.0,
    "tags": [], "extra": {}, "shipping": None, "grades": [1, None, 0],
}  # fmt: skip


def test_a_form_that_nobody_touched_gives_the_value_back() -> None:
    field = field_of(Everything)
    reading = read_form(field, fill(field, WHOLE), WHOLE)
    assert reading.errors == {}
    assert reading.value == WHOLE


def browsed(text: str) -> str:
    """What a browser makes of a text in a form."""
    one_kind = text.replace("\r\n", "\n").replace("\r", "\n")
    return one_kind.replace("\n", "\r\n").replace("\x00", "\ufffd")


def test_an_edit_of_one_field_changes_that_field_only() -> None:
    field = field_of(Everything)
    before = {**WHOLE, "note": "one\r\ntwo\rthree\x00\n", "unknown": {"kept": True}}
    data = fill(field, before)
    as_a_browser_sends = {name: [browsed(text) for text in texts] for name, texts in data.items()}
    as_a_browser_sends["$.who@1"] = ["6"]
    assert read_form(field, as_a_browser_sends, before).value == {**before, "who": "6"}


def test_who_empties_a_filled_text_means_the_empty_text() -> None:
    class Draft(BaseModel):
        greeting: str = "Hello"
        note: str | None = None

    field = field_of(Draft)
    data = fill(field)
    assert data["$.greeting"] == ["Hello"]
    assert read_form(field, {**data, "$.greeting": [""]}).value == {"greeting": ""}
    assert read_form(field, data).value == {"greeting": "Hello"}


def test_defaults_do_not_creep_into_what_was_left_out() -> None:
    field = field_of(Line)
    assert fill(field)["$.quantity"] == ["1"]
    before = {"sku": "x"}
    assert read_form(field, fill(field, before), before).value == before


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
lines = st.fixed_dictionaries({"sku": texts}, optional={"quantity": st.integers(1, 10)})
values = st.fixed_dictionaries(
    {
        "ok": st.booleans(),
        "when": st.dates().map(str),
        "lines": st.lists(lines, max_size=3),
        "pet": st.one_of(
            st.fixed_dictionaries({"kind": st.just("cat")}, optional={"lives": st.integers(-(2**62), 2**62)}),
            st.fixed_dictionaries({"kind": st.just("dog"), "good": st.booleans()}),
        ),
        "who": st.one_of(st.integers(-(2**62), 2**62), texts),
    },
    optional={
        "note": texts,
        "maybe": st.none() | texts,
        "colour": st.sampled_from(["red", "blue"]),
        "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(sorted),
        "extra": st.none() | st.dictionaries(texts, st.integers(0, 9), max_size=2),
        "shipping": st.none() | lines,
        "grades": st.lists(st.none() | st.integers(0, 9), max_size=3),
    },
)


@given(values)
def test_filling_and_reading_are_inverse_for_every_value(value: dict[str, Any]) -> None:
    field = field_of(Everything)
    assert problems(field.schema, value) == []
    reading = read_form(field, fill(field, value), value)
    assert reading.errors == {}
    assert reading.value == value


names = st.sampled_from(["$.ok", "$.lines#", "$.lines[0].sku", "$.lines[0].quantity", "$.pet@", "$.pet@0.lives", "$.who@",
                         "$.who@1",
                         "$.extra", "$.at", "$.tags?", "$.tags", "$.shipping?", "$", "$.grades#",
                         "$.grades[1]", "x"])  # fmt: skip


@given(
    st.dictionaries(
        names, st.lists(st.text(max_size=8) | st.sampled_from(["0", "1", "true", "{}", "null"]), max_size=2)
    )
)
def test_whatever_is_sent_is_read_or_refused_and_never_breaks(data: dict[str, list[str]]) -> None:
    field = field_of(Everything)
    reading = read_form(field, data)
    assert reading.errors or problems(field.schema, reading.value) == []


# -- rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_added_at_the_end_with_their_defaults() -> None:
    field = field_of(Everything)
    data = {"$.lines#": ["1"], "$.lines[0].sku": ["a"]}
    assert with_row(field, data, "$.lines") == {**data, "$.lines#": ["2"], "$.lines[1].quantity": ["1"]}
    for nonsense in ("", "$", "$.pet", "$.lines[0]", "$.nowhere"):
        assert with_row(field, data, nonsense) == data
    full = {"$.lines#": ["200"]}
    assert with_row(field, full, "$.lines") == full


def test_a_row_is_taken_out_and_those_after_it_move_up() -> None:
    data = {
        "$.l#": ["3"],
        "$.l[0].x": ["a"],
        "$.l[1].x": ["b"],
        "$.l[1].in[0]": ["n"],
        "$.l[2].x": ["c"],
        "$.lo[1]": ["other"],
    }
    assert without_row(data, "$.l[1]") == {"$.l#": ["2"], "$.l[0].x": ["a"], "$.l[1].x": ["c"], "$.lo[1]": ["other"]}
    for nonsense in ("", "$.l", "$.l[9]", "$.l[x]", "["):
        assert without_row(data, nonsense) == data


# -- what comes back exactly -----------------------------------------------------------------------------------------


def made(schema: Any) -> Any:
    field = form_of(schema)
    assert field is not None
    return field


def test_choices_that_look_alike_are_told_apart() -> None:
    alike = ["true", True, "1", 1, "null", None]
    field = made({"properties": {"a": {"enum": alike}}, "required": ["a"]})
    for value in alike:
        got: Any = read_form(field, fill(field, {"a": value})).value
        assert (got["a"], type(got["a"])) == (value, type(value))
    assert read_text(field_of(Colour), "red") == "red"
    with pytest.raises(ValueError, match="not one of the choices"):
        read_text(field_of(Colour), "green")


@pytest.mark.parametrize("typed", ["yes", " Y ", "ON", "1", "true"])
def test_a_yes_may_be_typed_in_several_ways(typed: str) -> None:
    assert read_text(field_of(bool), typed) is True


@pytest.mark.parametrize("typed", ["no", " N ", "Off", "0", "false"])
def test_a_no_may_be_typed_in_several_ways(typed: str) -> None:
    assert read_text(field_of(bool), typed) is False


@pytest.mark.parametrize(
    "typed, value",
    [("14", "14:00:00"), ("1430", "14:30:00"), ("14:30Z", "14:30:00Z"), ("09:05:07.5", "09:05:07.500000")],
)
def test_a_time_is_written_out_so_that_no_one_reads_it_as_seconds(typed: str, value: str) -> None:
    assert read_text(field_of(clock_time), typed) == value


def test_alternatives_that_only_python_takes_for_equal_are_told_apart() -> None:
    field = made({"anyOf": [{"properties": {"a": {"type": t}}, "required": ["a"]} for t in ("boolean", "integer")]})
    assert [fill(field, {"a": value})["$@"] for value in (True, 1)] == [["0"], ["1"]]


def test_a_form_without_a_value_has_no_alternative_chosen() -> None:
    assert "$.who@" not in fill(field_of(Everything))
    assert "$.who@" not in fill(field_of(Everything), {**WHOLE, "who": [1]})


def test_a_value_that_is_none_of_the_alternatives_stays_until_one_is_chosen() -> None:
    both = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}]}
    field = made({"properties": {"at": both, "n": {"type": "integer"}}, "required": ["at"]})
    before = {"at": "2030-01-31T14:30", "n": 1}
    data = fill(field, before)
    assert "$.at@" not in data
    assert read_form(field, {**data, "$.n": ["2"]}, before).value == {"at": "2030-01-31T14:30", "n": 2}
    assert read_form(field, {**data, "$.at@": ["1"], "$.at@1": ["7"]}, before).value == {"at": 7, "n": 1}
    assert read_form(field, data).errors == {"$.at": "choose one of the alternatives"}
    wrong: Mapping[str, Any] = {"at": [], "n": 1}
    assert set(read_form(field, fill(field, wrong), wrong).errors) == {"$.at"}


def test_an_alternative_that_cannot_be_read_is_the_only_error() -> None:
    field = made({"anyOf": [{"type": "integer"}, {"type": "boolean"}]})
    reading = read_form(field, {"$@": ["0"], "$@0": ["many"]})
    assert (reading.value, reading.errors) == (UNSET, {"$": "must be a whole number, such as 12"})


def test_a_part_of_a_form_is_read_without_the_rules_of_the_whole() -> None:
    quantity = child(field_of(Line), "quantity")
    assert read_form(quantity, {"$": ["99"]}).value == 99
    assert read_form(field_of(Line), {"$.sku": ["x"], "$.quantity": ["99"]}).errors == {
        "$.quantity": "must be at most 10"
    }


def test_ticks_that_nobody_changed_keep_their_order() -> None:
    field = field_of(Everything)
    before = {**WHOLE, "tags": ["c", "a"]}
    data = fill(field, before)
    assert read_form(field, {**data, "$.tags": ['"a"', '"c"']}, before).value == before
    assert read_form(field, {**data, "$.tags": ['"a"']}, before).value == {**before, "tags": ["a"]}
    assert read_form(field, {**data, "$.tags": []}, before).value == {**before, "tags": []}


def test_rows_that_are_too_many_to_show_are_kept() -> None:
    field = made({"properties": {"rows": {"type": "array", "items": {"type": "integer"}}}, "required": ["rows"]})
    before = {"rows": list(range(205))}
    data = fill(field, before)
    assert data["$.rows#"] == ["200"]
    assert read_form(field, {**data, "$.rows[0]": ["7"]}, before).value == {"rows": [7, *range(1, 205)]}


def test_null_in_a_choice_comes_back_whether_it_is_listed_or_not() -> None:
    listed = made({"properties": {"a": {"enum": ["x", None]}}, "required": ["a"]})
    beside = made({"properties": {"a": {"anyOf": [{"enum": ["x"]}, {"type": "null"}]}}, "required": ["a"]})
    for field in (listed, beside):
        assert read_form(field, fill(field, {"a": None}), {"a": None}).value == {"a": None}
    assert read_form(listed, {"$.a": ["null"]}).value == {"a": None}
    assert read_form(beside, {"$.a": [""]}).value == {"a": None}


@pytest.mark.parametrize(
    "number", ["\u00b2", "\u0661", "9" * 5000, "-1", "1.0"], ids=["squared", "arabic", "endless", "minus", "point"]
)
def test_what_is_no_plain_number_counts_no_rows_and_chooses_nothing(number: str) -> None:
    assert row_count({"$.lines#": [number]}, "$.lines") == 0
    assert read_form(field_of(Everything), {"$.who@": [number]}).errors["$.who"] == "choose one of the alternatives"
    data = {"$.l#": ["2"], f"$.l[{number}]": ["x"]}
    assert without_row(data, f"$.l[{number}]") == data
    assert without_row(data, "$.l[0]") == {**data, "$.l#": ["1"]}


def test_rows_inside_rows_and_alternatives_can_be_added() -> None:
    words = {"type": "array", "items": {"type": "string", "default": "w"}}
    field = made({"type": "array", "items": {"anyOf": [{"type": "integer"}, words]}})
    data = {"$#": ["1"], "$[0]@": ["1"], "$[0]@1#": ["0"]}
    assert with_row(field, data, "$[0]@1") == {**data, "$[0]@1#": ["1"], "$[0]@1[0]": ["w"]}
    assert with_row(field, data, "$[1]@1") == data
