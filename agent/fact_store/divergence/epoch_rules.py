"""Decides when a store must begin a new epoch, because peers may hold facts of its present epoch that it does not.
Core: no IO.

A store restored from an old copy, or opened without the end of its write-ahead log, would give new facts the sequences
of facts that peers already hold, and each peer would see a fork. Three things detect it: the witness, a small file
beside the store that records where its streams ended; the file of the write-ahead log, if the store is marked as open;
and proof, a record that this store signed of a batch that it does not have. A peer's claim alone does not begin an
epoch. In a new epoch own sequences start from 1 again; all facts held keep their origin (decisions 0046 and 0047).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agent.fact_store.log import Reseal


@dataclass(frozen=True, slots=True)
class Witness:
    """What a store has acknowledged: its epoch (hex), the end offset of each stream, and which of its facts were
    resealed."""

    epoch: str
    ends: Mapping[str, int]
    reseals: tuple[Reseal, ...] = ()


@dataclass(frozen=True, slots=True)
class LogFound:
    """What an opening finds of the last life: whether the store was left open, whether its log has an undamaged header,
    and whether synced commits follow the frame at which SQLite stopped reading."""

    was_open: bool
    has_header: bool
    has_commits_behind: bool


def log_lost_because(found: LogFound) -> str | None:
    """The reason why committed frames of the last life must be missing; None if the log does not prove it.

    A power cut causes neither damage: the header is synced before the first frame, and at most one transaction is
    unsynced (decision 0046).
    """
    if found.was_open and not found.has_header:
        return "the store was not closed, and its write-ahead log is missing or damaged from its beginning"
    if found.has_commits_behind:
        return "its write-ahead log is damaged, and commits follow the damage"
    return None


def restored_because(witness: Witness | None, own_epochs: Collection[str], held: Witness) -> str | None:
    """The reason why the store must be an old copy, or must have lost the end of its log; None if the witness does not
    prove it. `held`: the state of the tables."""
    if witness is None:
        return None
    if witness.epoch not in own_epochs:
        return f"the witness names epoch {witness.epoch}, which this store never had"
    if witness.epoch != held.epoch:
        return None  # the process ended after it began the new epoch and before it wrote its witness
    short = [
        f"{stream} ends at {held.ends.get(stream, 0)}, the witness records {end_offset}"
        for stream, end_offset in sorted(witness.ends.items())
        if held.ends.get(stream, 0) < end_offset
    ]
    return "; ".join(short) or None


def ends_of(witness: Witness | None, held: Witness) -> list[dict[str, object]]:
    """Where each stream ends here, and its last known end; streams without a loss are included."""
    known = witness.ends if witness is not None else {}
    return [
        {
            "stream": stream,
            "end_offset": (end_offset := held.ends.get(stream, 0)),
            "known_end_offset": max(end_offset, known.get(stream, 0)),
        }
        for stream in sorted({*held.ends, *known})
    ]
