-- The fact store, as it is after every migration: read this, not the migrations. A test replays those and compares.
--
-- Numbers: offsets and sequences start at 1 and have no holes; 0 means "nothing yet". Times are nanoseconds (_ns) or
-- milliseconds (_unix_ms) since 1970, UTC. Digests are BLAKE2b-128.

-- Whose store this is, and which life of it. One row.
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    zone TEXT NOT NULL,
    epoch BLOB NOT NULL CHECK (length(epoch) = 16),
    format INTEGER NOT NULL,
    created_unix_ms INTEGER NOT NULL
) STRICT;

-- Who first recorded facts that are held here. Number 1 is this store itself.
CREATE TABLE origin (
    id INTEGER PRIMARY KEY,
    zone TEXT NOT NULL,
    epoch BLOB NOT NULL CHECK (length(epoch) = 16),
    UNIQUE (zone, epoch)
) STRICT;

-- The logs. What retention has released (up to this offset, this many bytes) may be deleted from batch, nothing else.
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    released_offset INTEGER NOT NULL DEFAULT 0,
    released_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The facts: sealed batches, byte for byte as they were sealed. body is the batch without its last 16 bytes, which are the
-- digest; the other columns repeat what a look-up needs, and stand before the body so that none has to be read past.
-- bytes_total counts the stream's sealed bytes up to and including this batch: what lies between two offsets is a difference.
CREATE TABLE batch (
    id INTEGER PRIMARY KEY,
    stream INTEGER NOT NULL REFERENCES stream (id),
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL CHECK (last_offset = first_offset + count - 1),
    origin INTEGER NOT NULL REFERENCES origin (id),
    first_sequence INTEGER NOT NULL CHECK (first_sequence > 0),
    count INTEGER NOT NULL CHECK (count > 0),
    time_min_ns INTEGER NOT NULL,
    time_max_ns INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    codec INTEGER NOT NULL,
    definition_count INTEGER NOT NULL,
    bytes_total INTEGER NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    previous_digest BLOB NOT NULL CHECK (length(previous_digest) = 16),
    body BLOB NOT NULL,
    UNIQUE (stream, first_offset)
) STRICT;

-- Identity: one batch starts at a sequence of an origin in a stream, whatever path it came by.
CREATE UNIQUE INDEX batch_by_sequence ON batch (stream, origin, first_sequence);

CREATE TRIGGER batch_update_refused BEFORE UPDATE ON batch
BEGIN
    SELECT RAISE(ABORT, 'batch is append-only');
END;

CREATE TRIGGER batch_delete_refused BEFORE DELETE ON batch
WHEN OLD.last_offset > (SELECT released_offset FROM stream WHERE id = OLD.stream)
BEGIN
    SELECT RAISE(ABORT, 'batch is append-only: retention has not released this one');
END;

-- What tag numbers stand for, densely numbered per origin; digest is the running digest up to this number.
CREATE TABLE definition (
    origin INTEGER NOT NULL REFERENCES origin (id),
    number INTEGER NOT NULL CHECK (number > 0),
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    body BLOB NOT NULL,
    PRIMARY KEY (origin, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER definition_update_refused BEFORE UPDATE ON definition
BEGIN
    SELECT RAISE(ABORT, 'definition is append-only');
END;

CREATE TRIGGER definition_delete_refused BEFORE DELETE ON definition
BEGIN
    SELECT RAISE(ABORT, 'definition is append-only');
END;

-- Which sequences are held, or were before retention: what "have I got this already" compares with.
CREATE TABLE held (
    stream INTEGER NOT NULL REFERENCES stream (id),
    origin INTEGER NOT NULL REFERENCES origin (id),
    first_sequence INTEGER NOT NULL CHECK (first_sequence > 0),
    last_sequence INTEGER NOT NULL CHECK (last_sequence >= first_sequence),
    first_previous_digest BLOB NOT NULL CHECK (length(first_previous_digest) = 16),
    last_digest BLOB NOT NULL CHECK (length(last_digest) = 16),
    PRIMARY KEY (stream, origin, first_sequence)
) STRICT, WITHOUT ROWID;

-- Messages that applications appended here: the digest of their id leads to the digest of their content and their offset.
CREATE TABLE message_index (
    stream INTEGER NOT NULL REFERENCES stream (id),
    message_key BLOB NOT NULL CHECK (length(message_key) = 16),
    content_digest BLOB NOT NULL CHECK (length(content_digest) = 16),
    message_offset INTEGER NOT NULL,
    PRIMARY KEY (stream, message_key)
) STRICT, WITHOUT ROWID;

-- Who reads a stream, and how far the prefix without a hole is confirmed.
CREATE TABLE consumer (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    zone TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES stream (id),
    state TEXT NOT NULL,
    start_offset INTEGER NOT NULL,
    frontier INTEGER NOT NULL CHECK (frontier >= start_offset),
    registered_unix_ms INTEGER NOT NULL
) STRICT;

-- What is confirmed beyond the frontier: ranges that neither overlap nor touch.
CREATE TABLE confirmed (
    consumer INTEGER NOT NULL REFERENCES consumer (id) ON DELETE CASCADE,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL CHECK (last_offset >= first_offset),
    PRIMARY KEY (consumer, first_offset)
) STRICT, WITHOUT ROWID;

-- How far a peer's stream has been stored here: its epoch and its offset, moved in the transaction that stores the facts.
CREATE TABLE peer_position (
    peer TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES stream (id),
    epoch BLOB NOT NULL CHECK (length(epoch) = 16),
    peer_offset INTEGER NOT NULL CHECK (peer_offset >= 0),
    PRIMARY KEY (peer, stream)
) STRICT, WITHOUT ROWID;

-- What was lost or refused. The same thing again counts up instead of filling the disk.
CREATE TABLE incident (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    count INTEGER NOT NULL DEFAULT 1,
    first_unix_ms INTEGER NOT NULL,
    last_unix_ms INTEGER NOT NULL,
    UNIQUE (kind, subject)
) STRICT;
