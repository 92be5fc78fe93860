"""Fills the gaps of one source from the history of its server, slowly and alongside the live values.

Each gap fact is filled over exactly its time. After a restart, so is every outage that was declared and not filled; by
request, any time. The store is searched for the values of the time that it already has.

One call is made at a time, and its values are committed before the next: so a backfill of hours holds one page in
memory, and live values do not queue behind it. The values are recorded under definitions of their own, marked as
acquired from history. A fact `history_backfilled` records what was filled and what could not be read.

The work continues in the next session where it stopped. A refused or slow history does not end a session.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from agent.columns import SampleColumns
from agent.ingest import quality
from agent.ingest.completeness import CLOCK_JUMP_NS
from agent.ingest.delivery import Delivery
from agent.ingest.errors import HistoryRefused, StoredUnreadable
from agent.ingest.gap import (
    FILL_PREDICATE,
    OUTAGE_REASONS,
    TAGS_NAMED_MAX,
    TagGap,
)
from agent.ingest.opcua.address import Reading
from agent.ingest.opcua.history.gap_fill import (
    CallSize,
    FillOutcome,
    GapFill,
    HistoryPage,
    HistoryRange,
)
from agent.ingest.ports import StoredFacts
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import Sampler
from agent.ingest.source_clock import drift_ns
from agent.ingest.tags.tag_map import Tag
from agent.message import Envelope, Fact, Message, Sample, canonical_json, time_text

if TYPE_CHECKING:
    from agent.ingest.opcua.session import OpcuaSession  # which imports this package

log = logging.getLogger(__name__)

ACQUISITION = "history"
TICK_S = 0.5  # between checks when there is nothing to fill
NODES_PER_READ_MAX = 20  # if the server has a lower limit, it refuses, and the call is halved
VALUES_PER_READ_MAX = 1_000  # of one node; with 20 nodes a page has some 500 kB
UNDELIVERED_NS_MAX = 10_000_000_000  # how old a live value may be that is not delivered yet
COMMITTED_S = 10.0  # live values with times of a gap are stored by then
JOBS_MAX = 100  # waiting gaps; beyond it the newest two are merged
SLICE_TAGS = 100  # the stored times of a slice are held in memory: 100 tags at 1 Hz for an hour are 360,000
SLICE_NS = 3_600 * 1_000_000_000
STORED_TIMES_MAX = 2_000_000  # some 150 MB; a slice with more is halved
RETRY_S, RETRY_MAX_S = 1.0, 60.0  # after a call that failed as a whole
CALLS_FAILED_MAX = 8  # in a row, and the last asked for one value: some nine minutes
GONE_NS_MAX = 86_400 * 1_000_000_000  # read again of a tag whose node was gone; one that never was there is in each gap


@dataclass(slots=True)
class _Slice:
    """Some tags and a time for which the store is not searched yet."""

    tags: Sequence[int]
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class _Job:
    """One gap to fill: slices to be searched in the store, and the fill that is being read. It waits until live values
    with its times are stored."""

    cause: str  # gap, restart or request
    first_ns: int
    last_ns: int  # excluded
    tags: set[int] | None = None  # None: all
    over_s: float = 0.0  # when the last time is over, on our monotonic clock
    outages: tuple[int, ...] = ()  # first times of the outages that this job fills
    begun_s: float = 0.0  # the server's clock had reached the end by then
    is_again: bool = False  # only of times that were read while a node was gone
    slices: Iterator[_Slice] | None = None  # None: not begun
    halves: list[_Slice] = field(default_factory=list)  # halves of slices with too many stored times; taken first
    fill: GapFill | None = None
    outcomes: dict[int, FillOutcome] = field(default_factory=dict)  # by tag
    values: int = 0

    def touches(self, later: _Job) -> bool:
        """Whether both are to be read together: their times overlap or are close."""
        are_alike = self.cause == later.cause != "request" and self.slices is None
        first_ns, last_ns = self.first_ns - UNDELIVERED_NS_MAX, self.last_ns + UNDELIVERED_NS_MAX
        return are_alike and first_ns <= later.last_ns and later.first_ns <= last_ns

    def with_all_of(self, earlier: _Job) -> _Job:
        """Both merged, before either has begun."""
        return _Job(
            self.cause,
            min(self.first_ns, earlier.first_ns),
            max(self.last_ns, earlier.last_ns),
            None if self.tags is None or earlier.tags is None else self.tags | earlier.tags,
            max(self.over_s, earlier.over_s),
            self.outages + earlier.outages,
            is_again=self.is_again and earlier.is_again,
        )


class HistoryBackfill:
    """The gaps of one source and their filling."""

    def __init__(self, delivery: Delivery, recorder: Recorder, stored: StoredFacts, values_per_s_max: int) -> None:
        assert values_per_s_max > 0, "with a rate of 0 there is no backfill"
        self._delivery, self._recorder, self._stored = delivery, recorder, stored
        self._rate = values_per_s_max
        self._jobs: deque[_Job] = deque()  # bounded by JOBS_MAX through `_add`
        self._sampler = Sampler()
        self._ruled: Mapping[int, Tag] | None = None  # the tag map whose rules the sampler uses
        self._numbers: dict[int, int] = {}  # by tag: the number under which values from history are recorded
        self._endless: set[int] = set()  # tags whose history never ends; it is read again on request
        self._gone: dict[int, tuple[int, int]] = {}  # by tag whose node was gone: the times that were not read
        self._asked_s = 0.0  # when the store was searched for the present slice
        self._size = CallSize(NODES_PER_READ_MAX, VALUES_PER_READ_MAX)
        self._unfilled: Sequence[tuple[int, int]] | None = None  # outages of earlier processes; None: not searched yet
        self.now_ns: Callable[[], int] = time.time_ns  # replaced by the server's clock of the source

    @property
    def gaps_open(self) -> int:
        """Gaps that are known and not filled."""
        return len(self._jobs)

    @property
    def values_total(self) -> int:
        """Values recorded from history since the start of the process."""
        return self._recorder.samples_total

    def note_gap(self, gap: TagGap) -> None:
        """Take in a gap."""
        outages = (gap.first_time_ns,) if gap.reason in OUTAGE_REASONS else ()
        self._add(_Job("gap", gap.first_time_ns, gap.last_time_ns + 1, set(gap.tags), time.monotonic(), outages))

    def request(self, first_ns: int, last_ns: int) -> None:
        """Fill what is missing between these times for all tags, up to values that may still arrive."""
        self._endless.clear()
        self._add(_Job("request", first_ns, min(last_ns, self.now_ns() - UNDELIVERED_NS_MAX)))

    async def run(self, session: OpcuaSession) -> None:
        """Fill gaps for the length of a session."""
        await self._recorder.drain()  # what was read in an earlier one, before a fact says that its gap is filled
        for begun in self._jobs:
            if begun.fill is not None:
                begun.fill.forget_continuation_points()
        if self._unfilled is None:
            self._unfilled = await asyncio.to_thread(self._stored.open_outages, self._delivery.source)
        begun_s, failures = time.monotonic(), 0
        while True:
            if self._unfilled and time.monotonic() > begun_s + COMMITTED_S:
                self._add_unfilled()
            job = self._next_job()
            if job is None:
                await asyncio.sleep(TICK_S)
                continue
            try:
                values = await self._step(job, session)
                failures = 0
            except HistoryRefused as error:
                failures += 1
                self._refused(job, error, failures)
                await asyncio.sleep(min(RETRY_S * 2 ** (failures - 1), RETRY_MAX_S))
                continue
            await asyncio.sleep(values / self._rate)

    def _add_unfilled(self) -> None:
        """Add jobs for the outages that earlier processes declared and did not fill, after the one for the stop of this
        node. Each reads on for an hour, in which other losses were declared. An outage may be later than the present,
        if the server's clock was set back since."""
        known = {first_ns for job in self._jobs for first_ns in job.outages}
        now_ns, unfilled, self._unfilled = self.now_ns(), self._unfilled or (), ()
        for first_ns, last_ns in sorted(unfilled):
            if first_ns not in known:
                until_ns = max(last_ns + 1, min(last_ns + SLICE_NS, now_ns - UNDELIVERED_NS_MAX))
                self._add(_Job("restart", first_ns - UNDELIVERED_NS_MAX, until_ns, outages=(first_ns,)))

    def _next_job(self) -> _Job | None:
        """The job that has begun, otherwise the next one that may."""
        may_begin_s = time.monotonic() - COMMITTED_S
        for job in self._jobs:
            if job.slices is not None:
                return job
        for job in self._jobs:
            if not job.over_s or job.over_s < may_begin_s:
                job.slices, job.begun_s = self._slices(job), time.monotonic()
                self._add_gone(job)
                return job
        return None

    def _add_gone(self, job: _Job) -> None:
        """A tag of this gap may have its node again: read what was not read because the node was gone. Once for each
        gap: of tags whose node stays away, one such reading would bring back the other without end."""
        tags = set() if job.is_again else {self._delivery.number(tag) for tag in job.tags or ()}
        for tag in [gone_tag for gone_tag in self._gone if self._delivery.number(gone_tag) in tags]:
            self._add(_Job("gap", *self._gone.pop(tag), {tag}, is_again=True))

    def _slices(self, job: _Job) -> Iterator[_Slice]:
        """A job cut into slices whose stored times fit into memory."""
        numbers = None if job.tags is None else {self._delivery.number(tag) for tag in job.tags}
        tags = [tag for tag in self._delivery.tags if numbers is None or tag in numbers]
        return (
            _Slice(tags[at : at + SLICE_TAGS], start_ns, min(start_ns + SLICE_NS, job.last_ns))
            for start_ns in range(job.first_ns, max(job.last_ns, job.first_ns + 1), SLICE_NS)
            for at in range(0, len(tags), SLICE_TAGS)
        )

    def _add(self, job: _Job) -> None:
        for known in reversed(list(self._jobs)):
            if known.slices is None and (known.touches(job) or len(self._jobs) >= JOBS_MAX):
                self._jobs.remove(known)
                job = job.with_all_of(known)
        self._jobs.append(job)

    async def _step(self, job: _Job, session: OpcuaSession) -> int:
        """Make one call of a job, or end it. Returns how many values were read."""
        if job.fill is None:
            assert job.slices is not None, "it has begun"
            piece = job.halves.pop() if job.halves else next(job.slices, None)
            if piece is None:
                await self._conclude(job)
                return 0
            job.halves.append(piece)  # kept until its times are known, because the session may end meanwhile
            try:
                job.fill = await self._slice_fill(piece)
            except StoredUnreadable as error:  # otherwise values could be stored twice; the gap fact remains
                job.halves.pop()
                self._skip(job, piece, error)
                return 0
            job.halves.pop()
            if job.fill is None:
                job.halves += _halved(piece)
                return 0
        call = job.fill.next_call()
        if not call:
            self._count(job, job.fill)
            job.fill = None
            self._size.fill_ended()
            return 0
        pages = await self._read(session, call, self._size.values)
        elapsed_ns = int((time.monotonic() - job.begun_s) * 1e9)
        now_ns = await session.clock_ns() or self.now_ns()
        while new := self._without_history_number(call):  # the map may change during the await
            await self._history_numbers(new)
        missing = job.fill.answered(call, pages)
        if now_ns < job.fill.before_ns + elapsed_ns - drift_ns(elapsed_ns):
            missing = self._without_what_comes_live(missing, now_ns)
        self._hand_in(missing)  # nothing was awaited since `answered`, so no value is lost if the session ends
        job.values += len(missing)
        await self._recorder.drain()
        return sum(len(page.values) for page in pages)

    def _without_history_number(self, call: Iterable[HistoryRange]) -> dict[int, Tag]:
        """The tags of a call without a number for values from history."""
        tags = self._delivery.tags
        asked = self._delivery.present(history_range.tag for history_range in call)
        return {tag: tags[tag] for tag in asked if tag not in self._numbers}

    def _without_what_comes_live(self, missing: list[Sample], now_ns: int) -> list[Sample]:
        """The missing values without those that also arrive live. If the server's clock was set back since the gap
        ended, the server may record new values in the time of the gap. The time since the store was searched is read
        again when it is over. `now_ns` is the server's clock, read after the history."""
        last_ns = now_ns + CLOCK_JUMP_NS
        first_ns = now_ns - int((time.monotonic() - self._asked_s) * 1e9) - UNDELIVERED_NS_MAX
        later = [sample for sample in missing if first_ns <= sample.source_time_ns <= last_ns]
        if later:
            over_s = time.monotonic() + CLOCK_JUMP_NS / 1e9
            self._add(_Job("gap", first_ns, last_ns + 1, {sample.tag for sample in later}, over_s))
        return [sample for sample in missing if not first_ns <= sample.source_time_ns <= last_ns]

    async def _read(self, session: OpcuaSession, call: list[HistoryRange], values_max: int) -> list[HistoryPage]:
        """Read history. A tag that is not in the tag map or at the server has none."""
        namespaces = await session.namespaces()
        nodes = {asked: node for asked in call if (node := self._node(asked.tag, namespaces)) is not None}
        found = await session.read_history(list(nodes), list(nodes.values()), values_max) if nodes else []
        pages = dict(zip(nodes, found, strict=True))
        return [pages.get(asked, HistoryPage(quality.BAD_NOT_SUPPORTED)) for asked in call]

    def _node(self, tag: int, namespaces: Sequence[str]) -> tuple[Reading, int] | None:
        """The reading of a tag with its namespace index."""
        point = self._delivery.points.get(self._delivery.number(tag))
        if point is None or (index := point.reading.address.index(namespaces)) is None:
            return None
        return point.reading, index

    async def _slice_fill(self, piece: _Slice) -> GapFill | None:
        """The fill of a slice, with the times that the store has; None if these are too many."""
        await self._delivery.recorder.committed()  # they may have times of the gap, after a clock was set back
        self._asked_s = time.monotonic()
        known = self._delivery.tags
        live = self._delivery.present(piece.tags)
        by_stream: dict[str, dict[int, Tag]] = {}
        for tag in live:
            by_stream.setdefault(known[tag].stream, {})[tag] = known[tag]
        stored: dict[int, set[int]] = {tag: set() for tag in live}
        for stream, tags in by_stream.items():
            numbers = dict(zip(await self._history_numbers(tags), tags, strict=True)) | {tag: tag for tag in tags}
            found = await asyncio.to_thread(
                self._stored.sample_times, stream, list(numbers), piece.first_ns, piece.last_ns, STORED_TIMES_MAX
            )
            if found is None:
                return None
            for number, times in found.items():
                stored[numbers[number]].update(times)
        fill = GapFill(stored, piece.first_ns - 1, piece.last_ns, self._size)
        fill.give_up(FillOutcome.ENDLESS, self._endless)
        return fill

    def _refused(self, job: _Job, error: HistoryRefused, failures: int) -> None:
        """A call failed as a whole. Ask for less later, or give up."""
        assert job.fill is not None, "a call was made"
        nodes = len(job.fill.next_call())
        if error.is_final:
            self._give_up(job, FillOutcome.NO_HISTORY)
        elif not self._size.halve(nodes) and failures >= CALLS_FAILED_MAX:
            self._give_up(job, FillOutcome.FAILED)
        else:
            job.fill.forget_continuation_points()

    def _give_up(self, job: _Job, outcome: FillOutcome) -> None:
        """End the whole job, because the server refuses all slices alike."""
        assert job.fill is not None, "a call was made"
        job.fill.give_up(outcome)
        self._count(job, job.fill)
        for piece in chain(job.halves, job.slices or ()):
            self._note_outcome(job, piece.tags, outcome)
        self._size = CallSize(NODES_PER_READ_MAX, VALUES_PER_READ_MAX)  # no size was to blame
        job.fill, job.halves = None, []

    def _skip(self, job: _Job, piece: _Slice, error: StoredUnreadable) -> None:
        """Leave a slice unfilled."""
        extra = {"action": "history_not_filled", "source": self._delivery.source, "why": str(error)}
        log.error("a part of a gap is not filled from history", extra=extra)
        self._note_outcome(job, piece.tags, FillOutcome.FAILED)

    def _note_outcome(self, job: _Job, tags: Iterable[int], outcome: FillOutcome) -> None:
        """Note the result for tags in one slice. A tag is filled if it is in each of them."""
        for tag in map(self._delivery.number, tags):
            if outcome is not FillOutcome.FILLED or tag not in job.outcomes:
                job.outcomes[tag] = outcome

    def _count(self, job: _Job, fill: GapFill) -> None:
        for tag, outcome in fill.outcomes.items():
            self._note_outcome(job, [tag], outcome)
        for tag in (tag for tag, outcome in fill.outcomes.items() if outcome is FillOutcome.NODE_GONE):
            first_ns, last_ns = self._gone.get(tag, (job.first_ns, job.last_ns))
            last_ns = max(last_ns, job.last_ns)
            self._gone[tag] = max(min(first_ns, job.first_ns), last_ns - GONE_NS_MAX), last_ns
        endless = [tag for tag, outcome in fill.outcomes.items() if outcome is FillOutcome.ENDLESS]
        if new := [tag for tag in endless if tag not in self._endless and tag in self._delivery.tags]:
            self._endless.update(new)
            extra = {"action": "history_endless", "source": self._delivery.source, **self._delivery.named(new)}
            log.warning(
                "the history of these tags does not end: the server answers that there is more, and gives nothing new;"
                " it is read again by `bsfg opcua backfill`",
                extra=extra,
            )

    def _hand_in(self, samples: Sequence[Sample]) -> None:
        """Hand in the samples that the rules let through. The numbers of the tags are known."""
        tags = self._delivery.tags
        wanted = [sample._replace(tag=now) for sample in samples if (now := self._delivery.number(sample.tag)) in tags]
        if tags is not self._ruled:
            self._ruled = tags
            self._sampler.adopt({number: tag.rule for number, tag in tags.items()})
        by_stream: dict[str, list[Sample]] = {}
        for kept in self._sampler.select(wanted, self.now_ns()):
            row = kept._replace(tag=self._numbers[kept.tag])
            by_stream.setdefault(tags[kept.tag].stream, []).append(row)
        for stream, rows in by_stream.items():
            self._recorder.hand_in(stream, SampleColumns.of(rows))

    async def _history_numbers(self, tags: Mapping[int, Tag]) -> list[int]:
        """The numbers under which values of these tags from history are recorded, in their order."""
        new = [tag for tag in tags if tag not in self._numbers]
        if new:
            marked = [replace(tags[tag].definition, acquisition=ACQUISITION) for tag in new]
            self._numbers.update(zip(new, await self._recorder.define(marked), strict=True))
        return [self._numbers[tag] for tag in tags]

    async def _conclude(self, job: _Job) -> None:
        """Record the result of a job as a fact and in the log."""
        counts = Counter(job.outcomes.values())
        filled, none, failed, endless, gone = (counts[outcome] for outcome in FillOutcome)
        not_filled = [tag for tag, outcome in job.outcomes.items() if outcome is not FillOutcome.FILLED]
        content = {
            "cause": job.cause,
            "first_time": time_text(job.first_ns),
            "last_time": time_text(job.last_ns),
            "outages": [time_text(first_ns) for first_ns in job.outages],
            "values": job.values,
            "tags_filled": filled,
            "tags_without_history": none,
            "tags_failed": failed + endless,
            "tags_gone": gone,
            "tags": self._delivery.subjects(self._delivery.present(not_filled[:TAGS_NAMED_MAX])),
        }
        await self._recorder.append_fact(self._message(job, canonical_json(content)))
        self._jobs.remove(job)
        extra = {"action": "history_backfilled", "source": self._delivery.source, **content}
        log.info("history backfilled", extra=extra)

    def _message(self, job: _Job, content: bytes) -> Message:
        """The fact of a filled gap. Its id is derived from its content, so that a repeated append is stored once."""
        source = self._delivery.source
        identity = (
            f"{self._recorder.zone}/{FILL_PREDICATE}/{source}/{job.cause}/{job.first_ns}-{job.last_ns}/{job.values}"
        )
        envelope = Envelope(
            identity, from_zone=self._recorder.zone, to_zone="*", produced_at_unix_ms=time.time_ns() // 1_000_000
        )
        return Message(envelope, Fact(f"source:{source}", FILL_PREDICATE, content))


def _halved(piece: _Slice) -> list[_Slice]:
    """A slice in two halves: of its tags, or if it has one, of its time. The later half comes first. The tags of a
    device whose clock stands still have all their values at one time, which cannot be halved."""
    if len(piece.tags) > 1:
        half = len(piece.tags) // 2
        return [replace(piece, tags=piece.tags[half:]), replace(piece, tags=piece.tags[:half])]
    middle_ns = (piece.first_ns + piece.last_ns) // 2
    return [replace(piece, first_ns=middle_ns), replace(piece, last_ns=middle_ns)]
