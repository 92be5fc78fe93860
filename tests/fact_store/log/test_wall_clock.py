"""A wall clock that is set leaves an incident and a line in the log: while the store is open, and between two lives."""

import logging
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.fact_store.log.wall_clock import CLOCK_JUMP_MS, ClockReading, clock_set_back, is_clock_behind
from agent.fact_store.writer import writer
from tests.fact_store.making import TELEMETRY, done, plant, samples

HOUR_MS = 3_600_000


def test_a_jump_is_the_difference_of_two_clocks() -> None:
    """Time that passes on both clocks is no jump, however long; nor is a leap second, or a slow correction."""
    began = ClockReading(1_700_000_000_000, 5_000_000_000)

    def later(unix_ms: int, monotonic_ms: int) -> ClockReading:
        return ClockReading(began.unix_ms + unix_ms, began.monotonic_ns + monotonic_ms * 1_000_000)

    assert began.jump_ms(later(HOUR_MS, HOUR_MS)) == 0
    assert began.jump_ms(later(HOUR_MS - 1_000, HOUR_MS)) == 0
    assert began.jump_ms(later(HOUR_MS + CLOCK_JUMP_MS, HOUR_MS)) == CLOCK_JUMP_MS
    assert began.jump_ms(later(-HOUR_MS, 10)) == -HOUR_MS - 10
    assert "set back by 3,600.0 s" in began.jump_text(later(-HOUR_MS, 0))
    assert "set forward by 3,600.0 s while the node ran, to 2023-11-14 23:13:20Z" in began.jump_text(later(HOUR_MS, 0))


def test_a_clock_behind_the_newest_fact_was_set_back() -> None:
    """A store that was closed for long is normal; a time before its newest fact is not. Nonsense in a mark is shown as
    it is."""
    assert not is_clock_behind(1_000, 1_000 + 10 * HOUR_MS)
    assert not is_clock_behind(CLOCK_JUMP_MS - 1, 0)
    assert is_clock_behind(CLOCK_JUMP_MS, 0)
    assert "3,600.0 s before the newest facts were recorded" in clock_set_back(HOUR_MS, 0)
    assert f"{2**62} ms after 1970" in clock_set_back(2**62, 0)


def test_a_clock_that_is_set_while_the_node_runs_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next commit records it, once for each jump."""
    offset_ns = 0

    def shifted() -> int:
        return time.time_ns() + offset_ns

    monkeypatch.setattr(writer, "time", SimpleNamespace(time_ns=shifted, monotonic_ns=time.monotonic_ns))
    with caplog.at_level(logging.WARNING), plant(tmp_path) as store:
        for number in range(6):
            offset_ns = -HOUR_MS * 1_000_000 * (number // 2)
            done(store.appends.append_samples(TELEMETRY, samples(1)))
        (incident,) = store.incidents()
        assert (incident.kind, incident.subject, incident.count) == ("clock", "while the node ran", 2)
        assert "set back by 3,6" in incident.detail
    assert [one.message for one in caplog.records].count("clock_jumped") == 2


def test_a_clock_that_is_behind_at_the_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway whose clock battery is empty starts in 1970; the incident names both times. A later start with the
    right time reports nothing more."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(1)))
    with monkeypatch.context() as early, caplog.at_level(logging.WARNING):
        early.setattr("agent.fact_store.store.time.time_ns", lambda: 60 * 10**9)
        with plant(tmp_path) as store:
            (incident,) = store.incidents()
            assert (incident.kind, incident.subject) == ("clock", "at opening")
            assert "the clock shows 1970-01-01 00:01:00Z" in incident.detail
    assert "clock_behind" in [one.message for one in caplog.records]
    with plant(tmp_path) as store:
        assert [(one.subject, one.count) for one in store.incidents() if one.kind == "clock"] == [("at opening", 1)]
