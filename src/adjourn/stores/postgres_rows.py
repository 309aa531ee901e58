"""The rows of a PostgreSQL store, within one transaction of one connection."""

from collections.abc import Mapping, Sequence
from typing import Any

from adjourn.store import SessionRecord
from adjourn.stores.rows import SESSION, Row, active
from adjourn.stores.sqltx import SqlTx


class PostgresTx(SqlTx):
    """A `Tx` on a connection in pipeline mode: what gives no rows is sent along with the next statement that does."""

    def __init__(self, db: Any, statements: Mapping[str, bytes], *, read: bool) -> None:
        self._db = db
        self._q = statements
        self._session = "session" if read else "locked_session"
        self._absent: set[str] = set()

    def run(self, name: str, values: Sequence[Any]) -> None:
        self._db.execute(self._q[name], values)

    def all(self, name: str, values: Sequence[Any]) -> list[Row]:
        return self._db.execute(self._q[name], values, binary=True).fetchall()

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
