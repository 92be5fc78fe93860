-- How far each zone was handed a stream's log, so that a peer that has read on finds out that this is an old copy of what it read. NULL
-- while it reads. In streams that are older than this table anybody ('') may have been handed all of it.
CREATE TABLE handed (
    stream INTEGER NOT NULL REFERENCES stream (id),
    zone TEXT NOT NULL,
    until_offset INTEGER CHECK (until_offset >= 0),
    PRIMARY KEY (stream, zone)
) STRICT, WITHOUT ROWID;

INSERT INTO handed
SELECT s.id, '', max(s.released_offset, coalesce((SELECT max(b.last_offset) FROM batch b WHERE b.stream = s.id), 0)) FROM stream s;
