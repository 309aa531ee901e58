"""How records become rows, for every SQL store: columns for what is looked for, one JSON body for the rest.

A field that a record gains later needs no migration, as long as it has a default: it is in the body by itself.
"""

import re
import zlib
from collections.abc import Sequence
from importlib.resources import files
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from adjourn.errors import StoreFormatError
from adjourn.events import Event
from adjourn.records import Decision, InterruptRecord, SessionRecord, Snapshot, Wanted

R = TypeVar("R", bound=msgspec.Struct)

Row = Sequence[Any]


class Codec(Generic[R]):
    """Turns records of one kind into rows and back. `columns` are those of its fields that have a column; the body is last."""

    def __init__(self, kind: type[R], *columns: str) -> None:
        required: list[Any] = []
        optional: list[Any] = []
        for field in msgspec.structs.fields(kind):
            if field.name in columns:
                continue
            if field.default_factory is not msgspec.NODEFAULT:
                optional.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
            elif field.default is not msgspec.NODEFAULT:
                optional.append((field.name, field.type, field.default))
            else:
                required.append((field.name, field.type))
        rest = [*required, *optional]
        names = [*columns, *[f[0] for f in rest]]
        self._kind = kind
        self._body: Any = msgspec.defstruct(
            f"{kind.__name__}Body", rest, frozen=True, omit_defaults=True, rename="camel", gc=False
        )
        self._columns = attrgetter(*columns)
        self._rest = attrgetter(*[f[0] for f in rest])
        self._in_order = itemgetter(*[names.index(name) for name in kind.__struct_fields__])
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(self._body).decode

    def row(self, record: R) -> tuple[Any, ...]:
        return (*self._columns(record), self._encode(self._body(*self._rest(record))))

    def record(self, row: Row) -> R:
        try:
            body = self._decode(row[-1])
        except msgspec.DecodeError as e:
            raise StoreFormatError(
                f"the stored {self._kind.__name__} {row[0]!r} cannot be read: {e}. It was made by a newer Adjourn, or changed "
                "by another program; nothing was changed"
            ) from None
        return self._kind(*self._in_order((*row[:-1], *self._rest(body))))


SESSION = Codec(SessionRecord, "id", "agent", "owner", "created", "updated", "lease_until")
SNAPSHOT = Codec(Snapshot, "id", "session_id", "parent_id", "turn_id", "created", "updated")
INTERRUPT = Codec(InterruptRecord, "id", "session_id", "status", "agent", "tool", "owner", "created", "expires_at")
DECISION = Codec(Decision, "id", "interrupt_id", "session_id")

encode_events = msgspec.json.Encoder().encode
_decode_events = msgspec.json.Decoder(tuple[Event, ...]).decode

# What an event usually looks like, for deflate to refer to: it halves what is kept of a turn twice, as it happened (here)
# and as it was said (in the snapshot). It is part of the stored format: to change it, add another with another mark.
_PACKED = b"\x01"
_USUAL = (
    b'{"type":"retried","limits":{"type":"forked","ids":{"type":"expired","interrupt":"i_"},{"type":"declined","interrupt":"'
    b'i_","reason":""},{"type":"restarted","interrupt":"i_","metadata":{"input":{"by":"{"type":"responded","interrupt":"i_",'
    b'"output":{"type":"outputRejected","message":"","{"type":"toolInterrupted","call":"c_","pause":{"id":"i_","payload":{"'
    b'reason":"approval"},"took":0.0}{"type":"toolRaised","call":"c_","error":{"status":"INTERNAL","message":"","kind":"to":'
    b'"model","took":0.{"type":"callRejected","call":"c_","message":"","kind":"unknown_tool"}{"type":"turnEnded","reason":"'
    b'stop"}]{"type":"toolReturned","call":"c_","output":{"result":"{"type":"toolStarted","call":"c_"}]"finishReason":"bloc'
    b'ked""inputTokens":1,"cachedTokens":,"reasoningTokens":{"media":{"url":"data:","contentType":"[{"type":"userSaid","me'
    b'ssage":{"role":"user","content":[{"text":"the "}]}},{"type":"modelReplied","message":{"role":"model","content":[{"reas'
    b'oning":"{"text":"{"toolRequest":{"name":"","ref":"","input":{""}},"metadata":{}}]},"calls":["c_"],"usage":{"inputTok'
    b'ens":120,"outputTokens":30},"took":0.'
)
_SMALL = 400  # bytes, below which packing gains too little
_SHORT = 3000  # bytes, that a small window spans together with the above


def pack_events(events: Sequence[Event]) -> bytes:
    """One batch of a snapshot's events: their JSON, packed."""
    return pack(encode_events(events))


def pack(body: bytes) -> bytes:
    """The JSON of a batch, deflated unless it is small."""
    if len(body) < _SMALL:
        return body
    # Level 1 with little memory: what is packed is short, and setting up costs more than packing.
    bits, memory = (-12, 2) if len(body) < _SHORT else (-15, 4)
    deflate = zlib.compressobj(1, zlib.DEFLATED, bits, memory, zdict=_USUAL)
    return _PACKED + deflate.compress(body) + deflate.flush()


def unpack_events(body: bytes) -> tuple[Event, ...]:
    """The batch that `pack_events` packed."""
    try:
        if body[:1] == _PACKED:
            body = zlib.decompressobj(-15, zdict=_USUAL).decompress(body[1:])
        return _decode_events(body)
    except (msgspec.DecodeError, zlib.error) as e:
        raise StoreFormatError(
            f"a stored event cannot be read: {e}. It was made by a newer Adjourn, or changed by another program; nothing "
            "was changed"
        ) from None


class _Shown(msgspec.Struct, gc=False):
    input: msgspec.Raw = msgspec.Raw(b"")
    payload: msgspec.Raw = msgspec.Raw(b"")


_decode_shown = msgspec.json.Decoder(_Shown).decode


def row_mentions(row: Row, wanted: Wanted) -> bool:
    """What `mentions` says of a row of interrupts, without making a record of it."""
    interrupt_id, _, _, agent, tool, owner, _, _, body = row
    shown = _decode_shown(body)
    values = [bytes(v).decode() for v in (shown.input, shown.payload) if v]
    return wanted.within((tool, agent, owner or "", interrupt_id), values)


def sieve(text: str) -> str | None:
    """What a row that mentions this text must hold, in small letters as far as they are ASCII; None where that is nothing.

    A database looks for it in the whole row, so what it finds still has to be looked at. Left out is what JSON writes
    differently, and letters of other scripts that come in two cases, which not every database knows.
    """
    runs = "".join(c if _plain(c) else "\0" for c in text).split("\0")
    return max(runs, key=len).lower()[:_SIEVED] or None


_SIEVED = 200  # characters; what is longer is left to the second look


def _plain(c: str) -> bool:
    if c.isascii():
        return c.isprintable() and c not in '"\\'
    return c.isprintable() and c.lower() == c == c.upper()


def active(session: SessionRecord) -> bool:
    """Whether a driver is at this session or is waited for."""
    return session.pending or session.waiting > 0 or bool(session.queue)


def migrations(store: str) -> list[str]:
    """The scripts of sql/<store>_0001.sql and so on, in order: the nth leads from format n-1 to format n."""
    found = sorted(f.name for f in _SQL.iterdir() if re.fullmatch(rf"{store}_\d{{4}}\.sql", f.name))
    return [(_SQL / name).read_text("utf-8") for name in found]


def queries(store: str) -> dict[str, str]:
    """The statements of sql/<store>_queries.sql by their names. `{name}` stands for the part of that name."""
    text = (_SQL / f"{store}_queries.sql").read_text("utf-8")
    blocks = re.split(r"^-- (name|part): (\w+)\n", text, flags=re.MULTILINE)
    parts: dict[str, str] = {}
    found: dict[str, str] = {}
    for kind, name, body in zip(blocks[1::3], blocks[2::3], blocks[3::3], strict=True):
        text = " ".join(statements(body)[0].split())
        while "{" in text:
            text = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], text)
        (parts if kind == "part" else found)[name] = text
    return found


def statements(script: str) -> list[str]:
    """The statements of a script. Ours hold no semicolon and no dashes within a literal."""
    code = re.sub(r"--.*", "", script)
    return [s.strip() for s in code.split(";") if s.strip()]


_SQL = files("adjourn.stores") / "sql"
