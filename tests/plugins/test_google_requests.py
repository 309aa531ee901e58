"""What Gemini is sent after each kind of decision: golden requests, through the whole library and the real SDK.

The replies are constructed, in the shapes of the recordings.
"""

import asyncio
import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
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
from adjourn.agent import AgentInit
from adjourn.errors import ModelError
from adjourn.model import ModelRequest
from adjourn.parts import Message, Part, ToolRequest, ToolResponse, encode
from plugins.google_kit import (
    Answer,
    FakeGemini,
    exchanges,
    fcall,
    gemini,
    ignore,
    plain,
    response,
    signature_of,
    stream,
    vertex,
)

SIGNATURE = base64.b64encode(bytes(range(200, 256)) * 3).decode()
USER = {"role": "user", "parts": [{"text": "go"}]}


class Desk:
    """An app whose model is the fake server, with the tools that the cases need."""

    def __init__(self, server: FakeGemini, model: str = "gemini-3-flash-preview", on_vertex: bool = False) -> None:
        self.server = server
        self.plugin = vertex(server) if on_vertex else gemini(server)
        self.ai = Adjourn(plugins=[self.plugin], model=f"{self.plugin.name}/{model}")
        self.sent: list[str] = []

        @self.ai.tool()
        async def send(to: str, ctx: ToolRunContext) -> dict[str, str]:
            """Send a mail."""
            if not ctx.is_resumed():
                raise Interrupt({"to": to})
            self.sent.append(to)
            return {"sent": to}

        @self.ai.tool()
        async def look(name: str) -> str:
            """Look somebody up."""
            return name.upper()

        self.tools = [send, look]

    def bodies(self) -> list[list[Any]]:
        """The contents of each request."""
        return [s.body["contents"] for s in self.server.seen]


@pytest.fixture
async def server() -> AsyncIterator[FakeGemini]:
    async with FakeGemini([]) as server:
        yield server


def desk(server: FakeGemini, *answers: Answer, model: str = "gemini-3-flash-preview") -> Desk:
    server.answers += answers
    return Desk(server, model)


def result(name: str, output: Any, id: str) -> Any:
    return {"functionResponse": {"id": id, "name": name, "response": output}}


def signed(part: Any) -> Any:
    """As it goes back: the SDK writes base64url."""
    given = part["thoughtSignature"].replace("+", "-").replace("/", "_")
    return {**part, "thoughtSignature": given}


SEND = fcall("send", {"to": "a@x"}, id="f1", signature=SIGNATURE)
DONE = plain({"text": "done"})


async def test_after_a_respond_the_given_output_is_the_result(server: FakeGemini) -> None:
    d = desk(server, plain(SEND), DONE)
    paused = await d.ai.generate("go", tools=d.tools)
    answer = respond_to_interrupt("by hand", interrupt=paused.interrupts[0])
    reply = await d.ai.generate(messages=paused.messages, tools=d.tools, resume_respond=answer)
    assert reply.text == "done"
    assert d.sent == []
    assert d.bodies()[1] == [
        USER,
        {"role": "model", "parts": [signed(SEND)]},
        {"role": "user", "parts": [result("send", {"output": "by hand"}, "f1")]},
    ]


async def test_after_a_restart_what_the_tool_returned_is_the_result(server: FakeGemini) -> None:
    d = desk(server, plain(SEND), DONE)
    paused = await d.ai.generate("go", tools=d.tools)
    answer = restart_tool(interrupt=paused.interrupts[0])
    await d.ai.generate(messages=paused.messages, tools=d.tools, resume_restart=answer)
    assert d.sent == ["a@x"]
    assert d.bodies()[1] == [
        USER,
        {"role": "model", "parts": [signed(SEND)]},
        {"role": "user", "parts": [result("send", {"sent": "a@x"}, "f1")]},
    ]


async def test_after_a_restart_with_an_edited_input_the_model_is_told_so_in_the_result(server: FakeGemini) -> None:
    d = desk(server, plain(SEND), DONE)
    paused = await d.ai.generate("go", tools=d.tools)
    answer = restart_tool(interrupt=paused.interrupts[0], replace_input={"to": "b@x"})
    await d.ai.generate(messages=paused.messages, tools=d.tools, resume_restart=answer)
    contents = d.bodies()[1]
    assert contents[1] == {"role": "model", "parts": [signed(SEND)]}
    (told,) = contents[2]["parts"]
    assert told["functionResponse"]["response"]["sent"] == "b@x"
    assert "edited" in told["functionResponse"]["response"]["note"]


async def test_after_a_decline_the_reason_is_the_result(server: FakeGemini) -> None:
    d = desk(server, plain(SEND), DONE)
    paused = await d.ai.generate("go", tools=d.tools)
    answer = decline_interrupt("not today", interrupt=paused.interrupts[0])
    await d.ai.generate(messages=paused.messages, tools=d.tools, resume_respond=answer)
    assert d.bodies()[1] == [
        USER,
        {"role": "model", "parts": [signed(SEND)]},
        {"role": "user", "parts": [result("send", {"declined": True, "reason": "not today"}, "f1")]},
    ]


async def test_a_correction_is_the_error_of_the_call(server: FakeGemini) -> None:
    wrong = fcall("look", {"nom": "x"}, id="f1", signature=SIGNATURE)
    d = desk(server, plain(wrong), DONE)
    await d.ai.generate("go", tools=d.tools)
    contents = d.bodies()[1]
    assert contents[1] == {"role": "model", "parts": [signed(wrong)]}
    (told,) = contents[2]["parts"]
    assert list(told["functionResponse"]["response"]) == ["error"]


async def test_partial_answers_send_nothing_and_all_of_them_one_turn_in_call_order(server: FakeGemini) -> None:
    calls = [SEND, fcall("look", {"name": "al"}, id="f2"), fcall("send", {"to": "b@x"}, id="f3")]
    d = desk(server, plain(*calls), DONE)
    paused = await d.ai.generate("go", tools=d.tools)
    first, second = paused.interrupts
    partly = await d.ai.generate(
        messages=paused.messages, tools=d.tools, resume_respond=respond_to_interrupt({"n": 2}, interrupt=second)
    )
    assert len(d.bodies()) == 1
    assert [i.id for i in partly.interrupts] == [first.id]
    await d.ai.generate(
        messages=partly.messages, tools=d.tools, resume_restart=restart_tool(interrupt=partly.interrupts[0])
    )
    assert d.bodies()[1] == [
        USER,
        {"role": "model", "parts": [signed(SEND), *calls[1:]]},
        {
            "role": "user",
            "parts": [
                result("send", {"sent": "a@x"}, "f1"),
                result("look", {"output": "AL"}, "f2"),
                result("send", {"n": 2}, "f3"),
            ],
        },
    ]


async def test_calls_without_ids_get_ours_and_results_carry_the_same(server: FakeGemini) -> None:
    calls = [fcall("look", {"name": "a"}, signature=SIGNATURE), fcall("look", {"name": "b"})]
    d = desk(server, plain(*calls), DONE)
    await d.ai.generate("go", tools=d.tools)
    _, model, results = d.bodies()[1]
    ids = [p["functionCall"]["id"] for p in model["parts"]]
    assert len(set(ids)) == 2
    assert [p["functionResponse"]["id"] for p in results["parts"]] == ids
    assert [p["functionResponse"]["response"] for p in results["parts"]] == [{"output": "A"}, {"output": "B"}]
    assert ["thoughtSignature" in p for p in model["parts"]] == [True, False]


async def test_after_an_abort_the_call_is_closed_and_the_next_message_follows(server: FakeGemini) -> None:
    d = desk(server, plain(SEND), DONE)
    agent = d.ai.define_agent(name="clerk", tools=d.tools)
    session = agent.connect(AgentInit())
    out = await session.send("go").output
    assert out.finish_reason == "interrupted"
    await session.abort("changed my mind")
    done = await session.send("never mind").output
    assert done.text == "done"
    contents = d.bodies()[1]
    assert [c["role"] for c in contents] == ["user", "model", "user", "user"]
    assert contents[1]["parts"] == [signed(SEND)]
    assert contents[2]["parts"][0]["functionResponse"]["id"] == "f1"
    assert contents[3] == {"role": "user", "parts": [{"text": "never mind"}]}


async def test_an_abort_in_the_middle_of_a_stream_frees_the_connection(server: FakeGemini) -> None:
    d = desk(server, Answer(b"", delay=0.3), DONE)
    signal = AbortSignal()
    handle = d.ai.generate_stream("go", abort_signal=signal)
    await asyncio.sleep(0.1)
    signal.abort("enough")
    assert (await handle.response).finish_reason == "aborted"
    await d.plugin.aclose()


async def test_a_cut_off_call_never_runs_and_is_corrected(server: FakeGemini) -> None:
    begun = {"functionCall": {"name": "send", "id": "f1", "willContinue": True}, "thoughtSignature": SIGNATURE}
    piece = {"partialArgs": [{"jsonPath": "$.to", "stringValue": "a@", "willContinue": True}], "willContinue": True}
    d = desk(
        server,
        stream(response(begun), response({"functionCall": piece}), response({"text": ""}, finish="MAX_TOKENS")),
        stream(response({"text": "sorry"}, finish="STOP")),
    )
    handle = d.ai.generate_stream("go", tools=d.tools)
    reply = await handle.response
    assert reply.text == "sorry"
    assert d.sent == []
    assert not reply.interrupts
    model, told = d.bodies()[1][1:]
    assert model["parts"] == [signed(fcall("send", id="f1", signature=SIGNATURE))]
    assert "cut off by the token limit" in told["parts"][0]["functionResponse"]["response"]["error"]


MALFORMED = plain(
    finish="MALFORMED_FUNCTION_CALL", finishMessage="Malformed function call: print(default_api.look(name='a'"
)


async def test_a_malformed_call_is_corrected_with_a_stand_in_for_its_signature(server: FakeGemini) -> None:
    server.answers += [MALFORMED, DONE]
    d = Desk(server, on_vertex=True)
    reply = await d.ai.generate("go", tools=d.tools)
    assert reply.text == "done"
    model, told = d.bodies()[1][1:]
    (part,) = model["parts"]
    assert part["functionCall"]["name"] == "look"
    assert base64.urlsafe_b64decode(part["thoughtSignature"]) == b"skip_thought_signature_validator"
    assert "could not be read" in told["parts"][0]["functionResponse"]["response"]["error"]


async def test_a_malformed_call_that_nobody_can_name_is_an_error_to_try_again(server: FakeGemini) -> None:
    """The SDK drops the finish message of the Gemini API, where the call is described."""
    d = desk(server, MALFORMED)
    with pytest.raises(ModelError, match="MALFORMED_FUNCTION_CALL") as caught:
        await d.ai.generate("go", tools=d.tools)
    assert caught.value.retryable


def foreign(*parts: Part) -> list[Message]:
    results = [Part(tool_response=ToolResponse(r.name, r.ref, 1)) for p in parts if (r := p.tool_request)]
    return [Message("user", [Part(text="go")]), Message("model", parts), Message("tool", results)]


FOREIGN = (
    Part(reasoning="secret", metadata={"anthropic": {"signature": "abc"}}),
    Part(text="hm", metadata={"openai": {"id": "rs_1"}}),
    Part(tool_request=ToolRequest("f", "toolu_1", {"a": 1})),
    Part(tool_request=ToolRequest("f", "toolu_2", {"a": 2})),
    Part(custom={"anthropic": {"type": "redacted_thinking"}}),
)


@pytest.mark.parametrize(
    "plugin_name,model,stands_in",
    [
        ("googleai", "gemini-3-flash-preview", True),
        ("googleai", "gemini-flash-latest", True),
        ("vertexai", "gemini-3.1-pro-preview", True),
        ("googleai", "gemini-2.5-pro", False),
        ("vertexai", "gemini-2.5-flash", False),
    ],
)
async def test_foreign_history_goes_without_its_extras_and_with_one_stand_in_where_it_is_demanded(
    server: FakeGemini, plugin_name: str, model: str, stands_in: bool
) -> None:
    server.answers.append(DONE)
    plugin = gemini(server) if plugin_name == "googleai" else vertex(server)
    await plugin.model(model)(ModelRequest(foreign(*FOREIGN)), ignore)
    first: dict[str, Any] = {"functionCall": {"name": "f", "id": "toolu_1", "args": {"a": 1}}}
    if stands_in:
        first["thoughtSignature"] = base64.urlsafe_b64encode(b"skip_thought_signature_validator").decode()
    second = {"functionCall": {"name": "f", "id": "toolu_2", "args": {"a": 2}}}
    sent = server.seen[0].body["contents"]
    assert sent[1] == {"role": "model", "parts": [{"text": "hm"}, first, second]}
    assert [p["functionResponse"]["id"] for p in sent[2]["parts"]] == ["toolu_1", "toolu_2"]
    await plugin.aclose()


async def test_nothing_is_invented_for_what_a_signing_gemini_left_unsigned(server: FakeGemini) -> None:
    d = desk(server, plain(fcall("look", {"name": "a"}, id="f1")), DONE)
    await d.ai.generate("go", tools=d.tools)
    assert d.bodies()[1][1]["parts"] == [fcall("look", {"name": "a"}, id="f1")]


async def test_thought_summaries_are_reasoning_and_go_back_as_thoughts(server: FakeGemini) -> None:
    thought = {"text": "let me see", "thought": True}
    text = {"text": "I look", "thoughtSignature": SIGNATURE}
    d = desk(server, plain(thought, text, fcall("look", {"name": "a"}, id="f1")), DONE)
    reply = await d.ai.generate("go", tools=d.tools)
    said = reply.messages[1]
    assert [p.reasoning for p in said.content] == ["let me see", None, None]
    assert d.bodies()[1][1]["parts"] == [thought, signed(text), fcall("look", {"name": "a"}, id="f1")]


async def test_code_that_gemini_ran_comes_back_to_it_as_it_was(server: FakeGemini) -> None:
    code = {"executableCode": {"code": "print(1)", "language": "PYTHON"}, "thoughtSignature": SIGNATURE}
    ran = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
    d = desk(server, plain(code, ran, {"text": "1"}), DONE)
    reply = await d.ai.generate("go", tools=[])
    assert reply.text == "1"
    await d.ai.generate("again", messages=reply.messages, tools=[])
    assert d.bodies()[1][1]["parts"] == [signed(code), ran, {"text": "1"}]


CHILD = """
import asyncio, json, sys
from pathlib import Path
from adjourn import Adjourn, Interrupt, ToolRunContext, respond_to_interrupt
from adjourn.parts import Message, decode
from adjourn.plugins.google_genai import GoogleAI

async def main(url, path):
    ai = Adjourn(plugins=[GoogleAI(api_key="made-up", base_url=url)], model="googleai/gemini-3-pro-preview")

    @ai.tool()
    async def get_country(ctx: ToolRunContext) -> str:
        raise Interrupt({"which": "country"})

    messages = decode(Path(path).read_bytes(), list[Message])
    part = next(p for p in messages[-1].content if "interrupt" in (p.metadata or {}))
    answer = respond_to_interrupt("Mexico", interrupt=part)
    print((await ai.generate(messages=messages, tools=[get_country], resume_respond=answer)).text)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_signed_streamed_call_is_answered_by_a_new_process(shared: Path, tmp_path: Path) -> None:
    name = "pydantic-ai__test_google_streaming_tool_call_thought_signature.yaml"
    first, second = exchanges(shared / "recordings/gemini" / name)
    whole = b'{"candidates":[{"content":{"parts":[{"text":"Mexico City"}]},"finishReason":"STOP"}]}'
    async with FakeGemini([first.answer, Answer(whole)]) as server:
        plugin = gemini(server)
        ai = Adjourn(plugins=[plugin], model="googleai/gemini-3-pro-preview")

        @ai.tool()
        async def get_country(ctx: ToolRunContext) -> str:
            raise Interrupt({"which": "country"})

        paused = await ai.generate_stream(
            "What is the capital of the user country? Call the tool", tools=[get_country]
        ).response
        assert paused.finish_reason == "interrupted"
        kept = tmp_path / "paused.json"
        kept.write_bytes(encode(paused.messages))
        await plugin.aclose()
        out = await _run([sys.executable, "-W", "error", "-c", CHILD, server.url, str(kept)])
        assert out == "Mexico City\n"
        recorded = second.request["contents"][1]["parts"][0]
        sent = server.seen[1].body["contents"][1]["parts"][0]
        assert signature_of(sent) == signature_of(recorded)
        assert sent["functionCall"]["name"] == "get_country"
        assert server.seen[1].body["contents"][2]["parts"][0]["functionResponse"]["id"] == sent["functionCall"]["id"]


async def _run(command: Sequence[str]) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert err == b""
    return out.decode()


def test_importing_the_plugin_imports_no_sdk() -> None:
    code = (
        "import sys, adjourn.plugins.google_genai as g; g.GoogleAI().model('x'); print('google.genai' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
