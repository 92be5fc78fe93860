"""The code of spark/README.md, run as it stands there, except for the paths."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_bsfg import __main__ as program
from pyspark_bsfg.landing.tables import paths
from pyspark_bsfg.options import NAMES
from pyspark_bsfg.streaming.options import INSTEAD, OURS
from tests.spark.making import TELEMETRY
from tests.spark.streaming.rows import append
from tests.spark.streaming.test_stream_reader import CONSUMER, node
from tests.support.page import ROOT, code

shown = partial(code, "spark/README.md")


def test_every_option_is_documented() -> None:
    """The table has each option of readStream, with its spelling, and the text names what a batch read has in
    common."""
    page = (ROOT / "spark" / "README.md").read_text("utf-8").partition("## Streaming")[2]
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(OURS.values())
    for name in {NAMES[key] for key in NAMES if key not in INSTEAD} & {
        "path",
        "stream",
        "transport",
        "maxFactsPerPartition",
    }:
        assert f"`{name}`" in page


@pytest.mark.spark
@pytest.mark.system
def test_the_page_does_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks, one after the other on a store of a running node: a read counts the facts, the readings and the table
    have them, each cursor has followed, and the last line of the job is the JSON."""
    monkeypatch.setattr("pyspark_bsfg.session.session", lambda _: spark)
    monkeypatch.setattr(program, "session", lambda _: spark)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def here(text: str) -> str:
        return text.replace("/var/lib/bsfg/enterprise", str(tmp_path)).replace("/data", str(tmp_path / "data"))

    steps: list[tuple[Callable[..., Any], str, str]] = [
        (_python, shown("stream"), "local.readings"),
        (_command, shown("land"), CONSUMER),
    ]
    with node(tmp_path) as store:
        store.consumers.register("local.keep", "local", TELEMETRY).result()
        append(store, 1, 300)
        _python(here("".join(map(shown, ("read", "filter", "columns")))))
        assert "|  300|" in capsys.readouterr().out  # the sum of column `facts`
        for step, text, consumer in steps:
            step(here(text))
            state = store.consumers.get(consumer)
            assert state is not None
            assert state.frontier == 300
    assert spark.read.parquet(str(tmp_path / "data" / "readings")).count() == 300
    assert spark.read.parquet(*paths(tmp_path / "data" / "facts")).count() == 300
    done = json.loads(capsys.readouterr().out.splitlines()[-1])["jobs"]["land"]
    assert (done["facts_landed"], done["facts_missing"], done["end_offset"], done["restarts"]) == (300, 0, 300, 0)


@pytest.mark.spark
@pytest.mark.system
def test_a_lost_checkpoint_loses_no_fact_of_a_file_sink(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of the page, its checkpoint deleted between two runs: the second run is refused before it reads, and
    as the page says it goes on into a new output. Then both have each fact once. Into the old output Spark itself
    would write none of the new facts, which is why."""
    monkeypatch.setattr("pyspark_bsfg.session.session", lambda _: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    text = shown("stream").replace("/var/lib/bsfg/enterprise", str(tmp_path)).replace("/data", str(tmp_path))
    on = '"startingOffsets": "cursor",\n    "takeOver": "true",\n    "consumer"'
    with node(tmp_path) as store:
        append(store, 1, 300)
        _python(text)
        shutil.rmtree(tmp_path / "readings_checkpoint")
        append(store, 301, 500)
        with pytest.raises(StreamingQueryException, match="file sink skips batches"):
            _python(text)
        shutil.rmtree(tmp_path / "readings_checkpoint")
        moved = text.replace(f"{tmp_path}/readings", f"{tmp_path}/more")
        _python(moved.replace('"consumer"', on, 1))
        assert store.consumers.get("local.readings").frontier == 500  # type: ignore[union-attr]
    found = [spark.read.parquet(str(tmp_path / name)) for name in ("readings", "more")]
    assert [rows.count() for rows in found] == [300, 200]
    assert found[0].union(found[1]).distinct().count() == 500


def _python(text: str) -> None:
    exec(text, {})  # noqa: S102  the text of our own page


def _command(text: str) -> None:
    found = re.fullmatch(r"cat >(\S+) <<'END'\n(.*?)END\npython -m pyspark_bsfg (\S+)\n", text, re.DOTALL)
    assert found is not None
    Path(found[1]).write_text(found[2], "utf-8")
    assert program.main([found[3]]) == 0
