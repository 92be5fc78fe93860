"""The writer's queue: its limits in pieces and in bytes, and what the group commit reads of it."""

import pytest

from agent.columns import SampleColumns
from agent.fact_store.append.group_commit import CommitPace, QueuedSamples
from agent.fact_store.append.queue import AppendSamples, Call, WriteQueue
from agent.fact_store.log.errors import FactsRefused, StoreBusy
from tests.fact_store.making import TELEMETRY, samples


def call(size: int = 0, queued_ns: int = 0) -> Call:
    """A deferred call whose arguments take so many bytes."""
    return Call("call", size, queued_ns, lambda _: None, is_deferred=True)


def append(queued_ns: int, size: int = 1) -> AppendSamples:
    """One sample of so many bytes."""
    return AppendSamples(TELEMETRY, SampleColumns.of(samples(1)), 1, size, queued_ns)


def put(queue: WriteQueue, work: AppendSamples | Call) -> None:
    """Queue a piece of work."""
    queue.put_call(work) if isinstance(work, Call) else queue.put_samples(work)


def test_what_never_fits_is_refused_for_good() -> None:
    """Work of more bytes than the queue holds is refused by name, and takes no room. With StoreBusy its caller would
    retry for ever."""
    queue = WriteQueue(10, 100, CommitPace(10**9, 1000))
    for work in (call(101), append(0, 101)):
        with pytest.raises(FactsRefused, match="101 bytes at once"):
            put(queue, work)
    put(queue, call(100))
    put(queue, append(0, 100))


def test_calls_are_bounded_in_bytes() -> None:
    """Pages of peers wait within the bytes of the queue, whatever the number of calls; the end of one makes room."""
    queue, page = WriteQueue(10, 100, CommitPace(10**9, 1000)), call(60)
    put(queue, page)
    with pytest.raises(StoreBusy, match="60 bytes wait"):
        put(queue, call(41))
    put(queue, call(40))
    queue.release([page])
    put(queue, call(60))


def test_waiting_counts_from_the_oldest() -> None:
    """Later work delays neither the commit of samples nor that of deferred calls. Otherwise both would wait for as long
    as others come. Work that was taken no longer counts."""
    queue = WriteQueue(10, 100, CommitPace(10**9, 1000))
    for at_ns in (5, 6, 7):
        queue.put_samples(append(at_ns))
        queue.put_call(call(queued_ns=at_ns))
    assert queue._waiting == {TELEMETRY: QueuedSamples(3, 5, 7)}
    assert (queue._deferred_ns, queue._urgent_count) == (5, 0)
    queue.take_all()
    assert queue._deferred_ns is None
    queue.put_samples(append(8))
    assert queue._waiting == {TELEMETRY: QueuedSamples(1, 8, 8)}
