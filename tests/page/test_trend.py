"""A trend shows what is not there: gaps and bad quality, and the least and greatest value of each column."""

from agent.page.trend import CHANGES_MAX, COLUMNS, trend_of

BAD = 0x8000_0000


def test_least_and_greatest_of_each_column() -> None:
    """A spike of one sample among 86,400 is seen, and no path has more points than there are columns."""
    times = list(range(0, 86_400_000, 1000))
    values = [1.0] * len(times)
    values[40_000] = 50.0
    trend = trend_of(times, values, [0] * len(times), 0, 86_400_000)
    assert (trend.low, trend.high, trend.samples, trend.gaps, trend.bad) == (1.0, 50.0, 86_400, [], [])
    (path,) = trend.paths
    assert path.count("L") <= 2 * COLUMNS + 1
    assert "277 4.0L" in path, "the spike is at the upper edge"


def test_a_gap_is_not_bridged() -> None:
    """Ten minutes without samples of a tag that comes each second are a gap, and so is the time before and after."""
    times = [*range(120_000, 600_000, 1000), *range(1_200_000, 1_800_000, 1000)]
    trend = trend_of(times, [2] * len(times), [0] * len(times), 0, 3_600_000)
    assert [(round(x), round(width)) for x, width in trend.gaps] == [(0, 20), (100, 100), (300, 300)]
    assert len(trend.paths) == 2


def test_bad_quality_lasts_until_a_good_value() -> None:
    """A loss is recorded once: the time until the next good value is bad and no gap. An open one lasts to the end. The
    values on both sides of a loss have one range."""
    times = [0, 1000, 2000, 3000, 63_000, 64_000, 65_000]
    qualities = [0, 0, 0, BAD, 0, 0, BAD]
    values = [3.0, 3.0, 3.0, None, 2.0, 1.0, None]
    trend = trend_of(times, values, qualities, 0, 100_000)
    assert [(round(x), round(width)) for x, width in trend.bad] == [(18, 360), (390, 210)]
    assert (trend.gaps, trend.low, trend.high) == ([], 1.0, 3.0)
    assert len(trend.paths) == 2


def test_what_has_no_picture() -> None:
    """No samples, not a number: no path and no range; a truth value is 0 or 1; one sample is seen."""
    assert trend_of([], [], [], 0, 1000).paths == []
    assert trend_of([], [], [], 0, 1000).gaps == [(0, COLUMNS)]
    assert trend_of([1, 2], [float("nan"), None], [0, 0], 0, 1000).low is None
    assert trend_of([1], [True], [0], 0, 1000).high == 1.0
    assert len(trend_of([500], [7], [0], 0, 1000).paths) == 1


def test_text_has_its_last_changes() -> None:
    """Newest first, without what is repeated, at most so many; a text of good quality is never drawn as bad."""
    trend = trend_of([1, 2, 3, 4, 5, 6], ["a", "a", None, "b", "b", "a"], [0, 0, BAD, 0, 0, 0], 0, 1000)
    assert trend.changes == [(6, "a", 0), (4, "b", 0), (3, None, BAD), (1, "a", 0)]
    assert (trend.samples, trend.paths, trend.bad, trend.gaps) == (6, [], [], [])
    assert len(trend_of(range(99), list(map(str, range(99))), [0] * 99, 0, 1000).changes) == CHANGES_MAX
