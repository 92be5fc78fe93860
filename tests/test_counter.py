"""What a counter has counted: field cases by hand, and devices that wrap, restart and give wrong readings."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.counter import CounterChange, CounterReader, CounterReading


def increases(values: list[float], modulus: float | None = None) -> list[float | None]:
    """What each reading shows, a second apart."""
    reader = CounterReader(modulus)
    found = [reader.read(CounterReading(value, second)) for second, value in enumerate(values)]
    return [None if increase is None else increase.counted for increase in found]


def total(values: list[float], modulus: float | None = None) -> float:
    """All that was counted."""
    return sum(increase or 0 for increase in increases(values, modulus))


@pytest.mark.parametrize(
    "values, modulus, found",
    [
        ([5, 5, 9], None, [None, 0, 4]),
        ([250, 4], 256, [None, 10]),
        ([81_234_570, 0, 0, 81_234_580], None, [None, None, None, 10]),  # a meter that answers 0 while it starts
        ([81_234_570, 0, 17, 81_234_580], None, [None, None, 17, 0]),  # with rubbish: 17 was counted, 7 too many
        ([81_234_570, 12, 40, 90], None, [None, None, 40, 50]),  # replaced
        ([30_000, 12, 12, 40], 65_536, [None, None, None, 40]),
        ([500, 90, 0, 3], None, [None, None, None, 3]),  # set to 0 below a wrong reading
        ([65_000, 30_000, 100], 65_536, [None, None, 636]),  # one wrong reading before a wrap
        ([100, 0, 40, 60, 101], None, [None, None, 40, 20, 41]),  # goes on past its old reading
        ([100, 0, 3, 0, 4, 120], None, [None, None, 3, None, 1, 16]),  # comes back after all: 20 together
        ([100, 0, 9, 4, 5, 120], None, [None, None, 9, None, 5, 6]),  # likewise, from a second fall
        ([100, 0, 3, 100], None, [None, None, 3, 0]),  # comes back exactly
        ([100, 0, 50, 120], None, [None, None, 50, 0]),  # from half of it, which may be either
        ([100, 0, 51, 120], None, [None, None, 51, 69]),
    ],
)
def test_a_fall_is_decided_by_what_follows(
    values: list[float], modulus: float | None, found: list[float | None]
) -> None:
    """Each case of the field, with what each reading counts."""
    assert increases(values, modulus) == found


def test_a_restart_names_its_first_low_reading() -> None:
    """It is known one reading later, and names the readings on both sides of it."""
    reader = CounterReader(65_536)
    reader.read(CounterReading(30_000, 1))
    assert reader.read(CounterReading(12, 2)) is None
    restart = reader.read(CounterReading(40, 3))
    assert restart is not None
    assert (restart.change, restart.before, restart.after) == (
        CounterChange.RESTARTED,
        CounterReading(30_000, 1),
        CounterReading(12, 2),
    )


def test_each_change_has_its_name() -> None:
    """Of two wraps and a restart, with what was counted before and after each."""
    reader, found = CounterReader(256), []
    for second, value in enumerate((250, 4, 60, 120, 180, 240, 10, 120, 5, 30)):
        increase = reader.read(CounterReading(value, second))
        found.append(None if increase is None else increase.change)
    counted, wrapped, restarted = CounterChange.COUNTED, CounterChange.WRAPPED, CounterChange.RESTARTED
    assert found == [None, wrapped, *[counted] * 4, wrapped, counted, None, restarted]


def test_another_unit_begins_anew() -> None:
    """From kWh to Wh and back: the first reading in a unit counts nothing."""
    reader = CounterReader()
    told = [(118, "kWh"), (119, "kWh"), (119_000, "Wh"), (119_500, "Wh"), (120, "kWh"), (121, "kWh")]
    found = [reader.read(CounterReading(value, second), unit) for second, (value, unit) in enumerate(told)]
    assert [None if reading is None else reading.counted for reading in found] == [None, 1, None, 500, None, 1]


def test_readings_far_apart_are_not_compared() -> None:
    """After a day without readings the next one begins anew, also if a lower reading was undecided."""
    reader = CounterReader(None, apart_ns_max=10)
    told = [(1, 0), (0, 100), (30, 110), (50, 111), (20, 112), (60, 122), (25, 123)]
    found = [reader.read(CounterReading(value, time_ns)) for value, time_ns in told]
    assert [None if reading is None else reading.counted for reading in found] == [None, None, 30, 20, None, None, None]


RISES = st.lists(st.integers(0, 64), min_size=2, max_size=40)


@given(RISES, st.integers(0, 255))
def test_what_was_counted_is_exact(rises: list[int], start: int) -> None:
    """A counter of 256 steps that is read before it has gone a quarter."""
    readings = [(start + sum(rises[: number + 1])) % 256 for number in range(len(rises))]
    assert total(list(map(float, readings)), 256) == sum(rises[1:])


@given(RISES, st.integers(1_000, 10**9), st.data())
def test_wrong_readings_count_nothing(rises: list[int], start: int, data: st.DataObject) -> None:
    """Readings that stay or fall, between those of a counter that goes on: the sum is that of the counter."""
    readings, values = [float(start + sum(rises[:number])) for number in range(1, len(rises) + 1)], []
    for reading in readings:
        values.append(reading)
        wrong = data.draw(st.lists(st.integers(0, start - 1), max_size=3), "wrong readings")
        values += sorted(map(float, wrong), reverse=True)
    assert total([*values, readings[-1]]) == readings[-1] - readings[0]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30), st.sampled_from([None, 1e9 + 1]))
def test_nothing_is_counted_twice(values: list[float], modulus: float | None) -> None:
    """Whatever the readings: no increase is negative, and without wraps the sum is at most that of a counter that was
    set to 0 at each fall."""
    found = increases(values, modulus)
    assert all(increase is None or increase >= 0 for increase in found)
    if modulus is None:
        restarted = sum(later - earlier if later >= earlier else later for earlier, later in itertools.pairwise(values))
        assert total(values) <= restarted * (1 + 1e-9)


@given(
    st.lists(st.integers(0, 10), min_size=4, max_size=30),
    st.lists(st.booleans(), min_size=30, max_size=30),
    st.integers(-5, 5),
    st.sampled_from([None, 400]),
)
def test_two_gateways_with_other_clocks_count_once(
    rises: list[int], is_missed: list[bool], late_s: int, modulus: int | None
) -> None:
    """Two gateways read one counter each second, one of them with gaps and with a clock that is seconds off, over wraps
    as well: all that was counted is counted, once, and no reading is a restart."""
    counts = list(itertools.accumulate(rises, initial=1000))
    told = [(second, 1, counted, "a") for second, counted in enumerate(counts)]
    told += [
        (second + late_s, 2, counted, "b")
        for second, (counted, gap) in enumerate(zip(counts, is_missed, strict=False))
        if not gap
    ]
    told.sort()
    reader, found = CounterReader(modulus), []
    for second, _, counted, life in told:
        found.append(reader.read(CounterReading(counted % modulus if modulus else counted, second, life)))
    assert sum(reading.counted for reading in found if reading) == max(told, key=lambda row: row[2])[2] - told[0][2]
    assert CounterChange.RESTARTED not in {reading.change for reading in found if reading}


def test_a_restart_between_two_gateways_is_one() -> None:
    """A device that was set to 0 while the other gateway took over has counted from 0, if it is read before it has half
    of its old count."""
    reader, readings = CounterReader(), [(1000, "a"), (12, "b"), (40, "b"), (600, "b")]
    found = [reader.read(CounterReading(value, second, life)) for second, (value, life) in enumerate(readings)]
    assert [None if reading is None else reading.counted for reading in found] == [None, None, 40, 560]
