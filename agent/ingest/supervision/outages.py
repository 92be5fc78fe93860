"""The outages of one source: what it may have missed is declared once, before the first value that follows.

An outage lasts from the loss of the source to the first good value after it. The time without a process, and the time
in which another gateway of the zone may have failed, are outages too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agent.ingest import quality
from agent.ingest.clock import AHEAD_NS, BUILT_NS, Span
from agent.ingest.completeness import Moment, Stored, spans
from agent.ingest.delivery import Delivery
from agent.ingest.gap import (
    AGENT_STOPPED,
    BELIEVED_PART,
    CLOCK_SET_BACK,
    LEADER_CHANGED,
    SOURCE_LOST,
    TAGS_NAMED_MAX,
    Gap,
)
from agent.ingest.lifecycle import Outage
from agent.ingest.recorder import Recorder
from agent.ingest.supervision.lead_change import EarlierLead

if TYPE_CHECKING:
    from agent.ingest.supervision.source_making import Source

log = logging.getLogger(__name__)

VALUE_WAIT_S = 5.0  # for the first good value of a source that is up, before its gap is declared without one


class Outages:
    """The present outage of a source, and whether what was missing before is stored."""

    def __init__(self, source_name: str, source: Source, delivery: Delivery, recorder: Recorder) -> None:
        self._source_name, self._source, self._delivery, self._recorder = source_name, source, delivery, recorder
        self._present: Outage | None = None  # from a loss to the first value after it
        self.earlier_lead: EarlierLead | None = None  # None: this gateway records alone
        self._gap_place: int | None = None  # of what declares the time before its first value, among what is recorded
        self._up_s: float | None = None  # since when it is connected
        self._believed_ns = BUILT_NS  # up to when it was complete when our clock was believed last
        self._doubted_outage: tuple[str, int, Moment] | None = None  # without a process: reason, begin and end

    @property
    def is_gap_stored(self) -> bool:
        """Whether what was missing before it began to record, and since, is stored as a gap or as bad samples."""
        place, recorder = self._gap_place, self._recorder
        return place is not None and recorder.settled_total >= place and recorder.are_gaps_stored

    def begin(self, parts: Mapping[str, Stored], led: Stored | None) -> None:
        """Recording begins. `parts`: up to when the parts of the source were complete in the last process of this
        node; `led`: in another gateway, if that recorded later."""
        reason = AGENT_STOPPED
        if led is not None:
            parts, reason = {"": led}, LEADER_CHANGED
        self._source.continue_from(parts, reason)
        self._present, self._delivery.has_outage = None, "" in parts
        if "" in parts:
            self._believed_ns = parts.get(BELIEVED_PART, parts[""]).complete_ns
            self._present = Outage(Moment(parts[""].complete_ns, self._source.clock.set_back_ns), reason)
            self._hold()
        else:
            self._note_gap()
        if self._source.clock.is_ours and self._source.clock.is_ours_doubted:
            self._delivery.doubted_parts = {BELIEVED_PART: Stored(self._believed_ns)}

    def stand_by(self) -> None:
        """The source is warm. What it misses is recorded by another gateway."""
        self._present = None

    def lose(self, why: str) -> None:
        """The source is lost. Each reason is logged once in an outage."""
        self.go_down()
        self._present = self._present or Outage()
        if self._present.is_new_reason(why):
            log.warning("source lost", extra={"action": "source_lost", "source": self._source_name, "why": why})

    def go_down(self) -> None:
        """The source is lost, or is being stopped: a value that is still delivered ends no outage."""
        self._up_s = None

    async def finish_life(self) -> None:
        """Deliver the remaining samples of a lost source. Then record that no tag has a value since it was complete."""
        source, delivery = self._source, self._delivery
        if delivery.is_standby:
            return
        await source.finish()
        if self.earlier_lead is not None and self._gap_place is None:
            self.end()
        # One of its own after `end`: the values that came are stored after the gap.
        outage = self._present = self._present or Outage()
        delivery.has_outage = True
        if outage.since is None:  # not before `finish`, because it delivers signs of life
            outage.since = source.complete
        now = source.clock.now()
        since_ns = None if outage.since is None else outage.since.on(now)
        await delivery.lose(quality.BAD_COMMUNICATION_ERROR, now.time_ns, since_ns=since_ns)
        self._note_gap()
        await self._recorder.settle()
        self._hold()

    def came_up(self) -> None:
        """The source is connected and has what it needs to deliver values."""
        self._up_s = time.monotonic()
        if self._present is None or self._present.reason != SOURCE_LOST:
            log.info("source connected", extra={"action": "source_connected", "source": self._source_name})
        if self._present is None:
            self._source.take_missed()  # there was nothing before
        elif not self._delivery.is_value_expected:
            self._returned(self._present)
        self._recorder.release()

    def got_value(self) -> None:
        """The first good value of a life. The source may still be building other subscriptions."""
        if self._present is not None and self._up_s is not None:
            self._returned(self._present)

    def end_wait(self) -> None:
        """Called again and again while the source runs."""
        if not self._source.clock.is_ours:
            self._compare_clocks()
        elif self._source.complete is not None and self._present is None:
            self._follow_belief(self._source.complete)
        self._end_wait_for_value()

    def _end_wait_for_value(self) -> None:
        """A source that is up and has no good value, for example because the device refuses all registers, would keep
        the other gateway from believing that the gaps of all are stored."""
        is_late = self._up_s is not None and time.monotonic() - self._up_s >= VALUE_WAIT_S
        if is_late and self.earlier_lead is not None and self._gap_place is None and self._present is not None:
            self._returned(self._present)

    def note_removed(self, tags: Sequence[int]) -> None:
        """These tags leave the map: the fact at the end of the outage will not name them, and nothing fills it for
        them."""
        outage = self._present
        since = None if outage is None else outage.since or self._source.complete  # the latter in its `finish`
        if outage is not None and since is not None and tags:
            names = tuple(self._delivery.subjects(tags[:TAGS_NAMED_MAX]))
            for n, span in enumerate(self._spans(since, self._source.clock.now(), outage.reason)):
                reason = CLOCK_SET_BACK if n else outage.reason
                self._recorder.add_gap(Gap(self._source_name, reason, *span, 0, count_exact=False, tags=names))

    def end(self) -> bool:
        """End an outage in which values have come, although the source has not returned: no fact would name what is
        missing before them. True if there was one."""
        if self._present is None or self._delivery.is_value_expected:
            return False
        self._returned(self._present)
        return True

    def declare_clock_sets(self) -> None:
        """At a stop: the next process does not know how the clock was set since the source was complete."""
        if self._present is None and self._source.complete is not None:
            _, *before = self._source.clock.spans(self._source.complete, self._source.clock.now())
            self._declare_as_it_was(before)

    def _returned(self, outage: Outage) -> None:
        """End the outage: the source is connected, and a value has arrived or is not waited for any longer."""
        source, delivery = self._source, self._delivery
        self._present, delivery.has_outage = None, False
        if outage.reason == SOURCE_LOST:
            log.info("source returned", extra={"action": "source_returned", "source": self._source_name})
        if source.take_missed() and outage.since is not None:
            now = source.clock.now()
            span, *before = self._spans(outage.since, now, outage.reason)
            delivery.add_gap(outage.reason, *span, 0, delivery.points, exact=False)
            self._declare_as_it_was(before)
            if outage.reason != SOURCE_LOST and source.clock.is_ours_doubted:
                self._doubted_outage = outage.reason, outage.since.time_ns, now
        self._note_gap()

    def _spans(self, since: Moment, now: Moment, reason: str) -> list[Span]:
        """Those of an outage that ends now. With our times, the time without a process began when our clock was
        believed last; one that is not believed may not know more. Far before that no values are called missing."""
        clock, is_doubted = self._source.clock, self._source.clock.is_ours_doubted
        if reason == SOURCE_LOST or not (clock.is_ours or is_doubted):
            return clock.spans(since, now)
        is_far = is_doubted and now.time_ns < self._believed_ns - AHEAD_NS
        first_ns = self._believed_ns if clock.is_ours and not is_far else since.time_ns
        if is_doubted:
            return [(first_ns, now.time_ns if _is_likely(first_ns, now.time_ns) else first_ns)]
        return [(min(first_ns, now.time_ns), now.time_ns)]

    def _follow_belief(self, complete: Moment) -> None:
        """Of a source with our times: when our clock is believed again, it is known what the time without a process
        was. If the clock had been ahead when it was believed last, it began in the last process."""
        now = self._source.clock.now()
        if self._source.clock.is_doubted(complete.on(now)):
            self._delivery.doubted_parts = {BELIEVED_PART: Stored(self._believed_ns)}
            return
        if self._delivery.doubted_parts and self._doubted_outage is not None:
            reason, since_ns, end = self._doubted_outage
            first_ns, last_ns = self._believed_ns, end.on(now)
            if first_ns > last_ns:
                first_ns = last_ns - (end.time_ns - since_ns if _is_likely(since_ns, end.time_ns) else 0)
            self._delivery.add_gap(reason, first_ns, last_ns, 0, self._delivery.points, exact=False)
        self._delivery.doubted_parts, self._doubted_outage = {}, None
        self._believed_ns = complete.on(now)

    def _compare_clocks(self) -> None:
        """Of a source with a clock: when ours is believed again, it is known how that was set without a process."""
        if self._doubted_outage is None or not (set_back_ns := self._source.clock.set_while_away_ns()):
            return
        reason, since_ns, end = self._doubted_outage
        self._doubted_outage = None
        span, *before = spans(Moment(since_ns, end.set_back_ns - set_back_ns), end)
        self._delivery.add_gap(reason, *span, 0, self._delivery.points, exact=False)
        self._declare_as_it_was(before)

    def _declare_as_it_was(self, spans: Sequence[tuple[int, int]]) -> None:
        """Declare a gap in the times of the clock as it was before it was set."""
        for span in spans:
            self._delivery.add_gap(CLOCK_SET_BACK, *span, 0, self._delivery.points, exact=False)

    def _hold(self) -> None:
        """In an outage, until the source is up and its gap is known. If this gateway dies meanwhile, the other one
        takes a good value for the end of the outage."""
        if self.earlier_lead is not None:
            self._recorder.hold()

    def _note_gap(self) -> None:
        """Everything that was missing before the first value is declared now."""
        self._recorder.release()
        if self._gap_place is None:
            self._gap_place = self._recorder.taken_total


def _is_likely(first_ns: int, last_ns: int) -> bool:
    """Whether an outage may have lasted from then to then."""
    return first_ns <= last_ns <= first_ns + AHEAD_NS
