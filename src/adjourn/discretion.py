"""What may be said of a failure: no key, and nothing of the conversation.

Providers quote what they were sent: the whole of it or the beginning, as text, as JSON with its escapes, or as Python
writes it. So what is compared are letters and digits alone, and a run of them that also stands in the conversation is
taken out, whether or not it is all of a message.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from adjourn.parts import Message, Part, encode

_KEYS = re.compile(
    r"(?i)\b(?:sk|gsk|xai|pk|rk|sess|nvapi|hf|r8)[-_][\w*.\-]{4,}|\bBearer\s+\S+|\bAIza[\w\-]{10,}"
    r"|\bya29\.[\w.\-]{8,}|(?<=key=)[^\s&\"']{8,}"
)
_ESCAPES = r"\\+u([0-9a-fA-F]{4})|\\+[nrtbf\"'/]?|&#?\w{1,8};|</?\w{1,8} ?/?>"
"""What stands for a character in JSON, also in JSON within JSON, in Python and in HTML."""
_TOKEN = re.compile(_ESCAPES + r"|([^\W_])")
_ESCAPED_OR_NOT_SAID = re.compile(_ESCAPES + r"|[\W_]")
_RUN, _STEP = 24, 8
"""Letters and digits in a row that no two texts share by chance, and how far apart they are looked for."""
_SHORTEST = 8
"""A message of fewer is as good as any word, and is not looked for."""
_MOST_OF_MEDIA = 4_000


def without_keys(text: str, secrets: Iterable[str | None] = ()) -> str:
    """The text on one line, without these secrets and without what looks like a key."""
    for secret in secrets:
        if secret and len(secret) > 3:  # "x" is a key that local servers are given; taking it out would garble the text
            text = text.replace(secret, "[key]")
    return " ".join(_KEYS.sub("[key]", text).split())


def discreet(text: str, messages: Sequence[Message], secrets: Iterable[str | None] = (), *, longest: int = 300) -> str:
    """The text without keys, without what was said in the messages, and not longer than it must be."""
    text = without_keys(text, secrets)
    cut = text[: 2 * longest]  # not yet to its length: what is taken out makes room
    shown = _without_quotes(cut, messages)
    return shown if len(cut) == len(text) and len(shown) <= longest else shown[:longest] + "…"


def _without_quotes(text: str, messages: Sequence[Message]) -> str:
    letters: list[str] = []
    places: list[tuple[int, int]] = []
    for found in _TOKEN.finditer(text):
        letter = chr(int(found[1], 16)) if found[1] else found[2] or ""
        if letter.isalnum():
            letters.append(letter)
            places.append(found.span())
    plain = "".join(letters)
    said = [s for m in messages for p in m.content for t in _texts(p) if len(s := _letters(t)) >= _SHORTEST]
    quoted: set[int] = set()
    for whole in said:
        if len(whole) < _RUN + _STEP:
            for start in _every(plain, whole):
                quoted.update(range(start, start + len(whole)))
    everything = "\n".join(said)
    last = len(plain) - _RUN
    for start in range(0, last + 1, _STEP):
        first = after = start
        while first >= 0 and plain[first : first + _RUN] in everything:
            first -= 1
        while first < after <= last and plain[after : after + _RUN] in everything:
            after += 1
        if first < start:
            quoted.update(range(first + 1, after - 1 + _RUN))
    out: list[str] = []
    end = 0
    for i in sorted(quoted):
        start, after = places[i]
        if i - 1 not in quoted:
            out += [text[end:start], "…"]
        end = after
    return "".join([*out, text[end:]])


def _every(text: str, part: str) -> Iterator[int]:
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + 1)


def _letters(text: str) -> str:
    def kept(found: re.Match[str]) -> str:
        letter = chr(int(found[1], 16)) if found[1] else ""
        return letter if letter.isalnum() else ""

    return _ESCAPED_OR_NOT_SAID.sub(kept, text)


def _texts(part: Part) -> Iterator[str]:
    """What a part says, its values as JSON."""
    for text in (part.text, part.reasoning):
        if text:
            yield text
    if part.data is not None:
        yield _json(part.data)
    if part.media is not None:
        yield part.media.url[:_MOST_OF_MEDIA]
    if part.tool_request is not None:
        yield _json(part.tool_request.input)
    if part.tool_response is not None:
        yield _json(part.tool_response.output)
        for beside in part.tool_response.content or ():
            yield from _texts(beside)


def _json(value: object) -> str:
    return value if isinstance(value, str) else encode(value).decode(errors="replace")
