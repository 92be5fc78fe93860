import math

import pytest

from agent.ingest.opcua.monitoring import (
    INTERVAL_MS_MAX,
    QUEUE_SIZE_MAX,
    QUEUE_SIZE_ON_CHANGE,
    discarded,
    is_hole,
    publishing_ms_of,
    queue_size_for,
    sampling_ms_of,
)

S, MS = 1_000_000_000, 1_000_000


@pytest.mark.parametrize(
    "revised, publishing, sampling",
    [
        (1_000.0, 1_000.0, 1_000.0),
        (0.0, 500.0, 0.0),  # sampled on change
        (-1.0, 500.0, 500.0),
        (math.nan, 500.0, 500.0),
        (math.inf, 500.0, INTERVAL_MS_MAX),
        (1e300, 500.0, INTERVAL_MS_MAX),
    ],
)
def test_an_interval_that_makes_no_sense_is_as_asked_for(revised: float, publishing: float, sampling: float) -> None:
    """Whatever a server revises, queues, silence and counts of lost values come out of it."""
    assert publishing_ms_of(revised, 500.0) == publishing
    assert sampling_ms_of(revised, 500.0) == sampling
    assert queue_size_for(sampling, publishing) >= 2
    assert discarded(0, [1, 2], sampling) == 1


def test_a_queue_lasts_through_a_stall() -> None:
    """Ten seconds beyond a publishing interval at the sampling interval; a limit for fast items, a figure of its own
    for those sampled on change."""
    assert queue_size_for(250, 500) == 43
    assert queue_size_for(60_000, 500) == 2
    assert queue_size_for(1, 500) == QUEUE_SIZE_MAX
    assert queue_size_for(0, 500) == QUEUE_SIZE_ON_CHANGE
    assert queue_size_for(0, 20_000) == 3 * QUEUE_SIZE_ON_CHANGE


@pytest.mark.parametrize(
    "previous_ms, times_ms, sampling_ms, expected",
    [
        (1000, [6000, 6100, 6200, 6300], 100, 39),  # a value each 100 ms: 49 are missing
        (1000, [6000, 6500, 7000], 100, 7),  # one that changes more slowly than it is sampled: 9 are missing
        (1000, [6000], 100, 1),  # nothing shows how close they lay
        (0, [6000, 6100], 100, 1),  # no value before
        (7000, [6000, 6100], 100, 1),  # times that do not go forward
        (1000, [6000, 6000, 6100], 100, 1),
        (1000, [1120, 1220, 1320], 100, 1),  # less than one fits: the mark says one at least
    ],
)
def test_what_an_overflow_lost(previous_ms: int, times_ms: list[int], sampling_ms: float, expected: int) -> None:
    """The spacing of the values that were kept measures the gap before them, less a fifth, for a server may have been
    late in it; where it cannot, it is one at least."""
    assert discarded(previous_ms * MS, [ms * MS for ms in times_ms], sampling_ms) == expected


def test_timers_that_tremble_do_not_spoil_the_count() -> None:
    """The lower bound stays near to the 599 that are missing; one late value does not halve it."""
    times = [100_000 + 100 * n + n % 3 * 8 for n in range(40)] + [104_300]
    assert 430 <= discarded(40_000 * MS, [ms * MS for ms in times], 50) <= 480


def test_a_hole_is_wider_than_the_sampling() -> None:
    """A sample that comes late leaves none; where each change is notified any time may hide one; without a value before
    there is no hole."""
    assert is_hole(1000 * MS, 1600 * MS, 250)
    assert not is_hole(1000 * MS, 1500 * MS, 250)
    assert is_hole(1000 * MS, 1001 * MS, 0)
    assert not is_hole(0, 1600 * MS, 250)
