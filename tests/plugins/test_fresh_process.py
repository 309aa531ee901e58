"""A pause in one process, its answer in another: each provider is sent what it was sent before, byte for byte.

The replies are constructed: parallel calls, with all that a provider wants back beside them. The first process ends in the
pause. The second knows the session's file alone. What it sends is compared with the golden request, and with what one
process sends that did it all.
"""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from plugins.fresh_process import main

HERE = Path(__file__).parent
FAMILIES = [
    "googleai",
    pytest.param("vertexai", marks=pytest.mark.slow),
    "responses",
    pytest.param("chat", marks=pytest.mark.slow),
    pytest.param("deepseek", marks=pytest.mark.slow),
    pytest.param("anthropic", marks=pytest.mark.slow),
]
OUTWARD = "mail_send_a51a6c99ed54"

SIGNATURE = "CqQBAXLI2ny/+abcQQ=="
IN_URLS = "CqQBAXLI2ny_-abcQQ=="
"""The same bytes in the letters of base64url, in which Google's SDK writes all bytes; the API takes both."""
ENCRYPTED = "gAAAAABo-_encrypted/+=="
THINKING = "ErUBCkYIBxgCIkD/+signed=="
REDACTED = "EmwKAhgBEgy3va3pzix/LafPsn4a+redacted=="

Answer = tuple[str, bytes]


def events(*payloads: Any, named: bool = False, done: bool = False) -> Answer:
    lines = [(f"event: {p['type']}\n" if named else "") + f"data: {json.dumps(p)}\n\n" for p in payloads]
    return "text/event-stream", "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def whole(payload: Any) -> Answer:
    return "application/json", json.dumps(payload).encode()


def gemini(stream: bool, ids: bool = True) -> Sequence[Answer]:
    def candidate(*parts: Any, finish: str | None = None) -> Any:
        content: Any = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
        return {"candidates": [{**content, "finishReason": finish} if finish else content], "modelVersion": "gemini-3"}

    calls: list[Any] = [{"functionCall": {"name": OUTWARD, "args": {"to": to}}} for to in ("jane", "joe")]
    for position, call in enumerate(calls if ids else ()):
        call["functionCall"]["id"] = f"fc_{position}"
    calls[0] = {**calls[0], "thoughtSignature": SIGNATURE}
    said: Any = {"text": "Done."}
    if stream:
        return [events(candidate(calls[0]), candidate(calls[1], finish="STOP")), events(candidate(said, finish="STOP"))]
    return [whole(candidate(*calls, finish="STOP")), whole(candidate(said, finish="STOP"))]


def vertex(stream: bool) -> Sequence[Answer]:
    return gemini(stream, ids=False)


def responses(stream: bool) -> Sequence[Answer]:
    reasoning: Any = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": ENCRYPTED}
    calls: Any = [
        {"type": "function_call", "id": f"fc_{to}", "status": "completed", "call_id": f"call_{to}", "name": OUTWARD,
         "arguments": f'{{"to": "{to}"}}'}
        for to in ("jane", "joe")
    ]  # fmt: skip
    text: Any = {"type": "output_text", "text": "Done.", "annotations": []}
    said: Any = {
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [text],
    }  # fmt: skip

    def reply(*items: Any) -> Answer:
        made = {"id": "resp_1", "status": "completed", "store": False, "output": list(items)}
        if not stream:
            return whole(made)
        added = [{"type": "response.output_item.done", "output_index": i, "item": m} for i, m in enumerate(items)]
        return events(*added, {"type": "response.completed", "response": made}, named=True)

    return [reply(reasoning, *calls), reply(said)]


def chat(stream: bool, **thoughts: str) -> Sequence[Answer]:
    calls = [
        {
            "index": i,
            "id": f"call_{to}",
            "type": "function",
            "function": {"name": OUTWARD, "arguments": f'{{"to": "{to}"}}'},
        }
        for i, to in enumerate(("jane", "joe"))
    ]

    def reply(message: Any, finish: str) -> Answer:
        choice: Any = {"index": 0, "finish_reason": finish}
        if not stream:
            return whole({"id": "c", "object": "chat.completion", "choices": [{**choice, "message": message}]})
        return events({"id": "c", "choices": [{**choice, "delta": message}]}, done=True)

    asked = {"role": "assistant", "content": None, **thoughts, "tool_calls": calls}
    return [reply(asked, "tool_calls"), reply({"role": "assistant", "content": "Done."}, "stop")]


def deepseek(stream: bool) -> Sequence[Answer]:
    return chat(stream, reasoning_content="Two mails,\u2028I think. ")


def anthropic(stream: bool) -> Sequence[Answer]:
    blocks: list[Any] = [
        {"type": "thinking", "thinking": "", "signature": THINKING},
        {"type": "redacted_thinking", "data": REDACTED},
        *[{"type": "tool_use", "id": f"toolu_{to}", "name": OUTWARD, "input": {"to": to}} for to in ("jane", "joe")],
    ]

    def reply(content: Sequence[Any], stop: str) -> Answer:
        head = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5",
            "stop_sequence": None,
        }
        usage = {"input_tokens": 1, "output_tokens": 1}
        if not stream:
            return whole({**head, "content": list(content), "stop_reason": stop, "usage": usage})
        told: list[Any] = [{"type": "message_start", "message": {**head, "content": [], "usage": usage}}]
        for index, block in enumerate(content):
            told.append({"type": "content_block_start", "index": index, "content_block": opened(block)})
            told += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas(block)]
            told.append({"type": "content_block_stop", "index": index})
        told.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage})
        return events(*told, {"type": "message_stop"}, named=True)

    return [reply(blocks, "tool_use"), reply([{"type": "text", "text": "Done."}], "end_turn")]


def opened(block: Any) -> Any:
    empty: dict[str, Any] = {
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
        "text": {"text": ""},
    }
    return {**block, **empty.get(block["type"], {})}


def deltas(block: Any) -> list[Any]:
    if block["type"] == "thinking":
        return [{"type": "signature_delta", "signature": block["signature"]}]
    if block["type"] == "tool_use":
        return [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return [{"type": "text_delta", "text": block["text"]}] if block["type"] == "text" else []


SCRIPTS: dict[str, Any] = {
    "googleai": gemini,
    "vertexai": vertex,
    "responses": responses,
    "chat": chat,
    "deepseek": deepseek,
    "anthropic": anthropic,
}
KEPT = {
    "googleai": [IN_URLS],
    "vertexai": [IN_URLS],
    "responses": [ENCRYPTED],
    "chat": [],
    "deepseek": ["Two mails,\u2028I think. "],
    "anthropic": [THINKING, REDACTED],
}


@contextmanager
def serving(answers: Sequence[Answer]) -> Generator[tuple[str, list[bytes]]]:
    """A server in a thread of its own; the bodies that it was sent, as they came."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            kind, body = answers[len(bodies) - 1]
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def elsewhere(family: str, url: str, database: Path) -> str:
    """What the conversation comes to in a process that was begun for it."""
    command = [sys.executable, str(HERE / "fresh_process.py"), family, url, str(database), "resume", "stream"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def here(family: str, url: str, database: Path, part: str, how: str) -> str:
    return asyncio.run(main(family, url, str(database), part, how))


@pytest.mark.parametrize("how", ["stream", pytest.param("whole", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_process_sends_what_the_golden_request_has(family: str, how: str, tmp_path: Path) -> None:
    # What follows a decision is streamed, since its handle can be listened to.
    answers = [SCRIPTS[family](how == "stream")[0], SCRIPTS[family](True)[1]]
    with serving(answers) as (url, bodies):
        assert here(family, url, tmp_path / "kept.db", "begin", how) == "interrupted"
        assert len(bodies) == 1
        assert elsewhere(family, url, tmp_path / "kept.db") == "Done."
    with serving(answers) as (url, together):
        assert here(family, url, tmp_path / "one.db", "both", how) == "Done."
    assert settled(bodies[1]) == settled(together[1]), "a fresh process sends other bytes than the one that saw it all"
    sent = json.loads(settled(bodies[1]))
    golden = HERE / "golden" / f"fresh_{family}.json"
    assert sent == json.loads(golden.read_text())
    assert strings(sent).issuperset(KEPT[family]), "what the provider wants back was changed on the way"


def settled(body: bytes) -> bytes:
    """The body with the ids that are ours in the order of their appearance; they are new for each call."""
    found = list(dict.fromkeys(re.findall(rb"c_[0-9a-f]{32}", body)))
    for position, call_id in enumerate(found):
        body = body.replace(call_id, b"ours_%d" % position)
    return body


def strings(value: Any) -> set[str]:
    """All texts in it."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        value = list(cast(Mapping[str, Any], value).values())
    inside = cast(list[Any], value) if isinstance(value, list) else []
    return set[str]().union(*[strings(v) for v in inside])
