"""Messages, their codec, and what may become JSON."""

# What is tested here is untyped on purpose.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportUnnecessaryTypeIgnoreComment=false, reportUnknownMemberType=false

import base64
import enum
import json
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from adjourn.errors import InvalidRequest, NotJSON
from adjourn.parts import (
    Artifact,
    Chunk,
    ErrorInfo,
    Media,
    Message,
    Part,
    ToolRequest,
    ToolResponse,
    Usage,
    canonical,
    convert,
    decode,
    digest,
    encode,
    new_id,
    to_json,
    wire,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_part_answers_none_for_every_kind_it_is_not() -> None:
    part = Part(text="hi")
    kinds = (part.reasoning, part.media, part.data, part.tool_request, part.tool_response, part.custom, part.metadata)
    assert kinds == (None,) * 7


def test_a_message_joins_its_texts_and_its_reasoning_and_lists_its_requests() -> None:
    request = Part(tool_request=ToolRequest("a"))
    message = Message("model", [Part(reasoning="hm"), Part(text="a"), request, Part(text=""), Part(text="b")])
    assert (message.text, message.reasoning) == ("ab", "hm")
    assert message.tool_requests == [request]
    chunk = Chunk(content=[Part(text="a"), Part(reasoning="r"), Part(text="b")])
    assert (chunk.text, chunk.reasoning) == ("ab", "r")


@pytest.mark.parametrize("metadata", [None, {}, {"other": 1}, {"adjourn": None}, {"adjourn": {}}], ids=repr)
def test_what_adjourn_noted_is_empty_where_it_noted_nothing(metadata: Any) -> None:
    assert Part(text="x", metadata=metadata).ours == {}
    assert Message("user", [], metadata).ours == {}


def test_what_adjourn_noted_is_under_one_key() -> None:
    assert Part(metadata={"adjourn": {"id": "c"}, "x": 1}).ours == {"id": "c"}
    assert Message("user", [], {"adjourn": {"n": 1}}).ours == {"n": 1}


def test_usage_adds_up_field_by_field_and_the_shares_are_no_additions() -> None:
    total = Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40)
    assert total == Usage(11, 22, 33, 44)
    assert total.total_tokens == 33


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Message("user", []).role = "model"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_wire_form_is_camel_case_and_leaves_out_what_is_not_set() -> None:
    message = Message(
        "model",
        [
            Part(tool_request=ToolRequest("t", "r", {"some_key": 1})),
            Part(tool_response=ToolResponse("t", "r", None, [Part(media=Media("data:,", "image/png"))])),
        ],
    )
    assert wire(message) == {
        "role": "model",
        "content": [
            {"toolRequest": {"name": "t", "ref": "r", "input": {"some_key": 1}}},
            {
                "toolResponse": {
                    "name": "t",
                    "ref": "r",
                    "content": [{"media": {"url": "data:,", "contentType": "image/png"}}],
                }
            },
        ],
    }
    assert convert(wire(message), Message) == message
    assert wire(ErrorInfo("INTERNAL", "m")) == {"status": "INTERNAL", "message": "m"}
    assert wire(Artifact("a", [Part(text="x")])) == {"name": "a", "parts": [{"text": "x"}]}


@given(json_values, st.dictionaries(st.text(), json_values, max_size=3) | st.none(), st.text())
def test_any_message_reads_back_from_its_bytes_equal(value: Any, metadata: Any, text: str) -> None:
    parts = [
        Part(text=text, metadata=metadata),
        Part(data=value),
        Part(tool_request=ToolRequest("t", text, value)),
        Part(tool_response=ToolResponse("t", None, value, [Part(text=text)])),
        Part(custom={"x": value}),
    ]
    message = Message("tool", parts, metadata)
    assert decode(encode(message), Message) == message
    assert convert(json.loads(encode(message)), Message) == message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'{"role":"user"}',
        b'{"role":"nobody","content":[]}',
        b'{"role":"user","content":[{"text":1}]}',
        b'"\xff"',
    ],
    ids=repr,
)
def test_bytes_that_are_no_message_are_refused_by_the_name_of_what_was_expected(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a valid Message"):
        decode(raw, Message)


def test_a_misfit_is_named_with_its_path() -> None:
    with pytest.raises(InvalidRequest, match=r"\$\.content\[0\]\.text"):
        convert({"role": "user", "content": [{"text": 1}]}, Message)
    with pytest.raises(InvalidRequest, match=r"not a valid list.*\$\[0\]"):
        convert([1], list[Message])


def test_a_message_nested_without_end_is_refused_and_not_a_crash() -> None:
    with pytest.raises(InvalidRequest):
        decode(b'{"role":"user","content":[{"data":' + b"[" * 100_000, Message)


# -- canonical form --------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), json_values, max_size=6))
def test_the_canonical_form_and_the_digest_do_not_depend_on_the_order_of_keys(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert canonical(value) == canonical(turned)
    assert digest("t", value) == digest("t", turned)
    assert json.loads(canonical(value)) == value


def test_a_digest_is_the_same_in_every_process_and_release() -> None:
    assert digest("send_email", {"to": "ann"}) == "1039a470e3af12b0cbeeaa1c512adc3b"
    assert re.fullmatch(r"[0-9a-f]{32}", digest())


@pytest.mark.parametrize(
    "one,other",
    [
        ((1,), ("1",)),
        ((0,), (False,)),
        ((None,), ()),
        (("a", "b"), (["a", "b"],)),
        (({},), ([],)),
        (("ab",), ("a", "b")),
    ],
)
def test_values_that_differ_have_digests_that_differ(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert digest(*one) != digest(*other)


def test_a_new_id_has_its_prefix_and_128_random_bits() -> None:
    ids = {new_id("i_") for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"i_[0-9a-f]{32}", i) for i in ids)
    assert len(new_id()) == 32


# -- to_json ---------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Kind(enum.StrEnum):
    A = "a"


class Loud(str):
    __slots__ = ()


class Count(int):
    pass


class Ratio(float):
    pass


class Item(BaseModel):
    sku: str
    price: Decimal = Field(alias="unitPrice")


@dataclass
class Order:
    id: UUID
    items: list[Item]
    note: str | None = None
    seen: int = field(default=0, init=False)


class Row(msgspec.Struct, rename="camel"):
    made_at: datetime
    tags: set[str] = set()


ID = UUID("12345678-1234-5678-1234-567812345678")
WHEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


@given(json_values)
def test_a_json_value_is_its_own_json_form(value: Any) -> None:
    assert to_json(value) == value
    assert json.loads(encode(to_json(value))) == value


@pytest.mark.parametrize(
    "value,expected",
    [
        ((1, ("a",)), [1, ["a"]]),
        (WHEN, "2024-05-06T07:08:09+00:00"),
        (date(2024, 5, 6), "2024-05-06"),
        (time(7, 8), "07:08:00"),
        (timedelta(minutes=1.5), 90.0),
        (Decimal("1.10"), "1.10"),
        (ID, "12345678-1234-5678-1234-567812345678"),
        (PurePosixPath("/a/b"), "/a/b"),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (Kind.A, "a"),
        ({Kind.A: 1, Color.RED: 2}, {"a": 1, "red": 2}),
        (MappingProxyType({"a": (1, 2)}), {"a": [1, 2]}),
        (OrderedDict(b=1, a={"c": 2}), {"b": 1, "a": {"c": 2}}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({(1, 2), (0, 9)}, [[0, 9], [1, 2]]),
        (b"\x00\xff", "AP8="),
        (bytearray(b"a"), "YQ=="),
        (memoryview(b"a"), "YQ=="),
        (Loud("hé"), "hé"),
        (Count(3), 3),
        (Ratio(0.5), 0.5),
        (Item(sku="a", unitPrice=Decimal("2.50")), {"sku": "a", "unitPrice": "2.50"}),
        (
            Order(ID, [Item(sku="a", unitPrice=Decimal(1))]),
            {
                "id": str(ID),
                "items": [{"sku": "a", "unitPrice": "1"}],
                "note": None,
                "seen": 0,
            },
        ),
        (Row(WHEN, {"x"}), {"madeAt": "2024-05-06T07:08:09Z", "tags": ["x"]}),
        (
            {"nested": [{"when": WHEN, "c": {Color.RED}}]},
            {"nested": [{"when": "2024-05-06T07:08:09+00:00", "c": ["red"]}]},
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_programs_hold_becomes_plain_json(value: Any, expected: Any) -> None:
    plain = to_json(value)
    assert plain == expected
    assert json.loads(json.dumps(plain)) == plain
    assert not isinstance(plain, (Loud, Count, Ratio, enum.Enum))


def test_a_set_has_one_json_form_whatever_order_it_was_filled_in() -> None:
    words = [f"w{i}" for i in range(50)]
    backwards = words[::-1]
    assert digest(to_json(set(words))) == digest(to_json(set(backwards)))


class Broken(msgspec.Struct):
    inner: Any


class Cyclic(BaseModel):
    child: Any = None


def looped() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value,path",
    [
        (float("nan"), "$"),
        ({"a": [0.0, float("inf")]}, "$.a[1]"),
        ({"a": float("-inf")}, "$.a"),
        ([Ratio("nan")], "$[0]"),
        ({"price": Decimal("NaN")}, "$.price"),
        ({"price": Decimal("-Infinity")}, "$.price"),
        ({"a": {1: "x"}}, "$.a"),
        ({None: 1}, "$"),
        ({Level.HIGH: 1}, "$"),
        ({"a": [{"b": 1j}]}, "$.a[0].b"),
        ({"f": Fraction(1, 2)}, "$.f"),
        ({"f": test_a_new_id_has_its_prefix_and_128_random_bits}, "$.f"),
        ({"o": object()}, "$.o"),
        ({"t": Item}, "$.t"),
        ({"t": Order}, "$.t"),
        ({"m": re}, "$.m"),
        ({"g": (i for i in range(3))}, "$.g"),
        ({"s": {1j}}, "$.s{}"),
        ({"t": "\ud800"}, "$.t"),
        ({"t": Loud("\udfff")}, "$.t"),
        ({"t": {"\ud800": 1}}, "$.t"),
        ({"r": Broken(object())}, "$.r"),
        ({"r": Broken(float("nan"))}, "$.r.inner"),
        ({"k": SecretStr("x")}, "$.k"),
        ({"c": Cyclic(child=float("nan"))}, "$.c.child"),
        ({"c": Order(ID, [Cyclic(child=1j)])}, "$.c.items[0].child"),  # pyright: ignore[reportArgumentType]
        ({"e": BaseException()}, "$.e"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_has_no_json_form_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(NotJSON) as e:
        to_json(value, "interrupt payload")
    assert e.value.path == path
    assert str(e.value).startswith(f"the interrupt payload cannot be stored as JSON: {path} ")


def test_what_contains_itself_is_refused_and_not_a_crash() -> None:
    cyclic = Cyclic()
    cyclic.child = cyclic
    for value in (looped(), {"a": looped()}, cyclic, Broken(looped())):
        with pytest.raises(NotJSON):
            to_json(value)


def test_what_is_nested_deep_but_finite_is_taken() -> None:
    value: Any = "x"
    for _ in range(150):
        value = [value]
    assert to_json(value) == value
    for _ in range(100):
        value = [value]
    with pytest.raises(NotJSON, match="nested more than 200 deep"):
        to_json(value)


@pytest.mark.parametrize("value", [2**53, 2**63 - 1, -(2**63), 2**64 - 1])
def test_integers_of_64_bits_keep_every_digit(value: int) -> None:
    assert decode(encode(to_json({"n": value})), dict[str, Any]) == {"n": value}


def test_an_integer_past_64_bits_keeps_every_digit_too() -> None:
    assert decode(encode(to_json({"n": 2**70})), dict[str, Any]) == {"n": 2**70}


def test_bytes_read_back_as_they_were() -> None:
    assert base64.b64decode(to_json(bytes(range(256)))) == bytes(range(256))
