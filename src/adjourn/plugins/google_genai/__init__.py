"""Gemini through the official SDK, `google-genai`: the Gemini API as `googleai/...`, Vertex AI as `vertexai/...`.

    ai = Adjourn(plugins=[GoogleAI()], model="googleai/gemini-flash-latest")

The SDK is imported with the first request. What Gemini says beside its parts (thought signatures above all) is kept in
their metadata under `google`, and only Gemini is sent it again.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast

from adjourn.dialect import Names
from adjourn.errors import InvalidRequest, ModelError, UnknownModel
from adjourn.model import Emit, ModelReply, ModelRequest
from adjourn.parts import Chunk
from adjourn.plugins.google_genai.clients import Clients
from adjourn.plugins.google_genai.config import GoogleConfig, generation, read_config, sdk_fields
from adjourn.plugins.google_genai.contents import Dialect, contents, system_parts
from adjourn.plugins.google_genai.dialect import adapted, names_of, tool_schema
from adjourn.plugins.google_genai.failures import model_error
from adjourn.plugins.google_genai.replies import ReplyAssembly

__all__ = ["Gemini", "GoogleAI", "GoogleConfig", "VertexAI"]

_MODELS = (
    "gemini-flash-latest",
    "gemini-flash-lite-latest",
    "gemini-pro-latest",
    "gemini-3.6-flash",
    "gemini-3.1-pro-preview",
    "gemini-3-flash-preview",
    "gemini-2.5-pro",
    "gemini-2.5-flash",
    "gemini-2.5-flash-lite",
)


class GoogleAI:
    """The Gemini API. Without `api_key`, GEMINI_API_KEY or GOOGLE_API_KEY in the environment is used.

    `timeout` is in seconds, for one request. `http_options` are further fields of the SDK's `HttpOptions`. Requests are
    not retried here (Adjourn's own wrappers do that, and count), unless `http_options` has `retry_options`.
    """

    name = "googleai"

    def __init__(
        self,
        api_key: str | None = None,
        *,
        base_url: str | None = None,
        timeout: float | None = 600.0,
        http_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._api_key = api_key
        self._http = _http_options(base_url, timeout, http_options)
        self._clients = Clients(self._client)

    def __repr__(self) -> str:
        return "<GoogleAI>"

    def _key(self) -> str | None:
        return self._api_key or os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")

    def _client(self, sdk: Any) -> Any:
        key = self._key()
        if not key:
            raise ModelError(
                "googleai has no API key: set GEMINI_API_KEY, or give GoogleAI(api_key=...)", provider=self.name
            )
        # The SDK's default became "v1", which lacks JSON schemas for tools and most of what is new.
        version = os.environ.get("GOOGLE_GENAI_API_VERSION", "beta")
        return sdk.Client(
            vertexai=False,
            api_key=key,
            http_options={"api_version": "v1beta" if version == "beta" else version, **self._http},
        )

    def model(self, name: str) -> "Gemini":
        """Any model that the API has, whether listed here or not."""
        return _model(self.name, name, self._clients, self._key)

    def list_models(self) -> Iterable[str]:
        """Well-known ones; the API knows more."""
        return list(_MODELS)

    async def aclose(self) -> None:
        """Closes the connections of this event loop. They are closed with the loop in any case."""
        await self._clients.aclose()


class VertexAI:
    """Gemini on Vertex AI, with Google Cloud's own credentials, or with `api_key` in express mode.

    Without `project` and `location`, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION are used. `credentials` are those of
    `google.auth`; without any, the application default ones. The rest is as with GoogleAI.
    """

    name = "vertexai"

    def __init__(
        self,
        project: str | None = None,
        location: str | None = None,
        *,
        credentials: Any = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float | None = 600.0,
        http_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._project = project
        self._location = location
        self._credentials = credentials
        self._api_key = api_key
        self._http = _http_options(base_url, timeout, http_options)
        self._clients = Clients(self._client)

    def __repr__(self) -> str:
        return f"<VertexAI project={self._project!r} location={self._location!r}>"

    def _key(self) -> str | None:
        return self._api_key or os.environ.get("GOOGLE_API_KEY")  # where the SDK looks, too

    def _client(self, sdk: Any) -> Any:
        given = {
            "project": self._project,
            "location": self._location,
            "credentials": self._credentials,
            "api_key": self._api_key,
        }
        try:
            known = {k: v for k, v in given.items() if v is not None}
            return sdk.Client(vertexai=True, http_options=dict(self._http), **known)
        except ValueError as e:
            raise ModelError(f"vertexai cannot be set up: {e}", provider=self.name) from None

    def model(self, name: str) -> "Gemini":
        """Any model that the project has, also a tuned one by its full resource name."""
        return _model(self.name, name, self._clients, self._key)

    def list_models(self) -> Iterable[str]:
        """Well-known ones; Vertex AI knows more, and none of the aliases."""
        return [m for m in _MODELS if not m.endswith("-latest")]

    async def aclose(self) -> None:
        """Closes the connections of this event loop. They are closed with the loop in any case."""
        await self._clients.aclose()


def _http_options(base_url: str | None, timeout: float | None, more: Mapping[str, Any] | None) -> dict[str, Any]:
    # Without this the SDK's aiohttp back end tries once more by itself, after up to ten seconds.
    out: dict[str, Any] = {"retry_options": {"attempts": 1}}
    if base_url is not None:
        out["base_url"] = base_url
    if timeout is not None:
        out["timeout"] = int(timeout * 1000)
    return {**out, **(more or {})}


def _model(provider: str, name: str, clients: Clients, key: Callable[[], str | None]) -> "Gemini":
    if not name or any(c.isspace() for c in name):
        raise UnknownModel(f"{name!r} is no name of a Gemini model")
    return Gemini(provider, name, clients, key)


class Gemini:
    """One model. `config=` takes a GoogleConfig or a dict with the same fields."""

    def __init__(self, provider: str, model: str, clients: Clients, key: Callable[[], str | None]) -> None:
        self.name = f"{provider}/{model}"
        self._provider = provider
        self._model = model
        self._dialect = Dialect(provider, generation(model))
        self._clients = clients
        self._key = key

    def __repr__(self) -> str:
        return f"<Gemini {self.name}>"

    def check(self, request: ModelRequest) -> None:
        """Raises SignatureError for tools or an output that Gemini cannot express, InvalidRequest for a wrong config."""
        self._config(request, names_of([t.name for t in request.tools]))

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        names = names_of([t.name for t in request.tools])
        config = self._config(request, names)
        said = contents(request.messages, self._dialect, names)
        assembly = ReplyAssembly(self._provider, self._model, [t.name for t in request.tools])
        try:
            sdk, client = await self._clients.get()
            call = {
                "model": self._model,
                "contents": [_checked(sdk.types.Content, c) for c in said],
                "config": _checked(sdk.types.GenerateContentConfig, config),
            }
            if request.streaming:
                async with aclosing(await client.aio.models.generate_content_stream(**call)) as responses:
                    async for response in responses:
                        news = assembly.add(response)
                        if news:
                            emit(Chunk(content=news))
            else:
                assembly.add(await client.aio.models.generate_content(**call))
        except Exception as e:
            error = model_error(e, self._provider, api_key=self._key(), messages=request.messages)
            if error is e:
                raise
            # Not as its cause: what the SDK raises quotes whole replies and requests.
            raise error from None
        return assembly.reply(streamed=request.streaming)

    def _config(self, request: ModelRequest, names: Names) -> dict[str, Any]:
        config = read_config(request.config)
        out = sdk_fields(config, names)
        system = system_parts(request.messages)
        schema = request.output_schema
        if schema is not None:
            schema = adapted(schema, "output=")
            if request.tools and self._dialect.generation < 3:
                # Older ones refuse a response schema beside tools, so they are asked in words; the reply is validated.
                system.append(
                    {
                        "text": f"Give your final answer as JSON, nothing else, that fits this schema: {json.dumps(schema)}"
                    }
                )
            else:
                out |= {"response_mime_type": "application/json", "response_json_schema": schema}
        if system:
            out["system_instruction"] = {"role": "user", "parts": system}
        if request.tools:
            declared = [
                {
                    "name": names.outward(t.name),
                    "description": t.description,
                    "parameters_json_schema": tool_schema(t.name, t.input_schema),
                }
                for t in request.tools
            ]
            out["tools"] = [{"function_declarations": declared}]
        more = dict(config.extra or {})
        out["tools"] = [*out.get("tools", ()), *cast(list[Any], more.pop("tools", None) or [])]
        if not out["tools"]:
            del out["tools"]
        # The SDK would otherwise run tools that are functions. Ours are not, and pausing is ours to do.
        return {**out, "automatic_function_calling": {"disable": True}, **more}


def _checked(kind: Any, value: dict[str, Any]) -> Any:
    """The value as the SDK's own type. Raises InvalidRequest, naming the fields and not what is in them."""
    try:
        return kind.model_validate(value)
    except ValueError as e:
        errors: Any = getattr(e, "errors", None)
        listed: list[dict[str, Any]] = errors(include_input=False) if errors is not None else []
        problems = [".".join(map(str, p["loc"])) + ": " + str(p["msg"]) for p in listed]
        raise InvalidRequest(f"the SDK does not take this {kind.__name__}: {'; '.join(problems[:5])}") from None
