"""What callers hand in, checked before anything is changed: each refusal names the argument."""

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any, TypeGuard, cast

from adjourn.errors import DefinitionError, InvalidRequest


def is_text(value: Any) -> TypeGuard[str]:
    """Whether a store can look for it: a text with something in it, without U+0000 and half of a surrogate pair."""
    try:
        return isinstance(value, str) and "\0" not in value and bool(value.encode())
    except UnicodeEncodeError:
        return False


def check_text(name: str, value: Any) -> None:
    """Raises InvalidRequest for what is no text that can be kept."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}={short(value)}: give a text; nothing was changed")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{name}={short(value)} has half of a surrogate pair, which is no text; nothing was changed"
        ) from None


def check_texts(**given: Any) -> None:
    """`check_text` for each of these; None is none given."""
    for name, value in given.items():
        if value is not None:
            check_text(name, value)


def check_filters(**given: Any) -> None:
    """`check_texts`, for what is looked for in a store: nothing in it holds U+0000."""
    check_texts(**given)
    for name, value in given.items():
        if value and "\0" in value:
            raise InvalidRequest(f"{name}={short(value)} holds U+0000: nothing can have it")


def check_limit(limit: Any, most: int) -> None:
    """Raises InvalidRequest for what is no number of entries."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidRequest(f"limit={short(limit)}: give 1 to {most}")


def several(name: str, values: Any) -> tuple[Any, ...] | None:
    """A filter that takes any of several texts, as a tuple. Raises InvalidRequest for one text alone, and what is none."""
    if values is None:
        return None
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{name}={short(values)}: give a list of texts")
    given = tuple(cast(Iterable[Any], values))
    for value in given:
        check_filters(**{name: value})
    return given


def check_is_store(store: Any) -> None:
    """Raises DefinitionError for what is no store."""
    if isinstance(store, type):
        raise DefinitionError(f"store={store.__name__} is a class: give a store, {store.__name__}(...)")
    if isinstance(store, (str, PathLike)):
        path = short(fspath(cast(Any, store)))
        raise DefinitionError(
            f"store={path} is a path: give a store, SQLiteStore({path}) (from adjourn.stores.sqlite import SQLiteStore)"
        )
    if not all(hasattr(store, name) for name in ("submit", "subscribe", "close", "lease_seconds")):
        raise DefinitionError(
            f"store={short(store)} is no store: give MemoryStore(), SQLiteStore(path) or PostgresStore(dsn)"
        )


def short(value: Any) -> str:
    """The value as an error names it."""
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
