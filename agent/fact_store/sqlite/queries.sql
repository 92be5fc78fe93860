-- Every statement of the store, by name. A line "-- name: text" starts one; queries.py reads this file. typed_rows.py
-- explains the types in names of columns.

-- begin: the writer's transaction, with the write lock taken at once
BEGIN IMMEDIATE;

-- commit: durable when it returns
COMMIT;

-- rollback: undo everything since BEGIN
ROLLBACK;

-- begin_read: several statements that see one state
BEGIN;

-- data_version: a number that changes when another connection commits
PRAGMA data_version;

-- migrations_table: whether any migration ever ran
SELECT count(*) FROM sqlite_schema WHERE name = '_sqlite_migrations';

-- migrations_applied: names of the migrations that ran
SELECT name FROM _sqlite_migrations WHERE migration_set = 'bsfg' ORDER BY id;

-- tables: how many objects the schema has, whichever program made them
SELECT count(*) FROM sqlite_schema;

-- insert_store: the zone and the node of a new store
INSERT INTO store (id, zone, node, format, created_unix_ms) VALUES (1, ?, ?, ?, ?);

-- select_store: the store's zone and format
SELECT zone, format FROM store;

-- select_node: the store's node, which earlier formats do not have
SELECT node FROM store;

-- select_openings: whether the store was left open, and how often it was opened
SELECT is_open, openings FROM store;

-- update_openings: the store is opened
UPDATE store SET is_open = 1, openings = ?;

-- update_is_closed: the store is closed in order
UPDATE store SET is_open = 0;

-- insert_zone: number a new zone
INSERT INTO zone (name) VALUES (?) RETURNING id;

-- select_zone: the number of a zone
SELECT id FROM zone WHERE name = ?;

-- insert_origin: number a new origin
INSERT INTO origin (zone, life) VALUES (?, ?) RETURNING id;

-- select_origins: every origin with its number
SELECT id, zone, life FROM named_origin ORDER BY id;

-- update_lives: a zone has one more origin; returns how many
UPDATE zone SET lives = lives + 1 WHERE id = ? RETURNING lives;

-- select_lives: how many lives of a zone are known
SELECT lives FROM zone WHERE id = ?;

-- select_forgettable: the lowest lives of a zone without a fact here that are the newest in no stream
SELECT id, life FROM origin
WHERE zone = :zone AND id IN (SELECT id FROM origin WHERE zone = :zone ORDER BY life LIMIT :limit)
    AND NOT EXISTS (SELECT 1 FROM stream CROSS JOIN batch ON batch.stream = stream.id AND batch.origin = origin.id)
    AND NOT EXISTS (
        SELECT 1 FROM stream CROSS JOIN held_before AS before ON before.stream = stream.id AND before.zone = origin.zone
        WHERE before.newest = origin.id
    )
ORDER BY life LIMIT :forgotten;

-- select_streams_of_origin: the streams in which an origin has held ranges
SELECT stream.id FROM stream WHERE EXISTS (SELECT 1 FROM held WHERE held.stream = stream.id AND held.origin = ?);

-- delete_origin: an origin that is forgotten
DELETE FROM origin WHERE id = ?;

-- update_forgotten: lives of a zone are forgotten, up to this one
UPDATE zone SET forgotten = max(forgotten, :life), lives = lives - 1 WHERE id = :zone;

-- select_forgotten: the highest life of a zone that was forgotten
SELECT forgotten FROM zone WHERE name = ?;

-- select_origin: the number of an origin
SELECT origin.id FROM zone JOIN origin ON origin.zone = zone.id WHERE zone.name = ? AND origin.life = ?;

-- select_origin_by_number: the origin with a number
SELECT zone, life FROM named_origin WHERE id = ?;

-- select_origin_place: the zone's number and the life of an origin, and what is held of the zone's origins but the
-- newest, which is 0 if nothing is
SELECT
    origin.zone AS id,
    origin.life,
    iif(before.stream IS NULL, 0, before.newest) AS newest,
    iif(before.stream IS NULL, x'', newest.life) AS life,
    iif(before.stream IS NULL, 0, before.ranges) AS ranges,
    iif(before.stream IS NULL, 0, before.facts) AS facts,
    iif(before.stream IS NULL, x'', before.digest_sum) AS digest_sum,
    iif(before.stream IS NULL, 0, before.highest_start) AS highest_start
FROM origin
LEFT JOIN held_before AS before ON before.stream = :stream AND before.zone = origin.zone
LEFT JOIN origin AS newest ON newest.id = before.newest
WHERE origin.id = :origin;


-- select_origin_life: the life of an origin
SELECT life FROM origin WHERE id = ?;

-- select_origins_of_zone: the origins of a zone with their numbers, in the order in which they were recorded
SELECT origin.id, origin.life FROM zone JOIN origin ON origin.zone = zone.id WHERE zone.name = ? ORDER BY origin.id;

-- select_is_proven: whether a record of an origin was ever verified
SELECT is_proven FROM origin WHERE id = ?;

-- select_zones: the zones of which facts are held, and whether a record of each was ever verified
SELECT name, is_proven FROM zone;

-- update_proven: a record of an origin is verified for the first time
UPDATE origin SET is_proven = 1 WHERE id = ?;

-- update_proven_zone: a record of a zone is verified for the first time
UPDATE zone SET is_proven = 1 WHERE id = (SELECT zone FROM origin WHERE id = ?);

-- insert_signer: a certificate of a key that signs facts, or note that it came again; a trusted one stays trusted
INSERT INTO signer (key_id, certificate, peer, seen_unix_ms) VALUES (:key_id, :certificate, :peer, :now)
ON CONFLICT (key_id, certificate) DO UPDATE SET peer = excluded.peer, seen_unix_ms = excluded.seen_unix_ms
WHERE peer != '' AND excluded.peer IN (peer, '');

-- delete_signers: all but the newest certificates of a key from a peer
DELETE FROM signer WHERE key_id = :key_id AND peer = :peer AND certificate NOT IN (
    SELECT certificate FROM signer WHERE key_id = :key_id AND peer = :peer
    ORDER BY seen_unix_ms DESC, certificate LIMIT :limit
);

-- delete_signer_keys: all but the newest keys of a zone from a peer
DELETE FROM signer WHERE peer = :peer AND key_id NOT IN (
    SELECT key_id FROM signer WHERE peer = :peer GROUP BY key_id ORDER BY max(seen_unix_ms) DESC, key_id LIMIT :limit
);

-- select_signers: the certificates of a key: trusted ones, then the newest of each peer, then the second of each
SELECT certificate FROM (
    SELECT certificate, peer, row_number() OVER (PARTITION BY peer ORDER BY seen_unix_ms DESC, certificate) AS place
    FROM signer WHERE key_id = :key_id
) ORDER BY peer != '', place, certificate LIMIT :limit;

-- select_proof: the first verified record of an origin at or after a sequence, if all between is held: the last sequence
-- that it covers, the first that is held with it, its bytes, and when it was verified
SELECT
    batch.first_sequence + batch.count - 1 AS last_sequence, held.first_sequence,
    substr(CAST(batch.body AS BLOB), -82) AS body, batch.verified_unix_ms
FROM held JOIN batch ON batch.stream = held.stream AND batch.origin = held.origin
    AND batch.first_sequence BETWEEN held.first_sequence AND held.last_sequence
WHERE held.stream = :stream AND held.origin = :origin
    AND :sequence BETWEEN held.first_sequence AND held.last_sequence
    AND batch.verified_unix_ms IS NOT NULL
    AND batch.first_sequence + batch.count > :sequence
    AND batch.first_sequence >= coalesce(
        (
            SELECT max(first_sequence) FROM batch
            WHERE stream = :stream AND origin = :origin AND first_sequence <= :sequence
        ),
        0
    )
ORDER BY batch.first_sequence LIMIT 1;

-- select_following: the life that goes on where what is held of an origin around a sequence ends
SELECT next.origin, next.first_sequence
FROM held AS here JOIN origin ON origin.id = here.origin
JOIN origin AS later ON later.zone = origin.zone
JOIN held AS next ON next.stream = here.stream AND next.origin = later.id
    AND next.first_sequence = here.last_sequence + 1 AND next.first_previous_digest = here.last_digest
WHERE here.stream = :stream AND here.origin = :origin
    AND :sequence BETWEEN here.first_sequence AND here.last_sequence LIMIT 1;

-- select_is_zone_proven: whether a record of an origin's zone was ever verified
SELECT zone.is_proven FROM origin JOIN zone ON zone.id = origin.zone WHERE origin.id = ?;

-- select_compromised: keys whose signatures prove nothing from a time on
SELECT key_id, since_unix_ms FROM compromised;

-- delete_compromised: before the operator's present list is stored
DELETE FROM compromised;

-- insert_compromised: a compromised key
INSERT INTO compromised (key_id, since_unix_ms) VALUES (?, ?);

-- insert_stream: number a new stream
INSERT INTO stream (name) VALUES (?) RETURNING id;

-- select_streams: every stream with its first and last offset
SELECT
    stream.id,
    stream.name,
    stream.released_offset,
    stream.released_bytes,
    coalesce(last.last_offset, stream.released_offset) AS last_offset,
    coalesce(last.bytes_total, stream.released_bytes) AS bytes_total,
    mark.age_ms AS "age_ms INTEGER",
    mark.unix_ms AS "unix_ms INTEGER",
    mark.is_backlog AS "is_backlog INTEGER"
FROM stream
LEFT JOIN mark ON mark.stream = stream.id AND mark.first_offset = (
    SELECT max(first_offset) FROM mark WHERE mark.stream = stream.id
)
LEFT JOIN batch AS last ON last.id = (
    SELECT id FROM batch WHERE batch.stream = stream.id ORDER BY first_offset DESC LIMIT 1
)
ORDER BY stream.id;

-- select_stream_rows: every stream, from its own table only
SELECT id, name, released_offset, released_bytes FROM stream ORDER BY id;

-- select_last_row: the end of a stream, by the order of rows, without an index
SELECT last_offset FROM batch NOT INDEXED WHERE stream = ? ORDER BY id DESC LIMIT 1;

-- select_row_summaries: batches of all streams without their bodies, in the order of rows, without an index
SELECT
    id, stream, first_offset, last_offset, origin, first_sequence, time_min_ns, time_max_ns, kind, definition,
    length(body) AS bytes
FROM batch NOT INDEXED WHERE id > ? ORDER BY id LIMIT ?;

-- select_row: one batch by its row
SELECT first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB)
FROM batch NOT INDEXED WHERE id = ?;

-- insert_batch: one sealed batch
INSERT INTO batch (
    stream, first_offset, last_offset, origin, first_sequence, count, time_min_ns, time_max_ns, kind, codec,
    definition, bytes_total, digest, previous_digest, verified_unix_ms, writer, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- upsert_zone_use: the bytes of a zone in a stream
INSERT INTO zone_use (stream, zone, bytes) VALUES (?, ?, ?)
ON CONFLICT (stream, zone) DO UPDATE SET bytes = excluded.bytes;

-- select_zone_uses: the bytes of each zone in each stream
SELECT stream, zone, bytes FROM zone_use;

-- select_batch_at_sequence: the last batch of an origin that starts at or before a sequence
SELECT first_sequence, count, CAST(digest AS BLOB), CAST(previous_digest AS BLOB) FROM batch
WHERE stream = ? AND origin = ? AND first_sequence <= ?
ORDER BY first_sequence DESC LIMIT 1;

-- select_page: batches from the one that holds an offset, up to the last that starts at or before another
SELECT first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB) FROM batch
WHERE stream = :stream
    AND first_offset >= coalesce(
        (SELECT max(first_offset) FROM batch WHERE stream = :stream AND first_offset <= :offset), 0
    )
    AND first_offset <= :until_offset
    AND last_offset >= :offset
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_offset;

-- select_page_offsets: first offsets of batches, from the index alone: for a page whose rows cannot be read in sequence
SELECT first_offset FROM batch
WHERE stream = :stream
    AND first_offset >= coalesce(
        (SELECT max(first_offset) FROM batch WHERE stream = :stream AND first_offset <= :offset), 0
    )
    AND first_offset <= :until_offset
ORDER BY first_offset LIMIT :limit;

-- select_page_row: one batch by its first offset
SELECT first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB) FROM batch
WHERE stream = ? AND first_offset = ?;

-- select_page_columns: the origins of batches between two offsets, from the columns
SELECT origin.zone, CAST(origin.life AS BLOB), batch.first_sequence, batch.count
FROM batch JOIN named_origin AS origin ON origin.id = batch.origin
WHERE batch.stream = :stream AND batch.first_offset >= :offset AND batch.first_offset <= :until_offset
ORDER BY batch.first_offset LIMIT :limit;

-- select_sequences: batches of an origin from the one that holds a sequence, up to the last that starts at or before
-- another
SELECT
    first_sequence, first_sequence + count - 1, CAST(body AS BLOB), CAST(digest AS BLOB), first_offset
FROM batch
WHERE stream = :stream
    AND origin = :origin
    AND first_sequence >= coalesce(
        (
            SELECT max(first_sequence) FROM batch
            WHERE stream = :stream AND origin = :origin AND first_sequence <= :first_sequence
        ),
        0
    )
    AND first_sequence <= :last_sequence
    AND first_sequence + count > :first_sequence
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_sequence;

-- select_held_in: the ranges of each origin that are held in a stream, or were before retention
SELECT origin.zone, origin.life, first_sequence, last_sequence, first_previous_digest, last_digest
FROM held JOIN named_origin AS origin ON origin.id = held.origin WHERE stream = ? ORDER BY held.origin, first_sequence;

-- select_newest_held: the ranges of the newest origin of each zone in a stream
SELECT origin.zone, origin.life, first_sequence, last_sequence, first_previous_digest, last_digest
FROM held_before AS before JOIN held ON held.stream = before.stream AND held.origin = before.newest
JOIN named_origin AS origin ON origin.id = before.newest
WHERE before.stream = ? ORDER BY before.zone, first_sequence;

-- select_zones_held: the newest origin of zones in a stream, and what is held of their others, by name after one
SELECT zone.name, origin.life, before.newest, before.ranges, before.digest_sum, before.facts
FROM zone CROSS JOIN held_before AS before ON before.stream = :stream AND before.zone = zone.id
CROSS JOIN origin ON origin.id = before.newest
WHERE zone.name > :after ORDER BY zone.name LIMIT :limit;  -- in this order: nothing is sorted

-- select_zone_held: the same of one zone
SELECT zone.name, origin.life, before.newest, before.ranges, before.digest_sum, before.facts
FROM zone CROSS JOIN held_before AS before ON before.stream = :stream AND before.zone = zone.id
CROSS JOIN origin ON origin.id = before.newest
WHERE zone.name = :zone;

-- select_earlier_lives: the ranges of the lives of a zone below one and down to another, newest life first
SELECT origin.life, first_sequence, last_sequence, first_previous_digest, last_digest
FROM zone CROSS JOIN origin ON origin.zone = zone.id
CROSS JOIN held ON held.stream = :stream AND held.origin = origin.id
WHERE zone.name = :zone AND origin.life < :below AND origin.life >= :down_to
ORDER BY origin.life DESC, first_sequence;

-- select_lowest_sequence: the lowest sequence of a zone that is held in a stream, or was
SELECT min(first_sequence) AS "first_sequence INTEGER" FROM zone CROSS JOIN origin ON origin.zone = zone.id
CROSS JOIN held ON held.stream = :stream AND held.origin = origin.id WHERE zone.name = :zone;

-- insert_compared: sums of which nothing was to be fetched
INSERT OR REPLACE INTO compared (peer, stream, zone, floor, our_ranges, our_sum, their_ranges, their_sum)
SELECT ?, ?, id, ?, ?, ?, ?, ? FROM zone WHERE name = ?;

-- select_compared: the sums of a zone that were compared with a peer's
SELECT floor, our_ranges, our_sum, their_ranges, their_sum
FROM compared JOIN zone ON zone.id = compared.zone WHERE peer = ? AND stream = ? AND zone.name = ?;

-- select_held_of: the ranges of one origin that are held in a stream, or were before retention
SELECT first_sequence, last_sequence, first_previous_digest, last_digest FROM held
WHERE stream = ? AND origin = ? ORDER BY first_sequence;

-- select_range_starts: where the ranges of a zone in a stream begin: sequence, digest of the batch before, and life
SELECT held.first_sequence, held.first_previous_digest, origin.life
FROM zone CROSS JOIN origin ON origin.zone = zone.id CROSS JOIN held ON held.stream = ? AND held.origin = origin.id
WHERE zone.name = ?;

-- select_lowest_offset_above: where facts of the lives of a zone above one begin in a stream, by the first batch of each
SELECT min((
    SELECT first_offset FROM batch WHERE batch.stream = :stream AND batch.origin = origin.id
    ORDER BY first_sequence LIMIT 1
)) AS "first_offset INTEGER"
FROM zone JOIN origin ON origin.zone = zone.id WHERE zone.name = :zone AND origin.life > :life;

-- select_zone_is_held: whether facts of a zone are held in a stream, or were
SELECT 1 FROM held_before AS before JOIN zone ON zone.id = before.zone WHERE before.stream = ? AND zone.name = ?;

-- select_end_at_sequence: the batch of an origin that may hold a sequence, and its end, unless retention has released
-- it
SELECT first_sequence + count - 1, CAST(digest AS BLOB) FROM batch
WHERE stream = :stream
    AND origin = :origin
    AND first_sequence <= :sequence
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_sequence DESC LIMIT 1;

-- select_place: offsets, count and digest of the batch that begins at a sequence
SELECT first_offset, last_offset, count, CAST(digest AS BLOB) FROM batch
WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_batch: the batch that begins at a sequence
SELECT CAST(body AS BLOB), CAST(digest AS BLOB) FROM batch WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_successor: the previous digest in the batch that begins at a sequence
SELECT CAST(previous_digest AS BLOB) FROM batch WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_repaired_offsets: first offsets of repaired batches between two offsets
SELECT DISTINCT first_offset FROM repaired
WHERE stream = :stream AND first_offset <= :until_offset AND last_offset >= :offset
ORDER BY first_offset;

-- select_repaired: the repaired copies at an offset
SELECT first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB) FROM repaired
WHERE stream = ? AND first_offset = ? ORDER BY id;

-- insert_repaired: an undamaged copy of a damaged batch
INSERT INTO repaired (stream, first_offset, last_offset, digest, body) VALUES (?, ?, ?, ?, ?);

-- delete_repaired: copies that retention has released
DELETE FROM repaired WHERE stream = ? AND last_offset <= ?;

-- insert_damage: a damaged batch
INSERT INTO damage (stream, origin, first_sequence, last_sequence) VALUES (?, ?, ?, ?)
ON CONFLICT (stream, origin, first_sequence) DO NOTHING;

-- delete_damage: a batch is repaired or released
DELETE FROM damage WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_damage: the damaged batches of a stream
SELECT origin.zone, origin.life, damage.first_sequence, damage.last_sequence
FROM damage JOIN named_origin AS origin ON origin.id = damage.origin
WHERE damage.stream = ?
ORDER BY origin.id, damage.first_sequence;

-- integrity_check: SQLite's own check of pages and indexes
PRAGMA integrity_check;

-- select_verify_page: batches after one offset up to another, with all columns
SELECT
    first_offset, last_offset, origin, first_sequence, count, time_min_ns, time_max_ns, kind, codec, definition,
    bytes_total, CAST(digest AS BLOB), CAST(previous_digest AS BLOB), CAST(body AS BLOB)
FROM batch WHERE stream = ? AND first_offset > ? AND first_offset <= ? ORDER BY first_offset LIMIT ?;

-- select_verify_offsets: first offsets of these batches, from the index alone
SELECT first_offset FROM batch WHERE stream = ? AND first_offset > ? AND first_offset <= ?
ORDER BY first_offset LIMIT ?;

-- select_last_batch: the last batch of a stream, 0 and 0 if there is none
SELECT coalesce(last.last_offset, 0) AS last_offset, coalesce(last.first_offset, 0) AS first_offset
FROM stream LEFT JOIN batch AS last ON last.id = (
    SELECT batch.id FROM batch WHERE batch.stream = stream.id ORDER BY batch.first_offset DESC LIMIT 1
) WHERE stream.id = ?;

-- select_last_identity: the origin of the last batch of a stream, its last sequence and its digest
SELECT origin, first_sequence + count - 1, CAST(digest AS BLOB) FROM batch
WHERE stream = ? ORDER BY first_offset DESC LIMIT 1;

-- select_batch_streams: how many batches belong to no stream
SELECT count(*) FROM batch WHERE NOT EXISTS (SELECT 1 FROM stream WHERE stream.id = batch.stream);

-- select_released: up to which offset retention has released a stream, and the bytes of it
SELECT released_offset, released_bytes FROM stream WHERE id = ?;

-- select_held_count: how many facts of a stream were ever stored here, which is its end
SELECT
    coalesce(sum(facts), 0)
    + coalesce(
        (
            SELECT sum(last_sequence - first_sequence + 1) FROM held_before AS before
            JOIN held ON held.stream = before.stream AND held.origin = before.newest
            WHERE before.stream = :stream
        ),
        0
    ) AS facts
FROM held_before WHERE stream = :stream;

-- insert_held_before: the same, changed
INSERT OR REPLACE INTO held_before (stream, zone, newest, ranges, facts, digest_sum, highest_start)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- select_newest_life: the newest life of a zone in a stream, and where the highest range of all others begins
SELECT origin.id, origin.life, before.highest_start
FROM zone JOIN held_before AS before ON before.stream = :stream AND before.zone = zone.id
JOIN origin ON origin.id = before.newest WHERE zone.name = :zone;

-- select_range_count: how many separate ranges of a zone are held, in all streams
SELECT coalesce(sum(before.ranges + (
    SELECT count(*) FROM held WHERE held.stream = before.stream AND held.origin = before.newest
)), 0) AS ranges
FROM zone CROSS JOIN stream CROSS JOIN held_before AS before  -- in this order: all other zones are never read
WHERE zone.name = :zone AND before.stream = stream.id AND before.zone = zone.id;

-- select_counts: how many facts of each origin lie between two offsets, both included, by the rows of batches; nothing if
-- the stream has damage
SELECT origin, sum(min(last_offset, :until_offset) - max(first_offset, :offset) + 1) AS count
FROM batch
WHERE stream = :stream
    AND first_offset >= coalesce(
        (SELECT max(first_offset) FROM batch WHERE stream = :stream AND first_offset <= :offset), 0
    )
    AND first_offset <= :until_offset
    AND last_offset >= :offset
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
    AND NOT EXISTS (SELECT 1 FROM damage WHERE stream = :stream)
GROUP BY origin;

-- select_summaries: batches without their bodies, from the one that holds an offset up to another, oldest first
SELECT
    first_offset, last_offset, origin, first_sequence, time_min_ns, time_max_ns, kind, definition, length(body) AS bytes
FROM batch
WHERE stream = :stream
    AND first_offset >= coalesce(
        (SELECT max(first_offset) FROM batch WHERE stream = :stream AND first_offset <= :offset), 0
    )
    AND first_offset <= :until_offset
    AND last_offset >= :offset
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_offset
LIMIT :limit;

-- select_summaries_back: the same from the end, newest first
SELECT
    first_offset, last_offset, origin, first_sequence, time_min_ns, time_max_ns, kind, definition, length(body) AS bytes
FROM batch
WHERE stream = :stream
    AND first_offset <= :until_offset
    AND last_offset >= :offset
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_offset DESC
LIMIT :limit;

-- select_start_at: first offset of the last mark that is not later than a time and has no later mark before it; after a
-- clock was set back it is earlier, never later than asked
SELECT max(first_offset) AS "first_offset INTEGER" FROM mark
WHERE stream = :stream
    AND unix_ms <= :unix_ms
    AND first_offset <= coalesce(
        (SELECT min(first_offset) FROM mark WHERE stream = :stream AND unix_ms >= :unix_ms), 9223372036854775807
    );

-- insert_mark: a time mark of a stream
INSERT INTO mark (stream, first_offset, bytes_total, age_ms, unix_ms, is_backlog) VALUES (?, ?, ?, ?, ?, ?);

-- select_marks: the oldest marks of a stream
SELECT first_offset, age_ms FROM mark WHERE stream = ? ORDER BY first_offset LIMIT ?;

-- select_clock_marks: what the wall clock showed at the marks of a stream
SELECT first_offset, unix_ms FROM mark WHERE stream = ? ORDER BY first_offset;

-- delete_marks: marks older than every fact that is left
DELETE FROM mark WHERE stream = :stream AND first_offset < (
    SELECT max(first_offset) FROM mark WHERE stream = :stream AND first_offset <= :released_offset + 1
);

-- select_boundary: end of the last batch that ends at or before an offset, and the stream's bytes up to there
SELECT last_offset, bytes_total FROM (
    SELECT last_offset, bytes_total FROM batch WHERE stream = :stream AND first_offset <= :offset
    ORDER BY first_offset DESC LIMIT 2
) WHERE last_offset <= :offset ORDER BY last_offset DESC LIMIT 1;

-- select_offset_at_bytes: the end of the first batch, after an offset, that reaches so many bytes
SELECT last_offset FROM batch WHERE stream = ? AND first_offset > ? AND bytes_total >= ? ORDER BY first_offset LIMIT 1;

-- select_origins_between: origins and sequences of the facts after one offset and up to another
SELECT
    origin.zone, origin.life, min(first_sequence) AS first_sequence, max(first_sequence + count - 1) AS last_sequence
FROM batch JOIN named_origin AS origin ON origin.id = batch.origin
WHERE stream = ? AND first_offset > ? AND first_offset <= ?
GROUP BY origin.id ORDER BY origin.id;

-- update_released: facts up to this offset may be deleted
UPDATE stream SET released_offset = ?, released_bytes = ? WHERE id = ?;

-- select_released_rows: some batches that may be deleted, the oldest first, with their writer and size
SELECT batch.id, bytes_total, coalesce(writer, zone) AS zone, length(body) + length(digest) AS bytes
FROM batch JOIN named_origin AS origin ON origin.id = batch.origin
WHERE stream = ? AND first_offset <= ? ORDER BY first_offset LIMIT ?;

-- delete_batch: one batch that retention has released
DELETE FROM batch WHERE id = ?;

-- select_deleted_bytes: sealed bytes of a stream before the first batch that is left
SELECT bytes_total - length(body) - length(digest) AS bytes_total FROM batch WHERE stream = ? ORDER BY first_offset LIMIT 1;

-- page_count: pages of the file
PRAGMA page_count;

-- freelist_count: unused pages of the file
PRAGMA freelist_count;

-- vacuum_page: give one unused page back to the file system
PRAGMA incremental_vacuum(1);

-- checkpoint: copy the write-ahead log into the file, as far as no reader needs it; the file shrinks here
PRAGMA wal_checkpoint(PASSIVE);

-- page_size: bytes of a page
PRAGMA page_size;

-- select_end_offset: last offset of a stream
SELECT coalesce(
    (SELECT last_offset FROM batch WHERE batch.stream = stream.id ORDER BY first_offset DESC LIMIT 1), released_offset
) AS last_offset FROM stream WHERE id = ?;

-- insert_definition: one tag definition
INSERT INTO definition (id, zone, digest, previous, number, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (zone, digest) DO NOTHING;

-- select_last_definition: the highest id of a definition
SELECT coalesce(max(id), 0) AS id FROM definition;

-- insert_repaired_definition: an undamaged copy of a damaged tag definition
INSERT OR REPLACE INTO repaired_definition (id, digest, previous, number, body) VALUES (?, ?, ?, ?, ?);

-- select_definition_id: the id of a zone's definition, from the index
SELECT id FROM definition WHERE zone = ? AND digest = ?;

-- select_definition: a definition by its id
SELECT zone, digest, previous, number, body FROM read_definition WHERE id = ?;

-- select_definition_chain: a definition of a zone and all before it, newest first
WITH RECURSIVE chain (previous, number, digest, body) AS (
    SELECT previous, number, digest, body FROM read_definition
    WHERE id = (SELECT id FROM definition WHERE zone = :zone AND digest = :digest)
    UNION ALL
    SELECT read.previous, read.number, read.digest, read.body
    FROM chain CROSS JOIN read_definition AS read ON read.id = chain.previous
    WHERE read.number < chain.number  -- also in damaged rows: it must end
)
SELECT number, digest, body FROM chain;

-- select_newest_definitions: the definitions of a zone that were stored last, newest first
SELECT number, digest FROM definition WHERE zone = ? ORDER BY id DESC LIMIT ?;

-- select_definition_count: how many definitions of a zone are stored
SELECT count(*) FROM definition WHERE zone = ?;

-- select_definition_counts: how many definitions of each zone are stored
SELECT zone, count(*) FROM definition GROUP BY zone ORDER BY zone;

-- select_definition_ends: the definitions that no other one follows, in the order in which they were stored
SELECT id, zone, number, digest FROM definition
WHERE id NOT IN (SELECT previous FROM definition WHERE previous IS NOT NULL) ORDER BY id;

-- select_definition_rows: all definitions
SELECT id, zone, digest, previous, number, body FROM read_definition ORDER BY id;

-- select_own_definitions: the newest definition of each own zone
SELECT own.zone, definition.id, definition.number, definition.digest
FROM own_definition AS own JOIN read_definition AS definition ON definition.id = own.definition;

-- insert_own_definition: the newest definition of an own zone
INSERT OR REPLACE INTO own_definition (zone, definition) VALUES (?, ?);

-- insert_held: a range of sequences now held
INSERT INTO held (stream, origin, first_sequence, last_sequence, first_previous_digest, last_digest)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (stream, origin, first_sequence)
DO UPDATE SET
    last_sequence = excluded.last_sequence,
    first_previous_digest = excluded.first_previous_digest,
    last_digest = excluded.last_digest;

-- delete_held: a range that was merged into another
DELETE FROM held WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_held: everything held, in order
SELECT stream, origin, first_sequence, last_sequence, first_previous_digest, last_digest FROM held
ORDER BY stream, origin, first_sequence;

-- insert_message: content and offset of a new message id
INSERT INTO message_index (stream, generation, message_key, content_digest, message_offset) VALUES (?, ?, ?, ?, ?);

-- select_message: content and offset first stored under a message id
SELECT content_digest, message_offset FROM message_index WHERE stream = ? AND generation = ? AND message_key = ?;

-- select_message_streams: streams that have message ids
SELECT id FROM stream
WHERE EXISTS (SELECT 1 FROM message_index WHERE message_index.stream = stream.id)
    OR EXISTS (SELECT 1 FROM message_filter WHERE message_filter.stream = stream.id)
ORDER BY id;

-- select_message_generations: the oldest and the newest generation of a stream's message ids
SELECT
    min(
        coalesce((SELECT min(generation) FROM message_index WHERE stream = :stream), 9223372036854775807),
        coalesce((SELECT min(generation) FROM message_filter WHERE stream = :stream), 9223372036854775807)
    ) AS generation,
    max(
        coalesce((SELECT max(generation) FROM message_index WHERE stream = :stream), 0),
        coalesce((SELECT max(generation) FROM message_filter WHERE stream = :stream), 0)
    ) AS generation;

-- select_message_keys: the message ids of a generation
SELECT message_key, message_offset FROM message_index WHERE stream = ? AND generation = ?;

-- delete_messages: some message ids of a generation that is released
DELETE FROM message_index
WHERE stream = :stream AND generation = :generation AND message_key < coalesce(
    (
        SELECT message_key FROM message_index WHERE stream = :stream AND generation = :generation
        ORDER BY message_key LIMIT 1 OFFSET :rows_max
    ),
    x'ffffffffffffffffffffffffffffffffff'
);

-- insert_message_filter: a generation of message ids is full
INSERT INTO message_filter (stream, generation, last_offset, digest, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (stream, generation)
DO UPDATE SET last_offset = excluded.last_offset, digest = excluded.digest, body = excluded.body;

-- select_message_filters: the filters of a stream
SELECT generation, last_offset, digest, body FROM message_filter WHERE stream = ? ORDER BY generation;

-- delete_message_filter: the filter of a generation that is deleted
DELETE FROM message_filter WHERE stream = ? AND generation = ? RETURNING CAST(digest AS BLOB), CAST(body AS BLOB);

-- insert_lease: the highest lease epoch of a producer
INSERT INTO lease (stream, producer, epoch) VALUES (?, ?, ?)
ON CONFLICT (stream, producer) DO UPDATE SET epoch = excluded.epoch;

-- select_leases: every lease
SELECT stream.name, lease.producer, lease.epoch FROM lease JOIN stream ON stream.id = lease.stream ORDER BY 1, 2;

-- insert_subject: the newest message about a subject
INSERT INTO subject (stream, subject_key, last_offset) VALUES (?, ?, ?)
ON CONFLICT (stream, subject_key) DO UPDATE SET last_offset = excluded.last_offset;

-- select_subject: offset of the newest message about a subject
SELECT last_offset FROM subject WHERE stream = ? AND subject_key = ?;

-- select_subjects: some subjects of a stream, after a key
SELECT subject_key, last_offset FROM subject WHERE stream = ? AND subject_key > ? ORDER BY subject_key LIMIT ?;

-- delete_subject: a subject whose newest message is released
DELETE FROM subject WHERE stream = ? AND subject_key = ?;

-- insert_consumer: register a consumer
INSERT INTO consumer (name, zone, stream, state, start_offset, frontier, registered_unix_ms)
VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id;

-- update_consumer: a consumer's state, frontier, last contact and lease
UPDATE consumer SET state = ?, frontier = ?, seen_unix_ms = ?, lease_epoch = ?, lease_holder = ? WHERE id = ?;

-- delete_consumer: remove a consumer and its confirmations
DELETE FROM consumer WHERE id = ?;

-- select_consumers: every consumer
SELECT
    consumer.id, consumer.name, consumer.zone, stream.name, consumer.state, consumer.start_offset, consumer.frontier,
    consumer.registered_unix_ms, consumer.seen_unix_ms AS "seen_unix_ms INTEGER", consumer.lease_epoch,
    consumer.lease_holder
FROM consumer JOIN stream ON stream.id = consumer.stream ORDER BY consumer.name;

-- insert_confirmed: a range confirmed beyond the frontier
INSERT INTO confirmed (consumer, first_offset, last_offset) VALUES (?, ?, ?);

-- delete_confirmed: a range that was merged or passed by the frontier
DELETE FROM confirmed WHERE consumer = ? AND first_offset = ?;

-- select_confirmed: every range beyond a frontier
SELECT consumer, first_offset, last_offset FROM confirmed ORDER BY consumer, first_offset;

-- insert_trail: how far a peer's stream is stored, in one of the peer's lives
INSERT OR REPLACE INTO trail (peer, stream, life, peer_offset, digest) VALUES (?, ?, ?, ?, ?);

-- delete_trail: the oldest life of a trail
DELETE FROM trail WHERE peer = ? AND stream = ? AND life = ?;

-- select_trails: the trail of each peer and stream, oldest first
SELECT trail.peer, stream.name, trail.life, trail.peer_offset, trail.digest
FROM trail JOIN stream ON stream.id = trail.stream ORDER BY trail.id;

-- insert_life: a process stores its first fact of a stream
INSERT INTO life (stream, first_offset, life) VALUES (?, ?, ?);

-- update_forked: a life that ran twice, or during which the clock jumped
UPDATE life SET is_forked = 1 WHERE life = ?;

-- select_forked: the lives that ran twice, or during which the clock jumped
SELECT DISTINCT life FROM life WHERE is_forked;

-- insert_tip: the end that the next own batch follows, where what is held of own lives does not end with it
INSERT OR REPLACE INTO tip (stream, zone, sequence, digest) VALUES (?, ?, ?, ?);

-- delete_tip: what is held of the newest own life ends with the last batch sealed here
DELETE FROM tip WHERE stream = ? AND zone = ?;

-- select_tips: the ends that are kept, by own zone and stream
SELECT tip.zone, stream.name, tip.sequence, tip.digest FROM tip JOIN stream ON stream.id = tip.stream;

-- select_own_end: the end of what is held of the newest life of a stream in which own facts were sealed
SELECT held.last_sequence, held.last_digest
FROM zone
CROSS JOIN held_before ON held_before.stream = :stream AND held_before.zone = zone.id  -- none: no life is looked at
CROSS JOIN life
CROSS JOIN origin ON origin.zone = zone.id AND origin.life = life.life
CROSS JOIN held ON held.stream = life.stream AND held.origin = origin.id
WHERE zone.name = :zone AND life.stream = :stream ORDER BY life.first_offset DESC, held.first_sequence DESC LIMIT 1;

-- select_newest_lives: the last life of each stream
SELECT stream.name, life.life, life.first_offset FROM stream
CROSS JOIN life ON life.stream = stream.id AND life.first_offset = (
    SELECT max(first_offset) FROM life WHERE life.stream = stream.id
);

-- select_life: the first offset that a life stored in a stream
SELECT first_offset FROM life WHERE stream = :stream AND life = :life;

-- select_lives_from: the life that stored an offset, and those after it
SELECT life, first_offset FROM life
WHERE stream = :stream AND first_offset >= coalesce(
    (SELECT max(first_offset) FROM life WHERE stream = :stream AND first_offset <= :offset), 0
) ORDER BY first_offset LIMIT :limit;

-- select_own_lives: the lives of the store, whatever the stream
SELECT DISTINCT life FROM life;

-- select_lives_held: facts that are or were held, by zone, life and stream
SELECT
    origin.zone, origin.life, stream.name, sum(held.last_sequence - held.first_sequence + 1) AS facts,
    min(held.first_sequence) AS first_sequence, max(held.last_sequence) AS last_sequence, count(*)
FROM held JOIN named_origin AS origin ON origin.id = held.origin JOIN stream ON stream.id = held.stream
WHERE :zone IS NULL OR origin.zone = :zone
GROUP BY held.origin, held.stream ORDER BY origin.zone, origin.life, stream.name;

-- select_at_offset: the batch that may hold an offset, unless retention has released it
SELECT first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB) FROM batch
WHERE stream = :stream AND first_offset <= :offset
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_offset DESC LIMIT 1;

-- select_completeness: up to when the facts of a source are complete
SELECT part, complete_ns, ahead_ns FROM completeness WHERE source = ?;

-- upsert_completeness: a part of a source is complete up to a time
INSERT INTO completeness (source, part, complete_ns, ahead_ns) VALUES (:source, :part, :complete_ns, :ahead_ns)
ON CONFLICT (source, part) DO UPDATE SET complete_ns = excluded.complete_ns, ahead_ns = excluded.ahead_ns;

-- delete_completeness: a tag is complete with its source again
DELETE FROM completeness WHERE source = ? AND part = ?;

-- insert_incident: something lost, refused or damaged; a repeat increments the count. Returns the count
INSERT INTO incident (kind, subject, detail, count, first_unix_ms, last_unix_ms)
VALUES (:kind, :subject, :detail, :count, :now, :now)
ON CONFLICT (kind, subject)
DO UPDATE SET count = incident.count + excluded.count, detail = excluded.detail, last_unix_ms = excluded.last_unix_ms
RETURNING count;

-- count_incidents: how many of a kind are kept
SELECT count(*) FROM incident WHERE kind = ?;

-- delete_incidents: some of a kind, after the first ones
DELETE FROM incident WHERE id IN (
    SELECT id FROM incident WHERE kind = :kind AND subject <> :others ORDER BY id LIMIT :some OFFSET :first
);

-- select_incidents: the last incidents of some kinds, each between spaces, or of all; newest first
SELECT kind AS "kind TEXT NOT NULL", subject, detail, count, first_unix_ms, last_unix_ms FROM incident
WHERE :kinds = '' OR instr(:kinds, ' ' || kind || ' ') ORDER BY last_unix_ms DESC, id DESC LIMIT :some;

-- select_bytes_up_to: a stream's sealed bytes up to a frontier, without the batch that the frontier divides
SELECT
    CASE
        WHEN last_offset <= :frontier THEN bytes_total ELSE bytes_total - length(body) - :digest_bytes
    END AS bytes_total
FROM batch WHERE stream = :stream AND first_offset <= :frontier + 1
ORDER BY first_offset DESC LIMIT 1;

-- select_mark_at: the store's age at the last mark at or before an offset
SELECT age_ms FROM mark WHERE stream = ? AND first_offset <= ? ORDER BY first_offset DESC LIMIT 1;

-- select_marks_since: the marks since an age, of the newest `limit`, oldest first
SELECT age_ms, bytes_total, is_backlog FROM (
    SELECT first_offset, bytes_total, age_ms, is_backlog FROM mark WHERE stream = :stream
    ORDER BY first_offset DESC LIMIT :limit
) WHERE age_ms >= :since_ms ORDER BY first_offset;

-- insert_artifact: the last fact of a stream that refers to an artifact
INSERT INTO artifact (digest, stream, last_offset) VALUES (?, ?, ?)
ON CONFLICT (digest, stream) DO UPDATE SET last_offset = max(artifact.last_offset, excluded.last_offset);

-- select_artifact_streams: the streams with a held fact that refers to an artifact
SELECT stream.name FROM artifact JOIN stream ON stream.id = artifact.stream
WHERE artifact.digest = ? AND artifact.last_offset > stream.released_offset;

-- select_artifacts_of: the next artifacts to which held facts of a stream refer
SELECT artifact.digest FROM artifact JOIN stream ON stream.id = artifact.stream
WHERE stream.name = ? AND artifact.digest > ? AND artifact.last_offset > stream.released_offset
ORDER BY artifact.digest LIMIT ?;

-- delete_artifacts: references of released facts
DELETE FROM artifact WHERE last_offset <= (SELECT released_offset FROM stream WHERE id = artifact.stream);
