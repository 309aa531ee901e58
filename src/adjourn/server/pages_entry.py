"""The ways in: signing in and out, decision links, the files of the pages, and the pages of errors."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import quote

from litestar import Request, Response, get, post
from litestar.exceptions import NotFoundException
from litestar.response import Redirect
from litestar.utils.scope.state import ScopeState

from adjourn.server.auth import Auth, Unauthenticated
from adjourn.server.links import safe_next
from adjourn.server.pages_decide import VERBS, Counter
from adjourn.server.pages_item import ItemPage
from adjourn.server.pages_view import STATIC, FromPath, Html, Visit, sentence, typed_in
from adjourn.server.problems import Problem, Refused, problem_of

_FILES = {"adjourn.css": "text/css", "adjourn.js": "text/javascript", "icon.svg": "image/svg+xml"}
_PAGES = ("/inbox", "/sessions", "/login", "/logout", "/link/", "/signin/")
_HELP = {
    "unauthenticated": "Sign in again.",
    "interrupt-unknown": "It may have been deleted with its session, or belong to somebody whose work you do not see.",
    "session-unknown": "It may have been deleted, or belong to somebody whose work you do not see.",
    "not-found": "Look at the address again, or begin at the inbox.",
    "csrf": "Go back, load the page again, and send it once more.",
    "link-spent": "Who may sign in here finds in the inbox what became of it.",
    "internal": "Try again. If it stays so, tell whoever runs this server that number.",
}
_TITLES = {
    "interrupt-unknown": "There is no such item",
    "session-unknown": "There is no such session",
    "csrf": "This page can no longer be sent",
    "link-spent": "This link is no longer good",
}


def not_here() -> NotFoundException:
    """For an address that nothing is at."""
    return NotFoundException("there is nothing at this address")


@get("/login", include_in_schema=False, opt={"public": True})
async def show_login(request: Request[Any, Any, Any]) -> Any:
    """The form to sign in; who is known already goes on."""
    visit = Visit(request)
    target = safe_next(visit.asked("next"))
    if request.user is not None:
        return Redirect(visit.url(target), status_code=303)
    return _login(visit, target, "", 200)


@post("/login", include_in_schema=False, opt={"public": True}, status_code=200)
async def sign_in(request: Request[Any, Any, Any]) -> Any:
    """Signs in with a token."""
    visit = Visit(request)
    sent = await visit.form()
    target = safe_next((sent.get("next") or [""])[0])
    token = (sent.get("token") or [""])[0].strip()
    if not token:
        return _login(visit, target, "Enter your access token.", 422)
    auth: Auth = visit.desk.auth
    try:
        value = auth.sign_in(token, visit.address or "local")
    except Unauthenticated:
        return _login(visit, target, "This token is not known here, or has expired. Look at it again, all of it.", 401)
    except Refused as e:
        seconds = e.headers.get("retry-after", "60")
        return _login(visit, target, f"Too many attempts came from here. Try again in {seconds} seconds.", 429)
    reply = Redirect(visit.url(target), status_code=303)
    reply.set_cookie(auth.session_cookie(request.scope, value))
    return reply


def _login(visit: Visit, target: str, error: str, status: int) -> Html:
    context = {"next": target, "error": error, "takes_tokens": visit.desk.auth.takes_tokens}
    return visit.page("login.html", context, status)


@get("/signin/{code:str}", include_in_schema=False, opt={"public": True})
async def sign_in_by_code(request: Request[Any, Any, Any], code: FromPath) -> Any:
    """The link that is printed when a server starts without any setup; it works once."""
    visit = Visit(request)
    auth: Auth = visit.desk.auth
    if "adjourn.head" in request.scope:  # whoever only looks where a link leads does not spend it
        return Redirect(visit.url("/inbox"), status_code=303)
    try:
        value = auth.spend_code(code, visit.address or "local")
    except Unauthenticated as e:
        if request.user is not None:
            return Redirect(visit.url("/inbox"), status_code=303)
        return _login(visit, "/inbox", str(e)[:1].upper() + str(e)[1:], 401)
    reply = Redirect(visit.url("/inbox"), status_code=303)
    reply.set_cookie(auth.session_cookie(request.scope, value))
    return reply


@post("/logout", include_in_schema=False, status_code=200)
async def sign_out(request: Request[Any, Any, Any]) -> Redirect:
    """Ends the session."""
    visit = Visit(request)
    await visit.desk.auth.sign_out(request.scope)
    reply = Redirect(visit.url("/login"), status_code=303)
    reply.set_cookie(visit.desk.auth.session_cookie(request.scope, ""))
    return reply


@get("/static/{name:str}", include_in_schema=False, opt={"public": True})
async def send_file(request: Request[Any, Any, Any], name: FromPath) -> Response[bytes]:
    """A file of the pages. Its address changes with what is in it."""
    if name not in _FILES:
        raise not_here()
    kept = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
    headers = {"cache-control": kept, "x-content-type-options": "nosniff"}
    return Response((STATIC / name).read_bytes(), media_type=f"{_FILES[name]}; charset=utf-8", headers=headers)


# -- decision links --------------------------------------------------------------------------------------------------


@get("/link/{token:str}", include_in_schema=False, opt={"public": True})
async def show_linked(request: Request[Any, Any, Any], token: FromPath) -> Html:
    """The item of a decision link. It only shows."""
    _, principal, row = await Visit(request).desk.open_link(token)
    visit = Visit(request, principal)
    return await ItemPage(visit, row, visit.url(f"/link/{token}")).render()


@post("/link/{token:str}/{verb:str}", include_in_schema=False, opt={"public": True}, status_code=200)
async def decide_linked(request: Request[Any, Any, Any], token: FromPath, verb: FromPath) -> Any:
    """A decision by link, or a step on the way to it."""
    if verb not in VERBS:
        raise not_here()
    desk = Visit(request).desk
    _, principal, row = await desk.open_link(token)
    visit = Visit(request, principal)
    again = partial(desk.interrupt, principal, row.id)
    page = ItemPage(visit, row, visit.url(f"/link/{token}"))
    reply = await Counter(page, partial(desk.decide_link, token), again).take(verb, await visit.form(), "")
    if isinstance(reply, Redirect):
        # The link is spent, so there is no address to go to: the page says what was decided.
        return await ItemPage(visit, await again(), page.target).render()
    return reply


PUBLIC: Sequence[Any] = (show_login, sign_in, sign_in_by_code, sign_out, send_file)
LINKED: Sequence[Any] = (show_linked, decide_linked)


# -- errors ----------------------------------------------------------------------------------------------------------


def error_page(request: Request[Any, Any, Any], error: Exception) -> Response[Any] | None:
    """The page that tells of an error; None where the address is none of the pages', or a script asked."""
    visit = Visit(request)
    path = request.url.path.removeprefix(visit.url(""))
    if not (path == "/" or path.startswith(_PAGES) or "text/html" in request.headers.get("accept", "")):
        return None
    if isinstance(error, Unauthenticated) and request.method == "GET" and not visit.asked("fragment"):
        return Redirect(visit.url("/login") + _after(visit, path), status_code=303)
    problem: Problem = problem_of(error)
    links = [(visit.url("/inbox"), "To the inbox")]
    if problem.status == 401:
        links = [(visit.url("/login"), "Sign in")]
    context: dict[str, Any] = {
        "status": problem.status,
        "title": _TITLES.get(problem.kind.code, problem.kind.title),
        "detail": sentence(problem.detail),
        "advice": _HELP.get(problem.kind.code, "" if problem.status < 500 else problem.kind.advice),
        "links": links,
        "kept": _kept(request),
    }
    reply = visit.page("error.html", context, problem.status)
    reply.headers |= dict(problem.headers)
    return reply


def _kept(request: Request[Any, Any, Any]) -> str:
    """What was typed into the form that was sent, where it has been read; it would be lost with the page."""
    form: Any = ScopeState.from_scope(request.scope).form
    return typed_in(cast(Mapping[str, Any], form)) if isinstance(form, Mapping) else ""


def _after(visit: Visit, path: str) -> str:
    query = visit.request.url.query
    target = path + (f"?{query}" if query else "")
    return f"?next={quote(target)}" if safe_next(target) == target and target != "/inbox" else ""
