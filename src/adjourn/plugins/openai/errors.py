"""What goes wrong with a call, as ModelError: the SDK's errors, errors inside a reply, and streams that break off."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec

from adjourn.discretion import without_keys
from adjourn.errors import ModelError

LONGEST = 340
"""So much of an error's text is kept."""

_FINAL = {"insufficient_quota", "billing_hard_limit_reached", "credits_exhausted", "invalid_api_key"}
"""Codes that no waiting helps against, although some come with status 429."""
_STATUS_OF = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "overloaded": 503,
    "overloaded_error": 529,
    "server_is_overloaded": 503,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "model_not_found": 404,
}
_OVER_AGAIN = {408, 409, 425, 429}


def clean(text: str, secret: str = "") -> str:
    """The text without anything that looks like a key. What it quotes is taken out by `Connection.ask`, who knows it."""
    return without_keys(text, (secret,))


def in_band(error: Any, provider: str, secret: str = "", request_id: str | None = None) -> ModelError:
    """The error that a reply with a good status carries: its `error` object, or an `error` event."""
    code, kind, message = _said(error)
    status = code if code is not None else _STATUS_OF.get(kind)
    retryable = kind not in _FINAL and (status is None or _may_work_later(status))
    return _made(provider, message or kind or "it failed without a word", status, retryable, None, request_id, secret)


def from_sdk(error: Exception, provider: str, secret: str = "", *, begun: bool = False) -> ModelError | None:
    """The ModelError for what the SDK (or the HTTP library below it) raised; None for what is neither's.

    `begun`: it happened within a stream.
    """
    import openai

    made: ModelError | None = None
    if isinstance(error, openai.APIStatusError):
        made = _from_status(error, provider, secret)
    elif isinstance(error, openai.APITimeoutError) or _is_transport(error, "Timeout"):
        made = ModelError(f"{provider}: no answer in time", provider=provider, retryable=True)
    elif isinstance(error, openai.APIConnectionError):
        reason = clean(str(error.__cause__ or error), secret)
        made = (
            broken_off(provider, reason)
            if begun
            else ModelError(f"{provider} cannot be reached: {reason}", provider=provider, retryable=True)
        )
    elif isinstance(error, openai.APIError):  # an error event within a stream
        made = in_band(error.body or {"message": error.message}, provider, secret)
    elif isinstance(error, openai.OpenAIError):
        made = ModelError(f"{provider}: {clean(str(error), secret)}", provider=provider)
    elif _is_transport(error):
        made = broken_off(provider, clean(str(error), secret))
    elif isinstance(error, (json.JSONDecodeError, msgspec.DecodeError, UnicodeDecodeError)):
        made = malformed(provider, clean(str(error), secret))
    return made


def malformed(provider: str, problem: str) -> ModelError:
    """For a reply that cannot be read."""
    return ModelError(f"{provider} sent a reply that cannot be read: {problem}", provider=provider, retryable=True)


def broken_off(provider: str, problem: str = "it ended without an end") -> ModelError:
    """For a stream that stopped in the middle."""
    return ModelError(f"{provider}: the stream broke off: {problem}", provider=provider, retryable=True)


def empty(provider: str) -> ModelError:
    """For a reply with nothing in it."""
    return ModelError(f"{provider} sent an empty reply", provider=provider, retryable=True)


def _from_status(error: Any, provider: str, secret: str) -> ModelError:
    headers: Mapping[str, str] = error.response.headers
    status: int = error.status_code
    _, kind, message = _said(error.body)
    message = message or _text_of(error)
    retryable = kind not in _FINAL and _may_work_later(status)
    wish = headers.get("x-should-retry")
    if wish in ("true", "false"):
        retryable = wish == "true"
    request_id = headers.get("x-request-id") or headers.get("request-id")
    return _made(provider, message, status, retryable, retry_after(headers), request_id, secret)


def _made(
    provider: str,
    message: str,
    status: int | None,
    retryable: bool,
    after: float | None,
    request_id: str | None,
    secret: str,
) -> ModelError:
    head = provider if status is None else f"{provider} answered {status}"
    return ModelError(
        f"{head}: {clean(message, secret)}",
        provider=provider,
        code=status,
        retryable=retryable,
        retry_after=after,
        request_id=request_id,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, as the headers have it: milliseconds, seconds, or a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        given = headers.get(name)
        if given is None:
            continue
        try:
            seconds = float(given) * unit
        except ValueError:
            try:
                seconds = (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds()
            except (TypeError, ValueError):
                continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    return None


def _may_work_later(status: int) -> bool:
    return status in _OVER_AGAIN or status >= 500


def _said(body: Any) -> tuple[int | None, str, str]:
    """Status, code word and message out of any of the shapes in which servers write an error."""
    if isinstance(body, str):
        return None, "", "" if body.lstrip().startswith("<") else body
    if not isinstance(body, Mapping):
        return None, "", ""
    given = cast(Mapping[str, Any], body)
    inner: Any = given.get("error")
    if isinstance(inner, Mapping):
        given = cast(Mapping[str, Any], inner)
    elif isinstance(inner, str):
        return None, "", inner
    code = given.get("code") or given.get("status")
    number = code if isinstance(code, int) and 400 <= code < 600 else None
    if isinstance(code, str) and code.isdecimal() and 400 <= int(code) < 600:
        number = int(code)
    word = code if isinstance(code, str) and number is None else given.get("type")
    message = given.get("message") or given.get("detail") or ""
    return number, str(word or ""), message if isinstance(message, str) else str(message)


def _text_of(error: Any) -> str:
    """The bare body where it has no message; a page of HTML says nothing worth keeping."""
    try:
        text = str(error.response.text).strip()
    except RuntimeError:  # a stream whose body nobody has read
        text = ""
    return "(no message)" if not text or text.startswith("<") else text


def _is_transport(error: BaseException, word: str = "") -> bool:
    """Whether the HTTP library raised it. By name, since the SDK has changed the library it stands on."""
    kinds = type(error).__mro__
    ours = any(k.__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2") for k in kinds)
    return ours and (not word or any(word in k.__name__ for k in kinds))
