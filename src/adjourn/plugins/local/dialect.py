"""The language of the Needle engine: messages as the texts that it is fed, and tool definitions as it takes them.

The results of calls are one JSON list in call order. An error in it is `{"error": "..."}`: that is what it was taught
to mend its calls by, so corrections of any kind are told it that way.

It decodes under a grammar made from the tools' schemas. A bound in there does not make it obey, it makes it say another
number (500 under `maximum: 300` becomes 5), and a pattern or a format can keep it talking until it is cut off. Such
keywords are left to the validation of the tool, whose complaint it then acts on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from adjourn.dialect import Path, Subject
from adjourn.errors import ModelError
from adjourn.model import ToolDefinition
from adjourn.parts import Message, ToolResponse

Json = Any


def _refused(problem: str) -> ModelError:
    return ModelError(problem, provider="local")


# -- messages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A text for the engine, and the calls that the transcript has it answer with (None: it was not answered yet)."""

    text: str
    answer: Sequence[Json] | None = None


def begins_turn(message: Message) -> bool:
    """Whether this is a user's message, and not a correction in the place of one."""
    return message.role == "user" and not message.ours.get("correction")


def read_messages(messages: Sequence[Message]) -> tuple[str, list[Line]]:
    """The system text, and the texts to feed. Raises ModelError for what the engine cannot take."""
    system: list[str] = []
    lines: list[Line] = []
    for message in messages:
        if message.role == "system":
            system.append(message.text)
        elif message.role == "user":
            lines.append(Line(_said(message) if begins_turn(message) else _error(message.text)))
        elif message.role == "tool":
            results = [result_of(r) for p in message.content if (r := p.tool_response) is not None]
            lines.append(Line(json.dumps(results, ensure_ascii=False)))
        elif lines:
            made = [r for p in message.content if (r := p.tool_request) is not None]
            lines[-1] = Line(lines[-1].text, [{"name": r.name, "arguments": r.input} for r in made])
    return "\n".join(system), lines


def read_extraction(messages: Sequence[Message]) -> list[Line]:
    """The text to read an `output=` from, and after it what was wrong with each attempt."""
    start = max((i for i, m in enumerate(messages) if begins_turn(m)), default=0)
    source: list[str] = []
    corrections: list[Line] = []
    for message in messages[start:]:
        if begins_turn(message):
            source.append(_said(message))
        elif message.role == "user":
            corrections.append(Line(_error(message.text)))
        elif message.role == "tool":
            source += [plain(result_of(r)) for p in message.content if (r := p.tool_response) is not None]
    return [Line("\n".join(source)), *corrections]


def _error(text: str) -> str:
    return json.dumps([{"error": text}], ensure_ascii=False)


def _said(message: Message) -> str:
    texts: list[str] = []
    for part in message.content:
        if part.text is not None:
            texts.append(part.text)
        elif part.media is not None:
            kind = part.media.content_type or "media"
            raise _refused(f"local/needle reads text only, and the prompt has a part of {kind}")
        elif part.data is not None:
            texts.append(json.dumps(part.data, ensure_ascii=False))
    return "\n".join(texts)


def result_of(response: ToolResponse) -> Json:
    """What the engine is told of one result. Texts beside it (that the input was edited, say) become a note in it."""
    note = " ".join([p.text for p in response.content or () if p.text])
    output: Json = response.output
    if not note:
        return output
    return {**(cast(Mapping[str, Any], output) if isinstance(output, Mapping) else {"result": output}), "note": note}


def call_words(name: str, arguments: Json) -> str:
    """A call in words, for people."""
    return f"{name}({plain(arguments) if arguments else ''})"


def plain(value: Json) -> str:
    """JSON in words, for people: `{"saved": true, "price": 9.5}` is "saved, price: 9.5"."""
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return ", ".join([k if v is True else f"{k}: {_inner(v)}" for k, v in items if v is not None]) or "nothing"
    if isinstance(value, list):
        return ", ".join([_inner(v) for v in cast(list[Any], value)]) or "nothing"
    if value is None:
        return "nothing"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _inner(value: Json) -> str:
    return f"({plain(value)})" if isinstance(value, Mapping | list) else plain(value)


# -- tool definitions --------------------------------------------------------------------------------------------------

# In the order that the engine's own library writes them: the model hears a difference.
_KEPT = ("type", "description", "enum", "const")
_WORDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("format", "format {}"),
)


def engine_tool(tool: ToolDefinition, what: str = "") -> Json:
    """The definition as the engine takes it. Raises SignatureError for a recursive input, which its grammar cannot hold.

    `what` is what the definition is of, where it is no tool of the program's.
    """
    schema = tool.input_schema or {}
    parameters = _Adapting(schema, Subject(what or f"tool {tool.name!r}", "local/needle"))(schema, (), ())
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


@dataclass(frozen=True)
class _Adapting:
    root: Mapping[str, Any]
    subject: Subject

    def __call__(self, schema: Json, within: tuple[str, ...], path: Path) -> dict[str, Any]:
        if not isinstance(schema, Mapping):  # `true`: anything
            return {}
        rules = cast(Mapping[str, Any], schema)
        ref: str | None = rules.get("$ref")
        if ref is not None:
            if ref in within:
                name = ref.rsplit("/", 1)[-1]
                raise self.subject.refused(
                    path,
                    f"the type {name!r}, which contains itself",
                    "Give it a fixed depth, or make this place a text that holds JSON",
                )
            beside = {k: v for k, v in rules.items() if k != "$ref"}
            return self({**_target(self.root, ref), **beside}, (*within, ref), path)
        choices = _choices(rules)
        if len(choices) == 1:
            beside = {k: v for k, v in rules.items() if k not in ("anyOf", "oneOf", "allOf")}
            return self({**choices[0], **beside}, within, path)
        out: dict[str, Any] = {k: rules[k] for k in _KEPT if k in rules}
        words = ", ".join([text.format(rules[key]) for key, text in _WORDS if key in rules])
        if words:
            out["description"] = f"{out['description']} ({words})" if out.get("description") else words
        if choices:
            out["anyOf"] = [self(c, within, path) for c in choices]
        if "items" in rules:
            out["items"] = self(rules["items"], within, (*path, "[]"))
        properties: Mapping[str, Any] = rules.get("properties") or {}
        if properties:
            out["properties"] = {name: self(sub, within, (*path, name)) for name, sub in properties.items()}
        if "required" in rules:
            out["required"] = rules["required"]
        return out


def _choices(rules: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives without null: what may be null may be left out, and the engine does that better."""
    given: Sequence[Json] = rules.get("anyOf") or rules.get("oneOf") or ()
    if not given and len(rules.get("allOf", ())) == 1:
        given = rules["allOf"]
    choices = [cast(Mapping[str, Any], c) for c in given if isinstance(c, Mapping)]
    return [c for c in choices if c.get("type") != "null"]


def _target(root: Mapping[str, Any], ref: str) -> Mapping[str, Any]:
    found: Any = root
    for step in [s for s in ref.removeprefix("#").split("/") if s]:
        found = cast(Mapping[str, Any], found).get(step.replace("~1", "/").replace("~0", "~"), {})
    return cast(Mapping[str, Any], found)
