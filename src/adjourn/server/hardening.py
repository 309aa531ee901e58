"""What stands before every route: sizes, times, rates, headers, and the log. Nothing here knows what the routes do."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any

import msgspec

from adjourn.display import visible
from adjourn.server.limits import Buckets, network_of
from adjourn.server.problems import MEDIA_TYPE, Problem, Refused, problem_of
from adjourn.server.settings import ServerSettings, address_of, header, is_secure, networks

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_access = logging.getLogger("adjourn.access")
_log = logging.getLogger("adjourn.server")

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    b"content-security-policy": CSP.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    # Not "no-referrer": with that, browsers hide the Origin of our own forms from us.
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=(), payment=()",
    b"cache-control": b"no-store",
}
# Whatever stands before the next bracket, strings as a whole. Each byte is looked at once: this matches from anywhere (a
# string that does not end goes on to the end of the body), and nothing in it is ever given back.
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.?)*+(?:"|\Z))*+([\[\]{}]|\Z)', re.DOTALL)
_LONGEST_TARGET = 2_000
_SECRET = re.compile(r"((?:^|[?&;])(?:[^=&;?]*(?:token|code|secret|password|key|signature))=)[^&;#]*", re.IGNORECASE)
_SECRET_PATH = re.compile(r"(/(?:link|links|signin)/)[^/?#]+")


def redacted(target: str) -> str:
    """A path with its query, as a log may have it: without tokens, codes and links, and without hidden characters."""
    target = target[:_LONGEST_TARGET]  # more is not shown, and need not be looked at
    return visible(_SECRET.sub(r"\1…", _SECRET_PATH.sub(r"\1…", target)), limit=500)


class RedactSecrets(logging.Filter):
    """Takes secrets out of uvicorn's own access log, for whoever runs it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(redacted(a) if isinstance(a, str) and "/" in a else a for a in record.args)
        return True


def is_too_deep(body: bytes | bytearray, limit: int) -> bool:
    """Whether JSON is nested deeper than this. What is no JSON is for the parser to refuse."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for match in _BRACKET.finditer(body):
        if match[1] in (b"[", b"{"):
            depth += 1
            if depth > limit:
                return True
        elif match[1]:
            depth -= 1
    return False


class Gate:
    """The outermost layer. Whatever happens inside, a reply goes out that has our headers and no stack trace."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._proxies = networks(settings.trusted_proxies)
        self._addresses = Buckets(settings.requests_per_minute_per_address)
        self._hosts = None if settings.allowed_hosts is None else [h.lower() for h in settings.allowed_hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, send, is_secure(scope, self._settings, self._proxies), self._settings)
        address = address_of(scope, self._proxies)
        scope["adjourn.address"] = address
        began = time.monotonic()
        if exchange.head:
            # It is answered as GET is, but for the body. What a GET changes (it spends a code) asks for "adjourn.head".
            scope |= {"method": "GET", "adjourn.head": True}
        try:
            await self._through(scope, receive, exchange, address)
        except asyncio.CancelledError:
            raise
        except BaseException as e:
            if exchange.stalled:
                _log.info(
                    "a client took nothing of its reply for %.0f s, and was hung up on", self._settings.reply_seconds
                )
                return
            problem = problem_of(e)
            if exchange.status:  # too late to say anything: the connection is broken off
                if not isinstance(e, Exception):
                    raise
                return
            await exchange.refuse(problem)
        finally:
            if _access.isEnabledFor(logging.INFO):
                self._note(scope, address, exchange, time.monotonic() - began)

    async def _through(self, scope: Scope, receive: Receive, exchange: "_Exchange", address: str) -> None:
        wait = self._addresses.take(network_of(address))
        if wait:
            raise Refused("too-many-requests", "too many requests came from this address", retry_after=str(ceil(wait)))
        if self._hosts is not None and not _is_allowed(header(scope, b"host") or "", self._hosts):
            raise Refused("wrong-host", "this server does not go by the name in the Host header")
        receive = exchange.receiving(await self._with_body(scope, receive))
        try:
            async with asyncio.timeout(self._settings.request_seconds or None) as limit:
                exchange.limit = limit
                await self._app(scope, receive, exchange)
        except TimeoutError as e:
            if not exchange.limit or not exchange.limit.expired():
                raise
            raise Refused("timeout", f"this took longer than {self._settings.request_seconds:.0f} seconds") from e

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """The body is read here, whole and within bounds, so that no route can be held up by one."""
        length = header(scope, b"content-length")
        if length is None and header(scope, b"transfer-encoding") is None and not _is_http2(scope):
            return receive
        limit = self._settings.body_bytes
        if length is not None and not _is_within(length, limit):
            raise _too_large(limit)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return receive
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise _too_large(limit)
                    more = message.get("more_body", False)
        except TimeoutError:
            seconds = self._settings.body_seconds
            raise Refused(
                "body-too-slow", f"the body took longer than {seconds:.0f} seconds", connection="close"
            ) from None
        form = (header(scope, b"content-type") or "").startswith(("application/x-www-form-urlencoded", "multipart/"))
        if not form and is_too_deep(body, self._settings.body_depth):
            raise Refused("body-too-deep", f"the body is nested more than {self._settings.body_depth} deep")
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Any:
            return whole.pop() if whole else await receive()

        return replay

    def _note(self, scope: Scope, address: str, exchange: "_Exchange", seconds: float) -> None:
        query = scope["query_string"].decode("latin-1")
        target = redacted(scope["path"] + (f"?{query}" if query else ""))
        who, method = visible(getattr(scope.get("user"), "name", "-")), "HEAD" if exchange.head else scope["method"]
        _access.info(
            '%s %s "%s %s" %d %.1fms', address, who, method, target, exchange.status, seconds * 1000
        )  # the query is redacted


class _Exchange:
    """The way out: adds the headers, and knows whether a reply has begun."""

    def __init__(self, scope: Scope, send: Send, secure: bool, settings: ServerSettings) -> None:
        self.status = 0
        self.limit: asyncio.Timeout | None = None
        self.head = scope["method"] == "HEAD"
        self.stalled = False
        """The client takes nothing of its reply."""
        self._patience = settings.reply_seconds or None
        self._begun = asyncio.Event()
        self._send = send
        self._headers = dict(_HEADERS)
        if secure and settings.hsts_seconds:
            self._headers[b"strict-transport-security"] = b"max-age=%d" % settings.hsts_seconds

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.limit is not None and not self.limit.expired():
                self.limit.reschedule(None)  # a stream may take as long as it likes
            given = [(n, _with_head(v) if n.lower() == b"allow" else v) for n, v in message.get("headers", ())]
            names = {name.lower() for name, _ in given}
            message["headers"] = [*given, *[(n, v) for n, v in self._headers.items() if n not in names]]
            await self._taken(message)
            if self.head:
                await self._taken({"type": "http.response.body", "body": b"", "more_body": False})
            self._begun.set()
        elif not self.head:
            await self._taken(message)

    async def _taken(self, message: Message) -> None:
        patience = asyncio.timeout(self._patience)
        try:
            async with patience:
                await self._send(message)
        except TimeoutError:
            self.stalled = patience.expired()
            raise

    def receiving(self, receive: Receive) -> Receive:
        """For HEAD, a client that goes away once it has its headers: what would stream without an end stops there."""
        if not self.head:
            return receive
        asked: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def gone() -> Message:
            if asked:
                return asked.pop()
            await self._begun.wait()
            return {"type": "http.disconnect"}

        return gone

    async def refuse(self, problem: Problem) -> None:
        """Says so, without any route."""
        body = msgspec.json.encode(problem.body)
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        headers += [(k.encode(), v.encode()) for k, v in problem.headers.items()]
        await self({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self({"type": "http.response.body", "body": body, "more_body": False})


def _with_head(allow: bytes) -> bytes:
    methods = {m.strip() for m in allow.decode("latin-1").split(",")}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set()))).encode()


def _too_large(limit: int) -> Refused:
    return Refused("body-too-large", f"a body may have {limit:,} bytes here", connection="close")


def _is_within(length: str, limit: int) -> bool:
    return length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= limit


def _is_http2(scope: Scope) -> bool:
    # There a body needs neither header.
    return scope.get("http_version", "1.1") not in ("1.0", "1.1") and scope["method"] not in ("GET", "HEAD")


def _is_allowed(host: str, allowed: list[str]) -> bool:
    name = host.lower()
    bare = name.rsplit(":", 1)[0] if not name.endswith("]") and ":" in name else name
    return any(a in (name, bare) or (a.startswith("*.") and bare.endswith(a[1:])) for a in allowed)
