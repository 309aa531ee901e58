-- Format 2: each commit's time and epoch, the feed of changes, marks; a snapshot's children and a filtered page by an index.

ALTER TABLE $schema.events ADD COLUMN at double precision; -- NULL where not known: then its snapshot's stands for it
ALTER TABLE $schema.events ADD COLUMN epoch integer NOT NULL DEFAULT 0;

CREATE INDEX snapshots_parent ON $schema.snapshots (parent_id, n) WHERE parent_id IS NOT NULL;

-- With all that is filtered by in the index itself, a filter that fits few rows does not have to fetch the others.
DROP INDEX $schema.interrupts_status;
CREATE INDEX interrupts_status ON $schema.interrupts (status, created, id) INCLUDE (tool, agent, owner);

-- Transactions end in another order than their numbers. A row is read only when all transactions with lower numbers have
-- ended: then nothing can come before it any more.
CREATE TABLE $schema.changes (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    n bigint GENERATED ALWAYS AS IDENTITY,
    kind text COLLATE "C" NOT NULL,
    interrupt_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    decision_id text COLLATE "C",
    PRIMARY KEY (xid, n)
);

CREATE TABLE $schema.marks (
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
