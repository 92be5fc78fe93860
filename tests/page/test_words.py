"""Figures as people say them: few digits, separators where they help, and whatever a node may have recorded."""

import pytest

from agent.page import words


@pytest.mark.parametrize(
    "found, said",
    [
        (0, "0"), (8420, "8,420"), (19_400, "19.4 k"), (1_900_000, "1.9 M"), (2.5e9, "2.5 G"), (9_999, "9,999"), (999_499, "999 k"), (999_500, "1 M"), (-999_999_999, "-1 G"), (-20_000, "-20 k"),
        (0.1234, "0.123"), (1234.5, "1,234"), (None, "unknown"), (True, "unknown"), ("9", "unknown"),
        (float("nan"), "unknown"), (10**400, "unknown"),
    ],
)  # fmt: skip
def test_counts(found: object, said: str) -> None:
    """Three digits from ten thousand on; what is no number is unknown."""
    assert words.count(found) == said


@pytest.mark.parametrize(
    "found, said",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1_500_000, "1.5 MB"),
        (999_499, "999 kB"),
        (999_999, "1 MB"),
        (999.9, "1 kB"),
        (8.4e9, "8.4 GB"),
        (2e12, "2 TB"),
        ({}, "unknown"),
    ],
)
def test_sizes(found: object, said: str) -> None:
    """In the unit that leaves few digits."""
    assert words.size(found) == said


@pytest.mark.parametrize(
    "found, said",
    [
        (2026, "2026"), (9999, "9999"), (10_000, "10,000"), (-1_000_000, "-1,000,000"), (1234567.0, "1,234,567"),
        (0.1 + 0.2, "0.3"), (73.31534, "73.31534"), (None, "no value"), ("a", "a"),
    ],
)  # fmt: skip
def test_values(found: object, said: str) -> None:
    """Separators from ten thousand on, so that a year has none; seven digits of a measured value."""
    assert words.value(found) == said


@pytest.mark.parametrize(
    "ends, said",
    [
        ((1_234_527.0, 1_234_530.0), ["1,234,527", "1,234,528.5", "1,234,530"]),
        ((101_300.0, 101_350.0), ["101,300", "101,325", "101,350"]),
        ((21.5, 21.5), ["21.5", "21.5", "21.5"]),
        ((0.0, 0.0), ["0", "0", "0"]),
        ((0.0, 12_345.6), ["0", "6,172.8", "12,346"]),
        ((0.0, 100.0), ["0", "50", "100"]),
        ((-0.00012, 0.00013), ["-0.00012", "5e-06", "0.00013"]),
        ((1e-12, 2e-12), ["1e-12", "1.5e-12", "2e-12"]),
        ((-1.7e308, 1.7e308), ["-1.7e+308", "0", "1.7e+308"]),
    ],
)
def test_an_axis(ends: tuple[float, float], said: list[str]) -> None:
    """The labels tell the ends of the axis apart, however far they are from zero; what needs too many digits has an
    exponent."""
    low, high = ends
    assert [words.label(y, low, high) for y in (low, (low + high) / 2, high)] == said


def test_ages_and_moments() -> None:
    """Seconds up to two minutes, then as everywhere; a time that no calendar has is unknown."""
    assert [words.age(seconds) for seconds in (0.04, 9.94, 10, 119, 120, None)] == [
        *("0.0 s", "9.9 s", "10 s", "119 s", "2 min", "unknown"),
    ]
    assert words.moment(1_790_000_000_000) == "2026-09-21 14:13:20Z"
    assert {words.moment(found) for found in (0, -1, 10**15, "x", None)} == {"unknown"}
