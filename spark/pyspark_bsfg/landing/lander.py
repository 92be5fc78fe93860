"""Shell: lands the batches of one query in a table of facts and a table of incidents, as `foreachBatch`.

Tasks write the files, and the driver adds them to the tables: incidents first, then facts, each in one atomic step. So
if the facts of a batch are in their table, its incidents are too. Of a batch that Spark repeats after a crash, only
what is missing is added.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from agent.errors import BsfgError
from agent.file_replace import sync_folder
from agent.positions import TRAIL_MAX
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.landing.files import FilesSink, file_schema
from pyspark_bsfg.landing.identities import Identities
from pyspark_bsfg.landing.manifest import File, Format, Incident, Manifest, missing, unread
from pyspark_bsfg.landing.tables import WRITERS, exclusive, identities, table
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import TABLE
from pyspark_bsfg.streaming.checkpoint import batch_offsets, read_binding, write_json
from pyspark_bsfg.streaming.offsets import StreamOffset
from pyspark_bsfg.transports import Place

FILE = "bsfg-land.json"  # in the checkpoint
MANIFEST = "bsfg-land-batch"  # of the present batch
FACTS_SCHEMA = pa.schema([
    *file_schema(TABLE),
    pa.field("zone", pa.string(), nullable=False),
    pa.field("date", pa.date32(), nullable=False),
])  # fmt: skip
INCIDENTS_SCHEMA = pa.schema([
    ("what", pa.string()),
    ("stream", pa.string()),
    ("offset", pa.int64()),
    ("last_offset", pa.int64()),
    ("ts", pa.timestamp("us", tz="UTC")),
    ("subject", pa.string()),
    ("zone", pa.string()),
    ("life", pa.string()),
    ("sequence", pa.int64()),
    ("detail", pa.string()),
])  # fmt: skip

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """The results of a run. `facts_known` were in the table before, by their identity; `facts_missing` are in the
    incidents."""

    batches: int = 0
    facts_landed: int = 0
    facts_missing: int = 0
    facts_known: int = 0
    incidents: int = 0
    end_offset: int = 0


class Lander:
    """Called with each batch. Raises JobRefused, also if the tables belong to another checkpoint."""

    def __init__(self, checkpoint: Path, place: Place, stream: str, folder: Path, kind: Format) -> None:
        self._checkpoint = checkpoint
        self._place = place
        self._stream = stream
        self._folder = folder
        self._facts = table(folder, kind, FACTS_SCHEMA, ("date", "zone"))
        self._incidents = table(incidents_of(folder), kind, INCIDENTS_SCHEMA)
        self._kind = kind
        self._known = Identities()
        self._files_known: set[str] = set()
        self._is_shared = False
        self._lives = list[str]()
        self.totals = Totals()
        self._claim()

    def __call__(self, facts: DataFrame, batch: int) -> None:
        binding = read_binding(self._checkpoint)
        assert binding is not None, "the source wrote it before it planned a batch"
        assert binding.start is not None, "the source wrote it before it planned a batch"
        start, end = batch_offsets(self._checkpoint, batch)
        start = start or binding.start
        with self._place.opened() as source:  # one that is away must not hold the table and the cores from other jobs
            held = source.bounds(self._stream, start.position)
        with exclusive(self._folder):
            if held.resolved != start.offset:
                # The store was restored: facts may come again, at other offsets.
                self._join(f"{binding.app}-{end.life}-{end.offset}")
                self._files_known.clear()
            if end.offset <= start.offset:
                return
            self._know_others()
            facts_end, incidents_end = self._landed(binding.app, end.life)
            span = OffsetRange(max(start.offset, facts_end) + 1, end.offset)
            if span.facts:
                self._note_life(start.life, end.life)
                self._land(facts, f"{binding.app}-{end.life}", span, end.life, incidents_end)
        self.totals.batches += 1
        self.totals.end_offset = end.offset

    def _landed(self, app: str, life: str) -> tuple[int, int]:
        """Up to which offset of the present log facts and incidents are landed. After a power cut Spark may plan a
        batch again, and the store may have begun another life since."""
        both = self._facts, self._incidents
        ends = [written.landed(f"{app}-{life}") for written in both]
        for earlier in [known for known in self._lives if known != life]:
            for at, written in enumerate(both):
                if offset := written.landed(f"{app}-{earlier}"):
                    with self._place.opened() as source:
                        here = source.bounds(self._stream, StreamOffset(earlier, offset).position).resolved
                    ends[at] = max(ends[at], here or 0)
        return ends[0], ends[1]

    def _note_life(self, start_life: str, life: str) -> None:
        """Record under which lives batches were landed since the last one that Spark has finished."""
        if life not in self._lives:
            begun = self._lives.index(start_life) if start_life in self._lives else 0
            self._lives = [*self._lives[begun:], life][-TRAIL_MAX:]
            path = self._checkpoint / FILE
            write_json(path, {**_read_json(path, {}, "restore it"), "lives": self._lives})

    def _land(self, facts: DataFrame, key: str, span: OffsetRange, life: str, incidents_end: int) -> None:
        root = self._facts.root(key, span)
        manifest = self._checkpoint / MANIFEST
        asked: dict[str, str | int] = {
            "root": str(root),
            "manifest": str(manifest),
            "after": span.first - 1,
            "known": self._known.to_json(),
        }
        facts.write.format(FilesSink.name()).options(**asked).mode("append").save()
        found = Manifest.of(manifest.read_text("utf-8").splitlines())
        lost = sum(hole.facts for hole in missing(span, found.seen))
        if found.rows + found.known + lost != span.facts:
            raise JobRefused(f"{span} gave {found.rows} facts, {found.known} known, {lost} missing", "report this")
        # A run that died at this point has landed the incidents of its batch, which may have ended elsewhere than this
        # one.
        rest = OffsetRange(max(span.first, incidents_end + 1), span.last)
        fresh = [incident for incident in found.declared if incident.offset >= rest.first]
        if holes := missing(rest, found.seen):
            fresh += self._unread(holes, life)
        if fresh:
            self._incidents.commit(key, rest, [_written(self._incidents.root(key, rest), fresh)])
        self._facts.commit(key, span, found.files)
        if self._is_shared:
            self._files_known |= {Path(file.path).name for file in found.files}
        self.totals.facts_landed += found.rows
        self.totals.facts_known += found.known
        self.totals.facts_missing += lost
        self.totals.incidents += len(fresh)

    def _unread(self, holes: list[OffsetRange], life: str) -> list[Incident]:
        """Incidents for missing offsets: `expired` before the first fact that the store holds, `damaged` after it;
        `restored` if that is not in the log now, because then its facts come again."""
        first_held, otherwise = None, "unknown"
        try:
            with self._place.opened() as source:
                end = StreamOffset(life, holes[-1].last)
                held = source.bounds(self._stream, end.position)
            first_held, otherwise = (held.first_offset, "") if held.resolved == end.offset else (None, "restored")
        except (BsfgError, OSError) as error:
            log.warning("why facts are missing is not known: %s", error)
        return unread(self._stream, holes, first_held, time.time_ns() // 1000, otherwise)

    def _claim(self) -> None:
        """Bind the checkpoint to this table, and add it to the writers of the table. Raises JobRefused."""
        path = self._checkpoint / FILE
        known = _read_json(path, {}, "restore it, or use a new checkpoint")
        table = known.get("table", str(self._folder))
        if table != str(self._folder):
            raise JobRefused(f"checkpoint {self._checkpoint} belongs to table {table}", "use that, or a new checkpoint")
        if "writer" not in known:
            known = {"table": table, "writer": uuid.uuid4().hex}
            write_json(path, known)
        self._lives = known.get("lives", [])
        with exclusive(self._folder):
            self._join(known["writer"])

    def _join(self, writer: str) -> None:
        """Add a name to the writers of the table. A table with facts but without names gets the name `earlier` too."""
        path = self._folder / WRITERS
        writers = self._writers()
        if not path.exists() and self._facts.paths():
            writers = ["earlier"]
        if writer not in writers:
            write_json(path, [*writers, writer])

    def _know_others(self) -> None:
        """Read the identities of the facts in the table, if others write it too, or a store is read a second time."""
        self._is_shared = len(self._writers()) > 1
        if self._is_shared:
            found = {Path(path).name: path for path in self._facts.paths()}
            fresh = found.keys() - self._files_known
            self._known = identities((found[name] for name in fresh), self._known)
            self._files_known = set(found)

    def _writers(self) -> list[str]:
        writers: list[str] = _read_json(self._folder / WRITERS, [], "remove it: each fact is looked up from then on")
        return writers


def _read_json(path: Path, default: Any, hint: str) -> Any:
    """The content of a file; `default` if it does not exist. Raises JobRefused."""
    try:
        return json.loads(path.read_text("utf-8")) if path.exists() else default
    except (OSError, ValueError) as error:
        raise JobRefused(f"{path} is damaged: {error}", hint) from error


def incidents_of(folder: Path) -> Path:
    """The table of incidents of a table of facts."""
    return folder.with_name(f"{folder.name}_incidents")


def _written(root: Path, incidents: list[Incident]) -> File:
    """Write one file of incidents, durably."""
    names = INCIDENTS_SCHEMA.names
    rows: list[dict[str, Any]] = [
        {name: incident.time_us if name == "ts" else getattr(incident, name) for name in names}
        for incident in incidents
    ]
    path = root / f"part-{uuid.uuid4().hex}.parquet"
    with path.open("wb") as out:
        pq.write_table(pa.Table.from_pylist(rows, INCIDENTS_SCHEMA), out, compression="zstd")
        out.flush()
        os.fsync(out.fileno())
    sync_folder(root)
    nothing = (0, 0)
    return File(path.name, "", "", len(rows), path.stat().st_size, nothing, nothing, nothing)
