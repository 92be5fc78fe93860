"""Shell: runs in a task. Writes the facts of its partition as Parquet files by date and zone, and reports them.

A file is durable before it is reported. Unreported files, of a task that died or ran twice, are never part of a table.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from agent.file_replace import sync_folder
from pyspark_bsfg.landing.identities import Identities
from pyspark_bsfg.landing.manifest import DECLARING, File, Incident, Manifest, runs
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import arrow_schema, projection

OPEN_MAX = 32  # a source with a wrong clock produces facts of many dates
PARTITIONS = ("date", "zone")


def file_schema(facts: StructType) -> Any:
    """The columns in a file: all except date and zone, which are in its path. What may be null is as in a read; a
    column that is added later may be."""
    return pa.schema(
        [column for column in arrow_schema(projection(facts.fieldNames())) if column.name not in PARTITIONS]
    )


@dataclass
class Lines(WriterCommitMessage):
    """The report of one task."""

    lines: list[str]


class FilesSink(DataSource):
    """`format("bsfg_files")`, for the land job only. `mapInArrow` would suffice, but needs pandas in every executor."""

    @classmethod
    def name(cls) -> str:
        return "bsfg_files"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001  Spark's
        asked = self.options
        known = Identities.of(asked["known"])
        return FileWriter(asked["root"], asked["manifest"], schema, int(asked["after"]), known)


class FileWriter(DataSourceArrowWriter):
    """Writes below `root` and reports to `manifest`. Facts up to offset `after`, and those in `known`, are in the table
    already."""

    def __init__(self, root: str, manifest: str, schema: StructType, after: int, known: Identities) -> None:
        self.root = root
        self.manifest = manifest
        self.schema = schema
        self.after = after
        self.known = known

    def write(self, iterator: Iterator[Any]) -> Lines:
        """Runs in a task: writes its facts, and returns lines of the manifest."""
        done, files = Manifest(), Files(Path(self.root), file_schema(self.schema))
        try:
            for batch in iterator:
                self._take_batch(batch, done, files)
            done.files = files.close()
        finally:
            files.abandon()
        return Lines(done.lines())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs in a process of the driver's host, after all tasks."""
        lines = [line for report in messages if isinstance(report, Lines) for line in report.lines]
        Path(self.manifest).write_text("\n".join(lines), "utf-8")

    def _take_batch(self, batch: Any, done: Manifest, files: Files) -> None:
        facts = pa.table(batch)
        offsets = facts["offset"]
        if facts.num_rows and pc.min(offsets).as_py() <= self.after:
            facts = facts.filter(pc.greater(offsets, self.after))
            offsets = facts["offset"]
        if not facts.num_rows:
            return
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        is_dense = last - first + 1 == facts.num_rows
        found = [OffsetRange(first, last)] if is_dense else runs(offsets.to_pylist())
        if done.seen and done.seen[-1].last + 1 == found[0].first:
            found[0] = OffsetRange(done.seen.pop().first, found[0].last)
        done.seen += found
        if self.known:
            is_known = self.known.has(*(facts[name].to_pylist() for name in ("stream", "zone", "life", "sequence")))
            done.known += sum(is_known)
            facts = facts.filter(pa.array([not known for known in is_known], pa.bool_()))
        done.declared += _declared(facts)
        for day, zone, part in _by_day_and_zone(facts):
            files.write(day, zone, part)


def _declared(facts: Any) -> list[Incident]:
    """The facts by which a node declares a loss."""
    is_message = pc.equal(facts["value_type"], "message")
    if not pc.any(is_message).as_py():
        return []
    chosen = facts.filter(pc.and_(is_message, pc.is_in(facts["predicate"], pa.array(sorted(DECLARING)))))
    return [
        Incident(
            what=row["predicate"],
            stream=row["stream"],
            offset=row["offset"],
            last_offset=row["offset"],
            time_us=row["source_time_ns"] // 1000,
            subject=row["tag"],
            zone=row["zone"],
            life=row["life"],
            sequence=row["sequence"],
            detail=row["object_json"] or "{}",
        )
        for row in chosen.drop_columns(["ts"]).to_pylist()
    ]


def _by_day_and_zone(facts: Any) -> Iterator[tuple[date, str, Any]]:
    days = pc.cast(facts["ts"], pa.date32())
    distinct_days, distinct_zones = pc.unique(days).to_pylist(), pc.unique(facts["zone"]).to_pylist()
    if len(distinct_days) == len(distinct_zones) == 1:
        yield distinct_days[0], distinct_zones[0], facts
        return
    for zone in distinct_zones:
        is_node = pc.equal(facts["zone"], zone)
        own = pc.unique(days.filter(is_node)).to_pylist()
        for day in own:
            yield day, zone, facts.filter(pc.and_(is_node, pc.equal(days, pa.scalar(day, pa.date32()))))


@dataclass(slots=True)
class _Open:
    """A file that is being written."""

    writer: Any
    path: Path
    rows: int = 0
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)


class Files:
    """Files that are written together: one for each date and zone, or several if there are more than OPEN_MAX of
    these."""

    def __init__(self, root: Path, schema: Any) -> None:
        self._root = root
        self._schema = schema
        self._open: dict[tuple[date, str], _Open] = {}
        self._done: list[File] = []

    def write(self, day: date, zone: str, facts: Any) -> None:
        key = (day, zone)
        file = self._open.pop(key, None) or self._opened(day, zone)
        self._open[key] = file  # moved to the end of the order in which files are closed
        file.writer.write_table(facts.select(self._schema.names).cast(self._schema))
        file.rows += facts.num_rows
        times_us = pc.cast(facts["ts"], pa.int64())
        for name, column in (("offset", facts["offset"]), ("sequence", facts["sequence"]), ("ts", times_us)):
            least, most = (bound.as_py() for bound in pc.min_max(column).values())
            before = file.spans.get(name, (least, most))
            file.spans[name] = (min(least, before[0]), max(most, before[1]))

    def close(self) -> list[File]:
        """Close all files. They are then durable, and so are their names and the names of their folders."""
        while self._open:
            self._close(next(iter(self._open)))
        written = [(self._root / file.path).parent for file in self._done]
        for folder in {self._root, *written, *(path.parent for path in written)}:
            sync_folder(folder)
        return self._done

    def abandon(self) -> None:
        """Close what is open after an error; its files are in no manifest."""
        for file in self._open.values():
            file.writer.close()
        self._open.clear()

    def _opened(self, day: date, zone: str) -> _Open:
        if len(self._open) >= OPEN_MAX:
            self._close(next(iter(self._open)))
        path = self._root / f"date={day.isoformat()}" / f"zone={zone}" / f"part-{uuid.uuid4().hex}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        return _Open(pq.ParquetWriter(path, self._schema, compression="zstd"), path)

    def _close(self, key: tuple[date, str]) -> None:
        day, zone = key
        file = self._open.pop(key)
        file.writer.close()
        with file.path.open("rb") as written:
            os.fsync(written.fileno())
        where, size = str(file.path.relative_to(self._root)), file.path.stat().st_size
        spans = file.spans
        self._done.append(
            File(where, day.isoformat(), zone, file.rows, size, spans["offset"], spans["sequence"], spans["ts"])
        )
