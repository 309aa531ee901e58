-- Every statement the SQLite store runs on its rows, by name. In page queries ?1 and ?2 are the last (created, id) seen.

-- name: session
SELECT id, agent, owner, created, updated, lease_until, body FROM sessions WHERE id = ?1;

-- An index is rewritten where a statement merely names one of its columns, so each column that does not change is left out.

-- name: touch_session
UPDATE sessions SET updated = ?2, lease_until = ?3, body = ?4 WHERE id = ?1;

-- name: touch_session_active
UPDATE sessions SET updated = ?2, lease_until = ?3, body = ?4, active = ?5 WHERE id = ?1;

-- name: put_session
INSERT INTO sessions (id, agent, owner, created, updated, lease_until, body, active)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (id) DO UPDATE SET agent = ?2, owner = ?3, created = ?4, updated = ?5, lease_until = ?6, body = ?7, active = ?8;

-- What a page of sessions is filtered by: ?4 to ?8.

-- part: session_filters
(?4 IS NULL OR updated < ?4) AND (?5 IS NULL OR agent IN (SELECT value FROM json_each(?5)))
  AND (?6 IS NULL OR owner IN (SELECT value FROM json_each(?6)) OR (?7 AND owner IS NULL))
  AND (NOT ?8 OR id NOT GLOB 'inner:*');

-- part: by_created
sessions WHERE (created, id) > (?1, ?2) AND {session_filters};

-- name: sessions_by_created
SELECT id, agent, owner, created, updated, lease_until, body FROM {by_created}
ORDER BY created, id LIMIT ?3;

-- name: count_sessions_by_created
SELECT count(*) FROM (SELECT 1 FROM {by_created} LIMIT ?3);

-- part: by_agent
sessions WHERE agent = ?9 AND (created, id) > (?1, ?2) AND {session_filters};

-- name: sessions_by_agent
SELECT id, agent, owner, created, updated, lease_until, body FROM {by_agent}
ORDER BY created, id LIMIT ?3;

-- name: count_sessions_by_agent
SELECT count(*) FROM (SELECT 1 FROM {by_agent} LIMIT ?3);

-- part: by_owner
sessions WHERE owner = ?9 AND (created, id) > (?1, ?2) AND {session_filters};

-- name: sessions_by_owner
SELECT id, agent, owner, created, updated, lease_until, body FROM {by_owner}
ORDER BY created, id LIMIT ?3;

-- name: count_sessions_by_owner
SELECT count(*) FROM (SELECT 1 FROM {by_owner} LIMIT ?3);

-- part: due
sessions WHERE active = 1 AND lease_until <= ?9 AND (created, id) > (?1, ?2) AND {session_filters};

-- name: sessions_due
SELECT id, agent, owner, created, updated, lease_until, body FROM {due}
ORDER BY created, id LIMIT ?3;

-- name: count_sessions_due
SELECT count(*) FROM (SELECT 1 FROM {due} LIMIT ?3);

-- name: drop_session
DELETE FROM sessions WHERE id = ?1;

-- name: snapshot
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM snapshots WHERE id = ?1;

-- name: put_snapshot
INSERT INTO snapshots (id, session_id, parent_id, turn_id, created, updated, body, folded)
VALUES (?1, ?2, ?3, nullif(?4, ?1), ?5, ?6, ?7, ?8)
ON CONFLICT (id) DO UPDATE SET updated = ?6, body = ?7, folded = ?8;

-- name: snapshots
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM snapshots
WHERE n IN (
  SELECT n FROM snapshots
  WHERE session_id = ?1 AND n > coalesce((SELECT n FROM snapshots WHERE id = ?2 AND session_id = ?1), 0)
) ORDER BY n;

-- name: children
SELECT id, session_id, parent_id, coalesce(turn_id, id), created, updated, body FROM snapshots
WHERE session_id = (SELECT session_id FROM snapshots WHERE id = ?1) AND parent_id = ?1 ORDER BY n;

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
INSERT OR REPLACE INTO events (n, body, at, epoch) SELECT (n << 20) + ?2, ?3, ?4, ?5 FROM snapshots WHERE id = ?1;

-- name: batches
SELECT coalesce(e.at, s.updated), e.epoch, e.body
FROM snapshots AS s CROSS JOIN events AS e ON e.n >= (s.n << 20) + ?2 AND e.n < ((s.n + 1) << 20)
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

-- What a page of interrupts is filtered by: ?5 to ?9. The last one is looked for in the whole row, and finds too much.

-- part: interrupt_filters
(?5 IS NULL OR tool IN (SELECT value FROM json_each(?5))) AND (?6 IS NULL OR agent IN (SELECT value FROM json_each(?6)))
  AND (?7 IS NULL OR owner IN (SELECT value FROM json_each(?7)) OR (?8 AND owner IS NULL))
  AND (?9 IS NULL
    OR CAST(body AS TEXT) LIKE '%' || replace(replace(replace(?9, '~', '~~'), '%', '~%'), '_', '~_') || '%' ESCAPE '~'
    OR instr(lower(id || ' ' || tool || ' ' || agent || ' ' || coalesce(owner, '')), ?9));

-- part: of_status
interrupts WHERE status = ?4 AND (created, id) > (?1, ?2) AND {interrupt_filters};

-- name: interrupts_by_status
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_status}
ORDER BY created, id LIMIT ?3;

-- name: count_interrupts_by_status
SELECT count(*) FROM (SELECT 1 FROM {of_status} LIMIT ?3);

-- part: of_tool
interrupts WHERE tool = ?10 AND status = ?4 AND (created, id) > (?1, ?2) AND {interrupt_filters};

-- name: interrupts_by_tool
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_tool}
ORDER BY created, id LIMIT ?3;

-- name: count_interrupts_by_tool
SELECT count(*) FROM (SELECT 1 FROM {of_tool} LIMIT ?3);

-- part: of_agent
interrupts WHERE agent = ?10 AND status = ?4 AND (created, id) > (?1, ?2) AND {interrupt_filters};

-- name: interrupts_by_agent
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_agent}
ORDER BY created, id LIMIT ?3;

-- name: count_interrupts_by_agent
SELECT count(*) FROM (SELECT 1 FROM {of_agent} LIMIT ?3);

-- part: of_owner
interrupts WHERE owner = ?10 AND status = ?4 AND (created, id) > (?1, ?2) AND {interrupt_filters};

-- name: interrupts_by_owner
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_owner}
ORDER BY created, id LIMIT ?3;

-- name: count_interrupts_by_owner
SELECT count(*) FROM (SELECT 1 FROM {of_owner} LIMIT ?3);

-- In the next two the planner is kept off the indexes that narrow less: a session has few interrupts, and few are overdue.

-- part: of_session
interrupts WHERE session_id = ?10 AND (+created, id) > (?1, ?2) AND (?4 IS NULL OR +status = ?4)
  AND (?11 IS NULL OR (+status = 'open' AND +expires_at <= ?11)) AND {interrupt_filters};

-- name: interrupts_by_session
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {of_session}
ORDER BY +created, id LIMIT ?3;

-- name: count_interrupts_by_session
SELECT count(*) FROM (SELECT 1 FROM {of_session} LIMIT ?3);

-- part: overdue
interrupts INDEXED BY interrupts_expires WHERE status = 'open' AND expires_at IS NOT NULL AND expires_at <= ?10
  AND (+created, id) > (?1, ?2) AND (?4 IS NULL OR ?4 = 'open') AND {interrupt_filters};

-- name: interrupts_overdue
SELECT id, session_id, status, agent, tool, owner, created, expires_at, body FROM {overdue}
ORDER BY +created, id LIMIT ?3;

-- name: count_interrupts_overdue
SELECT count(*) FROM (SELECT 1 FROM {overdue} LIMIT ?3);

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

-- name: add_change
INSERT INTO changes (kind, interrupt_id, session_id, at, decision_id) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: changes
-- With the one at the position itself, so that it can be told by its seal.
SELECT n, kind, interrupt_id, session_id, at, decision_id FROM changes WHERE n >= ?1 ORDER BY n LIMIT ?2;

-- name: position
SELECT n, kind, interrupt_id, session_id, at, decision_id FROM changes ORDER BY n DESC LIMIT 1;

-- name: drop_changes
DELETE FROM changes
WHERE n IN (SELECT n FROM changes ORDER BY n LIMIT ?2) AND at < ?1 AND n < (SELECT n FROM changes ORDER BY n DESC LIMIT 1);

-- name: dropped
SELECT changes();

-- name: mark
SELECT value FROM marks WHERE name = ?1;

-- name: put_mark
INSERT INTO marks (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2;

-- name: drop_mark
DELETE FROM marks WHERE name = ?1;
