"""Shell: lands the facts of a stream in a table, each exactly once, and confirms landed facts to the node.

Each batch of the stream is added to the table in one atomic step, which also records the offset up to which the table
has the facts of this checkpoint. So a batch that Spark repeats is recognised. The consumer is confirmed up to batches
that are durable in the table and finished in Spark's checkpoint, so the node releases no fact that is not landed. Facts
by which a node declares a loss, and offsets that the store could not give, become rows of `<table>_incidents`, and the
run continues.

A query that fails is started again after 1 to 60 s, unless its options or the checkpoint are wrong.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs.settings import DECLARED, Settings, stream_options
from pyspark_bsfg.landing.files import FilesSink
from pyspark_bsfg.landing.lander import Lander, Totals
from pyspark_bsfg.landing.manifest import Format
from pyspark_bsfg.options import by_node
from pyspark_bsfg.schema import TABLE
from pyspark_bsfg.session import check
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.streaming.receipts import confirming
from pyspark_bsfg.transports import places

POLL_S = 0.5
BACK_OFF_S = (1, 2, 4, 8, 15, 30, 60)
ATTEMPTS_MAX = 5  # of a run with an end
# Errors that a retry cannot correct. Their classes are known only by name, because Spark passes on a text.
_FINAL = re.compile(r"pyspark_bsfg\.errors\.(?:OptionError|StreamUnknown|FactsGone|ConsumerRefused|JobRefused): (.*)")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What to land, and where. `options` are those of readStream."""

    options: Mapping[str, str]
    folder: Path
    checkpoint: Path
    kind: Format = "delta"
    is_available_now: bool = False
    every_s: float = 10.0

    @classmethod
    def all_of(cls, settings: Settings, *, is_available_now: bool) -> list[Order]:
        """From the TOML: one, or one for each of several nodes, which has a checkpoint of its own."""
        land = settings.land
        return [
            cls(options, land.table, checkpoint_of(land.checkpoint, node), land.format, is_available_now, land.every_s)
            for node, options in by_node(settings.source).items()
        ]

    def declarations(self, stream: str) -> Order:
        """The order for another stream of the same store, from its oldest fact to now, into `<table>_declared`. It has
        a consumer of its own, because a consumer has a cursor for one stream."""
        options = {name.lower(): text for name, text in self.options.items()}
        options.pop("startingtimestamp", None)
        options |= {"stream": stream, "startingoffsets": "earliest"}
        if consumer := options.get("consumer"):
            # Only the land job of this table uses it, and that holds the lease of `consumer`.
            options |= {"consumer": consumer + DECLARED, "startingoffsets": "cursor", "takeover": "true"}
        checkpoint = self.checkpoint.with_name(f"{self.checkpoint.name}_declared")
        return replace(
            self, options=options, folder=declared_of(self.folder), checkpoint=checkpoint, is_available_now=True
        )


def checkpoint_of(checkpoint: Path, node: str) -> Path:
    """The checkpoint of one of several nodes."""
    return checkpoint.with_name(f"{checkpoint.name}_{node}") if node else checkpoint


def declared_of(folder: Path) -> Path:
    """The table of declarations of a table of facts."""
    return folder.with_name(f"{folder.name}_declared")


def run_all(
    spark: SparkSession, orders: Sequence[Order], stop: threading.Event, between: Callable[[Totals], None]
) -> tuple[Totals, int]:
    """Land several streams side by side, as `run` does each; one that fails is logged and ends no other, but an error
    of `between` ends all. Facts that several nodes have held land once. Raises JobRefused for those that failed, when
    the others have ended."""
    if len(orders) == 1:
        return run(spark, orders[0], stop, between)
    latest: dict[Path, Totals] = {}
    with ThreadPoolExecutor(len(orders)) as pool:
        running = [
            pool.submit(run, spark, order, stop, partial(latest.__setitem__, order.checkpoint)) for order in orders
        ]
        for order, job in zip(orders, running, strict=True):
            job.add_done_callback(partial(_log_failure, order.options["peer"]))
        try:
            while wait(running, POLL_S).not_done:
                between(_sum(latest.values()))
        finally:
            if wait(running, 0).not_done:  # after an error of `between`: the pool would wait for streams without an end
                stop.set()
    failed = [
        f"{order.options['peer']}: {error}"
        for order, job in zip(orders, running, strict=True)
        if (error := job.exception())
    ]
    if failed:
        raise JobRefused("; ".join(failed), "the facts of the other nodes are landed")
    return _sum(job.result()[0] for job in running), sum(job.result()[1] for job in running)


def _log_failure(node: str, job: Future[tuple[Totals, int]]) -> None:
    if error := job.exception():
        log.error("%s is not landed any more: %s", node, error)


def _sum(totals: Iterable[Totals]) -> Totals:
    found = Totals()
    for addend in totals:
        found = Totals(**{name: value + getattr(addend, name) for name, value in asdict(found).items()})
    return found


def run(
    spark: SparkSession, order: Order, stop: threading.Event, between: Callable[[Totals], None] = lambda _: None
) -> tuple[Totals, int]:
    """Land until `stop` is set, or with `is_available_now` the facts that are there. Returns what was done, and how
    often the query was started again. `between` is called every half second while the query runs. Raises JobRefused,
    SparkError and PySparkException for errors that a retry cannot correct."""
    check(spark)
    spark.dataSource.register(FilesSink)
    options = stream_options(order.options, order.checkpoint)
    asked = StreamOptions.of(options)
    with ExitStack() as stack:
        if asked.consumer:
            stack.enter_context(confirming(spark, options))
        place = places(asked.read)[0]
        lander = Lander(order.checkpoint, place, asked.read.stream, order.folder, order.kind)

        def tell() -> None:
            try:
                between(lander.totals)
            except PySparkException as error:  # no failure of the query, which would be started again
                raise JobRefused(f"another job failed: {_reason(error)}") from error

        failures = restarts = 0
        while True:
            batches = lander.totals.batches
            try:
                _follow(_start(spark, options, lander, order), tell, stop)
                return lander.totals, restarts
            except (StreamingQueryException, PySparkException) as error:
                failures = 1 if lander.totals.batches > batches else failures + 1
                if found := _FINAL.search(str(error)):
                    raise JobRefused(found[1]) from error
                if order.is_available_now and failures >= ATTEMPTS_MAX:
                    raise JobRefused(f"{_reason(error)} (tried {failures} times)") from error
                pause_s = BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1]
                log.warning("the query failed and starts again in %s s: %s", pause_s, _reason(error))
                restarts += 1
                if stop.wait(pause_s):
                    return lander.totals, restarts


def _start(spark: SparkSession, options: Mapping[str, str], lander: Lander, order: Order) -> StreamingQuery:
    facts = spark.readStream.format("bsfg").schema(TABLE).options(**options).load()
    writing = facts.writeStream.foreachBatch(lander).option("checkpointLocation", str(order.checkpoint))
    if order.is_available_now:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=f"{round(order.every_s * 1000)} milliseconds").start()


def _follow(query: StreamingQuery, between: Callable[[], None], stop: threading.Event) -> None:
    """Wait until the query ends or `stop` is set. Raises StreamingQueryException, and what `between` raises."""
    try:
        while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # it takes fractions
            between()
            if stop.is_set():
                return
    finally:
        query.stop()


def _reason(error: Exception) -> str:
    """The last line of a Python trace within Spark's text, without a class of ours, or its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(?:Error|Gone|Unreadable|Refused|Exception): ", line)]
    line = (named or lines or [type(error).__name__])[-1 if named else 0]
    return re.sub(r"^pyspark_bsfg\.errors\.\w+: ", "", line)[:500]
