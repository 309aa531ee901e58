"""How a function becomes a tool."""

import enum
import functools
import threading
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from adjourn import (
    Adjourn,
    DuplicateName,
    Interrupt,
    SignatureError,
    ToolFailed,
    ToolRunContext,
    UnknownTool,
    tool,
)
from adjourn.errors import DefinitionError
from adjourn.testing import ScriptedModel, call, tool_context


async def run(made: Any, input: Any) -> Any:
    """What the tool's body returned, through a whole turn."""
    model = ScriptedModel([call(made.name, input), "done"])
    response = await Adjourn(model=model).generate("go", tools=[made])
    [part] = response.messages[-2].content
    assert part.tool_response is not None
    return part.tool_response.output


class Item(BaseModel):
    sku: str
    quantity: int = 1


@dataclass
class Place:
    city: str
    zip: str = ""


class Size(TypedDict):
    w: int
    h: int


class Colour(enum.Enum):
    RED = "red"


class Mode(enum.StrEnum):
    FAST = "fast"


# -- parameters -------------------------------------------------------------------------------------------------------


async def test_several_plain_parameters_with_defaults() -> None:
    @tool
    async def t(a: str, b: int = 2, c: list[str] | None = None, d: float = 0.5) -> Any:
        return [a, b, c, d]

    assert await run(t, {"a": "x"}) == ["x", 2, None, 0.5]
    assert await run(t, {"a": "x", "b": 0, "c": [], "d": 1}) == ["x", 0, [], 1.0]
    assert t.input_schema["required"] == ["a"]
    assert t.input_schema["properties"]["b"]["default"] == 2


async def test_no_parameters_at_all() -> None:
    @tool
    async def t() -> str:
        return "ok"

    assert await run(t, {}) == "ok"
    assert await run(t, None) == "ok"


async def test_a_pydantic_model_is_the_whole_input() -> None:
    @tool
    async def t(item: Item) -> Any:
        assert isinstance(item, Item)
        return [item.sku, item.quantity]

    assert await run(t, {"sku": "A"}) == ["A", 1]
    assert set(t.input_schema["properties"]) == {"sku", "quantity"}


async def test_a_dataclass_is_the_whole_input() -> None:
    @tool
    async def t(place: Place) -> Any:
        assert isinstance(place, Place)
        return place

    assert await run(t, {"city": "Ulm"}) == {"city": "Ulm", "zip": ""}


async def test_a_typed_dict_is_the_whole_input() -> None:
    @tool
    async def t(size: Size, ctx: ToolRunContext) -> Any:
        return size["w"] * size["h"]

    assert await run(t, {"w": 2, "h": 3}) == 6


async def test_models_beside_plain_parameters_are_properties() -> None:
    @tool
    async def t(item: Item, note: str, place: Place | None = None) -> Any:
        return [item.sku, note, place.city if place else None]

    assert await run(t, {"item": {"sku": "A"}, "note": "n", "place": {"city": "Ulm"}}) == ["A", "n", "Ulm"]


async def test_parameters_by_keyword_and_by_position_only() -> None:
    @tool
    async def t(a: int, /, b: int, *, c: int, ctx: ToolRunContext) -> Any:
        return [a, b, c, ctx.is_resumed()]

    assert await run(t, {"a": 1, "b": 2, "c": 3}) == [1, 2, 3, False]


async def test_the_context_may_stand_anywhere_and_is_not_shown_to_the_model() -> None:
    @tool
    async def first(ctx: ToolRunContext, a: int) -> Any:
        return [ctx.attempt, a]

    @tool
    async def middle(a: int, run: ToolRunContext, b: int) -> Any:
        return [a, run.attempt, b]

    @tool
    async def optional(a: int, ctx: ToolRunContext | None = None) -> Any:
        assert ctx is not None
        return [a, ctx.attempt]

    assert await run(first, {"a": 5}) == [1, 5]
    assert await run(middle, {"a": 5, "b": 6}) == [5, 1, 6]
    assert await run(optional, {"a": 5}) == [5, 1]
    assert set(middle.input_schema["properties"]) == {"a", "b"}


async def test_enums_literals_and_annotated_constraints() -> None:
    @tool
    async def t(
        colour: Colour, mode: Literal["a", "b"], n: Annotated[int, Field(ge=1, description="How many")], m: Mode
    ) -> Any:
        assert colour is Colour.RED
        assert m is Mode.FAST
        return [mode, n]

    assert await run(t, {"colour": "red", "mode": "a", "n": 1, "m": "fast"}) == ["a", 1]
    assert "error" in await run(t, {"colour": "red", "mode": "c", "n": 1, "m": "fast"})
    assert "error" in await run(t, {"colour": "red", "mode": "a", "n": 0, "m": "fast"})
    assert t.input_schema["properties"]["n"]["description"] == "How many"


@pytest.mark.parametrize("name", ["schema", "copy", "self_", "json", "model_config", "class_", "_private", "validate"])
async def test_a_parameter_may_have_any_name(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"async def t({name}: int) -> int:\n    return {name}", scope)
    assert await run(tool(scope["t"]), {name: 3}) == 3


async def test_annotations_as_text_are_resolved() -> None:
    @tool
    async def t(a: "int", item: "Item | None" = None) -> "int":
        return a

    assert await run(t, {"a": 3}) == 3


async def test_local_types_in_annotations_are_resolved() -> None:
    class Local(BaseModel):
        x: int

    @tool
    async def t(local: Local) -> int:
        return local.x

    assert await run(t, {"x": 4}) == 4


async def test_a_result_may_be_a_model_a_dataclass_or_plain_json() -> None:
    @tool
    async def model() -> Item:
        return Item(sku="A")

    @tool
    def data() -> list[Place]:
        return [Place("Ulm")]

    assert await run(model, {}) == {"sku": "A", "quantity": 1}
    assert await run(data, {}) == [{"city": "Ulm", "zip": ""}]


async def test_a_method_a_partial_and_a_decorated_function_are_tools() -> None:
    class Shop:
        def __init__(self) -> None:
            self.price = 3

        async def total(self, n: int) -> int:
            """The total."""
            return n * self.price

    def shouting(fn: Any) -> Any:
        @functools.wraps(fn)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            return (await fn(*args, **kwargs)).upper()

        return inner

    @tool
    @shouting
    async def greet(name: str) -> str:
        return f"hi {name}"

    made = tool(Shop().total)
    assert (made.name, made.description) == ("total", "The total.")
    assert await run(made, {"n": 2}) == 6
    assert await run(greet, {"name": "bob"}) == "HI BOB"


# -- signatures that cannot be described ------------------------------------------------------------------------------


def test_star_parameters_are_refused_by_name() -> None:
    async def args(*values: int) -> None: ...

    async def kwargs(**values: int) -> None: ...

    functions: list[Any] = [args, kwargs]
    for fn in functions:
        with pytest.raises(SignatureError) as caught:
            tool(fn)
        assert fn.__name__ in str(caught.value)
        assert "values" in str(caught.value)


def test_a_parameter_with_no_json_form_is_refused_by_tool_and_parameter() -> None:
    class Opaque:
        pass

    async def lock(first: int, guard: threading.Event) -> None: ...

    async def opaque(thing: Opaque) -> None: ...

    async def nested(things: list[Opaque]) -> None: ...

    cases: list[tuple[Any, str]] = [(lock, "guard"), (opaque, "thing"), (nested, "things")]
    for fn, parameter in cases:
        with pytest.raises(SignatureError) as caught:
            tool(fn)
        assert fn.__name__ in str(caught.value)
        assert parameter in str(caught.value)


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    async def t(x: int) -> None: ...

    t.__annotations__["x"] = "NoSuchType"
    with pytest.raises(SignatureError) as caught:
        tool(t)
    assert "NoSuchType" in str(caught.value)


def test_a_callable_parameter_is_refused() -> None:
    async def t(callback: type) -> None: ...

    with pytest.raises(SignatureError):
        tool(t)


# -- names, descriptions, registration --------------------------------------------------------------------------------


def test_every_way_to_decorate() -> None:
    ai = Adjourn()

    @ai.tool
    async def bare() -> None:
        """Bare."""

    @ai.tool()
    async def called() -> None:
        """Called."""

    @ai.tool(name="other_name", description="Given.")
    async def named() -> None:
        """Not this."""

    async def plain() -> None:
        """Plain."""

    free = tool(plain)
    assert [(t.name, t.description) for t in (bare, called, named, free)] == [
        ("bare", "Bare."),
        ("called", "Called."),
        ("other_name", "Given."),
        ("plain", "Plain."),
    ]
    assert set(ai.tools) == {"bare", "called", "other_name"}


GOOGLE = """Send it.

    Args:
        to (str): Who gets it.
        body: What it says,
            on two lines.

    Returns:
        Nothing much.
    """
NUMPY = """Send it.

    Parameters
    ----------
    to : str
        Who gets it.
    body : str
        What it says, on two lines.
    """
SPHINX = """Send it.

    :param to: Who gets it.
    :param str body: What it says, on two lines.
    :returns: Nothing much.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_argument_docs_become_parameter_descriptions(text: str) -> None:
    async def send(to: str, body: str) -> None: ...

    send.__doc__ = text
    made = tool(send)
    properties = made.input_schema["properties"]
    assert properties["to"]["description"] == "Who gets it."
    assert " ".join(properties["body"]["description"].split()) == "What it says, on two lines."
    assert made.description.startswith("Send it.")
    assert "Who gets it" not in made.description


def test_two_tools_of_one_name_are_refused() -> None:
    ai = Adjourn()

    @ai.tool()
    async def twin() -> None: ...

    with pytest.raises(DuplicateName) as caught:

        @ai.tool(name="twin")
        async def other() -> None: ...

    assert "twin" in str(caught.value)
    with pytest.raises(DuplicateName):
        ai.define_interrupt("twin", "x")
    assert ai.tools["twin"] is twin


async def test_two_tools_of_one_name_in_one_call_are_refused_and_the_same_one_twice_is_not() -> None:
    async def twin() -> str:
        return "a"

    a, b = tool(twin), tool(twin)
    model = ScriptedModel(["hi", "hi"])
    ai = Adjourn(model=model)
    with pytest.raises(DuplicateName):
        await ai.generate("x", tools=[a, b])
    assert model.calls == 0
    await ai.generate("x", tools=[a, a])
    assert [d.name for d in model.requests[0].tools] == ["twin"]


async def test_tools_are_given_as_objects_names_or_plain_functions() -> None:
    model = ScriptedModel([[call("registered"), call("plain")], "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def registered() -> str:
        return "r"

    def plain() -> str:
        return "p"

    tools: list[Any] = ["registered", plain]
    response = await ai.generate("x", tools=tools)
    outputs = [p.tool_response.output for p in response.messages[-2].content if p.tool_response]
    assert outputs == ["r", "p"]
    assert set(ai.tools) == {"registered"}


async def test_an_unknown_tool_name_is_refused_with_the_known_ones() -> None:
    ai = Adjourn(model=ScriptedModel(["hi"]))

    @ai.tool()
    async def known() -> None: ...

    with pytest.raises(UnknownTool) as caught:
        await ai.generate("x", tools=["unknown_one"])
    assert "known" in str(caught.value).replace("unknown_one", "")


async def test_what_is_no_tool_is_refused() -> None:
    wrong: Any = [42]
    with pytest.raises(DefinitionError):
        await Adjourn(model=ScriptedModel(["hi"])).generate("x", tools=wrong)


async def test_without_tools_the_model_is_offered_none() -> None:
    model = ScriptedModel(["hi"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def known() -> None: ...

    await ai.generate("x")
    assert list(model.requests[0].tools) == []


async def test_an_interrupt_that_is_returned_is_an_error_that_says_to_raise_it() -> None:
    ran: list[int] = []

    async def gate() -> Any:
        ran.append(1)
        return Interrupt("Really?")

    with pytest.raises(ToolFailed, match="raise it"):
        await run(tool(gate, retries=2), {})
    assert ran == [1]


def test_a_respond_only_tool_that_cannot_be_described_is_refused_by_its_own_name() -> None:
    with pytest.raises(SignatureError, match="tool 'pick'"):
        Adjourn().define_interrupt("pick", "Pick one.", input_schema=threading.Lock)


# -- calling the function itself --------------------------------------------------------------------------------------


async def test_the_decorated_name_stays_callable_as_it_was_written() -> None:
    ai = Adjourn()

    @ai.tool()
    async def send(to: str, ctx: ToolRunContext, *, note: str = "") -> Any:
        if not ctx.is_resumed():
            raise Interrupt({"to": to})
        return [to, ctx.resumed_metadata, note]

    @ai.tool()
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    assert add(2, b=3) == 5
    assert getattr(add, "__name__", None) == "add"
    assert add.__doc__ == "Adds."
    with pytest.raises(Interrupt) as caught:
        await send("bob", tool_context())
    assert caught.value.payload == {"to": "bob"}
    assert await send("bob", tool_context(resumed=True)) == ["bob", {}, ""]
    assert await send("bob", ctx=tool_context(resumed={"by": "me"}), note="n") == ["bob", {"by": "me"}, "n"]


def test_a_context_for_tests_tells_what_it_was_made_with() -> None:
    ctx = tool_context(restarts=[{"a": 1}], resumed={"b": 2}, attempt=3, original_input={"x": 1}, context="mine")
    assert ctx.restarts == ({"a": 1}, {"b": 2})
    assert ctx.resumed_metadata == {"b": 2}
    assert (ctx.attempt, ctx.original_input, ctx.context) == (3, {"x": 1}, "mine")
    assert tool_context().is_resumed() is False
    assert tool_context().resumed_metadata is None
