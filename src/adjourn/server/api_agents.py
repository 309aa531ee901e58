"""JSON API: agents. Says something to one, decides on the pauses of a session at once, and streams what happens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from adjourn.errors import InvalidRequest, ResumeError, SessionError
from adjourn.parts import wire
from adjourn.server.api_interrupts import address
from adjourn.server.api_shapes import (
    AgentList,
    AgentView,
    ResumeBody,
    RunView,
    SendBody,
    agent_view,
    pause_view,
    run_view,
)
from adjourn.server.desk import Desk, Run, Say, Verdict, outcome
from adjourn.server.given import AskedBy, AtDesk
from adjourn.server.links import href
from adjourn.server.principal import Principal
from adjourn.server.problems import problem_of
from adjourn.server.repeats import check_kept, decided_before, key_header, keyed, sent_before, standing
from adjourn.server.settings import ServerSettings
from adjourn.stream import StreamChunk

WAIT_AT_MOST = 3600
STORED_WITHIN = 2.0
Wait = Annotated[
    float | None,
    QueryParameter(
        ge=0, le=WAIT_AT_MOST, description="How many seconds to wait for the turn to rest; 0 does not wait."
    ),
]
Key = Annotated[
    str | None,
    key_header("Your own name for this request. Sent again under the same key, it is done once."),
]
Name = Annotated[str, PathParameter(description="The name of an agent.", max_length=200)]


def routes(settings: ServerSettings) -> Sequence[ControllerRouterHandler]:
    return [Router("/api/agents", route_handlers=[list_agents, show, send, resume], tags=["Agents"])]


@get("/", summary="The agents", operation_id="ListAgents", sync_to_thread=False)
def list_agents(principal: AskedBy, desk: AtDesk) -> AgentList:
    """Those this principal may use."""
    return AgentList([agent_view(a) for a in desk.agents(principal)])


@get("/{name:str}", summary="One agent", operation_id="ShowAgent", opt={"problems": (404,)}, sync_to_thread=False)
def show(principal: AskedBy, desk: AtDesk, name: Name) -> AgentView:
    """What it is for, and its tools with the schemas of their inputs."""
    return agent_view(desk.agent(principal, name))


@post(
    "/{name:str}/send",
    status_code=200,
    summary="Say something",
    operation_id="Send",
    opt={"problems": (404, 409), "runs": True},
)
async def send(
    request: Request[Any, Any, Any],
    principal: AskedBy,
    desk: AtDesk,
    name: Name,
    data: JSONBody[SendBody],
    wait: Wait = None,
    key: Key = None,
) -> Response[RunView] | Stream:
    """Starts a turn, in a new session or a stored one, and gives what it came to: an end, a pause, or an error in it.

    With `Accept: text/event-stream` it is told as it happens: `chunk` events, then one `result`. The turn does not depend
    on whoever listens. One that still runs after `wait` seconds is answered with 202; its session has the rest.
    """
    agent = desk.agent(principal, name)
    stored = agent.store is not None
    detach = stored and wait == 0 and not _streams(request)
    say = Say(data.message, data.session_id, data.snapshot_id, data.state, data.owner, detach)
    if key is None:
        return await reply(request, desk, await desk.send(principal, name, say), wait if stored else 3600.0)
    say = keyed(desk, principal, agent, say, key)
    if (session_id := await sent_before(desk, principal, agent, say)) is not None:
        return await _again(request, desk, principal, session_id, wait)
    try:
        return await reply(request, desk, await desk.send(principal, name, say), wait)
    except (SessionError, InvalidRequest):  # the session is busy, or paused: with this very message, perhaps
        if (session_id := await sent_before(desk, principal, agent, say)) is None:
            raise
        return await _again(request, desk, principal, session_id, wait)


@post(
    "/{name:str}/resume",
    status_code=200,
    summary="Decide on several pauses at once",
    operation_id="Resume",
    opt={"problems": (404, 409, 410), "runs": True},
)
async def resume(
    request: Request[Any, Any, Any],
    principal: AskedBy,
    desk: AtDesk,
    name: Name,
    data: JSONBody[ResumeBody],
    wait: Wait = None,
    key: Key = None,
) -> Response[RunView] | Stream:
    """All of the decisions count, or none. Answers as `send` does."""
    here = address(request)
    verdicts = [(r.interrupt, Verdict("respond", r.output, address=here)) for r in data.respond]
    verdicts += [
        (r.interrupt, Verdict("restart", None, r.metadata, r.replace_input, address=here)) for r in data.restart
    ]
    verdicts += [(d.interrupt, Verdict("decline", reason=d.reason, address=here)) for d in data.decline]
    agent = desk.agent(principal, name)
    stored = agent.store is not None
    detach = stored and wait == 0 and not _streams(request)
    where = Say("", data.session_id, data.snapshot_id, data.state, detach=detach)
    if key is not None:
        check_kept(agent)
    try:
        run = await desk.resume(principal, name, where, verdicts)
        return await reply(request, desk, run, wait if stored else 3600.0)
    except (ResumeError, SessionError):
        if key is None or not await decided_before(desk, principal, verdicts):
            raise
        first = await desk.interrupt(principal, verdicts[0][0])
        return await _again(request, desk, principal, first.session_id, wait)


async def _again(
    request: Request[Any, Any, Any], desk: Desk, principal: Principal, session_id: str, wait: float | None
) -> Response[RunView] | Stream:
    """What a request that was sent before has come to."""
    found = await standing(desk, principal, session_id)
    if isinstance(found, Run):
        seconds = desk.auth.settings.wait_seconds if wait is None else wait
        done = await outcome(found.turn, seconds) if seconds or found.turn.done else None
        found = (
            run_view(done, found.told) if done is not None else RunView(session_id, found.turn.snapshot_id, "running")
        )
    head = {"idempotency-replayed": "true"}
    if _streams(request):
        return Stream(iter([_frame("result", found)]), media_type="text/event-stream", status_code=200, headers=head)
    if found.finish_reason != "running":
        return Response(found, status_code=200, headers=head)
    where = href(request, f"/api/sessions/{quote(session_id, safe='')}")
    return Response(found, status_code=202, headers={**head, "location": where})


def _streams(request: Request[Any, Any, Any]) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


async def reply(
    request: Request[Any, Any, Any], desk: Desk, run: Run, wait: float | None
) -> Response[RunView] | Stream:
    """What a turn came to, told in the way the request asks for."""
    settings = desk.auth.settings
    if _streams(request):
        return Stream(_events(run, settings.sse_ping_seconds), media_type="text/event-stream", status_code=200)
    seconds = settings.wait_seconds if wait is None else min(wait, settings.request_seconds * 0.9)
    if seconds == 0:
        try:
            await asyncio.wait_for(run.turn.stored(), STORED_WITHIN)
        except TimeoutError:
            pass  # a message that is queued behind a pause: it is stored, and its turn begins later
    done = await outcome(run.turn, seconds) if seconds or run.turn.done else None
    if done is not None:
        return Response(run_view(done, run.told), status_code=200)
    where = href(request, f"/api/sessions/{quote(run.session_id, safe='')}")
    running = RunView(run.session_id, run.turn.snapshot_id, "running")
    return Response(running, status_code=202, headers={"location": where})


async def _events(run: Run, ping: float) -> AsyncIterator[bytes]:
    chunks = aiter(run.turn.stream)
    coming: asyncio.Future[StreamChunk] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(chunks))
            done, _ = await asyncio.wait([coming], timeout=ping)
            if not done:
                yield b": still running\n\n"
                continue
            try:
                chunk = coming.result()
            except StopAsyncIteration:
                break
            coming = None
            yield _frame("chunk", _told(chunk))
        try:
            result = await outcome(run.turn, 60.0)
            yield _frame("result", run_view(result, run.told) if result is not None else None)
        except Exception as e:  # noqa: BLE001 - the reply has begun: the problem is its last event
            yield _frame("problem", problem_of(e).body)
    finally:
        if coming is not None:
            coming.cancel()  # the reader only; the turn goes on


def _frame(event: str, data: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(data))


def _told(chunk: StreamChunk) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if chunk.raw is not None:
        told["message"] = wire(chunk.raw)
    if chunk.interrupt is not None:
        told["interrupt"] = msgspec.to_builtins(pause_view(chunk.interrupt))
    if chunk.progress is not None:
        told["progress"] = wire(chunk.progress)
    if chunk.artifact is not None:
        told["artifact"] = wire(chunk.artifact)
    if chunk.custom_patch is not None:
        told["customPatch"] = chunk.custom_patch
    if chunk.turn_end is not None:
        end = chunk.turn_end
        told["turnEnd"] = {"finishReason": end.finish_reason, "snapshotId": end.snapshot_id}
    return told
