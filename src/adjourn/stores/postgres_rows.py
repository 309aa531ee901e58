"""The rows of a PostgreSQL store, within one transaction of one connection."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adjourn.records import Change, SessionRecord, placed, unknown_position
from adjourn.stores.rows import SESSION, Row, active
from adjourn.stores.sqltx import FORGOTTEN, SqlTx

LOOKS = 20
"""How often the end of the feed is looked for anew, where a transaction ended during the look."""

_BEGINNING = "0.0"


class LookAgain(Exception):
    """The work is wanted once more, in a new snapshot. Never leaves the store."""


class PostgresTx(SqlTx):
    """A `Tx` on a connection in pipeline mode: what gives no rows is sent along with the next statement that does.

    A `read` keeps its snapshot, so it raises LookAgain where a new one would show more of the feed, unless it is the `last`.
    """

    def __init__(
        self,
        db: Any,
        statements: Mapping[str, bytes],
        sync: Callable[[], None] | None = None,
        *,
        read: bool,
        last: bool = False,
    ) -> None:
        self._db = db
        self._sync = sync
        self._q = statements
        self._looks = 1 if last else LOOKS
        self._keeps_snapshot = read and not last
        self._session = "session" if read else "locked_session"
        self._mark = "mark" if read else "locked_mark"
        self._absent: set[str] = set()
        self._unmarked: set[str] = set()

    def run(self, name: str, values: Sequence[Any]) -> None:
        self._db.execute(self._q[name], values)

    def all(self, name: str, values: Sequence[Any]) -> list[Row]:
        found = self._db.execute(self._q[name], values, binary=True)
        if self._sync is not None:
            self._sync()  # what only waits in the middle of a pipeline does not count as idle for the server
        return found.fetchall()

    def session(self, session_id: str) -> SessionRecord | None:
        rows = self.all(self._session, (session_id,))
        if rows:
            return SESSION.record(rows[0])
        self._absent.add(session_id)
        return None

    def put_session(self, record: SessionRecord) -> None:
        if record.id not in self._absent:
            super().put_session(record)
            return
        # A row that is not there cannot be locked. So whoever saw none must be the one who makes it.
        self._absent.discard(record.id)
        self.run("new_session", (*SESSION.row(record), active(record)))

    def changes(self, after: str | None, limit: int) -> list[Change]:
        at = re.fullmatch(r"(\d{1,18})\.(\d{1,18})(-[0-9a-f]{8})?", after or _BEGINNING, re.ASCII)
        if at is None:
            raise unknown_position(after)
        rows = self.all("changes", (at[1], int(at[2]), limit + 1, self._horizon()))
        found = [placed(*row) for row in rows]
        if after is None or after == _BEGINNING:
            return found[:limit]
        if found and found[0].position == after:
            return found[1:]
        # It may be there and not be readable, where somebody else's transaction counts as one of ours of late.
        there = [placed(*row).position for row in self.all("change_at", (at[1], int(at[2])))]
        if there != [after] and (there or not self._may_miss(at, found)):
            raise unknown_position(after)
        return found[:limit]

    def _may_miss(self, at: re.Match[str], found: list[Change]) -> bool:
        """Whether this position need not be there: it was forgotten, or this is a standby that has not got it yet."""
        forgotten, standby = self.all("forgotten", (at[1], int(at[2])))[0]
        return forgotten or (standby and not found)

    def _horizon(self) -> str:
        """The number of the first transaction whose changes cannot be read yet."""
        horizon = ""
        for _ in range(self._looks):
            horizon, doubtful = self.all("horizon", ())[0]
            if not doubtful:
                break
            if self._keeps_snapshot:
                raise LookAgain
        return horizon

    def position(self) -> str:
        rows = self.all("position", (self._horizon(),))
        return placed(*rows[0]).position if rows else _BEGINNING

    def drop_changes(self, before: float) -> int:
        return self.all("drop_changes", (before, FORGOTTEN))[0][0]

    def mark(self, name: str) -> str | None:
        rows = self.all(self._mark, (name,))
        if rows:
            return rows[0][0]
        self._unmarked.add(name)
        return None

    def put_mark(self, name: str, value: str | None) -> None:
        if value is None or name not in self._unmarked:
            super().put_mark(name, value)
            return
        self._unmarked.discard(name)
        self.run("new_mark", (name, value))

    def _list(self, values: Sequence[str] | None) -> list[str] | None:
        return None if values is None else list(values)
