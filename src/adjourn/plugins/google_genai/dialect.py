"""JSON schema as Gemini takes it, in `parametersJsonSchema` and `responseJsonSchema`.

It understands a subset. What only narrows a value (a pattern, a length) is moved into the description, where the model
reads it, and is still enforced by the tool's own validation; what changes the shape and cannot be written is an error when
the tool or the output is defined.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn.dialect import Names, Path, Subject, each_schema, inline_references

Schema = Mapping[str, Any]

_KEPT = frozenset(
    (
        "$defs", "$ref", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems",
        "maxItems", "minimum", "maximum", "anyOf", "properties", "propertyOrdering", "additionalProperties",
        "required",
    )
)  # fmt: skip
_FORMATS = ("date-time", "date", "time")
_WORDS = (
    ("pattern", "pattern {}"),
    ("format", "format {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("exclusiveMinimum", "more than {}"),
    ("exclusiveMaximum", "less than {}"),
    ("multipleOf", "a multiple of {}"),
    ("uniqueItems", "no item twice"),
    ("contains", "with an item that fits {}"),
    ("minProperties", "at least {} keys"),
    ("maxProperties", "at most {} keys"),
    ("propertyNames", "with keys that fit {}"),
    ("not", "nothing that fits {}"),
    ("default", "default {}"),
)
_UNKNOWN = ("if", "then", "else", "dependentSchemas", "dependentRequired", "unevaluatedProperties")
# The API allows longer ones by now in places, but not everywhere.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")


def names_of(tools: Sequence[str]) -> Names:
    """The names of tools as Gemini takes them, and back."""
    return Names(tools, "Gemini", _NAME, 64)


def tool_schema(name: str, schema: Schema | None) -> dict[str, Any]:
    """The input schema of a tool. Raises SignatureError, naming the tool and the place, for what Gemini cannot express."""
    out = adapted(schema or {}, f"tool {name!r}")
    out.setdefault("type", "object")
    out.setdefault("properties", {})
    return out


def adapted(schema: Schema, what: str) -> dict[str, Any]:
    """The schema in Gemini's subset. References are written out, unless a type contains itself in an optional place."""
    subject = Subject(what, "Gemini")
    if _contains_itself(schema, subject):
        root: dict[str, Any] = dict(schema)
        name = str(root.pop("$ref", "")).rsplit("/", 1)[-1]
        if name:  # a root has to say that it is an object
            root = {**_definitions(schema)[name], **root}
    else:
        root = inline_references(schema, subject)
    return each_schema(root, lambda s, path: _adapt(s, path, subject))


def _definitions(schema: Schema) -> Mapping[str, Any]:
    return schema.get("$defs") or schema.get("definitions") or {}


def _contains_itself(schema: Schema, subject: Subject) -> bool:
    """Whether a type contains itself. Gemini unrolls such a type only where it stands in a property that is not required."""
    definitions = _definitions(schema)
    found = False

    def walk(node: Any, inside: Mapping[str, int], optional: int, path: Path) -> None:
        nonlocal found
        if isinstance(node, list):
            for item in cast(list[Any], node):
                walk(item, inside, optional, path)
        if not isinstance(node, Mapping):
            return
        given = cast(Schema, node)
        ref = given.get("$ref")
        if isinstance(ref, str):
            name = ref.rsplit("/", 1)[-1]
            if name not in inside:
                walk(definitions.get(name), {**inside, name: optional}, optional, path)
            elif inside[name] == optional:
                raise subject.refused(
                    path,
                    f"the type {name!r}, which contains itself in a required property",
                    "Give that property a default, so that it may be left out",
                )
            else:
                found = True
        for key, value in given.items():
            if key == "properties" and isinstance(value, Mapping):
                required: Sequence[str] = given.get("required") or ()
                for prop, sub in cast(Schema, value).items():
                    walk(sub, inside, optional + (prop not in required), (*path, prop))
            elif key not in ("$defs", "definitions", "default", "const", "enum", "examples", "required"):
                step = {"items": ("[]",), "additionalProperties": ("{}",)}.get(key, ())
                walk(value, inside, optional, (*path, *step))

    walk(schema, {}, 0, ())
    return found


def _adapt(schema: dict[str, Any], path: Path, subject: Subject) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace("#/definitions/", "#/$defs/")}  # nothing may stand beside it
    unknown = [k for k in _UNKNOWN if k in schema and schema[k] is not False]
    if unknown:
        raise subject.refused(
            path, f"the keyword {unknown[0]!r}", "Describe that rule in words, and check it in the tool or the type"
        )
    schema = _merged(schema, path, subject)
    if "definitions" in schema:
        schema["$defs"] = schema.pop("definitions")
    if "oneOf" in schema:
        schema["anyOf"] = [*schema.get("anyOf", ()), *schema.pop("oneOf")]
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "patternProperties" in schema:
        schema = _any_key(schema, path, subject)
    types = schema.get("type")
    if isinstance(types, list):
        schema = _split_types(schema, cast(list[str], types), path, subject)
    if "enum" in schema:
        schema = _split_enum(schema)
    notes = [text.format(_plain(schema[k])) for k, text in _WORDS if k in schema and _unsaid(k, schema[k])]
    if schema.get("format") not in _FORMATS:
        schema.pop("format", None)
    out = {k: v for k, v in schema.items() if k in _KEPT}
    if "properties" in out:
        out["properties"] = {k: {} if v is True else v for k, v in out["properties"].items()}
    if notes:
        said = out.get("description")
        out["description"] = f"{said} ({', '.join(notes)})" if said else ", ".join(notes)
    return out


def _any_key(schema: dict[str, Any], path: Path, subject: Subject) -> dict[str, Any]:
    """Keys by pattern as any keys, with the pattern in words."""
    patterns: Mapping[str, Any] = schema["patternProperties"]
    if len(patterns) > 1 or schema.get("additionalProperties") not in (None, False):
        raise subject.refused(
            path, "keys of several patterns with values of their own", "Use one pattern, or a list of pairs"
        )
    out = {k: v for k, v in schema.items() if k != "patternProperties"}
    for pattern, values in patterns.items():
        out |= {"additionalProperties": values, "propertyNames": {"pattern": pattern}}
    return out


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unsaid(keyword: str, value: Any) -> bool:
    if value is False and keyword == "uniqueItems":
        return False
    if keyword == "format":
        return value not in _FORMATS
    return not (keyword == "default" and value is None)


def _merged(schema: dict[str, Any], path: Path, subject: Subject) -> dict[str, Any]:
    """The schema with its `allOf` merged into it, which Gemini does not have."""
    if "allOf" not in schema:
        return dict(schema)
    out = {k: v for k, v in schema.items() if k != "allOf"}
    for part in cast(list[dict[str, Any]], schema["allOf"]):
        for key, value in part.items():
            if key == "properties":
                out[key] = {**out.get(key, {}), **value}
            elif key == "required":
                out[key] = [*out.get(key, ()), *[v for v in value if v not in out.get(key, ())]]
            elif key in ("title", "description"):
                out.setdefault(key, value)
            elif out.setdefault(key, value) != value:
                raise subject.refused(
                    path, f"an allOf with two kinds of {key!r}", "Make it one type that has all of their fields"
                )
    return out


def _split_types(schema: dict[str, Any], types: list[str], path: Path, subject: Subject) -> dict[str, Any]:
    """`{"type": ["string", "null"], ...}` as an anyOf, with each keyword on the kind that it is about."""
    beside = {k: v for k, v in schema.items() if k in ("title", "description", "default", "$defs")}
    rest = {k: v for k, v in schema.items() if k not in beside and k != "type"}
    kinds = [{"type": t} if t == "null" else _adapt({"type": t, **rest}, path, subject) for t in types]
    return {**beside, "anyOf": kinds}


def _split_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """An enum is of texts or numbers; null becomes an alternative, anything else is said in the description."""
    values = cast(list[Any], schema["enum"])
    kinds = {_kind(v) for v in values}
    rest = {k: v for k, v in schema.items() if k != "enum"}
    if not kinds - {"string", "number", "integer"}:
        kind = _single(kinds)
        return {"type": kind, **schema} if kind else schema
    plain = [v for v in values if v is not None]
    kind = _single({_kind(v) for v in plain})
    if kind in ("string", "integer", "number"):
        beside = {k: v for k, v in rest.items() if k in ("title", "description", "default")}
        return {**beside, "anyOf": [{"type": kind, "enum": plain}, {"type": "null"}]}
    said = " or ".join([json.dumps(v, ensure_ascii=False) for v in values])
    note = f"{rest['description']} (one of {said})" if rest.get("description") else f"one of {said}"
    if kind and kind == _single(kinds):
        rest.setdefault("type", kind)
    return {**rest, "description": note}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _single(kinds: set[str]) -> str | None:
    return next(iter(kinds)) if len(kinds) == 1 else None
