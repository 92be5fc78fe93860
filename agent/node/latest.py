"""What a node answers when a peer asks for last known values: its own search, in the words of the protocol.

`query` knows how to find them and `replication` how to ask for them, and neither knows the other; here they meet. A search reads the
store as any reader does, so it stops nobody who writes. Tags without a value are left out: which tags a store has heard of is no
business of a peer that may read one of its streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agent.fact_store import StoreReader
from agent.node.peer_latest_cache import entry_of
from agent.query.latest import AbsentTags, LatestRecord, find_latest_in_stream, latest_record, merge_peer_records
from agent.query.scan import Dictionary, Scanner
from agent.replication.serving import Found, LookUp, TagOrder, Wanted


def _nothing(_: str) -> Sequence[LatestRecord]:
    return ()


def _tag(row: LatestRecord) -> TagOrder:
    return row["zone"], row["subject"], row["predicate"]


def look_up_in(
    reader: StoreReader, queue_depth: Callable[[str], int], heard: Callable[[str], Sequence[LatestRecord]] = _nothing
) -> LookUp:
    """The way to look values up in a store. `queue_depth` says how many facts of a stream are known to be on their way to it, `heard`
    which values of a stream were told by others and are kept beside it. One search at a time: they share what they know of tags."""
    absent = AbsentTags()
    dictionary = Dictionary(reader)  # definitions never change, and to read ten thousand of them takes half a second

    def look_up(stream: str, is_wanted: Wanted, fresh_ms: int, depth_facts: int) -> Found:
        now_ns, scanner = time.time_ns(), Scanner(reader, dictionary)
        known = find_latest_in_stream(
            scanner, now_ns, stream, absent, is_wanted, depth_facts=depth_facts, fresh_ms=fresh_ms
        )
        others = [row for row in heard(stream) if is_wanted(_tag(row))]
        if others:
            rows = merge_peer_records([latest_record(row) for row in known], others, now_ns, fresh_ms)
            tags = [_tag(row) for row in rows]
            return Found(tags, lambda at: entry_of(rows[at]), depth_facts, queue_depth(stream))
        # Most of a search for ten thousand values is spent in making them readable: that is left for those of a page.
        tags = [row.tag for row in known]
        return Found(tags, lambda at: entry_of(latest_record(known[at])), depth_facts, queue_depth(stream))

    return look_up
