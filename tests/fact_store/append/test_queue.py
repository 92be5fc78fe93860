"""The writer's queue: its limits in pieces and in bytes, and what the group commit reads of it."""

import pytest

from agent.columns import SampleColumns
from agent.fact_store.append.group_commit import CommitPace
from agent.fact_store.append.queue import AppendSamples, Call, WriteQueue
from agent.fact_store.core.errors import FactsRefused
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
