"""What is sent after each kind of decision, letter by letter, for both APIs. The replies are constructed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from adjourn import (
    AbortSignal,
    Adjourn,
    Interrupt,
    ToolRunContext,
    decline_interrupt,
    respond_to_interrupt,
    restart_tool,
)
from adjourn.parts import Message
from adjourn.transcript import load, raw
from plugins.openai_wire import Answer, Json, Server, plugin_for, reply_json, serving

APIS = ("responses", "chat")
REASONING: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA_-=="}
ASKED = [("call_1", "send", '{"to":"jane"}'), ("call_2", "send", '{"to": "joe"}'), ("call_3", "look", "{}")]


def calling(api: str, *calls: tuple[str, str, str]) -> Answer:
    if api == "responses":
        items = [
            {"type": "function_call", "id": f"fc_{i}", "status": "completed", "call_id": i, "name": n, "arguments": a}
            for i, n, a in calls
        ]
        return reply_json({"id": "resp_1", "status": "completed", "store": False, "output": [REASONING, *items]})
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    message = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": made}
    return reply_json({"choices": [{"message": message, "finish_reason": "tool_calls"}]})


def saying(api: str, text: str = "Done.") -> Answer:
    if api == "responses":
        content: Any = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "phase": "final_answer", "content": content}
        return reply_json({"id": "resp_2", "status": "completed", "store": False, "output": [item]})
    return reply_json({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})


def sent(api: str, *calls: tuple[str, str, str]) -> list[Json]:
    """The calls as they must go back."""
    if api == "responses":
        items = [{"type": "function_call", "call_id": i, "name": n, "arguments": a} for i, n, a in calls]
        return [REASONING, *items]
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return [{"role": "assistant", "content": None, "tool_calls": made, "reasoning_content": "Hm."}]


def result(api: str, call_id: str, text: str) -> Json:
    if api == "responses":
        return {"type": "function_call_output", "call_id": call_id, "output": text}
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def said(api: str, text: str) -> Json:
    if api == "responses":
        return {"role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": text}]}
    return {"role": "assistant", "content": text, "reasoning_content": ""}  # DeepSeek wants it with every reply


USER = {"role": "user", "content": "Go."}


def items_of(server: Server, position: int = -1) -> list[Json]:
    request = server.requests[position]
    return request["messages"] if "messages" in request else request["input"]


class World:
    """An application with a tool that asks and one that does not, and the server that plays its model."""

    def __init__(self, api: str, server: Server) -> None:
        self.plugin = plugin_for("openai" if api == "responses" else "deepseek", api, server.url)
        self.ai = Adjourn(plugins=[self.plugin], model=f"{self.plugin.name}/gpt-5")
        self.looked = 0

        @self.ai.tool()
        async def send(to: str, ctx: ToolRunContext) -> dict[str, Any]:
            if not ctx.is_resumed():
                raise Interrupt({"to": to})
            return {"sent": to}

        @self.ai.tool()
        async def look() -> str:
            self.looked += 1
            return "nothing"

    async def generate(self, prompt: str | None = None, **options: Any) -> Any:
        return await self.ai.generate(prompt, tools=["send", "look"], **options)


@asynccontextmanager
async def world_of(api: str, *answers: Answer) -> AsyncGenerator[tuple[World, Server], None]:
    async with serving(*answers) as server, opened(api, server) as world:
        yield world, server


@asynccontextmanager
async def opened(api: str, server: Server) -> AsyncGenerator[World, None]:
    world = World(api, server)
    try:
        yield world
    finally:
        await world.plugin.aclose()


@pytest.mark.parametrize("api", APIS)
async def test_after_a_respond(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[:1]), saying(api)) as (world, server):
        paused = await world.generate("Go.")
        done = await world.generate(resume_respond=respond_to_interrupt({"ok": False}, interrupt=paused.interrupts[0]))
    assert done.text == "Done."
    assert items_of(server) == [USER, *sent(api, *ASKED[:1]), result(api, "call_1", '{"ok":false}')]


@pytest.mark.parametrize("api", APIS)
async def test_after_a_restart(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[:1]), saying(api)) as (world, server):
        paused = await world.generate("Go.")
        await world.generate(resume_restart=restart_tool(interrupt=paused.interrupts[0]))
    assert items_of(server) == [USER, *sent(api, *ASKED[:1]), result(api, "call_1", '{"sent":"jane"}')]


@pytest.mark.parametrize("api", APIS)
async def test_after_a_restart_with_an_edited_input_the_call_stays_as_it_was_and_the_result_says_so(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[:1]), saying(api)) as (world, server):
        paused = await world.generate("Go.")
        edited = restart_tool(interrupt=paused.interrupts[0], replace_input={"to": "joe"})
        await world.generate(resume_restart=edited)
    *before, answered = items_of(server)
    assert before == [USER, *sent(api, *ASKED[:1])]
    told = answered["output" if api == "responses" else "content"]
    assert answered == result(api, "call_1", told)
    assert told.startswith('{"sent":"joe"}\n')
    assert "edited" in told


@pytest.mark.parametrize("api", APIS)
async def test_a_streamed_pause_goes_on_with_the_same_request_as_one_that_was_not(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[:1]), saying(api)) as (world, server):
        stream = world.ai.generate_stream("Go.", tools=["send", "look"])
        paused = await stream.response
        answer = respond_to_interrupt("", interrupt=paused.interrupts[0])
        stream = world.ai.generate_stream(tools=["send", "look"], resume_respond=answer)
        assert (await stream.response).text == "Done."
    assert server.requests[1]["stream"] is True
    assert items_of(server) == [USER, *sent(api, *ASKED[:1]), result(api, "call_1", "")]


@pytest.mark.parametrize("api", APIS)
async def test_after_a_decline(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[:1]), saying(api)) as (world, server):
        paused = await world.generate("Go.")
        await world.generate(resume_respond=decline_interrupt("Not now.", interrupt=paused.interrupts[0]))
    declined = '{"declined":true,"reason":"Not now."}'
    assert items_of(server) == [USER, *sent(api, *ASKED[:1]), result(api, "call_1", declined)]


@pytest.mark.parametrize("api", APIS)
async def test_after_a_correction(api: str) -> None:
    wrong = ("call_0", "send", '{"whom":"jane"}')
    async with world_of(api, calling(api, wrong), saying(api)) as (world, server):
        await world.generate("Go.")
    *before, answer = items_of(server)
    assert before == [USER, *sent(api, wrong)]
    text = answer.get("output") or answer["content"]
    assert answer == result(api, "call_0", text)
    assert "$.to" in text


@pytest.mark.parametrize("api", APIS)
async def test_after_arguments_that_are_no_json(api: str) -> None:
    wrong = ("call_0", "send", '{"to":"jane')
    async with world_of(api, calling(api, wrong), saying(api)) as (world, server):
        done = await world.generate("Go.")
    assert done.text == "Done."
    # A server that parses what it gets back must be able to; OpenAI's own takes any text.
    back = wrong if api == "responses" else ("call_0", "send", '{"malformed_arguments":"{\\"to\\":\\"jane"}')
    *before, answer = items_of(server)
    assert before == [USER, *sent(api, back)]
    assert "not valid JSON" in (answer.get("output") or answer["content"])


@pytest.mark.parametrize("api", APIS)
async def test_a_partial_answer_sends_nothing_and_the_rest_sends_all_in_call_order(api: str) -> None:
    async with world_of(api, calling(api, *ASKED), saying(api)) as (world, server):
        paused = await world.generate("Go.")
        first, second = paused.interrupts
        partly = await world.generate(resume_restart=restart_tool(interrupt=second))
        assert (partly.finish_reason, len(server.requests), len(partly.interrupts)) == ("interrupted", 1, 1)
        await world.generate(resume_respond=respond_to_interrupt("by hand", interrupt=partly.interrupts[0]))
    assert first.payload == {"to": "jane"}
    assert world.looked == 1
    results = [("call_1", "by hand"), ("call_2", '{"sent":"joe"}'), ("call_3", "nothing")]
    assert items_of(server) == [USER, *sent(api, *ASKED), *[result(api, i, t) for i, t in results]]


@pytest.mark.parametrize("api", APIS)
async def test_after_an_abort_the_next_message_goes_out_with_every_call_closed(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[:1]), saying(api), saying(api, "Hello.")) as (world, server):
        agent = world.ai.define_agent("a", tools=["send"])
        session = agent.connect()
        turn = session.send("Go.")
        assert (await turn.output).finish_reason == "interrupted"
        await session.abort("changed my mind")
        assert (await session.send("Go on.").output).text == "Done."
        assert (await session.send("Hello?").output).text == "Hello."
    cancelled = '{"cancelled":true,"reason":"The turn was cancelled before this was done."}'
    first = [USER, *sent(api, *ASKED[:1]), result(api, "call_1", cancelled), {"role": "user", "content": "Go on."}]
    assert items_of(server, 1) == first
    assert items_of(server, 2) == [*first, said(api, "Done."), {"role": "user", "content": "Hello?"}]


@pytest.mark.parametrize("api", APIS)
async def test_a_pause_saved_as_json_resumes_elsewhere_with_reasoning_beside_its_call(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[:2]), saying(api)) as (world, server):
        saved = raw((await world.generate("Go.")).messages)
        async with opened(api, server) as other:
            messages: list[Message] = load(saved)
            paused = [p for p in messages[-1].content if p.tool_request is not None]
            answers = [respond_to_interrupt(n, interrupt=p) for n, p in enumerate(paused)]
            done = await other.generate(messages=messages, resume_respond=answers)
    assert done.text == "Done."
    results = [result(api, "call_1", "0"), result(api, "call_2", "1")]
    assert items_of(server) == [USER, *sent(api, *ASKED[:2]), *results]


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_that_moves_elsewhere_leaves_the_reasoning_behind(api: str) -> None:
    async with world_of(api, calling(api, *ASKED[2:]), saying(api), saying("chat", "Elsewhere.")) as (world, server):
        done = await world.generate("Go.")
        other = plugin_for("groq", "chat", server.url)
        moved = await Adjourn(plugins=[other], model="groq/x").generate("Hello?", messages=done.messages)
        await other.aclose()
    assert moved.text == "Elsewhere."
    (call,) = sent("chat", *ASKED[2:])
    del call["reasoning_content"]
    texts = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Hello?"}]
    assert items_of(server) == [USER, call, result("chat", "call_3", "nothing"), *texts]


async def test_an_abort_in_the_middle_of_a_call_leaves_no_half_message() -> None:
    slow = Answer(saying("chat").body, delay=5.0)
    async with world_of("chat", slow, saying("chat")) as (world, server):
        signal = AbortSignal()
        running = world.ai.generate_stream("Go.", abort_signal=signal)
        await asyncio.wait_for(server.asked.wait(), 5)
        signal.abort()
        aborted = await running.response
        assert aborted.finish_reason == "aborted"
        assert aborted.messages == aborted.messages[:1]
