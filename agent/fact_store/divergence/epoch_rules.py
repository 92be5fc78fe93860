"""Decides when a store must begin a new epoch, because peers may hold facts of its present epoch that it does not.
Core: no IO.

A store restored from an old copy would give new facts the sequences of facts that peers already hold, and each peer
would see a fork. The witness, a small file beside the store that records where its streams ended, detects it when the
store is opened. A copy that was restored together with its witness begins a new epoch on proof (a head that this store
signed, over facts that it does not have) or by hand; a peer's word alone begins none (decision 0047).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Witness:
    """What the witness file records: the epoch (hex) and the end offset of each stream."""

    epoch: str
    ends: Mapping[str, int]


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
