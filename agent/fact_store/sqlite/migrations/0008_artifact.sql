-- To which artifacts held facts refer (artifact.py): the last fact of each stream that does.
CREATE TABLE artifact (
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    stream INTEGER NOT NULL REFERENCES stream (id),
    last_offset INTEGER NOT NULL CHECK (last_offset > 0),
    PRIMARY KEY (digest, stream)
) STRICT, WITHOUT ROWID;
