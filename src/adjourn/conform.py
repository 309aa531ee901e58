"""Whether JSON data fits a JSON schema, when the schema is all there is.

A pause keeps the schema its answer must fit. Whoever answers, perhaps in a process that never saw the tool's code, has
no Python type to validate with, so this checks the schema itself: the keywords that pydantic and hand-written tool
schemas use. Keywords it does not know, or that make no sense, are passed over, as the standard says of the former.

A schema may come from anywhere, so it can cost no more than a number of steps: what is not checked by then is refused.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adjourn.parts import canonical

Problem = Mapping[str, str]
_REFS = 50  # references and alternatives in a row, without going into the value
_STEPS = 100_000


def problems(schema: Any, value: Any) -> list[Problem]:
    """What is wrong with `value`; empty where it fits."""
    try:
        return _Check(schema).check(schema, value, "$", 0)
    except RecursionError:
        return _bad("$", "is nested too deep")
    except _TooMuch:
        return _bad("$", f"cannot be checked: its schema needs more than {_STEPS} steps for it")


class _TooMuch(Exception):
    pass


def _bad(path: str, message: str) -> list[Problem]:
    return [{"path": path, "message": message}]


_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int, float),
}


def _is(kind: str, value: Any) -> bool:
    if kind not in _TYPES:
        return True
    if kind in ("number", "integer"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return kind == "number" or (math.isfinite(value) and value == int(value))
    return isinstance(value, _TYPES[kind])


def _check(schema: Any, value: Any, path: str, root: Any, depth: int) -> list[Problem]:
    if schema is True or schema is None:
        return []
    if schema is False:
        return _bad(path, "must not be given")
    if depth > _REFS:
        return _bad(path, "has a schema that refers to itself without end")
    rules = cast(Mapping[str, Any], schema)
    if "$ref" in rules:
        found = _resolve(root, rules["$ref"])
        first = _check(found, value, path, root, depth + 1)
        rest = {k: v for k, v in rules.items() if k not in ("$ref", "$defs")}
        return first or _check(rest, value, path, root, depth + 1)
    kinds: Any = rules.get("type")
    if kinds is not None:
        allowed: Sequence[str] = [kinds] if isinstance(kinds, str) else kinds
        if not any(_is(k, value) for k in allowed):
            return _bad(path, f"must be {' or '.join(allowed)}, not {_named(value)}")
    if "const" in rules and _same(rules["const"]) != _same(value):
        return _bad(path, f"must be {rules['const']!r}")
    if "enum" in rules and _same(value) not in [_same(v) for v in rules["enum"]]:
        return _bad(path, f"must be one of {', '.join(repr(v) for v in rules['enum'])}")
    out = _combined(rules, value, path, root, depth)
    if isinstance(value, str):
        out += _text(rules, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        out += _number(rules, value, path)
    elif isinstance(value, Mapping):
        out += _object(rules, cast(Mapping[str, Any], value), path, root, depth)
    elif isinstance(value, (list, tuple)):
        out += _array(rules, cast(Sequence[Any], value), path, root, depth)
    return out


def _same(value: Any) -> bytes:
    """Equal for values that JSON schema calls equal: 1 and 1.0 are one number."""
    return canonical(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in cast(Mapping[str, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in cast(Sequence[Any], value)]
    return value


def _named(value: Any) -> str:
    for name in ("null", "boolean", "integer", "number", "string", "array", "object"):
        if _is(name, value):
            return name
    return type(value).__name__


def _resolve(root: Any, ref: str) -> Any:
    node: Any = root
    for step in ref.removeprefix("#").strip("/").split("/"):
        if not step:
            continue
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = cast(Mapping[str, Any], node).get(name, True)
        elif isinstance(node, list) and name.isdigit() and int(name) < len(cast(list[Any], node)):
            node = cast(list[Any], node)[int(name)]
        else:
            return True
    return node


def _combined(rules: Mapping[str, Any], value: Any, path: str, root: Any, depth: int) -> list[Problem]:
    out: list[Problem] = []
    for sub in rules.get("allOf", ()):
        out += _check(sub, value, path, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if keyword in rules:
            found = [_check(sub, value, path, root, depth + 1) for sub in rules[keyword]]
            fits = sum(not f for f in found)
            if not fits:
                # The branch that fails deepest is most likely the one that was meant.
                out += max(found, key=lambda f: max(len(p["path"]) for p in f)) if found else []
            elif keyword == "oneOf" and fits > 1:
                out += _bad(path, "fits more than one of the alternatives")
    if "not" in rules and not _check(rules["not"], value, path, root, depth + 1):
        out += _bad(path, "is what it must not be")
    return out


def _text(rules: Mapping[str, Any], value: str, path: str) -> list[Problem]:
    if len(value) < rules.get("minLength", 0):
        return _bad(path, f"must have at least {rules['minLength']} characters")
    if "maxLength" in rules and len(value) > rules["maxLength"]:
        return _bad(path, f"must have at most {rules['maxLength']} characters")
    if "pattern" in rules and not re.search(rules["pattern"], value):
        return _bad(path, f"must match {rules['pattern']}")
    return []


def _number(rules: Mapping[str, Any], value: float, path: str) -> list[Problem]:
    if "minimum" in rules and value < rules["minimum"]:
        return _bad(path, f"must be at least {rules['minimum']}")
    if "maximum" in rules and value > rules["maximum"]:
        return _bad(path, f"must be at most {rules['maximum']}")
    if "exclusiveMinimum" in rules and value <= rules["exclusiveMinimum"]:
        return _bad(path, f"must be more than {rules['exclusiveMinimum']}")
    if "exclusiveMaximum" in rules and value >= rules["exclusiveMaximum"]:
        return _bad(path, f"must be less than {rules['exclusiveMaximum']}")
    step = rules.get("multipleOf")
    if step and abs(value / step - round(value / step)) > 1e-9:
        return _bad(path, f"must be a multiple of {step}")
    return []


def _object(rules: Mapping[str, Any], value: Mapping[str, Any], path: str, root: Any, depth: int) -> list[Problem]:
    known: Mapping[str, Any] = rules.get("properties", {})
    out = [p for name in rules.get("required", ()) if name not in value for p in _bad(f"{path}.{name}", "is required")]
    patterns: Mapping[str, Any] = rules.get("patternProperties", {})
    names = rules.get("propertyNames", True)
    for name, item in value.items():
        here = f"{path}.{name}"
        out += _check(names, name, here, root, depth + 1)
        matched = [sub for pattern, sub in patterns.items() if re.search(pattern, name)]
        for sub in [*([known[name]] if name in known else []), *matched]:
            out += _check(sub, item, here, root, 0)
        if name not in known and not matched:
            sub = rules.get("additionalProperties", True)
            out += _bad(here, "there is no such field") if sub is False else _check(sub, item, here, root, 0)
    if len(value) < rules.get("minProperties", 0):
        out += _bad(path, f"must have at least {rules['minProperties']} fields")
    if "maxProperties" in rules and len(value) > rules["maxProperties"]:
        out += _bad(path, f"must have at most {rules['maxProperties']} fields")
    return out


def _array(rules: Mapping[str, Any], value: Sequence[Any], path: str, root: Any, depth: int) -> list[Problem]:
    out: list[Problem] = []
    first: Sequence[Any] = rules.get("prefixItems", ())
    for i, item in enumerate(value):
        sub = first[i] if i < len(first) else rules.get("items", True)
        out += _check(sub, item, f"{path}[{i}]", root, 0)
    if len(value) < rules.get("minItems", 0):
        out += _bad(path, f"must have at least {rules['minItems']} items")
    if "maxItems" in rules and len(value) > rules["maxItems"]:
        out += _bad(path, f"must have at most {rules['maxItems']} items")
    if rules.get("uniqueItems") and len({_same(v) for v in value}) < len(value):
        out += _bad(path, "must not have the same item twice")
    return out
