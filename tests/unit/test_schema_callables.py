"""The context parameter, callables that are no plain functions, and signatures that cannot be described."""

# What is tested here is untyped on purpose.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportUnnecessaryTypeIgnoreComment=false, reportUnknownMemberType=false

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypedDict

import pytest
from pydantic import BaseModel

from adjourn.errors import SignatureError
from adjourn.schema import TypeShape
from adjourn.tool import ToolRunContext
from unit.schema_kit import Line, NotDescribable, Size, called, misfit, shape

if TYPE_CHECKING:
    from nowhere import Nowhere  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


class Address(TypedDict):
    street: str


@dataclass
class Parcel:
    to: "list[Address]"


class Opaque:
    lost: "Nowhere"

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        return {"type": "any"}


@dataclass
class Chain:
    before: "Chain | None"
    at: Address


# -- the context parameter -------------------------------------------------------------------------------------------


def test_the_context_is_passed_wherever_it_stands_and_never_shown_to_the_model() -> None:
    def first(ctx: ToolRunContext, n: int) -> Any:
        return ctx, n

    def last(n: int, ctx: ToolRunContext) -> Any:
        return ctx, n

    def keyword(n: int, *, run: ToolRunContext) -> Any:
        return run, n

    def positional(ctx: ToolRunContext, n: int, /) -> Any:
        return ctx, n

    def between(n: int, ctx: Optional[ToolRunContext], /, m: int = 1) -> Any:  # noqa: UP045
        return ctx, n

    def optional(n: int, ctx: ToolRunContext | None = None) -> Any:
        return ctx, n

    def quoted(n: int, ctx: "ToolRunContext | None" = None) -> Any:
        return ctx, n

    def annotated(n: int, ctx: Annotated[ToolRunContext, "mine"]) -> Any:
        return ctx, n

    def both(n: int, ctx: Annotated[ToolRunContext | None, "mine"] = None) -> Any:
        return ctx, n

    context = ToolRunContext()
    for fn in (first, last, keyword, positional, between, optional, quoted, annotated, both):
        assert "n" in shape(fn).schema["properties"]
        assert not {"ctx", "run"} & set(shape(fn).schema["properties"]), fn.__name__
        assert called(fn, {"n": 1}, context) == (context, 1), fn.__name__


def test_a_model_cannot_hand_in_the_context() -> None:
    def fn(n: int, ctx: ToolRunContext) -> None: ...

    assert misfit(fn, {"n": 1, "ctx": {}}) == ["$.ctx: there is no such argument"]


def test_a_predicate_gets_the_validated_arguments_without_the_context() -> None:
    def fn(a: int, ctx: ToolRunContext, /, b: Size) -> None: ...

    def whole(line: Line, ctx: ToolRunContext) -> None: ...

    made = shape(fn)
    assert made.validated(*made.arguments({"a": 1, "b": "s"}, ToolRunContext())) == {"a": 1, "b": Size.SMALL}
    made = shape(whole)
    assert made.validated(*made.arguments({"sku": "a"})) == Line(sku="a")
    made = shape(lambda x: x)
    assert made.validated(*made.arguments({"x": 1})) == {"x": 1}


# -- callables that are not plain functions --------------------------------------------------------------------------


def test_a_wrapped_function_is_described_as_what_it_wraps() -> None:
    def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return inner

    @logged
    def add(a: int, ctx: ToolRunContext, b: Size = Size.SMALL) -> Any:
        """Adds."""
        return a, b

    assert shape(add).description == "Adds."
    assert called(add, {"a": 1, "b": "l"}) == (1, Size.LARGE)


def test_an_object_with_call_and_a_bound_method_are_tools_too() -> None:
    class Adder:
        """Adds."""

        def __call__(self, a: int, ctx: ToolRunContext) -> Any:
            return a, ctx

        def method(self, size: Size) -> Size:
            return size

    context = ToolRunContext()
    assert called(Adder(), {"a": 1}, context) == (1, context)
    assert called(Adder().method, {"size": "s"}) is Size.SMALL
    assert shape(Adder().method).name == "method"


def test_a_partial_is_described_by_the_function_it_completes() -> None:
    def fn(size: Size, n: int, ctx: ToolRunContext) -> Any:
        return size, n, ctx

    context = ToolRunContext()
    assert called(functools.partial(fn, n=2), {"size": "s"}, context) == (Size.SMALL, 2, context)


def test_a_function_may_mention_what_the_function_around_it_defines_later() -> None:
    class Parcels(BaseModel):
        many: int

    def send(parcels: "Parcels") -> Any:
        return Parcels, later, parcels

    def broken(n: "later") -> None:  # type: ignore[valid-type]
        assert later

    described = shape(send)
    with pytest.raises(SignatureError, match="tool 'broken': an annotation cannot be resolved: name 'later'"):
        shape(broken)
    later = "sent"
    args, kwargs = described.arguments({"many": 2})
    assert send(*args, **kwargs)[1:] == (later, Parcels(many=2))


def test_types_that_only_the_enclosing_function_knows_are_resolved() -> None:
    class Local(BaseModel):
        n: int

    def plain(x: Local, y: int) -> Any:
        return x

    def quoted(x: "Local", y: int) -> Any:
        return Local, x

    assert called(plain, {"x": {"n": 1}, "y": 2}) == Local(n=1)
    assert called(quoted, {"x": {"n": 1}, "y": 2})[1] == Local(n=1)


# -- signatures that cannot be described -----------------------------------------------------------------------------


def unresolved(target: "Nowhere", n: int) -> None: ...


def rest(n: int, *more: int) -> None: ...


def anything(**more: int) -> None: ...


def opaque(thing: NotDescribable, n: int) -> None: ...


def opaque_alone(thing: NotDescribable) -> None: ...


def callback(then: Callable[[int], int], n: int) -> None: ...


@dataclass
class Dangling:
    x: "Missing"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


def dangling(thing: Dangling) -> None: ...


def dangling_beside(thing: Dangling, n: int) -> None: ...


class HasCallback(BaseModel):
    then: Callable[[int], int]


def callback_inside(thing: HasCallback) -> None: ...


@pytest.mark.parametrize(
    "fn,parameter",
    [
        (rest, "*more"),
        (anything, "**more"),
        (opaque, "thing"),
        (opaque_alone, "thing"),
        (callback, "then"),
        (callback_inside, "thing"),
        (dangling, "thing"),
        (dangling_beside, "thing"),
        (unresolved, "Nowhere"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_signature_that_cannot_be_described_is_refused_by_tool_and_parameter(fn: Any, parameter: str) -> None:
    with pytest.raises(SignatureError) as e:
        shape(fn)
    assert repr(fn.__name__) in str(e.value)
    assert parameter in str(e.value)


def test_a_type_that_cannot_be_described_is_refused() -> None:
    for kind in (NotDescribable, Callable[[int], int]):
        with pytest.raises(SignatureError):
            TypeShape(kind)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes typing.TypedDict from Python 3.12 on")
@pytest.mark.parametrize(
    "hint",
    [Address, list[Address], Address | None, Parcel, Annotated[Parcel, "doc"], Chain, tuple[Opaque, Address]],
    ids=["itself", "in a list", "or None", "in a dataclass", "annotated", "behind a circle", "beside the unreadable"],
)
def test_a_typed_dict_of_typing_is_named_with_what_to_import_instead(hint: Any) -> None:
    def fn(where, count: int = 1):  # type: ignore[no-untyped-def]
        return where, count

    fn.__annotations__["where"] = hint
    for refused in (lambda: shape(fn), lambda: TypeShape(hint)):
        with pytest.raises(SignatureError) as e:
            refused()
        assert "Address is a TypedDict of typing" in str(e.value)
        assert "from typing_extensions import TypedDict" in str(e.value)
        assert "<class" not in str(e.value)


def test_a_context_without_annotation_is_refused_since_no_model_could_supply_it() -> None:
    def fn(to: str, ctx):  # type: ignore[no-untyped-def]
        return to, ctx

    with pytest.raises(SignatureError, match="ctx: ToolRunContext"):
        shape(fn)
