"""The web inbox: pages that work without JavaScript, under the same rules as the API. `routes()` are all of them.

Addresses: `/inbox`, `/inbox/{id}`, `/sessions`, `/sessions/{id}`, `/login`, `/signin/{code}`, `/link/{token}`, `/static/…`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from litestar import Request, get, post
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from adjourn.resume import seen
from adjourn.server.pages_decide import VERBS, Counter
from adjourn.server.pages_entry import LINKED, PUBLIC, not_here
from adjourn.server.pages_item import ItemPage
from adjourn.server.pages_list import decide_several, show_inbox
from adjourn.server.pages_session import show_session, show_sessions
from adjourn.server.pages_view import FromPath, Html, Visit


@get("/", include_in_schema=False)
async def show_home(request: Request[Any, Any, Any]) -> Redirect:
    """The inbox is the home page."""
    return Redirect(Visit(request).url("/inbox"), status_code=303)


@get("/inbox/{interrupt_id:str}", include_in_schema=False)
async def show_item(request: Request[Any, Any, Any], interrupt_id: FromPath) -> Html:
    """One item. With `fragment=row` its row in the list, with `fragment=after` what became of it: for open pages."""
    visit = Visit(request)
    row = await visit.desk.interrupt(visit.principal, interrupt_id)
    if visit.asked("fragment") == "row":
        may_decide = visit.principal.at_least("decide")
        return visit.page("row.html", {"row": seen(row), "may_decide": may_decide, "picked": frozenset[str]()})
    page = ItemPage(visit, row, visit.url(f"/inbox/{row.id}"))
    return await page.after_fragment() if visit.asked("fragment") else await page.render()


@post("/inbox/{interrupt_id:str}/{verb:str}", include_in_schema=False, status_code=200)
async def decide_item(request: Request[Any, Any, Any], interrupt_id: FromPath, verb: FromPath) -> Any:
    """A decision on one item, or a step on the way to it."""
    visit = Visit(request)
    if verb not in VERBS:
        raise not_here()
    again = partial(visit.desk.interrupt, visit.principal, interrupt_id)
    row = await again()
    target = visit.url(f"/inbox/{row.id}")
    counter = Counter(ItemPage(visit, row, target), partial(visit.desk.decide, visit.principal, row.id), again)
    return await counter.take(verb, await visit.form(), target)


def routes() -> Sequence[ControllerRouterHandler]:
    """All pages, and the files they need."""
    return [
        show_home, show_inbox, decide_several, show_item, decide_item, show_sessions, show_session, *PUBLIC, *LINKED,
    ]  # fmt: skip
