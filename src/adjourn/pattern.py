"""Whether a text matches the `pattern` of a JSON schema, whoever wrote it.

A pattern can be made so that Python's matcher takes longer than anybody lives: `(a+)+$` on thirty letters. So the matcher
that comes with pydantic decides, whose time grows with the text and nothing else. What it does not know (looking ahead and
back, references) goes to Python's, if its form and the length of the text leave it no more than a moment.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

_CLASS_OR_ESCAPE = re.compile(r"\\(?:k<\w+>|[1-9]\d*|.)|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEAT = re.compile(r"\*|\+|\?|\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\?(?:[:=!>]|<[=!]|P?<\w+>|P=\w+\)|[aiLmsux-]+[:)]|#)")
_POSSESSIVE = re.compile(r"[*+?}]\+")
_STEPS = 10_000_000
_LONGEST = 50_000


def matches(pattern: str, text: str) -> bool | Literal["unknown"]:
    """Whether the pattern is found in the text. "unknown" where finding out may take too long.

    What is no pattern to anybody matches everything.
    """
    quick = _quick(pattern)
    if quick is not None:
        return quick(text)
    if len(pattern) > _LONGEST:
        return "unknown"
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning):
        return True
    choices = _choices(pattern)
    if choices is None or (len(text) + 1) ** (choices + 1) > _STEPS:
        return "unknown"
    return compiled.search(text) is not None


@lru_cache(256)
def _quick(pattern: str) -> Callable[[str], bool] | None:
    # The quick one reads a possessive repeat as a repeat of a repeat, which gives back what Python's keeps.
    if len(pattern) > _LONGEST or _POSSESSIVE.search(_CLASS_OR_ESCAPE.sub("_", pattern)):
        return None
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, strict=True)).isinstance_python
    except (SchemaError, UnicodeEncodeError):
        return None


def _choices(pattern: str) -> int | None:
    """In how many places matching could go on in more than one way; None where such a place is repeated, so that there is
    no telling.
    """
    count, at = 0, 0
    open_at: list[int] = []  # the count where each open group began
    closed = -1  # that of the group that was closed just before, or -1
    while at < len(pattern):
        one = _CLASS_OR_ESCAPE.match(pattern, at)
        repeat = None if one else _REPEAT.match(pattern, at)
        if one:
            at, closed = one.end(), -1
            count += one.group()[:1] == "\\" and one.group()[1:2] in "k123456789"
        elif repeat:
            if closed >= 0 and count > closed and repeat.group() != "?":
                return None
            least, comma, most = repeat.groups()
            count += not (least and (not comma or least == most))
            at, closed = repeat.end(), -1
            if pattern[at : at + 1] in ("?", "+") and at < len(pattern):  # lazy or possessive
                at += 1
        elif pattern[at] == "(":
            open_at.append(count)
            kind = _GROUP.match(pattern, at + 1)
            at, closed = kind.end() if kind else at + 1, -1
            if kind and (kind.group() == "?#" or "x" in kind.group().split("<")[0]):
                return None  # a remark may look like anything
            if kind and kind.group()[-1] == ")":  # flags for all of it, or a reference
                open_at.pop()
            count += bool(kind and kind.group().startswith("?P="))
        elif pattern[at] == ")":
            closed = open_at.pop() if open_at else 0
            at += 1
        else:
            count += pattern[at] == "|"
            at, closed = at + 1, -1
    return count
