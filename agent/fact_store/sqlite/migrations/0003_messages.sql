-- Message ids in generations: a table keyed by random ids alone falls to a tenth of its speed past a million of them.

ALTER TABLE message_index RENAME TO message_index_before;

CREATE TABLE message_index (
    stream INTEGER NOT NULL REFERENCES stream (id),
    generation INTEGER NOT NULL CHECK (generation >= 0),
    message_key BLOB NOT NULL CHECK (length(message_key) = 16),
    content_digest BLOB NOT NULL CHECK (length(content_digest) = 16),
    message_offset INTEGER NOT NULL,
    PRIMARY KEY (stream, generation, message_key)
) STRICT, WITHOUT ROWID;

INSERT INTO message_index (stream, generation, message_key, content_digest, message_offset)
SELECT
    stream,
    (row_number() OVER (PARTITION BY stream ORDER BY message_offset) - 1) / 65536,
    message_key,
    content_digest,
    message_offset
FROM message_index_before
ORDER BY 1, 2, 3;

DROP TABLE message_index_before;

CREATE TABLE message_filter (
    stream INTEGER NOT NULL REFERENCES stream (id),
    generation INTEGER NOT NULL CHECK (generation >= 0),
    last_offset INTEGER NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    body BLOB NOT NULL,
    PRIMARY KEY (stream, generation)
) STRICT;

CREATE TABLE lease (
    stream INTEGER NOT NULL REFERENCES stream (id),
    producer TEXT NOT NULL,
    epoch INTEGER NOT NULL CHECK (epoch > 0),
    PRIMARY KEY (stream, producer)
) STRICT, WITHOUT ROWID;

CREATE TABLE subject (
    stream INTEGER NOT NULL REFERENCES stream (id),
    subject_key BLOB NOT NULL CHECK (length(subject_key) = 16),
    last_offset INTEGER NOT NULL,
    PRIMARY KEY (stream, subject_key)
) STRICT, WITHOUT ROWID;
