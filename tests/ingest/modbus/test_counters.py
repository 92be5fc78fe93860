"""Wraps and restarts of counters, against devices that count."""

import json

from agent.columns import SampleColumns
from agent.ingest.modbus.counters import CounterTracker, fall_message
from agent.ingest.quality import BAD_TIMEOUT
from agent.message import Value, check_message


def samples(*values: Value) -> SampleColumns:
    """Readings of tag 1, a second apart; None is a bad sample."""
    times = [number * 10**9 for number in range(1, len(values) + 1)]
    return SampleColumns([1] * len(values), times, list(values), [BAD_TIMEOUT if v is None else 0 for v in values])


def book(modulus: float, before: Value = None) -> CounterTracker:
    """A book of tag 1 between others; `before`: its last reading by an earlier process."""
    return CounterTracker({8: 10, 1: modulus, 9: 16}, {8: (0, 7), 1: (0, before), 9: (0, 8)}.__getitem__)


def test_a_bad_sample_is_no_reading() -> None:
    """An outage between two readings, and a restart of this process, change nothing: the readings are compared."""
    (fall,) = book(65_536).falls(samples(65_000, None, 200))
    assert (fall.before, fall.counted) == (65_000, 736)
    (fall,) = book(65_536, 65_535).falls(samples(0))
    assert fall.counted == 1


def test_a_counter_that_left_the_map_begins_anew() -> None:
    """Of three counters one leaves the map and returns, one gets another modulus, and one goes on. Only the one that
    goes on is compared with its reading before: what the others counted meanwhile is not known."""
    tracker = CounterTracker(dict.fromkeys((1, 2, 3), 256), lambda _: (0, None))

    def falls(second: int, value: int) -> list[int]:
        rows = SampleColumns([1, 2, 3], [second * 10**9] * 3, [value] * 3, [0] * 3)
        return [fall.tag for fall in tracker.falls(rows)]

    assert falls(1, 250) == []
    tracker.keep({2: 65_536, 3: 256})
    tracker.keep({1: 256, 2: 65_536, 3: 256})
    assert falls(2, 4) == [3]
    assert falls(3, 5) == []


def test_the_fact_of_a_wrap() -> None:
    """It names both readings and their times, and what was counted; repeated, it has the same id."""
    (fall,) = book(256).falls(samples(250, 4))
    message = fall_message(fall, "tag:a/energy", "plant-a")
    check_message(message)
    content = json.loads(message.fact.object_json)
    assert (content["before"], content["after"], content["counted"]) == (250, 4, 10)
    assert (message.fact.subject, message.fact.predicate) == ("tag:a/energy", "counter_wrapped")
    assert fall_message(fall, "tag:a/energy", "plant-a") == message


def test_a_reading_that_json_would_round() -> None:
    """All ones, which many devices give while they start, are beyond 2^53: they stand in the fact as text, as in
    queries."""
    (fall,) = book(2**64).falls(samples(5_000, 2**64 - 1, 5_001))
    message = fall_message(fall, "tag:a/energy", "plant-a")
    check_message(message)
    content = json.loads(message.fact.object_json)
    assert (content["before"], content["after"], content["counted"]) == (str(2**64 - 1), 5_001, 5_002)
