"""Models: what one is given, what it gives back, and how one is found by name."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, get_args, runtime_checkable

import msgspec
from msgspec.structs import replace

from adjourn.errors import DefinitionError, DuplicateName, ModelError, NotJSON, UnknownModel
from adjourn.parts import OURS, Chunk, FinishReason, Media, Message, Metadata, Part, Usage, encode, to_json

Emit: TypeAlias = Callable[[Chunk], None]


class ToolDefinition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True):
    """What a model is told about a tool. The schemas are JSON schema."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None


class ModelRequest(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """One call of a model. `streaming` says whether anybody listens; `output_schema` is set for `output=`."""

    messages: Sequence[Message]
    tools: Sequence[ToolDefinition] = ()
    config: Any = None
    output_schema: Mapping[str, Any] | None = None
    streaming: bool = False


class ModelReply(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", repr_omit_defaults=True, gc=False):
    """What a model said. `raw` is whatever the provider sent beside it, and is not stored."""

    message: Message
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    raw: Any = None


@runtime_checkable
class Model(Protocol):
    """Anything with a name that turns a request into a reply.

    It may call `emit` with chunks as they come, and returns the whole message all the same (`collect` builds it from the
    chunks). It raises ModelError for what went wrong. Chunks are for watching; the reply is what counts.

    It may also have a method `check(request)`, see `Checking`.
    """

    @property
    def name(self) -> str: ...

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply: ...


class Checking(Protocol):
    """A model that can tell beforehand what it cannot be asked.

    `check` is given a request without messages: the tools, the output schema and the config of an agent or of a
    `generate`. It raises DefinitionError (or InvalidRequest, for a config that is none) where no request with these could
    be sent. It depends on nothing else and talks to nobody: it is called once, when they are first known.
    """

    def check(self, request: ModelRequest) -> None: ...


class Checks:
    """What models were asked about already, so that each is asked once about the same tools, output and config."""

    def __init__(self) -> None:
        self._passed: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def __call__(
        self, model: Model, tools: Sequence[ToolDefinition], config: Any, output_schema: Mapping[str, Any] | None
    ) -> None:
        """Raises what the model's `check` raises; nothing for a model without one."""
        check: Callable[[ModelRequest], None] | None = getattr(model, "check", None)
        if check is None:
            return
        about = (model, config, output_schema, *tools)
        key = tuple([id(a) for a in about])  # kept beside it, so that no id is used again
        if key in self._passed:
            return
        check(ModelRequest((), tools, config, output_schema))
        if len(self._passed) >= _MOST_CHECKS:
            self._passed.clear()
        self._passed[key] = about


_MOST_CHECKS = 256


@runtime_checkable
class Plugin(Protocol):
    """Brings models under a prefix: `name` is what stands before the slash."""

    @property
    def name(self) -> str: ...

    def model(self, name: str) -> Model:
        """The model of this name (without the prefix). Raises UnknownModel."""
        ...

    def list_models(self) -> Iterable[str]:
        """The names it knows, without the prefix; it may take others too."""
        ...


class FunctionModel:
    """A function as a model: it takes a request, or a request and `emit`, and returns a ModelReply, a Message or a text.

    What it emits are chunks, or their short forms: a text, a part, a list of these.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        self._fn = fn
        self._name: str = name or getattr(fn, "__name__", "model")
        self._takes_emit = len(inspect.signature(fn).parameters) > 1

    @property
    def name(self) -> str:
        return self._name

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        value = self._fn(request, _of_short_forms(emit)) if self._takes_emit else self._fn(request)
        if inspect.isawaitable(value):
            value = await value
        return as_reply(value)


def _of_short_forms(emit: Emit) -> Callable[[Any], None]:
    def said(chunk: Any) -> None:
        emit(chunk if isinstance(chunk, Chunk) else Chunk(content=as_reply(chunk).message.content))

    return said


def as_reply(value: Any) -> ModelReply:
    """A reply from the short forms: a ModelReply, a Message, a Part, a text, or a list of parts and texts."""
    if isinstance(value, ModelReply):
        return value
    if isinstance(value, Message):
        return ModelReply(value)
    items = cast(list[Any], value) if isinstance(value, list) else [value]
    parts = [Part(text=item) if isinstance(item, str) else item for item in items]
    wrong = [p for p in parts if not isinstance(p, Part)]
    if wrong:
        raise DefinitionError(f"a model must return a ModelReply, a Message, parts or texts, not {wrong[0]!r}")
    return ModelReply(Message("model", parts))


_REASONS = frozenset(get_args(FinishReason)) - {"interrupted", "aborted", "failed"}  # these are a turn's, no model's


def checked_reply(value: Any) -> ModelReply:
    """The reply, fit to be kept: a model's message of parts that encode. Raises ModelError for what is none.

    A finish reason of the provider's own becomes "other". Tool input that is no JSON stays off the tool: the call is
    marked, and goes back to the model as an error.
    """
    reply = as_reply(value)
    message = reply.message
    if message.role != "model":
        raise ModelError(f"the model answered with a message of role {message.role!r}; it must be 'model'")
    try:
        _object(message.metadata, "metadata")
        content = [_checked_part(p) for p in message.content]
        if any(a is not b for a, b in zip(content, message.content, strict=True)):
            message = replace(message, content=content)
        encode(message)
    except (TypeError, ValueError, RecursionError) as e:
        raise ModelError(f"the model answered with a message that cannot be kept: {type(e).__name__}: {e}") from e
    given: Any = reply.finish_reason  # may be none of ours, nor even a text
    reason = cast(FinishReason, given) if isinstance(given, str) and given in _REASONS else "other"
    if not _is_usage(reply.usage):
        raise ModelError(f"the model answered with usage={reply.usage!r}; it must be a Usage of whole numbers")
    if message is reply.message and reason == reply.finish_reason:
        return reply
    return replace(reply, message=message, finish_reason=reason)


def _is_usage(usage: Any) -> bool:
    return isinstance(usage, Usage) and all(
        isinstance(n, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        for n in (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens)
    )


def _object(value: Any, field: str) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{field}={value!r} is no object")


def _checked_part(part: Any) -> Part:
    if not isinstance(part, Part):
        raise TypeError(f"{part!r} is no Part")
    for text in (part.text, part.reasoning):
        if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{text!r} is no text")
    if part.media is not None and not isinstance(part.media, Media):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"media={part.media!r} is no Media")
    _object(part.custom, "custom")
    _object(part.metadata, "metadata")
    request = part.tool_request
    if request is None:
        return part
    ref: Any = request.ref
    if not isinstance(request.name, str) or not isinstance(ref, (str, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"the tool request {request!r} needs texts as its name and ref")
    try:
        plain = to_json(request.input, "tool input")
    except NotJSON as e:
        metadata = {**(part.metadata or {}), OURS: {**part.ours, "malformed": str(e)}}
        return replace(part, tool_request=replace(request, input=None), metadata=metadata)
    return part if plain == request.input else replace(part, tool_request=replace(request, input=plain))


EXTRAS: Mapping[str, tuple[str, str]] = {
    "googleai": ("google", "adjourn.plugins.google_genai.GoogleAI()"),
    "vertexai": ("google", "adjourn.plugins.google_genai.VertexAI()"),
    "openai": ("openai", "adjourn.plugins.openai.OpenAI()"),
    "ollama": ("openai", "adjourn.plugins.openai.OpenAICompatible('ollama', base_url=...)"),
    "anthropic": ("anthropic", "adjourn.plugins.anthropic.Anthropic()"),
    "local": ("local", "adjourn.plugins.local.Local()"),
}


class ModelRegistry:
    """Models by "provider/name"."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        self._plugins: dict[str, Plugin] = {}
        self._models: dict[str, Model] = {}
        self.check = Checks()
        for plugin in plugins:
            if plugin.name in self._plugins:
                raise DuplicateName(f"two plugins are called {plugin.name!r}")
            self._plugins[plugin.name] = plugin

    def add(self, model: Model) -> None:
        """Registers a model under its own name. Raises DuplicateName."""
        if model.name in self._models:
            raise DuplicateName(f"there is a model {model.name!r} already")
        self._models[model.name] = model

    def plugins(self) -> list[Plugin]:
        return list(self._plugins.values())

    def names(self) -> list[str]:
        """Every name that is known, sorted."""
        listed = [f"{p.name}/{m}" for p in self._plugins.values() for m in p.list_models()]
        return sorted({*self._models, *listed})

    def find(self, model: "str | Model | None") -> Model:
        """The model of this name, or the object itself. Raises UnknownModel with what is known and what to install."""
        if model is None:
            raise UnknownModel("no model: give model= here or to Adjourn(model=...)")
        if not isinstance(model, str):
            if not callable(model):
                raise UnknownModel(f"model={model!r} is neither a name nor a model")
            return model if hasattr(model, "name") else FunctionModel(model)
        found = self._models.get(model)
        if found is None:
            prefix, _, rest = model.partition("/")
            plugin = self._plugins.get(prefix)
            if plugin is None or not rest:
                raise UnknownModel(self._unknown(model, prefix))
            found = self._models[model] = plugin.model(rest)
        return found

    def _unknown(self, model: str, prefix: str) -> str:
        known = ", ".join(self.names()) or "none"
        text = f"there is no model {model!r}. Known models: {known}."
        from difflib import get_close_matches  # for this error alone: it costs a millisecond of every start

        near = prefix if prefix in EXTRAS else next(iter(get_close_matches(prefix, EXTRAS, 1)), None)
        if near is None:
            ours = ", ".join(f"{p}/" for p in EXTRAS)
            return f"{text} A name is provider/name: plugins bring {ours}, and ai.define_model(name, fn) any other."
        extra, call = EXTRAS[near]
        return f"{text} For {near}/ models: pip install 'adjourn[{extra}]' and Adjourn(plugins=[{call}])."


def collect(chunks: Iterable[Chunk], *, finish_reason: FinishReason = "stop", usage: Usage | None = None) -> ModelReply:
    """The reply that these chunks add up to. Neighbouring texts (and reasonings) without metadata join into one part."""
    content: list[Part] = []
    texts: list[str] = []
    kind = ""

    def flush() -> None:
        nonlocal kind
        if kind:
            joined = "".join(texts)
            content.append(Part(text=joined) if kind == "text" else Part(reasoning=joined))
            texts.clear()
            kind = ""

    for chunk in chunks:
        for part in chunk.content:
            new = "text" if part.text is not None else "reasoning" if part.reasoning is not None else ""
            if not new or part.metadata:
                flush()
                content.append(part)
                continue
            if new != kind:
                flush()
                kind = new
            texts.append(part.text if part.text is not None else part.reasoning or "")
    flush()
    return ModelReply(Message("model", content), finish_reason, usage or Usage())


def note_of(part: Part, key: str) -> Any:
    """A provider's own note on a part (its metadata), or None."""
    metadata: Metadata = part.metadata or {}
    return metadata.get(key)
