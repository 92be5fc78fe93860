"""Lands the facts of a stream in a table: each once, whatever is killed, and confirms to the node what is in it.

    spark-submit spark/pyspark_bsfg/jobs/land.py --store /var/lib/bsfg/enterprise/facts.db --consumer local.lake \
        --table /data/facts --checkpoint /data/facts_checkpoint

Each batch of the stream is added to the table in one atomic step, with the offset up to which the table then has the
facts of this checkpoint; so a batch that Spark repeats is recognised. The consumer is confirmed up to batches that are
durable in the table and finished in Spark's checkpoint, so the node releases nothing that is not landed. Facts by which
a node declares a loss, and offsets that the store could not give, are rows of `<table>_incidents`; the run goes on.

A failing query is started again after 1 to 60 s, unless its options or the checkpoint are wrong. SIGTERM and Ctrl-C end
the run after the batch at hand. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from agent.errors import BsfgError
from pyspark_bsfg.errors import JobRefused, OptionError
from pyspark_bsfg.landing.files import FilesSink
from pyspark_bsfg.landing.lander import Lander, Totals
from pyspark_bsfg.landing.tables import Format
from pyspark_bsfg.options import TELEMETRY
from pyspark_bsfg.session import check, session
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.streaming.receipts import confirming
from pyspark_bsfg.transports import places

JOB = "land"
EVERY_S = 10.0
POLL_S = 0.5
BACK_OFF_S = (1, 2, 4, 8, 15, 30, 60)
ATTEMPTS_MAX = 5  # of a run that is to end: with --available-now
# What no repetition mends. The classes are known by their names only, for Spark hands on a text.
_FINAL = re.compile(r"pyspark_bsfg\.errors\.(?:OptionError|StreamUnknown|FactsGone|ConsumerRefused|JobRefused): (.*)")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be landed, and where. `options` are those of readStream."""

    options: Mapping[str, str]
    folder: Path
    checkpoint: Path
    kind: Format = "delta"
    is_available_now: bool = False
    every_s: float = EVERY_S


def _asked(order: Order) -> dict[str, str]:
    """The options of readStream. A loss does not end the job, for it has a place for it; nor does a restored store, for
    it recognises facts that come again."""
    fixed = {"checkpointLocation": str(order.checkpoint)}
    return {"onNewEpoch": "reread", "failOnDataLoss": "false", **order.options, **fixed}


def run(spark: SparkSession, order: Order, stop: threading.Event) -> tuple[Totals, int]:
    """Land until `stop` is set, or with `is_available_now` what is there; what was done, and how often the query had to
    be started again. Raises JobRefused, SparkError and PySparkException for what no repetition mends."""
    check(spark)
    spark.dataSource.register(FilesSink)
    options = _asked(order)
    asked = StreamOptions.of(options)
    with ExitStack() as stack:
        if asked.consumer:
            stack.enter_context(confirming(spark, options))
        place = places(asked.read)[0]
        lander = Lander(order.checkpoint, place, asked.read.stream, order.folder, order.kind)
        failures = restarts = 0
        while True:
            batches = lander.totals.batches
            try:
                _follow(_start(spark, options, lander, order), lander, stop)
                return lander.totals, restarts
            except (StreamingQueryException, PySparkException) as error:
                failures = 1 if lander.totals.batches > batches else failures + 1
                if found := _FINAL.search(str(error)):
                    raise JobRefused(found[1]) from error
                if order.is_available_now and failures >= ATTEMPTS_MAX:
                    raise
                pause_s = BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1]
                log.warning("the query failed and starts again in %s s: %s", pause_s, _reason(error))
                restarts += 1
                if stop.wait(pause_s):
                    return lander.totals, restarts


def _start(spark: SparkSession, options: Mapping[str, str], lander: Lander, order: Order) -> StreamingQuery:
    facts = spark.readStream.format("bsfg").options(**options).load()
    writing = facts.writeStream.foreachBatch(lander).option("checkpointLocation", str(order.checkpoint))
    if order.is_available_now:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=f"{round(order.every_s * 1000)} milliseconds").start()


def _follow(query: StreamingQuery, lander: Lander, stop: threading.Event) -> None:
    """Until the query ends, or is to be stopped. Raises StreamingQueryException."""
    began = time.monotonic()
    is_shown = sys.stderr.isatty()
    while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # it takes fractions
        if is_shown:
            done, seconds = lander.totals, time.monotonic() - began
            pace = f"{done.facts_landed:,} facts landed, {done.facts_landed / seconds:,.0f}/s, up to offset"
            print(f"\r{pace} {done.end_offset:,}; {query.status['message']:40.40}", end="", file=sys.stderr)
        if stop.is_set():
            query.stop()
            return


def _reason(error: Exception) -> str:
    """The last line of a Python trace within Spark's text, or its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(?:Error|Gone|Unreadable|Refused|Exception): ", line)]
    return (named or lines or [type(error).__name__])[-1 if named else 0][:500]


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set `stop`; what they did before is restored."""
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _order(arguments: Sequence[str] | None) -> Order:
    parser = argparse.ArgumentParser(prog=JOB, description="Land the facts of a stream in a table, each once.")
    parser.add_argument("--store", type=Path, help="the store's file, facts.db in the node's state_dir")
    parser.add_argument("--stream", default=TELEMETRY, help="default: %(default)s")
    parser.add_argument("--consumer", help="is confirmed what is landed, so that the node keeps the rest; local.<name>")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="any option of readStream")
    parser.add_argument("--table", type=Path, required=True, help="folder of the table")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of Spark's checkpoint")
    parser.add_argument("--format", choices=get_args(Format), default="delta", help="default: %(default)s")
    parser.add_argument("--available-now", action="store_true", help="land what is there, then end")
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="SECONDS", help="default: %(default)s")
    given = parser.parse_args(arguments)
    if wrong := [one for one in given.option if "=" not in one]:
        raise OptionError(f"--option {wrong[0]}", "write NAME=VALUE")
    options = dict(one.split("=", 1) for one in given.option) | {"stream": given.stream}
    options |= {"path": str(given.store.absolute())} if given.store else {}
    options |= {"consumer": given.consumer} if given.consumer else {}
    return Order(
        options, given.table.absolute(), given.checkpoint.absolute(), given.format, given.available_now, given.every
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; its exit status."""
    began_ns, stop = time.monotonic_ns(), threading.Event()
    try:
        order = _order(arguments)
        StreamOptions.of(_asked(order))  # before Spark takes its seconds to start
        spark = session(f"bsfg {JOB}")
        try:
            with _signals(stop):
                totals, restarts = run(spark, order, stop)
            master = str(spark.sparkContext.master)
        finally:
            spark.stop()
    except (BsfgError, PySparkException, Py4JError, ConnectionError) as error:  # the last two: the JVM has ended
        print(f"{JOB}: {error}", file=sys.stderr)
        return 1
    made: dict[str, Any] = {"job": JOB, "master": master, "table": str(order.folder), "format": order.kind}
    made |= asdict(totals) | {"restarts": restarts, "duration_ms": (time.monotonic_ns() - began_ns) // 1_000_000}
    if totals.facts_missing:
        print(f"{JOB}: {totals.facts_missing} facts are missing, see the table of incidents", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps(made), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
