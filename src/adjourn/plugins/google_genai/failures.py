"""What the SDK raises, as ModelError. The texts never hold a key or a prompt."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from adjourn.discretion import discreet
from adjourn.errors import AdjournError, ModelError
from adjourn.parts import Message

_RETRYABLE = (408, 409, 429, 500, 502, 503, 504, 529)
_LONGEST = 300


def model_error(
    error: Exception, provider: str, *, api_key: str | None = None, messages: Sequence[Message] = ()
) -> Exception:
    """The ModelError for what a call raised; errors of ours and of the program stay what they are."""
    if isinstance(error, AdjournError):
        return error
    api_error = _known("google.genai.errors", "APIError")
    if api_error is not None and isinstance(error, api_error):
        return _answered(error, provider, api_key, messages)
    kinds = {c.__name__ for c in type(error).__mro__}
    module = type(error).__module__.split(".", 1)[0]
    if kinds & {"TimeoutException", "TimeoutError"}:
        return ModelError(f"{provider} did not answer in time", provider=provider, retryable=True)
    if module in ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp") or isinstance(error, ConnectionError):
        if kinds & {"RemoteProtocolError", "ReadError", "ClientPayloadError", "DecodingError"}:
            text = f"the reply of {provider} broke off ({type(error).__name__})"
        else:
            text = f"{provider} cannot be reached ({type(error).__name__})"
        return ModelError(text, provider=provider, retryable="InvalidURL" not in kinds)
    if "UnknownApiResponseError" in kinds or isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return ModelError(f"{provider} gave a reply that is not JSON, or broke off", provider=provider, retryable=True)
    if module == "pydantic_core" or "ValidationError" in kinds:
        return ModelError(f"{provider} gave a reply of an unknown shape", provider=provider, retryable=True)
    if type(error).__module__.startswith("google.auth"):
        transient = "TransportError" in kinds
        text = f"{provider} credentials: {_clean(str(error), api_key, ())}"
        return ModelError(text, provider=provider, code=None if transient else 401, retryable=transient)
    return error


def _known(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _answered(error: Any, provider: str, api_key: str | None, messages: Sequence[Message]) -> ModelError:
    code = error.code if isinstance(error.code, int) else None
    details = _details(error.details)
    headers = getattr(error.response, "headers", None)
    said = _clean(str(error.message or ""), api_key, messages)
    text = " ".join([str(s) for s in (provider, "answered", code, error.status) if s])
    return ModelError(
        f"{text}: {said}" if said else text,
        provider=provider,
        code=code,
        retryable=code in _RETRYABLE,
        retry_after=_retry_after(details, headers),
        request_id=_request_id(details, headers),
    )


def _details(body: Any) -> list[Mapping[str, Any]]:
    """The typed details of an error, such as google.rpc.RetryInfo."""
    if not isinstance(body, Mapping):
        return []
    given = cast(Mapping[str, Any], body)
    inner: Any = given.get("error", given)
    listed: Any = cast(Mapping[str, Any], inner).get("details") if isinstance(inner, Mapping) else None
    if not isinstance(listed, list):
        return []
    return [cast(Mapping[str, Any], d) for d in cast(list[Any], listed) if isinstance(d, Mapping)]


def _retry_after(details: Sequence[Mapping[str, Any]], headers: Any) -> float | None:
    said = [d.get("retryDelay") for d in details if str(d.get("@type", "")).endswith("RetryInfo")]
    for value in (*said, headers.get("retry-after") if headers is not None else None):
        text = str(value or "").strip()
        try:
            seconds = float(text.removesuffix("s"))
        except ValueError:
            try:
                seconds = max((parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds(), 0.0)
            except (TypeError, ValueError):
                continue  # nothing, or no date
        if 0 <= seconds < float("inf"):
            return seconds
    return None


def _request_id(details: Sequence[Mapping[str, Any]], headers: Any) -> str | None:
    for detail in details:
        if detail.get("requestId"):
            return str(detail["requestId"])
    names = ("x-goog-request-id", "x-request-id", "x-cloud-trace-context")
    found = [headers.get(n) for n in names] if headers is not None else []
    return next((str(f) for f in found if f), None)


def _clean(text: str, api_key: str | None, messages: Sequence[Message]) -> str:
    """The provider's words without the key and without what was asked, which it sometimes repeats."""
    return discreet(text, messages, (api_key,), longest=_LONGEST)
