"""What `config=` may hold for a Gemini model, and the model names whose rules differ."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from adjourn.dialect import Names
from adjourn.errors import InvalidRequest
from adjourn.parts import convert

Level = Literal["minimal", "low", "medium", "high"]
ToolChoice = Literal["auto", "any", "none", "validated"]


class GoogleConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """Settings of one request. As a dict it may have these names in snake case or camel case.

    `thinking_budget` is in tokens (Gemini 2.5; -1 lets the model choose, 0 is off), `thinking_level` is its successor
    (Gemini 3); `include_thoughts` asks for summaries. `tool_choice` is the function-calling mode, `allowed_tools` narrows
    "any" and "validated". `safety_settings` maps harm categories to thresholds, by their API names. `stream_arguments`
    streams the arguments of calls (Vertex AI only). `extra` holds any other fields of the SDK's
    `GenerateContentConfig`, merged last: for these you answer yourself.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: Sequence[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_modalities: Sequence[str] | None = None
    media_resolution: str | None = None
    cached_content: str | None = None
    labels: Mapping[str, str] | None = None
    thinking_budget: int | None = None
    thinking_level: Level | None = None
    include_thoughts: bool | None = None
    safety_settings: Mapping[str, str] | None = None
    tool_choice: ToolChoice | None = None
    allowed_tools: Sequence[str] | None = None
    stream_arguments: bool = False
    extra: Mapping[str, Any] | None = None


# Those that the SDK's config calls the same and takes as they are.
_SAME = (
    "temperature", "top_p", "top_k", "max_output_tokens", "seed", "presence_penalty", "frequency_penalty",
    "media_resolution", "cached_content",
)  # fmt: skip


def read_config(value: Any) -> GoogleConfig:
    """The config that a request carries. Raises InvalidRequest, naming the field, for what is none."""
    if value is None:
        return GoogleConfig()
    if isinstance(value, GoogleConfig):
        return value
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"config= of a Gemini model takes a GoogleConfig or a dict, not a {type(value).__name__}")
    given = cast(Mapping[str, Any], value)
    plain = {_camel(k): v for k, v in given.items()}
    if "maxTokens" in plain:  # others' name for it, so that one dict serves several providers
        plain["maxOutputTokens"] = plain.pop("maxTokens")
    try:
        return convert(plain, GoogleConfig)
    except InvalidRequest as e:
        raise InvalidRequest(f"{e} (other fields of the SDK's GenerateContentConfig go into `extra`)") from None


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join([r[:1].upper() + r[1:] for r in rest])


def sdk_fields(config: GoogleConfig, names: Names) -> dict[str, Any]:
    """The config as fields of the SDK's `GenerateContentConfig`, without `extra`."""
    out: dict[str, Any] = {k: v for k in _SAME if (v := getattr(config, k)) is not None}
    if config.stop_sequences is not None:
        out["stop_sequences"] = list(config.stop_sequences)
    if config.response_modalities is not None:
        out["response_modalities"] = list(config.response_modalities)
    if config.labels is not None:
        out["labels"] = dict(config.labels)
    thinking: dict[str, Any] = {
        "thinking_budget": config.thinking_budget,
        "thinking_level": config.thinking_level.upper() if config.thinking_level else None,
        "include_thoughts": config.include_thoughts,
    }
    if any(v is not None for v in thinking.values()):
        out["thinking_config"] = {k: v for k, v in thinking.items() if v is not None}
    if config.safety_settings:
        settings = config.safety_settings.items()
        out["safety_settings"] = [{"category": c.upper(), "threshold": t.upper()} for c, t in settings]
    calling: dict[str, Any] = {}
    if config.tool_choice is not None:
        calling["mode"] = config.tool_choice.upper()
    if config.allowed_tools is not None:
        calling["allowed_function_names"] = [names.outward(t) for t in config.allowed_tools]
    if config.stream_arguments:
        calling["stream_function_call_arguments"] = True
    if calling:
        out["tool_config"] = {"function_calling_config": calling}
    return out


_GENERATION = re.compile(r"gemini-(\d+)")


def generation(model: str) -> int:
    """The generation of a Gemini by its name: 3 for "gemini-3.1-pro-preview", 0 for what is no Gemini.

    The aliases such as "gemini-flash-latest" have moved on to Gemini 3, whose rules are the stricter ones.
    """
    name = model.rsplit("/", 1)[-1]
    found = _GENERATION.match(name)
    if found:
        return int(found[1])
    return 3 if name.startswith("gemini-") and name.endswith("-latest") else 0
