"""The manifest of a batch: the files that its tasks wrote, the offsets that they saw, and those that are missing. Core:
no IO.

Each task reports its files, the offsets that it saw as runs, and the facts that declare a loss. Offsets of a stream are
dense, so an offset that no task saw is missing, whatever the reason; the source need not report it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pyspark_bsfg.ranges import OffsetRange

Format = Literal["delta", "parquet"]
"""The format of a table."""

# Facts by which a node declares that facts are lost, or were recovered (agent/fact_store/core, agent/ingest).
DECLARING = frozenset({
    "facts_expired",
    "facts_damaged",
    "facts_repaired",
    "facts_refused",
    "facts_declined",
    "store_quarantined",
    "store_missing",
    "store_restored",
    "log_lost",
    "samples_lost",
    "events_lost",
    "history_backfilled",
})  # fmt: skip
UNREAD = "facts_unread"
"""An incident found here: the store did not give these offsets."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that a task has written; `path` is relative to the folder it was given. Times are microseconds since
    1970."""

    path: str
    date: str
    zone: str
    rows: int
    size_bytes: int
    offsets: tuple[int, int]
    sequences: tuple[int, int]
    times_us: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Incident:
    """A row of the incidents table. `offset` to `last_offset` is the fact that declares the incident; for UNREAD, the
    missing facts."""

    what: str
    stream: str
    offset: int
    last_offset: int
    time_us: int
    subject: str = ""
    zone: str = ""
    life: str = ""
    sequence: int | None = None
    detail: str = "{}"


@dataclass(slots=True)
class Manifest:
    """The reports of the tasks of one batch."""

    files: list[File] = field(default_factory=list)
    seen: list[OffsetRange] = field(default_factory=list)
    declared: list[Incident] = field(default_factory=list)
    known: int = 0
    """Facts that were in the table already, by their identity."""

    @property
    def rows(self) -> int:
        """Facts in the files."""
        return sum(file.rows for file in self.files)

    def lines(self) -> list[str]:
        """The manifest as texts, which Spark collects."""
        made: list[tuple[str, Any]] = [("file", asdict(file)) for file in self.files]
        made += [("seen", list(span)) for span in self.seen]
        made += [("declared", asdict(incident)) for incident in self.declared]
        made += [("known", self.known)] if self.known else []
        return [json.dumps(line) for line in made]

    @classmethod
    def of(cls, lines: Iterable[str]) -> Manifest:
        """The manifest from the texts of all tasks."""
        found = cls()
        for kind, body in map(json.loads, lines):
            match kind:
                case "file":
                    spans: dict[str, Any] = {
                        name: tuple(body.pop(name)) for name in ("offsets", "sequences", "times_us")
                    }
                    found.files.append(File(**body, **spans))
                case "seen":
                    found.seen.append(OffsetRange(*body))
                case "declared":
                    found.declared.append(Incident(**body))
                case _:
                    found.known += body
        return found


def missing(whole: OffsetRange, seen: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The parts of a range that no task saw, in order."""
    found, at = [], whole.first
    for span in sorted(seen):
        if span.first > at:
            found.append(OffsetRange(at, min(span.first - 1, whole.last)))
        at = max(at, span.last + 1)
        if at > whole.last:
            return found
    return [*found, OffsetRange(at, whole.last)] if at <= whole.last else found


def runs(offsets: Sequence[int]) -> list[OffsetRange]:
    """Ascending offsets as ranges."""
    found: list[OffsetRange] = []
    for offset in offsets:
        if found and offset == found[-1].last + 1:
            found[-1] = OffsetRange(found[-1].first, offset)
        else:
            found.append(OffsetRange(offset, offset))
    return found


def unread(
    stream: str, holes: Iterable[OffsetRange], first_held: int | None, now_us: int, otherwise: str = "unknown"
) -> list[Incident]:
    """Incidents for missing offsets: `expired` before the first offset that the store holds, else `damaged`; if that
    offset is not known, `otherwise`."""
    found = []
    for hole in holes:
        parts = [(otherwise, hole)]
        if first_held is not None:
            gone = OffsetRange(hole.first, min(hole.last, first_held - 1))
            left = OffsetRange(max(hole.first, first_held), hole.last)
            parts = [(reason, part) for reason, part in (("expired", gone), ("damaged", left)) if part.facts]
        for reason, part in parts:
            detail = json.dumps({"reason": reason, "count": part.facts})
            found.append(Incident(UNREAD, stream, part.first, part.last, now_us, f"stream:{stream}", detail=detail))
    return found
