"""What a webhook is: to whom, about what, how it is signed and what it says."""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from adjourn.errors import AdjournError, DefinitionError
from adjourn.parts import digest
from adjourn.server.api_shapes import decision_view, interrupt_view, when
from adjourn.server.outgoing import Bounds, check_url
from adjourn.server.settings import networks
from adjourn.store import Change, Decision, InterruptRecord

HookEvent = Literal["opened", "reopened", "settled", "expired", "cancelled"]
EVENTS: tuple[HookEvent, ...] = ("opened", "reopened", "settled", "expired", "cancelled")
LONGEST_ATTEMPT = 15.0
_SIGNED = "v1,"


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """One receiver. Times are in seconds. None of `agents`, `tools` or `owners` means all.

    `secret` signs; of several, all do, so that it can be changed without a gap ("whsec_…" is base64, as the standard has
    it). `name` is what its position is kept under: give one where the URL may change. `allow` are networks that are posted
    to although they are private, and over plain http. Without `content` no input, payload or output leaves the store.
    A failed attempt is followed by the next after `backoff` seconds, then twice that, up to `backoff_most`; each is
    shortened by chance, by up to half.
    """

    url: str
    secret: str | Sequence[str]
    events: Sequence[HookEvent] = EVENTS
    agents: Sequence[str] | None = None
    tools: Sequence[str] | None = None
    owners: Sequence[str | None] | None = None
    name: str = ""
    content: bool = True
    allow: Sequence[str] = ()
    bounds: Bounds = Bounds()
    backoff: float = 5.0
    backoff_most: float = 3600.0
    give_up_after: float = 3 * 24 * 3600.0

    def __post_init__(self) -> None:
        check_url(self.url)
        networks(self.allow)
        if unknown := set(self.events) - set(EVENTS):
            raise DefinitionError(f"events={sorted(unknown)!r}: a webhook is told of {', '.join(EVENTS)}")
        if not self.keys or any(len(k) < 16 for k in self.keys):
            raise DefinitionError("secret=: give at least 16 characters, as from secrets.token_urlsafe(32)")
        if self.bounds.seconds > LONGEST_ATTEMPT:
            raise DefinitionError(f"bounds: an attempt may take {LONGEST_ATTEMPT:g} seconds at most")

    @property
    def keys(self) -> Sequence[bytes]:
        return [_key(s) for s in _several(self.secret)]

    @property
    def id(self) -> str:
        """What its position is kept under."""
        return self.name or digest(self.url)

    def __repr__(self) -> str:
        return f"<Webhook {self.name or check_url(self.url).host}>"  # no secret, nor one that is part of the URL


# -- signatures ------------------------------------------------------------------------------------------------------


class BadSignature(AdjournError):
    """What came is not signed by whoever has the secret, was altered, or is too old. Answer with 401 and do nothing."""

    status = "UNAUTHENTICATED"


def sign(secret: str | Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a message: its id, its time in Unix seconds, and one signature for each secret."""
    signatures = [_SIGNED + _signature(_key(s), message_id, str(timestamp), body) for s in _several(secret)]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def verify(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> Any:
    """What a receiver calls: the message as JSON, once its signature holds. Raises BadSignature.

    `headers` are the request's, in any case; `body` is what came, byte for byte. A message whose time is more than
    `tolerance` seconds off is refused, so that nobody can send an old one again. Keep the `webhook-id` of what you acted
    on: a message can come twice.
    """
    given = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise BadSignature("the message carries no time; it was refused")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance:
        raise BadSignature(f"the message is more than {tolerance:g} seconds old, or of the future; it was refused")
    wanted = [_signature(_key(s), message_id, timestamp, body).encode() for s in _several(secret)]
    signatures = [s.removeprefix(_SIGNED).encode() for s in given.get("webhook-signature", "").split(" ") if s]
    # Every pair is compared, so that the time it takes says nothing.
    fits = [hmac.compare_digest(w, s) for w in wanted for s in signatures]
    if not any(fits):
        raise BadSignature("the signature does not fit the message; it was refused")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise BadSignature("the message is signed and is no JSON; it was refused") from None


def _several(secret: str | Sequence[str]) -> Sequence[str]:
    return [secret] if isinstance(secret, str) else list(secret)


def _key(secret: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        raise DefinitionError("a secret that begins with whsec_ goes on in base64") from None


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = b".".join([message_id.encode(errors="replace"), timestamp.encode(), body])
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


# -- what is sent ----------------------------------------------------------------------------------------------------


class News(msgspec.Struct, frozen=True):
    """A change with what the store has of it now. The rows are None where the session was deleted since."""

    change: Change
    interrupt: InterruptRecord | None
    decision: Decision | None

    @property
    def event(self) -> HookEvent:
        if self.change.kind != "settled":
            return self.change.kind
        verb = self.decision.verb if self.decision is not None else ""
        return "expired" if verb == "expire" else "cancelled" if verb == "cancel" else "settled"


def concerns(hook: Webhook, news: News) -> bool:
    """Whether the hook is told of it. What has been deleted since concerns only a hook that is told of everything."""
    row = news.interrupt
    if news.event not in hook.events:
        return False
    if row is None:
        return hook.agents is None and hook.tools is None and hook.owners is None
    return (
        (hook.agents is None or row.agent in hook.agents)
        and (hook.tools is None or row.tool in hook.tools)
        and (hook.owners is None or row.owner in hook.owners)
    )


def message(hook: Webhook, news: News, public_url: str | None) -> tuple[str, bytes]:
    """The id of the message, the same at every attempt, and its body."""
    change, row, made = news.change, news.interrupt, news.decision
    data: dict[str, Any] = {"interruptId": change.interrupt_id, "sessionId": change.session_id}
    if row is not None:
        shown = interrupt_view(row if hook.content else replace(row, input=None, payload=None))
        data["interrupt"] = shown
    if made is not None and change.kind == "settled":
        shown = decision_view(made)
        data["decision"] = shown if hook.content else replace(shown, output=None, metadata=None, input=None)
    if public_url:
        data["url"] = f"{public_url.rstrip('/')}/inbox/{change.interrupt_id}"
    body = {"type": f"interrupt.{news.event}", "timestamp": when(change.at), "data": data}
    named = digest(change.kind, change.interrupt_id, change.decision_id, change.at)
    return f"msg_{named}", msgspec.json.encode(body)
