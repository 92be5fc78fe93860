"""Answers a peer that asks for latest values: searches them with `query`, in the form that `replication` sends.

`query` and `replication` do not import each other; here they meet. A search reads the store as any reader does, so it
blocks no writer. Tags without a value are left out, because a peer that may read one stream must not learn the tags of
others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agent.fact_store import StoreReader
from agent.node.peer_latest_cache import entry_of
from agent.query.latest import AbsentTags, LatestRecord, find_latest_in_stream, latest_record, merge_peer_records
from agent.query.scan import Dictionary, Scanner
from agent.replication.serving import LatestValues, LookUp, TagFilter, TagKey


def _nothing(_: str) -> Sequence[LatestRecord]:
    return ()


def _tag(row: LatestRecord) -> TagKey:
    return row["zone"], row["subject"], row["predicate"]


def latest_lookup(
    reader: StoreReader,
    queue_depth: Callable[[str], int],
    from_peers: Callable[[str], Sequence[LatestRecord]] = _nothing,
) -> LookUp:
    """How the server looks latest values up. `queue_depth`: facts of a stream that are known to be at peers and not yet
    here; `from_peers`: values of a stream that peers sent. Searches share what they have read of tags, so only one may
    run at a time."""
    absent = AbsentTags()
    dictionary = Dictionary(reader)  # definitions never change, and reading ten thousand takes half a second

    def look_up(stream: str, is_wanted: TagFilter, fresh_ms: int, depth_facts: int) -> LatestValues:
        now_ns, scanner = time.time_ns(), Scanner(reader, dictionary)
        known = find_latest_in_stream(
            scanner, now_ns, stream, absent, is_wanted, depth_facts=depth_facts, fresh_ms=fresh_ms
        )
        others = [row for row in from_peers(stream) if is_wanted(_tag(row))]
        if others:
            rows = merge_peer_records([latest_record(row) for row in known], others, now_ns, fresh_ms)
            tags = [_tag(row) for row in rows]
            return LatestValues(tags, lambda at: entry_of(rows[at]), depth_facts, queue_depth(stream))
        # Formatting is most of the cost of ten thousand values, so only those of the page are formatted.
        tags = [row.tag for row in known]
        return LatestValues(tags, lambda at: entry_of(latest_record(known[at])), depth_facts, queue_depth(stream))

    return look_up
