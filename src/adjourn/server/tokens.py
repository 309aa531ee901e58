"""Access tokens: made here, kept as hashes, read from a file or the environment."""

import hmac
import re
import secrets
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from adjourn.errors import DefinitionError
from adjourn.server.principal import Principal, Role
from adjourn.server.seal import fingerprint

PREFIX = "adj_"
SHORTEST = 24
EVERYTHING = "*"


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One access token, as it is kept: `hash` is "sha256:" and the digest. The token itself is nowhere.

    `agents`, `tools` and `owners` bound it; an `owners` of ["*"] is everything, "" the sessions without an owner, and left
    out the token's own name. `expires` is when it stops working.
    """

    name: str
    hash: str
    role: Role = "view"
    agents: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    owners: tuple[str, ...] | None = None
    expires: datetime | None = None

    def __post_init__(self) -> None:
        scheme, _, value = self.hash.partition(":")
        if scheme != "sha256" or len(value) != 64:
            raise ValueError(
                f"the hash of token {self.name!r} is no 'sha256:<64 hex digits>'; make one with: python -m adjourn.server NAME"
            )
        if not self.name:
            raise ValueError("a token needs a name, which is written into the audit")

    @property
    def id(self) -> str:
        """What a cookie remembers of it: it stops working when the token is taken away."""
        return self.hash[7:39]

    def principal(self, via: str = "token") -> Principal:
        """Whom it stands for."""
        owners: frozenset[str] | UnsetType | None = UNSET if self.owners is None else _scope(self.owners)
        return Principal(self.name, self.role, _scope(self.agents), _scope(self.tools), owners, via=via)

    def has_expired(self) -> bool:
        if self.expires is None:
            return False
        at = self.expires if self.expires.tzinfo is not None else self.expires.replace(tzinfo=UTC)
        return at <= datetime.now(UTC)


def _scope(names: Sequence[str] | None) -> frozenset[str] | None:
    return None if names is None or EVERYTHING in names else frozenset(names)


def mint(name: str, role: Role = "decide", **scopes: Any) -> tuple[str, Token]:
    """A new token: the text to give away, which is shown once, and what to keep of it."""
    text = PREFIX + secrets.token_urlsafe(32)
    return text, hashed(text, name, role, **scopes)


def hashed(text: str, name: str, role: Role = "decide", **scopes: Any) -> Token:
    """A token of one's own making. It must be long and random: only its SHA-256 is kept, and that is quick to try."""
    if len(text) < SHORTEST:
        raise DefinitionError(
            f"the token {name!r} has {len(text)} characters; give at least {SHORTEST}, random ones: python -m adjourn.server NAME"
        )
    return Token(name, f"sha256:{fingerprint(text)}", role, **scopes)


def find(tokens: Sequence[Token], text: str) -> Token | None:
    """The token that this text is. All are compared, in constant time each."""
    given, found = f"sha256:{fingerprint(text)}", None
    for token in tokens:
        if hmac.compare_digest(token.hash, given):
            found = token
    return found if found is not None and not found.has_expired() else None


def read_tokens(text: str, where: str) -> list[Token]:
    """Tokens out of TOML (`[[token]]` tables) or JSON (a list). Raises DefinitionError that says what is wrong."""
    try:
        is_json = re.match(r"\s*\[\s*[{\]]", text)
        rows: Any = msgspec.json.decode(text) if is_json else tomllib.loads(text).get("token", [])
        for row in cast(list[Any], rows):
            if isinstance(row, dict) and "token" in row:
                raise ValueError(
                    "a token stands there in plain; keep its hash, which `python -m adjourn.server` prints"
                )
        found = msgspec.convert(rows, list[Token])
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, ValueError, TypeError) as e:
        raise DefinitionError(f"{where} holds no list of tokens: {e}") from None
    if len({t.hash for t in found}) < len(found):
        raise DefinitionError(f"{where} names one token twice; give each person or program its own")
    return found


def read_token_file(path: str | Path) -> list[Token]:
    """The tokens of a file. Raises DefinitionError where it cannot be read, or others than its owner may write it."""
    file = Path(path)
    try:
        text, mode = file.read_text(encoding="utf-8"), file.stat().st_mode
    except OSError as e:
        raise DefinitionError(f"the token file {str(file)!r} cannot be read: {e.strerror}") from None
    if mode & 0o002:
        raise DefinitionError(f"the token file {str(file)!r} can be written by anybody on this machine: chmod 600 it")
    return read_tokens(text, f"the token file {str(file)!r}")


def as_toml(token: Token) -> str:
    """The token as a table for the token file."""
    kept: dict[str, Any] = msgspec.to_builtins(token)
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in kept.items()]
    return "\n".join(["[[token]]", *lines])
