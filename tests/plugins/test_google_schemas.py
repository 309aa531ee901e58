"""JSON schema as Gemini is sent it."""

import enum
from datetime import date, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from adjourn import Adjourn
from adjourn.dialect import each_schema
from adjourn.errors import SignatureError
from adjourn.plugins.google_genai.dialect import adapted, tool_schema

ALLOWED = {
    "$defs", "$ref", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems",
    "minimum", "maximum", "anyOf", "properties", "additionalProperties", "required",
}  # fmt: skip


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    colour: Colour | None = None


class Order(BaseModel):
    id: UUID
    when: datetime
    day: date
    address: Address
    others: list[Address] = []
    kind: Literal["a", "b", None] = None
    fixed: Literal["x"] = "x"
    truth: Literal[True] = True
    amount: Annotated[int, Field(gt=0, lt=10, multiple_of=2)]
    code: Annotated[str, Field(pattern="^[A-Z]+$", min_length=2, description="The code.")]
    pair: tuple[int, str]
    extra: dict[str, Any] = {}
    either: int | str | None = None


class Tree(BaseModel):
    name: str
    children: list["Tree"] = []


def keywords(schema: Any) -> set[str]:
    found = set[str]()
    each_schema(schema, lambda s, _: found.update(s) or s)
    return found


def test_references_are_written_out_and_only_known_keywords_are_sent() -> None:
    out = tool_schema("order", Order.model_json_schema())
    assert keywords(out) <= ALLOWED - {"$ref", "$defs"}
    fields = out["properties"]
    assert fields["address"]["properties"]["street"]["type"] == "string"
    assert fields["others"]["items"]["properties"]["colour"]["anyOf"][0]["enum"] == ["red", "blue"]
    assert fields["when"]["format"] == "date-time"
    assert fields["id"]["description"] == "format uuid"
    assert fields["kind"]["anyOf"] == [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]
    assert fields["fixed"]["enum"] == ["x"]
    assert fields["truth"]["type"] == "boolean"
    assert "one of true" in fields["truth"]["description"]
    assert fields["amount"]["description"] == "more than 0, less than 10, a multiple of 2"
    assert fields["code"]["description"] == "The code. (pattern ^[A-Z]+$, at least 2 characters)"
    assert [s["type"] for s in fields["either"]["anyOf"]] == ["integer", "string", "null"]
    assert "id" in out["required"]


def test_a_tool_without_parameters_is_an_object() -> None:
    assert tool_schema("f", None) == {"type": "object", "properties": {}}


def test_lists_of_types_and_one_ofs_become_any_of() -> None:
    given = {"type": ["string", "null"], "minLength": 2, "description": "d"}
    assert adapted(given, "x") == {
        "description": "d",
        "anyOf": [{"type": "string", "description": "at least 2 characters"}, {"type": "null"}],
    }
    assert adapted({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "x") == {
        "anyOf": [{"type": "string"}, {"type": "integer"}]
    }


def test_an_all_of_is_merged_or_refused() -> None:
    parts: list[Any] = [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": True}}]
    assert adapted({"allOf": parts, "description": "d"}, "x") == {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "required": ["a"],
        "description": "d",
    }
    with pytest.raises(SignatureError, match="tool 'f'"):
        tool_schema("f", {"properties": {"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}}})


def test_a_type_that_contains_itself_keeps_its_references_where_it_may_be_left_out() -> None:
    out = tool_schema("plant", Tree.model_json_schema())
    assert out["type"] == "object"
    assert out["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert out["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert keywords(out) <= ALLOWED


def test_what_only_narrows_is_told_in_words() -> None:
    given = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        "propertyNames": {"pattern": "^x"},
        "minProperties": 1,
        "not": {"required": ["a"]},
    }
    out = adapted(given, "x")
    assert keywords(out) <= ALLOWED
    assert out["properties"]["tags"]["description"] == "no item twice"
    assert (
        out["description"]
        == 'at least 1 keys, with keys that fit {"pattern": "^x"}, nothing that fits {"required": ["a"]}'
    )


def test_keys_of_one_pattern_are_any_keys_with_the_pattern_in_words() -> None:
    values = {"type": "integer"}
    out = adapted({"type": "object", "patternProperties": {"^n": values}}, "x")
    assert out["additionalProperties"] == values
    assert "^n" in out["description"]
    with pytest.raises(SignatureError, match="keys of several patterns"):
        adapted({"type": "object", "patternProperties": {"^n": values, "^m": values}}, "x")


def test_schemas_of_tools_pass() -> None:
    ai = Adjourn()

    @ai.tool()
    async def file(order: Order, tags: set[str], *, note: str | None = None) -> None:
        """File it.

        Args:
            order: What to file.
        """

    assert keywords(tool_schema(file.name, file.input_schema)) <= ALLOWED
