-- Every statement the SQLite store runs on its rows, by name. In page queries ?1 and ?2 are the last (created, id) seen.

-- name: session
SELECT id, agent, owner, created, updated, lease_until, body FROM sessions WHERE id = ?1;

-- An index is rewritten where a statement merely names one of its columns, so each column that does not change is left out.

-- name: touch_session
UPDATE sessions SET updated = ?2, lease_until = ?3, body = ?4 WHERE id = ?1;

-- name: put_session
INSERT INTO sessions (id, agent, owner, created, updated, lease_until, body, active)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (id) DO UPDATE SET agent = ?2, owner = ?3, created = ?4, updated = ?5, lease_until = ?6, body = ?7, active = ?8;

-- name: sessions_by_created
SELECT id, agent, owner, created, updated, lease_until, body FROM sessions
WHERE (created, id) > (?1, ?2) AND (?4 IS NULL OR updated < ?4)
ORDER BY created, id LIMIT ?3;

-- name: sessions_by_agent
SELECT id, agent, owner, created, updated, lease_until, body FROM sessions
WHERE agent = ?5 AND (created, id) > (?1, ?2) AND (?6 IS NULL OR owner = ?6) AND (?4 IS NULL OR updated < ?4)
ORDER BY created, id LIMIT ?3;

-- name: sessions_by_owner
SELECT id, agent, owner, created, updated, lease_until, body FROM sessions
WHERE owner = ?5 AND (created, id) > (?1, ?2) AND (?4 IS NULL OR updated < ?4)
ORDER BY created, id LIMIT ?3;

-- name: sessions_due
SELECT id, agent, owner, created, updated, lease_until, body FROM sessions
WHERE active = 1 AND lease_until <= ?7 AND (created, id) > (?1, ?2)
  AND (?5 IS NULL OR agent = ?5) AND (?6 IS NULL OR owner = ?6) AND (?4 IS NULL OR updated < ?4)
ORDER BY created, id LIMIT ?3;

-- name: drop_session
DELETE FROM sessions WHERE id = ?1;

-- name: snapshot
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM snapshots WHERE id = ?1;

-- name: put_snapshot
INSERT INTO snapshots (id, session_id, parent_id, turn_id, created, updated, body, folded)
VALUES (?1, ?2, ?3, nullif(?4, ?1), ?5, ?6, ?7, ?8)
ON CONFLICT (id) DO UPDATE SET
  parent_id = ?3, turn_id = nullif(?4, ?1), created = ?5, updated = ?6, body = ?7, folded = ?8;

-- name: snapshots
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM snapshots WHERE session_id = ?1 ORDER BY n;

-- name: snapshot_numbers
SELECT n FROM snapshots WHERE session_id = ?1;

-- name: chain
-- From the named one up to its root; the bodies are fetched outside the recursion, which would copy them.
WITH RECURSIVE up (n, parent_id, folded) AS (
  SELECT n, parent_id, folded FROM snapshots WHERE id = ?1
  UNION ALL
  SELECT s.n, s.parent_id, s.folded FROM up CROSS JOIN snapshots AS s ON s.id = up.parent_id WHERE up.folded = 0
)
SELECT s.id, s.session_id, s.parent_id, coalesce(s.turn_id, s.id), s.created, s.updated, s.body
FROM up CROSS JOIN snapshots AS s ON s.n = up.n;

-- name: drop_snapshots
DELETE FROM snapshots WHERE session_id = ?1;

-- name: add_events
INSERT OR REPLACE INTO events (n, body) SELECT (n << 20) + ?2, ?3 FROM snapshots WHERE id = ?1;

-- name: events
SELECT e.body FROM snapshots AS s CROSS JOIN events AS e ON e.n >= (s.n << 20) AND e.n < ((s.n + 1) << 20)
WHERE s.id = ?1 ORDER BY e.n;

-- name: drop_snapshot_events
DELETE FROM events WHERE n >= (?1 << 20) AND n < ((?1 + 1) << 20);

-- name: interrupt
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM interrupts WHERE id = ?1;

-- name: put_interrupt
INSERT INTO interrupts (id, session_id, status, agent, tool, owner, created, expires_at, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (id) DO UPDATE SET
  status = ?3, agent = ?4, tool = ?5, owner = ?6, created = ?7, expires_at = ?8, body = ?9;

-- name: interrupts_by_status
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM interrupts
WHERE status = ?4 AND (created, id) > (?1, ?2)
ORDER BY created, id LIMIT ?3;

-- name: interrupts_by_tool
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM interrupts
WHERE tool = ?5 AND status = ?4 AND (created, id) > (?1, ?2)
  AND (?6 IS NULL OR agent = ?6) AND (?7 IS NULL OR owner = ?7)
ORDER BY created, id LIMIT ?3;

-- name: interrupts_by_agent
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM interrupts
WHERE agent = ?6 AND status = ?4 AND (created, id) > (?1, ?2)
  AND (?5 IS NULL OR tool = ?5) AND (?7 IS NULL OR owner = ?7)
ORDER BY created, id LIMIT ?3;

-- name: interrupts_by_owner
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM interrupts
WHERE owner = ?7 AND status = ?4 AND (created, id) > (?1, ?2)
  AND (?5 IS NULL OR tool = ?5) AND (?6 IS NULL OR agent = ?6)
ORDER BY created, id LIMIT ?3;

-- In the next two the planner is kept off the indexes that narrow less: a session has few interrupts, and few are overdue.

-- name: interrupts_by_session
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM interrupts
WHERE session_id = ?9 AND (+created, id) > (?1, ?2) AND (?4 IS NULL OR +status = ?4)
  AND (?5 IS NULL OR +tool = ?5) AND (?6 IS NULL OR +agent = ?6) AND (?7 IS NULL OR +owner = ?7)
  AND (?8 IS NULL OR (+status = 'open' AND +expires_at <= ?8))
ORDER BY +created, id LIMIT ?3;

-- name: interrupts_overdue
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM interrupts INDEXED BY interrupts_expires
WHERE status = 'open' AND expires_at IS NOT NULL AND expires_at <= ?8 AND (+created, id) > (?1, ?2)
  AND (?4 IS NULL OR ?4 = 'open')
  AND (?5 IS NULL OR +tool = ?5) AND (?6 IS NULL OR +agent = ?6) AND (?7 IS NULL OR +owner = ?7)
ORDER BY +created, id LIMIT ?3;

-- name: drop_interrupts
DELETE FROM interrupts WHERE session_id = ?1;

-- name: put_decision
INSERT INTO decisions (id, interrupt_id, session_id, body, applied) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (interrupt_id, id) DO UPDATE SET body = ?4, applied = ?5;

-- name: decisions_by_interrupt
SELECT id, interrupt_id, session_id, body FROM decisions
WHERE interrupt_id = ?1 ORDER BY n;

-- name: decisions_by_session
SELECT id, interrupt_id, session_id, body FROM decisions WHERE session_id = ?1 ORDER BY n;

-- name: decisions_unapplied_by_session
SELECT id, interrupt_id, session_id, body FROM decisions WHERE applied = 0 AND session_id = ?1 ORDER BY n;

-- name: decisions_unapplied
SELECT id, interrupt_id, session_id, body FROM decisions WHERE applied = 0 ORDER BY n;

-- name: decisions
SELECT id, interrupt_id, session_id, body FROM decisions ORDER BY n;
