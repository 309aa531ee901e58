"""How a rule is checked: a sentence that should be true."""

from collections.abc import Callable
from typing import TypeVar

from adjourn.store import Store, Tx

T = TypeVar("T")

SECONDS = 60.0
"""How long a store may take over one thing before it counts as hanging."""


def expect(holds: object, rule: str) -> None:
    """The one kind of check: a sentence that should be true."""
    if not holds:
        raise AssertionError(rule)


def same(found: object, wanted: object, rule: str) -> None:
    if found != wanted:
        raise AssertionError(f"{rule}: {str(found)[:300]} is not {str(wanted)[:300]}")


def do(store: Store, work: Callable[[Tx], T], *, read: bool = False) -> T:
    return store.submit(work, read=read).result(SECONDS)
