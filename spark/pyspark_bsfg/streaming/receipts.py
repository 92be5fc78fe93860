"""Shell: confirms what a query has finished, so that the node may release it.

A batch counts as finished when Spark has written its commit entry, that is after the sink. Spark tells the source one
batch late and of the last batch never; a listener learns of each at once, and `confirming` confirms the last one when
the query has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
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
from pyspark_bsfg.streaming.checkpoint import last_committed, query_id
from pyspark_bsfg.streaming.offsets import StreamOffset
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.transports import Place, places

log = logging.getLogger(__name__)


class Receipts(StreamingQueryListener):
    """Confirms the query of one checkpoint; events of other queries change nothing."""

    def __init__(self, place: Place, consumer: str, checkpoint: Path) -> None:
        self._place = place
        self.consumer = consumer
        self.checkpoint = checkpoint
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
        """`confirming` does it, because this event may come after the end of the program."""

    def confirm(self) -> bool:
        """Confirm all batches that have a commit entry; whether that succeeded, or there was nothing new."""
        with self._lock:
            try:
                done = last_committed(self.checkpoint)
                if done is None or done == self.confirmed or not done.offset:
                    return True
                with self._place.opened() as source:
                    source.confirm(self.consumer, done.offset, done.epoch)
            except (BsfgError, OSError) as error:
                log.warning("consumer %s is not confirmed: %s", self.consumer, error)
                return False
            self.confirmed = done
            return True


@contextmanager
def confirming(spark: SparkSession, options: Mapping[str, str]) -> Iterator[Receipts]:
    """While the block runs, the batches of the query that reads with these options are confirmed as they are finished,
    and at the end once more. Raises SparkError for wrong options."""
    asked = StreamOptions.of(options)
    if not asked.consumer:
        raise OptionError("no consumer is to be confirmed", "name one: option consumer")
    receipts = Receipts(places(asked.read)[0], asked.consumer, Path(asked.checkpoint))
    spark.streams.addListener(receipts)
    try:
        yield receipts
    finally:
        spark.streams.removeListener(receipts)
        receipts.confirm()
