"""Shell: tables by date and zone that are computed from another table; only what has changed is computed again.

A table is `date=/zone=/part.parquet`, one file for each date and zone, which any reader of Parquet can read.
`_bsfg.json` in the same folder has, for each file, a digest of its inputs: the settings, and the facts, whose number
only grows. So after a late fact its date and zone are computed again, and the dates whose look-back reaches it. A file
is replaced by a rename and recorded after that: a killed run leaves whole files, and the next run computes again what
is not recorded.

If a date and zone would now be made from fewer landed facts than before, because files are missing, its file is kept
and reported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.types import StructType

from agent.file_replace import sync_folder
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.landing.tables import table_files
from pyspark_bsfg.streaming.checkpoint import write_json

RECORD = "_bsfg.json"  # Spark and others ignore names that begin with an underscore
PART = "part.parquet"
_ASIDE = "_aside"  # a stopped run leaves it; the next run overwrites it
# What one query computes: enough to be worth starting it, little enough to repeat after a kill.
PARTS_AT_ONCE, FACTS_AT_ONCE = 64, 50_000_000

Key = tuple[str, str]
"""UTC date, zone."""


@dataclass(frozen=True, slots=True)
class Part:
    """A date and zone of a table: the number of facts that its rows represent, the number of landed facts that they
    were made from, its files, and a text that identifies its content."""

    facts: int
    landed: int
    paths: tuple[str, ...]
    state: str


@dataclass(frozen=True, slots=True)
class Source:
    """A table that others are computed from."""

    folder: Path
    parts: dict[Key, Part]

    def read(self, spark: SparkSession, schema: StructType, keys: Sequence[Key]) -> DataFrame:
        """Its rows of some dates and zones."""
        files = [path for key in keys for path in self.parts[key].paths]
        if not files:
            return spark.createDataFrame([], schema)
        rows = spark.read.schema(schema).option("basePath", str(self.folder)).parquet(*files)
        return rows.select(*schema.fieldNames())


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a table is computed. `settings` are all values that its rows depend on; `days_back` is how many days before
    its date a row reads; `facts` counts the facts that the rows of a file represent (None: as many as the input
    has)."""

    name: str
    folder: Path
    reads: StructType
    rows: Callable[[DataFrame], DataFrame]
    settings: object
    order: tuple[str, ...]
    days_back: int = 0
    facts: Callable[[Path], int] | None = None
    is_exact: bool = True
    """Whether the rows represent all facts that were read, not only for some of them."""


@dataclass(frozen=True, slots=True)
class KeptDay:
    """A date and zone whose file is kept, because it was made from more landed facts than were found now."""

    table: str
    date: str
    zone: str
    facts: int
    found: int


@dataclass(slots=True)
class DerivationOutcome:
    """What a step did. `repeated`: the facts among those that it read that its rows leave out as repetitions."""

    computed: int = 0
    unchanged: int = 0
    facts: int = 0
    repeated: int = 0
    kept: list[KeptDay] = field(default_factory=list)


def landed(folder: Path) -> Source:
    """A table of the land job. The number of its facts only grows, so it identifies the content."""
    found: dict[Key, list[tuple[str, int]]] = {}
    for path, rows in table_files(folder):
        zone_folder = Path(path).parent
        key = (zone_folder.parent.name.partition("=")[2], zone_folder.name.partition("=")[2])
        found.setdefault(key, []).append((path, rows))
    parts = {}
    for key, files in sorted(found.items()):
        facts = sum(rows for _, rows in files)
        parts[key] = Part(facts, facts, tuple(path for path, _ in files), str(facts))
    return Source(folder, parts)


def derived(folder: Path) -> Source:
    """A table that a step has computed. Raises JobRefused."""
    record = folder / RECORD
    try:
        made = json.loads(record.read_text("utf-8")) if record.exists() else {}
        parts = {}
        for name, (facts, of_landed, state) in made.items():
            day, _, zone = name.partition(" ")
            file = _part_file(folder, (day, zone))
            parts[day, zone] = Part(facts, of_landed, (str(file),) if file.exists() else (), state)
        return Source(folder, parts)
    except (OSError, ValueError, TypeError) as error:
        raise JobRefused(f"{record} is damaged: {error}", "remove it: the table is computed again") from error


def derive(
    spark: SparkSession,
    step: Derivation,
    source: Source,
    report: Callable[[str], None],
    *,
    is_fewer_accepted: bool = False,
) -> DerivationOutcome:
    """Bring a table up to date. Raises JobRefused, also if rows do not represent the facts that were read."""
    _claim(step.folder)
    before = derived(step.folder)
    wanted = {key: state for key in source.parts if (state := _state(step, source, key)) != _recorded(before, key)}
    outcome = DerivationOutcome(unchanged=len(source.parts) - len(wanted))
    for key in [key for key, part in before.parts.items() if part.facts and key not in source.parts]:
        if is_fewer_accepted:
            _forget(step, before, key)
        else:
            outcome.kept.append(KeptDay(step.name, *key, before.parts[key].landed, 0))
    done = 0
    for keys in _chunks(sorted(wanted), source):
        report(f"{step.name}: {done} of {len(wanted)} dates and zones")
        found = _written(spark, step, source, keys)
        for key in keys:
            part, known = source.parts[key], before.parts.get(key)
            facts = found.get(key, part.facts)
            # By the landed facts: a table without repetitions may shrink when a fact arrives that replaces several.
            if known is not None and part.landed < known.landed and not is_fewer_accepted:
                outcome.kept.append(KeptDay(step.name, *key, known.landed, part.landed))
                continue
            _publish(step.folder, key)
            before.parts[key] = Part(facts, part.landed, (), wanted[key])
            outcome.computed += 1
            outcome.facts += facts
            outcome.repeated += part.facts - facts
        _record(step.folder, before)
        done += len(keys)
    shutil.rmtree(step.folder / _ASIDE, ignore_errors=True)
    return outcome


def _written(spark: SparkSession, step: Derivation, source: Source, keys: Sequence[Key]) -> dict[Key, int]:
    """Compute some dates and zones into files outside the table. Returns the number of facts that the rows of each
    represent."""
    is_wanted = F.concat_ws(" ", F.col("date").cast("string"), "zone").isin([" ".join(key) for key in keys])
    reading = sorted({near for key in keys for near in _near(key, step.days_back) if near in source.parts})
    rows = step.rows(source.read(spark, step.reads, reading)).where(is_wanted)
    aside = step.folder / _ASIDE
    ordered = rows.repartition("date", "zone").sortWithinPartitions("date", "zone", *step.order)
    # One file for each date and zone, whatever the session's setting.
    writing = ordered.write.mode("overwrite").option("maxRecordsPerFile", 0)
    writing.partitionBy("date", "zone").parquet(str(aside))
    if step.facts is None:
        return {}
    found = {}
    for key in keys:
        files = _part_file(aside, key).parent.glob("*.parquet")
        facts, read = sum(step.facts(file) for file in files), source.parts[key].facts
        if facts > read or (facts < read and step.is_exact):
            why = f"{step.name} of {key[0]}, {key[1]} would represent {facts} facts of {read}"
            raise JobRefused(why, "run it again, and report this")
        found[key] = facts
    return found


def _state(step: Derivation, source: Source, key: Key) -> str:
    """A digest of everything that the rows of a date and zone depend on."""
    inputs = [source.parts[near].state if near in source.parts else "" for near in _near(key, step.days_back)]
    content = json.dumps([step.settings, inputs], default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _near(key: Key, days_back: int) -> list[Key]:
    """A date, and the dates before it that its rows read."""
    day = date.fromisoformat(key[0])
    return [((day - timedelta(days=back)).isoformat(), key[1]) for back in range(days_back + 1)]


def _recorded(table: Source, key: Key) -> str:
    part = table.parts.get(key)
    return "" if part is None else part.state


def _chunks(keys: Sequence[Key], source: Source) -> Iterator[list[Key]]:
    chunk: list[Key] = []
    facts = 0
    for key in keys:
        facts += source.parts[key].facts
        if chunk and (len(chunk) == PARTS_AT_ONCE or facts > FACTS_AT_ONCE):
            yield chunk
            chunk, facts = [], source.parts[key].facts
        chunk.append(key)
    if chunk:
        yield chunk


def _part_file(folder: Path, key: Key) -> Path:
    return folder / f"date={key[0]}" / f"zone={key[1]}" / PART


def _publish(folder: Path, key: Key) -> None:
    """Replace the file of a date and zone by the new one, durably; without new rows, remove it."""
    target = _part_file(folder, key)
    made = sorted(_part_file(folder / _ASIDE, key).parent.glob("*.parquet"))
    if not made:
        target.unlink(missing_ok=True)
        return
    [file] = made
    publish_file(file, target)
    for changed in (target.parent.parent, folder):
        sync_folder(changed)


def publish_file(file: Path, target: Path) -> None:
    """Replace a file by a new one, durably."""
    with file.open("rb") as written:
        os.fsync(written.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    file.replace(target)
    sync_folder(target.parent)


def _record(folder: Path, table: Source) -> None:
    parts = sorted(table.parts.items())
    write_json(folder / RECORD, {" ".join(key): [part.facts, part.landed, part.state] for key, part in parts})


def _forget(step: Derivation, table: Source, key: Key) -> None:
    del table.parts[key]
    _part_file(step.folder, key).unlink(missing_ok=True)
    _record(step.folder, table)


def _claim(folder: Path) -> None:
    """Raise JobRefused for a folder that holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / RECORD).exists():
            return
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        if any(file.parts[0] != _ASIDE and not file.match(f"date=*/zone=*/{PART}") for file in files):
            raise JobRefused(f"{folder} is not empty and not a table of this program", "name another folder")
        write_json(folder / RECORD, {})
    except OSError as error:
        raise JobRefused(f"{folder} cannot be used: {error.strerror}", "name a folder this user may write") from error
