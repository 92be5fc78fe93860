"""The data source without a JVM, called as Spark calls it, on stores that a real fact store wrote."""

import json
import logging
import os
import pickle
import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from agent.batch import Origin
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import StoreDamaged
from agent.message import Sample
from agent.pages import Hole
from agent.settings.store import StreamSettings
from agent.signing.keys import SigningKey, ZoneSigner
from pyspark_bsfg import FACTS, BsfgDataSource
from pyspark_bsfg.errors import FactsGone, OptionError, StoreUnreadable, StreamUnknown
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import arrow_schema, projection
from pyspark_bsfg.transports import HoleLog, StoreFile, reading
from tests.fact_store.making import damage, past_the_triggers
from tests.spark import making
from tests.spark.making import NOON_NS, OPERATIONAL, TELEMETRY, VALUES
from tests.support import relay_store as relay
from tests.support.relay_store import relay_store

RUN = [Sample(1 + n % 3, NOON_NS + n * 100, value, n % 2) for n, value in enumerate(VALUES)]


def sent(thing: Any) -> Any:
    """As it arrives in another process."""
    return pickle.loads(cloudpickle.dumps(thing))  # noqa: S301  what this test itself pickled


def read(path: Path, schema: StructType = FACTS, **options: Any) -> list[dict[str, Any]]:
    """All rows, through pickle as from the driver to its tasks."""
    source = BsfgDataSource({"path": str(path)} | {key.lower(): str(value) for key, value in options.items()})
    reader = sent(source.reader(schema))
    parts = reader.partitions()
    assert isinstance(parts, list), "Spark takes nothing else"
    found = []
    for part in parts:
        for record_batch in reader.read(sent(part)):
            assert record_batch.schema.equals(arrow_schema(schema))
            found += record_batch.to_pylist()
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every type of value in many batches, then a long one."""
    made = tmp_path_factory.mktemp("store") / "facts.db"
    making.store(made, [RUN[:5], RUN[5:6], RUN[6:], [Sample(1, NOON_NS + n, float(n)) for n in range(500)]])
    return made


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_every_fact_is_read_once_whatever_the_number_of_tasks(path: Path, tmp_path: Path, tasks: int) -> None:
    """Tasks begin and end inside batches; together they give the rows of two stores that the oracle expects, in
    order. A third one, whose node has recorded its health only, does not keep anybody from reading these."""
    long, short = [*RUN, *(Sample(1, NOON_NS + n, float(n)) for n in range(500))], RUN[:3]
    making.store(tmp_path / "short.db", [short])
    making.health_only(tmp_path / "new.db")
    expected = list[dict[str, Any]]()
    for file, samples in ((path, long), (tmp_path / "short.db", short)):
        with StoreFile(str(file)).opened() as source:
            (origin,) = source.reader.origins()
        expected += [making.row(sample, n, origin, n) for n, sample in enumerate(samples, 1)]
    rows = read(
        path, numPartitions=tasks, paths=json.dumps([str(tmp_path / f"{name}.db") for name in ("new", "short")])
    )
    found = [row | {"ts": row["ts"].astimezone(expected[0]["ts"].tzinfo)} for row in rows]
    making.same(found, expected)


def test_a_store_before_its_first_fact_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new node has recorded its health only. A read of its samples or messages finds no row, and says which streams
    there are; another name may be misspelt, and is refused, also where no store of several has it."""
    path = tmp_path / "new.db"
    making.health_only(path)
    for asked in ({}, {"startingOffsets": 1}, {"endingTimestamp": "2026-01-01T12:00Z"}, {"stream": OPERATIONAL}):
        assert read(path, **asked) == read(path, projection(["zone", "facts"]), **asked) == []
    assert f"{path} holds no stream 'facts.telemetry'; it holds: health" in caplog.messages
    making.health_only(tmp_path / "other.db")
    for stores in ({}, {"paths": json.dumps([str(tmp_path / "other.db")])}):
        with pytest.raises(StreamUnknown, match=r"new.db holds no stream 'facts.telemetri'; it holds: health"):
            read(path, stream="facts.telemetri", **stores)


def test_the_reader_says_what_a_signature_proves(tmp_path: Path) -> None:
    """Facts of a store that signs are verified, those from before it had a key too, because the chain covers them; a
    compromised key makes them suspect; other columns need no look at signatures."""
    file, signer = tmp_path / "facts.db", ZoneSigner(SigningKey.generate(), b"")
    making.store(file, [RUN[:5]])
    with FactStore.open(file, "enterprise", signer=signer) as signing:
        signing.appends.append_samples(making.TELEMETRY, RUN[5:9]).result()
        asked = StructType([FACTS["offset"], FACTS["verified"]])
        assert [row["verified"] for row in read(file, asked)] == ["yes"] * 9
        signing.set_compromised({signer.key_id: 0}).result()
        assert [row["verified"] for row in read(file, asked, startingOffsets=3)] == ["suspect"] * 7


def test_offsets_at_both_ends_are_included(path: Path) -> None:
    """startingOffsets is included and endingOffsets is not, also inside a batch, and a range may be empty."""
    asked = StructType([FACTS["offset"]])
    assert [row["offset"] for row in read(path, asked, startingOffsets=4, endingOffsets=8)] == [4, 5, 6, 7]
    assert read(path, asked, startingOffsets=4, endingOffsets=4) == []
    end = len(RUN) + 500
    assert [row["offset"] for row in read(path, asked, startingOffsets=end)] == [end]
    assert read(path, asked, startingOffsets=end + 1) == []


def test_a_read_ends_at_the_time_at_which_facts_were_recorded(path: Path) -> None:
    """startingTimestamp and endingTimestamp go by the node's clock, whatever source times the facts have."""
    asked, hour_ms = StructType([FACTS["offset"]]), 3_600_000
    with closing(StoreReader(path)) as reader:
        [(first, now_ms)] = reader.clock_marks(making.TELEMETRY)
    whole = read(path, asked)
    assert first == 1
    assert read(path, asked, startingTimestamp=now_ms, endingTimestamp=now_ms + hour_ms) == whole
    assert (
        read(path, asked, startingTimestamp=now_ms + hour_ms) == whole
    )  # facts after a mark have no time of their own
    assert read(path, asked, endingTimestamp=now_ms) == []


def test_only_the_columns_asked_for_are_made(path: Path) -> None:
    """A schema given by the reader is the projection, in its order."""
    found = read(path, StructType([FACTS["value"], FACTS["tag"]]), endingOffsets=2)
    assert found == [{"value": VALUES[0], "tag": "tag:line-1/pressure"}]


def test_a_count_by_headers_stands_alone(path: Path) -> None:
    """The counts of all tasks add up to the facts, and no column in which these differ may stand beside them."""
    whole = len(RUN) + 500
    assert sum(row["facts"] for row in read(path, projection(["facts"]), numPartitions=7)) == whole
    for name in ("offset", "tag", "value"):
        with pytest.raises(OptionError, match=f"column {name} was requested with facts"):
            read(path, projection(["zone", name, "facts"]))


@pytest.mark.parametrize("loss", ["known", "missing row"])
def test_a_count_reads_no_batch_until_a_loss_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    """Facts of two zones between offsets within their batches are counted by the index, also those that the disk has
    changed. Once that is known, or a row is missing, a count leaves them out and names them, as a read does."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN[at : at + 3] for at in range(0, 27, 3)])
    with FactStore.open(path, "enterprise") as opened:
        making.put(opened, making.foreign(Origin("plant-a", bytes(16)), [RUN[:5]]), 5)

    def counted() -> dict[str, int]:
        found = read(path, projection(["zone", "facts"]), startingOffsets=2, endingOffsets=32, numPartitions=2)
        return dict(sum((Counter({row["zone"]: row["facts"]}) for row in found), Counter()))

    damage(path, 13)
    assert counted() == {"enterprise": 26, "plant-a": 4}
    assert not caplog.records
    if loss == "known":
        making.tell_damage(path, 13)
    else:
        making.lose(path, 13)
    assert counted() == {"enterprise": 23, "plant-a": 4}
    assert "(13 to 15 damaged)" in caplog.text


@pytest.mark.parametrize("tasks", [1, 3])
def test_two_streams_of_two_plants_are_read_around_two_holes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tasks: int
) -> None:
    """Each fact that is there once, with the zone, tag, unit and time of its own plant, whichever of its gateways has
    numbered the tags; the hole is named with its stream."""
    path = relay_store(tmp_path)
    for stream in (relay.TELEMETRY, relay.ALARMS):
        found = [
            tuple(
                row[name] for name in ("offset", "zone", "life", "sequence", "tag", "unit", "value", "source_time_ns")
            )
            for row in read(path, stream=stream, numPartitions=tasks)
        ]
        expected = []
        for offset, zone, number in relay.placed(stream):
            tag, at_ns, value, _ = relay.sample(stream, number)
            definition, node, sequence = relay.TAGS[zone][tag - 1], zone, number
            if zone == "plant-a" and number > 9:
                node, sequence = "plant-a-2", number - 9
            life = relay.PLANTS[node].life.hex()
            expected.append((offset, zone, life, sequence, definition.subject, definition.unit, value, at_ns))
        assert found == expected
    assert [
        record.getMessage().partition(";")[0] for record in caplog.records if record.levelno == logging.WARNING
    ] == [f"{path}: 2 facts of facts.telemetry (13 to 14 damaged) are missing"]


def test_a_hole_behind_another_keeps_its_reason() -> None:
    """Holes of one reason that touch are one in the sum; where a damaged range begins at the end of a released one, a
    read that refuses damage names it, and one that refuses what was released names that."""
    holes = [Hole(1, 5, "expired"), Hole(6, 9, "expired"), Hole(10, 12, "damaged"), Hole(13, 14, "expired")]
    for refused, said in (("damaged", "3 facts of s (10 to 12 damaged)"), ("expired", "1 to 9 expired, 13 to 14")):
        found = HoleLog("store", "s", (refused,))
        for hole in holes:
            found(hole)
        with pytest.raises(FactsGone, match=re.escape(said)):
            found.sum_up()


def test_messages_are_rows_of_the_same_schema(tmp_path: Path) -> None:
    """A stream of messages is read like one of samples, with the object as JSON text."""
    path, messages = tmp_path / "facts.db", [making.message(n) for n in range(20)]
    with FactStore.open(path, "enterprise") as opened:
        opened.appends.append_messages(OPERATIONAL, messages).result()
        origin = opened.origin
    expected = [making.message_row(message, n, origin, n, OPERATIONAL) for n, message in enumerate(messages, 1)]
    found = read(path, stream=OPERATIONAL)
    making.same([row | {"ts": row["ts"].astimezone(expected[0]["ts"].tzinfo)} for row in found], expected)


def test_a_query_keeps_the_end_it_was_planned_with(tmp_path: Path) -> None:
    """Facts that arrive between planning and reading belong to the next query."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN])
    reader = BsfgDataSource({"path": str(path)}).reader(FACTS)
    parts = reader.partitions()
    making.store(path, [RUN])
    assert sum(record_batch.num_rows for part in parts for record_batch in reader.read(part)) == len(RUN)
    assert len(read(path)) == 2 * len(RUN)


def test_reading_does_not_keep_the_writers_log_from_being_reused(tmp_path: Path) -> None:
    """Between two record batches no statement is open, so a checkpoint during a long read gets through to the end."""
    path = tmp_path / "facts.db"
    with FactStore.open(path, "enterprise") as opened:
        opened.appends.define(making.DEFINITIONS).result()
        for _ in range(4):
            run = [Sample(1, NOON_NS + n, float(n)) for n in range(16_384)]
            opened.appends.append_samples(TELEMETRY, run).result()
        asked = OffsetRange(1, 4 * 16_384)
        record_batches = making.batches_of(path, asked)
        facts = next(record_batches).num_rows
        opened.appends.append_samples(TELEMETRY, RUN).result()
        checker = sqlite3.connect(path, isolation_level=None)
        busy, log_pages, moved_pages = checker.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        checker.close()
        assert (busy, log_pages, moved_pages) == (0, 0, 0)
        assert facts + sum(record_batch.num_rows for record_batch in record_batches) == asked.facts


@pytest.mark.parametrize("tasks", [1, 4])
def test_a_store_is_read_from_where_retention_has_left_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tasks: int
) -> None:
    """What the store of a running node has released is not there to be read, and nothing needs to be said: a read
    without a start begins behind it, all that is left comes once, whether its rows are deleted yet or not."""
    path = tmp_path / "facts.db"
    dropping = StreamSettings(TELEMETRY, bytes_max=1024 * 1024, on_full="drop_oldest")
    with FactStore.open(path, "enterprise", settings=making.AT_ONCE, streams=[dropping]) as opened:
        opened.appends.define(making.DEFINITIONS).result()
        for _ in range(24):
            noise = [Sample(1, NOON_NS + n, os.urandom(60_000)) for n in range(2)]
            opened.appends.append_samples(TELEMETRY, noise).result()
        [stream] = [stream for stream in opened.streams() if stream.name == TELEMETRY]
        assert stream.first_offset > 1, "retention released nothing"
        offsets = [row["offset"] for row in read(path, StructType([FACTS["offset"]]), numPartitions=tasks)]
    assert offsets == list(range(stream.first_offset, stream.end_offset + 1))
    assert not [record for record in caplog.records if record.name.startswith("pyspark_bsfg")]


def test_facts_released_while_reading_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A task that finds fewer facts than it was given goes on and says which, or ends, as the caller chose."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN[:5], RUN[5:10], RUN[10:]])
    asked = StructType([FACTS["offset"]])
    for when_released in ("skip", "fail"):
        reader = BsfgDataSource({"path": str(path), "whenreleased": when_released}).reader(asked)
        making.release(path, 0)
        [part] = reader.partitions()
        making.release(path, 10)
        if when_released == "fail":
            with pytest.raises(
                FactsGone, match=r"10 facts of facts.telemetry \(1 to 10 expired\) are no longer .*; read again"
            ):
                list(reader.read(part))
        else:
            found = [row["offset"] for record_batch in reader.read(part) for row in record_batch.to_pylist()]
            assert found == list(range(11, len(RUN) + 1))
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 10 facts of facts.telemetry (1 to 10 expired) are missing"
    ] * 2


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_damaged_batches_are_reported_and_cost_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tasks: int
) -> None:
    """Batches that the disk changed at the start, in the middle and at the end: every other fact comes, once and as it
    was, and each damaged one is named once, whichever tasks it falls into."""
    path = tmp_path / "facts.db"
    runs = [RUN[at : at + 3] for at in range(0, 27, 3)]
    origin = making.store(path, runs)
    for first_offset in (1, 13, 25):
        damage(path, first_offset)
    gone = {1, 2, 3, 13, 14, 15, 25, 26, 27}
    expected = [making.row(sample, n, origin, n) for n, sample in enumerate(RUN, 1) if n not in gone]
    found = [row | {"ts": row["ts"].astimezone(expected[0]["ts"].tzinfo)} for row in read(path, numPartitions=tasks)]
    making.same(found, expected)
    said = [record.args for record in caplog.records if record.levelno == logging.WARNING]
    ranges = [[int(text) for text in re.findall(r"\((\d+) to (\d+) damaged", str(args))[0]] for args in said]
    assert sorted(n for first, last in ranges for n in range(first, last + 1)) == sorted(gone)
    assert all("store verify" in record.getMessage() for record in caplog.records)


def test_a_store_that_was_put_back_is_not_read_on(path: Path) -> None:
    """Offsets are of the log in which they were planned."""
    reader = BsfgDataSource({"path": str(path)}).reader(FACTS)
    part: Any = reader.partitions()[0]
    with pytest.raises(FactsGone, match=f"offset {part.last} of life 1111.* is not in its log"):
        next(reader.read(replace(part, life="11" * 16)))


def test_many_holes_are_summed_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing disk does not fill the log: beyond some lines the sum is said."""
    monkeypatch.setattr(reading, "HOLES_LOGGED_MAX", 2)
    path = tmp_path / "facts.db"
    making.store(path, [[sample] for sample in RUN[:8]])
    for first_offset in (2, 4, 6, 8):
        damage(path, first_offset)
    assert [row["offset"] for row in read(path)] == [1, 3, 5, 7]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert (
        said[-1]
        == f"{path}: 4 facts of facts.telemetry (2 to 2 damaged, 4 to 4 damaged, 6 to 6 damaged, 8 to 8 damaged) are missing in this task"
    )


def test_a_missing_definition_is_named(tmp_path: Path) -> None:
    """A tag number that the store cannot explain is an error, not a NULL."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN])
    with past_the_triggers(path) as connection:
        connection.execute("DELETE FROM definition WHERE number = 3")
    with pytest.raises(StoreUnreadable, match=r"the 3 tag definitions of enterprise that a batch needs are not there"):
        next(making.batches_of(path, OffsetRange(1, 1)))


def test_an_unreadable_store_has_a_clear_error(tmp_path: Path, path: Path) -> None:
    """Missing file, folder, other file, unknown stream, wrong option: each its own words, before any task starts."""
    with pytest.raises(StoreUnreadable, match=r"none.db does not exist on this host.*where the task runs"):
        read(tmp_path / "none.db")
    with pytest.raises(StoreUnreadable, match=r"is not a file; name the store's file itself"):
        read(tmp_path)
    other = tmp_path / "other.db"
    other.write_bytes(b"no database " * 1000)
    with pytest.raises(StoreDamaged, match=r"other.db"):
        read(other)
    with pytest.raises(StreamUnknown, match=r"no stream 'facts.recipes'; it holds: facts.telemetry"):
        read(path, stream="facts.recipes")
    with pytest.raises(FactsGone, match=rf"endingOffsets 99999: the stream ends at {len(RUN) + 500}"):
        read(path, endingOffsets=99_999)
    with pytest.raises(OptionError, match=r"unknown option limit"):
        read(path, limit=5)
    with pytest.raises(OptionError, match=r"whenReleased 'ignore'; known are skip, fail"):
        read(path, whenReleased="ignore")


@pytest.mark.parametrize(
    "refused, words",
    [("facts.db", "facts.db cannot be read"), ("facts.db-shm", "shm cannot be read"), ("", "shm does not exist")],
)
def test_access_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, words: str) -> None:
    """Another user's store: the file, its shared memory, or the folder it must be made in (root may everything, so
    asked by name)."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN])
    if refused.endswith("-shm"):
        (tmp_path / refused).touch()
    may = os.access
    monkeypatch.setattr(
        os, "access", lambda at, mode: may(at, mode) and Path(at) != (tmp_path / refused if refused else tmp_path)
    )
    with pytest.raises(StoreUnreadable, match=words):
        read(path)


def test_a_folder_that_keeps_others_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a node's service does: the store may be there, and this user is not in its group."""
    stat = os.stat

    def refused(at: Any, **named: Any) -> os.stat_result:
        if Path(at) == tmp_path / "facts.db":
            raise PermissionError(13, "Permission denied", str(at))
        return stat(at, **named)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(StoreUnreadable, match=r"facts.db cannot be read by this user; add the user to the group"):
        read(tmp_path / "facts.db")


def test_arrow_is_what_spark_compares_with() -> None:
    """Our Arrow schema is the one Spark derives from FACTS: it compares to the letter and refuses any other."""
    from pyspark.sql.pandas.types import to_arrow_schema

    assert to_arrow_schema(FACTS, timezone="UTC").equals(arrow_schema(FACTS))
    assert pa.timestamp("us", tz="UTC") in arrow_schema(FACTS).types
