"""One process of a conversation that pauses in one and is resumed in another.

    python fresh_process.py FAMILY URL DATABASE begin|resume|both stream|whole

`begin` talks to the server at URL until the tool pauses; `resume` opens the session cold and decides; `both` does it all
in one process. The output is the last text of the model.
"""

import asyncio
import sys
from typing import Any

from adjourn import Adjourn, AgentInit, Interrupt, ToolRunContext
from adjourn.plugins.anthropic import Anthropic, AnthropicConfig
from adjourn.plugins.google_genai import GoogleAI, VertexAI
from adjourn.plugins.openai import OpenAI, OpenAICompatible
from adjourn.stores.sqlite import SQLiteStore

SESSION = "kept"
TOOL = "mail/send"
"""A name that most providers do not take as it is."""
PLAIN = {"client_args": {"verify": False}, "async_client_args": {"verify": False}}


def plugin_of(family: str, url: str) -> tuple[Any, str, Any]:
    """The plugin, the name of its model, and the config."""
    key = "not-a-real-key-0123456789"
    if family == "googleai":
        return GoogleAI(key, base_url=url, http_options=PLAIN), "googleai/gemini-3-flash-preview", None
    if family == "vertexai":
        return VertexAI(api_key=key, base_url=url, http_options=PLAIN), "vertexai/gemini-3-flash-preview", None
    if family == "responses":
        return OpenAI(key, base_url=f"{url}/v1"), "openai/gpt-5", None
    if family == "chat":
        return OpenAI(key, api="chat", base_url=f"{url}/v1"), "openai/gpt-4o", None
    if family == "deepseek":
        return OpenAICompatible("deepseek", f"{url}/v1", api_key=key), "deepseek/deepseek-reasoner", None
    return Anthropic(api_key=key, base_url=url), "anthropic/claude-sonnet-5", AnthropicConfig(thinking=1024)


async def main(family: str, url: str, database: str, part: str, how: str) -> str:
    plugin, model, config = plugin_of(family, url)
    ai = Adjourn(plugins=[plugin], model=model)

    @ai.tool(name=TOOL)
    async def send(to: str, ctx: ToolRunContext) -> dict[str, Any]:
        """Send a mail."""
        if not ctx.is_resumed():
            raise Interrupt({"to": to})
        return {"sent": to}

    agent = ai.define_agent("postman", tools=[send], config=config, store=SQLiteStore(database))
    session = agent.connect(AgentInit(session_id=SESSION))
    try:
        if part != "resume":
            turn = session.send("Go.", detach=how == "whole")
            if (await turn.output).finish_reason != "interrupted" or part == "begin":
                return turn.poll() or ""
        await session.load()
        first, second = session.interrupts
        await first.restart().output
        output = await second.respond("by hand").output
        return output.text
    finally:
        await ai.aclose()


if __name__ == "__main__":
    print(asyncio.run(main(*sys.argv[1:])))
