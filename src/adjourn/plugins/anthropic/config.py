"""What `config=` may hold for a model of Anthropic, and what its models can do, as far as that is told by their names."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from adjourn.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 8192


class AnthropicConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one request. A plain dict with these keys (snake or camel case) does as well.

    `max_tokens` bounds one reply (8192 unless given; a thinking budget comes on top of that). `thinking` is a budget in
    tokens, "adaptive", "disabled", or the API's own object. `tool_choice` is "auto", "any", "none" or the name of a
    tool, or the API's object. `cache` has the API put a cache marker after the last block that can be cached; for a
    marker elsewhere put `{"anthropic": {"cache_control": {...}}}` in the metadata of a part. `server_tools` are tools
    that run at Anthropic (web search, code execution), in the API's form; `tool_options` are keys of the API to add to
    the definition of a tool, by its name. `structured` says how `output=` is asked for: "native" has the API enforce
    the schema, "prompt" puts it into the system text; without it, native where model and schema allow. `betas` go into
    the anthropic-beta header, `timeout` is in seconds. `raw` is laid over the body of the request, last and as it is.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Sequence[str] = ()
    thinking: int | str | Mapping[str, Any] | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    cache: bool | Literal["5m", "1h"] = False
    service_tier: Literal["auto", "standard_only"] | None = None
    user_id: str | None = None
    structured: Literal["native", "prompt"] | None = None
    server_tools: Sequence[Mapping[str, Any]] = ()
    tool_options: Mapping[str, Mapping[str, Any]] = {}
    betas: Sequence[str] = ()
    timeout: float | None = None
    headers: Mapping[str, str] = {}
    raw: Mapping[str, Any] = {}


def read_config(given: Any) -> AnthropicConfig:
    """The config as given to a request. Raises InvalidRequest for a key or value that it does not have."""
    if given is None:
        return AnthropicConfig()
    if isinstance(given, AnthropicConfig):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"anthropic: config= takes an AnthropicConfig or a dict, not {type(given).__name__}")
    plain = {_snake(str(k)): v for k, v in cast(Mapping[Any, Any], given).items()}
    if "max_output_tokens" in plain:  # Genkit's name for it, so that one dict serves several providers
        plain["max_tokens"] = plain.pop("max_output_tokens")
    try:
        return msgspec.convert(plain, AnthropicConfig)
    except msgspec.ValidationError as e:
        known = ", ".join(AnthropicConfig.__struct_fields__)
        raise InvalidRequest(
            f"anthropic: config: {e}. It takes {known}; anything else of the API goes into raw={{...}}"
        ) from None


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m[1].lower(), key)


_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")


def _version(model: str) -> tuple[int, int]:
    """The version in a model's name; a name without one is taken as newer than all we know."""
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)


def enforces_schemas(model: str) -> bool:
    """Whether the API can hold this model to an output schema."""
    return _version(model) >= ((4, 1) if "opus" in model else (4, 5))


def takes_later_system_messages(model: str) -> bool:
    """Whether a system message may stand between others. For older models it goes to the head, with the first."""
    return _version(model) >= (4, 8)


def thinking_of(config: AnthropicConfig) -> Mapping[str, Any] | None:
    """The API's object for `thinking`."""
    given = config.thinking
    if given is None or isinstance(given, Mapping):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        return {"type": "enabled", "budget_tokens": given}
    if given in ("adaptive", "disabled"):
        return {"type": given}
    raise InvalidRequest(
        f"anthropic: config: thinking={given!r}; give a number of tokens, 'adaptive', 'disabled' or the API's object"
    )


def max_tokens_of(config: AnthropicConfig, thinking: Mapping[str, Any] | None) -> int:
    """The bound of a reply. The API counts thinking against it and refuses one that its budget fills up."""
    if config.max_tokens is not None:
        return config.max_tokens
    budget = (thinking or {}).get("budget_tokens")
    return DEFAULT_MAX_TOKENS + (budget if isinstance(budget, int) else 0)
