import math

import pytest

from agent.ingest.opcua.subscriptions.monitoring import (
    INTERVAL_MS_MAX,
    QUEUE_SIZE_MAX,
    QUEUE_SIZE_ON_CHANGE,
    is_hole,
    publishing_ms_of,
    queue_size_for,
    sampling_ms_of,
)

MS = 1_000_000


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
    """Whatever a server revises, queues and silence come out of it."""
    assert publishing_ms_of(revised, 500.0) == publishing
    assert sampling_ms_of(revised, 500.0) == sampling
    assert queue_size_for(sampling, publishing) >= 2


def test_a_queue_lasts_through_a_stall() -> None:
    """Ten seconds beyond a publishing interval at the sampling interval; a limit for fast items, a figure of its own
    for those sampled on change."""
    assert queue_size_for(250, 500) == 43
    assert queue_size_for(60_000, 500) == 2
    assert queue_size_for(1, 500) == QUEUE_SIZE_MAX
    assert queue_size_for(0, 500) == QUEUE_SIZE_ON_CHANGE
    assert queue_size_for(0, 20_000) == 3 * QUEUE_SIZE_ON_CHANGE


def test_a_hole_is_wider_than_the_sampling() -> None:
    """A sample that comes late leaves none; where each change is notified any time may hide one; without a value before
    there is no hole."""
    assert is_hole(1000 * MS, 1600 * MS, 250)
    assert not is_hole(1000 * MS, 1500 * MS, 250)
    assert is_hole(1000 * MS, 1001 * MS, 0)
    assert not is_hole(0, 1600 * MS, 250)
