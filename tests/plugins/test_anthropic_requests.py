"""What is sent to Anthropic after each thing that can happen to a call, and what a pause keeps. Replies are constructed."""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from adjourn import (
    AbortSignal,
    Adjourn,
    AgentInit,
    Interrupt,
    MemoryStore,
    ToolOutput,
    ToolRunContext,
    decline_interrupt,
    respond_to_interrupt,
    restart_tool,
    tool,
)
from adjourn.model import ModelRequest, ToolDefinition
from adjourn.parts import Media, Message, Part, ToolRequest, ToolResponse
from adjourn.plugins.anthropic import Anthropic, AnthropicConfig
from adjourn.plugins.anthropic.requests import build_body, names_of
from adjourn.transcript import load, raw
from plugins.anthropic_kit import Answer, Json, ask, assert_valid, either, message, says, serving, text, tool_use

MODEL = "anthropic/claude-sonnet-5"
THINKING = {"type": "thinking", "thinking": "Paris, then Rome.", "signature": "c2lnLTE="}
SILENT = {"type": "thinking", "thinking": "", "signature": "c2lnLTI="}
REDACTED = {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}
PAY_ANN = tool_use("toolu_1", "pay", to="Ann", amount=5)
PAY_BOB = tool_use("toolu_2", "pay", to="Bob", amount=7)
ASKED = {"role": "user", "content": [text("Pay them.")]}
ONE = [THINKING, SILENT, REDACTED, text("I pay Ann."), PAY_ANN]
TWO = [THINKING, REDACTED, PAY_ANN, SILENT, PAY_BOB]


@tool
async def pay(to: str, amount: int, ctx: ToolRunContext) -> str:
    """Pays somebody."""
    if not ctx.is_resumed():
        raise Interrupt({"to": to, "amount": amount})
    return f"paid {to}"


@tool
async def balance() -> dict[str, int]:
    """What is left."""
    return {"left": 3}


def scripted(*replies: Json) -> Callable[[Json], Answer]:
    """The replies in order, by how many turns of the model the request has."""

    def answer(request: Json) -> Answer:
        return either(replies[sum(m["role"] == "assistant" for m in request["messages"])], request)

    return answer


def app(plugin: Anthropic) -> Adjourn:
    return Adjourn(plugins=[plugin], model=MODEL)


def result(id: str, content: Any, error: bool = False) -> Json:
    block = {"type": "tool_result", "tool_use_id": id, "content": content}
    return {**block, "is_error": True} if error else block


ENDS = message(text("Done."))


async def test_after_a_respond_the_result_follows_the_call_it_answers() -> None:
    async with serving(scripted(message(*ONE, stop="tool_use"), ENDS)) as (server, plugin):
        ai = app(plugin)
        paused = await ai.generate("Pay them.", tools=[pay])
        done = await ai.generate(
            tools=[pay], resume_respond=respond_to_interrupt({"ok": True}, interrupt=paused.interrupts[0])
        )
    assert done.text == "Done."
    assert server.bodies[1]["messages"] == [
        ASKED,
        {"role": "assistant", "content": ONE},
        {"role": "user", "content": [result("toolu_1", '{"ok":true}')]},
    ]


async def test_after_a_restart_the_result_of_the_run_follows() -> None:
    async with serving(scripted(message(*ONE, stop="tool_use"), ENDS)) as (server, plugin):
        ai = app(plugin)
        paused = await ai.generate("Pay them.", tools=[pay])
        await ai.generate(tools=[pay], resume_restart=restart_tool(interrupt=paused.interrupts[0]))
    assert server.bodies[1]["messages"] == [
        ASKED,
        {"role": "assistant", "content": ONE},
        {"role": "user", "content": [result("toolu_1", "paid Ann")]},
    ]


async def test_after_a_restart_with_an_edited_input_the_model_sees_its_own_call_and_what_ran() -> None:
    async with serving(scripted(message(*ONE, stop="tool_use"), ENDS)) as (server, plugin):
        ai = app(plugin)
        paused = await ai.generate("Pay them.", tools=[pay])
        edited = restart_tool(interrupt=paused.interrupts[0], replace_input={"to": "Ann", "amount": 4})
        await ai.generate(tools=[pay], resume_restart=edited)
    _, said, answered = server.bodies[1]["messages"]
    assert said["content"] == ONE
    first, note = answered["content"][0]["content"]
    assert first == text("paid Ann")
    assert '"amount":4' in note["text"]


async def test_after_a_decline_the_result_is_an_error_that_says_so() -> None:
    async with serving(scripted(message(*ONE, stop="tool_use"), ENDS)) as (server, plugin):
        ai = app(plugin)
        paused = await ai.generate("Pay them.", tools=[pay])
        await ai.generate(tools=[pay], resume_respond=decline_interrupt("too much", interrupt=paused.interrupts[0]))
    assert server.bodies[1]["messages"] == [
        ASKED,
        {"role": "assistant", "content": ONE},
        {"role": "user", "content": [result("toolu_1", '{"declined":true,"reason":"too much"}', error=True)]},
    ]


async def test_after_a_correction_the_call_and_the_complaint_are_sent() -> None:
    wrong = tool_use("toolu_1", "pay", to="Ann", amount="a lot")
    async with serving(scripted(message(wrong, stop="tool_use"), ENDS)) as (server, plugin):
        await app(plugin).generate("Pay them.", tools=[pay])
    asked, said, answered = server.bodies[1]["messages"]
    assert asked == ASKED
    assert said == {"role": "assistant", "content": [wrong]}
    [block] = answered["content"]
    assert block["is_error"] is True
    assert "amount" in block["content"]


async def test_partial_answers_wait_for_the_last_and_go_out_in_call_order() -> None:
    async with serving(scripted(message(*TWO, stop="tool_use"), ENDS)) as (server, plugin):
        ai = app(plugin)
        paused = await ai.generate("Pay them.", tools=[pay])
        ann, bob = paused.interrupts
        partly = await ai.generate(tools=[pay], resume_respond=respond_to_interrupt(None, interrupt=bob))
        assert partly.finish_reason == "interrupted"
        assert len(server.seen) == 1
        await ai.generate(tools=[pay], resume_restart=restart_tool(interrupt=ann))
    assert server.bodies[1]["messages"] == [
        ASKED,
        {"role": "assistant", "content": TWO},
        {"role": "user", "content": [result("toolu_1", "paid Ann"), result("toolu_2", "null")]},
    ]


async def test_a_finished_sibling_goes_out_beside_the_answer() -> None:
    said = [tool_use("toolu_b", "balance"), PAY_ANN]
    async with serving(scripted(message(*said, stop="tool_use"), ENDS)) as (server, plugin):
        ai = app(plugin)
        paused = await ai.generate("Pay them.", tools=[pay, balance])
        await ai.generate(
            tools=[pay, balance], resume_respond=respond_to_interrupt("ok", interrupt=paused.interrupts[0])
        )
    assert server.bodies[1]["messages"][2]["content"] == [result("toolu_b", '{"left":3}'), result("toolu_1", "ok")]


async def test_after_an_abort_the_results_say_so_and_the_next_message_stands_in_the_same_turn() -> None:
    signal = AbortSignal()

    @tool
    async def wait() -> str:
        signal.abort("enough")
        await asyncio.sleep(5)
        return "never"

    said = [THINKING, PAY_ANN, tool_use("toolu_w", "wait")]
    async with serving(scripted(message(*said, stop="tool_use"), ENDS)) as (server, plugin):
        ai = app(plugin)
        aborted = await ai.generate("Pay them.", tools=[pay, wait], abort_signal=signal)
        assert aborted.finish_reason == "aborted"
        await ai.generate("And now?", messages=aborted.messages, tools=[pay, wait])
    asked, model, user = server.bodies[1]["messages"]
    assert (asked, model) == (ASKED, {"role": "assistant", "content": said})
    first, second, third = user["content"]
    assert (first["tool_use_id"], second["tool_use_id"]) == ("toolu_1", "toolu_w")
    assert first["is_error"]
    assert second["is_error"]
    assert third == text("And now?")


async def test_a_pause_keeps_thinking_byte_for_byte_into_a_fresh_process() -> None:
    async with serving(scripted(message(*TWO, stop="tool_use"), ENDS)) as (server, plugin):
        paused = await app(plugin).generate("Pay them.", tools=[pay])
        stored = raw(paused.messages)

        fresh = app(plugin)
        messages = load(stored)
        answers = [restart_tool(interrupt=p) for p in messages[-1].tool_requests]
        assert len(answers) == 2
        done = await fresh.generate(messages=messages, tools=[pay], resume_restart=answers)
    assert done.text == "Done."
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": TWO}


async def test_a_streamed_pause_in_a_session_is_answered_from_the_store_alone() -> None:
    store = MemoryStore()
    async with serving(scripted(message(*TWO, stop="tool_use"), ENDS)) as (server, plugin):
        agent = app(plugin).define_agent("payer", tools=[pay], store=store)
        async with agent.connect() as session:
            turn = session.send("Pay them.")
            reasoning = "".join([c.reasoning async for c in turn.stream])
            assert (await turn.output).finish_reason == "interrupted"
            session_id = session.id
        assert reasoning == "Paris, then Rome."

        again = app(plugin).define_agent("payer", tools=[pay], store=store)
        async with again.connect(AgentInit(session_id=session_id)) as session:
            first, second = session.interrupts
            await first.restart().output
            output = await second.respond("not needed").output
    assert output.text == "Done."
    assert server.bodies[1]["messages"][1:] == [
        {"role": "assistant", "content": TWO},
        {"role": "user", "content": [result("toolu_1", "paid Ann"), result("toolu_2", "not needed")]},
    ]


# -- what else a request may hold --------------------------------------------------------------------------------------


async def sent(*messages: Message, **options: Any) -> Json:
    async with serving(scripted(*[ENDS] * 9)) as (server, plugin):
        await ask(plugin, ModelRequest(messages, **options), "claude-sonnet-5")
    return server.bodies[0]


async def test_pictures_and_files_are_sent_in_the_form_the_api_has_for_them() -> None:
    media = [
        Media("data:image/png;base64,iVBORw0KGgo="),
        Media("https://example.com/a.jpg", "image/jpeg"),
        Media("https://example.com/a.pdf"),
        Media("data:application/pdf;base64,JVBERi0="),
        Media("data:text/csv,a%2Cb"),
    ]
    body = await sent(Message("user", [Part(text="See:"), *[Part(media=m) for m in media]]))
    assert body["messages"][0]["content"] == [
        text("See:"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.jpg"}},
        {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}},
    ]


async def test_a_tool_result_may_hold_a_picture_and_a_cache_marker() -> None:
    @tool
    async def look() -> ToolOutput:
        """Looks."""
        picture = Part(media=Media("data:image/png;base64,iVBORw0KGgo="))
        return ToolOutput("a chart", [picture], {"anthropic": {"cache_control": {"type": "ephemeral"}}})

    said = message(tool_use("toolu_1", "look"), stop="tool_use")
    async with serving(scripted(said, ENDS)) as (server, plugin):
        await app(plugin).generate("Look.", tools=[look])
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    [block] = server.bodies[1]["messages"][2]["content"]
    assert block == {**result("toolu_1", [text("a chart"), picture]), "cache_control": {"type": "ephemeral"}}


async def test_extras_of_other_providers_are_left_out_and_calls_stay_paired() -> None:
    body = await sent(
        Message("user", [Part(text="Go.")]),
        Message(
            "model",
            [
                Part(reasoning="hm", metadata={"googleai": {"thoughtSignature": "c2ln"}}),
                Part(reasoning="unsigned"),
                Part(tool_request=ToolRequest("a.b", "call:1", {}), metadata={"openai": {"id": "fc_1"}}),
                Part(tool_request=ToolRequest("a.b", None, {})),
            ],
        ),
        Message(
            "tool",
            [
                Part(tool_response=ToolResponse("a.b", "call:1", 0)),
                Part(tool_response=ToolResponse("a.b", None, False)),
            ],
        ),
        Message("model", [Part(reasoning="only this")]),
        Message("user", [Part(text="And?")]),
        tools=[ToolDefinition("a.b", "dotted", {"type": "object", "properties": {}})],
    )
    _, model, user = body["messages"]
    first, second = model["content"]
    assert (first["type"], second["type"]) == ("tool_use", "tool_use")
    assert first["id"] != second["id"]
    assert ":" not in first["id"]
    assert first["name"] == second["name"] == body["tools"][0]["name"]
    assert "." not in first["name"]
    assert user["content"] == [result(first["id"], "0"), result(second["id"], "false"), text("And?")]


async def test_a_name_the_api_does_not_take_comes_back_as_the_tools_own() -> None:
    tools = [ToolDefinition("mail.send", "", {"type": "object", "properties": {}})]

    def answer(request: Json) -> Answer:
        return either(message(tool_use("toolu_1", request["tools"][0]["name"]), stop="tool_use"), request)

    async with serving(answer) as (_, plugin):
        reply, _ = await ask(plugin, says("Go.", tools=tools))
    assert [p.tool_request.name for p in reply.message.tool_requests if p.tool_request] == ["mail.send"]


async def test_the_settings_reach_the_body_and_the_headers() -> None:
    config = AnthropicConfig(
        temperature=0.5,
        top_k=3,
        stop_sequences=["END"],
        thinking=2000,
        effort="low",
        tool_choice="any",
        parallel_tool_calls=False,
        cache="1h",
        user_id="u1",
        betas=["x-1", "y-2"],
        headers={"x-mine": "1"},
        raw={"container": "c1"},
    )
    async with serving(scripted(ENDS)) as (server, plugin):
        schema: Json = {"type": "object", "properties": {}}
        await ask(plugin, says("Go.", config=config, tools=[ToolDefinition("t", "", schema)]), "claude-opus-4-8")
    body, headers = server.bodies[0], server.seen[0].headers
    assert body["max_tokens"] == 8192 + 2000
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert body["output_config"] == {"effort": "low"}
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert body["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert body["metadata"] == {"user_id": "u1"}
    assert (body["temperature"], body["top_k"], body["stop_sequences"]) == (0.5, 3, ["END"])
    assert body["container"] == "c1"
    assert headers["anthropic-beta"] == "x-1,y-2"
    assert headers["x-mine"] == "1"


async def test_a_dict_does_as_settings_in_either_case() -> None:
    body = await sent(Message("user", [Part(text="Go.")]), config={"maxOutputTokens": 9, "topP": 0.1})
    assert (body["max_tokens"], body["top_p"]) == (9, 0.1)


async def test_a_later_system_message_stays_in_place_or_goes_to_the_head_by_model() -> None:
    messages = [
        Message("system", [Part(text="One.")]),
        Message("user", [Part(text="Go.")]),
        Message("system", [Part(text="Two.")]),
    ]
    async with serving(scripted(ENDS)) as (server, plugin):
        await ask(plugin, ModelRequest(messages), "claude-opus-4-8")
        await ask(plugin, ModelRequest(messages), "claude-haiku-4-5")
    new, old = server.bodies
    assert new["system"] == "One."
    assert new["messages"][1] == {"role": "system", "content": [text("Two.")]}
    assert old["system"] == [text("One."), text("Two.")]
    assert len(old["messages"]) == 1


async def test_thinking_is_off_for_a_round_that_was_begun_without_it() -> None:
    config = {"thinking": 2000}
    call = Part(tool_request=ToolRequest("t", "call_1", {}))
    signed = Part(reasoning="hm", metadata={"anthropic": {"type": "thinking", "signature": "c2ln"}})
    answer = Message("tool", [Part(tool_response=ToolResponse("t", "call_1", "x"))])
    user = Message("user", [Part(text="Go.")])
    assert "thinking" not in await sent(user, Message("model", [call]), answer, config=config)
    assert "thinking" in await sent(user, Message("model", [signed, call]), answer, config=config)
    assert "thinking" in await sent(
        user, Message("model", [call]), answer, user, config=config | {"thinking": {"type": "adaptive"}}
    )


async def test_a_server_tool_that_never_ended_is_left_out_once_the_conversation_has_gone_on() -> None:
    begun: Json = {"type": "server_tool_use", "id": "srv_1", "name": "code_execution", "input": {}}
    server = Part(custom={"type": "server_tool_use"}, metadata={"anthropic": begun})
    call = Part(tool_request=ToolRequest("t", "call_1", {}))
    answer = Message("tool", [Part(tool_response=ToolResponse("t", "call_1", "x"))])
    user = Message("user", [Part(text="Go.")])
    waiting = await sent(user, Message("model", [server, call]), answer)
    assert waiting["messages"][1]["content"][0] == begun
    left = await sent(user, Message("model", [server]), user)
    assert left["messages"] == [{"role": "user", "content": [text("Go.")]}] * 2
    over = await sent(user, Message("model", [server, call]), answer, Message("model", [Part(text="So.")]), user)
    assert [b["type"] for b in over["messages"][1]["content"]] == ["tool_use"]


REFS = st.sampled_from([None, "toolu_1", "toolu_2", "call|3.a", "0"])
NOTES = st.sampled_from(
    [None, {"anthropic": {"type": "thinking", "signature": "s"}}, {"openai": {"id": "rs"}}, {"anthropic": 5}]
)
SAYINGS = st.one_of(
    st.builds(Part, text=st.sampled_from(["", " ", "hm"])),
    st.builds(Part, reasoning=st.sampled_from(["", "hm"]), metadata=NOTES),
    st.builds(Part, custom=st.just({"x": 1}), metadata=NOTES),
)


@given(st.lists(st.tuples(st.lists(SAYINGS, max_size=3), st.lists(REFS, max_size=3), st.booleans()), max_size=5))
def test_any_conversation_of_any_provider_makes_a_valid_request(
    rounds: list[tuple[list[Part], list[str | None], bool]],
) -> None:
    """Empty replies, refs of any kind, twice in a round or missing, extras of others: turns stay paired and in order."""
    messages = [Message("user", [Part(text="Go.")])]
    for sayings, refs, spoken in rounds:
        calls = [Part(tool_request=ToolRequest("a.b", ref, {})) for ref in refs]
        messages.append(Message("model", [*sayings, *calls]))
        if calls:
            messages.append(
                Message("tool", [Part(tool_response=ToolResponse("a.b", ref, i)) for i, ref in enumerate(refs)])
            )
        if spoken or not calls:
            messages.append(Message("user", [Part(text="And?")]))
    request = ModelRequest(messages)
    body = build_body("claude-sonnet-5", request, AnthropicConfig(), names_of(()))
    assert_valid(body)
    assert body == build_body("claude-sonnet-5", request, AnthropicConfig(), names_of(()))


class Line(BaseModel):
    name: str
    price: float


class Order(BaseModel):
    lines: list[Line]


async def test_structured_output_is_enforced_where_model_and_schema_allow_and_asked_for_elsewhere() -> None:
    replies = message(text('{"lines": [{"name": "tea", "price": 2.5}]}'))
    async with serving(lambda request: either(replies, request)) as (server, plugin):
        ai = Adjourn(plugins=[plugin])
        for model in ("claude-sonnet-5", "claude-3-5-haiku-latest"):
            made = await ai.generate("Order.", model=f"anthropic/{model}", output=Order)
            assert made.output == Order(lines=[Line(name="tea", price=2.5)])
        await ai.generate("Order.", model=MODEL, output=dict[str, Any], config={"structured": "prompt"})
    native, asked, freely = server.bodies
    schema = native["output_config"]["format"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Line"]["additionalProperties"] is False
    assert "output_config" not in asked
    assert '"price"' in asked["system"]
    assert "output_config" not in freely
