"""Samples of earlier processes that ingest reads from a store, with real stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.batch import open_packed
from agent.fact_store import FactStore, StoreDamaged, StoreReader
from agent.ingest import Stored, StoredUnreadable
from agent.ingest.gap import AGENT_STOPPED, SERVER_QUEUE_OVERFLOW, SOURCE_LOST, Gap, gap_message
from agent.ingest.lifecycle import Newest
from agent.message import Envelope, Fact, Message, Sample, TagDefinition, canonical_json, time_text
from agent.node import stored_samples
from agent.node.stored_samples import StoredSamples
from agent.query.scan import scanner
from tests.fact_store.making import AT_ONCE

S = 1_000_000_000
BAD = 0x8005_0000
STREAM = "facts.telemetry"


def test_the_newest_sample_of_each_tag_is_the_last_recorded(tmp_path: Path) -> None:
    """The last recorded sample counts, also with an older source time after a clock was set back; it comes with the
    time of the newest good one. Other tags, and streams without facts, are left out. In another life the same numbers
    are other tags."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.define([TagDefinition(f"tag:t/{n}") for n in range(4)]).result()
        for rows in (
            [Sample(1, 10 * S, 1.0), Sample(2, 10 * S, 2.0), Sample(4, 10 * S, 4.0)],
            [Sample(1, 5 * S, 1.5), Sample(2, 11 * S, None, BAD), Sample(2, 12 * S, None, BAD)],
        ):
            store.appends.append_samples(STREAM, rows).result()
        stored = StoredSamples(store.reader, store.own_lives)
        found = stored.newest_samples(STREAM, [1, 2, 3])
        assert found == {
            1: Newest(Sample(1, 5 * S, 1.5), 5 * S),
            2: Newest(Sample(2, 12 * S, None, BAD), 10 * S),
        }
        assert [*found] == [2, 1], "the last one first"
        assert stored.newest_samples(STREAM, [2])[2].good_ns == 10 * S, "before the batch of the newest ones"
        assert stored.newest_samples("facts.other", [1]) == {}
        other = StoredSamples(store.reader, lambda: {bytes(16)})
        assert other.newest_samples(STREAM, [1, 2, 3]) == {}


def test_no_definition_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start of a source, tags are found by number, because ten thousand unused definitions would stay in memory.
    A batch from before the definition of a tag is not opened for it."""
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=AT_ONCE) as store:
        for number in (1, 2):
            store.appends.define([TagDefinition(f"tag:t/{number}")]).result()
            store.appends.append_samples(STREAM, [Sample(number, number * S, 1.0)]).result()
        monkeypatch.setattr(StoreReader, "definitions", None)
        stored = StoredSamples(store.reader, store.own_lives)
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
        stored = StoredSamples(store.reader, store.own_lives)
        assert [one.sample for one in stored.newest_samples(STREAM, [2, 3]).values()] == [Sample(2, 30 * S, 30.0)]
        assert stored.open_outages("plc") == []
        monkeypatch.setattr(stored_samples, "NEWEST_DEPTH_FACTS", 5)
        assert stored.newest_samples(STREAM, [2]) == {}
        monkeypatch.setattr(stored_samples, "OUTAGE_DEPTH_FACTS", 6)
        assert stored.open_outages("plc") == [10 * S]


def test_a_store_that_cannot_be_read_holds_no_source_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches at the start find nothing, which is logged. Filling a gap is refused by name, because it could store
    values twice."""

    def damaged(*_: object, **__: object) -> object:
        raise StoreDamaged("facts.db: a page is broken")

    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.define([TagDefinition("tag:t/a")]).result()
        store.appends.append_samples(STREAM, [Sample(1, S, 1.0)]).result()
        stored = StoredSamples(store.reader, store.own_lives)
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
def test_what_applications_append_under_our_predicates_is_no_outage(tmp_path: Path, content: str) -> None:
    """A local program may append any fact; one that is not a gap of ours is ignored and has no effect."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.append_message("facts.operational", outage(10)).result()
        foreign = Message(Envelope("foreign", "plant-a", "*", 1), Fact("source:plc", "samples_lost", content.encode()))
        store.appends.append_message("facts.operational", foreign).result()
        stored = StoredSamples(store.reader, store.own_lives)
        assert stored.open_outages("plc") == [10 * S]


def outage(first_s: int) -> Message:
    """The fact of an outage of the source plc."""
    gap = Gap("plc", SOURCE_LOST, first_s * S, first_s * S + S, 0, count_exact=False)
    return gap_message(gap, "plant-a", first_s)


def test_times_are_those_of_the_range_or_too_many(tmp_path: Path) -> None:
    """Times of the requested tags, both ends included."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.define([TagDefinition("tag:t/a"), TagDefinition("tag:t/b")]).result()
        rows = [Sample(n, t * S, float(t)) for t in range(100) for n in (1, 2)]
        store.appends.append_samples(STREAM, rows).result()
        stored = StoredSamples(store.reader, store.own_lives)
        assert stored.sample_times(STREAM, [1], 10 * S, 12 * S, 3) == {1: {10 * S, 11 * S, 12 * S}}
        assert stored.sample_times(STREAM, [1, 2], 10 * S, 12 * S, 5) is None


def test_the_times_of_a_tag_are_those_of_all_its_numbers(tmp_path: Path) -> None:
    """Times from before an edit of the tag, which gave it another number, and values from history are included: filling
    their time again would store it twice."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        named = [TagDefinition("tag:t/a"), TagDefinition("tag:t/a", acquisition="history"), TagDefinition("tag:t/b")]
        store.appends.define([*named, TagDefinition("tag:t/a", unit="bar")]).result()
        store.appends.append_samples(STREAM, [Sample(n, n * S, 1.0) for n in (1, 2, 3, 4)]).result()
        stored = StoredSamples(store.reader, store.own_lives)
        assert stored.sample_times(STREAM, [4], 0, 9 * S, 9) == {4: {1 * S, 2 * S, 4 * S}}


def test_an_outage_is_open_until_a_fact_names_it_as_filled(tmp_path: Path) -> None:
    """Facts of one outage count once. Other gaps and outages of other sources are not included."""

    def gap(source: str, reason: str, first_s: float, last_s: int) -> Message:
        return gap_message(Gap(source, reason, int(first_s * S), last_s * S, 0, count_exact=False), "plant-a", last_s)

    filled = Message(
        Envelope("filled", "plant-a", "*", 1),
        Fact("source:plc", "history_backfilled", canonical_json({"outages": [time_text(10 * S)]})),
    )
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
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
        stored = StoredSamples(store.reader, store.own_lives)
        assert stored.open_outages("plc") == [50 * S, 30 * S + 100]


def test_a_source_is_complete_up_to_what_was_recorded_last(tmp_path: Path) -> None:
    """By part, across an orderly close; a part without a value is gone. Other sources have their own."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        for parts in ({"": (9, 5), "events": (8, None), "tag:t/a": (1, 2)}, {"": (10, 5), "tag:t/a": None}):
            store.appends.set_completeness("plc", parts).result()
        store.appends.set_completeness("other", {"": (7, 0)}).result()
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        stored = StoredSamples(store.reader, store.own_lives)
        assert stored.completeness("plc") == {"": Stored(10, 5), "events": Stored(8, None)}
        assert stored.completeness("unknown") == {}
