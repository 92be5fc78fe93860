"""How long consumers have been behind, and which catch up: from looks at a store once a second."""

import pytest

from agent.health.behind import ENDS_MAX, SAMPLES_MAX, Behind, Reads

STREAM = "facts.telemetry"


def watched(ends: list[int], frontiers: list[int]) -> Behind:
    """A look a second at one stream and its consumer, the last one now, at as many seconds."""
    behind = Behind()
    for second, (end, frontier) in enumerate(zip(ends, frontiers, strict=True), 1):
        behind.look(second, {STREAM: end}, {"idmz": (STREAM, frontier)})
    return behind


def test_age_is_since_a_fact_came_here() -> None:
    """To the second, by where the stream ended; not known of what was there before the first look, or is longer ago than remembered."""
    behind = watched([10, 20, 30, 30], [0, 0, 0, 0])
    assert [behind.age_s(STREAM, frontier, 4.5) for frontier in (9, 10, 19, 20, 29, 30)] == [
        None,
        3.5,
        3.5,
        2.5,
        2.5,
        0.5,
    ]
    assert behind.age_s("facts.other", 0, 4.5) is None
    long = watched([*range(1, ENDS_MAX + 2)], [0] * (ENDS_MAX + 1))
    assert (long.age_s(STREAM, 1, ENDS_MAX + 1), long.age_s(STREAM, 2, ENDS_MAX + 1)) == (None, ENDS_MAX - 1)


@pytest.mark.parametrize(
    "what, ends, frontiers, expected",
    [
        ("seen once", [100], [0], None),
        ("stands still", [100, 100, 100], [5, 5, 5], None),
        ("drains a log that rests", [100, 100, 100], [0, 10, 20], Reads(10.0, 8.0)),
        ("drains one that grows", [100, 105, 110], [0, 10, 20], Reads(10.0, 18.0)),
        ("grows as fast as it reads", [100, 110, 120], [0, 10, 20], Reads(10.0, None)),
        ("falls behind", [100, 200, 300], [0, 10, 20], Reads(10.0, None)),
        ("counts from where it began to move", [100, 100, 100, 100], [0, 0, 0, 30], Reads(30.0, 70 / 30)),
        ("has everything", [100, 100], [90, 100], Reads(10.0, 0.0)),
        (
            "is on its feet again after a minute away",
            [100] * SAMPLES_MAX + [100, 100],
            [0] * SAMPLES_MAX + [20, 40],
            Reads(20.0, 3.0),
        ),
        ("read a minute ago, and stopped", [100] * (SAMPLES_MAX + 1), [0, *[50] * SAMPLES_MAX], None),
    ],
)
def test_who_catches_up(what: str, ends: list[int], frontiers: list[int], expected: Reads | None) -> None:
    """Facts per second are what is confirmed; the time left counts that the log grows meanwhile, and is named only where both meet."""
    assert watched(ends, frontiers).reads("idmz") == expected, what


def test_a_consumer_that_is_removed_is_forgotten() -> None:
    """One that is registered again under its name begins anew."""
    behind = watched([100, 100], [0, 50])
    behind.look(3, {STREAM: 100}, {})
    assert behind.reads("idmz") is None
    behind.look(4, {STREAM: 100}, {"idmz": (STREAM, 0)})
    assert behind.reads("idmz") is None
