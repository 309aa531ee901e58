"""The fields of a form, made from a JSON schema: what `forms.py` fills and reads, and pages and prompts show."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

Json: TypeAlias = Any
Kind = Literal[
    "object", "list", "union", "many", "choice", "boolean", "constant", "string", "text", "integer", "number", "date",
    "datetime", "time", "json",
]  # fmt: skip

_MAX_FIELDS = 150
_MAX_STEPS = 2000  # through references and wrappers, in the whole schema: each of them may lead to two others
_CALLED = "$called"  # the name that a reference gives to what has no title
_MAX_DEPTH = 6
_LONG = {
    "body",
    "text",
    "message",
    "note",
    "notes",
    "comment",
    "description",
    "content",
    "reason",
    "summary",
    "details",
}
_FORMATS: Mapping[str, Kind] = {"date": "date", "date-time": "datetime", "time": "time", "textarea": "text"}
_NOTHING: Mapping[str, Any] = {}
_SCALARS: Mapping[str, Kind] = {"integer": "integer", "number": "number", "boolean": "boolean"}


class Choice(msgspec.Struct, frozen=True):
    """One of the values that may be chosen. `text` is what the form sends for it: its JSON."""

    value: Json
    label: str

    @property
    def text(self) -> str:
        return compact(self.value)


class Field(msgspec.Struct, frozen=True):
    """One field of a form, with the fields in it.

    `children` are an object's, `item` is what each row of a list is, `options` are a union's alternatives. `choices` are
    the values of a "choice" (one of them), a "many" (any of them) or a "constant" (the only one). `hint` tells the bounds in
    words. Only the outermost field has the `schema`.
    """

    name: str
    kind: Kind
    title: str = ""
    description: str = ""
    required: bool = True
    nullable: bool = False
    default: Json | UnsetType = UNSET
    choices: tuple[Choice, ...] = ()
    children: tuple["Field", ...] = ()
    item: "Field | None" = None
    options: tuple["Field", ...] = ()
    hint: str = ""
    schema: Json | UnsetType = UNSET

    @property
    def optional(self) -> bool:
        """Whether it may be left out, or be null."""
        return self.nullable or not self.required


# -- from a schema to a form -----------------------------------------------------------------------------------------


class _TooMuch(Exception):
    """The schema needs the JSON editor."""


def form_of(schema: Json) -> Field | None:
    """The form for a value of this JSON schema. None where only a JSON editor can do it."""
    if not isinstance(schema, Mapping):
        return None
    try:
        field = _Builder(schema).field(schema, "", required=True, depth=0)
    except (_TooMuch, TypeError, ValueError, AttributeError):
        return None  # too large, or no schema at all: other people's tools bring theirs
    return None if field.kind == "json" else replace(field, schema=schema)


class _Builder:
    def __init__(self, root: Json) -> None:
        self._root = root
        self._count = 0
        self._steps = 0

    def field(self, schema: Json, name: str, *, required: bool, depth: int) -> Field:
        self._count += 1
        if self._count > _MAX_FIELDS:
            raise _TooMuch
        try:
            rules, nullable = self._plain(schema)
        except (_TooMuch, RecursionError):
            rules, nullable = _NOTHING, False
        title = str(rules.get("title") or _words(name) or rules.get(_CALLED, ""))
        field = Field(
            name, "json", title, str(rules.get("description", "")), required, nullable, rules.get("default", UNSET)
        )
        if depth > _MAX_DEPTH:
            return field
        return self._shaped(field, rules, depth)

    def _shaped(self, field: Field, rules: Mapping[str, Any], depth: int) -> Field:
        if "const" in rules:
            # Beside null it is no constant: there are two answers.
            kind = "choice" if field.nullable else "constant"
            return replace(field, kind=kind, choices=(_choice(rules["const"]),))
        if rules.get("enum"):
            return replace(field, kind="choice", choices=tuple(_choice(v) for v in rules["enum"]))
        options: Sequence[Json] = rules.get("anyOf") or rules.get("oneOf") or ()
        if options:
            return self._union(field, options, rules, depth)
        given: Any = rules.get("type")
        if given == "object" or (given is None and "properties" in rules):
            return self._object(field, rules, depth)
        if given == "array":
            return self._list(field, rules, depth)
        if isinstance(given, str) and given in _SCALARS:
            return replace(field, kind=_SCALARS[given], hint=_number_hint(rules))
        if given == "string":
            long = field.name.lower() in _LONG or rules.get("maxLength", 0) > 150
            return replace(
                field, kind=_FORMATS.get(rules.get("format", ""), "text" if long else "string"), hint=_text_hint(rules)
            )
        return field

    def _plain(self, schema: Json) -> tuple[Mapping[str, Any], bool]:
        """The rules themselves, without references and wrappers, and whether null fits beside them."""
        nullable, steps = False, 0
        while True:
            steps += 1
            self._steps += 1
            if not isinstance(schema, Mapping) or steps > 20 or self._steps > _MAX_STEPS:
                raise _TooMuch
            rules = cast(Mapping[str, Any], schema)
            own = {k: v for k, v in rules.items() if k in ("title", "description", "default")}
            if "$ref" in rules:
                found = self._resolve(str(rules["$ref"]))
                schema = {_CALLED: _words(str(rules["$ref"]).rsplit("/", 1)[-1]), **found, **own}
            elif "allOf" in rules:
                merged: dict[str, Any] = {k: v for k, v in rules.items() if k != "allOf"}
                parts = [self._plain(sub) for sub in rules["allOf"]]
                # Null fits only where it fits all of them.
                nullable = nullable or (bool(parts) and "type" not in rules and all(null for _, null in parts))
                for part, _ in parts:
                    merged = _merged(merged, part)
                schema = merged
            elif isinstance(rules.get("type"), list):
                kinds = [k for k in rules["type"] if k != "null"]
                nullable = nullable or "null" in rules["type"]
                bounds = {k: v for k, v in rules.items() if k != "type"}
                if "enum" in rules or "const" in rules:
                    schema = bounds  # the values say it all
                    continue
                if len(kinds) != 1:
                    return {**own, "anyOf": [{**bounds, "type": k} for k in kinds]}, nullable
                schema = {**bounds, "type": kinds[0]}
            elif (keyword := next((k for k in ("anyOf", "oneOf") if k in rules), None)) and (
                len(rest := [s for s in rules[keyword] if s != {"type": "null"}]) < len(rules[keyword])
                or len(rest) == 1
            ):
                nullable = nullable or len(rest) < len(rules[keyword])
                only = rest[0] if len(rest) == 1 else {**rules, keyword: rest}
                schema = {**cast(Mapping[str, Any], only), **own} if isinstance(only, Mapping) else own
            else:
                return rules, nullable

    def _resolve(self, ref: str) -> Mapping[str, Any]:
        node: Any = self._root
        for step in ref.removeprefix("#").strip("/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise _TooMuch
            node = cast(Mapping[str, Any], node)[name]
        if not isinstance(node, Mapping):
            raise _TooMuch
        return cast(Mapping[str, Any], node)

    def _object(self, field: Field, rules: Mapping[str, Any], depth: int) -> Field:
        properties: Mapping[str, Any] = rules.get("properties", {})
        if not properties and rules.get("additionalProperties", True) is not False:
            return field  # any keys at all: that is what the JSON editor is for
        needed: Sequence[str] = rules.get("required", ())
        children = tuple(
            self.field(sub, name, required=name in needed, depth=depth + 1) for name, sub in properties.items()
        )
        if any(set(name) & set(".[]@?#$^") for name in properties):
            return field  # such names would make two paths look the same
        return replace(field, kind="object", children=children)

    def _list(self, field: Field, rules: Mapping[str, Any], depth: int) -> Field:
        if "items" not in rules or "prefixItems" in rules:
            return field
        item = self.field(rules["items"], "", required=True, depth=depth + 1)
        if rules.get("uniqueItems") and item.kind == "choice" and not item.nullable:
            return replace(field, kind="many", choices=item.choices, hint=_count_hint(rules))
        return replace(field, kind="list", item=item, hint=_count_hint(rules))

    def _union(self, field: Field, options: Sequence[Json], rules: Mapping[str, Any], depth: int) -> Field:
        if len(options) > 8 or "properties" in rules:
            return field
        found = tuple(self.field(sub, "", required=True, depth=depth + 1) for sub in options)
        if all(o.kind == "constant" for o in found):
            return replace(field, kind="choice", choices=tuple(c for o in found for c in o.choices))
        named = tuple(replace(o, title=_alternative(o)) for o in found)
        return replace(field, kind="union", options=named)


def _merged(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    out = {**b, **a}
    if "properties" in a and "properties" in b:
        out["properties"] = {**b["properties"], **a["properties"]}
    if "required" in a and "required" in b:
        out["required"] = [*b["required"], *(n for n in a["required"] if n not in b["required"])]
    return out


_KIND_WORDS: Mapping[Kind, str] = {
    "string": "Text", "text": "Text", "integer": "Whole number", "number": "Number", "boolean": "Yes or no", "list": "List",
    "many": "Several choices", "choice": "Choice", "date": "Date", "datetime": "Date and time", "time": "Time",
    "object": "Group", "json": "JSON", "union": "Alternatives",
}  # fmt: skip


def _alternative(option: Field) -> str:
    if option.title:
        return option.title
    if option.kind == "constant":
        return option.choices[0].label
    fixed = [c.choices[0].label for c in option.children if c.kind == "constant"]
    return fixed[0] if fixed else _KIND_WORDS[option.kind]


def _words(name: str) -> str:
    """`needsApproval` and `needs_approval` as "Needs approval"."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace("-", " ").strip()
    return spaced[:1].upper() + (spaced[1:] if spaced.isupper() else spaced[1:].lower())


def _choice(value: Json) -> Choice:
    if isinstance(value, bool):
        return Choice(value, "Yes" if value else "No")
    return Choice(value, "None" if value is None else value if isinstance(value, str) else compact(value))


def compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _number_hint(rules: Mapping[str, Any]) -> str:
    pairs = [
        ("minimum", "at least {}"),
        ("exclusiveMinimum", "more than {}"),
        ("maximum", "at most {}"),
        ("exclusiveMaximum", "less than {}"),
        ("multipleOf", "a multiple of {}"),
    ]
    return _joined([text.format(rules[key]) for key, text in pairs if key in rules])


def _text_hint(rules: Mapping[str, Any]) -> str:
    least, most = rules.get("minLength", 0), rules.get("maxLength")
    return _joined(
        [
            *([f"at least {least} characters"] if least > 1 else []),
            *([f"at most {most} characters"] if most is not None else []),
            *([f"must match {rules['pattern']}"] if "pattern" in rules else []),
        ]
    )


def _count_hint(rules: Mapping[str, Any]) -> str:
    least, most = rules.get("minItems", 0), rules.get("maxItems")
    return _joined([*([f"at least {least}"] if least else []), *([f"at most {most}"] if most is not None else [])])


def _joined(parts: Sequence[str]) -> str:
    text = ", ".join(parts)
    return text[:1].upper() + text[1:]
