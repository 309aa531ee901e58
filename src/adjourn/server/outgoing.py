"""Posting to an address that somebody configured, without becoming a way into the network the server stands in.

The name is resolved once, each address it has is looked at, and the connection is made to the very address that was
looked at: a name that resolves to something else a moment later (DNS rebinding) changes nothing. Redirects are not
followed, proxies of the environment are not used, and what comes back is read within bounds and thrown away.
"""

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TypeAlias

import httpx
import msgspec

from adjourn.errors import AdjournError, DefinitionError
from adjourn.server.settings import Network, is_within, networks

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
# What the registries of IANA keep from the open Internet, and what Python 3.11 does not know yet. Of IPv6 only 2000::/3 is
# given out at all; in it: protocol assignments with Teredo, documentation, and 6to4, whose relays are long gone.
_CLOSED_4 = networks([
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
    "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
])  # fmt: skip
_OPEN_6 = ipaddress.IPv6Network("2000::/3")
_CLOSED_6 = networks(["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"])
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


class Undelivered(AdjournError):
    """It did not arrive, or was not accepted. `retry_after` is what the receiver asked for, in seconds."""

    status = "UNAVAILABLE"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AddressRefused(Undelivered):
    """The address is not one that is posted to."""

    status = "PERMISSION_DENIED"


class Bounds(msgspec.Struct, frozen=True):
    """How long one attempt may take, in seconds, and how much of a reply is read, in bytes."""

    seconds: float = 10.0
    reply_bytes: int = 16_384


def check_url(url: str) -> httpx.URL:
    """The URL. Raises DefinitionError for what cannot be posted to at all; its text has no credentials."""
    shown = _shown(url)
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError) as e:
        # Neither the URL nor what the parser says of it: a password may be in either.
        raise DefinitionError(f"{shown} is no URL ({type(e).__name__}): give https://, a host and a path") from None
    if parsed.userinfo:
        raise DefinitionError(
            f"{shown} has a user or a password in it. Leave them out: receivers know a message by its signature"
        )
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.fragment:
        raise DefinitionError(f"{shown} cannot be posted to: give https://, a host and a path")
    return parsed


def is_public(address: str) -> bool:
    """Whether an address is one of the open Internet: not private, loopback, link-local, shared, reserved or multicast.

    An IPv6 address that carries an IPv4 one (mapped, compatible, NAT64) is as public as what it carries; those of tunnels
    (6to4, Teredo, ISATAP) are not.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    judged = ip if isinstance(ip, ipaddress.IPv4Address) else _carried(ip)
    if judged is not None:
        return judged.is_global and not any(judged in n for n in _CLOSED_4)
    isatap = (int(ip) >> 32) & 0xFFFF_FFFF in _ISATAP
    return ip in _OPEN_6 and ip.is_global and not isatap and not any(ip in n for n in _CLOSED_6)


def _carried(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a packet to it would go to."""
    if ip.ipv4_mapped is not None or ip in _TRANSLATED or int(ip) >> 32 == 0:
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return None


def _shown(url: object) -> str:
    """A URL as errors and logs may have it: the scheme and the host. Paths and queries of webhooks are often secrets."""
    scheme, found, rest = str(url).partition("://")
    if not found:
        return "the URL"
    host = "" if "@" in rest else re.split(r"[/?#]", rest)[0] + "/"  # before an @ there may be a password
    return f"{scheme}://{host}…"


class _Unnamed(logging.Filter):
    """Takes the addresses of webhooks out of the log of the HTTP client, which has each request's whole URL in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _posting.get() and isinstance(record.args, tuple):
            record.args = tuple(_shown(a) if isinstance(a, httpx.URL) else a for a in record.args)
        return True


_posting: ContextVar[bool] = ContextVar("adjourn_posting", default=False)
_unnamed = _Unnamed()


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, in the system's order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class Outgoing:
    """Posts to one URL. `allow` are networks that may be posted to although they are not public."""

    def __init__(
        self, url: str, *, allow: Sequence[str] = (), bounds: Bounds | None = None, resolve: Resolve = resolve
    ) -> None:
        self._url = check_url(url)
        self._allow: Sequence[Network] = networks(allow)
        self._bounds = bounds or Bounds()
        self._resolve = resolve
        self._client: httpx.AsyncClient | None = None
        logging.getLogger("httpx").addFilter(_unnamed)  # at most once: it is one object

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Returns when the receiver said 2xx. Raises Undelivered for everything else."""
        seconds, mark = self._bounds.seconds, _posting.set(True)
        try:
            async with asyncio.timeout(seconds):
                await self._post(body, headers)
        except TimeoutError:
            raise Undelivered(f"it took longer than {seconds:g} seconds") from None
        finally:
            _posting.reset(mark)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> None:
        failure: Undelivered | None = None
        for address in await self._addresses():
            try:
                await self._post_to(address, body, headers)
                return
            except httpx.ConnectError as e:
                failure = Undelivered(f"{address} takes no connection: {e}")
            except httpx.HTTPError as e:
                raise Undelivered(f"the exchange broke off: {type(e).__name__}") from None
        raise failure or Undelivered(f"the name {self._url.host!r} has no address")

    async def _addresses(self) -> Sequence[str]:
        """Those that may be connected to. Raises AddressRefused where there is none."""
        host, port = self._url.host, self._url.port or (443 if self._url.scheme == "https" else 80)
        try:
            found = await self._resolve(host, port)
        except OSError as e:
            raise Undelivered(f"the name {host!r} does not resolve: {e}") from None
        good = [a for a in found if self._is_allowed(a)]
        if found and not good:
            what = "is plain http" if any(is_public(a) for a in found) else "is no address of the open Internet"
            raise AddressRefused(
                f"{host!r} is {found[0]}, which {what}; it was not connected to. `allow` names exceptions"
            )
        return good

    def _is_allowed(self, address: str) -> bool:
        if is_within(address.partition("%")[0], self._allow):
            return True
        return is_public(address) and self._url.scheme == "https"

    async def _post_to(self, address: str, body: bytes, headers: Mapping[str, str]) -> None:
        if self._client is None:
            # No proxy of the environment, but its certificates (SSL_CERT_FILE).
            self._client = httpx.AsyncClient(
                trust_env=False,
                verify=httpx.create_ssl_context() if self._url.scheme == "https" else False,
                follow_redirects=False,
                timeout=self._bounds.seconds,
            )
        name = self._url.raw_host.decode("ascii")
        request = self._client.build_request(
            "POST",
            self._url.copy_with(host=address),
            content=body,
            headers={**headers, "host": self._url.netloc.decode("ascii")},
            extensions={"sni_hostname": name},
        )
        reply = await self._client.send(request, stream=True)
        try:
            read = 0
            async for part in reply.aiter_raw():  # so that the connection can be used again; never more than this
                read += len(part)
                if read > self._bounds.reply_bytes:
                    break
        finally:
            await reply.aclose()
        if not reply.is_success:
            raise Undelivered(f"the receiver said {reply.status_code}", _retry_after(reply.headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    given = headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 8 else None
