"""What a model is sent, what it may answer, and how its errors arrive."""

import asyncio
from typing import Any

import msgspec
import pytest

from adjourn import (
    Adjourn,
    Genkit,
    Interrupt,
    InvalidRequest,
    Media,
    Message,
    ModelError,
    Part,
    ToolResponse,
    ToolRunContext,
    UnknownModel,
    Usage,
    run_sync,
)
from adjourn.errors import AdjournError, DefinitionError, DuplicateName
from adjourn.model import ModelReply, ModelRequest
from adjourn.testing import ScriptedModel, ScriptExhausted, call


def test_genkit_is_an_alias() -> None:
    assert Genkit is Adjourn


def test_a_script_can_run_a_generate_without_a_loop_of_its_own() -> None:
    assert run_sync(Adjourn(model=ScriptedModel(["hi"])).generate("x")).text == "hi"


# -- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        "hello",
        Part(text="hello"),
        ["hello"],
        [Part(text="hello")],
        Message("user", [Part(text="hello")]),
    ],
)
async def test_a_prompt_may_be_text_or_parts_or_a_message(prompt: Any) -> None:
    model = ScriptedModel(["hi"])
    await Adjourn(model=model).generate(prompt)
    assert model.requests[0].messages == [Message("user", [Part(text="hello")])] or [
        m.text for m in model.requests[0].messages
    ] == ["hello"]


async def test_a_prompt_may_mix_text_and_pictures() -> None:
    model = ScriptedModel(["a cat"])
    picture = Part(media=Media("data:image/png;base64,AA==", "image/png"))
    await Adjourn(model=model).generate(["What is it?", picture])
    assert list(model.requests[0].messages[0].content) == [Part(text="What is it?"), picture]


async def test_a_prompt_is_said_after_the_messages() -> None:
    model = ScriptedModel(["one", "two"])
    ai = Adjourn(model=model)
    first = await ai.generate("a")
    second = await ai.generate("b", messages=first.messages)
    assert [m.text for m in model.requests[1].messages] == ["a", "one", "b"]
    assert [m.text for m in second.messages] == ["a", "one", "b", "two"]


@pytest.mark.parametrize("options", [{}, {"messages": []}, {"system": "be kind"}])
async def test_nothing_to_answer_is_refused(options: dict[str, Any]) -> None:
    model = ScriptedModel(["hi"])
    with pytest.raises(InvalidRequest):
        await Adjourn(model=model).generate(**options)
    assert model.calls == 0


async def test_messages_that_end_with_the_models_own_reply_need_a_prompt() -> None:
    model = ScriptedModel(["hi", "again"])
    ai = Adjourn(model=model)
    first = await ai.generate("x")
    with pytest.raises(InvalidRequest):
        await ai.generate(messages=first.messages)
    assert model.calls == 1


@pytest.mark.parametrize("broken", ["no response", "wrong order", "unknown response", "twice"])
async def test_messages_whose_calls_and_results_do_not_pair_are_never_sent_so(broken: str) -> None:
    def result(ref: str) -> Part:
        return Part(tool_response=ToolResponse("t", ref, 1))

    results = {
        "no response": [],
        "wrong order": [Message("tool", [result("b"), result("a")])],
        "unknown response": [Message("tool", [result("a"), result("x")])],
        "twice": [Message("tool", [result("a"), result("a"), result("b")])],
    }[broken]
    asked = Message("model", [call("t", {}, ref="a"), call("t", {}, ref="b")])
    messages = [Message("user", [Part(text="go")]), asked, *results]
    model = ScriptedModel(["hi"])
    try:
        await Adjourn(model=model).generate("and then?", messages=messages)
    except InvalidRequest:
        assert model.calls == 0
        return
    # Mending it is as good as refusing it.
    sent = model.requests[0].messages
    responses = [p.tool_response.ref for m in sent if m.role == "tool" for p in m.content if p.tool_response]
    assert responses == ["a", "b"]


async def test_the_system_text_comes_first_once_also_after_a_resume_that_gives_it_again() -> None:
    model = ScriptedModel([call("ask"), "done", "more"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def ask() -> None:
        raise Interrupt("?")

    paused = await ai.generate("go", system="Be brief.", tools=[ask])
    done = await ai.generate(
        messages=paused.messages, system="Be brief.", resume_respond=paused.interrupts[0].respond("x"), tools=[ask]
    )
    await ai.generate("and?", messages=done.messages, system="Be brief.", tools=[ask])
    for request in model.requests:
        assert [m.role for m in request.messages].count("system") == 1
        assert request.messages[0].text == "Be brief."


async def test_config_and_tools_reach_the_model() -> None:
    model = ScriptedModel(["hi"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t(x: int) -> int:
        """Does it."""
        return x

    await ai.generate("x", config={"temperature": 0}, tools=[t])
    request = model.requests[0]
    assert request.config == {"temperature": 0}
    assert [(d.name, d.description) for d in request.tools] == [("t", "Does it.")]


async def test_usage_is_added_up_over_the_turn_and_through_a_pause() -> None:
    def said(content: list[Part], n: int) -> ModelReply:
        return ModelReply(Message("model", content), usage=Usage(input_tokens=n, output_tokens=1))

    model = ScriptedModel([said([call("ask")], 10), said([Part(text="done")], 20)])
    ai = Adjourn(model=model)

    @ai.tool()
    async def ask() -> None:
        raise Interrupt("?")

    paused = await ai.generate("go", tools=[ask])
    assert paused.usage.total_tokens == 11
    done = await ai.generate(resume_respond=paused.interrupts[0].respond(1), tools=[ask])
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (30, 2, 32)


@pytest.mark.parametrize("reason", ["stop", "length", "blocked", "other"])
async def test_the_models_finish_reason_is_the_responses(reason: Any) -> None:
    model = ScriptedModel([ModelReply(Message("model", [Part(text="x")]), finish_reason=reason)])
    assert (await Adjourn(model=model).generate("x")).finish_reason == reason


async def test_a_response_tells_its_text_message_and_requests() -> None:
    ai = Adjourn(model=ScriptedModel([["Let me ask. ", call("ask", {"q": 1}, ref="r")]]))

    @ai.tool()
    async def ask(q: int) -> None:
        raise Interrupt("?")

    response = await ai.generate("go", tools=[ask])
    assert response.text == "Let me ask. "
    assert response.message is not None
    assert response.message.role == "model"
    [part] = response.tool_requests
    assert part.tool_request is not None
    assert (part.tool_request.name, part.tool_request.ref, part.tool_request.input) == ("ask", "r", {"q": 1})


# -- prepare= and context= --------------------------------------------------------------------------------------------


async def test_prepare_changes_what_is_sent_and_never_what_is_kept() -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t() -> str:
        return "my secret is 1234"

    def redact(request: ModelRequest) -> ModelRequest:
        text = msgspec.json.encode(request.messages).decode().replace("1234", "****")
        return msgspec.structs.replace(request, messages=msgspec.json.decode(text, type=list[Message]))

    response = await ai.generate("my pin is 1234", tools=[t], prepare=redact)
    sent = msgspec.json.encode([r.messages for r in model.requests]).decode()
    assert "1234" not in sent
    assert sent.count("****") == 3
    assert msgspec.json.encode(response.messages).decode().count("1234") == 2


async def test_prepare_may_be_async_and_is_asked_before_each_call_with_the_whole_request() -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)
    lengths: list[int] = []

    @ai.tool()
    async def t() -> None: ...

    async def prepare(request: ModelRequest) -> ModelRequest:
        await asyncio.sleep(0)
        lengths.append(len(request.messages))
        extra = Message("system", [Part(text="added")])
        return msgspec.structs.replace(request, messages=[extra, *request.messages])

    response = await ai.generate("go", tools=[t], prepare=prepare)
    assert lengths == [1, 3]
    assert [r.messages[0].text for r in model.requests] == ["added", "added"]
    assert all(m.text != "added" for m in response.messages)


async def test_a_prepared_request_that_breaks_a_call_from_its_result_is_never_sent() -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t() -> None: ...

    def cut(request: ModelRequest) -> ModelRequest:
        return msgspec.structs.replace(request, messages=request.messages[-1:])

    with pytest.raises(AdjournError):
        await ai.generate("go", tools=[t], prepare=cut)
    assert model.calls == 1


async def test_the_callers_context_reaches_the_tools_also_after_a_restart_and_stays_off_the_transcript() -> None:
    ai = Adjourn(model=ScriptedModel([call("t"), "done"]))
    seen: list[Any] = []
    mine = object()

    @ai.tool()
    async def t(ctx: ToolRunContext) -> None:
        seen.append(ctx.context)
        if not ctx.is_resumed():
            raise Interrupt("?")

    paused = await ai.generate("go", tools=[t], context=mine)
    await ai.generate(resume_restart=paused.interrupts[0].restart(), tools=[t], context="another")
    assert seen == [mine, "another"]
    msgspec.json.encode(paused.messages)


# -- models by name ---------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_refused_with_the_known_ones_and_the_extra_to_install() -> None:
    ai = Adjourn(model="openai/gpt-x")

    def echo(request: ModelRequest) -> str:
        return "hi"

    ai.define_model("mine/echo", echo)
    with pytest.raises(UnknownModel) as caught:
        await ai.generate("x")
    text = str(caught.value)
    assert "openai/gpt-x" in text
    assert "mine/echo" in text
    assert "adjourn[openai]" in text


@pytest.mark.parametrize(
    "name, extra",
    [("googleai/g", "google"), ("openai/g", "openai"), ("anthropic/c", "anthropic"), ("local/needle", "local")],
)
async def test_each_provider_prefix_names_its_extra(name: str, extra: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        await Adjourn().generate("x", model=name)
    assert f"adjourn[{extra}]" in str(caught.value)


@pytest.mark.parametrize(
    "name, told",
    [
        ("gogleai/gemini-flash", "adjourn[google]"),
        ("gpt-4o", "define_model"),
        ("nobody/x", "openai/, ollama/, anthropic/"),
    ],
    ids=["misspelt", "bare", "unheard of"],
)
async def test_an_unknown_prefix_is_told_the_nearest_or_what_there_is(name: str, told: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        await Adjourn().generate("x", model=name)
    assert name in str(caught.value)
    assert told in str(caught.value)


async def test_no_model_at_all_is_refused() -> None:
    with pytest.raises(UnknownModel):
        await Adjourn().generate("x")


async def test_the_model_of_a_call_goes_before_that_of_the_app() -> None:
    mine, other = ScriptedModel(["app"]), ScriptedModel(["call"])
    ai = Adjourn(model=mine)
    assert (await ai.generate("x", model=other)).text == "call"
    assert (await ai.generate("x")).text == "app"


async def test_a_function_is_a_model_sync_or_async_with_or_without_emit() -> None:
    ai = Adjourn()

    def plain(request: ModelRequest) -> str:
        return f"{len(request.messages)}"

    async def awaited(request: ModelRequest) -> Message:
        return Message("model", [Part(text="awaited")])

    async def emitting(request: ModelRequest, emit: Any) -> ModelReply:
        return ModelReply(Message("model", [Part(text="emitting")]))

    for name, fn, text in (("a/b", plain, "1"), ("c", awaited, "awaited"), ("d/e", emitting, "emitting")):
        ai.define_model(name, fn)
        assert (await ai.generate("x", model=name)).text == text
    with pytest.raises(DuplicateName):
        ai.define_model("a/b", plain)


async def test_a_model_can_be_defined_by_a_decorator() -> None:
    ai = Adjourn()

    async def echo(request: ModelRequest) -> str:
        return request.messages[-1].text

    decorate: Any = ai.model  # as in: @ai.model("mine/echo")
    decorate("mine/echo")(echo)
    assert (await ai.generate("hello", model="mine/echo")).text == "hello"

    @ai.model
    def shout(request: ModelRequest) -> str:
        return request.messages[-1].text.upper()

    assert (await ai.generate("hello", model="shout")).text == "HELLO"
    assert (await ai.generate("hello", model=shout)).text == "HELLO"


async def test_a_function_can_be_given_where_a_model_is_wanted() -> None:
    def echo(request: ModelRequest) -> str:
        return request.messages[-1].text

    given: Any = echo
    assert (await Adjourn(model=given).generate("hello")).text == "hello"
    assert (await Adjourn().generate("hello", model=given)).text == "hello"


# -- model errors -----------------------------------------------------------------------------------------------------


async def test_an_exception_of_a_model_is_wrapped_with_its_cause_and_all_that_was_kept() -> None:
    model = ScriptedModel([call("t"), ConnectionError("reset by peer"), "done"])
    ai = Adjourn(model=model)
    runs = 0

    @ai.tool()
    async def t() -> str:
        nonlocal runs
        runs += 1
        return "result"

    with pytest.raises(ModelError) as caught:
        await ai.generate("go", tools=[t])
    error = caught.value
    assert isinstance(error.__cause__, ConnectionError)
    assert "reset by peer" in str(error)
    assert [m.role for m in error.response.messages] == ["user", "model", "tool"]
    response = await ai.generate(messages=error.response.messages, tools=[t])
    assert response.text == "done"
    assert runs == 1


async def test_a_model_error_keeps_what_the_provider_said() -> None:
    given = ModelError("slow down", provider="x", code=429, retryable=True, retry_after=3.0, request_id="req_1")
    with pytest.raises(ModelError) as caught:
        await Adjourn(model=ScriptedModel([given])).generate("go")
    error = caught.value
    assert (error.provider, error.code, error.retryable, error.retry_after) == ("x", 429, True, 3.0)
    assert error.request_id == "req_1"
    assert [m.text for m in error.response.messages] == ["go"]


async def test_a_model_that_answers_with_nonsense_is_a_model_error_or_a_definition_error() -> None:
    ai = Adjourn()

    def broken(request: ModelRequest) -> Any:
        return 42

    ai.define_model("broken", broken)
    with pytest.raises((ModelError, DefinitionError)):
        await ai.generate("go", model="broken")


# -- the scripted model -----------------------------------------------------------------------------------------------


async def test_a_scripted_model_replies_in_order_with_every_form_of_reply() -> None:
    async def later(request: ModelRequest) -> Any:
        return ["async ", request.messages[-1].text]

    def now(request: ModelRequest) -> Any:
        return call("t", {"n": len(request.messages)}, ref="fn")

    model = ScriptedModel(["text", [Part(reasoning="hm"), "two", "parts"], later, now, KeyError("x"), ValueError])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t(n: int) -> None:
        raise Interrupt(n)

    assert (await ai.generate("1")).text == "text"
    two = await ai.generate("2")
    assert (two.text, two.reasoning) == ("twoparts", "hm")
    assert (await ai.generate("3")).text == "async 3"
    assert (await ai.generate("4", tools=[t])).interrupts[0].payload == 1
    for kind in (KeyError, ValueError):
        with pytest.raises(ModelError) as caught:
            await ai.generate("5")
        assert isinstance(caught.value.__cause__, kind)
    assert model.calls == 6
    assert [r.messages[-1].text for r in model.requests] == ["1", "2", "3", "4", "5", "5"]


async def test_a_scripted_model_that_is_asked_too_often_says_so() -> None:
    ai = Adjourn(model=ScriptedModel(["one"]))
    await ai.generate("x")
    with pytest.raises((ModelError, ScriptExhausted)) as caught:
        await ai.generate("x")
    assert "once more" in str(caught.value)


@pytest.mark.parametrize("replies", ["hello", str], ids=["text", "function"])
def test_a_script_that_is_no_list_says_what_to_write_instead(replies: Any) -> None:
    with pytest.raises(DefinitionError, match="repeat_last"):
        ScriptedModel(replies)


async def test_a_recorded_request_is_not_changed_by_what_happens_later() -> None:
    model = ScriptedModel([call("t"), "done"])
    ai = Adjourn(model=model)

    @ai.tool()
    async def t() -> int:
        return 1

    await ai.generate("go", tools=[t])
    assert [len(r.messages) for r in model.requests] == [1, 3]
