"""The model `local/smollm2`: SmolLM2 Instruct, 135 million parameters, on llama.cpp.

It writes prose. Everything else is written under a grammar made from JSON schemas: an `output=`, and where there are
tools one of `{"tool": ..., "arguments": ...}` and `{"answer": ...}`. The grammar makes the form right, not what is in
it: a model of this size errs often. It was taught no tools, so they are described to it in words.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from adjourn.dialect import Subject, inline_references, read_settings, without
from adjourn.errors import ModelError
from adjourn.model import Emit, ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import OURS, Chunk, Message, Part, ToolRequest, Usage
from adjourn.plugins.local.dialect import result_of
from adjourn.plugins.local.llama import Told, available, complete, load

Json = Any

KEY = "smollm2"

# A bound in a grammar does not make the model obey, it makes it write another number; and the engine warns on stderr of
# each pattern that it cannot hold. These are left to the validation of the tool or output, which it is then told of.
_LEFT = (
    *("pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "minItems", "uniqueItems", "minProperties", "maxProperties", "propertyNames"),
    *("title", "default", "examples", "discriminator"),
)
_MOST_LETTERS = 1000  # of one text in JSON: it may not know how to end


class SmolLM2Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `config=` may hold. With the temperature at 0, equal requests get equal replies.

    `tool_choice="required"` takes the answer from what it may write, until a tool returned something.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    tool_choice: Literal["auto", "required", "none"] = "auto"


class SmolLM2:
    """The model. Who cancels a call stops it with the next token."""

    name = "local/smollm2"

    @property
    def available(self) -> bool:
        """Whether the engine and the weights are installed. Loads neither."""
        return available()

    async def load(self) -> None:
        """Loads the engine now rather than with the first request. Raises MissingExtra where it is not installed."""
        await load()

    def check(self, request: ModelRequest) -> None:
        """Raises SignatureError for tools or an output whose type contains itself, InvalidRequest for a wrong config."""
        _settings(request)
        for tool in request.tools:
            _branch(tool)
        if request.output_schema is not None:
            _schema(request.output_schema, "output=")

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        config = _settings(request)
        tools = () if config.tool_choice == "none" else request.tools
        output = _schema(request.output_schema, "output=") if request.output_schema is not None else None
        # One round of results is answered, not followed by more calls: it would repeat them without end. An error is
        # no result, and the next call may mend it.
        answering = bool(tools) and _has_results(request.messages)
        schema = output
        if tools:
            branches = [] if answering else [_branch(t) for t in tools]
            if answering or config.tool_choice != "required":
                branches.append(_object({"answer": output or {"type": "string", "maxLength": _MOST_LETTERS}}))
            schema = branches[0] if len(branches) == 1 else {"anyOf": branches}
        body: dict[str, Any] = {
            "messages": chat(request.messages, () if answering else tools, output if not tools else None),
            "max_tokens": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed,
        }
        if schema is None:

            def listen(piece: str) -> None:
                emit(Chunk(content=[Part(text=piece)]))

            told = await complete(body, listen if request.streaming else None)
            return _reply([Part(text=told.text)] if told.text else [], told)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
        told = await complete(body)
        content = _read(told, bool(tools), output is not None)
        if request.streaming and content[0].text:
            emit(Chunk(content=content))
        return _reply(content, told)


def _settings(request: ModelRequest) -> SmolLM2Config:
    return read_settings(request.config, SmolLM2Config, {"max_output_tokens": "max_tokens"})


def _reply(content: Sequence[Part], told: Told) -> ModelReply:
    usage = told.usage
    details: Mapping[str, Any] = usage.get("prompt_tokens_details") or {}
    counted = Usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), details.get("cached_tokens", 0))
    reason = told.finish if told.finish in ("stop", "length") else "other"
    if reason == "length" and any(p.tool_request for p in content):
        reason = "stop"  # the call is whole
    return ModelReply(Message("model", content), cast(Any, reason), counted, raw=told)


def _read(told: Told, tools: bool, output: bool) -> list[Part]:
    """What was written under the grammar. JSON that was cut off is given as it is, and calls nothing."""
    try:
        value: Json = json.loads(told.text)
    except ValueError:
        told.finish = "length" if told.finish == "stop" else told.finish
        return [Part(text=told.text)]
    if not tools:
        return [Part(text=json.dumps(value, ensure_ascii=False))]
    if "tool" in value:
        return [Part(tool_request=ToolRequest(value["tool"], None, value.get("arguments") or {}))]
    answer: Json = value.get("answer")
    return [Part(text=json.dumps(answer, ensure_ascii=False) if output else str(answer))]


# -- messages ----------------------------------------------------------------------------------------------------------


def chat(messages: Sequence[Message], tools: Sequence[ToolDefinition], output: Json) -> list[Mapping[str, str]]:
    """The messages in the roles that its template knows. Calls and results become JSON, tools and outputs words."""
    system = [m.text for m in messages if m.role == "system"]
    if tools:
        listed = "\n".join([_described(t) for t in tools])
        system.append(
            f'You can call these tools:\n{listed}\nReply with JSON: {{"tool": name, "arguments": {{...}}}} to call '
            'one, or {"answer": text}.'
        )
    elif output is not None:
        system.append(f"Reply with JSON of this schema: {json.dumps(output, ensure_ascii=False)}")
    lines: list[Mapping[str, str]] = []
    if system:
        lines.append({"role": "system", "content": "\n".join(system)})
    for message in messages:
        if message.role == "model":
            lines.append({"role": "assistant", "content": _said(message)})
        elif message.role != "system":
            lines.append({"role": "user", "content": _said(message)})
    return lines


def _described(tool: ToolDefinition) -> str:
    properties: Mapping[str, Any] = (tool.input_schema or {}).get("properties") or {}
    words = [_argument(name, schema) for name, schema in properties.items()]
    return f"- {tool.name}: {tool.description} Arguments: {', '.join(words) or 'none'}."


def _argument(name: str, schema: Json) -> str:
    if not isinstance(schema, Mapping):  # `true`: anything
        return name
    description = cast(Mapping[str, Any], schema).get("description")
    return f"{name} ({description})" if description else name


def _said(message: Message) -> str:
    texts: list[str] = []
    for part in message.content:
        if part.text is not None:
            texts.append(part.text)
        elif part.media is not None:
            kind = part.media.content_type or "media"
            raise ModelError(f"local/smollm2 reads text only, and the prompt has a part of {kind}", provider="local")
        elif part.tool_request is not None:
            call = {"tool": part.tool_request.name, "arguments": part.tool_request.input}
            texts.append(json.dumps(call, ensure_ascii=False))
        elif part.tool_response is not None:
            result = json.dumps(result_of(part.tool_response), ensure_ascii=False)
            texts.append(f"Result of {part.tool_response.name}: {result}")
        elif part.data is not None:
            texts.append(json.dumps(part.data, ensure_ascii=False))
    return "\n".join(texts)


def _has_results(messages: Sequence[Message]) -> bool:
    """Whether the last message is of results, none of which is an error."""
    last = next((m for m in reversed(messages) if m.role != "system"), None)
    return last is not None and last.role == "tool" and not any(_is_error(p) for p in last.content)


def _is_error(part: Part) -> bool:
    output: Json = part.tool_response.output if part.tool_response is not None else None
    marked: Mapping[str, Any] = (part.metadata or {}).get(OURS) or {}
    return marked.get("outcome") == "arguments" or (isinstance(output, Mapping) and "error" in output)


# -- schemas -----------------------------------------------------------------------------------------------------------


def _schema(schema: Mapping[str, Any], what: str) -> Json:
    """The schema as the grammar takes it. Raises SignatureError for a type that contains itself."""
    return without(inline_references(schema, Subject(what, "local/smollm2")), _LEFT)


def _branch(tool: ToolDefinition) -> Json:
    arguments = _schema(tool.input_schema or {}, f"tool {tool.name!r}")
    return _object({"tool": {"const": tool.name}, "arguments": {"type": "object", "properties": {}, **arguments}})


def _object(properties: Mapping[str, Any]) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


# -- the closing sentence of local/needle ------------------------------------------------------------------------------


async def sentence(prompt: str, results: str, listen: Callable[[str], None]) -> tuple[str, Usage]:
    """One sentence that tells what came of a prompt, on one line. Raises ModelError, MissingExtra.

    `listen` gets its pieces as they are written; they are the sentence.
    """
    system = "You report to the user, in one short sentence, what was done. You add nothing to the results."
    said = f"The user asked: {prompt}\nResults:\n{results}\nReport in one short sentence."
    messages = [Message("system", [Part(text=system)]), Message("user", [Part(text=said)])]
    line = _Line(listen)
    request = ModelRequest(messages, config={"max_tokens": 60}, streaming=True)
    reply = await SmolLM2()(request, lambda chunk: line.add(chunk.text))
    if line.text and reply.finish_reason != "stop":
        line.add(" …")
    return line.text, reply.usage


class _Line:
    """Pieces of text on one line: white space becomes one blank, and none stands at either end."""

    def __init__(self, listen: Callable[[str], None]) -> None:
        self._listen = listen
        self._blank = False
        self.text = ""

    def add(self, piece: str) -> None:
        words = " ".join(piece.split())
        self._blank = self._blank or piece[:1].isspace()
        if words:
            shown = f" {words}" if self._blank and self.text else words
            self.text += shown
            self._listen(shown)
        self._blank = piece[-1:].isspace() if words else self._blank
