"""What is ours of `local/needle`: its dialect, its closing text, and its thread, with a stand-in for the engine."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from adjourn import (
    InvalidRequest,
    Media,
    Message,
    MissingExtra,
    ModelError,
    ModelReply,
    ModelRequest,
    Part,
    SignatureError,
    ToolDefinition,
    ToolRequest,
    UnknownModel,
)
from adjourn.parts import Chunk
from adjourn.plugins.local import Local, Needle
from adjourn.plugins.local import engine as engine_module
from adjourn.plugins.local.dialect import Line, begins_turn, engine_tool, plain, read_extraction, read_messages
from adjourn.plugins.local.engine import Setup, converse
from adjourn.plugins.local.needle import closing_text
from local_kit import called, returned, user


def correction(text: str) -> Message:
    return Message("user", [Part(text=text)], {"adjourn": {"correction": "output"}})


def definition(properties: dict[str, Any], **rules: Any) -> ToolDefinition:
    return ToolDefinition("save", "Save it.", {"type": "object", "properties": properties, **rules})


def parameters(tool: ToolDefinition) -> dict[str, Any]:
    return engine_tool(tool)["parameters"]["properties"]


# -- the dialect -------------------------------------------------------------------------------------------------------


def test_references_are_put_in_place_of_their_names() -> None:
    line = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}
    tool = definition({"lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}}}, **{"$defs": {"Line": line}})
    assert parameters(tool) == {"lines": {"type": "array", "items": line}}


def test_what_may_be_null_is_described_without_null() -> None:
    tool = definition({"note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}})
    assert parameters(tool) == {"note": {"type": "string"}}


def test_alternatives_are_kept() -> None:
    tool = definition({"id": {"oneOf": [{"type": "integer"}, {"type": "string"}]}, "any": True})
    assert parameters(tool) == {"id": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "any": {}}


def test_bounds_are_said_in_words_and_patterns_are_dropped() -> None:
    tool = definition(
        {
            "quantity": {"type": "integer", "maximum": 300, "title": "Quantity", "description": "units"},
            "code": {"type": "string", "pattern": "^[A-Z]+$"},
            "day": {"type": "string", "format": "date"},
        }
    )
    assert parameters(tool) == {
        "quantity": {"type": "integer", "description": "units (at most 300)"},
        "code": {"type": "string"},
        "day": {"type": "string", "description": "format date"},
    }


def test_a_tool_without_parameters_is_described_with_none() -> None:
    assert engine_tool(ToolDefinition("ping"))["parameters"] == {"type": "object", "properties": {}}


def test_an_input_that_contains_itself_is_refused() -> None:
    node = {"type": "object", "properties": {"child": {"$ref": "#/$defs/Node"}}}
    with pytest.raises(SignatureError, match=r"tool 'save', at 'node\.child': local/needle cannot express the type"):
        engine_tool(definition({"node": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}}))


def test_messages_become_texts_with_the_calls_they_were_answered_with() -> None:
    system, lines = read_messages(
        [
            Message("system", [Part(text="shop: outdoor")]),
            user("Order 47 units of BW-7."),
            called("order", {"code": "BW-7", "quantity": 47}),
            returned("order", {"saved": True}, note="(edited)"),
        ]
    )
    assert system == "shop: outdoor"
    assert lines == [
        Line("Order 47 units of BW-7.", [{"name": "order", "arguments": {"code": "BW-7", "quantity": 47}}]),
        Line('[{"saved": true, "note": "(edited)"}]'),
    ]


def test_a_correction_of_the_output_is_told_as_an_error() -> None:
    messages = [user("Two numbers: 1 and 2"), Message("model", [Part(text="{}")]), correction("it does not fit")]
    assert not begins_turn(messages[-1])
    assert read_messages(messages)[1][-1] == Line('[{"error": "it does not fit"}]')
    assert read_extraction(messages) == [Line("Two numbers: 1 and 2"), Line('[{"error": "it does not fit"}]')]


def test_an_output_is_read_from_the_prompt_and_the_results() -> None:
    messages = [user("What does it cost?"), called("ask", {}), returned("ask", {"price": 9.5, "saved": True})]
    assert read_extraction(messages) == [Line("What does it cost?\nprice: 9.5, saved")]


def test_pictures_are_refused() -> None:
    picture = Message("user", [Part(media=Media("data:image/png;base64,AA==", "image/png"))])
    with pytest.raises(ModelError, match="reads text only, and the prompt has a part of image/png"):
        read_messages([picture])


@pytest.mark.parametrize(
    "value, expected",
    [
        ({"saved": True, "price": 9.5, "note": None}, "saved, price: 9.5"),
        ({"lines": [{"sku": "A"}, 2], "ok": False}, "lines: ((sku: A), 2), ok: no"),
        (None, "nothing"),
        ([], "nothing"),
        ("done", "done"),
        (0, "0"),
    ],
)
def test_json_is_put_in_words(value: Any, expected: str) -> None:
    assert plain(value) == expected


# -- the closing text --------------------------------------------------------------------------------------------------


def test_the_closing_text_says_what_the_tools_returned_and_labels_the_models_own_words() -> None:
    messages = [
        user("Order 500 of BW-7."),
        called("order", {"quantity": 500}),
        returned("order", {"error": "at most 300"}),
        called("order", {"quantity": 300}),
        returned("order", {"declined": True, "reason": "too many"}),
    ]
    assert closing_text(messages, {"reasoning": "Ordered successfully."}).splitlines() == [
        "order(quantity: 500): error: at most 300",
        "order(quantity: 300): declined, reason: too many",
        "The model's own note (it writes no answers): Ordered successfully.",
    ]


def test_the_closing_text_says_where_nothing_was_done() -> None:
    assert closing_text([user("Hello")], {}) == "The model called no tool."
    withheld = {"suppressed_calls": [{"name": "merge", "arguments": {"keep": "A"}}]}
    assert closing_text([user("Merge")], withheld) == "The model withheld what it was not sure of: merge(keep: A)."
    cut = {"error": "token budget exhausted", "error_code": "truncated"}
    assert closing_text([user("Go")], cut) == "The model's reply was not complete: token budget exhausted."


# -- the engine, with a stand-in for it --------------------------------------------------------------------------------


class FakeEngine:
    """Stands for the module `needle`. `reply` is asked for each text; the agents made are in `setups`, all texts in `heard`."""

    def __init__(self, reply: Callable[[str], dict[str, Any]]) -> None:
        self.reply = reply
        self.setups: list[str] = []
        self.heard: list[str] = []
        self.inside = 0

    def Needle(self, tools: Any = None, system: str = "", auto_date: bool = True) -> Any:  # noqa: N802
        assert not auto_date, "a date in the prompt would make replies differ from day to day"
        self.setups.append(tools if isinstance(tools, str) else "")
        return SimpleNamespace(complete=self._complete, reset=lambda: self.heard.append("<reset>"))

    def _complete(self, text: str, max_new_tokens: int = 0) -> dict[str, Any]:
        self.inside += 1
        assert self.inside == 1, "the engine was entered twice at once"
        time.sleep(0.001)
        self.heard.append(text)
        self.inside -= 1
        return self.reply(text)


def say(calls: Sequence[dict[str, Any]] = (), **beside: Any) -> dict[str, Any]:
    return {"function_calls": list(calls), "suppressed_calls": [], **beside}


def always(reply: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    def say(text: str) -> dict[str, Any]:
        return reply

    return say


def act(text: str) -> dict[str, Any]:
    """Calls `act` with what it is told, and is content with any result."""
    return say() if text.startswith("[") else say([{"name": "act", "arguments": {"on": text}}], confidence=0.9)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine(act)
    monkeypatch.setitem(sys.modules, "needle", SimpleNamespace(Needle=engine.Needle))
    monkeypatch.setattr(engine_module, "_engine", engine_module._Engine())  # pyright: ignore[reportPrivateUsage]
    return engine


SETUP = Setup("", "[]", 16)


async def test_a_request_that_extends_the_last_one_goes_on_from_there(fake: FakeEngine) -> None:
    await converse(SETUP, [Line("one")])
    await converse(SETUP, [Line("one", [{"name": "act", "arguments": {"on": "one"}}]), Line("[1]"), Line("two")])
    assert fake.heard == ["<reset>", "one", "[1]", "two"]


@pytest.mark.parametrize("lines", [["two"], ["two", "[1]"], ["one"]])
async def test_any_other_request_is_fed_from_the_start(fake: FakeEngine, lines: list[str]) -> None:
    await converse(SETUP, [Line("one")])
    await converse(SETUP, [Line(text) for text in lines])
    assert fake.heard == ["<reset>", "one", "<reset>", *lines]


async def test_other_tools_need_a_new_agent(fake: FakeEngine) -> None:
    await converse(SETUP, [Line("one")])
    await converse(Setup("", '[{"name": "act"}]', 16), [Line("one"), Line("[1]")])
    assert fake.setups == ["", "[]", '[{"name": "act"}]']
    assert fake.heard == ["<reset>", "one", "<reset>", "one", "[1]"]


async def test_a_transcript_with_other_calls_than_the_engine_makes_is_marked(fake: FakeEngine) -> None:
    other = Line("one", [{"name": "something_else", "arguments": {}}])
    assert (await converse(SETUP, [other, Line("[1]")]))["diverged"] is True
    same = Line("one", [{"name": "act", "arguments": {"on": "one"}}])
    assert "diverged" not in await converse(SETUP, [same, Line("[1]")])
    silent = Line("one", [])
    assert (await converse(SETUP, [silent, Line("[1]")]))["diverged"] is True


async def test_an_engine_that_fails_is_made_anew(fake: FakeEngine) -> None:
    def fail(text: str) -> dict[str, Any]:
        raise RuntimeError("no memory")

    fake.reply = fail
    with pytest.raises(ModelError, match="local/needle failed: no memory") as raised:
        await converse(SETUP, [Line("one")])
    assert raised.value.provider == "local"
    fake.reply = always(say(error="bad state", error_code="runtime"))
    with pytest.raises(ModelError, match="bad state"):
        await converse(SETUP, [Line("one")])
    fake.reply = act
    assert (await converse(SETUP, [Line("one")]))["function_calls"]
    assert len(fake.setups) == 4  # the one that is made to see whether the engine loads, and three


async def test_many_requests_at_once_enter_the_engine_one_after_the_other(fake: FakeEngine) -> None:
    replies = await asyncio.gather(*[converse(SETUP, [Line(f"job {i}")]) for i in range(20)])
    assert [r["function_calls"][0]["arguments"]["on"] for r in replies] == [f"job {i}" for i in range(20)]


async def test_a_request_that_is_cancelled_while_it_queues_is_never_begun(fake: FakeEngine) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(text: str) -> dict[str, Any]:
        begun.set()
        go_on.wait(10)
        return say()

    fake.reply = slow
    first = asyncio.create_task(converse(SETUP, [Line("first")]))
    second = asyncio.create_task(converse(SETUP, [Line("second")]))
    await asyncio.to_thread(begun.wait, 10)
    second.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second
    await converse(SETUP, [Line("third")])
    assert fake.heard == ["<reset>", "first", "<reset>", "third"]


async def ask(request: ModelRequest, **options: Any) -> ModelReply:
    chunks: list[Chunk] = []
    reply = await Needle(**options)(request, chunks.append)
    assert [c.text for c in chunks] == ([reply.message.text] if request.streaming and reply.message.text else [])
    return reply


ACT = ToolDefinition("act", "Act on something.", {"type": "object", "properties": {"on": {"type": "string"}}})


async def test_what_the_engine_says_beside_a_call_is_kept_under_its_own_key(fake: FakeEngine) -> None:
    reply = await ask(ModelRequest([user("it")], [ACT], streaming=True))
    part = reply.message.content[0]
    assert part.tool_request == ToolRequest("act", None, {"on": "it"})
    assert part.metadata == {"needle": {"confidence": 0.9}}
    assert reply.message.metadata == {"needle": {"confidence": 0.9}}


async def test_a_withheld_call_is_told_and_made_only_on_request(fake: FakeEngine) -> None:
    fake.reply = always(say() | {"suppressed_calls": [{"name": "act", "arguments": {"on": "x"}}]})
    request = ModelRequest([user("it")], [ACT], streaming=True)
    reply = await ask(request)
    assert reply.message.text == "The model withheld what it was not sure of: act(on: x)."
    kept = reply.message.metadata
    assert kept == {"needle": {"suppressed_calls": [{"name": "act", "arguments": {"on": "x"}}]}}
    taken = await ask(ModelRequest([user("it")], [ACT], {"accept_withheld": True}))
    assert taken.message.tool_requests


@pytest.mark.parametrize(
    "confidence, least, accept, withheld, called",
    [
        (0.7, 0.8, False, False, False),
        (0.8, 0.8, False, False, True),
        (None, 0.8, False, False, True),  # an engine without that says nothing
        (0.7, 0.8, True, True, False),
        (0.9, 0.8, True, True, True),
        (0.9, 0.8, False, True, False),
    ],
)
async def test_calls_of_too_little_confidence_are_withheld_and_told(
    fake: FakeEngine, confidence: float | None, least: float, accept: bool, withheld: bool, called: bool
) -> None:
    made = [{"name": "act", "arguments": {"on": "x"}}]
    fake.reply = always(say(() if withheld else made, suppressed_calls=made if withheld else [], confidence=confidence))
    config = {"min_confidence": least, "accept_withheld": accept}
    reply = await ask(ModelRequest([user("it")], [ACT], config))
    assert [r.name for p in reply.message.tool_requests if (r := p.tool_request)] == (["act"] if called else [])
    if not called:
        assert reply.message.text == "The model withheld what it was not sure of: act(on: x)."
        assert reply.message.metadata is not None
        assert reply.message.metadata["needle"]["suppressed_calls"] == made


@pytest.mark.parametrize("least", [-0.1, 1.5])
async def test_a_confidence_that_cannot_be_is_refused(fake: FakeEngine, least: float) -> None:
    with pytest.raises(InvalidRequest, match="min_confidence"):
        await ask(ModelRequest([user("it")], [ACT], {"min_confidence": least}))


async def test_a_reply_that_was_cut_off_ends_as_length(fake: FakeEngine) -> None:
    fake.reply = always(say(error="token budget exhausted", error_code="truncated"))
    reply = await ask(ModelRequest([user("it")], [ACT]))
    assert reply.finish_reason == "length"
    assert not reply.message.tool_requests


async def test_an_output_is_filled_in_as_the_only_tool(fake: FakeEngine) -> None:
    fake.reply = always(say([{"name": "record", "arguments": {"value": [3, 5]}}]))
    numbers = await ask(ModelRequest([user("3 and 5")], output_schema={"type": "array"}, streaming=True))
    assert numbers.message.text == "[3, 5]"
    shape = {"type": "object", "properties": {"value": {"type": "array"}}}
    assert (await ask(ModelRequest([user("3 and 5")], output_schema=shape))).message.text == '{"value": [3, 5]}'
    fake.reply = always(say())
    assert (await ask(ModelRequest([user("hm")], output_schema=shape))).message.text == "The model called no tool."


async def test_an_unknown_setting_is_refused(fake: FakeEngine) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        await ask(ModelRequest([user("it")], [ACT], {"temperature": 0.2}))


@pytest.mark.parametrize(
    "request_, problem",
    [
        (ModelRequest([user("it")], [ACT] * 4), "it takes 3 tools and was given 4: pass fewer as tools="),
        (ModelRequest([user("it" * 200)], [ACT]), "it takes 300 characters of conversation and this one has 400"),
        (ModelRequest([user("it")], [ACT, ToolDefinition("b", "long " * 90)]), "300 characters of tool definitions"),
    ],
)
async def test_too_much_is_refused_before_the_engine_is_asked(request_: ModelRequest, problem: str) -> None:
    with pytest.raises(ModelError, match="too long for local/needle") as raised:
        await ask(request_, max_tools=3, max_characters=300)
    assert problem in str(raised.value)
    assert not raised.value.retryable


async def test_a_request_without_a_user_message_is_refused(fake: FakeEngine) -> None:
    with pytest.raises(ModelError, match="no user message"):
        await ask(ModelRequest([Message("system", [Part(text="hi")])], [ACT]))


async def test_a_missing_engine_names_the_pip_command(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "needle", None)
    with pytest.raises(MissingExtra, match=r"pip install 'adjourn\[local\]'"):
        await Needle().load()


def test_the_plugin_lists_its_models_without_loading_an_engine() -> None:
    program = """
import sys
from adjourn import Adjourn
from adjourn.plugins.local import Local
ai = Adjourn(plugins=[Local()], model="local/needle")
assert ai.list_models() == ["local/needle", "local/smollm2"], ai.list_models()
ai.models.find("local/needle")
assert "needle" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with pytest.raises(UnknownModel, match="there is no model 'local/other'; known: local/needle"):
        Local().model("other")
