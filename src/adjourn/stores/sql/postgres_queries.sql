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

-- What a page of sessions is filtered by: $4 to $8.

-- part: session_filters
($4::float8 IS NULL OR updated < $4::float8) AND ($5::text[] IS NULL OR agent = ANY($5::text[]))
  AND ($6::text[] IS NULL OR owner = ANY($6::text[]) OR ($7::boolean AND owner IS NULL))
  AND (NOT $8::boolean OR id NOT LIKE 'inner:%');

-- part: by_created
$schema.sessions WHERE (created, id) > ($1, $2) AND {session_filters};

-- name: sessions_by_created
SELECT id, agent, owner, created, updated, lease_until, body FROM {by_created}
ORDER BY created, id LIMIT $3;

-- name: count_sessions_by_created
SELECT count(*) FROM (SELECT 1 FROM {by_created} LIMIT $3) AS found;

-- part: by_agent
$schema.sessions WHERE agent = $9 AND (created, id) > ($1, $2) AND {session_filters};

-- name: sessions_by_agent
SELECT id, agent, owner, created, updated, lease_until, body FROM {by_agent}
ORDER BY created, id LIMIT $3;

-- name: count_sessions_by_agent
SELECT count(*) FROM (SELECT 1 FROM {by_agent} LIMIT $3) AS found;

-- part: by_owner
$schema.sessions WHERE owner = $9 AND (created, id) > ($1, $2) AND {session_filters};

-- name: sessions_by_owner
SELECT id, agent, owner, created, updated, lease_until, body FROM {by_owner}
ORDER BY created, id LIMIT $3;

-- name: count_sessions_by_owner
SELECT count(*) FROM (SELECT 1 FROM {by_owner} LIMIT $3) AS found;

-- part: due
$schema.sessions WHERE active AND lease_until <= $9 AND (created, id) > ($1, $2) AND {session_filters};

-- name: sessions_due
SELECT id, agent, owner, created, updated, lease_until, body FROM {due}
ORDER BY created, id LIMIT $3;

-- name: count_sessions_due
SELECT count(*) FROM (SELECT 1 FROM {due} LIMIT $3) AS found;

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
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM $schema.snapshots
WHERE session_id = $1 AND n > coalesce((SELECT n FROM $schema.snapshots WHERE id = $2::text AND session_id = $1), 0) ORDER BY n;

-- name: children
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM $schema.snapshots WHERE parent_id = $1 ORDER BY n;

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
INSERT INTO $schema.events (snapshot_id, batch, body, at, epoch) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (snapshot_id, batch) DO UPDATE SET body = $3, at = $4, epoch = $5;

-- name: batches
SELECT coalesce(e.at, s.updated), e.epoch, e.body
FROM $schema.snapshots AS s JOIN $schema.events AS e ON e.snapshot_id = s.id
WHERE s.id = $1 AND e.batch >= $2 ORDER BY e.batch;

-- name: drop_events
DELETE FROM $schema.events WHERE snapshot_id IN (SELECT id FROM $schema.snapshots WHERE session_id = $1);

-- name: interrupt
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM $schema.interrupts WHERE id = $1;

-- name: put_interrupt
INSERT INTO $schema.interrupts (id, session_id, status, agent, tool, owner, created, expires_at, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (id) DO UPDATE SET
  status = $3, agent = $4, tool = $5, owner = $6, created = $7, expires_at = $8, body = $9;

-- What a page of interrupts is filtered by: $5 to $9. The last one is looked for in the whole row, and finds too much.

-- part: interrupt_filters
($5::text[] IS NULL OR tool = ANY($5::text[])) AND ($6::text[] IS NULL OR agent = ANY($6::text[]))
  AND ($7::text[] IS NULL OR owner = ANY($7::text[]) OR ($8::boolean AND owner IS NULL))
  AND ($9::text IS NULL OR strpos(lower((id || ' ' || tool || ' ' || agent || ' ' || coalesce(owner, '') || ' '
    || convert_from(body, 'UTF8')) COLLATE "C"), $9::text) > 0);

-- part: of_status
$schema.interrupts WHERE status = $4 AND (created, id) > ($1, $2) AND {interrupt_filters};

-- name: interrupts_by_status
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_status}
ORDER BY created, id LIMIT $3;

-- name: count_interrupts_by_status
SELECT count(*) FROM (SELECT 1 FROM {of_status} LIMIT $3) AS found;

-- part: of_tool
$schema.interrupts WHERE tool = $10 AND status = $4 AND (created, id) > ($1, $2) AND {interrupt_filters};

-- name: interrupts_by_tool
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_tool}
ORDER BY created, id LIMIT $3;

-- name: count_interrupts_by_tool
SELECT count(*) FROM (SELECT 1 FROM {of_tool} LIMIT $3) AS found;

-- part: of_agent
$schema.interrupts WHERE agent = $10 AND status = $4 AND (created, id) > ($1, $2) AND {interrupt_filters};

-- name: interrupts_by_agent
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_agent}
ORDER BY created, id LIMIT $3;

-- name: count_interrupts_by_agent
SELECT count(*) FROM (SELECT 1 FROM {of_agent} LIMIT $3) AS found;

-- part: of_owner
$schema.interrupts WHERE owner = $10 AND status = $4 AND (created, id) > ($1, $2) AND {interrupt_filters};

-- name: interrupts_by_owner
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_owner}
ORDER BY created, id LIMIT $3;

-- name: count_interrupts_by_owner
SELECT count(*) FROM (SELECT 1 FROM {of_owner} LIMIT $3) AS found;

-- part: of_session
$schema.interrupts WHERE session_id = $10 AND (created, id) > ($1, $2) AND ($4::text IS NULL OR status = $4::text)
  AND ($11::float8 IS NULL OR (status = 'open' AND expires_at <= $11::float8)) AND {interrupt_filters};

-- name: interrupts_by_session
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_session}
ORDER BY created, id LIMIT $3;

-- name: count_interrupts_by_session
SELECT count(*) FROM (SELECT 1 FROM {of_session} LIMIT $3) AS found;

-- part: overdue
$schema.interrupts WHERE status = 'open' AND expires_at IS NOT NULL AND expires_at <= $10
  AND (created, id) > ($1, $2) AND ($4::text IS NULL OR $4::text = 'open') AND {interrupt_filters};

-- name: interrupts_overdue
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {overdue}
ORDER BY created, id LIMIT $3;

-- name: count_interrupts_overdue
SELECT count(*) FROM (SELECT 1 FROM {overdue} LIMIT $3) AS found;

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

-- name: add_change
INSERT INTO $schema.changes (xid, kind, interrupt_id, session_id, at, decision_id) VALUES (
    (pg_current_xact_id()::text::bigint + (SELECT ahead FROM $schema.format))::text::xid8, $1, $2, $3, $4, $5
);

-- What of the feed can be read. Transactions end in another order than their numbers, so a row is read once nothing of ours
-- can come before it any more. The number on the right is the lowest that may still do so: of this transaction, and of those
-- that ran when the snapshot was taken, without the ones that hold no lock on this table. Ours hold one from before they have
-- a number until they end (see `known`), so somebody else's long transaction on the same server holds nothing up.
-- pg_locks is read after the snapshot was taken, and not in one moment. It cannot miss a lock of a transaction that still
-- runs after it was read, for locks are let go of after the end. So one counts as somebody else's only if it still runs then.
-- A standby does not know its primary's locks, nor by name what runs there; there, all that runs holds the feed up.

-- One that is not among the locks any more ended while this looked, and what it made is not in this snapshot: a new one is wanted.

-- name: horizon
WITH held AS MATERIALIZED (
  SELECT locktype, transactionid, virtualtransaction, database, relation FROM pg_locks WHERE granted
), judged AS MATERIALIZED (
  SELECT x, it.virtualtransaction IS NOT NULL AS runs, EXISTS (
    SELECT FROM held AS ours WHERE ours.virtualtransaction = it.virtualtransaction AND ours.locktype = 'relation'
      AND ours.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND ours.relation = '$schema.changes'::regclass
  ) AS ours FROM pg_snapshot_xip(pg_current_snapshot()) AS x
  LEFT JOIN held AS it ON it.locktype = 'transactionid' AND it.transactionid = x::xid
), lowest AS MATERIALIZED (
  SELECT x, ours FROM judged
  WHERE NOT (runs AND NOT ours AND pg_xact_status(x) IS NOT DISTINCT FROM 'in progress') ORDER BY x LIMIT 1
)
SELECT
  ((CASE WHEN pg_is_in_recovery() THEN pg_snapshot_xmin(pg_current_snapshot()) ELSE least(
    pg_current_xact_id_if_assigned(), coalesce((SELECT x FROM lowest), pg_snapshot_xmax(pg_current_snapshot()))
  ) END)::text::bigint + (SELECT ahead FROM $schema.format))::text,
  NOT pg_is_in_recovery() AND EXISTS (SELECT FROM lowest WHERE NOT ours);

-- part: change
SELECT xid::text || '.' || n::text, kind, interrupt_id, session_id, at, decision_id FROM $schema.changes

-- name: changes
-- With the one at the position itself, so that it can be told by its seal.
{change} WHERE xid < $4::text::xid8 AND (xid, n) >= ($1::text::xid8, $2::bigint) ORDER BY xid, n LIMIT $3;

-- name: change_at
{change} WHERE (xid, n) = ($1::text::xid8, $2::bigint);

-- name: forgotten
-- Only the oldest are forgotten, and never all.
SELECT EXISTS (SELECT FROM $schema.changes)
    AND NOT EXISTS (SELECT FROM $schema.changes WHERE (xid, n) < ($1::text::xid8, $2::bigint)),
  pg_is_in_recovery();

-- name: position
-- The end of what `changes` gives.
-- That of a row and not of the snapshot: a server that crashed gives the numbers of what it had not kept to others.
{change} WHERE xid < $1::text::xid8 ORDER BY xid DESC, n DESC LIMIT 1;

-- name: drop_changes
WITH gone AS (
  DELETE FROM $schema.changes
  WHERE (xid, n) IN (SELECT xid, n FROM $schema.changes ORDER BY xid, n LIMIT $2) AND at < $1
    AND (xid, n) < (SELECT xid, n FROM $schema.changes ORDER BY xid DESC, n DESC LIMIT 1)
  RETURNING 1
)
SELECT count(*) FROM gone;

-- name: mark
SELECT value FROM $schema.marks WHERE name = $1;

-- name: locked_mark
SELECT value FROM $schema.marks WHERE name = $1 FOR UPDATE;

-- name: put_mark
INSERT INTO $schema.marks (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = $2;

-- name: new_mark
-- As new_session: if somebody else made it meanwhile, this fails, and the work runs again.
INSERT INTO $schema.marks (name, value) VALUES ($1, $2);

-- name: drop_mark
DELETE FROM $schema.marks WHERE name = $1;

-- What follows is about the store itself.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: known
-- By this lock, which is in nobody's way, a transaction is known as one of ours: see `settled`.
LOCK TABLE $schema.changes IN ROW SHARE MODE;

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

-- name: bounds
-- A process that is frozen or cut off in the middle of a transaction holds what it has locked only so long ($1, in ms). What the
-- DSN says stays.
SELECT set_config(name, wanted, false) FROM pg_settings JOIN (VALUES
    ('idle_in_transaction_session_timeout', $1::text), ('tcp_user_timeout', '30000'),
    ('tcp_keepalives_idle', '15'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3')
  ) AS bounds (name, wanted) USING (name)
WHERE source <> 'client' AND (setting = '0' OR setting::bigint > wanted::bigint);

-- name: bound_locks
SELECT set_config(name, $1::text, false) FROM pg_settings
WHERE name = 'lock_timeout' AND source <> 'client' AND (setting = '0' OR setting::bigint > $1::bigint);

-- name: end_frozen
-- Ours that have waited so many seconds for what their process says next. The server ends by itself those that it counts as idle,
-- which are not those in the middle of a pipeline.
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity AS one
WHERE datname = current_database() AND usename = current_user AND application_name = current_setting('application_name')
  AND pid <> pg_backend_pid() AND wait_event = 'ClientRead' AND state <> 'idle'
  AND state_change < clock_timestamp() - make_interval(secs => $1::double precision)
  AND EXISTS (SELECT FROM pg_locks AS held WHERE held.pid = one.pid AND locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = '$schema.changes'::regclass);

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

-- name: behind_others
-- Whether the feed has numbers that this server is yet to give: the database was restored from another one's.
SELECT EXISTS (
  SELECT FROM $schema.changes, $schema.format
  WHERE xid >= (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ahead)::text::xid8
);

-- name: hold_changes
LOCK TABLE $schema.changes IN EXCLUSIVE MODE;

-- name: go_ahead
-- From now on this server's numbers are counted from there on, so that what is new comes behind what was restored.
UPDATE $schema.format SET ahead = last.xid::text::bigint FROM (
    SELECT xid FROM $schema.changes ORDER BY xid DESC LIMIT 1
  ) AS last
WHERE last.xid >= (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ahead)::text::xid8;

-- name: notify
SELECT pg_notify($1, $2);
