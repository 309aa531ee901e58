"""JSON API: the inbox. Lists what waits, shows it, and takes decisions."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from litestar import Request, Response, Router, get, post
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from adjourn.errors import AdjournError, InvalidRequest
from adjourn.inbox import Accepted
from adjourn.server.api_shapes import (
    AcceptedView,
    BulkBody,
    BulkResult,
    BulkResults,
    DeclineBody,
    History,
    InterruptPage,
    InterruptView,
    LinkBody,
    LinkDecision,
    LinkView,
    RespondBody,
    RestartBody,
    accepted_view,
    decision_view,
    interrupt_view,
    when,
)
from adjourn.server.desk import Verdict
from adjourn.server.given import AskedBy, AtDesk
from adjourn.server.links import href
from adjourn.server.problems import problem_of
from adjourn.server.repeats import key_header
from adjourn.server.settings import ServerSettings
from adjourn.store import InterruptRecord

Key = Annotated[
    str | None,
    key_header("Your own name for this decision. Sent again under the same key, it still counts once."),
]
Match = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        max_length=500,
        description="The ETag of what was shown: the decision counts only where nothing has changed since.",
    ),
]
Id = Annotated[str, PathParameter(description="The id of an interrupt.", max_length=200)]
Token = Annotated[str, PathParameter(description="What stands after /link/ in a decision link.", max_length=4000)]
Statuses = Literal["open", "resolved", "expired", "cancelled", "all"]
Name = Annotated[str | None, QueryParameter(max_length=500)]
DECISION = {"problems": (404, 409, 410, 412)}
MOST = 500


def routes(settings: ServerSettings) -> Sequence[ControllerRouterHandler]:
    one = Router(
        "/api/interrupts",
        route_handlers=[list_interrupts, show, history, respond, restart, decline, bulk, make_link],
        tags=["Interrupts"],
    )
    linked = Router("/api/links", route_handlers=[show_link, decide_link], tags=["Links"], opt={"public": True})
    return [one, linked]


def address(request: Request[Any, Any, Any]) -> str:
    """Where a request came from, for the audit."""
    return str(request.scope.get("adjourn.address", ""))  # pyright: ignore[reportUnknownMemberType]


def version_of(given: str | None) -> str | None:
    """The version out of an If-Match header; None where any will do. Raises InvalidRequest."""
    if given is None or given.strip() == "*":
        return None
    tags = [t.strip().removeprefix("W/") for t in given.split(",")]
    if len(tags) != 1 or not (len(tags[0]) > 2 and tags[0][0] == tags[0][-1] == '"'):
        raise InvalidRequest("If-Match takes the one ETag that was shown, in its quotes")
    return tags[0][1:-1]


def _one(record: InterruptRecord) -> Response[InterruptView]:
    return Response(interrupt_view(record), headers={"etag": f'"{record.version_tag}"'})


def _taken(request: Request[Any, Any, Any], accepted: Accepted) -> Response[AcceptedView]:
    where = href(request, f"/api/interrupts/{accepted.decision.interrupt_id}")
    return Response(accepted_view(accepted), status_code=202, headers={"location": where})


@get("/", summary="What waits for a decision", operation_id="ListInterrupts")
async def list_interrupts(
    principal: AskedBy,
    desk: AtDesk,
    status: Annotated[Statuses, QueryParameter(description="all: every one there ever was.")] = "open",
    tool: Name = None,
    agent: Name = None,
    session_id: Annotated[str | None, QueryParameter(name="session", max_length=500)] = None,
    owner: Annotated[str | None, QueryParameter(max_length=500, description="The owner of the session.")] = None,
    text: Annotated[
        str | None,
        QueryParameter(max_length=500, description="Part of tool, agent, owner, id, input or payload, in any case."),
    ] = None,
    cursor: Annotated[
        str | None, QueryParameter(max_length=500, description="`nextCursor` of the page before.")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 50,
    count: Annotated[bool, QueryParameter(description="Also say how many there are.")] = False,
) -> InterruptPage:
    """Those this principal may see, oldest first."""
    found: Any = {"tool": tool, "agent": agent, "session_id": session_id, "owner": owner, "text": text}
    found["status"] = None if status == "all" else status
    page = await desk.interrupts(principal, cursor=cursor, limit=limit, **found)
    total = await desk.count(principal, **found) if count else None
    return InterruptPage([interrupt_view(r) for r in page.items], page.next_cursor, total)


@get("/{interrupt_id:str}", summary="One interrupt", operation_id="ShowInterrupt", opt={"problems": (404,)})
async def show(principal: AskedBy, desk: AtDesk, interrupt_id: Id) -> Response[InterruptView]:
    """All that is needed to decide. The ETag changes whenever what is shown does."""
    return _one(await desk.interrupt(principal, interrupt_id))


@get(
    "/{interrupt_id:str}/history",
    summary="Who decided what",
    operation_id="InterruptHistory",
    opt={"problems": (404,)},
)
async def history(principal: AskedBy, desk: AtDesk, interrupt_id: Id) -> History:
    """The audit of one interrupt: every decision in order, with who, when, from where and the digest of what was shown."""
    return History([decision_view(d) for d in await desk.history(principal, interrupt_id)])


@post(
    "/{interrupt_id:str}/respond",
    status_code=202,
    summary="Supply the tool's result",
    operation_id="Respond",
    opt=DECISION,
)
async def respond(
    request: Request[Any, Any, Any],
    principal: AskedBy,
    desk: AtDesk,
    interrupt_id: Id,
    data: JSONBody[RespondBody],
    key: Key = None,
    if_match: Match = None,
) -> Response[AcceptedView]:
    """The tool does not run; `output` is its result. Answered when the decision is stored; the turn goes on meanwhile."""
    verdict = Verdict("respond", data.output, key=key, expect=version_of(if_match), address=address(request))
    return _taken(request, await desk.decide(principal, interrupt_id, verdict))


@post(
    "/{interrupt_id:str}/restart",
    status_code=202,
    summary="Send the tool round again",
    operation_id="Restart",
    opt=DECISION,
)
async def restart(
    request: Request[Any, Any, Any],
    principal: AskedBy,
    desk: AtDesk,
    interrupt_id: Id,
    data: JSONBody[RestartBody | None] = None,
    key: Key = None,
    if_match: Match = None,
) -> Response[AcceptedView]:
    """It runs with the input that was shown, or with `replaceInput`, which is checked against the tool's schema."""
    given = data or RestartBody()
    verdict = Verdict(
        "restart", None, given.metadata, given.replace_input, "", key, version_of(if_match), address(request)
    )
    return _taken(request, await desk.decide(principal, interrupt_id, verdict))


@post("/{interrupt_id:str}/decline", status_code=202, summary="Refuse", operation_id="Decline", opt=DECISION)
async def decline(
    request: Request[Any, Any, Any],
    principal: AskedBy,
    desk: AtDesk,
    interrupt_id: Id,
    data: JSONBody[DeclineBody | None] = None,
    key: Key = None,
    if_match: Match = None,
) -> Response[AcceptedView]:
    """The tool does not run, and the model is told that this was refused, and why."""
    reason = data.reason if data is not None else ""
    verdict = Verdict("decline", reason=reason, key=key, expect=version_of(if_match), address=address(request))
    return _taken(request, await desk.decide(principal, interrupt_id, verdict))


@post(
    "/bulk", status_code=200, summary="The same decision on many", operation_id="DecideMany", opt={"problems": (404,)}
)
async def bulk(
    request: Request[Any, Any, Any], principal: AskedBy, desk: AtDesk, data: JSONBody[BulkBody], key: Key = None
) -> BulkResults:
    """All of them must be of the tool that is named, or nothing is decided. Each then counts, or not, for itself."""
    if not 1 <= len(data.items) <= MOST:
        raise InvalidRequest(f"{len(data.items)} items: give 1 to {MOST}")
    if len({i.id for i in data.items}) < len(data.items):
        raise InvalidRequest("an interrupt is named twice; nothing was decided")
    principal.require("decide", "decide")
    records = [await desk.interrupt(principal, item.id) for item in data.items]
    strange = [r for r in records if r.tool != data.tool]
    if strange:
        raise InvalidRequest(
            f"interrupt {strange[0].id} is of tool {strange[0].tool!r}, not {data.tool!r}; nothing was decided"
        )
    out: list[BulkResult] = []
    for item in data.items:
        verdict = Verdict(
            data.verb, data.output, data.metadata, reason=data.reason, key=key, expect=item.version,
            address=address(request),
        )  # fmt: skip
        try:
            out.append(BulkResult(item.id, accepted_view(await desk.decide(principal, item.id, verdict)), None))
        except AdjournError as e:
            out.append(BulkResult(item.id, None, problem_of(e).body))
    good = sum(r.accepted is not None for r in out)
    return BulkResults(out, good, len(out) - good)


@post(
    "/{interrupt_id:str}/links",
    status_code=201,
    summary="A link for one decision",
    operation_id="MakeLink",
    opt={"problems": (404, 409)},
)
async def make_link(
    request: Request[Any, Any, Any], principal: AskedBy, desk: AtDesk, interrupt_id: Id, data: JSONBody[LinkBody]
) -> LinkView:
    """For a mail or a chat message: signed, expiring, spent by the first decision. Opening it decides nothing."""
    token = await desk.make_link(principal, interrupt_id, by=data.by, verbs=data.verbs, expires_in=data.expires_in)
    url = desk.links.url(token, str(request.base_url))
    return LinkView(url, data.by, when(desk.links.open(token).until))


@get("/{token:str}", summary="What a link is about", operation_id="ShowLink", opt={"problems": (404, 410)})
async def show_link(desk: AtDesk, token: Token) -> Response[InterruptView]:
    """Shows the interrupt of a decision link, and changes nothing."""
    _, _, record = await desk.open_link(token)
    return _one(record)


@post("/{token:str}", status_code=202, summary="Decide through a link", operation_id="DecideLink", opt=DECISION)
async def decide_link(
    request: Request[Any, Any, Any], desk: AtDesk, token: Token, data: JSONBody[LinkDecision], key: Key = None
) -> Response[AcceptedView]:
    """The one decision the link is good for. Who it was made for will have decided."""
    verdict = Verdict(
        data.verb, data.output, data.metadata, data.replace_input, data.reason, key, None, address(request)
    )
    return _taken(request, await desk.decide_link(token, verdict))
