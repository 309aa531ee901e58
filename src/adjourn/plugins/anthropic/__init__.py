"""The models of Anthropic: `Adjourn(plugins=[Anthropic()], model="anthropic/claude-sonnet-5")`."""

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from adjourn.dialect import Names
from adjourn.errors import MissingExtra, UnknownModel
from adjourn.model import Emit, ModelReply, ModelRequest
from adjourn.parts import Chunk, Part, Usage
from adjourn.plugins.anthropic.config import AnthropicConfig, read_config
from adjourn.plugins.anthropic.failures import Scrubber, failure, in_band
from adjourn.plugins.anthropic.replies import Assembly, EventLines, read_json, reply_of, usage_of
from adjourn.plugins.anthropic.requests import build_body, names_of

__all__ = ["Anthropic", "AnthropicConfig", "Claude"]

KNOWN = (
    "claude-fable-5",
    "claude-haiku-4-5",
    "claude-opus-4-6",
    "claude-opus-4-7",
    "claude-opus-4-8",
    "claude-opus-5",
    "claude-sonnet-4-6",
    "claude-sonnet-5",
)
_CONTINUATIONS = 8
_PRIVATE = re.compile(r"(?i)auth|key|token|secret|cookie")


class Anthropic:
    """The plugin.

    The key is `api_key` or what the SDK finds by itself (ANTHROPIC_API_KEY and the like). `timeout` is in seconds, for
    one request. `max_retries` are the SDK's own, off here: `adjourn.resilience.retry_model` bounds and counts them.
    `client` is an asynchronous client of the SDK to use instead of our own (for Bedrock or Vertex, say).
    """

    name = "anthropic"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 0,
        headers: Mapping[str, str] | None = None,
        client: Any = None,
    ) -> None:
        self.timeout = timeout
        self._given = client
        self._options: dict[str, Any] = {
            "api_key": api_key,
            "base_url": base_url,
            "timeout": timeout,
            "max_retries": max_retries,
            "default_headers": headers,
        }
        # A connection belongs to the event loop it was opened in, and a script may well run several, one after another.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def model(self, name: str) -> "Claude":
        """Any name: the API knows which there are. Raises UnknownModel for an empty one."""
        if not name.strip():
            raise UnknownModel("there is no model 'anthropic/': name one, such as anthropic/claude-sonnet-5")
        return Claude(self, name)

    def list_models(self) -> Iterable[str]:
        return KNOWN

    @property
    def secrets(self) -> Sequence[str | None]:
        """What must not show up in the text of an error."""
        headers: Mapping[str, str] = self._options["default_headers"] or {}
        given = [getattr(self._given, name, None) for name in ("api_key", "auth_token")]
        found = [os.environ.get(name) for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")]
        private = [v for k, v in headers.items() if _PRIVATE.search(k)]
        return [s for s in (self._options["api_key"], *given, *found, *private) if isinstance(s, str)]

    async def client(self) -> Any:
        """The SDK's client for the running loop. Raises MissingExtra where the SDK is not installed."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            # In a thread: the import takes a second or more, and leases are to be renewed meanwhile.
            make = await asyncio.to_thread(_import_client)
            client = self._clients.get(loop) or make(**self._options)
            self._clients[loop] = client
        return client

    async def aclose(self) -> None:
        """Closes the connections of the running loop. A client that was given stays open."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _import_client() -> Any:
    try:
        from anthropic import AsyncAnthropic
    except ImportError as e:
        raise MissingExtra("The Anthropic plugin", "anthropic") from e
    return AsyncAnthropic


class Claude:
    """One model of Anthropic."""

    def __init__(self, plugin: Anthropic, model: str) -> None:
        self._plugin = plugin
        self._model = model
        self.name = f"{plugin.name}/{model}"

    def check(self, request: ModelRequest) -> None:
        """Raises SignatureError for tools or an output that the API cannot express, InvalidRequest for a wrong config."""
        build_body(self._model, request, read_config(request.config), names_of(request.tools))

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        config = read_config(request.config)
        names = names_of(request.tools)
        body = build_body(self._model, request, config, names)
        scrub = Scrubber(request.messages, self._plugin.secrets)
        parts: list[Part] = []
        usage = Usage()
        more = _CONTINUATIONS
        while True:
            answer = await self._ask(body, config, names, scrub, emit)
            parts.extend(answer.parts())
            usage += usage_of(answer.envelope)
            if answer.stop_reason != "pause_turn" or not more:
                return reply_of(parts, usage, answer.stop_reason, answer.envelope)
            # A server tool took long. The API wants what it said so far, and goes on; to us it is one reply.
            more -= 1
            body = {**body, "messages": _continued(body["messages"], answer.blocks())}

    async def _ask(
        self, body: Mapping[str, Any], config: AnthropicConfig, names: Names, scrub: Scrubber, emit: Emit
    ) -> Assembly:
        headers = dict(config.headers)
        if config.betas:
            headers["anthropic-beta"] = ",".join(config.betas)
        request_id: str | None = None
        try:
            client = await self._plugin.client()
            # The body goes past the SDK's own types, so that it is what we made it, blocks it does not know included.
            # With a timeout of ours it leaves it to us how long a reply that is not streamed may take.
            async with client.messages.with_streaming_response.create(
                model=body["model"],
                max_tokens=body["max_tokens"],
                messages=[],
                stream=bool(body["stream"]),
                extra_body=body,
                extra_headers=headers,
                timeout=config.timeout or self._plugin.timeout,
            ) as response:
                request_id = response.headers.get("request-id")
                answer = Assembly(names, request_id)
                if body["stream"]:
                    await _read_stream(response, answer, scrub, emit)
                else:
                    _take_whole(await response.read(), response, answer, scrub)
                answer.check_complete()
                return answer
        except MissingExtra:
            raise
        except Exception as e:  # noqa: BLE001 - the SDK's errors, and those of the HTTP library that it lets through
            # Not `from e`: its text may hold what ours leaves out.
            error = failure(e, scrub)
            error.request_id = error.request_id or request_id
            raise error from None


async def _read_stream(response: Any, answer: Assembly, scrub: Scrubber, emit: Emit) -> None:
    lines = EventLines()

    def take(events: Sequence[Any]) -> None:
        for event in events:
            if event.get("type") == "error":
                raise in_band(event, response.headers, scrub)
            shown = answer.take(event)
            if shown is not None:
                emit(Chunk(content=[shown]))

    # Some servers answer in one piece although they were asked to stream. No line of an event begins as that does.
    waiting, plain = b"", True
    async for data in response.iter_bytes():
        waiting += data
        plain = plain and waiting.lstrip()[:1] in (b"", b"{")
        if not plain:
            take(lines.feed(waiting))
            waiting = b""
    if waiting.strip():
        _take_whole(waiting, response, answer, scrub)
        shown = [p for p in answer.parts() if p.text or p.reasoning]
        if shown:
            emit(Chunk(content=shown))
    take(lines.end())


def _take_whole(body: bytes, response: Any, answer: Assembly, scrub: Scrubber) -> None:
    whole = read_json(body)
    if whole.get("type") == "error":
        raise in_band(whole, response.headers, scrub)
    answer.take_whole(whole)


def _continued(messages: Sequence[Mapping[str, Any]], blocks: Sequence[Any]) -> list[Mapping[str, Any]]:
    last = messages[-1]
    if last["role"] == "assistant":
        return [*messages[:-1], {**last, "content": [*last["content"], *blocks]}]
    return [*messages, {"role": "assistant", "content": list(blocks)}]
