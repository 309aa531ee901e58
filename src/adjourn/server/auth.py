"""Who a request is from. On by default: without any configuration a token is made and shown once.

A request is known by, in this order: a bearer token, what the application's own `authenticate` says, the header of a
trusted proxy, or the cookie that signing in gave. What a browser sends by itself (cookies, and what a proxy adds) is
called *ambient*: such a request must also carry a CSRF token to change anything. So is whatever `authenticate` went by, but
for a bearer token.
"""

import inspect
import logging
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import ceil
from typing import Any, Literal, cast

import msgspec
from litestar.datastructures import Cookie as SetCookie

from adjourn.parts import encode
from adjourn.server.ended import EndedSessions
from adjourn.server.limits import Buckets, network_of
from adjourn.server.principal import ROLES, Forbidden, Principal, Role, Unauthenticated
from adjourn.server.problems import Refused
from adjourn.server.seal import Seal
from adjourn.server.settings import ServerSettings, header, is_secure, is_within, networks
from adjourn.server.tokens import Token, find, hashed, mint, read_token_file, read_tokens
from adjourn.store import InterruptRecord

_log = logging.getLogger("adjourn.server")

Authenticate = Callable[[Any], "Principal | Awaitable[Principal | None] | None"]
"""From the request (Litestar's) to who it is from; None where this does not tell. PermissionError refuses it."""
CanDecide = Callable[[Principal, InterruptRecord], "bool | Awaitable[bool]"]
Way = Literal["bearer", "hook", "proxy", "cookie"]


class TrustedProxy(msgspec.Struct, frozen=True):
    """A proxy that signs people in (with OpenID Connect, say) and names them in a header.

    Only requests whose peer is one of `addresses` are believed. `role_header` may hold roles or groups, separated by
    commas or blanks; `roles` maps groups to roles, the highest counts. Without any, `default_role`; None refuses.
    `owners`, `agents` and `tools` hold for everybody who comes this way; `owners` left out is the person's own name.
    """

    addresses: tuple[str, ...]
    user_header: str = "x-forwarded-user"
    role_header: str | None = None
    roles: Mapping[str, Role] = {}
    default_role: Role | None = "view"
    agents: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    owners: frozenset[str] | msgspec.UnsetType | None = msgspec.UNSET

    def __post_init__(self) -> None:
        networks(self.addresses)

    def principal(self, scope: Mapping[str, Any]) -> Principal | None:
        """Whom the proxy names; None where it is not that proxy, or it names nobody."""
        client = scope.get("client")
        if client is None or not is_within(str(client[0]), networks(self.addresses)):
            return None
        name = _only(scope, self.user_header)
        if not name:
            return None
        role = self._role(scope)
        if role is None:
            raise Unauthenticated(f"the proxy signed {name!r} in, but with none of the groups that have access here")
        return Principal(name, role, self.agents, self.tools, self.owners, via="proxy")

    def _role(self, scope: Mapping[str, Any]) -> Role | None:
        named = (_only(scope, self.role_header) or "") if self.role_header else ""
        given = [
            self.roles.get(n, n if n in ROLES and not self.roles else None) for n in named.replace(",", " ").split()
        ]
        held = [ROLES.index(cast(Role, r)) for r in given if r is not None]
        return ROLES[max(held)] if held else self.default_role


def _only(scope: Mapping[str, Any], name: str) -> str | None:
    key = name.lower().encode()
    values = [v for n, v in scope["headers"] if n == key]
    if len(values) > 1:  # one of them is not the proxy's
        raise Unauthenticated(f"the header {name!r} came more than once; the proxy must replace what clients send")
    try:
        return values[0].decode().strip() if values else None
    except UnicodeDecodeError:
        raise Unauthenticated(f"the header {name!r} is no UTF-8") from None


class Identity(msgspec.Struct, frozen=True):
    """Who a request is from, and how we know. `binding` is what its CSRF tokens are made for."""

    principal: Principal
    way: Way
    binding: str = ""

    @property
    def is_ambient(self) -> bool:
        return self.way in ("cookie", "proxy")


class Cookie(msgspec.Struct, frozen=True, array_like=True):
    """What the session cookie says: which token signed in, the session's id, and until when (Unix seconds)."""

    token: str
    session: str
    until: int


class Auth:
    """Who may use a server. Without arguments: one token, made now, for one person with the role admin.

    `authenticate(request)` and `can_decide(principal, interrupt)` are your own, plain or async. With `four_eyes` the owner of
    a session does not decide on its interrupts. See `Auth.from_environment` for files and variables.
    """

    def __init__(
        self,
        *,
        tokens: Sequence[Token] = (),
        authenticate: Authenticate | None = None,
        can_decide: CanDecide | None = None,
        trusted_proxy: TrustedProxy | None = None,
        four_eyes: bool = False,
    ) -> None:
        self.authenticate = authenticate
        self.can_decide = can_decide
        self.trusted_proxy = trusted_proxy
        self.four_eyes = four_eyes
        self.generated: str | None = None
        """The token that was made because nothing was configured, in plain; None where something was."""
        self.announced = False
        """Whether the generated token has been shown."""
        self._tokens = list(tokens)
        if not self._tokens and authenticate is None and trusted_proxy is None:
            self.generated, token = mint("admin", "admin")
            self._tokens = [token]
        self._codes: dict[str, tuple[Token, float]] = {}
        self._ended = EndedSessions()
        self._lock = threading.Lock()
        self._seal = Seal(())
        self.settings = ServerSettings()
        self._attempts = Buckets(self.settings.logins_per_minute)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **options: Any) -> "Auth":
        """Tokens from ADJOURN_TOKEN_FILE (TOML or JSON), ADJOURN_TOKENS (the same, in the variable) and ADJOURN_TOKEN.

        The last is one token in plain, for an admin, of which only the hash is kept here. ADJOURN_FOUR_EYES=1 switches that
        on. `options` are those of Auth.
        """
        environ = os.environ if environ is None else environ
        tokens: list[Token] = list(options.pop("tokens", ()))
        if path := environ.get("ADJOURN_TOKEN_FILE"):
            tokens += read_token_file(path)
        if text := environ.get("ADJOURN_TOKENS"):
            tokens += read_tokens(text, "the variable ADJOURN_TOKENS")
        if plain := environ.get("ADJOURN_TOKEN"):
            tokens.append(hashed(plain, "admin", "admin"))
        options.setdefault("four_eyes", environ.get("ADJOURN_FOUR_EYES", "") in ("1", "true", "yes"))
        return cls(tokens=tokens, **options)

    def attach(self, seal: Seal, settings: ServerSettings, ended: EndedSessions) -> None:
        """The server signs with this, has these settings and keeps there who signed out; for `create_app`."""
        self._seal, self.settings, self._ended = seal, settings, ended
        self._attempts = Buckets(settings.logins_per_minute)

    # -- who is it ---------------------------------------------------------------------------------------------------

    async def identify(self, request: Any, address: str) -> Identity | None:
        """Who sent a request (Litestar's, or anything with `.scope`); None where it does not say.

        Raises Unauthenticated where it says something that is wrong, Refused where `address` did so too often, and
        StoreError where it cannot be known whether the session of a cookie was ended.
        """
        scope: Mapping[str, Any] = request.scope
        given = header(scope, b"authorization")
        bearer = given is not None and given[:7].lower() == "bearer "
        if given is not None and bearer and self._tokens:
            token = find(self._tokens, given[7:].strip())
            if token is not None:
                return Identity(token.principal(), "bearer")
            if self.authenticate is None:
                raise self._wrong(address)
        if self.authenticate is not None:
            principal = await self._asked(request)
            if principal is not None:
                # Whatever it went by, a browser may have sent it by itself (Basic and Negotiate, too), but for a bearer token.
                return Identity(principal, "hook" if bearer else "proxy", principal.name)
            if bearer:
                raise self._wrong(address)
        if self.trusted_proxy is not None:
            principal = self.trusted_proxy.principal(scope)
            if principal is not None:
                return Identity(principal, "proxy", principal.name)
        return await self._from_cookie(scope)

    async def _asked(self, request: Any) -> Principal | None:
        assert self.authenticate is not None
        try:
            found = self.authenticate(request)
            if inspect.isawaitable(found):
                found = await found
        except PermissionError as e:
            raise Unauthenticated(str(e) or "the application refused this request") from None
        if found is not None and not isinstance(found, Principal):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"authenticate(request) returned {type(found).__name__}, not a Principal or None")
        return found

    async def _from_cookie(self, scope: Mapping[str, Any]) -> Identity | None:
        text = cookie_of(scope, self.settings.cookie_name)
        cookie = self._seal.open("session", text, Cookie) if text else None
        if cookie is None or cookie.until <= time.time():
            return None
        token = next((t for t in self._tokens if t.id == cookie.token and not t.has_expired()), None)
        if token is None or await self._ended.known(cookie.session):
            return None
        return Identity(token.principal("cookie"), "cookie", cookie.session)

    # -- may it decide -----------------------------------------------------------------------------------------------

    async def check_decision(self, principal: Principal, record: InterruptRecord, verb: str) -> None:
        """Raises Forbidden where this principal may not decide on this interrupt in this way. The pause is kept."""
        principal.require("decide", "decide")
        if principal.verbs is not None and verb not in principal.verbs:
            raise Forbidden(f"this link does not allow to {verb}; it allows: {', '.join(sorted(principal.verbs))}")
        if self.four_eyes and (record.owner or "") == principal.name:
            raise Forbidden(
                f"{principal.name!r} owns this session, and here somebody else has to decide (four eyes). The pause is kept"
            )
        if self.can_decide is None:
            return
        allowed = self.can_decide(principal, record)
        if inspect.isawaitable(allowed):
            allowed = await allowed
        if allowed is not True:
            raise Forbidden(
                f"a rule of this application does not let {principal.name!r} decide on this. The pause is kept"
            )

    # -- signing in --------------------------------------------------------------------------------------------------

    @property
    def takes_tokens(self) -> bool:
        """Whether somebody can sign in with a token, so that a sign-in form makes sense."""
        return bool(self._tokens)

    def sign_in(self, token: str, address: str) -> str:
        """The value of a session cookie for whoever has this token; `session_cookie` makes it one to set.

        Raises Unauthenticated, and Refused where `address` tried too often.
        """
        wait = self._attempts.wait(network_of(address))
        if wait:
            raise _too_often(wait)
        found = find(self._tokens, token.strip())
        if found is None:
            raise self._wrong(address)
        return self._cookie(found)

    def _wrong(self, address: str) -> Unauthenticated | Refused:
        wait = self._attempts.take(network_of(address))
        return _too_often(wait) if wait else Unauthenticated("this token is not known here, or has expired")

    def one_time_code(self) -> str | None:
        """A code that signs in once, within an hour, as the generated token; None where that was not needed."""
        if self.generated is None:
            return None
        code = secrets.token_urlsafe(24)
        with self._lock:
            self._codes[code] = (self._tokens[0], time.monotonic() + 3600.0)
        return code

    def spend_code(self, code: str, address: str) -> str:
        """The value of a session cookie for a one-time code. Raises Unauthenticated where it was used, or never was."""
        wait = self._attempts.wait(network_of(address))
        if wait:
            raise _too_often(wait)
        with self._lock:
            token, until = self._codes.pop(code, (None, 0.0))
        if token is None or until <= time.monotonic():
            self._attempts.take(network_of(address))
            raise Unauthenticated(
                "this link was used before, or is too old. Sign in with the token that was shown with it"
            )
        return self._cookie(token)

    async def sign_out(self, scope: Mapping[str, Any]) -> None:
        """Ends the session of this request's cookie before its time, for every process that has the store, and for copies.

        Raises StoreError where the store cannot keep that.
        """
        text = cookie_of(scope, self.settings.cookie_name)
        cookie = self._seal.open("session", text, Cookie) if text else None
        if cookie is not None and cookie.until > time.time():
            await self._ended.note(cookie.session, cookie.until)

    def session_cookie(self, scope: Mapping[str, Any], value: str) -> SetCookie:
        """The cookie to set on a reply, for what `sign_in` and `spend_code` gave; with "" one that ends the session."""
        return SetCookie(
            key=self.settings.cookie_name,
            value=value,
            path=str(scope.get("root_path") or "/"),
            max_age=int(self.settings.session_seconds) if value else 0,
            httponly=True,
            samesite="lax",  # not "strict": a link in a mail or chat should find its reader signed in
            secure=is_secure(scope, self.settings, networks(self.settings.trusted_proxies)),
        )

    def announcement(self, base_url: str) -> str | None:
        """What to show whoever starts the server: a link that signs in once, and the token. None where none was made."""
        code = self.one_time_code()
        if code is None:
            return None
        return (
            "No access was configured, so a token was made for this run. Open this link, which works once:\n\n"
            f"    {base_url.rstrip('/')}/signin/{code}\n\n"
            f"or sign in (and call the API) with the token:\n\n    {self.generated}\n"
        )

    def _cookie(self, token: Token) -> str:
        until = int(time.time() + self.settings.session_seconds)
        return self._seal.close("session", Cookie(token.id, secrets.token_hex(16), until))

    # -- CSRF --------------------------------------------------------------------------------------------------------

    def csrf_token(self, identity: Identity) -> str:
        """What a form of this person carries as `_csrf_token`, and a script as the header X-CSRF-Token."""
        return self._seal.tag("csrf", identity.binding)

    def tag_of(self, purpose: str, *values: str) -> str:
        """Letters that stand for these values, and that only this server can tell from them."""
        return self._seal.tag(purpose, encode(values).decode())

    def is_csrf_token(self, identity: Identity, given: str | None) -> bool:
        return given is not None and self._seal.is_tag("csrf", identity.binding, given)


def _too_often(wait: float) -> Refused:
    return Refused(
        "too-many-requests", "there were too many attempts to sign in from here", retry_after=str(ceil(wait))
    )


def cookie_of(scope: Mapping[str, Any], name: str) -> str | None:
    """The value of a cookie of a request."""
    for key, value in scope["headers"]:
        if key == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                given, _, text = pair.strip().partition("=")
                if given == name:
                    return text
    return None
