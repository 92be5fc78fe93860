"""Batches into record batches: every value as the oracle sees it, wherever a group begins or ends."""

from collections.abc import Iterable
from datetime import UTC
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from agent.batch import Batch, Definitions, Link, Origin, seal_messages, seal_samples
from agent.message import Json, Sample
from pyspark_bsfg import columns
from pyspark_bsfg.columns import Columns
from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.schema import FACTS, arrow_schema, projection
from tests.spark.making import BAD, DEFINITIONS, NOON_NS, TELEMETRY, VALUES, foreign, message, message_row, row, same
from tests.support.received import definitions_of

PLANT_A, PLANT_B = Origin("plant-a", bytes(range(16))), Origin("plant-b", bytes(16))
SAMPLES = st.builds(
    Sample,
    st.integers(1, len(DEFINITIONS)),
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(NOON_NS, NOON_NS + 10**12)),
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=20),
        st.sampled_from(VALUES),
    ),
    st.one_of(st.just(0), st.integers(0, 2**32 - 1)),
)  # fmt: skip


def dictionary(*origins: Origin) -> Dictionary:
    """A dictionary that knows the test's tags for these origins."""
    made = Dictionary()
    for origin in origins:
        bodies = [definition.to_json() for definition in DEFINITIONS]
        made.put((origin.zone, definitions_of(bodies)), bodies)
    return made


def built(batches: Iterable[tuple[Any, ...]], schema: Any = None) -> list[Any]:
    """Record batches of (batch, offset, start, stop), and perhaps whether it is verified."""
    making = Columns(schema or arrow_schema(FACTS), TELEMETRY, dictionary(PLANT_A, PLANT_B))
    made = [record_batch for batch in batches for record_batch in making.add(*batch)]
    return [*made, *making.flush()]


def rows(record_batches: Iterable[Any]) -> list[dict[str, Any]]:
    """As Python rows; also checks what Arrow itself can check."""
    found = []
    for record_batch in record_batches:
        record_batch.validate(full=True)
        assert record_batch.schema.equals(arrow_schema(FACTS))
        found += [plain(values) for values in record_batch.to_pylist()]
    return found


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """A row whose time zone is Python's own UTC."""
    return values | {"ts": values["ts"].astimezone(UTC)}


@settings(max_examples=150)
@given(st.lists(st.lists(SAMPLES, min_size=1, max_size=12), min_size=1, max_size=6), st.data())
def test_every_value_arrives_as_the_oracle_sees_it(runs: list[list[Sample]], data: st.DataObject) -> None:
    """Any values, times and qualities, in any runs of two origins, verified or not, sliced anywhere, taken from their
    batches one by one or all together: the same rows, in order."""
    batches = {origin: foreign(origin, runs) for origin in (PLANT_A, PLANT_B)}
    given, expected, offset = [], [], 100
    for number, run in enumerate(runs):
        origin = data.draw(st.sampled_from((PLANT_A, PLANT_B)))
        batch = batches[origin][number]
        start, stop = 0, len(run)
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(run) - 1))
            stop = data.draw(st.integers(start + 1, len(run)))
        verified = data.draw(st.sampled_from(("yes", "suspect")))
        given.append((batch, offset, start, stop, verified))
        first = batch.header.first_sequence
        expected += [
            row(run[at], offset + at, origin, first + at) | {"verified": verified} for at in range(start, stop)
        ]
        offset += len(run)
    with patch.object(columns, "_RARE", data.draw(st.sampled_from((0, columns._RARE)))):
        same(rows(built(given)), expected)


def test_offsets_go_on_where_sequences_do_not() -> None:
    """What a zone lost before it was received leaves a hole in its sequences only, also within a record batch."""
    run = [Sample(1, NOON_NS, 1.0)] * 2
    first, _, third = foreign(PLANT_A, [run] * 3)
    [made] = built([(first, 1, 0, 2), (third, 3, 0, 2)])
    same(rows([made]), [row(run[0], offset, PLANT_A, at) for offset, at in ((1, 1), (2, 2), (3, 5), (4, 6))])


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_group_of_one_type_takes_its_own_path_to_the_same_rows(value: Any) -> None:
    """Groups of one type are built without a look at each value; what comes out is what a mixed group gives."""
    run = [Sample(1, NOON_NS + n, value, BAD) for n in range(5)]
    [batch] = foreign(PLANT_A, [run])
    same(rows(built([(batch, 1, 0, 5)])), [row(sample, n, PLANT_A, n) for n, sample in enumerate(run, 1)])


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**53, 2**63 - 1])
def test_integers_among_floats_stay_exact(number: int) -> None:
    """An integer that a double would round is exact in value_int, also where the group holds floats."""
    run = [Sample(1, NOON_NS, number), Sample(1, NOON_NS + 1, 0.5)]
    [batch] = foreign(PLANT_A, [run])
    same(rows(built([(batch, 1, 0, 2)])), [row(sample, n, PLANT_A, n) for n, sample in enumerate(run, 1)])


@settings(max_examples=60)
@given(st.lists(st.lists(SAMPLES, min_size=1, max_size=12), min_size=1, max_size=4), st.data())
def test_any_choice_of_columns_has_the_same_values(runs: list[list[Sample]], data: st.DataObject) -> None:
    """A column is the same whatever else is asked for, so what is left unbuilt or unopened changes nothing."""
    names = data.draw(st.lists(st.sampled_from(FACTS.fieldNames()), min_size=1, unique=True))
    batches = [
        (batch, 7 + batch.header.first_sequence, 0, len(run))
        for batch, run in zip(foreign(PLANT_A, runs), runs, strict=True)
    ]
    whole = pa.Table.from_batches(built(batches))
    some = pa.Table.from_batches(built(batches, arrow_schema(StructType([FACTS[name] for name in names]))))
    assert some.column_names == names
    for name in names:
        assert repr(some[name].to_pylist()) == repr(whole[name].to_pylist())


def test_identity_needs_no_batch_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offset, stream, zone, life, sequence and a sample's id follow from headers; a count opens nothing."""
    batches = [
        (batch, 1 + 2 * n, 0, 2) for n, batch in enumerate(foreign(PLANT_A, [[Sample(1, NOON_NS, 1.0)] * 2] * 3))
    ]
    names = ["offset", "stream", "zone", "life", "sequence", "message_id"]
    schema = arrow_schema(StructType([FACTS[name] for name in names]))
    expected = pa.Table.from_batches(built(batches)).select(names).to_pylist()

    def refused(_: Batch) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(columns, "open_packed", refused)
    assert pa.Table.from_batches(built(batches, schema)).to_pylist() == expected
    with pytest.raises(AssertionError, match="opened"):
        built(batches)


def test_facts_are_counted_by_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `facts` a row stands for a run: parts of batches and messages count, a gap or another zone makes another
    row, and no batch is opened. Rows are cut at a limit of runs, not of facts."""
    a = foreign(PLANT_A, [[Sample(1, NOON_NS, 1.0)] * 2] * 3)
    b = foreign(PLANT_B, [[Sample(1, NOON_NS, 1.0)] * 5])
    told = seal_messages(Link(TELEMETRY, PLANT_B), [message(1), message(2)])
    batches = [(a[0], 1, 1, 2), (a[1], 3, 0, 2), (b[0], 5, 0, 5), (told, 10, 0, 2), (a[2], 12, 0, 2)]
    for name in ("open_packed", "open_messages"):
        monkeypatch.delattr(columns, name)
    monkeypatch.setattr(columns, "FACTS_MAX_PER_GROUP", 3)
    made = built(batches, arrow_schema(projection(["zone", "FACTS", "verified"])))
    assert [(row["zone"], row["facts"]) for record_batch in made for row in record_batch.to_pylist()] == [
        ("plant-a", 3), ("plant-b", 5), ("plant-b", 2), ("plant-a", 2),
    ]  # fmt: skip
    assert [record_batch.num_rows for record_batch in made] == [3, 1]


@pytest.mark.parametrize(
    "first, count", [(1, 1), (1, 2500), (7, 3), (95, 10), (990, 30), (9_998, 2_004), (198_456, 3_000), (10**18 - 3, 5)]
)
def test_numbers_in_ids_are_what_python_writes(first: int, count: int) -> None:
    """Ids made a thousand at a time are those made one by one, over every change in the number of digits."""
    made = pa.concat_arrays(list(columns._numbered(b"x/", first, count)))
    made.validate(full=True)
    assert made.to_pylist() == [f"x/{number}" for number in range(first, first + count)]


@given(
    st.lists(st.tuples(st.sampled_from((PLANT_A, PLANT_B)), st.integers(1, 10**7), st.integers(1, 2500)), min_size=1, max_size=4),
    st.data(),
)  # fmt: skip
def test_ids_of_a_few_facts_are_those_among_all(spans: list[tuple[Origin, int, int]], data: st.DataObject) -> None:
    """Ids made one by one for the facts that a filter leaves are the same as those made for a whole group."""
    runs = [columns.Run(origin, Definitions(), 1, first, count, "no") for origin, first, count in spans]
    count = sum(run.count for run in runs)
    places = pa.array(sorted(data.draw(st.sets(st.integers(0, count - 1), max_size=9))), pa.int64())
    ids, all_ids = (columns._identity_columns(TELEMETRY, runs, some)["message_id"]() for some in (places, None))
    assert ids.equals(all_ids.take(places))


def test_times_and_tags_of_the_whole_range() -> None:
    """Differences above int64, units above int64, tags that jump: as the oracle says, in one group."""
    runs = [
        [Sample(1, -(2**63), 1), Sample(3, 2**63 - 1, 2)],
        [Sample(3, 0, -(2**63)), Sample(1, 0, 2**63 - 1), Sample(2, 5, True)],
        [Sample(2, NOON_NS + n * 1000, n % 2 == 0, BAD) for n in range(5)],
    ]
    expected, given, offset = [], [], 1
    for batch, run in zip(foreign(PLANT_A, runs), runs, strict=True):
        given.append((batch, offset, 0, len(run)))
        expected += [(sample.tag, sample.source_time_ns, sample.value, sample.quality) for sample in run]
        offset += len(run)
    made = [
        row
        for record_batch in built(
            given, arrow_schema(StructType([FACTS[n] for n in ("tag", "source_time_ns", "value_int", "quality")]))
        )
        for row in record_batch.to_pylist()
    ]
    assert [tuple(row.values()) for row in made] == [
        (DEFINITIONS[tag - 1].subject, at, int(value), quality) for tag, at, value, quality in expected
    ]


@pytest.mark.parametrize(
    "limit, enough", [("FACTS_MAX_PER_GROUP", 10), ("TEXT_BYTES_MAX", 3 * 4 * 4 * len("text 0 of 0"))]
)
def test_groups_close_at_their_limit_and_lose_nothing(monkeypatch: pytest.MonkeyPatch, limit: str, enough: int) -> None:
    """Facts are gathered over batches, a record batch is made when there are enough, or enough text with four bytes a
    character, the rest by flush."""
    monkeypatch.setattr(columns, limit, enough)
    runs = [[Sample(1, NOON_NS + n, f"text {n} of {run}") for n in range(4)] for run in range(6)]
    made = built([(batch, 1 + 4 * n, 0, 4) for n, batch in enumerate(foreign(PLANT_A, runs))])
    assert [record_batch.num_rows for record_batch in made] == [12, 12]
    assert [fact["offset"] for fact in rows(made)] == list(range(1, 25))


@pytest.mark.parametrize("value", ["x" * 60_000, b"x" * 60_000, Json(b'"' + b"x" * 60_000 + b'"')], ids=type)
def test_equal_long_texts_do_not_fill_the_memory(value: Any) -> None:
    """A column of equal texts is some bytes in a batch; as Arrow it is cut into record batches of bounded size."""
    run = [Sample(1, NOON_NS + n, value) for n in range(2000)]
    [batch] = foreign(PLANT_A, [run])
    making = Columns(arrow_schema(FACTS), TELEMETRY, dictionary(PLANT_A))
    sizes = [(record_batch.num_rows, record_batch.nbytes) for record_batch in making.add(batch, 1, 0, 2000)]
    sizes += [(record_batch.num_rows, record_batch.nbytes) for record_batch in making.flush()]
    assert sum(facts for facts, _ in sizes) == 2000
    assert max(size for _, size in sizes) <= 1.5 * columns.TEXT_BYTES_MAX


def test_messages_and_samples_keep_their_order() -> None:
    """A stream that holds both keeps its order, and a message is the row the documentation describes."""
    link = Link(TELEMETRY, PLANT_A)
    definitions = Definitions()
    for definition in DEFINITIONS:
        definitions = definitions.extended(definition.to_json())
    before = seal_samples(link, [Sample(1, NOON_NS, 1.0)], definitions)
    messages = [message(n) for n in range(3)]
    between = seal_messages(before.link, messages)
    after = seal_samples(between.link, [Sample(2, NOON_NS, 2)], definitions)
    expected = [row(Sample(1, NOON_NS, 1.0), 1, PLANT_A, 1)]
    expected += [message_row(opened, n, PLANT_A, n, TELEMETRY) for n, opened in enumerate(messages[1:], 3)]
    expected += [row(Sample(2, NOON_NS, 2), 5, PLANT_A, 5)]
    same(rows(built([(before, 1, 0, 1), (between, 2, 1, 3), (after, 5, 0, 1)])), expected)
