"""Each provider, streamed and not, in front of a server that breaks off, falls silent or talks nonsense. CONSTRUCTED."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from adjourn.errors import ModelError
from adjourn.model import Model, ModelRequest
from adjourn.parts import Message, Part
from adjourn.plugins.anthropic import Anthropic
from adjourn.plugins.google_genai import GoogleAI, VertexAI
from adjourn.plugins.openai import OpenAI
from plugins import anthropic_kit, google_kit

BROKEN = json.dumps({"id": "x", "type": "message", "choices": [{"message": {"content": "Half of it"}}]}).encode()[:-20]
FIRST: dict[str, bytes] = {
    "chat": b'data: {"choices": [{"index": 0, "delta": {"content": "Half of"}}]}\n\n',
    "responses": b'data: {"type": "response.output_text.delta", "output_index": 0, "delta": "Half of"}\n\n',
    "anthropic": anthropic_kit.as_sse(
        anthropic_kit.events_of(anthropic_kit.message(anthropic_kit.text("Half of")))[:4]
    ),
    "googleai": google_kit.sse([google_kit.response({"text": "Half of"})]),
}
FIRST["vertexai"] = FIRST["googleai"]
PROVIDERS = sorted(FIRST)
TROUBLES = ["closed at once", "closed in the middle", "ended in the middle", "silent", "silent in the middle", "nothing",
            "nonsense", "a page"]  # fmt: skip


def made(provider: str, url: str, timeout: float) -> Any:
    if provider == "anthropic":
        return Anthropic(api_key="key-0123", base_url=url, timeout=timeout)
    if provider == "googleai":
        return GoogleAI("key-0123", base_url=url, timeout=timeout, http_options=google_kit.FAST)
    if provider == "vertexai":
        return VertexAI(api_key="key-0123", base_url=url, timeout=timeout, http_options=google_kit.FAST)
    api: Any = provider
    return OpenAI("key-0123", api=api, base_url=url, timeout=timeout)


@asynccontextmanager
async def troubled(trouble: str, body: bytes, kind: str) -> AsyncGenerator[tuple[str, list[int]]]:
    asked: list[int] = []
    over = asyncio.Event()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            given = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(given.split("content-length: ")[1].split("\r\n")[0]))
            asked.append(1)
            chunk = b"%x\r\n%s\r\n" % (len(body), body)
            if trouble == "silent":
                await over.wait()
            elif trouble == "nothing":
                writer.write(head + b"content-length: 0\r\n\r\n")
            elif trouble == "nonsense":
                writer.write(head + b"content-length: 12\r\n\r\ndata: {what\n")
            elif trouble == "a page":
                writer.write(head + b"content-length: 13\r\n\r\n<html></html>")
            elif trouble != "closed at once":
                writer.write(head + b"transfer-encoding: chunked\r\n\r\n" + chunk)
                if trouble == "silent in the middle":
                    await over.wait()
                elif trouble == "ended in the middle":
                    writer.write(b"0\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        over.set()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_an_answer_that_is_none_is_an_error_to_try_again(provider: str, trouble: str, streaming: bool) -> None:
    body, kind = (FIRST[provider], "text/event-stream") if streaming else (BROKEN, "application/json")
    name = "openai" if provider in ("chat", "responses") else provider
    async with troubled(trouble, body, kind) as (url, asked):
        plugin: Any = made(provider, url, 0.3 if trouble.startswith("silent") else 30.0)
        model: Model = plugin.model("gemini-3-flash-preview" if provider in ("googleai", "vertexai") else "m")
        request = ModelRequest([Message("user", [Part(text="What is the plan?")])], streaming=streaming)
        shown: list[str] = []
        with pytest.raises(ModelError) as caught:
            await model(request, lambda chunk: shown.append(chunk.text))
        await plugin.aclose()
    error = caught.value
    assert (error.provider, error.code, error.retryable) == (name, None, True)
    assert error.__cause__ is None
    assert len(str(error)) < 200
    assert len(asked) <= 1, "nothing is tried again behind our back"
    assert "Half of".startswith("".join(shown))
    if streaming and trouble in ("closed in the middle", "ended in the middle"):
        assert shown
