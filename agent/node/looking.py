"""Answers those who may look at a node and change nothing, over the local socket: its status and latest values.

Commands of the node's group do not open the store's file: the node reads for them, one request at a time and as far as
any reader. A search is kept for its further pages.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from agent.fact_store import FactStore
from agent.health.brief import encode_health
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict
from agent.local_socket import LatestRows, ReadLatest
from agent.node.latest import peer_latest
from agent.query.latest import (
    DEPTH_FACTS,
    LatestRecord,
    Tag,
    find_latest,
    latest_record,
    merge_peer_records,
    streams_with,
    tags_matching,
)
from agent.query.scan import Scanner

ANSWER_BYTES = 700_000  # below the socket's limit with one more row of any size
KEPT_S = 10.0
Judge = Callable[[], tuple[NodeSnapshot, Verdict]]


class Looking:
    """Reads the store of a running node for its group."""

    def __init__(self, store: FactStore, state_dir: Path, judge: Judge) -> None:
        self._store, self._state_dir, self._judge = store, state_dir, judge
        self._turn = asyncio.Lock()
        self._kept: tuple[ReadLatest, float, LatestRows] | None = None

    def status(self, *, everything: bool) -> bytes:
        """The status of the node as JSON."""
        return encode_health(*self._judge(), everything=everything)

    async def latest(self, request: ReadLatest) -> LatestRows:
        """The rows from `request.first` that fit into an answer. Raises the store's errors."""
        query = msgspec.structs.replace(request, first=0)
        async with self._turn:
            if self._kept is None or self._kept[0] != query or time.monotonic() - self._kept[1] > KEPT_S:
                self._kept = query, time.monotonic(), await asyncio.to_thread(self._search, query)
            found = self._kept[2]
            rows = _fitting(itertools.islice(found.rows, request.first, None))
            is_last = request.first + len(rows) >= len(found.rows)
            if is_last:
                self._kept = None
            return LatestRows(rows, not is_last, found.holes)

    def _search(self, query: ReadLatest) -> LatestRows:
        wanted = tags_matching(query.tag_glob, query.zone)
        scanner, now_ns = Scanner(self._store.reader), time.time_ns()
        streams = streams_with(scanner, query.tag_glob, query.stream)
        depth = min(query.depth_facts or DEPTH_FACTS, DEPTH_FACTS)  # a deeper search occupies the node for minutes
        found = find_latest(scanner, now_ns, wanted, streams=streams, depth_facts=depth, fresh_ms=query.fresh_ms)
        rows: list[LatestRecord] = [latest_record(row) for row in found]
        others = peer_latest(self._state_dir, query.stream)
        others = [row for row in others if wanted(Tag(row["zone"], row["subject"], row["predicate"]))]
        if others:
            rows = merge_peer_records(rows, others, now_ns, query.fresh_ms)
        return LatestRows([dict(row) for row in rows], more=False, holes=scanner.counters.holes)


def _fitting(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first rows, as many as fit into an answer, but at least one."""
    kept, size = list[dict[str, Any]](), 0
    for row in rows:
        size += len(msgspec.json.encode(row)) + 1
        if kept and size > ANSWER_BYTES:
            break
        kept.append(row)
    return kept
