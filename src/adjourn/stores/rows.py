"""How records become rows, for every SQL store: columns for what is looked for, one JSON body for the rest.

A field that a record gains later needs no migration, as long as it has a default: it is in the body by itself.
"""

import re
from collections.abc import Sequence
from importlib.resources import files
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from adjourn.errors import StoreFormatError
from adjourn.events import Event
from adjourn.store import Decision, InterruptRecord, SessionRecord, Snapshot

R = TypeVar("R", bound=msgspec.Struct)

Row = Sequence[Any]


class Codec(Generic[R]):
    """Turns records of one kind into rows and back. `columns` are fields; a row ends with the body."""

    def __init__(self, kind: type[R], columns: Sequence[str], *, flags: Sequence[str] = ()) -> None:
        names = kind.__struct_fields__
        fields = {f.name: f for f in msgspec.structs.fields(kind)}
        self._kind = kind
        body: list[Any] = []
        for name in names:
            if name in columns:
                continue
            field = fields[name]
            if field.default_factory is not msgspec.NODEFAULT:
                body.append((name, field.type, msgspec.field(default_factory=field.default_factory)))
            elif field.default is not msgspec.NODEFAULT:
                body.append((name, field.type, field.default))
            else:
                body.append((name, field.type))
        body.sort(key=lambda f: len(f) == 3)  # required ones first
        self._body: Any = msgspec.defstruct(
            f"_{kind.__name__}Body", body, frozen=True, omit_defaults=True, rename="camel"
        )
        self._columns = attrgetter(*columns)
        self._rest = attrgetter(*[f[0] for f in body])
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(self._body).decode
        # Where each field of the record is found: a position in the row, or an attribute of the body.
        self._columns_first = (*columns, *[f[0] for f in body])
        self._order = [self._columns_first.index(name) for name in names]
        self._flags = [columns.index(name) for name in flags]

    def row(self, record: R) -> tuple[Any, ...]:
        return (*self._columns(record), self._encode(self._body(*self._rest(record))))

    def record(self, row: Row) -> R:
        try:
            values = (*row[:-1], *self._rest(self._decode(row[-1])))
        except msgspec.DecodeError as e:
            raise StoreFormatError(
                f"the stored {self._kind.__name__} {row[0]!r} cannot be read: {e}. It was made by a newer Adjourn, or changed "
                "by another program; nothing was changed"
            ) from None
        if self._flags:
            values = list(values)
            for i in self._flags:
                values[i] = bool(values[i])
        return self._kind(*[values[i] for i in self._order])


SESSION = Codec(SessionRecord, ("id", "agent", "owner", "created", "updated", "lease_until"))
SNAPSHOT = Codec(
    Snapshot, ("id", "session_id", "parent_id", "turn_id", "created", "updated", "folded"), flags=["folded"]
)
INTERRUPT = Codec(InterruptRecord, ("id", "session_id", "status", "agent", "tool", "owner", "created", "expires_at"))
DECISION = Codec(Decision, ("id", "interrupt_id", "session_id", "applied"), flags=["applied"])

encode_events = msgspec.json.Encoder().encode
_events = msgspec.json.Decoder(tuple[Event, ...])


def decode_events(body: bytes) -> tuple[Event, ...]:
    """One batch of a snapshot's events."""
    try:
        return _events.decode(body)
    except msgspec.DecodeError as e:
        raise StoreFormatError(
            f"a stored event cannot be read: {e}. It was made by a newer Adjourn, or changed by another program; nothing "
            "was changed"
        ) from None


def active(session: SessionRecord) -> bool:
    """Whether a driver is at this session or is waited for."""
    return session.pending or session.waiting > 0


def migrations(store: str) -> list[str]:
    """The scripts of sql/<store>_0001.sql and so on, in order: the nth leads from format n-1 to format n."""
    found = sorted(f.name for f in _SQL.iterdir() if re.fullmatch(rf"{store}_\d{{4}}\.sql", f.name))
    return [(_SQL / name).read_text("utf-8") for name in found]


def queries(store: str) -> dict[str, str]:
    """The statements of sql/<store>_queries.sql by their names."""
    text = (_SQL / f"{store}_queries.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: " ".join(statements(body)[0].split()) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def statements(script: str) -> list[str]:
    """The statements of a script. Ours hold no semicolon and no dashes within a literal."""
    code = re.sub(r"--.*", "", script)
    return [s.strip() for s in code.split(";") if s.strip()]


_SQL = files("adjourn.stores") / "sql"
