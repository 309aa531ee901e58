"""Reads what a docstring says about a function and its parameters, in the Google, NumPy and Sphinx styles."""

import inspect
import re
from collections.abc import Callable
from typing import Any

_GOOGLE = re.compile(r"^(?P<indent>\s*)(args|arguments|parameters|params)\s*:\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"^\s+\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:\s*(?P<text>.*)$")
_SECTION = re.compile(r"^\s*(returns?|raises?|yields?|examples?|notes?|see also|attributes)\s*:?\s*$", re.IGNORECASE)
_UNDERLINE = re.compile(r"^\s*-{3,}\s*$")
_FIELD = re.compile(r"^\s*:\w+")


def read_docstring(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description (without the parts about parameters and results) and a text for each parameter described."""
    doc = inspect.getdoc(fn) or ""
    about: list[str] = []
    parameters: dict[str, str] = {}
    lines = doc.splitlines()
    position, kept = 0, True
    while position < len(lines):
        line = lines[position]
        underlined = position + 1 < len(lines) and _UNDERLINE.match(lines[position + 1]) is not None
        if _GOOGLE.match(line) or (underlined and line.strip().lower() in ("parameters", "params")):
            position = _read_section(lines, position + (2 if underlined else 1), underlined, parameters)
            kept = False
        elif sphinx := _SPHINX.match(line):
            position = _read_field(lines, position, sphinx, parameters)
            kept = False
        elif _SECTION.match(line) or _FIELD.match(line):
            position, kept = position + 1, False
        else:
            if kept:
                about.append(line)
            position += 1
    return "\n".join(about).strip(), parameters


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _read_section(lines: list[str], position: int, numpy: bool, out: dict[str, str]) -> int:
    names: list[str] = []
    base: int | None = None
    while position < len(lines):
        line = lines[position]
        if not line.strip():
            position += 1
            continue
        indent = _indent(line)
        base = indent if base is None else base
        if indent < base or (not numpy and indent == 0) or _SECTION.match(line):
            break
        if numpy and indent == base:
            if position + 1 < len(lines) and _UNDERLINE.match(lines[position + 1]):
                break  # the next section
            names = [n.strip().lstrip("*") for n in line.split(":", 1)[0].split(",")]
            out.update(dict.fromkeys(names, ""))
        elif not numpy and indent == base and (entry := _ENTRY.match(line)):
            names = [entry["name"]]
            out[names[0]] = entry["text"].strip()
        else:
            for name in names:
                out[name] = f"{out[name]} {line.strip()}".strip()
        position += 1
    return position


def _read_field(lines: list[str], position: int, field: re.Match[str], out: dict[str, str]) -> int:
    name = field["name"]
    out[name] = field["text"].strip()
    position += 1
    while (
        position < len(lines)
        and lines[position].strip()
        and _indent(lines[position]) > 0
        and not _FIELD.match(lines[position])
    ):
        out[name] = f"{out[name]} {lines[position].strip()}".strip()
        position += 1
    return position
