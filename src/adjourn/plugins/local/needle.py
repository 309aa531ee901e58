"""The model `local/needle`: Needle 3, 121 million parameters at 2 bits, from the module `needle`.

It takes texts and gives calls. It writes no prose, so the closing text is ours: what the tools returned, and the
model's own note, labelled as such. Where `local/smollm2` is installed, a sentence by that model comes before it, as a
part of its own whose metadata says who wrote it; what the tools returned still follows, because so small a model may
tell it wrongly. What Needle says beside its calls is kept in the metadata under `needle`.

The engine replies in one piece. What is streamed is the sentence, as it is written, and then the rest.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeAlias

import msgspec

from adjourn.dialect import read_settings
from adjourn.errors import MissingExtra, ModelError
from adjourn.model import Emit, ModelReply, ModelRequest, ToolDefinition
from adjourn.parts import Chunk, Message, Part, ToolRequest, Usage
from adjourn.plugins.local.dialect import (
    Line,
    begins_turn,
    call_words,
    engine_tool,
    plain,
    read_extraction,
    read_messages,
    result_of,
)
from adjourn.plugins.local.engine import Reply, Setup, converse, load

KEY = "needle"
"""The metadata key of what the engine said: `confidence`, `reasoning`, `suppressed_calls`, `ungrounded`, `diverged`.

On a part of the closing text, `written_by` is the model that wrote it.
"""

Writer: TypeAlias = Callable[[str, str, Callable[[str], None]], Awaitable[tuple[str, Usage]]]
"""Takes what the user said, what the tools returned, and who hears the pieces; gives their sum, and what that cost."""

_WRITTEN = {KEY: {"written_by": "local/smollm2"}}


class NeedleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `config=` may hold.

    `max_tokens` bounds one reply. The engine withholds calls that it is not sure of; `accept_withheld` makes them all
    the same. Set it only where something else checks a call. It withholds right ones too, mostly with nested objects.
    Calls of less than `min_confidence` (0 to 1, as the engine tells it) are withheld in any case. A withheld call is
    told in the closing text, and kept as `suppressed_calls`.
    """

    max_tokens: int = 256
    accept_withheld: bool = False
    min_confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class Needle:
    """The model. A reply that was begun cannot be stopped: who cancels it leaves, and the next request waits for it."""

    name = "local/needle"

    def __init__(self, max_tools: int = 30, max_characters: int = 8_000, writer: Writer | None = None) -> None:
        self._writer = writer
        self._max_tools = max_tools
        self._max_characters = max_characters

    async def load(self) -> None:
        """Loads the engine now rather than with the first request. Raises MissingExtra where it is not installed."""
        await load()

    def check(self, request: ModelRequest) -> None:
        """Raises SignatureError for tools or an output whose type contains itself, InvalidRequest for a wrong config."""
        _settings(request)
        for tool in request.tools:
            engine_tool(tool)
        if request.output_schema is not None:
            engine_tool(_recording(request.output_schema)[0], "output=")

    async def __call__(self, request: ModelRequest, emit: Emit) -> ModelReply:
        config = _settings(request)
        system, lines = read_messages(request.messages)
        reply: Reply = {}
        if request.tools or request.output_schema is None:
            reply = _sifted(await self._ask(system, request.tools, lines, config), config)
            calls = _listed(reply, "function_calls")
            if calls:
                return _calling(reply, calls)

        def show(part: Part) -> None:
            if request.streaming:
                emit(Chunk(content=[part]))

        content: list[Part] = []
        usage = Usage()
        if request.output_schema is None:
            written, usage = await self._sentence(request.messages, reply, show)
            if written:
                content.append(Part(text=written, metadata=_WRITTEN))
            text = closing_text(request.messages, reply)
        else:
            text, reply = await self._extract(request, request.output_schema, system, config)
        content.append(Part(text=text))
        show(content[-1])
        message = Message("model", content, {KEY: _beside(reply)})
        return ModelReply(message, "length" if reply.get("error_code") == "truncated" else "stop", usage, raw=reply)

    async def _sentence(
        self, messages: Sequence[Message], reply: Reply, show: Callable[[Part], None]
    ) -> tuple[str, Usage]:
        """What the other model makes of the results; nothing where there are none, or it cannot."""
        turn = messages[max((i for i, m in enumerate(messages) if begins_turn(m)), default=0) :]
        unfinished = reply.get("error") or reply.get("suppressed_calls")
        if self._writer is None or unfinished or not any(m.role == "tool" for m in turn):
            return "", Usage()
        shown: list[str] = []

        def listen(piece: str) -> None:
            shown.append(piece)
            show(Part(text=piece, metadata=_WRITTEN))

        usage = Usage()
        with suppress(ModelError, MissingExtra):  # what it had written by then was shown, and stays
            _, usage = await self._writer(turn[0].text, closing_text(turn, {}), listen)
        if shown:
            listen("\n")
        return "".join(shown), usage

    async def _ask(
        self, system: str, tools: Sequence[ToolDefinition], lines: Sequence[Line], config: NeedleConfig
    ) -> Reply:
        definitions = json.dumps([engine_tool(t) for t in tools], ensure_ascii=False)
        self._check_size(len(tools), len(definitions), len(system) + sum(len(line.text) for line in lines))
        return await converse(Setup(system, definitions, config.max_tokens), lines)

    def _check_size(self, tools: int, definitions: int, conversation: int) -> None:
        most = self._max_characters
        problem = ""
        if tools > self._max_tools:
            problem = f"it takes {self._max_tools} tools and was given {tools}: pass fewer as tools="
        elif definitions > most:
            problem = (
                f"it takes {most} characters of tool definitions and these {tools} have {definitions}: pass "
                "fewer tools, or shorten what they say"
            )
        elif conversation > most:
            problem = (
                f"it takes {most} characters of conversation and this one has {conversation}: shorten the prompt "
                "or what the tools return, begin a new conversation, or send less of this one with prepare="
            )
        if problem:
            raise ModelError(f"too long for {self.name}: {problem}", provider="local")

    async def _extract(
        self, request: ModelRequest, schema: Mapping[str, Any], system: str, config: NeedleConfig
    ) -> tuple[str, Reply]:
        """A reply in the shape of `output=`: the shape is the only tool, and what the engine fills in is the reply."""
        tool, whole = _recording(schema)
        reply = await self._ask(system, [tool], read_extraction(request.messages), config)
        # Withheld or not makes no difference here: nothing runs, and whoever asked for the output validates it.
        found = [*_listed(reply, "function_calls"), *_listed(reply, "suppressed_calls")]
        if not found:
            return closing_text(request.messages, reply), reply
        value: Mapping[str, Any] = found[0].get("arguments") or {}
        return json.dumps(value if whole else value.get("value"), ensure_ascii=False), reply


def _recording(schema: Mapping[str, Any]) -> tuple[ToolDefinition, bool]:
    """The tool that takes an output, and whether the output is the whole of its input."""
    whole = schema.get("type") == "object" or "$ref" in schema
    wanted = schema
    if not whole:
        wanted = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
        wanted["$defs"] = schema.get("$defs", {})
    description = str(schema.get("description") or "Record the data in the text.")
    return ToolDefinition("record", description, wanted), whole


def _settings(request: ModelRequest) -> NeedleConfig:
    return read_settings(request.config, NeedleConfig, {"max_output_tokens": "max_tokens"})


def _listed(reply: Reply, key: str) -> Sequence[Mapping[str, Any]]:
    return reply.get(key) or ()


def _sifted(reply: Reply, config: NeedleConfig) -> Reply:
    """The reply with the calls that are to be made as `function_calls`, and the others as `suppressed_calls`."""
    made, withheld = _listed(reply, "function_calls"), _listed(reply, "suppressed_calls")
    if not made and config.accept_withheld:
        made, withheld = withheld, ()
    confidence = reply.get("confidence")
    if made and isinstance(confidence, (int, float)) and confidence < config.min_confidence:
        made, withheld = (), [*made, *withheld]
    return {**reply, "function_calls": made, "suppressed_calls": withheld}


def _calling(reply: Reply, calls: Sequence[Mapping[str, Any]]) -> ModelReply:
    note = {KEY: {"confidence": reply.get("confidence")}}
    content = [
        Part(tool_request=ToolRequest(str(c.get("name")), None, c.get("arguments")), metadata=note) for c in calls
    ]
    return ModelReply(Message("model", content, {KEY: _beside(reply)}), raw=reply)


def _beside(reply: Reply) -> dict[str, Any]:
    """What the engine said beside its calls; a key is absent where it said nothing."""
    kept = {k: reply.get(k) for k in ("confidence", "reasoning", "suppressed_calls", "error", "diverged")}
    validation: Mapping[str, Any] = reply.get("validation") or {}
    kept["ungrounded"] = validation.get("ungrounded")
    return {k: v for k, v in kept.items() if v not in (None, [], (), "")}


def closing_text(messages: Sequence[Message], reply: Reply) -> str:
    """What came of the turn in plain words, and the model's note. No sentence is put in its mouth."""
    start = max((i for i, m in enumerate(messages) if begins_turn(m)), default=0)
    lines: list[str] = []
    asked: list[ToolRequest] = []
    for message in messages[start:]:
        if message.role == "model":
            asked = [r for p in message.content if (r := p.tool_request) is not None]
        elif message.role == "tool":
            given = [r for p in message.content if (r := p.tool_response) is not None]
            lines += [
                f"{call_words(q.name, q.input)}: {plain(result_of(r))}" for q, r in zip(asked, given, strict=False)
            ]
    withheld = ", ".join(
        [call_words(str(c.get("name")), c.get("arguments")) for c in _listed(reply, "suppressed_calls")]
    )
    if withheld:
        lines.append(f"The model withheld what it was not sure of: {withheld}.")
    elif reply.get("error"):
        lines.append(f"The model's reply was not complete: {reply['error']}.")
    elif not lines:
        lines.append("The model called no tool.")
    note = str(reply.get("reasoning") or "").strip()
    if note:
        lines.append(f"The model's own note (it writes no answers): {note}")
    return "\n".join(lines)
