"""The server as one ASGI application: it puts the parts together and nothing else.

Every route asks who it is, unless its handler says `opt={"public": True}`. In a handler `principal: AskedBy` and
`desk: AtDesk` (see `given.py`) are dependencies; `request.user` is the principal (None for a stranger on a public route),
`request.auth` the `Identity`. A form of ours carries `auth.csrf_token(request.auth)` as `_csrf_token`.
`request.app.state` has `desk`, `auth`, `settings` and `lifetime`; `request.scope["adjourn.address"]` is where the request
came from. Links go through `links.href`.
"""

import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.middleware import DefineMiddleware
from litestar.types import ControllerRouterHandler

from adjourn.app import Adjourn
from adjourn.errors import DefinitionError
from adjourn.metrics import Metrics
from adjourn.server import (
    api_access,
    api_agents,
    api_interrupts,
    api_openapi,
    api_sessions,
    api_system,
    genkit_wire,
    live,
    pages,
)
from adjourn.server import webhooks as webhooks_
from adjourn.server.auth import Auth
from adjourn.server.desk import Desk
from adjourn.server.ended import EndedSessions
from adjourn.server.guard import Guard
from adjourn.server.hardening import Gate, RedactSecrets
from adjourn.server.lifetime import Lifetime
from adjourn.server.limits import Buckets
from adjourn.server.links import DecisionLinks
from adjourn.server.pages_entry import error_page
from adjourn.server.principal import Principal
from adjourn.server.problems import handle
from adjourn.server.seal import Seal, as_secrets
from adjourn.server.settings import ServerSettings
from adjourn.server.webhook_spec import Webhook

_log = logging.getLogger("adjourn.server")


class Server(Litestar):
    """The application, behind its gate. Mount it anywhere; `lifespan()` starts and ends it where nobody else does."""

    def __init__(self, settings: ServerSettings, lifetime: Lifetime, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]
        self._settings = settings
        self._lifetime = lifetime
        self._gate = Gate(self._inside, settings)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._gate(_rooted(scope, self._settings.root_path), receive, send)
        elif scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)  # starts and stops what runs beside the routes
        else:
            await _refuse_socket(receive, send)

    async def _inside(self, scope: Any, receive: Any, send: Any) -> None:
        await self._lifetime.start()  # returns at once where it was started
        await super().__call__(scope, receive, send)


def _rooted(scope: Any, named: str | None) -> Any:
    """The scope, with a path that begins with the prefix the server is mounted under, as ASGI has it.

    Some outer applications strip the prefix from the path, others leave it and do not name it.
    """
    root = (scope.get("root_path") or named or "").rstrip("/")
    path = scope["path"]
    if root and path != root and not path.startswith(root + "/"):
        path = root + path
    return {**scope, "root_path": root, "path": path}


async def _refuse_socket(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1000, "reason": ""})


def create_app(
    ai: Adjourn,
    auth: Auth | None = None,
    *,
    settings: ServerSettings | None = None,
    webhooks: Sequence[Webhook] = (),
) -> Server:
    """The server of an application: JSON API, inbox pages, live events. Serve it with uvicorn, or mount it.

    Without `auth` the environment says who may use it (`Auth.from_environment`); where that says nothing, a token is made
    and shown once. Without `settings` they come from the environment, too. `webhooks` are told what happens in the inbox.
    """
    auth = auth if auth is not None else Auth.from_environment()
    settings = settings if settings is not None else ServerSettings.from_environment(os.environ)
    seal = Seal(as_secrets(settings.secret) or list(ai.secrets))
    if not ai.secrets:
        ai.secrets = (
            seal.secrets
        )  # what clients keep of agents without a store comes back as it was given, or not at all
    auth.attach(seal, settings, EndedSessions(lambda: tuple(desk.ai.stores())))
    _measure(ai, settings)
    desk = Desk(ai, auth, DecisionLinks(seal, settings.link_seconds, settings.public_url))
    lifetime = Lifetime(desk, settings, partial(_began, auth, settings))
    rates = Buckets(settings.requests_per_minute)
    app = Server(
        settings,
        lifetime,
        route_handlers=_routes(settings),
        dependencies={
            "desk": Provide(_desk, sync_to_thread=False),
            "principal": Provide(_principal, sync_to_thread=False),
        },
        middleware=[DefineMiddleware(cast(Any, Guard), auth=auth, settings=settings, rates=rates)],
        exception_handlers={HTTPException: _problem, Exception: _problem},
        on_startup=[lifetime.start],
        on_shutdown=[lifetime.stop],
        openapi_config=None,  # its pages load scripts from elsewhere; ours are in api_openapi.py
        state=State({"desk": desk, "auth": auth, "settings": settings, "lifetime": lifetime, "webhooks": webhooks}),
        request_max_body_size=None,  # the gate has bounds of its own, which hold for every route
        debug=False,
        logging_config=None,
    )
    _check_root(app, settings.root_path)
    lifetime.parts += [partial(live.running, app), partial(webhooks_.running, app)]
    return app


def _check_root(app: Server, root: str | None) -> None:
    # With one of our own, nobody could tell "/inbox/…" with the prefix from "/inbox/…" without it.
    first = (root or "").strip("/").partition("/")[0]
    ours = {route.path.split("/")[1] for route in app.routes} - {""}
    if first in ours:
        raise DefinitionError(
            f"root_path={root!r}: /{first} is a place of this server's own; choose another prefix, as in '/desk'"
        )


def _routes(settings: ServerSettings) -> Sequence[ControllerRouterHandler]:
    found: list[ControllerRouterHandler] = []
    for api in (api_agents, api_interrupts, api_sessions, api_access, api_system, api_openapi):
        found += api.routes(settings)
    found += pages.routes()
    found += genkit_wire.routes(settings.genkit_path)
    found += live.routes()
    return found


def _measure(ai: Adjourn, settings: ServerSettings) -> None:
    """What /metrics tells: the application's own Metrics, or one of ours."""
    if not settings.metrics:
        return
    found = next((o for o in ai.observers if isinstance(o, Metrics)), None)
    if found is None:
        found = Metrics()
        ai.observers = (*ai.observers, found)
    found.follow(ai)


def _desk(request: Request[Any, Any, Any]) -> Desk:
    return cast(Desk, request.app.state.desk)


def _principal(request: Request[Any, Any, Any]) -> Principal:
    return cast(Principal, request.user)


def _problem(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    try:
        page = error_page(request, error)
    except Exception:  # noqa: BLE001 - logged; the page of an error must not be the next one
        _log.exception("the page of an error could not be made")
        page = None
    return page or handle(request, error)


def announce(auth: Auth, settings: ServerSettings, base_url: str | None = None) -> None:
    """Shows the generated token, once, to whoever started the server; on stderr, never in a log."""
    if auth.generated is None or auth.announced:
        return
    auth.announced = True
    text = auth.announcement(base_url or settings.public_url or f"http://127.0.0.1:8000{settings.root_path or ''}")
    if text is not None:
        sys.stderr.write(f"\n{text}\n")
        sys.stderr.flush()


def _began(auth: Auth, settings: ServerSettings) -> None:
    announce(auth, settings)
    logger = logging.getLogger("uvicorn.access")
    if not any(isinstance(f, RedactSecrets) for f in logger.filters):
        logger.addFilter(RedactSecrets())
