-- Every statement the PostgreSQL store runs on its rows, by name; $schema is the store's own schema. In page queries $1 and
-- $2 are the last (created, id) seen.

-- name: session
SELECT id, agent, owner, created, updated, lease_until, body FROM $schema.sessions WHERE id = $1;

-- name: locked_session
SELECT id, agent, owner, created, updated, lease_until, body FROM $schema.sessions WHERE id = $1 FOR UPDATE;

-- name: put_session
INSERT INTO $schema.sessions (id, agent, owner, created, updated, lease_until, body, active)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO UPDATE SET agent = $2, owner = $3, created = $4, updated = $5, lease_until = $6, body = $7, active = $8;

-- name: new_session
-- For one that was looked for and not found: if somebody else made it meanwhile, this fails, and the work runs again.
INSERT INTO $schema.sessions (id, agent, owner, created, updated, lease_until, body, active)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: sessions_by_created
SELECT id, agent, owner, created, updated, lease_until, body FROM $schema.sessions
WHERE (created, id) > ($1, $2) AND ($4::float8 IS NULL OR updated < $4::float8)
ORDER BY created, id LIMIT $3;

-- name: sessions_by_agent
SELECT id, agent, owner, created, updated, lease_until, body FROM $schema.sessions
WHERE agent = $5 AND (created, id) > ($1, $2) AND ($6::text IS NULL OR owner = $6::text)
  AND ($4::float8 IS NULL OR updated < $4::float8)
ORDER BY created, id LIMIT $3;

-- name: sessions_by_owner
SELECT id, agent, owner, created, updated, lease_until, body FROM $schema.sessions
WHERE owner = $5 AND (created, id) > ($1, $2) AND ($4::float8 IS NULL OR updated < $4::float8)
ORDER BY created, id LIMIT $3;

-- name: sessions_due
SELECT id, agent, owner, created, updated, lease_until, body FROM $schema.sessions
WHERE active AND lease_until <= $7 AND (created, id) > ($1, $2) AND ($5::text IS NULL OR agent = $5::text)
  AND ($6::text IS NULL OR owner = $6::text) AND ($4::float8 IS NULL OR updated < $4::float8)
ORDER BY created, id LIMIT $3;

-- name: drop_session
DELETE FROM $schema.sessions WHERE id = $1;

-- name: snapshot
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM $schema.snapshots WHERE id = $1;

-- name: put_snapshot
INSERT INTO $schema.snapshots (id, session_id, parent_id, turn_id, created, updated, body, folded)
VALUES ($1, $2, $3, nullif($4::text, $1::text), $5, $6, $7, $8)
ON CONFLICT (id) DO UPDATE SET
  parent_id = $3, turn_id = nullif($4::text, $1::text), created = $5, updated = $6, body = $7, folded = $8;

-- name: snapshots
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM $schema.snapshots WHERE session_id = $1 ORDER BY n;

-- name: chain
-- From the named one up to its root.
WITH RECURSIVE up AS (
  SELECT 0 AS height, s.id AS at, s.parent_id AS next, s.folded AS last FROM $schema.snapshots AS s WHERE s.id = $1
  UNION ALL
  SELECT up.height + 1, s.id, s.parent_id, s.folded FROM up JOIN $schema.snapshots AS s ON s.id = up.next WHERE NOT up.last
)
SELECT s.id, s.session_id, s.parent_id, coalesce(s.turn_id, s.id), s.created, s.updated, s.body
FROM up JOIN $schema.snapshots AS s ON s.id = up.at ORDER BY up.height;

-- name: drop_snapshots
DELETE FROM $schema.snapshots WHERE session_id = $1;

-- name: add_events
INSERT INTO $schema.events (snapshot_id, batch, body) VALUES ($1, $2, $3)
ON CONFLICT (snapshot_id, batch) DO UPDATE SET body = $3;

-- name: events
SELECT body FROM $schema.events WHERE snapshot_id = $1 ORDER BY batch;

-- name: drop_events
DELETE FROM $schema.events WHERE snapshot_id IN (SELECT id FROM $schema.snapshots WHERE session_id = $1);

-- name: interrupt
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts WHERE id = $1;

-- name: put_interrupt
INSERT INTO $schema.interrupts (id, session_id, status, agent, tool, owner, created, expires_at, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO UPDATE SET
  status = $3, agent = $4, tool = $5, owner = $6, created = $7, expires_at = $8, body = $9;

-- name: interrupts_by_status
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts
WHERE status = $4 AND (created, id) > ($1, $2)
ORDER BY created, id LIMIT $3;

-- name: interrupts_by_tool
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts
WHERE tool = $5 AND status = $4 AND (created, id) > ($1, $2)
  AND ($6::text IS NULL OR agent = $6::text) AND ($7::text IS NULL OR owner = $7::text)
ORDER BY created, id LIMIT $3;

-- name: interrupts_by_agent
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts
WHERE agent = $6 AND status = $4 AND (created, id) > ($1, $2)
  AND ($5::text IS NULL OR tool = $5::text) AND ($7::text IS NULL OR owner = $7::text)
ORDER BY created, id LIMIT $3;

-- name: interrupts_by_owner
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts
WHERE owner = $7 AND status = $4 AND (created, id) > ($1, $2)
  AND ($5::text IS NULL OR tool = $5::text) AND ($6::text IS NULL OR agent = $6::text)
ORDER BY created, id LIMIT $3;

-- name: interrupts_by_session
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts
WHERE session_id = $9 AND (created, id) > ($1, $2) AND ($4::text IS NULL OR status = $4::text)
  AND ($5::text IS NULL OR tool = $5::text) AND ($6::text IS NULL OR agent = $6::text)
  AND ($7::text IS NULL OR owner = $7::text)
  AND ($8::float8 IS NULL OR (status = 'open' AND expires_at <= $8::float8))
ORDER BY created, id LIMIT $3;

-- name: interrupts_overdue
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts
WHERE status = 'open' AND expires_at IS NOT NULL AND expires_at <= $8 AND (created, id) > ($1, $2)
  AND ($4::text IS NULL OR $4::text = 'open')
  AND ($5::text IS NULL OR tool = $5::text) AND ($6::text IS NULL OR agent = $6::text)
  AND ($7::text IS NULL OR owner = $7::text)
ORDER BY created, id LIMIT $3;

-- name: drop_interrupts
DELETE FROM $schema.interrupts WHERE session_id = $1;

-- name: put_decision
INSERT INTO $schema.decisions (id, interrupt_id, session_id, body, applied) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (interrupt_id, id) DO UPDATE SET body = $4, applied = $5;

-- name: decisions_by_interrupt
SELECT id, interrupt_id, session_id, body FROM $schema.decisions WHERE interrupt_id = $1 ORDER BY n;

-- name: decisions_by_session
SELECT id, interrupt_id, session_id, body FROM $schema.decisions WHERE session_id = $1 ORDER BY n;

-- name: decisions_unapplied_by_session
SELECT id, interrupt_id, session_id, body FROM $schema.decisions WHERE NOT applied AND session_id = $1 ORDER BY n;

-- name: decisions_unapplied
SELECT id, interrupt_id, session_id, body FROM $schema.decisions WHERE NOT applied ORDER BY n;

-- name: decisions
SELECT id, interrupt_id, session_id, body FROM $schema.decisions ORDER BY n;

-- What follows is about the store itself.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: transaction
-- By this number the server can be asked later whether the transaction was committed, as long as it has not been started
-- anew: a server that crashed gives the numbers of what it had not kept to others.
SELECT pg_current_xact_id()::text || ' ' || extract(epoch FROM pg_postmaster_start_time())::text;

-- name: outcome
SELECT CASE WHEN extract(epoch FROM pg_postmaster_start_time())::text = split_part($1::text, ' ', 2)
    THEN pg_xact_status(split_part($1::text, ' ', 1)::xid8) END;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: server
SELECT current_setting('server_version_num')::integer, current_setting('synchronous_commit');

-- name: wait_for_disk
SET synchronous_commit = on;

-- name: tables
SELECT table_name::text FROM information_schema.tables WHERE table_schema = $1;

-- name: format
SELECT version FROM $schema.format;

-- name: lock_format
SELECT pg_advisory_xact_lock(hashtextextended('adjourn ' || $1::text, 0));

-- name: make_schema
CREATE SCHEMA IF NOT EXISTS $schema;

-- name: make_format
CREATE TABLE $schema.format (version integer NOT NULL);

-- name: first_format
INSERT INTO $schema.format (version) VALUES (0);

-- name: set_format
UPDATE $schema.format SET version = $1;

-- name: notify
SELECT pg_notify($1, $2);
