"""`bsfg latest`: each tag's value, its mode and its age, in a table that fits, and the sum of thousands."""

import json
import re
import time
from pathlib import Path

from agent.config import InForce, load
from agent.message import Sample, TagDefinition
from tests.cli.conftest import Bsfg
from tests.fact_store.making import damage
from tests.query.making import everything, recorded
from tests.support.relay_store import ALARMS, relay_store


def test_each_tag_has_its_staleness(bsfg: Bsfg, tmp_path: Path) -> None:
    """A row for each tag with its staleness, as a table and as JSON; tags without a value and patterns without a match
    are reported."""
    file = everything(tmp_path)
    done = bsfg("latest", "--file", str(file))
    assert done.returncode == 0, done.stderr
    header, _, *rows = done.stdout.splitlines()
    assert header.split() == [
        "zone", "tag", "value", "unit", "quality", "source_time", "age", "mode",
    ]  # fmt: skip
    assert any(row.split()[:5] == ["plant", "line1/flow", "7.25", "m3/h", "Good"] for row in rows)
    assert "in the last 10,000,000 facts of" in done.stderr
    assert "line2/silent" in done.stderr
    found = [
        json.loads(line)
        for line in bsfg("latest", "line1/*", "--zone", "plant", "--file", str(file), "--json").stdout.splitlines()
    ]
    assert [(row["subject"], row["unit"], row["mode"]) for row in found] == [
        ("tag:line1/flow", "m3/h", "degraded"),
        ("tag:line1/temp", "degC", "degraded"),
    ]
    assert all(row["staleness_ms"] >= 0 and row["as_of"] and row["ahead_ms"] == 0 for row in found)
    nothing = bsfg("latest", "line9/*", "--file", str(file))
    assert (nothing.returncode, "no tag matches" in nothing.stderr) == (1, True)
    unknown = bsfg("latest", "--stream", "facts.none", "--file", str(file))
    assert (unknown.returncode, "facts.telemetry" in unknown.stderr) == (1, True)


def test_it_judges_each_tag_by_the_tag_files(bsfg: Bsfg, tmp_path: Path) -> None:
    """One that should have come again is stale, one that no file names any more is removed, one that comes on change
    has its age; in the table and in JSON. With tag files that cannot be read it is by those last in force; without
    these nothing is marked, and a line says so."""
    config = '[node]\nzone = "plant"\n[[modbus]]\nname = "plc1"\nhost = "h"\ntags_file = "t.csv"\naddress_base = 0\n'
    (tmp_path / "node.toml").write_text(config)
    (tmp_path / "t.csv").write_text(
        "tag,table,register,type,deadband\nl/polled,holding,1,int16,\nl/change,holding,2,int16,1\n"
    )
    (tmp_path / "state").mkdir()
    now_ns = time.time_ns()
    tags = [TagDefinition(f"tag:l/{name}", source="plc1") for name in ("change", "gone", "polled")]
    recorded(tmp_path / "state/facts.db", tags, [Sample(number, now_ns - 30_000_000_000, 1) for number in (1, 2, 3)])
    rows = [json.loads(line) for line in bsfg("latest", "--json").stdout.splitlines()]
    assert [(row["mode"], row["expected_ms"]) for row in rows] == [("fresh", None), ("removed", None), ("stale", 1000)]
    assert all(row["age_ms"] >= 30_000 for row in rows)
    table = bsfg("latest").stdout.splitlines()
    assert table[0].split() == ["tag", "value", "quality", "source_time", "age", "mode"]
    assert [word for line in table[2:] for word in line.split() if word in {"fresh", "removed", "stale"}] == [
        *("fresh", "removed", "stale"),
    ]
    tags = (tmp_path / "t.csv").read_bytes()
    (tmp_path / "t.csv").unlink()
    unread = bsfg("latest", "--json")
    assert {json.loads(line)["mode"] for line in unread.stdout.splitlines()} == {"fresh"}
    assert "stale and removed tags are not marked: t.csv: does not exist" in unread.stderr
    settings = load(tmp_path / "node.toml")
    InForce(settings).keep_settings(settings, {"plc1": tags})
    assert [json.loads(line)["mode"] for line in bsfg("latest", "--json").stdout.splitlines()] == [
        *("fresh", "removed", "stale"),
    ]


def test_it_sums_up_thousands_of_tags(bsfg: Bsfg, tmp_path: Path) -> None:
    """Counts, ten values, twenty bad tags by name and how many more, and the command that prints all; the same figures
    as JSON. Without --all, 3,000 tags take less than a screen and a half."""
    tags = [TagDefinition(f"tag:line1/t{number:04}", source="plc1") for number in range(3000)]
    now_ns, bad = time.time_ns(), 0x8034_0000
    samples = [Sample(tag, now_ns, 1.5, bad if tag <= 25 else 0) for tag in range(1, 3000)]
    file = recorded(tmp_path / "facts.db", tags, samples)
    summed = bsfg("latest", "--file", str(file))
    assert (summed.returncode, summed.stderr) == (0, "")
    assert len(bsfg("latest", "--all", "--file", str(file)).stdout.splitlines()) == 2 + 2999
    _, _, *lines = summed.stdout.splitlines()
    assert [line.split()[0] for line in lines[:10]] == [f"line1/t{number:04}" for number in range(25, 35)]
    assert lines[10] == "3,000 tags: 2,974 good, 25 bad, 1 silent"
    assert lines[11:31] == [f"  bad: line1/t{number:04}  BadNodeIdUnknown" for number in range(20)]
    config = f"--config node.toml --file {file}"
    assert lines[31:] == ["  and 5 more bad", "  silent: line1/t2999", f"every tag: bsfg latest --all {config}"]
    found = json.loads(bsfg("latest", "--summary", "--json", "--file", str(file), "line1/t29*").stdout)
    counts = {"tags": 100, "good": 99, "bad": 0, "silent": 1, "uncertain": 0, "removed": 0}
    assert found == {**counts, "bad_tags": [], "silent_tags": ["line1/t2999"]}
    nothing = bsfg("latest", "--summary", "--file", str(file), "line9/*")
    assert (nothing.returncode, nothing.stdout.splitlines()[0]) == (1, "0 tags: 0 good, 0 bad, 0 silent")


def test_it_says_by_its_status_that_facts_are_damaged(bsfg: Bsfg, tmp_path: Path) -> None:
    """The list of values and the summary name the damaged facts of the newest of three batches, and exit 1, although
    every tag has a good value before them."""
    batches = [[Sample(tag, time.time_ns(), value) for tag in (1, 2)] for value in (1.0, 2.0, 3.0)]
    file = recorded(tmp_path / "facts.db", [TagDefinition(f"tag:line1/t{n}") for n in range(2)], *batches)
    damage(file, 5)
    for options in ((), ("--summary",), ("--summary", "--json")):
        found = bsfg("latest", *options, "--depth", "10", "--file", str(file))
        assert found.returncode == 1, options
        assert "5 to 6" in found.stderr


def test_it_fits_a_terminal(bsfg: Bsfg, tmp_path: Path) -> None:
    """A hundred columns, with a tag of thirty characters and a source that is silent; numbers have the
    digits of a sensor, and JSON has all of them."""
    values = {"hall1/press-2.temperature_oven": 0.1 + 0.2, "hall1/counter": 123456789.0, "hall1/level": 1234.56789012}
    tags = [TagDefinition(f"tag:{name}", source="plc1", unit="degC") for name in values]
    at_ns = time.time_ns() - 600_000_000_123
    samples = [Sample(number, at_ns, value, 0) for number, value in enumerate(values.values(), 1)]
    file = recorded(tmp_path / "facts.db", tags, samples)
    table = bsfg("latest", "--file", str(file)).stdout.splitlines()
    assert max(map(len, table)) <= 100
    assert sorted(line.split()[1] for line in table[2:]) == ["0.3", "1234.568", "123456789.0"]
    rows = map(json.loads, bsfg("latest", "--file", str(file), "--json").stdout.splitlines())
    assert {row["value"] for row in rows} == set(values.values())


def test_it_marks_a_time_that_is_ahead(bsfg: Bsfg, tmp_path: Path) -> None:
    """A source time an hour after the recording is marked in the table, in JSON and in SQL, and the source is named."""
    sample = Sample(1, time.time_ns() + 3_600_000_000_000, 1.5)
    file = recorded(tmp_path / "facts.db", [TagDefinition("tag:line1/flow", source="plc1")], [sample])
    table = bsfg("latest", "--file", str(file))
    assert re.search(r"line1/flow +1\.5 .+:\d\dZ +(59|58)\.\d min +fresh", table.stdout), table.stdout
    assert "1 of these values had a source time ahead" in table.stderr
    assert "plc1" in table.stderr
    (row,) = map(json.loads, bsfg("latest", "--file", str(file), "--json").stdout.splitlines())
    (asked,) = map(
        json.loads, bsfg("sql", "select ahead_ms from latest", "--file", str(file), "--json").stdout.splitlines()
    )
    assert 3_400_000 < row["ahead_ms"] == asked["ahead_ms"] <= 3_600_000


def test_it_chooses_among_zones_and_streams(bsfg: Bsfg, tmp_path: Path) -> None:
    """Of a relay with two plants and two streams, of which both have a tag of one name and one is the newer."""
    file = relay_store(tmp_path)
    for options, expected in (
        ((), {("plant-a", 14.0), ("plant-a", 3.0), ("plant-b", 8.0), ("plant-b", 3.0)}),
        (("--zone", "plant-b"), {("plant-b", 8.0), ("plant-b", 3.0)}),
        (("line1/temp",), {("plant-a", 3.0), ("plant-b", 8.0)}),
        (("--stream", ALARMS), {("plant-a", 3.0), ("plant-a", None), ("plant-b", 3.0), ("plant-b", None)}),
    ):
        rows = bsfg("latest", *options, "--depth", "0", "--file", str(file), "--json").stdout.splitlines()
        assert {(row["zone"], row["value"]) for row in map(json.loads, rows)} == expected, options
        summed = json.loads(bsfg("latest", *options, "--summary", "--json", "--file", str(file)).stdout)
        assert summed["tags"] == len(expected), options
