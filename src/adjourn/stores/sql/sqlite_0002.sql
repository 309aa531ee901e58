-- Format 2: each commit's time and epoch, the feed of changes, marks; a snapshot's children and a filtered page by an index.

ALTER TABLE events ADD COLUMN at REAL; -- NULL where not known: then its snapshot's stands for it
ALTER TABLE events ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;

-- Not a second index: each is one more page in every commit.
DROP INDEX snapshots_session;
CREATE INDEX snapshots_session ON snapshots (session_id, parent_id);

-- With all that is filtered by in the index itself, a filter that fits few rows does not have to fetch the others.
DROP INDEX interrupts_status;
CREATE INDEX interrupts_status ON interrupts (status, created, id, tool, agent, owner);

-- There is one writer at a time, so n is the order of the commits. The last row is never deleted: its number would be given anew.
CREATE TABLE changes (
    n INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    interrupt_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    at REAL NOT NULL,
    decision_id TEXT
);

CREATE TABLE marks (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
