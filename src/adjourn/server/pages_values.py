"""JSON values as people read them: tables, lists and text, bounded however large the value is, with nothing hidden."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET

from adjourn.display import mixed_scripts, one_line, visible

_TEXT = 4_000
_ENTRIES = 100
_NODES = 600
_DEPTH = 6
_STEPS = 3_000_000
"""Of comparing words with words, in all the texts of a page. Made to be slow, two texts of 4,000 letters take billions."""


class Shown(msgspec.Struct, frozen=True):
    """A value, ready to be shown. `items` are a table's rows by name, or a list's by number; `flags` warn of what hides in it."""

    kind: Literal["table", "list", "text", "atom", "cut"]
    text: str = ""
    items: Sequence[tuple[str, "Shown"]] = ()
    flags: Sequence[str] = ()


def shown(value: Any) -> Shown:
    """The value as tables and text. What is too much is cut, and says so."""
    return _shown(value, 0, [_NODES])


def is_flagged(seen: Shown) -> bool:
    """Whether anything in it hides, or is not what it seems."""
    return bool(seen.flags) or any(is_flagged(item) for _, item in seen.items)


def _shown(value: Any, depth: int, left: list[int]) -> Shown:
    left[0] -= 1
    if isinstance(value, str):
        return Shown("text", visible(value, limit=_TEXT), (), _flags(value))
    if isinstance(value, Mapping):
        return _many("table", cast(Mapping[str, Any], value).items(), len(cast(Any, value)), depth, left)
    if isinstance(value, (list, tuple)):
        listed = cast(Sequence[Any], value)
        return _many("list", ((str(i + 1), v) for i, v in enumerate(listed)), len(listed), depth, left)
    return Shown("atom", {None: "none", True: "yes", False: "no"}[value] if value is None or value is True or value is False
                 else msgspec.json.encode(value).decode())  # fmt: skip


def _many(kind: Literal["table", "list"], entries: Any, count: int, depth: int, left: list[int]) -> Shown:
    if not count:
        return Shown("atom", "empty")
    if depth >= _DEPTH:
        return Shown("cut", f"{count:,} more inside: see it as JSON")
    items: list[tuple[str, Shown]] = []
    for name, entry in entries:
        if len(items) >= _ENTRIES or left[0] <= 0:
            items.append(("…", Shown("cut", f"{count - len(items):,} more: see it as JSON")))
            break
        items.append((one_line(str(name), 80) or "(no name)", _shown(entry, depth + 1, left)))
    return Shown(kind, "", items)


def _flags(text: str) -> list[str]:
    part = text[:_TEXT]
    out: list[str] = []
    if visible(part) != part.replace("\r\n", "\n"):
        out.append("Holds characters that would not be seen. They are shown by their names.")
    if len(part) <= 320 and mixed_scripts(part):
        out.append("Mixes alphabets whose letters look alike. It may not be what it seems.")
    return out


class Change(msgspec.Struct, frozen=True):
    """One difference between two values. `old` and `new` are pieces of text, each with whether it differs; None: not there."""

    path: str
    what: Literal["changed", "added", "removed"]
    old: Sequence[tuple[bool, str]] | None
    new: Sequence[tuple[bool, str]] | None


def changes(old: Any, new: Any) -> list[Change]:
    """All differences, by path. Falsy values are values: from "" to nothing is a removal."""
    out: list[Change] = []
    _compare("", old, new, out, [_STEPS])
    return out


def _compare(path: str, old: Any, new: Any, out: list[Change], left: list[int]) -> None:
    if type(old) is type(new) and old == new and not isinstance(old, (Mapping, list)):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        a, b = cast(Mapping[str, Any], old), cast(Mapping[str, Any], new)
        for name in [*a, *(k for k in b if k not in a)]:
            _compare(f"{path}.{name}" if path else name, a.get(name, UNSET), b.get(name, UNSET), out, left)
    elif isinstance(old, list) and isinstance(new, list):
        first, second = cast(list[Any], old), cast(list[Any], new)
        for i in range(max(len(first), len(second))):
            before = first[i] if i < len(first) else UNSET
            _compare(f"{path}[{i + 1}]", before, second[i] if i < len(second) else UNSET, out, left)
    else:
        what = "added" if old is UNSET else "removed" if new is UNSET else "changed"
        before, after = _pieces(old, new, left)
        out.append(Change(visible(path, limit=200) or "the input", what, before, after))


class _Spent(Exception):
    """The words are not compared any further."""


class _Matcher(SequenceMatcher[str]):
    """Takes each step that a search for the longest match may need from `left`, before it searches. Raises _Spent."""

    def __init__(self, a: Sequence[str], b: Sequence[str], left: list[int]) -> None:
        super().__init__(None, a, b, autojunk=False)
        counts = Counter(b)
        self._steps = [0, *accumulate(counts[word] + 1 for word in a)]
        self._left = left

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        needed = self._steps[len(self._steps) - 1 if ahi is None else ahi] - self._steps[alo]
        if needed > self._left[0]:
            raise _Spent
        self._left[0] -= needed
        return super().find_longest_match(alo, ahi, blo, bhi)


def _pieces(
    old: Any, new: Any, left_over: list[int]
) -> tuple[list[tuple[bool, str]] | None, list[tuple[bool, str]] | None]:
    a = None if old is UNSET else _text(old)
    b = None if new is UNSET else _text(new)
    if a is None or b is None or not isinstance(old, str) or not isinstance(new, str):
        return (None if a is None else [(True, a)], None if b is None else [(True, b)])
    before, after = re.findall(r"\w+|\s+|.", a), re.findall(r"\w+|\s+|.", b)
    if len(before) + len(after) > 3_000:
        return [(True, a)], [(True, b)]
    left: list[tuple[bool, str]] = []
    right: list[tuple[bool, str]] = []
    try:
        found = _Matcher(before, after, left_over).get_opcodes()
    except _Spent:
        return [(True, a)], [(True, b)]
    for what, i, j, k, m in found:
        if i != j:
            left.append((what != "equal", "".join(before[i:j])))
        if k != m:
            right.append((what != "equal", "".join(after[k:m])))
    return left or [(True, "")], right or [(True, "")]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return visible(value, limit=_TEXT) if value else "(empty text)"
    return visible(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), limit=_TEXT)
