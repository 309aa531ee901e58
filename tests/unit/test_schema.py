"""From signatures and types to JSON schema, and from a model's arguments to Python values."""

# What is tested here is untyped on purpose.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportUnnecessaryTypeIgnoreComment=false, reportUnknownMemberType=false

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from adjourn.conform import problems
from adjourn.schema import Misfit, TypeShape
from adjourn.tool import ToolOutput, ToolRunContext
from unit.schema_kit import (
    Address,
    Holder,
    Ignoring,
    Line,
    Loose,
    Names,
    Node,
    NotDescribable,
    Order,
    Point,
    Size,
    called,
    misfit,
    shape,
)

# -- shapes of signatures --------------------------------------------------------------------------------------------


def test_each_parameter_is_a_property_and_those_without_default_are_required() -> None:
    def send(to: str, copies: int = 1, *, urgent: bool = False, tags: list[str] | None = None) -> None:
        """Send it.

        Args:
            to: Who gets it.
            tags: What it is about.
        """

    assert shape(send).name == "send"
    assert shape(send).description == "Send it."
    assert shape(send).schema == {
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "Who gets it."},
            "copies": {"type": "integer", "default": 1},
            "urgent": {"type": "boolean", "default": False},
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
                "description": "What it is about.",
            },
        },
        "required": ["to"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_an_empty_object_or_none_at_all() -> None:
    def now() -> str:
        return "now"

    assert shape(now).schema == {"type": "object", "properties": {}, "additionalProperties": False}
    for given in ({}, None, "{}", "null"):
        assert called(now, given) == "now"
    assert misfit(now, {"x": 1}) == ["$.x: there is no such argument"]


def test_positional_only_keyword_only_and_plain_parameters_are_passed_as_the_function_takes_them() -> None:
    def fn(a: int, /, b: int, *, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    assert called(fn, {"a": 1, "b": 2}) == (1, 2, 3)
    assert called(fn, {"c": 9, "b": 2, "a": 1}) == (1, 2, 9)


def test_a_default_is_passed_as_it_is_and_never_shared_between_calls() -> None:
    marker = Size.LARGE

    def fn(size: Size = marker, seen: list[int] = []) -> Any:  # noqa: B006
        seen.append(1)
        return size, len(seen)

    made = shape(fn)
    for _ in range(2):
        args, kwargs = made.arguments({})
        assert fn(*args, **kwargs) == (Size.LARGE, 1)


def test_parameters_may_have_any_name() -> None:
    def fn(
        schema: int, copy: int, _x: int, model_config: int, self: int, json: int, a1: int, a0: int, validate: int = 9
    ) -> Any:
        return schema, copy, _x, model_config, self, json, a1, a0, validate

    names = ["schema", "copy", "_x", "model_config", "self", "json", "a1", "a0"]
    assert list(shape(fn).schema["properties"]) == [*names, "validate"]
    assert called(fn, {n: i for i, n in enumerate(names)}) == (*range(8), 9)


def test_a_parameter_without_annotation_takes_anything() -> None:
    def fn(a, b=2):  # type: ignore[no-untyped-def]
        return a, b

    assert shape(fn).schema["properties"] == {"a": {}, "b": {"default": 2}}
    assert called(fn, {"a": [None]}) == ([None], 2)


def test_annotated_descriptions_and_constraints_are_kept() -> None:
    def fn(
        n: Annotated[int, Field(ge=1, description="How many.")], m: Annotated[str, Field(max_length=2)] = "a"
    ) -> int:
        return n

    assert shape(fn).schema["properties"]["n"] == {"type": "integer", "minimum": 1, "description": "How many."}
    assert shape(fn).schema["properties"]["m"] == {"type": "string", "maxLength": 2, "default": "a"}
    assert misfit(fn, {"n": 0}) == ["$.n: Input should be greater than or equal to 1, not 0"]


def test_the_docstring_describes_a_parameter_whose_annotation_does_not() -> None:
    def fn(n: Annotated[int, Field(ge=1)], m: int) -> None:
        """X.

        Args:
            n: How many.
        """

    assert shape(fn).schema["properties"] == {
        "n": {"type": "integer", "minimum": 1, "description": "How many."},
        "m": {"type": "integer"},
    }


def test_enums_unions_literals_and_nested_models_become_python_values() -> None:
    def fn(size: Size, how: Literal["fast", 2], who: int | str | None, order: Order, at: Point, to: Address) -> Any:
        return size, how, who, order, at, to

    given = {
        "size": "l",
        "how": 2,
        "who": None,
        "order": {"lines": [{"sku": "a"}]},
        "at": {"x": 1},
        "to": {"street": "s", "zip": 1},
    }
    assert called(fn, given) == (
        Size.LARGE,
        2,
        None,
        Order(lines=[Line(sku="a")]),
        Point(1.0),
        {"street": "s", "zip": 1},
    )
    assert problems(shape(fn).schema, given) == []


def test_made_up_titles_are_left_out_and_properties_named_title_stay() -> None:
    def fn(title: str, order: Order) -> None: ...

    made = shape(fn).schema
    assert made["properties"]["title"] == {"type": "string"}
    assert '"title":' not in str(made).replace("'", '"').replace('"title": {', "")


@pytest.mark.parametrize("value", [{"title": "x", "b": 1}, {"properties": {"title": 1}}], ids=repr)
def test_a_default_that_has_a_key_title_is_shown_as_it_is(value: Any) -> None:
    def fn(a: dict[str, Any] = value) -> None: ...

    assert shape(fn).schema["properties"]["a"]["default"] == value


def test_a_default_without_a_json_form_is_simply_not_shown() -> None:
    def fn(a: Any = NotDescribable) -> Any:
        return a

    assert shape(fn).schema["properties"] == {"a": {}}
    assert called(fn, {}) is NotDescribable


# -- one object as the input -----------------------------------------------------------------------------------------


def test_one_required_model_dataclass_or_typed_dict_is_the_input_itself() -> None:
    def model(order: Order, ctx: ToolRunContext) -> Any:
        return order

    def data(p: Point) -> Any:
        return p

    def typed(a: Address) -> Any:
        return a

    def annotated(line: Annotated[Line, Field(description="One line.")]) -> Any:
        return line

    assert called(model, {"lines": []}) == Order(lines=[])
    assert called(data, {"x": 1, "y": 2}) == Point(1, 2)
    assert called(typed, {"street": "s", "zip": 1}) == {"street": "s", "zip": 1}
    assert called(annotated, {"sku": "a"}) == Line(sku="a")
    for fn in (model, data, typed, annotated):
        assert shape(fn).schema["type"] == "object"
        assert shape(fn).schema["additionalProperties"] is False
    assert misfit(data, {"x": 1, "z": 1}) == ["$.z: there is no such argument"]


def test_a_model_with_a_default_or_beside_another_parameter_is_a_property() -> None:
    def optional(line: Line = Line(sku="a")) -> Any:  # noqa: B008
        return line

    def two(line: Line, n: int) -> Any:
        return line, n

    assert list(shape(optional).schema["properties"]) == ["line"]
    assert called(optional, {}) == Line(sku="a")
    assert called(two, {"line": {"sku": "b"}, "n": 1}) == (Line(sku="b"), 1)


@pytest.mark.parametrize("kind", [Order, Line, Node, Point, Address, Loose, Ignoring, Holder], ids=lambda k: k.__name__)
def test_what_the_schema_of_one_object_allows_is_what_is_accepted(kind: Any) -> None:
    def fn(value: Any) -> Any:
        return value

    fn.__annotations__ = {"value": kind}
    made = shape(fn)
    for given in (
        {},
        {"lines": []},
        {"lines": [{"sku": "a"}]},
        {"lines": [{"sku": "a", "x": 1}]},
        {"sku": "a"},
        {"sku": "a", "x": 1},
        {"v": 1},
        {"v": 1, "next": {"v": 2}},
        {"v": 1, "next": {"v": 2, "x": 1}},
        {"v": 1, "x": 1},
        {"x": 1.5},
        {"x": 1, "z": 1},
        {"street": "s", "zip": 1},
        {"a": 1},
        {"a": 1, "b": 2},
        {"loose": {"a": 1}},
        {"loose": {"a": 1, "b": 2}},
    ):
        try:
            made.arguments(given)
        except Misfit:
            accepted = False
        else:
            accepted = True
        assert accepted == (not problems(made.schema, given)), f"{given} and {made.schema}"


def test_a_recursive_model_as_the_input_has_its_fields_at_the_top() -> None:
    def fn(node: Node) -> Any:
        return node

    made = shape(fn).schema
    assert made["type"] == "object", "providers want an object at the top, not a $ref"
    assert set(made["properties"]) == {"v", "next"}
    assert called(fn, {"v": 1, "next": {"v": 2}}) == Node(v=1, next=Node(v=2))


def test_a_model_that_is_no_object_is_a_property() -> None:
    def fn(names: Names) -> Any:
        return names.root

    assert shape(fn).schema["type"] == "object"
    assert called(fn, {"names": ["a", "b"]}) == ["a", "b"]


def test_an_input_model_that_allows_or_ignores_extras_keeps_doing_so() -> None:
    def loose(x: Loose) -> Any:
        return x

    def ignoring(x: Annotated[Ignoring, "note"]) -> Any:
        return x

    assert called(loose, {"a": 1, "b": 2}).model_extra == {"b": 2}
    assert called(ignoring, {"a": 1, "b": 2}) == Ignoring(a=1)


# -- arguments as models send them -----------------------------------------------------------------------------------


def two(to: str, n: int = 1) -> Any:
    return to, n


def test_arguments_may_come_as_a_string_of_json() -> None:
    assert called(two, '{"to": "ann", "n": 2}') == ("ann", 2)


@pytest.mark.parametrize("raw", ['{"to": "an', "", "to=ann", "{'to': 'ann'}"], ids=repr)
def test_broken_or_cut_off_json_is_a_misfit_that_says_so(raw: str) -> None:
    assert misfit(two, raw)[0].startswith("$: the arguments are broken or cut off: ")


@pytest.mark.parametrize("given", [[], "[]", 1, '"x"', False, "0"], ids=repr)
def test_arguments_that_are_no_object_are_a_misfit(given: Any) -> None:
    assert misfit(two, given) == ["$: the arguments must be one JSON object"]


def test_every_fault_is_named_with_its_path_and_what_was_given() -> None:
    def fn(order: Order, n: int) -> None: ...

    assert misfit(fn, {"order": {"lines": [{"sku": 1}, {"qty": {}}]}, "n": "x" * 200, "m": 1}) == [
        "$.order.lines[0].sku: Input should be a valid string, not 1",
        "$.order.lines[1].sku: Field required",
        "$.order.lines[1].qty: Input should be a valid integer",
        f"$.n: Input should be a valid integer, unable to parse string as an integer, not '{'x' * 79}…",
        "$.m: there is no such argument",
    ]
    assert misfit(two, {}) == ["$.to: Field required"]


def test_what_a_validator_of_the_model_says_reaches_the_caller() -> None:
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("must be even")
            return n

    def fn(x: Even) -> None: ...

    assert misfit(fn, {"n": 3}) == ["$.n: Value error, must be even, not 3"]


# -- types and results -----------------------------------------------------------------------------------------------


def test_a_type_validates_data_and_parses_a_model_s_text_with_or_without_a_fence() -> None:
    made = TypeShape(Order)
    assert made.validate({"lines": [{"sku": "a"}]}) == Order(lines=[Line(sku="a")])
    for text in ('{"lines": []}', '  {"lines": []}\n', '```json\n{"lines": []}\n```', '```\n{"lines": []}\n```\n'):
        assert made.parse(text) == Order(lines=[])
    assert made.schema["description"] == "An order."


@pytest.mark.parametrize("text,value", [("null", None), ("false", False), ("0", 0), ('""', ""), ("[]", []), ("{}", {})])
def test_falsy_data_is_data(text: str, value: Any) -> None:
    made = TypeShape(Any)
    assert (made.validate(value), type(made.parse(text))) == (value, type(value))


def test_text_that_is_no_json_or_does_not_fit_is_a_misfit() -> None:
    with pytest.raises(Misfit, match=r"^\$: is not JSON"):
        TypeShape(Order).parse("Here you are!")
    with pytest.raises(Misfit, match=r"^\$\.lines: Field required$"):
        TypeShape(Order).parse("{}")


def test_a_declared_return_type_has_a_schema_where_one_can_be_given() -> None:
    def typed() -> Line: ...  # pyright: ignore[reportReturnType]
    def plain() -> list[int]: ...  # pyright: ignore[reportReturnType]
    def anything() -> Any: ...
    def nothing() -> None: ...
    def untyped(): ...  # type: ignore[no-untyped-def]
    def opaque() -> NotDescribable: ...  # pyright: ignore[reportReturnType]

    assert (shape(typed).output_schema() or {})["required"] == ["sku"]
    assert shape(plain).output_schema() == {"type": "array", "items": {"type": "integer"}}
    for fn in (anything, nothing, untyped, opaque):
        assert shape(fn).output_schema() is None


def test_a_tool_output_as_the_return_type_is_no_error() -> None:
    def fn() -> ToolOutput: ...  # pyright: ignore[reportReturnType]

    shape(fn).output_schema()
