-- The tables of the fact store: step 1 of the migrations. Later steps change them in files of their own.
--
-- Numbers: offsets and sequences start at 1 and have no holes; 0 means "nothing yet". Times are nanoseconds (_ns) or
-- milliseconds (_unix_ms) since 1970, UTC. Digests are BLAKE2b-128.

-- The zone that owns this store, and the node, which is the zone of what it records about itself: two nodes may record
-- for one zone. One row. is_open: set, also in the database file itself, as long as there must be a write-ahead log; an
-- orderly close clears it. openings: how often it was opened; what was found before the last one is reported (decision
-- 0046).
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    zone TEXT NOT NULL,
    node TEXT NOT NULL,
    format INTEGER NOT NULL,
    created_unix_ms INTEGER NOT NULL,
    is_open INTEGER NOT NULL DEFAULT 0 CHECK (is_open IN (0, 1)),
    openings INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The zones that first recorded the facts held here. is_proven: a record of this zone was verified. lives: how many
-- origins it has here; of more than ten thousand the lowest without a fact are deleted, up to the one in forgotten.
CREATE TABLE zone (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    lives INTEGER NOT NULL DEFAULT 0,
    forgotten BLOB NOT NULL DEFAULT x'',
    is_proven INTEGER NOT NULL DEFAULT 0 CHECK (is_proven IN (0, 1))
) STRICT;

-- The lives that first recorded the facts held here. A zone has thousands in ten years, so a row is small and is read
-- when it is needed. is_proven: as above, of this origin.
CREATE TABLE origin (
    id INTEGER PRIMARY KEY,
    zone INTEGER NOT NULL REFERENCES zone (id),
    life BLOB NOT NULL CHECK (length(life) = 16),
    is_proven INTEGER NOT NULL DEFAULT 0 CHECK (is_proven IN (0, 1)),
    UNIQUE (zone, life)
) STRICT;

CREATE VIEW named_origin AS
SELECT origin.id, zone.name AS zone, origin.life, origin.is_proven
FROM origin JOIN zone ON zone.id = origin.zone;

-- Certificates (DER) of the keys that signed batches held here; they are passed on with them. key_id is a hint.
-- peer: the peer that sent it and the zone of the key ("idmz/plant"); empty for a trusted certificate and our own.
CREATE TABLE signer (
    key_id BLOB NOT NULL CHECK (length(key_id) = 8),
    certificate BLOB NOT NULL UNIQUE CHECK (length(certificate) <= 4096),
    peer TEXT NOT NULL,
    seen_unix_ms INTEGER NOT NULL,
    PRIMARY KEY (key_id, certificate)
) STRICT, WITHOUT ROWID;

-- Keys that the operator of this node has declared compromised, and since when: what was verified here later counts as
-- suspect. Kept with the facts for readers of the file alone.
CREATE TABLE compromised (
    key_id BLOB PRIMARY KEY CHECK (length(key_id) = 8),
    since_unix_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The logs. Only what retention has released (up to released_offset, released_bytes in all) may be deleted from batch.
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    released_offset INTEGER NOT NULL DEFAULT 0,
    released_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The facts: sealed batches, byte for byte as they were sealed. body is the batch without its last 16 bytes, which are
-- the digest; the other columns repeat what a look-up needs, and stand before the body so that none has to be read
-- past. bytes_total counts the stream's sealed bytes up to and including this batch: what lies between two offsets is a
-- difference. verified_unix_ms: when the record of its signature was verified here (NULL: it was not);
-- agent/signing/DESIGN.md. writer: the zone that appended it, or that it was pulled from, if not its origin's.
-- definition: the last tag definition that the batch needs (NULL: messages need none); no foreign
-- key, so that a damaged table does not stop the node from recording.
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
    definition INTEGER,
    bytes_total INTEGER NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    previous_digest BLOB NOT NULL CHECK (length(previous_digest) = 16),
    verified_unix_ms INTEGER,
    writer TEXT,
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

-- Batches that are damaged and not repaired yet, by their sequences.
CREATE TABLE damage (
    stream INTEGER NOT NULL REFERENCES stream (id),
    origin INTEGER NOT NULL REFERENCES origin (id),
    first_sequence INTEGER NOT NULL CHECK (first_sequence > 0),
    last_sequence INTEGER NOT NULL CHECK (last_sequence >= first_sequence),
    PRIMARY KEY (stream, origin, first_sequence)
) STRICT, WITHOUT ROWID;

-- Copies of damaged batches, fetched from a peer, byte for byte, at the same offsets; they are served in place of the
-- damaged rows. The damaged row stays as it is: a write to pages that the disk has changed could damage neighbouring
-- rows. Where several rows have one offset, the first that is whole counts.
CREATE TABLE repaired (
    id INTEGER PRIMARY KEY,
    stream INTEGER NOT NULL REFERENCES stream (id),
    first_offset INTEGER NOT NULL CHECK (first_offset > 0),
    last_offset INTEGER NOT NULL CHECK (last_offset >= first_offset),
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    body BLOB NOT NULL
) STRICT;

CREATE INDEX repaired_by_offset ON repaired (stream, first_offset);

CREATE TRIGGER repaired_update_refused BEFORE UPDATE ON repaired
BEGIN
    SELECT RAISE(ABORT, 'repaired is append-only');
END;

CREATE TRIGGER repaired_delete_refused BEFORE DELETE ON repaired
WHEN OLD.last_offset > (SELECT released_offset FROM stream WHERE id = OLD.stream)
BEGIN
    SELECT RAISE(ABORT, 'repaired is append-only: retention has not released this one');
END;

-- Sealed bytes here, by stream and by the zone that wrote them, of other zones than this one.
CREATE TABLE zone_use (
    stream INTEGER NOT NULL REFERENCES stream (id),
    zone TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (stream, zone)
) STRICT, WITHOUT ROWID;

-- Time marks of a stream, one row a minute: facts from first_offset on were recorded after the mark. age_ms is the
-- store's own clock, the milliseconds that it has been open in its whole life; unix_ms is the wall clock, for people
-- and latest values (decision 0042). bytes_total counts the stream's sealed bytes before first_offset. is_backlog: the
-- facts of the minute from here on may be history that a peer had kept, so they do not count as the rate at which facts
-- come in; a mark is set where a backlog begins.
CREATE TABLE mark (
    stream INTEGER NOT NULL REFERENCES stream (id),
    first_offset INTEGER NOT NULL CHECK (first_offset > 0),
    bytes_total INTEGER NOT NULL CHECK (bytes_total >= 0),
    age_ms INTEGER NOT NULL CHECK (age_ms >= 0),
    unix_ms INTEGER NOT NULL,
    is_backlog INTEGER NOT NULL DEFAULT 0 CHECK (is_backlog IN (0, 1)),
    PRIMARY KEY (stream, first_offset)
) STRICT, WITHOUT ROWID;

-- What tag numbers stand for. A definition is named by its zone and its digest, the running digest over it and those
-- before it: previous is the one before it (NULL for the first), number counts them.
CREATE TABLE definition (
    id INTEGER PRIMARY KEY,
    zone TEXT NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    previous INTEGER CHECK ((previous IS NULL) = (number = 1)),
    number INTEGER NOT NULL CHECK (number > 0),
    body BLOB NOT NULL,
    UNIQUE (zone, digest)
) STRICT;

CREATE TRIGGER definition_update_refused BEFORE UPDATE ON definition
BEGIN
    SELECT RAISE(ABORT, 'definition is append-only');
END;

CREATE TRIGGER definition_delete_refused BEFORE DELETE ON definition
BEGIN
    SELECT RAISE(ABORT, 'definition is append-only');
END;

-- The newest definition with which this store seals samples of an own zone.
CREATE TABLE own_definition (
    zone TEXT PRIMARY KEY,
    definition INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Copies of damaged tag definitions, fetched from a peer and proven by their digest; used in place of the rows of the
-- same id in `definition`, which stay as they are.
CREATE TABLE repaired_definition (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    previous INTEGER,
    number INTEGER NOT NULL CHECK (number > 0),
    body BLOB NOT NULL
) STRICT;

-- The definitions as they are read.
CREATE VIEW read_definition AS
SELECT
    definition.id, definition.zone, coalesce(repaired.digest, CAST(definition.digest AS BLOB)) AS digest,
    iif(repaired.id IS NULL, definition.previous, repaired.previous) AS previous,
    coalesce(repaired.number, definition.number) AS number, coalesce(repaired.body, CAST(definition.body AS BLOB)) AS body
FROM definition LEFT JOIN repaired_definition AS repaired ON repaired.id = definition.id;

CREATE TRIGGER repaired_definition_update_refused BEFORE UPDATE ON repaired_definition
BEGIN
    SELECT RAISE(ABORT, 'repaired_definition is append-only');
END;

CREATE TRIGGER repaired_definition_delete_refused BEFORE DELETE ON repaired_definition
BEGIN
    SELECT RAISE(ABORT, 'repaired_definition is append-only');
END;

-- The sequences that are held, or were held before retention released them: a batch within these ranges is a duplicate.
CREATE TABLE held (
    stream INTEGER NOT NULL REFERENCES stream (id),
    origin INTEGER NOT NULL REFERENCES origin (id),
    first_sequence INTEGER NOT NULL CHECK (first_sequence > 0),
    last_sequence INTEGER NOT NULL CHECK (last_sequence >= first_sequence),
    first_previous_digest BLOB NOT NULL CHECK (length(first_previous_digest) = 16),
    last_digest BLOB NOT NULL CHECK (length(last_digest) = 16),
    PRIMARY KEY (stream, origin, first_sequence)
) STRICT, WITHOUT ROWID;

-- What is held in a stream of all origins of a zone but the one with the highest life (newest): how many ranges and
-- facts, the sum of a digest of each range, and where the highest begins. An append in the newest changes nothing here.
CREATE TABLE held_before (
    stream INTEGER NOT NULL REFERENCES stream (id),
    zone INTEGER NOT NULL REFERENCES zone (id),
    newest INTEGER NOT NULL REFERENCES origin (id),
    ranges INTEGER NOT NULL,
    facts INTEGER NOT NULL,
    digest_sum BLOB NOT NULL CHECK (length(digest_sum) = 16),
    highest_start INTEGER NOT NULL,
    PRIMARY KEY (stream, zone)
) STRICT, WITHOUT ROWID;

-- Sums of what a peer and this store hold of the lives of a zone before `floor`, of which a comparison found that
-- nothing was to be fetched: while both are the same, those lives are not listed again.
CREATE TABLE compared (
    peer TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES stream (id),
    zone INTEGER NOT NULL REFERENCES zone (id),
    floor BLOB NOT NULL CHECK (length(floor) = 16),
    our_ranges INTEGER NOT NULL,
    our_sum BLOB NOT NULL CHECK (length(our_sum) = 16),
    their_ranges INTEGER NOT NULL,
    their_sum BLOB NOT NULL CHECK (length(their_sum) = 16),
    PRIMARY KEY (peer, stream, zone)
) STRICT, WITHOUT ROWID;

-- Messages that applications appended here: digest of the id, digest of the content, offset. Generations of 65536 ids,
-- in the order in which they came, keep inserts in a part of the table that fits the cache.
CREATE TABLE message_index (
    stream INTEGER NOT NULL REFERENCES stream (id),
    generation INTEGER NOT NULL CHECK (generation >= 0),
    message_key BLOB NOT NULL CHECK (length(message_key) = 16),
    content_digest BLOB NOT NULL CHECK (length(content_digest) = 16),
    message_offset INTEGER NOT NULL,
    PRIMARY KEY (stream, generation, message_key)
) STRICT, WITHOUT ROWID;

-- Full generations: a filter of the keys that each may hold (message_filter.py), and the offset of its last message. A
-- damaged or missing row is built again from message_index.
CREATE TABLE message_filter (
    stream INTEGER NOT NULL REFERENCES stream (id),
    generation INTEGER NOT NULL CHECK (generation >= 0),
    last_offset INTEGER NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    body BLOB NOT NULL,
    PRIMARY KEY (stream, generation)
) STRICT;

-- Producers with a lease in a stream: the highest lease epoch presented or granted. A producer that presents a lower
-- one is fenced.
CREATE TABLE lease (
    stream INTEGER NOT NULL REFERENCES stream (id),
    producer TEXT NOT NULL,
    epoch INTEGER NOT NULL CHECK (epoch > 0),
    PRIMARY KEY (stream, producer)
) STRICT, WITHOUT ROWID;

-- The newest message about each subject, in streams of write class strong; the key is the digest of the subject.
CREATE TABLE subject (
    stream INTEGER NOT NULL REFERENCES stream (id),
    subject_key BLOB NOT NULL CHECK (length(subject_key) = 16),
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (stream, subject_key)
) STRICT, WITHOUT ROWID;

-- Consumers of a stream. frontier: everything up to this offset is confirmed. seen_unix_ms: last contact, written with
-- its confirmations, when its state changes, and at an orderly close. lease_epoch and lease_holder: which of several
-- instances with this name may continue.
CREATE TABLE consumer (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    zone TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES stream (id),
    state TEXT NOT NULL,
    start_offset INTEGER NOT NULL,
    frontier INTEGER NOT NULL CHECK (frontier >= start_offset),
    registered_unix_ms INTEGER NOT NULL,
    seen_unix_ms INTEGER,
    lease_epoch INTEGER NOT NULL DEFAULT 0 CHECK (lease_epoch >= 0),
    lease_holder TEXT NOT NULL DEFAULT ''
) STRICT;

-- What is confirmed beyond the frontier: ranges that neither overlap nor touch.
CREATE TABLE confirmed (
    consumer INTEGER NOT NULL REFERENCES consumer (id) ON DELETE CASCADE,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL CHECK (last_offset >= first_offset),
    PRIMARY KEY (consumer, first_offset)
) STRICT, WITHOUT ROWID;

-- How far a peer's stream has been stored here: for each of the newest lives of the peer's log, the last offset read and
-- the digest of its batch (empty where it is not known), written in the transaction that stores the facts. The last row
-- is the position.
CREATE TABLE trail (
    id INTEGER PRIMARY KEY,
    peer TEXT NOT NULL,
    stream INTEGER NOT NULL REFERENCES stream (id),
    life BLOB NOT NULL CHECK (length(life) IN (0, 16)),
    peer_offset INTEGER NOT NULL CHECK (peer_offset >= 0),
    digest BLOB NOT NULL CHECK (length(digest) IN (0, 16)),
    UNIQUE (peer, stream, life)
) STRICT;

-- The lives of a stream's log: each process that stored facts in it, and the first offset that it stored, written in
-- the transaction that stores that fact and never released. A life ends where the next one begins, or at the end.
-- is_forked: the life ran twice, or the clock jumped in it.
CREATE TABLE life (
    stream INTEGER NOT NULL REFERENCES stream (id),
    first_offset INTEGER NOT NULL CHECK (first_offset > 0),
    life BLOB NOT NULL CHECK (length(life) = 16),
    is_forked INTEGER NOT NULL DEFAULT 0 CHECK (is_forked IN (0, 1)),
    PRIMARY KEY (stream, first_offset),
    UNIQUE (stream, life)
) STRICT, WITHOUT ROWID;

-- What the next batch of an own zone follows in a stream, while what is held of its newest own life does not end there:
-- a peer has brought own facts back, or the other node of the zone has recorded since.
CREATE TABLE tip (
    stream INTEGER NOT NULL REFERENCES stream (id),
    zone TEXT NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence >= 0),
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    PRIMARY KEY (stream, zone)
) STRICT, WITHOUT ROWID;

-- Up to when the facts of a source are complete on that source's clock: all of them are held, or a held fact declares
-- them missing. part: empty for its values, `events`, or a tag that is complete up to an earlier time. ahead_ns: by how
-- much the source's clock was ahead of this node's then (NULL: not known).
CREATE TABLE completeness (
    source TEXT NOT NULL,
    part TEXT NOT NULL,
    complete_ns INTEGER NOT NULL,
    ahead_ns INTEGER,
    PRIMARY KEY (source, part)
) STRICT, WITHOUT ROWID;

-- What was lost, refused or damaged. A repeat of the same kind and subject increments count.
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

-- The artifacts to which held facts refer, with the last fact of each stream that does.
CREATE TABLE artifact (
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    stream INTEGER NOT NULL REFERENCES stream (id),
    last_offset INTEGER NOT NULL CHECK (last_offset > 0),
    PRIMARY KEY (digest, stream)
) STRICT, WITHOUT ROWID;

