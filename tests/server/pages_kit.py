"""A person at the pages without a browser: signs in, reads, fills in forms, and sends them as a browser would."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

from server.server_kit import words

_VOID = {"input", "meta", "link", "br", "hr", "img"}


@dataclass
class Form:
    """A form as it is on a page: where it goes, what is filled in, and its buttons by their text."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    buttons: dict[str, tuple[str, str, str]] = field(default_factory=dict[str, tuple[str, str, str]])


class Page(HTMLParser):
    """A page: its title, its text, its links, its forms, and every attribute there is."""

    def __init__(self, reply: httpx.Response) -> None:
        super().__init__()
        self.status = reply.status_code
        self.html = reply.text
        self.url = str(reply.url)
        self.title = ""
        self.links: dict[str, str] = {}
        self.forms: list[Form] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.ids: list[str] = []
        self._texts: list[str] = []
        self._open: list[str] = []
        self._link: tuple[str, int] | None = None
        self._textarea: str | None = None
        self._select: str | None = None
        self._button: tuple[str, str, str, int] | None = None
        self.feed(self.html)

    @property
    def text(self) -> str:
        return " ".join("".join(self._texts).split())

    def form(self, action: str) -> Form:
        """The form whose address ends so."""
        return next(f for f in self.forms if f.action.endswith(action))

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        self.tags.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), given.get("method", "get")))
        elif tag == "a":
            self._link = (given.get("href", ""), len(self._texts))
        elif tag == "input" and self.forms:
            ticked = given.get("type") not in ("checkbox", "radio") or "checked" in given
            if ticked and given.get("name"):
                self._fill(given["name"], given.get("value", ""))
        elif tag == "textarea":
            self._textarea = given.get("name", "")
            self._fill(self._textarea, "")
        elif tag == "select":
            self._select = given.get("name", "")
        elif tag == "option" and self._select and "selected" in given:
            self._fill(self._select, given.get("value", ""))
        elif tag == "button" and self.forms:
            self._button = (
                given.get("name", ""),
                given.get("value", ""),
                given.get("formaction", ""),
                len(self._texts),
            )
        self._texts.append(" ")

    def _fill(self, name: str, value: str) -> None:
        self.forms[-1].fields.setdefault(name, []).append(value)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag == "a" and self._link is not None:
            self.links["".join(self._texts[self._link[1] :]).strip()] = self._link[0]
            self._link = None
        elif tag == "textarea":
            self._textarea = None
        elif tag == "select":
            self._select = None
        elif tag == "button" and self._button is not None:
            name, value, action, start = self._button
            self.forms[-1].buttons["".join(self._texts[start:]).strip()] = (name, value, action)
            self._button = None
        self._texts.append(" ")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "title":
            self.title += data
        elif self._textarea is not None:
            held = self.forms[-1].fields[self._textarea]
            held[-1] += data.removeprefix("\n") if not held[-1] else data
        elif "datalist" not in self._open:
            self._texts.append(data)


class Visitor:
    """Somebody at the pages."""

    def __init__(self, client: httpx.AsyncClient, prefix: str = "") -> None:
        self._client = client
        self.prefix = prefix
        self.cookies: dict[str, str] = {}

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"accept": "text/html", **options.pop("headers", {})}
        if self.cookies:
            headers["cookie"] = "; ".join(f"{k}={v}" for k, v in self.cookies.items())
        reply = await self._client.request(method, path, headers=headers, **options)
        for name, value in reply.cookies.items():
            self.cookies[name] = value
        self._client.cookies.clear()
        return reply

    async def get(self, path: str) -> Page:
        return await self._followed(await self.request("GET", self.prefix + path))

    async def _followed(self, reply: httpx.Response) -> Page:
        while reply.status_code == 303:
            reply = await self.request("GET", reply.headers["location"])
        return Page(reply)

    async def send(self, form: Form, button: str = "", **typed: Any) -> Page:
        """Sends a form with this typed into it; a value of None unticks, or leaves out, a field. Names may omit `$.`."""
        fields = {k: list(v) for k, v in form.fields.items()}
        for name, value in typed.pop("fields", {}).items() if isinstance(typed.get("fields"), Mapping) else ():
            fields[name] = [value] if isinstance(value, str) else list(value or ())
        for name, value in typed.items():
            key = (
                name if name in fields or name in ("id", "verb") else f"$.{name}" if not name.startswith("_") else name
            )
            fields[key] = [value] if isinstance(value, str) else list(value or ())
        action = form.action
        if button:
            name, value, other = form.buttons[button]
            action = other or action
            if name:
                fields.setdefault(name, []).append(value)
        pairs = {k: v for k, v in fields.items() if v}
        return await self._followed(await self.request(form.method.upper(), action, data=pairs))

    async def sign_in(self, name: str, then: str = "") -> Page:
        page = await self.get("/login" + (f"?next={then}" if then else ""))
        return await self.send(page.form("/login"), token=words(name), fields={"token": words(name)})


async def visitor(client: httpx.AsyncClient, name: str, prefix: str = "") -> Visitor:
    """Somebody who is signed in."""
    found = Visitor(client, prefix)
    page = await found.sign_in(name)
    assert page.status == 200, page.text
    assert page.title.endswith("Inbox · Adjourn")
    return found
