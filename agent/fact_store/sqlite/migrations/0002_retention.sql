-- When a stream's log had come how far: at most one row a minute, written with the first append after it.
CREATE TABLE mark (
    stream INTEGER NOT NULL REFERENCES stream (id),
    first_offset INTEGER NOT NULL CHECK (first_offset > 0),
    bytes_total INTEGER NOT NULL CHECK (bytes_total >= 0),
    age_ms INTEGER NOT NULL CHECK (age_ms >= 0),
    unix_ms INTEGER NOT NULL,
    PRIMARY KEY (stream, first_offset)
) STRICT, WITHOUT ROWID;
