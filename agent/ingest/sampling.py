"""Which samples become facts: report by exception, duplicates, order, loss and return.

Core: takes samples and the time, returns samples, and holds a fixed amount of state for each tag.

    deadband        a value is recorded when it differs from the last recorded one by more than this, absolute or in
                    percent of the last recorded value; 0 means any change; without a deadband every sample is recorded
    min_interval    two facts are at least this far apart; the newest value held back is recorded when the time is over
    max_interval    an unchanged value is recorded again after this time

A change of quality is recorded at once. A sample with the same source time, value and quality as the previous one is a
duplicate (a server repeats the current value after every reconnect) and is not recorded. A sample that is older than
the previous one is counted and recorded like any other. Later samples are compared with it, so that a source whose
clock was set back is not ignored.

When a source is lost, each of its tags is recorded once with a bad quality and no value. The first sample after that is
always recorded. If its source time is not newer than the loss, because the value did not change, it gets the time of
the return: otherwise the newest sample of the tag would still be the loss. Both times are moved to the clock of the
tag's values if that is behind the clock of the source (a device without time synchronisation, or with local time taken
for UTC): otherwise all values up to that time would seem older than the loss.

If the definition of a tag is edited, the tag continues under another number. Its first sample under the new number is
always recorded. If that is not newer than the last one recorded, because the value did not change, it gets the time of
the return too: otherwise the tag would have two samples with the same time. A lost tag remains lost.

Most tags have no rule, and most samples are newer than the previous one of their tag. `select_columns` passes such
samples as columns. Their state is kept in columns too (`_Current`), and moves to a `_State` when anything else happens
to the tag.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import gt
from types import MappingProxyType

from agent.columns import SampleColumns
from agent.ingest.quality import BAD_COMMUNICATION_ERROR, is_bad
from agent.message import Sample, Value


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """Report by exception for one tag. None switches a part off."""

    deadband: float | None = None
    deadband_is_percent: bool = False
    min_interval_ns: int = 0
    max_interval_ns: int = 0

    @property
    def records_all(self) -> bool:
        """Whether every sample passes."""
        return self.deadband is None and not self.min_interval_ns


@dataclass(slots=True)
class SamplingCounts:
    """Repeated and late samples so far."""

    duplicates: int = 0
    out_of_order: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of tags whose last sample is bad, and of tags without a sample since the start."""

    bad: int
    silent: int


LAG_NS_MIN = 120 * 1_000_000_000  # less may be due to sampling and publishing, which take a minute each at most

_NEVER, _LIVE, _LOST = 0, 1, 2


class _State:
    """The state of one tag."""

    __slots__ = (
        "condition",
        "held",
        "is_doubted",
        "is_seeded",
        "quality",
        "recorded_ns",
        "recorded_seen_ns",
        "rule",
        "seen",
        "value",
    )

    def __init__(self, rule: SamplingRule) -> None:
        self.rule = rule
        self.condition = _NEVER
        self.is_seeded = False  # the state is that of an earlier process; this one has received no sample yet
        self.is_doubted = False  # another gateway may have recorded later values, which are not here yet
        self.seen: Sample | None = None  # the last sample from the source, recorded or not
        self.value: Value = None  # value, quality and time of the last fact
        self.quality = 0
        self.recorded_ns = 0
        self.recorded_seen_ns = 0  # `now_ns` when it was recorded: max_interval counts from here
        self.held: Sample | None = None

    def follow(self, earlier: _State) -> None:
        """Take over the times that this tag had under another number, but not its value, which meant something else."""
        self.recorded_ns = earlier.recorded_ns
        if earlier.condition == _LOST:
            self.condition, self.quality, self.is_seeded = _LOST, earlier.quality, earlier.is_seeded


class _Current:
    """The last sample of each tag that is live and has no rule: what `_State` would hold, in columns."""

    __slots__ = ("qualities", "times_ns", "values")

    def __init__(self) -> None:
        self.times_ns: dict[int, int] = {}
        self.values: dict[int, Value] = {}
        self.qualities: dict[int, int] = {}

    def put(
        self, tags: Sequence[int], times_ns: Sequence[int], values: Sequence[Value], qualities: Sequence[int]
    ) -> None:
        """Remember the last sample of each tag."""
        self.times_ns.update(zip(tags, times_ns, strict=True))
        self.values.update(zip(tags, values, strict=True))
        self.qualities.update(zip(tags, qualities, strict=True))

    def pop(self, tag: int) -> Sample:
        """Forget a tag. Returns its last sample."""
        return Sample(tag, self.times_ns.pop(tag), self.values.pop(tag), self.qualities.pop(tag))

    def are_newer(self, tags: Sequence[int], times_ns: Sequence[int]) -> bool:
        """Whether each of these samples is newer than the previous one of its tag. All tags must be known here."""
        before = list(map(self.times_ns.__getitem__, tags))
        if len(set(tags)) == len(tags):
            return all(map(gt, times_ns, before))
        latest = dict(zip(tags, before, strict=True))  # several of one tag: each is compared with the previous one
        for tag, time_ns in zip(tags, times_ns, strict=True):
            if time_ns <= latest[tag]:
                return False
            latest[tag] = time_ns
        return True


class Sampler:
    """The sampling decisions of one source. Tags are given by their numbers."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}  # for a tag in `_current`, only the rule is valid
        self._current = _Current()
        self._timed: list[int] = []
        self._queued_until_ns = 0  # what arrives by then may have waited in a queue of the source
        self._lags_ns: dict[int, int] = {}  # of tags whose last change had a time far behind the source's clock
        self.counts = SamplingCounts()

    def adopt(self, rules: Mapping[int, SamplingRule], renumbered: Mapping[int, int] = MappingProxyType({})) -> None:
        """Handle exactly these tags. A known tag keeps its state under its new rule. A tag that had another number
        (`renumbered`: old to new) keeps its times."""
        for tag in [*self._current.times_ns]:
            self._state(tag)
        known, self._states = self._states, {}
        for tag, rule in rules.items():
            self._states[tag] = state = known.get(tag) or _State(rule)
            state.rule = rule
        for tag, now in renumbered.items():
            if tag in known and now not in known:
                self._states[now].follow(known[tag])
                if tag in self._lags_ns:
                    self._lags_ns[now] = self._lags_ns[tag]
        self._timed = [tag for tag, rule in rules.items() if rule.min_interval_ns or rule.max_interval_ns]
        self._lags_ns = {tag: lag_ns for tag, lag_ns in self._lags_ns.items() if tag in rules}

    def seed(self, tag: int, newest: Sample, good_ns: int) -> None:
        """Set the state of a tag from the newest sample that an earlier process recorded. `good_ns` is the time of its
        newest good sample. A value that has not changed since then is a duplicate."""
        state = self._states[tag]
        is_lost = is_bad(newest.quality)
        state.condition = _LOST if is_lost else _LIVE
        state.is_seeded = True
        state.seen = newest._replace(source_time_ns=good_ns) if is_lost else newest
        state.value, state.quality, state.recorded_ns = newest.value, newest.quality, newest.source_time_ns

    def doubt_seeded(self) -> None:
        """What another gateway recorded last may come later: the first value of each tag is recorded, although it is
        that of its newest sample here. Otherwise the value in between would stay the latest."""
        for state in self._states.values():
            state.is_doubted = state.is_seeded

    def skip_recorded(self, until_ns: int) -> None:
        """What arrives up to this time of the source may have waited there while another gateway recorded: skip what is
        not newer than what it recorded. Later, an older value says that the clock was set back."""
        self._queued_until_ns = until_ns

    def rule(self, tag: int) -> SamplingRule:
        """The rule of a tag."""
        return self._states[tag].rule

    def release(self, tags: Iterable[int], now_ns: int) -> list[Sample]:
        """The values of these tags that were held back. They are recorded now, because their rules end."""
        found: list[Sample] = []
        for tag in tags:
            state = self._state(tag)
            if state.held is not None:
                found.append(state.held)
                self._record(state, state.held, now_ns)
        return found

    def select(self, samples: Iterable[Sample], now_ns: int, returned_ns: int | None = None) -> list[Sample]:
        """The samples to record, in the order of arrival. `now_ns` is the time of the source.

        `returned_ns`: since when lost tags are back, by default since now. An unchanged value gets that time, which
        must not be later than changes that arrive with it.
        """
        recorded: list[Sample] = []
        for sample in samples:
            state = self._state(sample[0])
            kept = self._judge(state, sample, now_ns, now_ns if returned_ns is None else returned_ns)
            if kept is not None:
                self._record(state, kept, now_ns)
                recorded.append(kept)
        return recorded

    def select_columns(self, samples: SampleColumns, now_ns: int, returned_ns: int | None = None) -> SampleColumns:
        """As `select`, for columns. The given lists are not changed; they may be returned as they are."""
        tags, times_ns, values, qualities = samples
        known = self._current.times_ns
        others: list[int] = []
        if not known.keys() >= set(tags):
            others = [place for place, tag in enumerate(tags) if tag not in known]
        part = samples
        if others:
            is_known = [tag in known for tag in tags]
            part = SampleColumns._make(list(compress(column, is_known)) for column in samples)
        if self._current.are_newer(part.tags, part.source_times_ns):
            self._current.put(*part)
            if self._lags_ns or (part.tags and min(part.source_times_ns) < now_ns - LAG_NS_MIN):
                for tag, time_ns, _, quality in zip(*part, strict=True):
                    self._note_lag(tag, now_ns - time_ns, quality)
        else:
            others = list(range(len(tags)))
        if not others:
            return samples
        kept_times_ns, is_kept = list(times_ns), [True] * len(tags)
        for place in others:
            found = self.select(
                [Sample(tags[place], times_ns[place], values[place], qualities[place])], now_ns, returned_ns
            )
            is_kept[place] = bool(found)
            if found:
                kept_times_ns[place] = found[0].source_time_ns
        for tag in {tags[place] for place in others}:
            self._make_current(tag)
        kept = SampleColumns(tags, kept_times_ns, values, qualities)
        return kept if all(is_kept) else SampleColumns._make(list(compress(column, is_kept)) for column in kept)

    def due(self, now_ns: int) -> list[Sample]:
        """Samples that are due because time has passed: values held back, and unchanged values to be confirmed."""
        found: list[Sample] = []
        for tag in self._timed:
            state = self._states[tag]
            rule = state.rule
            if state.condition != _LIVE or state.is_seeded:
                continue
            if state.held is not None and now_ns - state.recorded_seen_ns >= rule.min_interval_ns:
                kept = state.held
            elif rule.max_interval_ns and now_ns - state.recorded_seen_ns >= rule.max_interval_ns:
                kept = Sample(tag, max(now_ns, state.recorded_ns + 1), state.value, state.quality)
            else:
                continue
            self._record(state, kept, now_ns)
            found.append(kept)
        return found

    def lose(
        self,
        quality: int,
        now_ns: int,
        tags: Iterable[int] | None = None,
        *,
        corrects: bool = False,
        since_ns: int | None = None,
    ) -> list[Sample]:
        """One bad sample for each tag (of `tags`, or all) that is not lost already.

        `corrects`: also for tags that are recorded as lost for another reason, which was only presumed. `since_ns`: the
        last sign of life of tags that had a value; by default now. The bad sample gets that time, or the nanosecond
        after the tag's last fact if that is later: a fact is never older than the previous one.
        """
        found: list[Sample] = []
        for tag in self._states if tags is None else tags:
            state = self._state(tag)
            if state.condition == _LOST and (not corrects or state.quality == quality):
                continue
            if state.held is not None:  # the last known value must not get lost with the source
                found.append(state.held)
                state.recorded_ns = max(state.recorded_ns, state.held.source_time_ns)
                state.held = None
            had_value = state.condition == _LIVE or (state.condition == _NEVER and state.recorded_ns)  # or renumbered
            lost_ns = since_ns if had_value and since_ns is not None else now_ns
            lost_ns -= self._lags_ns.get(tag, 0)
            lost = Sample(tag, max(lost_ns, state.recorded_ns + 1), None, quality)
            self._record(state, lost, now_ns)
            state.condition = _LOST
            found.append(lost)
        return found

    def regain(self, tags: Iterable[int], now_ns: int) -> list[Sample]:
        """The last values of these tags, if they were lost because the source was away. Their items have missed
        nothing, so they still stand; each gets the nanosecond after the loss."""
        found: list[Sample] = []
        for tag in tags:
            state = self._states.get(tag)
            if state is None or state.condition != _LOST or state.seen is None or state.is_seeded:
                continue
            if state.quality != BAD_COMMUNICATION_ERROR:
                continue
            found.append(state.seen._replace(source_time_ns=state.recorded_ns + 1))
            self._record(state, found[-1], now_ns)
            state.condition = _LIVE
        return found

    def mark_lost(self, tags: Iterable[int]) -> None:
        """Mark tags as lost whose source has sent a bad sample as the last one. The next value is then recorded as a
        return, whatever its time."""
        for tag in tags:
            state = self._state(tag)
            if state.condition == _LIVE and is_bad(state.quality):
                state.condition = _LOST

    def is_lost(self, tag: int, quality: int) -> bool:
        """Whether a tag is recorded as lost with this status."""
        state = self._states.get(tag)
        return state is not None and state.condition == _LOST and state.quality == quality

    def tally(self) -> Tally:
        """Count the bad and the silent tags. Tags in columns are counted in C: this runs every few seconds."""
        current, silent = self._current.qualities, 0
        bad = sum(count for quality, count in Counter(current.values()).items() if is_bad(quality))
        for tag in self._states.keys() - current.keys():
            state = self._states[tag]
            if state.condition == _LOST:  # recorded by this process or an earlier one: readers see it as bad
                bad += 1
            elif state.condition == _NEVER or state.is_seeded:
                silent += 1
            elif is_bad(state.quality):
                bad += 1
        return Tally(bad, silent)

    def last(self, tag: int) -> Sample:
        """The last sample of a tag, of an earlier process too. Its time is 0 if there was none or the tag is gone."""
        current = self._current
        if tag in current.times_ns:
            return Sample(tag, current.times_ns[tag], current.values[tag], current.qualities[tag])
        state = self._states.get(tag)
        return Sample(tag, 0, None) if state is None or state.seen is None else state.seen

    def lag_ns(self, tag: int) -> int:
        """How far the times of a tag are behind the clock of its source; 0 if that is not known or below
        LAG_NS_MIN."""
        return self._lags_ns.get(tag, 0)

    def _state(self, tag: int) -> _State:
        """The state of a tag, moved out of the columns."""
        state = self._states[tag]
        if tag in self._current.times_ns:
            last = self._current.pop(tag)
            state.condition, state.seen, state.held = _LIVE, last, None
            state.value, state.quality, state.recorded_ns = last.value, last.quality, last.source_time_ns
        return state

    def _make_current(self, tag: int) -> None:
        """Move the state of a tag into the columns if it is live and its last sample is all that matters."""
        state = self._states[tag]
        seen = state.seen
        is_ruled = not state.rule.records_all or state.rule.max_interval_ns
        # The times differ if the value was recorded with the time of its return: then both matter until the next one.
        if state.condition == _LIVE and not is_ruled and seen is not None and seen.source_time_ns == state.recorded_ns:
            self._current.put((tag,), (seen.source_time_ns,), (seen.value,), (seen.quality,))

    def _note_lag(self, tag: int, lag_ns: int, quality: int) -> None:
        """Note that a value which just changed has a time this far behind. The time of a bad value says nothing."""
        if is_bad(quality):
            return
        if lag_ns > LAG_NS_MIN:
            self._lags_ns[tag] = lag_ns
        else:
            self._lags_ns.pop(tag, None)

    def _judge(self, state: _State, sample: Sample, now_ns: int, returned_ns: int) -> Sample | None:
        """The sample to record for this one, or None."""
        if state.is_seeded and now_ns < self._queued_until_ns and _is_older(sample, state.seen):
            self.counts.duplicates += 1
            return None
        seen, state.seen = state.seen, sample
        was_doubted, state.is_doubted = state.is_doubted, False
        was_live = state.condition == _LIVE and not state.is_seeded
        if not was_live:
            sample, is_first = self._return(state, sample, returned_ns)
            if is_first:
                return sample
            assert seen is not None, "seeded"
            if sample.source_time_ns <= seen.source_time_ns and _is_repeated(sample, seen):
                if _is_ahead(
                    state, sample, returned_ns
                ):  # otherwise the stored time would stay the newest until it has come
                    return sample._replace(source_time_ns=returned_ns)
                self.counts.duplicates += 1  # unchanged since an outage, after which it was recorded with a later time
                return None
        assert seen is not None, "a live tag has been seen"
        if sample.source_time_ns <= seen.source_time_ns:
            if sample.source_time_ns < seen.source_time_ns:
                self.counts.out_of_order += 1
                return sample
            if _is_repeated(sample, seen):
                self.counts.duplicates += 1
                return None
        elif was_live:  # a first value may be old, but a change has just happened
            self._note_lag(sample.tag, now_ns - sample.source_time_ns, sample.quality)
        rule = state.rule
        if rule.records_all or was_doubted or sample.quality != state.quality:
            return sample
        elapsed_ns = sample.source_time_ns - state.recorded_ns
        overdue = rule.max_interval_ns and elapsed_ns >= rule.max_interval_ns
        if not overdue and rule.deadband is not None and not _exceeds(rule, sample.value, state.value):
            state.held = None  # the value has returned into the band: the one held back is not needed
            return None
        if 0 <= elapsed_ns < rule.min_interval_ns:
            state.held = sample
            return None
        return sample

    def _return(self, state: _State, sample: Sample, returned_ns: int) -> tuple[Sample, bool]:
        """The first sample of a tag after its loss or in this process, and whether it is always recorded."""
        is_first = state.condition != _LIVE
        state.condition, state.is_seeded = _LIVE, False
        if is_first and state.recorded_ns and sample.source_time_ns <= state.recorded_ns:
            is_ahead = _is_ahead(state, sample, returned_ns)
            returned_ns -= self._lags_ns.get(sample.tag, 0)
            sample = sample._replace(
                source_time_ns=returned_ns if is_ahead else max(returned_ns, state.recorded_ns + 1)
            )
        return sample, is_first

    def _record(self, state: _State, sample: Sample, now_ns: int) -> None:
        state.value, state.quality, state.recorded_ns = sample.value, sample.quality, sample.source_time_ns
        state.recorded_seen_ns = now_ns
        state.held = None


def _is_ahead(state: _State, sample: Sample, now_ns: int) -> bool:
    """Whether the last fact of a tag has a time that has not come, unlike this sample of it: the clock that gave it was
    set back since."""
    return state.recorded_ns > now_ns + LAG_NS_MIN >= sample.source_time_ns


def _is_older(sample: Sample, seen: Sample | None) -> bool:
    return seen is not None and sample.source_time_ns <= seen.source_time_ns


def _is_repeated(sample: Sample, seen: Sample) -> bool:
    return sample.quality == seen.quality and _same(sample.value, seen.value)


def _same(left: Value, right: Value) -> bool:
    """Equality of value and type; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    return left == right or (left != left and right != right)  # noqa: PLR0124 only NaN differs from itself


def _exceeds(rule: SamplingRule, value: Value, recorded: Value) -> bool:
    """Whether a value is outside the deadband around the last recorded one. A value that is no number is outside if it
    differs."""
    numeric = type(value) in (int, float) and type(recorded) in (int, float)
    if not numeric or not rule.deadband:
        return not _same(value, recorded)
    assert isinstance(value, int | float)
    assert isinstance(recorded, int | float)
    if not (math.isfinite(value) and math.isfinite(recorded)):
        return not _same(value, recorded)
    band = rule.deadband * abs(recorded) / 100 if rule.deadband_is_percent else rule.deadband
    return abs(value - recorded) > band
