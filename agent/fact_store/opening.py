"""Opening a store's file as its only writer: settings, schema, whose it is, and what the tables say."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agent.fact_store.connection import connect_writer, lock, opening_error, unlock
from agent.fact_store.migrations import migrate


def migrate_store(path: Path) -> None:
    """Take the store at `path` to the schema of this program. Raises StoreUnusable; then nothing has changed."""
    descriptor = lock(path)
    try:
        connection = connect_writer(path)
        try:
            migrate(connection)
        except sqlite3.Error as error:
            raise opening_error(path, error) from error
        finally:
            connection.close()
    finally:
        unlock(descriptor)
