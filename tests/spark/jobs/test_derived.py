"""The jobs without a JVM, Spark's part a copy of numbers: what is computed again and what is not, what a kill leaves,
and when the land job starts its query again."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs import derived as module
from pyspark_bsfg.jobs import land
from pyspark_bsfg.jobs.derived import Derivation, DerivationOutcome, Key, Part, Source, derive, derived, landed
from pyspark_bsfg.jobs.land import ATTEMPTS_MAX, BACK_OFF_S, Order
from pyspark_bsfg.landing.files import FileWriter
from pyspark_bsfg.landing.identities import Identities
from pyspark_bsfg.landing.lander import FACTS_SCHEMA
from pyspark_bsfg.landing.manifest import Manifest
from pyspark_bsfg.landing.tables import table
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import TABLE

DAYS = [(date(2026, 1, n).isoformat(), zone) for n in (1, 2, 3) for zone in ("a", "b")]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Key]:
    """The dates and zones that are computed; each gets a file with the number of facts that it stands for: all of its
    facts, but two of nine and more."""
    computed: list[Key] = []

    def stands_for(facts: int) -> int:
        return facts if facts < 9 else 2

    def copy(_: Any, step: Derivation, source: Source, keys: Sequence[Key]) -> dict[Key, int]:
        for key in keys:
            path = step.folder / module._ASIDE / f"date={key[0]}" / f"zone={key[1]}" / "x.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"count": [stands_for(source.parts[key].facts)]}), path)
        computed.extend(keys)
        return {key: stands_for(source.parts[key].facts) for key in keys}

    monkeypatch.setattr(module, "_written", copy)
    return computed


def source(facts: dict[Key, int]) -> Source:
    """A table with so many facts."""
    return Source(Path("landed"), {key: Part(count, count, (), str(count)) for key, count in facts.items()})


def step(folder: Path, days_back: int = 0, settings: object = "") -> Derivation:
    """A table that is a copy."""
    return Derivation("copy", folder, TABLE, lambda rows: rows, settings, (), days_back=days_back)


def brought_up(made: Derivation, facts: dict[Key, int], **more: bool) -> DerivationOutcome:
    """Derive without Spark."""
    return derive(None, made, source(facts), lambda _: None, **more)  # type: ignore[arg-type]


def brought_on(made: Derivation, of: Derivation) -> DerivationOutcome:
    """Derive a table from a derived one, without Spark."""
    return derive(None, made, derived(of.folder), lambda _: None)  # type: ignore[arg-type]


def content(folder: Path) -> dict[Key, int]:
    """What another program reads."""
    found = {}
    for path in folder.glob("date=*/zone=*/*.parquet"):
        key = (path.parent.parent.name.partition("=")[2], path.parent.name.partition("=")[2])
        found[key] = pq.ParquetFile(path).read()["count"][0].as_py()
    return found


def test_only_what_has_changed_is_computed(tmp_path: Path, written: list[Key]) -> None:
    """More facts of a date and zone compute it again, and the next date where rows look back; other settings compute
    everything; nothing new computes nothing."""
    facts = dict.fromkeys(DAYS, 5)
    assert brought_up(step(tmp_path / "t", 1), facts).computed == 6
    facts[DAYS[0]] = 6
    written.clear()
    assert brought_up(step(tmp_path / "t", 1), facts).unchanged == 4
    assert written == [("2026-01-01", "a"), ("2026-01-02", "a")]
    assert content(tmp_path / "t") == facts
    assert brought_up(step(tmp_path / "t", 1), facts).computed == 0
    assert brought_up(step(tmp_path / "t", 1, "other"), facts).computed == 6


@pytest.mark.parametrize("place", ["_publish", "_record"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_leaves_whole_files_and_the_next_run_goes_on(
    tmp_path: Path, written: list[Key], monkeypatch: pytest.MonkeyPatch, place: str, nth: int
) -> None:
    """Killed before any step of a run, each date and zone has its old or its new rows, and after another run the new
    ones; what was recorded is not computed twice."""
    before, after = dict.fromkeys(DAYS, 5), dict.fromkeys(DAYS, 7)
    monkeypatch.setattr(module, "PARTS_AT_ONCE", 2)
    made = step(tmp_path / "t")
    brought_up(made, before)
    calls, whole = 0, getattr(module, place)

    def killed(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise KeyboardInterrupt
        return whole(*arguments)

    with monkeypatch.context() as broken:
        broken.setattr(module, place, killed)
        with pytest.raises(KeyboardInterrupt):
            brought_up(made, after)
    assert {key: count in {5, 7} for key, count in content(made.folder).items()} == dict.fromkeys(DAYS, True)
    recorded = sum(part.facts == 7 for part in derived(made.folder).parts.values())
    written.clear()
    assert brought_up(made, after).computed == len(written) == 6 - recorded
    assert content(made.folder) == after


@pytest.mark.usefixtures("written")
def test_a_date_does_not_shrink(tmp_path: Path) -> None:
    """Fewer facts, or none, leave the file as it is and are named, until fewer are accepted; more facts replace it,
    also if they stand for fewer, and so in a table that is made from this one; a foreign folder is refused."""
    made, further = step(tmp_path / "t"), step(tmp_path / "further")
    brought_up(made, dict.fromkeys(DAYS[:2], 5))
    outcome = brought_up(made, {DAYS[0]: 4})
    assert sorted((part.date, part.zone, part.facts, part.found) for part in outcome.kept) == [
        ("2026-01-01", "a", 5, 4), ("2026-01-01", "b", 5, 0),
    ]  # fmt: skip
    assert content(made.folder) == dict.fromkeys(DAYS[:2], 5)
    assert brought_up(made, {DAYS[0]: 4}, is_fewer_accepted=True).kept == []
    assert content(made.folder) == {DAYS[0]: 4}
    brought_on(further, made)
    outcome = brought_up(made, {DAYS[0]: 9})
    assert (outcome.kept, outcome.repeated, content(made.folder)) == ([], 7, {DAYS[0]: 2})
    assert (brought_on(further, made).kept, content(further.folder)) == ([], {DAYS[0]: 2})
    (kept,) = brought_up(made, {DAYS[0]: 8}).kept
    assert (kept.facts, kept.found) == (9, 8)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(JobRefused, match="name another folder"):
        brought_up(step(tmp_path / "mine"), {})


def test_a_table_without_its_record_is_computed_again(tmp_path: Path, written: list[Key]) -> None:
    """As a damaged record asks for, also after a kill; a table of another program stays as it is."""
    made, facts = step(tmp_path / "t"), dict.fromkeys(DAYS, 5)
    brought_up(made, facts)
    (made.folder / module.RECORD).write_text("{")
    with pytest.raises(JobRefused, match="remove it: the table is computed again"):
        brought_up(made, facts)
    (made.folder / module.RECORD).unlink()
    (made.folder / module._ASIDE / "x").mkdir(parents=True)
    written.clear()
    assert brought_up(made, facts).computed == len(written) == 6
    (made.folder / module.RECORD).unlink()
    (made.folder / "date=2026-01-01" / "zone=a" / "part-0.parquet").touch()
    with pytest.raises(JobRefused, match="name another folder"):
        brought_up(made, facts)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_the_facts_of_a_landed_table_are_counted_without_reading_it(tmp_path: Path, kind: Any) -> None:
    """By date and zone; a zone that looks like a number stays text; merging files changes no count."""
    target = table(tmp_path / "facts", kind, FACTS_SCHEMA, ("date", "zone"))
    schema = pa.schema([field for field in FACTS_SCHEMA if field.name != "date"])
    for first in (1, 3, 5):
        always = dict.fromkeys((field.name for field in schema if not field.nullable), "x") | {"source_time_ns": 0}
        rows = [
            always | {"offset": n, "sequence": n, "zone": "007", "value_type": "double", "ts": n}
            for n in (first, first + 1)
        ]
        batch = pa.Table.from_pylist(rows, schema).to_batches()[0]
        span = OffsetRange(first, first + 1)
        done = FileWriter(str(target.root("k", span)), "", TABLE, 0, Identities()).write(iter([batch]))
        target.commit("k", span, Manifest.of(done.lines).files)
    for _ in range(2):
        [(key, part)] = landed(tmp_path / "facts").parts.items()
        assert (key, part.facts, part.state) == (("1970-01-01", "007"), 6, "6")
        target.compact(2)
    assert len(part.paths) == 1


@pytest.mark.parametrize("is_available_now", [False, True])
def test_failures_count_until_a_batch_has_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_available_now: bool
) -> None:
    """The pauses grow while nothing lands, and are short again after a batch, however often the query has failed
    before. A run with an end gives up after some failures in a row, not in all."""
    lander = SimpleNamespace(totals=SimpleNamespace(batches=0))
    lands = [False, False, True] * ATTEMPTS_MAX

    def follow(*_: object) -> None:
        if lands:
            lander.totals.batches += lands.pop(0)
            raise PySparkException("lost")

    asked: dict[str, Any] = {"check": Mock(), "Lander": Mock(return_value=lander), "_start": Mock(), "_follow": follow}
    for name, part in asked.items():
        monkeypatch.setattr(land, name, part)
    stop = Mock(wait=Mock(return_value=False))
    order = Order({"path": str(tmp_path / "facts.db")}, tmp_path, tmp_path, is_available_now=is_available_now)
    assert land.run(Mock(), order, stop) == (lander.totals, 3 * ATTEMPTS_MAX)
    pauses_s = [call.args[0] for call in stop.wait.call_args_list]
    # The third query of each three has landed a batch: its failure is the first again.
    assert pauses_s == [BACK_OFF_S[at] for at in [0, 1, 0] + [1, 2, 0] * (ATTEMPTS_MAX - 1)]
    lands += [False] * ATTEMPTS_MAX
    if is_available_now:
        with pytest.raises(JobRefused, match=f"tried {ATTEMPTS_MAX} times"):
            land.run(Mock(), order, stop)


def test_an_error_of_another_job_does_not_start_the_query_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failure of the query, and ends the land job, as one of ours does; the query is stopped."""
    query = Mock(awaitTermination=Mock(return_value=False))
    for name, part in (("check", Mock()), ("Lander", Mock()), ("_start", Mock(return_value=query))):
        monkeypatch.setattr(land, name, part)
    order = Order({"path": str(tmp_path / "facts.db")}, tmp_path, tmp_path)
    with pytest.raises(JobRefused, match="another job failed: no space left"):
        land.run(Mock(), order, Mock(wait=Mock(return_value=True)), Mock(side_effect=PySparkException("no space left")))
    query.stop.assert_called_once_with()
