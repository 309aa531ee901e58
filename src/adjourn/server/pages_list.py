"""The inbox: what waits, page by page, and decisions on several items at once."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from litestar import Request, get, post

from adjourn.display import one_line
from adjourn.errors import AdjournError, AlreadyResolved, StaleInterrupt, UnknownInterrupt
from adjourn.inbox import Page
from adjourn.parts import new_id
from adjourn.resume import seen
from adjourn.server.links import safe_next
from adjourn.server.pages_view import Html, Visit, plural
from adjourn.server.pages_words import DONE
from adjourn.server.problems import VersionChanged
from adjourn.store import Decision, InterruptRecord, InterruptStatus

PAGE = 50
_TRAIL = 20
_COUNTED = 1_000_000
STATUSES = (
    ("open", "What waits"),
    ("resolved", "Decided"),
    ("expired", "Expired"),
    ("cancelled", "Cancelled"),
    ("all", "Everything"),
)


@get("/inbox", include_in_schema=False)
async def show_inbox(request: Request[Any, Any, Any]) -> Html:
    """The list, or with `fragment` only its rows, for a page that is open."""
    visit = Visit(request)
    status = visit.asked("status") or "open"
    status = status if status in dict(STATUSES) else "open"
    filters = {name: visit.asked(name).strip() for name in ("q", "tool", "agent", "owner", "session")}
    wanted: dict[str, Any] = {
        "status": None if status == "all" else cast(InterruptStatus, status),
        "tool": filters["tool"] or None,
        "agent": filters["agent"] or None,
        "session_id": filters["session"] or None,
        "owner": filters["owner"] or None,
        "text": filters["q"] or None,
    }
    page: Page = await visit.desk.interrupts(
        visit.principal, cursor=visit.asked("cursor") or None, limit=PAGE, **wanted
    )
    count = await visit.desk.count(visit.principal, **wanted)
    links = trail_links(visit, page.next_cursor)
    agents = visit.desk.agents(visit.principal)
    context: dict[str, Any] = {
        "section": "inbox",
        "rows": [seen(r) for r in page.items],
        "count": count,
        "count_text": f"{count:,}" + ("+" if count >= _COUNTED else ""),
        "count_words": _words(count, status, any(filters.values())),
        "status": status,
        "statuses": STATUSES,
        "filters": filters,
        "filtered": any(filters.values()),
        "trail": bool(visit.asked("cursor")),
        "may_decide": visit.principal.at_least("decide"),
        "picked": frozenset[str](),
        "here": visit.here(fragment=None),
        "tools": _names({t for a in agents for t in a.tools} | {r.tool for r in page.items}),
        "agents": _names({a.name for a in agents} | {r.agent for r in page.items}),
        **links,
    }
    return visit.page("rows.html" if visit.asked("fragment") else "list.html", context)


def _names(found: set[str]) -> list[str]:
    """What a filter offers. A name that hides something is offered as it is shown, and so finds nothing."""
    return sorted({one_line(name, 200) for name in found})


def _words(count: int, status: str, filtered: bool) -> str:
    noun = "item" if count == 1 else "items"
    verb = {"open": "waits" if count == 1 else "wait", "resolved": "decided", "expired": "expired"}.get(status, "")
    matching = "matching " if filtered else ""
    return f"{matching}{noun} {'cancelled' if status == 'cancelled' else verb}".strip()


def trail_links(visit: Visit, next_cursor: str | None) -> dict[str, Any]:
    """The links to the next page and back. A store only goes forward, so the way that was come is kept in the address."""
    cursor = visit.asked("cursor")
    trail = [c for c in visit.asked("trail").split(",") if c]
    back: str | None = None
    if cursor:
        back = visit.here(
            cursor=trail[-1].removeprefix("-") if trail else None, trail=",".join(trail[:-1]), fragment=None
        )
    walked = [*trail, cursor or "-"][-_TRAIL:]
    after = visit.here(cursor=next_cursor, trail=",".join(walked), fragment=None) if next_cursor else ""
    return {"next": after, "previous": back}


# -- several at once -------------------------------------------------------------------------------------------------


class Result(msgspec.Struct, frozen=True):
    """What became of one item of several."""

    row: InterruptRecord
    what: str
    words: str
    tone: str
    detail: str = ""


@post("/inbox/bulk", include_in_schema=False, status_code=200)
async def decide_several(request: Request[Any, Any, Any]) -> Html:
    """First shows all that was chosen, once more; decides when that is confirmed. All are of one tool, or none is taken."""
    visit = Visit(request)
    sent = await visit.form()
    verb = "decline" if sent.get("verb") == ["decline"] else "restart"
    ids = list(dict.fromkeys(sent.get("id", [])))[: 2 * PAGE]
    versions = {i: sent[f"v.{i}"][0] for i in ids if sent.get(f"v.{i}")}
    word = "Decline" if verb == "decline" else "Approve"
    context: dict[str, Any] = {
        "section": "inbox",
        "back": safe_next((sent.get("back") or [""])[0].removeprefix(visit.url("")), "/inbox"),
        "verb": verb,
        "versions": versions,
        "done": False,
        "problem": "",
        "by_tool": (),
    }
    context["back"] = visit.url(context["back"])
    rows, gone = await _rows(visit, ids)
    problem, advice = _problem(rows, gone, verb)
    if problem:
        by_tool = _by_tool([r for r in rows if r.status == "open" and (verb == "decline" or verb in r.allow)])
        context |= {"title": f"{word} several", "problem": problem, "advice": advice, "by_tool": by_tool.items()}
        return visit.page("bulk.html", context, 422)
    if sent.get("confirm") != ["yes"]:
        visit.principal.require("decide", "decide")
        tool = one_line(rows[0].tool, 80)
        says = (
            f"{tool} does not run for any of these. Each agent is told that you refused, and why."
            if verb == "decline"
            else f"{tool} runs for each of these, with exactly the input shown."
        )
        context |= {
            "title": f"{word} {plural(len(rows), 'item')} of {tool}?",
            "rows": rows,
            "says": says,
            "key": new_id(),
        }
        return visit.page("bulk.html", context)
    reason = (sent.get("reason") or [""])[0].strip()
    results = [await _decide(visit, row, verb, reason, versions.get(row.id), sent.get("_key")) for row in rows]
    fit = sum(r.what == "done" for r in results)
    context |= {"title": f"{fit} of {plural(len(rows), 'item')} {DONE[verb]}", "done": True, "results": results}
    return visit.page("bulk.html", context)


async def _rows(visit: Visit, ids: Sequence[str]) -> tuple[list[InterruptRecord], int]:
    rows: list[InterruptRecord] = []
    gone = 0
    for interrupt_id in ids:
        try:
            rows.append(seen(await visit.desk.interrupt(visit.principal, interrupt_id)))
        except UnknownInterrupt:
            gone += 1
    return rows, gone


def _problem(rows: Sequence[InterruptRecord], gone: int, verb: str) -> tuple[str, str]:
    """Why these cannot be decided together, and what to do; empty where they can."""
    if not rows:
        return "Nothing was selected", "Go back and tick the items that you mean."
    tools = _by_tool(rows)
    if len(tools) > 1:
        return (
            f"These are of {len(tools)} different tools",
            "Several items can be decided at once where all have the same tool, so that nothing slips in. Go on with one.",
        )
    if verb == "restart" and any("restart" not in r.allow for r in rows):
        return "Some of these ask for an answer", "They cannot be approved, only answered one by one."
    if verb == "restart" and any(r.reason == "outcome_unknown" for r in rows):
        return "Some of these may have run before", "What became of them is not known, so each needs a look of its own."
    if gone:
        return f"{plural(gone, 'item')} cannot be found", "They were deleted, or are not yours to see."
    return "", ""


def _by_tool(rows: Sequence[InterruptRecord]) -> Mapping[str, list[InterruptRecord]]:
    out: dict[str, list[InterruptRecord]] = {}
    for row in rows:
        out.setdefault(row.tool, []).append(row)
    return out


async def _decide(
    visit: Visit, row: InterruptRecord, verb: str, reason: str, version: str | None, key: Sequence[str] | None
) -> Result:
    stamps: dict[str, Any] = {"expect": version, "address": visit.address}
    if key:
        stamps["key"] = f"{key[0]}:{row.id}"
    try:
        if verb == "decline":
            await visit.desk.decline(visit.principal, row.id, reason, **stamps)
        else:
            await visit.desk.restart(visit.principal, row.id, **stamps)
    except AlreadyResolved as e:
        made = e.decision
        who = f"by {one_line(made.by, 80)}" if isinstance(made, Decision) and made.by else ""
        return Result(row, "before", "had been decided before", "warn", who)
    except VersionChanged:
        return Result(row, "changed", "changed since you looked, and still waiting", "warn")
    except StaleInterrupt as e:
        return Result(row, "closed", "no longer open", "warn", one_line(str(e), 400))
    except AdjournError as e:
        return Result(row, "refused", "refused, and still waiting", "bad", one_line(str(e), 400))
    return Result(row, "done", DONE[verb], "good")
