"""Opening a store's file as its only writer: settings, schema, whose it is, what the tables say, and which epoch it goes on in.

Unattended, as a node opens it, a file that cannot be used is set aside and a new store begins at once in its place, and a
store that turns out to be an old copy begins a new epoch. Otherwise the caller gets the exception, and nothing has changed.
Opening reads no batch's body and does not grow with the file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent.batch import EPOCH_BYTES, Origin
from agent.fact_store.append import append_notice
from agent.fact_store.divergence.epochs import Witness, may_begin_for_peer, restored_because
from agent.fact_store.divergence.high_water import Seen
from agent.fact_store.divergence.reseal import Sealed, seal_anew
from agent.fact_store.divergence.witness import (
    SetAside,
    files_set_aside,
    read_witness,
    set_aside,
    suspicion,
    write_witness,
)
from agent.fact_store.log import NOTICES_STREAM, Catalog, StoreDamaged, StoreError, StoreUnusable, store_notice
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a writer needs."""

    connection: sqlite3.Connection
    catalog: Catalog
    index: MessageIndex


def open_writer(path: Path, zone: str, connect_to: Connect, now_unix_ms: int, *, is_unattended: bool) -> Opened:
    """Open the store of `zone` at `path`, whose lock the caller holds. Raises StoreUnusable."""
    if not is_unattended:
        return _open(path, zone, connect_to, now_unix_ms, is_unattended=False)
    why = suspicion(path)
    if why is None:
        try:
            return _open(path, zone, connect_to, now_unix_ms, is_unattended=True)
        except StoreDamaged as error:
            why = error.why
    try:
        target = set_aside(path, why, now_unix_ms)
    except OSError as error:
        raise StoreUnusable(
            f"{path} is damaged ({why}) and cannot be renamed: {error.strerror}", "move it aside by hand"
        ) from error
    log.error("store_quarantined", extra={"path": str(path), "as": target.name, "reason": why})
    return _open(path, zone, connect_to, now_unix_ms, is_unattended=True, aside=target.name)


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


def witness_of(catalog: Catalog) -> Witness:
    """What there is to remember of a store."""
    return Witness(catalog.origin.epoch.hex(), {name: state.end_offset for name, state in catalog.streams.items()})


def require_new_epoch(transaction: Transaction, why: str, seen: Seen) -> None:
    """A call: the store goes on under a new epoch, from the next time it is opened, and that is at once."""
    transaction.require_new_epoch(why, seen.freeze())


def peer_is_ahead(transaction: Transaction, peer: str, why: str, seen: Seen) -> None:
    """A call: a peer speaks of facts that were never written here. Believed once a week."""
    last_unix_ms = transaction.peer_epoch_unix_ms()
    if may_begin_for_peer(last_unix_ms, transaction.now_unix_ms):
        transaction.require_new_epoch(why, seen.freeze(), peer_epoch_unix_ms=transaction.now_unix_ms)
    else:
        transaction.add_incident(
            "ahead", f"peer {peer}", f"{why}; a new epoch was begun for a peer within the last week"
        )


def _open(
    path: Path, zone: str, connect_to: Connect, now_unix_ms: int, *, is_unattended: bool, aside: str | None = None
) -> Opened:
    """`aside`: the file just set aside, which the new store tells of; without, the one with the newest name, which the life that
    set it aside did not come to tell."""
    connection = connect_writer(path, connect_to)
    try:
        _migrate(connection, path)
        with reading_tables(path):
            is_new = begin_life(connection, path, zone, now_unix_ms)
            check_zone(identity(connection, path), zone, path)
        witness = read_witness(path) if is_unattended and not is_new else None
        found = files_set_aside(path) if is_unattended and is_new else []
        told = [one for one in found if one.file == aside] or found[-1:]
        opened = _go_on(connection, path, witness, told, now_unix_ms)
        _close_handed(opened)
    except sqlite3.Error as error:
        connection.close()
        raise reading_error(path, error) from error
    except StoreError:
        connection.close()
        raise
    if is_unattended:
        write_witness(path, witness_of(opened.catalog))
    return opened


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apart from the rest: an error here may be ours, and must not make a file look damaged."""
    try:
        migrate(connection)
    except sqlite3.Error as error:
        raise opening_error(path, error) from error


def _go_on(
    connection: sqlite3.Connection, path: Path, witness: Witness | None, aside: list[SetAside], now_unix_ms: int
) -> Opened:
    """Load what the tables say, and in one transaction begin a new epoch where one is due and say what happened. On a disk without
    room to seal facts anew it begins all the same, and they keep their names."""
    go_on = partial(_load_and_begin, connection, path, witness, aside, now_unix_ms)
    try:
        return go_on(is_sealed_anew=True)
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise
        _roll_back(connection)
        return go_on(is_sealed_anew=False)


def _load_and_begin(
    connection: sqlite3.Connection,
    path: Path,
    witness: Witness | None,
    aside: list[SetAside],
    now_unix_ms: int,
    *,
    is_sealed_anew: bool,
) -> Opened:
    connection.execute(QUERIES["begin"])
    catalog = load(connection, path)
    with reading_tables(path):
        index = MessageIndex.load(connection)
    why = _new_epoch_because(connection, catalog, witness)
    if why is None and not aside:
        _keep_filters(connection)
        return Opened(connection, catalog, index)
    before, sealed = catalog.origin, list[Sealed]()
    if why is not None:
        now = Origin(before.zone, os.urandom(EPOCH_BYTES))
        beginning = Transaction(connection, catalog, index, now_unix_ms, catalog.age_ms)
        beginning.origin(now)
        sealed = seal_anew(beginning, now) if is_sealed_anew else sealed
        connection.execute(QUERIES["forget_unseen"])
        connection.execute(QUERIES["update_epoch"], (now.epoch,))
        catalog = load(connection, path)
    transaction = Transaction(connection, catalog, index, now_unix_ms, catalog.age_ms)
    if why is not None:
        _say_epoch_began(transaction, before, why, sealed)
    for one in aside:
        _say_set_aside(transaction, one)
    connection.execute(QUERIES["commit"])
    index.settle(is_durable=True)
    return Opened(connection, transaction.catalog, index)


def _keep_filters(connection: sqlite3.Connection) -> None:
    """Commit the filters of message ids that loading had to make; without room for them they are made again next time."""
    try:
        if connection.in_transaction:
            connection.execute(QUERIES["commit"])
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise
        _roll_back(connection)


def _close_handed(opened: Opened) -> None:
    """Write down how far who read in the last life may have been handed each stream; without room for it the next opening does, and says
    more."""
    connection, streams = opened.connection, opened.catalog.streams.values()
    try:
        connection.execute(QUERIES["begin"])
        for stream in streams:
            connection.execute(QUERIES["update_served"], (stream.end_offset, stream.id))
        connection.execute(QUERIES["commit"])
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith("SQLITE_FULL"):
            raise
        _roll_back(connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Unless SQLite has done so by itself."""
    if connection.in_transaction:
        connection.execute(QUERIES["rollback"])


def _new_epoch_because(connection: sqlite3.Connection, catalog: Catalog, witness: Witness | None) -> str | None:
    (asked,) = connection.execute(QUERIES["select_new_epoch_because"]).fetchone()
    if asked is not None:
        return str(asked)
    own = {one.epoch.hex() for one in catalog.origins if one.zone == catalog.origin.zone}
    ends = {name: state.end_offset for name, state in catalog.streams.items()}
    return restored_because(witness, catalog.origin.epoch.hex(), own, ends)


def _say_epoch_began(transaction: Transaction, before: Origin, why: str, sealed: list[Sealed]) -> None:
    now = transaction.catalog.origin
    about: dict[str, object] = {"previous_epoch": before.epoch.hex(), "epoch": now.epoch.hex(), "because": why}
    log.warning("epoch_began", extra={"epoch": now.epoch.hex(), "previous_epoch": before.epoch.hex(), "reason": why})
    detail = f"began after {before.epoch.hex()}: {why}"
    if sealed:
        about["sealed_anew"] = [one._asdict() for one in sealed]
        named = ", ".join(f"{one.facts} of {one.stream} from offset {one.first_offset}" for one in sealed)
        detail += f"; facts that nobody had seen belong to it: {named}"
    transaction.add_incident("epoch", f"epoch {now.epoch.hex()}", detail)
    _append(transaction, "epoch_began", about, now.epoch.hex())


def _say_set_aside(transaction: Transaction, aside: SetAside) -> None:
    about = {"file": aside.file, "bytes": aside.bytes, "because": aside.why}
    detail = (
        f"{aside.why}; the file still takes {aside.bytes} bytes: look with bsfg store verify --file, then remove it"
    )
    transaction.add_incident("quarantined", aside.file, detail)
    _append(transaction, "store_quarantined", about, aside.file)


def _append(transaction: Transaction, predicate: str, about: dict[str, object], key: str) -> None:
    notice = store_notice(transaction.catalog.origin, predicate, about, key, transaction.now_unix_ms)
    append_notice(transaction, NOTICES_STREAM, notice)
