"""JSON schemas as the API takes them: a tool's input, where it takes almost all, and the output, where it enforces it."""

from collections.abc import Mapping
from typing import Any, cast

from adjourn.dialect import Path, Subject, each_schema, without

_SHAPES = ("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "allOf")
_TAKEN = frozenset((*_SHAPES, "$ref", "$defs", "description", "title", "default"))
_NO_SCHEMAS = ("discriminator", "examples", "$schema", "$id")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))


def tool_schema(name: str, schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The input schema of a tool. At its top the API wants an object, and no choice between several.

    Raises SignatureError, naming the tool, for what is none.
    """
    out = dict(schema or {})
    reference = out.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        # An input type that contains itself: its definition is repeated at the top, and stays for the references.
        out.pop("$ref")
        out = {**out["$defs"][reference.removeprefix("#/$defs/")], **out}
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in out:
            raise Subject(f"tool {name!r}", "Anthropic").refused(
                (),
                f"an input that is a choice ({keyword} at the top of its schema)",
                "Give it one object with optional fields, or a parameter that holds the choice",
            )
    return {"type": "object", "properties": {}, **out} if "type" not in out or "properties" not in out else out


def why_not_enforced(schema: Mapping[str, Any]) -> tuple[Path, str] | None:
    """What in this output schema the API cannot enforce, and where; None where it can all be."""
    recursive = _recursive(schema)
    if recursive is not None:
        return (), f"the type {recursive!r}, which contains itself, in an enforced schema"
    problems: list[tuple[Path, str]] = []

    def look(s: dict[str, Any], path: Path) -> Any:
        if s.get("additionalProperties") not in (None, False) or "patternProperties" in s:
            problems.append((path, "an object whose keys are not named beforehand (a dict) in an enforced schema"))
        elif s.get("type") == "object" and "properties" not in s:
            problems.append((path, "an object without properties in an enforced schema"))
        elif not s.keys() & {"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"}:
            problems.append((path, "a value that may be anything in an enforced schema"))
        return s

    each_schema(without(schema, _NO_SCHEMAS), look)
    return problems[0] if problems else None


def output_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema in the form that the API enforces. A bound it cannot enforce is told the model in the description."""
    return each_schema(without(schema, _NO_SCHEMAS), _enforceable)


def _enforceable(schema: dict[str, Any], _: Path) -> dict[str, Any]:
    out = dict(schema)
    if "oneOf" in out:
        out["anyOf"] = out.pop("oneOf")
    if out.get("type") == "object":
        out["additionalProperties"] = False
    told: list[str] = []
    for key in list(out):
        value = out[key]
        taken = key in _TAKEN or (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1))
        if not taken:
            del out[key]
            told.append(f"{key}: {value}")
    if told:
        out["description"] = "\n".join([*([out["description"]] if "description" in out else []), "; ".join(told)])
    return out


def _recursive(schema: Mapping[str, Any]) -> str | None:
    """A type that contains itself."""
    definitions: Mapping[str, Any] = schema.get("$defs") or {}
    refers = {name: _references(definition) for name, definition in definitions.items()}

    def reaches(name: str, inside: tuple[str, ...]) -> bool:
        return name in inside or any(reaches(n, (*inside, name)) for n in sorted(refers.get(name, ())))

    return next((name for name in definitions if reaches(name, ())), None)


def _references(node: Any) -> set[str]:
    if isinstance(node, list):
        return {name for item in cast(list[Any], node) for name in _references(item)}
    if not isinstance(node, Mapping):
        return set()
    given = cast(Mapping[str, Any], node)
    found = {name for value in given.values() for name in _references(value)}
    reference = given.get("$ref")
    return found | {reference.rsplit("/", 1)[-1]} if isinstance(reference, str) else found
