"""JSON schemas in the dialects that providers understand: references written out, keywords dropped."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from adjourn.errors import SignatureError

Schema = Mapping[str, Any]


def inline_references(schema: Schema, what: str = "schema") -> dict[str, Any]:
    """The schema with every `$ref` replaced by what it refers to.

    Raises SignatureError for a type that contains itself, which cannot be written out: keep the references for a provider
    that takes them.
    """
    definitions: Mapping[str, Any] = schema.get("$defs") or schema.get("definitions") or {}

    def expand(node: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [expand(item, inside) for item in cast(list[Any], node)]
        if not isinstance(node, Mapping):
            return node
        given = cast(Mapping[str, Any], node)
        ref = given.get("$ref")
        rest = {k: expand(v, inside) for k, v in given.items() if k not in ("$ref", "$defs", "definitions")}
        if not isinstance(ref, str):
            return rest
        name = ref.rsplit("/", 1)[-1]
        if name in inside:
            raise SignatureError(
                f"{what}: the type {name!r} contains itself, which this provider's schemas cannot express"
            )
        if name not in definitions:
            raise SignatureError(f"{what}: {ref!r} refers to nothing")
        return {**expand(definitions[name], (*inside, name)), **rest}

    return expand(schema, ())


def each_schema(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """The schema with `change` made to each schema in it, innermost first; data (defaults, enums) is left alone."""
    if isinstance(schema, list):
        return [each_schema(item, change) for item in cast(list[Any], schema)]
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    for key, value in cast(Mapping[str, Any], schema).items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, Mapping):
            out[key] = {k: each_schema(v, change) for k, v in cast(Mapping[str, Any], value).items()}
        elif key in ("default", "const", "enum", "examples", "required"):
            out[key] = value
        else:
            out[key] = each_schema(value, change)
    return change(out)


def without(schema: Any, keywords: Sequence[str]) -> Any:
    """The schema without these keywords, wherever they stand as keywords."""
    return each_schema(schema, lambda s: {k: v for k, v in s.items() if k not in keywords})
