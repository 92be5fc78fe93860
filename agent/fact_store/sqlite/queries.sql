-- Every statement of the store, by name. A line "-- name: text" starts one; queries.py reads this file.

-- begin: the writer's transaction, with the write lock taken at once
BEGIN IMMEDIATE;

-- commit: durable when it returns
COMMIT;

-- rollback: as if nothing had been asked
ROLLBACK;

-- begin_read: several statements that see one state
BEGIN;

-- data_version: a number that changes when another connection commits
PRAGMA data_version;

-- migrations_table: whether any migration ever ran
SELECT count(*) FROM sqlite_schema WHERE name = '_sqlite_migrations';

-- migrations_applied: names of the migrations that ran
SELECT name FROM _sqlite_migrations WHERE migration_set = 'bsfg' ORDER BY id;

-- tables: how many tables the file has, whoever made them
SELECT count(*) FROM sqlite_schema;

-- insert_store: whose store this is, once
INSERT INTO store (id, zone, epoch, format, created_unix_ms) VALUES (1, ?, ?, ?, ?);

-- select_store: whose store this is
SELECT zone, epoch, format FROM store;

-- select_new_epoch_because: why the next opening begins a new epoch, if it must
SELECT new_epoch_because FROM store;

-- select_peer_epoch: when a new epoch was last begun because a peer said so
SELECT peer_epoch_unix_ms FROM store;

-- update_new_epoch_because: the next opening begins a new epoch
UPDATE store SET new_epoch_because = ?, peer_epoch_unix_ms = coalesce(?, peer_epoch_unix_ms);

-- update_unseen: behind which offset of a stream nobody can have seen a fact
UPDATE stream SET unseen_after = ? WHERE id = ?;

-- select_unseen: the streams of which something may be unseen, while a new epoch is due
SELECT name, unseen_after FROM stream WHERE unseen_after IS NOT NULL ORDER BY id;

-- forget_unseen: a new epoch has begun, and all is named as it will be
UPDATE stream SET unseen_after = NULL;

-- select_own_rows: batches of an origin that begin behind an offset
SELECT id, first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB) FROM batch
WHERE stream = ? AND origin = ? AND first_offset > ? ORDER BY first_offset LIMIT ?;

-- update_batch: a batch sealed anew in its place
UPDATE batch SET origin = ?, first_sequence = ?, digest = ?, previous_digest = ?, body = ? WHERE id = ?;

-- update_epoch: a new epoch has begun
UPDATE store SET epoch = ?, new_epoch_because = NULL;

-- insert_origin: number a new origin
INSERT INTO origin (zone, epoch) VALUES (?, ?) RETURNING id;

-- select_origins: every origin with its number
SELECT id, zone, epoch FROM origin ORDER BY id;

-- insert_stream: number a new stream
INSERT INTO stream (name) VALUES (?) RETURNING id;

-- select_streams: every stream with where it begins and ends
SELECT
    stream.id,
    stream.name,
    stream.released_offset,
    stream.released_bytes,
    coalesce(last.last_offset, stream.released_offset),
    coalesce(last.bytes_total, stream.released_bytes),
    (SELECT age_ms FROM mark WHERE mark.stream = stream.id ORDER BY first_offset DESC LIMIT 1),
    (SELECT is_backlog FROM mark WHERE mark.stream = stream.id ORDER BY first_offset DESC LIMIT 1)
FROM stream
LEFT JOIN batch AS last ON last.id = (
    SELECT id FROM batch WHERE batch.stream = stream.id ORDER BY first_offset DESC LIMIT 1
)
ORDER BY stream.id;

-- select_stream_names: every stream, and nothing that lies in another table
SELECT id, name, released_offset FROM stream ORDER BY id;

-- select_last_row: where a stream ends, by the order of rows and not by an index
SELECT last_offset FROM batch NOT INDEXED WHERE stream = ? ORDER BY id DESC LIMIT 1;

-- select_row_heads: what batches say of themselves, in the order of rows and without an index, of all streams
SELECT
    id, stream, first_offset, last_offset, origin, first_sequence, time_min_ns, time_max_ns, kind, definition_count,
    length(body)
FROM batch NOT INDEXED WHERE id > ? ORDER BY id LIMIT ?;

-- select_row: one batch by its row
SELECT first_offset, last_offset, origin, definition_count, body, digest FROM batch NOT INDEXED WHERE id = ?;

-- insert_batch: one sealed batch
INSERT INTO batch (
    stream, first_offset, last_offset, origin, first_sequence, count, time_min_ns, time_max_ns, kind, codec,
    definition_count, bytes_total, digest, previous_digest, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- select_batch_at_sequence: the last batch of an origin that starts at or before a sequence
SELECT first_sequence, count, digest, previous_digest FROM batch
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

-- select_page_offsets: where batches begin, from the index alone: for a page whose rows cannot be stepped through
SELECT first_offset FROM batch
WHERE stream = :stream
    AND first_offset >= coalesce(
        (SELECT max(first_offset) FROM batch WHERE stream = :stream AND first_offset <= :offset), 0
    )
    AND first_offset <= :until_offset
ORDER BY first_offset LIMIT :limit;

-- select_page_row: one batch by where it begins
SELECT first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB) FROM batch
WHERE stream = ? AND first_offset = ?;

-- select_page_columns: whose batches lie between two offsets, as far as the table says so
SELECT origin.zone, origin.epoch, batch.first_sequence, batch.count
FROM batch JOIN origin ON origin.id = batch.origin
WHERE batch.stream = :stream AND batch.first_offset >= :offset AND batch.first_offset <= :until_offset
ORDER BY batch.first_offset LIMIT :limit;

-- select_sequences: batches of an origin from the one that holds a sequence, up to the last that starts at or before another
SELECT first_sequence, first_sequence + count - 1, CAST(body AS BLOB), CAST(digest AS BLOB), first_offset FROM batch
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

-- select_held_of: what is held of one origin in a stream, or was before retention
SELECT first_sequence, last_sequence FROM held WHERE stream = ? AND origin = ? ORDER BY first_sequence;

-- select_end_at_sequence: the batch of an origin that may hold a sequence, and where it ends, unless retention has released it
SELECT first_sequence + count - 1, CAST(digest AS BLOB) FROM batch
WHERE stream = :stream
    AND origin = :origin
    AND first_sequence <= :sequence
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_sequence DESC LIMIT 1;

-- select_place: where the batch lies that begins at a sequence, and what the table says of it
SELECT first_offset, last_offset, count, CAST(digest AS BLOB) FROM batch
WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_successor: which digest the batch that begins at a sequence follows
SELECT CAST(previous_digest AS BLOB) FROM batch WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_repaired_offsets: where repaired batches begin, between two offsets
SELECT DISTINCT first_offset FROM repaired
WHERE stream = :stream AND first_offset <= :until_offset AND last_offset >= :offset
ORDER BY first_offset;

-- select_repaired: what was repaired at an offset
SELECT first_offset, last_offset, CAST(body AS BLOB), CAST(digest AS BLOB) FROM repaired
WHERE stream = ? AND first_offset = ? ORDER BY id;

-- insert_repaired: a batch as it was before the disk damaged it
INSERT INTO repaired (stream, first_offset, last_offset, digest, body) VALUES (?, ?, ?, ?, ?);

-- delete_repaired: what retention has released
DELETE FROM repaired WHERE stream = ? AND last_offset <= ?;

-- insert_damage: a batch was found damaged
INSERT INTO damage (stream, origin, first_sequence, last_sequence) VALUES (?, ?, ?, ?)
ON CONFLICT (stream, origin, first_sequence) DO NOTHING;

-- delete_damage: a batch is repaired, or gone
DELETE FROM damage WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_damage: the damaged batches of a stream
SELECT origin.zone, origin.epoch, damage.first_sequence, damage.last_sequence
FROM damage JOIN origin ON origin.id = damage.origin
WHERE damage.stream = ?
ORDER BY origin.id, damage.first_sequence;

-- integrity_check: SQLite's own look at its pages and indexes
PRAGMA integrity_check;

-- select_verify_page: batches after an offset, with all that the table says of them
SELECT
    first_offset, last_offset, origin, first_sequence, count, time_min_ns, time_max_ns, kind, codec, definition_count,
    bytes_total, CAST(digest AS BLOB), CAST(previous_digest AS BLOB), CAST(body AS BLOB)
FROM batch WHERE stream = ? AND first_offset > ? ORDER BY first_offset LIMIT ?;

-- select_verify_row: the same of one batch
SELECT
    first_offset, last_offset, origin, first_sequence, count, time_min_ns, time_max_ns, kind, codec, definition_count,
    bytes_total, CAST(digest AS BLOB), CAST(previous_digest AS BLOB), CAST(body AS BLOB)
FROM batch WHERE stream = ? AND first_offset = ?;

-- select_verify_offsets: where batches after an offset begin, from the index alone
SELECT first_offset FROM batch WHERE stream = ? AND first_offset > ? ORDER BY first_offset LIMIT ?;

-- select_verify_streams: streams and what was released of them
SELECT id, name, released_offset, released_bytes FROM stream ORDER BY id;

-- select_batch_streams: how many batches lie in streams that are none
SELECT count(*) FROM batch WHERE NOT EXISTS (SELECT 1 FROM stream WHERE stream.id = batch.stream);

-- select_released_offset: how far retention has let go of a stream
SELECT released_offset FROM stream WHERE id = ?;

-- select_held_count: how many facts of a stream were ever stored here, which is where it ends
SELECT coalesce(sum(last_sequence - first_sequence + 1), 0) FROM held WHERE stream = ?;

-- select_heads: what batches say of themselves, from the one that holds an offset up to another, oldest first
SELECT
    first_offset, last_offset, origin, first_sequence, time_min_ns, time_max_ns, kind, definition_count, length(body)
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

-- select_heads_back: the same from the end, newest first
SELECT
    first_offset, last_offset, origin, first_sequence, time_min_ns, time_max_ns, kind, definition_count, length(body)
FROM batch
WHERE stream = :stream
    AND first_offset <= :until_offset
    AND last_offset >= :offset
    AND first_offset > (SELECT released_offset FROM stream WHERE id = :stream)
ORDER BY first_offset DESC
LIMIT :limit;

-- select_start_at: first offset of the last mark that is not later than a time, and behind none that is; a clock that was set back
-- makes it earlier, never later than asked
SELECT max(first_offset) FROM mark
WHERE stream = :stream
    AND unix_ms <= :unix_ms
    AND first_offset <= coalesce(
        (SELECT min(first_offset) FROM mark WHERE stream = :stream AND unix_ms >= :unix_ms), 9223372036854775807
    );

-- insert_mark: how far a stream's log had come
INSERT INTO mark (stream, first_offset, bytes_total, age_ms, unix_ms, is_backlog) VALUES (?, ?, ?, ?, ?, ?);

-- select_marks: the oldest marks of a stream
SELECT first_offset, age_ms FROM mark WHERE stream = ? ORDER BY first_offset LIMIT ?;

-- delete_marks: marks that say nothing of what is left
DELETE FROM mark WHERE stream = :stream AND first_offset < (
    SELECT max(first_offset) FROM mark WHERE stream = :stream AND first_offset <= :released_offset + 1
);

-- select_boundary: where the last batch ends that lies at or before an offset, and the stream's bytes up to there
SELECT last_offset, bytes_total FROM (
    SELECT last_offset, bytes_total FROM batch WHERE stream = :stream AND first_offset <= :offset
    ORDER BY first_offset DESC LIMIT 2
) WHERE last_offset <= :offset ORDER BY last_offset DESC LIMIT 1;

-- select_offset_at_bytes: the end of the first batch, after an offset, that reaches so many bytes
SELECT last_offset FROM batch WHERE stream = ? AND first_offset > ? AND bytes_total >= ? ORDER BY first_offset LIMIT 1;

-- select_origins_between: whose facts lie after one offset and up to another
SELECT origin.zone, origin.epoch, min(first_sequence), max(first_sequence + count - 1)
FROM batch JOIN origin ON origin.id = batch.origin
WHERE stream = ? AND first_offset > ? AND first_offset <= ?
GROUP BY origin.id ORDER BY origin.id;

-- update_released: facts up to here may go
UPDATE stream SET released_offset = ?, released_bytes = ? WHERE id = ?;

-- select_released_rows: some batches that may be deleted, the oldest first
SELECT id, bytes_total FROM batch WHERE stream = ? AND first_offset <= ? ORDER BY first_offset LIMIT ?;

-- delete_batch: one batch that retention has released
DELETE FROM batch WHERE id = ?;

-- select_deleted_bytes: sealed bytes of a stream before the first batch that is still there
SELECT bytes_total - length(body) - length(digest) FROM batch WHERE stream = ? ORDER BY first_offset LIMIT 1;

-- page_count: pages of the file
PRAGMA page_count;

-- freelist_count: pages of the file that nothing uses
PRAGMA freelist_count;

-- vacuum_page: give one free page back
PRAGMA incremental_vacuum(1);

-- checkpoint: fold the log into the file, as far as no reader needs it; the file shrinks here
PRAGMA wal_checkpoint(PASSIVE);

-- page_size: bytes of a page
PRAGMA page_size;

-- select_end_offset: where a stream ends
SELECT coalesce(
    (SELECT last_offset FROM batch WHERE batch.stream = stream.id ORDER BY first_offset DESC LIMIT 1), released_offset
) FROM stream WHERE id = ?;

-- insert_definition: one tag definition
INSERT INTO definition (origin, number, digest, body) VALUES (?, ?, ?, ?);

-- select_definitions: a range of an origin's definitions, after one number up to another
SELECT number, CAST(digest AS BLOB), CAST(body AS BLOB) FROM definition
WHERE origin = :origin AND number > :after AND number <= :until
    AND number NOT IN (SELECT number FROM repaired_definition WHERE origin = :origin)
UNION ALL
SELECT number, digest, body FROM repaired_definition WHERE origin = :origin AND number > :after AND number <= :until
ORDER BY 1;

-- select_definition_digest: running digest at one number
SELECT digest FROM repaired_definition WHERE origin = :origin AND number = :number
UNION ALL
SELECT digest FROM definition WHERE origin = :origin AND number = :number
LIMIT 1;

-- insert_repaired_definition: a tag definition to be believed in the place of a damaged one
INSERT INTO repaired_definition (origin, number, digest, body) VALUES (?, ?, ?, ?);

-- select_definition_ends: how many definitions each origin has, and the running digest over them
SELECT origin, max(number), digest FROM (
    SELECT origin, number, digest FROM definition
    WHERE NOT EXISTS (
        SELECT 1 FROM repaired_definition AS repaired
        WHERE repaired.origin = definition.origin AND repaired.number = definition.number
    )
    UNION ALL
    SELECT origin, number, digest FROM repaired_definition
) GROUP BY origin;

-- insert_held: a range of sequences now held
INSERT INTO held (stream, origin, first_sequence, last_sequence, first_previous_digest, last_digest)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (stream, origin, first_sequence)
DO UPDATE SET
    last_sequence = excluded.last_sequence,
    first_previous_digest = excluded.first_previous_digest,
    last_digest = excluded.last_digest;

-- delete_held: a range that another one has taken in
DELETE FROM held WHERE stream = ? AND origin = ? AND first_sequence = ?;

-- select_held: everything held, in order
SELECT stream, origin, first_sequence, last_sequence, first_previous_digest, last_digest FROM held
ORDER BY stream, origin, first_sequence;

-- insert_message: where a message id was first stored
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
    ),
    max(
        coalesce((SELECT max(generation) FROM message_index WHERE stream = :stream), 0),
        coalesce((SELECT max(generation) FROM message_filter WHERE stream = :stream), 0)
    );

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

-- delete_message_filter: the last row of a generation is gone
DELETE FROM message_filter WHERE stream = ? AND generation = ? RETURNING digest, body;

-- insert_lease: the highest lease epoch of a producer
INSERT INTO lease (stream, producer, epoch) VALUES (?, ?, ?)
ON CONFLICT (stream, producer) DO UPDATE SET epoch = excluded.epoch;

-- select_leases: every lease
SELECT stream.name, lease.producer, lease.epoch FROM lease JOIN stream ON stream.id = lease.stream ORDER BY 1, 2;

-- insert_subject: the newest message about a subject
INSERT INTO subject (stream, subject_key, last_offset) VALUES (?, ?, ?)
ON CONFLICT (stream, subject_key) DO UPDATE SET last_offset = excluded.last_offset;

-- select_subject: where the newest message about a subject is
SELECT last_offset FROM subject WHERE stream = ? AND subject_key = ?;

-- select_subjects: some subjects of a stream, after a key
SELECT subject_key, last_offset FROM subject WHERE stream = ? AND subject_key > ? ORDER BY subject_key LIMIT ?;

-- delete_subject: the newest message about a subject is gone
DELETE FROM subject WHERE stream = ? AND subject_key = ?;

-- insert_consumer: register a consumer
INSERT INTO consumer (name, zone, stream, state, start_offset, frontier, registered_unix_ms)
VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id;

-- update_consumer: move a consumer's frontier and state, when it was seen, and its lease
UPDATE consumer SET state = ?, frontier = ?, seen_unix_ms = ?, lease_epoch = ?, lease_holder = ? WHERE id = ?;

-- delete_consumer: forget a consumer and what it confirmed
DELETE FROM consumer WHERE id = ?;

-- select_consumers: every consumer
SELECT
    consumer.id, consumer.name, consumer.zone, stream.name, consumer.state, consumer.start_offset, consumer.frontier,
    consumer.registered_unix_ms, consumer.seen_unix_ms, consumer.lease_epoch, consumer.lease_holder
FROM consumer JOIN stream ON stream.id = consumer.stream ORDER BY consumer.name;

-- insert_confirmed: a range confirmed beyond the frontier
INSERT INTO confirmed (consumer, first_offset, last_offset) VALUES (?, ?, ?);

-- delete_confirmed: a range that was merged or passed by the frontier
DELETE FROM confirmed WHERE consumer = ? AND first_offset = ?;

-- select_confirmed: every range beyond a frontier
SELECT consumer, first_offset, last_offset FROM confirmed ORDER BY consumer, first_offset;

-- insert_peer_position: how far a peer's stream is stored
INSERT INTO peer_position (peer, stream, epoch, peer_offset, last_batch_offset, last_batch_digest) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (peer, stream) DO UPDATE SET
    epoch = excluded.epoch, peer_offset = excluded.peer_offset,
    last_batch_offset = excluded.last_batch_offset, last_batch_digest = excluded.last_batch_digest,
    has_changed_epoch = peer_position.has_changed_epoch OR peer_position.epoch <> excluded.epoch;

-- select_peer_positions: every peer's position
SELECT
    peer_position.peer, stream.name, peer_position.epoch, peer_position.peer_offset,
    peer_position.has_changed_epoch, peer_position.last_batch_offset, peer_position.last_batch_digest
FROM peer_position JOIN stream ON stream.id = peer_position.stream ORDER BY peer_position.peer, stream.name;

-- insert_unproven: facts of an origin came again that can no longer be compared
INSERT OR IGNORE INTO unproven (stream, origin) VALUES (?, ?);

-- select_unproven: origins of which facts came again that could not be compared
SELECT stream, origin FROM unproven;

-- insert_served: a zone begins to be handed a stream
INSERT INTO served (stream, zone, until_offset) VALUES (?, ?, NULL)
ON CONFLICT (stream, zone) DO UPDATE SET until_offset = NULL;

-- update_served: who read a stream in the last life may have been handed all that was in it
UPDATE served SET until_offset = ? WHERE stream = ? AND until_offset IS NULL;

-- select_served: how far each zone was handed each stream
SELECT stream.name, served.zone, served.until_offset FROM served JOIN stream ON stream.id = served.stream;

-- insert_incident: something was lost or refused; again, it counts up
INSERT INTO incident (kind, subject, detail, first_unix_ms, last_unix_ms) VALUES (:kind, :subject, :detail, :now, :now)
ON CONFLICT (kind, subject)
DO UPDATE SET count = incident.count + 1, detail = excluded.detail, last_unix_ms = excluded.last_unix_ms;

-- select_incidents: the last incidents, newest first
SELECT kind, subject, detail, count, first_unix_ms, last_unix_ms FROM incident ORDER BY last_unix_ms DESC, id DESC LIMIT ?;

-- select_bytes_up_to: a stream's sealed bytes up to a frontier, the batch that it lies within left out
SELECT CASE WHEN last_offset <= :frontier THEN bytes_total ELSE bytes_total - length(body) - :digest_bytes END
FROM batch WHERE stream = :stream AND first_offset <= :frontier + 1
ORDER BY first_offset DESC LIMIT 1;

-- select_mark_at: the store's age when what lies at an offset was still to come
SELECT age_ms FROM mark WHERE stream = ? AND first_offset <= ? ORDER BY first_offset DESC LIMIT 1;

-- select_mark_first: the store's age at the oldest mark that is left
SELECT age_ms FROM mark WHERE stream = ? ORDER BY first_offset LIMIT 1;

-- select_marks_since: the marks of the last so many that are at least so young, oldest first
SELECT age_ms, bytes_total, is_backlog FROM (
    SELECT first_offset, bytes_total, age_ms, is_backlog FROM mark WHERE stream = :stream ORDER BY first_offset DESC LIMIT :limit
) WHERE age_ms >= :since_ms ORDER BY first_offset;

-- insert_artifact: a fact of a stream refers to an artifact; the last that does counts
INSERT INTO artifact (digest, stream, last_offset) VALUES (?, ?, ?)
ON CONFLICT (digest, stream) DO UPDATE SET last_offset = max(artifact.last_offset, excluded.last_offset);

-- select_artifact_streams: the streams with a fact that is held and refers to an artifact
SELECT stream.name FROM artifact JOIN stream ON stream.id = artifact.stream
WHERE artifact.digest = ? AND artifact.last_offset > stream.released_offset;

-- select_artifacts_of: the artifacts to which facts refer that a stream holds
SELECT artifact.digest FROM artifact JOIN stream ON stream.id = artifact.stream
WHERE stream.name = ? AND artifact.last_offset > stream.released_offset ORDER BY artifact.digest;

-- delete_artifacts: what referred to artifacts and was released
DELETE FROM artifact WHERE last_offset <= (SELECT released_offset FROM stream WHERE id = artifact.stream);
