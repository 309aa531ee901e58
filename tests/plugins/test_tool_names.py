"""Names of tools that a provider does not take: mapped for each request, and back in each reply."""

import re
from typing import Any

import pytest

from adjourn import Adjourn, Interrupt, SignatureError, ToolRunContext, respond_to_interrupt, tool
from adjourn.dialect import Names
from adjourn.model import ModelRequest, ToolDefinition
from adjourn.parts import Message, Part, ToolRequest, ToolResponse
from adjourn.plugins.anthropic import AnthropicConfig
from adjourn.plugins.anthropic.requests import build_body
from adjourn.plugins.anthropic.requests import names_of as anthropic_names
from adjourn.plugins.google_genai import GoogleAI
from adjourn.plugins.google_genai.dialect import names_of as gemini_names
from adjourn.plugins.openai import ChatConfig, Dialect, ResponsesConfig, chat, responses
from adjourn.plugins.openai.content import names_of as openai_names
from adjourn.transcript import load, raw
from plugins.google_kit import FakeGemini, gemini, plain
from plugins.openai_wire import plugin_for, reply_json, serving

ODD = ["mail.send", "mail/send", "2fast", "x" * 200, "ünïcode", "a b", "почта"]
FITS = {
    "openai": r"[a-zA-Z0-9_-]{1,64}",
    "anthropic": r"[a-zA-Z0-9_-]{1,128}",
    "gemini": r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}",
}


def names(provider: str, given: list[str]) -> Names:
    definitions = [ToolDefinition(n) for n in given]
    if provider == "gemini":
        return gemini_names(given)
    return openai_names(definitions) if provider == "openai" else anthropic_names(definitions)


@pytest.mark.parametrize("provider", list(FITS))
def test_every_name_has_one_that_the_provider_takes_and_it_leads_back(provider: str) -> None:
    mapped = names(provider, [*ODD, "plain_name-1"])
    outward = [mapped.outward(n) for n in ODD]
    assert all(re.fullmatch(FITS[provider], n) for n in outward), outward
    assert len(set(outward)) == len(ODD)
    assert [mapped.inward(n) for n in outward] == ODD
    assert mapped.outward("plain_name-1") == "plain_name-1"
    assert mapped.inward("unheard_of") == "unheard_of"
    # Stored conversations hold names of tools that are gone: they are written as they were.
    assert [names(provider, []).outward(n) for n in ODD] == outward


def test_two_names_that_would_be_one_are_refused_by_name() -> None:
    taken = names("openai", []).outward("mail.send")
    with pytest.raises(SignatureError, match=r"tools 'mail\.send' and 'mail_send_.*' have the same name"):
        names("openai", ["mail.send", taken])


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_is_told_one_name_everywhere(api: str) -> None:
    name = "mail.send"
    out = names("openai", []).outward(name)
    messages = [
        Message("user", [Part(text="go")]),
        Message("model", [Part(tool_request=ToolRequest(name, "c1", {}))]),
        Message("tool", [Part(tool_response=ToolResponse(name, "c1", "ok"))]),
    ]
    tools = [ToolDefinition(name)]
    body: Any
    if api == "responses":
        body, _ = responses.build(ModelRequest(messages, tools, ResponsesConfig(tool_choice=name)), "m", "openai")
        found = [body["tools"][0]["name"], body["tool_choice"]["name"], body["input"][1]["name"]]
    else:
        body, _ = chat.build(ModelRequest(messages, tools, ChatConfig(tool_choice=name)), "m", "k", Dialect())
        asked = body["messages"][1]["tool_calls"][0]["function"]["name"]
        found = [body["tools"][0]["function"]["name"], body["tool_choice"]["function"]["name"], asked]
    assert found == [out] * 3
    assert name not in str(body)


def test_anthropic_is_told_one_name_everywhere_and_our_name_keys_its_options() -> None:
    request = ModelRequest([Message("user", [Part(text="go")])], [ToolDefinition("mail.send")])
    config = AnthropicConfig(tool_choice="mail.send", tool_options={"mail.send": {"defer_loading": True}})
    body = build_body("claude-sonnet-5", request, config, anthropic_names(request.tools))
    assert body["tool_choice"]["name"] == body["tools"][0]["name"] == names("anthropic", []).outward("mail.send")
    assert body["tools"][0]["defer_loading"] is True


async def paused_and_answered(ai: Adjourn, name: str) -> Any:
    """A call that pauses; it is saved as JSON, and answered from that."""

    async def send(to: str, ctx: ToolRunContext) -> str:
        raise Interrupt({"to": to})

    made = tool(send, name=name)
    paused = await ai.generate("Go.", tools=[made])
    assert [i.name for i in paused.interrupts] == [name]
    messages: list[Message] = load(raw(paused.messages))
    (part,) = [p for p in messages[-1].content if p.tool_request is not None]
    return await ai.generate(messages=messages, resume_respond=respond_to_interrupt("ok", interrupt=part), tools=[made])


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("name", ["mail.send", "m" * 70])
async def test_openai_calls_a_tool_by_its_mapped_name_through_a_pause(api: str, name: str) -> None:
    out = names("openai", []).outward(name)
    if api == "responses":
        call = {"type": "function_call", "id": "fc", "call_id": "c1", "name": out, "arguments": '{"to":"x"}'}
        said = {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Done."}],
        }
        answers = [reply_json({"status": "completed", "output": [item]}) for item in (call, said)]
    else:
        made = {"id": "c1", "type": "function", "function": {"name": out, "arguments": '{"to":"x"}'}}
        told = [{"content": None, "tool_calls": [made]}, {"content": "Done."}]
        answers = [reply_json({"choices": [{"message": m, "finish_reason": "stop"}]}) for m in told]
    async with serving(*answers) as server:
        plugin = plugin_for("openai", api, server.url)
        done = await paused_and_answered(Adjourn(plugins=[plugin], model="openai/m"), name)
        await plugin.aclose()
    assert done.text == "Done."
    sent = str(server.requests[1])
    assert f"'{out}'" in sent
    assert f"'{name}'" not in sent


async def test_gemini_calls_a_tool_by_its_mapped_name_through_a_pause() -> None:
    out = names("gemini", []).outward("2fast")
    call = {"functionCall": {"name": out, "args": {"to": "x"}}, "thoughtSignature": "AAAA"}
    async with FakeGemini([plain(call), plain({"text": "Done."})]) as server:
        plugin = gemini(server)
        ai = Adjourn(plugins=[plugin], model="googleai/gemini-3-flash-preview")
        done = await paused_and_answered(ai, "2fast")
        await plugin.aclose()
    assert done.text == "Done."
    contents = server.seen[1].body["contents"]
    assert contents[1]["parts"][0]["functionCall"]["name"] == out
    assert contents[2]["parts"][0]["functionResponse"]["name"] == out


def test_gemini_takes_a_name_with_dots_as_it_is_and_narrows_by_our_names() -> None:
    assert names("gemini", []).outward("mail.send") == "mail.send"
    GoogleAI(api_key="none").model("gemini-3-flash-preview").check(
        ModelRequest((), [ToolDefinition("2fast")], {"tool_choice": "any", "allowed_tools": ["2fast"]})
    )
