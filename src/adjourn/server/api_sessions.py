"""JSON API: sessions. Lists and shows them, forks, retries, aborts, exports and deletes."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from litestar import Request, Response, Router, delete, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from adjourn.server.api_agents import Wait, reply
from adjourn.server.api_shapes import (
    AbortBody,
    AbortView,
    EntryView,
    ForkBody,
    ForkView,
    RetryBody,
    RunView,
    SessionPage,
    SessionView,
    Timeline,
    pause_view,
    session_item,
    session_view,
    when,
)
from adjourn.server.given import AskedBy, AtDesk
from adjourn.server.settings import ServerSettings

Id = Annotated[str, PathParameter(description="The id of a session.", max_length=200)]
JSON_LINES = "application/jsonl"


def routes(settings: ServerSettings) -> Sequence[ControllerRouterHandler]:
    handlers: list[ControllerRouterHandler] = [
        list_sessions, show, timeline, fork, remove, export_one, retry, abort,
    ]  # fmt: skip
    return [
        Router("/api/sessions", route_handlers=handlers, tags=["Sessions"]),
        Router("/api/export", route_handlers=[export], tags=["Sessions"]),
    ]


@get("/", summary="Sessions", operation_id="ListSessions")
async def list_sessions(
    principal: AskedBy,
    desk: AtDesk,
    agent: Annotated[str | None, QueryParameter(max_length=500)] = None,
    owner: Annotated[str | None, QueryParameter(max_length=500)] = None,
    cursor: Annotated[
        str | None, QueryParameter(max_length=500, description="`nextCursor` of the page before.")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 50,
) -> SessionPage:
    """Those this principal may see, oldest first."""
    page = await desk.sessions(principal, agent=agent, owner=owner, cursor=cursor, limit=limit)
    return SessionPage([session_item(s) for s in page.items], page.next_cursor)


@get("/{session_id:str}", summary="One session", operation_id="ShowSession", opt={"problems": (404,)})
async def show(
    principal: AskedBy,
    desk: AtDesk,
    session_id: Id,
    snapshot_id: Annotated[
        str | None, QueryParameter(name="snapshot", max_length=200, description="As it stood then.")
    ] = None,
) -> SessionView:
    """The conversation as it stands, what it waits for, and its resting points."""
    record = await desk.session(principal, session_id)
    view = await desk.view(principal, session_id, snapshot_id)
    waiting = await desk.interrupts(principal, session_id=record.id, limit=1000)
    snapshots = await desk.snapshots(principal, record.id)
    return session_view(record, view, waiting.items, snapshots)


@get("/{session_id:str}/timeline", summary="What happened", operation_id="SessionTimeline", opt={"problems": (404,)})
async def timeline(principal: AskedBy, desk: AtDesk, session_id: Id) -> Timeline:
    """Messages, tool runs, pauses, decisions, forks and crashes, in order."""
    entries = await desk.timeline(principal, session_id)
    return Timeline([EntryView(when(e.at), e.kind, e.title, e.snapshot_id, e.facts, e.took) for e in entries])


@post(
    "/{session_id:str}/fork",
    status_code=201,
    summary="A branch from a resting point",
    operation_id="ForkSession",
    opt={"problems": (404, 409)},
)
async def fork(principal: AskedBy, desk: AtDesk, session_id: Id, data: JSONBody[ForkBody | None] = None) -> ForkView:
    """Both go on by themselves. A paused one gets interrupts of its own, so that answering one never touches the other."""
    branch = await desk.fork(principal, session_id, data.snapshot_id if data is not None else None)
    return ForkView(branch.id, branch.snapshot_id, [pause_view(i) for i in branch.interrupts])


@delete(
    "/{session_id:str}",
    status_code=204,
    summary="Delete a session",
    operation_id="DeleteSession",
    opt={"problems": (404, 409)},
)
async def remove(
    principal: AskedBy,
    desk: AtDesk,
    session_id: Id,
    force: Annotated[
        bool, QueryParameter(description="Also where it waits for decisions: they are cancelled.")
    ] = False,
) -> None:
    """Its audit stays. Takes the role admin."""
    await desk.delete(principal, session_id, force=force)


@get(
    "/{session_id:str}/export",
    summary="One session as a line of JSON",
    operation_id="ExportSession",
    media_type=JSON_LINES,
    opt={"problems": (404,)},
)
async def export_one(principal: AskedBy, desk: AtDesk, session_id: Id) -> Stream:
    """Everything that is kept of it; `adjourn` reads it back."""
    return _lines(await desk.export(principal, [session_id]))


@get("/", summary="All sessions as lines of JSON", operation_id="ExportSessions", media_type=JSON_LINES)
async def export(principal: AskedBy, desk: AtDesk) -> Stream:
    """Those this principal may see, one a line."""
    return _lines(await desk.export(principal))


def _lines(lines: AsyncIterator[bytes]) -> Stream:
    async def ended() -> AsyncIterator[bytes]:
        async for line in lines:
            yield line + b"\n"

    return Stream(
        ended(), media_type=JSON_LINES, headers={"content-disposition": 'attachment; filename="sessions.jsonl"'}
    )


@post(
    "/{session_id:str}/retry",
    status_code=200,
    summary="Go on with a turn that failed",
    operation_id="RetrySession",
    opt={"problems": (404, 409), "runs": True},
)
async def retry(
    request: Request[Any, Any, Any],
    principal: AskedBy,
    desk: AtDesk,
    session_id: Id,
    data: JSONBody[RetryBody | None] = None,
    wait: Wait = None,
) -> Response[RunView] | Stream:
    """What was finished stays; what failed runs again. Answers as `send` does."""
    run = await desk.retry(principal, session_id, data.limits if data is not None else None)
    return await reply(request, desk, run, wait or (0.25 if wait == 0 else None))


@post(
    "/{session_id:str}/abort",
    status_code=200,
    summary="End the turn that runs or waits",
    operation_id="AbortSession",
    opt={"problems": (404, 409)},
)
async def abort(principal: AskedBy, desk: AtDesk, session_id: Id, data: JSONBody[AbortBody | None] = None) -> AbortView:
    """Its pauses are cancelled; the session takes the next message."""
    return AbortView(await desk.abort(principal, session_id, data.reason if data is not None else ""))
