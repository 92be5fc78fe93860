"""Shell: confirms the batches that a query has finished, so that the node may release their facts.

A batch is finished when Spark has written its commit entry, which is after the sink. Spark reports that to the source
one batch late, and never for the last batch. A listener gets each report at once, and `confirming` confirms the last
batch when the query has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from agent.errors import BsfgError
from pyspark_bsfg.errors import OptionError
from pyspark_bsfg.streaming.checkpoint import last_committed, query_id, read_binding
from pyspark_bsfg.streaming.offsets import StreamOffset
from pyspark_bsfg.streaming.options import NODES, StreamOptions
from pyspark_bsfg.transports import Place, places

log = logging.getLogger(__name__)


class Receipts(StreamingQueryListener):
    """Confirms the query of one checkpoint; events of other queries are ignored. `node`: of several, each of which has
    a `Receipts` of its own."""

    def __init__(self, place: Place, consumer: str, checkpoint: Path, node: str = "") -> None:
        self._place = place
        self.consumer = consumer
        self.checkpoint = checkpoint
        self._node, self._binding = node, checkpoint / NODES / node if node else checkpoint
        self.confirmed: StreamOffset | None = None
        self._lock = threading.Lock()  # events come in a thread of Spark's

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  the names are Spark's
        """Nothing is finished yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Its batch has its commit entry."""
        if str(event.progress.id) == query_id(self.checkpoint):
            self.confirm()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Confirm again what could not be confirmed before."""
        if str(event.id) == query_id(self.checkpoint):
            self.confirm()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing: `confirming` confirms the last batch, because this event may come after the end of the program."""

    def confirm(self) -> bool:
        """Confirm all batches that have a commit entry. Returns whether that succeeded or there was nothing new."""
        with self._lock:
            try:
                done = last_committed(self.checkpoint, self._node)
                if done is None or done == self.confirmed or not done.offset:
                    return True
                binding = read_binding(self._binding)
                if binding is None:  # its batches are of a query without a consumer, and the store was not reached yet
                    return False
                with self._place.opened() as source:
                    source.confirm(self.consumer, done.offset, done.life, binding.claim(self._binding))
            except (BsfgError, OSError) as error:
                log.warning("consumer %s is not confirmed: %s", self.consumer, error)
                return False
            self.confirmed = done
            return True


@contextmanager
def confirming(spark: SparkSession, options: Mapping[str, str]) -> Iterator[Sequence[Receipts]]:
    """While the block runs, confirm the batches of the query with these options as they are finished, and once more at
    the end. Raises SparkError for wrong options."""
    asked = StreamOptions.of(options)
    if not asked.consumer:
        raise OptionError("there is no consumer to confirm", "name one: option consumer")
    names = [node.peer for node in asked.read.nodes] if len(asked.read.nodes) > 1 else [""]
    receipts = [
        Receipts(place, asked.consumer, Path(asked.checkpoint), name)
        for place, name in zip(places(asked.read), names, strict=True)
    ]
    for receipt in receipts:
        spark.streams.addListener(receipt)
    try:
        yield receipts
    finally:
        for receipt in receipts:
            spark.streams.removeListener(receipt)
            receipt.confirm()
