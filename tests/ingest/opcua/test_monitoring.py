import pytest

from agent.ingest.opcua.monitoring import QUEUE_SIZE_MAX, QUEUE_SIZE_ON_CHANGE, discarded, is_hole, queue_size_for

S, MS = 1_000_000_000, 1_000_000


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
        (1000, [6000, 6100, 6200, 6300], 100, (49, True)),  # a value each 100 ms
        (1000, [6000, 6500, 7000], 100, (9, True)),  # one that changes more slowly than it is sampled
        (1000, [6000], 100, (1, False)),  # nothing shows how close they lay
        (0, [6000, 6100], 100, (1, False)),  # no value before
        (7000, [6000, 6100], 100, (1, False)),  # times that do not go forward
        (1000, [6000, 6000, 6100], 100, (1, False)),
        (1000, [1120, 1220, 1320], 100, (1, False)),  # less than one fits: the mark says one at least
    ],
)
def test_what_an_overflow_lost(
    previous_ms: int, times_ms: list[int], sampling_ms: float, expected: tuple[int, bool]
) -> None:
    """The spacing of the values that were kept measures the gap before them; where it cannot, it is one at least."""
    assert discarded(previous_ms * MS, [ms * MS for ms in times_ms], sampling_ms) == expected


def test_a_count_by_an_uneven_spacing_is_at_least() -> None:
    """Timers that tremble make the count a lower bound that is near; one late value does not halve it."""
    times = [100_000 + 100 * n + n % 3 * 8 for n in range(40)] + [104_300]
    count, is_exact = discarded(40_000 * MS, [ms * MS for ms in times], 50)
    assert not is_exact
    assert 540 <= count <= 600


def test_a_hole_is_wider_than_the_sampling() -> None:
    """A sample that comes late leaves none; where each change is notified any time may hide one; without a value before
    there is no hole."""
    assert is_hole(1000 * MS, 1600 * MS, 250)
    assert not is_hole(1000 * MS, 1500 * MS, 250)
    assert is_hole(1000 * MS, 1001 * MS, 0)
    assert not is_hole(0, 1600 * MS, 250)
