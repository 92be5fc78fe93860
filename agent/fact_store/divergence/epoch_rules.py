"""Decides when a store must begin a new epoch, because peers may hold facts of its present epoch that it does not.
Core: no IO.

A store restored from an old copy would give new facts the sequences of facts that peers already hold, and each peer
would see a fork. Two things detect it: the witness, a small file beside the store that records where its streams ended,
and a peer that names offsets which were never written here. In a new epoch own sequences and tag definitions start from
1 again; all facts held stay, under their origin (decision 0030).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agent.fact_store.log import Reseal

PEER_EPOCHS_APART_MS = 7 * 24 * 3_600_000
"""At least this long between two new epochs that only a peer's claim begins. Each makes all peers read the whole store
again, so a peer that lies must not cause one after the other; a store is hardly restored twice a week together with its
witness."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What the witness file records: the epoch (hex), the end offset of each stream, and which facts were resealed."""

    epoch: str
    ends: Mapping[str, int]
    reseals: tuple[Reseal, ...] = ()


def restored_because(
    witness: Witness | None, epoch: str, own_epochs: Collection[str], ends: Mapping[str, int]
) -> str | None:
    """Why the store must be an old copy; None where the witness does not show it. `ends`: where the streams end in the
    tables."""
    if witness is None:
        return None
    if witness.epoch not in own_epochs:
        return f"the witness names epoch {witness.epoch}, which this store never had"
    if witness.epoch != epoch:
        return None  # the process ended after it began the new epoch and before it wrote the witness of it
    for stream, end_offset in sorted(witness.ends.items()):
        if ends.get(stream, 0) < end_offset:
            return f"{stream} ends at {ends.get(stream, 0)}, the witness has seen {end_offset}"
    return None


def may_begin_for_peer(last_unix_ms: int, now_unix_ms: int) -> bool:
    """Whether a peer's claim alone may begin a new epoch now. A last one in the future was begun under a wrong clock
    and does not count."""
    return not 0 <= now_unix_ms - last_unix_ms < PEER_EPOCHS_APART_MS
