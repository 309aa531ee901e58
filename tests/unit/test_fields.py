"""Fields out of hostile and unusual schemas: each becomes the right field, or is left to the JSON editor."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from msgspec import UNSET
from pydantic import BaseModel

from adjourn.fields import Choice, Field, form_of
from adjourn.forms import fill, read_form
from adjourn.schema import TypeShape


def holder(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **more}


def inner(schema: Any, **more: Any) -> Field:
    """The field of a property with this schema."""
    field = form_of(holder(schema, **more))
    assert field is not None
    return field.children[0]


def values(choices: Sequence[Choice]) -> list[Any]:
    return [c.value for c in choices]


TEXT = {"type": "string"}
NULL = {"type": "null"}


# -- what may be left out, and what a form cannot do ------------------------------------------------------------------


def test_what_may_be_left_out_and_what_may_be_null_are_told_apart() -> None:
    class Both(BaseModel):
        needed: str
        needed_or_null: str | None
        left_out: str = "x"

    field = form_of(TypeShape(Both).schema)
    assert field is not None
    assert [(c.required, c.nullable, c.default) for c in field.children] == [
        (True, False, UNSET),
        (True, True, UNSET),
        (False, False, "x"),
    ]


TOO_MUCH: Mapping[str, Any] = {
    "none": None,
    "true": True,
    "empty": {},
    "any-object": {"type": "object"},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "lost-reference": {"$ref": "#/$defs/gone"},
    "loop": {"$ref": "#"},
    "any-array": {"type": "array"},
    "many-alternatives": {"anyOf": [{"type": "string"}] * 9},
    "dotted": {"type": "object", "properties": {"a.b": {"type": "string"}}},
    "huge": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(200)}},
}


@pytest.mark.parametrize("schema", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_what_no_form_can_do_is_left_to_the_json_editor(schema: Any) -> None:
    assert form_of(schema) is None


def test_a_recursive_schema_ends_in_json_fields() -> None:
    class Node(BaseModel):
        name: str
        child: "Node | None" = None

    Node.model_rebuild()
    field, depth = form_of(TypeShape(Node).schema), 0
    assert field is not None
    while field.kind == "object":
        field, depth = next(c for c in field.children if c.name == "child"), depth + 1
    assert (field.kind, depth) == ("json", 7)


# -- what is a wrapper only ------------------------------------------------------------------------------------------


def test_a_reference_gives_its_name_only_to_what_has_no_other() -> None:
    named = {"$defs": {"ShipTo": {"type": "object", "properties": {"city": TEXT}}}}
    field = form_of({**named, "$ref": "#/$defs/ShipTo"})
    assert field is not None
    assert field.title == "Ship to"
    assert inner({"$ref": "#/$defs/ShipTo"}, **named).title == "A"
    assert inner({"$ref": "#/$defs/ShipTo", "title": "Where"}, **named).title == "Where"


def test_references_may_hold_escaped_names() -> None:
    assert inner({"$ref": "#/$defs/a~1b~0c"}, **{"$defs": {"a/b~c": {"type": "integer"}}}).kind == "integer"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/gone"},
        {"$ref": "#/$defs/flag"},
        {"$ref": "#/properties/a"},
        {"$ref": "https://example.org/schema"},
        {"allOf": [{"$ref": "#/properties/a"}]},
        {"anyOf": [{"$ref": "#/properties/a"}, NULL]},
        True,
        False,
        {"type": "null"},
        {"type": []},
        {"type": ["null"]},
        {"type": "colour"},
        {"enum": []},
        {"anyOf": []},
        {"anyOf": [NULL]},
        {"anyOf": [True]},
        {"oneOf": [NULL, True]},
        {"type": "array", "prefixItems": [TEXT], "items": TEXT},
        {"anyOf": [TEXT, {"type": "integer"}], "properties": {"b": TEXT}},
    ],
    ids=[
        "lost", "no-schema", "itself", "elsewhere", "itself-in-all-of", "itself-or-null", "true", "false", "null", "no-type",
        "null-listed", "unknown-type", "empty-enum", "no-alternative", "null-alone", "one-true", "null-or-true", "tuple",
        "group-and-alternatives",
    ],
)  # fmt: skip
def test_a_part_that_no_input_can_do_is_a_json_field_and_the_rest_stays_a_form(schema: Any) -> None:
    field = form_of({"type": "object", "properties": {"a": schema, "b": TEXT}, "$defs": {"flag": True}})
    assert field is not None
    assert [(c.name, c.kind) for c in field.children] == [("a", "json"), ("b", "string")]
    assert read_form(field, {"$.a": ["[0]"], "$.b": ["x"]}).value == {"a": [0], "b": "x"}


BROKEN: Mapping[str, Any] = {
    "properties": {"type": "object", "properties": 5},
    "properties-listed": {"type": "object", "properties": [1]},
    "required": holder(TEXT, required=None),
    "enum": holder({"enum": 5}),
    "any-of": holder({"anyOf": 5}),
    "all-of": holder({"allOf": None}),
    "length": holder({"type": "string", "maxLength": "9"}),
    "format": holder({"type": "string", "format": ["date"]}),
}


@pytest.mark.parametrize("schema", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_schema_is_left_to_the_json_editor(schema: Any) -> None:
    assert form_of(schema) is None


def test_parts_of_all_of_are_one_group() -> None:
    first = {"type": "object", "properties": {"x": TEXT, "y": TEXT}, "required": ["x"]}
    second = {"properties": {"y": {"type": "integer"}, "z": TEXT}, "required": ["x", "z"]}
    field = form_of({"$defs": {"First": first}, "allOf": [{"$ref": "#/$defs/First"}, second], "title": "Both"})
    assert field is not None
    assert field.title == "Both"
    assert {c.name: (c.kind, c.required) for c in field.children} == {
        "x": ("string", True),
        "y": ("string", False),
        "z": ("string", True),
    }


def test_what_stands_beside_all_of_comes_first() -> None:
    field = inner({"type": "integer", "maximum": 3, "allOf": [{"type": "integer", "maximum": 9, "minimum": 1}]})
    assert (field.kind, field.hint) == ("integer", "At least 1, at most 3")


def test_null_fits_all_of_only_where_it_fits_each_part() -> None:
    maybe = {"type": ["string", "null"]}
    assert inner({"allOf": [maybe]}).nullable
    assert inner({"allOf": [maybe, {"anyOf": [TEXT, NULL]}]}).nullable
    assert not inner({"allOf": [maybe, TEXT]}).nullable
    assert not inner({"allOf": [maybe], "type": "string"}).nullable
    assert not inner({"allOf": [], "type": "string"}).nullable


def test_a_schema_that_doubles_at_every_step_is_given_up_early() -> None:
    doubling: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    visits = 0

    class Counted(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            nonlocal visits
            visits += 1
            return super().__getitem__(key)

    schema = holder({"$ref": "#/$defs/d40"}, **{"$defs": Counted({**doubling, "d60": TEXT})})
    field = form_of(schema)
    assert field is not None
    assert field.children[0].kind == "json"
    assert 0 < visits < 5000


def test_a_wrapper_of_wrappers_without_end_is_a_json_field() -> None:
    deep: Any = TEXT
    for _ in range(3000):
        deep = {"allOf": [deep]}
    assert inner(deep).kind == "json"
    lists: Any = TEXT
    for _ in range(3000):
        lists = {"type": "array", "items": lists}
    field, depth = inner(lists), 0
    while field.item is not None:
        field, depth = field.item, depth + 1
    assert (field.kind, depth) == ("json", 6)


# -- several types ---------------------------------------------------------------------------------------------------


def test_a_list_of_types_is_one_type_or_alternatives() -> None:
    one = inner({"type": ["null", "string"], "minLength": 3})
    assert (one.kind, one.nullable, one.hint) == ("string", True, "At least 3 characters")
    several = inner({"type": ["null", "string", "integer"], "minimum": 2, "description": "Either", "default": 5})
    assert (several.kind, several.nullable, several.description, several.default) == ("union", True, "Either", 5)
    assert [(o.title, o.kind, o.hint) for o in several.options] == [
        ("Text", "string", ""),
        ("Whole number", "integer", "At least 2"),
    ]


def test_values_that_are_listed_are_one_choice_whatever_their_types() -> None:
    field = inner({"type": ["string", "integer"], "enum": [1, "1", True, "true"]})
    assert (field.kind, values(field.choices), field.nullable) == ("choice", [1, "1", True, "true"], False)
    assert [c.label for c in field.choices] == ["1", "1", "Yes", "true"]
    fixed = inner({"type": ["string", "integer"], "const": 0})
    assert (fixed.kind, values(fixed.choices)) == ("constant", [0])


def test_a_huge_enum_is_one_choice() -> None:
    assert values(inner({"enum": list(range(5000))}).choices) == list(range(5000))


def test_one_alternative_is_no_union_and_null_makes_it_optional() -> None:
    assert inner({"oneOf": [TEXT]}).kind == "string"
    field = inner({"anyOf": [TEXT, {"type": "boolean"}, NULL], "title": "T"})
    assert (field.kind, field.nullable, field.title) == ("union", True, "T")
    assert [o.kind for o in field.options] == ["string", "boolean"]


def test_alternatives_of_one_value_each_are_a_choice() -> None:
    field = inner({"oneOf": [{"const": 1}, {"const": "b"}, {"const": None}]})
    assert (field.kind, [(c.value, c.label) for c in field.choices]) == (
        "choice",
        [(1, "1"), ("b", "b"), (None, "None")],
    )


def test_alternatives_are_called_by_title_by_fixed_value_or_by_kind() -> None:
    cat = {"type": "object", "properties": {"name": TEXT, "kind": {"const": "cat"}}}
    field = inner({"oneOf": [{**TEXT, "title": "A name"}, {"const": 7}, cat, {"type": "array", "items": TEXT}, True]})
    assert [o.title for o in field.options] == ["A name", "7", "cat", "List", "JSON"]


def test_a_constant_beside_null_is_a_choice_that_may_be_left_out() -> None:
    class Signed(BaseModel):
        terms: Literal["accepted"] | None = None

    field = form_of(TypeShape(Signed).schema)
    assert field is not None
    assert (field.children[0].kind, field.children[0].optional) == ("choice", True)
    assert read_form(field, {"$.terms": [""]}).value == {}
    assert read_form(field, {"$.terms": ['"accepted"']}).value == {"terms": "accepted"}
    assert read_form(field, fill(field, {"terms": None}), {"terms": None}).value == {"terms": None}


# -- groups, lists and texts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.b", "a[0]", "a@1", "a?", "a#", "$a"])
def test_names_that_would_be_two_paths_need_the_json_editor(name: str) -> None:
    assert form_of({"type": "object", "properties": {name: TEXT}}) is None


def test_a_group_that_takes_no_keys_is_an_empty_form() -> None:
    field = form_of({"type": "object", "additionalProperties": False})
    assert field is not None
    assert (field.kind, field.children) == ("object", ())
    assert read_form(field, {}).value == {}


def test_properties_without_a_type_are_a_group() -> None:
    field = form_of({"properties": {"a": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5}}})
    assert field is not None
    assert (field.kind, field.children[0].hint) == ("object", "More than 0, a multiple of 0.5")


def test_unique_choices_are_ticked_and_others_are_rows() -> None:
    enum = {"enum": ["a", "b"]}
    ticked = inner({"type": "array", "items": enum, "uniqueItems": True, "maxItems": 1})
    assert (ticked.kind, values(ticked.choices), ticked.hint) == ("many", ["a", "b"], "At most 1")
    assert inner({"type": "array", "items": enum}).kind == "list"
    maybe = inner({"type": "array", "items": {"anyOf": [enum, NULL]}, "uniqueItems": True})
    assert maybe.kind == "list"
    assert maybe.item is not None
    assert maybe.item.nullable


def test_long_texts_are_known_by_name_or_length() -> None:
    field = form_of(
        {
            "properties": {
                "Reason": TEXT,
                "to": TEXT,
                "cc": {**TEXT, "maxLength": 151},
                "bcc": {**TEXT, "maxLength": 150},
            }
        }
    )
    assert field is not None
    assert [c.kind for c in field.children] == ["text", "string", "text", "string"]
    assert inner({**TEXT, "format": "textarea"}).kind == "text"
    assert inner({**TEXT, "format": "email"}).kind == "string"


def test_abbreviations_stay_in_capitals() -> None:
    field = form_of({"properties": {"URL": TEXT, "order-id": TEXT, "_": TEXT}})
    assert field is not None
    assert [c.title for c in field.children] == ["URL", "Order id", ""]


def test_only_the_outermost_field_has_the_schema() -> None:
    schema = holder(TEXT)
    field = form_of(schema)
    assert field is not None
    assert field.schema == schema
    assert field.children[0].schema is UNSET


DEFAULTS: Mapping[str, tuple[Any, Any]] = {
    "group": ({"type": "object", "properties": {"x": TEXT}}, 5),
    "list": ({"type": "array", "items": TEXT}, "abc"),
    "ticks": ({"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True}, {"a": 1}),
    "alternatives": ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, [1]),
    "choice": ({"enum": ["a", "b"]}, "z"),
    "number": ({"type": "integer"}, 10**40),
    "truth": ({"type": "boolean"}, "perhaps"),
    "date": ({"type": "string", "format": "date"}, {"y": 1}),
}


@pytest.mark.parametrize("schema, default", DEFAULTS.values(), ids=DEFAULTS.keys())
def test_a_default_that_does_not_fit_is_never_an_answer(schema: dict[str, Any], default: Any) -> None:
    field = form_of(holder({**schema, "default": default}, required=["a"]))
    assert field is not None
    assert field.children[0].default == default
    reading = read_form(field, fill(field))
    assert reading.errors or reading.value in ({"a": {}}, {"a": []})
    assert all(re.match(r"\$\.a\b", path) for path in reading.errors)
