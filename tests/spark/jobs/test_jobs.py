"""The jobs on a real Spark, by one TOML, compared with plain Python over the same facts."""

import random
import shutil
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DoubleType, StructField, StructType

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.fact_store.core.operational_facts import operational_fact
from agent.message import Envelope, Fact, Message, Sample, TagDefinition, canonical_json
from pyspark_bsfg.__main__ import run
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs import clean, rollup
from pyspark_bsfg.jobs.settings import Counter, Settings
from pyspark_bsfg.landing.views import views
from tests.fact_store.making import damage
from tests.sim import first_seed
from tests.spark import making
from tests.spark.jobs import oracle
from tests.spark.jobs.oracle import EPOCH, Told
from tests.spark.making import BAD, NOON_NS, SECOND_NS, UNCERTAIN
from tests.support.page import code

pytestmark = [pytest.mark.spark, pytest.mark.system]

PRESSURE, COUNT = "tag:line-1/pressure", "tag:line-1/count"
HOUR_NS = 3600 * SECOND_NS
block = partial(code, "docs/how-to/jobs.md")
LIMITS = {PRESSURE: (-5.0, 95.0)}
HOLD_S, MODULUS = 120, 1000
TABLES = ("land", "clean", "rollup")


def toml(folder: Path, more: str = "") -> str:
    """All jobs, without the packages of Delta and Iceberg."""
    return f"""
[source]
path = "{folder}/facts.db"
maxOffsetsPerTrigger = 2000

[land]
table = "{folder}/lake/facts"
checkpoint = "{folder}/checkpoint"
format = "parquet"
compact_files = 0

[clean]
table = "{folder}/lake/clean"

[[clean.rule]]
tag = "tag:*/pressure"
name = "range"
min = -5
max = 95

[[clean.rule]]
tag = "tag:line_1/*"
name = "of another line"
max = -1000

[rollup]
table = "{folder}/lake/rollup"
hold_s = {HOLD_S}

[[rollup.counter]]
tag = "{COUNT}"
modulus = {MODULUS}

[gaps]
table = "{folder}/lake/gaps"
{more}
"""


def jobs(spark: SparkSession, folder: Path, *only: str, more: str = "") -> dict[str, Any]:
    """A run of the program, without its session."""
    settings = Settings.of(toml(folder, more))
    return run(spark, settings, only or ("land", "clean", "rollup", "gaps"), threading.Event())


RETAGGED = [
    *making.DEFINITIONS,
    *(TagDefinition(COUNT, unit="kWh"), TagDefinition(PRESSURE, unit="mbar")),
    *(TagDefinition(tag, predicate="setpoint_changed") for tag in (PRESSURE, COUNT)),
]
NOTED = {1: (1, 5, 6), 2: (2, 4, 7)}  # which definitions a tag has in turn
CLOCKS_CHANGE_NS = (
    1_774_742_400 * SECOND_NS,
    1_792_886_400 * SECOND_NS,
)  # midnights in UTC, before both changes in Berlin


def readings(rng: random.Random, midnight_ns: int) -> list[Sample]:
    """What tags may say over three days around a midnight, dense for three hours: ties, holes of hours, bad, text, no
    number, NaN and infinities, units and predicates that change and change back, and a counter that wraps, is reset,
    and answers 0. Times are those of PLC scans, and some between."""
    dense = [rng.randrange(-5400, 5400) for _ in range(300)]
    times = sorted([*dense, *(rng.randrange(-26 * 3600, 26 * 3600) for _ in range(40))])
    found, count, units = [], rng.randrange(MODULUS), {1: 1, 2: 2, 3: 3}
    for second in times:
        tag = rng.randrange(1, 4)
        if rng.random() < 0.03:
            units |= {of: rng.choice(definitions) for of, definitions in NOTED.items()}
        if tag == 2:
            count = 0 if rng.random() < 0.02 else (count + rng.randrange(30)) % MODULUS
            value: Any = 0 if rng.random() < 0.02 else rng.choice((count, float(count)))
        else:
            numbers = (rng.gauss(50, 30), rng.randrange(100), rng.random() < 0.5)
            value = rng.choice((*numbers, float("nan"), float("inf"), float("-inf"), "stuck", None))
        quality = rng.choice([0] * 8 + [BAD, UNCERTAIN])
        at_ns = midnight_ns + second * SECOND_NS + rng.choice((0, 0, 0, 1, SECOND_NS - 1))
        found.append(Sample(units[tag], at_ns, value, quality))
    return found


def filled(path: Path, rng: random.Random) -> list[list[Sample]]:
    """Two plants' facts in an enterprise store, none in order, beside a stream that is not asked for. Returns later
    ones, for each plant."""
    late = []
    with FactStore.open(path, "enterprise") as opened:
        opened.appends.define(making.DEFINITIONS).result()
        opened.appends.append_samples("facts.other", readings(rng, CLOCKS_CHANGE_NS[0])).result()
        for zone in ("plant-a", "plant-b"):
            told = readings(rng, rng.choice(CLOCKS_CHANGE_NS))
            rng.shuffle(told)
            kept, later = told[:-30], told[-30:]
            runs = [kept[at : at + 25] for at in range(0, len(kept), 25)]
            making.put(opened, making.foreign(Origin(zone, zone.encode().ljust(16)), runs), len(runs))
            late.append(later)
    return late


def rows(folder: Path) -> list[dict[str, Any]]:
    """What a table has, read with pyarrow alone."""
    found: list[dict[str, Any]] = ds.dataset(folder, partitioning="hive", format="parquet").to_table().to_pylist()
    return found


def rolled(folder: Path) -> dict[Any, dict[str, Any]]:
    """A rollup in the oracle's shape."""
    found = {}
    for row in rows(folder):
        start = EPOCH + timedelta(seconds=round(row.pop("start").timestamp()))
        zone, tag, predicate, unit = (row.pop(name) for name in ("zone", "tag", "predicate", "unit"))
        row.pop("date")
        found[start.date(), zone, start, tag, predicate, unit] = row
    return found


def test_the_jobs_equal_plain_python(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean, all rollups and local days equal a reference that looks at one fact of `bsfg sql` at a time, over changes
    of unit, of the clocks, and of a counter's mind; so again after late facts. What was computed again is then, row by
    row, what a first run over the same facts computes. A single late fact makes its date and zone, and the next date,
    be computed again and nothing else; a run without new facts computes nothing."""
    monkeypatch.setattr(making, "DEFINITIONS", RETAGGED)
    late = filled(tmp_path / "facts.db", random.Random(first_seed()))
    found = jobs(spark, tmp_path, *TABLES)
    facts = equal(tmp_path, spark)
    assert found["land"]["facts_landed"] == found["clean"]["facts"] == found["rollup 1m"]["facts"] == facts
    put_later(tmp_path, "plant-a", "late", late[0])
    put_later(tmp_path, "plant-b", "late", late[1][:-1])
    jobs(spark, tmp_path, *TABLES)
    put_later(tmp_path, "plant-b", "last", late[1][-1:])
    found = jobs(spark, tmp_path, *TABLES)
    assert {name: found[name]["computed"] for name in ("clean", "rollup 1m", "rollup 1h")} == {
        "clean": 1, "rollup 1m": 2, "rollup 1h": 2,
    }  # fmt: skip
    assert equal(tmp_path, spark) == facts + 60
    again = jobs(spark, tmp_path, "clean", "rollup")
    assert {part["computed"] for part in again.values()} == {0}
    (tmp_path / "fresh").mkdir()
    shutil.copy(tmp_path / "facts.db", tmp_path / "fresh")
    jobs(spark, tmp_path / "fresh", *TABLES)
    for name in rollup.WINDOWS_S:
        fresh, kept = (rolled(folder / "lake" / "rollup" / name) for folder in (tmp_path / "fresh", tmp_path))
        assert fresh == kept, name


def put_later(folder: Path, zone: str, life: str, samples: list[Sample]) -> None:
    """Facts of a plant that arrive after a run."""
    with FactStore.open(folder / "facts.db", "enterprise") as opened:
        making.put(opened, making.foreign(Origin(zone, life.encode().ljust(16)), [samples]), 100 + len(samples))


def equal(folder: Path, spark: SparkSession) -> int:
    """Assert that the tables are what plain Python makes of the facts. Returns how many facts there are."""
    received = oracle.by_sql(folder / "facts.db")
    told = oracle.counting(received)
    cleaned = {row["offset"]: (row["zone"], row["problem"], row["number"]) for row in rows(folder / "lake" / "clean")}
    assert cleaned == {fact.offset: (fact.zone, *oracle.number(fact, LIMITS)) for fact in told}
    for name, window_s in rollup.WINDOWS_S.items():
        expected = oracle.rollup(told, window_s, HOLD_S, {COUNT: MODULUS}, LIMITS)
        assert rolled(folder / "lake" / "rollup" / name) == expected, name
    hours = oracle.rollup(told, 3600, HOLD_S, {COUNT: MODULUS}, LIMITS)
    made: dict[str, Any] = {"spark": spark}
    exec(block("local days").replace("/data", str(folder / "lake")), made)  # noqa: S102  our own page
    days = {tuple(row[:5]): (row["count"], pytest.approx(row["covered_s"])) for row in made["days"].collect()}
    assert days == oracle.local_days(hours, "Europe/Berlin")
    return len(received)


def test_two_gateways_of_one_zone_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """Both gateways of a plant have recorded for a while: pressures with the server's times, which are the same, and a
    counter with their own clocks, of which one is two seconds behind. The tables are those of plain Python. Each
    pressure is there once, as the later leader has it; the counter was never set to 0 and has counted what the device
    has; the mean over time is that of one gateway. The second run, in which the later leader's facts arrive, replaces
    two facts of one time by one, and the date does not count as shrunk."""
    seconds = range(0, 1200, 5)
    first = [Sample(1, NOON_NS + at * SECOND_NS, float(at % 50)) for at in (*seconds, 300)]
    first += [Sample(2, NOON_NS + at * SECOND_NS + SECOND_NS // 2, at % MODULUS) for at in seconds if at % 15]
    second = [Sample(1, NOON_NS + at * SECOND_NS, at % 50 + 0.25) for at in seconds if 300 <= at < 900]
    second += [Sample(2, NOON_NS + (at - 2) * SECOND_NS, at % MODULUS) for at in seconds if 300 <= at < 900]
    with FactStore.open(tmp_path / "facts.db", "enterprise") as opened:
        making.put(opened, making.foreign(Origin("plant-a", (1).to_bytes(8) + bytes(8)), [first]), 1)
    jobs(spark, tmp_path, *TABLES)
    put_later(tmp_path, "plant-a", "\0\0\0\0\0\0\0\2", second[:1])
    found = jobs(spark, tmp_path, *TABLES)
    assert [found[name]["kept"] for name in ("clean", "rollup 1m")] == [[], []]
    assert (found["clean"]["facts"], found["clean"]["repeated"]) == (len(first) - 1, 2)
    put_later(tmp_path, "plant-a", "\0\0\0\0\0\0\0\3", second)
    jobs(spark, tmp_path, *TABLES)
    assert equal(tmp_path, spark) == len(first) + len(second) + 1
    pressures = [row for row in rows(tmp_path / "lake" / "clean") if row["tag"] == PRESSURE]
    assert len(pressures) == len(seconds)
    assert {row["value"] % 1 for row in pressures if 300 <= row["ts"].timestamp() % 3600 < 900} == {0.25}
    minutes = rolled(tmp_path / "lake" / "rollup" / "1m")
    counts = [row for key, row in minutes.items() if key[3] == COUNT]
    assert sum(row["increase"] or 0 for row in counts) == pytest.approx(1195 - 5)
    assert all(row["rate"] == pytest.approx(1, rel=0.25) for row in counts if row["count"] > 1)
    for (_, _, start, *_), row in minutes.items():
        if row in counts and start.minute < 16:  # up to the wrap
            middle_s = start.timestamp() % 3600 + 30
            assert row["time_mean"] == pytest.approx(middle_s, abs=6), start


def test_counters_and_infinite_values_of_the_field(spark: SparkSession) -> None:
    """A meter that answers 0 in between, one whose unit changes to Wh and back, and a value that is infinite: what is
    counted is what the devices counted, and the mean of the window is that of the finite values."""
    told: dict[str, list[tuple[float, str | None]]] = {
        "glitch": [(81_234_570, "Wh"), (0, "Wh"), (0, "Wh"), (81_234_580, "Wh")],
        "unit": [(118, "kWh"), (119, "kWh"), (119_000, "Wh"), (119_500, "Wh"), (120, "kWh"), (121, "kWh")],
        "level": [(1, None), (float("inf"), None), (float("-inf"), None), (3, None)],
    }
    rows = [
        (
            date(2026, 1, 1),
            "plant-a",
            tag,
            "value_sampled",
            unit,
            NOON_NS + second * SECOND_NS,
            "",
            second,
            0,
            float(value),
        )
        for tag, values in told.items()
        for second, (value, unit) in enumerate(values)
    ]
    schema = StructType([*(clean.CLEAN[name] for name in rollup.COLUMNS[:-1]), StructField("value", DoubleType())])
    facts = spark.createDataFrame(rows, schema)
    is_finite = clean.problem_of([]).isNull()
    facts = facts.withColumn("number", F.when(is_finite, F.col("value"))).drop("value")
    found = rollup.by_minute(facts, HOLD_S, [Counter("glitch"), Counter("unit")]).where(F.col("count") > 0).collect()
    counted = {(row.tag, row.unit): row.increase for row in found}
    assert counted == {("glitch", "Wh"): 10, ("unit", "kWh"): 2, ("unit", "Wh"): 500, ("level", None): None}
    (level,) = [row for row in found if row.tag == "level"]
    assert (level["count"], level.value_count, level.mean, level.min, level.max) == (4, 2, 2, 1, 3)


def test_facts_of_two_predicates_are_not_one(spark: SparkSession) -> None:
    """At one time of one tag: what both gateways have sampled is that of the later leader; what only the earlier one
    said besides, and what another zone or another moment has, stays."""
    places = [
        ("plant-a", "value_sampled", "1", NOON_NS),
        ("plant-a", "value_sampled", "2", NOON_NS),
        ("plant-a", "setpoint_changed", "1", NOON_NS),
        ("plant-b", "value_sampled", "1", NOON_NS),
        ("plant-a", "value_sampled", "1", NOON_NS + 1),
    ]
    schema = StructType([StructField(field.name, field.dataType) for field in clean.LANDED.fields])
    same = dict.fromkeys(schema.names) | {"stream": "facts.telemetry", "tag": PRESSURE, "value_type": "double"}
    facts = [
        same
        | {"zone": zone, "predicate": predicate, "life": life, "sequence": number, "offset": number}
        | {"source_time_ns": time_ns, "value": 1.0, "quality": 0}
        for number, (zone, predicate, life, time_ns) in enumerate(places)
    ]
    found = clean.cleaned(spark.createDataFrame([tuple(fact.values()) for fact in facts], schema))
    assert sorted(row["sequence"] for row in found.collect()) == [1, 2, 3, 4]


def instant(second: int) -> Sample:
    """A good pressure, that many seconds after noon."""
    return Sample(1, NOON_NS + second * SECOND_NS, 5.0)


def samples_lost(number: int, first: str, last: str, reason: str, tags: Sequence[str] = (PRESSURE,)) -> Message:
    """A loss of these tags that their source has declared, of January 2026."""
    lost = {
        "count": 20, "count_exact": True, "first_time": f"2026-01-{first}Z", "last_time": f"2026-01-{last}Z",
        "reason": reason, "tags": list(tags),
    }  # fmt: skip
    labels = {"shift": "early", "line": "1"} if number == 0 else {}
    envelope = Envelope(f"gap-{number}", "enterprise", "*", NOON_NS // 1_000_000, labels=labels)
    return Message(envelope, Fact("source:press", "samples_lost", canonical_json(lost)))


@pytest.fixture(scope="module")
def holed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tags are missing, stale and silent, some of it declared, some damaged."""
    folder = tmp_path_factory.mktemp("holed")
    next_day = 86_400
    bad = [Sample(1, NOON_NS + second * SECOND_NS, None, BAD) for second in range(2430, 3000, 30)]
    runs = [
        [Sample(2, NOON_NS, 1)],
        [Sample(3, NOON_NS + second * SECOND_NS, 1.0) for second in range(0, 90, 30)],
        [Sample(3, NOON_NS + second * SECOND_NS, 1.0) for second in range(90, 330, 30)],
        [Sample(3, NOON_NS + second * SECOND_NS, 1.0) for second in range(330, 420, 30)],
        [instant(second) for second in (*range(0, 630, 30), *range(1200, 1830, 30), 2400)],
        [*bad, instant(3000), instant(next_day), instant(next_day + 30)],
        [Sample(2, NOON_NS, 1)],  # takes the sequence that the node says it has lost
        [instant(next_day + 600), instant(next_day + 1200)],
    ]
    origin = making.store(folder / "facts.db", runs)
    gone = sum(map(len, runs)) - 2
    about = {"zone": origin.zone, "life": origin.life.hex(), "first_sequence": gone, "last_sequence": gone}
    expired = operational_fact(
        origin.zone, making.TELEMETRY, "facts_expired", {"reason": "ttl", "origins": [about]}, "1", NOON_NS // 1_000_000
    )
    losses: tuple[tuple[Any, ...], ...] = (
        ("01T12:10:00", "01T12:20:00", "source_lost", ()),  # of all tags
        # Two that touch within an expected interval, later one first. It names as many tags as a node names at most.
        ("01T12:34:00", "01T12:40:00", "queue_full", [f"tag:other/{number}" for number in range(20)]),
        ("01T12:30:30", "01T12:33:00", "source_lost"),
        ("02T12:10:30", "02T12:14:00", "source_lost"),  # two that leave more than an expected interval
        ("02T12:15:30", "02T12:20:00", "source_lost"),
        ("01T12:50:00", "02T12:00:00", "source_lost", ["tag:line-1/count"]),  # of another tag
    )
    with FactStore.open(folder / "facts.db", "enterprise") as opened:
        declared = [samples_lost(number, *loss) for number, loss in enumerate(losses)]
        opened.appends.append_messages(making.TELEMETRY, [declared[0], expired]).result()
        opened.appends.append_messages(making.OPERATIONAL, declared[1:]).result()  # as nodes do
    damage(folder / "facts.db", 5)
    return folder


def test_every_gap_is_found_and_set_against_declarations(spark: SparkSession, holed: Path) -> None:
    """Missing, stale and silent tags, also over midnight and of a tag without any fact; a loss that the source declared
    at once or in two parts, in this stream or in that of operational facts, and facts that the disk has damaged, are
    told from what is not declared. The views name the same facts."""
    named = "[[gaps.tag]]\ntag = 'tag:line-1/never'\nexpected_s = 60\n"
    found = jobs(spark, holed, "land", "clean", "gaps", more=named)
    clock = "{:%d %H:%M:%S}".format

    def told(row: dict[str, Any]) -> tuple[Any, ...]:
        begin, end = (row[name] and clock(row[name]) for name in ("begin", "end"))
        return row["tag"].removeprefix("tag:"), row["kind"], begin, end, row["declared_by"]

    report = [told(row) for row in pq.read_table(holed / "lake" / "gaps" / "part.parquet").to_pylist()]
    assert sorted(report, key=str) == [
        ("boiler/druck", "missing", "01 12:01:00", "01 12:05:30", "facts_unread damaged"),
        ("boiler/druck", "silent", "01 12:06:30", "02 12:20:00", None),
        ("line-1/count", "silent", "01 12:00:00", "02 12:20:00", None),
        ("line-1/never", "silent", None, None, None),
        ("line-1/pressure", "missing", "01 12:10:00", "01 12:20:00", "samples_lost source_lost"),
        (
            "line-1/pressure",
            "missing",
            "01 12:30:00",
            "01 12:40:00",
            "samples_lost queue_full, samples_lost source_lost",
        ),
        ("line-1/pressure", "missing", "01 12:50:00", "02 12:00:00", None),
        ("line-1/pressure", "missing", "02 12:00:30", "02 12:10:00", "facts_expired ttl"),
        ("line-1/pressure", "missing", "02 12:10:00", "02 12:20:00", None),
        ("line-1/pressure", "stale", "01 12:40:00", "01 12:50:00", None),
    ]
    assert (found["gaps"]["declared"], found["gaps"]["undeclared"]["silent"]) == ({"missing": 4}, 3)
    assert found["gaps"]["longest"][0]["tag"] == "tag:line-1/never"
    own = block("views").replace("/data/facts", str(holed / "lake" / "facts"))
    own += block("own delta").replace("/data/shifts", str(holed / "shifts"))
    exec(own, {"spark": spark})  # noqa: S102  our own page
    written = pa.table(DeltaTable(holed / "shifts").get_add_actions(flatten=True))["num_records"]
    assert pa.compute.sum(written).as_py() == spark.sql("SELECT DISTINCT zone, tag FROM facts").count()
    asked = """
        SELECT m.subject, m.from_zone, m.produced_at_unix_ms, l.value, i.what, i.detail = m.object_json,
            (SELECT count(*) FROM facts WHERE value_type <> 'message')
        FROM messages m JOIN labels l USING (message_id) JOIN incidents i ON i.offset = m.offset
        WHERE l.name = 'shift'"""
    [row] = spark.sql(asked).collect()
    expected = ("source:press", "enterprise", NOON_NS // 1_000_000, "early", "samples_lost", True)
    assert tuple(row) == (*expected, found["land"]["facts_landed"] - 2)
    with pytest.raises(JobRefused, match=r"lake/fact is no table of the land job"):
        views(spark, holed / "lake" / "fact")


def test_a_clock_that_is_far_off_changes_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """Facts at both ends of the range of times, and of the next century, are counted in their own minutes and leave
    those of the others as they are. The report and its gaps still end at the newest fact that is not of the
    future."""
    runs = [[instant(second) for second in range(0, 600, 30)], [Sample(2, NOON_NS + n * SECOND_NS, n) for n in (0, 30)]]
    odd = [Sample(tag, at_ns, 1) for tag in (1, 2, 3) for at_ns in (-(2**63), 2**63 - 1, NOON_NS + 10**5 * HOUR_NS)]
    making.store(tmp_path / "facts.db", [*runs, odd])
    found = jobs(spark, tmp_path)
    told = [Told("enterprise", n, sample) for n, sample in enumerate((sample for run in runs for sample in run), 1)]
    made = {key: row for key, row in rolled(tmp_path / "lake" / "rollup" / "1m").items() if key[0].year == 2026}
    assert made == oracle.rollup(told, 60, HOLD_S, {COUNT: MODULUS}, {})
    assert found["rollup 1d"]["facts"] == len(told) + len(odd)
    assert found["gaps"]["as_of_unix_ms"] * 10**6 == NOON_NS + 570 * SECOND_NS
    report = pq.read_table(tmp_path / "lake" / "gaps" / "part.parquet").to_pylist()
    assert {(row["tag"], row["kind"]) for row in report} == {
        (PRESSURE, "missing"), (COUNT, "missing"), (COUNT, "silent"), ("tag:boiler/druck", "silent"),
    }  # fmt: skip
    assert min(row["seconds"] for row in report) > 0
    assert max(row["end"] for row in report) == EPOCH + timedelta(milliseconds=found["gaps"]["as_of_unix_ms"])


def test_a_session_that_would_give_other_dates_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A session of another program, with another time zone: the error names the setting."""
    making.store(tmp_path / "facts.db", [[instant(0)]])
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with pytest.raises(JobRefused, match=r"other results; set spark\.sql\.session\.timeZone=UTC"):
            jobs(spark, tmp_path, "rollup")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("of_session", ["UTC", "Europe/Berlin"])
def test_days_of_another_time_zone_follow_its_clocks(spark: SparkSession, tmp_path: Path, of_session: str) -> None:
    """The block of docs/how-to/jobs.md over the hours of three days, in a session of any zone: that on which the clocks
    go forward has 23, that on which they go back 25. A weighted mean stays one; a day in which nothing was valid has
    none. Setpoints of a tag are not its samples."""
    begin = datetime(2026, 3, 27, 23, tzinfo=UTC)  # midnight in Berlin
    back = datetime(2026, 10, 23, 22, tzinfo=UTC)
    hours = [
        {
            "start": start, "zone": "plant-a", "tag": PRESSURE, "predicate": "value_sampled", "unit": "bar",
            "count": 1, "min": float(n), "max": float(n), "time_mean": float(n) if n < 47 else None,
            "covered_s": 3600.0 if n < 47 else 0.0, "increase": None,
        }
        for n, start in (
            *((n, begin + timedelta(hours=n)) for n in range(24 + 23 + 24)),
            *((n, back + timedelta(hours=n)) for n in range(24 + 25)),
        )
    ]  # fmt: skip
    hours += [row | {"predicate": "setpoint_changed"} for row in hours[:2]]
    schema = pa.schema([
        ("start", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in ("zone", "tag", "predicate", "unit")),
        ("count", pa.int64()), *((name, pa.float64()) for name in ("min", "max", "time_mean", "covered_s", "increase")),
    ])  # fmt: skip
    (tmp_path / "rollup" / "1h").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(hours, schema), tmp_path / "rollup" / "1h" / "part.parquet")
    made = {"spark": spark}
    spark.conf.set("spark.sql.session.timeZone", of_session)
    try:
        exec(block("local days").replace("/data", str(tmp_path)), made)  # noqa: S102  our own page
        days = made["days"].orderBy("predicate", "day").collect()  # type: ignore[attr-defined]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    columns = ("day", "count", "min", "max", "time_mean", "covered_s", "increase")
    assert [tuple(row[name] for name in columns) for row in days] == [
        (date(2026, 3, 28), 2, 0.0, 1.0, 0.5, 7200.0, None),
        (date(2026, 3, 28), 24, 0.0, 23.0, 11.5, 24 * 3600.0, None),
        (date(2026, 3, 29), 23, 24.0, 46.0, 35.0, 23 * 3600.0, None),
        (date(2026, 3, 30), 24, 47.0, 70.0, None, 0.0, None),
        (date(2026, 10, 24), 24, 0.0, 23.0, 11.5, 24 * 3600.0, None),
        (date(2026, 10, 25), 25, 24.0, 48.0, 35.0, 23 * 3600.0, None),
    ]
