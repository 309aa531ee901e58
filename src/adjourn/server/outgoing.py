"""Posting to an address that somebody configured, without becoming a way into the network the server stands in.

The name is resolved once, each address it has is looked at, and the connection is made to the very address that was
looked at: a name that resolves to something else a moment later (DNS rebinding) changes nothing. Redirects are not
followed, proxies of the environment are not used, and what comes back is read within bounds and thrown away.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import httpx
import msgspec

from adjourn.errors import AdjournError, DefinitionError
from adjourn.server.settings import Network, is_within, networks

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


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
    """The URL. Raises DefinitionError for what cannot be posted to at all."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError) as e:
        raise DefinitionError(f"{url!r} is no URL: {e}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.fragment:
        raise DefinitionError(f"{url!r} cannot be posted to: give https://, a host and a path")
    return parsed


def is_public(address: str) -> bool:
    """Whether an address is one of the open Internet: not private, loopback, link-local, shared, reserved or multicast.

    An IPv6 address that carries an IPv4 one (mapped, 6to4, Teredo, NAT64) is as public as what it carries.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(i.is_global and not i.is_multicast for i in [ip, *_carried(ip)])


def _carried(ip: _Address) -> list[_Address]:
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    found: list[_Address | None] = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _TRANSLATED:
        found.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return [i for i in found if i is not None]


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

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Returns when the receiver said 2xx. Raises Undelivered for everything else."""
        seconds = self._bounds.seconds
        try:
            async with asyncio.timeout(seconds):
                await self._post(body, headers)
        except TimeoutError:
            raise Undelivered(f"it took longer than {seconds:g} seconds") from None

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
