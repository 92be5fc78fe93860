"""Shell: tables that take each range of a stream once, as Delta (through delta-rs) or as folders of Parquet.

A writer is known by a key, which stands for one checkpoint and one epoch of the store. With the files of a range a table
records, in the same atomic step, up to which offset it has this writer's facts. So whether a range is there already is a
comparison of numbers, whatever became of Spark's checkpoint. A table is durable when `commit` returns.

    Delta       `date=/zone=/part-*.parquet`, and in its log an application transaction: key, offset
    Parquet     `batch=<key>.<first>-<last>/date=/zone=/part-*.parquet`, renamed to that name when it is whole
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.landing.identities import Identities
from pyspark_bsfg.landing.manifest import File
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.streaming.checkpoint import sync_folder

Format = Literal["delta", "parquet"]
_BATCH = re.compile(r"batch=(?P<key>[0-9a-z-]+)\.(?P<first>\d+)-(?P<last>\d+)")
_ASIDE = "_aside"  # Spark and others pass over folders that begin with an underscore


class Table(Protocol):
    """A table of one format."""

    def landed(self, key: str) -> int:
        """Up to which offset the facts of a writer are here; 0 where none are."""
        ...

    def root(self, key: str, span: OffsetRange) -> Path:
        """A folder for the files of a range, to be given to `commit` below it."""
        ...

    def commit(self, key: str, span: OffsetRange, files: Sequence[File]) -> None:
        """Add these files, and record that the range is here. Raises JobRefused where another writer with this key was
        faster."""
        ...

    def paths(self) -> list[str]:
        """Its files."""
        ...


def table(folder: Path, kind: Format, schema: Any, partitions: Sequence[str] = ()) -> Table:
    """A table in a folder, made if there is none. Raises JobRefused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        if any(path.name != _ASIDE for path in folder.iterdir()) and _is_delta(folder) != (kind == "delta"):
            raise JobRefused(f"{folder} is not empty and holds no {kind} table", "name another folder, or its format")
        return _Delta(folder, schema, partitions) if kind == "delta" else _Folders(folder)
    except OSError as error:
        raise JobRefused(f"{folder} cannot be used: {error.strerror}", "name a folder this user may write") from error


def paths(folder: Path) -> list[str]:
    """The files of a table of either format, for programs that know neither: Spark's `read.parquet(*paths)` with
    `basePath`."""
    if _is_delta(folder):
        from deltalake import DeltaTable

        return DeltaTable(folder).file_uris()
    return _Folders(folder).paths()


def identities(files: Sequence[str]) -> Identities:
    """The facts in some files of a table, by zone, epoch and sequence."""
    found = Identities()
    for path in files:
        zone = Path(path).parent.name.partition("=")[2]
        for batch in pq.ParquetFile(path).iter_batches(columns=["epoch", "sequence"]):
            epochs = batch.column("epoch")
            for epoch in epochs.unique().to_pylist():
                own = batch.column("sequence").filter(pa.compute.equal(epochs, epoch))
                found.add(zone, epoch, own.to_pylist())
    return found.sealed()


class _Delta:
    """A Delta table on disk."""

    def __init__(self, folder: Path, schema: Any, partitions: Sequence[str]) -> None:
        try:
            from deltalake import DeltaTable, Schema
        except ImportError as error:
            raise JobRefused(
                "the format delta needs the package deltalake", "pip install 'bsfg-agent[spark-delta]'"
            ) from error
        self._folder = folder
        self._partitions = list(partitions)
        wanted = Schema.from_arrow(schema)
        if not _is_delta(folder):
            DeltaTable.create(str(folder), wanted, partition_by=self._partitions or None, name="bsfg facts")
        self._table = DeltaTable(str(folder))
        self._schema = self._table.schema()
        if {one.name: str(one.type) for one in self._schema.fields} != {
            one.name: str(one.type) for one in wanted.fields
        }:
            raise JobRefused(f"{folder} has other columns: {self._schema}", "name another folder")
        self._sync(self._table.version() - 1)  # a job that died may not have come to it

    def landed(self, key: str) -> int:
        self._table.update_incremental()
        return self._table.transaction_version(key) or 0

    def root(self, key: str, span: OffsetRange) -> Path:  # noqa: ARG002  files that no commit names are no part of it
        return self._folder

    def commit(self, key: str, span: OffsetRange, files: Sequence[File]) -> None:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        now_ms = round(datetime.now(UTC).timestamp() * 1000)
        added: list[AddAction | RemoveAction] = [
            AddAction(one.path, one.size_bytes, self._values(one), now_ms, True, self._statistics(one)) for one in files
        ]
        done, before = CommitProperties(app_transactions=[Transaction(key, span.last)]), self._table.version()
        try:
            self._table.create_write_transaction(
                added, "append", self._schema, self._partitions or None, commit_properties=done
            )
        except CommitFailedError as error:
            hint = "one land job for each checkpoint"
            raise JobRefused(f"{self._folder}: another writer landed facts of {key}: {error}", hint) from error
        self._table.update_incremental()
        self._sync(before)

    def paths(self) -> list[str]:
        self._table.update_incremental()
        return self._table.file_uris()

    def _values(self, file: File) -> dict[str, str | None]:
        return {name: getattr(file, name) for name in self._partitions}

    def _statistics(self, file: File) -> str:
        """By which readers skip files of facts."""
        if not self._partitions:
            return json.dumps({"numRecords": file.rows})
        # Cut to milliseconds, outwards, as other writers of Delta do.
        least_ms, most_ms = file.times_us[0] // 1000, -(-file.times_us[1] // 1000)
        low, high = ((file.offsets[n], file.sequences[n]) for n in (0, 1))
        columns = ("offset", "sequence", "ts")
        return json.dumps({
            "numRecords": file.rows,
            "minValues": dict(zip(columns, (*low, _time_text(least_ms)), strict=True)),
            "maxValues": dict(zip(columns, (*high, _time_text(most_ms)), strict=True)),
            "nullCount": dict.fromkeys(columns, 0),
        })  # fmt: skip

    def _sync(self, after: int) -> None:
        """Make what came to the log after a version durable: delta-rs writes it without fsync (seen with strace), so a
        power cut could take a commit back, or leave a torn checkpoint."""
        log = self._folder / "_delta_log"
        versions = [f"{version:020}" for version in range(after + 1, self._table.version() + 1)]
        names = [f"{version}{end}" for version in versions for end in (".json", ".checkpoint.parquet")]
        for path in (log / name for name in [*names, "_last_checkpoint"]):
            if path.exists():
                with path.open("rb") as written:
                    os.fsync(written.fileno())
        for folder in (log, self._folder):
            sync_folder(folder)


class _Folders:
    """A folder of Parquet for each range."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def landed(self, key: str) -> int:
        return max((int(found["last"]) for found, _ in self._batches() if found["key"] == key), default=0)

    def root(self, key: str, span: OffsetRange) -> Path:
        """Emptied: what is there is of a run that died."""
        aside = self._folder / _ASIDE / f"{key}.{span.first}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        return aside

    def commit(self, key: str, span: OffsetRange, files: Sequence[File]) -> None:
        aside = self._folder / _ASIDE / f"{key}.{span.first}"
        listed = {aside / one.path for one in files}
        if self.landed(key) >= span.first or not all(path.exists() for path in listed):
            raise JobRefused(f"{self._folder}: another writer lands facts of {key}", "one land job for each checkpoint")
        for path in aside.rglob("*.parquet"):
            if path not in listed:  # of a task that ran twice
                path.unlink()
        sync_folder(aside)
        aside.rename(self._folder / f"batch={key}.{span.first:019}-{span.last:019}")
        sync_folder(self._folder)

    def paths(self) -> list[str]:
        return [str(path) for _, folder in self._batches() for path in sorted(folder.rglob("*.parquet"))]

    def _batches(self) -> Iterator[tuple[re.Match[str], Path]]:
        for path in sorted(self._folder.iterdir()):
            if found := _BATCH.fullmatch(path.name):
                yield found, path


def _is_delta(folder: Path) -> bool:
    return (folder / "_delta_log").is_dir()


def _time_text(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{unix_ms % 1000:03}Z"
