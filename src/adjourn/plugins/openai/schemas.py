"""JSON schemas as OpenAI's structured outputs want them."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn.dialect import Path, Subject

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
    """Strict mode cannot express it: where, and what."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem


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


def one_object(schema: Schema, subject: Subject) -> Schema:
    """A tool's input. Raises SignatureError where that is a choice between several, which the API does not take."""
    for keyword in ("anyOf", "oneOf", "allOf", "enum", "not"):
        if keyword in schema:
            raise subject.refused(
                (),
                f"an input that is a choice ({keyword} at the top of its schema)",
                "Give it one object with optional fields, or a parameter that holds the choice",
            )
    return schema


def fit_strictly(schema: Schema, *, fill: bool) -> dict[str, Any] | None:
    """The schema in the dialect of strict mode, or None where that cannot say it.

    Strict mode has no optional properties. With `fill` all become required: right for an output, which the model then
    writes in full. Without it only those may that can be null, since a tool's default is not the model's to choose.
    """
    try:
        return _fitted(schema, fill)
    except _Unfit:
        return None


def choose_strict(schema: Schema, wish: bool | None, subject: Subject, *, fill: bool) -> tuple[Schema, bool]:
    """The schema to send, and whether as strict. Raises SignatureError where `wish` is True and it cannot be."""
    if wish is False:
        return schema, False
    try:
        return _fitted(schema, fill), True
    except _Unfit as e:
        if wish:
            raise subject.refused(
                e.path, f"{e.problem} in strict mode", "Leave `strict` unset to send the schema as it is"
            ) from None
        return schema, False


# What one strict schema may have at most, by OpenAI's documentation.
_MOST_PROPERTIES, _MOST_LEVELS, _MOST_CHOICES, _MOST_LETTERS = 5000, 10, 1000, 120_000


def _fitted(schema: Schema, fill: bool) -> dict[str, Any]:
    top = _fit(at_the_top(schema), fill, ())
    if top.get("type") != "object":
        raise _Unfit((), "what is no object")
    definitions: Mapping[str, Any] = schema.get("$defs") or {}
    if definitions:
        top["$defs"] = {name: _fit(inner, fill, (name,)) for name, inner in definitions.items()}
    size = _Size()
    size.add(top, 0)
    if size.properties > _MOST_PROPERTIES or size.choices > _MOST_CHOICES or size.letters > _MOST_LETTERS:
        raise _Unfit((), "so large a schema")
    if size.levels > _MOST_LEVELS:
        raise _Unfit((), f"more than {_MOST_LEVELS} levels of objects in each other")
    return top


class _Size:
    """How large a schema is."""

    def __init__(self) -> None:
        self.properties = self.choices = self.letters = self.levels = 0

    def add(self, schema: Schema, level: int) -> None:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        level += bool(properties)
        self.levels = max(self.levels, level)
        self.properties += len(properties)
        self.choices += len(schema.get("enum") or ())
        definitions: Mapping[str, Schema] = schema.get("$defs") or {}
        union: Sequence[Schema] = schema.get("anyOf") or ()
        texts = [*properties, *definitions, *[c for c in schema.get("enum") or () if isinstance(c, str)]]
        self.letters += sum(map(len, texts))
        inside: list[Schema] = [*properties.values(), *union, *definitions.values()]
        if "items" in schema:
            inside.append(schema["items"])
        for inner in inside:
            self.add(inner, level)


def _fit(node: Any, fill: bool, path: Path) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        raise _Unfit(path, "a value that may be anything")
    schema = cast(Schema, node)
    unknown = [w for w in ("not", "if", "patternProperties", "prefixItems", "dependentSchemas") if w in schema]
    if unknown:
        raise _Unfit(path, f"the keyword {unknown[0]!r}")
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # nothing may stand beside it
    about = {"description": schema["description"]} if "description" in schema else {}
    union = schema.get("anyOf") or schema.get("oneOf")
    if union:
        return {"anyOf": [_fit(member, fill, path) for member in union], **about}
    if "allOf" in schema:
        members: Sequence[Any] = schema["allOf"]
        if len(members) != 1:
            raise _Unfit(path, "an allOf of several schemas")
        return _fit({**{k: v for k, v in schema.items() if k != "allOf"}, **members[0]}, fill, path)
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = cast(list[str], kind)
        return {"anyOf": [_fit({**schema, "type": k}, fill, path) for k in kinds], **about}
    if kind == "object":
        return {**_fit_object(schema, fill, path), **about}
    if kind == "array":
        kept = {k: schema[k] for k in ("minItems", "maxItems") if k in schema}
        return {"type": "array", "items": _fit(schema.get("items"), fill, (*path, "[]")), **kept, **about}
    if kind is None and "enum" in schema:
        return {"enum": schema["enum"], **about}
    if kind not in _KEPT:
        raise _Unfit(path, "a value that may be anything")
    kept = {k: schema[k] for k in _KEPT[kind] if k in schema}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    if "(?" in str(kept.get("pattern", "")):
        kept.pop("pattern")  # it knows no lookarounds
    return {"type": kind, **kept, **about}


def _fit_object(schema: Schema, fill: bool, path: Path) -> dict[str, Any]:
    open_ended = schema.get("additionalProperties")
    properties: Mapping[str, Any] | None = schema.get("properties")
    if open_ended not in (None, False) or (properties is None and open_ended is None):
        raise _Unfit(path, "an object whose keys are not named beforehand (a dict)")
    properties = properties or {}
    required: Sequence[str] = schema.get("required") or ()
    for name, inner in properties.items() if not fill else ():
        if name not in required and not _may_be_null(inner):
            raise _Unfit((*path, name), "a parameter with a default that is not null")
    return {
        "type": "object",
        "properties": {name: _fit(p, fill, (*path, name)) for name, p in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


def _may_be_null(schema: Schema) -> bool:
    members: Sequence[Schema] = schema.get("anyOf") or ()
    nullable = schema.get("type") == "null" or any(m.get("type") == "null" for m in members)
    return nullable and schema.get("default", 0) is None
