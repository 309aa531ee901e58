"""Any split of a recorded stream into network chunks gives the same reply."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adjourn.model import ModelReply, ModelRequest
from adjourn.parts import Chunk, Message, Part
from adjourn.plugins.google_genai import GoogleAI
from plugins.google_kit import FAST, KEY, exchanges

STREAMS = (
    "ai__google-tool-call-gemini3.chunks.txt",
    "ai__google-stream-tool-call-arguments.chunks.txt",
    "ai__google-stream-tool-call-array-arguments-missing-terminal-function-call.chunks.txt",
    "pydantic-ai__test_google_model_iter_stream.yaml",
    "pydantic-ai__test_google_streaming_tool_call_thought_signature.yaml",
    "pydantic-ai__test_native_output_with_function_tools_stream.yaml",
)


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, body: bytes, cuts: list[int]) -> None:
        ends = [*cuts, len(body)]
        self._pieces = [body[a:b] for a, b in zip([0, *cuts], ends, strict=True)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


async def read(body: bytes, splits: list[list[int]]) -> list[tuple[ModelReply, str]]:
    """What the real SDK makes of the body, once for each way of splitting it."""
    waiting = list(splits)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Pieces(body, waiting.pop(0)))

    out: list[tuple[ModelReply, str]] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        plugin = GoogleAI(api_key=KEY, http_options={**FAST, "httpx_async_client": client})
        request = ModelRequest([Message("user", [Part(text="go")])], streaming=True)
        for _ in splits:
            chunks: list[Chunk] = []
            reply = await plugin.model("gemini-3-flash-preview")(request, chunks.append)
            out.append((reply, "".join([c.text for c in chunks])))
        await plugin.aclose()
    return out


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_split_of_a_recorded_stream_gives_the_same_reply(shared: Path, name: str, data: st.DataObject) -> None:
    for exchange in exchanges(shared / "recordings/gemini" / name):
        body: bytes = exchange.answer.body
        position = st.integers(1, len(body) - 1)
        cuts = st.lists(position, unique=True, max_size=40).map(sorted)
        splits = data.draw(st.lists(cuts, min_size=5, max_size=5))
        whole, *others = asyncio.run(read(body, [[], *splits, list(range(1, len(body), 13))]))
        for reply, text in others:
            assert (reply.message, reply.finish_reason, reply.usage) == (
                whole[0].message,
                whole[0].finish_reason,
                whole[0].usage,
            )
            assert text == whole[1] == reply.message.text
