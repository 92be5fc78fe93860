-- The flat SQLite file that `bsfg store export` writes, by name.

-- create_facts: every fact as a row, as docs/reference/export.md lists the columns
CREATE TABLE facts (
    stream TEXT NOT NULL,
    "offset" INTEGER NOT NULL,
    zone TEXT NOT NULL,
    life TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    predicate TEXT NOT NULL,
    tag INTEGER,
    value,
    value_type TEXT,
    value_text TEXT,
    unit TEXT,
    quality INTEGER,
    is_good INTEGER,
    source_time TEXT NOT NULL,
    source_time_ns INTEGER NOT NULL,
    object_json TEXT,
    message_id TEXT,
    from_zone TEXT,
    to_zone TEXT,
    correlation_id TEXT,
    causation_id TEXT,
    labels_json TEXT,
    verified TEXT NOT NULL
);

-- insert_fact: one fact
INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- index_offset: made at the end, when it costs a sort and not a search for each row
CREATE UNIQUE INDEX facts_by_offset ON facts (stream, "offset");

-- index_subject: a tag's values in the order of time
CREATE INDEX facts_by_subject ON facts (subject, source_time_ns);

-- index_time: the facts of a time
CREATE INDEX facts_by_time ON facts (source_time_ns);
