"""Checkpoints: a store that signs records once a day, in each stream, the last sequence it holds of each origin and the
digest there.

The store's record of its batch signs the checkpoint, and peers receive it with the other facts, so each zone
countersigns what it has received. A history that is rewritten later, even by the zone itself with its own key,
contradicts the checkpoints of every zone that holds one. `bsfg store verify` compares a store with its own checkpoints.
Core: no IO.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from agent.batch import DIGEST_BYTES, LIFE_BYTES, Origin
from agent.message import Message
from agent.pages import HeldRange

PREDICATE = "heads_checkpointed"
ORIGINS_MAX = 200
"""Origins in one fact: 25 kB of JSON."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of an origin in a zone's store on a date (UTC): the last sequence held, and the digest there."""

    by: str
    date: str
    stream: str
    origin: Origin
    last_sequence: int
    digest: bytes


def checkpoint_objects(date: str, held: Mapping[Origin, tuple[HeldRange, ...]]) -> Iterator[dict[str, object]]:
    """The objects of a day's checkpoint facts of one stream."""
    ends = [
        {
            "zone": origin.zone,
            "life": origin.life.hex(),
            "last_sequence": ranges[-1].last_sequence,
            "digest": ranges[-1].last_digest.hex(),
        }
        for origin, ranges in sorted(held.items(), key=lambda item: str(item[0]))
        if ranges
    ]
    for at in range(0, len(ends), ORIGINS_MAX):
        yield {"date": date, "origins": ends[at : at + ORIGINS_MAX]}


def checkpoints_in(messages: Iterable[Message]) -> Iterator[Checkpoint]:
    """The checkpoints among messages. Malformed ones are skipped, because any zone may write such messages."""
    for message in messages:
        if message.fact.predicate != PREDICATE:
            continue
        try:
            content = json.loads(message.fact.object_json)
            for entry in content["origins"]:
                origin = Origin(str(entry["zone"]), bytes.fromhex(entry["life"]))
                digest, last_sequence = bytes.fromhex(entry["digest"]), entry["last_sequence"]
                if (len(origin.life), len(digest), type(last_sequence)) == (LIFE_BYTES, DIGEST_BYTES, int):
                    by, date, stream = message.envelope.from_zone, str(content["date"]), str(content["stream"])
                    yield Checkpoint(by, date, stream, origin, last_sequence, digest)
        except (KeyError, TypeError, ValueError, RecursionError):
            continue
