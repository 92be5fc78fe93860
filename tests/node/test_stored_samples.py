"""Samples of earlier processes that ingest reads from a store, with real stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import open_packed
from agent.fact_store import FactStore, StoreDamaged, StoreReader
from agent.ingest import TAG_REMOVED, Stored, StoredUnreadable
from agent.ingest.gap import AGENT_STOPPED, SERVER_QUEUE_OVERFLOW, SOURCE_LOST, Gap, gap_message
from agent.ingest.lifecycle import Newest
from agent.message import Envelope, Fact, Message, Sample, TagDefinition, canonical_json, time_text
from agent.node import stored_samples
from agent.node.removed_tags import find_removed_tags
from agent.node.stored_samples import StoredSamples
from agent.node.zone_samples import NewestSearch
from agent.query.scan import scanner
from tests.fact_store.making import AT_ONCE, parsed, sealed_in
from tests.support.received import chains_in, put_page

S = 1_000_000_000
BAD = 0x8005_0000
STREAM = "facts.telemetry"


def test_the_newest_sample_of_each_tag_is_the_last_recorded(store: FactStore) -> None:
    """The last recorded sample counts, also with an older source time after a clock was set back; it comes with the
    time of the newest good one. Other tags, and streams without facts, are left out."""
    store.appends.define([TagDefinition(f"tag:t/{n}") for n in range(4)]).result()
    for rows in (
        [Sample(1, 10 * S, 1.0), Sample(2, 10 * S, 2.0), Sample(4, 10 * S, 4.0)],
        [Sample(1, 5 * S, 1.5), Sample(2, 11 * S, None, BAD), Sample(2, 12 * S, None, BAD)],
    ):
        store.appends.append_samples(STREAM, rows).result()
    stored = StoredSamples(store.reader)
    found = stored.newest_samples(STREAM, [1, 2, 3])
    assert found == {
        1: Newest(Sample(1, 5 * S, 1.5), 5 * S),
        2: Newest(Sample(2, 12 * S, None, BAD), 10 * S),
    }
    assert [*found] == [2, 1], "the last one first"
    assert stored.newest_samples(STREAM, [2])[2].good_ns == 10 * S, "before the batch of the newest ones"
    assert stored.newest_samples("facts.other", [1]) == {}


def test_no_definition_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start of a source, tags are found by number, because ten thousand unused definitions would stay in memory.
    A batch from before the definition of a tag is not opened for it."""
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=AT_ONCE) as store:
        for number in (1, 2):
            store.appends.define([TagDefinition(f"tag:t/{number}")]).result()
            store.appends.append_samples(STREAM, [Sample(number, number * S, 1.0)]).result()
        monkeypatch.setattr(StoreReader, "definitions", None)
        stored = StoredSamples(store.reader)
        assert stored.newest_samples(STREAM, [1, 2]).keys() == {1, 2}
        opened: list[object] = []
        monkeypatch.setattr(scanner, "open_packed", lambda batch: opened.append(batch) or open_packed(batch))
        assert stored.newest_samples(STREAM, [2]).keys() == {2}
        assert len(opened) == 1


def test_the_search_at_the_start_ends_at_its_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds for a tag that was never recorded, and if no batch of the stream has the tags: a source does not
    wait for a search through the whole store."""
    monkeypatch.setattr(stored_samples, "NEWEST_DEPTH_FACTS", 20)
    monkeypatch.setattr(stored_samples, "OUTAGE_DEPTH_FACTS", 5)
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=AT_ONCE) as store:
        store.appends.define([TagDefinition(f"tag:t/{n}") for n in range(3)]).result()
        for t in range(40):
            number = 2 if t in (5, 30) else 1
            store.appends.append_samples(STREAM, [Sample(number, t * S, float(t))]).result()
        store.appends.append_message("facts.operational", outage(10)).result()
        for n in range(5):
            other = Message(Envelope(f"other {n}", "plant-a", "*", n), Fact("x:y", "z", b"{}"))
            store.appends.append_message("facts.operational", other).result()
        stored = StoredSamples(store.reader)
        assert [stored_sample.sample for stored_sample in stored.newest_samples(STREAM, [2, 3]).values()] == [
            Sample(2, 30 * S, 30.0)
        ]
        assert stored.open_outages("plc") == []
        monkeypatch.setattr(stored_samples, "NEWEST_DEPTH_FACTS", 5)
        assert stored.newest_samples(STREAM, [2]) == {}
        monkeypatch.setattr(stored_samples, "OUTAGE_DEPTH_FACTS", 6)
        assert stored.open_outages("plc") == [(10 * S, 11 * S)]


def test_a_store_that_cannot_be_read_holds_no_source_up(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches at the start find nothing, which is logged. Filling a gap is refused by name, because it could store
    values twice."""

    def damaged(*_: object, **__: object) -> object:
        raise StoreDamaged("facts.db: a page is broken")

    store.appends.define([TagDefinition("tag:t/a")]).result()
    store.appends.append_samples(STREAM, [Sample(1, S, 1.0)]).result()
    stored = StoredSamples(store.reader)
    monkeypatch.setattr(StoreReader, "bounds", damaged)
    assert stored.newest_samples(STREAM, [1]) == {}
    assert stored.open_outages("plc") == []
    monkeypatch.setattr(StoreReader, "completeness", damaged)
    assert stored.completeness("plc") == {}
    with pytest.raises(StoredUnreadable, match="a page is broken"):
        stored.sample_times(STREAM, [1], 0, S, 10)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"first_time":7,"reason":["source_lost"]}',
        '{"first_time":"soon","reason":"source_lost"}',
        '{"outages":[1]}',
    ],
)
def test_what_applications_append_under_our_predicates_is_no_outage(store: FactStore, content: str) -> None:
    """A local program may append any fact; one that is not a gap of ours is ignored and has no effect."""
    store.appends.append_message("facts.operational", outage(10)).result()
    foreign = Message(Envelope("foreign", "plant-a", "*", 1), Fact("source:plc", "samples_lost", content.encode()))
    store.appends.append_message("facts.operational", foreign).result()
    stored = StoredSamples(store.reader)
    assert stored.open_outages("plc") == [(10 * S, 11 * S)]


def outage(first_s: int) -> Message:
    """The fact of an outage of the source plc."""
    gap = Gap("plc", SOURCE_LOST, first_s * S, first_s * S + S, 0, count_exact=False)
    return gap_message(gap, "plant-a", first_s)


def test_times_are_those_of_the_range_or_too_many(store: FactStore) -> None:
    """Times of the requested tags, both ends included."""
    store.appends.define([TagDefinition("tag:t/a"), TagDefinition("tag:t/b")]).result()
    rows = [Sample(n, t * S, float(t)) for t in range(100) for n in (1, 2)]
    store.appends.append_samples(STREAM, rows).result()
    stored = StoredSamples(store.reader)
    assert stored.sample_times(STREAM, [1], 10 * S, 12 * S, 3) == {1: {10 * S, 11 * S, 12 * S}}
    assert stored.sample_times(STREAM, [1, 2], 10 * S, 12 * S, 5) is None
    # A device whose clock stands still: a time with so many samples cannot be asked for in parts.
    store.appends.append_samples(STREAM, [Sample(1, 200 * S, float(n)) for n in range(10)]).result()
    assert stored.sample_times(STREAM, [1], 200 * S, 200 * S, 3) == {1: {200 * S}}


def test_the_times_of_a_tag_are_those_of_all_its_numbers(store: FactStore) -> None:
    """Times from before an edit of the tag, which gave it another number, and values from history are included: filling
    their time again would store it twice."""
    named = [TagDefinition("tag:t/a"), TagDefinition("tag:t/a", acquisition="history"), TagDefinition("tag:t/b")]
    store.appends.define([*named, TagDefinition("tag:t/a", unit="bar")]).result()
    store.appends.append_samples(STREAM, [Sample(n, n * S, 1.0) for n in (1, 2, 3, 4)]).result()
    stored = StoredSamples(store.reader)
    assert stored.sample_times(STREAM, [4], 0, 9 * S, 9) == {4: {1 * S, 2 * S, 4 * S}}


def test_an_outage_is_open_until_a_fact_names_it_as_filled(store: FactStore) -> None:
    """Facts of one outage count once. Other gaps and outages of other sources are not included."""

    def gap(source: str, reason: str, first_s: float, last_s: int) -> Message:
        return gap_message(Gap(source, reason, int(first_s * S), last_s * S, 0, count_exact=False), "plant-a", last_s)

    filled = Message(
        Envelope("filled", "plant-a", "*", 1),
        Fact("source:plc", "history_backfilled", canonical_json({"outages": [time_text(10 * S)]})),
    )
    for message in (
        gap("plc", SOURCE_LOST, 10, 11),
        gap("plc", SOURCE_LOST, 10, 20),
        filled,
        gap("plc", SOURCE_LOST, 30.0000001, 31),
        gap("plc", SOURCE_LOST, 30.0000001, 40),
        gap("plc", AGENT_STOPPED, 50, 51),
        gap("plc", SERVER_QUEUE_OVERFLOW, 60, 61),
        gap("other", SOURCE_LOST, 70, 71),
    ):
        store.appends.append_message("facts.operational", message).result()
    stored = StoredSamples(store.reader)
    assert stored.open_outages("plc") == [(50 * S, 51 * S), (30 * S + 100, 40 * S)]


def test_a_source_is_complete_up_to_what_was_recorded_last(tmp_path: Path) -> None:
    """By part, across an orderly close; a part without a value is gone. Other sources have their own."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        for parts in ({"": (9, 5), "events": (8, None), "tag:t/a": (1, 2)}, {"": (10, 5), "tag:t/a": None}):
            store.appends.set_completeness("plc", parts).result()
        store.appends.set_completeness("other", {"": (7, 0)}).result()
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        stored = StoredSamples(store.reader)
        assert stored.completeness("plc") == {"": Stored(10, 5), "events": Stored(8, None)}
        assert stored.completeness("unknown") == {}


def test_a_renamed_source_continues_the_ones_that_recorded_its_tags(store: FactStore) -> None:
    """Otherwise no fact would name the time without a process. The source that is behind decides, and a tag that is
    behind itself stays so. Sources of other tags, and of tags that were out of service, do not count."""
    sources = {"a": "plc", "b": "press", "c": "other", "d": "retired"}
    numbers = store.appends.define([TagDefinition(f"tag:t/{n}", source=s) for n, s in sources.items()]).result()
    store.appends.append_samples(STREAM, [Sample(n, 10 * S, 1.0) for n in numbers]).result()
    store.appends.append_samples(STREAM, [Sample(numbers[-1], 11 * S, None, TAG_REMOVED)]).result()
    for n, source in enumerate(sources.values()):
        store.appends.set_completeness(
            source, {"": (9 - n, n), "tag:t/a": (5, None), "events": (2, 0), "believed": (4, 0), "tag:t/x": (1, 1)}
        ).result()
    store.appends.define([TagDefinition("tag:t/a", source="line")]).result()
    continued = StoredSamples(store.reader).completeness_of_others(
        "line", {"tag:t/a", "tag:t/b", "tag:t/d", "tag:t/new"}
    )
    assert continued == {"": Stored(8, 1), "tag:t/a": Stored(5), "events": Stored(2, 0), "believed": Stored(4, 0)}


# ------------------------------------------------------------------------------------------- two nodes of one zone


@dataclass
class Two:
    """The stores of both nodes of a zone; they number the tags in another order."""

    folder: Path
    stores: list[FactStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open and define."""
        tags = [TagDefinition(f"tag:t/{name}", source="plc") for name in "abc"]
        for number, order in enumerate((tags, [TagDefinition("tag:t/b", acquisition="history"), *tags[::-1]])):
            store = FactStore.open(self.folder / f"{number}.db", "plant-a", node=f"plant-a-{number}", settings=AT_ONCE)
            store.appends.define(order).result()
            self.stores.append(store)

    def record(self, number: int, tag: int, at_s: int, value: float) -> None:
        """A sample by a node under its own number."""
        self.stores[number].appends.append_samples(STREAM, [Sample(tag, at_s * S, value)]).result()

    def lead(self, number: int) -> None:
        """Give a node a term above all others."""
        term = max(store.next_life_number for store in self.stores)
        self.stores[number].take_lead(term).result()

    def pull(self, number: int, until: int | None = None) -> None:
        """Bring what the other node has, or the first batches of it."""
        other = self.stores[1 - number]
        for stream in (STREAM, "facts.operational"):
            batches = parsed(sealed_in(other, stream))[:until]
            put_page(self.stores[number], other.node, stream, batches, chains_in(other), None).result()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """Both, closed at the end."""
    made = Two(tmp_path)
    yield made
    for store in made.stores:
        store.close()


def test_samples_of_the_other_node_count(two: Two) -> None:
    """A node finds what the other one has recorded, under its own numbers: the newest samples, and all times. Values
    from history are no newest samples of the tag."""
    two.record(0, 1, 10, 1.0)
    two.record(0, 2, 10, 2.0)
    two.pull(1)
    two.lead(1)
    two.record(1, 4, 20, 1.5)
    two.record(1, 1, 15, 9.0)
    two.pull(0)
    theirs = StoredSamples(two.stores[1].reader)
    assert theirs.newest_samples(STREAM, [2, 3, 4]) == {
        4: Newest(Sample(4, 20 * S, 1.5), 20 * S),
        3: Newest(Sample(3, 10 * S, 2.0), 10 * S),
    }
    assert theirs.sample_times(STREAM, [3, 4], 0, 99 * S, 9) == {3: {10 * S, 15 * S}, 4: {10 * S, 20 * S}}
    assert theirs.sample_times(STREAM, [3, 4], 0, 99 * S, 3) is None
    ours = StoredSamples(two.stores[0].reader)
    assert ours.newest_samples(STREAM, [1, 2]) == {
        1: Newest(Sample(1, 20 * S, 1.5), 20 * S),
        2: Newest(Sample(2, 10 * S, 2.0), 10 * S),
    }
    two.lead(0)
    two.record(0, 2, 30, 2.5)
    assert [*ours.newest_samples(STREAM, [1, 2])] == [2, 1]


def test_a_late_tail_of_a_lower_life_is_not_the_newest(two: Two) -> None:
    """The first node fails with samples that the second has not pulled; they arrive behind those of the second, which
    has recorded the tags since. The later leader's samples are the newest, also of a tag that it recorded once."""
    two.record(0, 1, 10, 1.0)
    two.pull(1)
    two.record(0, 1, 11, 1.1)
    two.record(0, 2, 11, 2.1)
    two.record(0, 3, 11, 3.1)
    two.lead(1)
    two.record(1, 3, 20, 2.2)
    two.record(1, 4, 20, 1.2)
    two.record(1, 4, 21, 1.3)
    two.pull(1)
    assert StoredSamples(two.stores[1].reader).newest_samples(STREAM, [2, 3, 4]) == {
        4: Newest(Sample(4, 21 * S, 1.3), 21 * S),
        3: Newest(Sample(3, 20 * S, 2.2), 20 * S),
        2: Newest(Sample(2, 11 * S, 3.1), 11 * S),
    }


def test_an_outage_of_the_other_node_may_be_filled_here(two: Two) -> None:
    """A node knows the outages that the other one has declared, and which of them are filled, in whatever order their
    facts arrived."""
    filled = Message(
        Envelope("filled", "plant-a", "*", 1),
        Fact("source:plc", "history_backfilled", canonical_json({"outages": [time_text(10 * S)]})),
    )
    two.stores[0].appends.append_message("facts.operational", outage(10)).result()
    two.stores[0].appends.append_message("facts.operational", outage(30)).result()
    two.lead(1)
    two.stores[1].appends.append_message("facts.operational", filled).result()
    two.pull(1)
    assert StoredSamples(two.stores[1].reader).open_outages("plc") == [(30 * S, 31 * S)]


def test_a_tag_that_the_other_node_took_out_of_service_is_not_removed_again(two: Two) -> None:
    """What the other node has recorded decides: a tag with values there is removed, under this node's number; one that
    is out of service there is not."""
    for tag in (1, 2, 3):
        two.record(0, tag, 10, 1.0)
    two.stores[0].appends.append_samples(STREAM, [Sample(1, 20 * S, None, TAG_REMOVED)]).result()
    two.pull(1)
    (found,) = find_removed_tags(two.stores[1].reader, {"tag:t/c": {"plc"}})
    assert found[:4] == (STREAM, 3, "tag:t/b", 10 * S)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"1", b"2", b"3"]),
            st.integers(1, 9),
            st.lists(st.tuples(st.integers(1, 3), st.booleans())),
        ),
        unique_by=lambda row: row[:2],
    )
)
def test_the_newest_is_that_of_the_highest_place(batches: list[tuple[bytes, int, list[tuple[int, bool]]]]) -> None:
    """Whatever the order in which batches are seen, of each tag the last sample of the highest life and sequence is
    found, with the time of the last good one; the search knows when it has all."""
    rows = {
        (life, sequence): [
            Sample(tag, number * S, float(number), 0 if is_good else BAD)
            for number, (tag, is_good) in enumerate(tags, 100 * sequence + 1000 * int(life))
        ]
        for life, sequence, tags in batches
    }
    search = NewestSearch({1, 2, 3})
    for place, samples in rows.items():
        are_open = search.open_among([sample.tag for sample in samples], place)
        search.add(place, [sample for sample, tag in zip(samples, are_open, strict=True) if tag is not None])
    recorded = [sample for place in sorted(rows) for sample in rows[place]]
    newest = {sample.tag: sample for sample in recorded}
    good_ns = {sample.tag: sample.source_time_ns for sample in recorded if not sample.quality}
    assert search.by_tag() == {tag: Newest(sample, good_ns.get(tag, 0)) for tag, sample in newest.items()}
    assert search.is_complete == ({1, 2, 3} <= good_ns.keys())
