"""The real Gemini, where a key is given. Everything else about it is tested against recordings."""

import os

import pytest

from adjourn import Adjourn, Interrupt, ToolRunContext, restart_tool
from adjourn.plugins.google_genai import GoogleAI

KEYED = bool(os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY"))


@pytest.mark.skipif(not KEYED, reason="NOT TESTED AGAINST GEMINI: neither GEMINI_API_KEY nor GOOGLE_API_KEY is set")
@pytest.mark.enable_socket
@pytest.mark.parametrize("model", ["gemini-flash-latest", "gemini-2.5-flash"])
async def test_a_pause_and_a_restart_with_the_real_gemini(model: str) -> None:
    plugin = GoogleAI()
    ai = Adjourn(plugins=[plugin], model=f"googleai/{model}")

    @ai.tool()
    async def open_door(number: int, ctx: ToolRunContext) -> dict[str, object]:
        """Opens a door of the building by its number."""
        if not ctx.is_resumed():
            raise Interrupt({"number": number})
        return {"opened": number, "password": "heron"}

    paused = await ai.generate_stream("Open door 7, then tell me the password.", tools=[open_door]).response
    assert paused.finish_reason == "interrupted"
    answer = restart_tool(interrupt=paused.interrupts[0])
    reply = await ai.generate(messages=paused.messages, tools=[open_door], resume_restart=answer)
    assert "heron" in reply.text.lower()
    assert reply.usage.input_tokens > 0
    await plugin.aclose()
