"""Carries out a search for last values on a store: heads first, then batches from the newest time down, until nothing is missing.

Only as many facts as `depth` are looked through, from the end of each stream: a tag that has never said anything would otherwise have
the whole store opened for its sake. Within the depth the answer is exact; what was not found in it is a row without a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.batch import BatchError, Kind, open_packed, parse
from agent.fact_store.records import BatchHead, Hole
from agent.query.latest import LatestRow, Search, Tag
from agent.query.scan import Scanner

DEPTH_FACTS = 10_000_000  # one to two seconds on two shared cores, where nothing ends the search earlier
FRESH_MS = 60_000


@dataclass(frozen=True, slots=True)
class Latest:
    """What a search found, and the bound it kept: the depth in facts, 0 where it could go to the beginning."""

    rows: list[LatestRow]
    depth_facts: int

    @property
    def missing(self) -> list[LatestRow]:
        """Rows without a value."""
        return [row for row in self.rows if row.known is None]


def latest(
    scanner: Scanner,
    now_ns: int,
    is_wanted: Callable[[Tag], bool] = lambda _: True,
    *,
    streams: frozenset[str] | None = None,
    depth_facts: int = DEPTH_FACTS,
    fresh_ms: int = FRESH_MS,
) -> Latest:
    """The last known value of each wanted tag."""
    definitions = {origin: scanner.dictionary.all_of(origin) for origin in scanner.reader.origins()}
    search = Search(definitions, is_wanted)
    for head, stream in _newest_first(scanner, streams, depth_facts):
        if not search.settle(head.time_max_ns):
            break
        if search.may_be_in(head.origin):
            _look(scanner, search, stream, head)
    return Latest(search.rows(now_ns, fresh_ms), depth_facts)


def _newest_first(scanner: Scanner, streams: frozenset[str] | None, depth_facts: int) -> list[tuple[BatchHead, str]]:
    found: list[tuple[BatchHead, str]] = []
    for stream, end_offset in scanner.ends.items():
        if streams is None or stream in streams:
            first_offset = max(scanner.firsts[stream], end_offset - depth_facts + 1 if depth_facts else 1)
            for page in scanner.heads(stream, first_offset, end_offset):
                found += [(head, stream) for head in page if head.kind == Kind.SAMPLES]
    found.sort(key=lambda one: (one[0].time_max_ns, one[0].first_offset), reverse=True)
    return found


def _look(scanner: Scanner, search: Search, stream: str, head: BatchHead) -> None:
    for stored in scanner.read(stream, head.first_offset, head.last_offset):
        try:
            samples = open_packed(parse(stored.sealed))
        except BatchError:
            scanner.effort.met(stream, Hole(stored.first_offset, stored.last_offset, "damaged"))
            continue
        scanner.effort.batches_opened += 1
        search.look(stream, stored.first_offset, stored.origin, samples)
