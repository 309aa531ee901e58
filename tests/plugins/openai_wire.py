"""A server on loopback that answers with what was recorded, and a reader of the recordings."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from adjourn.model import Model, ModelReply, ModelRequest
from adjourn.parts import Chunk
from adjourn.plugins.openai import OpenAI, OpenAICompatible

Json = dict[str, Any]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Answer:
    """What the server says. `cuts` are the sizes of the network pieces; `breaks` closes in the middle; `delay` waits."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    cuts: tuple[int, ...] = ()
    breaks: bool = False
    delay: float = 0.0
    plainly: bool = False
    """It is sent as it is to a request for a stream, too."""


@dataclass(frozen=True)
class Exchange:
    """One recorded request (None where only the reply was kept) and what was answered."""

    request: Any
    answer: Answer
    url: str = ""


@dataclass
class Server:
    url: str
    answers: list[Answer]
    requests: list[Json] = field(default_factory=list[Json])
    paths: list[str] = field(default_factory=list[str])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    asked: asyncio.Event = field(default_factory=asyncio.Event)


def reply_json(body: Any, status: int = 200, **headers: str) -> Answer:
    given = tuple((k.replace("_", "-"), v) for k, v in headers.items())
    return Answer(json.dumps(body).encode(), status, headers=given)


def reply_events(events: Sequence[Any], *, done: bool = True, **options: Any) -> Answer:
    lines = [f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events]
    return Answer(
        "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode(), content_type="text/event-stream", **options
    )


def as_stream(answer: Answer) -> Answer:
    """A whole reply in the fewest events; one that is streamed already as it is."""
    if answer.content_type != "application/json":
        return answer
    reply = json.loads(answer.body)
    if "choices" not in reply:
        event = {"type": f"response.{reply.get('status')}", "response": reply}
        return replace(answer, body=reply_events([event]).body, content_type="text/event-stream")
    choice = reply["choices"][0]
    chunk = {**reply, "choices": [{"index": 0, "delta": choice["message"], "finish_reason": choice["finish_reason"]}]}
    return replace(answer, body=reply_events([chunk]).body, content_type="text/event-stream")


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncGenerator[Server, None]:
    server = Server("", list(answers))
    writers: list[asyncio.StreamWriter] = []
    handlers: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if (task := asyncio.current_task()) is not None:
            handlers.add(task)
        try:
            while await _one(server, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        for writer in writers:
            writer.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await listening.wait_closed()


async def _one(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in [line.partition(":") for line in head[1:] if line]}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    server.requests.append(json.loads(body))
    server.paths.append(head[0].split()[1])
    server.headers.append(headers)
    server.asked.set()
    answer = server.answers[len(server.requests) - 1]
    if server.requests[-1].get("stream") and answer.status == 200 and not answer.plainly:
        answer = as_stream(answer)
    if answer.delay:
        await asyncio.sleep(answer.delay)
    lines = [f"HTTP/1.1 {answer.status} Said", f"content-type: {answer.content_type}", "transfer-encoding: chunked"]
    lines += [f"{k}: {v}" for k, v in answer.headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    position = 0
    for size in (*answer.cuts, len(answer.body)):
        piece = answer.body[position : position + size]
        position += len(piece)
        if piece:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if answer.cuts:
                await writer.drain()
                await asyncio.sleep(0)
    if not answer.breaks:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return not answer.breaks


@asynccontextmanager
async def talking(
    key: str, api: Any, *answers: Answer, model: str = "m", **options: Any
) -> AsyncGenerator[tuple[Model, Server], None]:
    """A model of the plugin, and the server it talks to. `key` "openai" is the plugin OpenAI."""
    async with serving(*answers) as server:
        plugin = plugin_for(key, api, server.url, **options)
        try:
            yield plugin.model(model), server
        finally:
            await plugin.aclose()


def plugin_for(key: str, api: Any, url: str, **options: Any) -> OpenAI | OpenAICompatible:
    if key == "openai":
        return OpenAI("sk-test-0123456789", api=api, base_url=url, **options)
    return OpenAICompatible(key, url, api=api, **options)


async def ask(model: Model, request: ModelRequest) -> tuple[ModelReply, list[Chunk]]:
    chunks: list[Chunk] = []
    return await model(request, chunks.append), chunks


# -- recordings ------------------------------------------------------------------------------------------------------


@cache
def recorded(path: Path) -> Sequence[Exchange]:
    """The exchanges of one file, in any of its four forms."""
    if path.suffix == ".yaml":
        data: Any = yaml.load(path.read_text(), _Loader)  # the safe one
        return [_exchange(i) for i in data["interactions"]]
    text = path.read_text()
    if path.suffix == ".json":
        return [Exchange(None, Answer(text.encode()))]
    if path.suffix == ".txt":  # one payload a line
        text = "".join(f"data: {_whole(line)}\n\n" for line in text.splitlines() if line) + "data: [DONE]\n\n"
    return [Exchange(None, Answer(text.encode(), content_type="text/event-stream"))]


def _exchange(given: Any) -> Exchange:
    request, response = given["request"], given["response"]
    asked = _body(request)
    body = _body(response)
    streamed = body.startswith((b"data:", b"event:"))
    kind = "text/event-stream" if streamed else "application/json"
    status: int = response["status"]["code"]
    return Exchange(json.loads(asked) if asked else {}, Answer(body, status, kind), request["uri"])


def _body(side: Any) -> bytes:
    if "parsed_body" in side:
        return json.dumps(side["parsed_body"]).encode()
    body: Any = side.get("body")
    body = cast(Json, body).get("string") if isinstance(body, dict) else body
    raw: bytes = body.encode() if isinstance(body, str) else body or b""
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def _whole(line: str) -> str:
    """The payload; two in the file of the `parallel` wrapper have lost their last brace on the way here."""
    try:
        json.loads(line)
    except ValueError:
        json.loads(line + "}")
        return line + "}"
    return line
