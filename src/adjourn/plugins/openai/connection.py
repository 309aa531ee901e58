"""The way to a server: the official SDK, imported with the first request, and one client for each event loop.

`Connection.ask` is the one way in which a model of either API is called, streamed or not.
"""

import asyncio
import importlib.util
import re
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from adjourn.discretion import discreet
from adjourn.errors import MissingExtra, ModelError
from adjourn.model import Emit, ModelReply
from adjourn.parts import Chunk, Message, Part
from adjourn.plugins.openai import errors

Json = dict[str, Any]

NO_KEY = "none"
"""What servers without keys are told. Left out, the SDK would send them the OPENAI_API_KEY of the environment."""


def check_installed(what: str) -> None:
    """Raises MissingExtra where the SDK is not installed; imports nothing."""
    if importlib.util.find_spec("openai") is None:
        raise MissingExtra(what, "openai")


class Assembly(Protocol):
    """A streamed reply that is put together: what it shows of each event, an error among them, and the whole at the end."""

    failed: Any

    def add(self, event: Mapping[str, Any]) -> Iterator[Part]: ...

    def reply(self) -> Json | None: ...


@dataclass(frozen=True)
class Asked:
    """One request and how to read its reply. Without an assembly it is not streamed; `held`: shown at its end, as read.

    `messages` are what it says, which no error repeats.
    """

    path: str
    body: Json
    messages: Sequence[Message]
    assembly: Assembly | None
    read: Callable[[Json], ModelReply]
    held: bool = False


@dataclass(frozen=True)
class _Whole:
    """The reply of a server that does not stream although it was asked to."""

    reply: Json


class Connection:
    """Sends requests and gives replies as plain dicts, so that nothing a provider sends is lost or changed.

    The SDK's own retries are off unless asked for: how often a model is called is the application's to decide.
    """

    def __init__(
        self, provider: str, settings: Mapping[str, Any], client: Any = None, *, foreign: bool = False
    ) -> None:
        self.provider = provider
        self._foreign = foreign
        self._settings = settings
        self._given = client
        # A pool of connections belongs to its loop; scripts that call asyncio.run twice have two.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    def client(self) -> Any:
        """The SDK's client. Raises MissingExtra, and ModelError where it finds no key."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._made()
        return client

    def _made(self) -> Any:
        try:
            import openai
        except ImportError:
            raise MissingExtra(f"the plugin for {self.provider!r}", "openai") from None
        try:
            client = openai.AsyncOpenAI(**self._settings)
        except openai.OpenAIError as e:
            raise ModelError(f"{self.provider}: {errors.clean(str(e))}", provider=self.provider) from None
        if self._foreign:
            # The SDK takes these from the environment, and they are nobody else's business.
            client.organization = client.project = None
        return client

    async def aclose(self) -> None:
        """Closes the connections of this event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def ask(self, asked: Asked, emit: Emit) -> ModelReply:
        """The reply. Raises ModelError."""
        try:
            return await self._ask(asked, emit)
        except ModelError as e:
            e.args = (discreet(str(e), asked.messages, self._secrets(), longest=errors.LONGEST),)
            raise

    async def _ask(self, asked: Asked, emit: Emit) -> ModelReply:
        assembly = asked.assembly
        if assembly is None:
            return asked.read(await self.post(asked.path, asked.body))
        whole: Json | None = None
        async with aclosing(self._events(asked.path, {"stream": True, **asked.body})) as events:
            async for event in events:
                if isinstance(event, _Whole):
                    whole = event.reply
                    break
                for part in assembly.add(event):
                    if not asked.held:
                        emit(Chunk(content=[part]))
                if assembly.failed is not None:
                    raise errors.in_band(assembly.failed, self.provider, self._secret)
        made = whole or assembly.reply()
        if made is None:
            raise errors.broken_off(self.provider)
        reply = asked.read(made)
        if asked.held or whole is not None:
            shown = [p for p in reply.message.content if p.tool_request is None]
            if shown:
                emit(Chunk(content=shown))
        return reply

    async def post(self, path: str, body: Json) -> Json:
        """The reply to a request that is not streamed. Raises ModelError."""
        client = self.client()
        try:
            reply = await client.post(path, cast_to=object, body=body)
        except Exception as e:
            error = errors.from_sdk(e, self.provider, self._secret)
            if error is None:
                raise
            raise error from None  # not as its cause: what the SDK raises quotes whole requests
        return self._json(reply)

    def _json(self, reply: Any) -> Json:
        if isinstance(reply, (str, bytes)):  # not labelled as JSON; some servers do not
            try:
                reply = msgspec.json.decode(reply)
            except (msgspec.DecodeError, UnicodeDecodeError) as e:
                raise errors.malformed(self.provider, errors.clean(str(e), self._secret)) from None
        if not isinstance(reply, dict):
            raise errors.malformed(self.provider, "it is no JSON object")
        given = cast(Json, reply)
        if given.get("error"):
            raise errors.in_band(given, self.provider, self._secret)
        return given

    async def _events(self, path: str, body: Json) -> AsyncGenerator[Json | _Whole, None]:
        """The events of a streamed reply, or the whole of one that is not. Raises ModelError, also in the middle."""
        client = self.client()
        import openai

        stream: Any = None
        try:
            stream = await client.post(
                path, cast_to=object, body=body, stream=True, stream_cls=openai.AsyncStream[object]
            )
            # The SDK reads events from it, and nothing else; a plain reply would be no events to it, and so nothing.
            stream.response = response = _Peeked(stream.response)
            if _is_json(response) or await response.begins_like_json():
                yield _Whole(self._json(await response.aread()))
                return
            async for event in stream:
                if isinstance(event, dict):
                    yield cast(Json, event)
        except Exception as e:
            error = errors.from_sdk(e, self.provider, self._secret, begun=stream is not None)
            if error is None:
                raise
            raise error from None
        finally:
            if stream is not None:
                await stream.close()

    @property
    def _secret(self) -> str:
        key = self._settings.get("api_key")
        return key if isinstance(key, str) else ""

    def _secrets(self) -> list[str]:
        """What no error may repeat: keys, given or found in the environment, and the headers that hold some."""
        client = self._given or self._clients.get(asyncio.get_running_loop())
        headers: Mapping[str, str] = self._settings.get("default_headers") or {}
        found = [self._settings.get("api_key"), getattr(client, "api_key", None)]
        found += [v for k, v in headers.items() if _PRIVATE.search(k)]
        return [f for f in found if isinstance(f, str)]


class _Peeked:
    """A response whose body may be looked at before it is read: all else is the response's own."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._pieces: AsyncIterator[bytes] = response.aiter_bytes()
        self._seen = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    async def begins_like_json(self) -> bool:
        """Whether a reply in one piece begins here, whatever its label says. No line of an event begins like that."""
        while not self._seen.lstrip():
            piece = await anext(self._pieces, None)
            if piece is None:
                return False
            self._seen += piece
        return self._seen.lstrip()[:1] in (b"{", b"[")

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        yield self._seen
        async for piece in self._pieces:
            yield piece

    async def aread(self) -> bytes:
        return b"".join([piece async for piece in self.aiter_bytes()])


_PRIVATE = re.compile(r"(?i)auth|key|token|secret|cookie")


def _is_json(response: Any) -> bool:
    kind = str(response.headers.get("content-type") or "").partition(";")[0].strip().lower()
    return kind in ("application/json", "text/json") or kind.endswith("+json")
