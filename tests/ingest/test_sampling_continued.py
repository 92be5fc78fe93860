"""What was recorded of a tag goes on under another number of it, and in the next process."""

import pytest

from agent.columns import SampleColumns
from agent.ingest.sampling import SamplingRule, Tally
from agent.message import Sample
from tests.ingest.test_sampling import BAD, TAG, S, fed, made, sampler_of

OTHER, KEPT = 2, 3  # the number of an edited tag, and of one that was not edited


@pytest.mark.parametrize("rule", [SamplingRule(), SamplingRule(deadband=0)])
@pytest.mark.parametrize("stored", [Sample(TAG, 9_000 * S, 1), Sample(TAG, 9_000 * S, None, BAD)])
def test_a_value_stored_by_a_clock_that_was_set_back_is_recorded_again(rule: SamplingRule, stored: Sample) -> None:
    """At the next start, with the time of now, although it has not changed: otherwise its time, which has not come,
    would stay the newest. A server whose times go on is not concerned."""
    for given_s, kept_s in ((1_800, [1_800]), (100, [1_800]), (9_000, [] if stored.value else [9_000])):
        sampler = sampler_of(rule)
        sampler.seed(TAG, stored, 9_000 * S)
        found = sampler.select([Sample(TAG, given_s * S, 1)], 1_800 * S)
        assert [sample.source_time_ns // S for sample in found] == kept_s


def test_a_lost_tag_is_lost_under_another_number_too() -> None:
    """The loss stands once."""
    sampler = sampler_of()
    assert fed(sampler, 1.5, start_ns=10 * S) == [1.5]
    assert sampler.lose(BAD, 11 * S) == [Sample(TAG, 11 * S, None, BAD)]
    sampler.adopt({OTHER: SamplingRule()}, {TAG: OTHER})
    assert sampler.lose(BAD, 12 * S) == []
    assert sampler.tally() == Tally(bad=1, silent=0)
    assert sampler.select([Sample(OTHER, 10 * S, 1.5)], 20 * S) == [Sample(OTHER, 20 * S, 1.5)]


def test_a_tag_whose_clock_is_behind_goes_on_under_another_number() -> None:
    """Its standing value is seen again on its own clock. A tag that keeps its number is not concerned."""
    rule = SamplingRule()
    sampler = made([(TAG, rule), (KEPT, rule)])
    for at in (1, 2):
        samples = [Sample(tag, at * 1_000 * S, float(at)) for tag in (TAG, KEPT)]
        sampler.select(samples, (at * 1_000 + 3_600) * S)
    sampler.adopt({KEPT: rule, OTHER: rule}, {TAG: OTHER})
    sampler.lose(BAD, 5_650 * S, [KEPT])
    returned = [Sample(tag, 2_000 * S, 2.0) for tag in (KEPT, OTHER)]
    assert sampler.select(returned, 5_700 * S) == [Sample(tag, 2_100 * S, 2.0) for tag in (KEPT, OTHER)]


def test_an_earlier_process_is_continued() -> None:
    """What it recorded last is known: the same sample again is a duplicate, and so is a standing value that it recorded
    under the time of its return. Until a sample comes the tag counts as silent."""
    for first in (Sample(TAG, 10 * S, 1.5), Sample(TAG, 4 * S, 1.5)):
        sampler = sampler_of()
        sampler.seed(TAG, Sample(TAG, 10 * S, 1.5), 10 * S)
        assert sampler.tally() == Tally(bad=0, silent=1)
        assert sampler.select([first], 20 * S) == []
        assert sampler.tally() == Tally(bad=0, silent=0)
        changed = Sample(TAG, 21 * S, 2.5)
        assert sampler.select([changed], 21 * S) == [changed]
    assert sampler.counts.duplicates == 1


def test_nothing_is_confirmed_for_an_earlier_process() -> None:
    """max_interval confirms values that this process has seen."""
    sampler = sampler_of(SamplingRule(max_interval_ns=S))
    sampler.seed(TAG, Sample(TAG, 10 * S, 1.5), 10 * S)
    assert sampler.due(100 * S) == []


@pytest.mark.parametrize("in_columns", [True, False])
def test_what_a_queue_of_the_source_holds_is_recorded_once(*, in_columns: bool) -> None:
    """Another gateway recorded until 9 s, and the queue of the source goes back to 7 s: only what is newer is recorded,
    in its order. Later, and of a tag that nobody recorded, an older value is one of a clock that was set back."""
    for now_s, known in ((20, True), (31, True), (20, False)):
        sampler = sampler_of()
        if known:
            sampler.seed(TAG, Sample(TAG, 9 * S, 9), 9 * S)
        sampler.skip_recorded(30 * S)
        queued = [Sample(TAG, at_s * S, at_s) for at_s in (7, 8, 9, 10, 11)]
        if in_columns:
            found = list(sampler.select_columns(SampleColumns.of(queued), now_s * S).rows())
        else:
            found = sampler.select(queued, now_s * S)
        is_skipped = known and now_s < 30
        assert found == (queued[3:] if is_skipped else queued)
        assert sampler.select([Sample(TAG, 8 * S, 1)], now_s * S) == [Sample(TAG, 8 * S, 1)]
