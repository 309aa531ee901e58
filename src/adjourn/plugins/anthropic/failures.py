"""What goes wrong at Anthropic, as ModelError. No text of it holds a key or a message of the conversation."""

import email.utils
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn.discretion import discreet
from adjourn.errors import ModelError
from adjourn.parts import Message

PROVIDER = "anthropic"
_MOST = 400

# The types of errors that come within a stream, where there is no status any more.
_CODES: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def refused(problem: str) -> ModelError:
    """A request that the plugin does not send, because it cannot work."""
    return ModelError(f"{PROVIDER}: {problem}", provider=PROVIDER)


def broken(problem: str, request_id: str | None = None) -> ModelError:
    """A reply that is none. The same request may well work again."""
    return ModelError(f"{PROVIDER}: {problem}", provider=PROVIDER, retryable=True, request_id=request_id)


def can_work_later(code: int) -> bool:
    return code in (408, 409, 425, 429) or (code >= 500 and code not in (501, 505))


class Scrubber:
    """Takes keys and the conversation's own words out of what the provider says about a failure."""

    def __init__(self, messages: Sequence[Message], keys: Sequence[str | None]) -> None:
        self._messages = messages
        self._keys = keys

    def __call__(self, text: str) -> str:
        return discreet(text, self._messages, self._keys, longest=_MOST)


def failure(error: Exception, scrub: Scrubber) -> ModelError:
    """The ModelError for whatever the SDK or the HTTP library under it raised."""
    if isinstance(error, ModelError):
        return error
    response: Any = getattr(error, "response", None)
    code: Any = getattr(error, "status_code", None)
    if response is not None and isinstance(code, int):
        return _status(code, getattr(error, "body", None), response.headers, scrub)
    # By name: the HTTP library under the SDK is its own affair, and has changed.
    kind, module = type(error).__name__, type(error).__module__.partition(".")[0]
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return broken("the request timed out")
    if "Connection" in kind or module in ("httpx", "httpx2", "httpcore", "httpcore2") or isinstance(error, OSError):
        return broken(f"the connection failed ({kind})")
    if "Credential" in kind or (isinstance(error, TypeError) and "authentication" in str(error)):
        text = "there are no credentials: set ANTHROPIC_API_KEY, or give Anthropic(api_key=...)"
        return ModelError(f"{PROVIDER}: {text}", provider=PROVIDER, code=401)
    return ModelError(f"{PROVIDER}: {kind}: {scrub(str(error))}", provider=PROVIDER)


def _status(code: int, body: Any, headers: Mapping[str, str], scrub: Scrubber) -> ModelError:
    kind, message, request_id = _described(body)
    text = f"{PROVIDER}: HTTP {code} {kind}".rstrip() + (f": {scrub(message)}" if message else "")
    again = headers.get("x-should-retry")
    return ModelError(
        text,
        provider=PROVIDER,
        code=code,
        retryable=again == "true" if again in ("true", "false") else can_work_later(code),
        retry_after=retry_after(headers),
        request_id=headers.get("request-id") or request_id,
    )


def in_band(body: Any, headers: Mapping[str, str], scrub: Scrubber) -> ModelError:
    """An error object in the place of a reply, or in the middle of one."""
    kind, message, request_id = _described(body)
    code = _CODES.get(kind)
    return ModelError(
        f"{PROVIDER}: the reply failed with {kind or 'an error'}" + (f": {scrub(message)}" if message else ""),
        provider=PROVIDER,
        code=code,
        retryable=code is None or can_work_later(code),
        request_id=request_id or headers.get("request-id"),
    )


def _described(body: Any) -> tuple[str, str, str | None]:
    if not isinstance(body, Mapping):
        return "", str(body or ""), None
    given = cast(Mapping[str, Any], body)
    error: Any = given.get("error")
    request_id = given.get("request_id")
    inner: Mapping[str, Any] = cast(Mapping[str, Any], error) if isinstance(error, Mapping) else {"message": error}
    return str(inner.get("type") or ""), str(inner.get("message") or ""), str(request_id) if request_id else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until the provider wants to be asked again, where it says so."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        given = headers.get(name) or ""
        try:
            seconds = float(given) * unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(given).timestamp() - time.time()
            except (ValueError, OverflowError):
                continue  # nothing, or no date
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
