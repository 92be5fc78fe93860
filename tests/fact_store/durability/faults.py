"""SQLite connections that differ from the store's: other pragmas, or failures where a test asks for them (the writer's,
at the n-th statement that matches)."""

import sqlite3
from collections.abc import Callable

from agent.fact_store.sqlite.connection import connect


class Faults:
    """Makes connections. Once armed, those that write raise `error` at the `count`-th statement that starts with
    `start`, counted from the first that starts with `after`: housekeeping commits too."""

    def __init__(self) -> None:
        self.start: str | None = None
        self.after: str | None = None
        self.count = 0
        self.error: Callable[[], sqlite3.Error] = disk_error

    def arm(self, start: str, count: int, error: Callable[[], sqlite3.Error], after: str | None = None) -> None:
        """Fail from now on."""
        self.start, self.count, self.error, self.after = start, count, error, after

    def connect(self, uri: str) -> sqlite3.Connection:
        """A `Connect` for the store."""
        if uri.endswith("mode=ro"):
            return connect(uri)
        faults = self

        class Faulty(sqlite3.Connection):
            def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:  # type: ignore[override]
                faults.strike(sql)
                return super().execute(sql, *parameters)  # type: ignore[arg-type]

            def executemany(self, sql: str, *parameters: object) -> sqlite3.Cursor:  # type: ignore[override]
                faults.strike(sql)
                return super().executemany(sql, *parameters)  # type: ignore[arg-type]

        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Faulty)

    def strike(self, sql: str) -> None:
        """Raise if this statement is the one to fail."""
        if self.after is not None and sql.startswith(self.after):
            self.after = None
        if self.start is None or self.after is not None or not sql.startswith(self.start):
            return
        self.count -= 1
        if self.count == 0:
            self.start = None
            raise self.error()


def connect_with(pragmas: dict[str, str | int], vfs: str = "") -> Callable[[str], sqlite3.Connection]:
    """A `Connect` whose writer has these pragmas from its first transaction on, after the store has set and read its
    own."""

    class Altered(sqlite3.Connection):
        is_altered = False

        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:  # type: ignore[override]
            if sql.startswith("BEGIN") and not self.is_altered:
                self.is_altered = True
                for name, value in pragmas.items():
                    super().execute(f"PRAGMA {name} = {value}").close()
                    assert super().execute(f"PRAGMA {name}").fetchone()[0] == value
            return super().execute(sql, *parameters)  # type: ignore[arg-type]

    def connect_altered(uri: str) -> sqlite3.Connection:
        if uri.endswith("mode=ro"):
            return connect(uri)
        uri += f"&vfs={vfs}" if vfs else ""
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Altered)

    return connect_altered


def _error(name: str, text: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorname = name
    return error


def disk_error() -> sqlite3.Error:
    """SQLite's error when fsync fails."""
    return _error("SQLITE_IOERR_FSYNC", "disk I/O error")


def full_error() -> sqlite3.Error:
    """SQLite's error when there is no space."""
    return _error("SQLITE_FULL", "database or disk is full")


def busy_error() -> sqlite3.Error:
    """SQLite's error when another program holds the write lock for too long."""
    return _error("SQLITE_BUSY", "database is locked")


def broken_error() -> sqlite3.Error:
    """SQLite's error when a page is malformed."""
    return _error("SQLITE_CORRUPT", "database disk image is malformed")
