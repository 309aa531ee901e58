"""The HTTP server: JSON API, web inbox, live events. `create_app` makes an ASGI application of an `Adjourn`."""

from adjourn.errors import MissingExtra

try:
    from adjourn.server.app import Server, create_app
except ModuleNotFoundError as e:
    if (e.name or "").partition(".")[0] in ("", "adjourn"):
        raise
    raise MissingExtra(f"The server ({e.name} is not installed)", "server") from e

from adjourn.server.auth import Auth, TrustedProxy
from adjourn.server.desk import Desk
from adjourn.server.links import DecisionLinks
from adjourn.server.principal import Forbidden, Principal, Unauthenticated
from adjourn.server.settings import ServerSettings
from adjourn.server.tokens import Token, mint

__all__ = [
    "Auth",
    "DecisionLinks",
    "Desk",
    "Forbidden",
    "Principal",
    "Server",
    "ServerSettings",
    "Token",
    "TrustedProxy",
    "Unauthenticated",
    "create_app",
    "mint",
]
