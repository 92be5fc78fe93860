"""Program: runs and resumes the jobs of one TOML: land, clean, rollup, gaps, export.

    python -m pyspark_bsfg jobs.toml                    each job once, in this order, then end
    python -m pyspark_bsfg jobs.toml --follow           until SIGTERM or Ctrl-C: land all the time, and every `every_s`
                                                        the others, if facts have come
    python -m pyspark_bsfg jobs.toml clean rollup       only these
    spark-submit .../pyspark_bsfg/__main__.py jobs.toml the same on the master of spark-submit

Each job continues where it stopped, also after a kill. Progress is shown on a terminal. The last line printed is JSON.
Exit status: 0; 1 if a job failed, or a date was kept because it has more facts than are found now; 2 for wrong usage or
settings.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from agent.errors import BsfgError
from pyspark_bsfg.errors import SettingsError
from pyspark_bsfg.jobs import land
from pyspark_bsfg.jobs.land import Order
from pyspark_bsfg.jobs.refresh import JOBS, Refresh, check_sections
from pyspark_bsfg.jobs.settings import Settings
from pyspark_bsfg.landing.lander import Totals
from pyspark_bsfg.session import check, session

PROGRAM = "bsfg jobs"


class Progress:
    """A progress line on a terminal; silent elsewhere."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._is_shown:
            print(f"\r{text:100.100}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Begin a new line."""
        if self._is_shown:
            print(file=sys.stderr)


def run(
    spark: SparkSession,
    settings: Settings,
    only: Collection[str],
    stop: threading.Event,
    *,
    is_following: bool = False,
    is_fewer_accepted: bool = False,
) -> dict[str, Any]:
    """Run the jobs. Returns what each did. Raises JobRefused, SparkError and PySparkException."""
    check(spark)
    progress, began, found = Progress(), time.monotonic(), {}
    refresh = Refresh(spark, settings, only, progress, is_fewer_accepted=is_fewer_accepted)
    refreshed, batches = began, 0

    def between(totals: Totals) -> None:
        nonlocal refreshed, batches
        seconds = time.monotonic() - began
        pace = f"{totals.facts_landed:,} facts, {totals.facts_landed / seconds:,.0f}/s, up to offset"
        progress(f"land: {pace} {totals.end_offset:,}")
        is_due = time.monotonic() - refreshed >= settings.land.every_s
        if is_following and is_due and totals.batches > batches:
            batches = totals.batches
            found.update(refresh.run())
            refreshed = time.monotonic()

    try:
        if "land" in only:
            totals, restarts = land.run_all(
                spark, Order.all_of(settings, is_available_now=not is_following), stop, between
            )
            found["land"] = asdict(totals) | {"restarts": restarts}
        if not stop.is_set():
            found.update(refresh.run())
    finally:
        progress.close()
    return found


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set `stop` in this block; the handlers before are restored."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_bsfg", description="Run the jobs of one TOML.")
    parser.add_argument("settings", type=Path, help="the TOML, as in docs/how-to/jobs.md")
    parser.add_argument(
        "jobs", nargs="*", choices=[*JOBS, []], help=f"{', '.join(JOBS)}; default: those with a section"
    )
    parser.add_argument("--follow", action="store_true", help="go on until SIGTERM or Ctrl-C")
    parser.add_argument(
        "--accept-fewer",
        action="store_true",
        help="overwrite a date also if it then has fewer facts than now",
    )
    asked = parser.parse_args(arguments)
    began_ns, stop = time.monotonic_ns(), threading.Event()
    try:
        settings = Settings.of(asked.settings.read_text("utf-8"))
        only = asked.jobs or [name for name in JOBS if getattr(settings, name) is not None]
        check_sections(settings, only)
        if asked.follow and "land" not in only:
            raise SettingsError(["--follow goes with the job land, which finds that facts have come"])
    except (OSError, UnicodeDecodeError, BsfgError) as error:
        problems = error.problems if isinstance(error, SettingsError) else [str(error)]
        return _failed([f"{asked.settings}: {problem}" for problem in problems], 2)
    made: dict[str, Any] = {}
    try:
        spark = session(PROGRAM)
        # What fails is raised and said once below; Spark's log says it at each attempt, in 40 lines of Java.
        spark.sparkContext.setLogLevel("FATAL")
        try:
            with _signals(stop):
                made["jobs"] = run(
                    spark, settings, only, stop, is_following=asked.follow, is_fewer_accepted=asked.accept_fewer
                )
            made["master"] = str(spark.sparkContext.master)
        finally:
            spark.stop()
    except (BsfgError, PySparkException, Py4JError, ConnectionError) as error:  # the last two: the JVM has ended
        return _failed([str(error)], 1)
    made["duration_ms"] = (time.monotonic_ns() - began_ns) // 1_000_000
    return _report(made)


def _failed(problems: list[str], status: int) -> int:
    for problem in problems:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps({"error": problems[0] if len(problems) == 1 else problems}), flush=True)
    return status


def _report(made: dict[str, Any]) -> int:
    """Print problems to standard error and the result to standard output. Returns the exit status."""
    jobs = made["jobs"]
    kept = [day for job in jobs.values() if isinstance(job, dict) for day in job.get("kept", ())]
    if lost := jobs.get("land", {}).get("facts_missing"):
        print(f"{PROGRAM}: {lost} facts are missing, see the table of incidents", file=sys.stderr)
    for gap in jobs.get("gaps", {}).get("longest", ()):
        what = f"{gap['tag']} of {gap['zone']} {gap['kind']} since {gap['begin']}"
        if gap["zone"] is None:
            what = f"{gap['tag']} never had a fact"
        print(f"{PROGRAM}: undeclared: {what}", file=sys.stderr)
    for day in kept:
        counts = f"it represents {day['facts']} facts, now {day['found']} were found"
        print(f"{PROGRAM}: {day['table']} of {day['date']}, {day['zone']} is kept: {counts}", file=sys.stderr)
    if kept:
        print(f"{PROGRAM}: --accept-fewer overwrites what was kept", file=sys.stderr)
    sys.stderr.flush()  # so that the result is the last line also if both are read as one
    print(json.dumps(made, default=str), flush=True)
    return 1 if kept else 0


if __name__ == "__main__":
    sys.exit(main())
