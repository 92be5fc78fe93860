"""Facts of which it is known what must be landed: fact n has the value n, every thousandth is a declared gap instead.
What is in a table, read by programs that are not ours: pyarrow, and delta-rs."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message, Sample
from pyspark_bsfg.landing.tables import paths
from tests.spark.making import NOON_NS, SECOND_NS, TELEMETRY

GAP_EVERY = 1000


def landed_rows(files: Sequence[str], columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows by offset; `zone` and `date` come from the paths. `offset` is one of the columns."""
    found: list[tuple[Any, ...]] = []
    for path in files:
        parts = dict(part.split("=", 1) for part in Path(path).parts if "=" in part)
        table = pq.ParquetFile(path).read()
        by_column = [
            table.column(name).to_pylist() if name in table.column_names else [parts[name]] * table.num_rows
            for name in columns
        ]
        found += zip(*by_column, strict=True)
    place = columns.index("offset")
    return sorted(found, key=lambda row: row[place])


def landed_until(folder: Path) -> int:
    """The offset up to which a table has all facts from 1 on."""
    if not folder.exists() or not any(folder.iterdir()):
        return 0
    known: set[int] = set().union(*map(_offsets, paths(folder)))
    highest = max(known, default=0)
    return highest if len(known) == highest else next(n for n in range(len(known) + 1) if n + 1 not in known)


@lru_cache(None)
def _offsets(path: str) -> frozenset[int]:
    """Of one file, which never changes."""
    return frozenset(pq.ParquetFile(path).read(["offset"]).column("offset").to_pylist())


def gap(number: int) -> Message:
    """A loss that a source has declared."""
    envelope = Envelope(f"gap-{number}", "enterprise", "*", NOON_NS // 1_000_000 + number)
    return Message(envelope, Fact("source:enterprise/press", "samples_lost", b'{"count":%d}' % number))


def append(store: FactStore, first: int, last: int) -> None:
    """Facts `first` to `last`, both included."""
    pending: list[Sample] = []
    for number in range(first, last + 1):
        if number % GAP_EVERY:
            pending.append(Sample(1, NOON_NS + number * SECOND_NS, float(number)))
            continue
        if pending:
            store.appends.append_samples(TELEMETRY, pending).result()
            pending = []
        store.appends.append_messages(TELEMETRY, [gap(number)]).result()
    if pending:
        store.appends.append_samples(TELEMETRY, pending).result()
