"""Opens a store's file as its only writer: PRAGMAs, schema, zone, the catalog from the tables, and the epoch in which
it continues.

Unattended, as in a node, an unusable file is quarantined and a new store begins in its place; a store that is an old
copy, or has lost the end of its write-ahead log, begins a new epoch. Attended, an exception is raised in these cases,
and nothing has changed. Opening reads no batch's body, and its time does not grow with the file.

One transaction makes and records all changes, so an interrupted opening is repeated. It also marks the store as open,
and a checkpoint brings the mark into the database file before the first append: from then on the log must be there
(decision 0046).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from agent.batch import Origin
from agent.fact_store.append import append_notice
from agent.fact_store.divergence.epoch_rules import (
    LogFound,
    Witness,
    ends_of,
    log_lost_because,
    restored_because,
)
from agent.fact_store.divergence.new_epoch import begin_epoch
from agent.fact_store.divergence.quarantine import (
    QuarantinedFile,
    keep_log,
    log_lost_earlier,
    quarantine,
    quarantined_files,
    suspect_reason,
)
from agent.fact_store.divergence.witness import LiveWitness, read_witness
from agent.fact_store.log import Catalog, StoreDamaged, StoreError, StoreUnusable
from agent.fact_store.sqlite import (
    QUERIES,
    Connect,
    MessageIndex,
    Transaction,
    WalHeader,
    begin_life,
    check_zone,
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
class _Found:
    """What an opening finds beside the tables."""

    path: Path
    zone: str
    now_unix_ms: int
    is_unattended: bool
    has_header: bool
    has_commits_behind: bool
    witness: Witness | None
    quarantined: str | None
    """The file just quarantined, which the new store reports. If it is None, a new store reports the newest one,
    because the life that quarantined it ended before it could report it."""


def open_writer(
    path: Path,
    zone: str,
    connect_to: Connect,
    now_unix_ms: int,
    signer: RecordSigner | None = None,
    *,
    is_unattended: bool,
) -> Opened:
    """Open the store of `zone` at `path`, whose lock the caller holds. Raises StoreUnusable."""
    why = None
    if file_bytes(path) == 0 and file_bytes(wal_path(path)):  # SQLite would delete the log
        why = "the database is missing or empty, but its write-ahead log exists"
    if not is_unattended:
        if why is not None:
            raise StoreDamaged(f"{path}: {why}")
        return _open(path, zone, connect_to, now_unix_ms, signer, is_unattended=False)
    why = suspect_reason(path) or why
    if why is None:
        try:
            return _open(path, zone, connect_to, now_unix_ms, signer, is_unattended=True)
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
    return _open(path, zone, connect_to, now_unix_ms, signer, is_unattended=True, quarantined=name)


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


def witness_of(catalog: Catalog) -> Witness:
    """The witness of a store in this state."""
    ends = {name: state.end_offset for name, state in catalog.streams.items()}
    return Witness(catalog.origin.epoch.hex(), ends, catalog.reseals)


def _open(
    path: Path,
    zone: str,
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
        is_cut = _has_commits_behind(connection, path, header)
        witness = read_witness(path) if is_unattended else None
        found = _Found(*(path, zone, now_unix_ms, is_unattended, header is not None, is_cut, witness, quarantined))
        _migrate(connection, path)
        opened = _load_or_begin_epoch(connection, found, signer)
        _checkpoint(connection)  # the mark of an open store is now in the database file itself
    except sqlite3.Error as error:
        close_and_keep_log(path, connection)
        raise reading_error(path, error) from error
    except StoreError:
        close_and_keep_log(path, connection)
        raise
    if not is_unattended:
        return opened
    # After the commit: a witness ahead of the store would begin a new epoch (decision 0047).
    return replace(opened, witness=LiveWitness(path, witness_of(opened.catalog)))


def _has_commits_behind(connection: sqlite3.Connection, path: Path, header: WalHeader | None) -> bool:
    """Whether SQLite has dropped synced commits from the log. Copies the valid frames into the database, which does
    not change the log."""
    frames = _checkpoint(connection)
    if header is None or frames is None:
        return False
    try:
        return has_commits_behind(path, header, frames)
    except OSError as error:
        raise StoreUnusable(f"{wal_path(path)} cannot be read: {error.strerror}", "check the disk") from error


def _checkpoint(connection: sqlite3.Connection) -> int | None:
    """Copy the log into the database; returns how many frames it has, None if the disk has no room."""
    frames: int | None = None
    with _undone_on_full_disk(connection):
        _, frames, _ = connection.execute(QUERIES["checkpoint"]).fetchone()
    return frames


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the file. An error may be a mistake of this program, so it must not make the file appear damaged."""
    try:
        migrate(connection)
    except sqlite3.Error as error:
        raise opening_error(path, error) from error


def _load_or_begin_epoch(connection: sqlite3.Connection, found: _Found, signer: RecordSigner | None) -> Opened:
    """Load the catalog, begin a new epoch if one is due, and record what happened, in one transaction.

    On a disk without room to reseal facts, the epoch still begins, and the facts keep their old origin.
    """
    try:
        return _load_and_begin(connection, found, signer, is_resealing=True)
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise
        _roll_back(connection)
        return _load_and_begin(connection, found, signer, is_resealing=False)


def _load_and_begin(
    connection: sqlite3.Connection, found: _Found, signer: RecordSigner | None, *, is_resealing: bool
) -> Opened:
    path = found.path
    connection.execute(QUERIES["begin"])
    with reading_tables(path):
        is_new = begin_life(connection, path, found.zone, found.now_unix_ms)
        check_zone(identity(connection, path), found.zone, path)
        (was_open,) = connection.execute(QUERIES["select_is_open"]).fetchone()
    catalog = load(connection, path)
    with reading_tables(path):
        index = MessageIndex.load(connection)
    transaction = Transaction(connection, catalog, index, found.now_unix_ms, catalog.age_ms, signer)
    why = None if is_new else _new_epoch_because(transaction, found, was_open=bool(was_open))
    if why is not None:
        held, witness = witness_of(catalog), found.witness
        known = witness if witness is not None and witness.epoch == held.epoch else None
        reseals = witness.reseals if witness is not None and is_resealing else ()
        if witness is not None:  # facts that peers hold of an epoch that this copy has never had are its own as well
            transaction.origin(Origin(found.zone, bytes.fromhex(witness.epoch)))
        # Earlier lives record no reads, so all facts count as read, and none is resealed for the first time (0041).
        begin_epoch(transaction, why, ends=ends_of(known, held), reseals=reseals)
    if is_new:
        _record_predecessor(transaction, found)
    with nullcontext() if is_new or why is not None else _undone_on_full_disk(connection):
        # On a full disk the mark and the filters of message ids are lost: a log that is deleted later is not noticed.
        if not was_open:
            connection.execute(QUERIES["update_is_open"], (1,))
        connection.execute(QUERIES["commit"])
    index.settle(is_durable=True)
    return Opened(connection, transaction.catalog, index)


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


def _new_epoch_because(transaction: Transaction, found: _Found, *, was_open: bool) -> str | None:
    """Why a new epoch is due; None if it is not. Raises StoreDamaged for a lost log unless the opening is
    unattended."""
    catalog = transaction.catalog
    epoch = catalog.origin.epoch.hex()
    lost = log_lost_because(LogFound(was_open, found.has_header, found.has_commits_behind))
    if lost is not None and not found.is_unattended:
        raise StoreDamaged(f"{found.path}: {lost}")
    if lost is not None:
        # Before this transaction writes to the log: the evidence may be overwritten before the new epoch is durable.
        lost = keep_log(found.path, epoch, lost, found.now_unix_ms)
        log.error("log_lost", extra={"path": str(found.path), "reason": lost})
    elif found.is_unattended:
        lost = log_lost_earlier(found.path, epoch)
    own = {one.epoch.hex() for one in transaction.origins_of(catalog.origin.zone)}
    old = restored_because(found.witness, own, witness_of(catalog))
    return "; ".join(why for why in (lost, old) if why is not None) or None


def _record_predecessor(transaction: Transaction, found: _Found) -> None:
    """Record in a new store the fate of its predecessor: quarantined, or missing except for its witness."""
    files = quarantined_files(found.path) if found.is_unattended else []
    reported = [one for one in files if one.file == found.quarantined] or files[-1:]
    witness = found.witness
    if witness is None:
        for one in reported:
            _record_quarantine(transaction, one)
        return
    # From here on that epoch is one of this store's own, so a witness that still names it begins no new epoch.
    transaction.origin(Origin(transaction.catalog.origin.zone, bytes.fromhex(witness.epoch)))
    name = found.path.name
    streams = ends_of(witness, Witness(witness.epoch, {}))
    about = {"previous_epoch": witness.epoch, "epoch": transaction.catalog.origin.epoch.hex(), "streams": streams}
    ends = ", ".join(f"{stream} up to {end_offset}" for stream, end_offset in sorted(witness.ends.items()))
    detail = f"{name} was missing or empty, a new store began; the one before had epoch {witness.epoch}, and"
    detail += f" acknowledged {ends or 'no facts'}: put a backup in place, or restore what peers hold"
    log.error("store_missing", extra={"path": str(found.path), "previous_epoch": witness.epoch})
    transaction.add_incident("missing", name, detail)
    append_notice(transaction, None, "store_missing", about, witness.epoch)


def _record_quarantine(transaction: Transaction, quarantined: QuarantinedFile) -> None:
    about = {"file": quarantined.file, "bytes": quarantined.bytes, "because": quarantined.why}
    detail = (
        f"{quarantined.why}; the file takes {quarantined.bytes} bytes:"
        " inspect it with bsfg store verify --file, then remove it"
    )
    transaction.add_incident("quarantined", quarantined.file, detail)
    append_notice(transaction, None, "store_quarantined", about, quarantined.file)
