"""What the tests of one subject share."""

# What is tested here is untyped on purpose.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportUnnecessaryTypeIgnoreComment=false, reportUnknownMemberType=false
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, ConfigDict, RootModel
from typing_extensions import TypedDict  # pydantic takes typing.TypedDict from Python 3.12 on

from adjourn.schema import InputShape, Misfit
from adjourn.tool import ToolRunContext

if TYPE_CHECKING:
    pass  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


def shape(fn: Callable[..., Any]) -> InputShape:
    return InputShape(fn, ToolRunContext)


def called(fn: Callable[..., Any], given: Any, context: Any = None) -> Any:
    """What the function returns for these arguments of a model."""
    args, kwargs = shape(fn).arguments(given, context)
    return fn(*args, **kwargs)


def misfit(fn: Callable[..., Any], given: Any) -> list[str]:
    with pytest.raises(Misfit) as e:
        shape(fn).arguments(given)
    assert str(e.value) == "; ".join(f"{p['path']}: {p['message']}" for p in e.value.problems)
    return [f"{p['path']}: {p['message']}" for p in e.value.problems]


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Line(BaseModel):
    sku: str
    qty: int = 1


class Order(BaseModel):
    """An order."""

    lines: list[Line]
    size: Size = Size.SMALL


class Node(BaseModel):
    v: int
    next: "Node | None" = None


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Holder(BaseModel):
    loose: Loose


class Ignoring(BaseModel):
    model_config = ConfigDict(extra="ignore")
    a: int


class Names(RootModel[list[str]]):
    pass


@dataclass
class Point:
    x: float
    y: float = 0.0


class Address(TypedDict):
    street: str
    zip: int


class NotDescribable:
    pass
