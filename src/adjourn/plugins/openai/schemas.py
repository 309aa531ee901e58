"""JSON schemas as OpenAI's structured outputs want them."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn.errors import SignatureError

Schema = Mapping[str, Any]

# What strict mode knows; the rest is dropped. Whatever comes back is validated against the whole schema all the same.
_KEPT = {
    "string": ("enum", "pattern", "format"),
    "integer": ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": ("enum",),
    "null": (),
}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}

WRAPPED = "value"
"""The property in which a shape that is no object travels: a reply has to be one."""


class _Unfit(Exception):
    """Strict mode cannot express it."""


def at_the_top(schema: Schema) -> Schema:
    """The schema without a reference at its head; its definitions stay, since others may refer to them."""
    ref = schema.get("$ref")
    definitions: Schema = schema.get("$defs") or {}
    target = definitions.get(str(ref).rsplit("/", 1)[-1]) if ref else None
    if target is None:
        return schema
    return {**{k: v for k, v in schema.items() if k != "$ref"}, **target}


def as_object(schema: Schema) -> tuple[Schema, bool]:
    """The schema of an object, and whether it had to be wrapped into one."""
    top = at_the_top(schema)
    if top.get("type") == "object":
        return top, False
    inner = {k: v for k, v in top.items() if k != "$defs"}
    wrapped = {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], "additionalProperties": False}
    return {**wrapped, **({"$defs": top["$defs"]} if "$defs" in top else {})}, True


def parameters(schema: Schema | None) -> Schema:
    """What stands for a tool's input: an object, with properties even where it has none."""
    return {"type": "object", "properties": {}, **at_the_top(schema or {})}


def fit_strictly(schema: Schema, *, fill: bool) -> dict[str, Any] | None:
    """The schema in the dialect of strict mode, or None where that cannot say it.

    Strict mode has no optional properties. With `fill` all become required: right for an output, which the model then
    writes in full. Without it only those may that can be null, since a tool's default is not the model's to choose.
    """
    try:
        top = _fit(at_the_top(schema), fill)
        if top.get("type") != "object":
            return None
        definitions: Mapping[str, Any] = schema.get("$defs") or {}
        if definitions:
            top["$defs"] = {name: _fit(inner, fill) for name, inner in definitions.items()}
        return top
    except _Unfit:
        return None


def choose_strict(schema: Schema, wish: bool | None, *, fill: bool, what: str) -> tuple[Schema, bool]:
    """The schema to send, and whether as strict. Raises SignatureError where `wish` is True and it cannot be."""
    if wish is False:
        return schema, False
    fitted = fit_strictly(schema, fill=fill)
    if fitted is None and wish:
        raise SignatureError(f"{what}: strict mode cannot express its schema; leave `strict` unset to send it as it is")
    return (schema, False) if fitted is None else (fitted, True)


def _fit(node: Any, fill: bool) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        raise _Unfit
    schema = cast(Schema, node)
    if any(word in schema for word in ("not", "if", "patternProperties", "prefixItems", "dependentSchemas")):
        raise _Unfit
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # nothing may stand beside it
    about = {"description": schema["description"]} if "description" in schema else {}
    union = schema.get("anyOf") or schema.get("oneOf")
    if union:
        return {"anyOf": [_fit(member, fill) for member in union], **about}
    if "allOf" in schema:
        members: Sequence[Any] = schema["allOf"]
        if len(members) != 1:
            raise _Unfit
        return _fit({**{k: v for k, v in schema.items() if k != "allOf"}, **members[0]}, fill)
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = cast(list[str], kind)
        return {"anyOf": [_fit({**schema, "type": k}, fill) for k in kinds], **about}
    if kind == "object":
        return {**_fit_object(schema, fill), **about}
    if kind == "array":
        kept = {k: schema[k] for k in ("minItems", "maxItems") if k in schema}
        return {"type": "array", "items": _fit(schema.get("items"), fill), **kept, **about}
    if kind is None and "enum" in schema:
        return {"enum": schema["enum"], **about}
    if kind not in _KEPT:
        raise _Unfit  # anything at all
    kept = {k: schema[k] for k in _KEPT[kind] if k in schema}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    if "(?" in str(kept.get("pattern", "")):
        kept.pop("pattern")  # it knows no lookarounds
    return {"type": kind, **kept, **about}


def _fit_object(schema: Schema, fill: bool) -> dict[str, Any]:
    open_ended = schema.get("additionalProperties")
    properties: Mapping[str, Any] | None = schema.get("properties")
    if open_ended not in (None, False) or (properties is None and open_ended is None):
        raise _Unfit
    properties = properties or {}
    required: Sequence[str] = schema.get("required") or ()
    if not fill and any(name not in required and not _may_be_null(p) for name, p in properties.items()):
        raise _Unfit
    return {
        "type": "object",
        "properties": {name: _fit(p, fill) for name, p in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


def _may_be_null(schema: Schema) -> bool:
    members: Sequence[Schema] = schema.get("anyOf") or ()
    nullable = schema.get("type") == "null" or any(m.get("type") == "null" for m in members)
    return nullable and schema.get("default", 0) is None
