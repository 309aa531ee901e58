"""How pages are made: the templates, the times and texts in them, and who looks at one.

All text of models and tools passes `visible` (the filters `v` and `line`) and Jinja's escaping. No page holds a script or a
style of its own, so that the policy can forbid them all.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Request, Response
from litestar.params import PathParameter
from litestar.utils.scope.state import ScopeState
from markupsafe import Markup

from adjourn.display import mixed_scripts, one_line, show_json, summary, visible
from adjourn.fields import Choice
from adjourn.forms import row_count
from adjourn.server.desk import Desk
from adjourn.server.links import href
from adjourn.server.pages_values import shown
from adjourn.server.pages_words import DONE, REASONS, STATUS, says_more
from adjourn.server.principal import Principal
from adjourn.store import InterruptRecord

HERE = Path(__file__).parent
STATIC = HERE / "static"
Html = Response[str]
Form = dict[str, list[str]]
FromPath: TypeAlias = Annotated[str, PathParameter(max_length=4000)]
_WRITTEN = {"reason": "", "_text": "", "_json": "", "_metadata": "note", "_input": "edited input"}
_NAMED = re.compile("[\u2400-\u2421]|\u27e8U\\+")  # how `visible` names what hides
_LONG = 20_000  # letters in one field of a form: longer ones are shown as browsers can show them at once
_STEPS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


class Visit:
    """One request for a page: who looks, through which desk, and what all pages need to know of it."""

    def __init__(self, request: Request[Any, Any, Any], principal: Principal | None = None) -> None:
        self.request = request
        self.desk: Desk = request.app.state.desk
        self.now: float = self.desk.ai.clock.now()
        self.signed_in = getattr(request.auth, "way", "") == "cookie" if "auth" in request.scope else False
        self._principal = principal or (request.user if "user" in request.scope else None)
        self.linked = principal is not None

    @property
    def principal(self) -> Principal:
        assert self._principal is not None, "the route lets nobody in who is not known"
        return self._principal

    @property
    def address(self) -> str | None:
        return cast(Mapping[str, Any], self.request.scope).get("adjourn.address")

    def asked(self, name: str) -> str:
        """A parameter of the query, or the empty text."""
        return str(self.request.query_params.get(name, ""))

    def url(self, path: str) -> str:
        return href(self.request, path)

    def here(self, **changed: str | None) -> str:
        """This page with some parameters of its query changed; None or the empty text takes one out."""
        given: dict[str, str | None] = {k: str(v) for k, v in self.request.query_params.items()}
        query = urlencode({k: v for k, v in (given | changed).items() if v})
        return self.url(self.request.url.path.removeprefix(self.url(""))) + (f"?{query}" if query else "")

    def when(self, at: float, form: str = "ago") -> Markup:
        """A time, as pages show it."""
        return when(at, self.now, form)

    async def form(self) -> Form:
        """What was sent, in order, by name."""
        sent = await self.request.form()
        out: Form = {}
        for name, value in sent.multi_items():
            if isinstance(value, str):
                out.setdefault(name, []).append(value)
        return out

    def page(self, template: str, context: Mapping[str, Any], status: int = 200) -> Html:
        """The page, with what all of them need."""
        token = ScopeState.from_scope(self.request.scope).csrf_token
        field: Any = Markup('<input type="hidden" name="_csrf_token" value="{}">').format(token)
        common: dict[str, Any] = {
            "url": self.url,
            "csrf": lambda: field if isinstance(token, str) else "",
            "principal": self._principal,
            "signed_in": self.signed_in,
            "linked": self.linked,
            "section": "",
            "when": self.when,
            "now": f"{self.now:.3f}",
        }
        html = _environment().get_template(template).render({**common, **context})
        headers = {"cache-control": "no-store"}
        return Response(html, status_code=status, media_type=MediaType.HTML, headers=headers)


def typed_in(sent: Mapping[str, Any]) -> str:
    """What a person wrote into a form, to be given back; nothing that the page itself put there, and no token."""
    lines: list[str] = []
    for name, given in sent.items():
        texts: list[str] = [str(g) for g in given] if isinstance(given, list) else [str(given)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        wrote = ", ".join(t for t in texts if t.strip())
        if not wrote or not (name.startswith("$") or name in _WRITTEN) or name.endswith(("#", "?", "@", "^")):
            continue
        label = name.removeprefix("$").lstrip(".") if name.startswith("$") else _WRITTEN[name]
        lines.append(f"{label}: {wrote}" if label else wrote)
    return "\n".join(lines)


def span(seconds: float) -> str:
    """A length of time in its largest unit, as the script writes it, too: "3 hours"."""
    for size, name in _STEPS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'' if count == 1 else 's'}"
    return "a moment"


def took(seconds: float) -> str:
    """How long something ran: exact where it was short."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def when(at: float, now: float, form: str = "ago") -> Markup:
    """A time, relative and absolute. `form` is "ago", "in" or "until" (it says that something expires)."""
    moment = datetime.fromtimestamp(max(0.0, min(at, 253_000_000_000.0)), UTC)
    gone = now - at
    soon = ""
    if form != "ago":
        relative = "overdue" if gone >= 0 else f"{'expires ' if form == 'until' else ''}in {span(-gone)}"
        soon = " soon" if gone > -600 else ""
    else:
        relative = "just now" if gone < 5 else f"{span(gone)} ago"
    absolute = ("expires " if form == "until" else "") + moment.strftime("%-d %b %Y, %H:%M UTC")
    return Markup(
        '<time datetime="{}" title="{}" data-form="{}" class="{}"><span class="rel">{}</span>'
        '<span class="abs">{}</span></time>'
    ).format(
        moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        moment.strftime("%-d %B %Y, %H:%M:%S UTC"),
        form,
        f"t{soon}",
        relative,
        absolute,
    )


def brief(row: InterruptRecord) -> str:
    """An interrupt in one line: what it was asked, or what it says where it was asked nothing."""
    return summary(row.tool, _told(row), 160)


def arguments(row: InterruptRecord) -> str:
    """What it was asked, in one line without the tool's name, which stands above it."""
    value = _told(row)
    if value is None or value == {}:
        return "no input"
    if not isinstance(value, Mapping):
        return _short(value)
    named = cast(Mapping[str, Any], value).items()
    return one_line(" · ".join(f"{name}: {_short(given)}" for name, given in named if given not in (None, "")), 160)


def _told(row: InterruptRecord) -> Any:
    return row.payload if not row.input and says_more(row) else row.input


def looks_odd(row: InterruptRecord) -> bool:
    """Whether what the list shows of it hides something, or mixes alphabets; the item's own page looks at all of it."""
    text = arguments(row)
    return mixed_scripts(text) or _NAMED.search(text) is not None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return one_line(text, 90) if len(text) <= 90 else one_line(text[:80]) + " …"


@cache
def _environment() -> Any:
    # Our own, not the application's: no setting of theirs can switch the escaping off.
    env: Any = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "v": _seen,
        "line": _line,
        "json": _json,
        "took": took,
        "plural": plural,
        "capitalize_first": _capital,
        "lower_first": _small,
        "hides": _hides,
        "field_name": _field_name,
    }
    env.globals |= {
        "STATUS": STATUS,
        "DONE": DONE,
        "reasons": REASONS,
        "asset": asset,
        "row_count": row_count,
        "yes_no": (Choice(True, "Yes"), Choice(False, "No")),
        "summary": brief,
        "arguments": arguments,
        "looks_odd": looks_odd,
        "shown": shown,
        "long": _LONG,
    }
    return env


def sentence(text: str) -> str:
    """An error's words as a sentence: with a capital, and a full stop where it has none."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) or not text else ".")


def plural(count: int, one: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {one if count == 1 else one + 's'}"


def _seen(text: Any, limit: int = 4000) -> str:
    return visible(str(text), limit=limit)


def _line(text: Any, limit: int = 200) -> str:
    return one_line(str(text), limit)


def _json(value: Any, limit: int = 40_000) -> str:
    return show_json(value, limit=limit)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]


def _hides(text: str) -> bool:
    return visible(text) != text.replace("\r\n", "\n")


def _field_name(path: str) -> str:
    name = visible(path.removeprefix("$").removeprefix("."), limit=120)
    return f"{name}: " if name else ""


@cache
def asset(name: str) -> str:
    """The address of a file of ours, which changes with what is in it, so that browsers can keep it."""
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"
