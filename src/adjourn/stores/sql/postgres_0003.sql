-- Format 3: what is added to this server's transaction numbers in the feed, so that the feed of a database that was restored on a
-- server which counts from below goes on behind what it has.

ALTER TABLE $schema.format ADD COLUMN ahead bigint NOT NULL DEFAULT 0;
