"""Shell: brings the tables that are derived from the landed one up to date, in order: clean, rollup, gaps, export."""

from __future__ import annotations

import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.types import StructType

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs import clean, export, gaps, land, rollup
from pyspark_bsfg.jobs.derived import PART, Derivation, DerivationOutcome, Source, derive, derived, landed, publish_file
from pyspark_bsfg.jobs.land import Order, declared_of
from pyspark_bsfg.jobs.settings import Clean, Gaps, Rollup, Settings, stream_options
from pyspark_bsfg.landing.lander import FACTS_SCHEMA
from pyspark_bsfg.landing.tables import table
from pyspark_bsfg.landing.views import incidents
from pyspark_bsfg.schema import LANDED
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.streaming.reader import UNREACHABLE
from pyspark_bsfg.transports import Bounds, places

JOBS = ("land", "clean", "rollup", "gaps", "export")
WITHIN = "_within"  # in the folder of the gaps, hidden from readers of the report
GAPS_SHOWN = 5

Report = Callable[[str], None]

log = logging.getLogger(__name__)


class Refresh:
    """The jobs after land. Each raises JobRefused, SparkError and PySparkException."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        only: Collection[str],
        report: Report,
        *,
        is_fewer_accepted: bool = False,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._only = only
        self._report = report
        self._is_fewer_accepted = is_fewer_accepted
        self._declared: dict[Path, Bounds] = {}

    def run(self) -> dict[str, Any]:
        """Run the jobs in `only` that have a section. Returns what each did."""
        asked, landing = self._settings, self._settings.land
        found: dict[str, Any] = {}
        if "land" in self._only and landing.compact_files:
            self._report("land: small files")
            tables = [folder for folder in (landing.table, declared_of(landing.table)) if folder.exists()]
            found["compacted"] = sum(
                table(folder, landing.format, FACTS_SCHEMA, ("date", "zone")).compact(landing.compact_files)
                for folder in tables
            )
        if asked.clean and "clean" in self._only:
            outcome = self._derive(clean_step(asked.clean), landing.table, is_landed=True)
            found["clean"] = asdict(outcome)
        if asked.rollup and asked.clean and "rollup" in self._only:
            before = asked.clean.table
            for step in rollup_steps(asked.rollup):
                found[step.name] = asdict(self._derive(step, before))
                before = step.folder
        if asked.gaps and asked.clean and "gaps" in self._only:
            found["gaps"] = self._gaps(asked.gaps, asked.clean)
        if asked.export and asked.clean and "export" in self._only:
            self._report("export")
            found["export"] = asdict(export.export(asked.export, derived(asked.clean.table), self._report))
        return found

    def _derive(self, step: Derivation, folder: Path, *, is_landed: bool = False) -> DerivationOutcome:
        source = landed(folder) if is_landed else derived(folder)
        return derive(self._spark, step, source, self._report, is_fewer_accepted=self._is_fewer_accepted)

    def _gaps(self, asked: Gaps, cleaned: Clean) -> dict[str, Any]:
        outcome = self._derive(within_step(asked), cleaned.table)
        self._report("gaps: the report")
        source = derived(asked.table / WITHIN)
        within = source.read(self._spark, gaps.WITHIN, list(source.parts))
        limit_s = gaps.expected_s(asked.expected_s, asked.tag)
        known = incidents(self._spark, self._settings.land.table)
        if asked.declarations:
            if "land" in self._only:
                self._land_declarations(asked.declarations)
            of_sources = incidents(self._spark, declared_of(self._settings.land.table))
            # Other declarations name offsets of their own stream, not of the facts.
            known = known.unionAll(of_sources.where(F.col("what") == gaps.SAMPLES_LOST))
        named = [expected.tag for expected in asked.tag if "*" not in expected.tag]
        as_of_ns = newest_ns(source, round(datetime.now(UTC).timestamp() * 1000) * 1_000_000)
        rows = gaps.report(within, known, limit_s, as_of_ns, named)
        aside = asked.table / "_aside"
        rows.coalesce(1).sortWithinPartitions("zone", "tag", "begin").write.mode("overwrite").parquet(str(aside))
        [file] = aside.glob("*.parquet")
        publish_file(file, asked.table / PART)
        shutil.rmtree(aside)
        return asdict(outcome) | {"as_of_unix_ms": as_of_ns // 1_000_000} | _summary(asked.table / PART)

    def _land_declarations(self, stream: str) -> None:
        """Bring the table of declarations up to date. If the node cannot be reached or has no such stream, the report
        uses the declarations that are landed. Raises JobRefused."""
        for order in Order.all_of(self._settings, is_available_now=True):
            self._land_declarations_of(order, stream)

    def _land_declarations_of(self, order: Order, stream: str) -> None:
        asked = StreamOptions.of(stream_options(order.options, order.checkpoint)).read
        if asked.stream == stream:
            return
        try:
            with places(asked)[0].opened() as source:
                held = source.bounds(stream)
            if held != self._declared.get(order.checkpoint):
                self._report("gaps: declarations")
                land.run(self._spark, order.declarations(stream), threading.Event())
                self._declared[order.checkpoint] = held
        except (*UNREACHABLE, PySparkException) as error:
            log.warning("losses that sources have declared are not up to date: %s", error)


def clean_step(asked: Clean) -> Derivation:
    """The table of `[clean]`."""
    settings = [clean.VERSION, asked.accept_uncertain, *(asdict(rule) for rule in asked.rule)]
    return Derivation(
        "clean", asked.table, LANDED,
        lambda facts: clean.cleaned(facts, asked.rule, is_uncertain_accepted=asked.accept_uncertain),
        settings, ("tag", "source_time_ns", "offset"), facts=lambda file: int(pq.read_metadata(file).num_rows), is_exact=False,
    )  # fmt: skip


def rollup_steps(asked: Rollup) -> list[Derivation]:
    """The tables of `[rollup]`, each from the one before."""
    settings = [rollup.VERSION, asked.hold_s, *(asdict(counter) for counter in asked.counter)]
    minutes = Derivation(
        "rollup 1m", asked.table / "1m", _some(clean.CLEAN, rollup.COLUMNS),
        lambda facts: rollup.by_minute(facts, asked.hold_s, asked.counter),
        settings, ("tag", "start"), days_back=1, facts=_counted,
    )  # fmt: skip
    wider = [
        Derivation(
            f"rollup {name}", asked.table / name, rollup.ROLLED, lambda rows, s=seconds: rollup.coarser(rows, s),  # type: ignore[misc]
            [rollup.VERSION, name], ("tag", "start"), facts=_counted,
        )
        for name, seconds in rollup.WINDOWS_S.items() if name != "1m"
    ]  # fmt: skip
    return [minutes, *wider]


def within_step(asked: Gaps) -> Derivation:
    """The table from which gaps are reported."""
    limit_s = gaps.expected_s(asked.expected_s, asked.tag)
    settings = [gaps.VERSION, asked.expected_s, *(asdict(expected) for expected in asked.tag)]
    return Derivation(
        "gaps", asked.table / WITHIN, _some(clean.CLEAN, gaps.COLUMNS), lambda facts: gaps.found_within(facts, limit_s),
        settings, ("tag", "kind", "begin"),
    )  # fmt: skip


def _some(schema: StructType, names: Collection[str]) -> StructType:
    return StructType([schema[name] for name in names])


def _counted(file: Path) -> int:
    """The facts that the rows of a rollup represent."""
    return int(pc.sum(pq.read_table(file, columns=["count"], partitioning=None)["count"]).as_py() or 0)


def newest_ns(within: Source, now_ns: int) -> int:
    """The time until which a silent tag is reported silent: that of the newest fact that is not in the future; now, if
    a tag has facts before and after now without a gap between them; 0 without any fact."""
    found = []
    for path in (path for part in within.parts.values() for path in part.paths):
        rows = pq.read_table(path, columns=["kind", "begin", "end"], partitioning=None)
        begin, end = (pc.struct_field(rows[name].combine_chunks(), "ns") for name in ("begin", "end"))
        is_around_now = pc.and_(pc.less_equal(begin, now_ns), pc.greater(end, now_ns))
        kinds = rows["kind"].filter(is_around_now).to_pylist()
        if kinds.count("facts") > kinds.count("missing"):
            return now_ns
        both = pa.concat_arrays([begin, end])
        found.append(pc.max(both.filter(pc.less_equal(both, now_ns))).as_py() or 0)
    return max(found, default=0)


def _summary(report: Path) -> dict[str, Any]:
    """The gaps by kind, and the longest undeclared ones."""
    rows = pq.read_table(report, partitioning=None).to_pylist()
    undeclared = [row for row in rows if row["declared_by"] is None]
    longest = sorted(undeclared, key=lambda row: -(row["seconds"] or float("inf")))[:GAPS_SHOWN]
    return {
        "declared": dict(Counter(row["kind"] for row in rows if row["declared_by"] is not None)),
        "undeclared": dict(Counter(row["kind"] for row in undeclared)),
        "longest": [
            {name: row[name] for name in ("zone", "tag", "kind", "seconds")}
            | {"begin": row["begin"] and row["begin"].isoformat()}
            for row in longest
        ],
    }


def check_sections(settings: Settings, only: Collection[str]) -> None:
    """Raise JobRefused for a requested job without a section."""
    if missing := [name for name in only if getattr(settings, name) is None]:
        raise JobRefused(f"the job {missing[0]} has no section", f"add [{missing[0]}] to the TOML")
