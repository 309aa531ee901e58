"""The SDK, loaded on first use, and one client of it for each event loop."""

import asyncio
import importlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

from adjourn.errors import MissingExtra


def load_sdk() -> Any:
    """The module `google.genai`. Raises MissingExtra where it is not installed. It takes half a second the first time."""
    try:
        importlib.import_module("google.genai.types")
        return importlib.import_module("google.genai")
    except ImportError as e:
        raise MissingExtra("A Gemini model", "google") from e


class Clients:
    """Makes a client for each event loop, because connections belong to a loop, and closes it when that loop ends."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._kept: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[None]]] = {}
        self._lock = threading.Lock()

    async def get(self) -> tuple[Any, Any]:
        """The SDK and this loop's client."""
        sdk = await asyncio.to_thread(load_sdk)  # it would hold up everything else
        loop = asyncio.get_running_loop()
        with self._lock:
            for closed in [other for other in self._kept if other.is_closed()]:
                del self._kept[closed]
            found = self._kept.get(loop)
            if found is not None:
                return sdk, found[0]
            client = self._make(sdk)
            life = self._lifetime(loop, client)
            self._kept[loop] = (client, life)
        await anext(life)
        return sdk, client

    async def _lifetime(self, loop: asyncio.AbstractEventLoop, client: Any) -> AsyncGenerator[None]:
        # A loop that ends in order (asyncio.run does) closes the generators that were begun in it. That is the one
        # moment to close connections without asking every program to do so.
        try:
            yield
        finally:
            with self._lock:
                self._kept.pop(loop, None)
            await client.aio.aclose()
            client.close()

    async def aclose(self) -> None:
        """Closes this loop's client now. The next request makes a new one."""
        with self._lock:
            found = self._kept.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()
