"""The pages of sessions: all of them, and one with its timeline."""

from typing import Any

from litestar import Request, get

from adjourn.resume import seen
from adjourn.server.pages_list import trail_links
from adjourn.server.pages_steps import is_moving, state_of, steps, totals
from adjourn.server.pages_view import FromPath, Html, Visit

SHOWN = 500


@get("/sessions", include_in_schema=False)
async def show_sessions(request: Request[Any, Any, Any]) -> Html:
    """The sessions that this person sees."""
    visit = Visit(request)
    filters = {"agent": visit.asked("agent"), "owner": visit.asked("owner")}
    page = await visit.desk.sessions(
        visit.principal,
        agent=filters["agent"] or None,
        owner=filters["owner"] or None,
        cursor=visit.asked("cursor") or None,
    )
    ends = await visit.desk.ends(page.items)
    context: dict[str, Any] = {
        "section": "sessions",
        "filters": filters,
        "rows": page.items,
        "agents": [a.name for a in visit.desk.agents(visit.principal)],
        "states": {r.id: state_of(r, visit.now, ends.get(r.id)) for r in page.items},
        **trail_links(visit, page.next_cursor),
    }
    return visit.page("sessions.html", context)


@get("/sessions/{session_id:str}", include_in_schema=False)
async def show_session(request: Request[Any, Any, Any], session_id: FromPath) -> Html:
    """One session, or with `fragment` only what changes on its page."""
    visit = Visit(request)
    desk, principal = visit.desk, visit.principal
    row = await desk.session(principal, session_id)
    entries = await desk.timeline(principal, row.id)
    view = await desk.view(principal, row.id)
    waiting = await desk.interrupts(principal, session_id=row.id, limit=100)
    listed = steps(entries, visit.url)
    context: dict[str, Any] = {
        "section": "sessions",
        "row": row,
        "waiting": [seen(r) for r in waiting.items],
        "state": state_of(row, visit.now, view.finish_reason if view is not None else None),
        "moving": is_moving(row),
        "totals": totals(entries),
        "steps": listed[-SHOWN:],
        "cut": max(0, len(listed) - SHOWN),
        "here": visit.here(),
    }
    return visit.page("steps.html" if visit.asked("fragment") else "session.html", context)
