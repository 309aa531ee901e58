"""The application of deploy/ with one more agent, whose tools do what only a test wants: it takes the place of app.py."""

import asyncio
import importlib
import os
import signal
from pathlib import Path
from typing import Any

from adjourn import Adjourn
from adjourn.model import ModelRequest
from adjourn.testing import call

HERE = Path(__file__).parent
deployed: Any = importlib.import_module("deployed")  # deploy/app.py, beside it under this name
webhooks = deployed.webhooks


def effect(text: str) -> None:
    with (HERE / "effects.txt").open("a", encoding="utf-8") as f:
        f.write(text + "\n")


def make() -> Adjourn:
    ai: Adjourn = deployed.make()

    @ai.model("crew-script")
    async def script(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return f"Done: {last.tool_responses[-1].output}"
        word, *numbers = last.text.split()
        return [call(word, {"n": int(n)}) for n in numbers or ["0"]]

    @ai.tool()
    async def hold(n: int) -> str:
        """Runs until a file called go is there."""
        effect(f"hold {n}")
        while not (HERE / "go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        return "held"

    @ai.tool(idempotent=True)
    async def poison(n: int) -> str:
        """Ends its process, each time."""
        effect(f"poison {n}")
        if not (HERE / "antidote").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return "harmless"

    @ai.tool(approval=True)
    async def pay(n: int) -> str:
        """Pays."""
        effect(f"pay {n}")
        return f"paid {n}"

    desk = ai.agents["desk"]
    ai.define_agent("crew", model="crew-script", tools=[hold, poison, pay], store=desk.store)
    return ai
