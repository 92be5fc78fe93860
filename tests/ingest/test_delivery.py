import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agent.columns import SampleColumns
from agent.ingest import Ingest, IngestPorts
from agent.ingest.completeness import Stored
from agent.ingest.delivery import Delivery, record_ended
from agent.ingest.lifecycle import Newest, State
from agent.ingest.ports import RemovedTag
from agent.ingest.quality import BAD_COMMUNICATION_ERROR, BAD_NODE_ID_UNKNOWN, TAG_REMOVED
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags.file import load_tag_maps
from agent.ingest.tags.tag_map import Tag, TagMap
from agent.message import Sample, TagDefinition, time_text
from agent.status_codes import CLOCK_UNCERTAIN
from tests.ingest.fakes import FakeStore
from tests.ingest.lives import PlayedSource
from tests.waiting import LIMIT_S, wait_until_async

S = 1_000_000_000
SLOW = SamplingRule(min_interval_ns=60 * S)


def tag(name: str, rule: SamplingRule = SamplingRule(), stream: str = "facts.telemetry", address: str = "") -> Tag:  # noqa: B008 frozen
    """A tag that is read somehow."""
    return Tag(2, stream, TagDefinition(f"tag:{name}", address=address), rule, name)


async def made(store: FakeStore, *tags: Tag) -> Delivery:
    """A delivery of these tags."""
    recorder = Recorder("plc", "plant-a", store)
    return Delivery("plc", tags, await recorder.define([wanted.definition for wanted in tags]), recorder)


async def retagged(delivery: Delivery, now_ns: int, *tags: Tag) -> None:
    """These tags instead."""
    delivery.offer_map(tags, await delivery.recorder.define([wanted.definition for wanted in tags]))
    assert delivery.take_over_map(now_ns)
    await delivery.recorder.settle()
    assert not delivery.take_over_map(now_ns)


async def test_a_value_that_stands_is_good_when_the_clock_is_believed() -> None:
    """Samples, repeats and returns with times of a clock that is not believed are uncertain; then the value is recorded
    again, although the rule asks for changes only."""
    store, spans = FakeStore(), [(0, 50 * S)]
    recorder = Recorder("plc", "plant-a", store, doubted=lambda: spans)
    wanted = [tag("a", SamplingRule(deadband=0, max_interval_ns=5 * S))]
    delivery = Delivery("plc", wanted, await recorder.define([known.definition for known in wanted]), recorder)
    delivery.seed({1: Newest(Sample(1, 70 * S, None, BAD_COMMUNICATION_ERROR), 60 * S)})
    await delivery.deliver(SampleColumns.of([Sample(1, 60 * S, 1.0)]), 10 * S)
    assert store.of("a")[-1] == Sample(1, 70 * S + 1, 1.0), "times of the source are its own"
    for at_s in (10, 11):
        await delivery.deliver(SampleColumns.of([Sample(1, at_s * S, 1.0)]), at_s * S)
    await delivery.deliver_due(16 * S)
    await delivery.deliver(SampleColumns.of([Sample(1, 71 * S, 1.0)]), 71 * S)
    await recorder.drain()
    found = [(sample.source_time_ns // S, sample.quality) for sample in store.of("a")[1:]]
    assert found == [(10, CLOCK_UNCERTAIN), (16, CLOCK_UNCERTAIN), (71, 0)]


async def test_the_first_good_value_is_told_once() -> None:
    """Beside a tag that stays bad, too; not by a delivery of nothing, or of bad ones only."""
    told = list[int]()
    delivery = await made(FakeStore(), tag("a"), tag("b"))
    delivery.expect_value(told.append)
    bad = Sample(2, 1, None, BAD_COMMUNICATION_ERROR)
    for at_s, samples in ((1, []), (2, [bad]), (3, [Sample(1, 3, 1.0), bad]), (4, [Sample(1, 4, 2.0)])):
        assert delivery.is_value_expected == (at_s <= 3)
        await delivery.deliver(SampleColumns.of(samples), at_s * S)
    assert told == [3 * S]


async def test_what_a_rule_held_back_is_recorded_when_the_rule_ends() -> None:
    """A removed tag and one with a new rule give up what they held back, in the stream it belonged to; others hold
    on."""
    store = FakeStore()
    delivery = await made(store, tag("gone", SLOW), tag("ruled", SLOW), tag("stays", SLOW))
    first, second = ([Sample(n, time_ns, float(time_ns)) for n in (1, 2, 3)] for time_ns in (10 * S, 11 * S))
    await delivery.deliver(SampleColumns.of(first), 10 * S)
    await delivery.deliver(SampleColumns.of(second), 11 * S)
    await retagged(delivery, 12 * S, tag("ruled", stream="facts.other"), tag("stays", SLOW))
    assert [s.source_time_ns for s in store.of("gone")] == [10 * S, 11 * S, 12 * S]
    assert [s.source_time_ns for s in store.of("ruled")] == [10 * S, 11 * S]
    assert [s.source_time_ns for s in store.of("stays")] == [10 * S]
    await delivery.deliver(SampleColumns.of([Sample(2, 13 * S, 1.0)]), 13 * S)
    assert [stream for stream, sample in store.samples if sample.tag == 2] == ["facts.telemetry"] * 2 + ["facts.other"]
    await delivery.deliver_due(71 * S)
    assert [s.source_time_ns for s in store.of("stays")] == [10 * S, 11 * S]


async def test_a_value_that_stands_through_an_edit_is_not_recorded_twice() -> None:
    """The new item of a tag begins with the value that the old one brought last. The tag has it once under that time,
    and under the new number since it was seen again. The subject goes on: nothing says that it is out of service."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    await delivery.deliver(SampleColumns.of([Sample(1, 10 * S, 1.0)]), 10 * S)
    await retagged(delivery, 11 * S, tag("a", address="in other words"))
    await delivery.deliver(SampleColumns.of([Sample(2, 10 * S, 1.0)]), 12 * S)
    assert store.of("a") == [Sample(1, 10 * S, 1.0), Sample(2, 12 * S, 1.0)]


async def test_the_earlier_numbers_of_a_tag_lead_to_the_present_one() -> None:
    """After several edits, one that is taken back, and none of a tag that is no more."""
    store = FakeStore()
    delivery = await made(store, tag("a"), tag("b"))
    await retagged(delivery, 11 * S, tag("a", address="x"), tag("b"))
    assert delivery.renumbered == {1: 3}
    await retagged(delivery, 12 * S, tag("a", address="y"), tag("b", address="y"))
    assert delivery.renumbered == {1: 4, 3: 4, 2: 5}
    await retagged(delivery, 13 * S, tag("a"), tag("b", address="y"))
    assert delivery.renumbered == {3: 1, 4: 1, 2: 5}
    await retagged(delivery, 14 * S, tag("b", address="y"))
    assert delivery.renumbered == {2: 5}


async def test_a_tag_removed_while_its_source_is_away() -> None:
    """Lost first, then out of service: the newest says what is so."""
    store = FakeStore()
    delivery = await made(store, tag("a"), tag("b"))
    await delivery.lose(BAD_COMMUNICATION_ERROR, 10 * S)
    await retagged(delivery, 11 * S, tag("b"))
    assert [s.quality for s in store.of("a")] == [BAD_COMMUNICATION_ERROR, TAG_REMOVED]
    assert [s.quality for s in store.of("b")] == [BAD_COMMUNICATION_ERROR]


async def test_each_sample_goes_to_the_stream_of_its_tag() -> None:
    """Also where the tags of one source are of two streams, and in the order in which the samples came."""
    store = FakeStore()
    delivery = await made(store, tag("a"), tag("b", stream="facts.operational"))
    await delivery.deliver(
        SampleColumns.of([Sample(1, 10 * S, 1.0), Sample(2, 10 * S, 2.0), Sample(1, 11 * S, 3.0)]), 11 * S
    )
    found = [(stream, sample.value) for stream, sample in store.samples]
    assert [value for stream, value in found if stream == "facts.telemetry"] == [1.0, 3.0]
    assert [value for stream, value in found if stream == "facts.operational"] == [2.0]


async def test_a_source_that_missed_nothing_has_its_values_again() -> None:
    """Its tags were recorded as bad when it was lost. The value that stands is good again right after that, and newer
    than the loss; a value that came meanwhile follows with its own time. A tag that is bad for another reason stays
    so."""
    store, returned = FakeStore(), list[int]()
    delivery = await made(store, tag("a"), tag("b"), tag("c"))
    await delivery.deliver(SampleColumns.of([Sample(n, 10 * S, 1.0) for n in (1, 2, 3)]), 10 * S)
    await delivery.lose(BAD_NODE_ID_UNKNOWN, 11 * S, [3])
    await delivery.lose(BAD_COMMUNICATION_ERROR, 20 * S, since_ns=12 * S)
    delivery.expect_value(returned.append)
    delivery.regain([1, 2, 3, 9], 30 * S)
    await delivery.deliver(SampleColumns.of([Sample(1, 14 * S, 2.0), Sample(2, 10 * S, 1.0)]), 30 * S)
    assert [(sample.source_time_ns, sample.value) for sample in store.of("a")[1:]] == [
        (12 * S, None),
        (12 * S + 1, 1.0),
        (14 * S, 2.0),
    ]
    assert [sample.value for sample in store.of("b")] == [1.0, None, 1.0]
    assert [sample.value for sample in store.of("c")] == [1.0, None]
    assert returned == [30 * S]


async def test_nothing_is_complete_while_a_source_is_away() -> None:
    """What it was complete up to before is what the next process must find."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    for has_outage, known in ((True, {}), (False, {("plc", ""): Stored(9 * S)})):
        delivery.has_outage = has_outage
        for _ in range(2):
            await delivery.note_complete({"": Stored(9 * S)})
        assert store.complete == known


# --- tags that were removed from the tag files while no process ran ---------------------------------------------------


async def test_removed_tags_end_with_a_fact(played: PlayedSource) -> None:
    """One sample without value, out of service, later than the last one of the tag; each in its stream. Before it, the
    gap since its source was complete. The search is asked with what the tag files name, and a store that refuses is
    waited for."""
    store, asked, now_ns = FakeStore(), list[Mapping[str, Collection[str]]](), 4_000_000_000_000_000_000
    store.define([TagDefinition("tag:plant/old"), TagDefinition("tag:plant/older")])

    def find(readers: Mapping[str, Collection[str]]) -> Sequence[RemovedTag]:
        asked.append(readers)
        store.refusing = True
        removed = [
            ("facts.telemetry", 1, "tag:plant/old", now_ns, "plc", 7),
            ("facts.other", 2, "tag:plant/older", 5, "gone"),
        ]
        return [RemovedTag(*row) for row in removed]

    async with played.ingesting(store=store, find_removed=find):
        await wait_until_async(lambda: store.refusing, "the search")
        store.refusing = False
        await wait_until_async(lambda: store.of("plant/old") and store.of("plant/older"), "the samples")
    assert asked == [{"tag:plant/x": {"meter"}, "tag:plant/y": {"meter"}}]
    assert store.of("plant/old") == [Sample(1, now_ns + 1, None, TAG_REMOVED)]
    (older,) = store.of("plant/older")
    assert (older.quality, older.value, older.source_time_ns > 5) == (TAG_REMOVED, None, True)
    assert {stream for stream, sample in store.samples if sample.tag == 2} == {"facts.other"}
    (gap,) = store.told()
    assert (gap["reason"], gap["first_time"], gap["tags"]) == ("agent_stopped", time_text(7), ["tag:plant/old"])


async def test_a_source_ends_the_tags_that_it_still_reads_itself(played: PlayedSource) -> None:
    """A reload takes a tag out of the map of a source that goes on. Until the source has taken the new map over, it may
    record a further value of that tag: the search is asked with it, too."""
    asked = list[Mapping[str, Collection[str]]]()
    played.dies()
    async with played.ingesting(find_removed=lambda readers: asked.append(readers) or []) as run:
        await run.wait_good("plant/x")
        fewer = played.settings("tag,table,register,type\nplant/x,holding,1,int16\n")
        await run.ingest.change([fewer], load_tag_maps([fewer]))
        await wait_until_async(lambda: len(asked) == 2, "the search of the reload")
        assert [tag.name for tag in run.ingest.tag_maps()["meter"].tags] == ["plant/x"]
    assert asked[1].keys() == {"tag:plant/x", "tag:plant/y"}


async def test_a_stop_while_a_reload_looks_for_removed_tags(played: PlayedSource) -> None:
    """Nothing begins after it, and what had begun ends."""
    asked, go_on = list[object](), threading.Event()

    def find(readers: object) -> Sequence[RemovedTag]:
        asked.append(readers)
        assert len(asked) < 2 or go_on.wait(LIMIT_S)
        return []

    played.dies()
    async with played.ingesting(find_removed=find) as run:
        await run.wait_good("plant/x")
        changed = replace(played.settings(), timeout_ms=7_000)
        changing = asyncio.create_task(run.ingest.change([changed], load_tag_maps([changed])))
        await wait_until_async(lambda: len(asked) == 2, "the search of the reload")
        run.ingest.stop()
        await asyncio.sleep(0)
        go_on.set()
        await changing
        assert [source.state for source in run.ingest.statistics()] == [State.STOPPED]


async def test_removed_tags_are_looked_for_again_when_a_source_has_its_first_map(played: PlayedSource) -> None:
    """A source whose tag file was wrong at the start gets its map when the file is right. It cannot see what has left
    a map that it never read."""
    asked = list[Mapping[str, Collection[str]]]()
    played.dies()
    ports = IngestPorts(FakeStore(), find_removed=lambda readers: asked.append(readers) or [])
    ingest = Ingest("plant-a", [played.settings()], {"meter": TagMap("t.csv", ())}, ports)
    running = asyncio.create_task(ingest.run(), name="ingest")
    await wait_until_async(lambda: len(asked) == 2, "the second search")
    ingest.stop()
    await running
    assert [readers.keys() for readers in asked] == [set(), {"tag:plant/x", "tag:plant/y"}]


async def test_a_commit_that_fails_is_repeated() -> None:
    """No other caller hands in these samples: they are waited for until they are committed."""
    store = FakeStore()
    store.define([TagDefinition("tag:plant/old")])
    store.failing_futures = 2
    recorder_of = partial(Recorder, zone="plant-a", store=store)
    removed = RemovedTag("facts.telemetry", 1, "tag:plant/old", 5, "plc")
    await record_ended([removed], ["tag:plant/x"], recorder_of)
    assert [sample.quality for sample in store.of("plant/old")] == [TAG_REMOVED]
