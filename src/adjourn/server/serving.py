"""How uvicorn is to serve the server: with a bound on how long a client may take to say what it wants."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from adjourn.server.settings import ServerSettings


def uvicorn_options(settings: ServerSettings | None = None) -> dict[str, Any]:
    """Options for `uvicorn.Config(app, host=…, port=…, **uvicorn_options())`.

    The server does its own access log (the logger `adjourn.access`, without secrets), and reads the headers of the proxies
    that it trusts itself.
    """
    given = settings or ServerSettings()
    # By name, where that will do: uvicorn's worker processes are told by name.
    protocol: Any = "adjourn.server.serving:TimedProtocol"
    if given.header_seconds != TimedProtocol.header_seconds:
        protocol = type("TimedProtocol", (TimedProtocol,), {"header_seconds": given.header_seconds})
    return {
        "http": protocol,
        "ws": "none",
        "lifespan": "on",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": 10,
        "timeout_graceful_shutdown": int(given.drain_seconds) + 5,
    }


class TimedProtocol(H11Protocol):
    """HTTP/1.1 by uvicorn, that hangs up on a client which has not sent its headers in time (slow loris)."""

    header_seconds: float = 15.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        # A stream without end would hold up the end of the server; `live.EventStream` says how to end one.
        scope: Any = getattr(self, "scope", None) or {}  # there is none before the first request
        end = scope.get("state", {}).get("adjourn.end")
        if end is not None:
            end()

    def _watch(self) -> None:
        # IDLE: it has begun to say something, and we do not know what yet. uvicorn itself watches connections that are kept
        # alive without saying anything, and the server's gate watches bodies.
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._deadline is None and self.header_seconds:
            self._deadline = self.loop.call_later(self.header_seconds, self._hang_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _hang_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
