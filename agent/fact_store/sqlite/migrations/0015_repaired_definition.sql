-- Tag definitions that a peer gave back, proven by a batch that is held; believed in the place of those in `definition`, which stay.
CREATE TABLE repaired_definition (
    origin INTEGER NOT NULL REFERENCES origin (id),
    number INTEGER NOT NULL CHECK (number > 0),
    digest BLOB NOT NULL CHECK (length(digest) = 16),
    body BLOB NOT NULL,
    PRIMARY KEY (origin, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER repaired_definition_update_refused BEFORE UPDATE ON repaired_definition
BEGIN
    SELECT RAISE(ABORT, 'repaired_definition is append-only');
END;

CREATE TRIGGER repaired_definition_delete_refused BEFORE DELETE ON repaired_definition
BEGIN
    SELECT RAISE(ABORT, 'repaired_definition is append-only');
END;
