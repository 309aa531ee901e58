"""Who wants to hear of changes in a store."""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("adjourn.stores")


class Subscribers:
    """Callbacks, called from any thread. True while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Callable[[], Callable[[], None]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """From now on, until what this returns is called; to call that twice is no error."""

        def subscription() -> Callable[[], None]:  # one of its own, also where the same callback is added twice
            return callback

        with self._lock:
            self._all = (*self._all, subscription)

        def end() -> None:
            with self._lock:
                self._all = tuple(one for one in self._all if one is not subscription)

        return end

    def call(self, store: object) -> None:
        """Calls all of them; `store` is what the log calls it where one fails."""
        for subscription in self._all:
            try:
                subscription()()
            except Exception:  # noqa: BLE001 (theirs, and no reason to stop storing)
                _log.exception("a subscriber of %s failed", store)
