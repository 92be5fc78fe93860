"""The processes that hold the write-ahead log of a store."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from agent.cli.health.status import lasting_readers


def test_a_reader_that_does_not_end_is_named(tmp_path: Path) -> None:
    """Only while its transaction is open: a connection alone holds nothing."""
    file = tmp_path / "facts.db"
    assert lasting_readers(file) == []
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.executescript("PRAGMA journal_mode=WAL; CREATE TABLE fact (value); INSERT INTO fact VALUES (1)")
        assert lasting_readers(file) == []
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM fact").fetchall()
        (found,) = lasting_readers(file)
        assert found.split()[0] == str(os.getpid())
        reader.execute("COMMIT")
        assert lasting_readers(file) == []
