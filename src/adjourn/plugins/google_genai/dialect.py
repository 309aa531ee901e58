"""JSON schema as Gemini takes it, in `parametersJsonSchema` and `responseJsonSchema`.

It understands a subset. What only narrows a value (a pattern, a length) is moved into the description, where the model
reads it, and is still enforced by the tool's own validation; what changes the shape and cannot be written is an error.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn.dialect import each_schema, inline_references
from adjourn.errors import SignatureError

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
    ("default", "default {}"),
)
# The API allows longer ones by now in places, but not everywhere.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")


def tool_schema(name: str, schema: Schema | None) -> dict[str, Any]:
    """The input schema of a tool. Raises SignatureError, naming the tool, for what Gemini cannot express."""
    if not _NAME.match(name):
        raise SignatureError(
            f"tool {name!r}: Gemini takes names of letters, digits, '_', '.', ':' and '-', not beginning with a digit, "
            "of at most 64 characters"
        )
    out = adapted(schema or {}, f"tool {name!r}")
    out.setdefault("type", "object")
    out.setdefault("properties", {})
    return out


def adapted(schema: Schema, what: str) -> dict[str, Any]:
    """The schema in Gemini's subset. References are written out, unless a type contains itself in an optional place."""
    if _contains_itself(schema, what):
        root: dict[str, Any] = dict(schema)
        name = str(root.pop("$ref", "")).rsplit("/", 1)[-1]
        if name:  # a root has to say that it is an object
            root = {**_definitions(schema)[name], **root}
    else:
        root = inline_references(schema, what)
    return each_schema(root, lambda s: _adapt(s, what))


def _definitions(schema: Schema) -> Mapping[str, Any]:
    return schema.get("$defs") or schema.get("definitions") or {}


def _contains_itself(schema: Schema, what: str) -> bool:
    """Whether a type contains itself. Gemini unrolls such a type only where it stands in a property that is not required."""
    definitions = _definitions(schema)
    found = False

    def walk(node: Any, inside: Mapping[str, int], optional: int) -> None:
        nonlocal found
        if isinstance(node, list):
            for item in cast(list[Any], node):
                walk(item, inside, optional)
        if not isinstance(node, Mapping):
            return
        given = cast(Schema, node)
        ref = given.get("$ref")
        if isinstance(ref, str):
            name = ref.rsplit("/", 1)[-1]
            if name not in inside:
                walk(definitions.get(name), {**inside, name: optional}, optional)
            elif inside[name] == optional:
                raise SignatureError(
                    f"{what}: the type {name!r} contains itself in a required property, which Gemini cannot express; "
                    "give that property a default"
                )
            else:
                found = True
        for key, value in given.items():
            if key == "properties" and isinstance(value, Mapping):
                required: Sequence[str] = given.get("required") or ()
                for prop, sub in cast(Schema, value).items():
                    walk(sub, inside, optional + (prop not in required))
            elif key not in ("$defs", "definitions", "default", "const", "enum", "examples", "required"):
                walk(value, inside, optional)

    walk(schema, {}, 0)
    return found


def _adapt(schema: dict[str, Any], what: str) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace("#/definitions/", "#/$defs/")}  # nothing may stand beside it
    schema = _merged(schema, what)
    if "definitions" in schema:
        schema["$defs"] = schema.pop("definitions")
    if "oneOf" in schema:
        schema["anyOf"] = [*schema.get("anyOf", ()), *schema.pop("oneOf")]
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    types = schema.get("type")
    if isinstance(types, list):
        schema = _split_types(schema, cast(list[str], types), what)
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


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unsaid(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return value not in _FORMATS
    return not (keyword == "default" and value is None)


def _merged(schema: dict[str, Any], what: str) -> dict[str, Any]:
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
                raise SignatureError(f"{what}: an allOf with two kinds of {key!r}, which Gemini cannot express")
    return out


def _split_types(schema: dict[str, Any], types: list[str], what: str) -> dict[str, Any]:
    """`{"type": ["string", "null"], ...}` as an anyOf, with each keyword on the kind that it is about."""
    beside = {k: v for k, v in schema.items() if k in ("title", "description", "default", "$defs")}
    rest = {k: v for k, v in schema.items() if k not in beside and k != "type"}
    return {**beside, "anyOf": [{"type": t} if t == "null" else _adapt({"type": t, **rest}, what) for t in types]}


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
