"""Turns pages of batches into Arrow record batches, for every transport. Core: no IO except its log.

Every fact of the requested range that the store still has, and that a query's filters do not exclude, is returned once,
in order. Each missing range is passed to `on_hole`; `HoleLog` logs it as a warning, and raises an exception at the end
if the caller wants one. Missing batches that the filters exclude are not reported.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from agent.batch import Definitions
from agent.columns import BatchError
from agent.fact_store import BatchSummary
from agent.pages import Hole
from pyspark_bsfg.columns import Columns
from pyspark_bsfg.dictionary import Dictionary, Named
from pyspark_bsfg.errors import FactsGone, StoreUnreadable
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.transports.ports import Asked, FactSource, OnHole, PlacedBatch

HOLES_LOGGED_MAX = 20  # lines of one task; a failing disk has more holes, and their sum is enough
SPANS_NAMED_MAX = 10

log = logging.getLogger(__name__)


def record_batches(
    source: FactSource, asked: Asked, schema: Any, on_hole: OnHole, pruning: Pruning | None = None
) -> Iterator[Any]:
    """The facts of a range as Arrow record batches of `schema`. Raises SparkError."""
    pruning = pruning or Pruning()
    dictionary = Dictionary(pruning.wants)
    columns = Columns(schema, asked.stream, dictionary, pruning)
    skips_batches = pruning.skips_batches  # read here once: for each batch, it took a twentieth of the time of a count
    for span in source.matching(asked, pruning, dictionary):
        part = Asked(asked.stream, span, asked.life)
        if columns.counts_only and (counts := source.counts(part)) is not None:
            yield columns.counted(counts)
            continue
        for page in source.pages(part, dictionary, needs_proofs=columns.needs_proofs):
            for hole in page.holes:
                on_hole(hole)
            for named in _definitions(page.batches) if columns.needs_tags else ():
                source.define(dictionary, named)
            for placed in page.batches:
                first, batch, verified = placed
                header = batch.header
                if skips_batches and not pruning.may_hold(_summary(placed)):
                    continue  # a transport without summaries has sent it
                if columns.needs_tags:
                    source.define(dictionary, (header.origin.zone, header.definitions))
                start, stop = max(span.first - first, 0), min(span.last, placed.last_offset) - first + 1
                try:
                    yield from columns.add(batch, first, start, stop, verified)
                except BatchError as error:
                    where = f"{source.name}: facts {first} to {placed.last_offset} of {asked.stream}"
                    raise StoreUnreadable(f"{where}: {error}", "run bsfg store verify on the node") from error
    yield from columns.flush()


def _summary(placed: PlacedBatch) -> BatchSummary:
    """The summary of a batch, as a store's reader gives it."""
    header = placed.batch.header
    return BatchSummary(
        placed.first_offset,
        placed.last_offset,
        header.origin,
        header.first_sequence,
        header.time_min_ns,
        header.time_max_ns,
        header.kind,
        definition=None,
        body_bytes=len(placed.batch.sealed),
    )


def _definitions(batches: Iterable[PlacedBatch]) -> Iterable[Named]:
    """The most definitions of each zone that batches name, which nearly always include its others."""
    found = dict[str, Definitions]()
    for header in (batch.batch.header for batch in batches):
        if header.definitions.count > found.get(header.origin.zone, Definitions()).count:
            found[header.origin.zone] = header.definitions
    return found.items()


class HoleLog:
    """Logs the facts of a task's range that the store does not have. Call it with each hole, and `sum_up` at the end,
    which raises FactsGone with `hint` if there was a hole for one of the `refused` reasons."""

    def __init__(self, name: str, stream: str, refused: Collection[str] = (), hint: str = "") -> None:
        self._name, self._stream = name, stream
        self._refused, self._hint = refused, hint
        self._holes = 0
        self._spans: list[Hole] = []  # holes that touch are one

    def __call__(self, hole: Hole) -> None:
        """Log a hole."""
        self._holes += 1
        before = self._spans[-1] if self._spans else None
        if before and (before.last_offset + 1, before.reason) == (hole.first_offset, hole.reason):
            self._spans[-1] = replace(before, last_offset=hole.last_offset)
        else:
            self._spans.append(hole)
        if self._holes <= HOLES_LOGGED_MAX:
            hint = "" if hole.reason == "expired" else "; run bsfg store verify on the node"
            log.warning("%s: %s are missing%s", self._name, extent([hole], self._stream), hint)

    def sum_up(self) -> None:
        """Log the sum, if there were too many holes to log each. Raises FactsGone, whose text names all of them."""
        if self._holes > HOLES_LOGGED_MAX:
            log.warning("%s: %s are missing in this task", self._name, extent(self._spans, self._stream))
        if refused := [hole for hole in self._spans if hole.reason in self._refused]:
            raise FactsGone(f"{self._name}: {extent(refused, self._stream)} are no longer in the store", self._hint)


def extent(holes: Sequence[Hole], stream: str) -> str:
    """Some holes in words: how many facts, where, and why."""
    facts = sum(hole.last_offset - hole.first_offset + 1 for hole in holes)
    spans = ", ".join(f"{hole.first_offset} to {hole.last_offset} {hole.reason}" for hole in holes[:SPANS_NAMED_MAX])
    more = f" and {len(holes) - SPANS_NAMED_MAX} more ranges" if len(holes) > SPANS_NAMED_MAX else ""
    return f"{facts} facts of {stream} ({spans}{more})"
