"""Shell: plans the micro-batches of a stream and reads them, as Spark calls it.

One process of the driver's host makes all calls except `read`, which tasks make on a pickled copy; so what a task needs
is in its partition. While the store or its node cannot be reached, the stream waits, and logs that once. A consumer is
confirmed only up to batches that Spark has finished. Spark reports that one batch late, and never for the last one;
`receipts.py` confirms these.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from agent.errors import BsfgError
from agent.fact_store import StoreError
from agent.pages import Hole
from pyspark_bsfg.errors import (
    ConsumerRefused,
    FactsGone,
    NodeUnavailable,
    OptionError,
    StoreUnreadable,
    StreamUnknown,
)
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.reader import exempt_imports, usual_tasks
from pyspark_bsfg.schema import arrow_schema
from pyspark_bsfg.streaming.checkpoint import bind, read_binding, write_binding
from pyspark_bsfg.streaming.offsets import StreamOffset, first_offset, next_step, parts
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.transports import Asked, Bounds, FactSource, HoleLog, Place, StoreFile, places, record_batches

# Spark asks 100 times a second while there is nothing new; a stop waits for the answer.
IDLE_WAIT_S = 0.5
POLL_S = 0.05
POLL_NODE_S = 0.2  # a request each
UNREACHABLE = (StoreUnreadable, NodeUnavailable, StoreError, StreamUnknown, OSError)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamPart(InputPartition):
    """What one task reads; empty if last < first."""

    place: Place
    epoch: str
    first: int
    last: int


class BsfgStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream of one store, as a source of Structured Streaming."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        arrow_schema(schema)  # a wrong column is refused in planning, not in a task
        stores = places(options.read)
        if len(stores) != 1:
            raise OptionError(f"readStream of {len(stores)} stores", "a query for each: their offsets are their own")
        self.options = options
        self.schema = schema
        self.place = stores[0]
        self._target: StreamOffset | None = None
        self._held: Bounds | None = None
        self._is_bound = False
        self._silent_since = ""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  the names are Spark's
        """Where the first batch starts. Spark asks several times, also when that batch is repeated after a crash.
        Raises SparkError: a query whose store was never reached does not wait."""
        with self.place.opened() as source:
            held = source.bounds(self.options.read.stream)
            start = self._bound(source, held) or first_offset(self.options.start, held)
        return start.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.options.offsets_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself if nothing arrives for a moment, or the store cannot be reached.
        Raises FactsGone if facts are lost and the options do not allow that; with AvailableNow also if the store cannot
        be reached."""
        after = StreamOffset.of(start)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        deadline, pause = time.monotonic() + IDLE_WAIT_S, threading.Event()
        while True:
            held = self._reached()
            if held is not None:
                if self._target is not None and self._target.epoch != held.epoch:
                    self._target = StreamOffset(held.epoch, held.end_offset)
                step = next_step(after, held, rows_max, self._target, self.options.on_new_epoch)
                if step.lost is not None:
                    self._on_lost(Hole(*step.lost, "expired"))
                if step.end.epoch != after.epoch:
                    log.warning("%s has begun epoch %s: it is read again", self.place, step.end.epoch)
                if step.end != after:
                    return step.end.to_json()
            if self._target is not None or time.monotonic() >= deadline:
                return after.to_json()
            pause.wait(POLL_S if isinstance(self.place, StoreFile) else POLL_NODE_S)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends at the present end of the log. Raises SparkError: a run that could not reach the store is no
        success."""
        with self.place.opened() as source:
            held = source.bounds(self.options.read.stream)
        self._target = StreamOffset(held.epoch, held.end_offset)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The last known end of the log, for Spark's progress; and since when the store cannot be reached, if so."""
        if self._held is None:
            return None
        seen = StreamOffset(self._held.epoch, self._held.end_offset).to_json()
        return seen | ({"unreachable_since": self._silent_since} if self._silent_since else {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Offset ranges, one for each task. They depend on the offsets only, not on what the store holds now."""
        begin, until = StreamOffset.of(start), StreamOffset.of(end)
        options = self.options
        shares = parts(
            begin, until, usual_tasks(options.read), options.partitions_min, options.read.partition_facts_max
        )
        found: list[InputPartition] = [StreamPart(self.place, until.epoch, *one) for one in shares]
        # Spark turns an empty list into one partition of its own kind; an empty range is clearer.
        return found or [StreamPart(self.place, until.epoch, 1, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one task. Raises FactsGone, and SparkError."""
        assert isinstance(partition, StreamPart), partition
        exempt_imports()
        asked = Asked(self.options.read.stream, OffsetRange(partition.first, partition.last), partition.epoch)
        if not asked.offsets.facts:
            return
        with partition.place.opened() as source:
            if self.options.on_new_epoch == "reread" and source.bounds(asked.stream).epoch != asked.epoch:
                # This batch was planned before the store was restored. Its remaining facts are read again later.
                log.warning("%s has left epoch %s: %s is empty", source.name, asked.epoch, asked.offsets)
                return
            missing = HoleLog(source.name, asked.stream)

            def on_hole(hole: Hole) -> None:
                self._on_lost(hole)
                missing(hole)

            yield from record_batches(source, asked, arrow_schema(self.schema), on_hole)
            missing.sum_up()

    def commit(self, end: dict[str, Any]) -> None:
        """Confirm everything up to `end`, which Spark has finished. Never raises: that would end the query, and the
        next call confirms this too."""
        if not self.options.consumer:
            return
        try:
            done = StreamOffset.of(end)
            with self.place.opened() as source:
                source.confirm(self.options.consumer, done.offset, done.epoch)
        except (BsfgError, OSError) as error:
            log.warning("consumer %s is not confirmed up to %s: %s", self.options.consumer, end, error)

    def _on_lost(self, hole: Hole) -> None:
        """Raise FactsGone for facts that cannot be read, unless the options allow losses."""
        if self.options.is_loss_refused:
            hint = "failOnDataLoss=false goes on after them"
            where = f"facts {hole.first_offset} to {hole.last_offset} of {self.options.read.stream}"
            raise FactsGone(f"{where} are no longer in the store: {hole.reason}", hint)

    def _reached(self) -> Bounds | None:
        """What the store holds; None if it cannot be reached, which is logged once, as is its return. Raises with
        AvailableNow."""
        try:
            with self.place.opened() as source:
                held = source.bounds(self.options.read.stream)
                if not self._is_bound:
                    self._bound(source, held)
        except UNREACHABLE as error:
            if self._target is not None:  # with None, the run would end as if all had been read
                raise
            if not self._silent_since:
                self._silent_since = datetime.now(UTC).isoformat(timespec="seconds")
                log.warning("the stream waits: %s", error)
            return None
        if self._silent_since:
            log.warning("the stream goes on; it waited since %s", self._silent_since)
            self._silent_since = ""
        self._held = held
        return held

    def _bound(self, source: FactSource, held: Bounds) -> StreamOffset | None:
        """Make sure that the checkpoint, the consumer and this query belong together. Returns the start of the query,
        if there is a checkpoint. Raises JobRefused, ConsumerRefused, and what the transport raises."""
        options, folder = self.options, Path(self.options.checkpoint)
        if not options.checkpoint:
            return None
        known = read_binding(folder)
        if known is None and options.consumer and options.start != "cursor":
            cursor = source.cursor(options.consumer)
            if cursor is not None:
                raise ConsumerRefused(
                    f"consumer {options.consumer} exists and has confirmed up to {cursor}, and checkpoint {folder} is new",
                    "use the checkpoint it belongs to, or another consumer; startingOffsets=cursor takes it over",
                )
        binding = bind(folder, held.zone, options.read.stream, options.consumer)
        cursor = self._register(source, is_new=binding.start is None) if options.consumer else 0
        if binding.start is None:
            start = first_offset(options.start, held)
            if options.consumer and not isinstance(options.start, int):
                start = StreamOffset(held.epoch, cursor)
            elif options.consumer and start.offset > cursor:
                source.confirm(options.consumer, start.offset, held.epoch)
            binding = replace(binding, start=start)
            write_binding(folder, binding)
        self._is_bound = True
        return binding.start

    def _register(self, source: FactSource, *, is_new: bool) -> int:
        """The cursor of the consumer, which is registered if it is not yet. A consumer that was removed meanwhile
        starts at the oldest fact; finished batches are confirmed with the next one."""
        options = self.options
        start: Any = "oldest"
        if is_new and options.since_unix_ms is not None:
            start = options.since_unix_ms
        elif is_new and options.start == "latest":
            start = "end"
        return source.register(options.consumer, options.read.stream, start)
