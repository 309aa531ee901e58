"""Errors as replies: RFC 9457 problems. Each has a `code` that programs can rely on, and says what to do."""

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, ValidationException

from adjourn import errors
from adjourn.display import one_line
from adjourn.parts import new_id
from adjourn.server.principal import Forbidden, Unauthenticated
from adjourn.store import Decision

_log = logging.getLogger("adjourn.server")

MEDIA_TYPE = "application/problem+json"


class InterruptExpired(errors.StaleInterrupt):
    """Nobody decided in time."""


class VersionChanged(errors.StaleInterrupt):
    """The interrupt is open, and no longer the one that was shown. `version` is the newest."""

    def __init__(self, message: str, version: str) -> None:
        super().__init__(message)
        self.version = version


class KeyReused(errors.InvalidRequest):
    """An Idempotency-Key that stands for another request."""


class LinkSpent(errors.StaleInterrupt):
    """A link was used, or what it was for was settled or changed."""


class LinkInvalid(errors.InvalidRequest):
    """No link of ours, or one that is too old."""


class AgentUnknown(errors.InvalidRequest):
    """No agent of that name in this process, or none that this principal may see."""


class Refused(errors.AdjournError):
    """Refused before it reached anything: too large, too deep, too often, too slow."""

    def __init__(self, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.code = code
        self.headers = {k.replace("_", "-"): v for k, v in headers.items()}


class Kind(NamedTuple):
    """What is the same for all problems of one kind. `advice` says what to do."""

    status: int
    code: str
    title: str
    advice: str = ""


_KINDS: dict[type[BaseException], Kind] = {
    Unauthenticated: Kind(401, "unauthenticated", "Not signed in", "Send a valid token, or sign in again."),
    Forbidden: Kind(403, "forbidden", "Not allowed", "Ask somebody who may, or for another role or scope."),
    errors.UnknownInterrupt: Kind(
        404, "interrupt-unknown", "No such interrupt", "List what waits: GET /api/interrupts."
    ),
    errors.ForeignInterrupt: Kind(
        409, "interrupt-foreign", "Another session's interrupt", "Decide on it where it belongs: /api/interrupts/{id}."
    ),
    InterruptExpired: Kind(410, "interrupt-expired", "Nobody decided in time", "Its turn went on without a decision."),
    VersionChanged: Kind(
        412, "version-changed", "Not what was shown", "Fetch it, look again, and send its new ETag as If-Match."
    ),
    LinkSpent: Kind(410, "link-spent", "This link was used", "Open the inbox to see what became of it."),
    KeyReused: Kind(422, "key-reused", "The key stands for another request", "Send it under a new Idempotency-Key."),
    LinkInvalid: Kind(404, "link-invalid", "No such link", "Ask for a new one, or sign in."),
    errors.StaleInterrupt: Kind(409, "interrupt-stale", "No longer open", "Fetch it to see what became of it."),
    errors.AlreadyResolved: Kind(
        409, "already-resolved", "Somebody decided before", "`decision` is the one that counts; nothing else was done."
    ),
    errors.VerbNotAllowed: Kind(
        422,
        "verb-not-allowed",
        "Not a decision it takes",
        "`allow` of the interrupt lists those it takes, besides decline.",
    ),
    errors.InvalidResponse: Kind(
        422, "invalid-response", "The response does not fit", "Mend the fields in `errors`; the pause is untouched."
    ),
    errors.InvalidInput: Kind(
        422, "invalid-input", "The input does not fit", "Mend the fields in `errors`; the pause is untouched."
    ),
    errors.ModifiedInput: Kind(
        422, "modified-input", "Not the input that was shown", "To change it, give `replaceInput`."
    ),
    errors.ToolGone: Kind(
        409, "tool-gone", "The tool is not here", "Decide where the agent and its tools are defined."
    ),
    errors.ToolChanged: Kind(
        409, "tool-changed", "The tool has changed since", "Respond or decline; or replace the input."
    ),
    errors.EmptyResume: Kind(
        422, "empty-resume", "No decision in it", "Give at least one respond, restart or decline."
    ),
    errors.NothingPaused: Kind(
        409, "nothing-paused", "Nothing to go on with", "Fetch the session to see where it stands."
    ),
    errors.HistoryMismatch: Kind(
        409, "history-mismatch", "Not the paused conversation", "Resume the session itself, by its id."
    ),
    errors.ResumeError: Kind(
        422, "refused-decision", "The decision was refused", "Change what `detail` names; the pause is untouched."
    ),
    errors.NotJSON: Kind(422, "not-json", "A value has no JSON form", "Mend what `errors` names."),
    errors.InvalidState: Kind(
        422, "invalid-state", "The session state does not fit", "Send the state exactly as a reply gave it."
    ),
    errors.UnknownModel: Kind(404, "model-unknown", "No such model", "Ask the operator which there are."),
    errors.UnknownTool: Kind(404, "tool-unknown", "No such tool", "GET /api/agents lists the tools."),
    AgentUnknown: Kind(404, "agent-unknown", "No such agent", "GET /api/agents lists those that you may use."),
    errors.InvalidRequest: Kind(
        422, "invalid-request", "Cannot be done", "Change what `detail` names, and send it again."
    ),
    errors.SessionNotFound: Kind(
        404, "session-unknown", "No such session", "GET /api/sessions lists those that you see."
    ),
    errors.SessionBusy: Kind(409, "session-busy", "A turn is running", "Wait until it rests, or abort it."),
    errors.SessionPaused: Kind(
        409, "session-paused", "The session waits for decisions", "Decide on `interrupts`, or abort the turn."
    ),
    errors.SessionClosed: Kind(409, "session-closed", "The session was closed", "Send it again."),
    errors.SessionConflict: Kind(409, "session-conflict", "The session went on elsewhere", "Fetch it, and try again."),
    errors.SessionError: Kind(409, "session-refused", "Not possible for this session", "Do what `detail` says."),
    errors.LimitReached: Kind(409, "limit-reached", "A limit was reached", "Retry with larger `limits`."),
    errors.TurnError: Kind(502, "turn-failed", "The turn failed", "What it did is kept: retry the session."),
    errors.StoreUnavailable: Kind(503, "store-unavailable", "The store does not answer", "Try again in a moment."),
    errors.DefinitionError: Kind(500, "misconfigured", "The application is wrong here"),
}
_REFUSALS: dict[str, Kind] = {
    "body-too-large": Kind(413, "body-too-large", "The body is too large", "Send less, or have the limit raised."),
    "body-too-deep": Kind(400, "body-too-deep", "The body is nested too deeply", "Send flatter JSON."),
    "body-too-slow": Kind(408, "body-too-slow", "The body came too slowly", "Send it again, faster."),
    "too-many-requests": Kind(429, "too-many-requests", "Too many requests", "Wait as long as Retry-After says."),
    "timeout": Kind(504, "timeout", "It took too long", "What was begun may go on: look before you send it again."),
    "wrong-host": Kind(400, "wrong-host", "Not a host of ours", "Use the server's own name, or have it allowed."),
    "csrf": Kind(
        403, "csrf", "Not from one of our pages", "Load the page again; scripts send X-CSRF-Token, or a bearer token."
    ),
    "malformed": Kind(400, "malformed", "Not a request that can be read", "Send valid JSON of the documented shape."),
    "precondition": Kind(400, "malformed", "A header cannot be read", "Send it as documented."),
}
_STATUSES: dict[int, Kind] = {
    400: Kind(400, "malformed", "Not a request that can be read", "Send what the documentation at /docs says."),
    401: _KINDS[Unauthenticated],
    403: _KINDS[Forbidden],
    404: Kind(404, "not-found", "Nothing here", "GET /openapi.json lists what there is."),
    405: Kind(405, "method-not-allowed", "Not with this method", "The header Allow lists the methods."),
    413: _REFUSALS["body-too-large"],
    415: Kind(415, "unsupported-media-type", "Not in this format", "Send application/json."),
    422: Kind(422, "invalid-request", "Not of the documented shape", "Mend what `errors` names."),
    429: _REFUSALS["too-many-requests"],
    503: _KINDS[errors.StoreUnavailable],
}
_INTERNAL = Kind(500, "internal", "Something failed here", "Try again; if it stays, tell the operator the `incident`.")


class Problem(msgspec.Struct, frozen=True):
    """One problem. `more` are the members beyond those of RFC 9457, `headers` go with the reply."""

    kind: Kind
    detail: str
    more: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}

    @property
    def status(self) -> int:
        return self.kind.status

    @property
    def body(self) -> dict[str, Any]:
        """As it goes out."""
        status, code, title, advice = self.kind
        advised = {"advice": advice} if advice else {}
        head = {"type": f"urn:adjourn:problem:{code}", "title": title, "status": status, "code": code}
        return {**head, "detail": self.detail, **advised, **self.more}

    def response(self) -> Response[bytes]:
        return Response(
            msgspec.json.encode(self.body),
            status_code=self.status,
            media_type=MEDIA_TYPE,
            headers={"cache-control": "no-store", **self.headers},
        )


def problem_of(error: BaseException) -> Problem:
    """The problem that tells of this error. What is nobody's fault but ours is logged, and named by an incident only."""
    if isinstance(error, Refused):
        return Problem(_REFUSALS[error.code], str(error), headers=error.headers)
    if isinstance(error, errors.AdjournError):
        for base in type(error).__mro__:
            if (kind := _KINDS.get(base)) is not None and kind.status != 500:
                return Problem(kind, _detail(error), _more(error), _headers(kind))
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _of_http(error)
    incident = new_id("x_")
    _log.error("incident %s: %s", incident, type(error).__name__, exc_info=error)
    detail = f"This is an error of the server, which was logged as {incident}. Nothing more is said here."
    return Problem(_INTERNAL, detail, {"incident": incident})


def decision_body(decision: Decision) -> dict[str, Any]:
    """A decision as problems and replies show it."""
    d = decision
    at = datetime.fromtimestamp(d.at, UTC).isoformat().replace("+00:00", "Z")
    body: dict[str, Any] = {"id": d.id, "interruptId": d.interrupt_id, "verb": d.verb, "at": at, "by": d.by}
    return body | ({"reason": d.reason} if d.reason else {})


def _detail(error: errors.AdjournError) -> str:
    # What an exception of a tool or a model said is in the session, for those who are told such things.
    if isinstance(error, (errors.ToolFailed, errors.ModelError, errors.HandlerFailed)):
        return f"The turn failed ({type(error).__name__})."
    return str(error)


def _more(error: errors.AdjournError) -> dict[str, Any]:
    if isinstance(error, errors.AlreadyResolved):
        accepted: Any = error.decision
        return {"decision": decision_body(accepted) if isinstance(accepted, Decision) else None}
    if isinstance(error, (errors.InvalidResponse, errors.InvalidInput)):
        return {"errors": [dict(p) for p in error.problems]}
    if isinstance(error, errors.SessionPaused):
        return {"interrupts": [str(getattr(i, "id", i)) for i in error.interrupts]}
    if isinstance(error, VersionChanged):
        return {"version": error.version}
    if isinstance(error, errors.NotJSON):
        return {"errors": [{"path": error.path, "message": error.problem}]}
    return {}


def _headers(kind: Kind) -> dict[str, str]:
    if kind.status == 401:
        return {"www-authenticate": 'Bearer realm="adjourn"'}
    return {"retry-after": "2"} if kind.status == 503 else {}


def _of_http(error: HTTPException) -> Problem:
    if isinstance(error, ValidationException):
        return Problem(_STATUSES[422], "The request is not of the documented shape.", {"errors": _faults(error)})
    if error.status_code == 400 and (unread := _unread(error)):
        return Problem(
            _NO_JSON, f"The body is no valid JSON: {unread}.", {"errors": [{"path": "(body)", "message": unread}]}
        )
    kind = _STATUSES.get(error.status_code) or Kind(error.status_code, "refused", "Refused")
    headers = {k.lower(): v for k, v in (error.headers or {}).items()}
    if isinstance(error, MethodNotAllowedException):
        return Problem(kind, "This address does not take that method.", headers=headers)
    detail = {404: "There is nothing at this address.", 400: "The request cannot be read."}.get(error.status_code)
    return Problem(kind, detail or one_line(error.detail or kind.title), headers={**_headers(kind), **headers})


def _unread(error: BaseException | None) -> str:
    """What is wrong with a body that could not be read, and where; "" for anything else. Nothing of the body is in it."""
    while error is not None:
        if isinstance(error, msgspec.DecodeError):
            found = _MALFORMED.fullmatch(str(error))
            return f"{found[1]} at byte {found[2]}" if found else _UNREAD.get(str(error), "it cannot be read")
        if isinstance(error, RecursionError):
            return "it is nested too deeply"
        error = error.__cause__ or error.__context__
    return ""


_NO_JSON = Kind(
    400, "malformed", "Not a request that can be read",
    "Send JSON in UTF-8, as application/json, of the shape that /docs shows for this request.",
)  # fmt: skip
_MALFORMED = re.compile(r"JSON is malformed: ([a-z': ]+) \(byte (\d+)\)")
_UNREAD = {
    "Input data was truncated": "it ends before it is complete, or has half of a surrogate pair",
    "Invalid UTF-8 encoded string": "a string in it is not UTF-8",
}
_NAMES = {"data": "(body)", "key": "Idempotency-Key", "if_match": "If-Match", "session_id": "session"}
_NO_BODY = "'data'"  # all that Litestar says where there is none


def _faults(error: ValidationException) -> list[dict[str, str]]:
    out: list[dict[str, str]] = []
    for fault in error.extra if isinstance(error.extra, list) else []:
        given: dict[str, Any] = cast(dict[str, Any], fault) if isinstance(fault, dict) else {"message": fault}
        path, message = str(given.get("key") or "data"), str(given.get("message", ""))
        message = "the request needs a JSON body" if message == _NO_BODY else one_line(message)
        out.append({"path": _NAMES.get(path, path), "message": message})
    return out or [{"path": "", "message": one_line(error.detail)}]


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler for everything that has no page."""
    return problem_of(error).response()
