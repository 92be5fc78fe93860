"""What was removed from the tag files while no process ran is recorded as soon as the store takes it."""

from collections.abc import Collection, Sequence
from pathlib import Path

from agent.ingest.ports import RemovedTag
from agent.ingest.quality import TAG_REMOVED
from agent.ingest.recorder import Recorder
from agent.ingest.removal import record_removed
from agent.message import Sample, TagDefinition
from tests.ingest.fakes import FakeStore
from tests.ingest.plant import ingesting, modbus
from tests.waiting import wait_until_async

TAG = "tag,table,register,type\nplant/x,holding,1,int16\n"


async def test_removed_tags_end_with_a_fact(tmp_path: Path) -> None:
    """One sample without value, out of service, later than the last one of the tag; each in its stream. The search is
    asked with what the tag files name, and a store that refuses is waited for."""
    store, asked, now_ns = FakeStore(), list[Collection[str]](), 4_000_000_000_000_000_000
    store.define([TagDefinition("tag:plant/old"), TagDefinition("tag:plant/older")])

    def find(subjects: Collection[str]) -> Sequence[RemovedTag]:
        asked.append(subjects)
        store.refusing = True
        removed = [("facts.telemetry", 1, "tag:plant/old", now_ns), ("facts.other", 2, "tag:plant/older", 5)]
        return [RemovedTag(*row) for row in removed]

    async with ingesting(modbus(1, tmp_path, TAG), store=store, find_removed=find):
        await wait_until_async(lambda: store.refusing, "the search")
        store.refusing = False
        await wait_until_async(lambda: store.of("plant/old") and store.of("plant/older"), "the samples")
    assert asked == [{"tag:plant/x"}]
    assert store.of("plant/old") == [Sample(1, now_ns + 1, None, TAG_REMOVED)]
    (older,) = store.of("plant/older")
    assert (older.quality, older.value, older.source_time_ns > 5) == (TAG_REMOVED, None, True)
    assert {stream for stream, sample in store.samples if sample.tag == 2} == {"facts.other"}


async def test_a_commit_that_fails_is_repeated() -> None:
    """No other caller hands in these samples: they are waited for until they are committed."""
    store = FakeStore()
    store.define([TagDefinition("tag:plant/old")])
    store.failing_futures = 2
    recorder = Recorder("plc", "plant-a", store, "facts.operational")
    await record_removed(lambda _: [RemovedTag("facts.telemetry", 1, "tag:plant/old", 5)], ["tag:plant/x"], recorder)
    assert [sample.quality for sample in store.of("plant/old")] == [TAG_REMOVED]
