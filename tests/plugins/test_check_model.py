"""The contract suite, on models that keep it and on models that break it in one way each."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from adjourn.errors import ModelError
from adjourn.model import Emit, FunctionModel, Model, ModelReply, ModelRequest, as_reply
from adjourn.parts import Chunk, Message, Part, ToolRequest, Usage
from adjourn.plugins.anthropic import Anthropic
from adjourn.resilience import fallback_model, retry_model
from adjourn.testing import ScriptedModel
from adjourn.testing_models import check_model, transcripts
from adjourn.transcript import check_sendable
from plugins.anthropic_kit import API_KEY, Answer, Json, assert_valid, either, message, serving, text, tool_use


def last_text(request: ModelRequest) -> str:
    return next(t for m in reversed(request.messages) if m.role == "user" for p in m.content if (t := p.text))


def echo(request: ModelRequest) -> str:
    return "You said: " + last_text(request)


async def test_the_transcripts_of_the_suite_are_what_the_loop_sends() -> None:
    for messages in transcripts().values():
        check_sendable(messages)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScriptedModel(["ok"], chunks=[["o", "k"]], repeat_last=True),
        ScriptedModel(["ok"], repeat_last=True),
        lambda: FunctionModel(echo),
        lambda: retry_model(FunctionModel(echo)),
        lambda: fallback_model(
            ScriptedModel([ModelError("no", retryable=True)], repeat_last=True), FunctionModel(echo)
        ),
    ],
)
async def test_models_of_ours_keep_the_contract(make: Any) -> None:
    failing = ScriptedModel([ModelError("no", retry_after=1.0)], repeat_last=True)
    done = await check_model(make, failing=failing)
    assert not done.skipped
    assert len(done.passed) == len(transcripts()) + 7


async def test_what_is_left_out_is_told() -> None:
    done = await check_model(ScriptedModel(["ok"], repeat_last=True), tools=False)
    assert "errors are ModelErrors" in done.skipped
    assert done.skipped["it goes on after parallel calls"] == "tools=False"
    assert "it goes on after a correction of the output" in done.passed


async def test_the_anthropic_plugin_keeps_the_contract_in_front_of_a_server() -> None:
    calls = 0

    def answer(request: Json) -> Answer:
        nonlocal calls
        last = request["messages"][-1]["content"][-1]
        said = last["text"] if last["type"] == "text" else "a result"
        thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        if "Use the tool" in said:
            calls += 1
            return either(message(thinking, tool_use(f"toolu_{calls}", "get_weather", city="Paris")), request)
        return either(message(thinking, text(f"You said: {said}")), request)

    def expect(request: ModelRequest, reply: ModelReply) -> None:
        if request.messages[-1].role == "user" and not reply.message.tool_requests:
            assert reply.message.text == echo(request)

    async with serving(answer) as (server, plugin):
        nobody = Anthropic(api_key=API_KEY, base_url="http://127.0.0.1:1")
        done = await check_model(lambda: plugin.model("claude-test"), failing=nobody.model("x"), expect=expect)
        await nobody.aclose()
    assert not done.skipped
    assert calls == 2
    for body in server.bodies:
        assert_valid(body)


def replying(make: Callable[[], Any]) -> Model:
    def reply(request: ModelRequest) -> Any:
        return make()

    return FunctionModel(reply)


def calling(**fields: Any) -> Model:
    return replying(lambda: [Part(tool_request=ToolRequest(**fields))])


def streaming(*chunks: Chunk) -> Model:
    def reply(request: ModelRequest, emit: Emit) -> str:
        for chunk in chunks if request.streaming else ():
            emit(chunk)
        return "ok"

    return FunctionModel(reply)


def changing(request: ModelRequest) -> str:
    messages: Any = request.messages
    messages.append(Message("model", [Part(text="mine")]))
    return "ok"


def leaving_a_task(request: ModelRequest, emit: Emit) -> Any:
    async def run() -> str:
        task = asyncio.ensure_future(asyncio.sleep(3))
        LEFT.append(task)
        await asyncio.sleep(0.01)
        task.cancel()
        return "ok"

    return run()


LEFT: list[Any] = []


def late(request: ModelRequest, emit: Emit) -> str:
    asyncio.get_running_loop().call_soon(emit, Chunk(content=[Part(text="ok")]))
    return "ok"


CLASH = [Part(tool_request=ToolRequest("a", "same", {})), Part(tool_request=ToolRequest("b", "same", {}))]


@pytest.mark.parametrize(
    "model,problem",
    [
        (replying(lambda: Message("user", [Part(text="hi")])), "role"),
        (replying(lambda: as_reply("x").__class__(Message("model", []), "interrupted")), "finish reason"),
        (replying(lambda: ModelReply(Message("model", []), usage=Usage(1, 0, 5))), "share of the input"),
        (replying(lambda: [Part(text="a", reasoning="b")]), "one kind"),
        (replying(lambda: CLASH), "same ref"),
        (calling(name="a", ref="", input={}), "ref is empty"),
        (calling(name="", ref="x", input={}), "no name"),
        (calling(name="a", input="{bro"), "malformed"),
        (calling(name="a", input=None), "malformed"),
        (streaming(Chunk(content=[Part(text="o")])), "chunks say 'o'"),
        (streaming(Chunk(role="tool", content=[Part(text="ok")])), "role 'tool'"),
        (FunctionModel(changing), "request was changed"),
        (FunctionModel(leaving_a_task), "tasks are left"),
        (FunctionModel(late), "after the reply"),
        (ScriptedModel([ModelError("down")], repeat_last=True), "the call failed: down"),
    ],
)
async def test_a_model_that_breaks_the_contract_is_told_how(model: Model, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        await check_model(model)
    for task in LEFT:
        task.cancel()
    LEFT.clear()


def raising(request: ModelRequest) -> str:
    raise KeyError("choices")


async def swallowing(request: ModelRequest) -> str:
    try:
        await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        await asyncio.sleep(0)
    return "ok"


def reading_only_texts(request: ModelRequest) -> str:
    text: Any = request.messages[-1].content[0].text
    return text.upper()


class Nameless:
    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return as_reply("ok")


class Named(Nameless):
    name: Any = "mine/named"


class TellingTexts(Named):
    async def __call__(self, request: ModelRequest, emit: Any) -> ModelReply:
        emit("ok")
        return as_reply("ok")


class Numbered(Named):
    name = 3


class Unasked(Named):
    check = True


class AtOnce:
    name = "mine/at-once"

    def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return as_reply("ok")


class OfOneArgument:
    name = "mine/one"

    async def __call__(self, request: ModelRequest) -> ModelReply:
        return as_reply("ok")


class Keyed(Named):
    def __init__(self, key: str) -> None: ...


def odd(**fields: Any) -> Any:
    given: Any = {"message": Message("model", [Part(text="ok")]), **fields}
    return replying(lambda: ModelReply(**given))


@pytest.mark.parametrize(
    "make,problem",
    [
        (FunctionModel(raising), "raised KeyError, not a ModelError: 'choices'"),
        (TellingTexts(), "emitted a str, not a Chunk"),
        (FunctionModel(swallowing), "leaves nothing behind: it was cancelled and replied all the same"),
        (FunctionModel(reading_only_texts), "goes on after a result: it raised AttributeError"),
        (Nameless(), "is no model .it has no `name`.; give a model"),
        (Nameless, "has no name"),
        (Numbered(), "is no text: 3"),
        (Unasked, "`check` is True"),
        (AtOnce(), "cannot be awaited; its call must be async"),
        (OfOneArgument(), "raised TypeError"),
        (Keyed, "is made with arguments; give a model"),
        (None, "None is neither a model nor"),
        (odd(message=Message("model", cast(Any, "hello"))), "no list of parts: 'hello'"),
        (odd(message=Message("model", cast(Any, ["hello"]))), "no Part: 'hello'"),
        (odd(usage={"input": 3}), "usage is a dict"),
    ],
    ids=[
        "raises", "emits texts", "swallows", "only texts", "nameless", "nameless class", "number", "check", "sync",
        "arguments", "class with arguments", "none", "text content", "text part", "usage",
    ],
)  # fmt: skip
async def test_a_strangers_model_is_told_its_fault_by_the_name_of_a_check(make: Any, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        await check_model(make)


async def test_a_class_whose_instances_are_models_will_do_as_a_maker() -> None:
    assert (await check_model(Named)).passed


async def test_a_failure_must_be_a_model_error() -> None:
    fine = ScriptedModel(["ok"], repeat_last=True)
    for failing, problem in ((ScriptedModel([KeyError("x")], repeat_last=True), "KeyError"), (fine, "replied")):
        with pytest.raises(AssertionError, match=problem):
            await check_model(fine, failing=failing)


async def test_a_model_that_never_answers_is_given_up_on() -> None:
    with pytest.raises(AssertionError, match="patience"):
        await check_model(ScriptedModel(["ok"], delay=60.0, repeat_last=True), patience=0.1)


class Asked:
    """A model that is asked beforehand, and answers in one wrong way."""

    name = "asked"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def check(self, request: ModelRequest) -> Any:
        return self.answer(request)

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        return as_reply(echo(request))


def nothing(request: ModelRequest) -> None:
    pass


def says_so(request: ModelRequest) -> bool:
    return True


def needs_messages(request: ModelRequest) -> None:
    if not request.messages:
        raise AssertionError("no messages")


@pytest.mark.parametrize(
    "answer, told", [(says_so, "returned True"), (needs_messages, "no messages")], ids=["value", "messages"]
)
async def test_a_check_that_is_none_is_found(answer: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=f"what it is asked beforehand is what it takes: .*{told}"):
        await check_model(Asked(answer))
    assert (await check_model(Asked(nothing))).passed


async def test_wrappers_and_plugins_pass_the_question_on() -> None:
    seen: list[int] = []

    def note(request: ModelRequest) -> None:
        seen.append(len(request.tools))

    model = Asked(note)
    await check_model(retry_model(model))
    await check_model(retry_model(model), tools=False)
    assert seen == [1, 1, 0, 0]
