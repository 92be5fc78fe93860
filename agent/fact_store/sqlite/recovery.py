"""Recovery when a store is opened: reads the tables into the catalog and checks them against each other.

No batch body is read, so a store of ten gigabytes opens as fast as a small one. SQLite has already undone what was not
committed. The rest must be consistent: the last batch of each stream with the held ranges, frontiers with the end of
the log. An inconsistent file is refused (StoreDamaged).
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from agent.batch import Definitions
from agent.fact_store.core import (
    ACTIVE_STATES,
    Catalog,
    Confirmed,
    ConsumerEvent,
    ConsumerState,
    Lifecycle,
    OwnDefinitions,
    StoreDamaged,
    StoreForeign,
    StoreNames,
    StreamState,
    Tip,
    next_state,
)
from agent.fact_store.sqlite.connection import reading_tables
from agent.fact_store.sqlite.growing_rows import held_of
from agent.fact_store.sqlite.queries import QUERIES
from agent.fact_store.sqlite.transaction import draw_life
from agent.lease import Lease
from agent.pages import BatchEnd
from agent.positions import Position

FORMAT = 9  # of the tables and what they mean; incremented by changes that other programs must not read or write

OWN_DEFINITIONS_MAX = 50_000
"""Own tag definitions, with those of tags that were changed or removed, after which an opening begins without any: each
reader reads all of them."""


def begin_store(connection: sqlite3.Connection, path: Path, names: StoreNames, now_unix_ms: int) -> bool:
    """Make empty tables the store of a node, in the caller's transaction; False if they are a store already. Raises
    StoreDamaged."""
    is_new = connection.execute(QUERIES["select_store"]).fetchone() is None
    if is_new:
        if connection.execute(QUERIES["select_origins"]).fetchone() is not None:
            raise StoreDamaged(f"{path} holds facts, but the record of its zone is missing")
        connection.execute(QUERIES["insert_store"], (*names, FORMAT, now_unix_ms))
    return is_new


def identity(connection: sqlite3.Connection, path: Path) -> StoreNames:
    """The zone and the node of the store; raises StoreForeign for tables without a store, or of an unknown format."""
    row = connection.execute(QUERIES["select_store"]).fetchone()
    if row is None:
        raise StoreForeign(f"{path} has tables but is not a store yet", "start the node once")
    zone, store_format = row
    if store_format < FORMAT:
        why = f"{path} was made by a version before 1.0; this program cannot read it"
        raise StoreForeign(
            why, "move it aside: the node begins a new store; the program that made it reads the old one"
        )
    if store_format != FORMAT:
        raise StoreForeign(f"{path} has format {store_format}, this program reads {FORMAT}", "update the program")
    (node,) = connection.execute(QUERIES["select_node"]).fetchone()
    return StoreNames(zone, node)


def check_names(found: StoreNames, expected: StoreNames, path: Path) -> None:
    """Raise StoreForeign unless the store belongs to this zone and this node."""
    if found.zone != expected.zone:
        raise StoreForeign(
            f"{path} is the store of zone {found.zone!r}, this node is {expected.zone!r}",
            "correct the zone in node.toml, or name another state_dir",
        )
    if found.node != expected.node:
        raise StoreForeign(
            f"{path} is the store of node {found.node!r} of zone {found.zone!r}, this node is {expected.node!r}",
            "correct the name of the node in node.toml, or name another state_dir",
        )


def load(connection: sqlite3.Connection, path: Path) -> Catalog:
    """The catalog, from the tables. Raises StoreDamaged if they contradict each other."""
    with reading_tables(path):
        catalog = _load(connection, path)
        _check(connection, catalog, path)
    return catalog


def _load(connection: sqlite3.Connection, path: Path) -> Catalog:
    catalog = Catalog(identity(connection, path))
    lives = {stream: (life, first) for stream, life, first in _rows(connection, "select_newest_lives")}
    for number, name, released_offset, released_bytes, end_offset, bytes_total, *mark in _rows(
        connection, "select_streams"
    ):
        mark_ms, mark_unix_ms, is_backlog = mark
        catalog.streams[name] = StreamState(
            number,
            name,
            end_offset,
            bytes_total,
            released_offset,
            released_bytes,
            mark_ms,
            mark_unix_ms or 0,
            bool(is_backlog),
            lives.get(name),
        )
    catalog.own_definitions = {
        zone: OwnDefinitions(Definitions(count, digest), number)
        for zone, number, count, digest in _rows(connection, "select_own_definitions")
        if count <= OWN_DEFINITIONS_MAX
    }
    for peer, stream, *position in _rows(connection, "select_trails"):
        catalog.trails[peer, stream] = (*catalog.trails.get((peer, stream), ()), Position(*position))
    _load_lives(connection, catalog)
    for stream, zone, size in _rows(connection, "select_zone_uses"):
        catalog.zone_uses[stream, zone] = size
    catalog.proven_zones = frozenset(zone for zone, is_proven in _rows(connection, "select_zones") if is_proven)
    catalog.leases = {(stream, producer): epoch for stream, producer, epoch in _rows(connection, "select_leases")}
    _load_consumers(connection, catalog)
    return catalog


def _load_lives(connection: sqlite3.Connection, catalog: Catalog) -> None:
    """Draw the life of this process, and load where own facts end in each stream. The life stays in memory until a
    stream grows, so an opening that stores nothing leaves no trace."""
    catalog.forked = frozenset(life for (life,) in _rows(connection, "select_forked"))
    catalog.life = draw_life(catalog.highest_life)
    rows = _rows(connection, "select_tips")
    catalog.tips = {(zone, stream): Tip(BatchEnd(*end), is_row=True) for zone, stream, *end in rows}
    for name, zone in product(catalog.streams, catalog.names.own_zones):
        asked = {"stream": catalog.streams[name].id, "zone": zone}
        if (zone, name) in catalog.tips:
            continue
        if (end := connection.execute(QUERIES["select_own_end"], asked).fetchone()) is not None:
            catalog.tips[zone, name] = Tip(BatchEnd(*end))


def _load_consumers(connection: sqlite3.Connection, catalog: Catalog) -> None:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for consumer, first_offset, last_offset in _rows(connection, "select_confirmed"):
        ranges.setdefault(consumer, []).append((first_offset, last_offset))
    for number, name, zone, stream, state, start_offset, frontier, registered, seen, *lease in _rows(
        connection, "select_consumers"
    ):
        consumer = ConsumerState(
            number,
            name,
            zone,
            stream,
            Lifecycle(state),
            start_offset,
            Confirmed(frontier, tuple(ranges.get(number, ()))),
            registered,
            seen,
            Lease(*lease),
        )
        if consumer.lifecycle in ACTIVE_STATES:  # in the last life of the store; it has not fetched in this one
            consumer = replace(consumer, lifecycle=next_state(consumer.lifecycle, ConsumerEvent.LOST))
        catalog.consumers[name] = consumer


def _check(connection: sqlite3.Connection, catalog: Catalog, path: Path) -> None:
    """Raise StoreDamaged if tables that are written in one transaction contradict each other. Of the ranges of each
    stream only those of the origin that wrote the last batch are read: they show a lost or foreign end."""
    for state in catalog.streams.values():
        row = connection.execute(QUERIES["select_last_identity"], (state.id,)).fetchone()
        if row is not None:
            _check_last(connection, state.id, row, path)
        (found,) = connection.execute(QUERIES["select_held_count"], {"stream": state.id}).fetchone()
        if found != state.end_offset:
            raise StoreDamaged(f"{path}: {state.name} ends at {state.end_offset}, its held ranges end at {found}")
    for consumer in catalog.consumers.values():
        if consumer.frontier > catalog.streams[consumer.stream].end_offset:
            raise StoreDamaged(f"{path}: consumer {consumer.name} confirmed {consumer.frontier}, beyond the log")


def _check_last(connection: sqlite3.Connection, stream: int, last: tuple[Any, ...], path: Path) -> None:
    """Compare the last batch of a stream with the held ranges of its origin."""
    origin, last_sequence, digest = last
    where = f"{path}: stream {stream}, origin {origin}"
    if connection.execute(QUERIES["select_origin_life"], (origin,)).fetchone() is None:
        raise StoreDamaged(f"{path}: facts of origin {origin} are held, but the origin is missing")
    ranges = held_of(connection.execute, stream, origin)
    if any(left.last_sequence >= right.first_sequence for left, right in pairwise(ranges)):
        raise StoreDamaged(f"{where}: ranges of held sequences overlap")
    around = [held for held in ranges if held.first_sequence <= last_sequence <= held.last_sequence]
    if not around or (around[0].last_sequence == last_sequence and around[0].last_digest != digest):
        raise StoreDamaged(f"{where}: the last batch differs from the held range")


def _rows(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(QUERIES[query]).fetchall()
