"""Text of models and tools, made safe to show: what is invisible is shown, what would take effect is named.

Such text is hostile. It may hold terminal escapes, letters that reorder the line (U+202E), zero-width characters that
make two names look alike, or a megabyte of anything. Every face that shows it to a person passes it through here first.
"""

import re
import unicodedata
from typing import Any

import msgspec

_CONTROL = {0x1B: "␛", 0x00: "␀", 0x07: "␇", 0x08: "␈", 0x0D: "␍", 0x7F: "␡"}
# Cc, Cf, surrogates, private use, line and paragraph separators; the soft letters that render as nothing; the blanks that
# are no space; and the variation selectors, in which a text can hide another.
_SUSPECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
_MARKS = re.compile("([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{3})"
                    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")  # fmt: skip
# What is a picture, and so may be followed by the selector that asks for its coloured form.
_PICTURE = re.compile("[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u25a0-\u27bf\u2934\u2935"
                      "\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]")  # fmt: skip
_BLANKS = re.compile(r"\s+")


def visible(text: str, *, limit: int | None = None) -> str:
    """The text with nothing hidden in it and nothing that takes effect; line breaks and tabs stay.

    A longer text than `limit` characters is cut, and says how much is missing.
    """
    cut = ""
    if limit is not None and len(text) > limit:
        cut = f"… ({len(text) - limit:,} more characters)"
        text = text[:limit]
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text + cut
    return _MARKS.sub(r"\1…", _SUSPECT.sub(_named, text)) + cut


def one_line(text: str, limit: int = 200) -> str:
    """The text on one line, as `visible` shows it."""
    return visible(_BLANKS.sub(" ", text[: limit * 4]).strip(), limit=limit)


def show_json(value: Any, *, limit: int | None = None) -> str:
    """A JSON value as indented text, as `visible` shows it. What is invisible is escaped as JSON does, so it stays JSON."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return visible(_SUSPECT.sub(_escaped, text), limit=limit)


def summary(tool: str, value: Any, limit: int = 120) -> str:
    """A paused call in one line: the tool and what it was asked to do."""
    if isinstance(value, dict):
        parts = [f"{name}={_brief(given)}" for name, given in value.items()]  # pyright: ignore[reportUnknownVariableType]
        return one_line(f"{tool}({', '.join(parts)})", limit)
    return one_line(f"{tool}({'' if value is None else _brief(value)})", limit)


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else repr(value[:60]) + "…"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:60] + "…"


def _is_seen(found: re.Match[str]) -> bool:
    """Whether it is a selector or joiner inside an emoji, where it does what it is for: ❤️, 👩‍💻, 3️⃣."""
    code, text, at = ord(found.group()), found.string, found.start()
    before = text[at - 1 : at]
    if code == 0xFE0F:
        keycap = before in "0123456789#*" and text[at + 1 : at + 2] == "\u20e3"
        return bool(before) and (keycap or _PICTURE.match(before) is not None)
    if code != 0x200D:
        return False
    return bool(_PICTURE.match(before) or before == "\ufe0f") and _PICTURE.match(text, at + 1) is not None


def _named(found: re.Match[str]) -> str:
    if _is_seen(found):
        return found.group()
    code = ord(found.group())
    if code in _CONTROL:
        return _CONTROL[code]
    return f"⟨U+{code:04X}⟩"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code == 0x0A or code == 0x09 or _is_seen(found):
        return found.group()
    if code > 0xFFFF:
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
    return f"\\u{code:04x}"


def mixed_scripts(name: str) -> bool:
    """Whether a word mixes alphabets that look alike (Latin with Cyrillic or Greek), as forged names do."""
    return any(len(_scripts(word)) > 1 for word in re.findall(r"\w+", name))


def _scripts(word: str) -> set[str]:
    found = {unicodedata.name(c, "").split(" ", 1)[0] for c in word if c.isalpha()}
    return found & {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"}
