"""A server that stands for Anthropic, recorded exchanges to feed it with, and requests in a form to compare."""

import asyncio
import functools
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from adjourn.model import ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import OURS, Chunk, Message, Part, ToolRequest, ToolResponse
from adjourn.plugins.anthropic import Anthropic

Json = Any
API_KEY = "sk-ant-test-0123456789"


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What the server says to one request.

    `pieces` are sent one by one; `broken` ends the connection in the middle of the body, and `silent` before any of it.
    """

    pieces: Sequence[bytes] = ()
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    broken: bool = False
    silent: bool = False
    delay: float = 0.0


@dataclass
class Seen:
    path: str
    headers: Mapping[str, str]
    body: Json


Script = Sequence[Answer] | Callable[[Json], Answer]


class Server:
    """Answers in order, or by a function of the body, and keeps what it was sent."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.seen: list[Seen] = []
        self.url = ""

    @property
    def bodies(self) -> list[Json]:
        return [s.body for s in self.seen]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:]) if k}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
        self.seen.append(Seen(head[0].split()[1], headers, body))
        answer = self._script(body) if callable(self._script) else self._script[len(self.seen) - 1]
        if answer.delay:
            await asyncio.sleep(answer.delay)
        if answer.silent:
            return
        lines = [f"HTTP/1.1 {answer.status} Recorded", f"content-type: {answer.kind}", "connection: close"]
        lines += ["transfer-encoding: chunked", *(f"{k}: {v}" for k, v in answer.headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for piece in answer.pieces:
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
        if not answer.broken:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def serving(script: Script) -> AsyncGenerator[tuple[Server, Anthropic]]:
    """The server, and the plugin with the real SDK pointed at it."""
    server = Server(script)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=2**24)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    plugin = Anthropic(api_key=API_KEY, base_url=server.url, timeout=10.0)
    try:
        yield server, plugin
    finally:
        await plugin.aclose()
        listening.close()
        await asyncio.sleep(0)


def whole(body: Json, status: int = 200, **headers: str) -> Answer:
    """A body that is not streamed."""
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    return Answer([json.dumps(body).encode()], status, headers={"request-id": "req_test", **named})


def streamed(events: bytes | Sequence[Json], **options: Any) -> Answer:
    """Server-sent events, from their bytes or their data."""
    raw = events if isinstance(events, bytes) else as_sse(events)
    return Answer([raw], kind="text/event-stream; charset=utf-8", headers={"request-id": "req_test"}, **options)


def as_sse(events: Sequence[Json]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def message(*content: Json, stop: str = "end_turn", **usage: int) -> Json:
    """A reply as the API gives it (constructed)."""
    return {
        "id": "msg_test",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5, **usage},
    }


def events_of(reply: Json) -> list[Json]:
    """The same reply as the API streams it (constructed): texts and inputs in two pieces, signatures in one."""
    events: list[Json] = [
        {"type": "message_start", "message": {**reply, "content": [], "stop_reason": None}},
        {"type": "ping"},
    ]
    lifted = {"text": "text", "thinking": "thinking", "input": "partial_json"}
    for index, block in enumerate(reply["content"]):
        key = next((k for k in lifted if k in block), None)
        start, deltas = dict(block), list[Json]()
        if key is not None and block["type"] in ("text", "thinking", "tool_use", "server_tool_use"):
            value = json.dumps(block[key]) if key == "input" else block[key]
            start[key] = {} if key == "input" else ""
            kind = "input_json_delta" if key == "input" else f"{key}_delta"
            half = len(value) // 2
            deltas = [{"type": kind, lifted[key]: v} for v in (value[:half], value[half:]) if v]
        if "signature" in block:
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    return [
        *events,
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": reply["usage"]["output_tokens"]}},
        {"type": "message_stop"},
    ]


def either(reply: Json, request: Json) -> Answer:
    """The reply, streamed where it was asked for so."""
    return streamed(events_of(reply)) if request.get("stream") else whole(reply)


def text(value: str) -> Json:
    return {"type": "text", "text": value}


def tool_use(id: str, name: str, **input: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


async def ask(plugin: Anthropic, request: ModelRequest, model: str = "claude-test") -> tuple[ModelReply, list[Chunk]]:
    chunks: list[Chunk] = []
    reply = await plugin.model(model)(request, chunks.append)
    return reply, chunks


def says(value: str, **options: Any) -> ModelRequest:
    return ModelRequest([Message("user", [Part(text=value)])], **options)


def assert_valid(body: Json) -> None:
    """The rules of the Messages API that a conversation of ours could break."""
    turns = body["messages"]
    ids = [b["id"] for t in turns for b in t["content"] if b["type"] == "tool_use"]
    assert len(ids) == len(set(ids))
    assert turns[0]["role"] == "user"
    for before, after in zip(turns, [*turns[1:], None], strict=True):
        assert before["content"]
        asked = [b["id"] for b in before["content"] if b["type"] == "tool_use"]
        answered = [b["tool_use_id"] for b in after["content"] if b["type"] == "tool_result"] if after else []
        assert answered == asked
        if after:
            assert before["role"] != after["role"]
            kinds = [b["type"] for b in after["content"]]
            assert kinds[: len(answered)] == ["tool_result"] * len(answered)
            assert "tool_result" not in kinds[len(answered) :]


# -- recordings --------------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    uri: str
    request: Json
    answer: Answer


@functools.cache
def read_recording(path: Path) -> list[Exchange]:
    if path.name.endswith(".chunks.txt"):
        raw = b"".join(b"data: %s\n\n" % line for line in path.read_bytes().splitlines() if line)
        return [Exchange("", None, streamed(raw))]
    recorded: Json = yaml.safe_load(path.read_text())
    out: list[Exchange] = []
    for item in recorded["interactions"]:
        response = item["response"]
        if "parsed_body" in response:
            answer = whole(response["parsed_body"], response["status"]["code"])
        else:
            answer = streamed(response["body"]["string"].encode())
        out.append(Exchange(item["request"]["uri"], item["request"].get("parsed_body"), answer))
    return out


def request_of(body: Json, replies: Sequence[ModelReply]) -> ModelRequest:
    """The recorded request as ours, with the assistant's turns as our plugin parsed them, where it did."""
    messages: list[Message] = []
    system = body.get("system")
    if system is not None:
        blocks = [text(system)] if isinstance(system, str) else system
        messages.append(Message("system", [Part(text=b["text"]) for b in blocks]))
    asked: dict[str, str] = {}
    for turn in body["messages"]:
        for block in turn["content"]:
            if block["type"] == "tool_use":
                asked[block["id"]] = block["name"]
        messages.append(_message_of(turn, asked, replies))
    tools, server_tools, options = list[ToolDefinition](), list[Json](), dict[str, Json]()
    for tool in body.get("tools", ()):
        if "input_schema" not in tool:
            server_tools.append(tool)
            continue
        tools.append(ToolDefinition(tool["name"], tool.get("description", ""), tool["input_schema"]))
        extra = {k: v for k, v in tool.items() if k not in ("name", "description", "input_schema")}
        if extra:
            options[tool["name"]] = extra
    raw = {k: body[k] for k in ("cache_control", "output_config") if k in body}
    config: dict[str, Any] = {"max_tokens": body["max_tokens"], "raw": raw, "server_tools": server_tools}
    config |= {"tool_options": options} | {k: body[k] for k in ("thinking", "tool_choice") if k in body}
    return ModelRequest(messages, tools, config, streaming=body["stream"])


def _message_of(turn: Json, asked: Mapping[str, str], replies: Sequence[ModelReply]) -> Message:
    blocks = turn["content"]
    if turn["role"] == "assistant":
        for reply in replies:
            refs = [r.ref for p in reply.message.tool_requests if (r := p.tool_request)]
            if refs and refs == [b["id"] for b in blocks if b["type"] == "tool_use"]:
                return reply.message
    if blocks[0]["type"] == "tool_result":
        return Message("tool", [_result_of(b, asked[b["tool_use_id"]]) for b in blocks])
    roles: Json = {"assistant": "model", "user": "user", "system": "system"}
    return Message(roles[turn["role"]], [_part_of(b) for b in blocks])


def _part_of(block: Json) -> Part:
    if block["type"] == "tool_use":
        return Part(tool_request=ToolRequest(block["name"], block["id"], block["input"]))
    if block["type"] == "text":
        return Part(text=block["text"])
    return Part(custom={"type": block["type"]}, metadata={"anthropic": block})


def _result_of(block: Json, name: str) -> Part:
    content, outcome = block["content"], {OURS: {"outcome": "tool"}} if block.get("is_error") else None
    if isinstance(content, str):
        return Part(tool_response=ToolResponse(name, block["tool_use_id"], content), metadata=outcome)
    parts = [_part_of(b) for b in content]
    return Part(tool_response=ToolResponse(name, block["tool_use_id"], None, parts), metadata=outcome)


def normal(body: Json) -> Json:
    """The body with what means the same written the same: a text alone is a list of one, an unset error is false."""
    out = dict(body)
    if isinstance(out.get("system"), str):
        out["system"] = [text(out["system"])]
    out["messages"] = [{**m, "content": [_normal_block(b) for b in m["content"]]} for m in body["messages"]]
    if "tools" in body:
        out["tools"] = [dict(t) for t in body["tools"]]
    for tool in out.get("tools", ()):
        if tool.get("description") == "":
            del tool["description"]
        if "input_schema" in tool:
            tool["input_schema"] = {"properties": {}, **tool["input_schema"]}
    return out


def _normal_block(block: Json) -> Json:
    if block["type"] != "tool_result":
        return block
    content = [text(block["content"])] if isinstance(block["content"], str) else block["content"]
    return {**block, "content": content, "is_error": block.get("is_error", False)}
