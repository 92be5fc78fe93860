-- The tables of `bsfg sql`, by name. Each but the view is virtual: its rows are read from the store when a statement
-- needs them.

-- facts: every fact as a row, columns as agent/query/scan/fact_columns.py lists them; hidden ones are there when named
CREATE TABLE facts (
    stream TEXT,
    offset INTEGER,
    zone TEXT,
    life TEXT HIDDEN,
    sequence INTEGER,
    kind TEXT,
    subject TEXT,
    predicate TEXT,
    tag INTEGER,
    value,
    value_type TEXT,
    value_text TEXT HIDDEN,
    unit TEXT,
    quality INTEGER,
    is_good INTEGER HIDDEN,
    source_time TEXT COLLATE moment,
    source_time_ns INTEGER,
    object_json TEXT,
    message_id TEXT HIDDEN,
    from_zone TEXT HIDDEN,
    to_zone TEXT HIDDEN,
    correlation_id TEXT HIDDEN,
    causation_id TEXT HIDDEN,
    labels_json TEXT HIDDEN,
    verified TEXT HIDDEN
);

-- samples: for each tag and source time the sample that counts, as agent.message.SampleRank orders them
CREATE VIEW samples AS
SELECT stream, offset, zone, life, sequence, subject, predicate, tag, value, value_type, value_text, unit, quality,
    is_good, source_time, source_time_ns
FROM (
    SELECT *, life, value_text, is_good, row_number() OVER (
        PARTITION BY zone, subject, predicate, source_time_ns ORDER BY life DESC, offset DESC
    ) AS place
    FROM facts WHERE kind = 'sample'
)
WHERE place = 1;

-- latest: the latest value of every tag, and the staleness of its source; see agent/query/latest/
CREATE TABLE latest (
    zone TEXT,
    subject TEXT,
    predicate TEXT,
    value,
    value_type TEXT,
    value_text TEXT HIDDEN,
    unit TEXT,
    quality INTEGER,
    is_good INTEGER HIDDEN,
    source_time TEXT COLLATE moment,
    source TEXT,
    as_of TEXT COLLATE moment,
    staleness_ms INTEGER,
    mode TEXT,
    stream TEXT,
    offset INTEGER,
    ahead_ms INTEGER
);

-- definitions: what tag numbers stand for, per chain of a zone: nearly every zone has one, named by its last digest
CREATE TABLE definitions (
    zone TEXT,
    chain TEXT,
    tag INTEGER,
    subject TEXT,
    predicate TEXT,
    unit TEXT,
    source TEXT,
    address TEXT,
    data_type TEXT,
    description TEXT,
    enumeration TEXT,
    acquisition TEXT
);

-- streams: the logs of the store
CREATE TABLE streams (name TEXT, first_offset INTEGER, end_offset INTEGER, facts INTEGER, bytes INTEGER);

-- consumers: the consumers of each stream, and how far they have read
CREATE TABLE consumers (name TEXT, zone TEXT, stream TEXT, frontier INTEGER, behind_facts INTEGER);

-- incidents: what was lost, refused or damaged
CREATE TABLE incidents (
    kind TEXT,
    subject TEXT,
    detail TEXT,
    count INTEGER,
    first_time TEXT COLLATE moment,
    last_time TEXT COLLATE moment
);
