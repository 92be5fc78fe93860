"""The store's file: connections and their PRAGMAs, schema and migrations, transactions, recovery at opening, message
ids.

Only this folder opens the file or names a table; all statements are in `queries.sql`.
"""

from agent.fact_store.sqlite.connection import (
    OPENING_BYTES,
    Connect,
    SecondWriter,
    close_and_keep_log,
    connect,
    connect_reader,
    connect_to_copy,
    connect_writer,
    disk_free,
    file_bytes,
    is_damage,
    lock,
    one_state,
    opening_error,
    private_files,
    reading_error,
    reading_tables,
    room_hint,
    running_error,
    unlock,
)
from agent.fact_store.sqlite.growing_rows import (
    KnownRows,
    StoredLives,
    held_of,
    origins_of,
    ranges_of,
    read_definitions,
)
from agent.fact_store.sqlite.message_index import MessageIndex
from agent.fact_store.sqlite.migrations import FILES, check_known, migrate
from agent.fact_store.sqlite.queries import QUERIES, named_statements
from agent.fact_store.sqlite.recovery import begin_store, check_names, identity, load
from agent.fact_store.sqlite.transaction import Transaction, holds_other
from agent.fact_store.sqlite.wal_file import (
    NO_LOG,
    LogEnd,
    LogFollower,
    WalHeader,
    has_commits_behind,
    read_header,
    wal_path,
)
