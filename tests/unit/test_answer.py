"""Answers and the handles that make them, by themselves."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from adjourn.answer import PausedCall, as_paused, respond_to_interrupt
from adjourn.conform import problems
from adjourn.errors import DefinitionError
from adjourn.events import Pause
from adjourn.parts import Message, Part, ToolRequest, ToolResponse, fresh
from adjourn.schema import InputShape, Misfit, TypeShape
from adjourn.tool import ToolRunContext


def paused(**metadata: Any) -> PausedCall:
    part = Part(tool_request=ToolRequest("pay", "r1", {"n": 1}), metadata=metadata or None)
    return PausedCall(part, Pause("i1", {"why": "much"}), "c1")


def test_an_answer_shows_its_wire_form() -> None:
    answer = paused().respond({"ok": True})
    assert answer.tool_response == ToolResponse("pay", "r1", {"ok": True})
    assert answer.tool_request is None
    assert answer.metadata == {"interruptResponse": True}
    again = paused().restart({"by": "me"})
    assert again.tool_request == ToolRequest("pay", "r1", {"n": 1})
    assert again.tool_response is None


def test_answers_and_pauses_say_what_they_are() -> None:
    assert repr(paused().respond(1)) == "<Answer Responded pay>"
    assert repr(paused()) == "<PausedCall i1 pay({'n': 1}) payload={'why': 'much'}>"


def test_whatever_holds_a_paused_call_can_be_answered_like_one() -> None:
    call = paused()
    assert as_paused(SimpleNamespace(paused=call)) is call
    assert respond_to_interrupt(1, SimpleNamespace(paused=call)).paused is call


def test_a_part_that_is_settled_is_no_paused_call() -> None:
    settled = Part(tool_request=ToolRequest("pay", "r1"), metadata={"pendingOutput": 1})
    with pytest.raises(DefinitionError, match=r"response\.interrupts"):
        as_paused(settled)


def test_what_is_changed_in_a_handle_s_input_changes_nothing_else() -> None:
    request = ToolRequest("pay", "r1", {"n": [1]})
    call = PausedCall(Part(tool_request=request), Pause("i1"), "c1")
    call.input["n"].append(2)
    assert request.input == {"n": [1]}


def test_a_copy_of_json_data_leaves_alone_what_is_none() -> None:
    thing = object()
    assert fresh({"a": (1, [thing])}) == {"a": [1, [thing]]}


def test_a_message_gives_its_tools_results_in_order() -> None:
    results = [ToolResponse("a", "1", 1), ToolResponse("b", "2", None)]
    parts = [Part(tool_response=r) for r in results]
    assert Message("tool", [parts[0], Part(text="x"), parts[1]]).tool_responses == results


def test_a_value_too_deep_to_be_checked_is_a_problem_and_not_a_crash() -> None:
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    schema = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    assert problems(schema, deep) == [{"path": "$", "message": "is nested too deep"}]


@pytest.mark.parametrize("text,value", [("plain words", "plain words"), ('"quoted"', "quoted"), ("12", "12")])
def test_a_reply_that_has_to_be_a_text_may_be_plain_or_json(text: str, value: str) -> None:
    assert TypeShape(str).parse(text) == value


def test_not_a_number_is_no_json() -> None:
    with pytest.raises(Misfit, match="NaN"):
        TypeShape(float).parse("NaN")


class Fragile(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def look_up(cls, n: int) -> int:
        return {1: 1}[n]


def test_a_validator_that_fails_in_its_own_way_is_a_misfit_too() -> None:
    assert TypeShape(Fragile).validate({"n": 1}).n == 1
    with pytest.raises(Misfit, match="KeyError"):
        TypeShape(Fragile).validate({"n": 2})


@dataclass
class Point:
    x: int
    y: int = 0


def test_a_class_can_be_a_tool() -> None:
    shape = InputShape(Point, ToolRunContext)
    args, kwargs = shape.arguments({"x": 3})
    assert Point(*args, **kwargs) == Point(3, 0)
