-- Format 1. Each table keeps in columns what is looked for, and in `body` the rest of the record as JSON.
-- `n` is the order in which rows were made, and what other tables refer to.

CREATE TABLE sessions (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    owner TEXT,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    lease_until REAL NOT NULL,
    -- 1 where a driver is, or is waited for: the few rows that a worker looks through.
    active INTEGER NOT NULL,
    body BLOB NOT NULL
);

-- None of these holds a column that changes with each commit, so a commit of a running turn touches no index.
CREATE INDEX sessions_created ON sessions (created, id);
CREATE INDEX sessions_agent ON sessions (agent, created, id);
CREATE INDEX sessions_owner ON sessions (owner, created, id) WHERE owner IS NOT NULL;
CREATE INDEX sessions_active ON sessions (created, id) WHERE active = 1;

CREATE TABLE snapshots (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    parent_id TEXT,
    turn_id TEXT, -- NULL where it is the id itself: most turns have one leg
    folded INTEGER NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    body BLOB NOT NULL
);

CREATE INDEX snapshots_session ON snapshots (session_id);

-- n = snapshots.n * 2^20 + batch: a snapshot's batches lie side by side, and need no second index.
CREATE TABLE events (
    n INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

CREATE TABLE interrupts (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    status TEXT NOT NULL,
    agent TEXT NOT NULL,
    tool TEXT NOT NULL,
    owner TEXT,
    created REAL NOT NULL,
    expires_at REAL,
    body BLOB NOT NULL
);

CREATE INDEX interrupts_session ON interrupts (session_id);
CREATE INDEX interrupts_status ON interrupts (status, created, id);
CREATE INDEX interrupts_tool ON interrupts (tool, status, created, id);
CREATE INDEX interrupts_agent ON interrupts (agent, status, created, id);
CREATE INDEX interrupts_owner ON interrupts (owner, status, created, id) WHERE owner IS NOT NULL;
CREATE INDEX interrupts_expires ON interrupts (expires_at) WHERE status = 'open' AND expires_at IS NOT NULL;

-- The audit. It outlives the session, so it refers to nothing by number.
CREATE TABLE decisions (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    interrupt_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    applied INTEGER NOT NULL,
    body BLOB NOT NULL
);

CREATE UNIQUE INDEX decisions_interrupt ON decisions (interrupt_id, id);
CREATE INDEX decisions_session ON decisions (session_id);
CREATE INDEX decisions_unapplied ON decisions (session_id) WHERE applied = 0;
