"""What a node answers when a peer asks for last known values: its own search, in the words of the protocol.

`query` knows how to find them and `replication` how to ask for them, and neither knows the other; here they meet. A search reads the
store as any reader does, so it stops nobody who writes. Tags without a value are left out: which tags a store has heard of is no
business of a peer that may read one of its streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from agent.fact_store.reader import StoreReader
from agent.query.latest import LatestRow, shown
from agent.query.latest_search import latest
from agent.query.scan import Scanner
from agent.replication.last_values import LAST_DEPTH_FACTS, Found, LookUp, Wanted
from agent.replication.messages import LatestEntry


def look_up_in(reader: StoreReader, queue_depth: Callable[[str], int]) -> LookUp:
    """The way to look values up in a store. `queue_depth` says how many facts of a stream are known to be on their way to it."""

    def look_up(stream: str, is_wanted: Wanted, fresh_ms: int) -> Found:
        found = latest(
            Scanner(reader),
            time.time_ns(),
            is_wanted,
            streams=frozenset([stream]),
            depth_facts=LAST_DEPTH_FACTS,
            fresh_ms=fresh_ms,
        )
        values = [entry(row) for row in found.rows if row.known is not None]
        return Found(values, found.depth_facts, queue_depth(stream))

    return look_up


def entry(row: LatestRow) -> LatestEntry:
    """A value that was found, as it is sent."""
    told = shown(row)
    known = {name: told[name] for name in told if name not in {"stream", "value"}}  # type: ignore[literal-required]
    return LatestEntry(value=msgspec.Raw(msgspec.json.encode(told["value"])), **known)
