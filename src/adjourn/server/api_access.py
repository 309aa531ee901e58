"""JSON API: who one is here, signing in and out."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, Router, delete, get, post
from litestar.params import JSONBody
from litestar.types import ControllerRouterHandler

from adjourn.server.api_interrupts import address
from adjourn.server.api_shapes import Me, SignIn, me
from adjourn.server.auth import Auth, Identity
from adjourn.server.given import AskedBy
from adjourn.server.settings import ServerSettings


def routes(settings: ServerSettings) -> Sequence[ControllerRouterHandler]:
    return [Router("/api", route_handlers=[who, sign_in, sign_out], tags=["Access"])]


def _auth(request: Request[Any, Any, Any]) -> Auth:
    return request.app.state.auth


@get("/me", summary="Who you are here", operation_id="Me", sync_to_thread=False)
def who(request: Request[Any, Any, Any], principal: AskedBy) -> Me:
    """Your name, role and scopes, and the CSRF token for scripts that go by a cookie."""
    identity: Identity = request.auth
    return me(principal, _auth(request).csrf_token(identity) if identity.is_ambient else None)


@post("/session", status_code=204, summary="Sign in", operation_id="SignIn", opt={"public": True}, sync_to_thread=False)
def sign_in(request: Request[Any, Any, Any], data: JSONBody[SignIn]) -> Response[None]:
    """Takes a token and sets the session cookie of a browser. Programs send the token as a bearer instead."""
    auth = _auth(request)
    value = auth.sign_in(data.token, address(request))
    return Response(None, status_code=204, cookies=[auth.session_cookie(request.scope, value)])


@delete("/session", status_code=204, summary="Sign out", operation_id="SignOut")
async def sign_out(request: Request[Any, Any, Any]) -> Response[None]:
    """The browser forgets the cookie, and no process of the server takes it any more, wherever it was copied to."""
    auth = _auth(request)
    await auth.sign_out(request.scope)
    return Response(None, status_code=204, cookies=[auth.session_cookie(request.scope, "")])
