"""What the tests of the local models share: messages, engines that may not be here, and a process that saw nothing."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adjourn import GenerateResponse, Message, MissingExtra, Part, ToolRequest, ToolResponse
from adjourn.parts import encode

TESTS = Path(__file__).parent


def user(text: str) -> Message:
    return Message("user", [Part(text=text)])


def called(name: str, arguments: Any) -> Message:
    return Message("model", [Part(tool_request=ToolRequest(name, "1", arguments))])


def returned(name: str, output: Any, note: str = "", **noted: Any) -> Message:
    """A result; `note` is a text beside it, `noted` what we note on it ourselves."""
    content = [Part(text=note)] if note else None
    response = ToolResponse(name, "1", output, content)
    return Message("tool", [Part(tool_response=response, metadata={"adjourn": noted} if noted else None)])


def real_model(name: str, seconds: int) -> list[pytest.MarkDecorator]:
    """The marks of tests with a real engine: one process loads it for all of them."""
    return [pytest.mark.local_model, pytest.mark.xdist_group(name), pytest.mark.timeout(seconds)]


def load_or_skip(model: Any) -> None:
    """Loads the engine; skips where it is not installed."""
    try:
        asyncio.run(model.load())
    except MissingExtra as e:
        pytest.skip(f"NOT TESTED WITH THE REAL MODEL: {e}")


async def restarted_elsewhere(module: str, paused: GenerateResponse[Any], folder: Path) -> Any:
    """What a fresh process makes of a restart of this pause, with the module's `Shop` and `CONFIG`: JSON.

    `orders`, `text` and `finish_reason` are what came of it, `before_last` the messages that the last reply answers.
    """
    file = folder / "messages.json"
    file.write_bytes(encode(paused.messages))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _COLD, module, str(file)],
        check=False,
        capture_output=True,
        text=True,
        timeout=800,
        cwd=TESTS,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


_COLD = """
import asyncio, importlib, json, sys
from pathlib import Path
from adjourn import Message, restart_tool
from adjourn.parts import decode, wire

async def main(module, file):
    here = importlib.import_module(module)
    messages = decode(Path(file).read_bytes(), list[Message])
    shop = here.Shop()
    answer = restart_tool(interrupt=messages[-1].tool_requests[0])
    response = await shop.ai.generate(
        messages=messages, resume_restart=answer, tools=["order_stock"], config=here.CONFIG
    )
    told = {"orders": shop.orders, "text": response.text, "finish_reason": response.finish_reason}
    print(json.dumps({**told, "before_last": wire(response.messages[:-1])}))

asyncio.run(main(*sys.argv[1:]))
"""
