"""Shell: one stream of several nodes, as one source of Spark: each node has its own offset, checkpoint file and
consumer.

A node that cannot be reached delays no other: its offset stays until it answers again. A node that was added to the
options begins at `startingOffsets`; the offset of one that was taken out is kept, in case it comes back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_bsfg.errors import OptionError, briefly
from pyspark_bsfg.streaming.reader import IDLE_WAIT_S, POLL_NODE_S, UNREACHABLE, BsfgStreamReader

ASK_AGAIN_S = 10.0  # a node that does not answer; each attempt may take some seconds

log = logging.getLogger(__name__)

Offsets = dict[str, Any]
"""By node, in the order of names, because Spark compares offsets as text."""


class SeveralReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streams of the same name of several nodes."""

    def __init__(self, readers: Mapping[str, BsfgStreamReader]) -> None:
        self.readers = {name: readers[name] for name in sorted(readers)}
        self._asked_again_s = dict.fromkeys(self.readers, 0.0)
        self._ends = False

    @briefly
    def initialOffset(self) -> Offsets:  # noqa: N802  the names are Spark's
        """Where the first batch starts. Raises SparkError: a query starts when it has reached every node."""
        return {name: reader.initialOffset() for name, reader in self.readers.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return next(iter(self.readers.values())).getDefaultReadLimit()

    @briefly
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end of the next batch; `start` itself if nothing arrives for a moment. Raises as a reader of one node
        does."""
        _check_start(start)
        deadline, pause = time.monotonic() + IDLE_WAIT_S, threading.Event()
        if isinstance(limit, ReadMaxRows):
            limit = ReadMaxRows(max(limit.max_rows // len(self.readers), 1))
        while True:
            end = dict(sorted((start | {name: self._end_of_node(name, start, limit) for name in self.readers}).items()))
            end = {name: offset for name, offset in end.items() if offset is not None}
            if end != start or self._ends or time.monotonic() >= deadline:
                return end
            pause.wait(POLL_NODE_S)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends = True
        for reader in self.readers.values():
            reader.prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """That of each node."""
        found = {name: reader.reportLatestOffset() for name, reader in self.readers.items()}
        return {name: offset for name, offset in found.items() if offset is not None} or None

    @briefly
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        _check_start(start)
        return [
            part
            for name, reader in self.readers.items()
            if name in start and name in end
            for part in reader.partitions(start[name], end[name])
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one task, which knows its node."""
        return next(iter(self.readers.values())).read(partition)

    @briefly
    def commit(self, end: Offsets) -> None:
        """Confirm what Spark has finished, to each node. Raises ConsumerRefused where another query has taken over."""
        for name in self.readers.keys() & end.keys():
            if time.monotonic() >= self._asked_again_s[name]:  # one that is away would delay the others' next batch
                self.readers[name].commit(end[name])

    def _end_of_node(self, name: str, start: Offsets, limit: ReadLimit) -> dict[str, Any] | None:
        """The end of the next batch for one node; None for a new one that was not reached."""
        reader, now_s = self.readers[name], time.monotonic()
        if now_s < self._asked_again_s[name]:
            return start.get(name)
        try:
            if name not in start:  # its first batch begins there, whatever it has by then
                return reader.begin(reader.polled)
            end = reader.step(reader.offset_of(start[name]), limit)
        except UNREACHABLE as error:
            if self._ends:
                raise
            log.warning("node %s is not reached: %s", name, error)
            end = None
        if end is None:
            self._asked_again_s[name] = time.monotonic() + ASK_AGAIN_S
            return start.get(name)
        return reader.logged(end)


def _check_start(start: Offsets) -> None:
    """Raise OptionError for the offset of one node: its checkpoint does not say which one it was."""
    if not all(isinstance(offset, dict) for offset in start.values()):
        raise OptionError("the checkpoint belongs to a query of one node", "use a new one, with a new output")
