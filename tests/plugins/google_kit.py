"""A server that stands for Gemini, recorded exchanges to feed it with, and requests in a form to compare."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import yaml
from msgspec.structs import replace

from adjourn.model import ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import Chunk, Message, Part, ToolRequest, ToolResponse
from adjourn.plugins.google_genai import GoogleAI, VertexAI

Json = Any
KEY = "not-a-real-key-0123456789"
FAST = {"client_args": {"verify": False}, "async_client_args": {"verify": False}}
"""Reading certificates takes longer than a test, and nothing here is encrypted."""
STAND_INS = (b"skip_thought_signature_validator", b"context_engineering_is_the_way_to_go")


def gemini(server: "FakeGemini", **more: Any) -> GoogleAI:
    """The plugin, pointed at the server."""
    return GoogleAI(api_key=KEY, base_url=server.url, http_options=FAST, **more)


def vertex(server: "FakeGemini", **more: Any) -> VertexAI:
    """Vertex AI in express mode, pointed at the server."""
    return VertexAI(api_key=KEY, base_url=server.url, http_options=FAST, **more)


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What the server says to one request. `cut` ends the connection after the body without the end of the message."""

    body: Any = b""
    status: int = 200
    kind: str = "application/json; charset=UTF-8"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    delay: float = 0.0


@dataclass
class Seen:
    path: str
    headers: Mapping[str, str]
    body: Json


class FakeGemini:
    """Gives the answers in order, and keeps what it was sent."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.seen: list[Seen] = []
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "FakeGemini":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        self.url: str = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._open):
            writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in [line.partition(": ") for line in head[1:] if line]}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.append(Seen(head[0].split(" ")[1], headers, camel(json.loads(raw)) if raw else None))
        answer = self.answers.pop(0)
        if answer.delay:
            await asyncio.sleep(answer.delay)
        body: bytes = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        lines = [f"HTTP/1.1 {answer.status} X", f"content-type: {answer.kind}"]
        lines += [f"{k}: {v}" for k, v in answer.headers.items()]
        lines.append(f"content-length: {len(body) + answer.cut}")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        return not answer.cut


def camel(value: Json) -> Json:
    """The body with camelCase names: the SDK leaves some in snake case, and the service reads both."""
    if isinstance(value, list):
        return [camel(v) for v in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    out: dict[str, Any] = {}
    for key, item in cast(Mapping[str, Any], value).items():
        head, *rest = key.split("_")
        name = head + "".join([r.capitalize() for r in rest])
        theirs = name in ("args", "response") or name.endswith("JsonSchema")
        out[name] = item if theirs else camel(item)
    return out


def plain(*parts: Json, finish: str | None = "STOP", **more: Json) -> Answer:
    """A whole reply of these parts."""
    return Answer(response(*parts, finish=finish, **more))


def stream(*responses: Json, cut: bool = False) -> Answer:
    """A streamed reply of these responses."""
    return Answer(sse(responses), kind="text/event-stream", cut=cut)


def response(*parts: Json, finish: str | None = None, **more: Json) -> Json:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [{**candidate, **more}], "modelVersion": "gemini-3-flash-preview", "responseId": "r-1"}


def sse(responses: Sequence[Json]) -> bytes:
    return b"".join([b"data: " + json.dumps(r).encode() + b"\r\n\r\n" for r in responses])


def fcall(name: str, args: Json = None, *, id: str | None = None, signature: str | None = None) -> Json:
    made: dict[str, Any] = {"name": name, "args": args or {}}
    if id:
        made["id"] = id
    return {"functionCall": made, "thoughtSignature": signature} if signature else {"functionCall": made}


# -- recordings --------------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    model: str
    streamed: bool
    request: Json
    answer: Answer


@lru_cache
def exchanges(path: Path) -> Sequence[Exchange]:
    """The exchanges with Gemini in a recording."""
    if path.suffix == ".txt":
        lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
        body = b"".join([b"data: " + line.encode() + b"\r\n\r\n" for line in lines])
        return [Exchange("gemini-3-pro-preview", True, None, Answer(body, kind="text/event-stream"))]
    out: list[Exchange] = []
    for item in yaml.safe_load(path.read_text())["interactions"]:
        asked, said = item["request"], item["response"]
        if "generativelanguage" not in asked["uri"]:
            continue
        name, _, verb = asked["uri"].rsplit("/", 1)[-1].partition(":")
        streamed = verb.startswith("stream")
        body = said["body"]["string"].encode() if streamed else json.dumps(said["parsed_body"]).encode()
        kind = said["headers"]["content-type"][0]
        out.append(Exchange(name, streamed, asked["parsed_body"], Answer(body, said["status"]["code"], kind)))
    return out


def request_of(body: Json, streamed: bool) -> ModelRequest:
    """The request of ours that a recorded one stands for: what it says is taken as said by nobody of ours."""
    messages: list[Message] = []
    if "systemInstruction" in body:
        messages.append(Message("system", [Part(text=p["text"]) for p in body["systemInstruction"]["parts"]]))
    messages += messages_of(body["contents"])
    tools = [
        ToolDefinition(d["name"], d["description"], lower_types(d.get("parameters_json_schema") or d["parameters"]))
        for t in body.get("tools", ())
        for d in t["functionDeclarations"]
    ]
    settings = dict(body.get("generationConfig", {}))
    schema = settings.pop("responseJsonSchema", None)
    settings.pop("responseMimeType", None)
    calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
    if "mode" in calling:
        settings["tool_choice"] = calling["mode"].lower()
    if "allowedFunctionNames" in calling:
        settings["allowed_tools"] = calling["allowedFunctionNames"]
    return ModelRequest(messages, tools, settings or None, schema, streamed)


def messages_of(contents: Sequence[Json], refs: Sequence[str] = ()) -> list[Message]:
    """Recorded contents as messages. `refs` are ours for the calls that results answer, in order."""
    out: list[Message] = []
    ours = list(refs)
    for content in contents:
        parts: list[Part] = []
        role = content["role"]
        for part in content["parts"]:
            if "functionCall" in part:
                made = part["functionCall"]
                parts.append(Part(tool_request=ToolRequest(made["name"], made.get("id"), made["args"])))
            elif "functionResponse" in part:
                made, role = part["functionResponse"], "tool"
                ref = ours.pop(0) if ours else made.get("id")
                parts.append(Part(tool_response=ToolResponse(made["name"], ref, made["response"])))
            else:
                parts.append(Part(text=part["text"]))
        if out and role == out[-1].role == "model":
            parts = [*out.pop().content, *parts]
        out.append(Message(role, parts))
    return out


def minted(reply: ModelReply, round: int) -> Message:
    """The reply's message with ids for the calls that came without, as the core gives them."""
    content = [
        replace(p, tool_request=replace(r, ref=f"c_{round}_{i}")) if (r := p.tool_request) and not r.ref else p
        for i, p in enumerate(reply.message.content)
    ]
    return replace(reply.message, content=content)


def lower_types(schema: Json) -> Json:
    if isinstance(schema, Mapping):
        given = cast(Mapping[str, Any], schema)
        return {k: v.lower() if k == "type" and isinstance(v, str) else lower_types(v) for k, v in given.items()}
    return schema


def comparable(body: Json) -> Json:
    """A request body without what may differ: names of ids, the base64 of signatures, which stand-in, empty settings.

    Neighbouring model contents are one here, of which only the first call needs a stand-in.
    """
    body = camel(body)
    ids: dict[str, str] = {}
    contents: list[Json] = []
    for content in body["contents"]:
        parts: list[Json] = []
        for part in content["parts"]:
            part = json.loads(json.dumps(part))
            for key in ("functionCall", "functionResponse"):
                if "id" in part.get(key, {}):
                    part[key]["id"] = ids.setdefault(part[key]["id"], f"id-{len(ids)}")
            if "thoughtSignature" in part:
                part["thoughtSignature"] = signature_of(part)
            parts.append(part)
        if contents and content["role"] == contents[-1]["role"] == "model":
            for part in parts:
                if part.get("thoughtSignature") == "<stand-in>":
                    del part["thoughtSignature"]
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": content["role"], "parts": parts})
    tools = [
        {
            "name": d["name"],
            "description": d.get("description", ""),
            "schema": lower_types(d.get("parametersJsonSchema") or d["parameters"]),
        }
        for t in body.get("tools", ())
        for d in t["functionDeclarations"]
    ]
    rest = {k: v for k, v in body.items() if k not in ("contents", "tools") and v}
    return {**rest, "contents": contents, "tools": tools}


def signature_of(part: Json) -> str:
    raw = base64.urlsafe_b64decode(part["thoughtSignature"].replace("+", "-").replace("/", "_"))
    return "<stand-in>" if raw in STAND_INS else raw.hex()


def ignore(chunk: Chunk) -> None:
    """Nobody watches."""
