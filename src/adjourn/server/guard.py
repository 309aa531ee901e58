"""What stands before each route: who asks, whether one of our own pages made the browser ask, and how often."""

from math import ceil
from typing import Any
from urllib.parse import urlsplit

from litestar import Request
from litestar.utils.scope.state import ScopeState

from adjourn.errors import StoreError
from adjourn.server.auth import Auth, Identity
from adjourn.server.hardening import ASGIApp, Receive, Scope, Send
from adjourn.server.limits import Buckets
from adjourn.server.principal import Unauthenticated
from adjourn.server.problems import Refused
from adjourn.server.settings import ServerSettings, header

SAFE = ("GET", "HEAD", "OPTIONS")
FIELD = "_csrf_token"
HEADER = b"x-csrf-token"


class Guard:
    """Lets nobody through who is not known, but to handlers with `opt={"public": True}`.

    `request.user` is the Principal (None for a stranger on a public route), `request.auth` the Identity.
    """

    def __init__(self, app: ASGIApp, auth: Auth, settings: ServerSettings, rates: Buckets) -> None:
        self._app = app
        self._auth = auth
        self._settings = settings
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        public = bool(scope["route_handler"].opt.get("public"))
        given: Any = scope  # Litestar has a type of its own for what is a plain dict
        request: Request[Any, Any, Any] = Request(given, receive, send)  # type: ignore[arg-type]
        address = str(scope.get("adjourn.address", "local"))
        try:
            identity = await self._auth.identify(request, address)
        except (Unauthenticated, StoreError):  # a public route has to do with neither
            if not public:
                raise
            identity = None
        if identity is None and not public:
            if scope["method"] == "POST" and request.content_type[0] == "application/x-www-form-urlencoded":
                await request.form()  # the page of the error gives back what was typed
            raise Unauthenticated("this needs a token (Authorization: Bearer …) or a session that is signed in")
        scope["user"] = identity.principal if identity is not None else None
        scope["auth"] = identity
        if identity is not None:
            wait = self._rates.take(identity.principal.name)
            if wait:
                raise Refused("too-many-requests", "these are too many requests a minute", retry_after=str(ceil(wait)))
            if identity.is_ambient:
                ScopeState.from_scope(given).csrf_token = self._auth.csrf_token(identity)
        if scope["method"] not in SAFE and (identity is None or identity.is_ambient):
            await self._check_source(request, identity)
        await self._app(scope, receive, send)

    async def _check_source(self, request: Request[Any, Any, Any], identity: Identity | None) -> None:
        scope: Any = request.scope
        if not self._is_ours(scope):
            raise Refused("csrf", "another site made this browser send that; nothing was done")
        if identity is None:
            return  # there is nothing of this person's that could be misused
        given = header(scope, HEADER)
        if given is None and request.content_type[0] in ("application/x-www-form-urlencoded", "multipart/form-data"):
            form: Any = await request.form()
            given = form.get(FIELD)
        if not self._auth.is_csrf_token(identity, given if isinstance(given, str) else None):
            raise Refused(
                "csrf", "the request does not carry the token of a page that was loaded here; nothing was done"
            )

    def _is_ours(self, scope: Scope) -> bool:
        site = header(scope, b"sec-fetch-site")
        if site is not None:
            return site in ("same-origin", "none")
        origin = header(scope, b"origin")
        if origin is None:
            return True  # no browser; or one so old that only the token helps
        public = urlsplit(self._settings.public_url or "")
        return urlsplit(origin).netloc in (header(scope, b"host") or "", public.netloc or None)
