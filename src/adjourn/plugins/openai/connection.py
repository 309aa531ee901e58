"""The way to a server: the official SDK, imported with the first request, and one client for each event loop."""

import asyncio
import importlib.util
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import msgspec

from adjourn.errors import MissingExtra, ModelError
from adjourn.plugins.openai import errors

Json = dict[str, Any]

NO_KEY = "none"
"""What servers without keys are told. Left out, the SDK would send them the OPENAI_API_KEY of the environment."""


def check_installed(what: str) -> None:
    """Raises MissingExtra where the SDK is not installed; imports nothing."""
    if importlib.util.find_spec("openai") is None:
        raise MissingExtra(what, "openai")


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

    async def post(self, path: str, body: Json) -> Json:
        """The reply. Raises ModelError."""
        client = self.client()
        try:
            reply = await client.post(path, cast_to=object, body=body)
            if isinstance(reply, str):  # not labelled as JSON; some servers do not
                reply = msgspec.json.decode(reply)
        except Exception as e:
            error = errors.from_sdk(e, self.provider, self._secret)
            if error is None:
                raise
            raise error from e
        if not isinstance(reply, dict):
            raise errors.malformed(self.provider, "it is no JSON object")
        given = cast(Json, reply)
        if given.get("error"):
            raise errors.in_band(given, self.provider, self._secret)
        return given

    async def events(self, path: str, body: Json) -> AsyncGenerator[Json, None]:
        """The events of a streamed reply. Raises ModelError, also in the middle."""
        client = self.client()
        import openai

        stream: Any = None
        try:
            stream = await client.post(
                path, cast_to=object, body=body, stream=True, stream_cls=openai.AsyncStream[object]
            )
            async for event in stream:
                if isinstance(event, dict):
                    yield cast(Json, event)
        except Exception as e:
            error = errors.from_sdk(e, self.provider, self._secret, begun=stream is not None)
            if error is None:
                raise
            raise error from e
        finally:
            if stream is not None:
                await stream.close()

    @property
    def _secret(self) -> str:
        key = self._settings.get("api_key")
        return key if isinstance(key, str) else ""
