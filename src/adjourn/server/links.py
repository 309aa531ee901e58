"""Links: to places of this server, under whatever prefix it is mounted, and signed ones that are good for one decision."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjourn.errors import InvalidRequest
from adjourn.parts import new_id
from adjourn.server.principal import Principal
from adjourn.server.problems import LinkInvalid, LinkSpent
from adjourn.server.seal import Seal
from adjourn.store import InterruptRecord

VERBS = ("respond", "restart", "decline")
_ENDED = {"resolved": "was decided", "expired": "expired before anybody decided", "cancelled": "was cancelled"}
LONGEST = 90 * 86400.0
LONGEST_NAME = 200


def href(scope_or_request: Any, path: str) -> str:
    """A path of this server as a page must link to it: under the prefix the server is mounted at."""
    scope: Mapping[str, Any] = getattr(scope_or_request, "scope", scope_or_request)
    return str(scope.get("root_path", "")).rstrip("/") + path


def safe_next(target: str | None, default: str = "/inbox") -> str:
    """Where to go after signing in: a path of this server, whatever somebody put into the address."""
    if not target or not target.startswith("/") or target.startswith(("//", "/\\")) or not target.isprintable():
        return default
    return default if "\\" in target or target.startswith(("/login", "/signin")) else target


class Link(msgspec.Struct, frozen=True, array_like=True):
    """What a decision link says: which interrupt in which version, for whom, with which verbs, until when."""

    interrupt: str
    version: str
    by: str
    verbs: tuple[str, ...]
    until: int
    nonce: str

    def principal(self) -> Principal:
        """Who opens it: somebody who sees and decides this one thing."""
        return Principal(
            self.by,
            "decide",
            owners=None,
            interrupts=frozenset([self.interrupt]),
            verbs=frozenset(self.verbs),
            via="link",
        )

    def check(self, record: InterruptRecord) -> None:
        """Raises LinkSpent where the interrupt was settled, or is no longer the one the link was made for."""
        if record.status != "open" or record.version_tag != self.version:
            state = _ENDED.get(record.status, "has changed since the link was made")
            raise LinkSpent(f"This link was good for one decision, and {record.tool!r} {state}. Nothing was done")


class DecisionLinks:
    """Makes and opens signed links for one decision each: for a mail or a chat message.

    Opening one with GET only shows; deciding takes a POST, so that the scanners of mail servers decide nothing. It is
    spent when the interrupt is settled, by whomever, or paused anew.
    """

    def __init__(self, seal: Seal, seconds: float, public_url: str | None) -> None:
        self._seal = seal
        self._seconds = seconds
        self._public_url = (public_url or "").rstrip("/")

    def token(
        self, record: InterruptRecord, *, by: str, verbs: Sequence[str] = VERBS, expires_in: float | None = None
    ) -> str:
        """The part of the link after /link/. `by` is who will have decided; whoever has the link is taken to be that person."""
        seconds = self._seconds if expires_in is None else expires_in
        if not 1 <= seconds <= LONGEST:
            raise InvalidRequest(f"a link is good for 1 second to {LONGEST / 86400:.0f} days, not {seconds} seconds")
        unknown = [v for v in verbs if v not in VERBS]
        if unknown or not verbs:
            raise InvalidRequest(f"verbs={list(verbs)!r}: give one or more of {', '.join(VERBS)}")
        seen = all(c.isprintable() or c in "\u200c\u200d" for c in by)  # as the owner of a session
        if not by.strip() or not seen or len(by) > LONGEST_NAME:
            raise InvalidRequest(
                f"a link needs the name of the person it is for, of 1 to {LONGEST_NAME} letters that can be seen: it goes into "
                "the audit"
            )
        until = int(time.time() + seconds)
        link = Link(record.id, record.version_tag, by, tuple(verbs), until, new_id()[:16])
        return self._seal.close("link", link)

    def url(self, token: str, base_url: str | None = None) -> str:
        """The whole link, under the server's `public_url` or this one."""
        return f"{self._public_url or (base_url or '').rstrip('/')}/link/{token}"

    def open(self, token: str) -> Link:
        """What a link says. Raises LinkInvalid where it is none of ours, was altered, or is too old."""
        link = self._seal.open("link", token, Link)
        if link is None:
            raise LinkInvalid("this link was not made here, or not all of it was copied")
        if link.until <= time.time():
            raise LinkInvalid("this link is too old; nobody can decide with it any more")
        return link
