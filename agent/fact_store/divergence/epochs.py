"""When a store must go on under a new epoch, because others may hold facts under its present one that it does not. Core: no IO.

A store restored from an old copy would number new facts as it numbered others before, and whoever has those sees a fork. It is
noticed by the witness, a small file beside the store that remembers its ends, or by a peer that names offsets never written
here. In a new epoch own sequences and tag definitions start from 1 again; what is held stays, under its origin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

PEER_EPOCHS_APART_MS = 7 * 24 * 3_600_000
"""Between two new epochs that a peer's word alone begins. Each makes all peers read the whole store again, so one that lies must
not make us begin them for ever; a store is hardly restored twice a week together with its witness."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What the witness remembers: the epoch (hex) and where each stream ended."""

    epoch: str
    ends: Mapping[str, int]


def restored_because(
    witness: Witness | None, epoch: str, own_epochs: Collection[str], ends: Mapping[str, int]
) -> str | None:
    """Why the store must be an old copy, if it must: the witness knows more than the tables."""
    if witness is None:
        return None
    if witness.epoch not in own_epochs:
        return f"the witness knows this store in epoch {witness.epoch}, of which the store knows nothing"
    if witness.epoch != epoch:
        return None  # the power went between the new epoch and the witness of it
    for stream, end_offset in sorted(witness.ends.items()):
        if ends.get(stream, 0) < end_offset:
            return f"{stream} ends at {ends.get(stream, 0)}, the witness has seen {end_offset}"
    return None


def may_begin_for_peer(last_unix_ms: int, now_unix_ms: int) -> bool:
    """Whether a peer's word is enough for a new epoch now. One that was begun in the future was begun by a clock that was wrong."""
    return not 0 <= now_unix_ms - last_unix_ms < PEER_EPOCHS_APART_MS
