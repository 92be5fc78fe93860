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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from agent.errors import BsfgError, StoreError
from agent.lease import LEASE_EPOCH_MAX, LeaseClaim
from agent.pages import Hole, Start
from pyspark_bsfg.errors import (
    ConsumerRefused,
    FactsGone,
    NodeUnavailable,
    OptionError,
    SparkError,
    StoreUnreadable,
    StreamUnknown,
    briefly,
)
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.reader import exempt_imports, usual_tasks
from pyspark_bsfg.schema import arrow_schema
from pyspark_bsfg.streaming.checkpoint import Binding, bind, read_binding, write_binding
from pyspark_bsfg.streaming.offsets import StreamOffset, first_offset, next_step, parts
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.transports import Asked, Bounds, FactSource, HoleLog, Place, StoreFile, extent, places, record_batches

# Spark asks 100 times a second while there is nothing new; a stop waits for the answer.
IDLE_WAIT_S = 0.5
POLL_S = 0.05
POLL_NODE_S = 0.2  # a request each
POLL_TIMEOUT_S = 5  # Spark renews the progress of an idle query every 10 s
LOSS_HINT = "failOnDataLoss=false goes on after them"
LEASE_TRIES = 5
NO_CLAIM = LeaseClaim("", 0, LEASE_EPOCH_MAX)
UNREACHABLE = (StoreUnreadable, NodeUnavailable, StoreError, StreamUnknown, OSError)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamPart(InputPartition):
    """What one task reads; empty if last < first."""

    place: Place
    life: str
    first: int
    last: int


class Refused(DataSourceStreamReader):
    """A query that cannot be read: its first call raises why."""

    def __init__(self, error: SparkError) -> None:
        self.error = error

    @briefly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  the names are Spark's
        raise self.error

    @briefly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        raise self.error

    @briefly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        raise self.error


class BsfgStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream of one store, as a source of Structured Streaming."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        arrow_schema(schema)  # a wrong column is refused in planning, not in a task
        stores = places(options.read)
        if len(stores) != 1:
            hint = "a query for each, or nodes of transport mqtt: their offsets are their own"
            raise OptionError(f"readStream of {len(stores)} stores", hint)
        self.options = options
        self.schema = schema
        self.place = self.polled = stores[0]
        for node in options.read.nodes:
            # The stream asks again by itself, and says meanwhile that it waits: not after all attempts of a task.
            hasty = replace(node, attempts=1, request_timeout_s=min(node.request_timeout_s, POLL_TIMEOUT_S))
            [self.polled] = places(replace(options.read, nodes=(hasty,)))
        self._start: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._held: Bounds | None = None
        self._is_bound = False
        self._name = ""
        self._planned: StreamOffset | None = None
        self._lost = 0
        self._silent_since = ""

    @briefly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  the names are Spark's
        """Where the first batch starts. Spark asks several times, also when that batch is repeated after a crash.
        Raises SparkError: a query whose store was never reached does not wait."""
        return self.begin(self.place)

    def begin(self, place: Place) -> dict[str, Any]:
        """As `initialOffset`, by `place` or `polled`."""
        with place.opened() as source:
            held = source.bounds(self.options.read.stream)
            self._start = self._bound(source, held) or self._start or first_offset(self.options.start, held)
        return self.logged(self._start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.options.offsets_max)

    @briefly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself if nothing arrives for a moment, or the store cannot be reached.
        Raises FactsGone if facts are lost and the options do not allow that; with AvailableNow also if the store cannot
        be reached."""
        after = self.offset_of(start)
        deadline, pause = time.monotonic() + IDLE_WAIT_S, threading.Event()
        while True:
            end = self.step(after, limit)
            if end not in {None, after} or self._target is not None or time.monotonic() >= deadline:
                return self.logged(end or after)
            pause.wait(POLL_S if isinstance(self.place, StoreFile) else POLL_NODE_S)

    def step(self, after: StreamOffset, limit: ReadLimit) -> StreamOffset | None:
        """The end of the next batch, as of now; None if the store cannot be reached. Raises as `latestOffset`."""
        if (held := self._reached(after)) is None:
            return None
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        step = next_step(after, held, rows_max, self._target, self.options.on_restored)
        if step.lost is not None:
            self._on_lost(step.lost)
        if step.end.offset < after.offset:
            log.warning("%s was restored: it is read again after offset %s", self._name, step.end.offset)
        self._planned = step.end
        return step.end

    @briefly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends at the present end of the log. Raises SparkError: a run that could not reach the store is no
        success."""
        with self.place.opened() as source:
            held = source.bounds(self.options.read.stream)
        self._target = StreamOffset(held.life, held.end_offset)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The last known end of the log, for Spark's progress, which has no other place for what a Python source
        measures: how many facts, and about how many bytes, follow what is planned; how many facts this run has passed
        over because they were released; and since when the store cannot be reached, if so."""
        silent = {"unreachable_since": self._silent_since} if self._silent_since else {}
        if (held := self._held) is None:
            return silent or None
        seen = self.logged(StreamOffset(held.life, held.end_offset))
        if self._planned is not None:
            seen["behind_facts"] = behind = max(held.end_offset - self._planned.offset, 0)
            if held.bytes_per_fact:
                seen["behind_bytes"] = round(behind * held.bytes_per_fact)
        seen["lost_facts"] = self._lost
        return seen | silent

    @briefly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Offset ranges, one for each task. They depend on the offsets only, not on what the store holds now."""
        begin, until = self.offset_of(start), self.offset_of(end)
        options = self.options
        # A batch that is repeated after a start: facts of it may be gone, and another query may have taken over.
        if self._held is None and (held := self._reached(begin)) is not None:
            self._lost += max(min(held.first_offset - 1, until.offset) - begin.offset, 0)
        shares = parts(
            begin, until, usual_tasks(options.read), options.partitions_min, options.read.partition_facts_max
        )
        found: list[InputPartition] = [StreamPart(self.place, until.life, *share) for share in shares]
        # Spark turns an empty list into one partition of its own kind; an empty range is clearer.
        return found or [StreamPart(self.place, until.life, 1, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one task. Raises FactsGone, and SparkError."""
        assert isinstance(partition, StreamPart), partition
        exempt_imports()
        asked = Asked(self.options.read.stream, OffsetRange(partition.first, partition.last), partition.life)
        if not asked.offsets.facts:
            return
        with partition.place.opened() as source:
            end = StreamOffset(asked.life, asked.offsets.last).position
            if self.options.on_restored == "reread" and source.bounds(asked.stream, end).resolved != end.offset:
                # This batch was planned before the store was restored. Its remaining facts are read again later.
                log.warning("%s was restored: %s is empty", source.name, asked.offsets)
                return
            refused = ("expired", "damaged") if self.options.is_loss_refused else ()
            missing = HoleLog(source.name, asked.stream, refused, LOSS_HINT)
            try:
                yield from record_batches(source, asked, arrow_schema(self.schema), missing)
            except FactsGone as error:
                if self.options.on_restored != "reread":
                    raise
                log.warning("%s was restored: the rest of %s is left out: %s", source.name, asked.offsets, error)
                return
            missing.sum_up()

    @briefly
    def commit(self, end: dict[str, Any]) -> None:
        """Confirm everything up to `end`, which Spark has finished. An error does not end the query, and the next call
        confirms this too; but if another query has taken the consumer over, this one must read no further."""
        if not self.options.consumer:
            return
        try:
            done, folder = StreamOffset.of(end), Path(self.options.checkpoint)
            binding = read_binding(folder)
            assert binding is not None, "it was bound before its first batch"
            with self.polled.opened() as source:
                source.confirm(self.options.consumer, done.offset, done.life, binding.claim(folder))
        except (BsfgError, OSError) as error:
            if isinstance(error, ConsumerRefused) and error.code == "fenced":
                raise _fenced(error) from error
            # The consumer was removed, or the store was restored from before it: the next batch registers it again.
            self._is_bound &= not isinstance(error, ConsumerRefused)
            log.warning("consumer %s is not confirmed up to %s: %s", self.options.consumer, end, error)

    def logged(self, offset: StreamOffset) -> dict[str, Any]:
        """An offset for Spark's log, with the stream in which it is."""
        return offset.to_json() | {"stream": self.options.read.stream}

    def offset_of(self, logged: Mapping[str, Any]) -> StreamOffset:
        """The offset that Spark has logged. Raises OptionError if it is of another stream: facts would be left out."""
        theirs, ours = logged.get("stream"), self.options.read.stream
        if theirs not in {None, ours}:
            raise OptionError(f"the checkpoint belongs to stream {theirs}, this query reads {ours}", "use a new one")
        return StreamOffset.of(logged)

    def _on_lost(self, lost: OffsetRange) -> None:
        """Count facts that retention has released before they were read. Raises FactsGone unless the options allow
        that."""
        said = f"{self._name}: {extent([Hole(*lost, 'expired')], self.options.read.stream)} are no longer in the store"
        if self.options.is_loss_refused:
            raise FactsGone(said, LOSS_HINT)
        log.warning("%s: the stream goes on after them", said)
        self._lost += lost.facts

    def _reached(self, after: StreamOffset) -> Bounds | None:
        """What the store holds, and up to where `after` is valid in its log; None if it cannot be reached, which is
        logged once, as is its return. Raises with AvailableNow."""
        began = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            with (self.polled if self._target is None else self.place).opened() as source:
                held, self._name = source.bounds(self.options.read.stream, after.position), source.name
                if not self._is_bound:
                    self._bound(source, held)
        except UNREACHABLE as error:
            if self._target is not None:  # with None, the run would end as if all had been read
                raise
            if not self._silent_since:
                self._silent_since = began
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
        if options.consumer and read_binding(folder) is None:
            self._check_free(source)
        known = binding = bind(folder, held.zone, options.read.stream, options.consumer)
        cursor = 0
        if options.consumer:
            cursor, lease = self._register(source, binding)
            binding = replace(binding, lease=lease)
        if binding.start is None:
            start = first_offset(options.start, held)
            if options.consumer and not isinstance(options.start, int):
                start = StreamOffset(held.life, cursor)
            elif options.consumer and start.offset > cursor:
                source.confirm(options.consumer, start.offset, held.life, binding.claim(folder))
            binding = replace(binding, start=start)
        if binding != known:
            write_binding(folder, binding)
        self._is_bound = True
        return binding.start

    def _check_free(self, source: FactSource) -> None:
        """Raise ConsumerRefused if a new checkpoint would take the consumer from another one without being told to."""
        options = self.options
        if (cursor := source.cursor(options.consumer)) is None:
            return
        if options.start != "cursor":
            raise ConsumerRefused(
                f"consumer {options.consumer} exists and has confirmed up to {cursor}, and checkpoint"
                f" {options.checkpoint} is new",
                "use the checkpoint it belongs to, or another consumer; startingOffsets=cursor goes on after its facts,"
                " into a new output: a file sink skips batches with numbers that it knows",
            )
        # A claim after a lease that cannot be in force changes nothing, and is told which one is.
        found = source.register(options.consumer, options.read.stream, "oldest", NO_CLAIM)
        if found.in_force and not options.takes_over:
            raise ConsumerRefused(
                f"consumer {options.consumer} belongs to another query"
                f" (lease {found.in_force}{found.holder and f' of {found.holder}'})",
                "stop that query, then give this one takeOver=true, which fences it",
            )

    def _register(self, source: FactSource, binding: Binding) -> tuple[int, int]:
        """The cursor of the consumer and our lease of it; registered or claimed if need be. A consumer that was removed
        meanwhile starts at the oldest fact; finished batches are confirmed with the next one. Raises ConsumerRefused if
        another query has taken it over."""
        options, folder = self.options, Path(self.options.checkpoint)
        start: Start = "oldest"
        if binding.start is None and options.since_unix_ms is not None:
            start = options.since_unix_ms
        elif binding.start is None and options.start == "latest":
            start = "end"
        register = partial(source.register, options.consumer, options.read.stream, start)
        if binding.lease:
            try:
                return register(binding.claim(folder))[:2]
            except ConsumerRefused as error:
                if error.code != "lease_unknown":  # the store was restored, or has removed the consumer
                    raise _fenced(error) from error
        after = 0
        for _ in range(LEASE_TRIES):
            found = register(binding.claim(folder, after))
            if found.lease:
                return found[:2]
            after = found.in_force
        raise ConsumerRefused(f"other queries keep taking consumer {options.consumer}", "stop all but one")


def _fenced(error: ConsumerRefused) -> ConsumerRefused:
    """The error to raise; it says what happened if another query has taken the consumer."""
    if error.code != "fenced":
        return error
    return ConsumerRefused(f"another query has taken over: {error.why}", "let that one go on", error.code)
