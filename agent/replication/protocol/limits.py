"""What one peer may take of a serving node: its consumers, its requests, the bytes of its answers. Core: values only.

Every limit is for one zone, so that no zone's requests are refused or delayed because of another's.
"""

from __future__ import annotations

from dataclasses import dataclass

CONSUMERS_BESIDE_STREAMS = 8
"""A pull has one consumer for each stream. These are for readers by hand, jobs that read beside the node, and the names
of a machine that was replaced; each consumer keeps facts from being released."""
REQUESTS_PER_SECOND_MAX = 1000
"""By default. A pull of live facts sends one request for each commit, some hundred a second at most."""
REQUESTS_OPEN_MAX = 64
"""Open requests of one zone, parked and waiting ones included; further ones are dropped and sent again by the peer."""
STARTS_MAX = 4
"""Requests of one zone that begin in one turn of the event loop; another zone's request waits for no more of them."""
READS_MAX, READS_OF_ZONE_MAX = 3, 2
"""Pages, artifacts and digests being read at once, in all and for one zone: another zone always finds a place soon."""
SHARED_MS = 1_000
"""While another zone has asked within this time, a zone has one place instead of `READS_OF_ZONE_MAX`: what is read for
it in one thread takes Python's global lock from the event loop half as often as in two."""
UNSENT_BYTES_MAX = 1024 * 1024
"""Answers of one zone that wait to be sent. Nothing more is read for the zone while there are so many."""
SEARCH_MS_PER_SECOND = 250
"""Searching for latest values opens batches, and takes a core while it runs. A zone gets a quarter of one, on
average."""
SEARCHES_WAITING_MAX = 4
"""Searches of one zone that wait; further ones are refused as busy."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """The limits of one peer. 0 bytes a second: no limit."""

    consumers_max: int = CONSUMERS_BESIDE_STREAMS
    requests_per_second_max: int = REQUESTS_PER_SECOND_MAX
    answer_bytes_per_second_max: int = 0
