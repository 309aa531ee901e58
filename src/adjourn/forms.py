"""Forms out of JSON schemas, and answers out of filled-in forms: for the inbox page and the prompts of the command line.

A form is a tree of fields, and what was typed into it is a flat mapping from names to texts, as browsers send it. The
name of an input is the path of its value as errors have it (`$.lines[0].sku`), with five marks: `path?` is present when
an optional group or list is given at all, `path#` is how many rows a list has, `path^` is which row of the value that the
form was filled with this row was, `path@` is which alternative of a union was chosen, and the inputs of alternative 1 begin
with `path@1`.

What is typed is read by these rules: a text left empty is not given where it may be left out, is null where it must be
given but may be null, and is the empty text elsewhere. Everything else left empty is not given, or null likewise.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.conform import problems
from adjourn.errors import NotJSON
from adjourn.fields import Choice, Field, Json, Kind, compact, form_of
from adjourn.parts import to_json

__all__ = [
    "Choice", "Data", "Field", "Kind", "Reading", "check", "fields_in_all", "fill", "form_of", "is_too_large", "read_form",
    "read_json", "read_text", "row_count", "rows_in_all", "with_row", "within_bounds", "without_row",
]  # fmt: skip

Data: TypeAlias = Mapping[str, Sequence[str]]

MAX_ROWS = 200
"""Of one list."""
MAX_ROWS_IN_ALL = 2_000
"""Of all lists of a form: with lists in lists, a few hundred letters could ask for millions of rows."""
MAX_FIELDS_IN_ALL = 6_000
"""Of a form with all its rows: each row may have many."""
_INSIDE = "@"  # marks, while reading, a union with an error inside; no path ends so
_NOTHING: Mapping[str, Any] = {}


class Reading(msgspec.Struct, frozen=True):
    """What was read out of a form: the value, or UNSET where it cannot be read, and the errors by path (`$.lines[0].sku`)."""

    value: Json | UnsetType
    errors: Mapping[str, str]


# -- from a value to what a form shows -------------------------------------------------------------------------------


def fill(field: Field, value: Json | UnsetType = UNSET) -> dict[str, list[str]]:
    """The inputs of a form that shows this value; without one, the defaults. `read_form` gives the value back."""
    out: dict[str, list[str]] = {}
    _fill(field, value, "$", out)
    return out


def _fill(field: Field, value: Json | UnsetType, path: str, out: dict[str, list[str]]) -> None:
    given = value is not UNSET
    if not given:
        value = field.default
    if (
        field.kind in ("object", "list", "union", "many")
        and field.optional
        and value is not UNSET
        and value is not None
    ):
        out[path + "?"] = ["on"]
    if field.kind == "object":
        held = cast(Mapping[str, Any], value) if isinstance(value, Mapping) else _NOTHING
        for child in field.children:
            # What the value leaves out is not filled with its default: that would be an edit that nobody made.
            if child.name in held or not (given and value is not None and child.optional):
                _fill(child, held.get(child.name, UNSET), f"{path}.{child.name}", out)
            elif child.kind in ("object", "list", "union"):
                _fill(msgspec.structs.replace(child, default=UNSET), UNSET, f"{path}.{child.name}", out)
    elif field.kind == "list":
        rows = cast(Sequence[Any], value)[:MAX_ROWS] if isinstance(value, (list, tuple)) else ()
        out[path + "#"] = [str(len(rows))]
        assert field.item is not None
        for i, row in enumerate(rows):
            if given:
                out[f"{path}[{i}]^"] = [str(i)]
            _fill(field.item, row, f"{path}[{i}]", out)
    elif field.kind == "many":
        out[path] = [compact(v) for v in cast(Sequence[Any], value)] if isinstance(value, (list, tuple)) else []
    elif field.kind == "union":
        chosen = _fitting(field, value)
        if chosen is not None:
            out[path + "@"] = [str(chosen)]
        for i, option in enumerate(field.options):
            _fill(option, value if i == chosen else UNSET, f"{path}@{i}", out)
    elif value is not UNSET and (value is not None or any(c.value is None for c in field.choices)):
        out[path] = [_shown(field, value)]


def _fitting(field: Field, value: Json | UnsetType) -> int | None:
    """Which alternative a value is of, judged by what reading it back gives."""
    if value is UNSET or value is None:
        return None
    wanted = _sorted(value)
    for i, option in enumerate(field.options):
        got = _read(option, fill(option, value), "$", "$", UNSET, {})
        # As JSON: to Python, true and 1 are equal.
        if got is not UNSET and _sorted(got) == wanted:
            return i
    return None


def _sorted(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(field: Field, value: Json) -> str:
    if field.kind in ("choice", "boolean", "json", "constant"):
        return json.dumps(value, ensure_ascii=False, indent=2) if field.kind == "json" else compact(value)
    return value if isinstance(value, str) else compact(value)


# -- from what was typed to a value ----------------------------------------------------------------------------------


def read_form(field: Field, data: Data, initial: Json | UnsetType = UNSET) -> Reading:
    """The value that was typed, checked against the schema.

    With the `initial` value that the form was filled with, inputs that nobody touched keep it exactly: browsers change line
    breaks and drop some control characters, and a date may be written in more than one way.
    """
    if rows_in_all(data) > MAX_ROWS_IN_ALL:
        return Reading(
            UNSET, {"$": f"has more than {MAX_ROWS_IN_ALL:,} rows in all its lists; take some out, or give JSON"}
        )
    if fields_in_all(field, data) > MAX_FIELDS_IN_ALL:
        return Reading(
            UNSET, {"$": f"has more than {MAX_FIELDS_IN_ALL:,} fields in all its rows; take some out, or give JSON"}
        )
    errors: dict[str, str] = {}
    value = _read(field, data, "$", "$", initial, errors)
    unsure = [path for path in errors if path.endswith(_INSIDE)]
    for path in unsure:
        del errors[path]
    if value is UNSET:
        return Reading(UNSET, errors)
    if field.schema is not UNSET:
        for path, message in check(field.schema, value).items():
            # Of a union that cannot be read whole, the schema only knows that no alternative fits.
            if not any(_within(path, union.removesuffix(_INSIDE)) for union in unsure):
                errors.setdefault(path, message)
    return Reading(value, errors)


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((outer + ".", outer + "["))


def check(schema: Json, value: Json) -> dict[str, str]:
    """What is wrong with a value, by path; the first fault of each."""
    out: dict[str, str] = {}
    for problem in problems(schema, value):
        out.setdefault(problem["path"], problem["message"])
    return out


def read_text(field: Field, text: str) -> Json | UnsetType:
    """The value of a field without fields in it, out of one text. UNSET: not given. Raises ValueError with the reason."""
    if field.kind == "constant":
        return field.choices[0].value
    if not text.strip():
        return _empty(field, text)
    return _READERS[field.kind](field, text)


def read_json(text: str) -> Json:
    """The JSON value in a text. Raises ValueError with the place and the reason."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_int=_bounded)
        msgspec.json.encode(to_json(value))
    except json.JSONDecodeError as e:
        raise ValueError(f"is not JSON: {e.msg} (line {e.lineno}, column {e.colno})") from None
    except NotJSON as e:
        raise ValueError(f"is not JSON: {e.path} {e.problem}") from None
    except (OverflowError, RecursionError, TypeError):
        raise ValueError("holds a number that is too large, or is nested too deep") from None
    return value


def _bounded(digits: str) -> int:
    # Larger ones would come back from a store as another number.
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"holds a number that is too large: {digits[:30]}")
    return int(digits)


def _no_number(name: str) -> Any:
    raise ValueError(f"is not JSON: there is no number {name}")


def _empty(field: Field, text: str) -> Json | UnsetType:
    if field.kind in ("string", "text"):
        if field.required and not field.nullable:
            return text
        if text or field.default not in (UNSET, None, ""):
            return text  # blanks are a text; and who empties what was filled in means the empty text
    if not field.required:
        return UNSET
    if field.nullable:
        return None
    raise ValueError("is required")


def _integer(field: Field, text: str) -> int:
    plain = text.strip().replace("\u2212", "-").removeprefix("+")
    if not re.fullmatch(r"-?[0-9]{1,20}", plain):
        raise ValueError("must be a whole number, such as 12")
    return _bounded(plain)


def _decimal(field: Field, text: str) -> int | float:
    plain = text.strip().replace("\u2212", "-").removeprefix("+")
    if re.fullmatch(r"-?[0-9]{1,18}", plain):
        return int(plain)
    if not re.fullmatch(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", plain):
        raise ValueError("must be a number, such as 12.50")
    number = float(plain)
    if not math.isfinite(number):
        raise ValueError("is too large")
    return number


def _chosen(field: Field, text: str) -> Json:
    # What the form sends comes before what somebody may type: "1" is the label of a text and the JSON of a number.
    found = {c.label: c.value for c in field.choices} | {c.text: c.value for c in field.choices}
    if text in found:
        return found[text]
    raise ValueError("is not one of the choices")


def _boolean(field: Field, text: str) -> bool:
    plain = text.strip().lower()
    if plain in ("true", "yes", "y", "on", "1"):
        return True
    if plain in ("false", "no", "n", "off", "0"):
        return False
    raise ValueError("must be yes or no")


def _date(field: Field, text: str) -> str:
    try:
        return date.fromisoformat(text.strip()).isoformat()
    except ValueError:
        raise ValueError("must be a date, such as 2030-01-31") from None


def _time(field: Field, text: str) -> str:
    try:
        at = time.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("must be a time of day, such as 14:30") from None
    # Written out: a bare "14" would later be read as seconds.
    return at.isoformat().replace("+00:00", "Z")


def _datetime(field: Field, text: str) -> str:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("must be a date and time, such as 2030-01-31T14:30") from None
    out = at.isoformat()
    return out + "Z" if at.tzinfo is None else out.replace("+00:00", "Z")


def _string(field: Field, text: str) -> str:
    return text.replace("\r\n", "\n")


_READERS: Mapping[Kind, Callable[[Field, str], Json]] = {
    "string": _string, "text": _string, "integer": _integer, "number": _decimal, "boolean": _boolean, "choice": _chosen,
    "date": _date, "time": _time, "datetime": _datetime, "json": lambda _, text: read_json(text),
}  # fmt: skip


def _read(
    field: Field, data: Data, path: str, named: str, initial: Json | UnsetType, errors: dict[str, str]
) -> Json | UnsetType:
    """`path` is where the value is, `named` what its inputs are called: they differ inside a union."""
    if field.kind in ("object", "list", "union", "many") and field.optional and named + "?" not in data:
        return UNSET if not field.required and not (field.nullable and initial is None) else None
    if field.kind == "object":
        return _read_object(field, data, path, named, initial, errors)
    if field.kind == "list":
        return _read_list(field, data, path, named, initial, errors)
    if field.kind == "union":
        return _read_union(field, data, path, named, initial, errors)
    if field.kind == "many":
        ticked = set(data.get(named, ()))
        held = cast(Sequence[Any], initial) if isinstance(initial, (list, tuple)) else ()
        if held and {compact(v) for v in held} == ticked:
            return held  # in its own order
        return [c.value for c in field.choices if c.text in ticked]
    text = (data.get(named) or [""])[0]
    if initial is not UNSET and _same_text(text, _shown(field, initial) if initial is not None else ""):
        return initial
    try:
        return read_text(field, text)
    except ValueError as e:
        errors[path] = str(e)
        return UNSET


def _same_text(a: str, b: str) -> bool:
    """Whether two texts are one after what a browser does to the second: it drops some characters and rewrites line breaks."""
    return _as_typed(a) == _as_typed(b)


def _as_typed(text: str) -> str:
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd]", "", re.sub("\r\n?", "\n", text)).removeprefix("\n")


def _read_object(
    field: Field, data: Data, path: str, named: str, initial: Json | UnsetType, errors: dict[str, str]
) -> dict[str, Json]:
    held = cast(Mapping[str, Any], initial) if isinstance(initial, Mapping) else _NOTHING
    known = {child.name for child in field.children}
    out: dict[str, Json] = {}
    for child in field.children:
        before = held.get(child.name, UNSET)
        got = _read(child, data, f"{path}.{child.name}", f"{named}.{child.name}", before, errors)
        if got is not UNSET:
            out[child.name] = got
    # What the form has no field for stays as it was.
    return {**out, **{k: v for k, v in held.items() if k not in known}}


def _read_list(
    field: Field, data: Data, path: str, named: str, initial: Json | UnsetType, errors: dict[str, str]
) -> list[Json]:
    assert field.item is not None
    held = cast(Sequence[Any], initial) if isinstance(initial, (list, tuple)) else ()
    out: list[Json] = []
    for i in range(row_count(data, named)):
        was = _number(data, f"{named}[{i}]^")
        before = held[was] if was is not None and was < len(held) else UNSET
        got = _read(field.item, data, f"{path}[{i}]", f"{named}[{i}]", before, errors)
        out.append(None if got is UNSET else got)
    # What the form has no rows for stays as it was.
    return [*out, *held[MAX_ROWS:]]


def _read_union(
    field: Field, data: Data, path: str, named: str, initial: Json | UnsetType, errors: dict[str, str]
) -> Json | UnsetType:
    chosen = (data.get(named + "@") or [""])[0]
    fits = _fitting(field, initial)
    if not chosen and initial is not UNSET and fits is None:
        return initial  # it was shown as none of them, and none was chosen instead
    if chosen not in map(str, range(len(field.options))):
        errors[path] = "choose one of the alternatives"
        return UNSET
    before = len(errors)
    value = _read(
        field.options[int(chosen)], data, path, f"{named}@{chosen}", initial if fits == int(chosen) else UNSET, errors
    )
    if len(errors) > before:
        errors[path + _INSIDE] = ""
    return value


def row_count(data: Data, named: str) -> int:
    """How many rows the list of this name has in the form."""
    return min(_number(data, named + "#") or 0, MAX_ROWS)


def _number(data: Data, name: str) -> int | None:
    text = (data.get(name) or [""])[0]
    return int(text) if re.fullmatch("[0-9]{1,5}", text) else None


def rows_in_all(data: Data) -> int:
    """How many rows all lists of the form have together."""
    return sum(row_count(data, key[:-1]) for key in data if key.endswith("#"))


def fields_in_all(field: Field, data: Data) -> int:
    """How many fields the form has, those of its rows counted; more than it may have is not counted any further."""
    total = _size(field)
    for named, each in _lists(field, data, "$"):
        total += each * row_count(data, named)
        if total > MAX_FIELDS_IN_ALL:
            break
    return total


def is_too_large(field: Field, data: Data) -> bool:
    """Whether the form has more rows or fields than one may have."""
    return rows_in_all(data) > MAX_ROWS_IN_ALL or fields_in_all(field, data) > MAX_FIELDS_IN_ALL


def _size(field: Field) -> int:
    return 1 + sum(map(_size, field.children)) + sum(map(_size, field.options))


def _lists(field: Field, data: Data, named: str) -> Iterator[tuple[str, int]]:
    """Each list by name, with how many fields a row of it has; one list before those in its rows."""
    if field.item is not None:
        yield named, _size(field.item)
        for i in range(row_count(data, named)):
            yield from _lists(field.item, data, f"{named}[{i}]")
    for child in field.children:
        yield from _lists(child, data, f"{named}.{child.name}")
    for i, option in enumerate(field.options):
        yield from _lists(option, data, f"{named}@{i}")


def within_bounds(field: Field, data: Data) -> Data:
    """The form with no more rows and fields than a form may have. Rows that nothing is typed in go first, then those at the
    ends of the last lists.
    """
    data = _within_rows(data)
    if fields_in_all(field, data) <= MAX_FIELDS_IN_ALL:
        return data
    out = {k: list(v) for k, v in data.items()}
    left = MAX_FIELDS_IN_ALL - _size(field)
    for named, each in _lists(field, out, "$"):
        kept = min(row_count(out, named), left // each)
        out[named + "#"] = [str(kept)]
        left -= kept * each
    return out


def _within_rows(data: Data) -> Data:
    if rows_in_all(data) <= MAX_ROWS_IN_ALL:
        return data
    typed: dict[str, int] = {}  # by the name of a list: its rows, up to the last one with something in it
    for key, texts in data.items():
        if any(texts) and not key.endswith("#"):
            for found in re.finditer(r"\[([0-9]{1,3})\]", key):
                typed[key[: found.start()]] = max(typed.get(key[: found.start()], 0), int(found[1]) + 1)
    out = {k: list(v) for k, v in data.items()}
    left = MAX_ROWS_IN_ALL
    for key in [k for k in data if k.endswith("#")]:
        kept = min(row_count(data, key[:-1]), typed.get(key[:-1], 0), left)
        out[key] = [str(kept)]
        left -= kept
    return out


def with_row(field: Field, data: Data, named: str) -> dict[str, list[str]]:
    """The form with one more row, which holds the defaults, in the list of this name."""
    out = {k: list(v) for k, v in data.items()}
    count = row_count(data, named)
    item = _item_of(field, data, "$", named)
    if item is not None and count < MAX_ROWS:
        _fill(item, UNSET, f"{named}[{count}]", out)
        out[named + "#"] = [str(count + 1)]
    # (a row may bring lists with rows of their own)
    return {k: list(v) for k, v in data.items()} if is_too_large(field, out) else out


def _item_of(field: Field, data: Data, at: str, named: str) -> Field | None:
    """What each row of the list is whose inputs have this name."""
    if not named.startswith(at):
        return None
    if field.kind == "list" and at == named:
        return field.item
    inner = [(child, f"{at}.{child.name}") for child in field.children]
    inner += [(option, f"{at}@{i}") for i, option in enumerate(field.options)]
    if field.item is not None:
        inner += [(field.item, f"{at}[{i}]") for i in range(row_count(data, at))]
    return next((found for f, name in inner if (found := _item_of(f, data, name, named)) is not None), None)


def without_row(data: Data, row: str) -> dict[str, list[str]]:
    """The form without one row, named as in `$.lines[1]`; those after it move up."""
    named, bracket, number = row.rpartition("[")
    index = number.removesuffix("]")
    if not bracket or index not in map(str, range(row_count(data, named))):
        return {k: list(v) for k, v in data.items()}
    out: dict[str, list[str]] = {}
    for key, texts in data.items():
        found = re.match(r"\[([0-9]{1,5})\]", key[len(named) :]) if key.startswith(named) else None
        if found is None or int(found[1]) < int(index):
            out[key] = list(texts)
        elif int(found[1]) > int(index):
            out[f"{named}[{int(found[1]) - 1}]{key[len(named) + found.end() :]}"] = list(texts)
    out[named + "#"] = [str(row_count(data, named) - 1)]
    return out
