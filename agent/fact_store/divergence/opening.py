"""Opens a store's file as its only writer: PRAGMAs, schema, zone, the catalog from the tables.

Unattended, as in a node, an unusable file is quarantined and a new store begins in its place; a store that is an old
copy, or has lost the end of its write-ahead log, says so in an incident and a fact, and goes on: what it records has
the life of this opening. Attended, a lost log is an exception, and nothing has changed. Opening reads no batch's body,
and its time does not grow with the file.

One transaction makes and records all changes. It also counts the opening and marks the store as open, and a checkpoint
brings the mark into the database file before the first append: from then on the log must be there (decision 0046). An
opening that is interrupted before it has changed nothing but the log, so a lost log is noted beside the store first.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import StoreError
from agent.fact_store.append import append_notice
from agent.fact_store.core import Catalog, StoreDamaged, StoreNames, StoreUnusable
from agent.fact_store.divergence.quarantine import (
    QuarantinedFile,
    forget_lost_log,
    keep_log,
    lost_log_reason,
    quarantine,
    quarantined_files,
    suspect_reason,
)
from agent.fact_store.divergence.witness import LiveWitness, WitnessedEnds, read_witness
from agent.fact_store.sqlite import (
    NO_LOG,
    QUERIES,
    Connect,
    LogEnd,
    MessageIndex,
    Transaction,
    WalHeader,
    begin_store,
    check_names,
    close_and_keep_log,
    connect_writer,
    file_bytes,
    has_commits_behind,
    identity,
    load,
    lock,
    migrate,
    opening_error,
    read_header,
    reading_error,
    reading_tables,
    unlock,
    wal_path,
)
from agent.signing.records import RecordSigner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """What the writer starts with. `witness`: of an unattended opening, to be updated after each commit."""

    connection: sqlite3.Connection
    catalog: Catalog
    index: MessageIndex
    witness: LiveWitness | None = None


@dataclass(frozen=True, slots=True)
class _StoreFiles:
    """What an opening finds beside the tables."""

    path: Path
    names: StoreNames
    now_unix_ms: int
    is_unattended: bool
    has_header: bool
    has_commits_behind: bool
    log: LogEnd
    """Up to the last commit that SQLite reads."""
    witness: WitnessedEnds | None
    quarantined: str | None
    """The file just quarantined, which the new store reports. If it is None, a new store reports the newest one,
    because the life that quarantined it ended before it could report it."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """What an opening finds lost. `log_because`: why the end of the log is, as far as the log or its witness proves it;
    `streams`: those that end before what was acknowledged, with both ends; `is_log_cut`: the log is shorter than what
    was acknowledged, so that a checkpoint may have left pages of two states."""

    log_because: str | None = None
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    is_log_cut: bool = False


_NOTHING_LOST = _Lost()


def open_writer(
    path: Path,
    names: StoreNames,
    connect_to: Connect,
    now_unix_ms: int,
    signer: RecordSigner | None = None,
    *,
    is_unattended: bool,
) -> Opened:
    """Open the store of a node at `path`, whose lock the caller holds. Raises StoreUnusable."""
    why = None
    if file_bytes(path) == 0 and file_bytes(wal_path(path)):  # SQLite would delete the log
        why = "the database is missing or empty, but its write-ahead log exists"
    if not is_unattended:
        if why is not None:
            raise StoreDamaged(f"{path}: {why}")
        return _open(path, names, connect_to, now_unix_ms, signer, is_unattended=False)
    why = suspect_reason(path) or why
    if why is None:
        try:
            return _open(path, names, connect_to, now_unix_ms, signer, is_unattended=True)
        except StoreDamaged as error:
            why = error.why
    try:
        target = quarantine(path, why, now_unix_ms)
    except OSError as error:
        raise StoreUnusable(
            f"{path} is damaged ({why}) and cannot be renamed: {error.strerror}", "move it aside by hand"
        ) from error
    log.error("store_quarantined", extra={"path": str(path), "as": target.name, "reason": why})
    name = target.name if target.exists() else wal_path(target).name
    return _open(path, names, connect_to, now_unix_ms, signer, is_unattended=True, quarantined=name)


def migrate_store(path: Path) -> None:
    """Migrate the store at `path` to the schema of this program. Raises StoreUnusable; then nothing has changed."""
    descriptor = lock(path)
    try:
        connection = connect_writer(path)
        try:
            migrate(connection)
        except sqlite3.Error as error:
            raise opening_error(path, error) from error
        finally:
            close_and_keep_log(path, connection)  # it may be the log of a life that was not closed
    finally:
        unlock(descriptor)


def _open(
    path: Path,
    names: StoreNames,
    connect_to: Connect,
    now_unix_ms: int,
    signer: RecordSigner | None,
    *,
    is_unattended: bool,
    quarantined: str | None = None,
) -> Opened:
    header = read_header(path)  # before SQLite connects: a first write may replace the log
    connection = connect_writer(path, connect_to)
    try:
        frames = _checkpoint(connection)
        is_cut = _has_commits_behind(path, header, frames)
        witness = read_witness(path) if is_unattended else None
        left = NO_LOG if header is None or frames is None else LogEnd(header.salts, frames)
        found = _StoreFiles(
            path, names, now_unix_ms, is_unattended, header is not None, is_cut, left, witness, quarantined
        )
        _migrate(connection, path)
        return _load(connection, found, signer)
    except sqlite3.Error as error:
        close_and_keep_log(path, connection)
        raise reading_error(path, error) from error
    except StoreError:
        close_and_keep_log(path, connection)
        raise


def _has_commits_behind(path: Path, header: WalHeader | None, frames: int | None) -> bool:
    """Whether SQLite has dropped synced commits from the log, of which it has read so many frames."""
    if header is None or frames is None:
        return False
    try:
        return has_commits_behind(path, header, frames)
    except OSError as error:
        raise StoreUnusable(f"{wal_path(path)} cannot be read: {error.strerror}", "check the disk") from error


def _checkpoint(connection: sqlite3.Connection) -> int | None:
    """Copy the log's valid frames into the database, which does not change the log; returns how many there are, None if
    the disk has no room, or another program is doing the same."""
    frames = -1
    with _undone_on_full_disk(connection):
        _, frames, _ = connection.execute(QUERIES["checkpoint"]).fetchone()
    return frames if frames >= 0 else None


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the file. An error may be a mistake of this program, so it must not make the file appear damaged."""
    try:
        migrate(connection)
    except sqlite3.Error as error:
        raise opening_error(path, error) from error


def _load(connection: sqlite3.Connection, found: _StoreFiles, signer: RecordSigner | None) -> Opened:
    """Load the catalog and record what was found, in one transaction."""
    path = found.path
    connection.execute(QUERIES["begin"])
    with reading_tables(path):
        is_new = begin_store(connection, path, found.names, found.now_unix_ms)
        check_names(identity(connection, path), found.names, path)
        was_open, openings = connection.execute(QUERIES["select_openings"]).fetchone()
    catalog = load(connection, path)
    with reading_tables(path):
        index = MessageIndex.load(connection)
    lost = _NOTHING_LOST if is_new else _lost(found, openings, _ends(catalog), was_open=bool(was_open))
    opening = 1 + max(openings, found.witness.opening if found.witness is not None else 0)
    transaction = Transaction(connection, catalog, index, found.now_unix_ms, catalog.age_ms, signer)
    try:
        if is_new:
            _record_predecessor(transaction, found)
        else:
            _record_losses(transaction, found, lost)
        connection.execute(QUERIES["update_openings"], (opening,))
        connection.execute(QUERIES["commit"])
    except sqlite3.OperationalError as error:
        if is_new or not error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise
        # The store opens without what it could not record, and keeps the witness for the next opening: a log that is
        # deleted later is not noticed.
        _roll_back(connection)
        index.settle(is_durable=False)
        return Opened(connection, catalog, index)
    index.settle(is_durable=True)
    forget_lost_log(path)
    frames = _checkpoint(connection)  # the mark of an open store is now in the database file itself
    # After the commit: a witness ahead of the store would be an alarm at the next opening.
    ends = _ends(transaction.catalog)
    witness = LiveWitness(path, opening, ends, frames) if found.is_unattended else None
    return Opened(connection, transaction.catalog, index, witness)


@contextmanager
def _undone_on_full_disk(connection: sqlite3.Connection) -> Iterator[None]:
    """On a disk without room, roll back the block and continue: the store can be opened without its changes."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise
        _roll_back(connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Roll back, unless SQLite has done so by itself."""
    if connection.in_transaction:
        connection.execute(QUERIES["rollback"])


def _lost(found: _StoreFiles, openings: int, ends: Mapping[str, int], *, was_open: bool) -> _Lost:
    """What of the last life is missing, unless an opening since has recorded it. Raises StoreDamaged if the log proves
    it, unless the opening is unattended.

    A power cut causes neither damage of the log: the header is synced before the first frame, and at most one
    transaction is unsynced (decision 0046).
    """
    why = lost_log_reason(found.path, openings)
    witness = found.witness if found.witness is not None and found.witness.opening >= openings else None
    missing = witness.missing(ends) if witness is not None else {}
    is_cut = witness is not None and witness.is_past(found.log)
    if was_open and not found.has_header:
        why = "the store was not closed, and its write-ahead log is missing or damaged from its beginning"
    elif why is None and found.has_commits_behind:
        why = "its write-ahead log is damaged, and commits follow the damage"
    elif why is None and is_cut and not missing:
        why = "its write-ahead log ends before the last commit that was acknowledged"
    if why is None:
        return _Lost(None, missing, is_cut)
    if not found.is_unattended:
        raise StoreDamaged(f"{found.path}: {why}")
    return _Lost(keep_log(found.path, why, found.now_unix_ms, openings), missing, is_cut)


def _ends(catalog: Catalog) -> dict[str, int]:
    return {name: state.end_offset for name, state in catalog.streams.items()}


def _record_losses(transaction: Transaction, found: _StoreFiles, lost: _Lost) -> None:
    """Say that the store has less than it acknowledged. What is missing comes back from peers by comparison."""
    catalog, name, missing = transaction.catalog, found.path.name, lost.streams
    ends = ", ".join(f"{stream} ends at {end}, {known} was acknowledged" for stream, (end, known) in missing.items())
    about: dict[str, object] = {
        "life": catalog.life.hex(),
        "streams": [
            {"stream": stream, "end_offset": end, "known_end_offset": known} for stream, (end, known) in missing.items()
        ],
    }
    if lost.log_because is not None or lost.is_log_cut:
        # Pages of two states may name definitions that are gone: the tags are defined anew.
        catalog.own_definitions = {}
    if lost.log_because is not None:
        log.error("log_lost", extra={"path": str(found.path), "reason": lost.log_because})
        transaction.add_incident("log_lost", name, f"{lost.log_because}{f'; {ends}' if ends else ''}")
        append_notice(transaction, None, "log_lost", {**about, "because": lost.log_because}, catalog.life.hex())
    elif missing:
        log.error("store_restored", extra={"path": str(found.path), "reason": ends})
        transaction.add_incident("restored", name, f"{name} is an old copy, or lost its end: {ends}")
        append_notice(transaction, None, "store_restored", about, catalog.life.hex())


def _record_predecessor(transaction: Transaction, found: _StoreFiles) -> None:
    """Record in a new store the fate of its predecessor: quarantined, or missing except for its witness."""
    files = quarantined_files(found.path) if found.is_unattended else []
    reported = [quarantined for quarantined in files if quarantined.file == found.quarantined] or files[-1:]
    if found.witness is None:
        for quarantined in reported:
            _record_quarantine(transaction, quarantined)
        return
    name, life = found.path.name, transaction.catalog.life.hex()
    known = sorted(found.witness.ends.items())
    streams = [{"stream": stream, "known_end_offset": end} for stream, end in known]
    ends = ", ".join(f"{stream} up to {end_offset}" for stream, end_offset in known)
    detail = f"{name} was missing or empty, a new store began; the one before acknowledged {ends or 'no facts'}: put a"
    detail += " backup in place, or let what peers hold come home"
    log.error("store_missing", extra={"path": str(found.path)})
    transaction.add_incident("missing", name, detail)
    append_notice(transaction, None, "store_missing", {"life": life, "streams": streams}, life)


def _record_quarantine(transaction: Transaction, quarantined: QuarantinedFile) -> None:
    about = {"file": quarantined.file, "bytes": quarantined.bytes, "because": quarantined.why}
    detail = (
        f"{quarantined.why}; the file takes {quarantined.bytes} bytes:"
        " inspect it with bsfg store verify --file, then remove it"
    )
    transaction.add_incident("quarantined", quarantined.file, detail)
    append_notice(transaction, None, "store_quarantined", about, quarantined.file)
