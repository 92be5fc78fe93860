"""The belief in the node's clock: what is doubted, until when, what is recorded about it, and which samples are
good."""

import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.columns import SampleColumns
from agent.ingest.clock import (
    AHEAD_NS,
    BEHIND_NS,
    BUILT_NS,
    DOUBTED_NS_MAX,
    STARTING_NS_MAX,
    ClockBelief,
    ClockChange,
    ClockMemory,
    ClockReading,
    ClockSeen,
    Doubt,
    clock_message,
    mark_doubted,
)
from agent.message import Sample, time_text

S = 1_000_000_000
HOUR = 3_600 * S
NOW = BUILT_NS + 1_000 * HOUR
RUN = 500 * HOUR  # since the start of the machine
UNKNOWN = ClockMemory()
KNOWN = ClockMemory(NOW, NOW - RUN)  # of a process that has just ended


def belief(*, wall_ns: int = NOW, boot_ns: int = RUN, memory: ClockMemory = UNKNOWN, **more: bool) -> ClockBelief:
    """A start with this clock."""
    return ClockBelief(memory, ClockReading(wall_ns, boot_ns, **more), 0)


@pytest.mark.parametrize(
    "wall_ns, boot_ns, memory, more, doubt",
    [
        (NOW, RUN, UNKNOWN, {}, None),  # a first start: nothing speaks against it
        (60 * S, 60 * S, UNKNOWN, {}, Doubt.BEFORE_BUILD),
        (BUILT_NS - 1, RUN, UNKNOWN, {"is_synchronised": True}, Doubt.BEFORE_BUILD),
        (NOW + 9 * S, RUN + 9 * S, KNOWN, {}, None),  # the process alone was restarted
        (NOW + 9 * S, RUN + 9 * S, KNOWN._replace(has_server=True), {}, None),
        (NOW - HOUR, 60 * S, KNOWN, {}, Doubt.BEHIND),
        (NOW - HOUR, 60 * S, KNOWN, {"is_synchronised": True}, None),  # the earlier one was ahead
        (NOW + 90 * S, 60 * S, KNOWN, {}, Doubt.UNCONFIRMED),  # it goes on from the last stop
        (NOW + 90 * S, 60 * S, KNOWN, {"has_kept_time": True}, None),  # off for half a minute
        (NOW + 90 * S, 60 * S, KNOWN, {"is_synchronised": True}, None),
        (NOW + HOUR, 60 * S, KNOWN, {}, None),  # it went on while the machine was off
        (NOW + HOUR, 60 * S, belief(is_synchronised=True).memory, {}, Doubt.UNCONFIRMED),
        (NOW + 9 * S, RUN + 99 * S, KNOWN, {}, Doubt.UNCONFIRMED),  # it lost 90 s while no process ran
        (NOW + 99 * S, RUN + 9 * S, KNOWN, {}, None),  # it was set forward while no process ran
        (NOW + AHEAD_NS + S, 60 * S, KNOWN, {"has_kept_time": True}, Doubt.AHEAD),  # the battery clock is wrong
        (NOW + AHEAD_NS + S, 60 * S, KNOWN, {"is_synchronised": True}, None),  # off for a year
        (NOW + AHEAD_NS + S, 60 * S, ClockMemory(60 * S, 1), {}, None),  # nothing was believed before
    ],
)
def test_what_is_doubted_at_a_start(
    wall_ns: int, boot_ns: int, memory: ClockMemory, more: dict[str, bool], doubt: Doubt | None
) -> None:
    """Before the build, before the newest time believed or years after it, or where a clock that stood still would
    be."""
    found = belief(wall_ns=wall_ns, boot_ns=boot_ns, memory=memory, **more)
    assert found.doubt is doubt
    assert bool(found.spans(boot_ns)) == (doubt is not None)


def test_the_times_that_the_store_recorded_count_as_believed() -> None:
    """Without the file of the last process, too."""
    reading = ClockReading(NOW, RUN)
    assert ClockBelief(UNKNOWN, reading, NOW + BEHIND_NS).doubt is None
    assert ClockBelief(UNKNOWN, reading, NOW + BEHIND_NS + 1).doubt is Doubt.BEHIND


def test_a_doubt_about_a_start_ends() -> None:
    """By a time server, by hand, or after a day; one that the clock is behind also when its time comes. A clock before
    the build stays doubted."""
    known = KNOWN._replace(has_server=True)
    for boot_ns, moved_ns, is_synchronised, offset_ns in (
        (90 * S, 0, True, 0),
        (90 * S, HOUR, False, HOUR),
        (60 * S + DOUBTED_NS_MAX, 0, False, None),
    ):
        found = belief(wall_ns=NOW + 5 * S, boot_ns=60 * S, memory=known)
        assert found.take_reading(ClockReading(NOW + 34 * S, 89 * S)) is None
        wall_ns = NOW - 55 * S + boot_ns + moved_ns
        change = found.take_reading(ClockReading(wall_ns, boot_ns, is_synchronised))
        assert change == ClockChange(NOW - 55 * S, wall_ns - moved_ns, wall_ns, offset_ns, None)
        assert found.spans(boot_ns) == [(NOW - 55 * S, wall_ns - moved_ns)]
        seen = ClockSeen("", wall_ns - boot_ns)
        assert found.memory == ClockMemory(wall_ns, wall_ns - boot_ns, has_server=True, seen=seen)
    behind = belief(wall_ns=NOW - HOUR, boot_ns=60 * S, memory=known)
    assert behind.take_reading(ClockReading(NOW - 1, 60 * S + HOUR - 1)) is None
    assert behind.take_reading(ClockReading(NOW, 60 * S + HOUR)) is not None
    assert behind.doubt is None
    never = belief(wall_ns=S, boot_ns=S)
    assert never.take_reading(ClockReading(2 * DOUBTED_NS_MAX, 2 * DOUBTED_NS_MAX, is_synchronised=True)) is None
    assert never.doubt is Doubt.BEFORE_BUILD


def test_a_clock_that_is_set_while_the_node_runs_is_one_change() -> None:
    """Forwards it is believed; back it is behind, until a time server says that it is right: then the former clock was
    wrong, and this one is followed after the next start. A second of correction is no change."""
    found = belief()
    assert found.take_reading(ClockReading(NOW + 2 * S, RUN + S)) is None
    assert found.is_settled(NOW + 2 * S, RUN + S)
    assert not found.is_settled(NOW + HOUR, RUN + S)
    change = found.take_reading(ClockReading(NOW + HOUR, RUN + S))
    assert change == ClockChange(None, NOW + S, NOW + HOUR, HOUR - S, None)
    assert found.take_reading(ClockReading(NOW - HOUR, RUN + S)) == ClockChange(
        None, NOW + HOUR, NOW - HOUR, -2 * HOUR, Doubt.BEHIND
    )
    assert found.spans(RUN + S) == [(NOW - HOUR, NOW - HOUR + 2 * S)]
    change = found.take_reading(ClockReading(NOW - HOUR + S, RUN + 2 * S, is_synchronised=True))
    assert change == ClockChange(NOW - HOUR, NOW - HOUR + S, NOW - HOUR + S, 0, None)
    assert belief(wall_ns=NOW - HOUR + 2 * S, boot_ns=RUN + 3 * S, memory=found.memory).doubt is None


def test_samples_between_two_looks_at_the_clock_are_doubted() -> None:
    """They have been read since it was set."""
    found = belief()
    found.take_reading(ClockReading(9 * S, RUN + 3 * S))
    assert found.spans(RUN + 3 * S) == [(6 * S, 11 * S)]


def test_a_restart_before_the_time_arrives_keeps_what_was_believed() -> None:
    """The times that a doubted clock gave do not count as believed at the next start."""
    first = belief(wall_ns=NOW - HOUR, boot_ns=STARTING_NS_MAX, memory=KNOWN)
    first.take_reading(ClockReading(NOW - HOUR + S, STARTING_NS_MAX + S))
    second = belief(wall_ns=NOW - HOUR + 2 * S, boot_ns=STARTING_NS_MAX + 2 * S, memory=first.memory)
    assert second.doubt is Doubt.BEHIND
    assert second.spans(0)[0][0] == NOW - HOUR - STARTING_NS_MAX, "the samples of the first process are among them"
    ahead = ClockReading(NOW + 2 * AHEAD_NS, S)
    first = ClockBelief(KNOWN, ahead, 0)
    assert ClockBelief(first.memory, ahead, ahead.wall_ns).doubt is Doubt.AHEAD, "nor do the times that it recorded"
    assert ClockBelief(first.memory, ClockReading(NOW + HOUR, S), ahead.wall_ns).doubt is None
    first = belief(wall_ns=NOW + S, boot_ns=S, memory=KNOWN)
    late_ns = STARTING_NS_MAX + HOUR
    assert belief(wall_ns=NOW + late_ns, boot_ns=late_ns, memory=first.memory).doubt is Doubt.UNCONFIRMED


def test_a_clock_that_is_set_between_two_processes_is_one_change() -> None:
    """It says by how much, and since when the clock was not believed before. Not if the machine was started, nor where
    its starts are not known; the process after that has nothing to say."""

    def started(memory: ClockMemory, wall_ns: int, boot_ns: int, boot_id: str) -> ClockBelief:
        return ClockBelief(memory, ClockReading(wall_ns, boot_ns, boot_id=boot_id), 0)

    for wall_ns, since_ns in ((NOW, None), (RUN + 40 * S, 40 * S)):
        first = started(UNKNOWN, wall_ns, RUN, "a")
        assert first.set_meanwhile is None
        for boot_id in ("b", ""):
            assert started(first.memory, wall_ns + HOUR, RUN + S, boot_id).set_meanwhile is None
        assert started(first.memory, wall_ns + 2 * S, RUN + S, "a").set_meanwhile is None
        first.take_reading(ClockReading(wall_ns + S, RUN + S, boot_id="a"))
        second = started(first.memory, NOW + HOUR, RUN + 2 * S, "a")
        was_ns = wall_ns + 2 * S
        assert second.set_meanwhile == ClockChange(since_ns, was_ns, NOW + HOUR, NOW + HOUR - was_ns, None)
        back = started(second.memory, NOW, RUN + 3 * S, "a")
        assert back.set_meanwhile == ClockChange(None, NOW + HOUR + S, NOW, -HOUR - S, Doubt.BEHIND)
        assert started(back.memory, NOW + S, RUN + 4 * S, "a").set_meanwhile is None


SECONDS = st.integers(0, 3_000)
TIMES = st.one_of(st.integers(0, 10_000), st.integers(-20_000, 20_000).map(lambda s: NOW // S + s))
STEPS = st.lists(
    st.tuples(st.sampled_from(["pass", "set", "sample", "deliver", "restart"]), SECONDS, TIMES), max_size=40
)


@given(start_s=TIMES, steps=STEPS)
def test_no_good_sample_has_a_time_that_is_not_believed(start_s: int, steps: list[tuple[str, int, int]]) -> None:
    """However the clock is set and whenever samples are delivered: none is good with a time before the build, or with
    one more than two minutes before the newest good time. A clock that shows more than all before is believed."""
    boot_ns = RUN
    offset_ns = start_s * S - boot_ns
    found = ClockBelief(UNKNOWN, ClockReading(start_s * S, boot_ns), 0)
    taken = deque[int]()
    newest_ns = high_ns = 0
    is_looked_at = True
    for kind, passed_s, to_s in steps:
        match kind:
            case "pass":
                boot_ns += passed_s * S // 100
            case "set" if is_looked_at:  # the node looks once a second
                high_ns = max(high_ns, boot_ns + offset_ns)
                offset_ns, is_looked_at = to_s * S - boot_ns, False
            case "sample":
                taken.append(boot_ns + offset_ns)
            case "restart":
                taken.clear()
                found = ClockBelief(found.memory, ClockReading(boot_ns + offset_ns, boot_ns), newest_ns)
                is_looked_at = True
            case "deliver":
                found.take_reading(ClockReading(boot_ns + offset_ns, boot_ns))
                is_looked_at = True
                rows = SampleColumns.of([Sample(1, time_ns, 1) for time_ns in taken])
                taken.clear()
                marked = mark_doubted(rows, found.spans(boot_ns))
                for time_ns, quality in zip(marked.source_times_ns, marked.qualities, strict=True):
                    if quality == 0:
                        assert time_ns >= max(BUILT_NS, newest_ns - BEHIND_NS)
                        newest_ns = max(newest_ns, time_ns)
        if is_looked_at and boot_ns + offset_ns > max(high_ns, BUILT_NS + DOUBTED_NS_MAX):
            found.take_reading(ClockReading(boot_ns + offset_ns, boot_ns))
            assert found.doubt in (None, Doubt.UNCONFIRMED)


def test_the_fact_of_a_change() -> None:
    """It says how to correct the times, and is dated by the clock that is believed."""
    arrived = clock_message(ClockChange(5 * S, 65 * S, NOW, NOW - 65 * S, None), "plant-a")
    assert (arrived.fact.subject, arrived.fact.predicate) == ("clock:plant-a", "clock_set")
    assert arrived.envelope.produced_at_unix_ms == NOW // 1_000_000
    assert json.loads(arrived.fact.object_json) == {
        "believed": True,
        "doubt": None,
        "doubted_since": "1970-01-01T00:00:05Z",
        "from_time": "1970-01-01T00:01:05Z",
        "offset_ms": (NOW - 65 * S) // 1_000_000,
        "to_time": time_text(NOW),
    }
    back = clock_message(ClockChange(None, NOW, NOW - HOUR, -HOUR, Doubt.BEHIND), "plant-a")
    assert back.envelope.produced_at_unix_ms == NOW // 1_000_000
    assert json.loads(back.fact.object_json)["doubt"] == "behind"
