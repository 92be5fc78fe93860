"""Begins a new epoch of a store, when it is opened or while it runs: one transaction, after which own sequences start
at 1 again.

All facts held keep their offsets and their content. Own facts that no reader has received become the first facts of the
new epoch (reseal.py). Tag definitions, consumers, message ids and artifacts do not change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent.batch import EPOCH_BYTES, Origin
from agent.fact_store.append import append_notice
from agent.fact_store.divergence.high_water import ReadHighWater
from agent.fact_store.divergence.reseal import Resealed, repeat_reseals, reseal_unread
from agent.fact_store.log import Reseal
from agent.fact_store.sqlite import Transaction

log = logging.getLogger(__name__)


def begin_epoch(
    transaction: Transaction,
    why: str,
    read_until: Mapping[str, int] | None = None,
    ends: Sequence[Mapping[str, object]] = (),
    reseals: Iterable[Reseal] = (),
) -> Origin:
    """Begin a new epoch in this transaction, and record it as an incident and a fact; returns the new origin.

    `read_until`: the offset of each stream up to which a reader may have received facts; None: all facts may have been
    received. `ends`: where each stream ends, and its last known end (epoch_rules.py), to be recorded. `reseals`: what
    was resealed after this copy of the file was made, to be repeated.
    """
    catalog = transaction.catalog
    before, now = catalog.origin, Origin(catalog.origin.zone, os.urandom(EPOCH_BYTES))
    # First: a trigger lets batches be rewritten only while the reason is set (decision 0041).
    transaction.set_new_epoch_because(why)
    repeated = repeat_reseals(transaction, reseals)
    resealed = [] if read_until is None else reseal_unread(transaction, now, read_until)
    transaction.origin(now)
    transaction.set_epoch(now)
    # New objects, so that subscribers are called for every stream: a waiting fetch is answered `epoch_changed`.
    catalog.streams = {name: replace(state) for name, state in catalog.streams.items()}
    catalog.tails = {}
    _record(transaction, before, why, (resealed, repeated), ends)
    return now


def begin_epoch_while_running(
    transaction: Transaction,
    why: str,
    read: ReadHighWater,
    *,
    instead_of: bytes | None = None,
    is_resealing: bool = True,
) -> Origin:
    """As `begin_epoch`, called by the writer of an open store. Reads are refused from here on, until the caller thaws
    `read` after the commit. `instead_of`: the epoch that was proven wrong; if it has ended, nothing changes."""
    if instead_of not in {None, transaction.catalog.origin.epoch}:
        return transaction.catalog.origin  # two peers have proven it at the same time
    read_until = read.freeze()
    return begin_epoch(transaction, why, read_until if is_resealing else None)


def _record(
    transaction: Transaction,
    before: Origin,
    why: str,
    sealed_anew: tuple[list[Resealed], list[Resealed]],
    ends: Sequence[Mapping[str, object]],
) -> None:
    (resealed, repeated), now = sealed_anew, transaction.catalog.origin
    about: dict[str, object] = {"previous_epoch": before.epoch.hex(), "epoch": now.epoch.hex(), "because": why}
    log.warning("epoch_began", extra={"epoch": now.epoch.hex(), "previous_epoch": before.epoch.hex(), "reason": why})
    detail = f"began after {before.epoch.hex()}: {why}"
    if ends:
        about["streams"] = list(ends)
        detail += "".join(
            f"; {one['stream']} is held up to {one['end_offset']}, known up to {one['known_end_offset']}"
            for one in ends
        )
    if resealed:
        about["sealed_anew"] = [one._asdict() for one in resealed]
        detail += f"; facts that had not been read were resealed under it: {_named(resealed)}"
    if repeated:
        detail += f"; facts that had been resealed after this copy was made were resealed again: {_named(repeated)}"
    transaction.add_incident("epoch", f"epoch {now.epoch.hex()}", detail)
    append_notice(transaction, None, "epoch_began", about, now.epoch.hex())


def _named(resealed: list[Resealed]) -> str:
    return ", ".join(f"{one.facts} of {one.stream} from offset {one.first_offset}" for one in resealed)
