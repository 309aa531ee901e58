"""Which stores are one and the same: several objects may keep their rows in one place."""

from collections.abc import Hashable, Iterable, Sequence

from adjourn.store import Store


def same_place(one: Store | None, other: Store) -> bool:
    """Whether these two stores keep their rows in one place, as they say themselves (see `Store`)."""
    return one is not None and _place(one) == _place(other)


def each_once(stores: Iterable[Store]) -> Sequence[Store]:
    """Of the stores that share a place, the first."""
    found: dict[Hashable, Store] = {}
    for store in stores:
        found.setdefault(_place(store), store)
    return list(found.values())


def _place(store: Store) -> Hashable:
    said: Hashable = getattr(store, "place", None)
    return id(store) if said is None else said
