"""Opens a store's file as its only writer: PRAGMAs, schema, zone, the catalog from the tables, and the epoch it
continues in.

Unattended, as a node opens it, a file that cannot be used is quarantined and a new store begins in its place, and a
store that is found to be an old copy begins a new epoch. Otherwise the caller gets the exception, and nothing has
changed. Opening reads no batch's body, and its time does not grow with the file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent.batch import EPOCH_BYTES, Origin
from agent.fact_store.append import append_notice
from agent.fact_store.divergence.epoch_rules import Witness, may_begin_for_peer, restored_because
from agent.fact_store.divergence.high_water import ReadHighWater
from agent.fact_store.divergence.quarantine import QuarantinedFile, quarantine, quarantined_files, suspect_reason
from agent.fact_store.divergence.reseal import Resealed, repeat_reseals, reseal_unread
from agent.fact_store.divergence.witness import read_witness, write_witness
from agent.fact_store.log import Catalog, StoreDamaged, StoreError, StoreUnusable
from agent.fact_store.sqlite import (
    QUERIES,
    Connect,
    MessageIndex,
    Transaction,
    begin_life,
    check_zone,
    connect_writer,
    identity,
    load,
    lock,
    migrate,
    opening_error,
    reading_error,
    reading_tables,
    unlock,
)
from agent.signing.heads import HeadSigner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """What the writer starts with."""

    connection: sqlite3.Connection
    catalog: Catalog
    index: MessageIndex


def open_writer(
    path: Path,
    zone: str,
    connect_to: Connect,
    now_unix_ms: int,
    signer: HeadSigner | None = None,
    *,
    is_unattended: bool,
) -> Opened:
    """Open the store of `zone` at `path`, whose lock the caller holds. Raises StoreUnusable."""
    if not is_unattended:
        return _open(path, zone, connect_to, now_unix_ms, signer, is_unattended=False)
    why = suspect_reason(path)
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
    return _open(path, zone, connect_to, now_unix_ms, signer, is_unattended=True, quarantined=target.name)


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
            connection.close()
    finally:
        unlock(descriptor)


def witness_of(catalog: Catalog) -> Witness:
    """The witness of a store in this state."""
    ends = {name: state.end_offset for name, state in catalog.streams.items()}
    return Witness(catalog.origin.epoch.hex(), ends, catalog.reseals)


def peer_is_ahead(transaction: Transaction, peer: str, why: str, read: ReadHighWater) -> None:
    """Call of the writer: a peer names facts that were never written here. Begins a new epoch once a week at most."""
    last_unix_ms = transaction.peer_epoch_unix_ms()
    if may_begin_for_peer(last_unix_ms, transaction.now_unix_ms):
        transaction.require_new_epoch(why, read.freeze(), peer_epoch_unix_ms=transaction.now_unix_ms)
    else:
        transaction.add_incident(
            "ahead", f"peer {peer}", f"{why}; a new epoch was begun for a peer within the last week"
        )


def _open(
    path: Path,
    zone: str,
    connect_to: Connect,
    now_unix_ms: int,
    signer: HeadSigner | None,
    *,
    is_unattended: bool,
    quarantined: str | None = None,
) -> Opened:
    """`quarantined`: the file just quarantined, which the new store reports. Without it a new store reports the newest
    one: the life that quarantined it ended before it could."""
    connection = connect_writer(path, connect_to)
    try:
        _migrate(connection, path)
        with reading_tables(path):
            is_new = begin_life(connection, path, zone, now_unix_ms)
            check_zone(identity(connection, path), zone, path)
        witness = read_witness(path) if is_unattended and not is_new else None
        found = quarantined_files(path) if is_unattended and is_new else []
        reported = [one for one in found if one.file == quarantined] or found[-1:]
        opened = _load_or_begin_epoch(connection, path, witness, reported, now_unix_ms, signer)
        _close_served_rows(opened)
    except sqlite3.Error as error:
        connection.close()
        raise reading_error(path, error) from error
    except StoreError:
        connection.close()
        raise
    if is_unattended:  # after the commit: a witness ahead of the store would begin a new epoch (decision 0030)
        write_witness(path, witness_of(opened.catalog))
    return opened


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Errors of a migration may be mistakes of this program; they must not make the file look damaged."""
    try:
        migrate(connection)
    except sqlite3.Error as error:
        raise opening_error(path, error) from error


def _load_or_begin_epoch(
    connection: sqlite3.Connection,
    path: Path,
    witness: Witness | None,
    quarantined: list[QuarantinedFile],
    now_unix_ms: int,
    signer: HeadSigner | None,
) -> Opened:
    """Load the catalog; in one transaction begin a new epoch where one is due, and record what happened.

    On a disk without room to reseal facts the epoch begins all the same, and they keep their old origin.
    """
    load_and_begin = partial(_load_and_begin, connection, path, witness, quarantined, now_unix_ms, signer)
    try:
        return load_and_begin(is_resealing=True)
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise
        _roll_back(connection)
        return load_and_begin(is_resealing=False)


def _load_and_begin(
    connection: sqlite3.Connection,
    path: Path,
    witness: Witness | None,
    quarantined: list[QuarantinedFile],
    now_unix_ms: int,
    signer: HeadSigner | None,
    *,
    is_resealing: bool,
) -> Opened:
    connection.execute(QUERIES["begin"])
    catalog = load(connection, path)
    with reading_tables(path):
        index = MessageIndex.load(connection)
    why = _new_epoch_because(connection, catalog, witness)
    if why is None and not quarantined:
        _keep_filters(connection)
        return Opened(connection, catalog, index)
    before, resealed, repeated = catalog.origin, list[Resealed](), list[Resealed]()
    if why is not None:
        now = Origin(before.zone, os.urandom(EPOCH_BYTES))
        beginning = Transaction(connection, catalog, index, now_unix_ms, catalog.age_ms, signer)
        if witness is not None:  # facts that peers hold of an epoch that this copy has never had are its own as well
            beginning.origin(Origin(before.zone, bytes.fromhex(witness.epoch)))
        beginning.origin(now)
        # Before the epoch is updated: the trigger lets batches be rewritten only while a new epoch is due (decision
        # 0041).
        beginning.allow_resealing(why)
        if is_resealing:
            repeated = repeat_reseals(beginning, witness.reseals if witness else ())
            resealed = reseal_unread(beginning, now)
        connection.execute(QUERIES["forget_unseen"])
        connection.execute(QUERIES["update_epoch"], (now.epoch,))
        catalog = load(connection, path)
    transaction = Transaction(connection, catalog, index, now_unix_ms, catalog.age_ms, signer)
    if why is not None:
        _record_epoch(transaction, before, why, resealed, repeated)
    for one in quarantined:
        _record_quarantine(transaction, one)
    connection.execute(QUERIES["commit"])
    index.settle(is_durable=True)
    return Opened(connection, transaction.catalog, index)


def _keep_filters(connection: sqlite3.Connection) -> None:
    """Commit the filters of message ids that loading had to build. Without room the next opening builds them again."""
    with _undone_on_full_disk(connection):
        if connection.in_transaction:
            connection.execute(QUERIES["commit"])


def _close_served_rows(opened: Opened) -> None:
    """Set the mark of each zone that read in the last life to the end of the stream. Without room the next opening does
    so, and the marks are higher."""
    connection = opened.connection
    with _undone_on_full_disk(connection):
        connection.execute(QUERIES["begin"])
        for stream in opened.catalog.streams.values():
            connection.execute(QUERIES["update_served"], (stream.end_offset, stream.id))
        connection.execute(QUERIES["commit"])


@contextmanager
def _undone_on_full_disk(connection: sqlite3.Connection) -> Iterator[None]:
    """On a disk without room, roll back what is inside and go on: it is not needed to open the store."""
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


def _new_epoch_because(connection: sqlite3.Connection, catalog: Catalog, witness: Witness | None) -> str | None:
    (required,) = connection.execute(QUERIES["select_new_epoch_because"]).fetchone()
    if required is not None:
        return str(required)
    own = {one.epoch.hex() for one in catalog.origins if one.zone == catalog.origin.zone}
    ends = {name: state.end_offset for name, state in catalog.streams.items()}
    return restored_because(witness, catalog.origin.epoch.hex(), own, ends)


def _record_epoch(
    transaction: Transaction, before: Origin, why: str, resealed: list[Resealed], repeated: list[Resealed]
) -> None:
    now = transaction.catalog.origin
    about: dict[str, object] = {"previous_epoch": before.epoch.hex(), "epoch": now.epoch.hex(), "because": why}
    log.warning("epoch_began", extra={"epoch": now.epoch.hex(), "previous_epoch": before.epoch.hex(), "reason": why})
    detail = f"began after {before.epoch.hex()}: {why}"
    if resealed:
        about["sealed_anew"] = [one._asdict() for one in resealed]
        detail += f"; facts that had not been read were resealed under it: {_named(resealed)}"
    if repeated:
        detail += f"; facts that had been resealed after this copy was made were resealed again: {_named(repeated)}"
    transaction.add_incident("epoch", f"epoch {now.epoch.hex()}", detail)
    append_notice(transaction, None, "epoch_began", about, now.epoch.hex())


def _named(resealed: list[Resealed]) -> str:
    return ", ".join(f"{one.facts} of {one.stream} from offset {one.first_offset}" for one in resealed)


def _record_quarantine(transaction: Transaction, quarantined: QuarantinedFile) -> None:
    about = {"file": quarantined.file, "bytes": quarantined.bytes, "because": quarantined.why}
    detail = (
        f"{quarantined.why}; the file still takes {quarantined.bytes} bytes:"
        " look with bsfg store verify --file, then remove it"
    )
    transaction.add_incident("quarantined", quarantined.file, detail)
    append_notice(transaction, None, "store_quarantined", about, quarantined.file)
