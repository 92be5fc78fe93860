"""Applies the sampling rules to the raw samples of one source and passes the result to the recorder, stream by stream.

A `Delivery` exists as long as its source is configured, across all connections and tag maps, because the sampler needs
the last recorded values when the source returns. It keeps no sample that it has passed on.

A new tag map waits here (`offer_map`) until the source takes it over (`take_over_map`). The source does so in the task
that records, after everything that was read under the old map. Tags that stay keep their number and sampling state. A
value held back by a rule that ends is recorded. A tag that is removed is recorded once as out of service: otherwise its
last value would look current forever.

Where two gateways of a zone read the same source, one stands by (`Standby`): its source is connected and warm, and
delivers nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

from agent.columns import SampleColumns
from agent.concurrency import timeout
from agent.ingest import quality as status
from agent.ingest.clock import mark_doubted
from agent.ingest.completeness import Stored
from agent.ingest.gap import AGENT_STOPPED, TAGS_NAMED_MAX, Gap, TagGap
from agent.ingest.lifecycle import Newest
from agent.ingest.ports import RemovedTag
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import Sampler
from agent.ingest.tags.tag_map import Tag
from agent.message import Sample

log = logging.getLogger(__name__)


class Standby:
    """The standby of one source. Where one gateway records alone, it is over before the first life. Once it is over, it
    does not come back: a source that is to stop recording is stopped in order and made anew.

    `on_warm` is called while the source waits, `on_begin` once, before anything is recorded."""

    def __init__(self, on_warm: Callable[[], None], on_begin: Callable[[], Awaitable[None]]) -> None:
        self._on_warm, self._on_begin = on_warm, on_begin
        self._begun = asyncio.Event()
        self.is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether recording has begun, even if the source does not record yet."""
        return self._begun.is_set()

    def begin_recording(self) -> None:
        """Recording begins."""
        self._begun.set()

    async def wait(self, seconds: float) -> None:
        """Called by a source that is warm, again and again until `is_over`: returns after this time at the latest, so
        that the source can look after its connection."""
        if not self.has_begun:
            self._on_warm()
        try:
            async with timeout(seconds):
                await self._begun.wait()
        except TimeoutError:
            return
        await self.end_standby()

    async def end_standby(self) -> None:
        """Recording has begun: the source records from now on."""
        if not self.is_over:
            await self._on_begin()
            self.is_over = True


class Delivery:
    """Passes the samples of one source to the store."""

    def __init__(
        self,
        source: str,
        tags: Sequence[Tag],
        numbers: Sequence[int],
        recorder: Recorder,
        standby: Standby | None = None,
        on_turn: Callable[[], None] = lambda: None,
        on_removed: Callable[[Sequence[int]], None] = lambda _: None,
    ) -> None:
        """`on_turn`: called before what is due is delivered. `on_removed`: before these tags are read no more."""
        self.source = source
        self.recorder = recorder
        self._standby, self._on_turn, self._on_removed = standby, on_turn, on_removed
        self.sampler = Sampler()
        self.tags: dict[int, Tag] = {}
        self.points: dict[int, Any] = {}
        self._one_stream: str | None = None
        self._wanted: dict[int, Tag] | None = None
        self._on_value: Callable[[int], None] | None = None
        self.doubted_parts: dict[str, Stored] = {}  # to be stored with the others: our clock is not believed
        self.has_outage = False  # the source is away, or has not been read since the last process
        self.renumbered: Mapping[int, int] = {}  # from earlier to present numbers of tags
        self._gap_listeners: list[Callable[[TagGap], None]] = []
        self.turns_total = 0
        self._assign(_numbered(tags, numbers))

    def numbers_by_stream(self) -> dict[str, list[int]]:
        """The numbers of the tags by the stream they are recorded in."""
        found: dict[str, list[int]] = {}
        for number, tag in self.tags.items():
            found.setdefault(tag.stream, []).append(number)
        return found

    def seed(self, newest: Mapping[int, Newest]) -> None:
        """Continue from the newest samples that an earlier process recorded, or another gateway."""
        for number, (sample, good_ns) in newest.items():
            if number in self.tags:  # a new map may have been taken over during the search
                self.sampler.seed(number, sample, good_ns)

    @property
    def is_standby(self) -> bool:
        """Whether another gateway records. The source then keeps its connection, and delivers and declares nothing."""
        return self._standby is not None and not self._standby.is_over

    async def stand_by(self, seconds: float) -> None:
        """The source is connected and warm: wait until recording begins, at most for this time."""
        assert self._standby is not None, "it stands by"
        self.turns_total += 1
        await self._standby.wait(seconds)

    @property
    def has_pending_map(self) -> bool:
        """Whether a new tag map is waiting."""
        return self._wanted is not None

    def offer_map(self, tags: Sequence[Tag], numbers: Sequence[int]) -> None:
        """Offer a new tag map to the source. It replaces one that is waiting."""
        self._wanted = _numbered(tags, numbers)

    def take_over_map(self, now_ns: int) -> bool:
        """Take over the waiting tag map; True if there was one. Awaits nothing, so it happens as a whole. The caller
        then awaits `recorder.settle`."""
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return False
        if self.is_standby:  # the other gateway records what ends
            self._assign(wanted)
            return True
        subjects = {tag.definition.subject: number for number, tag in wanted.items()}
        ended = {n: subjects.get(self.tags[n].definition.subject) for n in self.points if n not in wanted}
        gone = [number for number, later in ended.items() if later is None]
        self.renumbered = _with_later(self.renumbered, ended, wanted)
        self._on_removed(gone)
        ruled = [n for n in self.points if n not in wanted or wanted[n].rule != self.sampler.rule(n)]
        self._hand_in(SampleColumns.of(self.sampler.release(ruled, now_ns)))
        self._hand_in(SampleColumns.of(self.sampler.lose(status.TAG_REMOVED, now_ns, gone, corrects=True)))
        self._assign(wanted)
        return True

    def expect_value(self, on_value: Callable[[int], None]) -> None:
        """Call `on_value` once, with the time, when the next good value is delivered."""
        self._on_value = on_value

    @property
    def is_value_expected(self) -> bool:
        """Whether no good value has come since `expect_value`."""
        return self._on_value is not None

    async def deliver(self, samples: SampleColumns, now_ns: int, returned_ns: int | None = None) -> None:
        """Record the samples that the rules let through (see `Sampler.select`). Waits while the store refuses."""
        # Before the rules: a value that stands is recorded again as good when the clock is believed.
        spans = self.recorder.doubted()
        columns = self.sampler.select_columns(mark_doubted(samples, spans), now_ns, returned_ns)
        columns = mark_doubted(columns, spans)  # and those that have got the time of their return
        if self._on_value is not None and not all(map(status.is_bad, columns.qualities)):
            self._note_value(now_ns)
        if columns.tags:
            self._hand_in(columns)
            await self.recorder.settle()

    def regain(self, tags: Iterable[int], now_ns: int) -> None:
        """Record the last values of these tags again (see `Sampler.regain`), without waiting: the caller has values
        that come after them, and may be cancelled."""
        found = self.sampler.regain(tags, now_ns)
        if any(not status.is_bad(sample.quality) for sample in found):
            self._note_value(now_ns)
        if found:
            self._hand_in(mark_doubted(SampleColumns.of(found), self.recorder.doubted()))

    async def note_complete(self, parts: Mapping[str, Stored]) -> None:
        """Store up to when parts of the source are complete, unless it is away."""
        if not self.has_outage:
            await self.recorder.note_complete({**parts, **self.doubted_parts})

    async def deliver_due(self, now_ns: int) -> None:
        """Record the samples and gaps that are due because time has passed."""
        self.turns_total += 1
        self._on_turn()
        await self._record(self.sampler.due(now_ns))
        self.recorder.hand_in_gaps()
        await self.recorder.settle()

    async def lose(
        self,
        quality: int,
        now_ns: int,
        tags: Iterable[int] | None = None,
        *,
        corrects: bool = False,
        since_ns: int | None = None,
    ) -> None:
        """Record once that these tags, by default all, have no value now, or since `since_ns` (see `Sampler.lose`)."""
        await self._record(self.sampler.lose(quality, now_ns, tags, corrects=corrects, since_ns=since_ns))

    def on_gap(self, listener: Callable[[TagGap], None]) -> None:
        """Call `listener` for each gap."""
        self._gap_listeners.append(listener)

    def add_gap(
        self,
        reason: str,
        first_ns: int,
        last_ns: int,
        count: int,
        tags: Iterable[int],
        *,
        exact: bool,
    ) -> None:
        """Note lost values, which become a gap fact. Times in ns since 1970."""
        hit = tuple(dict.fromkeys(map(self.number, tags)))
        last_ns = max(first_ns, last_ns)
        named = tuple(self.subjects(hit[:TAGS_NAMED_MAX]))
        self.recorder.add_gap(Gap(self.source, reason, first_ns, last_ns, count, exact, named))
        for listener in self._gap_listeners:
            listener(TagGap(reason, first_ns, last_ns, hit))

    def number(self, tag: int) -> int:
        """The present number of a tag; the last one if the tag is no longer read."""
        return self.renumbered.get(tag, tag)

    def present(self, tags: Iterable[int]) -> list[int]:
        """The present numbers of those of these tags that are still read."""
        return [number for tag in tags if (number := self.number(tag)) in self.tags]

    def subjects(self, tags: Iterable[int]) -> list[str]:
        """The subjects of these tags."""
        return [self.tags[tag].definition.subject for tag in tags if tag in self.tags]

    def named(self, tags: Sequence[int]) -> dict[str, object]:
        """The fields of a log line about tags: how many, and of the first the name, the row of the tag file and the
        address as the file writes it."""
        known = [self.tags[tag] for tag in tags[:TAGS_NAMED_MAX] if tag in self.tags]
        names = [f"{tag.name} (row {tag.row}, {tag.definition.address})" for tag in known]
        more = f" and {len(tags) - TAGS_NAMED_MAX} more" if len(tags) > TAGS_NAMED_MAX else ""
        return {"count": len(tags), "tags": ", ".join(names) + more}

    def _note_value(self, now_ns: int) -> None:
        if self._on_value is not None:
            on_value, self._on_value = self._on_value, None
            on_value(now_ns)

    async def _record(self, rows: list[Sample]) -> None:
        if rows:
            self._hand_in(mark_doubted(SampleColumns.of(rows), self.recorder.doubted()))
            await self.recorder.settle()

    def _hand_in(self, columns: SampleColumns) -> None:
        self.recorder.hand_in_gaps()
        if self._one_stream is not None:
            self.recorder.hand_in(self._one_stream, columns)
            return
        streams = [self.tags[number].stream for number in columns.tags]
        for stream in dict.fromkeys(streams):
            is_here = [tag_stream == stream for tag_stream in streams]
            self.recorder.hand_in(stream, SampleColumns._make(list(compress(column, is_here)) for column in columns))

    def _assign(self, wanted: dict[int, Tag]) -> None:
        self.tags = wanted
        self.points = {n: tag.point for n, tag in wanted.items()}
        self.sampler.adopt({n: tag.rule for n, tag in wanted.items()}, self.renumbered)
        streams = {tag.stream for tag in wanted.values()}
        self._one_stream = streams.pop() if len(streams) == 1 else None


async def record_ended(
    ended: Sequence[RemovedTag],
    readers: Collection[str],
    recorder_of: Callable[[str], Recorder],
    *,
    declares: bool = False,
) -> None:
    """Record as out of service each of these tags that no source reads any more: those that were removed from the tag
    files while no process ran. Otherwise the last value would look current forever. Waits while the store refuses.

    `readers`: the subjects that are read. `declares`: also what is missing of all since their source was complete,
    because its gap does not name them.
    """
    now_ns = time.time_ns()
    for source in dict.fromkeys(tag.source for tag in ended):
        recorder, of_source = recorder_of(source), [tag for tag in ended if tag.source == source]
        first_ns = of_source[0].complete_ns
        if declares and first_ns is not None:
            names = tuple(tag.subject for tag in of_source[:TAGS_NAMED_MAX])
            recorder.add_gap(Gap(source, AGENT_STOPPED, first_ns, max(first_ns, now_ns), 0, False, names))
            recorder.hand_in_gaps()
        removed = [tag for tag in of_source if tag.subject not in readers]
        for stream in dict.fromkeys(tag.stream for tag in removed):
            # A fact is never older than the previous one of its tag, which may have come from a clock that is ahead.
            rows = [
                Sample(tag.number, max(now_ns, tag.newest_ns + 1), None, status.TAG_REMOVED)
                for tag in removed
                if tag.stream == stream
            ]
            await recorder.record(stream, SampleColumns.of(rows))
        await recorder.drain()
    if gone := [tag.subject.removeprefix("tag:") for tag in ended if tag.subject not in readers]:
        extra = {"action": "tags_removed_while_stopped", "count": len(gone), "tags": gone[:TAGS_NAMED_MAX]}
        log.info("tags were removed from the tag files while the node was down", extra=extra)


def _with_later(known: Mapping[int, int], ended: Mapping[int, int | None], wanted: Mapping[int, Tag]) -> dict[int, int]:
    """The present numbers of the tags of a new map by all their earlier numbers."""
    later = {**ended, **{number: ended.get(then, then) for number, then in known.items()}}
    return {number: now for number, now in later.items() if now is not None and number not in wanted}


def _numbered(tags: Sequence[Tag], numbers: Sequence[int]) -> dict[int, Tag]:
    assert len(tags) == len(set(numbers)) == len(numbers), "the store gives each definition a number of its own"
    return dict(zip(numbers, tags, strict=True))
