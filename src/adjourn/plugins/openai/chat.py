"""Chat Completions: what most servers speak."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from adjourn.dialect import Subject, read_settings
from adjourn.errors import ModelError
from adjourn.model import Emit, ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import OURS, FinishReason, Message, Part, ToolRequest, Usage, encode
from adjourn.plugins.openai import errors
from adjourn.plugins.openai.assembly import ChatAssembly, read_content
from adjourn.plugins.openai.connection import Asked, Connection
from adjourn.plugins.openai.content import (
    CallIds,
    arguments_of,
    data_url,
    file_name,
    integer,
    kind_of,
    listed,
    mapping,
    media_of,
    names_of,
    outward,
    own,
    read_call,
    renamed,
    result_text,
    system_text,
    text_of,
    unwrapped,
)
from adjourn.plugins.openai.schemas import WRAPPED, as_object, choose_strict, one_object, parameters

Json = dict[str, Any]

THOUGHTS = ("reasoning_content", "reasoning")
"""Where servers put the text of their reasoning."""

ECHOED = (*THOUGHTS, "reasoning_details", "extra_content")
"""What is sent back to the server that sent it. Other fields of its own are kept, and not sent: many servers refuse
fields that they do not expect in a request."""

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "content_filter": "blocked",
}


class ChatConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What `config=` may hold, as a ChatConfig or a dict.

    `tool_choice` is "auto", "none", "required" or a tool's name. `strict` asks for (or forbids) strict schemas; unset,
    an output is sent as strict where its schema can be, and tools are not. `extra` goes into the request as it is, over
    everything else: the way to any parameter that has no field here.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: str | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    user: str | None = None
    strict: bool | None = None
    extra: dict[str, Any] = {}


@dataclass(frozen=True)
class Dialect:
    """In what a server differs from OpenAI's own.

    `system_role` is the role of system texts. `output` is how a structured output is asked for: by its schema, as any
    JSON (with the schema in the system text), or in the system text alone. `echo` are the message fields that are sent
    back. `stream_usage` asks for usage at the end of a stream. `valid_arguments`: the server parses the arguments it is
    sent back, so that broken ones must be wrapped. `short_ids`: it takes only call ids of nine letters and digits.
    `choices`: it takes a tool whose input is a choice between several objects. `needs_reasoning`: it refuses a history in
    which a reply lacks `reasoning_content`, also where another model gave it; then that is sent empty. DeepSeek's thinking
    models do, and an `OpenAICompatible` with that word in its name or address sets it by itself.
    """

    system_role: Literal["system", "developer", "user"] = "system"
    output: Literal["json_schema", "json_object", "text"] = "json_schema"
    echo: Sequence[str] = ECHOED
    stream_usage: bool = True
    valid_arguments: bool = True
    short_ids: bool = False
    choices: bool = True
    needs_reasoning: bool = False


class ChatModel:
    """One model of one server."""

    def __init__(self, key: str, model: str, connection: Connection, dialect: Dialect) -> None:
        self.name = f"{key}/{model}"
        self._key = key
        self._model = model
        self._connection = connection
        self._dialect = dialect

    def check(self, request: ModelRequest) -> None:
        """Raises SignatureError for tools or an output that the API cannot express, InvalidRequest for a wrong config."""
        build(request, self._model, self._key, self._dialect)

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        body, wrapped = build(request, self._model, self._key, self._dialect)
        names = names_of(request.tools)

        def understand(reply: Json) -> ModelReply:
            return renamed(read(reply, self._key, wrapped), names)

        assembly = ChatAssembly() if request.streaming else None
        if request.streaming and self._dialect.stream_usage:
            body = {"stream_options": {"include_usage": True}, **body}
        try:
            return await self._connection.ask(
                Asked("/chat/completions", body, request.messages, assembly, understand, held=wrapped), emit
            )
        except ModelError as e:
            refused = refused_call(e)
            if refused is None:
                raise
            return renamed(refused, names)


# -- the request -----------------------------------------------------------------------------------------------------


def build(request: ModelRequest, model: str, key: str, dialect: Dialect) -> tuple[Json, bool]:
    """The body of the request, and whether the output was wrapped into an object."""
    # OpenAI's own models that reason refuse the older name, and few other servers know the newer one.
    limit = "max_completion_tokens" if key == "openai" else "max_tokens"
    config = read_settings(request.config, ChatConfig, {"max_output_tokens": limit})
    messages = write_messages(request.messages, key, dialect)
    body: Json = {"model": model, "messages": messages}
    if request.tools:
        names_of(request.tools)  # raises where two of them would be one
        body["tools"] = [_tool(t, config.strict, key, dialect) for t in request.tools]
    wrapped = False
    if request.output_schema is not None:
        wrapped = _ask_for_output(body, request.output_schema, config, key, dialect)
    given = msgspec.to_builtins(config)
    extra = given.pop("extra", {})
    given.pop("strict", None)
    choice = given.get("tool_choice")
    if choice not in (None, "auto", "none", "required"):
        given["tool_choice"] = {"type": "function", "function": {"name": outward(choice)}}
    return {**body, **given, **extra}, wrapped


def _tool(tool: ToolDefinition, wish: bool | None, key: str, dialect: Dialect) -> Json:
    subject = Subject(f"tool {tool.name!r}", key)
    given = parameters(tool.input_schema)
    if not dialect.choices:
        given = one_object(given, subject)
    # Servers that do not know `strict` may refuse it, and OpenAI takes its absence for False.
    schema, strict = choose_strict(given, wish or False, subject, fill=False)
    function: Json = {"name": outward(tool.name), "description": tool.description, "parameters": schema}
    return {"type": "function", "function": {**function, "strict": True} if strict else function}


def _ask_for_output(body: Json, schema: Mapping[str, Any], config: ChatConfig, key: str, dialect: Dialect) -> bool:
    if dialect.output == "json_schema":
        wanted, wrapped = as_object(schema)
        wanted, strict = choose_strict(wanted, config.strict, Subject("output=", key), fill=True)
        shape: Json = {"name": "output", "schema": wanted}
        body["response_format"] = {"type": "json_schema", "json_schema": {**shape, "strict": True} if strict else shape}
        return wrapped
    wanted, wrapped = as_object(schema) if dialect.output == "json_object" else (schema, False)
    if dialect.output == "json_object":
        body["response_format"] = {"type": "json_object"}
    text = f"Reply with nothing but JSON that fits this JSON schema: {encode(wanted).decode()}"
    head = next((m for m in body["messages"][:1] if m["role"] == dialect.system_role != "user"), None)
    if head is not None:
        head["content"] = f"{head['content']}\n\n{text}"
    else:
        body["messages"].insert(0, {"role": dialect.system_role, "content": text})
    return wrapped


def write_messages(messages: Sequence[Message], key: str, dialect: Dialect) -> list[Json]:
    """The messages as the API has them."""
    ids = CallIds(dialect.short_ids)
    out: list[Json] = []
    for message in messages:
        if message.role == "system":
            out.append({"role": dialect.system_role, "content": system_text(message)})
        elif message.role == "user":
            out.append({"role": "user", "content": _user_content(message.content, key)})
        elif message.role == "model":
            ids.next_round()
            written = _assistant(message, key, dialect, ids)
            if written is not None:
                out.append(written)
        else:
            out += _results(message, key, ids)
    return out


def _user_content(parts: Sequence[Part], key: str) -> Any:
    content = [c for p in parts if (c := _user_part(p, key)) is not None]
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content


def _user_part(part: Part, key: str) -> Json | None:
    text = text_of(part)
    if text is not None:
        return {"type": "text", "text": text}
    if part.media is not None:
        return _media(part, key)
    raw = (part.custom or {}).get(key)  # the API's own form, for what ours has no word for
    return dict(mapping(raw)) if raw else None


def _media(part: Part, key: str) -> Json:
    media = part.media
    assert media is not None
    kind = kind_of(media)
    if kind.startswith("image/"):
        detail = {k: v for k, v in own(part, key).items() if k == "detail"}
        return {"type": "image_url", "image_url": {"url": media.url, **detail}}
    url = data_url(media, key)
    if kind.startswith("audio/"):
        suffix = {"audio/mpeg": "mp3", "audio/x-wav": "wav", "audio/wave": "wav"}.get(kind, kind.split("/", 1)[1])
        return {"type": "input_audio", "input_audio": {"data": url.split(",", 1)[-1], "format": suffix}}
    return {"type": "file", "file": {"filename": file_name(part, kind), "file_data": url}}


def _assistant(message: Message, key: str, dialect: Dialect, ids: CallIds) -> Json | None:
    texts: list[str] = []
    calls: list[Json] = []
    out: Json = {"role": "assistant", "content": None}
    echoed: Json = {}
    for part in message.content:
        note = own(part, key)
        echoed.update({k: v for k, v in mapping(note.get("message")).items() if k in dialect.echo})
        text = text_of(part)
        if note.get("refusal") and text is not None:
            out["refusal"] = text
        elif text is not None:
            texts.append(text)
        elif part.reasoning is not None and note.get("field") in dialect.echo:
            echoed[str(note["field"])] = part.reasoning
        elif part.media is not None:
            texts.append(f"({kind_of(part.media)})")  # there is no place for a picture in what a model said
        elif part.tool_request is not None:
            extra = {k: v for k, v in mapping(note.get("extra")).items() if k in dialect.echo}
            function = {
                "name": outward(part.tool_request.name),
                "arguments": arguments_of(part, key, valid=dialect.valid_arguments),
            }
            call_id = ids.of_request(part.tool_request)
            calls.append({"id": call_id, "type": "function", "function": function, **extra})
    if texts:
        out["content"] = "".join(texts)
    if calls:
        out["tool_calls"] = calls
    if not (texts or calls or "refusal" in out):
        if not echoed:
            return None  # all it had was another provider's reasoning
        out["content"] = ""
    if dialect.needs_reasoning:
        echoed.setdefault("reasoning_content", "")
    return {**out, **echoed}


def _results(message: Message, key: str, ids: CallIds) -> list[Json]:
    out: list[Json] = []
    pictures: list[Json] = []
    for part in message.content:
        response = part.tool_response
        if response is None:
            continue
        call_id = ids.of_response(response)
        out.append({"role": "tool", "tool_call_id": call_id, "content": result_text(response)})
        media = media_of(response)
        if media:
            label = f"(what {outward(response.name)}, call {call_id}, returned beside its result:)"
            pictures += [{"type": "text", "text": label}, *[_media(p, key) for p in media]]
    # A tool message holds only text, and nothing may stand between the results of one round.
    return [*out, {"role": "user", "content": pictures}] if pictures else out


# -- the reply -------------------------------------------------------------------------------------------------------


def read(reply: Mapping[str, Any], key: str, wrapped: bool = False) -> ModelReply:
    """The reply as ours. Raises ModelError for one with an error in it, or with nothing."""
    choices = listed(reply.get("choices"))
    choice = mapping(choices[0] if choices else None)
    message = mapping(choice.get("message"))
    said = choice.get("finish_reason")
    if choice.get("error") or said in ("error", "insufficient_system_resource"):
        raise errors.in_band(choice.get("error") or {"message": f"it stopped: {said}", "code": 503}, key)
    finish = _FINISH.get(str(said), "other")
    content = read_message(message, key, finish == "length", wrapped)
    if message.get("refusal"):
        finish = "blocked"
    if not content and finish not in ("blocked", "length"):
        raise errors.empty(key)
    return ModelReply(Message("model", content), finish, read_usage(mapping(reply.get("usage"))), dict(reply))


def read_message(message: Mapping[str, Any], key: str, cut: bool, wrapped: bool = False) -> list[Part]:
    """The parts of an assistant's message. `cut`: it ended at the token limit."""
    parts: list[Part] = []
    calls = [mapping(c) for c in listed(message.get("tool_calls"))]
    field = next((f for f in THOUGHTS if message.get(f)), None)
    if field is None and calls:  # DeepSeek wants it back with its calls, empty or not
        field = next((f for f in THOUGHTS if isinstance(message.get(f), str)), None)
    thought, text = read_content(message.get("content"))
    if field is not None:
        parts.append(Part(reasoning=str(message[field]), metadata={key: {"field": field}}))
    if thought:
        parts.append(Part(reasoning=thought))
    if text:
        parts.append(Part(text=unwrapped(text, wrapped and not calls, WRAPPED)))
    if message.get("refusal"):
        parts.append(Part(text=str(message["refusal"]), metadata={key: {"refusal": True}}))
    for position, call in enumerate(calls):
        function = mapping(call.get("function"))
        extra = {k: v for k, v in call.items() if k not in ("id", "index", "type", "function")}
        note = {"extra": extra} if extra else {}
        last = cut and position == len(calls) - 1
        name, ref = str(function.get("name") or ""), call.get("id")
        parts.append(read_call(name, str(ref) if ref else None, function.get("arguments"), note, key, last))
    known = (*THOUGHTS, "role", "content", "tool_calls", "refusal", "annotations", "audio", "function_call", "prefix")
    rest = {k: v for k, v in message.items() if k not in known and v is not None}
    if rest and parts:
        parts[0] = _with_note(parts[0], key, {"message": rest})
    return parts


def _with_note(part: Part, key: str, note: Mapping[str, Any]) -> Part:
    metadata = {**(part.metadata or {}), key: {**own(part, key), **note}}
    return msgspec.structs.replace(part, metadata=metadata)


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage in any server's shape. Where thoughts are counted only in the total, they are counted as output all the same."""
    given = integer(usage.get("prompt_tokens"))
    made = integer(usage.get("completion_tokens"))
    thought = integer(mapping(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    unseen = integer(usage.get("total_tokens")) - given - made
    if unseen > 0:
        made, thought = made + unseen, max(thought, unseen)
    cached = (
        integer(mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
        or integer(usage.get("prompt_cache_hit_tokens"))
        or integer(usage.get("num_cached_tokens"))
    )
    return Usage(given, made, cached, thought)


def refused_call(error: ModelError) -> ModelReply | None:
    """The call that a server made out itself to be wrong and refused with status 400 (Groq does), for correction.

    The model is told what was wrong, as with any other call that does not fit; nothing runs.
    """
    body = mapping(getattr(error.__context__, "body", None))
    body = mapping(body.get("error")) or body
    if error.code != 400 or body.get("code") != "tool_use_failed":
        return None
    error.retryable = True  # the model may do better at the next try
    try:
        made = mapping(msgspec.json.decode(str(body.get("failed_generation"))))
    except msgspec.DecodeError:
        return None
    name = made.get("name")
    if not isinstance(name, str) or not name:
        return None
    problem = errors.clean(str(body.get("message") or "the server refused it"))
    request = ToolRequest(name, None, made.get("arguments"))
    return ModelReply(Message("model", [Part(tool_request=request, metadata={OURS: {"malformed": problem}})]), "other")
