"""Genkit's wire for agents, so that Genkit's own clients work against this server as they are.

`POST {path}/{agent}` runs one turn (or answers a pause), `…/getSnapshot` and `…/abort` look at and end one that runs in the
background. A client that sends `Accept: text/event-stream` gets chunks as they come; the frames are exactly
`data: {…}` and an empty line, since Genkit's JavaScript client takes no comments, ids or event names.

What happens in a turn is an outcome, `finishReason: "failed"` with an error in it. What keeps a turn from being begun is an
error: over a stream as Genkit has it, with status 200 and an error frame, otherwise a problem (RFC 9457) whose member
`error` is what Genkit's clients look for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, cast

import msgspec
from litestar import Request, Response, Router, post
from litestar.exceptions import HTTPException
from litestar.params import PathParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from adjourn.agent import Agent
from adjourn.bridges.genkit import (
    Call,
    ChunkWriter,
    GenkitInit,
    Wire,
    bound,
    error_on_wire,
    output_on_wire,
    read_call,
    read_lookup,
    snapshot_on_wire,
    state_on_wire,
    verb_of,
)
from adjourn.errors import (
    AdjournError,
    InvalidRequest,
    InvalidState,
    ResumeError,
    SessionConflict,
    SessionError,
    SessionNotFound,
    TurnError,
)
from adjourn.handle import AgentInit, AgentOutput, AgentTurn, Resume
from adjourn.lease import transact
from adjourn.parts import ErrorInfo, Part, encode
from adjourn.records import unknown_snapshot
from adjourn.server.desk import Desk
from adjourn.server.desk_sessions import context_of, plain_id
from adjourn.server.given import AskedBy, AtDesk
from adjourn.server.principal import Principal
from adjourn.server.problems import Problem, problem_of
from adjourn.server.untold import untold
from adjourn.session import AgentSession

Name = Annotated[str, PathParameter(description="The name of an agent.", max_length=500)]
_STATUS_NAMES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def routes(path: str = "/genkit") -> Sequence[ControllerRouterHandler]:
    """The handlers, below `path`."""
    return [
        Router(
            path,
            route_handlers=[run_turn, get_snapshot, abort],
            exception_handlers={Exception: handle, HTTPException: handle},
            include_in_schema=False,  # its shapes are Genkit's, and described there
        )
    ]


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """An error as a problem that Genkit's clients understand, too."""
    problem = problem_of(error)
    more = {**problem.more, "error": _error_member(problem, error)}
    return Problem(problem.kind, problem.detail, more, problem.headers).response()


def _error_member(problem: Problem, error: Exception) -> Wire:
    if isinstance(error, AdjournError) and problem.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        known = error_on_wire(error)
        return {**known, "status": _STATUS_NAMES.get(problem.status, known["status"])}
    fallback = "INTERNAL" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "INVALID_ARGUMENT"
    return {"status": _STATUS_NAMES.get(problem.status, fallback), "message": problem.detail}


@post("/{name:str}", status_code=200)
async def run_turn(
    name: Name, request: Request[Any, Any, Any], principal: AskedBy, desk: AtDesk
) -> Response[bytes] | Stream:
    """Says something to an agent, or answers its pauses, and gives what came of it (or streams it)."""
    streaming = "text/event-stream" in request.headers.get("accept", "") or request.query_params.get("stream") == "true"
    agent = desk.agent(principal, name)
    call = read_call(await request.body())
    try:
        leg = await _begin(desk, principal, agent, _with_query(call, request), _address(request))
    except AdjournError as e:
        if not streaming:
            raise
        error = error_on_wire(e)
        if isinstance(e, (SessionNotFound, InvalidState)):  # an outcome, as Genkit's own servers have it
            return _stream(_only({"result": {"finishReason": "failed", "error": error}}))
        return _stream(_only({"error": error}))
    if streaming:
        return _stream(leg.frames())
    return _json({"result": await leg.result()})


@post("/{name:str}/getSnapshot", status_code=200)
async def get_snapshot(
    name: Name, request: Request[Any, Any, Any], principal: AskedBy, desk: AtDesk
) -> Response[bytes]:
    """One snapshot of a session, or a session's newest; null where there is none that this principal may see."""
    agent = _keeping(desk.agent(principal, name))
    lookup = read_lookup(await request.body())
    if (lookup.snapshot_id is None) == (lookup.session_id is None):
        raise InvalidRequest("give exactly one of snapshotId and sessionId")
    by = {"snapshot_id": lookup.snapshot_id, "session_id": lookup.session_id}
    view = await agent.get_snapshot(**{k: plain_id(v) for k, v in by.items() if v is not None})
    if view is None or not await _sees(desk, principal, agent, view.session_id):
        return _json({"result": None})  # both clients take that for "there is none"
    return _json({"result": snapshot_on_wire(desk.shown(principal, view))})


@post("/{name:str}/abort", status_code=200)
async def abort(name: Name, request: Request[Any, Any, Any], principal: AskedBy, desk: AtDesk) -> Response[bytes]:
    """Ends a running turn by its snapshot; gives the status it had before, and none where there is no such snapshot."""
    agent = _keeping(desk.agent(principal, name))
    principal.require("decide", "abort a turn")
    lookup = read_lookup(await request.body())
    if lookup.snapshot_id is None:
        raise InvalidRequest("give the snapshotId of the turn to abort")
    result: Wire = {"snapshotId": lookup.snapshot_id}
    view = await agent.get_snapshot(snapshot_id=plain_id(lookup.snapshot_id))
    if view is not None and await _sees(desk, principal, agent, view.session_id):
        before = await agent.abort(view.id, f"aborted by {principal.name}")
        result |= {"status": before} if before is not None else {}
    return _json({"result": result})


def _keeping(agent: Agent) -> Agent:
    if agent.store is None:
        raise SessionNotFound(f"agent {agent.name!r} has no store, so it has no snapshots; its clients keep the state")
    return agent


async def _sees(desk: Desk, principal: Principal, agent: Agent, session_id: str) -> bool:
    try:
        await desk.of_agent(principal, agent, session_id)
    except SessionNotFound:
        return False
    return True


# -- one leg ---------------------------------------------------------------------------------------------------------


class _Leg:
    """What a client asked of a session: a turn, which runs on when the client goes away, or why there is none."""

    def __init__(
        self, session: AgentSession, start: Callable[[], AgentTurn], detached: bool, told: bool, resumed: bool = False
    ) -> None:
        self._session = session
        self._told = told
        self._resumed = resumed
        self._stood = session.snapshot_id
        self._detached = detached
        self._turn: AgentTurn | AdjournError
        try:
            self._turn = start()
        except AdjournError as e:
            self._turn = e

    async def frames(self) -> AsyncIterator[bytes]:
        write = ChunkWriter(self._resumed)
        if isinstance(self._turn, AgentTurn) and not self._detached:
            async for chunk in self._turn.stream:
                for written in write(chunk):
                    yield _frame({"message": written})
        yield _frame({"result": await self.result()})

    async def result(self) -> Wire:
        turn = self._turn
        if isinstance(turn, AdjournError):
            return self._refused(turn)
        if self._detached:
            await turn.stored()
            if turn.poll() != "failed":
                return {"sessionId": self._session.id, "snapshotId": turn.snapshot_id, "finishReason": "detached"}
        try:
            return output_on_wire(await turn.output)
        except TurnError as e:
            kept: AgentOutput | None = e.response
            return {**output_on_wire(kept), "error": self._error(e)} if kept is not None else self._refused(e)
        except AdjournError as e:
            return self._refused(e)
        except asyncio.CancelledError:
            if not turn.done or (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return self._refused(
                SessionConflict("the turn was stopped here; whoever holds its session goes on with it")
            )
        except Exception as e:  # noqa: BLE001 - a tool's, or our own: the client is told that it failed, not how
            problem_of(e)  # logs it
            return self._refused(e)

    def _refused(self, error: Exception) -> Wire:
        """What the leg came to where nothing was run: the session stands where it stood."""
        session = self._session
        here: Wire = {"sessionId": session.id, "finishReason": "failed", "error": self._error(error)}
        if session.agent.store is None:
            return {**here, "state": state_on_wire(session.client_state)}
        return {**here, "snapshotId": self._stood} if self._stood is not None else here

    def _error(self, error: Exception) -> Wire:
        shown = error_on_wire(error)
        if self._told:
            return shown
        kept = ErrorInfo(shown["status"], shown["message"], shown["details"]["kind"], shown["details"])
        return {**shown, "message": untold(kept).message}


async def _begin(desk: Desk, principal: Principal, agent: Agent, call: Call, address: str) -> _Leg:
    """Starts the turn that a client asks for. Raises where the session cannot be opened; a refused decision is an outcome."""
    principal.require("decide", "talk to an agent")
    given, detached, context = call.input, bool(call.input.detach), context_of(principal)
    if given.resume is not None and given.message is not None:
        raise InvalidRequest("one request holds a message or a resume, not both: answer the pause first, then say more")
    if given.resume is None and given.message is None:
        raise InvalidRequest("the request holds neither a message nor a resume, so there is nothing to do")
    if detached and agent.store is None:
        raise SessionError(f"a background turn needs a store, and agent {agent.name!r} has none")
    session = await _opened(desk, principal, agent, call.init)
    if given.message is not None:
        send = partial(session.send, given.message, detach=detached, context=context)
        return _Leg(session, send, detached, desk.tells(principal))
    assert given.resume is not None
    named = (*(given.resume.respond or ()), *(given.resume.restart or ()))
    try:
        parts = [await _checked(desk, principal, session, part) for part in named]
    except ResumeError as e:
        return _Leg(session, partial(_refuse, e), detached, desk.tells(principal), resumed=True)
    resume = Resume(parts, (), by=principal.name, address=address, detach=detached)
    decide = partial(session.resume, resume, context=context)
    return _Leg(session, decide, detached, desk.tells(principal), resumed=True)


async def _opened(desk: Desk, principal: Principal, agent: Agent, init: GenkitInit) -> AgentSession:
    """The session, where this principal may see it; a new one is the principal's own.

    A client may choose the id of a new session. One that is somebody else's looks as if it never was.
    """
    if agent.store is not None:
        if init.snapshot_id is not None:
            try:
                await desk.of_snapshot(principal, agent, init.snapshot_id, None)
            except SessionNotFound:
                raise unknown_snapshot(init.snapshot_id) from None
        elif init.session_id is not None:
            named = plain_id(init.session_id)
            if await transact(agent.store, lambda tx: tx.session(named), read=True) is not None:
                await desk.of_agent(principal, agent, named)
    opened = agent.connect(AgentInit(init.session_id, init.snapshot_id, init.state, owner=principal.name))
    return await opened.load()


async def _checked(desk: Desk, principal: Principal, session: AgentSession, part: Part) -> Part:
    """The part, bound to the one pause that was checked: it then counts for that one or for none.

    Raises Forbidden where this principal may not decide so on it, and ResumeError where the part is about no pause.
    """
    paused, verb = session.meant(part), verb_of(part)
    if session.agent.store is None:  # the caller keeps it, so it is the caller's own
        await desk.check_kept(principal, session.agent.name, session.id, paused.paused, verb)
    else:
        record = await desk.interrupt(principal, paused.id)
        await desk.auth.check_decision(principal, record, verb)
    return bound(part, paused.id)


def _refuse(error: ResumeError) -> AgentTurn:
    raise error


def _address(request: Request[Any, Any, Any]) -> str:
    return str(cast(Mapping[str, Any], request.scope).get("adjourn.address", "local"))


def _with_query(call: Call, request: Request[Any, Any, Any]) -> Call:
    # Genkit's Python server takes a session's id from the address as well.
    given = request.query_params.get("session_id") or request.query_params.get("thread_id")
    if given and call.init.session_id is None and call.init.snapshot_id is None:
        return msgspec.structs.replace(call, init=msgspec.structs.replace(call.init, session_id=given))
    return call


# -- replies ---------------------------------------------------------------------------------------------------------


def _frame(value: Wire) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


async def _only(value: Wire) -> AsyncIterator[bytes]:
    yield _frame(value)


def _json(value: Wire) -> Response[bytes]:
    return Response(encode(value), media_type="application/json", headers={"cache-control": "no-store"})


def _stream(frames: AsyncIterator[bytes]) -> Stream:
    # x-accel-buffering: a proxy in between hands each frame on as it comes.
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return Stream(frames, media_type="text/event-stream", headers=headers)
