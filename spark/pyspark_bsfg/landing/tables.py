"""Shell: tables to which each range of a stream is added once, as Delta (through delta-rs) or as folders of Parquet.

A writer has a key, which stands for one checkpoint and one life of the store. In the step that adds the files of a
range, a table records the offset up to which it has this writer's facts. So it takes a comparison of numbers to know
whether a range is there already, whatever the state of Spark's checkpoint. A table is durable when `commit` returns.

    Delta       `date=/zone=/part-*.parquet`, and in its log an application transaction: key, offset
    Parquet     `batch=<key>.<first>-<last>/date=/zone=/part-*.parquet`, renamed to that name when it is complete

Small files are merged by `compact`. With Delta that is one commit. With Parquet the merged folder gets the range of all
merged folders, and a folder whose range lies within that of another one is not part of the table. So the table has each
fact once even if the program is killed before it has removed the merged folders; the next run removes them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from agent.file_replace import sync_folder
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.landing.files import Files
from pyspark_bsfg.landing.identities import Identities
from pyspark_bsfg.landing.manifest import File, Format
from pyspark_bsfg.ranges import OffsetRange

_BATCH = re.compile(r"batch=(?P<key>[0-9a-z-]+)\.(?P<first>\d+)-(?P<last>\d+)")
SMALL_BYTES = 64 * 1024 * 1024  # larger files, and folders, are not merged again
ROW_GROUP = 128 * 1024
# Spark and others ignore names that begin with an underscore.
_ASIDE, _LOCK, _LOG = "_aside", "_bsfg-land.lock", "_delta_log"
WRITERS = "_bsfg-land.json"
"""The writers of a table: a list with a name for each checkpoint."""

log = logging.getLogger(__name__)


class Table(Protocol):
    """A table of one format."""

    def landed(self, key: str) -> int:
        """The offset up to which the facts of a writer are here; 0 if none are."""
        ...

    def root(self, key: str, span: OffsetRange) -> Path:
        """A folder for the files of a range, which are then passed to `commit`."""
        ...

    def commit(self, key: str, span: OffsetRange, files: Sequence[File]) -> None:
        """Add these files, and record the range. Raises JobRefused if another writer with this key was faster."""
        ...

    def paths(self) -> list[str]:
        """The paths of its files."""
        ...

    def compact(self, files_min: int) -> int:
        """Merge small files if there are at least so many. Returns how many were merged."""
        ...


def table(folder: Path, kind: Format, schema: Any, partitions: Sequence[str] = ()) -> Table:
    """A table in a folder, made if there is none. Raises JobRefused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        is_delta = _is_delta(folder)
        is_used = is_delta or any(path.name not in {_ASIDE, _LOCK, _LOG, WRITERS} for path in folder.iterdir())
        if is_used and is_delta != (kind == "delta"):
            raise JobRefused(f"{folder} is not empty and holds no {kind} table", "name another folder, or its format")
        return _Delta(folder, schema, partitions) if kind == "delta" else _Folders(folder).tidied()
    except OSError as error:
        raise JobRefused(f"{folder} cannot be used: {error.strerror}", "name a folder this user may write") from error


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Only one of several jobs that write a table is in this block at a time. Raises JobRefused."""
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            hint = "use storage that has file locks, such as a local disk or NFS 4"
            raise JobRefused(f"{folder} cannot be locked: {error.strerror}", hint) from error
        yield


def paths(folder: Path) -> list[str]:
    """The files of a table of either format, for programs that know only Parquet: Spark's `read.parquet(*paths)` with
    `basePath`."""
    if _is_delta(folder):
        from deltalake import DeltaTable

        return DeltaTable(folder).file_uris()
    return _Folders(folder).paths()


def table_files(folder: Path) -> list[tuple[str, int]]:
    """The files of a table of either format, each with the number of its rows."""
    if not _is_delta(folder):
        return [(path, pq.read_metadata(path).num_rows) for path in paths(folder)] if folder.exists() else []
    from deltalake import DeltaTable

    added = pa.table(DeltaTable(folder).get_add_actions(flatten=True)).select(["path", "num_records"])
    return [(str(folder / row["path"]), row["num_records"]) for row in added.to_pylist()]


def identities(files: Iterable[str], found: Identities) -> Identities:
    """`found` with the identities of the facts in some files of a table added."""
    for path in files:
        zone = Path(path).parent.name.partition("=")[2]
        for batch in pq.ParquetFile(path).iter_batches(columns=["stream", "life", "sequence"]):
            rows = pa.table(batch)
            for origin in rows.group_by(["stream", "life"]).aggregate([]).to_pylist():
                stream, life = origin["stream"], origin["life"]
                is_own = pa.compute.and_(pa.compute.equal(rows["stream"], stream), pa.compute.equal(rows["life"], life))
                found.add((stream, zone, life), rows["sequence"].filter(is_own).to_pylist())
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
        with exclusive(folder):
            if not _is_delta(folder):
                DeltaTable.create(str(folder), wanted, partition_by=self._partitions or None, name="bsfg facts")
        self._table = DeltaTable(str(folder))
        self._schema = self._table.schema()
        if {field.name: str(field.type) for field in self._schema.fields} != {
            field.name: str(field.type) for field in wanted.fields
        }:
            raise JobRefused(f"{folder} has other columns: {self._schema}", "name another folder")
        self._sync(self._table.version() - 1)  # a job that died may not have done this

    def landed(self, key: str) -> int:
        self._table.update_incremental()
        return self._table.transaction_version(key) or 0

    def root(self, key: str, span: OffsetRange) -> Path:  # noqa: ARG002  files that no commit names are not part of it
        return self._folder

    def commit(self, key: str, span: OffsetRange, files: Sequence[File]) -> None:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        now_ms = round(datetime.now(UTC).timestamp() * 1000)
        added: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, self._values(file), now_ms, True, self._statistics(file))
            for file in files
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

    def compact(self, files_min: int) -> int:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction

        self._table.update_incremental()
        added = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        parts: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for file in added:
            if file["size_bytes"] < SMALL_BYTES:
                parts.setdefault(tuple(str(file[f"partition.{name}"]) for name in self._partitions), []).append(file)
        many = {key: files for key, files in parts.items() if len(files) >= max(files_min, 2)}
        if not many:
            return 0
        old = [file for files in many.values() for file in files]
        merged = merge(self._folder, [str(self._folder / file["path"]) for file in old])
        now_ms = round(datetime.now(UTC).timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, self._values(file), now_ms, False, self._statistics(file))
            for file in merged
        ]
        for key, files in many.items():
            values: dict[str, str | None] = dict(zip(self._partitions, key, strict=True))
            actions += [RemoveAction(file["path"], False, now_ms, file["size_bytes"], values) for file in files]
        before = self._table.version()
        try:
            self._table.create_write_transaction(actions, "append", self._schema, self._partitions or None)
        except CommitFailedError as error:
            log.info(
                "%s was changed while small files were merged; they stay until the next time: %s", self._folder, error
            )
            return 0
        self._table.update_incremental()
        self._sync(before)
        self._table.vacuum(dry_run=False)  # removes files that no version of the last seven days names
        return len(old)

    def _values(self, file: File) -> dict[str, str | None]:
        return {name: getattr(file, name) for name in self._partitions}

    def _statistics(self, file: File) -> str:
        """Statistics by which readers skip files of facts."""
        if not self._partitions:
            return json.dumps({"numRecords": file.rows})
        # Rounded to milliseconds, outwards, as other writers of Delta do.
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
        """Make the log after a version durable: delta-rs writes it without fsync (seen with strace), so a power cut
        could undo a commit, or leave a torn checkpoint."""
        log = self._folder / _LOG
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

    def tidied(self) -> _Folders:
        """Remove the remains of a merge that was killed."""
        with exclusive(self._folder):
            for path in self._named()[1]:
                self._remove(path)
        return self

    def landed(self, key: str) -> int:
        return max((int(found["last"]) for found, _ in self._batches() if found["key"] == key), default=0)

    def root(self, key: str, span: OffsetRange) -> Path:
        """An emptied folder: its content is from a run that died."""
        aside = self._folder / _ASIDE / f"{key}.{span.first}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        return aside

    def commit(self, key: str, span: OffsetRange, files: Sequence[File]) -> None:
        aside = self._folder / _ASIDE / f"{key}.{span.first}"
        listed = {aside / file.path for file in files}
        if self.landed(key) >= span.first or not all(path.exists() for path in listed):
            raise JobRefused(f"{self._folder}: another writer lands facts of {key}", "one land job for each checkpoint")
        strangers = [path for path in aside.rglob("*.parquet") if path not in listed]  # of a task that ran twice
        for path in strangers:
            path.unlink()
        for where in {path.parent for path in strangers}:  # after a power cut they must not be part of the table
            sync_folder(where)
        aside.rename(self._folder / _name(key, span))
        sync_folder(self._folder)

    def paths(self) -> list[str]:
        return [str(path) for _, folder in self._batches() for path in sorted(folder.rglob("*.parquet"))]

    def compact(self, files_min: int) -> int:
        with exclusive(self._folder):
            return self._compacted(files_min)

    def _compacted(self, files_min: int) -> int:
        old = 0
        for key, folders in self._small_runs():
            if len(folders) < max(files_min, 2):
                continue
            span = OffsetRange(folders[0][0].first, folders[-1][0].last)
            aside = self._folder / _ASIDE / "merged"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            files = [str(path) for _, folder in folders for path in sorted(folder.rglob("*.parquet"))]
            merge(aside, files)
            aside.rename(self._folder / _name(key, span))
            sync_folder(self._folder)
            for _, folder in folders:
                self._remove(folder)
            old += len(files)
        return old

    def _small_runs(self) -> list[tuple[str, list[tuple[OffsetRange, Path]]]]:
        """Groups of small folders of one key whose ranges follow one another."""
        runs: list[tuple[str, list[tuple[OffsetRange, Path]]]] = []
        for found, path in self._batches():
            span = OffsetRange(int(found["first"]), int(found["last"]))
            if sum(file.stat().st_size for file in path.rglob("*.parquet")) >= SMALL_BYTES:
                runs.append((found["key"], []))
                continue
            if not runs or runs[-1][0] != found["key"] or (runs[-1][1] and runs[-1][1][-1][0].last + 1 != span.first):
                runs.append((found["key"], []))
            runs[-1][1].append((span, path))
        return runs

    def _remove(self, folder: Path) -> None:
        """Remove a folder: first by a rename, which is one step for concurrent readers."""
        gone = self._folder / _ASIDE / "gone"
        shutil.rmtree(gone, ignore_errors=True)
        gone.parent.mkdir(exist_ok=True)
        folder.rename(gone)
        shutil.rmtree(gone)

    def _batches(self) -> Iterator[tuple[re.Match[str], Path]]:
        yield from self._named()[0]

    def _named(self) -> tuple[list[tuple[re.Match[str], Path]], list[Path]]:
        """The folders of the table, and those whose range lies within that of another one."""
        held: list[tuple[re.Match[str], Path]] = []
        enclosed: list[Path] = []
        names = [(found, path) for path in self._folder.iterdir() if (found := _BATCH.fullmatch(path.name))]
        for found, path in sorted(
            names, key=lambda pair: (pair[0]["key"], int(pair[0]["first"]), -int(pair[0]["last"]))
        ):
            before = held[-1][0] if held else None
            if before and before["key"] == found["key"] and int(found["last"]) <= int(before["last"]):
                enclosed.append(path)
            else:
                held.append((found, path))
        return held, enclosed


def merge(root: Path, files: Sequence[str]) -> list[File]:
    """Write the facts of some files of a table below `root` again, as one file for each date and zone, durable."""
    if not files:
        return []
    parts: dict[tuple[date, str], list[str]] = {}
    for path in files:
        on, of = (folder.name.partition("=")[2] for folder in (Path(path).parents[1], Path(path).parent))
        parts.setdefault((date.fromisoformat(on), of), []).append(path)
    made = Files(root, pq.read_schema(files[0]))
    try:
        for (day, zone), own in parts.items():
            # Rows are collected over many files, so that their small row groups become large ones.
            waiting: list[Any] = []
            for batch in ds.dataset(own, format="parquet").to_batches(batch_size=ROW_GROUP, batch_readahead=1):
                waiting += [batch] if batch.num_rows else []
                if sum(batch.num_rows for batch in waiting) >= ROW_GROUP:
                    made.write(day, zone, pa.Table.from_batches(waiting))
                    waiting = []
            if waiting:
                made.write(day, zone, pa.Table.from_batches(waiting))
        return made.close()
    finally:
        made.abandon()


def _name(key: str, span: OffsetRange) -> str:
    return f"batch={key}.{span.first:019}-{span.last:019}"


def _is_delta(folder: Path) -> bool:
    """Whether a folder is a Delta table: its log has an entry. A job that makes one makes the log's folder before."""
    log = folder / _LOG
    return log.is_dir() and any(path.suffix in {".json", ".parquet"} for path in log.iterdir())


def _time_text(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{unix_ms % 1000:03}Z"
