-- Format 1. $schema is the store's own schema. Each table keeps in columns what is looked for, and in `body` the rest of the
-- record as JSON: bytes, because PostgreSQL's text and JSON types refuse U+0000. `n` is the order in which rows were made.

CREATE TABLE $schema.sessions (
    id text COLLATE "C" PRIMARY KEY,
    agent text COLLATE "C" NOT NULL,
    owner text COLLATE "C",
    created double precision NOT NULL,
    updated double precision NOT NULL,
    lease_until double precision NOT NULL,
    active boolean NOT NULL, -- a driver is, or is waited for: the few rows that a worker looks through
    body bytea NOT NULL
) WITH (fillfactor = 70); -- each commit rewrites a session's row: room beside it keeps the indexes out of that

CREATE INDEX sessions_created ON $schema.sessions (created, id);
CREATE INDEX sessions_agent ON $schema.sessions (agent, created, id);
CREATE INDEX sessions_owner ON $schema.sessions (owner, created, id) WHERE owner IS NOT NULL;
CREATE INDEX sessions_active ON $schema.sessions (created, id) WHERE active;

CREATE TABLE $schema.snapshots (
    n bigint GENERATED ALWAYS AS IDENTITY,
    id text COLLATE "C" PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C",
    turn_id text COLLATE "C", -- NULL where it is the id itself: most turns have one leg
    folded boolean NOT NULL,
    created double precision NOT NULL,
    updated double precision NOT NULL,
    body bytea NOT NULL
) WITH (fillfactor = 85);

CREATE INDEX snapshots_session ON $schema.snapshots (session_id, n);

CREATE TABLE $schema.events (
    snapshot_id text COLLATE "C" NOT NULL,
    batch integer NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (snapshot_id, batch)
);

CREATE TABLE $schema.interrupts (
    n bigint GENERATED ALWAYS AS IDENTITY,
    id text COLLATE "C" PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    tool text COLLATE "C" NOT NULL,
    owner text COLLATE "C",
    created double precision NOT NULL,
    expires_at double precision,
    body bytea NOT NULL
);

CREATE INDEX interrupts_session ON $schema.interrupts (session_id);
CREATE INDEX interrupts_status ON $schema.interrupts (status, created, id);
CREATE INDEX interrupts_tool ON $schema.interrupts (tool, status, created, id);
CREATE INDEX interrupts_agent ON $schema.interrupts (agent, status, created, id);
CREATE INDEX interrupts_owner ON $schema.interrupts (owner, status, created, id) WHERE owner IS NOT NULL;
CREATE INDEX interrupts_expires ON $schema.interrupts (expires_at) WHERE status = 'open' AND expires_at IS NOT NULL;

-- The audit. It outlives the session, so it refers to nothing.
CREATE TABLE $schema.decisions (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL,
    interrupt_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    applied boolean NOT NULL,
    body bytea NOT NULL
);

CREATE UNIQUE INDEX decisions_interrupt ON $schema.decisions (interrupt_id, id);
CREATE INDEX decisions_session ON $schema.decisions (session_id, n);
CREATE INDEX decisions_unapplied ON $schema.decisions (session_id, n) WHERE NOT applied;
