"""What an operator may set, and what the server reads from its environment."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjourn.errors import DefinitionError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the server behaves. Times are in seconds, sizes in bytes; rates are per minute, and 0 switches one off.

    `secret` signs cookies and links: without one (nor the application's own) a random one is made, and a restart signs
    everybody out. `public_url` is where people reach the server, for links. `root_path` is the prefix it is mounted
    under, where the outer application does not say; it begins with none of our own places, as /inbox and /api are.
    `tell_errors` tells everybody what exceptions of tools and models said, not only those who see everybody's sessions.
    `allowed_hosts` are the Host headers that are answered (None: any). `trusted_proxies` are addresses or networks whose
    X-Forwarded-For and X-Forwarded-Proto are believed.
    """

    secret: str | bytes | None = None
    public_url: str | None = None
    root_path: str | None = None
    allowed_hosts: Sequence[str] | None = None
    trusted_proxies: Sequence[str] = ()

    body_bytes: int = 2_000_000
    body_depth: int = 100
    body_seconds: float = 30.0
    request_seconds: float = 300.0
    reply_seconds: float = 60.0
    header_seconds: float = 15.0
    wait_seconds: float = 30.0
    requests_per_minute: int = 1200
    requests_per_minute_per_address: int = 2400
    logins_per_minute: int = 10

    session_seconds: float = 12 * 3600.0
    cookie_name: str = "adjourn_session"
    link_seconds: float = 24 * 3600.0
    sweep_seconds: float = 30.0
    drain_seconds: float = 10.0
    hsts_seconds: int = 0
    docs: bool = True
    metrics: bool = True
    metrics_for_all: bool = False
    tell_errors: bool = False
    genkit_path: str = "/genkit"
    sse_ping_seconds: float = 15.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **given: Any) -> "ServerSettings":
        """The settings that ADJOURN_SECRET, _PUBLIC_URL, _ROOT_PATH, _ALLOWED_HOSTS and _TRUSTED_PROXIES give.

        Lists are separated by commas. `given` wins over the environment.
        """
        found: dict[str, Any] = {}
        for name in ("secret", "public_url", "root_path"):
            if value := environ.get(f"ADJOURN_{name.upper()}"):
                found[name] = value
        for name in ("allowed_hosts", "trusted_proxies"):
            if value := environ.get(f"ADJOURN_{name.upper()}"):
                found[name] = [v.strip() for v in value.split(",") if v.strip()]
        return cls(**(found | given))

    def __post_init__(self) -> None:
        networks(self.trusted_proxies)
        if self.root_path and not self.root_path.startswith("/"):
            raise DefinitionError(f"root_path={self.root_path!r}: it begins with a slash, as in '/desk'")


def networks(given: Sequence[str]) -> list[Network]:
    """Addresses and networks. Raises DefinitionError for what is neither."""
    try:
        return [ipaddress.ip_network(g, strict=False) for g in given]
    except ValueError as e:
        raise DefinitionError(f"trusted proxies are addresses or networks, as in '10.0.0.0/8': {e}") from None


def is_within(address: str, within: Sequence[Network]) -> bool:
    """Whether an address is in one of the networks; what is no address is in none."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in n for n in within if n.version == ip.version)


def address_of(scope: Mapping[str, Any], proxies: Sequence[Network]) -> str:
    """The address a request came from: the peer, or whom a trusted proxy names."""
    client = scope.get("client")
    address = str(client[0]) if client else "local"
    if not proxies or not is_within(address, proxies):
        return address
    named = [v.decode("latin-1") for n, v in scope["headers"] if n == b"x-forwarded-for"]
    for hop in reversed([h.strip() for v in named for h in v.split(",")]):
        # The last one that none of ours wrote; what stands before it is the client's own claim.
        try:
            ipaddress.ip_address(hop)
        except ValueError:
            return address
        address = hop
        if not is_within(hop, proxies):
            return hop
    return address


def header(scope: Mapping[str, Any], name: bytes) -> str | None:
    """A request header; None where there is none."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None


def is_secure(scope: Mapping[str, Any], settings: ServerSettings, proxies: Sequence[Network]) -> bool:
    """Whether the person's browser speaks HTTPS, so that cookies can be kept to it."""
    if scope.get("scheme") == "https" or (settings.public_url or "").startswith("https:"):
        return True
    client = scope.get("client")
    return bool(client and is_within(str(client[0]), proxies) and header(scope, b"x-forwarded-proto") == "https")
