-- Origins of which a peer has offered facts again that were released here and could not be compared. Should their zone go on under another
-- epoch, what was taken for a repetition may have been another history.
CREATE TABLE unproven (
    stream INTEGER NOT NULL REFERENCES stream (id),
    origin INTEGER NOT NULL REFERENCES origin (id),
    PRIMARY KEY (stream, origin)
) STRICT, WITHOUT ROWID;
