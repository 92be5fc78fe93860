"""What ingest learns from a store about earlier processes, asked of real stores."""

from __future__ import annotations

from pathlib import Path

from agent.fact_store import FactStore
from agent.ingest.gap import AGENT_STOPPED, SERVER_QUEUE_OVERFLOW, SOURCE_LOST, Gap, gap_message
from agent.ingest.ports import Newest
from agent.message import Envelope, Fact, Message, Sample, TagDefinition, canonical_json, time_text
from agent.node.stored_samples import StoredSamples

S = 1_000_000_000
BAD = 0x8005_0000
STREAM = "facts.telemetry"


def test_the_newest_sample_of_each_tag_is_the_last_recorded(tmp_path: Path) -> None:
    """Also where its source time is older, after a clock was set back; with the time of the newest good one. Tags
    that were not asked for and streams without facts are left out."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.define([TagDefinition(f"tag:t/{n}") for n in range(4)]).result()
        for rows in (
            [Sample(1, 10 * S, 1.0), Sample(2, 10 * S, 2.0), Sample(4, 10 * S, 4.0)],
            [Sample(1, 5 * S, 1.5), Sample(2, 11 * S, None, BAD), Sample(2, 12 * S, None, BAD)],
        ):
            store.appends.append_samples(STREAM, rows).result()
        stored = StoredSamples(store.reader, store.origin)
        assert stored.newest_samples(STREAM, [1, 2, 3]) == {
            1: Newest(Sample(1, 5 * S, 1.5), 5 * S),
            2: Newest(Sample(2, 12 * S, None, BAD), 10 * S),
        }
        assert stored.newest_samples("facts.other", [1]) == {}


def test_times_are_those_of_the_range_or_too_many(tmp_path: Path) -> None:
    """Of the tags asked for, both ends included."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.define([TagDefinition("tag:t/a"), TagDefinition("tag:t/b")]).result()
        rows = [Sample(n, t * S, float(t)) for t in range(100) for n in (1, 2)]
        store.appends.append_samples(STREAM, rows).result()
        stored = StoredSamples(store.reader, store.origin)
        assert stored.sample_times(STREAM, [1], 10 * S, 12 * S, 3) == {1: {10 * S, 11 * S, 12 * S}}
        assert stored.sample_times(STREAM, [1, 2], 10 * S, 12 * S, 5) is None


def test_an_outage_is_open_until_a_fact_names_it_as_filled(tmp_path: Path) -> None:
    """Both facts of an outage count once. Gaps that are no outage and outages of other sources are not among them."""

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
        assert StoredSamples(store.reader, store.origin).open_outages("plc") == [50 * S, 30 * S + 100]
