"""Whether data fits a schema, held against the `jsonschema` package."""

# What is tested here is untyped on purpose.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportUnnecessaryTypeIgnoreComment=false, reportUnknownMemberType=false

import enum
import re
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from adjourn.conform import problems
from adjourn.schema import TypeShape

jsonschema = pytest.importorskip("jsonschema", reason="the peer that the checks are held against")


def faults(schema: Any, value: Any) -> list[str]:
    return [f"{p['path']}: {p['message']}" for p in problems(schema, value)]


def peer_fits(schema: Any, value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = 0


class Line(BaseModel):
    sku: Annotated[str, Field(pattern="^[A-Z]+$", min_length=1, max_length=3)]
    qty: Annotated[int, Field(ge=1, lt=10)]
    note: str | None = None


class Tree(BaseModel):
    model_config = ConfigDict(extra="forbid")
    v: int
    kids: list["Tree"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


atoms: Any = st.sampled_from(
    [
        int,
        float,
        str,
        bool,
        None,
        Mood,
        Line,
        Tree,
        datetime,
        Literal["a", 1, None, True],
        Annotated[Cat | Dog, Field(discriminator="kind")],
        Cat | Dog,
        Annotated[int, Field(multiple_of=3, gt=-4, le=9)],
        Annotated[float, Field(multiple_of=0.5)],
        Annotated[str, Field(min_length=2)],
        dict[Literal["a", "b"], int],
        dict[Annotated[str, Field(pattern="^k")], int],
        tuple[int, str],
        tuple[int, ...],
        set[int],
        Any,
        list[Any],
        dict[str, Any],
    ]
)
types: Any = st.recursive(
    atoms,
    lambda inner: (
        inner.map(lambda t: list[t])
        | inner.map(lambda t: dict[str, t])
        | inner.map(lambda t: t | None if t is not None else None)
        | inner.map(lambda t: Annotated[list[t], Field(min_length=1, max_length=2)])
    ),
    max_leaves=3,
)
keys = st.sampled_from(["a", "b", "k1", "sku", "qty", "v", "kids", "kind", "lives", "name", "note"])
scalars: Any = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        3,
        5,
        9,
        12,
        -1,
        1.0,
        0.5,
        0.25,
        2.5,
        "",
        "a",
        "ABC",
        "cat",
        "dog",
        "good",
        "ABCD",
        "2024-01-02T03:04:05",
    ]
)
values: Any = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
lines = st.fixed_dictionaries(
    {"sku": st.sampled_from(["A", "ABCD", "a", 1]), "qty": st.sampled_from([1, 0, 10, "1"])}, optional={"note": scalars}
)
cats = st.fixed_dictionaries(
    {"kind": st.sampled_from(["cat", "dog"])}, optional={"lives": st.sampled_from([9, "9"]), "name": scalars}
)
trees: Any = st.recursive(
    st.fixed_dictionaries({"v": st.sampled_from([1, 1, 1, "1"])}),
    lambda t: st.fixed_dictionaries({"v": st.just(1), "kids": st.lists(t, max_size=2)}),
    max_leaves=4,
)
likely: Any = values | lines | cats | trees | st.lists(lines | cats | trees, max_size=3)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(types, likely)
def test_whether_a_value_fits_a_type_s_schema_is_what_the_jsonschema_package_says(kind: Any, value: Any) -> None:
    schema = TypeShape(kind).schema
    assert (not problems(schema, value)) == peer_fits(schema, value), faults(schema, value)


def some(**keywords: Any) -> Any:
    """A schema of up to three of these keywords."""
    pairs = [st.tuples(st.just(name), value) for name, value in keywords.items()]
    return st.lists(st.one_of(pairs), max_size=3).map(dict)


kinds = ["object", "array", "string", "number", "integer", "boolean", "null", ["string", "null"], ["integer", "array"]]
small = st.integers(0, 3)
rules: Any = some(
    type=st.sampled_from(kinds),
    const=scalars,
    enum=st.lists(scalars, min_size=1, max_size=3),
    minimum=small,
    maximum=small,
    exclusiveMinimum=small,
    exclusiveMaximum=small,
    multipleOf=st.sampled_from([1, 2, 0.5]),
    minLength=small,
    maxLength=small,
    pattern=st.sampled_from(["^a", "b$", "[A-Z]"]),
    minItems=small,
    maxItems=small,
    uniqueItems=st.booleans(),
    required=st.lists(keys, max_size=2, unique=True),
    minProperties=small,
    maxProperties=small,
)
schemas: Any = st.recursive(
    rules | st.booleans(),
    lambda s: some(
        properties=st.dictionaries(keys, s, min_size=1, max_size=2),
        additionalProperties=s,
        patternProperties=st.dictionaries(st.sampled_from(["^k", "a"]), s, min_size=1, max_size=2),
        items=s,
        prefixItems=st.lists(s, min_size=1, max_size=2),
        anyOf=st.lists(s, min_size=1, max_size=2),
        oneOf=st.lists(s, min_size=1, max_size=2),
        allOf=st.lists(s, min_size=1, max_size=2),
        **{"not": s},
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas, values)
def test_whether_a_value_fits_a_hand_written_schema_is_what_the_jsonschema_package_says(
    schema: Any, value: Any
) -> None:
    assert (not problems(schema, value)) == peer_fits(schema, value), faults(schema, value)


@pytest.mark.parametrize(
    "schema,value",
    [
        ({"const": 1}, 1.0),
        ({"enum": [1, 2]}, 2.0),
        ({"uniqueItems": True}, [1, 1.0]),
        ({"uniqueItems": True}, [{"a": 1}, {"a": 1.0}]),
        ({"const": True}, 1),
        ({"enum": [0]}, False),
        ({"uniqueItems": True}, [1, True, 0, False]),
        ({"type": "integer"}, 1.0),
        ({"type": "integer"}, True),
        ({"type": "number"}, False),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", "b"]),
        ({"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "string"}}}, 1),
        ({"$ref": "#/anyOf/1", "anyOf": [True, {"type": "string"}]}, 1),
        ({"properties": {"x": {"$ref": "#"}}, "required": ["n"]}, {"n": 1, "x": {"n": 1, "x": {}}}),
        ({"propertyNames": {"enum": ["a"]}}, {"b": 1}),
        ({"multipleOf": 0.1}, 0.3),
        ({"multipleOf": 0.01}, 19.99),
    ],
    ids=lambda v: re.sub(r" at 0x\w+", "", repr(v)),
)
def test_corners_of_the_standard(schema: Any, value: Any) -> None:
    if "multipleOf" in schema:  # the peer divides floats exactly and refuses 0.3 as a multiple of 0.1; people do not
        assert not problems(schema, value)
    else:
        assert (not problems(schema, value)) == peer_fits(schema, value), faults(schema, value)


@pytest.mark.parametrize(
    "schema,value,expected",
    [
        (True, 1, []),
        (None, 1, []),
        ({}, object(), []),
        (False, 1, ["$: must not be given"]),
        ({"type": "string"}, 1, ["$: must be string, not integer"]),
        ({"type": "string"}, 1.5, ["$: must be string, not number"]),
        ({"type": ["string", "null"]}, True, ["$: must be string or null, not boolean"]),
        ({"type": "string"}, [], ["$: must be string, not array"]),
        ({"type": "string"}, {}, ["$: must be string, not object"]),
        ({"type": "string"}, None, ["$: must be string, not null"]),
        ({"type": "null"}, "", ["$: must be null, not string"]),
        ({"type": "string"}, 1j, ["$: must be string, not complex"]),
        ({"type": "x-ours"}, 1, []),
        ({"const": "a"}, "b", ["$: must be 'a'"]),
        ({"enum": ["a", 1]}, "b", ["$: must be one of 'a', 1"]),
        ({"minLength": 2}, "a", ["$: must have at least 2 characters"]),
        ({"maxLength": 1}, "ab", ["$: must have at most 1 characters"]),
        ({"pattern": "^a"}, "b", ["$: must match ^a"]),
        ({"minimum": 1}, 0, ["$: must be at least 1"]),
        ({"maximum": 1}, 2, ["$: must be at most 1"]),
        ({"exclusiveMinimum": 1}, 1, ["$: must be more than 1"]),
        ({"exclusiveMaximum": 1}, 1, ["$: must be less than 1"]),
        ({"multipleOf": 2}, 3, ["$: must be a multiple of 2"]),
        ({"required": ["a"]}, {}, ["$.a: is required"]),
        ({"properties": {"a": {"type": "null"}}}, {"a": 1}, ["$.a: must be null, not integer"]),
        ({"additionalProperties": False}, {"a": 1}, ["$.a: there is no such field"]),
        ({"additionalProperties": {"type": "null"}}, {"a": 1}, ["$.a: must be null, not integer"]),
        ({"minProperties": 1}, {}, ["$: must have at least 1 fields"]),
        ({"maxProperties": 0}, {"a": 1}, ["$: must have at most 0 fields"]),
        ({"items": {"type": "null"}}, [None, 1], ["$[1]: must be null, not integer"]),
        ({"minItems": 1}, [], ["$: must have at least 1 items"]),
        ({"maxItems": 0}, [1], ["$: must have at most 0 items"]),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ["$: must not have the same item twice"]),
        ({"oneOf": [{}, {}]}, 1, ["$: fits more than one of the alternatives"]),
        ({"not": {}}, 1, ["$: is what it must not be"]),
        ({"allOf": [{"minimum": 1}, {"maximum": -1}]}, 0, ["$: must be at least 1", "$: must be at most -1"]),
        ({"anyOf": []}, 1, []),
        ({"$ref": "https://example.org/other.json"}, 1, []),
        ({"$ref": "#/$defs/gone/x"}, 1, []),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"minimum": 1}}, "maximum": 3}, 4, ["$: must be at most 3"]),
    ],
    ids=lambda v: re.sub(r" at 0x\w+", "", repr(v)),
)
def test_what_is_wrong_is_said_with_its_path(schema: Any, value: Any, expected: list[str]) -> None:
    assert faults(schema, value) == expected


def test_of_several_alternatives_the_one_that_was_most_likely_meant_is_explained() -> None:
    schema = TypeShape(Line | None).schema
    assert faults(schema, {"sku": "A", "qty": 0}) == ["$.qty: must be at least 1"]


def test_every_fault_of_an_object_is_named_at_once() -> None:
    assert faults(TypeShape(list[Line]).schema, [{"sku": "a"}, {"sku": "A", "qty": 99}]) == [
        "$[0].qty: is required",
        "$[0].sku: must match ^[A-Z]+$",
        "$[1].qty: must be less than 10",
    ]


def test_a_schema_that_refers_to_itself_for_ever_is_refused_and_not_a_crash() -> None:
    assert faults({"$ref": "#"}, 1) == ["$: has a schema that refers to itself without end"]


def test_a_long_but_finite_chain_of_a_recursive_type_fits() -> None:
    chain: Any = {"v": 0}
    for _ in range(60):
        chain = {"v": 1, "kids": [chain]}
    assert faults(TypeShape(Tree).schema, chain) == []


@pytest.mark.parametrize(
    "schema,value,expected",
    [
        ({"multipleOf": 0.01}, 1e308, []),
        ({"multipleOf": 0.3}, 1e308, ["$: must be a multiple of 0.3"]),
        ({"multipleOf": 5e-324}, 10**400, []),
        ({"type": "integer", "maximum": 10**400}, 10**400, []),
        ({"multipleOf": 0.5}, float("inf"), ["$: must be a multiple of 0.5"]),
        ({"multipleOf": 0.5}, float("nan"), ["$: must be a multiple of 0.5"]),
    ],
    ids=["cents", "thirds", "a huge integer", "a huge bound", "infinity", "no number"],
)
def test_a_number_whose_quotient_no_float_can_hold_is_checked_exactly(
    schema: Any, value: Any, expected: list[str]
) -> None:
    assert faults(schema, value) == expected


@pytest.mark.parametrize(
    "keyword,given",
    [
        ("type", 5), ("type", [5]), ("type", [["string"]]), ("type", {}), ("enum", 3), ("enum", "abc"), ("pattern", "(("),
        ("pattern", 5), ("pattern", "a{99999999999999999999}"), ("minLength", "x"), ("maxLength", None), ("minLength", True),
        ("minimum", "1"), ("maximum", []), ("exclusiveMinimum", {}), ("exclusiveMaximum", None), ("multipleOf", "2"),
        ("multipleOf", 0), ("minItems", "x"), ("maxItems", float("nan")), ("uniqueItems", 0), ("items", 5), ("items", []),
        ("prefixItems", 5), ("properties", [1]), ("patternProperties", {"((": False}), ("patternProperties", 1),
        ("required", 5), ("required", [5, {}]), ("additionalProperties", "no"), ("propertyNames", 1), ("minProperties", "x"),
        ("maxProperties", "x"), ("allOf", 1), ("anyOf", {}), ("oneOf", "x"), ("allOf", [5, "x"]), ("not", False), ("$ref", 5),
        ("$ref", "#/anyOf/\u00b2"), ("$ref", "#/anyOf/99999999999"),
    ],
    ids=lambda v: repr(v)[:30],
)  # fmt: skip
def test_a_keyword_that_makes_no_sense_is_passed_over_and_is_no_crash(keyword: str, given: Any) -> None:
    schema = {"anyOf": [True], keyword: given}
    if keyword == "patternProperties" and given != 1:
        schema[keyword] = {"((": True}  # it matches every name, so that what it wants is not skipped
    for value in ("abc", 2, 2.5, [1, 2], {"a": 1}, None, True):
        assert faults(schema, value) == []


def test_a_pattern_that_cannot_be_read_does_not_take_away_what_it_asks_for() -> None:
    assert faults({"patternProperties": {"((": {"type": "null"}}}, {"a": 1}) == ["$.a: must be null, not integer"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        {"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}},
        {"enum": [0] * 100_100},
    ],
    ids=["any of itself twice", "not one of itself twice", "a hundred thousand values"],
)
def test_a_schema_that_asks_for_too_many_steps_refuses_the_value_and_ends(schema: Any) -> None:
    (fault,) = faults(schema, 0)
    assert "cannot be checked" in fault


def test_a_large_value_may_take_as_many_steps_as_it_needs() -> None:
    line = {"sku": "A", "qty": 1, "note": None}
    assert faults(TypeShape(list[Line]).schema, [line] * 20_000) == []


def test_a_value_that_is_nested_deeper_than_can_be_followed_is_refused_and_not_a_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert faults({"type": "array"}, deep) == ["$: is nested too deep"]
