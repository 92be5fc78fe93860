"""Connections to the store's file: one that writes, any number that read, and the lock that admits one writing process.

Guarantees: a writer has the settings on which durability rests, set and read back; a second process that wants to write
is refused (StoreLocked); the database file is opened only through SQLite, because closing any other descriptor of it
would drop SQLite's locks.

The lock is a separate file (`facts.db.lock`, flock): the kernel frees it when the process ends, for whatever reason.

Connections come from a `Connect` function, so that a test can inject faults.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from agent.errors import StoreBusy, StoreError, StoreFull
from agent.fact_store.core import (
    StoreDamaged,
    StoreFailed,
    StoreForbidden,
    StoreForeign,
    StoreLocked,
    StoreMissing,
    StoreUnusable,
)
from agent.fact_store.sqlite.queries import QUERIES
from agent.fact_store.sqlite.typed_rows import typed_row
from agent.fact_store.sqlite.wal_file import wal_path

Connect = Callable[[str], sqlite3.Connection]


class SecondWriter(sqlite3.DatabaseError):
    """Another connection has committed to the store's file while this one had it open."""


APPLICATION_ID = 0x42534647  # "BSFG", so that other programs can recognise the file
PAGE_BYTES = 4096
OPENING_BYTES = 1024 * 1024
"""Disk space that opening may need. A new store takes half of it (tables, their copy in the log, shared memory); an
existing one 36 kB, and 32 kB more for each 16 MB of log that a killed process has left."""
BUSY_MS = 5000  # only recovery after a crash, started by a reader, can make a writer wait

# Set in an empty file, before its first table; cannot be changed later.
_NEW_FILE = (
    ("page_size", PAGE_BYTES, PAGE_BYTES),
    ("auto_vacuum", "INCREMENTAL", 2),  # retention gives space back without rewriting the file
    ("application_id", APPLICATION_ID, APPLICATION_ID),  # last: this pragma writes to the file
)
# pragma, value to set, value to read back
_WRITER = (
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", 2),
    ("wal_autocheckpoint", 1000, 1000),  # background checkpoints were slower and let the WAL grow without bound
    ("journal_size_limit", 64 * 1024 * 1024, 64 * 1024 * 1024),
    ("cache_size", -8192, -8192),
    ("mmap_size", 0, 0),  # avoids SQLite's WAL-reset bug, and I/O errors as SIGBUS
    ("foreign_keys", "ON", 1),
    ("recursive_triggers", "ON", 1),  # without it, REPLACE deletes rows without running the triggers
    ("busy_timeout", BUSY_MS, BUSY_MS),
)
_READER = (
    ("query_only", "ON", 1),
    ("cache_size", -2048, -2048),
    ("mmap_size", 0, 0),
    ("busy_timeout", BUSY_MS, BUSY_MS),
)


def connect(uri: str) -> sqlite3.Connection:
    """A connection with explicit transactions only, usable from any one thread at a time."""
    found = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)
    found.row_factory = typed_row
    return found


def connect_to_copy(path: Path) -> Connect:
    """How a command connects to a file that it names. On a read-only disk SQLite cannot make its shared memory, so it
    is told that the file does not change; with a log beside it, facts would be missing, and SQLite refuses."""
    try:
        is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:  # the connection says why
        is_read_only = False
    is_whole = is_read_only and not wal_path(path).exists()
    return (lambda uri: connect(f"{uri}&immutable=1")) if is_whole else connect


def connect_writer(path: Path, connect_to: Connect = connect) -> sqlite3.Connection:
    """The only connection that writes `path`, which is created if it does not exist. The caller holds the lock. Raises
    StoreUnusable."""
    connection = None
    try:
        with private_files():  # SQLite gives its log and its shared memory the mode of the file
            connection = connect_to(_uri(path, "rwc"))
            if not _pragma(connection, "application_id") and not connection.execute(QUERIES["tables"]).fetchone()[0]:
                path.chmod(0o640)  # the group may read: the page does, which is another user
                _set(connection, _NEW_FILE)  # also after a power cut in the middle: SQLite commits each by itself
        found = _pragma(connection, "application_id")
        if found != APPLICATION_ID:
            raise StoreForeign(f"{path} is a SQLite file of another program (application id {found})", "name another")
        _set(connection, _WRITER)
    except (sqlite3.Error, UnicodeDecodeError, StoreUnusable) as error:
        if connection is not None:
            # Close at once: a later close could delete the log of another file that has this name by then.
            close_and_keep_log(path, connection)
        if isinstance(error, StoreUnusable):
            raise
        if isinstance(error, UnicodeDecodeError):  # SQLite's message quotes damaged text, and Python expects UTF-8
            raise StoreDamaged(f"{path}: {error}") from error
        raise opening_error(path, error) from error
    return connection


def close_and_keep_log(path: Path, connection: sqlite3.Connection) -> None:
    """Close a writer and leave the write-ahead log as it is. SQLite would copy it into the database and delete it when
    the last connection closes: a later opening could not examine it, and would miss it (decision 0046).

    Raises sqlite3.Error.
    """
    log, kept = wal_path(path), wal_path(path).with_name(f"{path.name}-wal.kept")
    with ExitStack() as last:
        try:
            reader = last.enter_context(closing(connect(_uri(path, "ro"))))
            reader.execute(QUERIES["tables"]).fetchone()  # from here on the writer is not the last connection to close
        except (sqlite3.Error, UnicodeDecodeError):  # the database is unreadable: the log gets a second name
            with suppress(OSError):
                kept.unlink(missing_ok=True)
                kept.hardlink_to(log)
                last.callback(kept.unlink, missing_ok=True)  # the rename does nothing while the log is still there
                last.callback(kept.replace, log)
        connection.close()


def connect_reader(path: Path, connect_to: Connect = connect) -> sqlite3.Connection:
    """A connection that cannot write or checkpoint. Raises StoreUnusable."""
    try:
        if not path.exists():
            raise StoreMissing(f"{path} does not exist", "start the node once, or correct the path")
        if not os.access(path, os.R_OK):
            raise StoreForbidden(f"this user may not read {path}")
        if not path.is_file():  # opening a pipe, as <(zcat copy.gz) is one, would block forever
            raise StoreForeign(f"{path} is not a file", "correct the path")
    except PermissionError as error:  # the folder cannot be entered
        raise StoreForbidden(f"this user may not read {path}") from error
    with ExitStack() as on_error:
        with reading_tables(path):
            connection = on_error.enter_context(closing(connect_to(_uri(path, "ro"))))
            _set(connection, _READER)
            found = _pragma(connection, "application_id")
        if found != APPLICATION_ID:
            raise StoreForeign(f"{path} is not a fact store (application id {found})", "correct the path")
        on_error.pop_all()
    return connection


@contextmanager
def private_files() -> Iterator[None]:
    """Make files and folders that any thread of this process creates meanwhile readable by its user alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def lock(path: Path) -> int:
    """Hold the store at `path` for this process until `unlock`; raises StoreLocked, StoreMissing or StoreUnusable."""
    if not path.parent.is_dir():
        raise StoreMissing(f"the folder {path.parent} does not exist", "create it, or correct state_dir")
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StoreUnusable(
            f"{path.parent} cannot be written: {error.strerror}",
            "the node's user must own state_dir, on a writable disk",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreLocked(f"{path} is open in another process (pid {holder})") from error
    with suppress(OSError):  # the pid, for StoreLocked; a full disk must not keep the store from opening
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def unlock(descriptor: int) -> None:
    """Release the lock. The lock file stays: if it were removed, two processes could lock two files of one name."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def file_bytes(path: Path) -> int:
    """Size of a file in bytes, 0 if there is none; does not open the file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def disk_free(folder: Path) -> int | None:
    """Free bytes of a folder's disk for this user; None if they cannot be read."""
    with suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    return None


def room_hint() -> str:
    """The hint for a disk with too little room to open a store."""
    return f"opening a store may need {OPENING_BYTES:,} bytes; free some"


def opening_error(path: Path, error: sqlite3.Error) -> StoreUnusable:
    """The store's error for an SQLite error at opening."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return StoreDamaged(f"{path}: {error}")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreLocked(f"{path}: {error}")
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")):
        return StoreUnusable(f"{path}: {error} ({name})", f"the disk is full; {room_hint()}")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return StoreUnusable(
            f"{path}: {error}",
            "check owner and mode of the file and its folder, and that the disk is writable; "
            "on a read-only disk a copy can be read if no -wal is beside it: otherwise copy both to another",
        )
    return StoreUnusable(f"{path}: {error} ({name or type(error).__name__})", "check the disk")


@contextmanager
def one_state(connection: sqlite3.Connection) -> Iterator[None]:
    """A read transaction, or a part of one: all statements see one state of the file."""
    is_part = connection.in_transaction
    if not is_part:
        connection.execute(QUERIES["begin_read"])
    try:
        yield
    finally:
        if not is_part and connection.in_transaction:  # after a disk error, SQLite has ended it already
            connection.execute(QUERIES["rollback"])


@contextmanager
def reading_tables(path: Path) -> Iterator[None]:
    """Raise StoreUnusable for errors in code that only reads tables of this program. What SQLite cannot read there is
    damage, and so is a value or a reference that no program wrote."""
    try:
        yield
    except sqlite3.Error as error:
        raise reading_error(path, error) from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise StoreDamaged(f"{path}: a table holds an impossible value: {error}") from error


def reading_error(path: Path, error: sqlite3.Error) -> StoreUnusable:
    """The store's error for an SQLite error while opening, or reading tables of this program."""
    # An opening inserts only rows that the table does not have, so a violated constraint means a damaged index.
    if is_damage(error) or isinstance(error, sqlite3.IntegrityError):
        return StoreDamaged(f"{path}: {error}")
    return opening_error(path, error)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error of a reading statement means a damaged file, and not a disk error or a lock."""
    name = getattr(error, "sqlite_errorname", "")
    is_text = not name and "UTF-8" in str(error)  # raised by Python for damaged text
    return is_text or name == "SQLITE_ERROR" or name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT"))


def running_error(path: Path, error: sqlite3.Error) -> StoreError:
    """The store's error for an SQLite error while it is open. StoreBusy and StoreFull, raised before anything is
    written, do not end the writer."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if isinstance(error, SecondWriter):
        return StoreFailed(f"{path}: another program has written to the store", "end it, then restart the node")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(
            f"{path}: {error}", "another program holds a lock on the store; end it (only mode=ro may read)"
        )
    if name.startswith("SQLITE_FULL"):
        return StoreFull(f"{path}: {error}")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreDamaged(f"{path}: {error} ({name})")
    return StoreFailed(f"{path}: {error} ({name})")


def _set(connection: sqlite3.Connection, pragmas: tuple[tuple[str, str | int, str | int], ...]) -> None:
    """Set each pragma and read it back: SQLite ignores an invalid value without an error."""
    for name, value, expected in pragmas:
        connection.execute(f"PRAGMA {name} = {value}").close()
        found = _pragma(connection, name)
        if found != expected:
            raise StoreUnusable(
                f"SQLite reports {name} = {found!r} after it was set to {expected!r}",
                "the store needs a local file system with shared memory and locks (no network share)",
            )


def _pragma(connection: sqlite3.Connection, name: str) -> str | int | None:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    return None if row is None else row[0]


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"
