"""What is no prompt, no history, no reply or no option is refused by name, before it can do harm."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adjourn import (
    Adjourn,
    AgentInit,
    Interrupt,
    InvalidRequest,
    Limits,
    MemoryStore,
    Message,
    ModelError,
    ModelReply,
    NotJSON,
    Part,
    ToolFailed,
    ToolOutput,
    ToolRequest,
    ToolResponse,
    ToolRunContext,
    Usage,
    respond_to_interrupt,
    run_sync,
)
from adjourn.errors import AdjournError, DefinitionError
from adjourn.history import by_turn
from adjourn.stores.sqlite import SQLiteStore
from adjourn.testing import ScriptedModel, call

REQUEST = Part(tool_request=ToolRequest("pay", "r1", {}))
RESPONSE = Part(tool_response=ToolResponse("pay", "r1", "done"))


async def refused(kind: type[AdjournError], part: str, prompt: Any = None, **options: Any) -> None:
    model = ScriptedModel(["hello"])
    with pytest.raises(kind) as caught:
        await Adjourn(model=model).generate(prompt, **options)
    assert part in str(caught.value)
    assert model.calls == 0


# -- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [5, {"text": "hi"}, b"hi", {"hi"}], ids=["int", "dict", "bytes", "set"])
async def test_what_is_no_prompt_is_refused_by_its_type(prompt: Any) -> None:
    await refused(InvalidRequest, f"a {type(prompt).__name__} is no prompt", prompt)


@pytest.mark.parametrize("role", ["model", "tool", "system"])
async def test_a_prompt_is_the_users(role: Any) -> None:
    await refused(InvalidRequest, f"not '{role}'", Message(role, [Part(text="hi")]))


@pytest.mark.parametrize("part", [REQUEST, RESPONSE], ids=["request", "response"])
async def test_a_user_says_no_tool_calls_and_no_results(part: Part) -> None:
    message = Message("user", [Part(text="hi"), part])
    await refused(InvalidRequest, "no tool requests", message)
    await refused(InvalidRequest, "a user message holds no tool requests", messages=[message])
    session = Adjourn(model=ScriptedModel(["hello"])).define_agent("a").connect()
    with pytest.raises(InvalidRequest, match="no tool requests"):
        session.send(message)
    assert session.messages == []


@pytest.mark.parametrize("mark", [{"correction": "output"}, 5], ids=["forged", "garbage"])
async def test_what_a_user_writes_under_our_own_key_is_not_kept(mark: Any) -> None:
    said = Message("user", [Part(text="hi")], {"adjourn": mark, "mine": 1})
    session = Adjourn(model=ScriptedModel(["hello"])).define_agent("a").connect()
    await session.send(said).output
    assert session.messages[0].metadata == {"mine": 1}
    assert len(by_turn([*session.messages, said])) == (1 if mark != 5 else 2)


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages, part",
    [
        ("hello", "not a str"),
        (Message("user", [Part(text="hi")]), "not a Message"),
        (["hello"], "messages[0] is a str"),
        ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0] is a dict"),
        ([Message("user", [Part(text="hi")]), None], "messages[1] is a NoneType"),
        ([Message("bogus", [Part(text="hi")])], "'bogus'"),  # pyright: ignore[reportArgumentType]
        ([Message("user", "hi")], "messages[0].content"),  # pyright: ignore[reportArgumentType]
        ([Message("user", ["hi"])], "messages[0].content"),  # pyright: ignore[reportArgumentType]
        ([Message("user", [Part(Part("hi"))])], "messages[0].content"),  # pyright: ignore[reportArgumentType]
    ],
    ids=["text", "message", "texts", "dicts", "none", "role", "content", "parts", "nested"],
)
async def test_what_is_no_history_is_refused_with_its_place(messages: Any, part: str) -> None:
    await refused(InvalidRequest, part, messages=messages)


# -- options ----------------------------------------------------------------------------------------------------------


async def test_one_tool_alone_is_told_to_be_a_list() -> None:
    ai = Adjourn(model=ScriptedModel(["hello"]))

    @ai.tool
    def pay() -> str:
        return "paid"

    for given, shown in ((pay, "tools=[pay]"), ("pay", "tools=['pay']"), (pay.fn, "tools=[pay]")):
        with pytest.raises(DefinitionError) as caught:
            await ai.generate("hi", tools=given)  # pyright: ignore[reportArgumentType]
        assert shown in str(caught.value)
        with pytest.raises(DefinitionError):
            ai.define_agent("a", tools=given).connect()  # pyright: ignore[reportArgumentType]
        ai.agents.clear()


@pytest.mark.parametrize("limits", [{"cycles": 1}, 5], ids=["dict", "int"])
async def test_limits_are_limits_wherever_they_are_given(limits: Any) -> None:
    await refused(DefinitionError, "give Limits(...)", "hi", limits=limits)
    with pytest.raises(DefinitionError, match="give Limits"):
        Adjourn(limits=limits)
    with pytest.raises(DefinitionError, match="give Limits"):
        Adjourn().define_agent("a", limits=limits)


async def test_the_system_text_is_a_text() -> None:
    await refused(InvalidRequest, "system=5", "hi", system=5)
    with pytest.raises(DefinitionError, match="system=5"):
        Adjourn().define_agent("a", system=5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("given", [5, {"*": 5}], ids=["number", "in_a_dict"])
async def test_a_handler_is_a_function(given: Any) -> None:
    await refused(DefinitionError, "give a function", "hi", on_interrupt=given)


async def test_a_prepare_that_returns_nothing_says_what_it_should_return() -> None:
    await refused(ModelError, "return the ModelRequest", "hi", prepare=lambda request: None)  # pyright: ignore[reportUnknownLambdaType]


async def test_an_unknown_argument_is_named_as_one_of_generate() -> None:
    with pytest.raises(TypeError, match=r"^generate\(\) got an unexpected keyword argument 'tool'"):
        await Adjourn(model=ScriptedModel([])).generate("hi", tool=[])  # pyright: ignore[reportCallIssue]


# -- what could not be read back --------------------------------------------------------------------------------------


def stored(path: Path, *replies: Any, result: Any = None) -> Any:
    ai = Adjourn(model=ScriptedModel(list(replies)))

    @ai.tool
    def pay() -> Any:
        return result

    agent = ai.define_agent("a", tools=[pay], store=SQLiteStore(path / "adjourn.db"))
    return agent.connect(AgentInit(session_id="s"))


UNFIT = {
    "message metadata": ModelReply(Message("model", [Part(text="x")], 5)),  # pyright: ignore[reportArgumentType]
    "part metadata": Part(text="x", metadata=5),  # pyright: ignore[reportArgumentType]
    "media": Part(media="https://example.com/a.png"),  # pyright: ignore[reportArgumentType]
    "custom": Part(custom=5),  # pyright: ignore[reportArgumentType]
    "usage": ModelReply(Message("model", [Part(text="x")]), usage=Usage("5")),  # pyright: ignore[reportArgumentType]
    "half a token": ModelReply(Message("model", [Part(text="x")]), usage=Usage(1.5)),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("what", UNFIT)
async def test_a_reply_that_could_not_be_read_back_fails_the_turn_and_not_the_session(
    what: str, tmp_path: Path
) -> None:
    session = stored(tmp_path, UNFIT[what])
    with pytest.raises(ModelError):
        await session.send("hi").output
    again = await stored(tmp_path, "hello").load()
    assert (await again.send("hi").output).text == "hello"


@pytest.mark.parametrize("reason", ["interrupted", "aborted", "failed", "made_up", None, []])
async def test_a_model_cannot_end_a_turn_as_only_the_turn_can(reason: Any) -> None:
    reply = ModelReply(Message("model", [Part(text="x")]), reason)
    response = await Adjourn(model=ScriptedModel([reply])).generate("hi")
    assert (response.finish_reason, response.text) == ("other", "x")


@pytest.mark.parametrize(
    "given", [{"metadata": 5}, {"metadata": ["a"]}, {"content": 5}], ids=["int", "list", "content"]
)
async def test_a_tool_output_that_could_not_be_read_back_fails_the_tool(given: Any, tmp_path: Path) -> None:
    session = stored(tmp_path, call("pay"), result=ToolOutput("paid", **given))
    with pytest.raises(ToolFailed) as caught:
        await session.send("hi").output
    assert isinstance(caught.value.__cause__, NotJSON)
    again = await stored(tmp_path, "hello", result="paid").load()
    assert (await again.retry().output).text == "hello"


async def test_a_request_with_garbage_under_our_key_is_an_ordinary_request() -> None:
    ai = Adjourn(model=ScriptedModel([call("pay", metadata={"adjourn": 5}), "paid"]))

    @ai.tool
    def pay() -> str:
        return "ok"

    assert (await ai.generate("hi", tools=[pay])).text == "paid"


async def test_the_metadata_of_a_response_is_an_object() -> None:
    ai = Adjourn(model=ScriptedModel([call("pay"), "paid"]), limits=Limits(cycles=1))

    @ai.tool
    def pay(ctx: ToolRunContext) -> str:
        raise Interrupt

    paused = await ai.generate("hi", tools=[pay])
    with pytest.raises(NotJSON, match="response metadata"):
        respond_to_interrupt("ok", paused.interrupts[0], metadata=5)  # pyright: ignore[reportArgumentType]
    done = await ai.generate(resume_respond=respond_to_interrupt("ok", paused.interrupts[0], metadata={"by": "ann"}))
    assert done.text == "paid"


# -- what a session is opened with ------------------------------------------------------------------------------------


def test_a_session_is_opened_with_an_agent_init_and_a_bare_id_is_told_so() -> None:
    given: Any = "s_1"
    with pytest.raises(DefinitionError, match="session_id="):
        Adjourn(model=ScriptedModel([])).define_agent("a").connect(given)


def test_a_store_that_is_still_a_class_is_refused_when_the_agent_is_defined() -> None:
    given: Any = MemoryStore
    ai = Adjourn(model=ScriptedModel([]))
    with pytest.raises(DefinitionError, match=r"MemoryStore\("):
        ai.define_agent("a", store=given)
    with pytest.raises(DefinitionError, match=r"MemoryStore\("):
        ai.define_custom_agent("b", lambda turn: "hi", store=given)
    assert list(ai.agents) == []


async def test_run_sync_inside_an_event_loop_says_to_await_and_leaves_no_coroutine_behind() -> None:
    async def work() -> None: ...

    with pytest.raises(DefinitionError, match="await"):
        run_sync(work())


def test_what_begins_at_once_says_outside_an_event_loop_where_to_begin_it() -> None:
    ai = Adjourn(model=ScriptedModel(["hello"]))
    session = ai.define_agent("a").connect()
    for begin in (lambda: session.send("hi"), lambda: ai.generate_stream("hi")):
        with pytest.raises(DefinitionError, match=r"event loop.*run_sync\(main\(\)\)"):
            begin()

    async def main() -> str:
        return (await session.send("hi").output).text

    assert run_sync(main()) == "hello"  # nothing was begun, so it is not busy


async def test_a_pause_is_decided_within_an_event_loop_too() -> None:
    ai = Adjourn(model=ScriptedModel([call("pay", {}), "paid"]))
    ai.define_interrupt("pay", "Pays.")
    session = ai.define_agent("a").connect()
    [pause] = (await session.send("hi").output).interrupts
    with pytest.raises(DefinitionError, match="event loop"):
        await asyncio.to_thread(pause.respond, "yes")
    assert (await pause.respond("yes").output).text == "paid"
