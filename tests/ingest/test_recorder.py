import asyncio
import json
from concurrent.futures import Future
from typing import Any

import pytest

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup
from agent.errors import StoreBusy, StoreFull
from agent.ingest import recorder as recorder_module
from agent.ingest.completeness import Stored
from agent.ingest.gap import LEADER_CHANGED, SERVER_QUEUE_OVERFLOW, SOURCE_LOST, STORE_REFUSED, Gap
from agent.ingest.recorder import FAILURES_MAX, Recorder
from agent.message import Envelope, Fact, Message, Sample, TagDefinition, time_text
from tests.ingest.fakes import FakeStore, SlowStore
from tests.waiting import LIMIT_S, wait_until_async

DEFINITION = TagDefinition("tag:a/b")


async def made(store: FakeStore) -> Recorder:
    """A recorder of source plc in zone plant-a, for one tag."""
    recorder = Recorder("plc", "plant-a", store)
    assert await recorder.define([DEFINITION]) == [1]
    return recorder


async def test_a_store_that_refuses_holds_the_source_and_loses_nothing() -> None:
    """While the store is full `record` does not return; when it takes again everything arrives once and in order."""
    store = FakeStore()
    recorder = await made(store)
    store.refusing = True
    rows = [Sample(1, n, n) for n in range(1, 4)]
    async with TaskGroup() as group:
        task = group.create_task(recorder.record("facts.telemetry", SampleColumns.of(rows)), name="record")
        await wait_until_async(lambda: recorder.refused_total > 2, "refusals")
        assert not task.done()
        store.refusing = False
    await recorder.drain()
    assert [row for _, row in store.samples] == rows
    assert recorder.samples_total == 3


async def test_what_a_full_store_has_taken_is_appended_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what it refuses, only the oldest is tried again until the store takes it. Then all the rest is appended before
    what comes later: a newer sample would be followed by older ones, which would count as the last values."""
    monkeypatch.setattr(recorder_module, "REFUSED_WAIT_S", 0.0)
    store, rows = FakeStore(), [Sample(1, n, n) for n in range(1, 8)]
    recorder = await made(store)
    store.is_full = True
    for row in rows[:5]:
        await recorder.record("facts.telemetry", SampleColumns.of([row]))
    assert recorder.refused_total == 5
    store.is_full = False
    for row in rows[5:]:
        await recorder.record("facts.telemetry", SampleColumns.of([row]))
    assert [row for _, row in store.samples] == rows


async def test_what_fails_while_a_newer_one_is_refused_is_appended_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's queue is full because its disk is: it has room again when what it holds fails, and would then take
    the newer sample first."""
    monkeypatch.setattr(recorder_module, "REFUSED_WAIT_S", 0.0)
    store, rows = FakeStore(), [Sample(1, n, n) for n in (1, 2)]
    recorder = await made(store)
    calls, first, append = list[int](), Future[Any](), store.append_columns

    def append_columns(*given: Any) -> Future[Any]:
        calls.append(len(calls))
        if len(calls) == 1:
            return first
        if len(calls) == 2:
            asyncio.get_running_loop().call_soon(first.set_exception, StoreFull("the disk"))
            raise StoreBusy("a full queue")
        return append(*given)

    monkeypatch.setattr(store, "append_columns", append_columns)
    for row in rows:
        await recorder.record("facts.telemetry", SampleColumns.of([row]))
    await recorder.drain()
    assert [row for _, row in store.samples] == rows


async def test_a_gap_is_stored_when_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it is merged with others, nor while the store has only queued it."""
    store, committed, told = FakeStore(), Future[None](), list[bool]()
    monkeypatch.setattr(store, "append_message", lambda *_: committed)
    recorder = await made(store)
    recorder.add_gap(Gap("plc", STORE_REFUSED, 1, 2, 5, count_exact=True))
    told.append(recorder.are_gaps_stored)
    recorder.hand_in_gaps()
    await recorder.settle()
    told.append(recorder.are_gaps_stored)
    committed.set_result(None)
    await recorder.settle()
    assert (told, recorder.are_gaps_stored) == ([False, False], True)


async def test_committed_waits_for_what_was_handed_in_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task reads the store once these samples are in it. They are not yet while they wait to be appended, while
    the store has only queued some of them, or when it has refused some after all."""
    monkeypatch.setattr(recorder_module, "REFUSED_WAIT_S", 0.0)
    store = SlowStore()
    queued, recorder = store.waiting, await made(store)
    for number in (1, 2):
        recorder.hand_in("facts.telemetry", SampleColumns.of([Sample(1, number, number)]))
    waiting = asyncio.create_task(recorder.committed())

    async def is_waiting() -> bool:
        for _ in range(5):
            await asyncio.sleep(0)
        return not waiting.done()

    assert await is_waiting()
    await recorder.settle()
    assert len(queued) == 2
    assert await is_waiting()
    queued[1].set_result(None)
    assert await is_waiting()
    queued[0].set_exception(StoreBusy("after all"))
    assert await is_waiting()
    await recorder.settle()
    await recorder.settle()
    recorder.hand_in("facts.telemetry", SampleColumns.of([Sample(1, 3, 3)]))  # not waited for: it came later
    queued[2].set_result(None)
    await asyncio.wait_for(waiting, LIMIT_S)
    await recorder.settle()
    queued[3].set_result(None)
    await recorder.drain()


async def test_samples_survive_being_stopped_while_waiting() -> None:
    """Cancelled in the middle of waiting for the store, the samples are still there to be drained."""
    store = FakeStore()
    recorder = await made(store)
    store.refusing = True
    async with TaskGroup() as group:
        task = group.create_task(recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 1, 1)])), name="record")
        await wait_until_async(lambda: recorder.refused_total > 0, "a refusal")
        task.cancel()
    store.refusing = False
    await recorder.drain()
    assert [row.value for _, row in store.samples] == [1]


async def test_gaps_become_one_fact_for_each_reason() -> None:
    """A storm of losses is told once, with its whole range and count, and told again only for what came after."""
    store = FakeStore()
    recorder = await made(store)
    for n in range(100):
        recorder.add_gap(
            Gap("plc", STORE_REFUSED, 1_000_000_000 + n, 2_000_000_000 + n, 5, count_exact=True, tags=("tag:a/b",))
        )
    await recorder.drain()
    await recorder.drain()
    (message,) = store.messages.values()
    assert (message.fact.subject, message.fact.predicate) == ("source:plc", "samples_lost")
    content = json.loads(message.fact.object_json)
    assert content == {
        "count": 500,
        "count_exact": True,
        "first_time": "1970-01-01T00:00:01Z",
        "last_time": "1970-01-01T00:00:02.000000099Z",
        "reason": "store_refused",
        "tags": ["tag:a/b"],
    }
    assert recorder.lost_total == 500


async def test_a_gap_is_handed_in_ahead_of_what_follows_it() -> None:
    """A process that is killed leaves no value behind a loss that no fact names. Losses that follow at once are told
    together later; the end of an outage is not kept back. Gaps count as no samples."""
    store = FakeStore()
    recorder = await made(store)

    async def lose_and_go_on(reason: str, time_ns: int) -> int:
        recorder.add_gap(Gap("plc", reason, time_ns, time_ns + 1, 5, count_exact=True))
        recorder.hand_in_gaps()
        await recorder.record("facts.telemetry", SampleColumns.of([Sample(1, time_ns + 2, 1)]))
        return len(store.messages)

    assert await lose_and_go_on(SERVER_QUEUE_OVERFLOW, 10) == 1
    assert await lose_and_go_on(SERVER_QUEUE_OVERFLOW, 20) == 1
    assert await lose_and_go_on(SOURCE_LOST, 30) == 3
    assert await lose_and_go_on(SERVER_QUEUE_OVERFLOW, 40) == 3
    await recorder.drain()
    assert len(store.messages) == 4
    assert (recorder.samples_total, recorder.last_value_unix_ms) == (4, 0)


async def test_a_gap_before_what_is_held_counts_for_no_earlier_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses a value after all, and commits a gap that was handed in later: the source is not stored as
    complete up to that value."""
    monkeypatch.setattr(recorder_module, "REFUSED_WAIT_S", 0.0)
    store = SlowStore()
    recorder = await made(store)
    recorder.hand_in("facts.telemetry", SampleColumns.of([Sample(1, 5, 1)]))
    await recorder.settle()
    await recorder.note_complete({"": Stored(5)})
    recorder.hold()
    recorder.add_gap(Gap("plc", SOURCE_LOST, 5, 9, 0, count_exact=False))
    recorder.release()
    await recorder.settle()
    store.waiting.pop().set_exception(StoreBusy("after all"))
    await recorder.note_complete({"": Stored(9)})
    assert (len(store.messages), store.complete) == (1, {})


async def test_what_is_held_follows_the_gap_that_was_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is stored before, unless it is too much to be held; nothing is held any more afterwards."""
    monkeypatch.setattr(recorder_module, "IN_FLIGHT_SAMPLES_MAX", 5)
    store = FakeStore()
    plc = await made(store)

    async def record(time_ns: int, count: int = 1) -> int:
        await plc.record("facts.telemetry", SampleColumns.of([Sample(1, time_ns, 1)] * count))
        return len(store.samples)

    plc.hold()
    assert [await record(10), await record(20)] == [0, 0]
    for first_ns in (4, 5):
        plc.add_gap(Gap("plc", LEADER_CHANGED, first_ns, 15, 0, count_exact=False))
    plc.release()
    assert await record(30) == 3
    assert (store.before[0][0], [gap["first_time"] for gap in store.told()]) == (2, [time_text(4), time_text(5)])
    plc.hold()
    assert [await record(40, 5), await record(50)] == [3, 9]
    plc.hold()
    plc.hand_in("facts.telemetry", SampleColumns.of([Sample(1, 60, 1)]))
    await plc.drain()
    assert store.samples[-1][1].source_time_ns == 60


async def test_a_gap_that_the_store_fails_to_record_is_recorded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no sample that is given up: what was lost stays known, and is told as what it is."""
    store = FakeStore()
    recorder = await made(store)

    def broken(*_: object) -> Future[Any]:
        raise OSError("the disk")

    with monkeypatch.context() as patched:
        patched.setattr(store, "append_message", broken)
        recorder.add_gap(Gap("plc", SOURCE_LOST, 1, 2, 5, count_exact=True))
        recorder.hand_in_gaps()
        for _ in range(FAILURES_MAX):
            with pytest.raises(OSError, match="the disk"):
                await recorder.settle()
        await recorder.settle()
    await recorder.drain()
    (message,) = store.told()
    assert message["reason"] == "source_lost"


async def test_a_gap_whose_append_is_not_waited_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that ends while the store commits its gap does not know whether the store took it: it is told again."""
    store = FakeStore()
    recorder = await made(store)
    under_way, append_message = Future[Any](), store.append_message
    answers = [under_way]
    monkeypatch.setattr(store, "append_message", lambda *args: answers.pop() if answers else append_message(*args))
    recorder.add_gap(Gap("plc", SOURCE_LOST, 1, 2, 5, count_exact=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await recorder.drain()
    assert not under_way.cancelled()
    under_way.set_exception(StoreBusy("after all"))
    await recorder.drain()
    (message,) = store.told()
    assert message["count"] == 5


async def test_what_is_no_refusal_is_not_hidden() -> None:
    """An error that is no refusal reaches the supervisor, and the samples are kept for the next life. After some of
    them they are given up, with a fact that says from when to when."""
    store = FakeStore()
    recorder = await made(store)
    store.failing_futures, store.failure = 1, ValueError("ours")
    with pytest.raises(ValueError, match="ours"):
        await recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 1, 1)]))
    await recorder.drain()
    store.failing_futures = FAILURES_MAX
    recorder.hand_in("facts.telemetry", SampleColumns.of([Sample(1, 5, 2), Sample(1, 7, 3), Sample(1, 6, 4)]))
    for _ in range(FAILURES_MAX):
        with pytest.raises(ValueError, match="ours"):
            await recorder.drain()
    await recorder.drain()
    assert [row.value for _, row in store.samples] == [1]
    (lost,) = store.told()
    assert (lost["count"], lost["first_time"], lost["last_time"]) == (3, time_text(5), time_text(7))


async def test_what_is_on_its_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes samples and does not commit them holds the source once so many are on their way."""
    monkeypatch.setattr("agent.ingest.recorder.IN_FLIGHT_SAMPLES_MAX", 2)
    store = SlowStore()
    recorder = await made(store)
    await recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 1, 1), Sample(1, 2, 2)]))
    async with TaskGroup() as group:
        task = group.create_task(recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 3, 3)])), name="record")
        await wait_until_async(lambda: len(store.waiting) == 2, "the second append")
        await asyncio.sleep(0)
        assert not task.done()
        store.waiting[0].set_result(None)
    assert recorder.samples_total == 2
    store.waiting[1].set_result(None)


async def test_draining_ends_with_the_last_commit() -> None:
    """Told to stop, a recorder waits until all that it handed in is committed; a wait that is cancelled takes nothing
    back."""
    store = SlowStore()
    recorder = await made(store)
    await recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 1, 1)]))
    async with TaskGroup() as group:
        for _ in range(2):
            task = group.create_task(recorder.drain(), name="drain")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])
        group.create_task(recorder.drain(), name="drain")
        store.waiting[0].set_result(None)
    assert len(store.waiting) == 1
    assert recorder.samples_total == 1


def message(number: int, size: int = 2) -> Message:
    """A message with an object of this size."""
    text = b'"' + b"x" * (size - 2) + b'"'
    return Message(Envelope(f"m/{number}", "plant-a", "*", 1), Fact("event:plc/x", "event_raised", text))


async def test_a_message_that_the_store_fails_at_is_given_up_as_a_loss_of_its_kind() -> None:
    """After some attempts, with a fact of the recorder's own predicate; the next message passes."""

    class Failing(FakeStore):
        def append_message(self, stream: str, message: Message) -> Future[Any]:
            if message.envelope.message_id == "m/1":
                raise ValueError("no such luck")
            return super().append_message(stream, message)

    store = Failing()
    other = (await made(store)).for_another_task("events_lost")
    other.hand_in_message("events", message(1), 7_000_000_000)
    for _ in range(3):
        with pytest.raises(ValueError, match="luck"):
            await other.settle()
    other.hand_in_message("events", message(2), 8)
    await other.drain()
    assert list(store.events) == ["m/2"]
    (lost,) = store.messages.values()
    assert lost.fact.predicate == "events_lost"
    said = json.loads(lost.fact.object_json)
    assert (said["reason"], said["count"], said["first_time"]) == ("store_rejected", 1, "1970-01-01T00:00:07Z")
    assert other._in_flight == 0, "what was given up makes room"
    for _ in range(2):
        await other.note_complete({"events": Stored(9)})
    assert store.complete == {("plc", "events"): Stored(9)}, "and is settled"


async def test_the_time_of_the_last_value_is_of_no_bad_sample() -> None:
    """A source that gives nothing but bad samples has had no value since the last good one."""
    recorder = await made(FakeStore())
    for second, status in ((1, 0), (2, 0x800A_0000)):
        await recorder.record("facts.telemetry", SampleColumns([1], [second * 10**9], [None], [status]))
    await recorder.drain()
    assert recorder.last_value_unix_ms == 1_000
    await recorder.record(
        "facts.telemetry", SampleColumns([1, 1], [3 * 10**9, 4 * 10**9], [None, None], [0, 0x800A_0000])
    )
    await recorder.drain()
    assert recorder.last_value_unix_ms == 3_000


async def test_the_beginning_of_a_source_is_stored_although_the_first_commit_fails() -> None:
    """A process that stores values and is killed leaves a gap: the next one must know since when."""
    store = FakeStore()
    recorder = await made(store)
    store.is_full = True
    await recorder.begin_complete("", Stored(5))
    store.is_full = False
    await recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 6, 1.0)]))
    assert store.complete == {("plc", ""): Stored(5)}


async def test_a_source_is_complete_when_everything_before_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while samples are on their way, and not while a gap waits to become a fact. Parts that are no longer known
    are removed, those that an earlier process has stored too. What the store refuses, at once or when it commits, is
    stored later."""
    monkeypatch.setattr(recorder_module, "COMPLETE_INTERVAL_S", 0.0)
    store = SlowStore()
    recorder = await made(store)
    recorder.continue_from({"tag:a/1": Stored(1)})
    store.complete["plc", "tag:a/1"] = Stored(1)
    await recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 1, 1.0)]))

    async def noted(*times_ns: int, looks: int = 3) -> dict[str, int]:
        for _ in range(looks):
            await recorder.note_complete({f"part {n}": Stored(time_ns) for n, time_ns in enumerate(times_ns)})
        return {part: known.complete_ns for (_, part), known in store.complete.items()}

    assert await noted(5) == {"tag:a/1": 1}
    await recorder.record("facts.telemetry", SampleColumns.of([Sample(1, 6, 2.0)]))
    store.waiting[0].set_result(None)
    assert await noted(6, looks=1) == {"part 0": 5}, "the sample of 6 is on its way"
    store.waiting[1].set_result(None)
    assert await noted(6) == {"part 0": 6}
    recorder.add_gap(Gap("plc", SOURCE_LOST, 1, 2, 0, count_exact=False))
    assert await noted(7) == {"part 0": 6}
    await recorder.drain()
    store.refusing = True
    assert await noted(7) == {"part 0": 6}
    store.refusing = False
    assert await noted(7, 8) == {"part 0": 7, "part 1": 8}
    store.is_full = True
    await noted(8, 8)
    store.is_full = False
    assert await noted(8, 8) == {"part 0": 8, "part 1": 8}
    store.is_full = True
    await noted(8)
    store.is_full = False
    assert await noted(8) == {"part 0": 8}, "part 1 is removed although the store has failed to"
    store.is_full = True
    await noted(9)
    store.is_full = False
    await recorder.end_recording()
    assert {part: known.complete_ns for (_, part), known in store.complete.items()} == {"part 0": 9}
