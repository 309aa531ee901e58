"""The description of the API (OpenAPI 3.1), and a page that shows it: no script, nothing from elsewhere."""

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.config.app import AppConfig
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.plugins import InitPlugin
from litestar.types import ControllerRouterHandler

from adjourn import parts
from adjourn.server import api_docs, api_shapes
from adjourn.server.api_agents import WAIT_AT_MOST
from adjourn.server.problems import MEDIA_TYPE
from adjourn.server.settings import ServerSettings

DESCRIPTION = (
    "Agents whose tool calls pause for a person. List what waits, decide on it, run agents and look into their sessions.\n\n"
    "Every request needs a token (`Authorization: Bearer …`) or a signed-in session; what you may not see does not exist. "
    "Errors are problems (RFC 9457) whose `code` you can rely on. A decision is answered when it is stored; the turn goes on "
    "in the background."
)


def _version() -> str:
    try:
        return version("adjourn")
    except PackageNotFoundError:  # it runs from its sources
        return "0"


CONFIG = OpenAPIConfig(
    title="Adjourn",
    version=_version(),
    description=DESCRIPTION,
    use_handler_docstrings=True,
    render_plugins=[JsonRenderPlugin()],
    components=Components(
        security_schemes={
            "token": SecurityScheme(type="http", scheme="bearer", description="A token of this server."),
            "session": SecurityScheme(
                type="apiKey",
                name="adjourn_session",
                security_scheme_in="cookie",
                description="A browser that is signed in. What changes something also needs the header X-CSRF-Token.",
            ),
        }
    ),
)
_SHOWN = ("/api/", "/health", "/ready", "/metrics")
_ALWAYS = (400, 401, 403, 408, 413, 422, 429, 500, 503)
_WORDS = {
    400: "The request cannot be read",
    401: "Not signed in",
    403: "Not allowed",
    404: "No such thing, or not yours to see",
    405: "Not with this method",
    408: "The body came too slowly",
    409: "It conflicts with what is, or with what was decided before",
    410: "Too late: nobody can decide any more",
    412: "It is no longer what was shown",
    413: "The body is too large",
    422: "It does not fit; `errors` says where",
    429: "Too many requests",
    500: "An error of the server",
    503: "A store does not answer",
}
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "An error, after RFC 9457. `code` is for programs, `detail` and `advice` for people.",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:adjourn:problem:already-resolved"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "examples": ["already-resolved"]},
        "detail": {"type": "string"},
        "advice": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
                "required": ["path", "message"],
            },
        },
        "decision": {
            "description": "The decision that counts, where somebody decided before.",
            "type": ["object", "null"],
        },
        "interrupts": {"type": "array", "items": {"type": "string"}},
        "version": {"type": "string", "description": "The newest ETag."},
        "incident": {"type": "string", "description": "What the operator finds in the log."},
    },
}
_EXAMPLES: dict[str, Any] = {
    "Respond": {"output": {"approved": True}},
    "Restart": {"metadata": {"approvedBy": "ann"}, "replaceInput": {"order": 17, "euros": 40}},
    "Decline": {"reason": "The customer has been refunded already."},
    "DecideMany": {"tool": "refund", "verb": "decline", "items": [{"id": "i_1"}], "reason": "Not on a Sunday."},
    "Send": {"message": "My order 17 arrived broken."},
    "Resume": {"sessionId": "s_1", "respond": [{"interrupt": "i_1", "output": "yes"}]},
    "MakeLink": {"by": "ann", "verbs": ["respond", "decline"], "expiresIn": 86400},
    "DecideLink": {"verb": "decline", "reason": "Too much."},
    "SignIn": {"token": "adj_…"},
    "RetrySession": {"limits": {"modelCalls": 100}},
    "ForkSession": {"snapshotId": "n_1"},
    "AbortSession": {"reason": "No longer needed."},
}
_LAST = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The id of the last event that came; browsers send it by themselves. What followed it comes first.",
}
_STREAM = {
    "200": {"description": "Events, each with an id", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
_LIVE: dict[str, dict[str, Any]] = {
    "/api/events": {
        "operationId": "InboxEvents",
        "summary": "What happens in the inbox, live",
        "description": "What opens, is settled and waits once more, as server-sent events, as far as this principal sees it.",
        "tags": ["Live"],
        "parameters": [_LAST],
        "responses": dict(_STREAM),
    },
    "/api/sessions/{session_id}/events": {
        "operationId": "SessionEvents",
        "summary": "What happens in one session, live",
        "description": "From the beginning of its journal on, as server-sent events.",
        "tags": ["Live"],
        "parameters": [
            {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}},
            _LAST,
        ],
        "responses": dict(_STREAM),
    },
}
"""Described by hand: Litestar knows the streams as raw ASGI."""
_RETRY = {"description": "Seconds to wait", "schema": {"type": "integer"}}


def routes(settings: ServerSettings) -> Sequence[ControllerRouterHandler]:
    return [openapi, docs, stylesheet] if settings.docs else []


@get("/openapi.json", opt={"public": True}, include_in_schema=False, sync_to_thread=False)
def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """This API, as OpenAPI 3.1."""
    body = described(request.app, str(request.scope.get("root_path", "")))  # pyright: ignore[reportUnknownMemberType]
    return Response(msgspec.json.encode(body), media_type="application/json", headers={"cache-control": "no-cache"})


@get("/docs", opt={"public": True}, include_in_schema=False, sync_to_thread=False)
def docs(request: Request[Any, Any, Any]) -> Response[str]:
    """The same, to be read."""
    root = str(request.scope.get("root_path", ""))  # pyright: ignore[reportUnknownMemberType]
    return Response(_page(request.app, root), media_type="text/html")


@get("/docs/style.css", opt={"public": True}, include_in_schema=False, sync_to_thread=False)
def stylesheet() -> Response[str]:
    """How it looks."""
    return Response(api_docs.STYLE, media_type="text/css", headers={"cache-control": "public, max-age=3600"})


@lru_cache(maxsize=4)
def _page(app: Litestar, root: str) -> str:
    return api_docs.page(described(app, root), root)


@lru_cache(maxsize=4)
def described(app: Litestar, root_path: str) -> dict[str, Any]:
    """The description, with what is the same for every operation: who may, and how errors look."""
    for plugin in app.plugins.init:
        if type(plugin).__name__ == "OpenAPIPlugin" and isinstance(plugin, InitPlugin):
            # Given to it here, not to the application: Litestar would serve pages that load scripts from elsewhere.
            plugin.on_app_init(AppConfig(openapi_config=CONFIG))
    schema: dict[str, Any] = app.openapi_schema.to_schema()
    schema["servers"] = [{"url": root_path or "/"}]
    schema["components"].setdefault("schemas", {})["Problem"] = _PROBLEM
    _tell_shapes(schema["components"]["schemas"])
    schema["paths"] |= {path: {"get": copy.deepcopy(operation)} for path, operation in _LIVE.items()}
    paths: dict[str, Any] = {p: item for p, item in schema["paths"].items() if p.startswith(_SHOWN)}
    schema["paths"] = dict(sorted(paths.items()))
    traits = _traits(app)
    for item in paths.values():
        for verb in item:
            operation: dict[str, Any] = item[verb]
            if "responses" in operation:
                _complete(operation, traits.get(operation["operationId"], {"problems": (404,)}))
    return schema


def _traits(app: Litestar) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if isinstance(handler.operation_id, str):
                found[handler.operation_id] = handler.opt
    return found


def _complete(operation: dict[str, Any], opt: Mapping[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    responses.get("204", {}).pop("content", None)
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _given(parameter["schema"])
    body: dict[str, Any] = operation.get("requestBody", {})
    for media in body.get("content", {}).values():
        if "oneOf" in media["schema"]:
            media["schema"], body["required"] = _given(media["schema"]), False
    for status in sorted({*_ALWAYS, *opt.get("problems", ())}):
        if status == 401 and opt.get("public") and operation["operationId"] != "SignIn":
            continue
        responses[str(status)] = {
            "description": _WORDS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        if status in (429, 503):
            responses[str(status)]["headers"] = {"Retry-After": _RETRY}
    if opt.get("runs"):
        good: dict[str, Any] = responses["200"]["content"]
        responses["202"] = {"description": "It still runs; its session has the rest", "content": dict(good)}
        good["text/event-stream"] = {"schema": {"type": "string", "description": "`chunk` events, then one `result`."}}
    if opt.get("unready"):
        responses["503"] = {**responses["200"], "description": _WORDS[503]}
    operation["security"] = [] if opt.get("public") else [{"token": []}, {"session": []}]
    example = _EXAMPLES.get(operation["operationId"])
    for media in operation.get("requestBody", {}).get("content", {}).values() if example is not None else ():
        media["example"] = example


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """What may be left out is not null when it is there; and Litestar forgets a least value of 0."""
    kinds = [k for k in schema.get("oneOf", ()) if k.get("type") != "null"]
    if len(kinds) == 1:
        schema = {**kinds[0], **{k: v for k, v in schema.items() if k != "oneOf"}}
    return {**schema, "minimum": 0} if schema.get("maximum") == WAIT_AT_MOST else schema


def _tell_shapes(schemas: dict[str, Any]) -> None:
    """What the shapes mean, and that what comes in has no other fields than these."""
    for shape in [*vars(api_shapes).values(), *vars(parts).values()]:
        if not (isinstance(shape, type) and issubclass(shape, msgspec.Struct) and shape.__name__ in schemas):
            continue
        told: dict[str, Any] = schemas[shape.__name__]
        if shape.__doc__:
            told.setdefault("description", " ".join(shape.__doc__.split()))
        if issubclass(shape, api_shapes.Asked):
            told["additionalProperties"] = False
