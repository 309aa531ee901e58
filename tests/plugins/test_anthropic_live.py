"""One small conversation with the real API. It runs only where a key is set, and only by hand: it needs the network."""

import os

import pytest

from adjourn import Adjourn, Interrupt, ToolRunContext, respond_to_interrupt, tool
from adjourn.plugins.anthropic import Anthropic

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ANTHROPIC_API_KEY"), reason="NOT TESTED LIVE: ANTHROPIC_API_KEY is unset"),
    pytest.mark.enable_socket,
]


@tool
async def read_gauge(ctx: ToolRunContext) -> str:
    """Reads the gauge."""
    raise Interrupt({"please": "read it"})


async def test_a_real_model_pauses_and_goes_on(socket_enabled: object) -> None:
    plugin = Anthropic()
    ai = Adjourn(plugins=[plugin], model="anthropic/" + os.environ.get("ADJOURN_ANTHROPIC_MODEL", "claude-haiku-4-5"))
    try:
        paused = await ai.generate("Read the gauge with your tool and tell me the number.", tools=[read_gauge])
        assert paused.interrupts
        done = await ai.generate(
            tools=[read_gauge], resume_respond=respond_to_interrupt("4711", interrupt=paused.interrupts[0])
        )
        assert "4711" in done.text.replace(",", "")
    finally:
        await plugin.aclose()
