"""A backfill at work beside a fake server and a fake store, for the tests of what it does."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup
from agent.ingest import quality
from agent.ingest.completeness import Stored
from agent.ingest.delivery import Delivery
from agent.ingest.errors import HistoryRefused, StoredUnreadable
from agent.ingest.gap import SOURCE_LOST
from agent.ingest.lifecycle import Newest
from agent.ingest.opcua.address import Reading, TagPoint
from agent.ingest.opcua.history import HistoryBackfill, HistoryPage, HistoryRange, backfill
from agent.ingest.opcua.history.gap_fill import HistoryValue
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from agent.ingest.recorder import Recorder
from agent.ingest.tags.tag_map import Tag
from agent.message import Sample
from agent.settings.opcua_address import STANDARD_URI, NodeAddress
from tests.ingest.fakes import FakeStore
from tests.ingest.test_delivery import S, made, retagged
from tests.ingest.test_delivery import tag as plain_tag
from tests.waiting import wait_until_async


def tag(name: str) -> Tag:
    """A tag that is the node of its name."""
    return dataclasses.replace(plain_tag(name), point=TagPoint.of(NodeAddress(STANDARD_URI, name)))


class FakeStored:
    """What a store holds from earlier processes."""

    def __init__(self, times: Mapping[int, set[int]] | None = None, outages: Sequence[tuple[int, int]] = ()) -> None:
        self.times, self.outages = dict(times or {}), outages
        self.is_readable = True
        self.asked: list[tuple[int, int, int]] = []

    def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:  # noqa: ARG002
        return {}

    def completeness_of_others(self, *_: object) -> Mapping[str, Stored]:
        return {}

    def completeness(self, source: str) -> Mapping[str, Stored]:  # noqa: ARG002
        return {}

    def sample_times(
        self,
        stream: str,  # noqa: ARG002
        numbers: Collection[int],
        first_ns: int,
        last_ns: int,
        times_max: int,
    ) -> Mapping[int, Collection[int]] | None:
        self.asked.append((len(numbers), first_ns, last_ns))
        if not self.is_readable:
            raise StoredUnreadable("the store is damaged")
        found = {n: {t for t in times if first_ns <= t <= last_ns} for n, times in self.times.items() if n in numbers}
        return found if sum(map(len, found.values())) <= times_max else None

    def open_outages(self, source: str) -> Sequence[tuple[int, int]]:  # noqa: ARG002
        return self.outages


class FakeHistory:
    """A server's history: a value a second for every tag, or refusals."""

    def __init__(self, refusal: HistoryRefused | None = None, times: int = 1_000_000) -> None:
        self.refusal, self.refusals_left = refusal, times if refusal else 0
        self.calls: list[tuple[int, int]] = []
        self.names = "abc"  # of the tags, in the order of their numbers
        self.is_gone = False
        self.nodes_max = 20  # of a call; it refuses more
        self.now_ns = 0
        self.answers: asyncio.Semaphore | None = None  # how many it may give, if not any number

    async def namespaces(self) -> list[str]:
        return [STANDARD_URI]

    async def clock_ns(self) -> int | None:
        """The clock; 0: it does not say, and what the source knows of it is right."""
        return self.now_ns or None

    async def read_history(
        self, ranges: Sequence[HistoryRange], nodes: Sequence[tuple[Reading, int]], values_max: int
    ) -> list[HistoryPage]:
        assert [str(reading.address.identifier)[:1] for reading, _ in nodes] == [
            self.names[part.tag - 1] for part in ranges
        ]
        self.calls.append((len(ranges), values_max))
        await (self.answers.acquire() if self.answers else asyncio.sleep(0))
        if self.refusal is not None and self.refusals_left:
            self.refusals_left -= 1
            raise self.refusal
        if len(ranges) > self.nodes_max:
            raise HistoryRefused("BadTooManyOperations", is_final=False)
        if self.is_gone:
            return [HistoryPage(quality.BAD_NODE_ID_UNKNOWN) for _ in ranges]
        start, end = min(r.start_ns for r in ranges), max(r.end_ns for r in ranges)
        times = range(-(-start // S) * S, end, S)[:values_max]
        return [HistoryPage(quality.GOOD, [HistoryValue(t, t // S, 0) for t in times]) for _ in ranges]


@dataclasses.dataclass
class Filling:
    """A backfill at work, with what it works on."""

    store: FakeStore
    stored: FakeStored
    history: FakeHistory
    delivery: Delivery
    fill: HistoryBackfill
    committed_s: float = 0.1

    async def value(self, at_s: int) -> None:
        """A live value of the first tag, under the number that it has."""
        number = self.delivery.renumbered.get(1, 1)
        await self.delivery.deliver(SampleColumns.of([Sample(number, at_s * S, at_s)]), at_s * S)
        self.keep(at_s)

    def keep(self, at_s: int) -> None:
        """The store holds values of this time, under each number that a tag may have."""
        for number in range(1, 10):
            self.stored.times.setdefault(number, set()).add(at_s * S)

    async def outage(self, lost_s: int = 101, returned_s: int = 110) -> None:
        """An outage of the source, as its supervisor tells it."""
        returned_ns, tags = returned_s * S, self.delivery.tags
        await self.delivery.lose(BAD_COMMUNICATION_ERROR, returned_ns, since_ns=lost_s * S)
        self.delivery.add_gap(SOURCE_LOST, lost_s * S, returned_ns, 0, tags, exact=False)
        await self.delivery.deliver(SampleColumns.of([Sample(n, returned_ns, returned_s) for n in tags]), returned_ns)
        self.keep(returned_s)

    async def edit(self) -> None:
        """The first tag gets another unit, and with it another number. What its old item still sends is discarded."""
        self.history.names = "a" * 9
        before = tag("a")
        edited = dataclasses.replace(before, definition=dataclasses.replace(before.definition, unit="bar"))
        await retagged(self.delivery, 115 * S, edited)

    def fills(self) -> list[dict[str, Any]]:
        """What the facts of filled gaps say."""
        facts = [message.fact for message in self.store.messages.values()]
        return [json.loads(fact.object_json) for fact in facts if fact.predicate == "history_backfilled"]

    async def filled(self, gaps: int = 1) -> None:
        """So many facts are there."""
        await wait_until_async(lambda: len(self.fills()) == gaps, "a filled gap")

    def times(self, name: str = "a") -> list[int]:
        """The times of a tag's good samples in seconds, live and from history, in order."""
        return sorted(sample.source_time_ns // S for sample in self.store.good(name))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """The backfill runs without pauses for the length of a block."""
        with patch.multiple(backfill, TICK_S=0.01, RETRY_S=0.0, COMMITTED_S=self.committed_s):
            async with TaskGroup() as group:
                task = group.create_task(self.fill.run(self.history), name="fill")
                try:
                    yield
                finally:
                    task.cancel()


async def prepared(
    names: str = "a",
    *,
    other: str = "",
    store: FakeStore | None = None,
    history: FakeHistory | None = None,
    stored: FakeStored | None = None,
    values_per_s: int = 1_000_000,
) -> Filling:
    """A backfill of the tags of these names, `other` of them in another stream, that does not run yet."""
    store, stored = store or FakeStore(), stored or FakeStored()
    tags = [dataclasses.replace(tag(name), stream="facts.other") if name in other else tag(name) for name in names]
    delivery = await made(store, *tags)
    recorder = Recorder("plc", "plant-a", store)
    fill = HistoryBackfill(delivery, recorder, stored, values_per_s)
    fill.now_ns = lambda: 1_000 * S
    delivery.on_gap(fill.note_gap)
    return Filling(store, stored, history or FakeHistory(), delivery, fill)


@asynccontextmanager
async def filling(names: str = "a", **given: Any) -> AsyncIterator[Filling]:
    """A backfill at work for the length of a block."""
    it = await prepared(names, **given)
    async with it.session():
        yield it


class GoingHistory(FakeHistory):
    """A server whose clock goes, from a time on."""

    def __init__(self, now_ns: int) -> None:
        super().__init__()
        self._begun_ns = now_ns - time.monotonic_ns()

    @property
    def shown_ns(self) -> int:
        return self._begun_ns + time.monotonic_ns()

    async def clock_ns(self) -> int | None:
        return self.shown_ns
