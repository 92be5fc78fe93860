"""Exports: every form says each fact to the bit, nothing half is left, and what cannot be read is named."""

import csv
import json
import os
import pty
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agent.escaping import cell_text
from agent.fact_store import FactStore, StoreReader
from agent.message import Envelope, Fact, Message, Sample, TagDefinition, Value, time_text
from agent.query.export.exporter import FormatName, export
from agent.query.scan.bounds import Bounds
from agent.query.scan.errors import ExportRefused, ExtraMissing
from agent.query.scan.scanner import Scanner
from agent.query.statistics import statistics
from pyspark_bsfg.schema import FACTS
from tests.batch.making import bits
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, damage, done
from tests.query.exact import exact_value, value_of_text
from tests.query.making import BASE_NS, SECOND_NS, TAGS, VALUES, add_consumer_and_gap, everything, naive, recorded
from tests.query.test_scan import NAMES
from tests.support import command

MANY = 100_000
FORMS: tuple[FormatName, ...] = ("sqlite", "csv", "jsonl", "parquet")
Row = dict[str, Any]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with everything in it, and many facts."""
    path = everything(tmp_path_factory.mktemp("export"), rounds=2)
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        for at in range(0, MANY, 10_000):
            rows = [
                Sample(n % 3 + 1, BASE_NS + n * 1000, n / 7 if n % 3 else VALUES[n % len(VALUES)])
                for n in range(at, at + 10_000)
            ]
            done(store.appends.append_samples(TELEMETRY, rows))
    return path


def written(file: Path, target: Path, form: FormatName, bounds: Bounds | None = None) -> tuple[int, Scanner]:
    """Export a store; how many facts, and the scanner that knows of holes."""
    with closing(StoreReader(file)) as reader:
        scanner = Scanner(reader)
        return export(scanner, bounds or Bounds(), target, form).facts, scanner


def from_sqlite(path: Path) -> Iterator[Row]:
    """A flat SQLite file's rows."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        for row in connection.execute('SELECT * FROM facts ORDER BY stream, "offset"'):
            yield dict(row) | {"exact": exact_value(row["value_type"], row["value"], row["value_text"])}


def from_csv(path: Path) -> Iterator[Row]:
    """A CSV file's rows, texts back to what they were."""
    with path.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            row = {name: cell_text(text) for name, text in cells.items()}
            found: Row = {name: text or None for name, text in row.items()}
            for name in ("offset", "sequence", "tag", "quality", "is_good", "source_time_ns"):
                found[name] = int(row[name]) if row[name] else None
            yield found | {"exact": value_of_text(found["value_type"], row["value"])}


def from_jsonl(path: Path) -> Iterator[Row]:
    """A JSON lines file's rows."""
    names = ("tag", "unit", "quality", "is_good", "object_json", "message_id")
    for line in path.read_text("utf-8").split("\n")[:-1]:
        row = dict.fromkeys(names) | json.loads(line)
        kind, value = row.get("value_type"), row.get("value")
        if isinstance(value, str):
            value = value_of_text(kind, value)
        elif kind == "double":
            value = float(value)
        yield row | {"exact": value}


def from_parquet(path: Path) -> Iterator[Row]:
    """A Parquet file's rows."""
    for row in pq.read_table(path).to_pylist():
        found: Value
        match row["value_type"]:
            case "double":
                found = row["value"]
            case "int":
                found = row["value_int"]
            case "bool":
                found = bool(row["value_int"])
            case kind:
                found = value_of_text(kind, row["value_text"])
        kind = "message" if row["value_type"] == "message" else "sample"
        assert row["ts"].timestamp() == pytest.approx(row["source_time_ns"] / 1e9)
        yield row | {"exact": found, "kind": kind, "subject": row["tag"]}


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "sqlite": from_sqlite, "csv": from_csv, "jsonl": from_jsonl, "parquet": from_parquet,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_format_keeps_each_value_to_the_bit(
    tmp_path: Path, file: Path, facts: list[Row], form: FormatName
) -> None:
    """A hundred thousand facts of every type go out and come back: as many, each column, each value's bits."""
    target = tmp_path / "facts.out"
    count, _ = written(file, target, form)
    assert count == len(facts) > MANY
    names = [
        name for name in NAMES if name != "message_id" and (form != "parquet" or name not in {"tag", "source_time"})
    ]
    back = list(READERS[form](target))
    assert len(back) == len(facts)
    for row, fact in zip(back, facts, strict=True):
        assert bits(row["exact"]) == fact["exact"]
        assert [row[name] for name in names] == [fact[name] for name in names]
        assert row["is_good"] == (None if fact["quality"] is None else fact["quality"] < 0x4000_0000)
        if fact["kind"] == "message" or form == "parquet":
            assert row["message_id"] == fact["message_id"]
        if form != "parquet":
            assert row.get("from_zone") == ("plant" if fact["kind"] == "message" else None)
    assert [path.name for path in tmp_path.iterdir()] == ["facts.out"]


def test_parquet_has_the_columns_of_the_spark_source(tmp_path: Path, file: Path) -> None:
    """What a node exports and what Spark reads over the wire are one table."""
    written(file, tmp_path / "f.parquet", "parquet", Bounds(offset_max=10))
    schema = pq.read_schema(tmp_path / "f.parquet")
    assert schema.names == FACTS.names
    assert [field.nullable for field in schema] == [field.nullable for field in FACTS]


def test_a_flat_sqlite_file_is_ready_to_ask(tmp_path: Path, file: Path) -> None:
    """Indexes by offset, by subject and time, and by time are there, and the file is whole."""
    written(file, tmp_path / "f.db", "sqlite")
    with closing(sqlite3.connect(tmp_path / "f.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT * FROM facts WHERE subject = 'x' AND source_time_ns > 5"
        ).fetchall()
        assert "facts_by_subject" in plan[0][3]


@pytest.mark.parametrize("form", FORMS)
def test_an_export_of_nothing_is_a_file(tmp_path: Path, file: Path, form: FormatName) -> None:
    """Bounds that hold no fact give an empty file that reads."""
    count, _ = written(file, tmp_path / "f", form, Bounds(offset_min=10**9))
    assert (count, list(READERS[form](tmp_path / "f"))) == (0, [])


def test_an_existing_target_is_replaced_only_with_force(tmp_path: Path, file: Path) -> None:
    """An existing target is refused and left alone; --force replaces it."""
    target = tmp_path / "f.csv"
    target.write_text("mine")
    with pytest.raises(ExportRefused, match="exists") as caught:
        written(file, target, "csv")
    assert "--force" in caught.value.hint
    assert target.read_text() == "mine"
    with closing(StoreReader(file)) as reader:
        assert export(Scanner(reader), Bounds(offset_max=3), target, "csv", force=True).facts > 3
        with pytest.raises(ExportRefused, match="standard output"):
            export(Scanner(reader), Bounds(), Path("-"), "sqlite")
        for form in ("csv", "sqlite"):
            with pytest.raises(ExportRefused, match="cannot be written"):
                export(Scanner(reader), Bounds(), tmp_path / "no" / "such", form)


def test_no_export_replaces_the_store(tmp_path: Path, file: Path) -> None:
    """Not even with --force, by whatever name, and in whatever form."""
    link, before = tmp_path / "link.db", file.read_bytes()
    link.symlink_to(file)
    beside = [file.with_name(file.name + end) for end in ("-wal", "-shm", ".lock", ".witness")]
    for target in (file, link, file.parent / ".." / file.parent.name / file.name, *beside):
        for form in FORMS:
            with closing(StoreReader(file)) as reader, pytest.raises(ExportRefused, match="a file of the store"):
                export(Scanner(reader), Bounds(), target, form, force=True)
    assert file.read_bytes() == before
    assert link.is_symlink()


def test_an_aborted_export_leaves_no_file(tmp_path: Path, file: Path) -> None:
    """An export that ends early leaves neither the file nor a part of it, and what was there before stays."""
    target = tmp_path / "f.db"
    target.write_text("before")

    def end_early(facts: int, *_: object) -> None:
        if facts > 1000:
            raise KeyboardInterrupt

    with closing(StoreReader(file)) as reader, pytest.raises(KeyboardInterrupt):
        export(Scanner(reader), Bounds(), target, "sqlite", force=True, progress=end_early)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f.db", "before")]


def test_parquet_without_pyarrow_names_the_package(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package and the other forms."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExtraMissing, match="pyarrow") as caught:
        written(file, tmp_path / "f", "parquet")
    assert "csv" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_at_a_terminal_no_text_of_a_peer_is_a_control_sequence(
    tmp_path: Path, form: FormatName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output that is a terminal gets the text of a fact with escapes."""
    file, (master, terminal) = tmp_path / "facts.db", pty.openpty()
    recorded(file, [TagDefinition("tag:line1/text")], [Sample(1, 1, "a\x1b[2Jb\u202ec")])
    with closing(StoreReader(file)) as reader, os.fdopen(terminal, "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        export(Scanner(reader), Bounds(), Path("-"), form)
    written = bytearray()
    with suppress(OSError):  # the end, after all that was written, which comes in parts
        while part := os.read(master, 100_000):
            written += part
    os.close(master)
    shown = written.decode()
    assert "[2Jb" in shown
    assert not {"\x1b", "\u202e"} & {*shown}


def test_standard_output_on_a_full_disk_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file on a full disk is; who reads it learns that facts are missing."""
    with closing(StoreReader(file)) as reader, Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(ExportRefused, match=r"standard output cannot be written: .*No space left"):
            export(Scanner(reader), Bounds(), Path("-"), "csv")


bsfg = partial(command.bsfg, Path())


def test_the_command_narrows_counts_and_streams(tmp_path: Path) -> None:
    """Options narrow what goes out; the count is said; `-` is standard output and nothing else is on it."""
    file = everything(tmp_path)
    count = sum(
        f["subject"] == "tag:line1/flow" and f["source_time_ns"] >= BASE_NS + 5 * SECOND_NS for f in naive(file)
    )
    narrow = ("--tags", "line1/fl?w", "--stream", TELEMETRY, "--since", "2026-09-21T14:13:25Z", "--until", "2027-01-01")
    said = bsfg("store", "export", "--file", str(file), "--format", "csv", *narrow, str(tmp_path / "f.csv"))
    assert said.stdout.startswith(f"{count} facts to ")
    assert (said.returncode, said.stderr) == (0, "")
    piped = bsfg("store", "export", "--file", str(file), "--format", "jsonl", *narrow, "-")
    rows = [json.loads(line) for line in piped.stdout.splitlines()]
    assert (len(rows), {row["subject"] for row in rows}) == (count, {"tag:line1/flow"})
    assert piped.stderr == f"{count} facts to -\n"
    for arguments, why in (
        (("--since", "yesterday"), "is not a time"),
        (("--stream", "facts.none"), "there are: facts"),
    ):
        refused = bsfg("store", "export", "--file", str(file), "--format", "csv", *arguments, str(tmp_path / "g.csv"))
        assert (refused.returncode, why in refused.stderr) == (1, True), refused.stderr


def test_exports_of_neighbouring_times_share_no_fact(tmp_path: Path) -> None:
    """A fact of the time itself belongs to what begins there: --since includes it, --until does not."""
    file = everything(tmp_path)
    at_ns = sorted(fact["source_time_ns"] for fact in naive(file))[5]

    def times_of(*bounds: str) -> list[str]:
        done = bsfg("store", "export", "--file", str(file), "--format", "jsonl", *bounds, "-")
        return sorted(json.loads(line)["source_time"] for line in done.stdout.splitlines())

    before, after = times_of("--until", time_text(at_ns)), times_of("--since", time_text(at_ns))
    assert time_text(at_ns) in after
    assert before + after == times_of()
    wrong = bsfg("store", "export", "--format", "csv", "--since", "1h", "--until", "2h", str(tmp_path / "f.csv"))
    assert (wrong.returncode, "--until 2h is not after --since 1h" in wrong.stderr) == (2, True)


def test_an_export_reports_damage(tmp_path: Path) -> None:
    """A damaged batch is left out of the file, named, and gives status 1."""
    file = everything(tmp_path)
    damage(file, 11)
    said = bsfg("store", "export", "--file", str(file), "--format", "csv", str(tmp_path / "f.csv"))
    assert said.returncode == 1
    assert said.stdout.startswith(f"{len(VALUES) - 10 + 3 + 2 + 7} facts to ")
    assert "offsets 11 to 20 are damaged" in said.stderr


@pytest.mark.parametrize("seed", range(6))
def test_a_file_that_sqlite_finds_damaged_is_read_as_far_as_it_goes(tmp_path: Path, seed: int) -> None:
    """With pages of a set-aside file overwritten, what is exported is right, and what is missing is named: together
    they are all."""
    file = everything(tmp_path, rounds=60)
    whole = {(fact["stream"], fact["offset"]): fact for fact in naive(file)}
    data = bytearray(file.read_bytes())
    with closing(sqlite3.connect(file)) as connection:
        (roots,) = connection.execute("SELECT max(rootpage) FROM sqlite_schema").fetchone()
    first, pages = roots + 4, len(data) // 4096  # behind the tables' roots and the schema
    for n in range(2):
        page = first + (seed * 31 + n * 57) % (pages - first)
        data[page * 4096 : page * 4096 + 4096] = bytes([seed + 1]) * 4096
    set_aside = tmp_path / "facts.db.damaged-2026"
    set_aside.write_bytes(data)
    target = tmp_path / "f.csv"
    count, scanner = written(set_aside, target, "csv")
    rows = list(from_csv(target))
    assert len(rows) == count
    for row in rows:
        fact = whole[row["stream"], row["offset"]]
        assert (bits(row["exact"]), row["source_time_ns"]) == (fact["exact"], fact["source_time_ns"])
    missing = {
        (stream, offset)
        for stream, offset in whole
        if any(
            where == stream and hole.first_offset <= offset <= hole.last_offset
            for where, hole in scanner.counters.holes
        )
    }
    found = {(row["stream"], row["offset"]) for row in rows}
    assert missing | found == set(whole)
    assert not missing & found
    assert len(missing) < len(whole) / 2


def test_statistics_count_what_is_there(tmp_path: Path) -> None:
    """Facts, messages, batches, bytes, times, origins with gaps, definitions, consumers and incidents, as the store has
    them."""
    file = everything(tmp_path)
    add_consumer_and_gap(file, 30)
    with FactStore.open(file, "plant", settings=AT_ONCE) as store:
        store.consumers.register("erp", "plant", OPERATIONAL).result()
    whole = naive(file)
    with closing(StoreReader(file)) as reader:
        found = statistics(reader).to_dict()
        bytes_of = {stream.name: stream.bytes for stream in reader.streams()}
    assert found["facts"] == len(whole)
    streams = {stream["name"]: stream for stream in found["streams"]}
    for name, stream in streams.items():
        mine = [fact for fact in whole if fact["stream"] == name]
        assert (stream["facts"], stream["end_offset"]) == (len(mine), len(mine))
        assert stream["messages"] == sum(fact["kind"] == "message" for fact in mine)
        assert stream["oldest_source_time"] == min(mine, key=lambda fact: fact["source_time_ns"])["source_time"]
        assert stream["newest_source_time"] == max(mine, key=lambda fact: fact["source_time_ns"])["source_time"]
        assert stream["bytes"] == bytes_of[name], "as bsfg sql and bsfg status count them"
    assert streams[OPERATIONAL]["messages"] == 3
    origins = {origin["zone"]: origin for origin in streams[TELEMETRY]["origins"]}
    assert [origins[zone]["missing"] for zone in ("plant", "north", "south")] == [0, 0, 2]
    assert {definition["zone"]: definition["count"] for definition in found["definitions"]}["plant"] == len(TAGS)
    erp, mes = sorted(found["consumers"], key=lambda entry: entry["name"])
    assert mes["unconfirmed_facts"] == streams[TELEMETRY]["facts"] - 30
    assert "state" not in mes, "a file says offline of one that is online; bsfg consumer list asks the node"
    assert 0 < mes["unconfirmed_bytes"] < streams[TELEMETRY]["bytes"]
    for whole_stream, unconfirmed in (("facts", "unconfirmed_facts"), ("bytes", "unconfirmed_bytes")):
        assert erp[unconfirmed] == streams[OPERATIONAL][whole_stream]
    assert [incident["kind"] for incident in found["incidents"]] == ["gap"]
    assert found["file"]["bytes"] == file.stat().st_size
    shown = bsfg("store", "stats", "--file", str(file))
    assert shown.returncode == 0, shown.stderr
    assert f"{len(whole)} facts in" in shown.stdout
    assert "2 of them missing" in shown.stdout
    as_json = json.loads(bsfg("store", "stats", "--file", str(file), "--json").stdout)
    assert as_json == {**found, "flash": None}, "recorded within a moment: nothing to reckon the flash from"


def test_an_export_of_a_running_store_is_what_was_there_when_it_began(tmp_path: Path) -> None:
    """Facts that are appended while an export runs are not in it; everything before is."""
    file = everything(tmp_path, rounds=3)
    before = len(naive(file))
    with FactStore.open(file, "plant", settings=AT_ONCE) as store, closing(StoreReader(file)) as reader:

        def meanwhile(*_: object) -> None:
            done(store.appends.append_samples(TELEMETRY, [Sample(1, BASE_NS, 1.0)] * 3))

        exported = export(Scanner(reader), Bounds(), tmp_path / "f.csv", "csv", progress=meanwhile)
        assert store.end_offset(TELEMETRY) > before
    assert exported.facts == before == len(list(from_csv(tmp_path / "f.csv")))


def test_no_cell_of_a_csv_export_is_a_formula(tmp_path: Path) -> None:
    """What devices and other zones wrote is no formula for a spreadsheet, numbers stay numbers, and a reader that
    removes the apostrophe has every text."""
    texts = ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "'=1", "'plain", "-5", "plain", ""]
    tag = TagDefinition("tag:line1/t", unit="=cmd()")
    path = tmp_path / "facts.db"
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        done(store.appends.define([tag]))
        values: list[Value] = [*texts, -5, -2.5, float("-inf"), b"\xfb\xef"]
        done(store.appends.append_samples(TELEMETRY, [Sample(1, n, value) for n, value in enumerate(values)]))
        envelope = Envelope("=m", "plant", "=z", 1, correlation_id="@c", causation_id="-d")
        done(store.appends.append_message(OPERATIONAL, Message(envelope, Fact("a:b", "c", b"1"))))
    target = tmp_path / "facts.csv"
    written(path, target, "csv")
    with target.open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell[:1] in set("=+@\t\r")]
    assert {cell for cell in cells if cell.startswith("-")} == {"-5", "-2.5", "-Infinity"}
    rows = list(from_csv(target))
    assert [bits(row["exact"]) for row in rows if row["kind"] == "sample"] == list(map(bits, values))
    assert {row["unit"] for row in rows if row["kind"] == "sample"} == {"=cmd()"}
    (row,) = [row for row in rows if row["kind"] == "message"]
    assert [row[name] for name in ("message_id", "to_zone", "correlation_id", "causation_id")] == [
        "=m",
        "=z",
        "@c",
        "-d",
    ]
