"""Small signed values that go out and come back: cookies, decision links, CSRF tokens."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from adjourn.errors import DefinitionError

T = TypeVar("T")

SHORTEST = 16


class Seal:
    """Signs with the first secret and knows the others, so that a secret can be changed without breaking what is out.

    Each purpose has a key of its own: what was signed for one thing is worth nothing for another.
    """

    def __init__(self, given: Sequence[bytes]) -> None:
        self._secrets = list(given) or [secrets.token_bytes(32)]
        self.is_random = not given

    @property
    def secrets(self) -> Sequence[bytes]:
        """The first signs, all are known."""
        return tuple(self._secrets)

    def close(self, purpose: str, value: msgspec.Struct) -> str:
        """The value as text that can stand in a URL or cookie; anybody can read it, nobody can change it."""
        body = _b64(msgspec.json.encode(value))
        return f"{body}.{self._mac(self._secrets[0], purpose, body)}"

    def open(self, purpose: str, text: str, kind: type[T]) -> T | None:
        """The value, or None where it was not signed here for this purpose."""
        body, dot, mac = text.partition(".")
        if not dot or not text.isascii() or not self._fits(purpose, body, mac):
            return None
        try:
            return msgspec.json.decode(_unb64(body), type=kind)
        except (msgspec.DecodeError, ValueError):
            return None

    def tag(self, purpose: str, value: str) -> str:
        """A tag that only this server can make for the value."""
        return self._mac(self._secrets[0], purpose, value)

    def is_tag(self, purpose: str, value: str, tag: str) -> bool:
        return tag.isascii() and self._fits(purpose, value, tag)

    def _fits(self, purpose: str, body: str, mac: str) -> bool:
        return any(hmac.compare_digest(self._mac(s, purpose, body), mac) for s in self._secrets)

    @staticmethod
    def _mac(secret: bytes, purpose: str, body: str) -> str:
        key = hmac.digest(secret, b"adjourn.server." + purpose.encode(), "sha256")
        return _b64(hmac.digest(key, body.encode(errors="replace"), "sha256"))


def fingerprint(text: str) -> str:
    """SHA-256, in hex. Enough for tokens, which are long and random; never for passwords."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def as_secrets(*given: Any) -> list[bytes]:
    """All secrets out of texts, bytes and lists of them."""
    out: list[bytes] = []
    for one in given:
        listed = list(cast(Sequence[Any], one)) if isinstance(one, (list, tuple)) else [] if one is None else [one]
        out += [s.encode() if isinstance(s, str) else bytes(s) for s in listed]
    if any(len(s) < SHORTEST for s in out):
        raise DefinitionError(f"secret=: give at least {SHORTEST} bytes, as from secrets.token_urlsafe(32)")
    return out
