"""Whether JSON data fits a JSON schema, when the schema is all there is.

A pause keeps the schema its answer must fit. Whoever answers, perhaps in a process that never saw the tool's code, has
no Python type to validate with, so this checks the schema itself: the keywords that pydantic and hand-written tool
schemas use. Keywords it does not know, or that make no sense, are passed over, as the standard says of the former.

A schema may come from anywhere, so it can cost no more than a number of steps: what is not checked by then is refused.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

from adjourn.parts import canonical
from adjourn.pattern import matches

Problem = Mapping[str, str]
_REFS = 50  # references and alternatives in a row, without going into the value
_STEPS = 100_000  # and these for each value within the value:
_STEPS_EACH = 20


def problems(schema: Any, value: Any) -> list[Problem]:
    """What is wrong with `value`; empty where it fits."""
    try:
        return _check(schema, value, "$", _Root(schema, _STEPS + _STEPS_EACH * _size(value)), 0)
    except RecursionError:
        return _bad("$", "is nested too deep")
    except _TooMuch as e:
        return _bad("$", f"cannot be checked: {e}")


class _TooMuch(Exception):
    pass


class _Root:
    """The whole schema, and how many steps are left."""

    __slots__ = ("left", "schema")

    def __init__(self, schema: Any, left: int) -> None:
        self.schema = schema
        self.left = left

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise _TooMuch("its schema has so many alternatives within alternatives that it has no end")


def _size(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + sum(_size(v) for v in cast(Mapping[str, Any], value).values())
    if isinstance(value, (list, tuple)):
        return 1 + sum(_size(v) for v in cast(Sequence[Any], value))
    return 1


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
        return kind == "number" or (_is_finite(value) and value == int(value))
    return isinstance(value, _TYPES[kind])


def _check(schema: Any, value: Any, path: str, root: _Root, depth: int) -> list[Problem]:
    root.spend()
    if schema is False:
        return _bad(path, "must not be given")
    if not isinstance(schema, Mapping):
        return []
    if depth > _REFS:
        return _bad(path, "has a schema that refers to itself without end")
    rules = cast(Mapping[str, Any], schema)
    ref: Any = rules.get("$ref")
    if isinstance(ref, str):
        found = _resolve(root.schema, ref)
        first = _check(found, value, path, root, depth + 1)
        rest = {k: v for k, v in rules.items() if k not in ("$ref", "$defs")}
        return first or _check(rest, value, path, root, depth + 1)
    kinds: Any = rules.get("type")
    allowed: Sequence[Any] = [kinds] if isinstance(kinds, str) else _listed(rules, "type")
    if allowed and all(isinstance(k, str) for k in allowed) and not any(_is(k, value) for k in allowed):
        return _bad(path, f"must be {' or '.join(allowed)}, not {_named(value)}")
    if "const" in rules and _same(rules["const"]) != _same(value):
        return _bad(path, f"must be {rules['const']!r}")
    if isinstance(rules.get("enum"), (list, tuple)):
        members: Sequence[Any] = rules["enum"]
        root.spend(len(members))
        if _same(value) not in [_same(v) for v in members]:
            return _bad(path, f"must be one of {', '.join(repr(v) for v in members)}")
    out = _combined(rules, value, path, root, depth)
    if isinstance(value, str):
        out += _text(rules, value, path, root)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        out += _number(rules, value, path)
    elif isinstance(value, Mapping):
        out += _object(rules, cast(Mapping[str, Any], value), path, root, depth)
    elif isinstance(value, (list, tuple)):
        out += _array(rules, cast(Sequence[Any], value), path, root, depth)
    return out


def _listed(rules: Mapping[str, Any], keyword: str) -> Sequence[Any]:
    given: Any = rules.get(keyword)
    return cast(Sequence[Any], given) if isinstance(given, (list, tuple)) else ()


def _mapped(rules: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    given: Any = rules.get(keyword)
    return cast(Mapping[str, Any], given) if isinstance(given, Mapping) else {}


def _amount(rules: Mapping[str, Any], keyword: str) -> float | None:
    given: Any = rules.get(keyword)
    is_one = isinstance(given, (int, float)) and not isinstance(given, bool) and _is_finite(given)
    return given if is_one else None


def _matches(pattern: Any, text: str, root: _Root) -> bool:
    if not isinstance(pattern, str):
        return True
    root.spend(1 + len(text) // 1000)
    found = matches(pattern, text)
    if found == "unknown":
        raise _TooMuch(f"trying the pattern {pattern[:100]} of its schema on such a text may have no end")
    return found


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
        elif isinstance(node, list) and name.isdecimal() and len(name) < 9 and int(name) < len(cast(list[Any], node)):
            node = cast(list[Any], node)[int(name)]
        else:
            return True
    return node


def _combined(rules: Mapping[str, Any], value: Any, path: str, root: _Root, depth: int) -> list[Problem]:
    out: list[Problem] = []
    for sub in _listed(rules, "allOf"):
        out += _check(sub, value, path, root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(rules.get(keyword), (list, tuple)):
            found = [_check(sub, value, path, root, depth + 1) for sub in _listed(rules, keyword)]
            fits = sum(not f for f in found)
            if not fits:
                # The branch that fails deepest is most likely the one that was meant.
                out += max(found, key=lambda f: max(len(p["path"]) for p in f)) if found else []
            elif keyword == "oneOf" and fits > 1:
                out += _bad(path, "fits more than one of the alternatives")
    if "not" in rules and not _check(rules["not"], value, path, root, depth + 1):
        out += _bad(path, "is what it must not be")
    return out


def _text(rules: Mapping[str, Any], value: str, path: str, root: _Root) -> list[Problem]:
    out = _length(rules, len(value), "Length", "characters", path)[:1]
    if not out and "pattern" in rules and not _matches(rules["pattern"], value, root):
        return _bad(path, f"must match {rules['pattern']}")
    return out


def _length(rules: Mapping[str, Any], length: int, what: str, named: str, path: str) -> list[Problem]:
    least, most = _amount(rules, f"min{what}"), _amount(rules, f"max{what}")
    out: list[Problem] = []
    if least is not None and length < least:
        out += _bad(path, f"must have at least {least} {named}")
    if most is not None and length > most:
        out += _bad(path, f"must have at most {most} {named}")
    return out


def _number(rules: Mapping[str, Any], value: float, path: str) -> list[Problem]:
    least, most = _amount(rules, "minimum"), _amount(rules, "maximum")
    above, below = _amount(rules, "exclusiveMinimum"), _amount(rules, "exclusiveMaximum")
    if least is not None and value < least:
        return _bad(path, f"must be at least {least}")
    if most is not None and value > most:
        return _bad(path, f"must be at most {most}")
    if above is not None and value <= above:
        return _bad(path, f"must be more than {above}")
    if below is not None and value >= below:
        return _bad(path, f"must be less than {below}")
    step = _amount(rules, "multipleOf")
    if step and not _is_multiple(value, step):
        return _bad(path, f"must be a multiple of {step}")
    return []


def _is_multiple(value: float, step: float) -> bool:
    try:
        times = value / step
        return abs(times - round(times)) <= 1e-9
    except (OverflowError, ValueError):  # more than a float can hold, or no number at all
        return _is_finite(value) and (_exact(value) / _exact(step)).denominator == 1


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # an integer may be more than a float can hold


def _exact(value: float) -> Fraction:
    return Fraction(value if isinstance(value, int) else repr(value))  # 0.1 as it is written


def _object(rules: Mapping[str, Any], value: Mapping[str, Any], path: str, root: _Root, depth: int) -> list[Problem]:
    known, patterns = _mapped(rules, "properties"), _mapped(rules, "patternProperties")
    needed = [name for name in _listed(rules, "required") if isinstance(name, str)]
    out = [p for name in needed if name not in value for p in _bad(f"{path}.{name}", "is required")]
    names = rules.get("propertyNames", True)
    for name, item in value.items():
        here = f"{path}.{name}"
        out += _check(names, name, here, root, depth + 1)
        matched = [sub for pattern, sub in patterns.items() if _matches(pattern, name, root)]
        for sub in [*([known[name]] if name in known else []), *matched]:
            out += _check(sub, item, here, root, 0)
        if name not in known and not matched:
            sub = rules.get("additionalProperties", True)
            out += _bad(here, "there is no such field") if sub is False else _check(sub, item, here, root, 0)
    return out + _length(rules, len(value), "Properties", "fields", path)


def _array(rules: Mapping[str, Any], value: Sequence[Any], path: str, root: _Root, depth: int) -> list[Problem]:
    out: list[Problem] = []
    first = _listed(rules, "prefixItems")
    for i, item in enumerate(value):
        sub = first[i] if i < len(first) else rules.get("items", True)
        out += _check(sub, item, f"{path}[{i}]", root, 0)
    out += _length(rules, len(value), "Items", "items", path)
    if rules.get("uniqueItems") and len({_same(v) for v in value}) < len(value):
        out += _bad(path, "must not have the same item twice")
    return out
