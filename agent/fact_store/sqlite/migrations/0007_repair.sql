-- What the disk has damaged is remembered until it is repaired, and the repaired batch lies beside the damaged one.

CREATE TABLE damage (
    stream INTEGER NOT NULL REFERENCES stream (id),
    origin INTEGER NOT NULL REFERENCES origin (id),
    first_sequence INTEGER NOT NULL CHECK (first_sequence > 0),
    last_sequence INTEGER NOT NULL CHECK (last_sequence >= first_sequence),
    PRIMARY KEY (stream, origin, first_sequence)
) STRICT, WITHOUT ROWID;

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
