"""The TOML of the jobs: every problem at once, each with what to do, and nothing taken that is not known."""

import tomllib
from dataclasses import fields
from pathlib import Path
from unittest.mock import MagicMock, Mock

import pytest
from pyspark.errors import PySparkException

from pyspark_bsfg import __main__ as program
from pyspark_bsfg.errors import JobRefused, SettingsError
from pyspark_bsfg.jobs import refresh
from pyspark_bsfg.jobs.land import Order
from pyspark_bsfg.jobs.refresh import JOBS
from pyspark_bsfg.jobs.settings import (
    Clean,
    Counter,
    Expected,
    Export,
    Gaps,
    Land,
    Rollup,
    Rule,
    Settings,
    stream_options,
)
from pyspark_bsfg.streaming.options import StreamOptions
from tests.support.page import code

LEAST = """
[source]
path = "/store/facts.db"
[land]
table = "/data/facts"
checkpoint = "/data/checkpoint"
"""


def test_defaults_and_options() -> None:
    """A short file is enough; options of the source become Spark's texts; jobs without a section do not exist."""
    found = Settings.of(LEAST.replace("[land]", "minPartitions = 3\nfailOnDataLoss = true\n[land]"))
    assert found.source == {"path": "/store/facts.db", "minPartitions": "3", "failOnDataLoss": "true"}
    assert (found.land.format, found.land.every_s, found.clean, found.export) == ("delta", 10.0, None, None)
    assert stream_options(found.source, found.land.checkpoint)["checkpointLocation"] == "/data/checkpoint"
    more = Settings.of(
        LEAST.replace('"/data/c', '"file:///data/c')
        + '[clean]\ntable = "c"\n[[clean.rule]]\ntag = "tag:a"\nname = "r"\nmin = 1\n'
        '[rollup]\ntable = "/r"\n[[rollup.counter]]\ntag = "tag:n"\nmodulus = 65536\n'
    )
    assert more.land.checkpoint == Path("/data/checkpoint")
    assert more.clean is not None
    assert more.rollup is not None
    assert (more.clean.table, more.clean.rule) == (Path("c").absolute(), (Rule("tag:a", "r", min=1.0),))
    assert more.rollup.counter == (Counter("tag:n", 65536),)


def test_declarations_are_landed_by_the_side() -> None:
    """Their stream has a table, a checkpoint and a consumer of its own, starts at its oldest fact, and is of the same
    store with the same options. A consumer's name has room for theirs."""
    text = LEAST.replace("[land]", 'Consumer = "local.lake"\nstartingTimestamp = 5\nminPartitions = 3\n[land]')
    (landed,) = Order.all_of(Settings.of(text), is_available_now=False)
    order = landed.declarations("facts.operational")
    asked = StreamOptions.of(stream_options(order.options, order.checkpoint))
    assert (asked.read.stream, asked.read.paths) == ("facts.operational", ("/store/facts.db",))
    assert (asked.consumer, asked.start, asked.since_unix_ms) == ("local.lake.declared", "cursor", None)
    assert (asked.checkpoint, asked.partitions_min) == ("/data/checkpoint_declared", 3)
    assert (order.folder, order.is_available_now) == (Path("/data/facts_declared"), True)
    jobs = '[clean]\ntable = "/c"\n[gaps]\ntable = "/g"\n'
    longest = text.replace("local.lake", "local." + 49 * "x")
    assert Settings.of(longest + jobs).gaps == Gaps(Path("/g"))
    with pytest.raises(SettingsError, match=r"^source.consumer = '.*': \[gaps\] adds .declared to it.*; shorten it$"):
        Settings.of(longest.replace("local.", "local.y") + jobs)
    assert Settings.of(longest.replace("local.", "local.y") + jobs + 'declarations = ""\n').gaps


def test_declarations_that_did_not_land_are_landed_at_the_next_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there are not landed again, while the store holds no more."""
    place, land = MagicMock(), Mock(side_effect=[PySparkException("lost"), None, None])
    monkeypatch.setattr(refresh, "places", lambda _: [place])
    monkeypatch.setattr(refresh.land, "run", land)
    (order,) = Order.all_of(Settings.of(LEAST), is_available_now=True)
    made = refresh.Refresh(Mock(), Settings.of(LEAST), (), Mock())
    for _ in range(3):
        made._land_declarations_of(order, "facts.operational")
    assert land.call_count == 2


def test_the_page_names_every_setting() -> None:
    """The block of docs/how-to/jobs.md is a file that is taken, and has each key of each section."""
    block = code("docs/how-to/jobs.md", "settings")
    taken = Settings.of(block)
    assert all(getattr(taken, name) for name in JOBS)
    made = tomllib.loads(block)
    sections = [
        (Land, made["land"]), (Clean, made["clean"]), (Rule, made["clean"]["rule"][0]), (Rollup, made["rollup"]),
        (Counter, made["rollup"]["counter"][0]), (Gaps, made["gaps"]), (Expected, made["gaps"]["tag"][0]),
        (Export, made["export"]),
    ]  # fmt: skip
    for kind, section in sections:
        assert sorted(section) == sorted(field.name for field in fields(kind)), kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more, problem",
    [
        ("tabel = 1", "land.tabel: unknown key; did you mean table?"),
        ("[clear]\n", "clear: unknown key; did you mean clean?"),
        ("every_s = -1", "land.every_s = -1: from 0 to 86400"),
        ("every_s = true", "land.every_s = True: it is a number"),
        ('format = "orc"', "land.format = 'orc': it is delta or parquet"),
        ("[clean]", "clean.table: missing"),
        ('[rollup]\ntable = "r"', "rollup: it reads the table of [clean]; add that section"),
        ('[clean]\ntable = "/data/facts/clean"', "it is inside land.table or contains it; name another folder"),
        ('[clean]\ntable = "/data"', "it is inside land.table or contains it; name another folder"),
        ('[clean]\ntable = "/c"\n[[clean.rule]]\ntag = "t"\nname = "r"', "clean.rule 'r': neither min nor max"),
        ('[clean]\ntable = "/c"\n[clean.rule]\ntag = "t"', "write [[clean.rule]]"),
        ('[clean]\ntable = "/c"\nrule = [1]', "clean.rule[1] = 1: write [clean.rule[1]]"),
        ('[clean]\ntable = "/c"\n[export]\ntable = "facts"', "export.table = 'facts': it is namespace.name"),
        ('[clean]\ntable = "s3://lake/clean"', "clean.table = 's3://lake/clean': it is a folder on storage that all"),
        ('[clean]\ntable = "dbfs:/lake/clean"', "clean.table = 'dbfs:/lake/clean': it is a folder on storage that all"),
        ("=", "not TOML"),
    ],
)
def test_a_problem_names_the_key_and_what_to_do(more: str, problem: str) -> None:
    """Whatever is wrong, the text has the path of the key, its value and the remedy."""
    with pytest.raises(SettingsError) as refused:
        Settings.of(LEAST + more)
    assert problem in str(refused.value)


def test_all_problems_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each on standard error, JSON on the last line, status 2, and no Spark is started; an option of the
    source is refused with the nearest one."""
    file = tmp_path / "jobs.toml"
    file.write_text(LEAST.replace("checkpoint", "chekpoint") + "evry_s = 1\n[gaps]\n")
    assert program.main([str(file)]) == 2
    told = capsys.readouterr()
    assert [line.partition("jobs.toml: ")[2] for line in told.err.splitlines()] == [
        "land.chekpoint: unknown key; did you mean checkpoint?",
        "land.evry_s: unknown key; did you mean every_s?",
        "land.checkpoint: missing",
        "gaps.table: missing",
    ]
    assert told.out.startswith('{"error": ["')
    file.write_text(LEAST.replace("path =", "startingOffset = 1\npath ="))
    assert program.main([str(file)]) == 2
    assert "did you mean startingOffsets?" in capsys.readouterr().err
    file.write_text(LEAST)
    assert program.main([str(file), "clean"]) == 2
    assert "add [clean] to the TOML" in capsys.readouterr().err
    file.write_text(f"{LEAST}[clean]\ntable = '/t/clean'\n")
    assert program.main([str(file), "clean", "--follow"]) == 2
    assert "--follow goes with the job land" in capsys.readouterr().err
    assert program.main([str(tmp_path / "none.toml")]) == 2


def test_a_job_that_ends_in_an_error_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1 and the sentence of the error."""
    (tmp_path / "jobs.toml").write_text(LEAST)
    monkeypatch.setattr(program, "session", Mock())
    monkeypatch.setattr(program, "run", Mock(side_effect=JobRefused("facts.db does not exist on this host")))
    assert program.main([str(tmp_path / "jobs.toml")]) == 1
    assert "facts.db does not exist on this host" in capsys.readouterr().err


def test_a_tag_that_never_had_a_fact_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no zone and no time; a gap that has both is named with them. The last line is the JSON."""
    never = {"zone": None, "tag": "tag:boiler/level", "kind": "silent", "begin": None}
    since = {"zone": "plant-a", "tag": "tag:press/count", "kind": "silent", "begin": "2026-01-01T12:00:00Z"}
    assert program._report({"jobs": {"gaps": {"longest": [never, since]}}}) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "bsfg jobs: undeclared: tag:boiler/level never had a fact",
        "bsfg jobs: undeclared: tag:press/count of plant-a silent since 2026-01-01T12:00:00Z",
    ]
    assert said.out.startswith('{"jobs"')


def test_a_kept_date_is_named_and_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, the two numbers, and how to overwrite it; the last line is the JSON."""
    kept = {"table": "clean", "date": "2026-01-01", "zone": "plant-a", "facts": 9, "found": 7}
    assert program._report({"jobs": {"clean": {"kept": [kept]}}}) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "bsfg jobs: clean of 2026-01-01, plant-a is kept: it represents 9 facts, now 7 were found",
        "bsfg jobs: --accept-fewer overwrites what was kept",
    ]
    assert said.out.startswith('{"jobs"')


def test_progress_is_one_line_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shorter text covers a longer one; in a pipe there is none."""
    for is_terminal, shown in ((True, f"\r{'clean: 10 of 12':100}\r{'export':100}\n"), (False, "")):
        monkeypatch.setattr("sys.stderr.isatty", lambda of=is_terminal: of)
        progress = program.Progress()
        for text in ("clean: 10 of 12", "export"):
            progress(text)
        progress.close()
        assert capsys.readouterr().err == shown
