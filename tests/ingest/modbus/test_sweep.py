"""What a unit is asked for in one poll after the other, against devices that refuse in every way."""

import pytest

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.refusal import SILENT
from agent.ingest.modbus.refusal_search import Segment
from agent.ingest.modbus.sweep import SEARCH_MAX
from tests.ingest.modbus.devices import Device, S, poll, register, unit_of


def test_a_bad_value_costs_its_neighbours_nothing() -> None:
    """One value of 120 does not exist: it is marked in the first poll, all others are read in it, within few requests;
    from then on it costs a request of its own after each pause."""
    wanted = [register(address) for address in range(120)]
    unit, device = unit_of(wanted), Device({37: 2})
    done = poll(unit, device)
    assert (set(wanted) - set(done.values), done.marked) == ({register(37)}, {register(37): 2})
    assert done.requests <= 12
    assert [poll(unit, device, S).requests for _ in range(3)] == [2, 2, 2]
    assert poll(unit, device, 3 * S).requests == 3


def test_a_busy_device_is_not_asked_for_the_parts_at_once() -> None:
    """Exceptions 4, 5 and 6 are believed when the same read has them at two polls running; a poll between them that
    works takes the doubt away."""
    wanted = [register(address) for address in range(60)]
    unit = unit_of(wanted)
    busy, well = Device({10: 6}), Device()
    assert poll(unit, busy, 0).requests == 1
    assert poll(unit, well, 1).values == wanted
    assert poll(unit, busy, 2).requests == 1
    done = poll(unit, busy, 3)
    assert set(done.values) == set(wanted) - {register(10)}
    assert done.requests > 1


@pytest.mark.parametrize("code", [2, 4])
def test_a_unit_that_refuses_everything_gets_few_requests(code: int) -> None:
    """1,855 values, all refused: all are marked at every poll, no poll after the first two has more than some twenty
    requests, and when the device recovers all are read again in the next polls."""
    wanted = [register(address) for address in range(1_855)]
    unit = unit_of(wanted)
    bad = Device(dict.fromkeys(range(2_000), code))
    counts = []
    for number in range(300):
        done = poll(unit, bad, number * S)
        assert (done.values, set(done.marked)) == ([], set(wanted))
        counts.append(done.requests)
        assert counts[0] <= 15 + 40
    assert max(counts[2:]) <= 24
    assert unit.parked_count == len(wanted)
    polls = [poll(unit, Device(), (300 + number) * S) for number in range(3)]
    assert set(polls[1].values) == set(wanted)
    assert polls[2].requests == 15
    assert max(done.requests for done in polls) <= SEARCH_MAX + 15


def test_a_search_has_an_end_in_each_poll() -> None:
    """A device gives 600 values one by one only: no poll has more requests than the limit, and the search goes on in
    the next ones until all are read."""
    wanted = [register(address) for address in range(600)]
    unit, device = unit_of(wanted), Device(longest=1)
    polls = [poll(unit, device, number * S) for number in range(40)]
    assert all(done.requests - done.planned <= SEARCH_MAX for done in polls)
    assert polls[0].requests > SEARCH_MAX
    assert set(polls[-1].values) == set(wanted)


def test_a_new_row_that_is_refused_leaves_proven_reads_alone() -> None:
    """A row behind the last register of a read that works: the read is asked for as before in the poll in which the
    longer one is refused or not answered."""
    for code in (2, 4, 6, SILENT):
        wanted = [register(address) for address in range(60)]
        unit, device = unit_of(wanted), Device({60: code})
        poll(unit, device)
        unit.want_registers(dict(enumerate([*wanted, register(60)], 1)))
        for number in range(1, 20):
            done = poll(unit, device, number * S)
            assert set(done.values) == set(wanted), (code, number)


@pytest.mark.parametrize("code", [3, 6])
def test_reads_that_are_joined_in_vain_go_on_apart(code: int) -> None:
    """A value between two reads is given again, so they are planned as one, which the device refuses for its length.
    With no time for a search in any poll, the values of both are read in every poll all the same."""
    wanted = [register(address) for address in range(100)]
    unit, device = unit_of(wanted), Device({60: 2})
    for number in range(3):
        poll(unit, device, number * S)
    device.refused = {}
    device.judge = lambda first, end: code if end - first > 70 else None  # type: ignore[method-assign]
    poll(unit, device, 100 * S)  # asks for the parked value
    for number in range(101, 110):
        done = poll(unit, device, number * S, searches_max=0)
        assert set(done.values) == set(wanted), number
    for number in range(110, 113):
        done = poll(unit, device, number * S)
    assert (set(done.values), done.requests) == (set(wanted), 2)


def test_bits_of_one_word_are_refused_together() -> None:
    """Sixteen tags on one register are one value for the search: one request parks them all."""
    same = [Register(1, Table.HOLDING, 5, 1, register(0).kind, counter=number) for number in range(16)]
    unit, device = unit_of([register(4), *same, register(6)]), Device({5: 2})
    done = poll(unit, device)
    assert done.marked == dict.fromkeys(same, 2)
    assert done.requests <= 5


def test_a_read_that_is_never_answered_does_not_silence_the_unit() -> None:
    """A device leaves reads of one register unanswered. The unit is asked for another read when it is probed, and then
    the value alone is bad. Nor do two of them in one poll, if it refuses a third one in between."""
    wanted = [register(address) for address in (0, 1, 2, 200, 201, 400, 600)]
    unit, device = unit_of(wanted), Device({1: SILENT})
    assert poll(unit, device).is_silent
    unit.fell_silent(0)
    while device.judge(unit.probe().address, unit.probe().end) is not None:
        pass
    unit.answered()
    unit.proven.update(wanted[3:])  # as the probe's answer proves them
    for number in range(20):
        done = poll(unit, device, number * S)
        assert not done.is_silent or number < 1
    assert set(done.values) == set(wanted) - {register(1)}
    done = poll(unit, Device({200: SILENT, 400: 2, 600: SILENT}), 20 * S)
    assert (done.values, done.is_silent) == ([register(0), register(2)], False)


def test_reads_that_are_never_answered_cost_few_time_outs() -> None:
    """Thirty registers of a unit are never answered. Once they are known, one of them is asked for in the longest
    pause, not each after its own: every question costs all units of the line a time-out."""
    wanted = [register(address) for address in range(0, 400, 2)]
    unit, device = unit_of(wanted), Device(dict.fromkeys(range(100, 160), SILENT))
    unit.proven.update(wanted[:1])
    for number in range(300):
        poll(unit, device, number * S)
    assert unit.parked_count == 30
    before = len(device.asked)
    for number in range(300, 900):
        assert not poll(unit, device, number * S).is_silent
    unanswered = [read for read in device.asked[before:] if device.judge(read.address, read.end) == SILENT]
    assert len(unanswered) <= 600 / 60 + 1


def test_a_passing_refusal_of_two_values_is_not_learned() -> None:
    """A busy device refuses a read of two values and gives each alone: the read is made once more before it counts as
    refused, and then nothing is learned."""
    segment = Segment.of([register(0), register(1)], 6, is_refused=True)
    asked = []
    while not segment.is_done:
        asked.append(segment.question().count)
        segment.answered()
    assert asked == [1, 1, 2, 1]
    assert segment.take_findings() == []
