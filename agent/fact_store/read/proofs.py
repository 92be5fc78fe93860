"""Tells readers whether facts of a store are proven by a signature of their origin: yes, no, or suspect.

A batch is proven by the first verified record of its origin at its end or after it, because the chain in between was
compared when it was stored. Suspect: the record was verified after the time from which its key counts as compromised,
so the facts may be forged (agent/signing/DESIGN.md).
"""

from __future__ import annotations

import sqlite3
from typing import Literal, NamedTuple

from agent.batch import SEQUENCE_MAX
from agent.fact_store.sqlite import QUERIES
from agent.signing.records import key_id_in

Verified = Literal["yes", "no", "suspect"]
LIVES_MAX = 64
"""Lives without a verified record that are looked through for one."""


class ProvenRange(NamedTuple):
    """Sequences of an origin that one record proves, or that none proves."""

    first_sequence: int
    last_sequence: int
    verified: Verified


class Proofs:
    """The proofs of one store. Only the last one of each stream and origin is kept, because readers read forward."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._since_ms: dict[bytes, int] = dict(connection.execute(QUERIES["select_compromised"]).fetchall())
        self._last: dict[tuple[int, int], ProvenRange] = {}

    def verified(self, stream: int, origin: int, sequence: int) -> Verified:
        """Whether the batch that holds a sequence is proven; stream and origin by number."""
        known = self._last.get((stream, origin))
        if (
            known is None
            and (self._connection.execute(QUERIES["select_is_zone_proven"], (origin,)).fetchone() or (0,))[0] == 0
        ):
            known = self._last[stream, origin] = ProvenRange(1, SEQUENCE_MAX, "no")
        if known is None or not known.first_sequence <= sequence <= known.last_sequence:
            known = self._last[stream, origin] = self._read(stream, origin, sequence)
        return known.verified

    def _read(self, stream: int, origin: int, sequence: int) -> ProvenRange:
        found = find_proof(self._connection, stream, origin, sequence)
        if found is None:
            return ProvenRange(sequence, sequence, "no")
        last_sequence, first_held, record, verified_unix_ms = found
        since_ms = self._since_ms.get(key_id_in(record))
        is_suspect = since_ms is not None and verified_unix_ms >= since_ms
        # An earlier sequence may have an earlier record, verified at another time, so this one counts from here on.
        return ProvenRange(max(sequence, first_held), last_sequence, "suspect" if is_suspect else "yes")


def find_proof(
    connection: sqlite3.Connection, stream: int, origin: int, sequence: int
) -> tuple[int, int, bytes, int] | None:
    """The last sequence that the first verified record at or after a sequence covers, the first held with it, the
    record, and when it was verified. It may be of a later life, which goes on where this one ends."""
    asked = {"stream": stream, "origin": origin, "sequence": sequence}
    for hop in range(LIVES_MAX):
        row: tuple[int, int, bytes, int] | None = connection.execute(QUERIES["select_proof"], asked).fetchone()
        if row is not None:
            return row if not hop else (sequence, sequence, *row[2:])
        if (later := connection.execute(QUERIES["select_following"], asked).fetchone()) is None:
            return None
        asked |= {"origin": later[0], "sequence": later[1]}
    return None
